/* The safetensors reader: u64 length, JSON header, data. Everything is checked before the first tensor is handed out.
 */
#include <sluice/shard.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/file.h"
#include "shard/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct sl_safetensors {
    sl_arena *arena;              /* names and metadata */
    char *path;                   /* NULL if the bytes are the caller's */
    uint64_t size, device, inode; /* of the file when it was opened */
    sl_tensor_entry *entries;
    int *by_name; /* indices into entries, sorted by name */
    int count;
    const char **metadata; /* key, value, … */
    int metadata_count;    /* pairs */
};

/* What is being read: for messages and for the bounds. */
typedef struct source {
    const char *label;
    const unsigned char *bytes; /* the whole file if it is in memory; else NULL */
    uint64_t data_offset;       /* where the tensors' bytes begin: after the header */
    uint64_t data_size;
} source;

static const struct {
    const char *name;
    sl_dtype dtype;
} dtype_names[] = {
#define ROW(name, text, bytes, safetensors) { safetensors, SL_##name },
    SL_DTYPE_LIST(ROW)
#undef ROW
};

const char *sl_safetensors_dtype_name(sl_dtype dtype)
{
    return dtype_names[dtype].name;
}

static sl_status parse_dtype(const source *from, const char *name, const json_t *value, sl_dtype *out)
{
    const char *text = json_string_value(value);
    if (!text)
        return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s' has no dtype", from->label, name);
    for (size_t i = 0; i < sizeof dtype_names / sizeof *dtype_names; i++) {
        if (strcmp(text, dtype_names[i].name) == 0) {
            *out = dtype_names[i].dtype;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s' has the unknown dtype '%.20s'", from->label, name, text);
}

static sl_status parse_shape(const source *from, const char *name, const json_t *value, sl_shape *out)
{
    sl_shape shape = { 0 };
    if (!json_is_array(value))
        return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s' has no shape", from->label, name);
    if (json_array_size(value) > SL_MAX_DIMS)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: tensor '%s' has %zu dims; %d are possible", from->label, name,
                       json_array_size(value), SL_MAX_DIMS);
    shape.rank = (int)json_array_size(value);
    for (int i = 0; i < shape.rank; i++) {
        const json_t *dim = json_array_get(value, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s': dim %d is not a natural number", from->label, name, i);
        shape.dims[i] = json_integer_value(dim);
    }
    *out = shape;
    return SL_OK;
}

static sl_status parse_offsets(const source *from, const char *name, const json_t *value, size_t *begin, size_t *end)
{
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s': data_offsets are not two integers", from->label, name);
    json_int_t b = json_integer_value(first), e = json_integer_value(last);
    if (b < 0 || e < b)
        return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s': data_offsets [%" PRId64 ", %" PRId64 "] are no range",
                       from->label, name, (int64_t)b, (int64_t)e);
    if ((uint64_t)e > from->data_size)
        return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s' ends at byte %" PRId64 " of data, the file has %" PRIu64,
                       from->label, name, (int64_t)e, from->data_size);
    *begin = (size_t)b;
    *end = (size_t)e;
    return SL_OK;
}

static sl_status parse_entry(const source *from, const char *name, const json_t *value, sl_tensor_entry *out)
{
    sl_status status = SL_OK;
    sl_tensor_entry entry = { .name = name };
    size_t begin = 0, end = 0, bytes;

    if (!json_is_object(value))
        return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s' is not described by an object", from->label, name);
    SL_TRY(parse_dtype(from, name, json_object_get(value, "dtype"), &entry.dtype));
    SL_TRY(parse_shape(from, name, json_object_get(value, "shape"), &entry.shape));
    SL_TRY(parse_offsets(from, name, json_object_get(value, "data_offsets"), &begin, &end));
    status = sl_shape_count(&entry.shape, &entry.count);
    if (status != SL_OK)
        return sl_fail_context(SL_ERR_FORMAT, "%s: tensor '%s'", from->label, name);
    entry.bytes = end - begin;
    if (__builtin_mul_overflow((size_t)entry.count, sl_dtype_size(entry.dtype), &bytes) || bytes != entry.bytes) {
        char text[160];
        return sl_fail(SL_ERR_FORMAT, "%s: tensor '%s': %s%s does not fit its %zu bytes", from->label, name,
                       sl_dtype_name(entry.dtype), sl_shape_text(&entry.shape, text, sizeof text), entry.bytes);
    }
    entry.offset = from->data_offset + begin;
    entry.data = from->bytes ? from->bytes + entry.offset : NULL;
    *out = entry;
done:
    return status;
}

