/* Schedules from a file or a generator, and their violations on the terminal. */
#include "schedule_source.h"

#include "command.h"
#include "base/file.h"
#include "base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Appends each generator's name to text, with the separator between them. */
static const char *join_generators(char *text, size_t size, const char *separator)
{
    size_t used = strlen(text);
    for (int i = 0; sl_generator_name(i) && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? separator : "", sl_generator_name(i));
    return text;
}

const char *generator_words(void)
{
    static char words[256];
    return words[0] ? words : join_generators(words, sizeof words, "|");
}

const char *generator_help(void)
{
    static char help[320];
    if (!help[0]) {
        snprintf(help, sizeof help, "One of ");
        join_generators(help, sizeof help - 24, ", ");
        strcat(help, "; in any case.");
    }
    return help;
}

sl_status read_costs(const char *what, const char *text, void *costs)
{
    sl_status status = sl_costs_parse(text, costs);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "%s", what);
}

sl_status load_costs(const cost_args *args, const sl_schedule *schedule, sl_costs *out)
{
    sl_status status = SL_OK;
    sl_costs costs = args->costs;
    int count = 0, stages = sl_schedule_stages(schedule);
    if (args->file)
        SL_TRY(sl_plan_load_costs(args->file, &costs, &count));
    if (args->file && count != stages) {
        sl_plan_free_costs(&costs);
        return sl_fail(SL_ERR_ARGUMENT, "%s has the costs of %d stage%s, the schedule has %d", args->file, count,
                       sl_plural(count), stages);
    }
    *out = costs;
done:
    return status;
}

sl_status load_schedule(const char *path, sl_violation *violation, sl_schedule **out)
{
    violation->rank = -1;
    if (strcmp(path, "-") == 0)
        return sl_schedule_read_csv_at(stdin, "standard input", violation, out);
    FILE *file = NULL;
    sl_status status = sl_file_open_stream(path, &file);
    if (status != SL_OK)
        return status;
    status = sl_schedule_read_csv_at(file, path, violation, out);
    fclose(file);
    return status;
}

int report_violation(const char *command_name, const char *name, const sl_schedule *schedule,
                     const sl_violation *violation)
{
    if (violation->rank < 0)
        fprintf(stderr, "sluice %s: %s: %s\n", command_name, name, violation->reason);
    else
        fprintf(stderr, "sluice %s: %s: rank %d, cell %" PRId64 "%s%s: %s\n", command_name, name, violation->rank,
                violation->cell, violation->text[0] ? ", " : "", violation->text, violation->reason);
    sl_view_options options = terminal_view_options();
    if (sl_schedule_write_violation(schedule, violation, &options, stdout) != SL_OK)
        return failure(command_name);
    return EXIT_FAILED;
}

sl_view_options terminal_view_options(void)
{
    sl_view_options options = { .condense = isatty(STDOUT_FILENO) };
    const char *columns = getenv("COLUMNS"), *terminal = getenv("TERM"), *no_color = getenv("NO_COLOR");
    struct winsize size;
    int64_t value = 0;
    if (columns && sl_parse_int("COLUMNS", columns, 20, 100000, &value) == SL_OK)
        options.columns = (int)value;
    else if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
        options.columns = size.ws_col;
    else if (isatty(STDOUT_FILENO))
        options.columns = 80;
    options.color = isatty(STDOUT_FILENO) && !(no_color && no_color[0]) && !(terminal && strcmp(terminal, "dumb") == 0);
    return options;
}
