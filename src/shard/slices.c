/* A range of a tensor that lies in slices is read from those that have some of it, run by run. */
#include "shard/slices.h"

#include "base/alloc.h"
#include "base/file.h"
#include "sharding/box_index.h"
#include "shard/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sl_slices {
    sl_sharding sharding;    /* of the tensor's shape, or of [elements] if the slices are ranges */
    sl_tensor_entry *places; /* one a shard */
    sl_box_index *index;
};

struct sl_tensor_set {
    sl_tensor_entry *tensors; /* sorted by name */
    sl_slices *slices;        /* one a tensor */
    int count;
};

/* ---- Names ----------------------------------------------------------------------------------- */

bool sl_entry_is_slice(const sl_tensor_entry *entry)
{
    return entry->whole.rank > 0;
}

size_t sl_slice_name(const sl_tensor_entry *entry, char *text, size_t size)
{
    int used = snprintf(text, size, "%s", entry->name);
    for (int d = 0; sl_entry_is_slice(entry) && d < entry->shape.rank; d++) {
        size_t left = size > (size_t)used ? size - (size_t)used : 0;
        used += snprintf(left ? text + used : NULL, left, "%c%" PRId64, d ? ',' : '@', entry->offsets[d]);
    }
    return (size_t)used;
}

bool sl_slice_normalize(sl_tensor_entry *entry)
{
    if (!sl_entry_is_slice(entry))
        return true;
    if (entry->count == sl_box_volume(&entry->whole)) {
        entry->shape = entry->whole;
        entry->whole = (sl_shape){ 0 };
        memset(entry->offsets, 0, sizeof entry->offsets);
        return true;
    }
    return entry->count > 0;
}

