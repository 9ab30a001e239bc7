/* From a piece of text to ids: byte-pair encoding, WordPiece and whole words. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>
#include <xxhash.h>

sl_status sl_id_list_add(id_list *list, int32_t id)
{
    sl_status status = SL_GROW(list->ids, &list->capacity, list->count + 1);
    if (status == SL_OK)
        list->ids[list->count++] = id;
    return status;
}

int32_t sl_tokenizer_find(const sl_tokenizer *tokenizer, const void *bytes, size_t length)
{
    size_t slots = tokenizer->map_slots;
    for (size_t at = XXH3_64bits(bytes, length) & (slots - 1);; at = (at + 1) & (slots - 1)) {
        int32_t id = tokenizer->map[at];
        if (id == NO_TOKEN)
            return NO_TOKEN;
        const token *entry = &tokenizer->tokens[id];
        if (entry->length == length && memcmp(entry->bytes, bytes, length) == 0)
            return id;
    }
}

sl_status sl_tokenizer_add_byte(const sl_tokenizer *tokenizer, unsigned char byte, id_list *list)
{
    const token_model *model = &tokenizer->model;
    int32_t id = model->byte_level || model->byte_fallback ? model->byte_ids[byte] : NO_TOKEN;
    if (id == NO_TOKEN)
        id = model->unknown;
    if (id == NO_TOKEN)
        return sl_fail(SL_ERR_FORMAT, "%s has no token for the byte 0x%02x", tokenizer->path, byte);
    return sl_id_list_add(list, id);
}

/* ---- Byte-pair encoding ---------------------------------------------------------------------- */

static sl_status spell_bytes(const sl_tokenizer *tokenizer, const unsigned char *piece, size_t size, id_list *out)
{
    sl_status status = SL_OK;
    SL_TRY(SL_GROW(out->ids, &out->capacity, size));
    for (size_t i = 0; i < size; i++) {
        out->ids[i] = tokenizer->model.byte_ids[piece[i]];
        if (out->ids[i] == NO_TOKEN)
            out->ids[i] = tokenizer->model.unknown;
        if (out->ids[i] == NO_TOKEN)
            return sl_fail(SL_ERR_FORMAT, "%s has no token for the byte 0x%02x", tokenizer->path, piece[i]);
    }
    out->count = size;
done:
    return status;
}

/* The token of a character in its place; *is_plain: it has neither prefix nor suffix. */
static sl_status find_character(text_encoder *encoder, const unsigned char *text, size_t size, bool begins, bool ends,
                                int32_t *out)
{
    sl_status status = SL_OK;
    const token_model *model = &encoder->tokenizer->model;
    byte_list *spelled = &encoder->spelled;
    const char *prefix = begins ? "" : model->prefix, *suffix = ends ? model->suffix : "";
    if (!*prefix && !*suffix) {
        *out = sl_tokenizer_find(encoder->tokenizer, text, size);
        return SL_OK;
    }
    spelled->count = 0;
    SL_TRY(sl_byte_list_add(spelled, prefix, strlen(prefix)));
    SL_TRY(sl_byte_list_add(spelled, text, size));
    SL_TRY(sl_byte_list_add(spelled, suffix, strlen(suffix)));
    *out = sl_tokenizer_find(encoder->tokenizer, spelled->data, spelled->count);
done:
    return status;
}

/* The tokens of a character's bytes, if each has one. */
static sl_status fall_back(const token_model *model, const unsigned char *text, size_t size, id_list *out, bool *done)
{
    sl_status status = SL_OK;
    *done = model->byte_fallback;
    for (size_t i = 0; i < size && *done; i++)
        *done = model->byte_ids[text[i]] != NO_TOKEN;
    for (size_t i = 0; i < size && *done; i++)
        SL_TRY(sl_id_list_add(out, model->byte_ids[text[i]]));
done:
    return status;
}

static sl_status spell_characters(text_encoder *encoder, const unsigned char *piece, size_t size, id_list *out)
{
    sl_status status = SL_OK;
    const token_model *model = &encoder->tokenizer->model;
    bool after_unknown = false, done = false;
    out->count = 0;
    for (size_t at = 0, length; at < size; at += length) {
        int32_t id = NO_TOKEN;
        length = sl_utf8_length(piece + at, size - at);
        SL_TRY(find_character(encoder, piece + at, length, at == 0, at + length == size, &id));
        bool unknown = id == NO_TOKEN;
        if (unknown) {
            SL_TRY(fall_back(model, piece + at, length, out, &done));
            if (done)
                continue;
            if (model->unknown == NO_TOKEN)
                return sl_fail(SL_ERR_FORMAT, "%s has no token for '%.*s'", encoder->tokenizer->path, (int)length,
                               (const char *)piece + at);
            id = model->unknown;
        }
        if (!unknown || !after_unknown || !model->fuse_unknown)
            SL_TRY(sl_id_list_add(out, id));
        after_unknown = unknown;
    }
done:
    return status;
}

