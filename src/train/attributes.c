/* Attributes of checkpoints: model, configuration, tokenizer. */
#include "train/attributes.h"

#include "train/config_keys.h"
#include "train/tokenizer_files.h"

#include <stdlib.h>
#include <string.h>

static const char *tokenizer_of(const sl_train_plan *plan)
{
    const char *init = plan->config->model.init;
    if (sl_tokens_format(plan->tokens) == SL_TOKENS_BYTES)
        return "bytes";
    return init && sl_tokenizer_files_exist(init) ? init : "";
}

sl_status sl_attributes_make(const sl_train_plan *plan, sl_attributes *out)
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
    const char *const pairs[] = { "model",     made.model,         "config",  lines,
                                  "tokenizer", tokenizer_of(plan), "version", sl_version() };
    memcpy(made.pairs, pairs, sizeof pairs);
    *out = made;
    made = (sl_attributes){ .model = NULL };
done:
    sl_attributes_free(&made);
    return status;
}

void sl_attributes_free(sl_attributes *attributes)
{
    free(attributes->model);
    sl_arena_destroy(attributes->arena);
    *attributes = (sl_attributes){ .model = NULL };
}

/* Whether another value gives another run: what only says how it is computed, shown or stored does not. */
static bool decides_the_run(const config_key *key)
{
    static const char *const others[] = { "parallel", "log", "checkpoint", "run" };
    if (strcmp(key->key, "seed") == 0 || strcmp(key->key, "dp") == 0)
        return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(key->section, others[i]) == 0)
            return false;
    }
    return strcmp(key->section, "model") != 0; /* compared as a whole */
}

/* The line "NAME=" of the lines, up to its end; NULL where there is none. */
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

static sl_status compare_settings(const sl_train_plan *plan, const char *stored, sl_arena *arena)
{
    sl_status status = SL_OK;
    for (const config_key *key = sl_config_keys; key->section && stored; key++) {
        const char *now = NULL, *then = NULL;
        char *name = NULL;
        size_t length = 0;
        if (!decides_the_run(key))
            continue;
        SL_TRY(sl_config_text(plan->config, key, arena, &now));
        SL_TRY(sl_arena_printf(arena, &name, "%s.%s=", key->section, key->key));
        then = find_line(stored, name, strlen(name), &length);
        if (then && (strlen(now) != length || strncmp(now, then, length) != 0))
            sl_log(SL_LOG_WARN, "resumed with %s%s, the checkpoint was made with %.*s", name, now, (int)length, then);
    }
done:
    return status;
}

sl_status sl_attributes_check(const sl_train_plan *plan, const sl_checkpoint *checkpoint)
{
    sl_status status = SL_OK;
    sl_attributes own = { .model = NULL };
    const char *model = sl_checkpoint_attribute(checkpoint, "model");
    SL_TRY(sl_attributes_make(plan, &own));
    if (!model || strcmp(model, own.model) != 0)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%s is the checkpoint of another model", sl_checkpoint_path(checkpoint)));
    SL_TRY(compare_settings(plan, sl_checkpoint_attribute(checkpoint, "config"), own.arena));
done:
    sl_attributes_free(&own);
    return status;
}
