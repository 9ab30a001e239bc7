/* One case of `sluice bench sharding`: ranks that train as replicas of a pipeline, and the same collectives alone. */
#include "sharding_measure.h"
#include "bench.h"
#include "tools/sluice/ranks.h"

#include "base/alloc.h"
#include "runtime/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Streams wait for other ranks from the fourth step on. */
enum { MAX_LOCAL_STAGES = 64, TRACE_EVENTS = 1 << 16, WARM_STEPS = 3 };

/* In memory that the forked ranks share. */
typedef struct shared_case {
    sharding_options options;
    sharding_case result;
    char error[512];
} shared_case;

/* This rank's stages, in a pipeline by itself or in one that has replicas. */
typedef struct bench_pipeline_half {
    sl_stage *stages[MAX_LOCAL_STAGES];
    int stage_count;
    sl_runtime *runtime;
} bench_pipeline_half;

/* What a rank holds. */
typedef struct sharding_rank {
    sl_group *world; /* borrowed */
    sl_group *pipeline, *replicas;
    sl_device *device;
    sl_schedule *schedule;
    sl_partition *partition;
    bench_pipeline_half alone, sharing;
    int32_t *tokens; /* (batch, seq) and as many targets */
} sharding_rank;

static void half_free(bench_pipeline_half *half)
{
    sl_runtime_destroy(half->runtime);
    for (int i = 0; i < half->stage_count; i++)
        sl_stage_destroy(half->stages[i]);
}

static void rank_free(sharding_rank *rank)
{
    half_free(&rank->sharing);
    half_free(&rank->alone);
    sl_partition_destroy(rank->partition);
    sl_schedule_destroy(rank->schedule);
    sl_device_close(rank->device);
    sl_group_close(rank->replicas);
    sl_group_close(rank->pipeline);
    sl_free(rank->tokens);
}

static sl_status build_half(const shared_case *shared, const sharding_rank *rank, sl_group *replicas,
                            bench_pipeline_half *half)
{
    sl_status status = SL_OK;
    const sl_dtype grad_dtype = SL_F32;
    const sl_program_options program = { .grad_dtype = &grad_dtype };
    for (int s = 0; s < sl_schedule_stages(rank->schedule) && half->stage_count < MAX_LOCAL_STAGES; s++) {
        if (sl_schedule_rank_of(rank->schedule, s) != sl_group_rank(rank->pipeline))
            continue;
        SL_TRY(sl_stage_build((const sl_partition *const[]){ rank->partition }, 1, s, rank->device, &program,
                              &half->stages[half->stage_count]));
        half->stage_count++;
    }
    const sl_runtime_options runtime = { .group = rank->pipeline,
                                         .replicas = replicas,
                                         .device = rank->device,
                                         .schedule = rank->schedule,
                                         .stages = half->stages,
                                         .stage_count = half->stage_count,
                                         .shard = replicas ? shared->result.shard : SL_SHARD_NONE,
                                         .shard_group = replicas && shared->result.shard != SL_SHARD_NONE
                                                            ? shared->options.shard_group
                                                            : 0,
                                         .unsharded_stages = shared->options.unsharded,
                                         .trace_events = TRACE_EVENTS };
    SL_TRY(sl_runtime_create(&runtime, &half->runtime));
    SL_TRY(bench_init_weights(half->runtime));
done:
    return status;
}

static sl_status set_up(const shared_case *shared, sharding_rank *rank)
{
    sl_status status = SL_OK;
    const sharding_options *options = &shared->options;
    const sl_generate_options generate = { .name = options->schedule,
                                           .ranks = options->model.ranks,
                                           .stages_per_rank = options->stages_per_rank,
                                           .microbatches = options->model.microbatches };
    const sl_device_options one_thread = { .threads = 1 };
    SL_TRY(sl_group_mesh(rank->world, options->model.ranks, options->replicas, &rank->pipeline, &rank->replicas));
    SL_TRY(sl_device_open(options->model.device, &one_thread, &rank->device));
    SL_TRY(sl_schedule_generate(&generate, &rank->schedule));
    SL_TRY(pipeline_cut_model(&options->model, sl_schedule_stages(rank->schedule), &rank->partition));
    SL_TRY(build_half(shared, rank, NULL, &rank->alone));
    SL_TRY(build_half(shared, rank, rank->replicas, &rank->sharing));
    SL_TRY(pipeline_fill_batch(&options->model, &rank->tokens));
done:
    return status;
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static sl_status run_step(const sharding_options *options, const sharding_rank *rank, sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int64_t count = options->model.batch * options->model.seq;
    const int64_t dims[] = { options->model.batch, options->model.seq };
    const sl_meta meta = sl_meta_make(SL_I32, 2, dims);
    const sl_arg args[] = { { "tokens", { rank->tokens, meta } }, { "targets", { rank->tokens + count, meta } } };
    SL_TRY(sl_runtime_gather_params_post(runtime)); /* as after the update before it */
    SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2 }, NULL));
