/* What a schedule of a few ranks means, by trying every interleaving of them. Written to be obvious, not fast; shares
 * nothing with the checker that is held against it. Neighbor edges. */
#ifndef SCHEDULE_MODEL_H
#define SCHEDULE_MODEL_H

#include <sluice/schedule.h>

#include <string.h>

enum { MOST_RANKS = 4, LENGTH = 64, STAGES = 10, MICROBATCHES = 6, UNLIMITED = -1 };

typedef struct program {
    int ranks;
    sl_action actions[MOST_RANKS][LENGTH];
    int count[MOST_RANKS];
} program;

/* ---- The model: what must be there at all --------------------------------------------------------- */

/* How often each simple action occurs, and where its stage lives. Parts of an OVERLAP_F_B count as F and B. */
typedef struct census {
    int stages, microbatches;
    int count[SL_KIND_COUNT][STAGES][MICROBATCHES]; /* microbatch 0 for the kinds without */
    int rank_of[STAGES];
    bool split; /* some stage is on several ranks */
    bool has[SL_KIND_COUNT];
} census;

static void count_simple(census *all, int rank, sl_action action)
{
    int m = action.microbatch < 0 ? 0 : action.microbatch;
    all->count[action.kind][action.stage][m]++;
    all->has[action.kind] = true;
    all->stages = action.stage + 1 > all->stages ? action.stage + 1 : all->stages;
    all->microbatches = action.microbatch + 1 > all->microbatches ? action.microbatch + 1 : all->microbatches;
    if (all->rank_of[action.stage] >= 0 && all->rank_of[action.stage] != rank)
        all->split = true;
    all->rank_of[action.stage] = rank;
}

static census take_census(const program *given)
{
    census all = { 0 };
    for (int s = 0; s < STAGES; s++)
        all.rank_of[s] = -1;
    for (int r = 0; r < given->ranks; r++) {
        for (int i = 0; i < given->count[r]; i++) {
            sl_action parts[2] = { given->actions[r][i] };
            int count = sl_action_parts(given->actions[r][i], parts);
            for (int p = 0; p < (count == 2 ? 2 : 1); p++)
                count_simple(&all, r, parts[p]);
        }
    }
    return all;
}

static bool crosses(const census *all, int from)
{
    return from >= 0 && from + 1 < all->stages && all->rank_of[from] != all->rank_of[from + 1];
}

/* Some send is waited for: then all are, and no send itself waits. */
static bool has_send_waits(const census *all)
{
    return all->has[SL_KIND_WAIT_SEND_F] || all->has[SL_KIND_WAIT_SEND_B];
}

static bool is_complete(const census *all)
{
    bool backward = all->has[SL_KIND_I] || all->has[SL_KIND_W] || all->has[SL_KIND_B];
    bool messages =
        all->has[SL_KIND_SEND_F] || all->has[SL_KIND_RECV_F] || all->has[SL_KIND_SEND_B] || all->has[SL_KIND_RECV_B];
    if (all->split || all->microbatches == 0)
        return false;
    for (int s = 0; s < all->stages; s++) {
        if (all->rank_of[s] < 0)
            return false;
        for (int m = 0; m < all->microbatches; m++) {
            int i = all->count[SL_KIND_I][s][m];
            int w = all->count[SL_KIND_W][s][m];
            int b = all->count[SL_KIND_B][s][m];
            bool one_backward = (b == 1 && i == 0 && w == 0) || (b == 0 && i == 1 && w == 1);
            if (all->count[SL_KIND_F][s][m] != 1 || (backward && !one_backward))
                return false;
            bool out = messages && crosses(all, s);
            bool in = messages && crosses(all, s - 1);
            if (all->count[SL_KIND_SEND_F][s][m] != out || all->count[SL_KIND_RECV_F][s][m] != in ||
                all->count[SL_KIND_RECV_B][s][m] != (out && backward) ||
                all->count[SL_KIND_SEND_B][s][m] != (in && backward))
                return false;
            bool waits = has_send_waits(all);
            if (all->count[SL_KIND_WAIT_SEND_F][s][m] != (waits && out) ||
                all->count[SL_KIND_WAIT_SEND_B][s][m] != (waits && in && backward))
                return false;
        }
    }
    return true;
}

