/* sluice check: proves a schedule and prints its figures, or the first violation. */
#include "command.h"
#include "options.h"
#include "schedule_source.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const cli_usage check_usage = {
    .command = "check",
    .synopsis = "FILE [--costs LIST] [--costs-file FILE] [--link-capacity K] [--format text|json]",
    .description =
        "Proves that the schedule in FILE (- is standard input) is correct: every stage and microbatch has its "
        "forward and its backward, in an order that can run; sends and receives pair up; no rank waits forever. "
        "Then prints its figures: how long a step takes with the given costs, the share of it that ranks are idle "
        "(the bubble), and how many microbatches each rank holds at once (slots).\n"
        "A schedule that is not correct gives exit code 1, the first violation, and the cells around it.",
    .examples = "sluice check plan.csv\n"
                "sluice check plan.csv --costs F=1,B=2.1,comm=0.1 --link-capacity 0\n"
                "sluice plan --schedule GPipe --ranks 2 --microbatches 4 | sluice check - --format json",
    .min_operands = 1,
    .max_operands = 1,
};

typedef struct check_args {
    const char *path;
    const char *name; /* of the file, for messages */
    cost_args costs;
    int link_capacity; /* -1: unlimited */
    int format;
} check_args;

static void print_text(const sl_schedule *schedule, const sl_timeline *timeline)
{
    int ranks = sl_schedule_ranks(schedule);
    printf("valid         yes\nranks         %d\nstages        %d\nmicrobatches  %d\nactions       %" PRId64 "\n",
           ranks, sl_schedule_stages(schedule), sl_schedule_microbatches(schedule), sl_schedule_size(schedule));
    printf("makespan      %.10g\nbubble        %.2f %%\npeak slots   ", sl_timeline_makespan(timeline),
           100 * sl_timeline_bubble(timeline, -1));
    for (int rank = 0; rank < ranks; rank++)
        printf(" %d", sl_timeline_peak_slots(timeline, rank));
    putchar('\n');
}

static void put_sizes(sl_json *json, const sl_schedule *schedule)
{
    sl_json_put_int(json, "ranks", sl_schedule_ranks(schedule));
    sl_json_put_int(json, "stages", sl_schedule_stages(schedule));
    sl_json_put_int(json, "microbatches", sl_schedule_microbatches(schedule));
    sl_json_put_int(json, "actions", sl_schedule_size(schedule));
}

static void print_json(const sl_schedule *schedule, const sl_timeline *timeline)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_bool(&json, "valid", true);
    put_sizes(&json, schedule);
    sl_json_put_double(&json, "makespan", sl_timeline_makespan(timeline));
    sl_json_put_double(&json, "bubble", sl_timeline_bubble(timeline, -1));
    sl_json_key(&json, "peak_slots");
    sl_json_begin(&json, '[');
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++)
        sl_json_int(&json, sl_timeline_peak_slots(timeline, rank));
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

/* schedule is NULL if the file could not be read. */
static void print_json_violation(const sl_schedule *schedule, const char *error, const sl_violation *violation)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_bool(&json, "valid", false);
    if (schedule)
        put_sizes(&json, schedule);
    sl_json_put_string(&json, "error", error);
    sl_json_key(&json, "rank");
    if (violation->rank >= 0)
        sl_json_int(&json, violation->rank);
    else
        sl_json_string(&json, NULL);
    sl_json_key(&json, "cell");
    if (violation->rank >= 0)
        sl_json_int(&json, violation->cell);
    else
        sl_json_string(&json, NULL);
    sl_json_end(&json, '}');
    putchar('\n');
}

/* A file that cannot be read, or an error that is no violation. */
static int report_failure(const check_args *args, const sl_violation *violation)
{
    if (args->format == FORMAT_JSON)
        print_json_violation(NULL, sl_error_message(), violation);
    return failure("check");
}

static int report_invalid(const check_args *args, const sl_schedule *schedule, const sl_violation *violation)
{
    if (args->format == FORMAT_TEXT)
        return report_violation("check", args->name, schedule, violation);
    char error[sizeof violation->reason + SL_ACTION_TEXT_SIZE + 2];
    snprintf(error, sizeof error, "%s%s%s", violation->text, violation->text[0] ? ": " : "", violation->reason);
    print_json_violation(schedule, error, violation);
    return EXIT_FAILED;
}

static int check_file(const check_args *args)
{
    sl_schedule *schedule = NULL;
    sl_timeline *timeline = NULL;
    sl_costs costs = { .stages = NULL };
    sl_violation violation = { .rank = -1 };
    sl_check_options check = { .limit_links = args->link_capacity >= 0, .link_capacity = args->link_capacity };
    int code = EXIT_OK;

    sl_status status = load_schedule(args->path, &violation, &schedule);
    if (status == SL_OK) {
        status = sl_schedule_check(schedule, &check, &violation);
        if (status == SL_ERR_SCHEDULE) {
            code = report_invalid(args, schedule, &violation);
            goto done;
        }
    }
    if (status == SL_OK)
        status = load_costs(&args->costs, schedule, &costs);
    if (status == SL_OK)
        status = sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline);
    if (status != SL_OK)
        code = report_failure(args, &violation);
    else if (args->format == FORMAT_JSON)
        print_json(schedule, timeline);
    else
        print_text(schedule, timeline);
done:
    sl_plan_free_costs(&costs);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
    return code;
}

int cmd_check(int argc, char **argv)
{
    check_args args = { .link_capacity = -1 };
    sl_costs_init(&args.costs.costs);
    const cli_option options[] = {
        COSTS_OPTION_ROWS(args.costs),
        { .name = "link-capacity",
          .value = "K",
          .integer = &args.link_capacity,
          .min = 0,
          .max = 1000000000,
          .help = "How many messages may wait on an edge before a send blocks its rank; 0: each send waits for its "
                  "receive. By default a send never blocks." },
        FORMAT_OPTION_ROW(args.format),
        { .name = NULL },
    };
    int code;
    if (!options_parse(&check_usage, options, &argc, argv, &code))
        return code;
    args.path = argv[1];
    args.name = strcmp(args.path, "-") == 0 ? "standard input" : args.path;
    return check_file(&args);
}
