/* Sharding: who holds what of a tensor. Pure data, no communication and no memory of a device: the pipeline, the runtime,
 * checkpoints and sharded tensors all describe the parts of a tensor by it. */
#ifndef SLUICE_SHARDING_H
#define SLUICE_SHARDING_H

#include <sluice/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The description --------------------------------------------------------------------------- */

/* Where a shard lives: "rank:1/cpu", "rank:3/cuda:0". */
typedef struct sl_shard_place {
    int rank; /* -1 if the text names none: the process that has the tensor */
    char device[24];
} sl_shard_place;

/* "rank:N/DEVICE", "rank:N" (its cpu) or "DEVICE" (no rank). A device is a kind ("cpu", "cuda", ...) or a kind and a
 * number ("cuda:0"). The rank must be one of `ranks`, the group's `count` ranks in the numbering of the run; NULL: 0 to
 * count - 1. */
SL_API SL_MUST_CHECK sl_status sl_shard_place_parse(const char *text, const int *ranks, int count, sl_shard_place *out);
SL_API char *sl_shard_place_text(const sl_shard_place *placement, char *text, size_t size); /* returns text */

/* A box of a tensor: element [offsets] .. [offsets + size). */
typedef struct sl_shard {
    int64_t offsets[SL_MAX_DIMS];
    sl_shape size;
    sl_shard_place placement;
} sl_shard;

typedef enum sl_storage_layout { SL_STORAGE_STRIDED, SL_STORAGE_SPARSE } sl_storage_layout;
typedef enum sl_memory_format { SL_FORMAT_CONTIGUOUS, SL_FORMAT_CHANNELS_LAST, SL_FORMAT_PRESERVE } sl_memory_format;

typedef struct sl_tensor_properties {
    sl_dtype dtype;
    sl_storage_layout layout;
    sl_memory_format memory_format;
    bool requires_grad, pinned;
} sl_tensor_properties;

/* How a tensor lies over ranks. Plain data; shards belong to it. */
typedef struct sl_sharding {
    sl_shape size;
    sl_tensor_properties properties;
    sl_shard *shards;
    int count;
    int copies; /* the shards are so many lists of count / copies, each of them the whole tensor; 0: 1 */
} sl_sharding;

SL_API void sl_sharding_destroy(sl_sharding *sharding); /* frees shards, leaves it empty; NULL is fine */

/* Every shard lies inside, none overlaps another of its copy, together they are the whole tensor. Names the shards. */
SL_API SL_MUST_CHECK sl_status sl_sharding_check(const sl_sharding *sharding);

/* Number of the first shard on the rank, in the time of a search from the first on; -1: it has none. */
SL_API int sl_sharding_find(const sl_sharding *sharding, int rank);

/* The four ways to make one; properties and placements are copied, the result is checked.
 * Chunks of ceil(n / count) along a dim, the last ones shorter or empty: 11 over 4 is 3, 3, 3, 2; 5 over 4 is 2, 2, 1,
 * 0. Placement i gets chunk i. */
SL_API SL_MUST_CHECK sl_status sl_sharding_chunk(const sl_shape *size, const sl_tensor_properties *properties, int dim,
                                                 const sl_shard_place *placements, int count, sl_sharding *out);
/* Such chunks along every dim at once: parts[d] of them along dim d; count is their product, the last dim runs fastest.
 */
SL_API SL_MUST_CHECK sl_status sl_sharding_grid(const sl_shape *size, const sl_tensor_properties *properties,
                                                const int *parts, const sl_shard_place *placements, int count,
                                                sl_sharding *out);
/* Ranges of the elements in row-major order, as replicas hold parameters that they share: the sharding's size is
 * [elements], whatever dims `size` has. Every `group` placements have the whole, placement i range i % group; group divides
 * count. A range is count / group pieces of ceil(elements / count), the last ones are shorter or empty. So the ranges of
 * smaller groups are those of larger ones put together. 11 elements over 4 placements: 3, 3, 3, 2; in groups of 2: 6, 5,
 * 6, 5; in groups of 1 each has all. */
SL_API SL_MUST_CHECK sl_status sl_sharding_flat(const sl_shape *size, const sl_tensor_properties *properties, int group,
                                                const sl_shard_place *placements, int count, sl_sharding *out);
/* Any boxes. */
SL_API SL_MUST_CHECK sl_status sl_sharding_list(const sl_shape *size, const sl_tensor_properties *properties,
                                                const sl_shard *shards, int count, sl_sharding *out);

/* A sharding as a line of JSON with a version, and back. Reading checks it as sl_sharding_check does; label stands in
 * messages for where the text comes from. The caller frees *out with sl_free. */
SL_API SL_MUST_CHECK sl_status sl_sharding_write(const sl_sharding *sharding, char **out);
SL_API SL_MUST_CHECK sl_status sl_sharding_parse(const char *label, const char *text, sl_sharding *out);

/* A shard together with the tensor that holds it. */
typedef struct sl_local_shard {
    sl_shard shard;
    sl_meta meta; /* of the tensor */
    sl_storage_layout layout;
    bool requires_grad, pinned;
    const char *device; /* "cpu" */
    void *data;         /* of the tensor, memory of that device */
} sl_local_shard;

/* What one rank knows of a tensor of this size: its own shards. Refused: none at all; a tensor that is not strided and
 * contiguous; dtypes, requires_grad or pinned memory that differ; a placement on another rank or device than the
 * tensor's; a size other than the tensor's. Not checked: whether they are the whole tensor. */
SL_API SL_MUST_CHECK sl_status sl_sharding_from_local(const sl_shape *size, int rank, const sl_local_shard *locals,
                                                      int count, sl_sharding *out);
/* Joins what all ranks know, in the order of ranks; NULL stands for one without shards. Sizes and properties must agree, and the
 * shards must be the whole tensor. */
SL_API SL_MUST_CHECK sl_status sl_sharding_merge(const sl_sharding *const *ranks, int count, sl_sharding *out);
/* New offsets along dim from the sizes alone, in the order of the placements' ranks; the size of the tensor is their
 * sum. For shards whose makers knew nothing of each other. */
SL_API SL_MUST_CHECK sl_status sl_sharding_stack(const sl_sharding *sharding, int dim, sl_sharding *out);

/* A gather to rank root needs an output of the full size there and none elsewhere (NULL). */
SL_API SL_MUST_CHECK sl_status sl_gather_check(int rank, int root, const sl_shape *size, const sl_shape *output);
/* Nested sizes as one: the dims of all parts, one after another. */
SL_API SL_MUST_CHECK sl_status sl_shape_flatten(const sl_shape *parts, int count, sl_shape *out);

/* One piece of a reshard: what shard `from` of one sharding and shard `to` of another have in common. */
typedef struct sl_shard_move {
    int from, to;
    int64_t offsets[SL_MAX_DIMS]; /* in the tensor */
    sl_shape size;
} sl_shard_move;

/* All pieces by which one sharding becomes the other, by `to` and then `from`. A gather is a reshard to one shard. Of
 * several copies a rank that holds shards reads its own copy, the others the first. The caller frees *out with sl_free. */
SL_API SL_MUST_CHECK sl_status sl_reshard_plan(const sl_sharding *from, const sl_sharding *to, sl_shard_move **out,
                                               int *count);
#ifdef __cplusplus
}
#endif
#endif