/* ---- The model: weights, each rank alone ----------------------------------------------------------- */

static bool weights_are_right(const program *given, const census *all, int rank)
{
    bool unsharded[STAGES] = { false };
    int reduced[STAGES] = { 0 };
    int gradients[STAGES] = { 0 };
    bool sharded = all->has[SL_KIND_UNSHARD] || all->has[SL_KIND_RESHARD];
    bool awaited = all->has[SL_KIND_WAIT_REDUCE_GRAD];
    int pending = -1; /* stage whose reduction is to be waited for */
    for (int i = 0; i < given->count[rank]; i++) {
        sl_action action = given->actions[rank][i];
        if (action.kind == SL_KIND_UNSHARD || action.kind == SL_KIND_RESHARD) {
            bool on = action.kind == SL_KIND_UNSHARD;
            if (unsharded[action.stage] == on)
                return false;
            unsharded[action.stage] = on;
        }
        if (action.kind == SL_KIND_REDUCE_GRAD) {
            reduced[action.stage]++;
            if (gradients[action.stage] != all->microbatches || (awaited && pending >= 0))
                return false;
            pending = action.stage;
        }
        if (action.kind == SL_KIND_WAIT_REDUCE_GRAD) {
            if (pending != action.stage)
                return false;
            pending = -1;
        }
        sl_action parts[2];
        for (int p = 0, count = sl_action_parts(action, parts); p < count; p++) {
            gradients[parts[p].stage] += parts[p].kind == SL_KIND_W || parts[p].kind == SL_KIND_B;
            if (sharded && !unsharded[parts[p].stage])
                return false;
        }
    }
    if (awaited && pending >= 0)
        return false;
    for (int s = 0; s < all->stages; s++) {
        if (all->rank_of[s] != rank)
            continue;
        if (unsharded[s] || reduced[s] != all->has[SL_KIND_REDUCE_GRAD])
            return false;
    }
    return true;
}

/* ---- The model: all interleavings ------------------------------------------------------------------ */

/* What a rank has done when it stands before an action. */
typedef struct past {
    bool did[SL_KIND_COUNT][STAGES][MICROBATCHES]; /* B counts as I and W too */
    int sends[2][STAGES];                          /* F, B */
    int receives[2][STAGES];
} past;

typedef struct world {
    const program *given;
    const census *all;
    int capacity;
    bool messages;
    past past[MOST_RANKS][LENGTH + 1];
    int sent[2][STAGES][LENGTH]; /* F, B: microbatches in the order in which the stage sends them */
    uint8_t seen[(LENGTH + 1) * (LENGTH + 1) * (LENGTH + 1) * (LENGTH + 1)]; /* by place_of() */
} world;

static void write_past(world *w, int rank)
{
    memset(&w->past[rank][0], 0, sizeof w->past[rank][0]);
    for (int i = 0; i < w->given->count[rank]; i++) {
        past *now = &w->past[rank][i + 1];
        *now = w->past[rank][i];
        sl_action action = w->given->actions[rank][i];
        sl_action parts[2] = { action };
        int count = sl_action_parts(action, parts);
        for (int p = 0; p < (count == 2 ? 2 : 1); p++) {
            int m = parts[p].microbatch < 0 ? 0 : parts[p].microbatch;
            now->did[parts[p].kind][parts[p].stage][m] = true;
            if (parts[p].kind == SL_KIND_B) {
                now->did[SL_KIND_I][parts[p].stage][m] = true;
                now->did[SL_KIND_W][parts[p].stage][m] = true;
            }
        }
        int way = action.kind == SL_KIND_SEND_B || action.kind == SL_KIND_RECV_B;
        if (action.kind == SL_KIND_SEND_F || action.kind == SL_KIND_SEND_B)
            w->sent[way][action.stage][now->sends[way][action.stage]++] = action.microbatch;
        if (action.kind == SL_KIND_RECV_F || action.kind == SL_KIND_RECV_B)
            now->receives[way][action.stage]++;
    }
}

