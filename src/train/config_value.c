/* One value of the configuration: from its text, and back. */
#include "train/config_keys.h"

#include "base/arena.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- One value ------------------------------------------------------------------------------- */

static sl_status set_word(const config_key *key, const char *what, const char *text, int64_t *out)
{
    const char *words = key->words;
    for (int64_t place = 0; words; place++) {
        const char *bar = strchr(words, '|');
        size_t length = bar ? (size_t)(bar - words) : strlen(words);
        if (strlen(text) == length && sl_case_compare(words, text, length) == 0) {
            *out = place;
            return SL_OK;
        }
        words = bar ? bar + 1 : NULL;
    }
    return sl_fail(SL_ERR_ARGUMENT, "%s: '%.100s' is not one of %s", what, text, key->words);
}

static sl_status set_text(sl_arena *arena, const char *what, const char *text, const char **out)
{
    if (text[0] == '\0')
        return sl_fail(SL_ERR_ARGUMENT, "%s: the text is empty", what);
    return sl_arena_strdup(arena, text, (char **)(void *)out);
}

static sl_status set_texts(sl_arena *arena, const char *what, const char *const *texts, int count, sl_texts *out)
{
    sl_status status = SL_OK;
    const char **items = NULL;
    SL_TRY(SL_ARENA_ARRAY(arena, items, count > 0 ? count : 1));
    for (int i = 0; i < count; i++)
        SL_TRY(set_text(arena, what, texts[i], &items[i]));
    *out = (sl_texts){ .items = items, .count = count };
done:
    return status;
}

sl_status sl_config_set_paths(sl_train_config *config, const config_key *key, const char *what,
                              const sl_data_source *items, int count)
{
    sl_status status = SL_OK;
    sl_arena *arena = sl_config_own(config)->arena;
    sl_data_source *copy = NULL;
    if (count == 0)
        return sl_fail(SL_ERR_ARGUMENT, "%s: the list is empty", what);
    SL_TRY(SL_ARENA_ARRAY(arena, copy, count));
    for (int i = 0; i < count; i++) {
        copy[i] = items[i];
        SL_TRY(set_text(arena, what, items[i].path, &copy[i].path));
        if ((items[i].weight > 0) != (items[0].weight > 0))
            return sl_fail(SL_ERR_ARGUMENT, "%s: %s has a weight and %s has none; give all of them one, or none", what,
                           items[items[i].weight > 0 ? i : 0].path, items[items[i].weight > 0 ? 0 : i].path);
    }
    *(sl_data_sources *)((char *)config + key->offset) = (sl_data_sources){ .items = copy, .count = count };
done:
    return status;
}

static sl_status set_scalar(sl_train_config *config, const config_key *key, const char *what, const char *text,
                            void *target)
{
    switch (key->type) {
    case CONFIG_INT:
        return sl_parse_int(what, text, (int64_t)key->min, (int64_t)key->max, target);
    case CONFIG_REAL:
        return sl_parse_double(what, text, key->min, key->max, target);
    case CONFIG_BOOL:
        return sl_parse_bool(what, text, target);
    case CONFIG_WORD:
        return set_word(key, what, text, target);
    default:
        return set_text(sl_config_own(config)->arena, what, text, target);
    }
}

sl_status sl_config_set(sl_train_config *config, const config_key *key, const char *what, const char *const *texts,
                        int count)
{
    void *target = (char *)config + key->offset;
    if (key->type == CONFIG_TEXTS)
        return set_texts(sl_config_own(config)->arena, what, texts, count, target);
    if (key->type == CONFIG_PAIR) {
        double *pair = target;
        if (count != 2)
            return sl_fail(SL_ERR_ARGUMENT, "%s: two numbers are needed, %d given", what, count);
        sl_status status = sl_parse_double(what, texts[0], key->min, key->max, &pair[0]);
        return status == SL_OK ? sl_parse_double(what, texts[1], key->min, key->max, &pair[1]) : status;
    }
    return set_scalar(config, key, what, texts[0], target);
}

