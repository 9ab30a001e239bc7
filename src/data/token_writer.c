/* Writes a token file piece by piece; it appears when it is finished. */
#include "data/token_file.h"

#include "base/alloc.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct sl_token_writer {
    sl_token_format format;
    sl_file *file;
    char *path;
    int64_t count;
};

static int width_of(const sl_token_writer *writer)
{
    return sl_token_width(sl_token_forms[writer->format].type);
}

static sl_status check_holds(const sl_token_writer *writer, const int32_t *tokens, int64_t count)
{
    int64_t limit = width_of(writer) == 4 ? INT32_MAX : (1 << (8 * width_of(writer))) - 1;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] > limit)
            return sl_fail(SL_ERR_ARGUMENT, "%s: token %" PRId64 " is %" PRId32 "; the format %s holds 0 to %" PRId64,
                           writer->path, writer->count + i, tokens[i], sl_token_forms[writer->format].name, limit);
    }
    return SL_OK;
}

static void write_header(const sl_token_writer *writer)
{
    int32_t header[TOKEN_HEADER_WORDS] = { sl_token_forms[writer->format].magic, sl_token_forms[writer->format].version,
                                           (int32_t)writer->count };
    if (sl_token_forms[writer->format].magic)
        fwrite(header, sizeof header, 1, sl_file_stream(writer->file)); /* an error shows in the commit */
}

sl_status sl_token_writer_create(const char *path, sl_token_format format, sl_token_writer **out)
{
    sl_status status = SL_OK;
    sl_token_writer *writer = NULL;

    if ((unsigned)format >= TOKEN_FORM_COUNT || format == SL_TOKENS_AUTO || format == SL_TOKENS_TEXT ||
        format == SL_TOKENS_NPY)
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
    size_t width = (size_t)width_of(writer);
    char block[TOKEN_BLOCK * sizeof *tokens];
    FILE *stream = sl_file_stream(writer->file);
    if (sl_token_forms[writer->format].magic && count > INT32_MAX - writer->count)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: the format %s counts up to %" PRId32 " tokens", writer->path,
                       sl_token_forms[writer->format].name, INT32_MAX);
    SL_TRY(check_holds(writer, tokens, count));
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < TOKEN_BLOCK ? count - done : TOKEN_BLOCK;
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
    if (sl_token_forms[writer->format].magic) {
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
