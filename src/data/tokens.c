/* Token files: raw uint16 (nanoGPT), llm.c's two headers, and plain text, as bytes or through a tokenizer. */
#include <sluice/data.h>

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    HEADER_WORDS = 256, /* int32 */
    HEADER_BYTES = HEADER_WORDS * 4,
    BLOCK = 1 << 14 /* tokens read at a time */
};

static const struct {
    const char *name;
    int width; /* bytes of a token */
    int32_t magic, version;
} formats[] = {
    [SL_TOKENS_AUTO] = { "auto", 0, 0, 0 },        [SL_TOKENS_NANOGPT] = { "nanogpt", 2, 0, 0 },
    [SL_TOKENS_LLMC] = { "llmc", 2, 20240520, 1 }, [SL_TOKENS_LLMC_U32] = { "llmc-u32", 4, 20240801, 7 },
    [SL_TOKENS_BYTES] = { "bytes", 1, 0, 0 },      [SL_TOKENS_TEXT] = { "text", 4, 0, 0 },
};
enum { FORMAT_COUNT = sizeof formats / sizeof *formats };

struct sl_tokens {
    char *path;
    sl_file_reader file; /* closed for TEXT */
    int32_t *encoded;    /* TEXT: the tokens */
    uint64_t first;      /* byte at which the first token begins */
    int64_t count;
    sl_token_format format;
};

const char *sl_token_format_name(sl_token_format format)
{
    return (unsigned)format < FORMAT_COUNT ? formats[format].name : "?";
}

