/* Configuration values back to text. */
#include "train/config_keys.h"

#include "base/locale.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
    default:
        return sl_arena_strdup(arena, *(const char *const *)value ? *(const char *const *)value : "", text);
    }
}
