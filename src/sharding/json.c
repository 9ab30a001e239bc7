/* Shardings as text: JSON with a version. */
#include "sharding/json.h"

#include "base/alloc.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHARDING_VERSION = 1 };

static const char *const layouts[] = { [SL_STORAGE_STRIDED] = "strided", [SL_STORAGE_SPARSE] = "sparse" };
static const char *const formats[] = { [SL_FORMAT_CONTIGUOUS] = "contiguous",
                                       [SL_FORMAT_CHANNELS_LAST] = "channels_last",
                                       [SL_FORMAT_PRESERVE] = "preserve" };

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_numbers(sl_json *json, const char *key, const int64_t *numbers, int count)
{
    sl_json_key(json, key);
    sl_json_begin(json, '[');
    for (int i = 0; i < count; i++)
        sl_json_int(json, numbers[i]);
    sl_json_end(json, ']');
}

void sl_shape_put(sl_json *json, const char *key, const sl_shape *shape)
{
    put_numbers(json, key, shape->dims, shape->rank);
}

void sl_sharding_put(sl_json *json, const sl_sharding *sharding)
{
    const sl_tensor_properties *properties = &sharding->properties;
    char place[48];
    sl_json_begin(json, '{');
    sl_json_put_int(json, "version", SHARDING_VERSION);
    sl_shape_put(json, "size", &sharding->size);
    sl_json_put_string(json, "dtype", sl_dtype_name(properties->dtype));
    sl_json_put_string(json, "layout", layouts[properties->layout]);
    sl_json_put_string(json, "memory_format", formats[properties->memory_format]);
    sl_json_put_bool(json, "requires_grad", properties->requires_grad);
    sl_json_put_bool(json, "pinned", properties->pinned);
    if (sharding->copies > 1)
        sl_json_put_int(json, "copies", sharding->copies);
    sl_json_key(json, "shards");
    sl_json_begin(json, '[');
    for (int i = 0; i < sharding->count; i++) {
        const sl_shard *shard = &sharding->shards[i];
        sl_json_begin(json, '{');
        put_numbers(json, "offsets", shard->offsets, shard->size.rank);
        sl_shape_put(json, "size", &shard->size);
        sl_json_put_string(json, "placement", sl_shard_place_text(&shard->placement, place, sizeof place));
        sl_json_end(json, '}');
    }
    sl_json_end(json, ']');
    sl_json_end(json, '}');
}

sl_status sl_sharding_write(const sl_sharding *sharding, char **out)
{
    sl_status status = SL_OK;
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (!stream)
        return sl_fail(SL_ERR_MEMORY, "write a sharding: %s", strerror(errno));
    sl_json json = { .file = stream };
    sl_sharding_put(&json, sharding);
    bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "write a sharding: no memory"));
    SL_TRY(sl_strdup(text, out));
done:
    free(text);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static sl_status read_numbers(const char *label, const char *what, const json_t *list, int64_t *out, int *count)
{
    size_t given = json_array_size(list);
    if (!json_is_array(list) || given > SL_MAX_DIMS)
        return sl_fail(SL_ERR_FORMAT, "%s: '%s' is missing or no list of at most %d numbers", label, what, SL_MAX_DIMS);
    for (size_t i = 0; i < given; i++) {
        const json_t *number = json_array_get(list, i);
        if (!json_is_integer(number) || json_integer_value(number) < 0)
            return sl_fail(SL_ERR_FORMAT, "%s: entry %zu of '%s' is no number from 0 on", label, i, what);
    }
    for (size_t i = 0; i < given; i++)
        out[i] = json_integer_value(json_array_get(list, i));
    *count = (int)given;
    return SL_OK;
}

sl_status sl_shape_from_json(const char *label, const char *what, const json_t *list, sl_shape *out)
{
    sl_shape shape = { 0 };
    int64_t count;
    sl_status status = read_numbers(label, what, list, shape.dims, &shape.rank);
    if (status != SL_OK)
        return status;
    if (sl_shape_count(&shape, &count) != SL_OK)
        return sl_fail_context(SL_ERR_FORMAT, "%s: '%s'", label, what);
    *out = shape;
    return SL_OK;
}

/* Index of the text under the key among the names. */
static sl_status read_word(const char *label, const json_t *value, const char *key, const char *const *names, int count,
                           int *out)
{
    const char *text = json_string_value(json_object_get(value, key));
    for (int i = 0; text && i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_FORMAT, "%s: '%s' is '%.40s', which is not known", label, key, text ? text : "");
}

