/* SentencePiece's table of replacements: a double-array trie from texts to places in a block of texts. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>
#include <utf8proc.h>

enum { GRAPHEME_MAX = 6 }; /* longer graphemes are looked up character by character */

struct charsmap {
    uint32_t *units;
    size_t unit_count;
    char *texts; /* ends with a NUL */
    size_t text_size;
};

sl_status sl_charsmap_create(const char *where, const void *blob, size_t size, charsmap **out)
{
    sl_status status = SL_OK;
    uint32_t bytes = 0;
    charsmap *map = NULL;
    if (size >= sizeof bytes)
        memcpy(&bytes, blob, sizeof bytes);
    if (size < sizeof bytes || bytes % sizeof *map->units != 0 || bytes == 0 || bytes > size - sizeof bytes)
        return sl_fail(SL_ERR_FORMAT, "%s: the table of characters is cut off", where);
    SL_TRY(SL_NEW(map));
    map->unit_count = bytes / sizeof *map->units;
    map->text_size = size - sizeof bytes - bytes;
    SL_TRY(SL_NEW_ARRAY(map->units, map->unit_count));
    SL_TRY(SL_NEW_ARRAY(map->texts, map->text_size + 1));
    memcpy(map->units, (const char *)blob + sizeof bytes, bytes);
    memcpy(map->texts, (const char *)blob + sizeof bytes + bytes, map->text_size);
    *out = map;
    map = NULL;
done:
    sl_charsmap_destroy(map);
    return status;
}

void sl_charsmap_destroy(charsmap *map)
{
    if (!map)
        return;
    sl_free(map->units);
    sl_free(map->texts);
    sl_free(map);
}

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* Bytes that match the shortest or longest entry at the beginning of text, and its replacement; 0 if none does. */
static size_t look_up(const charsmap *map, const unsigned char *text, size_t size, bool longest, const char **out)
{
    size_t found = 0, node = offset_of(map->units[0]);
    for (size_t i = 0; i < size && text[i]; i++) {
        node ^= text[i];
        if (node >= map->unit_count || (map->units[node] & (1u << 31 | 0xff)) != text[i])
            break;
        uint32_t unit = map->units[node];
        node ^= offset_of(unit);
        if (!(unit >> 8 & 1) || node >= map->unit_count)
            continue;
        uint32_t place = map->units[node] & ~(1u << 31);
        if (place >= map->text_size)
            break;
        *out = map->texts + place;
        found = i + 1;
        if (!longest)
            break;
    }
    return found;
}

size_t sl_charsmap_longest(const charsmap *map, const unsigned char *text, size_t size, const char **out)
{
    return look_up(map, text, size, true, out);
}

/* Bytes of the grapheme that text begins with. */
static size_t grapheme_length(const unsigned char *text, size_t size)
{
    utf8proc_int32_t before, after, state = 0;
    size_t at = (size_t)utf8proc_iterate(text, (utf8proc_ssize_t)size, &before);
    while (at < size) {
        utf8proc_ssize_t length = utf8proc_iterate(text + at, (utf8proc_ssize_t)(size - at), &after);
        if (length <= 0 || utf8proc_grapheme_break_stateful(before, after, &state))
            break;
        at += (size_t)length;
        before = after;
    }
    return at;
}

sl_status sl_charsmap_apply(const charsmap *map, const unsigned char *text, size_t size, byte_list *out)
{
    sl_status status = SL_OK;
    const char *other = NULL;
    for (size_t at = 0; at < size;) {
        size_t length = grapheme_length(text + at, size - at);
        if (length < GRAPHEME_MAX && look_up(map, text + at, length, false, &other) > 0) {
            SL_TRY(sl_byte_list_add(out, other, strlen(other)));
            at += length;
            continue;
        }
        for (size_t end = at + length; at < end;) {
            size_t one = sl_utf8_length(text + at, end - at);
            if (look_up(map, text + at, one, false, &other) > 0)
                SL_TRY(sl_byte_list_add(out, other, strlen(other)));
            else
                SL_TRY(sl_byte_list_add(out, text + at, one));
            at += one;
        }
    }
done:
    return status;
}
