/* The plan for people: `sluice train --dry-run`. */
#include "train/plan.h"

#include "base/json.h"
#include "base/units.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* ", dropout 0.1", or the range of several rates; empty if the family has none. */
static const char *dropout_text(const sl_model *model, char *text, size_t size)
{
    double least = 1, most = 0;
    bool any = false;
    for (const sl_model_field *field = model->family->fields; field->key; field++) {
        if (!field->run_key || strcmp(field->run_key, "dropout") != 0)
            continue;
        double rate = *(const double *)(const void *)(model->config + field->offset);
        least = rate < least ? rate : least;
        most = rate > most ? rate : most;
        any = true;
    }
    text[0] = '\0';
    if (any && least < most)
        snprintf(text, size, ", dropout %g to %g", least, most);
    else if (any)
        snprintf(text, size, ", dropout %g", most);
    return text;
}

const char *sl_plan_precision_text(const sl_train_config *config, char *text, size_t size)
{
    const char *dtype = sl_dtype_name((sl_dtype)config->precision.dtype);
    if (config->precision.dtype == SL_F32)
        snprintf(text, size, "%s", dtype);
    else
        snprintf(text, size, "%s, %s master weights, %s gradients", dtype,
                 config->precision.master == SL_MASTER_F32 ? "f32" : "no",
                 sl_dtype_name((sl_dtype)config->precision.grad));
    return text;
}

const char *sl_mesh_text(const sl_mesh_facts *mesh, char *text, size_t size)
{
    static const char *const modes[] = {
        [SL_SHARD_NONE] = "none", [SL_SHARD_OPTIMIZER] = "optimizer", [SL_SHARD_FULL] = "full"
    };
    size_t used = (size_t)snprintf(text, size, "pp %d x dp %d, shard %s", mesh->pp, mesh->dp, modes[mesh->shard]);
    if (mesh->shard != SL_SHARD_NONE && used < size)
        used += (size_t)snprintf(text + used, size - used, ", shard_group %d", mesh->shard_group);
    if (mesh->unsharded > 0 && used < size)
        used += (size_t)snprintf(text + used, size - used, ", unsharded %d", mesh->unsharded);
    if (mesh->dp > 1 && mesh->sum == SL_SUM_FAST && used < size)
        snprintf(text + used, size - used, ", sum fast");
    return text;
}

const char *sl_plan_mesh_text(const sl_train_plan *plan, char *text, size_t size)
{
    const sl_mesh_facts mesh = { .pp = (int)plan->config->parallel.pp,
                                 .dp = (int)plan->config->parallel.dp,
                                 .shard = plan->shard,
                                 .shard_group = plan->shard_group,
                                 .unsharded = plan->unsharded,
                                 .sum = (sl_sum_mode)plan->config->parallel.sum };
    return sl_mesh_text(&mesh, text, size);
}

/* What replicas share out; nothing if there is one. */
static void print_sharing(const sl_train_plan *plan, FILE *file)
{
    static const char *const shared[] = { [SL_SHARD_NONE] = "nothing: each sums all gradients and updates all weights",
                                          [SL_SHARD_OPTIMIZER] = "optimizer state and updates",
                                          [SL_SHARD_FULL] = "weights, gradients and optimizer state" };
    int64_t replicas = plan->config->parallel.dp;
    if (replicas == 1)
        return;
    fprintf(file, "shared    %s", shared[plan->shard]);
    if (plan->shard != SL_SHARD_NONE && plan->shard_group < replicas)
        fprintf(file, ", in %" PRId64 " groups of %d replica%s", replicas / plan->shard_group, plan->shard_group,
                sl_plural(plan->shard_group));
    if (plan->shard == SL_SHARD_FULL)
        fprintf(file, "; %d stage%s of a rank gathered at once", plan->unsharded, sl_plural(plan->unsharded));
    fputc('\n', file);
}