/* ---- One value back to text -------------------------------------------------------------------- */

static sl_status word_text(const config_key *key, int64_t place, sl_arena *arena, char **out)
{
    const char *word = key->words;
    for (; place > 0; place--)
        word = strchr(word, '|') + 1;
    return sl_arena_printf(arena, out, "%.*s", (int)strcspn(word, "|"), word);
}

static sl_status list_text(const sl_texts *list, sl_arena *arena, char **out)
{
    sl_status status = sl_arena_strdup(arena, "", out);
    for (int64_t i = 0; i < list->count && status == SL_OK; i++)
        status = sl_arena_printf(arena, out, "%s%s%s", *out, i > 0 ? "," : "", list->items[i]);
    return status;
}

/* A text in JSON, which is YAML too. */
static sl_status quote(const char *text, sl_arena *arena, char **out)
{
    sl_status status = SL_OK;
    char *quoted = NULL;
    size_t used = 0, longest = strlen("\\u001f");
    SL_TRY(SL_ARENA_ARRAY(arena, quoted, longest * strlen(text) + 3));
    quoted[used++] = '"';
    for (; *text; text++) {
        unsigned char letter = (unsigned char)*text;
        if (letter == '"' || letter == '\\')
            quoted[used++] = '\\';
        if (letter < 0x20)
            used += (size_t)snprintf(quoted + used, longest + 1, "\\u%04x", letter);
        else
            quoted[used++] = *text;
    }
    quoted[used] = '"';
    *out = quoted;
done:
    return status;
}

/* One path without weight as it is, unless it looks like a list. */
static sl_status paths_text(const sl_data_sources *paths, sl_arena *arena, char **out)
{
    sl_status status = SL_OK;
    char number[32];
    if (paths->count == 0)
        return sl_arena_strdup(arena, "", out);
    if (paths->count == 1 && paths->items[0].weight == 0 && paths->items[0].path[0] != '[')
        return sl_arena_strdup(arena, paths->items[0].path, out);
    SL_TRY(sl_arena_strdup(arena, "[", out));
    for (int64_t i = 0; i < paths->count; i++) {
        const sl_data_source *item = &paths->items[i];
        const char *comma = i > 0 ? ", " : "";
        char *path = NULL;
        SL_TRY(quote(item->path, arena, &path));
        if (item->weight > 0)
            SL_TRY(sl_arena_printf(arena, out, "%s%s{path: %s, weight: %s}", *out, comma, path,
                                   sl_double_text(item->weight, number, sizeof number)));
        else
            SL_TRY(sl_arena_printf(arena, out, "%s%s%s", *out, comma, path));
    }
    SL_TRY(sl_arena_printf(arena, out, "%s]", *out));
done:
    return status;
}

sl_status sl_config_text(const sl_train_config *config, const config_key *key, sl_arena *arena, const char **out)
{
    const void *value = (const char *)config + key->offset;
    char **text = (char **)(void *)out;
    const double *pair = value;
    char first[32], second[32];
    switch (key->type) {
    case CONFIG_INT:
        return sl_arena_printf(arena, text, "%" PRId64, *(const int64_t *)value);
    case CONFIG_REAL:
        return sl_arena_strdup(arena, sl_double_text(*pair, first, sizeof first), text);
    case CONFIG_BOOL:
        return sl_arena_strdup(arena, *(const bool *)value ? "true" : "false", text);
    case CONFIG_WORD:
        return word_text(key, *(const int64_t *)value, arena, text);
    case CONFIG_PAIR:
        return sl_arena_printf(arena, text, "%s,%s", sl_double_text(pair[0], first, sizeof first),
                               sl_double_text(pair[1], second, sizeof second));
    case CONFIG_TEXTS:
        return list_text(value, arena, text);
    case CONFIG_PATHS:
        return paths_text(value, arena, text);
    default:
        return sl_arena_strdup(arena, *(const char *const *)value ? *(const char *const *)value : "", text);
    }
}
