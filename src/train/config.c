/* Configuration of a run: defaults, overrides, and errors that say where a value came from. */
#include "train/config_keys.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Defaults and overrides ------------------------------------------------------------------ */

/* "[a, b]" or "a,b" into its items; cuts the copy that is passed in. */
static int cut_list(char *text, const char **items)
{
    int count = 0;
    size_t length = strlen(text);
    if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
        text[length - 1] = '\0';
        text++;
    }
    if (text[strspn(text, " ")] == '\0')
        return 0;
    while (text && count < CONFIG_LIST_LIMIT) {
        char *comma = strchr(text, ',');
        if (comma)
            *comma = '\0';
        text += strspn(text, " ");
        size_t end = strlen(text);
        while (end > 0 && text[end - 1] == ' ')
            text[--end] = '\0';
        items[count++] = text;
        text = comma ? comma + 1 : NULL;
    }
    return count;
}

static sl_status set_from_text(sl_train_config *config, const config_key *key, const char *what, const char *text)
{
    sl_status status = SL_OK;
    char *copy = NULL;
    const char *items[CONFIG_LIST_LIMIT] = { text };
    int count = 1;
    if (key->type == CONFIG_PATHS) {
        const sl_data_source one = { .path = text };
        return text[0] == '[' ? sl_config_parse_paths(config, key, what, text)
                              : sl_config_set_paths(config, key, what, &one, 1);
    }
    if (key->type == CONFIG_PAIR || key->type == CONFIG_TEXTS) {
        SL_TRY(sl_strdup(text, &copy));
        count = cut_list(copy, items);
    }
    SL_TRY(sl_config_set(config, key, what, items, count));
done:
    sl_free(copy);
    return status;
}

