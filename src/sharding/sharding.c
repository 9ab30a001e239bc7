/* How a tensor lies over ranks: boxes, the ways to cut them, and the proof that they are the whole tensor. */
#include "sharding/sharding.h"

#include "base/alloc.h"
#include "sharding/box_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Sizes ----------------------------------------------------------------------------------- */

sl_status sl_shape_flatten(const sl_shape *parts, int count, sl_shape *out)
{
    sl_shape flat = { 0 };
    int64_t elements;
    for (int i = 0; i < count; i++) {
        for (int d = 0; d < parts[i].rank; d++) {
            if (flat.rank == SL_MAX_DIMS)
                return sl_fail(SL_ERR_SHAPE, "a size of more than %d dims", SL_MAX_DIMS);
            flat.dims[flat.rank++] = parts[i].dims[d];
        }
    }
    sl_status status = sl_shape_count(&flat, &elements); /* refuses negative dims */
    if (status == SL_OK)
        *out = flat;
    return status;
}

sl_status sl_gather_check(int rank, int root, const sl_shape *size, const sl_shape *output)
{
    char expected[160], given[160];
    if (rank != root && output)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d gives an output to a gather that ends on rank %d", rank, root);
    if (rank == root && !output)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d is the root of the gather and gives no output", root);
    if (rank == root && !sl_shape_equal(size, output))
        return sl_fail(SL_ERR_SHAPE, "the output of the gather is %s, the tensor %s",
                       sl_shape_text(output, given, sizeof given), sl_shape_text(size, expected, sizeof expected));
    return SL_OK;
}

/* ---- Check ----------------------------------------------------------------------------------- */

static sl_status check_inside(const sl_sharding *sharding, int i)
{
    const sl_shard *shard = &sharding->shards[i];
    char text[160];
    if (shard->size.rank != sharding->size.rank)
        return sl_fail(SL_ERR_SHAPE, "shard %d has %d dims, the tensor %d", i, shard->size.rank, sharding->size.rank);
    for (int d = 0; d < shard->size.rank; d++) {
        int64_t length = shard->size.dims[d], whole = sharding->size.dims[d];
        if (shard->offsets[d] < 0 || length < 0 || length > whole || shard->offsets[d] > whole - length)
            return sl_fail(SL_ERR_SHAPE, "shard %d reaches from %" PRId64 " over %" PRId64 " in dim %d of a tensor %s",
                           i, shard->offsets[d], length, d, sl_shape_text(&sharding->size, text, sizeof text));
    }
    return SL_OK;
}

/* "[0, 2] + [4, 2] on rank:1/cpu" */
static void describe_shard(const sl_shard *shard, char *text, size_t size)
{
    sl_shape offsets = { .rank = shard->size.rank };
    char begin[160], length[160], place[48];
    memcpy(offsets.dims, shard->offsets, sizeof offsets.dims);
    snprintf(text, size, "%s + %s on %s", sl_shape_text(&offsets, begin, sizeof begin),
             sl_shape_text(&shard->size, length, sizeof length),
             sl_shard_place_text(&shard->placement, place, sizeof place));
}

static sl_status fail_overlap(const sl_sharding *sharding, int a, int b)
{
    char first[400], second[400];
    describe_shard(&sharding->shards[a], first, sizeof first);
    describe_shard(&sharding->shards[b], second, sizeof second);
    return sl_fail(SL_ERR_SHAPE, "shards %d and %d overlap: %s, %s", a, b, first, second);
}

/* Each of the shards [first, first + count) meets itself and no other of them. */
static sl_status check_overlap(const sl_sharding *sharding, int first, int count)
{
    sl_status status = SL_OK;
    sl_box_index *index = NULL;
    sl_box_hits hits = { 0 };
    SL_TRY(sl_box_index_create(sharding->shards + first, count, &index));
    for (int i = first; i < first + count; i++) {
        SL_TRY(sl_box_index_find(index, &sharding->shards[i], &hits));
        if (hits.count > 1)
            SL_TRY(fail_overlap(sharding, first + hits.shards[0], first + hits.shards[1]));
    }
done:
    sl_free(hits.shards);
    sl_box_index_destroy(index);
    return status;
}

/* The shards [first, first + count) are the whole tensor. */
static sl_status check_copy(const sl_sharding *sharding, int first, int count, int64_t whole)
{
    sl_status status = SL_OK;
    int64_t covered = 0;
    char text[160];
    SL_TRY(check_overlap(sharding, first, count));
    for (int i = first; i < first + count; i++) /* no overflow: without overlaps it is at most the whole */
        covered += sl_box_volume(&sharding->shards[i].size);
    if (covered != whole)
        SL_TRY(sl_fail(SL_ERR_SHAPE, "the shards have %" PRId64 " of the %" PRId64 " elements of a tensor %s", covered,
                       whole, sl_shape_text(&sharding->size, text, sizeof text)));
done:
    return status;
}

sl_status sl_sharding_check(const sl_sharding *sharding)
{
    sl_status status = SL_OK;
    int64_t whole;
    const int copies = sharding->copies ? sharding->copies : 1;
    if (copies < 1 || sharding->count % copies != 0)
        return sl_fail(SL_ERR_SHAPE, "%d shards are not %d copies of a tensor", sharding->count, copies);
    SL_TRY(sl_shape_count(&sharding->size, &whole));
    for (int i = 0; i < sharding->count; i++)
        SL_TRY(check_inside(sharding, i));
    for (int c = 0; c < copies; c++)
        SL_TRY(check_copy(sharding, c * sl_sharding_run(sharding), sl_sharding_run(sharding), whole));
done:
    return status;
}

