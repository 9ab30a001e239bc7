/* The safetensors writer: layout and header from the declarations, then the bytes in any order. */
#include "base/alloc.h"
#include "base/arena.h"
#include "base/file.h"
#include "shard/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct declared {
    const char *name;
    sl_dtype dtype;
    sl_shape shape;
    size_t bytes;
    size_t written; /* bytes so far */
    size_t begin;   /* in the data; set by the layout */
} declared;

struct sl_safetensors_writer {
    sl_arena *arena;
    char *path;    /* for messages */
    sl_file *file; /* NULL once finished */
    declared *tensors;
    size_t capacity;
    int count;
    json_t *metadata;    /* NULL if none was given */
    bool begun;          /* the header is written, nothing more can be declared */
    size_t header_bytes; /* with the length before it */
    XXH3_state_t *hash;  /* of the bytes so far, if they come in the order of the file; else NULL */
};

sl_status sl_safetensors_writer_create(const char *path, sl_safetensors_writer **out)
{
    sl_status status = SL_OK;
    sl_safetensors_writer *writer = NULL;

    SL_TRY(SL_NEW(writer));
    SL_TRY(sl_arena_create(&writer->arena));
    SL_TRY(sl_arena_strdup(writer->arena, path, &writer->path));
    SL_TRY(sl_file_create(path, &writer->file));
    *out = writer;
    writer = NULL;
done:
    sl_safetensors_writer_destroy(writer);
    return status;
}

void sl_safetensors_writer_destroy(sl_safetensors_writer *writer)
{
    if (!writer)
        return;
    sl_file_destroy(writer->file);
    XXH3_freeState(writer->hash);
    json_decref(writer->metadata);
    sl_free(writer->tensors);
    sl_arena_destroy(writer->arena);
    sl_free(writer);
}

static sl_status check_open(const sl_safetensors_writer *writer)
{
    if (!writer->file)
        return sl_fail(SL_ERR_ARGUMENT, "%s is finished already", writer->path);
    return SL_OK;
}

static sl_status check_declaring(const sl_safetensors_writer *writer, const char *what)
{
    sl_status status = check_open(writer);
    if (status == SL_OK && writer->begun)
        return sl_fail(SL_ERR_ARGUMENT, "%s: '%s' is declared after the first write", writer->path, what);
    return status;
}

sl_status sl_safetensors_writer_metadata(sl_safetensors_writer *writer, const char *key, const char *value)
{
    sl_status status = SL_OK;
    SL_TRY(check_declaring(writer, key));
    if (!writer->metadata)
        writer->metadata = json_object();
    if (!writer->metadata || json_object_set_new(writer->metadata, key, json_string(value)) != 0)
        return sl_fail(SL_ERR_ARGUMENT, "%s: metadata '%.100s' is not UTF-8 text", writer->path, key);
done:
    return status;
}

sl_status sl_safetensors_writer_add(sl_safetensors_writer *writer, const char *name, sl_dtype dtype,
                                    const sl_shape *shape, int *index)
{
    sl_status status = SL_OK;
    declared tensor = { .dtype = dtype, .shape = *shape };
    int64_t count;

    SL_TRY(check_declaring(writer, name));
    if (sl_dtype_size(dtype) == 0 || strcmp(name, "__metadata__") == 0)
        return sl_fail(SL_ERR_ARGUMENT, "%s: tensor '%s' has no element type or a reserved name", writer->path, name);
    SL_TRY(sl_shape_count(shape, &count));
    if (__builtin_mul_overflow((size_t)count, sl_dtype_size(dtype), &tensor.bytes))
        return sl_fail(SL_ERR_SHAPE, "%s: tensor '%s' is too large", writer->path, name);
    SL_TRY(sl_arena_strdup(writer->arena, name, (char **)&tensor.name));
    SL_TRY(SL_GROW(writer->tensors, &writer->capacity, writer->count + 1));
    writer->tensors[writer->count] = tensor;
    *index = writer->count++;
done:
    return status;
}

