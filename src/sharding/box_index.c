/* The index is a tree: each node has the bounds of its shards, and half of them go to each of its two children, cut where
 * they spread most. Shards that do not overlap have bounds that hardly do, so a question follows few paths. */
#include "sharding/box_index.h"

#include "base/alloc.h"

#include <stdlib.h>

enum { LEAF_SHARDS = 8 };

typedef struct box_node {
    int64_t begin[SL_MAX_DIMS], end[SL_MAX_DIMS];
    int first, count; /* in the order of the index */
    int right;        /* the second child; the first comes right after its parent. 0: a leaf */
} box_node;

struct sl_box_index {
    const sl_shard *shards;
    int dims;
    int *order; /* numbers of shards; a node has a run of them */
    box_node *nodes;
    size_t capacity;
    int node_count;
};

bool sl_box_intersect(const sl_shard *a, const sl_shard *b, int64_t offsets[SL_MAX_DIMS], sl_shape *size)
{
    size->rank = a->size.rank;
    for (int d = 0; d < a->size.rank; d++) {
        int64_t begin = a->offsets[d] > b->offsets[d] ? a->offsets[d] : b->offsets[d];
        int64_t end_a = a->offsets[d] + a->size.dims[d], end_b = b->offsets[d] + b->size.dims[d];
        int64_t end = end_a < end_b ? end_a : end_b;
        if (end <= begin)
            return false;
        offsets[d] = begin;
        size->dims[d] = end - begin;
    }
    return true;
}

int64_t sl_box_volume(const sl_shape *size)
{
    int64_t count = 1;
    for (int d = 0; d < size->rank; d++) {
        if (size->dims[d] == 0) /* before the others, which may be huge then, are multiplied */
            return 0;
    }
    for (int d = 0; d < size->rank; d++)
        count *= size->dims[d];
    return count;
}

sl_box_runs sl_box_find_runs(const sl_shape *a, const sl_shape *b, const sl_shape *common)
{
    sl_box_runs runs = { .count = 1, .length = 1, .outer = common->rank };
    while (runs.outer > 0) { /* a dim is part of the run if all dims after it are complete in both */
        int d = --runs.outer;
        runs.length *= common->dims[d];
        if (common->dims[d] != a->dims[d] || common->dims[d] != b->dims[d])
            break;
    }
    for (int d = 0; d < runs.outer; d++)
        runs.count *= common->dims[d];
    return runs;
}

int64_t sl_box_run_place(const sl_box_runs *runs, const sl_shard *box, const int64_t *offsets, const sl_shape *common,
                         int64_t run)
{
    int64_t at = 0, stride = 1;
    for (int d = box->size.rank - 1; d >= 0; d--) {
        int64_t index = offsets[d] - box->offsets[d];
        if (d < runs->outer) {
            index += run % common->dims[d];
            run /= common->dims[d];
        }
        at += index * stride;
        stride *= box->size.dims[d];
    }
    return at;
}

sl_shard sl_box_of_range(const sl_shape *size, int64_t at, int64_t count)
{
    sl_shard box = { .size = *size };
    int64_t stride = 1, rest = at;
    for (int d = size->rank - 1; d >= 0; d--) {
        box.offsets[d] = rest % size->dims[d];
        rest /= size->dims[d];
    }
    if (size->rank == 0)
        return box;
    int dim = size->rank - 1;
    /* Up one dim as long as all dims below begin at 0 and are complete. */
    while (dim > 0 && box.offsets[dim] == 0 && count / stride >= size->dims[dim])
        stride *= size->dims[dim--];
    int64_t left = size->dims[dim] - box.offsets[dim], fits = count / stride;
    for (int d = 0; d < dim; d++)
        box.size.dims[d] = 1;
    box.size.dims[dim] = fits < left ? fits : left;
    return box;
}

/* ---- Building -------------------------------------------------------------------------------- */

static int64_t center(const sl_box_index *index, int shard, int dim)
{
    const sl_shard *box = &index->shards[shard];
    return box->offsets[dim] + box->size.dims[dim] / 2;
}

/* Moves the shards whose center along dim is smallest to the first half of order[first .. first + count). */
static void halve(sl_box_index *index, int first, int count, int dim)
{
    int *order = index->order, low = first, high = first + count - 1, middle = first + count / 2;
    while (low < high) {
        int64_t pivot = center(index, order[low + (high - low) / 2], dim);
        int i = low, j = high;
        while (i <= j) {
            while (center(index, order[i], dim) < pivot)
                i++;
            while (center(index, order[j], dim) > pivot)
                j--;
            if (i > j)
                break;
            int swap = order[i];
            order[i++] = order[j];
            order[j--] = swap;
        }
        if (middle <= j)
            high = j;
        else if (middle >= i)
            low = i;
        else
            return;
    }
}