static sl_status add_bpe(text_encoder *encoder, const unsigned char *piece, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    const token_model *model = &encoder->tokenizer->model;
    id_list *found = &encoder->found;
    size_t merged = 0;
    if (model->whole_pieces) {
        int32_t whole = sl_tokenizer_find(encoder->tokenizer, piece, size);
        if (whole != NO_TOKEN)
            return sl_id_list_add(list, whole);
    }
    if (model->byte_level)
        SL_TRY(spell_bytes(encoder->tokenizer, piece, size, found));
    else
        SL_TRY(spell_characters(encoder, piece, size, found));
    SL_TRY(sl_bpe_merge(model->merges, encoder->work, found->ids, found->count, &merged));
    SL_TRY(SL_GROW(list->ids, &list->capacity, list->count + merged));
    if (merged > 0)
        memcpy(list->ids + list->count, found->ids, merged * sizeof *found->ids);
    list->count += merged;
done:
    return status;
}

/* ---- WordPiece and words --------------------------------------------------------------------- */

static size_t count_characters(const unsigned char *text, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += (text[i] & 0xc0) != 0x80;
    return count;
}

static sl_status add_unknown(const sl_tokenizer *tokenizer, const unsigned char *piece, size_t size, id_list *list)
{
    if (tokenizer->model.unknown == NO_TOKEN)
        return sl_fail(SL_ERR_FORMAT, "%s has no token for '%.*s'", tokenizer->path, size < 60 ? (int)size : 60,
                       (const char *)piece);
    return sl_id_list_add(list, tokenizer->model.unknown);
}

/* The longest token, again and again; if one is missing, the whole word is unknown. */
static sl_status add_wordpiece(text_encoder *encoder, const unsigned char *piece, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    const token_model *model = &encoder->tokenizer->model;
    byte_list *spelled = &encoder->spelled;
    size_t kept = list->count, prefix = strlen(model->prefix);
    if (count_characters(piece, size) > (size_t)model->word_limit)
        return add_unknown(encoder->tokenizer, piece, size, list);
    for (size_t at = 0; at < size;) {
        int32_t id = NO_TOKEN;
        size_t end = size;
        for (; end > at && id == NO_TOKEN; end -= id == NO_TOKEN) {
            if (end < size && (piece[end] & 0xc0) == 0x80)
                continue; /* inside a character */
            spelled->count = 0;
            SL_TRY(sl_byte_list_add(spelled, model->prefix, at > 0 ? prefix : 0));
            SL_TRY(sl_byte_list_add(spelled, piece + at, end - at));
            id = sl_tokenizer_find(encoder->tokenizer, spelled->data, spelled->count);
        }
        if (id == NO_TOKEN) {
            list->count = kept;
            return add_unknown(encoder->tokenizer, piece, size, list);
        }
        SL_TRY(sl_id_list_add(list, id));
        at = end;
    }
done:
    return status;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static sl_status add_new_piece(text_encoder *encoder, const unsigned char *piece, size_t size, id_list *list)
{
    int32_t id;
    switch (encoder->tokenizer->model.kind) {
    case MODEL_BPE:
        return add_bpe(encoder, piece, size, list);
    case MODEL_WORDPIECE:
        return add_wordpiece(encoder, piece, size, list);
    case MODEL_UNIGRAM:
        return sl_unigram_add_piece(encoder, piece, size, list);
    case MODEL_WORDLEVEL:
        id = sl_tokenizer_find(encoder->tokenizer, piece, size);
        return id == NO_TOKEN ? add_unknown(encoder->tokenizer, piece, size, list) : sl_id_list_add(list, id);
    }
    return SL_OK;
}

/* Words come again: what a short piece became is remembered. */
sl_status sl_tokenizer_add_piece(text_encoder *encoder, const unsigned char *piece, size_t size, id_list *list)
{
    sl_status status = SL_OK;
    if (size > sizeof encoder->known->bytes)
        return add_new_piece(encoder, piece, size, list);
    known_piece *known = &encoder->known[XXH3_64bits(piece, size) & (KNOWN_PIECES - 1)];
    if (known->length == size && memcmp(known->bytes, piece, size) == 0) {
        SL_TRY(SL_GROW(list->ids, &list->capacity, list->count + known->count));
        memcpy(list->ids + list->count, known->ids, known->count * sizeof *known->ids);
        list->count += known->count;
        return SL_OK;
    }
    size_t before = list->count;
    SL_TRY(add_new_piece(encoder, piece, size, list));
    size_t count = list->count - before;
    if (count <= sizeof known->ids / sizeof *known->ids) {
        known->length = (uint8_t)size;
        known->count = (uint8_t)count;
        memcpy(known->bytes, piece, size);
        memcpy(known->ids, list->ids + before, count * sizeof *known->ids);
    }
done:
    return status;
}
