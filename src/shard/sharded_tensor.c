/* Sharded tensors: made from what ranks hold or by a sharding, and checked on all ranks together. */
#include "shard/sharded_tensor.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- Agreement ------------------------------------------------------------------------------- */

typedef struct rank_opinion {
    uint64_t hash;
    int32_t status;
    char message[500];
} rank_opinion;

static rank_opinion opinion_of(sl_status own, uint64_t hash)
{
    rank_opinion opinion = { .hash = hash, .status = own };
    if (own != SL_OK)
        snprintf(opinion.message, sizeof opinion.message, "%s", sl_error_message());
    return opinion;
}

sl_status sl_shard_agree(sl_group *group, const char *what, sl_status own, uint64_t hash)
{
    sl_status status = SL_OK;
    rank_opinion *all = NULL;
    const rank_opinion opinion = opinion_of(own, hash);
    int size = sl_group_size(group);
    SL_TRY(SL_NEW_ARRAY(all, size));
    SL_TRY(sl_group_all_gather(group, &opinion, sizeof opinion, all));
    for (int r = 0; r < size; r++) {
        if (all[r].status != SL_OK)
            SL_TRY(sl_fail((sl_status)all[r].status, "%s", all[r].message));
        if (all[r].hash != all[0].hash)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "ranks %d and %d differ in %s", sl_group_world_rank(group, 0),
                           sl_group_world_rank(group, r), what));
    }
done:
    sl_free(all);
    return status;
}

sl_status sl_sharding_hash(const sl_sharding *sharding, uint64_t *out)
{
    char *text = NULL;
    sl_status status = sl_sharding_write(sharding, &text);
    if (status == SL_OK)
        *out = XXH3_64bits(text, strlen(text));
    sl_free(text);
    return status;
}

/* ---- Owners ---------------------------------------------------------------------------------- */

typedef struct ranked_member {
    int rank, member;
} ranked_member;

static int compare_rank(const void *a, const void *b)
{
    int x = ((const ranked_member *)a)->rank, y = ((const ranked_member *)b)->rank;
    return (x > y) - (x < y);
}

/* Members of the group that hold the shards; refused if a placement names a rank outside it, or none. */
static sl_status find_owners(const sl_group *group, const sl_sharding *sharding, int *owners)
{
    sl_status status = SL_OK;
    ranked_member *members = NULL;
    int size = sl_group_size(group);
    char place[48];
    SL_TRY(SL_NEW_ARRAY(members, size));
    for (int m = 0; m < size; m++)
        members[m] = (ranked_member){ .rank = sl_group_world_rank(group, m), .member = m };
    qsort(members, (size_t)size, sizeof *members, compare_rank);
    for (int i = 0; i < sharding->count; i++) {
        const ranked_member key = { .rank = sharding->shards[i].placement.rank };
        const ranked_member *found = bsearch(&key, members, (size_t)size, sizeof key, compare_rank);
        if (!found)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "shard %d is placed on %s, which is no rank of the group", i,
                           sl_shard_place_text(&sharding->shards[i].placement, place, sizeof place)));
        owners[i] = found->member;
    }
done:
    sl_free(members);
    return status;
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* A tensor without data of its own yet: the sharding (taken over on success), owners, room for the local shards. */
static sl_status begin_tensor(sl_group *group, sl_device *device, sl_sharding *sharding, sl_sharded_tensor **out)
{
    sl_status status = SL_OK;
    sl_sharded_tensor *tensor = NULL;
    SL_TRY(SL_NEW(tensor));
    tensor->group = group;
    tensor->device = device;
    SL_TRY(SL_NEW_ARRAY(tensor->owners, sharding->count));
    SL_TRY(SL_NEW_ARRAY(tensor->data, sharding->count));
    SL_TRY(SL_NEW_ARRAY(tensor->locals, sharding->count));
    SL_TRY(find_owners(group, sharding, tensor->owners));
    tensor->sharding = *sharding;
    sharding->shards = NULL;
    *out = tensor;
    tensor = NULL;
done:
    sl_sharded_tensor_destroy(tensor);
    return status;
}

