/* Our own matrix product. Blocks of A and B are packed into panels that fit the caches and multiplied a register tile
 * at a time. Packing reads any strides. */
#include "kernel/cpu/blas.h"

#include <string.h>

/* A block of A (BLOCK_M x BLOCK_K, 240 KB) stays in the second-level cache, a panel of B in the first. */
enum { BLOCK_M = 240, BLOCK_K = 256, BLOCK_N = 1024, MAX_TILE = 12 * 32 };

static int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Floats of the packed block of A; that of B follows. */
static int64_t packed_a(const sl_simd *simd, const sl_gemm *g)
{
    return round_up(round_up(least(g->m, BLOCK_M), simd->tile_rows) * least(g->k, BLOCK_K), 16);
}

static int64_t packed_b(const sl_simd *simd, const sl_gemm *g)
{
    return round_up(least(g->n, BLOCK_N), simd->tile_columns) * least(g->k, BLOCK_K);
}

size_t sl_packed_gemm_scratch(const sl_simd *simd, const sl_gemm *g)
{
    return (size_t)round_up(packed_a(simd, g) + packed_b(simd, g), 16) * sizeof(float);
}

/* Panels of `unit` rows each: panel p holds, for every l, elements (p * unit + 0..unit-1, l); missing rows are 0. */
static void pack(const float *from, int64_t row, int64_t column, int64_t rows, int64_t k, int unit, float *to)
{
    for (int64_t start = 0; start < rows; start += unit, to += unit * k) {
        int64_t filled = least(rows - start, unit);
        const float *panel = from + start * row;
        if (filled < unit)
            memset(to, 0, (size_t)(unit * k) * sizeof *to);
        if (row == 1 && filled == unit) {
            for (int64_t l = 0; l < k; l++)
                memcpy(to + l * unit, panel + l * column, (size_t)unit * sizeof *to);
            continue;
        }
        for (int64_t i = 0; i < filled; i++) {
            for (int64_t l = 0; l < k; l++)
                to[l * unit + i] = panel[i * row + l * column];
        }
    }
}

/* A tile that hangs over the edge of C, or whose rows are not contiguous. */
static void edge_tile(const sl_simd *simd, int64_t k, const float *a, const float *b, const sl_gemm *g, float *c,
                      int64_t rows, int64_t columns)
{
    float tile[MAX_TILE] = { 0 };
    simd->tile(k, a, b, tile, simd->tile_columns);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++)
            c[i * g->c_row + j * g->c_column] += tile[i * simd->tile_columns + j];
    }
}

/* The packed block of A times the packed block of B, into C at (0, 0) of c. */
static void multiply(const sl_simd *simd, const sl_gemm *g, int64_t m, int64_t n, int64_t k, const float *a,
                     const float *b, float *c)
{
    for (int64_t j = 0; j < n; j += simd->tile_columns) {
        for (int64_t i = 0; i < m; i += simd->tile_rows) {
            int64_t rows = least(m - i, simd->tile_rows), columns = least(n - j, simd->tile_columns);
            float *to = c + i * g->c_row + j * g->c_column;
            if (rows == simd->tile_rows && columns == simd->tile_columns && g->c_column == 1)
                simd->tile(k, a + i * k, b + j * k, to, g->c_row);
            else
                edge_tile(simd, k, a + i * k, b + j * k, g, to, rows, columns);
        }
    }
}

void sl_packed_gemm_run(const sl_simd *simd, const sl_gemm *g, void *scratch)
{
    float *block_a = scratch, *block_b = block_a + packed_a(simd, g);
    for (int64_t j = 0; j < g->n; j += BLOCK_N) {
        int64_t n = least(g->n - j, BLOCK_N);
        for (int64_t l = 0; l < g->k; l += BLOCK_K) {
            int64_t k = least(g->k - l, BLOCK_K);
            pack(g->b + l * g->b_row + j * g->b_column, g->b_column, g->b_row, n, k, simd->tile_columns, block_b);
            for (int64_t i = 0; i < g->m; i += BLOCK_M) {
                int64_t m = least(g->m - i, BLOCK_M);
                pack(g->a + i * g->a_row + l * g->a_column, g->a_row, g->a_column, m, k, simd->tile_rows, block_a);
                multiply(simd, g, m, n, k, block_a, block_b, g->c + i * g->c_row + j * g->c_column);
            }
        }
    }
}
