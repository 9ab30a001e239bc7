/* Packing: offsets for blocks that are needed for a span of time each, in as little memory as the heuristics find. */
#ifndef SL_GRAPH_PACK_H
#define SL_GRAPH_PACK_H

#include <sluice/base.h>

typedef struct sl_block {
    int first, last; /* needed from step `first` to step `last`, both included */
    size_t bytes;
    size_t offset; /* result, a multiple of the alignment */
} sl_block;

/* Sets the offsets so that blocks whose times meet do not overlap; *total is the memory they need together, a multiple
 * of the alignment (a power of two). */
SL_MUST_CHECK sl_status sl_pack_blocks(sl_block *blocks, int count, size_t alignment, size_t *total);

#endif
