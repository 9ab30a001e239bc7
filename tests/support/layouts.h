/* Random tensors cut into random boxes, and what each box must hold: element e of a tensor is a number made from e. */
#ifndef TESTS_SUPPORT_LAYOUTS_H
#define TESTS_SUPPORT_LAYOUTS_H

#include <sluice/shard.h>

#include <stdio.h>
#include <stdlib.h>

static inline uint32_t layout_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

static inline int64_t layout_below(uint64_t *seed, int64_t limit)
{
    return limit > 0 ? (int64_t)(layout_random(seed) % (uint64_t)limit) : 0;
}

/* 1 to dims dims of up to `longest`, now and then one of 0. */
static inline sl_shape layout_shape(uint64_t *seed, int dims, int64_t longest)
{
    sl_shape shape = { .rank = 1 + (int)layout_below(seed, dims) };
    for (int d = 0; d < shape.rank; d++)
        shape.dims[d] = layout_below(seed, 40) == 0 ? 0 : 1 + layout_below(seed, longest);
    return shape;
}

static inline int64_t layout_count(const sl_shape *shape)
{
    int64_t count = 1;
    for (int d = 0; d < shape->rank; d++)
        count *= shape->dims[d];
    return count;
}

/* Cuts the whole again and again until there are `count` boxes; some may be empty. Ranks are random, too. */
static inline void layout_cut(uint64_t *seed, const sl_shape *whole, int count, int ranks, sl_shard *out)
{
    out[0] = (sl_shard){ .size = *whole };
    for (int used = 1; used < count; used++) {
        sl_shard *box = &out[layout_below(seed, used)];
        int d = (int)layout_below(seed, whole->rank);
        int64_t at = layout_below(seed, box->size.dims[d] + 1);
        out[used] = *box;
        out[used].offsets[d] += at;
        out[used].size.dims[d] -= at;
        box->size.dims[d] = at;
    }
    for (int i = 0; i < count; i++) {
        out[i].placement = (sl_shard_place){ .rank = (int)layout_below(seed, ranks) };
        snprintf(out[i].placement.device, sizeof out[i].placement.device, "cpu");
    }
}

static inline float layout_value(int64_t element)
{
    return (float)(element * 7 + 1);
}

/* The number of element e of a box among those of the whole, row by row. */
static inline int64_t layout_element(const sl_shape *whole, const sl_shard *box, int64_t e)
{
    int64_t at = 0, stride = 1;
    for (int d = whole->rank - 1; d >= 0; d--) {
        at += (box->offsets[d] + e % box->size.dims[d]) * stride;
        e /= box->size.dims[d];
        stride *= whole->dims[d];
    }
    return at;
}

/* What the box holds; the caller frees it. */
static inline float *layout_data(const sl_shape *whole, const sl_shard *box)
{
    int64_t count = layout_count(&box->size);
    float *data = malloc((size_t)(count + 1) * sizeof *data);
    if (!data)
        abort();
    for (int64_t e = 0; e < count; e++)
        data[e] = layout_value(layout_element(whole, box, e));
    return data;
}

#endif
