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

/* Memory of rows, `step` bytes from one to the next, of which the first `lines` lines of 64 bytes are meant. */
typedef struct sl_tile_lines {
    const char *at;
    int64_t step;
    int rows, lines;
} sl_tile_lines;

enum { SL_TILE_WRITES = 2 };

/* What a tile brings closer while it multiplies, a few lines in each step. */
typedef struct sl_tile_fetch {
    const char *panel; /* fetched_bytes k bytes that are read next, into the second-level cache; NULL: none */
    sl_tile_lines writes[SL_TILE_WRITES]; /* what the next tile adds to or writes; no rows: none */
} sl_tile_fetch;

/* Panels hold `rows` rows of A or `columns` columns of B for a run of l, in the order in which the tile reads them;
 * what is missing is 0, also from k up to a multiple of depth. */
typedef struct SL_NAMED_FIELDS sl_tile {
    const char *name;  /* "f32", "bf16 dot", "amx" */
    int size;          /* bytes of an element in a panel: 4 for f32, 2 for bf16, 6 for f32 in three parts */
    int rows, columns; /* of C */
    int depth;
    int64_t block_k;   /* longest run of l that is packed at once */
    int64_t piece_k;   /* longest run of a panel of B that stays in the first-level cache; 0: it does not matter */
    int fetched_bytes; /* of the panel that a multiplication fetches, for each l */
    double pack_cost;  /* multiply-adds in the time in which a byte is packed */
    /* One panel with the first `filled` of its rows (columns) and k elements of each. */
    void (*pack_a)(const sl_factor *from, int64_t filled, int64_t k, void *to);
    void (*pack_b)(const sl_factor *from, int64_t filled, int64_t k, void *to);
    /* Optional: `rows` rows of n f32 numbers, `row` apart, n a multiple of depth, become a panel of A, with the sum along them,
     * and a step of panels of B, `panel` bytes apart, with the sum over them. One of both may be NULL. */
    void (*pack_square)(const float *from, int64_t row, int64_t n, void *a, void *b, int64_t panel);
    /* C = A B or C += A B for one panel of each, k >= 1; c has room for a whole tile. fetch: NULL if A and B are in the
     * first-level cache and nothing else is wanted. */
    void (*multiply)(int64_t k, const void *a, const void *b, float *c, int64_t c_row, bool add,
                     const sl_tile_fetch *fetch);
    /* Optional: multiply() with A as it lies: rows of contiguous elements, a_row apart. k is a multiple of depth, fetch not
     * NULL. Rows that are a multiple of `crowded` bytes apart share few lines of a cache. */
    void (*multiply_rows)(int64_t k, const void *a, int64_t a_row, const void *b, float *c, int64_t c_row, bool add,
                          const sl_tile_fetch *fetch);
    int64_t crowded;
    /* Optional: a whole tile of sums goes into C of bf16, to which nothing is added. False: some of them are not for it, and
     * all have to be put by other means. */
    bool (*put)(const sl_tile_result *result);
    /* Optional: before and after a thread's multiplications. */
    void (*begin)(void);
    void (*end)(void);
} sl_tile;

/* A line comes into the first-level cache to be written: other caches give it up. */
static inline void sl_fetch_to_write(const char *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* Of all rows in `steps` steps, which may be 0: how many in each. */
static inline int sl_rows_a_step(const sl_tile_lines *lines, int64_t steps)
{
    if (steps == 0 || steps > lines->rows)
        return 1;
    return (int)((lines->rows + steps - 1) / steps);
}

/* The next `count` rows. */
static inline __attribute__((always_inline)) void sl_fetch_rows(sl_tile_lines *lines, int count)
{
    enum { LINE = 64 };
    for (; count > 0 && lines->rows > 0; count--, lines->rows--, lines->at += lines->step) {
        for (int64_t i = 0; i < lines->lines; i++)
            sl_fetch_to_write(lines->at + LINE * i);
    }
}

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
extern const sl_tile sl_tile_amx_f32; /* for f32 operands, or mixed ones */
void sl_tile_amx_begin(void);
void sl_tile_amx_end(void);
extern const sl_tile sl_tile_dot_square; /* AVX512-BF16 on the panels of AMX, for attention alone */
/* Asks the kernel for the tile registers and multiplies something with them. False if the machine, the operating system
 * or a hypervisor does not let it. */
bool sl_tile_amx_works(void);
/* For both: `put` of tiles with 32 columns. */
bool sl_tile_put_bf16(const sl_tile_result *result);
void sl_tile_pack_pairs(const sl_factor *from, int64_t filled, int64_t k, int64_t padded, int width, uint16_t *to);
#endif

#endif
