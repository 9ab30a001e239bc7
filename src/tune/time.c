/* Time of a step: the schedule run in time, then what replicas exchange, then the optimizer. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <math.h>

/* The machine of a device of the pipeline: replicas of a stage are neighbors. */
static int machine_of(const sl_cluster *cluster, int rank, int dp, int replica)
{
    return (int)(((int64_t)rank * dp + replica) / cluster->devices);
}

static const sl_cluster_link *link_of_ranks(const sl_cluster *cluster, int dp, int from, int to)
{
    bool near = machine_of(cluster, from, dp, 0) == machine_of(cluster, to, dp, 0) &&
                machine_of(cluster, from, dp, dp - 1) == machine_of(cluster, to, dp, dp - 1);
    return near ? &cluster->inside : &cluster->between;
}

double sl_tune_hop(const sl_cluster *cluster, int dp, int from, int to, double bytes)
{
    const sl_cluster_link *link = link_of_ranks(cluster, dp, from, to);
    if (from == to)
        return 0;
    return link->latency + (link->bandwidth > 0 ? bytes / link->bandwidth : 0);
}

typedef enum tune_collective { TUNE_ALL_REDUCE, TUNE_REDUCE_SCATTER, TUNE_ALL_GATHER } tune_collective;

/* A reduce-scatter or an all-gather of so many bytes in a ring of the replicas of one stage. */
static double half_ring(const sl_cluster *cluster, const tune_candidate *candidate, double bytes)
{
    double dp = candidate->dp;
    bool near = (int64_t)candidate->pp * candidate->dp <= cluster->devices || cluster->devices % candidate->dp == 0;
    const sl_cluster_link *link = near ? &cluster->inside : &cluster->between;
    return (dp - 1) * link->latency + (link->bandwidth > 0 ? (dp - 1) / dp * bytes / link->bandwidth : 0);
}

/* Of the replicas of one stage: as measured, or in a ring. */
static double collective_seconds(const tune_setting *setting, const tune_candidate *candidate, tune_collective which,
                                 double bytes)
{
    const tune_machine *machine = &setting->machine;
    if (candidate->dp == 1)
        return 0;
    for (int i = 0; i < machine->exchange_count; i++) {
        const tune_exchange *each = &machine->exchanges[i];
        if (each->dp == candidate->dp)
            return bytes * (which == TUNE_ALL_REDUCE       ? each->all_reduce
                            : which == TUNE_REDUCE_SCATTER ? each->reduce_scatter
                                                           : each->all_gather);
    }
    return (which == TUNE_ALL_REDUCE ? 2 : 1) * half_ring(setting->cluster, candidate, bytes);
}

/* Gradients are summed; weights are gathered once a step if each replica keeps or updates a part of them. */
static double exchange_seconds(const tune_setting *setting, const tune_candidate *candidate, double grads,
                               double params)
{
    if (candidate->shard == SL_SHARD_NONE)
        return collective_seconds(setting, candidate, TUNE_ALL_REDUCE, grads);
    return collective_seconds(setting, candidate, TUNE_REDUCE_SCATTER, grads) +
           collective_seconds(setting, candidate, TUNE_ALL_GATHER, params);
}

/* Small collectives of a step: the ranks of a pipeline, and those of replicas, agree that it begins and share the loss;
 * all share the norm and what they have to say at its end. */
static double rounds_seconds(const tune_setting *setting, const tune_candidate *candidate)
{
    return setting->machine.round * (2 + 2 * (candidate->pp > 1) + 2 * (candidate->dp > 1));
}

static int rank_of(const tune_candidate *candidate, int stage)
{
    return sl_placement_rank(candidate->placement, candidate->pp, stage);
}

static double work_of(const sl_stage_cost *cost)
{
    return cost->f + fmin(cost->b, cost->i + cost->w);
}

static bool shares_cores(const sl_cluster *cluster, const tune_candidate *candidate)
{
    return cluster->shared_cores > 0 && (double)candidate->pp * candidate->dp > cluster->shared_cores;
}

/* ---- Time ------------------------------------------------------------------------------------ */

/* When the rank's last backward of the stage ends. */
static double end_of_stage(const sl_timeline *timeline, int rank, int stage)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(sl_timeline_schedule(timeline), rank, &count);
    const sl_span *spans = sl_timeline_spans(timeline, rank);
    for (int64_t i = count - 1; i >= 0; i--) {
        sl_action parts[2];
        for (int p = sl_action_parts(actions[i], parts) - 1; p >= 0; p--) {
            if (parts[p].stage == stage && parts[p].kind != SL_KIND_F)
                return spans[i].end;
        }
    }
    return 0;
}

/* Seconds from `time` on in which the rank waits. */
static double idle_after(const sl_timeline *timeline, int rank, double time)
{
    int64_t count = 0;
    const sl_span *spans = sl_timeline_spans(timeline, rank);
    double idle = 0;
    sl_schedule_actions(sl_timeline_schedule(timeline), rank, &count);
    for (int64_t i = 1; i < count; i++)
        idle += fmax(0, spans[i].start - fmax(time, spans[i - 1].end));
    return idle;
}

