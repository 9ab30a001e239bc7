/* The tensors of a checkpoint from the slices in its files: for the manifest that is written, and as a manifest says. */
#include "shard/checkpoint.h"

#include "base/alloc.h"
#include "sharding/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count_entries(const checkpoint_files *files)
{
    int count = 0;
    for (int f = 0; f < files->count; f++)
        count += sl_safetensors_count(files->files[f]);
    return count;
}

/* ---- As the files say ------------------------------------------------------------------------ */

/* "16,0" into offsets; false if it is anything else. */
static bool parse_offsets(const char *text, int count, int64_t *offsets)
{
    for (int d = 0; d < count; d++) {
        char *end;
        if (*text < '0' || *text > '9')
            return false;
        offsets[d] = strtoll(text, &end, 10);
        if (*end != (d + 1 < count ? ',' : '\0'))
            return false;
        text = end + 1;
    }
    return count > 0;
}

/* An entry of a rank's file under the name of its tensor. shapes: of the tensors that have slices, by the slices' names. */
static sl_status name_tensor(const char *label, const sl_tensor_entry *stored, const json_t *shapes, sl_arena *arena,
                             sl_tensor_entry *out)
{
    sl_status status = SL_OK;
    sl_tensor_entry entry = *stored;
    char *name = NULL;
    const json_t *whole = json_object_get(shapes, stored->name);
    if (!whole) {
        *out = entry;
        return SL_OK;
    }
    SL_TRY(sl_shape_from_json(label, stored->name, whole, &entry.whole));
    SL_TRY(sl_arena_strdup(arena, stored->name, &name));
    char *at = strrchr(name, '@');
    if (!at || !parse_offsets(at + 1, entry.shape.rank, entry.offsets))
        return sl_fail(SL_ERR_FORMAT, "%s: '%s' is not the name of a slice", label, name);
    *at = '\0';
    entry.name = name;
    *out = entry;
done:
    return status;
}

static sl_status read_shapes(const char *label, const sl_safetensors *file, json_t **out)
{
    json_error_t error;
    const char *text = sl_safetensors_metadata(file, CHECKPOINT_WHOLE_KEY);
    json_t *shapes = json_loads(text ? text : "{}", JSON_REJECT_DUPLICATES, &error);
    if (!shapes)
        return sl_fail(SL_ERR_FORMAT, "%s: the shapes of its tensors: %s", label, error.text);
    *out = shapes;
    return SL_OK;
}

sl_status sl_checkpoint_collect(const char *label, const checkpoint_files *files, sl_arena *arena, sl_tensor_set **out)
{
    sl_status status = SL_OK;
    sl_held_entry *held = NULL;
    json_t *shapes = NULL;
    int used = 0;
    SL_TRY(SL_NEW_ARRAY(held, count_entries(files)));
    for (int f = 0; f < files->count; f++) {
        SL_TRY(read_shapes(label, files->files[f], &shapes));
        for (int i = 0; i < sl_safetensors_count(files->files[f]); i++) {
            held[used].rank = files->ranks[f];
            SL_TRY(name_tensor(label, sl_safetensors_at(files->files[f], i), shapes, arena, &held[used].entry));
            used++;
        }
        json_decref(shapes);
        shapes = NULL;
    }
    SL_TRY(sl_tensor_set_create(label, held, used, out));
done:
    json_decref(shapes);
    sl_free(held);
    return status;
}

/* ---- As the manifest says -------------------------------------------------------------------- */

