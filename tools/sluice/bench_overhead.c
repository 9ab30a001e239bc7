/* sluice bench overhead: what the runtime itself costs, with stages that do nothing. */
#include "bench.h"
#include "command.h"
#include "options.h"

#include "base/json.h"
#include <sluice/runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_LOCAL_STAGES = 8, MAX_CASES = 12 };

static const cli_usage usage = {
    .command = "bench overhead",
    .synopsis = "[OPTIONS]",
    .description =
        "Runs pipelines of stages that do nothing on local ranks and prints the time of a training step for "
        "each microbatch and stage (of all ranks): what messages, waiting and book-keeping take, without and "
        "with a trace. The best of several rounds counts.",
    .examples = "sluice bench overhead --format json",
};

typedef struct bench_case {
    const char *schedule;
    int ranks;
    int stages_per_rank;
    double us;        /* per microbatch and stage, the best round */
    double traced_us; /* the same with a trace */
} bench_case;

/* What the forked ranks work on; in memory that all share. */
typedef struct overhead {
    int microbatches, steps, rounds;
    bool trace;
    bench_case current;
    char error[512];
} overhead;

/* ---- A stage that does nothing --------------------------------------------------------------- */

static sl_status do_nothing(void *user, const sl_stage_call *call)
{
    (void)user, (void)call;
    return SL_OK;
}

static sl_status create_stage(int index, int count, sl_stage **out)
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
    };
    return sl_stage_create(&options, out);
}

/* ---- One rank -------------------------------------------------------------------------------- */

static sl_status time_rounds(overhead *shared, sl_runtime *runtime, int stages)
{
    sl_status status = SL_OK;
    double best = 0;
    for (int round = 0; round <= shared->rounds; round++) {
        SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
        double start = sl_now();
        for (int step = 0; step < shared->steps; step++)
            SL_TRY(sl_runtime_step(runtime, &(sl_step){ .number = step }, NULL));
        SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
        double each = (sl_now() - start) / shared->steps / shared->microbatches / stages;
        if (round > 0 && (best == 0 || each < best)) /* round 0 warms up */
            best = each;
    }
    if (sl_group_rank(sl_runtime_group(runtime)) == 0)
        *(shared->trace ? &shared->current.traced_us : &shared->current.us) = best * 1e6;
done:
    return status;
}

static sl_status run_rank(overhead *shared)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    sl_device *device = NULL;
    sl_schedule *schedule = NULL;
    sl_stage *stages[MAX_LOCAL_STAGES] = { NULL };
    sl_runtime *runtime = NULL;
    int count = 0;
    sl_generate_options options = { .name = shared->current.schedule,
                                    .ranks = shared->current.ranks,
                                    .microbatches = shared->microbatches,
                                    .stages_per_rank = shared->current.stages_per_rank };
    SL_TRY(sl_group_open(NULL, &group));
    SL_TRY(sl_device_open("cpu", NULL, &device));
    SL_TRY(sl_schedule_generate(&options, &schedule));
    int total = sl_schedule_stages(schedule);
    for (int s = 0; s < total && count < MAX_LOCAL_STAGES; s++) {
        if (sl_schedule_rank_of(schedule, s) == sl_group_rank(group))
            SL_TRY(create_stage(s, total, &stages[count++]));
    }
    sl_runtime_options what = { .group = group,
                                .device = device,
                                .schedule = schedule,
                                .stages = stages,
                                .stage_count = count,
                                .trace_events = shared->trace ? 10000 : 0 };
    SL_TRY(sl_runtime_create(&what, &runtime));
    SL_TRY(time_rounds(shared, runtime, total));
done:
    if (status != SL_OK)
        snprintf(shared->error, sizeof shared->error, "%s", sl_error_message());
    sl_runtime_destroy(runtime);
    for (int i = 0; i < count; i++)
        sl_stage_destroy(stages[i]);
    sl_schedule_destroy(schedule);
    sl_device_close(device);
    sl_group_close(group);
    return status;
}

