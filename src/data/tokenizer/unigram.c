/* Unigram: of all ways to cut a piece into tokens, the one with the best sum of scores. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN_PENALTY 10.0 /* below the worst score */

static int compare_tokens(const void *a, const void *b, void *tokens)
{
    const token *x = &((const token *)tokens)[*(const int32_t *)a], *y = &((const token *)tokens)[*(const int32_t *)b];
    size_t shorter = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->bytes, y->bytes, shorter);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

sl_status sl_unigram_finish(sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    token_model *model = &tokenizer->model;
    SL_TRY(SL_NEW_ARRAY(model->sorted, tokenizer->vocab));
    model->least = DBL_MAX;
    for (int32_t id = 0; id < tokenizer->vocab; id++) {
        const token *entry = &tokenizer->tokens[id];
        if (!entry->bytes || entry->length == 0 || model->scores[id] == -DBL_MAX)
            continue;
        model->sorted[model->sorted_count++] = id;
        if (model->scores[id] < model->least)
            model->least = model->scores[id];
    }
    qsort_r(model->sorted, model->sorted_count, sizeof *model->sorted, compare_tokens, tokenizer->tokens);
    for (unsigned byte = 0, at = 0; byte < 256; byte++) {
        while (at < model->sorted_count && tokenizer->tokens[model->sorted[at]].bytes[0] < byte)
            at++;
        model->first[byte] = at;
    }
    model->first[256] = (uint32_t)model->sorted_count;
done:
    return status;
}

/* Of the sorted tokens [*low, *high), which are equal before byte `at`, those with this byte there. */
static void narrow(const sl_tokenizer *tokenizer, size_t at, unsigned char byte, size_t *low, size_t *high)
{
    size_t bounds[2];
    for (unsigned side = 0; side < 2; side++) {
        size_t from = *low, to = *high;
        while (from < to) {
            size_t middle = from + (to - from) / 2;
            if (tokenizer->tokens[tokenizer->model.sorted[middle]].bytes[at] < byte + side)
                from = middle + 1;
            else
                to = middle;
        }
        bounds[side] = from;
    }
    *low = bounds[0];
    *high = bounds[1];
}

static double add_scores(const token_model *model, double a, double b)
{
    return model->single ? (double)((float)a + (float)b) : a + b;
}

/* Offers a way to `end` by a token that begins at `at`. */
static void offer_way(text_encoder *encoder, size_t at, size_t end, double score)
{
    double sum = add_scores(&encoder->tokenizer->model, encoder->best[at], score);
    if (encoder->from[end] == UINT32_MAX || sum > encoder->best[end]) {
        encoder->from[end] = (uint32_t)at;
        encoder->best[end] = sum;
    }
}

/* All tokens that begin at a place; without one for its character, that is unknown. */
static void offer_tokens(text_encoder *encoder, const unsigned char *piece, size_t size, size_t at)
{
    const sl_tokenizer *tokenizer = encoder->tokenizer;
    const token_model *model = &tokenizer->model;
    size_t low = model->first[piece[at]], high = model->first[piece[at] + 1u], length = 1;
    size_t character = sl_utf8_length(piece + at, size - at);
    bool has_character = false;
    while (low < high) {
        const token *entry = &tokenizer->tokens[model->sorted[low]];
        if (entry->length == length) {
            offer_way(encoder, at, at + length, model->scores[model->sorted[low]]);
            has_character |= length == character;
            low++;
        }
        if (at + length == size)
            break;
        narrow(tokenizer, length, piece[at + length], &low, &high);
        length++;
    }
    if (!has_character)
        offer_way(encoder, at, at + character, model->least - UNKNOWN_PENALTY);
}

/* The ids of the token [at, at + size), or of its bytes, or the unknown token. */
static sl_status add_way(const sl_tokenizer *tokenizer, const unsigned char *text, size_t size, bool *after_unknown,
                         id_list *list)
{
    sl_status status = SL_OK;
    const token_model *model = &tokenizer->model;
    int32_t id = sl_tokenizer_find(tokenizer, text, size);
    bool bytes = id == NO_TOKEN && model->byte_fallback;
    for (size_t i = 0; i < size && bytes; i++)
        bytes = model->byte_ids[text[i]] != NO_TOKEN;
    for (size_t i = 0; i < size && bytes; i++)
        SL_TRY(sl_id_list_add(list, model->byte_ids[text[i]]));
    if (id == NO_TOKEN && !bytes && model->unknown == NO_TOKEN)
        return sl_fail(SL_ERR_FORMAT, "%s has no token for '%.*s'", tokenizer->path, size < 60 ? (int)size : 60,
                       (const char *)text);
    if (id != NO_TOKEN)
        SL_TRY(sl_id_list_add(list, id));
    else if (!bytes && !*after_unknown)
        SL_TRY(sl_id_list_add(list, model->unknown));
    *after_unknown = id == NO_TOKEN && !bytes;
done:
    return status;
}

sl_status sl_unigram_add_piece(text_encoder *encoder, const unsigned char *piece, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    bool after_unknown = false;
    if (size >= UINT32_MAX)
        return sl_fail(SL_ERR_UNSUPPORTED, "a piece of %zu bytes without a break is too long", size);
    SL_TRY(SL_GROW(encoder->best, &encoder->best_capacity, size + 1));
    SL_TRY(SL_GROW(encoder->from, &encoder->from_capacity, size + 1));
    for (size_t i = 0; i <= size; i++)
        encoder->from[i] = UINT32_MAX;
    encoder->best[0] = 0;
    for (size_t at = 0; at < size; at += sl_utf8_length(piece + at, size - at)) {
        if (at == 0 || encoder->from[at] != UINT32_MAX)
            offer_tokens(encoder, piece, size, at);
    }
    uint32_t after = (uint32_t)size; /* turns the way around: from[i] becomes the end of the token that begins at i */
    for (uint32_t at = encoder->from[size];;) {
        uint32_t before = encoder->from[at];
        encoder->from[at] = after;
        after = at;
        if (at == 0)
            break;
        at = before;
    }
    for (size_t at = 0; at < size; at = encoder->from[at])
        SL_TRY(add_way(encoder->tokenizer, piece + at, encoder->from[at] - at, &after_unknown, list));
done:
    return status;
}
