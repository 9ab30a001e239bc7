/* Figures of a plan as JSON, and as a table beside the named schedules. */
#include "plan_report.h"

#include "base/alloc.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

void plan_print_json(const sl_plan_result *result, int ranks)
{
    const sl_plan_figures *figures = sl_plan_result_figures(result);
    const double *peaks = sl_plan_peak_memory(result);
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_double(&json, "makespan", figures->makespan);
    sl_json_put_double(&json, "stage_time", figures->stage_time);
    sl_json_put_double(&json, "bubble", figures->bubble);
    sl_json_put_double(&json, "bubble_stage", figures->bubble_stage);
    sl_json_put_double(&json, "bound_makespan", figures->bound.makespan);
    sl_json_put_double(&json, "bound_stage_time", figures->bound.stage_time);
    sl_json_put_double(&json, "gap_makespan", figures->gap_makespan);
    sl_json_put_double(&json, "gap_stage_time", figures->gap_stage_time);
    sl_json_key(&json, "peak_memory");
    sl_json_begin(&json, '[');
    for (int rank = 0; rank < ranks; rank++)
        sl_json_double(&json, peaks[rank]);
    sl_json_end(&json, ']');
    sl_json_put_double(&json, "plan_seconds", figures->seconds);
    sl_json_put_string(&json, "method", figures->method);
    sl_json_end(&json, '}');
    putchar('\n');
}

/* A line of the table: figures, or the reason why there are none. */
typedef struct line {
    char name[40];
    sl_plan_figures figures;
    char reason[200]; /* empty: it fits */
    double value;     /* of the objective */
} line;

static int by_value(const void *a, const void *b)
{
    const line *x = a, *y = b;
    bool x_fits = !x->reason[0], y_fits = !y->reason[0];
    if (x_fits != y_fits)
        return x_fits ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

static void fill_line(line *out, const char *name, const sl_plan_figures *figures, sl_objective objective)
{
    snprintf(out->name, sizeof out->name, "%s", name);
    out->figures = *figures;
    out->value = objective == SL_OBJECTIVE_MAKESPAN ? figures->makespan : figures->stage_time;
}

static void print_lines(const line *lines, int count, const sl_plan_bound *bound)
{
    printf("%-24s %12s %12s %8s %10s %11s\n", "schedule", "makespan", "stage time", "bubble", "memory", "over bound");
    for (int n = 0; n < count; n++) {
        const sl_plan_figures *figures = &lines[n].figures;
        if (lines[n].reason[0])
            printf("%-24s %s\n", lines[n].name, lines[n].reason);
        else
            printf("%-24s %12.6g %12.6g %7.2f%% %10.5g %10.2f%%\n", lines[n].name, figures->makespan,
                   figures->stage_time, 100 * figures->bubble, figures->peak_memory, 100 * figures->gap_makespan);
    }
    printf("%-24s %12.6g %12.6g\n", "lower bound", bound->makespan, bound->stage_time);
}

sl_status plan_print_table(const sl_plan_problem *problem, const sl_plan_result *result)
{
    sl_status status = SL_OK;
    const sl_plan_figures *found = sl_plan_result_figures(result);
    line *lines = NULL;
    int count = 0, names = 0;
    while (sl_plan_name(names))
        names++;
    SL_TRY(SL_NEW_ARRAY(lines, names + 1));
    char name[40];
    snprintf(name, sizeof name, "found (%s)", found->method);
    fill_line(&lines[count++], name, found, problem->objective);
    for (int n = 0; n < names; n++) {
        sl_plan_result *other = NULL;
        line *next = &lines[count];
        status = sl_plan_named(problem, sl_plan_name(n), &other);
        if (status == SL_OK) {
            fill_line(next, sl_plan_name(n), sl_plan_result_figures(other), problem->objective);
        } else if (status == SL_ERR_UNSUPPORTED) {
            snprintf(next->name, sizeof next->name, "%s", sl_plan_name(n));
            const char *reason = sl_error_message();
            size_t length = strlen(next->name);
            bool repeated = strncmp(reason, next->name, length) == 0 && reason[length] == ' ';
            snprintf(next->reason, sizeof next->reason, "%s", repeated ? reason + length + 1 : reason);
        } else {
            goto done;
        }
        sl_plan_result_destroy(other);
        count++;
    }
    status = SL_OK;
    qsort(lines, (size_t)count, sizeof *lines, by_value);
    print_lines(lines, count, &found->bound);
done:
    sl_free(lines);
    return status;
}
