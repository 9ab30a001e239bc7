/* Register tiles of the packed product: what one instruction set can multiply at once, and how operands are packed for
 * it. Which tile is used follows from the instruction set and the element types alone. */
#ifndef SL_KERNEL_CPU_TILE_H
#define SL_KERNEL_CPU_TILE_H

#include <sluice/tensor.h>

/* A or B of a product: element (i, l), with l along the sum, is data[i * row + l * column]. i counts rows of A, columns
 * of B. */
typedef struct sl_factor {
    const void *data;
    sl_dtype dtype; /* f32, bf16, f16 */
    int64_t row, column;
} sl_factor;

/* Sums of a tile on their way into C. */
typedef struct sl_tile_result {
    const float *sums;
    int64_t sums_row;
    int64_t rows, columns;
    const float *bias; /* one number a column, may be NULL */
    void *c;
    sl_dtype dtype;
    int64_t c_row;
    bool add;
} sl_tile_result;

/* Panels hold `rows` rows of A or `columns` columns of B for a run of l, in the order in which the tile reads them;
 * what is missing is 0, also from k up to a multiple of depth. */
typedef struct SL_NAMED_FIELDS sl_tile {
    const char *name;  /* "f32", "bf16 dot", "amx" */
    int size;          /* bytes of an element in a panel: 4 for f32, 2 for bf16 */
    int rows, columns; /* of C */
    int depth;
    int64_t block_k; /* longest run of l that is packed at once */
    /* One panel with the first `filled` of its rows (columns) and k elements of each. */
    void (*pack_a)(const sl_factor *from, int64_t filled, int64_t k, void *to);
    void (*pack_b)(const sl_factor *from, int64_t filled, int64_t k, void *to);
    /* C = A B or C += A B for one panel of each, k >= 1; c has room for a whole tile. ahead: memory that is read soon, of which the
     * tile may fetch 16 k bytes into the second-level cache meanwhile; NULL: none. */
    void (*multiply)(int64_t k, const void *a, const void *b, float *c, int64_t c_row, bool add, const void *ahead);
    /* Optional: the same with A as it lies: rows of contiguous elements, a_row apart. k is a multiple of depth. */
    void (*multiply_rows)(int64_t k, const void *a, int64_t a_row, const void *b, float *c, int64_t c_row, bool add,
                          const void *ahead);
    /* Optional: a whole tile of sums goes into C of bf16, to which nothing is added. False: some of them are not for it, and
     * all have to be put by other means. */
    bool (*put)(const sl_tile_result *result);
    /* Optional: before and after a thread's multiplications. */
    void (*begin)(void);
    void (*end)(void);
} sl_tile;

static inline void sl_tile_begin(const sl_tile *tile)
{
    if (tile->begin)
        tile->begin();
}

static inline void sl_tile_end(const sl_tile *tile)
{
    if (tile->end)
        tile->end();
}

#if defined(__x86_64__)
/* For bf16 operands. */
extern const sl_tile sl_tile_dot; /* AVX512-BF16 */
extern const sl_tile sl_tile_amx;
extern const sl_tile sl_tile_dot_square; /* AVX512-BF16 on the panels of AMX: for attention, and for tests */
/* Asks the kernel for the tile registers and multiplies something with them. False if the machine, the operating system
 * or a hypervisor does not let it. */
bool sl_tile_amx_works(void);
void sl_tile_pack_pairs(const sl_factor *from, int64_t filled, int64_t k, int64_t padded, int width, uint16_t *to);
#endif

#endif