static sl_status set_defaults(sl_train_config *config)
{
    for (const config_key *key = sl_config_keys; key->section; key++) {
        if (!key->default_value)
            continue;
        sl_status status = set_from_text(config, key, key->key, key->default_value);
        if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

sl_status sl_config_extra(sl_train_config *config, const char *name, config_extra **out)
{
    struct sl_config_own *own = sl_config_own(config);
    int i = 0;
    while (i < own->extra_count && strcmp(own->extras[i].name, name) != 0)
        i++;
    if (i == CONFIG_KEY_LIMIT)
        return sl_fail(SL_ERR_ARGUMENT, "%s: there are too many keys in this section", name);
    if (i == own->extra_count) {
        sl_status status = sl_arena_strdup(own->arena, name, (char **)(void *)&own->extras[i].name);
        if (status != SL_OK)
            return status;
        own->extra_count++;
    }
    *out = &own->extras[i];
    return SL_OK;
}

static sl_status set_override(sl_train_config *config, const char *override)
{
    sl_status status = SL_OK;
    size_t section = strcspn(override, ".="), whole = strcspn(override, "=");
    char what[128];
    config_origin *origin = NULL;
    snprintf(what, sizeof what, "--%.*s", (int)whole, override);
    int i =
        override[section] == '.' ? sl_config_find(override, section, override + section + 1, whole - section - 1) : -1;
    if (i < 0 && strncmp(override, "model.", strlen("model.")) != 0)
        return sl_fail(SL_ERR_ARGUMENT, "%s: there is no such key", what);
    if (override[whole] != '=')
        return sl_fail(SL_ERR_ARGUMENT, "%s: a value is missing (%s=VALUE)", what, what);
    if (i >= 0) {
        SL_TRY(set_from_text(config, &sl_config_keys[i], what, override + whole + 1));
        origin = &sl_config_own(config)->origins[i];
    } else {
        config_extra *extra = NULL;
        SL_TRY(sl_config_extra(config, what + 2, &extra));
        SL_TRY(sl_arena_strdup(sl_config_own(config)->arena, override + whole + 1, (char **)(void *)&extra->text));
        origin = &extra->origin;
    }
    *origin = (config_origin){ .given = true };
    SL_TRY(sl_arena_strdup(sl_config_own(config)->arena, override, (char **)(void *)&origin->override));
done:
    return status;
}

/* Defaults that follow from other values. */
static void adapt_defaults(sl_train_config *config)
{
    int64_t rows = config->batch.size / config->parallel.dp;
    if (!sl_train_config_given(config, "batch.microbatches") && rows > 0 && rows < config->batch.microbatches)
        config->batch.microbatches = rows;
}

sl_status sl_config_new(sl_train_config **out)
{
    sl_status status = SL_OK;
    struct sl_config_own *own = NULL;
    SL_TRY(SL_NEW(own));
    SL_TRY(sl_arena_create(&own->arena));
    *out = &own->values;
    return SL_OK;
done:
    sl_free(own);
    return status;
}

/* The schedule that a plan names lies beside it. */
static sl_status find_beside(sl_train_config *config, const char *plan)
{
    const config_origin *origin =
        &sl_config_own(config)->origins[sl_config_find("parallel", strlen("parallel"), "schedule", strlen("schedule"))];
    const char *slash = strrchr(plan, '/'), *name = config->parallel.schedule;
    size_t length = strlen(name);
    if (!origin->given || origin->path != sl_config_own(config)->path || !slash || name[0] == '/' || length < 5 ||
        strcmp(name + length - 4, ".csv") != 0)
        return SL_OK;
    return sl_arena_printf(sl_config_own(config)->arena, (char **)(void *)&config->parallel.schedule, "%.*s%s",
                           (int)(slash + 1 - plan), plan, name);
}

/* Values of the file run.plan win over those of the configuration, and overrides over both. */
static sl_status read_plan(sl_train_config *config, const char *const *overrides, int override_count)
{
    sl_status status = SL_OK;
    const char *plan = config->run.plan;
    SL_TRY(sl_config_read_yaml(config, plan));
    SL_TRY(find_beside(config, plan));
    for (int i = 0; i < override_count; i++)
        SL_TRY(set_override(config, overrides[i]));
done:
    return status;
}

sl_status sl_train_config_load(const char *path, const char *const *overrides, int override_count,
                               sl_train_config **out)
{
    sl_status status = SL_OK;
    sl_train_config *config = NULL;
    SL_TRY(sl_config_new(&config));
    SL_TRY(set_defaults(config));
    if (path)
        SL_TRY(sl_config_read_yaml(config, path));
    for (int i = 0; i < override_count; i++)
        SL_TRY(set_override(config, overrides[i]));
    if (config->run.plan)
        SL_TRY(read_plan(config, overrides, override_count));
    adapt_defaults(config);
    SL_TRY(sl_config_check(config));
    *out = config;
    config = NULL;
done:
    sl_train_config_destroy(config);
    return status;
}

void sl_train_config_destroy(sl_train_config *config)
{
    if (!config)
        return;
    sl_arena_destroy(sl_config_own(config)->arena);
    sl_free(sl_config_own(config));
}

/* ---- Where a value came from ----------------------------------------------------------------- */

/* NULL if there is no such key. *value is the default of a key in the table, else NULL. */
static const config_origin *find_origin(const sl_train_config *config, const char *key, const char **value)
{
    size_t section = strcspn(key, ".");
    *value = NULL;
    if (key[section] != '.')
        return NULL;
    int i = sl_config_find(key, section, key + section + 1, strlen(key + section + 1));
    if (i >= 0) {
        *value = sl_config_keys[i].default_value;
        return &sl_config_own(config)->origins[i];
    }
    for (i = 0; i < sl_config_own(config)->extra_count; i++) {
        if (strcmp(sl_config_own(config)->extras[i].name, key) == 0)
            return &sl_config_own(config)->extras[i].origin;
    }
    return NULL;
}

bool sl_train_config_given(const sl_train_config *config, const char *key)
{
    const char *value;
    const config_origin *origin = find_origin(config, key, &value);
    return origin && origin->given;
}

/* "FILE:LINE:COLUMN: section.key", "--section.key=VALUE", or "section.key (VALUE by default)". */
static const char *place_of(const sl_train_config *config, const char *key, char *place, size_t size)
{
    const char *value = NULL;
    const config_origin *origin = find_origin(config, key, &value);
    if (origin && origin->override)
        snprintf(place, size, "--%.300s", origin->override);
    else if (origin && origin->given)
        snprintf(place, size, "%s:%d:%d: %s", origin->path, origin->line, origin->column, key);
    else if (value)
        snprintf(place, size, "%s (%s by default)", key, value);
    else
        snprintf(place, size, "%s", key);
    return place;
}

sl_status sl_train_config_fail(const sl_train_config *config, const char *key, const char *format, ...)
{
    char message[1024], place[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return sl_fail(SL_ERR_ARGUMENT, "%s: %s", place_of(config, key, place, sizeof place), message);
}

sl_status sl_train_config_context(const sl_train_config *config, const char *key, sl_status code)
{
    char place[512];
    return sl_fail_context(code, "%s", place_of(config, key, place, sizeof place));
}
