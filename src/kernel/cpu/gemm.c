/* One matrix product: to BLAS if its strides allow, else to the packed product; the split over threads. */
#include "kernel/cpu/blas.h"

#include <limits.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 }; /* values of CBLAS */

/* How BLAS sees an operand of rows x columns: leading dimension and whether it is transposed. Strides of a dim of size
 * 1 do not matter; rows that overlap (expanded ones) are not for BLAS. */
static bool operand(int64_t rows, int64_t columns, int64_t row, int64_t column, int *transpose, int *leading)
{
    int64_t stride, needed;
    if (column == 1 || columns == 1) {
        *transpose = NO_TRANSPOSE;
        needed = columns;
        stride = rows > 1 ? row : columns;
    } else if (row == 1 || rows == 1) {
        *transpose = TRANSPOSE;
        needed = rows;
        stride = column;
    } else {
        return false;
    }
    *leading = (int)stride;
    return stride >= needed && stride <= INT_MAX;
}

typedef struct blas_call {
    int transpose_a, transpose_b, lda, ldb, ldc;
} blas_call;

static bool fits_blas(const sl_gemm *g, blas_call *call)
{
    int transpose_c;
    return g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX &&
           operand(g->m, g->k, g->a_row, g->a_column, &call->transpose_a, &call->lda) &&
           operand(g->k, g->n, g->b_row, g->b_column, &call->transpose_b, &call->ldb) &&
           operand(g->m, g->n, g->c_row, g->c_column, &transpose_c, &call->ldc) && transpose_c == NO_TRANSPOSE;
}

static void clear(const sl_gemm *g)
{
    for (int64_t i = 0; i < g->m; i++) {
        float *row = g->c + i * g->c_row;
        if (g->c_column == 1)
            memset(row, 0, (size_t)g->n * sizeof *row);
        for (int64_t j = 0; g->c_column != 1 && j < g->n; j++)
            row[j * g->c_column] = 0;
    }
}

size_t sl_gemm_scratch(const sl_simd *simd, const sl_gemm *g)
{
    blas_call call;
    if (g->m == 0 || g->n == 0 || g->k == 0 || (sl_blas_sgemm() && fits_blas(g, &call)))
        return 0;
    return sl_packed_gemm_scratch(simd, g);
}

void sl_gemm_run(const sl_simd *simd, const sl_gemm *g, void *scratch)
{
    blas_call call;
    sl_cblas_sgemm sgemm = sl_blas_sgemm();
    if (g->m == 0 || g->n == 0)
        return;
    if (g->k == 0) {
        if (!g->add)
            clear(g);
        return;
    }
    if (sgemm && fits_blas(g, &call)) {
        sgemm(ROW_MAJOR, call.transpose_a, call.transpose_b, (int)g->m, (int)g->n, (int)g->k, 1, g->a, call.lda, g->b,
              call.ldb, g->add ? 1 : 0, g->c, call.ldc);
        return;
    }
    if (!g->add)
        clear(g);
    sl_packed_gemm_run(simd, g, scratch);
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* BLAS adds up an element of C in another order when the matrices have other sizes. So that the bits do not depend on
 * the number of threads, C is cut into tiles by its shape alone, and threads share out the tiles. A tile has enough rows
 * (or columns) that cutting costs little: the other operand is packed again for each, 4% of a GPT's step. */
enum {
    TILE_ROWS = 192,    /* at least */
    TILE_COLUMNS = 256, /* at least; columns cost more */
    TILE_UNIT = 48,     /* tiles are multiples of it: rows of BLAS's own tiles */
    MOST_TILES = 64
};

typedef struct tiling {
    bool rows;    /* rows of C are cut, else columns */
    int64_t size; /* of a tile; the last may be smaller */
    int count;
} tiling;

static tiling tile(const sl_gemm *g)
{
    tiling t = { .rows = g->m >= g->n || g->m >= (int64_t)8 * TILE_ROWS };
    int64_t size = t.rows ? g->m : g->n, least = t.rows ? TILE_ROWS : TILE_COLUMNS;
    int64_t count = size / least < MOST_TILES ? size / least : MOST_TILES;
    double work = (double)g->m * (double)g->n * (double)g->k;
    if (count < 2)
        count = work >= 4e6 && size >= (int64_t)2 * TILE_UNIT
                    ? 2
                    : 1; /* worth two threads, though a little slower on one */
    t.size = ((size + count - 1) / count + TILE_UNIT - 1) / TILE_UNIT * TILE_UNIT;
    t.count = size > 0 ? (int)((size + t.size - 1) / t.size) : 1;
    return t;
}

typedef struct split {
    const sl_simd *simd;
    const sl_gemm *g;
    tiling tiles;
    void *scratch;
    size_t bytes; /* of one thread */
} split;

static sl_gemm tile_of(const sl_gemm *g, const tiling *tiles, int index)
{
    sl_gemm own = *g;
    int64_t start = index * tiles->size, left = (tiles->rows ? g->m : g->n) - start;
    int64_t length = left < tiles->size ? left : tiles->size;
    if (tiles->rows) {
        own.m = length;
        own.a = g->a ? g->a + start * g->a_row : NULL;
        own.c = g->c ? g->c + start * g->c_row : NULL;
    } else {
        own.n = length;
        own.b = g->b ? g->b + start * g->b_column : NULL;
        own.c = g->c ? g->c + start * g->c_column : NULL;
    }
    return own;
}

static void run_part(void *context, int part, int parts)
{
    const split *s = context;
    int64_t start, length;
    sl_chunk_range(s->tiles.count, parts, part, &start, &length);
    for (int64_t i = start; i < start + length; i++) {
        sl_gemm own = tile_of(s->g, &s->tiles, (int)i);
        sl_gemm_run(s->simd, &own, sl_scratch_part(s->scratch, part, s->bytes));
    }
}

static int parts_of(const sl_cpu *cpu, const tiling *tiles)
{
    int threads = sl_pool_threads(cpu->pool);
    return tiles->count < threads ? tiles->count : threads;
}

size_t sl_gemm_scratch_split(const sl_cpu *cpu, const sl_gemm *g)
{
    tiling tiles = tile(g);
    sl_gemm largest = tile_of(g, &tiles, 0);
    return sl_gemm_scratch(cpu->simd, &largest) * (size_t)parts_of(cpu, &tiles);
}

void sl_gemm_run_split(const sl_cpu *cpu, const sl_gemm *g, void *scratch)
{
    split s = { .simd = cpu->simd, .g = g, .tiles = tile(g), .scratch = scratch };
    sl_gemm largest = tile_of(g, &s.tiles, 0);
    s.bytes = sl_gemm_scratch(cpu->simd, &largest);
    sl_pool_run(cpu->pool, parts_of(cpu, &s.tiles), run_part, &s);
}