static void add_local(sl_sharded_tensor *tensor, int shard, const sl_local_shard *local)
{
    tensor->data[shard] = local->data;
    tensor->locals[tensor->local_count] = *local;
    tensor->locals[tensor->local_count++].shard = tensor->sharding.shards[shard]; /* offsets may be new */
}

static bool is_own(const sl_sharded_tensor *tensor, int shard)
{
    return tensor->owners[shard] == sl_group_rank(tensor->group);
}

static const char *device_name(const sl_device *device)
{
    return device ? sl_device_name(device) : "cpu";
}

/* Zeros for one shard. */
static sl_status make_memory(sl_sharded_tensor *tensor, int shard, sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_shard *about = &tensor->sharding.shards[shard];
    const sl_tensor_properties *properties = &tensor->sharding.properties;
    sl_local_shard local = { .meta = sl_meta_contiguous(properties->dtype, &about->size),
                             .layout = properties->layout,
                             .requires_grad = properties->requires_grad,
                             .pinned = properties->pinned,
                             .device = device_name(tensor->device) };
    size_t bytes = sl_meta_bytes(&local.meta);
    if (strcmp(about->placement.device, local.device) != 0)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d, shard %d: it is placed on %s, the device is %s",
                       about->placement.rank, shard, about->placement.device, local.device);
    SL_TRY(tensor->device ? sl_device_alloc(tensor->device, bytes, &local.data) : sl_alloc(bytes, 1, &local.data));
    add_local(tensor, shard, &local);
    if (stream)
        SL_TRY(sl_stream_memset(stream, local.data, 0, bytes));
done:
    return status;
}

static sl_status check_properties(const sl_tensor_properties *properties)
{
    if (properties->layout != SL_STORAGE_STRIDED)
        return sl_fail(SL_ERR_UNSUPPORTED, "only strided tensors can be sharded");
    if (properties->memory_format != SL_FORMAT_CONTIGUOUS)
        return sl_fail(SL_ERR_UNSUPPORTED, "only the contiguous memory format can be sharded");
    return SL_OK;
}

static sl_status copy_sharding(const sl_sharding *sharding, sl_sharding *out)
{
    sl_status status = check_properties(&sharding->properties);
    if (status != SL_OK)
        return status;
    return sl_sharding_copy(sharding, out);
}

sl_status sl_sharded_tensor_make(sl_group *group, sl_device *device, const sl_sharding *sharding,
                                 sl_sharded_tensor **out)
{
    sl_status status = SL_OK;
    sl_sharding copy = { 0 };
    sl_sharded_tensor *tensor = NULL;
    sl_stream *stream = NULL;
    SL_TRY(copy_sharding(sharding, &copy));
    SL_TRY(begin_tensor(group, device, &copy, &tensor));
    tensor->owns_memory = true;
    if (device)
        SL_TRY(sl_stream_create(device, &stream));
    for (int i = 0; i < tensor->sharding.count; i++) {
        if (is_own(tensor, i))
            SL_TRY(make_memory(tensor, i, stream));
    }
    if (stream)
        SL_TRY(sl_stream_synchronize(stream));
    *out = tensor;
    tensor = NULL;
done:
    sl_stream_destroy(stream);
    sl_sharded_tensor_destroy(tensor);
    sl_sharding_destroy(&copy);
    return status;
}

sl_status sl_sharded_tensor_create(sl_group *group, sl_device *device, const sl_sharding *sharding,
                                   sl_sharded_tensor **out)
{
    uint64_t hash = 0;
    sl_sharded_tensor *tensor = NULL;
    sl_status own = sl_sharding_hash(sharding, &hash);
    if (own == SL_OK)
        own = sl_sharded_tensor_make(group, device, sharding, &tensor);
    sl_status status = sl_shard_agree(group, "the sharding of a tensor", own, hash);
    if (status == SL_OK)
        *out = tensor;
    else
        sl_sharded_tensor_destroy(tensor);
    return status;
}

