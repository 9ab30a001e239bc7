/* The whole configuration: the best ones beside each other, and a file for `train --plan`. */
#include "plan_whole.h"

#include "base/json.h"
#include "base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Longest of the column "recompute". */
static int recompute_width(const sl_tune *tune)
{
    size_t width = sizeof "recompute" - 1;
    for (int i = 0; i < sl_tune_count(tune); i++) {
        size_t own = strlen(sl_tune_get(tune, i).recompute);
        width = own > width ? own : width;
    }
    return (int)width;
}

static void print_row(const sl_tune_choice *choice, int place, int width)
{
    char mesh[32], batch[40], time[32], rate[32], bytes[32];
    snprintf(mesh, sizeof mesh, "%d x %d", choice->pp, choice->dp);
    snprintf(batch, sizeof batch, "%" PRId64 " x %" PRId64, choice->microbatches, choice->rows);
    printf("%-3d %-10s %-6d %-21s %-11s %-9s %-*s %9s %9s %7.1f%% %9s\n", place + 1, mesh, choice->stages_per_rank,
           choice->schedule, batch, choice->shard, width, *choice->recompute ? choice->recompute : "-",
           sl_seconds_text(choice->seconds, time, sizeof time), sl_count_text(choice->tokens_per_s, rate, sizeof rate),
           100 * choice->bubble, sl_bytes_text(choice->memory, bytes, sizeof bytes));
}

static void print_text(const sl_tune *tune, const plan_whole_args *args)
{
    int width = recompute_width(tune);
    printf("%-3s %-10s %-6s %-21s %-11s %-9s %-*s %9s %9s %8s %9s\n", "", "pp x dp", "stages", "schedule", "micro",
           "shard", width, "recompute", "step", "tokens/s", "bubble", "memory");
    for (int i = 0; i < sl_tune_count(tune); i++) {
        sl_tune_choice choice = sl_tune_get(tune, i);
        print_row(&choice, i, width);
    }
    putchar('\n');
    for (int i = 0; i < sl_tune_count(tune); i++)
        printf("%-3d %s\n", i + 1, sl_tune_get(tune, i).why);
    printf("\n%" PRId64
           " configurations were tried (stages: a rank; micro: microbatches of a replica x rows; memory: of the "
           "fullest rank, as compiled)\n",
           sl_tune_tried(tune));
    if (args->output)
        printf("to run it: sluice train %s%s%s--plan %s\n", args->config ? "-c " : "", args->config ? args->config : "",
               args->config ? " " : "", args->output);
}

static void put_choice(sl_json *json, const sl_tune_choice *choice)
{
    sl_json_begin(json, '{');
    sl_json_put_int(json, "pp", choice->pp);
    sl_json_put_int(json, "dp", choice->dp);
    sl_json_put_int(json, "stages_per_rank", choice->stages_per_rank);
    sl_json_put_string(json, "schedule", choice->schedule);
    sl_json_put_int(json, "microbatches", choice->microbatches);
    sl_json_put_int(json, "rows", choice->rows);
    sl_json_put_string(json, "shard", choice->shard);
    sl_json_put_string(json, "recompute", choice->recompute);
    sl_json_put_double(json, "step_s", choice->seconds);
    sl_json_put_double(json, "tokens_per_s", choice->tokens_per_s);
    sl_json_put_double(json, "bubble", choice->bubble);
    sl_json_put_double(json, "memory", choice->memory);
    sl_json_put_int(json, "fullest_rank", choice->fullest);
    sl_json_put_double(json, "work_s", choice->work);
    sl_json_put_double(json, "idle_s", choice->idle);
    sl_json_put_double(json, "exchange_s", choice->exchange);
    sl_json_put_double(json, "update_s", choice->update);
    sl_json_put_double(json, "bound_s", choice->bound);
    sl_json_put_string(json, "why", choice->why);
    sl_json_end(json, '}');
}

static void print_json(const sl_tune *tune, double seconds)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "tried", sl_tune_tried(tune));
    sl_json_put_double(&json, "plan_seconds", seconds);
    sl_json_key(&json, "choices");
    sl_json_begin(&json, '[');
    for (int i = 0; i < sl_tune_count(tune); i++) {
        sl_tune_choice choice = sl_tune_get(tune, i);
        sl_json_newline(&json);
        put_choice(&json, &choice);
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

sl_status plan_whole(const plan_whole_args *args)
{
    sl_status status = SL_OK;
    sl_tune *tune = NULL;
    sl_cluster cluster;
    double start = sl_now();
    if (args->cluster)
        SL_TRY(sl_cluster_load(args->cluster, &cluster));
    const sl_tune_options options = { .config = args->config,
                                      .overrides = (const char *const *)args->keys->overrides,
                                      .override_count = args->keys->count,
                                      .ranks = args->ranks,
                                      .cluster = args->cluster ? &cluster : NULL,
                                      .measure = args->measure,
                                      .top = args->top,
                                      .budget_seconds = args->budget };
    SL_TRY(sl_tune_create(&options, &tune));
    if (args->output)
        SL_TRY(sl_tune_save(tune, 0, args->output));
    if (args->format == FORMAT_JSON)
        print_json(tune, sl_now() - start);
    else
        print_text(tune, args);
done:
    sl_tune_destroy(tune);
    return status;
}