static int rank_main(void *user, int rank)
{
    (void)rank;
    return run_rank(user) == SL_OK ? EXIT_OK : EXIT_FAILED;
}

/* ---- All cases ------------------------------------------------------------------------------- */

static sl_status measure(overhead *shared, bench_case *cases, int count)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++) {
        sl_launch_options launch = { .ranks = cases[i].ranks, .run = rank_main, .user = shared };
        sl_launch_result result;
        shared->current = cases[i];
        for (int traced = 0; traced < 2; traced++) {
            shared->trace = traced;
            SL_TRY(sl_launch(&launch, &result));
            if (result.exit_code != 0)
                return sl_fail(SL_ERR_PEER, "%s with %d ranks: %s", cases[i].schedule, cases[i].ranks,
                               *shared->error ? shared->error : result.report);
        }
        cases[i] = shared->current;
    }
done:
    return status;
}

/* The three schedules with as many ranks as asked for, and with as many as there are cores where those are fewer. */
static int list_cases(int ranks, bench_case *cases)
{
    int count = 0, cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int few = 0; few < 2; few++) {
        int each = few ? cores : ranks;
        if (few && (cores >= ranks || cores < 2))
            continue;
        cases[count++] = (bench_case){ "1F1B", each, 1, 0, 0 };
        cases[count++] = (bench_case){ "Interleaved1F1B", each, 2, 0, 0 };
        cases[count++] = (bench_case){ "InterleavedZeroBubble", each, 2, 0, 0 };
    }
    return count;
}

static void print_json(const bench_case *cases, int count, int microbatches)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "microbatches", microbatches);
    sl_json_put_int(&json, "cores", (int64_t)sysconf(_SC_NPROCESSORS_ONLN));
    sl_json_key(&json, "cases");
    sl_json_begin(&json, '[');
    for (int i = 0; i < count; i++) {
        sl_json_newline(&json);
        sl_json_begin(&json, '{');
        sl_json_put_string(&json, "schedule", cases[i].schedule);
        sl_json_put_int(&json, "ranks", cases[i].ranks);
        sl_json_put_int(&json, "stages_per_rank", cases[i].stages_per_rank);
        sl_json_put_double(&json, "us_per_microbatch_stage", cases[i].us);
        sl_json_put_double(&json, "traced_us_per_microbatch_stage", cases[i].traced_us);
        sl_json_end(&json, '}');
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const bench_case *cases, int count)
{
    printf("%-24s %5s %11s %24s %10s\n", "schedule", "ranks", "stages/rank", "us/(microbatch, stage)", "traced");
    for (int i = 0; i < count; i++)
        printf("%-24s %5d %11d %24.2f %10.2f\n", cases[i].schedule, cases[i].ranks, cases[i].stages_per_rank,
               cases[i].us, cases[i].traced_us);
}

int bench_overhead(int argc, char **argv)
{
    int ranks = 4, microbatches = 32, steps = 10, rounds = 100, format = 0, code;
    const cli_option options[] = {
        { .name = "ranks", .value = "P", .integer = &ranks, .min = 1, .max = 64, .help = "Number of ranks; 4." },
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
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    bench_case cases[MAX_CASES];
    int count = list_cases(ranks, cases);
    overhead *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        sl_fail(SL_ERR_MEMORY, "no shared memory");
        return failure("bench overhead");
    }
    *shared = (overhead){ .microbatches = microbatches, .steps = steps, .rounds = rounds };
    sl_status status = measure(shared, cases, count);
    if (status == SL_OK && format == FORMAT_JSON)
        print_json(cases, count, microbatches);
    else if (status == SL_OK)
        print_text(cases, count);
    munmap(shared, sizeof *shared);
    return status == SL_OK ? EXIT_OK : failure("bench overhead");
}