sl_tensor_entry sl_tensor_entry_range(const sl_tensor_entry *tensor, int64_t first, int64_t count)
{
    const size_t size = sl_dtype_size(tensor->dtype);
    sl_tensor_entry range = *tensor;
    range.whole = tensor->shape;
    range.shape = (sl_shape){ .rank = 1, .dims = { count } };
    memset(range.offsets, 0, sizeof range.offsets);
    range.offsets[0] = first;
    range.count = count;
    range.bytes = (size_t)count * size;
    if (tensor->data)
        range.data = (const char *)tensor->data + (size_t)first * size;
    range.offset += (uint64_t)first * size;
    return range;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* What shard number `shard` has of the box, to its place in out, which begins with element `first` of the tensor. */
static sl_status read_common(const sl_slices *slices, int shard, const sl_shard *box, int64_t first, char *out)
{
    sl_status status = SL_OK;
    const sl_shard *own = &slices->sharding.shards[shard];
    const sl_tensor_entry *place = &slices->places[shard];
    const sl_shard whole = { .size = slices->sharding.size };
    const size_t bytes = sl_dtype_size(place->dtype);
    sl_file_reader reader = { .fd = -1 };
    int64_t offsets[SL_MAX_DIMS];
    sl_shape common;
    sl_box_intersect(own, box, offsets, &common);
    const sl_box_runs runs = sl_box_find_runs(&slices->sharding.size, &own->size, &common);
    if (!place->data)
        SL_TRY(sl_safetensors_open_reader(place->file, &reader));
    for (int64_t run = 0; run < runs.count; run++) {
        int64_t from = sl_box_run_place(&runs, own, offsets, &common, run);
        int64_t to = sl_box_run_place(&runs, &whole, offsets, &common, run) - first;
        size_t length = (size_t)runs.length * bytes, at = (size_t)from * bytes;
        if (place->data)
            memcpy(out + (size_t)to * bytes, (const char *)place->data + at, length);
        else
            SL_TRY(sl_file_read_at(&reader, out + (size_t)to * bytes, length, place->offset + at));
    }
done:
    sl_file_close(&reader);
    return status;
}

sl_status sl_slices_read(const sl_slices *slices, int64_t first, int64_t count, void *out)
{
    sl_status status = SL_OK;
    sl_box_hits hits = { 0 };
    for (int64_t at = first; at < first + count;) {
        sl_shard box = sl_box_of_range(&slices->sharding.size, at, first + count - at);
        SL_TRY(sl_box_index_find(slices->index, &box, &hits));
        for (int h = 0; h < hits.count; h++)
            SL_TRY(read_common(slices, hits.shards[h], &box, first, out));
        at += sl_box_volume(&box.size);
    }
done:
    sl_free(hits.shards);
    return status;
}

/* ---- Putting together ------------------------------------------------------------------------ */

static int compare_held(const void *a, const void *b, void *list)
{
    int x = *(const int *)a, y = *(const int *)b;
    const sl_held_entry *held = list;
    int order = strcmp(held[x].entry.name, held[y].entry.name);
    return order ? order : (x > y) - (x < y);
}

/* Slices of one tensor agree in its type and shape and in how they are cut. */
static sl_status check_alike(const char *label, const sl_tensor_entry *a, const sl_tensor_entry *b)
{
    char first[160], second[160];
    if (a->dtype == b->dtype && sl_shape_equal(&a->whole, &b->whole) && a->shape.rank == b->shape.rank)
        return SL_OK;
    return sl_fail(SL_ERR_FORMAT, "%s: slices of %s differ: %s of %s, %s of %s", label, a->name,
                   sl_dtype_name(a->dtype), sl_shape_text(&a->whole, first, sizeof first), sl_dtype_name(b->dtype),
                   sl_shape_text(&b->whole, second, sizeof second));
}

/* The shape in which slices like this one are boxes. */
static sl_status size_of(const char *label, const sl_tensor_entry *entry, sl_shape *out)
{
    char slice[160], whole[160];
    int64_t elements;
    if (!sl_entry_is_slice(entry)) {
        *out = entry->shape;
        return SL_OK;
    }
    if (sl_shape_count(&entry->whole, &elements) != SL_OK)
        return sl_fail_context(SL_ERR_FORMAT, "%s: %s", label, entry->name);
    if (entry->shape.rank != entry->whole.rank && entry->shape.rank != 1)
        return sl_fail(SL_ERR_FORMAT, "%s: a slice %s of %s %s is neither a box nor a range", label,
                       sl_shape_text(&entry->shape, slice, sizeof slice), entry->name,
                       sl_shape_text(&entry->whole, whole, sizeof whole));
    *out = entry->shape.rank == entry->whole.rank ? entry->whole : (sl_shape){ .rank = 1, .dims = { elements } };
    return SL_OK;
}

static void free_slices(sl_slices *slices)
{
    sl_sharding_destroy(&slices->sharding);
    sl_free(slices->places);
    sl_box_index_destroy(slices->index);
    *slices = (sl_slices){ 0 };
}

/* The sharding of one tensor from the entries held[order[0 .. count)]. */
static sl_status join_slices(const char *label, const sl_held_entry *held, const int *order, int count, sl_slices *out)
{
    sl_status status = SL_OK;
    const sl_tensor_entry *first = &held[order[0]].entry;
    sl_sharding *sharding = &out->sharding;
    SL_TRY(size_of(label, first, &sharding->size));
    sharding->properties.dtype = first->dtype;
    SL_TRY(SL_NEW_ARRAY(sharding->shards, count));
    SL_TRY(SL_NEW_ARRAY(out->places, count));
    for (int i = 0; i < count; i++) {
        const sl_held_entry *own = &held[order[i]];
        sl_shard *shard = &sharding->shards[sharding->count++];
        SL_TRY(check_alike(label, first, &own->entry));
        *shard = (sl_shard){ .size = own->entry.shape, .placement = { .rank = own->rank, .device = "cpu" } };
        memcpy(shard->offsets, own->entry.offsets, sizeof shard->offsets);
        out->places[i] = own->entry;
    }
    if (sl_sharding_check(sharding) != SL_OK)
        SL_TRY(sl_fail_context(SL_ERR_FORMAT, "%s: %s", label, first->name));
    SL_TRY(sl_box_index_create(sharding->shards, sharding->count, &out->index));
done:
    if (status != SL_OK)
        free_slices(out);
    return status;
}

/* As it is if one rank has the whole. */
static sl_tensor_entry whole_tensor(const sl_tensor_entry *first, const sl_slices *slices)
{
    sl_tensor_entry tensor = *first;
    if (!sl_entry_is_slice(first))
        return tensor;
    tensor.shape = first->whole;
    tensor.count = sl_box_volume(&first->whole);
    tensor.bytes = (size_t)tensor.count * sl_dtype_size(first->dtype);
    tensor.whole = (sl_shape){ 0 };
    memset(tensor.offsets, 0, sizeof tensor.offsets);
    tensor.data = NULL;
    tensor.file = NULL;
    tensor.offset = 0;
    tensor.slices = slices;
    return tensor;
}

sl_status sl_tensor_set_create(const char *label, const sl_held_entry *held, int count, sl_tensor_set **out)
{
    sl_status status = SL_OK;
    sl_tensor_set *set = NULL;
    int *order = NULL;
    SL_TRY(SL_NEW(set));
    SL_TRY(SL_NEW_ARRAY(order, count));
    SL_TRY(SL_NEW_ARRAY(set->tensors, count));
    SL_TRY(SL_NEW_ARRAY(set->slices, count));
    for (int i = 0; i < count; i++)
        order[i] = i;
    if (count > 1)
        qsort_r(order, (size_t)count, sizeof *order, compare_held, (void *)(uintptr_t)held);
    for (int i = 0, next; i < count; i = next) {
        const sl_tensor_entry *first = &held[order[i]].entry;
        for (next = i + 1; next < count && strcmp(held[order[next]].entry.name, first->name) == 0; next++)
            continue;
        int used = sl_entry_is_slice(first) ? next - i : 1;
        sl_slices *slices = &set->slices[set->count];
        SL_TRY(join_slices(label, held, order + i, used, slices));
        set->tensors[set->count++] = whole_tensor(first, slices);
    }
    *out = set;
    set = NULL;
done:
    sl_free(order);
    sl_tensor_set_destroy(set);
    return status;
}

void sl_tensor_set_destroy(sl_tensor_set *set)
{
    if (!set)
        return;
    for (int i = 0; i < set->count; i++)
        free_slices(&set->slices[i]);
    sl_free(set->tensors);
    sl_free(set->slices);
    sl_free(set);
}

int sl_tensor_set_count(const sl_tensor_set *set)
{
    return set->count;
}

const sl_tensor_entry *sl_tensor_set_at(const sl_tensor_set *set, int i)
{
    return i >= 0 && i < set->count ? &set->tensors[i] : NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const sl_tensor_entry *)a)->name, ((const sl_tensor_entry *)b)->name);
}

const sl_tensor_entry *sl_tensor_set_find(const sl_tensor_set *set, const char *name)
{
    const sl_tensor_entry key = { .name = name };
    return set->count ? bsearch(&key, set->tensors, (size_t)set->count, sizeof key, compare_names) : NULL;
}

const sl_sharding *sl_tensor_set_sharding(const sl_tensor_set *set, int i)
{
    return i >= 0 && i < set->count ? &set->slices[i].sharding : NULL;
}
