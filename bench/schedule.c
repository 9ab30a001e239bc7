/* sluice bench schedule: how long the schedule layer takes over millions of actions. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/schedule_source.h"

#include "base/json.h"

#include <inttypes.h>
#include <strings.h>

static const cli_usage usage = {
    .command = "bench schedule",
    .synopsis = "[OPTIONS]",
    .description =
        "Generates a schedule, lowers it, checks the lowered one and simulates it, and measures each on its own. By "
        "default it is Interleaved1F1B with 4 stages a rank, 8 ranks and 53000 microbatches: about 10 million actions.",
    .examples = "sluice bench schedule --format json\n"
                "sluice bench schedule --schedule DualPipeV --ranks 8 --microbatches 1000",
};

/* Seconds of each part, and what was worked on. */
typedef struct result {
    int64_t compute_actions; /* as generated */
    int64_t actions;         /* lowered: what is checked and simulated */
    double generate_s, lower_s, check_s, simulate_s;
} result;

/* Seconds since *start, which is set to now. */
static double lap(double *start)
{
    double now = sl_now();
    double seconds = now - *start;
    *start = now;
    return seconds;
}

static sl_status measure(const sl_generate_options *options, result *out)
{
    sl_status status = SL_OK;
    sl_schedule *compute = NULL;
    sl_schedule *lowered = NULL;
    sl_timeline *timeline = NULL;

    double start = sl_now();
    SL_TRY(sl_schedule_generate(options, &compute));
    out->generate_s = lap(&start);
    SL_TRY(sl_schedule_lower(compute, NULL, &lowered));
    out->lower_s = lap(&start);
    SL_TRY(sl_schedule_check(lowered, NULL, NULL));
    out->check_s = lap(&start);
    SL_TRY(sl_schedule_simulate(lowered, NULL, NULL, 0, &timeline));
    out->simulate_s = lap(&start);
    out->compute_actions = sl_schedule_size(compute);
    out->actions = sl_schedule_size(lowered);
done:
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(lowered);
    sl_schedule_destroy(compute);
    return status;
}

static void print_json(const result *measured)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "actions", measured->actions);
    sl_json_put_int(&json, "compute_actions", measured->compute_actions);
    sl_json_put_double(&json, "generate_s", measured->generate_s);
    sl_json_put_double(&json, "lower_s", measured->lower_s);
    sl_json_put_double(&json, "check_s", measured->check_s);
    sl_json_put_double(&json, "simulate_s", measured->simulate_s);
    sl_json_put_int(&json, "peak_rss", bench_peak_rss());
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const result *measured)
{
    printf("actions    %" PRId64 " (%" PRId64 " compute)\n", measured->actions, measured->compute_actions);
    printf("generate   %.3f s\n", measured->generate_s);
    printf("lower      %.3f s\n", measured->lower_s);
    printf("check      %.3f s\n", measured->check_s);
    printf("simulate   %.3f s\n", measured->simulate_s);
    printf("peak rss   %.1f MiB\n", (double)bench_peak_rss() / (1 << 20));
}

int bench_schedule(int argc, char **argv)
{
    static const char usual[] = "Interleaved1F1B";
    sl_generate_options generate = { .name = usual, .ranks = 8, .microbatches = 53000 };
    int format = 0;
    const cli_option options[] = {
        GENERATE_OPTION_ROWS(generate, false),
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    int code;
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    if (generate.stages_per_rank == 0 && strcasecmp(generate.name, usual) == 0)
        generate.stages_per_rank = 4;
    result measured;
    switch (measure(&generate, &measured)) {
    case SL_OK:
        break;
    case SL_ERR_ARGUMENT: /* the generator refuses what was asked for */
        return usage_error(usage.command, "%s", sl_error_message());
    default:
        return failure(usage.command);
    }
    (format == FORMAT_JSON ? print_json : print_text)(&measured);
    return EXIT_OK;
}
