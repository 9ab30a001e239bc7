/* From ids back to text: the decoder's steps, each on the list of texts that the one before it gave. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

/* Texts one after the other; text i ends at ends[i]. */
typedef struct text_list {
    byte_list bytes;
    size_t *ends, count, capacity;
} text_list;

static const unsigned char *text_of(const text_list *list, size_t i, size_t *size)
{
    size_t start = i ? list->ends[i - 1] : 0;
    *size = list->ends[i] - start;
    return list->bytes.data + start;
}

/* The bytes added since the last end are a text. */
static sl_status end_text(text_list *list)
{
    sl_status status = SL_GROW(list->ends, &list->capacity, list->count + 1);
    if (status == SL_OK)
        list->ends[list->count++] = list->bytes.count;
    return status;
}

static sl_status add(text_list *list, const void *text, size_t size)
{
    return sl_byte_list_add(&list->bytes, text, size);
}

static bool begins_with(const unsigned char *text, size_t size, const char *start)
{
    size_t length = strlen(start);
    return length > 0 && size >= length && memcmp(text, start, length) == 0;
}

/* Adds text with every `from` in it replaced. */
static sl_status add_replaced(text_list *list, const unsigned char *text, size_t size, const char *from, const char *to)
{
    sl_status status = SL_OK;
    for (size_t at = 0; at < size;) {
        bool found = begins_with(text + at, size - at, from);
        SL_TRY(add(list, found ? (const void *)to : text + at, found ? strlen(to) : 1));
        at += found ? strlen(from) : 1;
    }
done:
    return status;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static sl_status decode_bytes(const sl_tokenizer *tokenizer, const unsigned char *text, size_t size, text_list *to)
{
    size_t length = size, before = to->bytes.count;
    sl_status status = add(to, text, size);
    if (status != SL_OK || tokenizer->model.byte_level)
        return status; /* the tokens are bytes already */
    if (sl_alphabet_decode(text, size, to->bytes.data + before, &length))
        to->bytes.count = before + length;
    else
        memcpy(to->bytes.data + before, text, size);
    return SL_OK;
}

static sl_status decode_spaces(const decode_step *step, const unsigned char *text, size_t size, bool first,
                               text_list *to)
{
    return add_replaced(to, text, size, step->text, first && step->scheme != PREPEND_NEVER ? "" : " ");
}

/* English as WordPiece's decoder tidies it. */
static sl_status tidy(const unsigned char *text, size_t size, text_list *to)
{
    static const char *const pairs[][2] = { { " .", "." },     { " ?", "?" },           { " !", "!" },
                                            { " ,", "," },     { " ' ", "'" },          { " n't", "n't" },
                                            { " 'm", "'m" },   { " do not", " don't" }, { " 's", "'s" },
                                            { " 've", "'ve" }, { " 're", "'re" } };
    sl_status status = SL_OK;
    text_list lists[2] = { 0 };
    int at = 0;
    SL_TRY(add(&lists[0], text, size));
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++, at ^= 1) {
        lists[at ^ 1].bytes.count = 0;
        SL_TRY(add_replaced(&lists[at ^ 1], lists[at].bytes.data, lists[at].bytes.count, pairs[i][0], pairs[i][1]));
    }
    SL_TRY(add(to, lists[at].bytes.data, lists[at].bytes.count));
done:
    sl_free(lists[0].bytes.data);
    sl_free(lists[1].bytes.data);
    return status;
}

static sl_status decode_prefix(const decode_step *step, const unsigned char *text, size_t size, bool first,
                               text_list *to)
{
    sl_status status = SL_OK;
    text_list word = { 0 };
    if (!first && begins_with(text, size, step->text)) {
        text += strlen(step->text);
        size -= strlen(step->text);
    } else if (!first) {
        SL_TRY(add(&word, " ", 1));
    }
    SL_TRY(add(&word, text, size));
    if (step->cleanup)
        SL_TRY(tidy(word.bytes.data, word.bytes.count, to));
    else
        SL_TRY(add(to, word.bytes.data, word.bytes.count));
done:
    sl_free(word.bytes.data);
    return status;
}

static sl_status decode_strip(const decode_step *step, const unsigned char *text, size_t size, text_list *to)
{
    size_t length = strlen(step->text);
    for (int64_t i = 0; i < step->start && begins_with(text, size, step->text); i++) {
        text += length;
        size -= length;
    }
    for (int64_t i = 0; i < step->stop && size >= length && begins_with(text + size - length, length, step->text); i++)
        size -= length;
    return add(to, text, size);
}

