/* Pipelines whose ranks share processors: as many actions run at full speed as there are cores, more of them share. Ranks
 * that are bound share their own core alone. Ranks that are processes share a GPU in turns: one runs, until its slice is
 * over or it has nothing to do. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <math.h>

/* A rank on its way through its actions. */
typedef struct core_rank {
    const sl_action *actions;
    int64_t count, next;
    int64_t cells;   /* where those of its replica begin */
    int part;        /* of the next action: an OVERLAP_F_B has two */
    double left;     /* seconds of work of the part under way */
    bool runs;       /* a part is under way */
    double ready_at; /* when the next part may start; INFINITY: not known yet */
} core_rank;

/* Of a GPU. */
typedef struct device_turn {
    int rank;        /* whose turn it is; -1: nobody has had one yet */
    double left;     /* seconds of its slice */
    double changing; /* seconds until it begins */
} device_turn;

typedef struct core_share {
    const tune_stages *stages;
    const tune_turns *turns; /* NULL: those that work share the cores */
    device_turn *devices;    /* rank r runs on r % device_count */
    int *at_work;            /* (device_count) ranks */
    int device_count;        /* 0: ranks run on any core */
    core_rank *ranks;        /* (rank of the pipeline, replica) */
    int rank_count, replicas;
    int64_t microbatches;
    double *forward, *backward; /* (replica, stage, microbatch): when F, and I or B, has ended; INFINITY before */
    double now;
} core_share;

static sl_action part_of(const core_rank *rank)
{
    sl_action parts[2];
    int count = sl_action_parts(rank->actions[rank->next], parts);
    return parts[rank->part < count ? rank->part : 0];
}

static double duration(const core_share *share, sl_action action)
{
    const sl_stage_cost *cost = &share->stages->costs[action.stage];
    return action.kind == SL_KIND_F   ? cost->f
           : action.kind == SL_KIND_I ? cost->i
           : action.kind == SL_KIND_W ? cost->w
                                      : cost->b;
}

static int64_t cell_of(const core_share *share, const core_rank *rank, sl_action action)
{
    return rank->cells + action.stage * share->microbatches + action.microbatch;
}

/* When what the action needs from other stages is there. */
static double arrival(const core_share *share, const core_rank *rank, sl_action action)
{
    const tune_stages *stages = share->stages;
    int64_t m = share->microbatches, at = cell_of(share, rank, action);
    if (action.kind == SL_KIND_F && action.stage > 0)
        return share->forward[at - m] + stages->hops[action.stage - 1];
    if ((action.kind == SL_KIND_I || action.kind == SL_KIND_B) && action.stage + 1 < stages->count)
        return share->backward[at + m] + stages->hops[action.stage];
    return 0;
}

/* Starts whatever can start now; the number of ranks that are at work. */
static int start_ready(core_share *share)
{
    int active = 0;
    for (int d = 0; d < share->device_count; d++)
        share->at_work[d] = 0;
    for (int r = 0; r < share->rank_count; r++) {
        core_rank *rank = &share->ranks[r];
        if (!rank->runs && rank->next < rank->count) {
            sl_action action = part_of(rank);
            rank->ready_at = arrival(share, rank, action);
            if (rank->ready_at <= share->now) {
                rank->runs = true;
                rank->left = duration(share, action);
            }
        }
        active += rank->runs;
        if (share->device_count > 0)
            share->at_work[r % share->device_count] += rank->runs;
    }
    return active;
}

static void finish_part(core_share *share, core_rank *rank)
{
    sl_action parts[2], action = part_of(rank);
    int64_t at = cell_of(share, rank, action);
    if (action.kind == SL_KIND_F)
        share->forward[at] = share->now;
    else if (action.kind != SL_KIND_W)
        share->backward[at] = share->now;
    rank->runs = false;
    if (++rank->part >= sl_action_parts(rank->actions[rank->next], parts)) {
        rank->part = 0;
        rank->next++;
    }
}

/* ---- Turns ----------------------------------------------------------------------------------- */

/* The next rank of the device that has work; -1: none but the one whose turn it is. */
static int find_next(const core_share *share, int device)
{
    int last = share->devices[device].rank;
    for (int k = 1; k <= share->rank_count; k++) {
        int r = (last + k + share->rank_count) % share->rank_count;
        if (r != last && r % share->device_count == device && share->ranks[r].runs)
            return r;
    }
    return -1;
}

static bool is_over(const core_share *share, double seconds)
{
    return seconds <= 1e-12 * share->now;
}

/* A slice that is over while nobody else has work begins anew. */
static void give_turn(const core_share *share, int device)
{
    device_turn *turn = &share->devices[device];
    int next = find_next(share, device);
    bool works = turn->rank >= 0 && share->ranks[turn->rank].runs, is_first = turn->rank < 0;
    if (turn->changing > 0 || (works && !is_over(share, turn->left)))
        return;
    if (works || next >= 0)
        turn->left = share->turns->slice;
    if (next < 0)
        return;
    turn->changing = is_first ? 0 : works ? share->turns->change : share->turns->hand_over;
    turn->rank = next;
}

static bool has_turn(const core_share *share, int r)
{
    const device_turn *turn = share->turns ? &share->devices[r % share->device_count] : NULL;
    return !turn || (turn->rank == r && turn->changing == 0);
}

/* Seconds until something about the device changes by itself. */
static double next_turn(const core_share *share, int device)
{
    const device_turn *turn = &share->devices[device];
    bool works = turn->rank >= 0 && share->ranks[turn->rank].runs;
    return turn->changing > 0 ? turn->changing : works ? turn->left : INFINITY;
}

