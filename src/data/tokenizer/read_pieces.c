/* SentencePiece's .model: a message in the wire format of protocol buffers. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/file.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

typedef enum piece_type {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
} piece_type;

enum { PIECES_UNIGRAM = 1, PIECES_BPE, PIECES_WORD, PIECES_CHAR };

/* A part of the file. */
typedef struct wire {
    const unsigned char *at, *end;
    const char *path;
} wire;

/* One field of a message: a number, or bytes. */
typedef struct wire_field {
    uint32_t number;
    uint64_t value;
    wire bytes;
} wire_field;

static sl_status cut_off(const wire *from)
{
    return sl_fail(SL_ERR_FORMAT, "%s is no SentencePiece model, or it is cut off", from->path);
}

static sl_status read_varint(wire *from, uint64_t *out)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && from->at < from->end; shift += 7) {
        unsigned char byte = *from->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 128) {
            *out = value;
            return SL_OK;
        }
    }
    return cut_off(from);
}

static sl_status read_fixed(wire *from, size_t bytes, uint64_t *out)
{
    if ((size_t)(from->end - from->at) < bytes)
        return cut_off(from);
    *out = 0;
    memcpy(out, from->at, bytes); /* little-endian */
    from->at += bytes;
    return SL_OK;
}

static sl_status read_field(wire *from, wire_field *out)
{
    sl_status status = SL_OK;
    uint64_t key = 0, length = 0;
    *out = (wire_field){ 0 };
    SL_TRY(read_varint(from, &key));
    out->number = (uint32_t)(key >> 3);
    switch (key & 7) {
    case 0:
        return read_varint(from, &out->value);
    case 1:
        return read_fixed(from, 8, &out->value);
    case 5:
        return read_fixed(from, 4, &out->value);
    case 2:
        SL_TRY(read_varint(from, &length));
        if (length > (uint64_t)(from->end - from->at))
            return cut_off(from);
        out->bytes = (wire){ from->at, from->at + length, from->path };
        from->at += length;
        return SL_OK;
    default:
        return cut_off(from);
    }
done:
    return status;
}

typedef struct piece {
    const unsigned char *text;
    size_t length;
    float score;
    piece_type type;
} piece;

typedef struct piece_file {
    piece *pieces;
    size_t count, capacity;
    int64_t model;
    bool byte_fallback, suffix;
    normal_step normal;
} piece_file;

static sl_status read_piece(wire from, piece *out)
{
    sl_status status = SL_OK;
    *out = (piece){ .type = PIECE_NORMAL };
    while (from.at < from.end) {
        wire_field field;
        SL_TRY(read_field(&from, &field));
        if (field.number == 1) {
            out->text = field.bytes.at;
            out->length = (size_t)(field.bytes.end - field.bytes.at);
        } else if (field.number == 2) {
            uint32_t bits = (uint32_t)field.value;
            memcpy(&out->score, &bits, sizeof bits);
        } else if (field.number == 3) {
            out->type = (piece_type)field.value;
        }
    }
    if (!out->text || out->length == 0)
        return cut_off(&from);
done:
    return status;
}

static sl_status read_trainer(wire from, piece_file *out)
{
    sl_status status = SL_OK;
    while (from.at < from.end) {
        wire_field field;
        SL_TRY(read_field(&from, &field));
        if (field.number == 3)
            out->model = (int64_t)field.value;
        else if (field.number == 35)
            out->byte_fallback = field.value != 0;
        else if (field.number == 24)
            out->suffix = field.value != 0;
    }
done:
    return status;
}

static sl_status read_normalizer(wire from, piece_file *out)
{
    sl_status status = SL_OK;
    while (from.at < from.end) {
        wire_field field;
        SL_TRY(read_field(&from, &field));
        size_t size = (size_t)(field.bytes.end - field.bytes.at);
        if (field.number == 2 && size > 0 && !out->normal.map)
            SL_TRY(sl_charsmap_create(from.path, field.bytes.at, size, &out->normal.map));
        else if (field.number == 3)
            out->normal.blank_first = field.value != 0;
        else if (field.number == 4)
            out->normal.one_blank = field.value != 0;
        else if (field.number == 5)
            out->normal.escape = field.value != 0;
    }
done:
    return status;
}