static sl_status decode_replace(const decode_step *step, const unsigned char *text, size_t size, text_list *to)
{
    sl_status status = SL_OK;
    uint32_t options = PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH | PCRE2_SUBSTITUTE_LITERAL;
    int made = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE room = size + 16;
    for (int attempt = 0; attempt < 2 && made == PCRE2_ERROR_NOMEMORY; attempt++) {
        SL_TRY(SL_GROW(to->bytes.data, &to->bytes.capacity, to->bytes.count + room));
        made = pcre2_substitute(step->pattern, text, size, 0, options, NULL, NULL, (PCRE2_SPTR)step->second,
                                PCRE2_ZERO_TERMINATED, to->bytes.data + to->bytes.count, &room);
    }
    if (made < 0)
        return add(to, text, size); /* bytes that are no text stay */
    to->bytes.count += room;
done:
    return status;
}

static int digit_of(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of "<0x41>"; -1 if the text is none. */
static int byte_of(const unsigned char *text, size_t size)
{
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || digit_of(text[3]) < 0 || digit_of(text[4]) < 0)
        return -1;
    return digit_of(text[3]) * 16 + digit_of(text[4]);
}

static sl_status decode_one(const sl_tokenizer *tokenizer, const decode_step *step, const text_list *from, size_t i,
                            text_list *to)
{
    size_t size, other_size;
    const unsigned char *text = text_of(from, i, &size);
    bool last = i + 1 == from->count;
    switch (step->kind) {
    case DECODE_BYTES:
        return decode_bytes(tokenizer, text, size, to);
    case DECODE_SPACES:
        return decode_spaces(step, text, size, i == 0, to);
    case DECODE_PREFIX:
        return decode_prefix(step, text, size, i == 0, to);
    case DECODE_SUFFIX:
        return add_replaced(to, text, size, step->text, last ? "" : " ");
    case DECODE_FALLBACK:
        if (byte_of(text, size) >= 0)
            return add(to, &(unsigned char){ (unsigned char)byte_of(text, size) }, 1);
        return add(to, text, size);
    case DECODE_FUSE:
        return add(to, text, size);
    case DECODE_STRIP:
        return decode_strip(step, text, size, to);
    case DECODE_REPLACE:
        return decode_replace(step, text, size, to);
    case DECODE_CTC: {
        const unsigned char *other = i ? text_of(from, i - 1, &other_size) : NULL;
        if ((other && other_size == size && memcmp(other, text, size) == 0) ||
            (size == strlen(step->text) && memcmp(text, step->text, size) == 0))
            return SL_OK;
        return step->cleanup ? add_replaced(to, text, size, step->second, " ") : add(to, text, size);
    }
    }
    return SL_OK;
}

/* Steps after which all is one text. */
static bool joins(const decode_step *step)
{
    return step->kind == DECODE_BYTES || step->kind == DECODE_FUSE;
}

static sl_status apply(const sl_tokenizer *tokenizer, const decode_step *step, const text_list *from, text_list *to)
{
    sl_status status = SL_OK;
    to->count = to->bytes.count = 0;
    for (size_t i = 0; i < from->count; i++) {
        SL_TRY(decode_one(tokenizer, step, from, i, to));
        if (!joins(step) || i + 1 == from->count)
            SL_TRY(end_text(to));
    }
done:
    return status;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static sl_status collect(const sl_tokenizer *tokenizer, const int32_t *ids, int64_t count, text_list *out)
{
    sl_status status = SL_OK;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer->vocab || !tokenizer->tokens[ids[i]].bytes)
            return sl_fail(SL_ERR_ARGUMENT,
                           "token %" PRId64 " is %" PRId32 ", which the vocabulary of %s does not have", i, ids[i],
                           tokenizer->path);
        if (tokenizer->spaced && i > 0)
            SL_TRY(add(out, " ", 1));
        SL_TRY(add(out, tokenizer->tokens[ids[i]].bytes, tokenizer->tokens[ids[i]].length));
        SL_TRY(end_text(out));
    }
done:
    return status;
}

sl_status sl_tokenizer_decode(const sl_tokenizer *tokenizer, const int32_t *ids, int64_t count, char **out,
                              size_t *bytes)
{
    sl_status status = SL_OK;
    text_list lists[2] = { 0 };
    int at = 0;
    SL_TRY(collect(tokenizer, ids, count, &lists[0]));
    for (int i = 0; i < tokenizer->decode_count; i++, at ^= 1)
        SL_TRY(apply(tokenizer, &tokenizer->decode[i], &lists[at], &lists[at ^ 1]));
    size_t size = lists[at].bytes.count;
    SL_TRY(add(&lists[at], "", 1));
    *out = (char *)lists[at].bytes.data;
    *bytes = size;
    lists[at].bytes.data = NULL;
done:
    for (int i = 0; i < 2; i++) {
        sl_free(lists[i].bytes.data);
        sl_free(lists[i].ends);
    }
    return status;
}