static int compare_data(const void *a, const void *b)
{
    const sl_tensor_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) /* an empty tensor stands before the one that begins at the same byte */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b, void *entries)
{
    const sl_tensor_entry *all = entries;
    return strcmp(all[*(const int *)a].name, all[*(const int *)b].name);
}

/* The data must be covered exactly once: no gap, no overlap, nothing left over. Entries are in data order. */
static sl_status check_cover(const source *from, const sl_safetensors *file)
{
    uint64_t expected = 0;
    for (int i = 0; i < file->count; i++) {
        const sl_tensor_entry *entry = &file->entries[i];
        uint64_t begin = entry->offset - from->data_offset;
        if (begin < expected)
            return sl_fail(SL_ERR_FORMAT, "%s: tensors '%s' and '%s' overlap at byte %" PRIu64 " of data", from->label,
                           file->entries[i - 1].name, entry->name, begin);
        if (begin > expected && expected == 0)
            return sl_fail(SL_ERR_FORMAT, "%s: the first tensor '%s' begins at byte %" PRIu64 " of data, not at 0",
                           from->label, entry->name, begin);
        if (begin > expected)
            return sl_fail(SL_ERR_FORMAT, "%s: a gap of %" PRIu64 " bytes before tensor '%s'", from->label,
                           begin - expected, entry->name);
        expected = begin + entry->bytes;
    }
    if (expected != from->data_size)
        return sl_fail(SL_ERR_FORMAT, "%s: %" PRIu64 " bytes are left over after the last tensor", from->label,
                       from->data_size - expected);
    return SL_OK;
}

static sl_status parse_metadata(const source *from, json_t *value, sl_safetensors *file)
{
    sl_status status = SL_OK;
    const char *key;
    json_t *each;
    int at = 0;

    if (!json_is_object(value))
        return sl_fail(SL_ERR_FORMAT, "%s: __metadata__ is not an object", from->label);
    SL_TRY(SL_ARENA_ARRAY(file->arena, file->metadata, 2 * json_object_size(value)));
    json_object_foreach(value, key, each)
    {
        if (!json_is_string(each))
            return sl_fail(SL_ERR_FORMAT, "%s: __metadata__ gives '%.100s' something other than a text", from->label,
                           key);
        SL_TRY(sl_arena_strdup(file->arena, key, (char **)&file->metadata[at++]));
        SL_TRY(sl_arena_strdup(file->arena, json_string_value(each), (char **)&file->metadata[at++]));
    }
    file->metadata_count = at / 2;
done:
    return status;
}

static sl_status parse_header(const source *from, json_t *header, sl_safetensors *file)
{
    sl_status status = SL_OK;
    const char *key;
    json_t *value;

    size_t size = json_object_size(header);
    SL_TRY(SL_ARENA_ARRAY(file->arena, file->entries, size));
    SL_TRY(SL_ARENA_ARRAY(file->arena, file->by_name, size));
    json_object_foreach(header, key, value)
    {
        char *name;
        if (strcmp(key, "__metadata__") == 0) {
            SL_TRY(parse_metadata(from, value, file));
            continue;
        }
        SL_TRY(sl_arena_strdup(file->arena, key, &name));
        SL_TRY(parse_entry(from, name, value, &file->entries[file->count]));
        file->count++;
    }
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_data);
    SL_TRY(check_cover(from, file));
    for (int i = 0; i < file->count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name, file->entries);
done:
    return status;
}

/* Length of the header of a file of `size` bytes that begins with `first` (the length and one byte of JSON). */
static sl_status header_length(const char *label, const unsigned char *first, uint64_t size, size_t *out)
{
    uint64_t header = 0;
    if (size < 8)
        return sl_fail(SL_ERR_FORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file", label, size);
    for (int i = 0; i < 8; i++)
        header |= (uint64_t)first[i] << (8 * i);
    if (header > SAFETENSORS_HEADER_MAX)
        return sl_fail(SL_ERR_FORMAT, "%s: a header of %" PRIu64 " bytes; %d are allowed", label, header,
                       SAFETENSORS_HEADER_MAX);
    if (header > size - 8)
        return sl_fail(SL_ERR_FORMAT, "%s: the header's %" PRIu64 " bytes reach past the end of the file", label,
                       header);
    if (header == 0 || first[8] != '{')
        return sl_fail(SL_ERR_FORMAT, "%s: the header does not begin with '{'", label);
    *out = (size_t)header;
    return SL_OK;
}

/* text: the header's JSON. */
static sl_status parse(const source *from, const char *text, size_t length, sl_safetensors *file)
{
    json_error_t error;
    json_t *header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!header)
        return sl_fail(SL_ERR_FORMAT, "%s: header, byte %d: %s", from->label, error.position, error.text);
    sl_status status = parse_header(from, header, file);
    json_decref(header);
    return status;
}

