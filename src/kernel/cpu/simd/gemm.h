/* Products of matrices held in registers a tile at a time, for the blocks of attention. ROWS x 2 vectors of accumulators, as many as the registers hold beside two rows of B and one element of A.
 */

#if defined(__AVX512F__)
enum { ROWS = 12 };
#elif defined(__AVX2__)
enum { ROWS = 6 };
#else
enum { ROWS = 4 };
#endif

/* C[rows, columns] (+)= A B for a constant number of rows <= ROWS and `vectors` <= 2 vectors of columns, of which the
 * last holds `part` columns if part > 0. */
V_INLINE void block(const int rows, const int vectors, int64_t part, const sl_small_gemm *g, const float *a,
                    const float *b, float *c)
{
    vf sum[ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = v_set(0.0f);
    for (int64_t l = 0; l < g->k; l++) {
        const float *row = b + l * g->b_row;
        vf b0 = part && vectors == 1 ? v_load_part(row, part) : v_load(row);
        vf b1 = vectors == 1 ? b0 : part ? v_load_part(row + VW, part) : v_load(row + VW);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf element = v_set(a[i * g->a_row + l * g->a_column]);
            sum[i][0] = v_fma(element, b0, sum[i][0]);
            if (vectors > 1)
                sum[i][1] = v_fma(element, b1, sum[i][1]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *to = c + i * g->c_row;
        for (int j = 0; j < vectors; j++) {
            if (part && j == vectors - 1)
                v_emit_part(to + j * VW, sum[i][j], part, g->add);
            else
                v_emit(to + j * VW, sum[i][j], g->add);
        }
    }
}

/* All columns of `rows` rows. */
V_INLINE void row_block(const int rows, const sl_small_gemm *g, const float *a, float *c)
{
    int64_t j = 0;
    for (; j + 2 * VW <= g->n; j += 2 * VW)
        block(rows, 2, 0, g, a, g->b + j, c + j);
    int64_t left = g->n - j;
    if (left > VW)
        block(rows, 2, left - VW, g, a, g->b + j, c + j);
    else if (left == VW)
        block(rows, 1, 0, g, a, g->b + j, c + j);
    else if (left > 0)
        block(rows, 1, left, g, a, g->b + j, c + j);
}

static void row_block_most(const sl_small_gemm *g, const float *a, float *c)
{
    row_block(ROWS, g, a, c);
}

static void row_block_some(const sl_small_gemm *g, const float *a, float *c)
{
    row_block(4, g, a, c);
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
    for (; i + 4 <= g->m; i += 4)
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