sl_status sl_token_format_parse(const char *text, sl_token_format *out)
{
    for (int i = 0; i < SL_TOKENS_TEXT; i++) {
        if (strcmp(text, formats[i].name) == 0) {
            *out = (sl_token_format)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "unknown token format '%.40s'; there are nanogpt, llmc, llmc-u32 and bytes", text);
}

static int32_t word_at(const unsigned char *data, int index)
{
    int32_t word;
    memcpy(&word, data + 4 * (size_t)index, sizeof word);
    return word;
}

static sl_token_format detect(uint64_t size, const unsigned char *header)
{
    for (int i = 0; i < FORMAT_COUNT; i++) {
        if (formats[i].magic && size >= HEADER_BYTES && word_at(header, 0) == formats[i].magic)
            return (sl_token_format)i;
    }
    return SL_TOKENS_NANOGPT;
}

/* Checks llm.c's header against the format and the size of the file. */
static sl_status check_header(const sl_tokens *tokens, const unsigned char *data)
{
    int width = formats[tokens->format].width;
    if (tokens->file.size < HEADER_BYTES)
        return sl_fail(SL_ERR_FORMAT, "%s: %" PRIu64 " bytes are too few for a header of %d", tokens->path,
                       tokens->file.size, HEADER_BYTES);
    if (word_at(data, 0) != formats[tokens->format].magic)
        return sl_fail(SL_ERR_FORMAT, "%s: the header begins with %" PRId32 ", a file in the format %s with %" PRId32,
                       tokens->path, word_at(data, 0), formats[tokens->format].name, formats[tokens->format].magic);
    if (word_at(data, 1) != formats[tokens->format].version)
        return sl_fail(SL_ERR_FORMAT, "%s: version %" PRId32 " of the format %s; version %" PRId32 " can be read",
                       tokens->path, word_at(data, 1), formats[tokens->format].name, formats[tokens->format].version);
    int64_t count = word_at(data, 2);
    if (count < 0 || HEADER_BYTES + (uint64_t)count * (uint64_t)width != tokens->file.size)
        return sl_fail(SL_ERR_FORMAT,
                       "%s: the header says %" PRId64 " tokens of %d bytes, the file has %" PRIu64 " bytes for them",
                       tokens->path, count, width, tokens->file.size - HEADER_BYTES);
    return SL_OK;
}

static sl_status find_tokens(sl_tokens *tokens, sl_token_format format)
{
    sl_status status = SL_OK;
    unsigned char header[HEADER_BYTES] = { 0 };
    uint64_t size = tokens->file.size;

    SL_TRY(sl_file_read_at(&tokens->file, header, size < HEADER_BYTES ? (size_t)size : HEADER_BYTES, 0));
    tokens->format = format == SL_TOKENS_AUTO ? detect(size, header) : format;
    uint64_t width = (uint64_t)formats[tokens->format].width;
    if (formats[tokens->format].magic) {
        SL_TRY(check_header(tokens, header));
        tokens->first = HEADER_BYTES;
    }
    if (size % width != 0)
        return sl_fail(SL_ERR_FORMAT, "%s: %" PRIu64 " bytes are no whole number of %" PRIu64 "-byte tokens",
                       tokens->path, size, width);
    tokens->count = (int64_t)((size - tokens->first) / width);
    if (tokens->count == 0)
        return sl_fail(SL_ERR_FORMAT, "%s has no tokens", tokens->path);
done:
    return status;
}

sl_status sl_tokens_open(const char *path, sl_token_format format, sl_tokens **out)
{
    sl_status status = SL_OK;
    sl_tokens *tokens = NULL;

    if ((unsigned)format >= FORMAT_COUNT || format == SL_TOKENS_TEXT)
        return sl_fail(SL_ERR_ARGUMENT, "there is no token format %d for files", (int)format);
    SL_TRY(SL_NEW(tokens));
    tokens->file.fd = -1;
    SL_TRY(sl_strdup(path, &tokens->path));
    SL_TRY(sl_file_open(path, &tokens->file));
    SL_TRY(find_tokens(tokens, format));
    *out = tokens;
    tokens = NULL;
done:
    sl_tokens_close(tokens);
    return status;
}

sl_status sl_tokens_encode(const char *path, const sl_tokenizer *tokenizer, sl_tokens **out)
{
    sl_status status = SL_OK;
    sl_tokens *tokens = NULL;
    sl_file_bytes text = { .data = NULL };
    sl_encode_options options = { .threads = (int)sysconf(_SC_NPROCESSORS_ONLN) };

    SL_TRY(SL_NEW(tokens));
    tokens->file.fd = -1;
    SL_TRY(sl_strdup(path, &tokens->path));
    SL_TRY(sl_file_read(path, &text));
    tokens->format = SL_TOKENS_TEXT;
    if (text.size > 0)
        status = sl_tokenizer_encode(tokenizer, text.data, text.size, &options, &tokens->encoded, &tokens->count);
    if (status != SL_OK)
        SL_TRY(sl_fail_context(status, "encode %s", path));
    if (tokens->count == 0)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s has no tokens: it is empty", path));
    *out = tokens;
    tokens = NULL;
done:
    sl_file_bytes_free(&text);
    sl_tokens_close(tokens);
    return status;
}

void sl_tokens_close(sl_tokens *tokens)
{
    if (!tokens)
        return;
    sl_file_close(&tokens->file);
    sl_free(tokens->encoded);
    sl_free(tokens->path);
    sl_free(tokens);
}

int64_t sl_tokens_count(const sl_tokens *tokens)
{
    return tokens->count;
}

sl_token_format sl_tokens_format(const sl_tokens *tokens)
{
    return tokens->format;
}

const char *sl_tokens_path(const sl_tokens *tokens)
{
    return tokens->path;
}

/* Up to BLOCK tokens of a range that lies in the file. */
static sl_status read_block(const sl_tokens *tokens, int64_t first, int64_t count, int32_t *out)
{
    uint64_t width = (uint64_t)formats[tokens->format].width;
    if (tokens->encoded) {
        memcpy(out, tokens->encoded + first, (size_t)count * sizeof *out);
        return SL_OK;
    }
    union {
        uint8_t bytes[BLOCK];
        uint16_t halves[BLOCK];
        uint32_t words[BLOCK];
    } block;
    sl_status status =
        sl_file_read_at(&tokens->file, &block, (size_t)count * width, tokens->first + (uint64_t)first * width);
    if (status != SL_OK)
        return status;
    for (int64_t i = 0; width == 1 && i < count; i++)
        out[i] = block.bytes[i];
    for (int64_t i = 0; width == 2 && i < count; i++)
        out[i] = block.halves[i];
    for (int64_t i = 0; width == 4 && i < count; i++)
        out[i] = (int32_t)block.words[i];
    return SL_OK;
}

static sl_status check_range(const sl_tokens *tokens, int64_t first, int64_t count)
{
    if (first < 0 || count < 0 || count > tokens->count - first)
        return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " tokens; %" PRId64 " from token %" PRId64 " are not there",
                       tokens->path, tokens->count, count, first);
    return SL_OK;
}

