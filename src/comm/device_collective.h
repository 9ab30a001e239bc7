/* Collectives whose data goes from device to device, in the order of a stream; no host stands in between. Between ranks of
 * one machine they go through memory that all of them read, between machines through NCCL.
 *
 * Sums run in the order of the ranks or parts, element by element, with the bits of the collectives of groups, unless any
 * order will do. */
#ifndef SL_COMM_DEVICE_COLLECTIVE_H
#define SL_COMM_DEVICE_COLLECTIVE_H

#include "comm/device_words.h"

typedef struct sl_device_collective sl_device_collective; /* one rank's end */

/* out = sources[0] + sources[1] + ..., added from left to right with the bits of sl_group_all_reduce; in stream order and in
 * device memory. out may be one of the sources. running has room for count elements of the dtype in which they are summed,
 * f32 for narrower ones. */
typedef sl_status (*sl_device_sum_fn)(sl_stream *stream, sl_dtype dtype, int64_t count, const void *const *sources,
                                      int source_count, void *running, void *out);

typedef struct SL_NAMED_FIELDS sl_device_collective_options {
    size_t bytes;         /* of staging memory a rank, the same on all ranks: the fewer, the more turns */
    sl_device_sum_fn sum; /* lives longer */
    bool any_order;       /* sums may run in another order than that of the ranks, if that is faster */
} sl_device_collective_options;

/* Collective. group and words live longer. *out becomes NULL if the ranks have no way to each other, the same decision on all
 * ranks. reason (256 bytes) says why, or why the way is what it is. */
SL_MUST_CHECK sl_status sl_device_collective_open(sl_group *group, sl_device_words *words,
                                                  const sl_device_collective_options *options, char *reason,
                                                  sl_device_collective **out);
/* No stream of this rank uses it any more. NULL is fine. */
void sl_device_collective_close(sl_device_collective *collective);
/* Whether sums run in the order of the ranks. */
bool sl_device_collective_adds_in_order(const sl_device_collective *collective);
/* Of NCCL, that this rank has for it. */
int sl_device_collective_communicators(const sl_device_collective *collective);
/* How the data goes, for people. */
const char *sl_device_collective_way(const sl_device_collective *collective);

/* ---- In the order of a stream ----
 * All ranks make the same calls in the same order, on streams whose work is ordered. Memory is the device's and is as the
 * stream has it; the calls return at once, but for polled words. Arguments may change when they have returned. */

/* As sl_group_all_gather_bucket_post: counts are bytes. */
SL_MUST_CHECK sl_status sl_device_all_gather(sl_device_collective *collective, const sl_bucket_item *items, int count,
                                             sl_stream *stream);
/* As sl_group_reduce_scatter_bucket_post with SL_REDUCE_SUM. */
SL_MUST_CHECK sl_status sl_device_reduce_scatter(sl_device_collective *collective, const sl_bucket_item *items,
                                                 int count, int rows, sl_dtype dtype, sl_stream *stream);

/* A summand. */
typedef struct sl_device_part {
    int rank;   /* whose it is */
    void *data; /* on that rank; it gets the sum */
} sl_device_part;

/* Every part becomes the sum of all, added from left to right. All ranks give the same list, each with the addresses of its
 * own parts; a rank may have several or none. */
SL_MUST_CHECK sl_status sl_device_sum(sl_device_collective *collective, const sl_device_part *parts, int part_count,
                                      int64_t count, sl_dtype dtype, sl_stream *stream);
SL_MUST_CHECK sl_status sl_device_broadcast(sl_device_collective *collective, int root, void *data, size_t bytes,
                                            sl_stream *stream);

#endif