/* Whether something else than the rank's processor exchanges: the device, or a core that no rank needs. */
static bool exchanges_beside(const sl_cluster *cluster, const tune_candidate *candidate)
{
    return cluster->shared_cores == 0 || cluster->shared_cores > (double)candidate->pp * candidate->dp;
}

/* When each rank has done its part of the pipeline and of the exchange. The gradients of a stage are exchanged while its
 * rank works on others; a rank that does it itself does it while it waits for others, and the rest at the end. */
static void end_of_ranks(const tune_setting *setting, const tune_stages *stages, const sl_timeline *timeline,
                         const tune_candidate *candidate, double *ends)
{
    bool beside = exchanges_beside(setting->cluster, candidate);
    for (int r = 0; r < candidate->pp; r++) {
        int64_t count = 0;
        sl_schedule_actions(sl_timeline_schedule(timeline), r, &count);
        double compute = count > 0 ? sl_timeline_spans(timeline, r)[count - 1].end : 0, link = 0;
        for (int chunk = 0; chunk < candidate->chunks; chunk++) {
            int stage = sl_placement_stage(candidate->placement, candidate->pp, r, candidate->chunks - 1 - chunk);
            double end = fmax(link, end_of_stage(timeline, r, stage));
            double seconds = exchange_seconds(setting, candidate, stages->grads[stage], stages->params[stage]);
            if (!beside && end < compute)
                seconds += fmax(0, compute - end - idle_after(timeline, r, end));
            link = end + seconds;
        }
        ends[r] = fmax(compute, link);
    }
}

static double largest(const double *values, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++)
        most = fmax(most, values[i]);
    return most;
}

/* Work of the pipeline and of the optimizer on each rank. */
static void sum_ranks(const tune_setting *setting, const tune_stages *stages, const tune_candidate *candidate,
                      double *work, double *update)
{
    double each = setting->update_seconds / (candidate->shard == SL_SHARD_NONE ? 1 : (double)candidate->dp);
    int first = rank_of(candidate, 0);
    for (int s = 0; s < stages->count; s++) {
        int rank = rank_of(candidate, s);
        work[rank] += work_of(&stages->costs[s]) * (double)candidate->microbatches;
        update[rank] += stages->elements[s] * each;
    }
    if (first == rank_of(candidate, stages->count - 1)) /* tied weights on one rank are updated once */
        update[first] -= setting->tied_elements * each;
}

/* Seconds that the fullest core needs. */
static double span_of_bound(int cores, const tune_candidate *candidate, const double *values)
{
    double most = 0;
    for (int core = 0; core < cores; core++) {
        double sum = 0;
        for (int r = core; r < candidate->pp * candidate->dp; r += cores)
            sum += values[r / candidate->dp];
        most = fmax(most, sum);
    }
    return most;
}

/* Seconds that the slowest rank needs, or all together if they share the processors. */
static double span_of(const tune_setting *setting, const tune_candidate *candidate, const double *values)
{
    double sum = 0, most = largest(values, candidate->pp);
    if (setting->bound_cores > 0)
        return span_of_bound(setting->bound_cores, candidate, values);
    for (int r = 0; r < candidate->pp; r++)
        sum += values[r];
    return shares_cores(setting->cluster, candidate) ? fmax(most, sum * candidate->dp / setting->cluster->shared_cores)
                                                     : most;
}

/* Weights that do not fit all at once are gathered again and again, beside the work. How much longer the pipeline takes:
 * the schedule with all of it run in time. */
static sl_status gather_seconds(const tune_setting *setting, const tune_stages *stages, const sl_schedule *schedule,
                                const sl_costs *costs, const tune_candidate *candidate, double pipeline, double *out)
{
    sl_status status = SL_OK;
    sl_schedule *gathered = NULL, *whole = NULL;
    sl_timeline *timeline = NULL;
    sl_stage_cost *each = NULL;
    sl_costs all = *costs;
    SL_TRY(SL_NEW_ARRAY(each, stages->count));
    for (int s = 0; s < stages->count; s++) {
        each[s] = costs->stages[s];
        each[s].unshard = collective_seconds(setting, candidate, TUNE_ALL_GATHER, stages->params[s]);
        each[s].reduce_grad = collective_seconds(setting, candidate, TUNE_REDUCE_SCATTER, stages->grads[s]);
    }
    all.stages = each;
    SL_TRY(sl_schedule_add_unshard(schedule, candidate->unsharded, &gathered));
    SL_TRY(sl_schedule_add_reduce_grad(gathered, &whole));
    SL_TRY(sl_schedule_simulate(whole, &all, NULL, 0, &timeline));
    *out = fmax(0, sl_timeline_makespan(timeline) - pipeline);
done:
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(whole);
    sl_schedule_destroy(gathered);
    sl_free(each);
    return status;
}