static void pass_time(const core_share *share, int device, double step)
{
    device_turn *turn = &share->devices[device];
    if (turn->changing == 0)
        turn->left -= step;
    else
        turn->changing = is_over(share, turn->changing - step) ? 0 : turn->changing - step;
}

/* ---- Time ------------------------------------------------------------------------------------ */

/* How much longer work takes because a woken rank may wait on its waker's core while another core is idle: not if one rank
 * of the pipeline works at a time or none wakes another, and most if the pipeline could keep all of its cores busy. */
static double waking_loss(const core_share *share, double active, double cores)
{
    double busy = fmin(active, cores);
    if (share->rank_count < 2 || share->stages->waking <= 1 || busy <= 1)
        return 1;
    return 1 + (share->stages->waking - 1) * (busy - 1) / (cores - 1);
}

/* Of ranks that share cores evenly, as a share of that on a core of one's own. */
static double crowded_speed(const core_share *share, double active, double cores)
{
    return active > cores ? cores / (active * fmax(1, share->stages->crowded)) : 1;
}

/* Of rank r, which is at work. */
static double speed_of(const core_share *share, int r, double active, double copies, double cores)
{
    if (share->turns)
        return 1;
    if (share->device_count > 0)
        return crowded_speed(share, share->at_work[r % share->device_count], 1);
    return crowded_speed(share, active * copies, cores) / waking_loss(share, active, cores / copies);
}

/* Goes on to the next end, arrival or turn. False: all is done; an order that cannot run leaves ends of INFINITY. */
static bool advance_time(core_share *share, double copies, double cores, double *ends)
{
    int active = start_ready(share);
    double step = INFINITY;
    for (int d = 0; d < share->device_count && share->turns; d++) {
        give_turn(share, d);
        step = fmin(step, next_turn(share, d));
    }
    for (int r = 0; r < share->rank_count; r++) {
        const core_rank *rank = &share->ranks[r];
        if (rank->runs && has_turn(share, r))
            step = fmin(step, rank->left / speed_of(share, r, active, copies, cores));
        else if (!rank->runs && rank->next < rank->count)
            step = fmin(step, rank->ready_at - share->now);
    }
    if (step == INFINITY)
        return false;
    share->now += step;
    for (int r = 0; r < share->rank_count; r++) {
        core_rank *rank = &share->ranks[r];
        if (!rank->runs || !has_turn(share, r))
            continue;
        rank->left -= step * speed_of(share, r, active, copies, cores);
        if (rank->left > 1e-12 * share->now)
            continue;
        finish_part(share, rank);
        if (rank->next == rank->count)
            ends[r / share->replicas] = share->now; /* the last replica's stays */
    }
    for (int d = 0; d < share->device_count && share->turns; d++)
        pass_time(share, d, step);
    return true;
}

static sl_status make_ranks(core_share *share, const sl_schedule *schedule)
{
    sl_status status = SL_OK;
    share->rank_count = sl_schedule_ranks(schedule) * share->replicas;
    share->microbatches = sl_schedule_microbatches(schedule);
    int64_t cells = share->microbatches * share->stages->count, all = cells * share->replicas;
    SL_TRY(SL_NEW_ARRAY(share->ranks, share->rank_count));
    SL_TRY(SL_NEW_ARRAY(share->forward, all));
    SL_TRY(SL_NEW_ARRAY(share->backward, all));
    SL_TRY(SL_NEW_ARRAY(share->devices, share->device_count));
    SL_TRY(SL_NEW_ARRAY(share->at_work, share->device_count));
    for (int d = 0; d < share->device_count; d++)
        share->devices[d].rank = -1;
    for (int64_t i = 0; i < all; i++)
        share->forward[i] = share->backward[i] = INFINITY;
    for (int r = 0; r < share->rank_count; r++) {
        core_rank *rank = &share->ranks[r];
        rank->actions = sl_schedule_actions(schedule, r / share->replicas, &rank->count);
        rank->cells = r % share->replicas * cells;
    }
done:
    return status;
}

static sl_status run_schedule(core_share *share, const sl_schedule *schedule, int copies, double cores, double *ends)
{
    sl_status status = SL_OK;
    SL_TRY(make_ranks(share, schedule));
    for (int r = 0; r < sl_schedule_ranks(schedule); r++)
        ends[r] = INFINITY;
    while (advance_time(share, copies, cores, ends))
        continue;
done:
    sl_free(share->at_work);
    sl_free(share->devices);
    sl_free(share->backward);
    sl_free(share->forward);
    sl_free(share->ranks);
    return status;
}

sl_status sl_tune_share_cores(const sl_schedule *schedule, const tune_stages *stages, int copies, double cores,
                              double *ends)
{
    core_share share = { .stages = stages, .replicas = 1 };
    return run_schedule(&share, schedule, copies, cores, ends);
}

sl_status sl_tune_share_bound(const sl_schedule *schedule, const tune_stages *stages, int copies, int cores,
                              double *ends)
{
    core_share share = { .stages = stages, .replicas = copies, .device_count = cores };
    return run_schedule(&share, schedule, 1, cores, ends);
}

sl_status sl_tune_take_turns(const sl_schedule *schedule, const tune_stages *stages, const tune_turns *turns,
                             int devices, double *ends)
{
    core_share share = { .stages = stages, .turns = turns, .replicas = 1, .device_count = devices };
    return run_schedule(&share, schedule, 1, devices, ends);
}