/* Largest token of a block, as a number without sign. */
static uint32_t max_of(const int32_t *tokens, int64_t count)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++)
        most = (uint32_t)tokens[i] > most ? (uint32_t)tokens[i] : most;
    return most;
}

static sl_status fail_at(const sl_tokens *tokens, int64_t index, uint32_t token, int64_t vocab)
{
    int64_t offset = (int64_t)tokens->first + index * formats[tokens->format].width;
    return sl_fail(SL_ERR_FORMAT,
                   "%s: token %" PRId64 " (byte offset %" PRId64 ") is %" PRIu32 ", past the vocabulary of %" PRId64,
                   tokens->path, index, offset, token, vocab);
}

sl_status sl_tokens_check(const sl_tokens *tokens, int64_t first, int64_t count, int64_t vocab)
{
    int32_t block[BLOCK];
    sl_status status = check_range(tokens, first, count);
    for (int64_t done = 0, n; status == SL_OK && done < count; done += n) {
        n = count - done < BLOCK ? count - done : BLOCK;
        status = read_block(tokens, first + done, n, block);
        if (status != SL_OK || (int64_t)max_of(block, n) < vocab)
            continue;
        int64_t bad = 0;
        while ((int64_t)(uint32_t)block[bad] < vocab)
            bad++;
        return fail_at(tokens, first + done + bad, (uint32_t)block[bad], vocab);
    }
    return status;
}

sl_status sl_tokens_max(const sl_tokens *tokens, int64_t *out)
{
    int32_t block[BLOCK];
    sl_status status = SL_OK;
    uint32_t most = 0;
    for (int64_t done = 0, n; done < tokens->count; done += n) {
        n = tokens->count - done < BLOCK ? tokens->count - done : BLOCK;
        SL_TRY(read_block(tokens, done, n, block));
        most = max_of(block, n) > most ? max_of(block, n) : most;
    }
    *out = most;
done:
    return status;
}

sl_status sl_tokens_read(const sl_tokens *tokens, int64_t first, int64_t count, int32_t *out)
{
    sl_status status = check_range(tokens, first, count);
    for (int64_t done = 0, n; status == SL_OK && done < count; done += n) {
        n = count - done < BLOCK ? count - done : BLOCK;
        status = read_block(tokens, first + done, n, out + done);
    }
    return status;
}

/* ---- Identity -------------------------------------------------------------------------------- */

/* Up to so many bytes are hashed whole; of larger files as many, in pieces that lie evenly over the file. */
enum { HASHED = 1 << 30, PIECE = 1 << 16 };

sl_status sl_tokens_hash(const sl_tokens *tokens, uint64_t *out)
{
    sl_status status = SL_OK;
    if (tokens->encoded) {
        *out = XXH3_64bits(tokens->encoded, (size_t)tokens->count * sizeof *tokens->encoded);
        return SL_OK;
    }
    uint64_t size = tokens->file.size, pieces = (size + PIECE - 1) / PIECE, most = HASHED / PIECE;
    uint64_t taken = pieces < most ? pieces : most;
    unsigned char *piece = NULL;
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_64bits_reset(state) != XXH_OK)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "%s: no memory for its hash", tokens->path));
    SL_TRY(SL_NEW_ARRAY(piece, PIECE));
    XXH3_64bits_update(state, &size, sizeof size);
    for (uint64_t i = 0; i < taken; i++) {
        uint64_t at =
            taken == pieces ? i * PIECE : (uint64_t)((double)(pieces - 1) * (double)i / (double)(taken - 1)) * PIECE;
        size_t bytes = size - at < PIECE ? (size_t)(size - at) : PIECE;
        SL_TRY(sl_file_read_at(&tokens->file, piece, bytes, at));
        XXH3_64bits_update(state, piece, bytes);
    }
    *out = XXH3_64bits_digest(state);
