/* Boxes of a tensor: what two have in common, where its elements lie, and an index that tells which of many shards meet a
 * given box. Each check and plan asks the index once for each box, so that none of them compares all with all. */
#ifndef SL_SHARDING_BOX_INDEX_H
#define SL_SHARDING_BOX_INDEX_H

#include <sluice/sharding.h>

/* What two boxes of the same number of dims have in common; false if that is nothing. */
bool sl_box_intersect(const sl_shard *a, const sl_shard *b, int64_t offsets[SL_MAX_DIMS], sl_shape *size);
int64_t sl_box_volume(const sl_shape *size); /* elements of a box that lies in a tensor of a legal shape */

/* The largest box of a tensor that begins at element `at` and has only elements of [at, at + count) in row-major order. */
sl_shard sl_box_of_range(const sl_shape *size, int64_t at, int64_t count);

/* What two tensors have in common lies in each of them as so many runs of consecutive elements. */
typedef struct sl_box_runs {
    int64_t count, length; /* runs, elements of each */
    int outer;             /* dims before those that are part of a run */
} sl_box_runs;

sl_box_runs sl_box_find_runs(const sl_shape *a, const sl_shape *b, const sl_shape *common);
/* Element of the box's own data (row-major) with which a run begins. offsets and common are what the tensors have in
 * common. */
int64_t sl_box_run_place(const sl_box_runs *runs, const sl_shard *box, const int64_t *offsets, const sl_shape *common,
                         int64_t run);

typedef struct sl_box_index sl_box_index; /* immutable */

/* All shards have the same number of dims and lie in one tensor. They are borrowed until the destroy. Empty ones are left
 * out: nothing meets them. */
SL_MUST_CHECK sl_status sl_box_index_create(const sl_shard *shards, int count, sl_box_index **out);
void sl_box_index_destroy(sl_box_index *index); /* NULL is fine */

/* Numbers of shards in rising order; memory is kept from one question to the next. */
typedef struct sl_box_hits {
    int *shards;
    int count;
    size_t capacity;
} sl_box_hits;

/* The shards that have an element in common with the box. The caller frees hits->shards in the end. */
SL_MUST_CHECK sl_status sl_box_index_find(const sl_box_index *index, const sl_shard *box, sl_box_hits *hits);

#endif