static double tied_seconds(const tune_setting *setting, const tune_candidate *candidate, const tune_stages *stages)
{
    int first = rank_of(candidate, 0), last = rank_of(candidate, stages->count - 1);
    return first == last ? 0 : 2 * sl_tune_hop(setting->cluster, candidate->dp, first, last, setting->tied_bytes);
}

/* A microbatch is held from its F to the end of its I. So much memory times time has to fit into that of the rank. */
static double bound_of_memory(const tune_setting *setting, const tune_stages *stages, const tune_candidate *candidate,
                              double memory)
{
    double bound = 0;
    for (int rank = 0; rank < candidate->pp; rank++) {
        double left = memory - sl_tune_least_fixed_memory(setting, stages, candidate, rank), flight = 0, held = 0;
        for (int s = stages->count - 1; s >= 0; s--) {
            const sl_stage_cost *cost = &stages->costs[s];
            flight += cost->f + fmin(cost->i, cost->b);
            if (rank_of(candidate, s) == rank)
                held += cost->activation * flight;
            flight += s > 0 ? 2 * stages->hops[s - 1] : 0;
        }
        bound = left > 0 ? fmax(bound, (double)candidate->microbatches * held / left) : INFINITY;
    }
    return bound;
}

double sl_tune_bound(const tune_setting *setting, const tune_stages *stages, const tune_candidate *candidate,
                     double memory)
{
    double work = 0, update = 0, before = 0, most = 0, all = 0;
    for (int s = 0; s < stages->count; s++) {
        double own = work_of(&stages->costs[s]) * (double)candidate->microbatches;
        all += own;
        work = candidate->chunks == 1 ? before + own : 0;
        update = stages->elements[s] * setting->update_seconds / candidate->dp;
        most = fmax(most, work + update);
        before += stages->costs[s].f + (s + 1 < stages->count ? stages->hops[s] : 0);
    }
    double cores = candidate->pp;
    if (shares_cores(setting->cluster, candidate))
        cores = setting->cluster->shared_cores / candidate->dp;
    return fmax(fmax(most, all / cores), bound_of_memory(setting, stages, candidate, memory));
}

sl_status sl_tune_time(const tune_setting *setting, const tune_stages *stages, const sl_schedule *schedule,
                       tune_candidate *candidate)
{
    sl_status status = SL_OK;
    sl_timeline *timeline = NULL;
    double *ends = NULL, *work = NULL, *update = NULL;
    sl_stage_cost *split = NULL;
    sl_costs costs;
    sl_costs_init(&costs);
    SL_TRY(SL_NEW_ARRAY(split, stages->count));
    sl_tune_split_costs(stages, split);
    costs.stages = sl_schedule_has_kind(schedule, SL_KIND_W) ? split : stages->costs;
    costs.edge_sizes = stages->hops;
    costs.bandwidth = 1;
    SL_TRY(SL_NEW_ARRAY(ends, candidate->pp));
    SL_TRY(SL_NEW_ARRAY(work, candidate->pp));
    SL_TRY(SL_NEW_ARRAY(update, candidate->pp));
    SL_TRY(sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline));
    candidate->bubble = sl_timeline_bubble(timeline, -1);
    SL_TRY(sl_tune_find_memory(setting, stages, timeline, candidate));
    double pipeline = sl_timeline_makespan(timeline), exchanged = 0, gathers = 0;
    if (candidate->shard == SL_SHARD_FULL && candidate->unsharded < candidate->chunks)
        SL_TRY(gather_seconds(setting, stages, schedule, &costs, candidate, pipeline, &gathers));
    if (shares_cores(setting->cluster, candidate)) {
        SL_TRY(setting->bound_cores > 0
                   ? sl_tune_share_bound(schedule, stages, candidate->dp, setting->bound_cores, ends)
                   : sl_tune_share_cores(schedule, stages, candidate->dp, setting->cluster->shared_cores, ends));
        pipeline = largest(ends, candidate->pp);
        for (int s = 0; s < stages->count; s++)
            work[rank_of(candidate, s)] += exchange_seconds(setting, candidate, stages->grads[s], stages->params[s]);
        exchanged = pipeline + span_of(setting, candidate, work);
        for (int r = 0; r < candidate->pp; r++)
            work[r] = 0;
    } else {
        end_of_ranks(setting, stages, timeline, candidate, ends);
        exchanged = fmax(pipeline, largest(ends, candidate->pp));
    }
    exchanged = fmax(exchanged, pipeline + gathers);
    sum_ranks(setting, stages, candidate, work, update);
    candidate->work = fmin(span_of(setting, candidate, work), pipeline);
    candidate->idle = pipeline - candidate->work;
    candidate->exchange =
        exchanged - pipeline + tied_seconds(setting, candidate, stages) + rounds_seconds(setting, candidate);
    candidate->update = span_of(setting, candidate, update);
    candidate->seconds = candidate->work + candidate->idle + candidate->exchange + candidate->update;
done:
    sl_timeline_destroy(timeline);
    sl_free(split);
    sl_free(update);
    sl_free(work);
    sl_free(ends);
    return status;
}
