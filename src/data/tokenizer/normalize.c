/* Normalizing: what happens to a text before it is split. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static const char mark[] = "\xe2\x96\x81"; /* U+2581: a blank in SentencePiece */

sl_status sl_byte_list_add(byte_list *list, const void *data, size_t size)
{
    sl_status status = SL_GROW(list->data, &list->capacity, list->count + size);
    if (status != SL_OK || size == 0)
        return status;
    memcpy(list->data + list->count, data, size);
    list->count += size;
    return SL_OK;
}

static bool is_ascii(const unsigned char *text, size_t size)
{
    unsigned char all = 0;
    for (size_t i = 0; i < size; i++)
        all |= text[i];
    return all < 128;
}

static sl_status to_form(const normal_step *step, const byte_list *from, byte_list *to)
{
    utf8proc_uint8_t *made = NULL;
    if (is_ascii(from->data, from->count))
        return sl_byte_list_add(to, from->data, from->count);
    utf8proc_ssize_t size =
        utf8proc_map(from->data, (utf8proc_ssize_t)from->count, &made, (utf8proc_option_t)step->form);
    if (size < 0)
        return sl_fail(SL_ERR_FORMAT, "Unicode normalization: %s", utf8proc_errmsg(size));
    sl_status status = sl_byte_list_add(to, made, (size_t)size);
    free(made);
    return status;
}

static sl_status to_lowercase(const byte_list *from, byte_list *to)
{
    sl_status status = SL_OK;
    for (size_t at = 0; at < from->count;) {
        utf8proc_int32_t character;
        unsigned char text[4];
        at += (size_t)utf8proc_iterate(from->data + at, (utf8proc_ssize_t)(from->count - at), &character);
        size_t size = (size_t)utf8proc_encode_char(utf8proc_tolower(character), text);
        SL_TRY(sl_byte_list_add(to, text, size));
        if (character == 0x130) /* the one whose lower case is two characters */
            SL_TRY(sl_byte_list_add(to, "\xcc\x87", 2));
    }
done:
    return status;
}

static sl_status replace(const normal_step *step, const byte_list *from, byte_list *to)
{
    uint32_t options = PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH | PCRE2_NO_UTF_CHECK |
                       (step->template ? 0u : PCRE2_SUBSTITUTE_LITERAL);
    PCRE2_SIZE size = from->count + 16;
    int made = PCRE2_ERROR_NOMEMORY;
    for (int attempt = 0; attempt < 2 && made == PCRE2_ERROR_NOMEMORY; attempt++) {
        sl_status status = SL_GROW(to->data, &to->capacity, size);
        if (status != SL_OK)
            return status;
        size = to->capacity;
        made = pcre2_substitute(step->pattern, from->data, from->count, 0, options, NULL, NULL, (PCRE2_SPTR)step->text,
                                PCRE2_ZERO_TERMINATED, to->data, &size);
    }
    if (made < 0)
        return sl_fail(SL_ERR_FORMAT, "a normalizer's pattern fails (PCRE2 error %d)", made);
    to->count = size;
    return SL_OK;
}

/* SentencePiece: the table, and blanks. */
static sl_status to_pieces(const normal_step *step, const byte_list *from, byte_list *to)
{
    sl_status status = SL_OK;
    const char *blank = step->escape ? mark : " ";
    size_t blank_size = strlen(blank);
    bool after_blank = step->one_blank; /* one at the beginning drops out */
    for (size_t at = 0; at < from->count;) {
        const char *part = (const char *)from->data + at;
        size_t taken = 0, size = 0;
        if (step->map)
            taken = sl_charsmap_longest(step->map, from->data + at, from->count - at, &part);
        if (taken > 0)
            size = strlen(part);
        else
            taken = size = sl_utf8_length(part, from->count - at);
        at += taken;
        for (size_t i = 0; i < size; i++) {
            bool is_blank = part[i] == ' ';
            if (is_blank && after_blank && step->one_blank)
                continue;
            if (to->count == 0 && step->blank_first)
                SL_TRY(sl_byte_list_add(to, blank, blank_size));
            SL_TRY(sl_byte_list_add(to, is_blank ? blank : part + i, is_blank ? blank_size : 1));
            after_blank = is_blank;
        }
    }
    while (step->one_blank && to->count >= blank_size &&
           memcmp(to->data + to->count - blank_size, blank, blank_size) == 0)
        to->count -= blank_size;
done:
    return status;
}

static sl_status apply(const normal_step *step, const byte_list *from, byte_list *to)
{
    sl_status status = SL_OK;
    switch (step->kind) {
    case NORMAL_FORM:
        return to_form(step, from, to);
    case NORMAL_LOWERCASE:
        return to_lowercase(from, to);
    case NORMAL_REPLACE:
        return replace(step, from, to);
    case NORMAL_PREPEND:
        if (from->count > 0)
            SL_TRY(sl_byte_list_add(to, step->text, strlen(step->text)));
        SL_TRY(sl_byte_list_add(to, from->data, from->count));
        return SL_OK;
    case NORMAL_CHARSMAP:
        return sl_charsmap_apply(step->map, from->data, from->count, to);
    case NORMAL_BYTES:
        return sl_alphabet_spell(from->data, from->count, to);
    case NORMAL_PIECES:
        return to_pieces(step, from, to);
    }
done:
    return status;
}

sl_status sl_tokenizer_normalize(text_encoder *encoder, const unsigned char *text, size_t size,
                                 const unsigned char **out, size_t *out_size)
{
    sl_status status = SL_OK;
    const sl_tokenizer *tokenizer = encoder->tokenizer;
    byte_list *from = &encoder->normal[0], *to = &encoder->normal[1];
    if (tokenizer->normal_count == 0) {
        *out = text;
        *out_size = size;
        return SL_OK;
    }
    from->count = 0;
    SL_TRY(sl_byte_list_add(from, text, size));
    for (int i = 0; i < tokenizer->normal_count; i++) {
        byte_list *done_with = from;
        to->count = 0;
        SL_TRY(apply(&tokenizer->normal[i], from, to));
        from = to;
        to = done_with;
    }
    *out = from->data;
    *out_size = from->count;
done:
    return status;
}
