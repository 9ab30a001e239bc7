/* How a product is cut: into blocks that are packed at once, into the threads' shares of C, and the scratch that takes. All
 * follows from sizes, strides and element types alone. */
#ifndef SL_KERNEL_CPU_PRODUCT_SIZES_H
#define SL_KERNEL_CPU_PRODUCT_SIZES_H

#include "kernel/cpu/gemm.h"

#include <stdatomic.h>

enum { SL_PRODUCT_LINE = 64 }; /* of a cache */

/* A number that several threads change, on a cache line of its own. */
typedef struct sl_shared_count {
    _Alignas(SL_PRODUCT_LINE) atomic_int value;
} sl_shared_count;

/* C cut into rows x columns parts, one a thread; threads may be left over. */
typedef struct sl_product_grid {
    int rows, columns;
} sl_product_grid;

typedef struct sl_product_sizes {
    int64_t columns, rows;   /* of a block */
    int blocks;              /* of B */
    sl_product_grid grid;    /* of the threads' shares */
    int64_t unit_panels;     /* of B that belong to a unit of C */
    int64_t units;           /* of the largest share */
    size_t b_bytes, a_bytes; /* room of each thread for its part of a block */
    size_t sums_bytes;       /* all of C's block in f32, if it needs that */
    size_t taken_bytes;      /* of the counts of units that are taken */
    size_t left_bytes;       /* of the units' counts */
    size_t total_bytes;      /* everything for some threads */
} sl_product_sizes;

/* The same whether pointers are known or not. */
sl_product_sizes sl_product_sizes_of(const sl_gemm *g, const sl_tile *tile, int parts);

/* The run of l that is packed at once: blocks along k are as few as the tile takes, and about alike. */
int64_t sl_product_block_k(const sl_gemm *g, const sl_tile *tile);

/* Rows of A can be multiplied as they lie, if A itself begins a line: each of them begins one, and they do not crowd into
 * few lines of a cache. */
bool sl_product_lies_well(const sl_gemm *g, const sl_tile *tile);

#endif
