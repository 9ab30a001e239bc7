/* The collectives of a runtime: from device to device if the ranks of the group have a way, else posted to go through memory
 * of the host. The bits are the same, unless sums may be fast. */
#ifndef SL_RUNTIME_EXCHANGE_H
#define SL_RUNTIME_EXCHANGE_H

#include "comm/device_collective.h"

#include <sluice/runtime.h>

typedef struct sl_exchange {
    sl_group *group;              /* borrowed; NULL: there is no exchange */
    sl_device_collective *device; /* NULL: through the host */
    sl_device_part *parts;        /* (ranks) room for those of a sum */
    char reason[256]; /* why it goes through the host, or why it goes the way it does; "": nothing is known */
} sl_exchange;

/* Collective over the group. words NULL: through the host. bytes: of staging memory. */
SL_MUST_CHECK sl_status sl_exchange_open(sl_exchange *exchange, sl_group *group, sl_device_words *words, size_t bytes,
                                         sl_sum_mode sums);
void sl_exchange_close(sl_exchange *exchange); /* not the group */

/* Whether sums run in the order of the ranks. */
bool sl_exchange_adds_in_order(const sl_exchange *exchange);

/* What several exchanges have in common, for people. */
typedef struct sl_exchange_ways {
    int all, on_device;
    const char *reason; /* why the first that goes through the host does; NULL: none does */
    const char *way;    /* of the others */
    const char *why;    /* the first of them goes that way */
    int communicators;  /* of NCCL */
} sl_exchange_ways;

void sl_exchange_count(const sl_exchange *exchange, sl_exchange_ways *ways);

/* In the order of the stream, as their sisters of groups. *out becomes NULL if the stream does all of it; else it is to be
 * waited for. after NULL: the stream has done what must come before. */
SL_MUST_CHECK sl_status sl_exchange_gather(const sl_exchange *exchange, const sl_bucket_item *items, int count,
                                           sl_stream *stream, sl_request *after, sl_request **out);
SL_MUST_CHECK sl_status sl_exchange_scatter_sum(const sl_exchange *exchange, const sl_bucket_item *items, int count,
                                                int rows, sl_dtype dtype, sl_stream *stream, sl_request **out);
SL_MUST_CHECK sl_status sl_exchange_sum(const sl_exchange *exchange, void *data, int64_t count, sl_dtype dtype,
                                        sl_stream *stream, sl_request **out);
SL_MUST_CHECK sl_status sl_exchange_broadcast(const sl_exchange *exchange, int root, void *data, size_t bytes,
                                              sl_stream *stream, sl_request **out);

/* The sl_device_sum_fn of kernels, for floating dtypes. */
SL_MUST_CHECK sl_status sl_exchange_add_up(sl_stream *stream, sl_dtype dtype, int64_t count, const void *const *sources,
                                           int source_count, void *running, void *out);

#endif
