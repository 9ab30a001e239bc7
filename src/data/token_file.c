/* One file of tokens: raw uint16 (nanoGPT), llm.c's two headers, numpy's arrays, and text, as bytes or encoded. */
#include "data/token_file.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

const token_form sl_token_forms[TOKEN_FORM_COUNT] = {
    [SL_TOKENS_AUTO] = { .name = "auto" },
    [SL_TOKENS_NANOGPT] = { .name = "nanogpt", .type = TOKEN_U16 },
    [SL_TOKENS_LLMC] = { .name = "llmc", .type = TOKEN_U16, .magic = 20240520, .version = 1 },
    [SL_TOKENS_LLMC_U32] = { .name = "llmc-u32", .type = TOKEN_U32, .magic = 20240801, .version = 7 },
    [SL_TOKENS_BYTES] = { .name = "bytes", .type = TOKEN_U8 },
    [SL_TOKENS_TEXT] = { .name = "text", .type = TOKEN_I32 },
    [SL_TOKENS_NPY] = { .name = "npy" },
};

static const struct {
    int width;
    const char *name;
} types[] = { [TOKEN_U8] = { 1, "uint8" },
              [TOKEN_U16] = { 2, "uint16" },
              [TOKEN_U32] = { 4, "uint32" },
              [TOKEN_I32] = { 4, "int32" },
              [TOKEN_I64] = { 8, "int64" } };

int sl_token_width(token_type type)
{
    return types[type].width;
}

