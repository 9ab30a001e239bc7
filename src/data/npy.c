/* numpy's .npy files: the magic bytes, a version, the length of a header, and the header, a Python dictionary such as
 * {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }. */
#include "data/token_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char magic[] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };
enum { PREFIX_BYTES = 12, HEADER_LIMIT = 4096 };

static const struct {
    const char *descr;
    token_type type;
} descrs[] = { { "<u2", TOKEN_U16 }, { "<u4", TOKEN_U32 }, { "<i4", TOKEN_I32 }, { "<i8", TOKEN_I64 } };

bool sl_npy_detect(const unsigned char *data, size_t size)
{
    return size >= sizeof magic && memcmp(data, magic, sizeof magic) == 0;
}

static sl_status fail_header(const sl_file_reader *file, const char *why)
{
    return sl_fail(SL_ERR_FORMAT, "%s: its .npy header %s", file->path, why);
}

/* What follows 'KEY': in the header; NULL if the key is not there. */
static const char *find_key(const char *header, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = strchr(header, '\''); at; at = strchr(at + 1, '\'')) {
        if (strncmp(at + 1, key, length) == 0 && at[1 + length] == '\'') {
            at += length + 2;
            at += strspn(at, " ");
            return *at == ':' ? at + 1 + strspn(at + 1, " ") : NULL;
        }
    }
    return NULL;
}

static sl_status read_type(const sl_file_reader *file, const char *text, token_type *out)
{
    size_t length = text && *text == '\'' ? strcspn(text + 1, "'") : 0;
    if (length == 0 || text[1 + length] != '\'')
        return fail_header(file, "has no element type (descr)");
    for (size_t i = 0; i < sizeof descrs / sizeof *descrs; i++) {
        if (strlen(descrs[i].descr) == length && strncmp(descrs[i].descr, text + 1, length) == 0) {
            *out = descrs[i].type;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_FORMAT,
                   "%s: an array of the type '%.*s'; tokens are uint16, uint32, int32 or int64, little-endian",
                   file->path, (int)(length < 40 ? length : 40), text + 1);
}

static sl_status read_shape(const sl_file_reader *file, const char *text, int64_t *out)
{
    char *end = NULL;
    if (!text || *text != '(' || text[1] < '0' || text[1] > '9')
        return fail_header(file, "has no shape of one dimension");
    long long count = strtoll(text + 1, &end, 10); /* past the largest: more than the file can have */
    end += strspn(end, " ");
    if (end[0] != ',' || end[1 + strspn(end + 1, " ")] != ')')
        return fail_header(file, "has a shape of several dimensions; tokens are an array of one");
    *out = count;
    return SL_OK;
}

/* The header as text, and where the data begin. */
static sl_status read_text(const sl_file_reader *file, char text[HEADER_LIMIT + 1], uint64_t *first)
{
    sl_status status = SL_OK;
    unsigned char prefix[PREFIX_BYTES] = { 0 };
    SL_TRY(sl_file_read_at(file, prefix, file->size < PREFIX_BYTES ? (size_t)file->size : PREFIX_BYTES, 0));
    if (!sl_npy_detect(prefix, (size_t)(file->size < PREFIX_BYTES ? file->size : PREFIX_BYTES)))
        return sl_fail(SL_ERR_FORMAT, "%s: it does not begin as a .npy file does", file->path);
    int version = prefix[6];
    if (version < 1 || version > 3)
        return sl_fail(SL_ERR_FORMAT, "%s: version %d of the format npy; versions 1 to 3 can be read", file->path,
                       version);
    uint64_t begin = version == 1 ? 10 : 12, length = prefix[8] | (uint64_t)prefix[9] << 8;
    if (version > 1)
        length |= (uint64_t)prefix[10] << 16 | (uint64_t)prefix[11] << 24;
    if (length > HEADER_LIMIT || file->size < begin + length)
        return sl_fail(SL_ERR_FORMAT,
                       "%s: a .npy header of %" PRIu64 " bytes; the file has %" PRIu64 ", %d at most make sense",
                       file->path, length, file->size, HEADER_LIMIT);
    SL_TRY(sl_file_read_at(file, text, (size_t)length, begin));
    text[length] = '\0';
    if (strlen(text) != length)
        return fail_header(file, "is no text");
    *first = begin + length;
done:
    return status;
}

sl_status sl_npy_read_header(const sl_file_reader *file, token_type *type, uint64_t *first, int64_t *count)
{
    sl_status status = SL_OK;
    char text[HEADER_LIMIT + 1];
    token_type found = TOKEN_U16;
    uint64_t begin = 0;
    int64_t tokens = 0;
    SL_TRY(read_text(file, text, &begin));
    SL_TRY(read_type(file, find_key(text, "descr"), &found));
    SL_TRY(read_shape(file, find_key(text, "shape"), &tokens));
    uint64_t width = (uint64_t)sl_token_width(found), bytes = file->size - begin;
    if ((uint64_t)tokens > bytes / width || (uint64_t)tokens * width != bytes)
        SL_TRY(sl_fail(SL_ERR_FORMAT,
                       "%s: the header says %" PRId64 " tokens of %" PRIu64 " bytes, the file has %" PRIu64
                       " bytes for them",
                       file->path, tokens, width, bytes));
    *type = found;
    *first = begin;
    *count = tokens;
done:
    return status;
}
