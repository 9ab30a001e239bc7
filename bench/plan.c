/* sluice bench plan: how long the planner takes, and how near its plans come to the bound. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include <sluice/plan.h>

#include "base/json.h"

#include <math.h>
#include <time.h>

static const cli_usage usage = {
    .command = "bench plan",
    .synopsis = "[--large] [--format text|json]",
    .description = "Measures the planner's processor time, in one thread: 64 ranks and 512 microbatches, generated, "
                   "lowered, checked "
                   "and simulated (the best of ten); the "
                   "heuristic plan of that size; a V of 16 ranks and 64 microbatches under little memory; and with "
                   "--large 1024 ranks "
                   "and 8192 microbatches, 25 million actions.",
    .examples = "sluice bench plan --format json\n"
                "sluice bench plan --large",
};

/* One thing that is measured. */
typedef struct measured {
    const char *name, *what;
    double seconds;
    double gap; /* of the makespan over the bound; negative: not planned */
} measured;

static sl_plan_problem problem_of(int ranks, int microbatches, sl_placement placement, double memory)
{
    sl_plan_problem problem;
    sl_plan_problem_init(&problem, ranks, microbatches, placement, 0);
    problem.costs.stage.f = 10.0 / problem.stages_per_rank;
    problem.costs.stage.i = 12.0 / problem.stages_per_rank;
    problem.costs.stage.w = 8.0 / problem.stages_per_rank;
    problem.costs.latency = 1;
    problem.costs.stage.release = placement == SL_PLACEMENT_V ? 0 : 0.5;
    problem.memory = memory;
    return problem;
}

static double processor_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* From nothing to a schedule that is proved and timed. */
static sl_status time_schedule(const char *name, double *seconds)
{
    sl_status status = SL_OK;
    sl_schedule *compute = NULL, *lowered = NULL;
    sl_timeline *timeline = NULL;
    double start = processor_seconds();
    sl_generate_options options = { .name = name, .ranks = 64, .microbatches = 512 };
    SL_TRY(sl_schedule_generate(&options, &compute));
    SL_TRY(sl_schedule_lower(compute, NULL, &lowered));
    SL_TRY(sl_schedule_check(lowered, NULL, NULL));
    SL_TRY(sl_schedule_simulate(lowered, NULL, NULL, 0, &timeline));
    *seconds = fmin(*seconds, processor_seconds() - start);
done:
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(lowered);
    sl_schedule_destroy(compute);
    return status;
}

/* The best of several: what disturbs makes nothing faster. */
static sl_status measure_schedule(const char *name, measured *out)
{
    enum { TIMES = 10 };
    sl_status status = SL_OK;
    out->seconds = INFINITY;
    out->gap = -1;
    for (int n = 0; n < TIMES && status == SL_OK; n++)
        status = time_schedule(name, &out->seconds);
    return status;
}

static sl_status measure_plan(sl_plan_problem problem, double budget, measured *out)
{
    sl_plan_result *result = NULL;
    double start = processor_seconds();
    sl_status status = sl_plan_search(&problem, budget, &result);
    if (status != SL_OK)
        return status;
    out->seconds = processor_seconds() - start;
    out->gap = sl_plan_result_figures(result)->gap_makespan;
    sl_plan_result_destroy(result);
    return SL_OK;
}

enum { MEASURED = 8 };

static sl_status measure(bool large, measured *out, int *count)
{
    sl_status status = SL_OK;
    measured all[MEASURED] = {
        { .name = "schedule_1f1b", .what = "1F1B of 64 x 512: generate, lower, check, simulate" },
        { .name = "schedule_zbv", .what = "ZBVZeroBubble of 64 x 512: the same" },
        { .name = "schedule_interleaved", .what = "Interleaved1F1B of 64 x 512: the same" },
        { .name = "heuristic_p", .what = "heuristic plan of 64 x 512, memory 64" },
        { .name = "heuristic_2p", .what = "heuristic plan of 64 x 512, memory 128" },
        { .name = "v_half", .what = "V of 16 x 64, memory 9" },
        { .name = "v_third", .what = "V of 16 x 64, memory 6" },
        { .name = "large", .what = "heuristic plan of 1024 x 8192, memory 1024" },
    };
    *count = large ? 8 : 7;
    SL_TRY(measure_schedule("1F1B", &all[0]));
    SL_TRY(measure_schedule("ZBVZeroBubble", &all[1]));
    SL_TRY(measure_schedule("Interleaved1F1B", &all[2]));
    SL_TRY(measure_plan(problem_of(64, 512, SL_PLACEMENT_LOOP, 64), 0, &all[3]));
    SL_TRY(measure_plan(problem_of(64, 512, SL_PLACEMENT_LOOP, 128), 0, &all[4]));
    SL_TRY(measure_plan(problem_of(16, 64, SL_PLACEMENT_V, 9), SL_PLAN_BUDGET, &all[5]));
    SL_TRY(measure_plan(problem_of(16, 64, SL_PLACEMENT_V, 6), SL_PLAN_BUDGET, &all[6]));
    if (large)
        SL_TRY(measure_plan(problem_of(1024, 8192, SL_PLACEMENT_LOOP, 1024), 0, &all[7]));
    for (int n = 0; n < *count; n++)
        out[n] = all[n];
done:
    return status;
}

static void print_json(const measured *all, int count)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    for (int n = 0; n < count; n++) {
        char key[64];
        snprintf(key, sizeof key, "%s_s", all[n].name);
        sl_json_put_double(&json, key, all[n].seconds);
        snprintf(key, sizeof key, "%s_gap", all[n].name);
        if (all[n].gap >= 0)
            sl_json_put_double(&json, key, all[n].gap);
    }
    sl_json_put_int(&json, "peak_rss", bench_peak_rss());
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const measured *all, int count)
{
    for (int n = 0; n < count; n++) {
        printf("%-52s %8.1f ms", all[n].what, 1e3 * all[n].seconds);
        if (all[n].gap >= 0)
            printf("  %6.2f %% over the bound", 100 * all[n].gap);
        putchar('\n');
    }
    printf("%-52s %8.1f MiB\n", "peak rss", (double)bench_peak_rss() / (1 << 20));
}

int bench_plan(int argc, char **argv)
{
    bool large = false;
    int format = FORMAT_TEXT, count = 0, code;
    const cli_option options[] = {
        { .name = "large", .flag = &large, .help = "Also plan for 1024 ranks and 8192 microbatches (1.5 GiB)." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    measured all[MEASURED];
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    if (measure(large, all, &count) != SL_OK)
        return failure(usage.command);
    (format == FORMAT_JSON ? print_json : print_text)(all, count);
    return EXIT_OK;
}