typedef enum step { CAN_RUN, MUST_WAIT, IS_WRONG } step;

/* Whether the rank holds the value that F or the backward of the stage takes from its neighbor. */
static step has_value(const world *w, const int at[MOST_RANKS], int rank, int stage, int neighbor, int m, bool backward)
{
    sl_kind made_by = backward ? SL_KIND_I : SL_KIND_F;
    if (neighbor < 0 || neighbor >= w->all->stages)
        return CAN_RUN;
    int home = w->all->rank_of[neighbor];
    if (home == rank)
        return w->past[rank][at[rank]].did[made_by][neighbor][m] ? CAN_RUN : IS_WRONG;
    if (w->messages)
        return w->past[rank][at[rank]].did[backward ? SL_KIND_RECV_B : SL_KIND_RECV_F][stage][m] ? CAN_RUN : IS_WRONG;
    return w->past[home][at[home]].did[made_by][neighbor][m] ? CAN_RUN : MUST_WAIT;
}

static step compute_step(const world *w, const int at[MOST_RANKS], int rank, sl_action part)
{
    const past *mine = &w->past[rank][at[rank]];
    int s = part.stage;
    int m = part.microbatch;
    if (part.kind == SL_KIND_F)
        return has_value(w, at, rank, s, s - 1, m, false);
    if (part.kind == SL_KIND_W)
        return mine->did[SL_KIND_I][s][m] ? CAN_RUN : IS_WRONG;
    if (!mine->did[SL_KIND_F][s][m])
        return IS_WRONG;
    return has_value(w, at, rank, s, s + 1, m, true);
}

/* A send or receive over a link that holds messages. Waiting: sent and not yet received. */
static step message_step(const world *w, const int at[MOST_RANKS], int rank, sl_action action)
{
    bool backward = action.kind == SL_KIND_SEND_B || action.kind == SL_KIND_RECV_B;
    bool send = action.kind == SL_KIND_SEND_F || action.kind == SL_KIND_SEND_B;
    int other = action.stage + (send == backward ? -1 : 1);
    int home = w->all->rank_of[other];
    int from = send ? action.stage : other;
    int to = send ? other : action.stage;
    int sends = w->past[send ? rank : home][at[send ? rank : home]].sends[backward][from];
    int receives = w->past[send ? home : rank][at[send ? home : rank]].receives[backward][to];
    if (send) {
        if (!w->past[rank][at[rank]].did[backward ? SL_KIND_I : SL_KIND_F][action.stage][action.microbatch])
            return IS_WRONG;
        if (has_send_waits(w->all))
            return CAN_RUN;
        return w->capacity == UNLIMITED || sends - receives < w->capacity ? CAN_RUN : MUST_WAIT;
    }
    if (sends == receives)
        return MUST_WAIT;
    return w->sent[backward][from][receives] == action.microbatch ? CAN_RUN : IS_WRONG;
}

/* The wait for a send: until so few later messages of its link are left that the link holds them. */
static step wait_step(const world *w, const int at[MOST_RANKS], int rank, sl_action action)
{
    bool backward = action.kind == SL_KIND_WAIT_SEND_B;
    int peer = action.stage + (backward ? -1 : 1), home = w->all->rank_of[peer], place = 0;
    if (!w->past[rank][at[rank]].did[backward ? SL_KIND_SEND_B : SL_KIND_SEND_F][action.stage][action.microbatch])
        return IS_WRONG;
    while (w->sent[backward][action.stage][place] != action.microbatch)
        place++;
    int receives = w->past[home][at[home]].receives[backward][peer];
    return w->capacity == UNLIMITED || receives > place - w->capacity ? CAN_RUN : MUST_WAIT;
}

