/* Walks over a schedule in an order in which its actions can run. */
#include "schedule/walk.h"

enum { RAN_F = 1, RAN_B = 2 };

void sl_walk_destroy(sl_walk *walk)
{
    sl_free(walk->walkers);
    sl_free(walk->stages);
    sl_free(walk->ran);
    sl_free(walk->sent[0]);
    sl_free(walk->sent[1]);
    sl_free(walk->ready);
    *walk = (sl_walk){ 0 };
}

sl_status sl_walk_create(const sl_schedule *schedule, const sl_links *links, int64_t capacity, sl_walk *out)
{
    sl_status status = SL_OK;
    sl_walk walk = {
        .schedule = schedule,
        .links = links,
        .messages = sl_schedule_has_messages(schedule),
        .capacity = capacity < 0 ? INT64_MAX : capacity,
    };

    SL_TRY(SL_NEW_ARRAY(walk.walkers, schedule->ranks));
    SL_TRY(SL_NEW_ARRAY(walk.ready, schedule->ranks));
    SL_TRY(SL_NEW_ARRAY(walk.stages, schedule->stages));
    for (int stage = 0; stage < schedule->stages; stage++) {
        for (int gate = 0; gate < SL_GATE_COUNT; gate++)
            walk.stages[stage].waiters[gate] = -1;
    }
    if (!walk.messages)
        SL_TRY(SL_NEW_ARRAY(walk.ran, (int64_t)schedule->stages * schedule->microbatches));
    for (int way = 0; way < 2 && sl_schedule_has_send_waits(schedule); way++)
        SL_TRY(SL_NEW_ARRAY(walk.sent[way], (int64_t)schedule->stages * schedule->microbatches));
    for (int rank = schedule->ranks - 1; rank >= 0; rank--) /* rank 0 comes off first */
        walk.ready[walk.ready_count++] = rank;

    *out = walk;
    walk = (sl_walk){ 0 };
done:
    sl_walk_destroy(&walk);
    return status;
}

static int64_t cell_of(const sl_walk *walk, int stage, int64_t microbatch)
{
    return (int64_t)stage * walk->schedule->microbatches + microbatch;
}

static bool gate_is_open(const sl_walk *walk, sl_gate gate, int stage, int64_t need)
{
    if (walk->messages)
        return walk->stages[stage].passed[gate] > need;
    return (walk->ran[cell_of(walk, stage, need)] & (gate == SL_GATE_SEND_F ? RAN_F : RAN_B)) != 0;
}

/* Looks at the gate of each peer, from where it left off. */
static bool pass_gates(sl_walk *walk, int rank, const sl_link_table *table, int stage, sl_gate gate, int64_t need)
{
    sl_walker *walker = &walk->walkers[rank];
    for (int i = table->start[stage] + walker->link; i < table->start[stage + 1]; i++) {
        int peer = table->peer[i];
        if (!gate_is_open(walk, gate, peer, need)) {
            walker->gate = gate;
            walker->stage = peer;
            walker->need = need;
            walker->next = walk->stages[peer].waiters[gate];
            walk->stages[peer].waiters[gate] = rank;
            return false;
        }
        walker->link++;
    }
    return true;
}

void sl_walk_resume(sl_walk *walk, int rank)
{
    walk->ready[walk->ready_count++] = rank;
}

static void wake(sl_walk *walk, sl_gate gate, int stage)
{
    int rank = walk->stages[stage].waiters[gate];
    int still = -1;
    while (rank >= 0) {
        sl_walker *walker = &walk->walkers[rank];
        int next = walker->next;
        if (gate_is_open(walk, gate, stage, walker->need)) {
            sl_walk_resume(walk, rank);
        } else {
            walker->next = still;
            still = rank;
        }
        rank = next;
    }
    walk->stages[stage].waiters[gate] = still;
}

/* A send needs the receive that makes room for it to be reached. */
static bool pass_room(sl_walk *walk, int rank, sl_action action, bool backward, int64_t place)
{
    int64_t room_from = place - walk->capacity; /* below 0 there is room */
    const sl_link_table *table = backward ? &walk->links->in : &walk->links->out;
    return room_from < 0 ||
           pass_gates(walk, rank, table, action.stage, backward ? SL_GATE_RECV_B : SL_GATE_RECV_F, room_from);
}