int sl_sharding_find(const sl_sharding *sharding, int rank)
{
    for (int i = 0; i < sharding->count; i++) {
        if (sharding->shards[i].placement.rank == rank)
            return i;
    }
    return -1;
}

/* ---- Making ---------------------------------------------------------------------------------- */

void sl_sharding_destroy(sl_sharding *sharding)
{
    if (!sharding)
        return;
    sl_free(sharding->shards);
    *sharding = (sl_sharding){ 0 };
}

sl_status sl_sharding_copy(const sl_sharding *sharding, sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_sharding copy = *sharding;

    copy.shards = NULL;
    if (sharding->count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "a sharding without shards");
    SL_TRY(SL_NEW_ARRAY(copy.shards, sharding->count));
    memcpy(copy.shards, sharding->shards, (size_t)sharding->count * sizeof *sharding->shards);
    SL_TRY(sl_sharding_check(&copy));
    *out = copy;
    copy.shards = NULL;
done:
    sl_sharding_destroy(&copy);
    return status;
}

sl_status sl_sharding_list(const sl_shape *size, const sl_tensor_properties *properties, const sl_shard *shards,
                           int count, sl_sharding *out)
{
    const sl_sharding borrowed = {
        .size = *size, .properties = *properties, .shards = (sl_shard *)(uintptr_t)shards, .count = count
    };
    return sl_sharding_copy(&borrowed, out);
}

sl_status sl_sharding_grid(const sl_shape *size, const sl_tensor_properties *properties, const int *parts,
                           const sl_shard_place *placements, int count, sl_sharding *out)
{
    sl_status status = SL_OK;
    sl_shard *shards = NULL;
    int64_t product = 1;

    for (int d = 0; d < size->rank; d++) {
        if (parts[d] < 1 || (product *= parts[d]) > INT32_MAX)
            return sl_fail(SL_ERR_ARGUMENT, "%d parts along dim %d", parts[d], d);
    }
    if (product != count)
        return sl_fail(SL_ERR_ARGUMENT, "a grid of %" PRId64 " shards for %d placements", product, count);
    SL_TRY(SL_NEW_ARRAY(shards, count));
    for (int i = 0; i < count; i++) {
        int rest = i;
        shards[i].size = *size;
        shards[i].placement = placements[i];
        for (int d = size->rank - 1; d >= 0; d--) {
            int64_t whole = size->dims[d], length = whole / parts[d] + (whole % parts[d] != 0);
            int64_t begin = rest % parts[d] * length;
            begin = begin < whole ? begin : whole; /* chunks past the end are empty and lie at the end */
            shards[i].offsets[d] = begin;
            shards[i].size.dims[d] = length < whole - begin ? length : whole - begin;
            rest /= parts[d];
        }
    }
    SL_TRY(sl_sharding_list(size, properties, shards, count, out));
done:
    sl_free(shards);
    return status;
}

sl_status sl_sharding_chunk(const sl_shape *size, const sl_tensor_properties *properties, int dim,
                            const sl_shard_place *placements, int count, sl_sharding *out)
{
    int parts[SL_MAX_DIMS] = { 1, 1, 1, 1, 1, 1 };
    if (dim < 0)
        dim += size->rank;
    if (dim < 0 || dim >= size->rank)
        return sl_fail(SL_ERR_ARGUMENT, "chunks along dim %d of a tensor of %d dims", dim, size->rank);
    parts[dim] = count;
    return sl_sharding_grid(size, properties, parts, placements, count, out);
}

sl_status sl_sharding_flat(const sl_shape *size, const sl_tensor_properties *properties, int group,
                           const sl_shard_place *placements, int count, sl_sharding *out)
{
    sl_status status = SL_OK;
    int64_t whole;
    sl_sharding sharding = { .properties = *properties, .count = count };

    if (count < 1 || group < 1 || count % group != 0)
        return sl_fail(SL_ERR_ARGUMENT, "%d placements cannot be groups of %d", count, group);
    SL_TRY(sl_shape_count(size, &whole));
    SL_TRY(SL_NEW_ARRAY(sharding.shards, count));
    sharding.size = (sl_shape){ .rank = 1, .dims = { whole } };
    sharding.copies = count / group;
    const int64_t piece = whole / count + (whole % count != 0);
    for (int i = 0; i < count; i++) { /* in pieces: the elements of all of them may be too many to count */
        int64_t first = (int64_t)(i % group) * sharding.copies, pieces = piece ? whole / piece : 0;
        int64_t begin = first <= pieces ? first * piece : whole;
        int64_t end = first + sharding.copies <= pieces ? (first + sharding.copies) * piece : whole;
        sharding.shards[i] = (sl_shard){ .offsets = { begin },
                                         .size = { .rank = 1, .dims = { end - begin } },
                                         .placement = placements[i] };
    }
    *out = sharding;
    sharding.shards = NULL;
done:
    sl_sharding_destroy(&sharding);
    return status;
}
