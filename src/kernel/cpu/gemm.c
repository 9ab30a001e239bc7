/* One matrix product: to BLAS if there is one to be used and it takes the strides, else to our own product. */
#include "kernel/cpu/gemm.h"

#include "kernel/cpu/blas.h"
#include "kernel/cpu/isa.h"

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
    return g->a.dtype == SL_F32 && g->b.dtype == SL_F32 && g->c_dtype == SL_F32 && g->k > 0 && g->m <= INT_MAX &&
           g->n <= INT_MAX && g->k <= INT_MAX &&
           operand(g->m, g->k, g->a.row, g->a.column, &call->transpose_a, &call->lda) &&
           operand(g->k, g->n, g->b.column, g->b.row, &call->transpose_b, &call->ldb) &&
           operand(g->m, g->n, g->c_row, 1, &transpose_c, &call->ldc) && transpose_c == NO_TRANSPOSE;
}

static bool goes_to_blas(const sl_gemm *g)
{
    blas_call call;
    return !sl_isa_is_asked_for() && sl_blas_sgemm() && fits_blas(g, &call);
}

/* The bias is written first and the product added to it, which costs BLAS no more than clearing C would. */
static void put_bias(const sl_simd *simd, const sl_gemm *g)
{
    for (int64_t row = 0; g->bias && row < g->m; row++) {
        float *c = (float *)g->c + row * g->c_row;
        if (g->add)
            simd->axpy(1, g->bias, c, g->n);
        else
            memcpy(c, g->bias, (size_t)g->n * sizeof *c);
    }
}

static void run_blas(const sl_simd *simd, const sl_gemm *g)
{
    blas_call call;
    sl_cblas_sgemm sgemm = sl_blas_sgemm();
    if (g->m == 0 || g->n == 0 || !sgemm || !fits_blas(g, &call))
        return;
    put_bias(simd, g);
    sgemm(ROW_MAJOR, call.transpose_a, call.transpose_b, (int)g->m, (int)g->n, (int)g->k, 1, g->a.data, call.lda,
          g->b.data, call.ldb, g->add || g->bias ? 1 : 0, g->c, call.ldc);
}

size_t sl_gemm_scratch(const sl_gemm *g)
{
    return goes_to_blas(g) ? 0 : sl_product_scratch(g, 1);
}

void sl_gemm_run(const sl_simd *simd, const sl_gemm *g, void *scratch)
{
    if (goes_to_blas(g))
        run_blas(simd, g);
    else
        sl_product_run(NULL, 1, simd, g, scratch);
}

size_t sl_gemm_packed_bytes(const sl_gemm *g)
{
    return goes_to_blas(g) ? 0 : sl_product_packed_bytes(g);
}

void sl_gemm_pack(const sl_cpu *cpu, const sl_gemm *g, void *to)
{
    sl_product_pack(cpu->pool, g, to);
}

/* ---- BLAS on several threads ----------------------------------------------------------------- */

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
} split;

static sl_gemm tile_of(const sl_gemm *g, const tiling *tiles, int index)
{
    sl_gemm own = *g;
    int64_t start = index * tiles->size, left = (tiles->rows ? g->m : g->n) - start;
    int64_t length = left < tiles->size ? left : tiles->size;
    const float *a = g->a.data, *b = g->b.data;
    float *c = g->c;
    if (tiles->rows) {
        own.m = length;
        own.a.data = a + start * g->a.row;
        own.c = c + start * g->c_row;
    } else {
        own.n = length;
        own.b.data = b + start * g->b.row;
        own.c = c + start;
        own.bias = g->bias ? g->bias + start : NULL;
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
        run_blas(s->simd, &own);
    }
}

size_t sl_gemm_scratch_split(const sl_cpu *cpu, const sl_gemm *g)
{
    return goes_to_blas(g) ? 0 : sl_product_scratch(g, sl_product_parts(cpu, g));
}

void sl_gemm_run_split(const sl_cpu *cpu, const sl_gemm *g, void *scratch)
{
    if (!goes_to_blas(g)) {
        sl_product_run(cpu->pool, sl_product_parts(cpu, g), cpu->simd, g, scratch);
        return;
    }
    split s = { .simd = cpu->simd, .g = g, .tiles = tile(g) };
    int threads = sl_pool_threads(cpu->pool);
    sl_pool_run(cpu->pool, s.tiles.count < threads ? s.tiles.count : threads, run_part, &s);
}