/* Each source of the training data, and how often the run reads it. */
static void print_data(const sl_train_plan *plan, FILE *file)
{
    const sl_train_config *config = plan->config;
    const sl_plan_data *data = &plan->data;
    int64_t rows = config->run.steps * config->batch.size;
    double sum = 0;
    for (int i = 0; i < data->count; i++)
        sum += data->weights[i];
    for (int i = 0; i < data->count; i++) {
        double epochs =
            (double)sl_batches_rows_of(plan->batches, i, rows) / (double)sl_batches_windows_of(plan->batches, i);
        fprintf(file, "%s%s: %" PRId64 " tokens (%s)", i == 0 ? "data      " : "          ",
                sl_tokens_path(data->tokens[i]), sl_tokens_count(data->tokens[i]),
                sl_token_format_name(sl_tokens_format(data->tokens[i])));
        if (data->count > 1)
            fprintf(file, ", %.3g%% of the rows", 100 * data->weights[i] / sum);
        fprintf(file, ", %.*f epochs in %" PRId64 " step%s, %s\n", epochs < 0.1 ? 4 : 2, epochs, config->run.steps,
                sl_plural(config->run.steps), config->data.order == SL_ORDER_SHUFFLED ? "shuffled" : "sequential");
    }
    if (config->data.documents)
        fprintf(file, "documents kept apart; token %" PRId32 " ends one%s\n", plan->boundary,
                config->data.boundary_loss ? "" : ", and the first of the next is no target");
    if (plan->val_batches)
        fprintf(file, "validate  on %s: %" PRId64 " batch%s of %" PRId64 " every %" PRId64 " step%s%s\n",
                plan->val.count > 0 ? sl_tokens_path(plan->val.tokens[0]) : "a part of it that training does not read",
                plan->val_steps, plan->val_steps == 1 ? "" : "es",
                sl_batches_windows(plan->val_batches) / config->batch.size, config->eval.every,
                sl_plural(config->eval.every), config->checkpoint.best ? "; the best checkpoint stays" : "");
}

/* " (1.2M of them trained)" */
static void trained_text(const sl_train_plan *plan, char *text, size_t size)
{
    double count = 0;
    char number[32];
    for (int i = 0; i < sl_param_list_count(plan->params); i++) {
        int64_t elements = 0;
        if (!plan->frozen[i] && sl_shape_count(&sl_param_list_at(plan->params, i)->shape, &elements) == SL_OK)
            count += (double)elements;
    }
    snprintf(text, size, " (%s of them trained)", sl_count_text(count, number, sizeof number));
}

static void print_run(const sl_train_plan *plan, FILE *file)
{
    const sl_train_config *config = plan->config;
    char params[32], trained[48] = "", dropout[64], precision[64], memory[32];
    int64_t layers = sl_model_layers(&plan->model), rows = plan->sizes[0];
    if (plan->frozen_names.count > 0)
        trained_text(plan, trained, sizeof trained);
    fprintf(file, "model     %s, %" PRId64 " layer%s, vocabulary %" PRId64 ", %s parameters%s%s%s%s\n",
            plan->model.family->name, layers, sl_plural(layers), sl_model_vocab(&plan->model),
            sl_count_text((double)sl_param_list_elements(plan->params), params, sizeof params), trained,
            dropout_text(&plan->model, dropout, sizeof dropout), config->model.init ? " from " : ", random weights",
            config->model.init ? config->model.init : "");
    if (plan->gpu)
        fprintf(file, "device    %s by its data sheet, %s; each rank has one\n", plan->gpu->title,
                sl_bytes_text(plan->gpu->memory, memory, sizeof memory));
    fprintf(file, "precision %s\n", sl_plan_precision_text(config, precision, sizeof precision));
    print_data(plan, file);
    fprintf(file,
            "batch     %" PRId64 " row%s of %" PRId64 " token%s: %" PRId64 " replica%s x %" PRId64
            " microbatch%s of %" PRId64 "%s row%s\n",
            config->batch.size, sl_plural(config->batch.size), config->batch.seq, sl_plural(config->batch.seq),
            config->parallel.dp, sl_plural(config->parallel.dp), config->batch.microbatches,
            config->batch.microbatches == 1 ? "" : "es", rows, plan->size_count == 2 ? " or one fewer" : "",
            sl_plural(rows));
    fprintf(file, "schedule  %s, %d stage%s on %" PRId64 " rank%s\n", config->parallel.schedule, plan->stage_count,
            sl_plural(plan->stage_count), config->parallel.pp, sl_plural(config->parallel.pp));
    print_sharing(plan, file);
    fputc('\n', file);
}