void sl_sharded_tensor_destroy(sl_sharded_tensor *tensor)
{
    if (!tensor)
        return;
    for (int i = 0; tensor->owns_memory && i < tensor->local_count; i++) {
        if (tensor->device)
            sl_device_free(tensor->device, tensor->locals[i].data);
        else
            sl_free(tensor->locals[i].data);
    }
    sl_sharding_destroy(&tensor->sharding);
    sl_free(tensor->owners);
    sl_free(tensor->locals);
    sl_free(tensor->data);
    sl_free(tensor);
}

/* ---- From local shards ----------------------------------------------------------------------- */

/* What a rank tells the others; its shards follow. */
typedef struct local_report {
    rank_opinion opinion;
    sl_shape size;
    sl_tensor_properties properties;
    int32_t count;
} local_report;

/* This rank's report: its shards, or what is wrong with them. The caller frees *out. */
static sl_status report_locals(sl_group *group, const sl_shape *size, const sl_local_shard *locals, int count,
                               local_report **out, size_t *bytes)
{
    sl_status status = SL_OK, own = SL_OK;
    sl_sharding sharding = { 0 };
    local_report *report = NULL;
    if (count > 0)
        own = sl_sharding_from_local(size, sl_group_world_rank(group, sl_group_rank(group)), locals, count, &sharding);
    *bytes = sizeof *report + (size_t)sharding.count * sizeof *sharding.shards;
    SL_TRY(sl_alloc(*bytes, 1, (void **)&report));
    *report = (local_report){
        .opinion = opinion_of(own, 0), .size = *size, .properties = sharding.properties, .count = sharding.count
    };
    if (sharding.count > 0)
        memcpy(report + 1, sharding.shards, (size_t)sharding.count * sizeof *sharding.shards);
    *out = report;
done:
    sl_sharding_destroy(&sharding);
    return status;
}

/* All ranks' shards as one sharding; dim >= 0: stacked along it. */
static sl_status merge_reports(const sl_blobs *blobs, int dim, sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_sharding *ranks = NULL, joined = { 0 };
    const sl_sharding **given = NULL;
    SL_TRY(SL_NEW_ARRAY(ranks, blobs->count));
    SL_TRY(SL_NEW_ARRAY(given, blobs->count));
    for (int r = 0; r < blobs->count; r++) {
        const local_report *report = blobs->data[r];
        if (report->opinion.status != SL_OK)
            SL_TRY(sl_fail((sl_status)report->opinion.status, "%s", report->opinion.message));
        ranks[r] = (sl_sharding){ .size = report->size,
                                  .properties = report->properties,
                                  .shards = (sl_shard *)(void *)(uintptr_t)(report + 1),
                                  .count = report->count };
        given[r] = report->count > 0 ? &ranks[r] : NULL;
    }
    if (dim < 0) {
        SL_TRY(sl_sharding_merge(given, blobs->count, out));
    } else {
        SL_TRY(sl_sharding_join(given, blobs->count, &joined));
        joined.size = joined.shards[0].size;
        SL_TRY(sl_sharding_stack(&joined, dim, out));
    }
done:
    sl_sharding_destroy(&joined);
    sl_free(given);
    sl_free(ranks);
    return status;
}

static sl_status make_from_locals(sl_group *group, sl_device *device, const sl_shape *size, int dim,
                                  const sl_local_shard *locals, int count, sl_sharded_tensor **out)
{
    sl_status status = SL_OK;
    local_report *report = NULL;
    size_t bytes = 0;
    sl_blobs *blobs = NULL;
    sl_sharding sharding = { 0 };
    sl_sharded_tensor *tensor = NULL;
    int used = 0;
    SL_TRY(report_locals(group, size, locals, count, &report, &bytes));
    SL_TRY(sl_group_gather_blobs(group, report, bytes, &blobs));
    SL_TRY(merge_reports(blobs, dim, &sharding));
    SL_TRY(begin_tensor(group, device, &sharding, &tensor));
    for (int i = 0; i < tensor->sharding.count; i++) { /* each rank's are still in its own order */
        if (is_own(tensor, i))
            add_local(tensor, i, &locals[used++]);
    }
    *out = tensor;
    tensor = NULL;
done:
    sl_sharded_tensor_destroy(tensor);
    sl_sharding_destroy(&sharding);
    sl_blobs_destroy(blobs);
    sl_free(report);
    return status;
}