done:
    return status;
}

static sl_status run_alone(const sharding_options *options, const sharding_rank *rank)
{
    return run_step(options, rank, rank->alone.runtime);
}

static sl_status run_sharing(const sharding_options *options, const sharding_rank *rank)
{
    return run_step(options, rank, rank->sharing.runtime);
}

/* Everything that a step does with weights as a whole, in its order and with its waits, and nothing else. */
static sl_status run_collectives(const sharding_options *options, const sharding_rank *rank)
{
    sl_status status = SL_OK;
    const sl_program *program = &rank->sharing.runtime->train;
    (void)options;
    SL_TRY(sl_runtime_gather_params(rank->sharing.runtime));
    for (int64_t i = 0; i < program->instr_count; i++) {
        if (program->instrs[i].code >= SL_CODE_UNSHARD)
            SL_TRY(sl_weights_run(rank->sharing.runtime, &program->instrs[i]));
    }
    SL_TRY(sl_stream_synchronize(rank->sharing.runtime->stream));
done:
    return status;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, compare);
    return seconds[count / 2];
}

enum { ALONE, SHARING, COLLECTIVES, RUNS, EXPOSED = RUNS, MEASURED };

/* All three in turns, so that a machine that gets slower or faster does so for all; a few before that to warm up. */
static sl_status measure(const sharding_options *options, const sharding_rank *rank, double *const seconds[MEASURED])
{
    static sl_status (*const runs[])(const sharding_options *, const sharding_rank *) = {
        [ALONE] = run_alone, [SHARING] = run_sharing, [COLLECTIVES] = run_collectives
    };
    sl_status status = SL_OK;
    const sl_posted *posted = &rank->sharing.runtime->posted;
    for (int i = -WARM_STEPS; i < options->model.steps; i++) {
        for (int k = 0; k < RUNS; k++) {
            double before = posted->seconds;
            SL_TRY(sl_group_barrier(rank->world));
            double start = sl_now();
            SL_TRY(runs[k](options, rank));
            SL_TRY(sl_group_barrier(rank->world));
            if (i >= 0)
                seconds[k][i] = sl_now() - start;
            if (i >= 0 && k == SHARING)
                seconds[EXPOSED][i] = posted->seconds - before;
        }
        if (i < 0)
            sl_runtime_clear_trace(rank->alone.runtime);
    }
done:
    return status;
}

/* Seconds of the collectives of the rank that has most, if a byte takes one. */
static double most_bytes(const sl_schedule *schedule, const sl_stage_cost *costs)
{
    double most = 0;
    for (int r = 0; r < sl_schedule_ranks(schedule); r++) {
        int64_t count = 0;
        double sum = 0;
        const sl_action *actions = sl_schedule_actions(schedule, r, &count);
        for (int64_t i = 0; i < count; i++) {
            sum += actions[i].kind == SL_KIND_UNSHARD ? costs[actions[i].stage].unshard : 0;
            sum += actions[i].kind == SL_KIND_REDUCE_GRAD ? costs[actions[i].stage].reduce_grad : 0;
        }
        for (int s = 0; s < sl_schedule_stages(schedule); s++)
            sum += sl_schedule_rank_of(schedule, s) == r ? costs[s].gather : 0;
        most = sum > most ? sum : most;
    }
    return most;
}

static sl_status simulate(const sl_pipeline *pipeline, const sl_stage_cost *stages, double *makespan)
{
    sl_status status = SL_OK;
    sl_timeline *timeline = NULL;
    const sl_costs costs = { .stages = stages };
    SL_TRY(sl_pipeline_simulate(pipeline, &costs, &timeline));
    *makespan = sl_timeline_makespan(timeline);
    sl_timeline_destroy(timeline);
done:
    return status;
}

/* How much of the collectives' time a simulated step can hide: with the phases' measured times, and the collectives'
 * time shared out by their bytes. */
static sl_status find_hideable(const sharding_rank *rank, double collective_s, double *out)
{
    sl_status status = SL_OK;
    const sl_pipeline *pipeline = rank->sharing.runtime->pipeline;
    sl_stage_cost *costs = NULL;
    double alone = 0, sharing = 0;
    SL_TRY(SL_NEW_ARRAY(costs, sl_schedule_stages(rank->schedule)));
    SL_TRY(sl_runtime_measure_costs(rank->alone.runtime, costs));
    SL_TRY(simulate(pipeline, costs, &alone));
    sl_pipeline_cost_collectives(pipeline, 1, costs);
    double bytes = most_bytes(sl_pipeline_schedule(pipeline), costs);
    sl_pipeline_cost_collectives(pipeline, bytes / collective_s, costs);
    SL_TRY(simulate(pipeline, costs, &sharing));
    *out = 1 - (sharing - alone) / collective_s;
done:
    sl_free(costs);
    return status;
}

