/* The plan for people: `sluice train --dry-run`. */
#include "train/plan.h"

#include "base/units.h"

#include <inttypes.h>
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

static void print_run(const sl_train_plan *plan, FILE *file)
{
    const sl_train_config *config = plan->config;
    char params[32], dropout[64];
    double epochs = (double)config->run.steps * (double)config->batch.size / (double)sl_batches_windows(plan->batches);
    int64_t layers = sl_model_layers(&plan->model), rows = plan->sizes[0];
    fprintf(file, "model     %s, %" PRId64 " layer%s, vocabulary %" PRId64 ", %s parameters%s%s%s\n",
            plan->model.family->name, layers, sl_plural(layers), sl_model_vocab(&plan->model),
            sl_count_text((double)sl_param_list_elements(plan->params), params, sizeof params),
            dropout_text(&plan->model, dropout, sizeof dropout), config->model.init ? " from " : ", random weights",
            config->model.init ? config->model.init : "");
    fprintf(file, "data      %s: %" PRId64 " tokens (%s), %.*f epochs in %" PRId64 " step%s, %s\n",
            sl_tokens_path(plan->tokens), sl_tokens_count(plan->tokens),
            sl_token_format_name(sl_tokens_format(plan->tokens)), epochs < 0.1 ? 4 : 2, epochs, config->run.steps,
            sl_plural(config->run.steps), config->data.order == SL_ORDER_SHUFFLED ? "shuffled" : "sequential");
    fprintf(file,
            "batch     %" PRId64 " row%s of %" PRId64 " token%s: %" PRId64 " replica%s x %" PRId64
            " microbatch%s of %" PRId64 "%s row%s\n",
            config->batch.size, sl_plural(config->batch.size), config->batch.seq, sl_plural(config->batch.seq),
            config->parallel.dp, sl_plural(config->parallel.dp), config->batch.microbatches,
            config->batch.microbatches == 1 ? "" : "es", rows, plan->size_count == 2 ? " or one fewer" : "",
            sl_plural(rows));
    fprintf(file, "schedule  %s, %d stage%s on %" PRId64 " rank%s\n\n", config->parallel.schedule, plan->stage_count,
            sl_plural(plan->stage_count), config->parallel.pp, sl_plural(config->parallel.pp));
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

static void print_memory(const sl_train_plan *plan, FILE *file)
{
    fprintf(file, "rank  total     weights   gradients  optimizer  activations  checkpoint\n");
    for (int r = 0; r < plan->config->parallel.pp; r++) {
        const sl_plan_memory *memory = &plan->memory[r];
        char text[6][32];
        fprintf(file, "%-4d  %-8s  %-8s  %-9s  %-9s  %-11s  %s\n", r,
                sl_bytes_text(memory->total, text[0], sizeof text[0]),
                sl_bytes_text(memory->params, text[1], sizeof text[1]),
                sl_bytes_text(memory->grads, text[2], sizeof text[2]),
                sl_bytes_text(memory->optimizer, text[3], sizeof text[3]),
                sl_bytes_text(memory->activations, text[4], sizeof text[4]),
                sl_bytes_text(memory->checkpoint, text[5], sizeof text[5]));
    }
    fputc('\n', file);
}

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
    if (wanted > cores)
        fprintf(file, "(%" PRId64 " threads of the ranks share %ld cores here; the bubble is that of the schedule)\n",
                wanted, cores);
    if (command)
        fprintf(file, "to run it: %s\n", command);
}