static sl_status read_file(wire from, piece_file *out)
{
    sl_status status = SL_OK;
    out->model = PIECES_UNIGRAM;
    out->normal = (normal_step){ .kind = NORMAL_PIECES, .blank_first = true, .one_blank = true, .escape = true };
    while (from.at < from.end) {
        wire_field field;
        SL_TRY(read_field(&from, &field));
        if (field.number == 1) {
            SL_TRY(SL_GROW(out->pieces, &out->capacity, out->count + 1));
            SL_TRY(read_piece(field.bytes, &out->pieces[out->count]));
            out->count++;
        } else if (field.number == 2) {
            SL_TRY(read_trainer(field.bytes, out));
        } else if (field.number == 3) {
            SL_TRY(read_normalizer(field.bytes, out));
        }
    }
    if (out->count == 0)
        return cut_off(&from);
done:
    return status;
}

/* ---- The tokenizer --------------------------------------------------------------------------- */

static bool is_text(const piece *what)
{
    return what->type == PIECE_NORMAL || what->type == PIECE_USER_DEFINED;
}

static sl_status add_pieces(sl_tokenizer *tokenizer, const piece_file *file)
{
    sl_status status = SL_OK;
    token_model *model = &tokenizer->model;
    SL_TRY(SL_NEW_ARRAY(model->scores, file->count + 1));
    for (size_t id = 0; id < file->count; id++) {
        const piece *each = &file->pieces[id];
        unsigned char *text = NULL; /* with a NUL after it, which is not the first if the piece has one */
        SL_TRY(SL_ARENA_ARRAY(tokenizer->arena, text, each->length + 1));
        memcpy(text, each->text, each->length);
        SL_TRY(sl_tokenizer_add_token(tokenizer, text, each->length, (int64_t)id));
        model->scores[id] = each->type == PIECE_NORMAL ? (double)each->score : -DBL_MAX;
        if (each->type == PIECE_UNKNOWN)
            model->unknown = (int32_t)id;
        if (each->type == PIECE_CONTROL || each->type == PIECE_USER_DEFINED)
            SL_TRY(sl_tokenizer_add_added(tokenizer, &(added_token){ .bytes = text,
                                                                     .length = (uint32_t)each->length,
                                                                     .id = (int32_t)id,
                                                                     .special = each->type == PIECE_CONTROL,
                                                                     .normalized = each->type != PIECE_CONTROL }));
    }
done:
    return status;
}