sl_status sl_safetensors_open_memory(const char *label, const void *bytes, size_t size, sl_safetensors **out)
{
    sl_status status = SL_OK;
    sl_safetensors *file = NULL;
    size_t length = 0;

    SL_TRY(SL_NEW(file));
    SL_TRY(sl_arena_create(&file->arena));
    SL_TRY(header_length(label, bytes, size, &length));
    source from = { .label = label, .bytes = bytes, .data_offset = 8 + length, .data_size = size - 8 - length };
    SL_TRY(parse(&from, (const char *)bytes + 8, length, file));
    *out = file;
    file = NULL;
done:
    sl_safetensors_close(file);
    return status;
}

/* The header's JSON from the file; the caller frees it. */
static sl_status read_header(const sl_file_reader *reader, char **text, size_t *length)
{
    sl_status status = SL_OK;
    unsigned char first[9] = { 0 };
    char *header = NULL;
    size_t bytes = 0;
    SL_TRY(sl_file_read_at(reader, first, reader->size < sizeof first ? (size_t)reader->size : sizeof first, 0));
    SL_TRY(header_length(reader->path, first, reader->size, &bytes));
    SL_TRY(sl_alloc(bytes, 1, (void **)&header));
    SL_TRY(sl_file_read_at(reader, header, bytes, 8));
    *text = header;
    *length = bytes;
    header = NULL;
done:
    sl_free(header);
    return status;
}

sl_status sl_safetensors_open(const char *path, sl_safetensors **out)
{
    sl_status status = SL_OK;
    sl_file_reader reader = { .fd = -1 };
    sl_safetensors *file = NULL;
    char *text = NULL;
    size_t length = 0;

    SL_TRY(SL_NEW(file));
    SL_TRY(sl_arena_create(&file->arena));
    SL_TRY(sl_file_open(path, &reader));
    SL_TRY(sl_arena_strdup(file->arena, path, &file->path));
    file->size = reader.size;
    file->device = reader.device;
    file->inode = reader.inode;
    SL_TRY(read_header(&reader, &text, &length));
    source from = { .label = path, .data_offset = 8 + length, .data_size = reader.size - 8 - length };
    SL_TRY(parse(&from, text, length, file));
    for (int i = 0; i < file->count; i++)
        file->entries[i].file = file;
    *out = file;
    file = NULL;
done:
    sl_free(text);
    sl_file_close(&reader);
    sl_safetensors_close(file);
    return status;
}

/* Opened for each read: a checkpoint may have more files than a process may have descriptors. */
sl_status sl_safetensors_open_reader(const sl_safetensors *file, sl_file_reader *out)
{
    sl_status status = SL_OK;
    sl_file_reader reader = { .fd = -1 };
    if (!file)
        return sl_fail(SL_ERR_ARGUMENT, "a tensor without data is in no file");
    SL_TRY(sl_file_open(file->path, &reader));
    if (reader.size != file->size || reader.device != file->device || reader.inode != file->inode)
        SL_TRY(sl_fail(SL_ERR_IO, "read %s: another file has taken its place", file->path));
    *out = reader;
    reader = (sl_file_reader){ .fd = -1 };
done:
    sl_file_close(&reader);
    return status;
}

void sl_safetensors_close(sl_safetensors *file)
{
    if (!file)
        return;
    sl_arena_destroy(file->arena);
    sl_free(file);
}

int sl_safetensors_count(const sl_safetensors *file)
{
    return file->count;
}

const sl_tensor_entry *sl_safetensors_at(const sl_safetensors *file, int i)
{
    return i >= 0 && i < file->count ? &file->entries[i] : NULL;
}

const sl_tensor_entry *sl_safetensors_find(const sl_safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const sl_tensor_entry *entry = &file->entries[file->by_name[middle]];
        int order = strcmp(name, entry->name);
        if (order == 0)
            return entry;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *sl_safetensors_metadata(const sl_safetensors *file, const char *key)
{
    for (int i = 0; i < file->metadata_count; i++) {
        if (strcmp(file->metadata[2 * (size_t)i], key) == 0)
            return file->metadata[2 * (size_t)i + 1];
    }
    return NULL;
}