/* Puts the ranks' figures together. */
static sl_status collect(const sharding_options *options, const sharding_rank *rank, double *const seconds[MEASURED],
                         sharding_case *out)
{
    sl_status status = SL_OK;
    int steps = options->model.steps;
    const sl_posted *posted = &rank->sharing.runtime->posted;
    int64_t runs = 2 * ((int64_t)steps + WARM_STEPS); /* the collectives alone are the same again */
    int64_t most[] = { posted->count / runs, (int64_t)posted->bytes / runs };
    double *waits = seconds[EXPOSED];
    for (int i = 0; i < steps; i++) /* of the replica that comes last: the others also wait for it to come */
        waits[i] = -waits[i];
    SL_TRY(sl_group_all_reduce(rank->replicas, waits, steps, SL_F64, SL_REDUCE_MAX));
    double exposed = -median(waits, steps);
    SL_TRY(sl_group_all_reduce(rank->pipeline, &exposed, 1, SL_F64, SL_REDUCE_SUM));
    SL_TRY(sl_group_all_reduce(rank->world, most, 2, SL_I64, SL_REDUCE_MAX));
    out->alone_s = median(seconds[ALONE], steps);
    out->step_s = median(seconds[SHARING], steps);
    out->collective_s = median(seconds[COLLECTIVES], steps);
    out->exposed_s = exposed / sl_group_size(rank->pipeline);
    if (!sl_device_is_host(rank->device)) /* streams wait there, not the host */
        out->exposed_s = out->step_s > out->alone_s ? out->step_s - out->alone_s : 0;
    out->count = most[0];
    out->bytes = most[1];
    out->helper = rank->sharing.runtime->mover != NULL;
    SL_TRY(sl_group_broadcast(rank->world, 0, &out->collective_s, sizeof out->collective_s));
    SL_TRY(find_hideable(rank, out->collective_s, &out->hideable));
done:
    return status;
}

static sl_status run_rank(shared_case *shared, sl_group *world)
{
    sl_status status = SL_OK;
    sharding_rank rank = { .world = world };
    sharding_case result = shared->result;
    double *seconds[MEASURED] = { NULL };
    for (int k = 0; k < MEASURED; k++)
        SL_TRY(SL_NEW_ARRAY(seconds[k], shared->options.model.steps));
    SL_TRY(set_up(shared, &rank));
    SL_TRY(measure(&shared->options, &rank, seconds));
    SL_TRY(collect(&shared->options, &rank, seconds, &result));
    if (sl_group_rank(world) == 0) {
        snprintf(result.collectives, sizeof result.collectives, "%s", sl_runtime_collectives(rank.sharing.runtime));
        shared->result = result;
    }
done:
    if (status != SL_OK)
        snprintf(shared->error, sizeof shared->error, "%s", sl_error_message());
    rank_free(&rank);
    for (int k = 0; k < MEASURED; k++)
        sl_free(seconds[k]);
    return status;
}

static int thread_main(void *user, sl_group *group)
{
    sl_status status = run_rank(user, group);
    return status == SL_OK ? 0 : ranks_failure("bench sharding", group, sl_group_fail(group, status));
}

/* One rank, or all of them. */
static int rank_main(void *user, int rank)
{
    shared_case *shared = user;
    const sharding_options *options = &shared->options;
    sl_group *world = NULL;
    (void)rank;
    if (options->model.ranks_as == RANKS_AS_THREADS)
        return ranks_run_threads("bench sharding", options->model.ranks * options->replicas, 0, thread_main, shared);
    if (sl_group_open(NULL, &world) != SL_OK)
        return 1;
    sl_status status = run_rank(shared, world);
    sl_group_close(world);
    return status == SL_OK ? 0 : 1;
}

sl_status sharding_measure(const sharding_options *options, sharding_case *each)
{
    sl_status status = SL_OK;
    sl_launch_result result;
    shared_case *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "no memory for the results");
    *shared = (shared_case){ .options = *options, .result = *each };
    int ranks = options->model.ranks * options->replicas;
    sl_launch_options launch = { .ranks = options->model.ranks_as == RANKS_AS_THREADS ? 1 : ranks,
                                 .run = rank_main,
                                 .user = shared };
    SL_TRY(sl_launch(&launch, &result));
    if (result.exit_code != 0)
        SL_TRY(sl_fail(SL_ERR_PEER, "%s on %d ranks: %s", options->schedule, ranks,
                       *shared->error ? shared->error : result.report));
    *each = shared->result;
done:
    munmap(shared, sizeof *shared);
    return status;
}
