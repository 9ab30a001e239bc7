/* Attributes of checkpoints: model, configuration, tokenizer. */
#include "train/attributes.h"

#include "base/alloc.h"
#include "train/config_keys.h"
#include "train/tokenizer_files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *tokenizer_of(const sl_train_plan *plan)
{
    const char *init = plan->config->model.init;
    if (sl_tokens_format(plan->data.tokens[0]) == SL_TOKENS_BYTES)
        return SL_TOKENIZER_BYTES;
    return init && sl_tokenizer_files_exist(init) ? SL_TOKENIZER_OF_RUN : "";
}

/* Whether the microbatches whose weight gradients a stage adds come in the order of their numbers (way 1) or in the
 * opposite one (way -1). */
static bool stage_goes(const sl_schedule *schedule, int rank, int stage, int way)
{
    int64_t count = 0, last = -1;
    const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
    for (int64_t i = 0; i < count; i++) {
        sl_action parts[2];
        int part_count = sl_action_parts(actions[i], parts);
        for (int p = 0; p < part_count; p++) {
            int microbatch = parts[p].microbatch;
            if (parts[p].stage != stage || (parts[p].kind != SL_KIND_B && parts[p].kind != SL_KIND_W))
                continue;
            if (last >= 0 && (way > 0 ? microbatch < last : microbatch > last))
                return false;
            last = microbatch;
        }
    }
    return true;
}

static bool all_go(const sl_schedule *schedule, int way)
{
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        for (int stage = 0; stage < sl_schedule_stages(schedule); stage++) {
            if (!stage_goes(schedule, rank, stage, way))
                return false;
        }
    }
    return true;
}

/* Another order of additions gives other bits. */
static const char *order_of(const sl_train_plan *plan)
{
    return all_go(plan->schedule, 1) ? "rising" : all_go(plan->schedule, -1) ? "falling" : "mixed";
}

sl_status sl_attributes_make(const sl_train_plan *plan, uint64_t data_hash, sl_attributes *out)
{
    sl_status status = SL_OK;
    sl_attributes made = { .model = NULL };
    char *lines = NULL;
    SL_TRY(sl_arena_create(&made.arena));
    SL_TRY(sl_model_config_text(&plan->model, SL_F32, &made.model));
    SL_TRY(sl_arena_strdup(made.arena, "", &lines));
    for (const config_key *key = sl_config_keys; key->section; key++) {
        const char *value = NULL;
        SL_TRY(sl_config_text(plan->config, key, made.arena, &value));
        SL_TRY(sl_arena_printf(made.arena, &lines, "%s%s.%s=%s\n", lines, key->section, key->key, value));
    }
    char *tokens = NULL, *data = NULL, *precision = NULL, *mesh = NULL, text[128];
    SL_TRY(sl_arena_printf(made.arena, &tokens, "%" PRId64, sl_plan_token_count(&plan->data)));
    SL_TRY(sl_arena_printf(made.arena, &data, "%016" PRIx64, data_hash));
    SL_TRY(sl_arena_strdup(made.arena, sl_plan_precision_text(plan->config, text, sizeof text), &precision));
    SL_TRY(sl_arena_strdup(made.arena, sl_plan_mesh_text(plan, text, sizeof text), &mesh));
    const char *const pairs[] = { "model",   made.model,   "config",    lines,          "tokens",    tokens,
                                  "data",    data,         "order",     order_of(plan), "tokenizer", tokenizer_of(plan),
                                  "version", sl_version(), "precision", precision,      "mesh",      mesh };
    memcpy(made.pairs, pairs, sizeof pairs);
    if (plan->config->data.documents) {
        char *boundary = NULL;
        int used = sizeof pairs / sizeof *pairs;
        SL_TRY(sl_arena_printf(made.arena, &boundary, "%" PRId32, plan->boundary));
        made.pairs[used] = "documents";
        made.pairs[used + 1] = boundary;
    }
    *out = made;
    made = (sl_attributes){ .model = NULL };
done:
    sl_attributes_free(&made);
    return status;
}

void sl_attributes_free(sl_attributes *attributes)
{
    sl_free(attributes->model);
    sl_arena_destroy(attributes->arena);
    *attributes = (sl_attributes){ .model = NULL };
}

/* ---- A checkpoint against the configuration -------------------------------------------------- */

/* The line "NAME=" of the lines, up to its end; NULL if there is none. */
static const char *find_line(const char *lines, const char *name, size_t length, size_t *value_length)
{
    for (const char *line = lines; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, name, length) == 0) {
            *value_length = strcspn(line + length, "\n");
            return line + length;
        }
    }
    return NULL;
}

bool sl_attributes_froze(const sl_train_plan *plan, const sl_checkpoint *checkpoint, const char *param)
{
    size_t length = 0;
    const char *name = "model.freeze=", *lines = sl_checkpoint_attribute(checkpoint, "config");
    const char *pattern = find_line(lines, name, strlen(name), &length);
    for (const char *end = pattern + length; pattern && pattern < end;) {
        const char *comma = memchr(pattern, ',', (size_t)(end - pattern));
        const char *stop = comma ? comma : end;
        if (sl_plan_fits_param(plan, pattern, (size_t)(stop - pattern), param))
            return true;
        pattern = stop + 1;
    }
    return false;
}

