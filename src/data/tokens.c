/* Token files: raw uint16 (nanoGPT), llm.c's two headers, and plain text, as bytes or through a tokenizer. */
#include <sluice/data.h>

#include "base/alloc.h"
#include "base/file.h"

#include <inttypes.h>
#include <string.h>

enum {
    HEADER_WORDS = 256, /* int32 */
    HEADER_BYTES = HEADER_WORDS * 4,
    CHECK_BLOCK = 1 << 16 /* tokens; an offender is searched for in one block only */
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
    sl_file_map map;
    int32_t *encoded;          /* TEXT: in place of the map */
    const unsigned char *data; /* first token */
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

static sl_token_format detect(const sl_file_map *map)
{
    for (int i = 0; i < FORMAT_COUNT; i++) {
        if (formats[i].magic && map->size >= HEADER_BYTES && word_at(map->data, 0) == formats[i].magic)
            return (sl_token_format)i;
    }
    return SL_TOKENS_NANOGPT;
}

/* Checks llm.c's header against the format and the size of the file. */
static sl_status check_header(const sl_tokens *tokens)
{
    const unsigned char *data = tokens->map.data;
    int width = formats[tokens->format].width;
    if (tokens->map.size < HEADER_BYTES)
        return sl_fail(SL_ERR_FORMAT, "%s: %zu bytes are too few for a header of %d", tokens->path, tokens->map.size,
                       HEADER_BYTES);
    if (word_at(data, 0) != formats[tokens->format].magic)
        return sl_fail(SL_ERR_FORMAT, "%s: the header begins with %" PRId32 ", a file in the format %s with %" PRId32,
                       tokens->path, word_at(data, 0), formats[tokens->format].name, formats[tokens->format].magic);
    if (word_at(data, 1) != formats[tokens->format].version)
        return sl_fail(SL_ERR_FORMAT, "%s: version %" PRId32 " of the format %s; version %" PRId32 " can be read",
                       tokens->path, word_at(data, 1), formats[tokens->format].name, formats[tokens->format].version);
    int64_t count = word_at(data, 2);
    if (count < 0 || HEADER_BYTES + (uint64_t)count * (uint64_t)width != tokens->map.size)
        return sl_fail(SL_ERR_FORMAT,
                       "%s: the header says %" PRId64 " tokens of %d bytes, the file has %zu bytes for them",
                       tokens->path, count, width, tokens->map.size - HEADER_BYTES);
    return SL_OK;
}

static sl_status find_tokens(sl_tokens *tokens)
{
    sl_status status = SL_OK;
    size_t skipped = 0, width = (size_t)formats[tokens->format].width;

    if (formats[tokens->format].magic) {
        SL_TRY(check_header(tokens));
        skipped = HEADER_BYTES;
    }
    if (tokens->map.size % width != 0)
        return sl_fail(SL_ERR_FORMAT, "%s: %zu bytes are no whole number of %zu-byte tokens", tokens->path,
                       tokens->map.size, width);
    tokens->count = (int64_t)((tokens->map.size - skipped) / width);
    if (tokens->count == 0)
        return sl_fail(SL_ERR_FORMAT, "%s has no tokens", tokens->path);
    tokens->data = tokens->map.data + skipped;
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
    SL_TRY(sl_strdup(path, &tokens->path));
    SL_TRY(sl_file_map_open(path, &tokens->map));
    tokens->format = format == SL_TOKENS_AUTO ? detect(&tokens->map) : format;
    SL_TRY(find_tokens(tokens));
    *out = tokens;
    tokens = NULL;
done:
    sl_tokens_close(tokens);
    return status;
}

sl_status sl_tokens_encode(const char *path, sl_tokenizer *tokenizer, sl_tokens **out)
{
    sl_status status = SL_OK;
    sl_tokens *tokens = NULL;
    sl_file_map text = { 0 };

    SL_TRY(SL_NEW(tokens));
    SL_TRY(sl_strdup(path, &tokens->path));
    SL_TRY(sl_file_map_open(path, &text));
    tokens->format = SL_TOKENS_TEXT;
    if (text.size > 0)
        status = sl_tokenizer_encode(tokenizer, text.data, text.size, false, &tokens->encoded, &tokens->count);
    if (status != SL_OK)
        SL_TRY(sl_fail_context(status, "encode %s", path));
    if (tokens->count == 0)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s has no tokens: it is empty", path));
    tokens->data = (const unsigned char *)tokens->encoded;
    *out = tokens;
    tokens = NULL;
done:
    sl_file_map_close(&text);
    sl_tokens_close(tokens);
    return status;
}

void sl_tokens_close(sl_tokens *tokens)
{
    if (!tokens)
        return;
    sl_file_map_close(&tokens->map);
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

/* Token at an index. The data is aligned: a map begins on a page and the header has 1024 bytes. */
static uint32_t token_at(const sl_tokens *tokens, int64_t index)
{
    switch (formats[tokens->format].width) {
    case 1:
        return tokens->data[index];
    case 2:
        return ((const uint16_t *)(const void *)tokens->data)[index];
    default:
        return ((const uint32_t *)(const void *)tokens->data)[index];
    }
}

static uint32_t max_of(const sl_tokens *tokens, int64_t first, int64_t count)
{
    uint32_t most = 0;
    if (formats[tokens->format].width == 2) { /* the common case, in a form that compilers vectorise */
        const uint16_t *data = (const uint16_t *)(const void *)tokens->data + first;
        uint16_t most16 = 0;
        for (int64_t i = 0; i < count; i++)
            most16 = data[i] > most16 ? data[i] : most16;
        return most16;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = token_at(tokens, first + i);
        most = token > most ? token : most;
    }
    return most;
}

static sl_status check_range(const sl_tokens *tokens, int64_t first, int64_t count)
{
    if (first < 0 || count < 0 || count > tokens->count - first)
        return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " tokens; %" PRId64 " from token %" PRId64 " are not there",
                       tokens->path, tokens->count, count, first);
    return SL_OK;
}

static sl_status fail_past_vocab(const sl_tokens *tokens, int64_t index, int64_t vocab)
{
    char place[64] = "";
    if (!tokens->encoded)
        snprintf(place, sizeof place, " (byte offset %" PRId64 ")",
                 tokens->data - tokens->map.data + index * formats[tokens->format].width);
    return sl_fail(SL_ERR_FORMAT, "%s: token %" PRId64 "%s is %" PRIu32 ", past the vocabulary of %" PRId64,
                   tokens->path, index, place, token_at(tokens, index), vocab);
}

sl_status sl_tokens_check(const sl_tokens *tokens, int64_t first, int64_t count, int64_t vocab)
{
    sl_status status = check_range(tokens, first, count);
    if (status != SL_OK)
        return status;
    for (int64_t done = 0; done < count; done += CHECK_BLOCK) {
        int64_t length = count - done < CHECK_BLOCK ? count - done : CHECK_BLOCK;
        if ((int64_t)max_of(tokens, first + done, length) < vocab)
            continue;
        int64_t index = first + done;
        while ((int64_t)token_at(tokens, index) < vocab)
            index++;
        return fail_past_vocab(tokens, index, vocab);
    }
    return SL_OK;
}

int64_t sl_tokens_max(const sl_tokens *tokens)
{
    return max_of(tokens, 0, tokens->count);
}

sl_status sl_tokens_read(const sl_tokens *tokens, int64_t first, int64_t count, int32_t *out)
{
    sl_status status = check_range(tokens, first, count);
    if (status != SL_OK)
        return status;
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)token_at(tokens, first + i);
    return SL_OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static sl_status check_holds(const char *path, sl_token_format format, const int32_t *tokens, int64_t count)
{
    int64_t limit = formats[format].width == 4 ? INT32_MAX : (1 << (8 * formats[format].width)) - 1;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] > limit)
            return sl_fail(SL_ERR_ARGUMENT, "%s: token %" PRId64 " is %" PRId32 "; the format %s holds 0 to %" PRId64,
                           path, i, tokens[i], formats[format].name, limit);
    }
    return SL_OK;
}

sl_status sl_tokens_save(const char *path, sl_token_format format, const int32_t *tokens, int64_t count)
{
    sl_status status = SL_OK;
    sl_file *file = NULL;

    if ((unsigned)format >= FORMAT_COUNT || format == SL_TOKENS_AUTO || format == SL_TOKENS_TEXT)
        return sl_fail(SL_ERR_ARGUMENT, "%s: no token format to write is given", path);
    if (formats[format].magic && count > INT32_MAX)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: the format %s counts up to %" PRId32 " tokens, not %" PRId64, path,
                       formats[format].name, INT32_MAX, count);
    SL_TRY(check_holds(path, format, tokens, count));
    SL_TRY(sl_file_create(path, &file));
    FILE *stream = sl_file_stream(file); /* what fails to be written shows in the commit */
    if (formats[format].magic) {
        int32_t header[HEADER_WORDS] = { formats[format].magic, formats[format].version, (int32_t)count };
        fwrite(header, sizeof header, 1, stream);
    }
    for (int64_t i = 0; i < count; i++)
        fwrite(&tokens[i], (size_t)formats[format].width, 1, stream); /* little-endian: the low bytes come first */
    SL_TRY(sl_file_commit(file));
done:
    sl_file_destroy(file);
    return status;
}