/* Wide elements first, so that each tensor is naturally aligned when the data begins at a multiple of 8. */
static size_t lay_out(sl_safetensors_writer *writer)
{
    size_t at = 0;
    for (size_t size = 8; size > 0; size /= 2) {
        for (int i = 0; i < writer->count; i++) {
            declared *tensor = &writer->tensors[i];
            if (sl_dtype_size(tensor->dtype) != size)
                continue;
            tensor->begin = at;
            at += tensor->bytes;
        }
    }
    return at;
}

static json_t *describe(const declared *tensor)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->shape.rank; i++)
        json_array_append_new(shape, json_integer(tensor->shape.dims[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", sl_safetensors_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)tensor->begin, (json_int_t)tensor->begin + (json_int_t)tensor->bytes);
}

/* The header's JSON; the caller frees it with free(). */
static sl_status header_text(const sl_safetensors_writer *writer, char **out)
{
    sl_status status = SL_OK;
    char *text = NULL;
    json_t *header = json_object();

    if (writer->metadata)
        json_object_set(header, "__metadata__", writer->metadata);
    for (int i = 0; i < writer->count; i++) {
        const declared *tensor = &writer->tensors[i];
        if (json_object_get(header, tensor->name)) {
            status = sl_fail(SL_ERR_ARGUMENT, "%s: tensor '%s' is declared twice", writer->path, tensor->name);
            goto done;
        }
        if (json_object_set_new(header, tensor->name, describe(tensor)) != 0) {
            status = sl_fail(SL_ERR_ARGUMENT, "%s: tensor %d has a name that is not UTF-8", writer->path, i);
            goto done;
        }
    }
    text = json_dumps(header, JSON_COMPACT);
    if (!text)
        status = sl_fail(SL_ERR_MEMORY, "%s: no memory for the header", writer->path);
    else
        *out = text;
done:
    json_decref(header);
    return status;
}

/* The bytes are hashed before they leave this memory. */
static sl_status write_bytes(sl_safetensors_writer *writer, const void *data, size_t bytes, uint64_t offset)
{
    if (writer->hash)
        XXH3_64bits_update(writer->hash, data, bytes);
    return sl_file_write_at(writer->file, data, bytes, offset);
}

static sl_status write_header(sl_safetensors_writer *writer)
{
    sl_status status = SL_OK;
    char *text = NULL;
    unsigned char length[8];

    lay_out(writer);
    SL_TRY(header_text(writer, &text));
    size_t used = strlen(text), padded = (used + 7) / 8 * 8;
    if (padded > SAFETENSORS_HEADER_MAX) {
        status = sl_fail(SL_ERR_UNSUPPORTED, "%s: a header of %zu bytes; %d are allowed", writer->path, padded,
                         SAFETENSORS_HEADER_MAX);
        goto done;
    }
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    SL_TRY(write_bytes(writer, length, sizeof length, 0));
    SL_TRY(write_bytes(writer, text, used, sizeof length));
    SL_TRY(write_bytes(writer, "       ", padded - used, sizeof length + used));
    writer->header_bytes = sizeof length + padded;
    writer->begun = true;
done:
    free(text);
    return status;
}

sl_status sl_safetensors_writer_write(sl_safetensors_writer *writer, int index, size_t offset, const void *data,
                                      size_t bytes)
{
    sl_status status = SL_OK;
    SL_TRY(check_open(writer));
    if (index < 0 || index >= writer->count)
        return sl_fail(SL_ERR_ARGUMENT, "%s: there is no tensor %d", writer->path, index);
    declared *tensor = &writer->tensors[index];
    if (offset > tensor->bytes || bytes > tensor->bytes - offset)
        return sl_fail(SL_ERR_ARGUMENT, "%s: bytes %zu + %zu are outside tensor '%s' of %zu", writer->path, offset,
                       bytes, tensor->name, tensor->bytes);
    if (!writer->begun)
        SL_TRY(write_header(writer));
    SL_TRY(write_bytes(writer, data, bytes, writer->header_bytes + tensor->begin + offset));
    tensor->written += bytes;
done:
    return status;
}

sl_status sl_safetensors_writer_finish(sl_safetensors_writer *writer)
{
    sl_status status = SL_OK;
    SL_TRY(check_open(writer));
    if (!writer->begun)
        SL_TRY(write_header(writer));
    for (int i = 0; i < writer->count; i++) {
        const declared *tensor = &writer->tensors[i];
        if (tensor->written != tensor->bytes)
            return sl_fail(SL_ERR_ARGUMENT, "%s: tensor '%s' got %zu of its %zu bytes", writer->path, tensor->name,
                           tensor->written, tensor->bytes);
    }
    SL_TRY(sl_file_commit(writer->file));
    sl_file_destroy(writer->file);
    writer->file = NULL;
done:
    return status;
}

/* One tensor; from a file to a file in blocks. */
static sl_status write_entry(sl_safetensors_writer *writer, int index, const sl_tensor_entry *entry)
{
    sl_status status = SL_OK;
    enum { BLOCK = 1 << 20 };
    size_t bytes = writer->tensors[index].bytes;
    char *block = NULL;
    if (entry->data || (!entry->file && !entry->slices))
        return sl_safetensors_writer_write(writer, index, 0, entry->data, bytes);
    SL_TRY(SL_NEW_ARRAY(block, BLOCK));
    for (size_t at = 0; at < bytes; at += BLOCK) {
        size_t piece = bytes - at < BLOCK ? bytes - at : BLOCK;
        SL_TRY(sl_tensor_entry_read(entry, at, piece, block));
        SL_TRY(sl_safetensors_writer_write(writer, index, at, block, piece));
    }
done:
    sl_free(block);
    return status;
}

/* In the order of the file, as lay_out has it. */
static sl_status write_entries(sl_safetensors_writer *writer, const sl_tensor_entry *entries, int64_t *bytes)
{
    sl_status status = SL_OK;
    size_t end = 0;
    for (size_t size = 8; size > 0; size /= 2) {
        for (int i = 0; i < writer->count; i++) {
            const declared *tensor = &writer->tensors[i];
            if (sl_dtype_size(tensor->dtype) != size)
                continue;
            SL_TRY(write_entry(writer, i, &entries[i]));
            end = tensor->begin + tensor->bytes;
        }
    }
    SL_TRY(sl_safetensors_writer_finish(writer));
    *bytes = (int64_t)(writer->header_bytes + end);
done:
    return status;
}

static sl_status save(const char *path, const sl_tensor_entry *entries, int count, const char *const *metadata,
                      uint64_t *hash, int64_t *bytes)
{
    sl_status status = SL_OK;
    sl_safetensors_writer *writer = NULL;
    int64_t written = 0;
    int index;

    SL_TRY(sl_safetensors_writer_create(path, &writer));
    if (hash) {
        writer->hash = XXH3_createState();
        if (!writer->hash || XXH3_64bits_reset(writer->hash) != XXH_OK)
            SL_TRY(sl_fail(SL_ERR_MEMORY, "%s: no memory for its hash", path));
    }
    for (; metadata && metadata[0]; metadata += 2)
        SL_TRY(sl_safetensors_writer_metadata(writer, metadata[0], metadata[1]));
    for (int i = 0; i < count; i++)
        SL_TRY(sl_safetensors_writer_add(writer, entries[i].name, entries[i].dtype, &entries[i].shape, &index));
    SL_TRY(write_entries(writer, entries, &written));
    if (hash) {
        *hash = XXH3_64bits_digest(writer->hash);
        *bytes = written;
    }
done:
    sl_safetensors_writer_destroy(writer);
    return status;
}

sl_status sl_safetensors_save(const char *path, const sl_tensor_entry *entries, int count, const char *const *metadata)
{
    return save(path, entries, count, metadata, NULL, NULL);
}

sl_status sl_safetensors_save_hashed(const char *path, const sl_tensor_entry *entries, int count,
                                     const char *const *metadata, uint64_t *hash, int64_t *bytes)
{
    return save(path, entries, count, metadata, hash, bytes);
}
