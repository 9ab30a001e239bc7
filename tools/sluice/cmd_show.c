/* sluice show: draws a schedule on the terminal or into a file. */
#include "command.h"
#include "options.h"
#include "schedule_source.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const cli_usage show_usage = {
    .command = "show",
    .synopsis = "FILE | TRACE.json | --schedule NAME --ranks P --microbatches M [OPTIONS]",
    .description =
        "Draws when each action of a schedule runs: of the one in FILE (- is standard input) or of one that is "
        "generated. Without -o it is a text grid on the terminal: time goes right, a line a rank, dots are idle "
        "time.\n"
        "With -o the ending of the file decides: .svg, .png and .pdf are pictures, .html is a page to zoom into "
        "and point at, .json is a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, .txt is the text "
        "grid.\n"
        "A trace of a run (as sluice train --trace writes it) is drawn measured against simulated, in "
        "milliseconds: below each rank stands what it would have done if every action had taken its mean time and "
        "messages none.",
    .examples = "sluice show --schedule 1F1B --ranks 4 --microbatches 8\n"
                "sluice show plan.csv --costs F=1,B=2,comm=0.2 -o plan.html\n"
                "sluice show trace.json -o trace.svg",
    .max_operands = 1,
};

typedef struct show_args {
    const char *path; /* NULL: generate */
    sl_generate_options generate;
    cost_args costs;
    int64_t step;       /* of a trace; -1: the last whole one */
    const char *output; /* NULL: the terminal */
    sl_view_format format;
} show_args;

/* The path, or the generator's name as it is written in the list. */
static const char *name_of(const show_args *args)
{
    if (!args->path) {
        for (int i = 0; sl_generator_name(i); i++) {
            if (strcasecmp(sl_generator_name(i), args->generate.name) == 0)
                return sl_generator_name(i);
        }
        return args->generate.name;
    }
    return strcmp(args->path, "-") == 0 ? "standard input" : args->path;
}

/* The same without the folders. */
static const char *title_of(const show_args *args)
{
    const char *name = name_of(args);
    const char *slash = strrchr(name, '/');
    return slash && slash[1] ? slash + 1 : name;
}

static sl_status draw(const show_args *args, const sl_timeline *timeline, const char *title, const char *const *rows)
{
    sl_view_options options = { .title = NULL };
    if (!args->output)
        options = terminal_view_options();
    options.title = title;
    options.rows = rows;
    if (args->output)
        return sl_timeline_save(timeline, args->format, &options, args->output);
    return sl_timeline_write(timeline, SL_VIEW_TEXT, &options, stdout);
}

/* The messages that a compute-only schedule implies are drawn too. */
static int show_schedule(const show_args *args, const sl_schedule *schedule)
{
    sl_schedule *with_messages = NULL;
    sl_timeline *timeline = NULL;
    sl_costs costs = { .stages = NULL };
    sl_violation violation = { .rank = -1 };
    sl_status status = sl_schedule_check(schedule, NULL, &violation);
    if (status == SL_ERR_SCHEDULE)
        return report_violation("show", name_of(args), schedule, &violation);
    if (status == SL_OK && !sl_schedule_has_messages(schedule)) {
        SL_TRY(sl_schedule_add_messages(schedule, NULL, 0, &with_messages));
        schedule = with_messages;
    }
    SL_TRY(status);
    SL_TRY(load_costs(&args->costs, schedule, &costs));
    SL_TRY(sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline));
    SL_TRY(draw(args, timeline, title_of(args), NULL));
done:
    sl_plan_free_costs(&costs);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(with_messages);
    return status == SL_OK ? EXIT_OK : failure("show");
}

static bool is_trace(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && strcasecmp(path + length - 5, ".json") == 0;
}

/* "rank 0", "simulated", "rank 1", ...: pointers into text. */
static sl_status name_rows(int count, char (**text)[16], const char ***rows)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(*text, count));
    SL_TRY(SL_NEW_ARRAY(*rows, count));
    for (int i = 0; i < count; i++) {
        snprintf((*text)[i], sizeof **text, i % 2 ? "simulated" : "rank %d", i / 2);
        (*rows)[i] = (*text)[i];
    }
done:
    return status;
}

static int show_trace(const show_args *args)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    sl_timeline *timeline = NULL;
    sl_comparison figures;
    char(*text)[16] = NULL;
    const char **rows = NULL;
    char title[160];
    SL_TRY(sl_timeline_compare_trace(args->path, args->step, &schedule, &timeline, &figures));
    SL_TRY(name_rows(sl_schedule_ranks(schedule), &text, &rows));
    snprintf(title, sizeof title,
             "%.60s, step %lld: measured %.4g ms (bubble %.1f %%), simulated %.4g ms (bubble %.1f %%)", title_of(args),
             (long long)figures.step, figures.measured, 100 * figures.measured_bubble, figures.simulated,
             100 * figures.simulated_bubble);
    SL_TRY(draw(args, timeline, title, rows));
done:
    sl_free(rows);
    sl_free(text);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
    return status == SL_OK ? EXIT_OK : failure("show");
}

static int show(const show_args *args)
{
    if (args->path && is_trace(args->path))
        return show_trace(args);
    sl_schedule *schedule = NULL;
    sl_violation violation;
    sl_status status = args->path ? load_schedule(args->path, &violation, &schedule)
                                  : sl_schedule_generate(&args->generate, &schedule);
    if (status == SL_ERR_ARGUMENT && !args->path)
        return usage_error("show", "%s", sl_error_message());
    if (status != SL_OK)
        return failure("show");
    int code = show_schedule(args, schedule);
    sl_schedule_destroy(schedule);
    return code;
}

/* A file or a generator, one of the two. */
static int check_source(const show_args *args)
{
    const sl_generate_options *generate = &args->generate;
    bool generated = generate->name || generate->ranks || generate->microbatches || generate->stages_per_rank ||
                     generate->forward_only;
    if (args->path && generated)
        return usage_error("show", "either FILE or --schedule, not both");
    if (!args->path && !generate->name)
        return usage_error("show", "FILE or --schedule NAME is missing");
    if (!args->path && (!generate->ranks || !generate->microbatches))
        return usage_error("show", "--schedule needs --ranks P and --microbatches M");
    return EXIT_OK;
}

int cmd_show(int argc, char **argv)
{
    show_args args = { .step = -1 };
    sl_costs_init(&args.costs.costs);
    const cli_option options[] = {
        GENERATE_OPTION_ROWS(args.generate, false),
        COSTS_OPTION_ROWS(args.costs),
        { .name = "step",
          .value = "N",
          .wide = &args.step,
          .min = 0,
          .max = INT64_MAX,
          .help = "The step of a trace to draw; the last that is whole if not given." },
        { .name = "output",
          .letter = 'o',
          .value = "FILE",
          .text = &args.output,
          .help = "Draw into FILE: .svg, .png, .pdf, .html, .json or .txt." },
        { .name = NULL },
    };
    int code;
    if (!options_parse(&show_usage, options, &argc, argv, &code))
        return code;
    args.path = argc > 1 ? argv[1] : NULL;
    code = check_source(&args);
    if (code != EXIT_OK)
        return code;
    if (args.output && sl_view_format_of(args.output, &args.format) != SL_OK)
        return usage_error("show", "-o: %s", sl_error_message());
    return show(&args);
}
