/* Products of matrices held in registers a tile at a time, for the blocks of attention: as many sums as the registers hold
 * beside a row of B and one element of A. With four vectors of B there are fewer loads for as many sums than with two. */

#if defined(__AVX512F__)
enum { ROWS = 6, SOME_ROWS = 2, VECTORS = 4 };
#elif defined(__AVX2__)
enum { ROWS = 6, SOME_ROWS = 4, VECTORS = 2 };
#else
enum { ROWS = 4, SOME_ROWS = 4, VECTORS = 2 };
#endif

/* C[rows, columns] (+)= A B for constant numbers of rows, <= ROWS, and of vectors of columns, <= VECTORS, of which the
 * last holds `part` columns if part > 0. */
V_INLINE void block(const int rows, const int vectors, int64_t part, const sl_small_gemm *g, const float *a,
                    const float *b, float *c)
{
    vf sum[ROWS][VECTORS], right[VECTORS];
#pragma GCC unroll 32
    for (int i = 0; i < rows * vectors; i++)
        sum[i / vectors][i % vectors] = v_set(0.0f);
    for (int64_t l = 0; l < g->k; l++, a += g->a_column, b += g->b_row) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            right[j] = part && j == vectors - 1 ? v_load_part(b + j * VW, part) : v_load(b + j * VW);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf element = v_set(a[i * g->a_row]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                sum[i][j] = v_fma(element, right[j], sum[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *to = c + i * g->c_row;
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            if (part && j == vectors - 1)
                v_emit_part(to + j * VW, sum[i][j], part, g->add);
            else
                v_emit(to + j * VW, sum[i][j], g->add);
        }
    }
}

/* The columns from j on, as many as `vectors` can hold. */
V_INLINE void last_block(const int rows, const int vectors, const sl_small_gemm *g, const float *a, int64_t j, float *c)
{
    int64_t part = g->n - j - (vectors - 1) * VW;
    if (part == VW)
        block(rows, vectors, 0, g, a, g->b + j, c + j);
    else
        block(rows, vectors, part, g, a, g->b + j, c + j);
}

/* All columns of `rows` rows. */
V_INLINE void row_block(const int rows, const sl_small_gemm *g, const float *a, float *c)
{
    int64_t j = 0;
    for (; j + VECTORS * VW <= g->n; j += VECTORS * VW)
        block(rows, VECTORS, 0, g, a, g->b + j, c + j);
    switch ((g->n - j + VW - 1) / VW) {
#if defined(__AVX512F__)
    case 4:
        last_block(rows, 4, g, a, j, c);
        break;
    case 3:
        last_block(rows, 3, g, a, j, c);
        break;
#endif
    case 2:
        last_block(rows, 2, g, a, j, c);
        break;
    case 1:
        last_block(rows, 1, g, a, j, c);
        break;
    default:
        break;
    }
}

static void row_block_most(const sl_small_gemm *g, const float *a, float *c)
{
    row_block(ROWS, g, a, c);
}

static void row_block_some(const sl_small_gemm *g, const float *a, float *c)
{
    row_block(SOME_ROWS, g, a, c);
}

static void row_block_one(const sl_small_gemm *g, const float *a, float *c)
{
    row_block(1, g, a, c);
}

static void simd_small_gemm(const sl_small_gemm *g)
{
    int64_t i = 0;
    for (; i + ROWS <= g->m; i += ROWS)
        row_block_most(g, g->a + i * g->a_row, g->c + i * g->c_row);
    for (; i + SOME_ROWS <= g->m; i += SOME_ROWS)
        row_block_some(g, g->a + i * g->a_row, g->c + i * g->c_row);
    for (; i < g->m; i++)
        row_block_one(g, g->a + i * g->a_row, g->c + i * g->c_row);
}

/* Enough chains that the latency of one is hidden behind the others on every machine known. */
enum { CHAINS = 12 };

static float simd_fma_rounds(int64_t rounds)
{
    vf chain[CHAINS], half = v_set(0.5f);
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++)
        chain[i] = v_set((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            chain[i] = v_fma(chain[i], half, half);
    }
    float sum = 0;
    for (int i = 0; i < CHAINS; i++)
        sum += v_sum(chain[i]);
    return sum;
}
