/* The checker's look across ranks: messages in the same order on both sides, and no rank that waits forever. */
#include "schedule/check.h"

#include <inttypes.h>

/* ---- Pairs ----------------------------------------------------------------------------------- */

typedef struct pairing {
    const sl_schedule *schedule;
    const sl_links *links;
    sl_violation *violation;
    int32_t *place[2];    /* F, B: (stages, microbatches) the how-manieth send of its stage it is */
    int32_t *received[2]; /* F, B: (stages) receives so far */
} pairing;

static void note_sends(pairing *self, int32_t *sent[2])
{
    for (int rank = 0; rank < self->schedule->ranks; rank++) {
        const sl_action_list *list = &self->schedule->lists[rank];
        for (size_t i = 0; i < list->count; i++) {
            sl_action a = list->actions[i];
            if (!sl_action_is(a, SL_KIND_SEND_F) && !sl_action_is(a, SL_KIND_SEND_B))
                continue;
            int way = sl_action_is(a, SL_KIND_SEND_B);
            self->place[way][(int64_t)a.stage * self->schedule->microbatches + a.microbatch] = sent[way][a.stage]++;
        }
    }
}

static bool check_receive(pairing *self, int rank, int64_t cell, sl_action action)
{
    int way = sl_action_is(action, SL_KIND_RECV_B);
    const sl_link_table *table = way ? &self->links->out : &self->links->in;
    int32_t place = self->received[way][action.stage]++;
    for (int i = table->start[action.stage]; i < table->start[action.stage + 1]; i++) {
        int peer = table->peer[i];
        int32_t sent_at = self->place[way][(int64_t)peer * self->schedule->microbatches + action.microbatch];
        if (sent_at == place)
            continue;
        sl_action_text(action, self->violation->text, sizeof self->violation->text);
        return sl_violate(self->violation, rank, cell,
                          "it is receive %" PRId32 " of its stage (from 0), but %d%s%d is send %" PRId32
                          " of rank %d: both sides need the same order",
                          place, peer, way ? "SEND_B" : "SEND_F", action.microbatch, sent_at,
                          self->schedule->rank_of[peer]);
    }
    return true;
}

static bool check_receives(pairing *self)
{
    for (int rank = 0; rank < self->schedule->ranks; rank++) {
        const sl_action_list *list = &self->schedule->lists[rank];
        for (size_t i = 0; i < list->count; i++) {
            sl_action a = list->actions[i];
            if ((sl_action_is(a, SL_KIND_RECV_F) || sl_action_is(a, SL_KIND_RECV_B)) &&
                !check_receive(self, rank, (int64_t)i, a))
                return false;
        }
    }
    return true;
}

sl_status sl_check_pairs(const sl_schedule *schedule, const sl_links *links, bool *valid, sl_violation *violation)
{
    sl_status status = SL_OK;
    pairing self = { .schedule = schedule, .links = links, .violation = violation };
    int32_t *sent[2] = { NULL, NULL };

    *valid = true;
    if (!sl_schedule_has_messages(schedule))
        return SL_OK;
    for (int way = 0; way < 2; way++) {
        SL_TRY(SL_NEW_ARRAY(self.place[way], (int64_t)schedule->stages * schedule->microbatches));
        SL_TRY(SL_NEW_ARRAY(self.received[way], schedule->stages));
        SL_TRY(SL_NEW_ARRAY(sent[way], schedule->stages));
    }
    note_sends(&self, sent);
    *valid = check_receives(&self);
done:
    for (int way = 0; way < 2; way++) {
        sl_free(self.place[way]);
        sl_free(self.received[way]);
        sl_free(sent[way]);
    }
    return status;
}

/* ---- Progress -------------------------------------------------------------------------------- */

static int waits_for(const sl_walk *walk, int rank)
{
    return walk->schedule->rank_of[walk->walkers[rank].stage];
}

/* The lowest rank of a circle of waiting ranks: each stuck rank waits for another stuck one. */
static int find_circle(const sl_walk *walk)
{
    int rank = sl_walk_stuck(walk);
    for (int i = 0; i < walk->schedule->ranks; i++)
        rank = waits_for(walk, rank);
    int lowest = rank;
    for (int next = waits_for(walk, rank); next != rank; next = waits_for(walk, next))
        lowest = next < lowest ? next : lowest;
    return lowest;
}

/* The action that the rank waits for, as text: the need-th of its kind and stage, or a certain F or backward. */
static void describe_wait(const sl_walk *walk, int rank, char *text, size_t size)
{
    const sl_walker *walker = &walk->walkers[rank];
    if (!walk->messages) {
        snprintf(text, size, "%s of stage %d, microbatch %" PRId64, walker->gate == SL_GATE_SEND_F ? "F" : "I or B",
                 walker->stage, walker->need);
        return;
    }
    const sl_action_list *list = &walk->schedule->lists[waits_for(walk, rank)];
    sl_kind kind = (sl_kind)(SL_KIND_SEND_F + walker->gate);
    int64_t left = walker->need;
    for (size_t i = 0; i < list->count; i++) {
        if (sl_action_is(list->actions[i], kind) && list->actions[i].stage == walker->stage && left-- == 0) {
            sl_action_text(list->actions[i], text, size);
            return;
        }
    }
}

static bool report_deadlock(const sl_walk *walk, sl_violation *violation)
{
    int rank = find_circle(walk);
    int other = waits_for(walk, rank);
    int64_t cell = walk->walkers[rank].at;
    int64_t other_cell = walk->walkers[other].at;
    char what[80] = "";
    char other_text[SL_ACTION_TEXT_SIZE];
    describe_wait(walk, rank, what, sizeof what);
    sl_action_text(walk->schedule->lists[other].actions[other_cell], other_text, sizeof other_text);
    sl_action_text(walk->schedule->lists[rank].actions[cell], violation->text, sizeof violation->text);
    return sl_violate(violation, rank, cell,
                      "deadlock: it waits for %s on rank %d, which waits at cell %" PRId64 ", %s", what, other,
                      other_cell, other_text);
}

bool sl_check_progress(const sl_walk *walk, sl_violation *violation)
{
    return sl_walk_stuck(walk) < 0 || report_deadlock(walk, violation);
}