/* Links of capacity 0: whether the rank and *receiver stand at the two ends of one message. */
static step meeting_step(const world *w, const int at[MOST_RANKS], int sender, int *receiver_out)
{
    if (at[sender] == w->given->count[sender])
        return MUST_WAIT;
    sl_action send = w->given->actions[sender][at[sender]];
    bool backward = send.kind == SL_KIND_SEND_B;
    if ((send.kind != SL_KIND_SEND_F && send.kind != SL_KIND_SEND_B) || has_send_waits(w->all))
        return MUST_WAIT;
    int receiver = w->all->rank_of[send.stage + (backward ? -1 : 1)];
    *receiver_out = receiver;
    if (!w->past[sender][at[sender]].did[backward ? SL_KIND_I : SL_KIND_F][send.stage][send.microbatch])
        return IS_WRONG;
    if (at[receiver] == w->given->count[receiver])
        return MUST_WAIT;
    sl_action receive = w->given->actions[receiver][at[receiver]];
    if (receive.kind != (backward ? SL_KIND_RECV_B : SL_KIND_RECV_F) ||
        receive.stage != send.stage + (backward ? -1 : 1))
        return MUST_WAIT;
    return receive.microbatch == send.microbatch ? CAN_RUN : IS_WRONG;
}

static step rank_step(const world *w, const int at[MOST_RANKS], int rank)
{
    if (at[rank] == w->given->count[rank])
        return MUST_WAIT;
    sl_action action = w->given->actions[rank][at[rank]];
    sl_action parts[2];
    int count = sl_action_parts(action, parts);
    if (action.kind == SL_KIND_WAIT_SEND_F || action.kind == SL_KIND_WAIT_SEND_B)
        return wait_step(w, at, rank, action);
    if (count == 0 && sl_kind_class_of((sl_kind)action.kind) == SL_CLASS_MESSAGE)
        return w->capacity == 0 && !has_send_waits(w->all) ? MUST_WAIT : message_step(w, at, rank, action);
    step all = CAN_RUN;
    for (int p = 0; p < count; p++) {
        step one = compute_step(w, at, rank, parts[p]);
        if (one == IS_WRONG)
            return IS_WRONG;
        all = one == MUST_WAIT ? MUST_WAIT : all;
    }
    return all;
}

/* A number for where all ranks stand; `count` itself: one past the last of them. */
static size_t place_of(const program *given, const int at[MOST_RANKS])
{
    size_t place = 0;
    for (int rank = 0; rank < given->ranks; rank++)
        place = place * (size_t)(given->count[rank] + 1) + (size_t)at[rank];
    return place;
}

/* True if every way to go on from here ends well. */
static bool all_ways_end_well(world *w, int at[MOST_RANKS])
{
    size_t place = place_of(w->given, at);
    if (place == place_of(w->given, w->given->count))
        return true;
    if (w->seen[place])
        return true; /* looked at already, or being looked at */
    w->seen[place] = true;
    bool moved = false;
    for (int rank = 0; rank < w->given->ranks; rank++) {
        int receiver = -1;
        step alone = rank_step(w, at, rank);
        step together = w->capacity == 0 ? meeting_step(w, at, rank, &receiver) : MUST_WAIT;
        if (alone == IS_WRONG || together == IS_WRONG)
            return false;
        if (alone != CAN_RUN && together != CAN_RUN)
            continue;
        moved = true;
        at[rank]++;
        at[receiver >= 0 ? receiver : rank] += receiver >= 0 && together == CAN_RUN;
        bool well = all_ways_end_well(w, at);
        at[rank]--;
        at[receiver >= 0 ? receiver : rank] -= receiver >= 0 && together == CAN_RUN;
        if (!well)
            return false;
    }
    return moved;
}

static bool model_accepts(const program *given, int capacity)
{
    static world w; /* large */
    census all = take_census(given);
    int start[MOST_RANKS] = { 0 };
    if (!is_complete(&all))
        return false;
    for (int rank = 0; rank < given->ranks; rank++) {
        if (given->count[rank] == 0 || !weights_are_right(given, &all, rank))
            return false;
    }
    w.given = given;
    w.all = &all;
    w.capacity = capacity;
    w.messages = all.has[SL_KIND_SEND_F] || all.has[SL_KIND_RECV_F];
    memset(w.seen, 0, place_of(given, given->count) + 1);
    for (int rank = 0; rank < given->ranks; rank++)
        write_past(&w, rank);
    return all_ways_end_well(&w, start);
}

#endif