static int compare_scores(const void *a, const void *b, void *user)
{
    const piece *pieces = user, *x = &pieces[*(const int32_t *)a], *y = &pieces[*(const int32_t *)b];
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static int compare_texts(const void *a, const void *b, void *user)
{
    const piece *pieces = user, *x = &pieces[*(const int32_t *)a], *y = &pieces[*(const int32_t *)b];
    size_t shorter = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->text, y->text, shorter);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* The piece with this text, or NO_TOKEN. */
static int32_t find_piece(const piece_file *file, const int32_t *by_text, const unsigned char *text, size_t length)
{
    for (size_t low = 0, high = file->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        const piece *each = &file->pieces[by_text[middle]];
        size_t shorter = each->length < length ? each->length : length;
        int order = memcmp(text, each->text, shorter);
        if (order == 0)
            order = (length > each->length) - (length < each->length);
        if (order == 0)
            return is_text(each) ? by_text[middle] : NO_TOKEN;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NO_TOKEN;
}

/* Any two pieces that make a third one merge, the best third first. */
static sl_status add_merges(sl_tokenizer *tokenizer, const piece_file *file)
{
    sl_status status = SL_OK;
    int32_t *by_score = NULL, *by_text = NULL, rank = 0;
    SL_TRY(SL_NEW_ARRAY(by_score, file->count));
    SL_TRY(SL_NEW_ARRAY(by_text, file->count));
    for (size_t i = 0; i < file->count; i++)
        by_score[i] = by_text[i] = (int32_t)i;
    qsort_r(by_score, file->count, sizeof *by_score, compare_scores, file->pieces);
    qsort_r(by_text, file->count, sizeof *by_text, compare_texts, file->pieces);
    for (size_t i = 0; i < file->count; i++) {
        const piece *whole = &file->pieces[by_score[i]];
        if (!is_text(whole))
            continue;
        if (i > 0 && file->pieces[by_score[i - 1]].score != whole->score)
            rank++; /* equal scores: the leftmost pair first */
        for (size_t cut = 1; cut < whole->length; cut++) {
            if ((whole->text[cut] & 0xc0) == 0x80)
                continue;
            int32_t left = find_piece(file, by_text, whole->text, cut);
            int32_t right = find_piece(file, by_text, whole->text + cut, whole->length - cut);
            if (left != NO_TOKEN && right != NO_TOKEN)
                SL_TRY(sl_bpe_add(tokenizer->model.merges, left, right, rank, by_score[i]));
        }
    }
done:
    sl_free(by_score);
    sl_free(by_text);
    return status;
}

static sl_status add_steps(sl_tokenizer *tokenizer, const piece_file *file)
{
    sl_status status = SL_OK;
    const bool strip = file->normal.blank_first;
    decode_step *steps = tokenizer->decode;
    steps[0] = (decode_step){ .kind = DECODE_FALLBACK };
    steps[1] = (decode_step){ .kind = DECODE_REPLACE, .second = " " };
    SL_TRY(sl_pattern_compile(tokenizer->path, "\xe2\x96\x81", &steps[1].pattern));
    steps[2] = (decode_step){ .kind = DECODE_FUSE };
    steps[3] = (decode_step){ .kind = DECODE_STRIP, .text = " ", .start = file->normal.one_blank ? INT64_MAX : 1 };
    tokenizer->decode_count = strip ? 4 : 3;
done:
    return status;
}

static sl_status build(sl_tokenizer *tokenizer, const char *path, piece_file *file)
{
    sl_status status = SL_OK;
    token_model *model = &tokenizer->model;
    tokenizer->normal[tokenizer->normal_count++] = file->normal; /* its table is the tokenizer's now */
    if (file->suffix || (file->model != PIECES_UNIGRAM && file->model != PIECES_BPE))
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: only unigram and BPE models are known, with blanks before words", path);
    model->kind = file->model == PIECES_BPE ? MODEL_BPE : MODEL_UNIGRAM;
    model->byte_fallback = file->byte_fallback;
    model->fuse_unknown = true;
    model->single = true;
    SL_TRY(add_pieces(tokenizer, file));
    if (model->kind == MODEL_BPE)
        SL_TRY(add_merges(tokenizer, file));
    SL_TRY(add_steps(tokenizer, file));
    int32_t first = sl_tokenizer_special(tokenizer, "<s>");
    if (first != NO_TOKEN)
        SL_TRY(sl_id_list_add(&tokenizer->before, first));
done:
    return status;
}

sl_status sl_tokenizer_read_pieces(sl_tokenizer *tokenizer, const char *path)
{
    sl_status status = SL_OK;
    sl_file_bytes bytes = { 0 };
    piece_file file = { 0 };
    SL_TRY(sl_file_read(path, &bytes));
    if (bytes.size == 0)
        SL_TRY(cut_off(&(wire){ .path = path }));
    status = read_file((wire){ bytes.data, bytes.data + bytes.size, path }, &file);
    if (status != SL_OK)
        sl_charsmap_destroy(file.normal.map);
    else
        status = build(tokenizer, path, &file);
done:
    sl_free(file.pieces);
    sl_file_bytes_free(&bytes);
    return status;
}