static const sl_safetensors *file_of_rank(const checkpoint_files *files, int rank)
{
    int low = 0, high = files->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (files->ranks[middle] == rank)
            return files->files[middle];
        if (files->ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The entry that a shard of the manifest stands for. */
static sl_status match_shard(const char *label, const sl_tensor_entry *tensor, const sl_sharding *sharding, int shard,
                             const checkpoint_files *files, sl_held_entry *out)
{
    sl_status status = SL_OK;
    const sl_shard *own = &sharding->shards[shard];
    char given[160], expected[160], *name = NULL;
    sl_tensor_entry slice = { .name = tensor->name, .shape = own->size };
    memcpy(slice.offsets, own->offsets, sizeof slice.offsets);
    if (sharding->count > 1)
        slice.whole = tensor->shape;
    size_t size = sl_slice_name(&slice, NULL, 0) + 1;
    SL_TRY(SL_NEW_ARRAY(name, size));
    sl_slice_name(&slice, name, size);
    const sl_safetensors *file = file_of_rank(files, own->placement.rank);
    const sl_tensor_entry *stored = file ? sl_safetensors_find(file, name) : NULL;
    if (!stored)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: '%s' is not in the file of rank %d", label, name, own->placement.rank));
    if (stored->dtype != sharding->properties.dtype || !sl_shape_equal(&stored->shape, &own->size))
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: '%s' is %s %s in the file of rank %d, the manifest says %s %s", label, name,
                       sl_dtype_name(stored->dtype), sl_shape_text(&stored->shape, given, sizeof given),
                       own->placement.rank, sl_dtype_name(sharding->properties.dtype),
                       sl_shape_text(&own->size, expected, sizeof expected)));
    out->rank = own->placement.rank;
    out->entry = *stored;
    out->entry.name = slice.name;
    out->entry.whole = slice.whole;
    memcpy(out->entry.offsets, slice.offsets, sizeof slice.offsets);
done:
    sl_free(name);
    return status;
}

/* Adds the slices of one tensor to held, which has room for `room` of them. */
static sl_status match_tensor(const char *label, const json_t *about, const checkpoint_files *files, int room,
                              sl_held_entry *held, int *used)
{
    sl_status status = SL_OK;
    sl_sharding sharding = { 0 };
    sl_tensor_entry tensor = { .name = json_string_value(json_object_get(about, "name")) };
    if (!tensor.name)
        return sl_fail(SL_ERR_FORMAT, "%s: a tensor lacks its name", label);
    SL_TRY(sl_shape_from_json(label, "shape", json_object_get(about, "shape"), &tensor.shape));
    SL_TRY(sl_sharding_from_json(label, json_object_get(about, "sharding"), &sharding));
    if (sharding.count > room)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: more shards than the files have tensors", label));
    if (sharding.count == 1 && !sl_shape_equal(&sharding.size, &tensor.shape))
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: the one shard of '%s' does not have its shape", label, tensor.name));
    for (int s = 0; s < sharding.count; s++)
        SL_TRY(match_shard(label, &tensor, &sharding, s, files, &held[s]));
    *used += sharding.count;
done:
    sl_sharding_destroy(&sharding);
    return status;
}

sl_status sl_checkpoint_match(const char *label, const json_t *manifest, const checkpoint_files *files,
                              sl_tensor_set **out)
{
    sl_status status = SL_OK;
    sl_held_entry *held = NULL;
    sl_tensor_set *set = NULL;
    const json_t *tensors = json_object_get(manifest, "tensors");
    int room = count_entries(files), used = 0;
    if (!json_is_array(tensors))
        return sl_fail(SL_ERR_FORMAT, "%s: 'tensors' is missing", label);
    SL_TRY(SL_NEW_ARRAY(held, room));
    for (size_t i = 0; i < json_array_size(tensors); i++)
        SL_TRY(match_tensor(label, json_array_get(tensors, i), files, room - used, held + used, &used));
    if (used != room)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: it has %d shards, the files %d tensors", label, used, room));
    SL_TRY(sl_tensor_set_create(label, held, used, &set));
    if ((size_t)sl_tensor_set_count(set) != json_array_size(tensors))
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: it names a tensor twice", label));
    *out = set;
    set = NULL;
done:
    sl_tensor_set_destroy(set);
    sl_free(held);
    return status;
}
