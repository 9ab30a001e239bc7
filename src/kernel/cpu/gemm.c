/* One matrix product: to BLAS where its strides allow, else to the packed product; the split over threads. */
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

enum { PART = 32 }; /* rows or columns: threads take multiples of it */

typedef struct split {
    const sl_simd *simd;
    const sl_gemm *g;
    void *scratch;
    size_t bytes; /* of one thread */
    bool rows;    /* rows of C are shared out, else columns */
} split;

static int64_t blocks_of(const sl_gemm *g, bool rows)
{
    return ((rows ? g->m : g->n) + PART - 1) / PART;
}

/* The part of the product that a thread does. */
static sl_gemm part_of(const sl_gemm *g, bool rows, int part, int parts)
{
    sl_gemm own = *g;
    int64_t start, length, size = rows ? g->m : g->n;
    sl_chunk_range(blocks_of(g, rows), parts, part, &start, &length);
    start *= PART;
    length = start + length * PART < size ? length * PART : size - start;
    if (rows) {
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
    sl_gemm own = part_of(s->g, s->rows, part, parts);
    sl_gemm_run(s->simd, &own, sl_scratch_part(s->scratch, part, s->bytes));
}

static int parts_of(const sl_cpu *cpu, const sl_gemm *g, bool *rows)
{
    *rows = g->m >= g->n;
    int64_t blocks = blocks_of(g, *rows), threads = sl_pool_threads(cpu->pool);
    double work = (double)g->m * (double)g->n * (double)g->k;
    if (work < 64.0 * 64 * 64)
        threads = 1;
    return blocks < 1 ? 1 : (int)(blocks < threads ? blocks : threads);
}

size_t sl_gemm_scratch_split(const sl_cpu *cpu, const sl_gemm *g)
{
    bool rows;
    int parts = parts_of(cpu, g, &rows);
    sl_gemm largest = part_of(g, rows, 0, parts);
    return sl_gemm_scratch(cpu->simd, &largest) * (size_t)parts;
}

void sl_gemm_run_split(const sl_cpu *cpu, const sl_gemm *g, void *scratch)
{
    split s = { .simd = cpu->simd, .g = g, .scratch = scratch };
    int parts = parts_of(cpu, g, &s.rows);
    sl_gemm largest = part_of(g, s.rows, 0, parts);
    s.bytes = sl_gemm_scratch(cpu->simd, &largest);
    sl_pool_run(cpu->pool, parts, run_part, &s);
}