/* *now: the value as text. *then: what the checkpoint was made with, if that is another; else NULL. */
static sl_status find_change(const sl_train_plan *plan, const sl_checkpoint *checkpoint, const config_key *key,
                             sl_arena *arena, const char **now, char **then)
{
    sl_status status = SL_OK;
    char *name = NULL;
    size_t length = 0;
    SL_TRY(sl_config_text(plan->config, key, arena, now));
    SL_TRY(sl_arena_printf(arena, &name, "%s.%s=", key->section, key->key));
    const char *stored = find_line(sl_checkpoint_attribute(checkpoint, "config"), name, strlen(name), &length);
    *then = NULL;
    if (stored && (strlen(*now) != length || strncmp(*now, stored, length) != 0))
        SL_TRY(sl_arena_printf(arena, then, "%.*s", (int)length, stored));
done:
    return status;
}

/* Whether the weights or the optimizer's state of another value do not fit: n_positions may come from batch.seq. */
static bool decides_the_tensors(const config_key *key)
{
    return (strcmp(key->section, "model") == 0 && strcmp(key->key, "freeze") != 0) || strcmp(key->key, "seq") == 0 ||
           (strcmp(key->section, "optimizer") == 0 && strcmp(key->key, "name") == 0);
}

sl_status sl_attributes_check(const sl_train_plan *plan, const sl_checkpoint *checkpoint)
{
    sl_status status = SL_OK;
    sl_attributes own = { .model = NULL };
    SL_TRY(sl_attributes_make(plan, 0, &own));
    const char *model = sl_checkpoint_attribute(checkpoint, "model"), *path = sl_checkpoint_path(checkpoint);
    bool same_model = model && strcmp(model, own.model) == 0;
    for (const config_key *key = sl_config_keys; key->section; key++) {
        const char *now = NULL;
        char *then = NULL, name[64];
        if (!decides_the_tensors(key) || (same_model && strcmp(key->section, "optimizer") != 0))
            continue;
        SL_TRY(find_change(plan, checkpoint, key, own.arena, &now, &then));
        snprintf(name, sizeof name, "%s.%s", key->section, key->key);
        if (then)
            SL_TRY(sl_train_config_fail(plan->config, name, "%s was made with %s, and holds what does not fit this",
                                        path, then[0] ? then : "none"));
    }
    if (!same_model)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%s is the checkpoint of another model", path));
done:
    sl_attributes_free(&own);
    return status;
}

/* Whether another value gives another run: what only says how it is computed, shown or stored does not. */
static bool decides_the_run(const sl_train_config *config, const config_key *key)
{
    static const char *const others[] = { "model", "parallel", "log", "checkpoint", "run" };
    if (strcmp(key->key, "seed") == 0 || strcmp(key->key, "dp") == 0 || strcmp(key->key, "freeze") == 0)
        return true;
    if (strcmp(key->key, "steps") == 0)
        return config->optimizer.schedule != SL_DECAY_CONSTANT; /* the learning rate falls over all of them */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(key->section, others[i]) == 0)
            return false;
    }
    return true;
}

/* What is not a key of the configuration. */
static void warn_of_data(const sl_train_plan *plan, uint64_t data_hash, const sl_checkpoint *checkpoint)
{
    const char *tokens = sl_checkpoint_attribute(checkpoint, "tokens");
    const char *data = sl_checkpoint_attribute(checkpoint, "data");
    const char *order = sl_checkpoint_attribute(checkpoint, "order"), *path = sl_tokens_path(plan->data.tokens[0]);
    const char *others = plan->data.count > 1 ? ", with what is mixed with it," : "";
    int64_t count = sl_plan_token_count(&plan->data);
    if (tokens && strtoll(tokens, NULL, 10) != count)
        sl_log(SL_LOG_WARN,
               "%s%s has %" PRId64 " tokens, it had %s when the checkpoint was made: its rows are others now", path,
               others, count, tokens);
    else if (data && strtoull(data, NULL, 16) != data_hash)
        sl_log(SL_LOG_WARN, "%s%s has changed since the checkpoint was made, although it has as many tokens", path,
               others);
    if (order && strcmp(order, order_of(plan)) != 0)
        sl_log(SL_LOG_WARN,
               "resumed with the schedule %s, which adds the gradients of the microbatches in %s order; the checkpoint "
               "was made with %s order: the bits will be others",
               plan->config->parallel.schedule, order_of(plan), order);
}

sl_status sl_attributes_warn(const sl_train_plan *plan, uint64_t data_hash, const sl_checkpoint *checkpoint)
{
    sl_status status = SL_OK;
    sl_arena *arena = NULL;
    SL_TRY(sl_arena_create(&arena));
    for (const config_key *key = sl_config_keys; key->section; key++) {
        const char *now = NULL;
        char *then = NULL;
        if (!decides_the_run(plan->config, key))
            continue;
        SL_TRY(find_change(plan, checkpoint, key, arena, &now, &then));
        if (then)
            sl_log(SL_LOG_WARN, "resumed with %s.%s=%s, the checkpoint was made with %s", key->section, key->key, now,
                   then);
    }
    warn_of_data(plan, data_hash, checkpoint);
done:
    sl_arena_destroy(arena);
    return status;
}