const char *sl_token_type_name(token_type type)
{
    return types[type].name;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static int32_t word_at(const unsigned char *data, int index)
{
    int32_t word;
    memcpy(&word, data + 4 * (size_t)index, sizeof word);
    return word;
}

static sl_token_format detect(uint64_t size, const unsigned char *header)
{
    if (sl_npy_detect(header, size < TOKEN_HEADER_BYTES ? (size_t)size : TOKEN_HEADER_BYTES))
        return SL_TOKENS_NPY;
    for (int i = 0; i < TOKEN_FORM_COUNT; i++) {
        if (sl_token_forms[i].magic && size >= TOKEN_HEADER_BYTES && word_at(header, 0) == sl_token_forms[i].magic)
            return (sl_token_format)i;
    }
    return SL_TOKENS_NANOGPT;
}

/* Checks llm.c's header against the format and the size of the file. */
static sl_status check_header(const token_file *file, const unsigned char *data)
{
    const token_form *form = &sl_token_forms[file->format];
    int width = sl_token_width(form->type);
    if (file->file.size < TOKEN_HEADER_BYTES)
        return sl_fail(SL_ERR_FORMAT, "%s: %" PRIu64 " bytes are too few for a header of %d", file->path,
                       file->file.size, TOKEN_HEADER_BYTES);
    if (word_at(data, 0) != form->magic)
        return sl_fail(SL_ERR_FORMAT, "%s: the header begins with %" PRId32 ", a file in the format %s with %" PRId32,
                       file->path, word_at(data, 0), form->name, form->magic);
    if (word_at(data, 1) != form->version)
        return sl_fail(SL_ERR_FORMAT, "%s: version %" PRId32 " of the format %s; version %" PRId32 " can be read",
                       file->path, word_at(data, 1), form->name, form->version);
    int64_t count = word_at(data, 2);
    if (count < 0 || TOKEN_HEADER_BYTES + (uint64_t)count * (uint64_t)width != file->file.size)
        return sl_fail(SL_ERR_FORMAT,
                       "%s: the header says %" PRId64 " tokens of %d bytes, the file has %" PRIu64 " bytes for them",
                       file->path, count, width, file->file.size - TOKEN_HEADER_BYTES);
    return SL_OK;
}

static sl_status find_tokens(token_file *file, sl_token_format format)
{
    sl_status status = SL_OK;
    unsigned char header[TOKEN_HEADER_BYTES] = { 0 };
    uint64_t size = file->file.size;

    SL_TRY(sl_file_read_at(&file->file, header, size < sizeof header ? (size_t)size : sizeof header, 0));
    file->format = format == SL_TOKENS_AUTO ? detect(size, header) : format;
    file->type = sl_token_forms[file->format].type;
    if (file->format == SL_TOKENS_NPY) {
        SL_TRY(sl_npy_read_header(&file->file, &file->type, &file->first, &file->count));
    } else {
        if (sl_token_forms[file->format].magic) {
            SL_TRY(check_header(file, header));
            file->first = TOKEN_HEADER_BYTES;
        }
        uint64_t width = (uint64_t)sl_token_width(file->type);
        if (size % width != 0)
            return sl_fail(SL_ERR_FORMAT, "%s: %" PRIu64 " bytes are no whole number of %" PRIu64 "-byte tokens",
                           file->path, size, width);
        file->count = (int64_t)((size - file->first) / width);
    }
    if (file->count == 0)
        return sl_fail(SL_ERR_FORMAT, "%s has no tokens", file->path);
done:
    return status;
}

sl_status sl_token_file_open(const char *path, sl_token_format format, bool reopened, token_file *out)
{
    sl_status status = SL_OK;
    token_file file = { .file = { .fd = -1 }, .reopened = reopened };
    SL_TRY(sl_strdup(path, &file.path));
    SL_TRY(sl_file_open(path, &file.file));
    SL_TRY(find_tokens(&file, format));
    if (reopened) {
        const sl_file_reader seen = file.file;
        sl_file_close(&file.file);
        file.file.size = seen.size;
        file.file.device = seen.device;
        file.file.inode = seen.inode;
    }
    *out = file;
    file = (token_file){ .file = { .fd = -1 } };
done:
    sl_token_file_close(&file);
    return status;
}

sl_status sl_token_file_encode(const char *path, const sl_tokenizer *tokenizer, token_file *out)
{
    sl_status status = SL_OK;
    token_file file = { .file = { .fd = -1 }, .format = SL_TOKENS_TEXT, .type = TOKEN_I32 };
    sl_file_bytes text = { .data = NULL };
    sl_encode_options options = { .threads = (int)sysconf(_SC_NPROCESSORS_ONLN) };

    SL_TRY(sl_strdup(path, &file.path));
    SL_TRY(sl_file_read(path, &text));
    if (text.size > 0)
        status = sl_tokenizer_encode(tokenizer, text.data, text.size, &options, &file.encoded, &file.count);
    if (status != SL_OK)
        SL_TRY(sl_fail_context(status, "encode %s", path));
    if (file.count == 0)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s has no tokens: it is empty", path));
    *out = file;
    file = (token_file){ .file = { .fd = -1 } };
done:
    sl_file_bytes_free(&text);
    sl_token_file_close(&file);
    return status;
}

void sl_token_file_close(token_file *file)
{
    sl_file_close(&file->file);
    sl_free(file->encoded);
    sl_free(file->path);
}

/* ---- Reading --------------------------------------------------------------------------------- */

static sl_status read_bytes(const token_file *file, void *out, size_t bytes, uint64_t offset)
{
    sl_status status = SL_OK;
    sl_file_reader again = { .fd = -1 };
    if (!file->reopened)
        return sl_file_read_at(&file->file, out, bytes, offset);
    SL_TRY(sl_file_open(file->path, &again));
    if (again.size != file->file.size || again.device != file->file.device || again.inode != file->file.inode)
        SL_TRY(sl_fail(SL_ERR_IO,
                       "read %s: it is not the file that it was: it had %" PRIu64 " bytes, now it has %" PRIu64,
                       file->path, file->file.size, again.size));
    SL_TRY(sl_file_read_at(&again, out, bytes, offset));
done:
    sl_file_close(&again);
    return status;
}

typedef union token_block {
    uint8_t u8[TOKEN_BLOCK];
    uint16_t u16[TOKEN_BLOCK];
    uint32_t u32[TOKEN_BLOCK];
    int64_t i64[TOKEN_BLOCK];
} token_block;

static sl_status read_block(const token_file *file, int64_t first, int64_t count, token_block *out)
{
    uint64_t width = (uint64_t)sl_token_width(file->type);
    return read_bytes(file, out, (size_t)count * width, file->first + (uint64_t)first * width);
}

sl_status sl_token_file_block(const token_file *file, int64_t first, int64_t count, int32_t *out)
{
    if (file->encoded) {
        memcpy(out, file->encoded + first, (size_t)count * sizeof *out);
        return SL_OK;
    }
    token_block block;
    sl_status status = read_block(file, first, count, &block);
    if (status != SL_OK)
        return status;
    switch (file->type) {
    case TOKEN_U8:
        for (int64_t i = 0; i < count; i++)
            out[i] = block.u8[i];
        break;
    case TOKEN_U16:
        for (int64_t i = 0; i < count; i++)
            out[i] = block.u16[i];
        break;
    case TOKEN_U32:
    case TOKEN_I32:
        memcpy(out, block.u32, (size_t)count * sizeof *out);
        break;
    case TOKEN_I64:
        for (int64_t i = 0; i < count; i++)
            out[i] = block.i64[i] >= 0 && block.i64[i] < UINT32_MAX ? (int32_t)(uint32_t)block.i64[i] : -1;
        break;
    }
    return SL_OK;
}

sl_status sl_token_file_fail(const token_file *file, int64_t index, int64_t vocab)
{
    int64_t token = 0, offset = (int64_t)file->first + index * sl_token_width(file->type);
    token_block block;
    if (file->encoded) {
        token = file->encoded[index];
    } else {
        sl_status status = read_block(file, index, 1, &block);
        if (status != SL_OK)
            return status;
        token = file->type == TOKEN_U8    ? block.u8[0]
                : file->type == TOKEN_U16 ? block.u16[0]
                : file->type == TOKEN_U32 ? block.u32[0]
                : file->type == TOKEN_I32 ? (int32_t)block.u32[0]
                                          : block.i64[0];
    }
    return sl_fail(SL_ERR_FORMAT,
                   "%s: token %" PRId64 " (byte offset %" PRId64 ") is %" PRId64 ", %s the vocabulary of %" PRId64,
                   file->path, index, offset, token, token < 0 ? "not in" : "past", vocab);
}

/* ---- Identity -------------------------------------------------------------------------------- */

enum { PIECE = 1 << 16 };

sl_status sl_token_file_hash(const token_file *file, uint64_t most_bytes, uint64_t *out)
{
    sl_status status = SL_OK;
    if (file->encoded) {
        *out = XXH3_64bits(file->encoded, (size_t)file->count * sizeof *file->encoded);
        return SL_OK;
    }
    uint64_t size = file->file.size, pieces = (size + PIECE - 1) / PIECE, most = most_bytes / PIECE;
    uint64_t taken = pieces < most ? pieces : most;
    unsigned char *piece = NULL;
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_64bits_reset(state) != XXH_OK)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "%s: no memory for its hash", file->path));
    SL_TRY(SL_NEW_ARRAY(piece, PIECE));
    XXH3_64bits_update(state, &size, sizeof size);
    for (uint64_t i = 0; i < taken; i++) {
        uint64_t at =
            taken == pieces ? i * PIECE : (uint64_t)((double)(pieces - 1) * (double)i / (double)(taken - 1)) * PIECE;
        size_t bytes = size - at < PIECE ? (size_t)(size - at) : PIECE;
        SL_TRY(read_bytes(file, piece, bytes, at));
        XXH3_64bits_update(state, piece, bytes);
    }
    *out = XXH3_64bits_digest(state);
done:
    sl_free(piece);
    XXH3_freeState(state);
    return status;
}