sl_status sl_sharded_tensor_from_local(sl_group *group, sl_device *device, const sl_shape *size,
                                       const sl_local_shard *locals, int count, sl_sharded_tensor **out)
{
    return make_from_locals(group, device, size, -1, locals, count, out);
}

sl_status sl_sharded_tensor_stack(sl_group *group, sl_device *device, int dim, const sl_local_shard *locals, int count,
                                  sl_sharded_tensor **out)
{
    const sl_shape unknown = { .rank = count > 0 ? locals[0].shard.size.rank : 0 };
    if (dim < 0)
        return sl_fail(SL_ERR_ARGUMENT, "offsets along dim %d", dim);
    return make_from_locals(group, device, &unknown, dim, locals, count, out);
}

/* ---- From a known sharding ------------------------------------------------------------------- */

static bool same_box(const sl_shard *a, const sl_shard *b)
{
    return sl_shape_equal(&a->size, &b->size) &&
           memcmp(a->offsets, b->offsets, (size_t)a->size.rank * sizeof *a->offsets) == 0;
}

/* The local shard that the sharding's shard stands for. */
static sl_status match_local(const sl_sharded_tensor *tensor, int shard, const sl_local_shard *locals, int count,
                             const sl_local_shard **out)
{
    for (int i = 0; i < count; i++) {
        if (!same_box(&locals[i].shard, &tensor->sharding.shards[shard]))
            continue;
        *out = &locals[i];
        return SL_OK;
    }
    return sl_fail(SL_ERR_ARGUMENT, "rank %d: none of its shards has the offsets and size of shard %d of the sharding",
                   tensor->sharding.shards[shard].placement.rank, shard);
}

static int count_own(const sl_sharded_tensor *tensor)
{
    int own = 0;
    for (int i = 0; i < tensor->sharding.count; i++)
        own += is_own(tensor, i);
    return own;
}

sl_status sl_sharded_tensor_from_sharding(sl_group *group, sl_device *device, const sl_sharding *sharding,
                                          const sl_local_shard *locals, int count, sl_sharded_tensor **out)
{
    sl_status status = SL_OK;
    const int rank = sl_group_world_rank(group, sl_group_rank(group));
    sl_sharding copy = { 0 }, local = { 0 };
    sl_sharded_tensor *tensor = NULL;
    SL_TRY(copy_sharding(sharding, &copy));
    SL_TRY(begin_tensor(group, device, &copy, &tensor));
    if (count != count_own(tensor))
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "rank %d gives %d shards, the sharding has %d on it", rank, count,
                       count_own(tensor)));
    if (count > 0) {
        SL_TRY(sl_sharding_from_local(&sharding->size, rank, locals, count, &local));
        SL_TRY(sl_sharding_compare_properties(rank, &sharding->properties, &local.properties));
    }
    for (int i = 0; i < tensor->sharding.count; i++) {
        const sl_local_shard *found = NULL;
        if (!is_own(tensor, i))
            continue;
        SL_TRY(match_local(tensor, i, locals, count, &found));
        add_local(tensor, i, found);
    }
    *out = tensor;
    tensor = NULL;
done:
    sl_sharded_tensor_destroy(tensor);
    sl_sharding_destroy(&local);
    sl_sharding_destroy(&copy);
    return status;
}

/* ---- Looking at it --------------------------------------------------------------------------- */

const sl_sharding *sl_sharded_tensor_sharding(const sl_sharded_tensor *tensor)
{
    return &tensor->sharding;
}

int sl_sharded_tensor_local_count(const sl_sharded_tensor *tensor)
{
    return tensor->local_count;
}

const sl_local_shard *sl_sharded_tensor_local(const sl_sharded_tensor *tensor, int i)
{
    return i >= 0 && i < tensor->local_count ? &tensor->locals[i] : NULL;
}