/* Without the root that parallel.split does not need either. */
static const char *short_name(const sl_train_plan *plan, const char *name)
{
    char full[512];
    const char *dot = strchr(name, '.');
    if (!dot || sl_model_module(&plan->model, dot + 1, full, sizeof full) != SL_OK)
        return name;
    return strcmp(full, name) == 0 ? dot + 1 : name;
}

static void print_stages(const sl_train_plan *plan, FILE *file)
{
    fprintf(file, "stage  rank  parameters  FLOP    time     slots  from .. to\n");
    for (int s = 0; s < plan->stage_count; s++) {
        const sl_plan_stage *stage = &plan->stages[s];
        char params[32], flops[32], time[32];
        fprintf(file, "%-5d  %-4d  %-10s  %-6s  %-7s  %-5d  %s .. %s\n", s, stage->rank,
                sl_count_text((double)stage->params, params, sizeof params),
                sl_count_text(stage->cost.flops, flops, sizeof flops),
                sl_seconds_text(stage->seconds, time, sizeof time), stage->slots, short_name(plan, stage->first),
                short_name(plan, stage->last));
    }
    fprintf(file, "(FLOP and time: one microbatch, forward and backward)\n\n");
}

/* What a row of the memory table or an object of the JSON holds. */
static const struct {
    const char *name;
    size_t offset;
} categories[] = {
    { "total", offsetof(sl_plan_memory, total) },
    { "weights", offsetof(sl_plan_memory, weights) },
    { "gradients", offsetof(sl_plan_memory, gradients) },
    { "optimizer", offsetof(sl_plan_memory, optimizer) },
    { "activations", offsetof(sl_plan_memory, activations) },
    { "messages", offsetof(sl_plan_memory, messages) },
    { "checkpoint", offsetof(sl_plan_memory, checkpoint) },
    { "offload", offsetof(sl_plan_memory, offload) },
    { "context", offsetof(sl_plan_memory, context) },
};
enum { CATEGORIES = sizeof categories / sizeof *categories };

static size_t bytes_of(const sl_plan_memory *memory, int category)
{
    size_t bytes;
    memcpy(&bytes, (const char *)memory + categories[category].offset, sizeof bytes);
    return bytes;
}

/* The last two are those of a GPU. */
static int shown_categories(const sl_train_plan *plan)
{
    return plan->memory[0].context > 0 ? CATEGORIES : CATEGORIES - 2;
}

