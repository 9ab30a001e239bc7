/* sluice bench overhead: what the runtime itself costs, with stages that do nothing. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/ranks.h"

#include "base/alloc.h"
#include "base/json.h"
#include <sluice/runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_LOCAL_STAGES = 8, MAX_CASES = 14, WORK_US = 100, WORK_MICROBATCHES = 1 };

static const cli_usage usage = {
    .command = "bench overhead",
    .synopsis = "[OPTIONS]",
    .description =
        "Runs pipelines of stages that do nothing on local ranks and prints the time of a training step for "
        "each microbatch and stage (of all ranks): what messages, waiting and book-keeping take; the median and the "
        "worst of many rounds, and the median with a trace. Then one microbatch through stages whose forward and "
        "backward take 100 us each: 'trace' says by what share the step takes longer because it is traced; the lower "
        "quartile of ten times as many rounds. Rounds with and without a trace take turns. On a GPU the stages are "
        "callbacks that launch nothing, and a step is one CUDA graph of its messages; ranks take the "
        "machine's GPUs in turn.",
    .examples = "sluice bench overhead --format json\n"
                "sluice bench overhead --device cuda --ranks 1 --schedule 1F1B",
};

/* Microseconds per microbatch and stage, over all rounds. */
typedef struct bench_times {
    double quartile, median, worst;
} bench_times;

typedef struct bench_case {
    const char *schedule;
    int ranks;
    int stages_per_rank;
    int work_us; /* that a stage's forward or backward takes */
    bench_times plain, traced;
} bench_case;

/* What the forked ranks work on; in memory that all share. */
typedef struct overhead {
    const char *device;
    int ranks_as; /* RANKS_AS_... */
    int microbatches, steps, rounds;
    sl_launch_bind bind;
    bench_case current;
    char error[512];
} overhead;

/* ---- A stage that does nothing, or nothing for some time ------------------------------------- */

static sl_status do_nothing(void *user, const sl_stage_call *call)
{
    const int *work_us = user;
    double end = *work_us ? sl_now() + *work_us * 1e-6 : 0;
    (void)call;
    while (end > 0 && sl_now() < end)
        ;
    return SL_OK;
}

static sl_status create_stage(int index, int count, int *work_us, sl_stage **out)
{
    char input_name[16], output_name[16];
    sl_meta meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 1 });
    snprintf(input_name, sizeof input_name, "h%d", index - 1);
    snprintf(output_name, sizeof output_name, "h%d", index);
    sl_stage_value input = { .name = input_name, .meta = meta, .last_use = SL_LAST_USE_F };
    sl_stage_value output = {
        .name = output_name, .meta = meta, .last_use = SL_LAST_USE_F, .grad_last_use = SL_LAST_USE_I
    };
    sl_stage_options options = {
        .index = index,
        .inputs = &input,
        .input_count = index > 0,
        .outputs = &output,
        .output_count = index < count - 1,
        .forward = do_nothing,
        .backward_input = do_nothing,
        .backward_weight = do_nothing,
        .backward = do_nothing,
        .user = work_us,
        .replays = *work_us == 0,
    };
    return sl_stage_create(&options, out);
}

/* ---- One rank -------------------------------------------------------------------------------- */

/* A pipeline and its like with a trace. */
typedef struct overhead_rank {
    sl_group *group;
    sl_device *device;
    sl_schedule *schedule;
    sl_stage *stages[2][MAX_LOCAL_STAGES];
    int stage_count[2];
    sl_runtime *runtimes[2];
} overhead_rank;

static sl_status create_runtime(overhead *shared, overhead_rank *state, int traced)
{
    sl_status status = SL_OK;
    int total = sl_schedule_stages(state->schedule), *count = &state->stage_count[traced];
    for (int s = 0; s < total && *count < MAX_LOCAL_STAGES; s++) {
        if (sl_schedule_rank_of(state->schedule, s) != sl_group_rank(state->group))
            continue;
        SL_TRY(create_stage(s, total, &shared->current.work_us, &state->stages[traced][*count]));
        (*count)++;
    }
    sl_runtime_options options = { .group = state->group,
                                   .device = state->device,
                                   .schedule = state->schedule,
                                   .stages = state->stages[traced],
                                   .stage_count = *count,
                                   .trace_events = traced ? 10000 : 0 };
    SL_TRY(sl_runtime_create(&options, &state->runtimes[traced]));
done:
    return status;
}

static sl_status time_round(const overhead *shared, const overhead_rank *state, int traced, double *us)
{
    sl_status status = SL_OK;
    SL_TRY(sl_group_barrier(state->group));
    double start = sl_now();
    for (int step = 0; step < shared->steps; step++)
        SL_TRY(sl_runtime_step(state->runtimes[traced], &(sl_step){ .number = step }, NULL));
    SL_TRY(sl_group_barrier(state->group));
    *us = (sl_now() - start) * 1e6 / shared->steps / shared->microbatches / sl_schedule_stages(state->schedule);
done:
    return status;
}

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static bench_times summarize(double *us, int rounds)
{
    qsort(us, (size_t)rounds, sizeof *us, by_size);
    return (bench_times){ .quartile = us[rounds / 4], .median = us[rounds / 2], .worst = us[rounds - 1] };
}

