/* What ranks wait for, in words, and the error that ends a wait when the run has failed. */
#ifndef SL_COMM_WAIT_H
#define SL_COMM_WAIT_H

#include "comm/transport.h"

/* The collectives, as messages on their channels name them. */
#define SL_COLLECTIVE_LIST(X)                                                                                          \
    X(BARRIER, "barrier")                                                                                              \
    X(BROADCAST, "broadcast")                                                                                          \
    X(ALL_GATHER, "all_gather")                                                                                        \
    X(REDUCE_SCATTER, "reduce_scatter")                                                                                \
    X(ALL_REDUCE, "all_reduce")                                                                                        \
    X(GATHER_BLOBS, "gather_blobs")                                                                                    \
    X(CLOCK_OFFSET, "clock_offset")

typedef enum sl_collective {
#define SL_COLLECTIVE_ENUM(name, text) SL_COLLECTIVE_##name,
    SL_COLLECTIVE_LIST(SL_COLLECTIVE_ENUM)
#undef SL_COLLECTIVE_ENUM
        SL_COLLECTIVE_COUNT
} sl_collective;

const char *sl_collective_name(int collective); /* "?" if there is none of that number */

/* "to receive on channel 5 from rank 1 (step 3, microbatch 2)"; returns text. */
char *sl_wait_text(const sl_wait *wait, char *text, size_t size);

static inline bool sl_link_has_failed(const sl_link *link)
{
    return atomic_load_explicit(&link->failure->state, memory_order_relaxed) != SL_FAILURE_NONE;
}

/* The error of a run that has failed, with what this rank was waiting for (wait may be NULL). */
sl_status sl_link_failure(const sl_link *link, const sl_wait *wait);

#endif