static void print_memory(const sl_train_plan *plan, FILE *file)
{
    const int shown = shown_categories(plan);
    fprintf(file, "rank");
    for (int i = 0; i < shown; i++)
        fprintf(file, "  %*s", (int)strlen(categories[i].name) > 9 ? (int)strlen(categories[i].name) : 9,
                categories[i].name);
    fputc('\n', file);
    for (int r = 0; r < sl_train_plan_ranks(plan); r++) {
        sl_plan_memory memory = sl_train_plan_memory(plan, r);
        fprintf(file, "%-4d", r);
        for (int i = 0; i < shown; i++) {
            char text[32];
            fprintf(file, "  %*s", (int)strlen(categories[i].name) > 9 ? (int)strlen(categories[i].name) : 9,
                    sl_bytes_text((double)bytes_of(&memory, i), text, sizeof text));
        }
        fputc('\n', file);
    }
    fputc('\n', file);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_memory(sl_json *json, const sl_plan_memory *memory)
{
    sl_json_begin(json, '{');
    for (int i = 0; i < CATEGORIES; i++)
        sl_json_put_int(json, categories[i].name, (int64_t)bytes_of(memory, i));
    sl_json_end(json, '}');
}

static void put_stage(sl_json *json, const sl_plan_stage *stage)
{
    sl_json_begin(json, '{');
    sl_json_put_int(json, "rank", stage->rank);
    sl_json_put_string(json, "first", stage->first);
    sl_json_put_string(json, "last", stage->last);
    sl_json_put_int(json, "parameters", stage->params);
    sl_json_put_double(json, "flops", stage->cost.flops);
    sl_json_put_double(json, "seconds", stage->seconds);
    sl_json_put_int(json, "slots", stage->slots);
    sl_json_end(json, '}');
}

void sl_train_plan_write_json(const sl_train_plan *plan, const sl_plan_memory *measured, FILE *file)
{
    static const char *const modes[] = {
        [SL_SHARD_NONE] = "none", [SL_SHARD_OPTIMIZER] = "optimizer", [SL_SHARD_FULL] = "full"
    };
    char mesh[128];
    sl_json json = { .file = file };
    sl_json_begin(&json, '{');
    sl_json_put_double(&json, "step_s", plan->step_seconds);
    sl_json_put_double(&json, "bubble", plan->bubble);
    sl_json_put_bool(&json, "fits", sl_train_plan_fits(plan));
    sl_json_put_string(&json, "mesh", sl_plan_mesh_text(plan, mesh, sizeof mesh));
    sl_json_put_string(&json, "shard", modes[plan->shard]);
    sl_json_put_int(&json, "shard_group", plan->shard_group);
    sl_json_put_int(&json, "unsharded", plan->unsharded);
    sl_json_put_string(&json, "device", plan->device);
    sl_json_put_string(&json, "dtype", sl_dtype_name((sl_dtype)plan->config->precision.dtype));
    sl_json_key(&json, "ranks");
    sl_json_begin(&json, '[');
    for (int r = 0; r < sl_train_plan_ranks(plan); r++) {
        sl_plan_memory memory = sl_train_plan_memory(plan, r);
        sl_json_newline(&json);
        put_memory(&json, &memory);
    }
    sl_json_end(&json, ']');
    if (measured) {
        sl_json_key(&json, "measured");
        sl_json_begin(&json, '[');
        for (int r = 0; r < sl_train_plan_ranks(plan); r++) {
            sl_json_newline(&json);
            put_memory(&json, &measured[r]);
        }
        sl_json_end(&json, ']');
    }
    sl_json_key(&json, "stages");
    sl_json_begin(&json, '[');
    for (int s = 0; s < plan->stage_count; s++) {
        sl_json_newline(&json);
        put_stage(&json, &plan->stages[s]);
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    fputc('\n', file);
}

/* ---- Text ------------------------------------------------------------------------------------ */

void sl_train_plan_print(const sl_train_plan *plan, const char *command, FILE *file)
{
    const sl_train_config *config = plan->config;
    char left[32], rate[32], step[32];
    double tokens = (double)(config->batch.size * config->batch.seq);
    print_run(plan, file);
    print_stages(plan, file);
    print_memory(plan, file);
    fprintf(file, "predicted: %s a step (%s tokens/s), bubble %.1f%%, %s for %" PRId64 " step%s\n",
            sl_seconds_text(plan->step_seconds, step, sizeof step),
            sl_count_text(tokens / plan->step_seconds, rate, sizeof rate), plan->bubble * 100,
            sl_seconds_text(plan->step_seconds * (double)config->run.steps, left, sizeof left), config->run.steps,
            sl_plural(config->run.steps));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t wanted = sl_train_plan_ranks(plan) * config->parallel.threads;
    if (!plan->gpu && wanted > cores)
        fprintf(file, "(%" PRId64 " threads of the ranks share %ld cores here; the bubble is that of the schedule)\n",
                wanted, cores);
    if (command)
        fprintf(file, "to run it: %s\n", command);
}
