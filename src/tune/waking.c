/* What ranks of a pipeline lose on shared cores beside their turns: a rank that is woken may wait on its waker's core while
 * another core is idle. Measured by a pipeline of known work that all ranks play, against the simulation without loss. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { LEAST_REPEATS = 3, MOST_REPEATS = 9, MESSAGE_BYTES = 64, HALVINGS = 20 };
static const double FORWARD_SECONDS = 5e-4; /* a backward takes twice as long */
static const double PLAY_SECONDS = 0.3;     /* that are enough beyond the least number of repeats */
static const double MOST_WAKING = 4;

/* 1F1B with one stage a rank, as one rank plays it. */
typedef struct wake_pipeline {
    sl_group *world;
    int rank, ranks;
    sl_schedule *schedule;
    tune_stages stages;     /* what the simulation takes for it */
    double *ends;           /* (ranks) of the simulation */
    sl_channel **channels;  /* (2 * (ranks - 1)): from rank r to r + 1, and behind them from r + 1 to r */
    sl_channel_spec *specs; /* (2 * (ranks - 1)) */
} wake_pipeline;

/* ---- The pipeline ---------------------------------------------------------------------------- */

/* By this thread's own time: it takes longer if it has to wait for its core. */
static void work_for(double seconds)
{
    struct timespec time;
    double end = 0;
    while (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) {
        double now = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
        if (end == 0)
            end = now + seconds;
        if (now >= end)
            return;
    }
}

static sl_status send_message(sl_channel *channel, int microbatch)
{
    sl_status status = SL_OK;
    const sl_message message = { .microbatch = microbatch };
    void *slot = NULL;
    SL_TRY(sl_channel_reserve(channel, &message, &slot));
    SL_TRY(sl_channel_commit(channel, slot));
done:
    return status;
}

static sl_status take_message(sl_channel *channel)
{
    sl_status status = SL_OK;
    void *slot = NULL;
    SL_TRY(sl_channel_receive(channel, NULL, NULL, &slot));
    SL_TRY(sl_channel_release(channel, slot));
done:
    return status;
}

static sl_status play_action(const wake_pipeline *pipeline, sl_action action)
{
    sl_status status = SL_OK;
    bool forward = action.kind == SL_KIND_F, first = pipeline->rank == 0, last = pipeline->rank == pipeline->ranks - 1;
    const sl_stage_cost *cost = &pipeline->stages.costs[pipeline->rank];
    sl_channel **up = pipeline->channels + pipeline->rank, **down = up + pipeline->ranks - 1;
    if (forward ? !first : !last)
        SL_TRY(take_message(forward ? up[-1] : down[0]));
    work_for(forward ? cost->f : cost->b);
    if (forward ? !last : !first)
        SL_TRY(send_message(forward ? up[0] : down[-1], action.microbatch));
done:
    return status;
}

static sl_status play_step(const wake_pipeline *pipeline)
{
    sl_status status = SL_OK;
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(pipeline->schedule, pipeline->rank, &count);
    for (int64_t i = 0; i < count; i++)
        SL_TRY(play_action(pipeline, actions[i]));
done:
    return status;
}

static sl_status open_pipeline(wake_pipeline *pipeline, double hop)
{
    sl_status status = SL_OK;
    int ranks = pipeline->ranks, edges = ranks - 1;
    const sl_generate_options options = { .name = "1F1B", .ranks = ranks, .microbatches = 2 * ranks };
    SL_TRY(sl_schedule_generate(&options, &pipeline->schedule));
    SL_TRY(SL_NEW_ARRAY(pipeline->stages.costs, ranks));
    SL_TRY(SL_NEW_ARRAY(pipeline->stages.hops, ranks));
    SL_TRY(SL_NEW_ARRAY(pipeline->ends, ranks));
    SL_TRY(SL_NEW_ARRAY(pipeline->channels, 2 * edges));
    SL_TRY(SL_NEW_ARRAY(pipeline->specs, 2 * edges));
    pipeline->stages.count = ranks;
    for (int r = 0; r < ranks; r++) {
        pipeline->stages.costs[r] = (sl_stage_cost){ .f = FORWARD_SECONDS, .b = 2 * FORWARD_SECONDS };
        pipeline->stages.hops[r] = hop;
    }
    for (int c = 0; c < 2 * edges; c++) {
        int low = c % edges;
        pipeline->specs[c] = (sl_channel_spec){ .id = c,
                                                .src = c < edges ? low : low + 1,
                                                .dst = c < edges ? low + 1 : low,
                                                .capacity = options.microbatches,
                                                .max_bytes = MESSAGE_BYTES };
    }
    SL_TRY(sl_group_open_channels(pipeline->world, pipeline->specs, 2 * edges, pipeline->channels));
done:
    return status;
}

static void close_pipeline(wake_pipeline *pipeline)
{
    for (int c = 0; pipeline->channels && c < 2 * (pipeline->ranks - 1); c++)
        sl_channel_close(pipeline->channels[c]);
    sl_free(pipeline->specs);
    sl_free(pipeline->channels);
    sl_free(pipeline->ends);
    sl_free(pipeline->stages.hops);
    sl_free(pipeline->stages.costs);
    sl_schedule_destroy(pipeline->schedule);
}

/* ---- Time ------------------------------------------------------------------------------------ */

static sl_status simulate(wake_pipeline *pipeline, double cores, double waking, double *out)
{
    sl_status status = SL_OK;
    double last = 0;
    pipeline->stages.waking = waking;
    SL_TRY(sl_tune_share_cores(pipeline->schedule, &pipeline->stages, 1, cores, pipeline->ends));
    for (int r = 0; r < pipeline->ranks; r++)
        last = fmax(last, pipeline->ends[r]);
    *out = last;
done:
    return status;
}

static int by_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of steps, from all ranks' start to the last one's end. */
static sl_status time_steps(const wake_pipeline *pipeline, double expected, double *out)
{
    sl_status status = SL_OK;
    double seconds[MOST_REPEATS];
    int repeats = (int)fmin(MOST_REPEATS, fmax(LEAST_REPEATS, PLAY_SECONDS / expected));
    for (int i = -1; i < repeats; i++) { /* the first warms up */
        SL_TRY(sl_group_barrier(pipeline->world));
        double start = sl_now();
        SL_TRY(play_step(pipeline));
        SL_TRY(sl_group_barrier(pipeline->world));
        seconds[i < 0 ? 0 : i] = sl_now() - start;
    }
    qsort(seconds, (size_t)repeats, sizeof *seconds, by_seconds);
    *out = seconds[repeats / 2];
done:
    return status;
}

sl_status sl_tune_measure_waking(sl_group *world, double cores, double hop, double *out)
{
    sl_status status = SL_OK;
    wake_pipeline pipeline = { .world = world, .rank = sl_group_rank(world), .ranks = sl_group_size(world) };
    double low = 1, high = MOST_WAKING, seconds = 0, measured = 0;
    SL_TRY(open_pipeline(&pipeline, hop));
    SL_TRY(simulate(&pipeline, cores, 1, &seconds));
    SL_TRY(time_steps(&pipeline, seconds, &measured));
    for (int i = 0; i < HALVINGS; i++) {
        double middle = (low + high) / 2;
        SL_TRY(simulate(&pipeline, cores, middle, &seconds));
        *(seconds < measured ? &low : &high) = middle;
    }
    *out = low;
done:
    close_pipeline(&pipeline);
    return status;
}
