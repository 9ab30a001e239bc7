/* From text to ids: special tokens first, then pieces by the pattern, then merges inside each piece. */
#include "data/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>

/* Where the ids go. */
typedef struct id_list {
    int32_t *ids;
    size_t count, capacity;
} id_list;

/* The token that is exactly this piece, or NO_TOKEN. Only where whole_pieces keeps the sorted list. */
static int32_t find_whole(const sl_tokenizer *tokenizer, const unsigned char *piece, size_t size)
{
    int64_t low = 0, high = tokenizer->by_bytes_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const token *entry = &tokenizer->tokens[tokenizer->by_bytes[middle]];
        size_t shorter = entry->length < size ? entry->length : size;
        int order = memcmp(piece, entry->bytes, shorter);
        if (order == 0)
            order = (size > entry->length) - (size < entry->length);
        if (order == 0)
            return tokenizer->by_bytes[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NO_TOKEN;
}

static sl_status add_piece(const sl_tokenizer *tokenizer, const unsigned char *piece, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    size_t merged = 0;

    SL_TRY(SL_GROW(list->ids, &list->capacity, list->count + size));
    int32_t *ids = list->ids + list->count, whole = find_whole(tokenizer, piece, size);
    if (whole != NO_TOKEN) {
        ids[0] = whole;
        list->count++;
        return SL_OK;
    }
    for (size_t i = 0; i < size; i++) {
        ids[i] = tokenizer->byte_ids[piece[i]];
        if (ids[i] == NO_TOKEN)
            return sl_fail(SL_ERR_FORMAT, "%s has no token for the byte 0x%02x", tokenizer->path, piece[i]);
    }
    SL_TRY(sl_bpe_merge(tokenizer->merges, ids, size, &merged));
    list->count += merged;
done:
    return status;
}

/* Valid UTF-8: pieces are the pattern's matches and what lies between them. */
static sl_status add_text(const sl_tokenizer *tokenizer, const unsigned char *text, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    const PCRE2_SIZE *match = pcre2_get_ovector_pointer(tokenizer->match);
    size_t at = 0;

    while (at < size) {
        int found = pcre2_match(tokenizer->pattern, text, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                tokenizer->match, NULL);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            return sl_fail(SL_ERR_FORMAT, "%s: the pattern fails (PCRE2 error %d) at byte %zu of a text",
                           tokenizer->path, found, at);
        size_t start = found < 0 ? size : match[0], end = found < 0 ? size : match[1];
        if (start > at)
            SL_TRY(add_piece(tokenizer, text + at, start - at, list));
        if (end > start)
            SL_TRY(add_piece(tokenizer, text + start, end - start, list));
        at = end;
    }
done:
    return status;
}

/* Any bytes: runs of valid UTF-8 as text, every other byte on its own. */
static sl_status add_bytes(const sl_tokenizer *tokenizer, const unsigned char *text, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    size_t at = 0;
    while (at < size) {
        size_t end = at, length;
        while ((length = sl_utf8_length(text + end, size - end)) > 0)
            end += length;
        SL_TRY(add_text(tokenizer, text + at, end - at, list));
        if (end < size)
            SL_TRY(add_piece(tokenizer, text + end++, 1, list));
        at = end;
    }
done:
    return status;
}

/* The first of the special tokens [low, high) whose byte `at` is not below the value. They are sorted, and equal before
 * that byte. */
static int first_not_below(const sl_tokenizer *tokenizer, int low, int high, size_t at, unsigned value)
{
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (tokenizer->tokens[tokenizer->special[middle]].bytes[at] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest special token that begins here, or NO_TOKEN. Byte after byte fewer of them are left, so that their number
 * hardly matters. */
static int32_t special_at(const sl_tokenizer *tokenizer, const unsigned char *text, size_t size)
{
    int32_t best = NO_TOKEN;
    int low = 0, high = tokenizer->special_count;
    for (size_t at = 0; low < high; at++) {
        while (low < high && tokenizer->tokens[tokenizer->special[low]].length == at) {
            if (at > 0 && (best == NO_TOKEN || tokenizer->tokens[best].length < at))
                best = tokenizer->special[low];
            low++;
        }
        if (at == size)
            break;
        low = first_not_below(tokenizer, low, high, at, text[at]);
        high = first_not_below(tokenizer, low, high, at, text[at] + 1u);
    }
    return best;
}

static sl_status add_with_special(const sl_tokenizer *tokenizer, const unsigned char *text, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    size_t begin = 0;
    for (size_t at = 0; at < size;) {
        int32_t special = NO_TOKEN;
        if (tokenizer->special_first[text[at]])
            special = special_at(tokenizer, text + at, size - at);
        if (special == NO_TOKEN) {
            at++;
            continue;
        }
        SL_TRY(add_bytes(tokenizer, text + begin, at - begin, list));
        SL_TRY(SL_GROW(list->ids, &list->capacity, list->count + 1));
        list->ids[list->count++] = special;
        at += tokenizer->tokens[special].length;
        begin = at;
    }
    SL_TRY(add_bytes(tokenizer, text + begin, size - begin, list));
done:
    return status;
}

sl_status sl_tokenizer_encode(sl_tokenizer *tokenizer, const void *text, size_t bytes, bool special, int32_t **out,
                              int64_t *count)
{
    sl_status status = SL_OK;
    id_list list = { 0 };
    unsigned char *prefixed = NULL;

    if (tokenizer->prefix_space && bytes > 0 && *(const char *)text != ' ') {
        SL_TRY(SL_NEW_ARRAY(prefixed, bytes + 1));
        prefixed[0] = ' ';
        memcpy(prefixed + 1, text, bytes++);
        text = prefixed;
    }
    SL_TRY(SL_GROW(list.ids, &list.capacity, 1)); /* an empty text has a list, too */
    if (special)
        SL_TRY(add_with_special(tokenizer, text, bytes, &list));
    else
        SL_TRY(add_bytes(tokenizer, text, bytes, &list));
    *out = list.ids;
    *count = (int64_t)list.count;
    list.ids = NULL;
done:
    sl_free(prefixed);
    sl_free(list.ids);
    return status;
}