static sl_status time_rounds(overhead *shared, const overhead_rank *state)
{
    sl_status status = SL_OK;
    int rounds = shared->rounds;
    double *us[2] = { NULL, NULL }, warm;
    for (int traced = 0; traced < 2; traced++) {
        SL_TRY(SL_NEW_ARRAY(us[traced], rounds));
        SL_TRY(time_round(shared, state, traced, &warm));
    }
    for (int round = 0; round < rounds; round++) {
        for (int traced = 0; traced < 2; traced++)
            SL_TRY(time_round(shared, state, traced, &us[traced][round]));
    }
    if (sl_group_rank(state->group) == 0) {
        shared->current.plain = summarize(us[0], rounds);
        shared->current.traced = summarize(us[1], rounds);
    }
done:
    sl_free(us[0]);
    sl_free(us[1]);
    return status;
}

static sl_status run_rank(overhead *shared, sl_group *group)
{
    sl_status status = SL_OK;
    overhead_rank state = { .group = group };
    sl_generate_options options = { .name = shared->current.schedule,
                                    .ranks = shared->current.ranks,
                                    .microbatches = shared->microbatches,
                                    .stages_per_rank = shared->current.stages_per_rank };
    SL_TRY(sl_device_open(shared->device, NULL, &state.device));
    SL_TRY(sl_schedule_generate(&options, &state.schedule));
    for (int traced = 0; traced < 2; traced++)
        SL_TRY(create_runtime(shared, &state, traced));
    SL_TRY(time_rounds(shared, &state));
done:
    if (status != SL_OK)
        snprintf(shared->error, sizeof shared->error, "%s", sl_error_message());
    for (int traced = 0; traced < 2; traced++) {
        sl_runtime_destroy(state.runtimes[traced]);
        for (int i = 0; i < state.stage_count[traced]; i++)
            sl_stage_destroy(state.stages[traced][i]);
    }
    sl_schedule_destroy(state.schedule);
    sl_device_close(state.device);
    return status;
}

static int thread_main(void *user, sl_group *group)
{
    sl_status status = run_rank(user, group);
    return status == SL_OK ? EXIT_OK : ranks_failure("bench overhead", group, sl_group_fail(group, status));
}

/* One rank, or all of them. */
static int rank_main(void *user, int rank)
{
    overhead *shared = user;
    sl_group *group = NULL;
    (void)rank;
    if (shared->ranks_as == RANKS_AS_THREADS)
        return ranks_run_threads("bench overhead", shared->current.ranks, 0, thread_main, shared);
    if (sl_group_open(NULL, &group) != SL_OK)
        return EXIT_FAILED;
    sl_status status = run_rank(shared, group);
    sl_group_close(group);
    return status == SL_OK ? EXIT_OK : EXIT_FAILED;
}

/* ---- All cases ------------------------------------------------------------------------------- */

static sl_status measure(overhead *shared, bench_case *each)
{
    sl_status status = SL_OK;
    sl_launch_options launch = { .ranks = shared->ranks_as == RANKS_AS_THREADS ? 1 : each->ranks,
                                 .run = rank_main,
                                 .user = shared,
                                 .bind = shared->bind };
    sl_launch_result result;
    shared->current = *each;
    SL_TRY(sl_launch(&launch, &result));
    if (result.exit_code != 0)
        return sl_fail(SL_ERR_PEER, "%s with %d ranks: %s", each->schedule, each->ranks,
                       *shared->error ? shared->error : result.report);
    *each = shared->current;
done:
    return status;
}

static int core_count(void)
{
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* All cases, and what a trace costs stages that work. */
static sl_status measure_all(overhead *shared, bench_case *cases, int count, bench_case *working)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++)
        SL_TRY(measure(shared, &cases[i]));
    /* One microbatch keeps one rank busy at a time, and a round short: also on a busy machine some are undisturbed. */
    shared->microbatches = WORK_MICROBATCHES;
    shared->steps = 1;
    shared->rounds *= 10;
    SL_TRY(measure(shared, working));
done:
    return status;
}

/* In the order of the list below. */
#define SCHEDULE_WORDS "GPipe|1F1B|LoopedBFS|Interleaved1F1B|InterleavedZeroBubble|ZBVZeroBubble|DualPipeV"

/* The schedule of that place in the words, or all if it is -1, with as many ranks as asked for, and with as many as there
 * are cores if those are fewer. */