/* The bounds of the node's shards. Returns the dim in which their centers spread most; -1 if all are in one place. */
static int measure(const sl_box_index *index, box_node *node)
{
    int widest = -1;
    int64_t spread = 0;
    for (int d = 0; d < index->dims; d++) {
        int64_t least = INT64_MAX, most = INT64_MIN;
        node->begin[d] = INT64_MAX;
        node->end[d] = INT64_MIN;
        for (int i = node->first; i < node->first + node->count; i++) {
            const sl_shard *shard = &index->shards[index->order[i]];
            int64_t begin = shard->offsets[d], end = begin + shard->size.dims[d];
            int64_t at = center(index, index->order[i], d);
            node->begin[d] = begin < node->begin[d] ? begin : node->begin[d];
            node->end[d] = end > node->end[d] ? end : node->end[d];
            least = at < least ? at : least;
            most = at > most ? at : most;
        }
        if (most - least > spread) {
            spread = most - least;
            widest = d;
        }
    }
    return widest;
}

static sl_status build(sl_box_index *index, int first, int count)
{
    sl_status status = SL_OK;
    int at = index->node_count++;
    box_node node = { .first = first, .count = count };
    SL_TRY(SL_GROW(index->nodes, &index->capacity, index->node_count));
    int dim = measure(index, &node);
    index->nodes[at] = node;
    if (count <= LEAF_SHARDS || dim < 0)
        return SL_OK;
    halve(index, first, count, dim);
    SL_TRY(build(index, first, count / 2));
    index->nodes[at].right = index->node_count;
    SL_TRY(build(index, first + count / 2, count - count / 2));
done:
    return status;
}

sl_status sl_box_index_create(const sl_shard *shards, int count, sl_box_index **out)
{
    sl_status status = SL_OK;
    sl_box_index *index = NULL;
    int used = 0;
    SL_TRY(SL_NEW(index));
    index->shards = shards;
    index->dims = count > 0 ? shards[0].size.rank : 0;
    SL_TRY(SL_NEW_ARRAY(index->order, count));
    for (int i = 0; i < count; i++) {
        if (sl_box_volume(&shards[i].size) > 0)
            index->order[used++] = i;
    }
    if (used > 0)
        SL_TRY(build(index, 0, used));
    *out = index;
    index = NULL;
done:
    sl_box_index_destroy(index);
    return status;
}

void sl_box_index_destroy(sl_box_index *index)
{
    if (!index)
        return;
    sl_free(index->order);
    sl_free(index->nodes);
    sl_free(index);
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static bool node_meets(const sl_box_index *index, const box_node *node, const sl_shard *box)
{
    for (int d = 0; d < index->dims; d++) {
        if (box->offsets[d] >= node->end[d] || box->offsets[d] + box->size.dims[d] <= node->begin[d])
            return false;
    }
    return true;
}

static sl_status find_below(const sl_box_index *index, int at, const sl_shard *box, sl_box_hits *hits)
{
    sl_status status = SL_OK;
    const box_node *node = &index->nodes[at];
    int64_t offsets[SL_MAX_DIMS];
    sl_shape size;
    if (!node_meets(index, node, box))
        return SL_OK;
    if (node->right) {
        SL_TRY(find_below(index, at + 1, box, hits));
        SL_TRY(find_below(index, node->right, box, hits));
        return SL_OK;
    }
    for (int i = node->first; i < node->first + node->count; i++) {
        if (!sl_box_intersect(&index->shards[index->order[i]], box, offsets, &size))
            continue;
        SL_TRY(SL_GROW(hits->shards, &hits->capacity, hits->count + 1));
        hits->shards[hits->count++] = index->order[i];
    }
done:
    return status;
}

static int compare_int(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

sl_status sl_box_index_find(const sl_box_index *index, const sl_shard *box, sl_box_hits *hits)
{
    hits->count = 0;
    if (index->node_count == 0 || sl_box_volume(&box->size) == 0)
        return SL_OK;
    sl_status status = find_below(index, 0, box, hits);
    if (status == SL_OK && hits->count > 1)
        qsort(hits->shards, (size_t)hits->count, sizeof *hits->shards, compare_int);
    return status;
}
