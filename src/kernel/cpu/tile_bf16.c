/* The tile for bf16 on machines with AVX512-BF16: one instruction multiplies pairs and adds both products to a float. */
#include "kernel/cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernel/cpu/simd/vec_avx512.h"

enum { ROWS = 12, COLUMNS = 2 * VW, HALVES = 2 * VW }; /* HALVES: elements of a vector */

/* ---- Panels of pairs: [k / 2][width][2] ------------------------------------------------------ */

static const uint16_t *element_at(const sl_factor *from, int64_t i, int64_t l)
{
    return (const uint16_t *)from->data + i * from->row + l * from->column;
}

/* Rows of l are contiguous: a pair is one 32-bit word, and words are transposed. */
static void pack_transposed(const sl_factor *from, int64_t filled, int64_t k, int width, uint32_t *to)
{
    vf tile[VW];
    for (int first = 0; first < width; first += VW) {
        int lanes = width - first < VW ? width - first : VW;
        for (int64_t l = 0; l < k; l += HALVES) {
            int64_t n = k - l < HALVES ? k - l : HALVES;
            for (int i = 0; i < VW; i++) {
                bool there = i < lanes && first + i < filled;
                tile[i] = _mm512_castsi512_ps(there ? v_load_halves(element_at(from, first + i, l), n)
                                                    : _mm512_setzero_si512());
            }
            v_transpose(tile);
            for (int64_t i = 0; 2 * i < n; i++)
                _mm512_mask_storeu_ps(to + (l / 2 + i) * width + first, (__mmask16)((1u << lanes) - 1), tile[i]);
        }
    }
}

/* Up to VW elements of one l as words; none beyond k. */
static __m512i row_of(const sl_factor *from, int64_t first, int64_t n, int64_t l, int64_t k)
{
    if (n <= 0 || l >= k)
        return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(v_load_less_halves(element_at(from, first, l), n));
}

static void store_pairs(uint32_t *to, __m512i low, __m512i high, int lanes)
{
    __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    if (lanes == VW)
        _mm512_storeu_si512(to, pairs);
    else
        _mm512_mask_storeu_epi32(to, v_mask(lanes), pairs);
}

/* Elements of one l are contiguous: two of them are interleaved. A panel of fewer than VW elements is read and written by
 * whole vectors while more of its rows follow, which lie behind them and are written later: AMD takes long for masks. */
static void pack_straight(const sl_factor *from, int64_t filled, int64_t k, int width, uint32_t *to)
{
    int64_t l = 0;
    if (width < VW && filled == width && from->column >= VW) {
        for (; l + 2 < k; l += 2)
            store_pairs(to + l / 2 * width, row_of(from, 0, VW, l, k), row_of(from, 0, VW, l + 1, k), VW);
    }
    for (; l < k; l += 2) {
        for (int first = 0; first < width; first += VW) {
            int lanes = width - first < VW ? width - first : VW;
            int64_t n = filled - first < lanes ? filled - first : lanes;
            store_pairs(to + l / 2 * width + first, row_of(from, first, n, l, k), row_of(from, first, n, l + 1, k),
                        lanes);
        }
    }
}

static void pack_one_by_one(const sl_factor *from, int64_t filled, int64_t k, int width, uint16_t *to)
{
    for (int64_t l = 0; l < (k + 1) / 2 * 2; l++) {
        for (int64_t i = 0; i < width; i++)
            to[l / 2 * 2 * width + 2 * i + l % 2] = i < filled && l < k ? *element_at(from, i, l) : 0;
    }
}

void sl_tile_pack_pairs(const sl_factor *from, int64_t filled, int64_t k, int64_t padded, int width, uint16_t *to)
{
    int64_t even = (k + 1) / 2 * 2;
    if (from->column == 1)
        pack_transposed(from, filled, k, width, (uint32_t *)(void *)to);
    else if (from->row == 1)
        pack_straight(from, filled, k, width, (uint32_t *)(void *)to);
    else
        pack_one_by_one(from, filled, k, width, to);
    for (int64_t i = even * width; i < padded * width; i++)
        to[i] = 0;
}

static void pack_a(const sl_factor *from, int64_t filled, int64_t k, void *to)
{
    sl_tile_pack_pairs(from, filled, k, (k + 1) / 2 * 2, ROWS, to);
}

static void pack_b(const sl_factor *from, int64_t filled, int64_t k, void *to)
{
    sl_tile_pack_pairs(from, filled, k, (k + 1) / 2 * 2, COLUMNS, to);
}

/* ---- Multiplication -------------------------------------------------------------------------- */

static void multiply(int64_t k, const void *panel_a, const void *panel_b, float *c, int64_t c_row, bool add,
                     const sl_tile_fetch *wanted)
{
    sl_tile_fetch fetch = wanted ? *wanted : (sl_tile_fetch){ .panel = NULL };
    /* Panels come by themselves on processors that have this instruction fast. */
    for (int i = 0; i < SL_TILE_WRITES; i++)
        sl_fetch_rows(&fetch.writes[i], fetch.writes[i].rows);
    const int *a = panel_a, *b = panel_b;
    vf sum[ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
        sum[i][0] = sum[i][1] = v_set(0.0f);
    for (int64_t l = 0; l < k; l += 2, a += ROWS, b += COLUMNS) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + VW);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; i++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32(a[i]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pair, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pair, b1);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
        float *to = c + i * c_row;
        v_store(to, add ? v_add(v_load(to), sum[i][0]) : sum[i][0]);
        v_store(to + VW, add ? v_add(v_load(to + VW), sum[i][1]) : sum[i][1]);
    }
}

/* One instruction rounds a row of C, as put_tile does but for denormal numbers, which it takes for 0. */
bool sl_tile_put_bf16(const sl_tile_result *r)
{
    const float *sums = r->sums;
    uint16_t *c = r->c;
    vf bias[2] = { v_set(0.0f), v_set(0.0f) };
    if (r->bias) {
        bias[0] = v_load(r->bias);
        bias[1] = v_load(r->bias + VW);
    }
    for (int64_t i = 0; i < r->rows; i++, sums += r->sums_row, c += r->c_row) {
        vf first = v_load(sums), second = v_load(sums + VW);
        if (r->bias) {
            first = v_add(first, bias[0]);
            second = v_add(second, bias[1]);
        }
        __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(second, first);
        if (__builtin_expect(v_may_hide_denormal(rounded), 0) && (v_is_denormal(first) || v_is_denormal(second)))
            return false;
        _mm512_storeu_si512(c, rounded);
    }
    return true;
}

const sl_tile sl_tile_dot = {
    .name = "bf16 dot",
    .size = sizeof(uint16_t),
    .rows = ROWS,
    .columns = COLUMNS,
    .depth = 2,
    .block_k = 1536,
    .fetched_bytes = 16,
    .pack_cost = 25,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .multiply = multiply,
    .put = sl_tile_put_bf16,
};
#endif