/* The message kinds open their gate when they are reached, even if they then have to wait themselves. */
static bool can_run_message(sl_walk *walk, int rank, sl_action action)
{
    sl_walker *walker = &walk->walkers[rank];
    if (sl_action_is_send_wait(action)) {
        bool backward = sl_action_is(action, SL_KIND_WAIT_SEND_B);
        return pass_room(walk, rank, action, backward,
                         walk->sent[backward][cell_of(walk, action.stage, action.microbatch)]);
    }
    sl_gate own = (sl_gate)(action.kind - SL_KIND_SEND_F);
    if (!walker->reached) {
        walker->reached = true;
        walk->stages[action.stage].passed[own]++;
        wake(walk, own, action.stage);
    }
    int64_t place = walk->stages[action.stage].passed[own] - 1;
    switch (own) {
    case SL_GATE_SEND_F:
    case SL_GATE_SEND_B:
        if (!walk->sent[0])
            return pass_room(walk, rank, action, own == SL_GATE_SEND_B, place);
        walk->sent[own == SL_GATE_SEND_B][cell_of(walk, action.stage, action.microbatch)] = (int32_t)place;
        return true; /* its wait is where the rank is held up */
    case SL_GATE_RECV_F:
        return pass_gates(walk, rank, &walk->links->in, action.stage, SL_GATE_SEND_F, place);
    default:
        return pass_gates(walk, rank, &walk->links->out, action.stage, SL_GATE_SEND_B, place);
    }
}

static bool can_run_compute(sl_walk *walk, int rank, sl_action action)
{
    sl_walker *walker = &walk->walkers[rank];
    sl_action parts[2];
    for (int count = sl_parts(action, parts); walker->part < count; walker->part++) {
        sl_action part = parts[walker->part];
        bool passed = true;
        if (part.kind == SL_KIND_F)
            passed = pass_gates(walk, rank, &walk->links->in, part.stage, SL_GATE_SEND_F, part.microbatch);
        else if (part.kind != SL_KIND_W)
            passed = pass_gates(walk, rank, &walk->links->out, part.stage, SL_GATE_SEND_B, part.microbatch);
        if (!passed)
            return false;
        walker->link = 0;
    }
    return true;
}

static inline bool can_run(sl_walk *walk, int rank, sl_action action)
{
    if (walk->messages)
        return !sl_action_is_message(action) || can_run_message(walk, rank, action);
    return can_run_compute(walk, rank, action);
}

bool sl_walk_can_run(sl_walk *walk, int rank)
{
    return can_run(walk, rank, walk->schedule->lists[rank].actions[walk->walkers[rank].at]);
}

static inline void note_run(sl_walk *walk, sl_walker *walker, sl_action action)
{
    walker->at++;
    walker->link = 0;
    walker->part = 0;
    walker->reached = false;
    if (walk->messages)
        return;
    sl_action parts[2];
    for (int i = 0, count = sl_parts(action, parts); i < count; i++) {
        if (parts[i].kind == SL_KIND_W)
            continue;
        bool forward = parts[i].kind == SL_KIND_F;
        walk->ran[cell_of(walk, parts[i].stage, parts[i].microbatch)] |= (uint8_t)(forward ? RAN_F : RAN_B);
        wake(walk, forward ? SL_GATE_SEND_F : SL_GATE_SEND_B, parts[i].stage);
    }
}

void sl_walk_ran(sl_walk *walk, int rank)
{
    sl_walker *walker = &walk->walkers[rank];
    note_run(walk, walker, walk->schedule->lists[rank].actions[walker->at]);
}

int sl_walk_next(sl_walk *walk)
{
    return walk->ready_count > 0 ? walk->ready[--walk->ready_count] : -1;
}

bool sl_walk_is_over(const sl_walk *walk, int rank)
{
    return walk->walkers[rank].at == (int64_t)walk->schedule->lists[rank].count;
}

void sl_walk_run(sl_walk *walk, sl_walk_visit visit, void *user)
{
    for (int rank; (rank = sl_walk_next(walk)) >= 0;) {
        sl_walker *walker = &walk->walkers[rank];
        const sl_action_list *list = &walk->schedule->lists[rank];
        while (walker->at < (int64_t)list->count && can_run(walk, rank, list->actions[walker->at])) {
            if (visit)
                visit(user, rank, walker->at);
            note_run(walk, walker, list->actions[walker->at]);
        }
    }
}

int sl_walk_stuck(const sl_walk *walk)
{
    for (int rank = 0; rank < walk->schedule->ranks; rank++) {
        if (!sl_walk_is_over(walk, rank))
            return rank;
    }
    return -1;
}