static int list_cases(int only, int ranks, bench_case *cases)
{
    static const struct {
        const char *name;
        int stages_per_rank;
    } schedules[] = { { "GPipe", 1 },
                      { "1F1B", 1 },
                      { "LoopedBFS", 2 },
                      { "Interleaved1F1B", 2 },
                      { "InterleavedZeroBubble", 2 },
                      { "ZBVZeroBubble", 2 },
                      { "DualPipeV", 2 } };
    int count = 0, cores = core_count();
    for (int few = 0; few < 2; few++) {
        int each = few ? cores : ranks;
        if (few && (cores >= ranks || cores < 2))
            continue;
        for (int i = 0; i < (int)(sizeof schedules / sizeof *schedules); i++) {
            if (only < 0 || only == i)
                cases[count++] = (bench_case){ .schedule = schedules[i].name,
                                               .ranks = each,
                                               .stages_per_rank = schedules[i].stages_per_rank };
        }
    }
    return count;
}

static double trace_overhead(const bench_case *each)
{
    return each->traced.quartile / each->plain.quartile - 1;
}

static void put_case(sl_json *json, const bench_case *each)
{
    sl_json_begin(json, '{');
    sl_json_put_string(json, "schedule", each->schedule);
    sl_json_put_int(json, "ranks", each->ranks);
    sl_json_put_int(json, "stages_per_rank", each->stages_per_rank);
    if (each->work_us)
        sl_json_put_int(json, "stage_us", each->work_us);
    sl_json_put_double(json, "us_per_microbatch_stage", each->plain.median);
    sl_json_put_double(json, "worst_us_per_microbatch_stage", each->plain.worst);
    sl_json_put_double(json, "traced_us_per_microbatch_stage", each->traced.median);
    if (each->work_us)
        sl_json_put_double(json, "overhead", trace_overhead(each));
    sl_json_end(json, '}');
}

static void print_json(const bench_case *cases, int count, const bench_case *working, int microbatches)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "microbatches", microbatches);
    sl_json_put_int(&json, "cores", core_count());
    sl_json_key(&json, "cases");
    sl_json_begin(&json, '[');
    for (int i = 0; i < count; i++) {
        sl_json_newline(&json);
        put_case(&json, &cases[i]);
    }
    sl_json_end(&json, ']');
    sl_json_newline(&json);
    sl_json_key(&json, "trace");
    put_case(&json, working);
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const bench_case *cases, int count, const bench_case *working)
{
    static const char row[] = "%-24s %5d %11d %10.2f %10.2f %10.2f";
    printf("us per microbatch and stage\n%-24s %5s %11s %10s %10s %10s\n", "schedule", "ranks", "stages/rank", "median",
           "worst", "traced");
    for (int i = 0; i <= count; i++) {
        const bench_case *each = i < count ? &cases[i] : working;
        printf(row, each->schedule, each->ranks, each->stages_per_rank, each->plain.median, each->plain.worst,
               each->traced.median);
        if (each->work_us)
            printf("  forward and backward of %d us: tracing costs %.2f %%", each->work_us, 100 * trace_overhead(each));
        putchar('\n');
    }
}

int bench_overhead(int argc, char **argv)
{
    int ranks = 4, microbatches = 32, steps = 10, rounds = 100, bind = SL_BIND_NONE, format = 0, ranks_as = 0,
        only = -1;
    int code;
    const char *device = "cpu";
    const cli_option options[] = {
        DEVICE_OPTION_ROW(device),
        { .name = "ranks", .value = "P", .integer = &ranks, .min = 1, .max = 64, .help = "Number of ranks; 4." },
        RANKS_AS_OPTION_ROW(ranks_as),
        { .name = "schedule",
          .value = "NAME",
          .words = SCHEDULE_WORDS,
          .choice = &only,
          .help = "Only this schedule of those that are measured; all." },
        { .name = "microbatches",
          .value = "M",
          .integer = &microbatches,
          .min = 1,
          .max = 10000,
          .help = "Number of microbatches; 32." },
        { .name = "steps",
          .value = "N",
          .integer = &steps,
          .min = 1,
          .max = 1000000,
          .help = "Training steps of each round; 10." },
        { .name = "rounds", .value = "N", .integer = &rounds, .min = 1, .max = 1000, .help = "Rounds; 100." },
        { .name = "bind",
          .value = "auto|none|core",
          .words = "auto|none|core",
          .choice = &bind,
          .help = "As for sluice launch; none." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    int cores = core_count();
    bench_case cases[MAX_CASES], working = {
        .schedule = "1F1B", .ranks = ranks < cores ? ranks : cores, .stages_per_rank = 1, .work_us = WORK_US
    };
    int count = list_cases(only, ranks, cases);
    overhead *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        sl_fail(SL_ERR_MEMORY, "no shared memory");
        return failure("bench overhead");
    }
    *shared = (overhead){
        .device = device,
        .ranks_as = ranks_as,
        .microbatches = microbatches,
        .steps = steps,
        .rounds = rounds,
        .bind = (sl_launch_bind)bind,
    };
    sl_status status = measure_all(shared, cases, count, &working);
    if (status == SL_OK && format == FORMAT_JSON)
        print_json(cases, count, &working, microbatches);
    else if (status == SL_OK)
        print_text(cases, count, &working);
    munmap(shared, sizeof *shared);
    return status == SL_OK ? EXIT_OK : failure("bench overhead");
}
