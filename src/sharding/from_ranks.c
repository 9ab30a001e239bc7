/* Shardings from what ranks hold: one rank's from its tensors, all ranks' from each one's. */
#include "sharding/sharding.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A property as text, for comparing and for the message. */
typedef char property_text[160];

/* Who is compared: two shards of a rank, two ranks, or a rank's shards with the sharding that they are said to be of. */
typedef struct compared {
    enum { TWO_SHARDS, TWO_RANKS, SHARDING_AND_SHARDS } kind;
    int a, b; /* ranks */
} compared;

/* Both texts must be equal. */
static sl_status expect_same(const char *property, const char *expected, const char *given, const compared *who)
{
    if (strcmp(expected, given) == 0)
        return SL_OK;
    if (who->kind == TWO_SHARDS)
        return sl_fail(SL_ERR_SHAPE, "rank %d: its shards differ in %s: %s and %s", who->a, property, expected, given);
    if (who->kind == TWO_RANKS)
        return sl_fail(SL_ERR_SHAPE, "ranks differ in %s: %s on rank %d, %s on rank %d", property, expected, who->a,
                       given, who->b);
    return sl_fail(SL_ERR_SHAPE, "rank %d: %s of the sharding is %s, that of its shards %s", who->a, property, expected,
                   given);
}

static const char *truth(bool value)
{
    return value ? "true" : "false";
}

static sl_status expect_same_properties(const sl_tensor_properties *a, const sl_tensor_properties *b,
                                        const compared *who)
{
    sl_status status = SL_OK;
    SL_TRY(expect_same("dtype", sl_dtype_name(a->dtype), sl_dtype_name(b->dtype), who));
    SL_TRY(expect_same("layout", a->layout ? "sparse" : "strided", b->layout ? "sparse" : "strided", who));
    SL_TRY(expect_same("requires_grad", truth(a->requires_grad), truth(b->requires_grad), who));
    SL_TRY(expect_same("pinned memory", truth(a->pinned), truth(b->pinned), who));
done:
    return status;
}

sl_status sl_sharding_compare_properties(int rank, const sl_tensor_properties *sharding,
                                         const sl_tensor_properties *local)
{
    return expect_same_properties(sharding, local, &(compared){ .kind = SHARDING_AND_SHARDS, .a = rank });
}

/* One tensor against its own description. */
static sl_status check_local(int rank, int index, const sl_local_shard *local)
{
    property_text expected, given;
    const sl_shard_place *placement = &local->shard.placement;
    if (local->layout != SL_STORAGE_STRIDED)
        return sl_fail(SL_ERR_UNSUPPORTED, "rank %d, shard %d: only strided tensors can be sharded", rank, index);
    if (!sl_meta_is_contiguous(&local->meta))
        return sl_fail(SL_ERR_UNSUPPORTED, "rank %d, shard %d: the tensor is not contiguous", rank, index);
    if (!sl_shape_equal(&local->shard.size, &local->meta.shape))
        return sl_fail(SL_ERR_SHAPE, "rank %d, shard %d: the size is %s, the tensor %s", rank, index,
                       sl_shape_text(&local->shard.size, expected, sizeof expected),
                       sl_shape_text(&local->meta.shape, given, sizeof given));
    if (placement->rank < 0)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d, shard %d: it is placed on no rank", rank, index);
    if (placement->rank != rank)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d, shard %d: it is placed on rank %d", rank, index, placement->rank);
    if (strcmp(placement->device, local->device) != 0)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d, shard %d: it is placed on %s, the tensor is on %s", rank, index,
                       placement->device, local->device);
    return SL_OK;
}

static sl_tensor_properties properties_of(const sl_local_shard *local)
{
    return (sl_tensor_properties){ .dtype = local->meta.dtype,
                                   .layout = local->layout,
                                   .requires_grad = local->requires_grad,
                                   .pinned = local->pinned };
}

