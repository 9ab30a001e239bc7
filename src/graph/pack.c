/* Packing by first fit: blocks are placed one after another at the lowest offset that is free during their time. The
 * order decides the result; a few good ones are tried and the best is kept. */
#include "graph/pack.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

static size_t round_up(size_t bytes, size_t alignment)
{
    return (bytes + alignment - 1) & ~(alignment - 1);
}

static int compare_sizes(size_t a, size_t b)
{
    return (a < b) - (a > b); /* larger first */
}

static int by_size(const void *a, const void *b)
{
    const sl_block *x = *(sl_block *const *)a, *y = *(sl_block *const *)b;
    int order = compare_sizes(x->bytes, y->bytes);
    return order ? order : (x->first > y->first) - (x->first < y->first);
}

static int by_area(const void *a, const void *b)
{
    const sl_block *x = *(sl_block *const *)a, *y = *(sl_block *const *)b;
    int order = compare_sizes(x->bytes * (size_t)(x->last - x->first + 1), y->bytes * (size_t)(y->last - y->first + 1));
    return order ? order : by_size(a, b);
}

static int by_start(const void *a, const void *b)
{
    const sl_block *x = *(sl_block *const *)a, *y = *(sl_block *const *)b;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first) : by_size(a, b);
}

/* Puts a block among those placed before, which are kept in the order of their offsets. */
static size_t place(sl_block *block, sl_block **placed, int *count, size_t alignment)
{
    size_t offset = 0, size = round_up(block->bytes, alignment);
    int at = *count;
    for (int i = 0; i < *count; i++) {
        const sl_block *other = placed[i];
        if (other->last < block->first || other->first > block->last)
            continue;
        if (other->offset >= offset + size)
            break; /* the gap before it is wide enough, and so are all offsets after it too high to matter */
        size_t end = other->offset + round_up(other->bytes, alignment);
        offset = end > offset ? end : offset;
    }
    block->offset = offset;
    while (at > 0 && placed[at - 1]->offset > offset)
        at--;
    memmove(placed + at + 1, placed + at, (size_t)(*count - at) * sizeof(*placed));
    placed[at] = block;
    ++*count;
    return offset + size;
}

sl_status sl_pack_blocks(sl_block *blocks, int count, size_t alignment, size_t *total)
{
    static int (*const orders[])(const void *, const void *) = { by_size, by_area, by_start };
    sl_status status = SL_OK;
    sl_block **sorted = NULL, **placed = NULL;
    size_t *best = NULL, least = SIZE_MAX;
    SL_TRY(SL_NEW_ARRAY(sorted, count));
    SL_TRY(SL_NEW_ARRAY(placed, count));
    SL_TRY(SL_NEW_ARRAY(best, count));
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        size_t needed = 0;
        int done_count = 0;
        for (int i = 0; i < count; i++)
            sorted[i] = &blocks[i];
        if (count > 0)
            qsort(sorted, (size_t)count, sizeof *sorted, orders[o]);
        for (int i = 0; i < count; i++) {
            size_t end = place(sorted[i], placed, &done_count, alignment);
            needed = end > needed ? end : needed;
        }
        if (needed < least) {
            least = needed;
            for (int i = 0; i < count; i++)
                best[i] = blocks[i].offset;
        }
    }
    for (int i = 0; i < count; i++)
        blocks[i].offset = best[i];
    *total = least;
done:
    sl_free(sorted);
    sl_free(placed);
    sl_free(best);
    return status;
}