done:
    sl_free(piece);
    XXH3_freeState(state);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

struct sl_token_writer {
    sl_token_format format;
    sl_file *file;
    char *path;
    int64_t count;
};

static sl_status check_holds(const sl_token_writer *writer, const int32_t *tokens, int64_t count)
{
    int64_t limit = formats[writer->format].width == 4 ? INT32_MAX : (1 << (8 * formats[writer->format].width)) - 1;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] > limit)
            return sl_fail(SL_ERR_ARGUMENT, "%s: token %" PRId64 " is %" PRId32 "; the format %s holds 0 to %" PRId64,
                           writer->path, writer->count + i, tokens[i], formats[writer->format].name, limit);
    }
    return SL_OK;
}

static void write_header(const sl_token_writer *writer)
{
    int32_t header[HEADER_WORDS] = { formats[writer->format].magic, formats[writer->format].version,
                                     (int32_t)writer->count };
    if (formats[writer->format].magic)
        fwrite(header, sizeof header, 1, sl_file_stream(writer->file)); /* an error shows in the commit */
}

sl_status sl_token_writer_create(const char *path, sl_token_format format, sl_token_writer **out)
{
    sl_status status = SL_OK;
    sl_token_writer *writer = NULL;

    if ((unsigned)format >= FORMAT_COUNT || format == SL_TOKENS_AUTO || format == SL_TOKENS_TEXT)
        return sl_fail(SL_ERR_ARGUMENT, "%s: no token format to write is given", path);
    SL_TRY(SL_NEW(writer));
    writer->format = format;
    SL_TRY(sl_strdup(path, &writer->path));
    SL_TRY(sl_file_create(path, &writer->file));
    write_header(writer);
    *out = writer;
    writer = NULL;
done:
    sl_token_writer_destroy(writer);
    return status;
}

sl_status sl_token_writer_add(sl_token_writer *writer, const int32_t *tokens, int64_t count)
{
    sl_status status = SL_OK;
    size_t width = (size_t)formats[writer->format].width;
    char block[BLOCK * sizeof *tokens];
    FILE *stream = sl_file_stream(writer->file);
    if (formats[writer->format].magic && count > INT32_MAX - writer->count)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: the format %s counts up to %" PRId32 " tokens", writer->path,
                       formats[writer->format].name, INT32_MAX);
    SL_TRY(check_holds(writer, tokens, count));
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < BLOCK ? count - done : BLOCK;
        for (int64_t i = 0; i < n; i++)
            memcpy(block + (size_t)i * width, &tokens[done + i], width); /* little-endian: the low bytes come first */
        fwrite(block, width, (size_t)n, stream);                         /* an error shows in the commit */
    }
    writer->count += count;
done:
    return status;
}

sl_status sl_token_writer_finish(sl_token_writer *writer)
{
    FILE *stream = sl_file_stream(writer->file);
    if (formats[writer->format].magic) {
        if (fseek(stream, 0, SEEK_SET) != 0)
            return sl_fail(SL_ERR_IO, "%s: its header has the number of tokens, and it cannot be written again: %s",
                           writer->path, strerror(errno));
        write_header(writer);
    }
    return sl_file_commit(writer->file);
}

void sl_token_writer_destroy(sl_token_writer *writer)
{
    if (!writer)
        return;
    sl_file_destroy(writer->file);
    sl_free(writer->path);
    sl_free(writer);
}

int64_t sl_token_writer_count(const sl_token_writer *writer)
{
    return writer->count;
}

sl_status sl_tokens_save(const char *path, sl_token_format format, const int32_t *tokens, int64_t count)
{
    sl_status status = SL_OK;
    sl_token_writer *writer = NULL;
    SL_TRY(sl_token_writer_create(path, format, &writer));
    SL_TRY(sl_token_writer_add(writer, tokens, count));
    SL_TRY(sl_token_writer_finish(writer));
done:
    sl_token_writer_destroy(writer);
    return status;
}