sl_status sl_sharding_from_local(const sl_shape *size, int rank, const sl_local_shard *locals, int count,
                                 sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_sharding sharding = { .size = *size, .count = count };

    if (count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d has no shard to describe", rank);
    sharding.properties = properties_of(&locals[0]);
    SL_TRY(SL_NEW_ARRAY(sharding.shards, count));
    for (int i = 0; i < count; i++) {
        sl_tensor_properties given = properties_of(&locals[i]);
        SL_TRY(check_local(rank, i, &locals[i]));
        SL_TRY(expect_same_properties(&sharding.properties, &given, &(compared){ .kind = TWO_SHARDS, .a = rank }));
        sharding.shards[i] = locals[i].shard;
    }
    *out = sharding;
    sharding.shards = NULL;
done:
    sl_sharding_destroy(&sharding);
    return status;
}

sl_status sl_sharding_join(const sl_sharding *const *ranks, int count, sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_sharding whole = { 0 };
    property_text expected, given;
    int first = -1, total = 0;

    for (int r = 0; r < count; r++) {
        if (!ranks[r])
            continue;
        first = first < 0 ? r : first;
        total += ranks[r]->count;
        const compared who = { .kind = TWO_RANKS,
                               .a = ranks[first]->shards[0].placement.rank,
                               .b = ranks[r]->shards[0].placement.rank };
        SL_TRY(expect_same("size", sl_shape_text(&ranks[first]->size, expected, sizeof expected),
                           sl_shape_text(&ranks[r]->size, given, sizeof given), &who));
        SL_TRY(expect_same_properties(&ranks[first]->properties, &ranks[r]->properties, &who));
    }
    if (first < 0)
        return sl_fail(SL_ERR_ARGUMENT, "no rank has a shard of the tensor");
    whole = (sl_sharding){ .size = ranks[first]->size, .properties = ranks[first]->properties };
    SL_TRY(SL_NEW_ARRAY(whole.shards, total));
    for (int r = 0; r < count; r++) {
        for (int i = 0; ranks[r] && i < ranks[r]->count; i++)
            whole.shards[whole.count++] = ranks[r]->shards[i];
    }
    *out = whole;
    whole.shards = NULL;
done:
    sl_sharding_destroy(&whole);
    return status;
}

sl_status sl_sharding_merge(const sl_sharding *const *ranks, int count, sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_sharding whole = { 0 };
    SL_TRY(sl_sharding_join(ranks, count, &whole));
    SL_TRY(sl_sharding_check(&whole));
    *out = whole;
    whole.shards = NULL;
done:
    sl_sharding_destroy(&whole);
    return status;
}

/* By rank; shards of one rank stay in their order. */
static int compare_rank(const void *a, const void *b, void *shards)
{
    int x = *(const int *)a, y = *(const int *)b;
    int rank_x = ((const sl_shard *)shards)[x].placement.rank, rank_y = ((const sl_shard *)shards)[y].placement.rank;
    return rank_x != rank_y ? (rank_x > rank_y) - (rank_x < rank_y) : x - y;
}

sl_status sl_sharding_stack(const sl_sharding *sharding, int dim, sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_sharding stacked = { .size = sharding->size, .properties = sharding->properties, .count = sharding->count };
    int *order = NULL;

    if (sharding->copies > 1)
        return sl_fail(SL_ERR_ARGUMENT, "offsets of a tensor that is there %d times", sharding->copies);
    if (dim < 0 || dim >= sharding->size.rank)
        return sl_fail(SL_ERR_ARGUMENT, "offsets along dim %d of a tensor of %d dims", dim, sharding->size.rank);
    SL_TRY(SL_NEW_ARRAY(stacked.shards, sharding->count));
    SL_TRY(SL_NEW_ARRAY(order, sharding->count));
    for (int i = 0; i < sharding->count; i++)
        order[i] = i;
    qsort_r(order, (size_t)stacked.count, sizeof *order, compare_rank, sharding->shards);
    stacked.size.dims[dim] = 0;
    for (int i = 0; i < stacked.count; i++) {
        sl_shard *shard = &stacked.shards[i];
        *shard = sharding->shards[order[i]];
        memset(shard->offsets, 0, sizeof shard->offsets);
        shard->offsets[dim] = stacked.size.dims[dim];
        if (shard->size.rank == stacked.size.rank &&
            __builtin_add_overflow(stacked.size.dims[dim], shard->size.dims[dim], &stacked.size.dims[dim])) {
            status = sl_fail(SL_ERR_SHAPE, "the shards add up to too much along dim %d", dim);
            goto done;
        }
    }
    SL_TRY(sl_sharding_check(&stacked));
    *out = stacked;
    stacked.shards = NULL;
done:
    sl_free(order);
    sl_free(stacked.shards);
    return status;
}