static sl_status read_flag(const char *label, const json_t *value, const char *key, bool *out)
{
    const json_t *flag = json_object_get(value, key);
    if (!json_is_boolean(flag))
        return sl_fail(SL_ERR_FORMAT, "%s: '%s' is missing or neither true nor false", label, key);
    *out = json_is_true(flag);
    return SL_OK;
}

static sl_status read_properties(const char *label, const json_t *value, sl_tensor_properties *out)
{
    sl_status status = SL_OK;
    int layout = 0, format = 0;
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (sl_dtype_parse(dtype ? dtype : "", &out->dtype) != SL_OK)
        return sl_fail_context(SL_ERR_FORMAT, "%s", label);
    SL_TRY(read_word(label, value, "layout", layouts, sizeof layouts / sizeof *layouts, &layout));
    SL_TRY(read_word(label, value, "memory_format", formats, sizeof formats / sizeof *formats, &format));
    SL_TRY(read_flag(label, value, "requires_grad", &out->requires_grad));
    SL_TRY(read_flag(label, value, "pinned", &out->pinned));
    out->layout = (sl_storage_layout)layout;
    out->memory_format = (sl_memory_format)format;
done:
    return status;
}

/* It is left out if there is one. */
static sl_status read_copies(const char *label, const json_t *value, int *out)
{
    const json_t *copies = json_object_get(value, "copies");
    if (!copies)
        return SL_OK;
    if (!json_is_integer(copies) || json_integer_value(copies) < 1 || json_integer_value(copies) > INT32_MAX)
        return sl_fail(SL_ERR_FORMAT, "%s: 'copies' is no number from 1 on", label);
    *out = (int)json_integer_value(copies);
    return SL_OK;
}

static sl_status read_shard(const char *label, const json_t *value, sl_shard *out)
{
    sl_status status = SL_OK;
    int dims = 0;
    const char *place = json_string_value(json_object_get(value, "placement"));
    SL_TRY(read_numbers(label, "offsets", json_object_get(value, "offsets"), out->offsets, &dims));
    SL_TRY(sl_shape_from_json(label, "size", json_object_get(value, "size"), &out->size));
    if (dims != out->size.rank)
        return sl_fail(SL_ERR_FORMAT, "%s: a shard has %d offsets and %d sizes", label, dims, out->size.rank);
    if (!place)
        return sl_fail(SL_ERR_FORMAT, "%s: a shard has no placement", label);
    if (sl_shard_place_parse(place, NULL, INT32_MAX, &out->placement) != SL_OK)
        return sl_fail_context(SL_ERR_FORMAT, "%s", label);
done:
    return status;
}

sl_status sl_sharding_from_json(const char *label, const json_t *value, sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_sharding sharding = { 0 };
    const json_t *version = json_object_get(value, "version"), *shards = json_object_get(value, "shards");
    if (!json_is_integer(version))
        return sl_fail(SL_ERR_FORMAT, "%s: this is not a sharding", label);
    if (json_integer_value(version) != SHARDING_VERSION)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: version %" JSON_INTEGER_FORMAT " of a sharding is not known", label,
                       json_integer_value(version));
    size_t count = json_array_size(shards);
    if (count < 1 || count > INT32_MAX)
        return sl_fail(SL_ERR_FORMAT, "%s: a sharding without shards", label);
    SL_TRY(sl_shape_from_json(label, "size", json_object_get(value, "size"), &sharding.size));
    SL_TRY(read_properties(label, value, &sharding.properties));
    SL_TRY(read_copies(label, value, &sharding.copies));
    SL_TRY(SL_NEW_ARRAY(sharding.shards, count));
    for (size_t i = 0; i < count; i++)
        SL_TRY(read_shard(label, json_array_get(shards, i), &sharding.shards[sharding.count++]));
    if (sl_sharding_check(&sharding) != SL_OK)
        SL_TRY(sl_fail_context(SL_ERR_FORMAT, "%s", label));
    *out = sharding;
    sharding.shards = NULL;
done:
    sl_sharding_destroy(&sharding);
    return status;
}

sl_status sl_sharding_parse(const char *label, const char *text, sl_sharding *out)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!value)
        return sl_fail(SL_ERR_FORMAT, "%s:%d: %s", label, error.line, error.text);
    sl_status status = sl_sharding_from_json(label, value, out);
    json_decref(value);
    return status;
}
