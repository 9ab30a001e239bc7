/* The tile for f32 on machines with AMX, which multiplies bf16 alone. An f32 number is exactly the sum of three bf16
 * numbers: its first 8 bits, the next 8 and the last 8. Of the nine products of two such sums six count; the other three
 * together are 2^-27 of the whole as a rule and 2^-23 at most, where f32 rounds by 2^-24. Each product is exact in f32.
 * AMX sums 32 terms before it adds them to the long sum, so that this is rounded 6 times in 32 terms instead of 32 times:
 * errors of long sums are half of those of multiply-adds. Six products at sixteen times the speed of f32 leave 2.7 times
 * that speed.
 * At the ends of the range it is less exact. AMX takes denormal numbers for 0: factors and products below 2^-103 lose
 * bits, 2^-126 times the other factor or a few 2^-126. And parts may overflow: a product within a hundredth of the largest
 * float may become infinite, and one that overflows with multiply-adds is infinite or not a number. */
#include "kernel/cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "kernel/cpu/simd/vec_avx512.h"

enum { SIDE = 16, ROWS = 2 * SIDE, COLUMNS = 2 * SIDE, DEPTH = 32, PARTS = 3, FIRST = 0, SECOND = 1, THIRD = 2 };

/* Elements of a panel: in a tile register, in a part of a step, in a step. */
enum { TILE = SIDE * DEPTH, PART = 2 * TILE, STEP = PARTS * PART };

/* ---- Numbers in three parts ------------------------------------------------------------------ */

/* As f32; only the upper half of each is not 0. */
typedef struct parts {
    vf at[PARTS];
} parts;

/* The nearest number with 8 bits; halves go up. */
static inline __attribute__((always_inline)) vf round_to_part(vf x)
{
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int)0xffff0000);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper));
}

/* The third part is not a number if x is infinite, not a number, or so large that rounding makes it infinite. */
static inline __attribute__((always_inline)) parts split(vf x)
{
    parts p;
    p.at[FIRST] = round_to_part(x);
    vf rest = v_sub(x, p.at[FIRST]);
    p.at[SECOND] = round_to_part(rest);
    p.at[THIRD] = v_sub(rest, p.at[SECOND]);
    return p;
}

/* The same for all x. What would become infinite is cut off instead of rounded. Infinite numbers are 1 + infinity with their
 * sign: products with them are infinite, but for those with 0 and with denormal numbers, which are not numbers. */
static inline parts split_any(vf x)
{
    enum { INFINITE = 0x18 };
    const __m512i sign = _mm512_set1_epi32((int)0x80000000), largest = _mm512_set1_epi32(0x7f7f0000);
    const __m512i one = _mm512_set1_epi32(0x3f800000), bits = _mm512_castps_si512(x);
    const __m512i signs = _mm512_and_si512(sign, bits);
    __mmask16 infinite = _mm512_fpclass_ps_mask(x, INFINITE);
    __mmask16 large = _mm512_cmpge_epu32_mask(_mm512_andnot_si512(sign, bits), largest);
    parts p;
    p.at[FIRST] = _mm512_mask_mov_ps(round_to_part(x), large, _mm512_castsi512_ps(_mm512_or_si512(signs, largest)));
    p.at[FIRST] = _mm512_mask_mov_ps(p.at[FIRST], infinite, _mm512_castsi512_ps(_mm512_or_si512(signs, one)));
    vf rest = v_sub(x, p.at[FIRST]);
    p.at[SECOND] = _mm512_maskz_mov_ps((__mmask16)~infinite, round_to_part(rest));
    p.at[THIRD] = v_sub(rest, p.at[SECOND]);
    return p;
}

static inline __attribute__((always_inline)) parts split_as(vf x, const bool any)
{
    return any ? split_any(x) : split(x);
}

static inline bool is_special(vf third_parts)
{
    return __builtin_expect(_mm512_cmp_ps_mask(third_parts, third_parts, _CMP_UNORD_Q) != 0, 0);
}

/* ---- Panels ---------------------------------------------------------------------------------- */

/* 32 x 16 or 16 x 32 elements of a factor: vectors of 16 in the order in which they go into a tile. */
typedef struct tile_elements {
    vf at[2][SIDE];
} tile_elements;

/* Each word of a tile: a part of an element of one vector and of the one that belongs to it in the other half. A third part
 * may be denormal and have bits in its lower half. */
static inline __attribute__((always_inline)) void store_words(const parts *low, const parts *high, int64_t n,
                                                              uint16_t *to)
{
    enum { FIRST_OR_BOTH_OTHERS = 0xf8 };
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    for (int part = 0; part < PARTS; part++) {
        __m512i word = _mm512_srli_epi32(_mm512_castps_si512(low->at[part]), 16);
        word = _mm512_ternarylogic_epi32(word, _mm512_castps_si512(high->at[part]), upper, FIRST_OR_BOTH_OTHERS);
        _mm512_storeu_si512(to + (int64_t)part * PART + n * DEPTH, word);
    }
}

/* A tile of the first part at `to`; the others are PART elements apart. The sum of all third parts. */
static inline __attribute__((always_inline)) vf store_as(const tile_elements *x, const bool any, uint16_t *to)
{
    vf sums[2] = { v_set(0), v_set(0) };
    for (int64_t n = 0; n < SIDE; n++) {
        const parts low = split_as(x->at[0][n], any), high = split_as(x->at[1][n], any);
        store_words(&low, &high, n, to);
        sums[0] = v_add(sums[0], low.at[THIRD]);
        sums[1] = v_add(sums[1], high.at[THIRD]);
    }
    return v_add(sums[0], sums[1]);
}

static __attribute__((noinline)) void store_any(const tile_elements *x, uint16_t *to)
{
    (void)store_as(x, true, to);
}

static inline __attribute__((always_inline)) void store_tile(const tile_elements *x, uint16_t *to)
{
    if (is_special(store_as(x, false, to)))
        store_any(x, to);
}

static const void *element_at(const sl_factor *from, int64_t i, int64_t l)
{
    return (const char *)from->data + (i * from->row + l * from->column) * (from->dtype == SL_F32 ? 4 : 2);
}

/* The first n of 16 contiguous elements, the others 0. */
static vf load_some(const sl_factor *from, int64_t i, int64_t l, int64_t n)
{
    if (n <= 0)
        return v_set(0);
    const void *at = element_at(from, i, l);
    if (from->dtype == SL_F32)
        return n >= VW ? v_load(at) : v_load_part(at, n);
    __m256i halves = v_load_less_halves(at, n);
    return from->dtype == SL_F16 ? _mm512_cvtph_ps(halves)
                                 : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* 16 i, each with 32 l side by side. */
static inline __attribute__((always_inline)) void load_along(const sl_factor *from, int64_t i, int64_t filled,
                                                             int64_t l, int64_t k, tile_elements *x)
{
    bool whole = from->dtype == SL_F32 && i + SIDE <= filled && l + DEPTH <= k;
    const float *at = from->data;
    at += whole ? i * from->row + l : 0;
    for (int64_t n = 0; whole && n < SIDE; n++, at += from->row) {
        x->at[0][n] = v_load(at);
        x->at[1][n] = v_load(at + VW);
    }
    for (int64_t n = 0; !whole && n < SIDE; n++) {
        int64_t there = i + n < filled ? k - l : 0;
        x->at[0][n] = load_some(from, i + n, l, there);
        x->at[1][n] = load_some(from, i + n, l + VW, there - VW);
    }
}

/* 32 l, each with 16 i side by side. */
static inline __attribute__((always_inline)) void load_across(const sl_factor *from, int64_t i, int64_t filled,
                                                              int64_t l, int64_t k, tile_elements *x)
{
    bool whole = from->dtype == SL_F32 && i + SIDE <= filled && l + DEPTH <= k;
    const float *at = from->data;
    at += whole ? i + l * from->column : 0;
    for (int64_t n = 0; whole && n < SIDE; n++, at += from->column) {
        x->at[0][n] = v_load(at);
        x->at[1][n] = v_load(at + SIDE * from->column);
    }
    for (int64_t n = 0; !whole && n < SIDE; n++) {
        x->at[0][n] = load_some(from, i, l + n, l + n < k ? filled - i : 0);
        x->at[1][n] = load_some(from, i, l + n + SIDE, l + n + SIDE < k ? filled - i : 0);
    }
}

/* `across`: elements of an l lie side by side, else those of an i. They are wanted the other way round if `turned`. */
static inline __attribute__((always_inline)) void pack_as(const sl_factor *from, bool across, bool turned,
                                                          int64_t filled, int64_t k, uint16_t *to)
{
    for (int64_t l = 0; l < k; l += DEPTH, to += STEP) {
        for (int64_t i = 0; i < ROWS; i += SIDE) {
            tile_elements x;
            (across ? load_across : load_along)(from, i, filled, l, k, &x);
            if (turned) {
                v_transpose(x.at[0]);
                v_transpose(x.at[1]);
            }
            store_tile(&x, to + i / SIDE * TILE);
        }
    }
}

/* A step of a factor with any strides as one with contiguous rows. */
static sl_factor gather(const sl_factor *from, int64_t filled, int64_t l, int64_t k, float (*block)[DEPTH])
{
    for (int64_t i = 0; i < filled; i++) {
        for (int64_t x = 0; x < DEPTH && l + x < k; x++) {
            const void *at = element_at(from, i, l + x);
            block[i][x] = from->dtype == SL_F32    ? *(const float *)at
                          : from->dtype == SL_BF16 ? sl_bf16_to_f32(*(const uint16_t *)at)
                                                   : sl_f16_to_f32(*(const uint16_t *)at);
        }
    }
    return (sl_factor){ .data = block, .dtype = SL_F32, .row = DEPTH, .column = 1 };
}

static inline __attribute__((always_inline)) void pack(const sl_factor *from, bool pairs, int64_t filled, int64_t k,
                                                       uint16_t *to)
{
    if (from->column == 1) {
        pack_as(from, false, pairs, filled, k, to);
    } else if (from->row == 1) {
        pack_as(from, true, !pairs, filled, k, to);
    } else {
        for (int64_t l = 0; l < k; l += DEPTH, to += STEP) {
            float block[ROWS][DEPTH];
            const sl_factor own = gather(from, filled, l, k, block);
            pack_as(&own, false, pairs, filled, k - l < DEPTH ? k - l : DEPTH, to);
        }
    }
}

/* [k / 32][3 parts][32 rows][16 pairs of l and l + 16] */
static void pack_a(const sl_factor *from, int64_t filled, int64_t k, void *to)
{
    pack(from, false, filled, k, to);
}

/* [k / 32][3 parts][2][16 pairs of l and l + 16][16 columns] */
static void pack_b(const sl_factor *from, int64_t filled, int64_t k, void *to)
{
    pack(from, true, filled, k, to);
}

/* A step of A and one of B of the same numbers, which are split once for both. The sum of all third parts. */
static inline __attribute__((always_inline)) vf pack_step_as(const float *from, int64_t row, const bool any,
                                                             uint16_t *a, uint16_t *b)
{
    vf sum = v_set(0);
    for (int64_t n = 0; n < SIDE; n++, from += row) {
        const float *below = from + SIDE * row;
        const parts first = split_as(v_load(from), any), right = split_as(v_load(from + SIDE), any);
        const parts lower = split_as(v_load(below), any), last = split_as(v_load(below + SIDE), any);
        if (a) {
            store_words(&first, &right, n, a);
            store_words(&lower, &last, n, a + TILE);
        }
        if (b) {
            store_words(&first, &lower, n, b);
            store_words(&right, &last, n, b + TILE);
        }
        sum = v_add(sum, v_add(v_add(first.at[THIRD], right.at[THIRD]), v_add(lower.at[THIRD], last.at[THIRD])));
    }
    return sum;
}

static __attribute__((noinline)) void pack_step_any(const float *from, int64_t row, uint16_t *a, uint16_t *b)
{
    (void)pack_step_as(from, row, true, a, b);
}

static inline __attribute__((always_inline)) void pack_step(const float *from, int64_t row, uint16_t *a, uint16_t *b)
{
    if (is_special(pack_step_as(from, row, false, a, b)))
        pack_step_any(from, row, a, b);
}

static void pack_square(const float *from, int64_t row, int64_t n, void *a, void *b, int64_t panel)
{
    uint16_t *to_a = a, *to_b = b;
    for (int64_t l = 0; l < n; l += DEPTH, from += DEPTH) {
        if (to_a && to_b)
            pack_step(from, row, to_a, to_b);
        else if (to_a)
            pack_step(from, row, to_a, NULL);
        else
            pack_step(from, row, NULL, to_b);
        to_a = to_a ? to_a + STEP : NULL;
        to_b = to_b ? to_b + panel / (int64_t)sizeof *to_b : NULL;
    }
}

/* ---- Multiplication -------------------------------------------------------------------------- */

enum { ROW_BYTES = DEPTH * sizeof(uint16_t), TILE_BYTES = SIDE * ROW_BYTES, PART_BYTES = 2 * TILE_BYTES };
enum { STEP_BYTES = PARTS * PART_BYTES, FETCHED = 48 };

/* One of the two tiles of a part, in the step of a panel. */
static inline __attribute__((always_inline)) const char *tile_at(const char *step, long part, long tile)
{
    return step + part * PART_BYTES + tile * TILE_BYTES;
}

/* Registers 0 to 3 hold C, 4 and 5 the two tiles of a part of A, 6 and 7 those of B. They have to be written as digits. */
#define LOAD(number, step, part, tile) _tile_loadd(number, tile_at(step, part, tile), ROW_BYTES)

/* A tile of the next step, on its way to the first-level cache. */
#define FETCH_A(tile, part) fetch_tile(tile_at(a + STEP_BYTES, part, tile))
#define FETCH_B(tile, part) fetch_tile(tile_at(b + STEP_BYTES, part, tile))

static inline __attribute__((always_inline)) void fetch_tile(const char *tile)
{
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; i++)
        _mm_prefetch(tile + (long)i * ROW_BYTES, _MM_HINT_T0);
}

/* A part of A and one of B are multiplied, then another part of B, or of A, comes in the place of that: a register is
 * loaded right after its last use. Two tiles of the next step are fetched meanwhile. */
#define THEN_B(part, fetch_first, fetch_second)                                                                        \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    _tile_dpbf16ps(2, 5, 6);                                                                                           \
    LOAD(6, b, part, 0);                                                                                               \
    fetch_first;                                                                                                       \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    _tile_dpbf16ps(3, 5, 7);                                                                                           \
    LOAD(7, b, part, 1);                                                                                               \
    fetch_second
#define THEN_A(part, fetch_first, fetch_second)                                                                        \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    LOAD(4, a, part, 0);                                                                                               \
    fetch_first;                                                                                                       \
    _tile_dpbf16ps(2, 5, 6);                                                                                           \
    _tile_dpbf16ps(3, 5, 7);                                                                                           \
    LOAD(5, a, part, 1);                                                                                               \
    fetch_second

/* All of a step but the last products, those of both first parts, which are the largest: sums of the others are small in a
 * first step, and little of them is lost. */
#define MOST_OF_STEP                                                                                                   \
    THEN_A(SECOND, FETCH_A(0, THIRD), FETCH_B(0, FIRST));                                                              \
    THEN_B(SECOND, FETCH_A(1, THIRD), FETCH_B(1, FIRST));                                                              \
    THEN_A(FIRST, FETCH_A(0, SECOND), FETCH_A(1, SECOND));                                                             \
    THEN_B(THIRD, FETCH_B(0, SECOND), FETCH_B(1, SECOND));                                                             \
    THEN_B(FIRST, FETCH_A(0, FIRST), FETCH_A(1, FIRST))

static void sum_up(int64_t k, const void *panel_a, const void *panel_b, float *c, int64_t c_row,
                   const sl_tile_fetch *wanted)
{
    enum { LINE = 64, LINES = FETCHED * DEPTH / LINE }; /* of a panel that are fetched in each step */
    const char *a = panel_a, *b = panel_b;
    sl_tile_fetch fetch = wanted ? *wanted : (sl_tile_fetch){ .panel = NULL };
    int rows[SL_TILE_WRITES];
    for (int i = 0; i < SL_TILE_WRITES; i++)
        rows[i] = sl_rows_a_step(&fetch.writes[i], (k - 1) / DEPTH);
    const long row = (long)c_row * (long)sizeof *c;
    float *below = c + SIDE * c_row;
    __asm__ volatile("" ::: "memory"); /* loads of tiles do not say that they read memory */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    LOAD(4, a, THIRD, 0);
    LOAD(6, b, FIRST, 0);
    LOAD(5, a, THIRD, 1);
    LOAD(7, b, FIRST, 1);
    for (int64_t l = DEPTH; l < k; l += DEPTH) {
        for (int i = 0; fetch.panel && i < LINES; i++, fetch.panel += LINE)
            _mm_prefetch(fetch.panel, _MM_HINT_T1);
        for (int i = 0; i < SL_TILE_WRITES; i++)
            sl_fetch_rows(&fetch.writes[i], rows[i]);
        MOST_OF_STEP;
        a += STEP_BYTES;
        b += STEP_BYTES;
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        LOAD(4, a, THIRD, 0);
        fetch_tile(tile_at(b, THIRD, 0));
        _tile_dpbf16ps(2, 5, 6);
        LOAD(6, b, FIRST, 0);
        fetch_tile(tile_at(b, THIRD, 1));
        _tile_dpbf16ps(3, 5, 7);
        LOAD(5, a, THIRD, 1);
        LOAD(7, b, FIRST, 1);
    }
    MOST_OF_STEP;
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_stored(0, c, row);
    _tile_stored(1, c + SIDE, row);
    _tile_stored(2, below, row);
    _tile_stored(3, below + SIDE, row);
}

/* What is added is summed before, apart: each step adds to its sum six times, which would cost more of a large C than
 * multiply-adds do. */
static void multiply(int64_t k, const void *panel_a, const void *panel_b, float *c, int64_t c_row, bool add,
                     const sl_tile_fetch *fetch)
{
    _Alignas(64) float own[ROWS][COLUMNS];
    if (!add) {
        sum_up(k, panel_a, panel_b, c, c_row, fetch);
        return;
    }
    sum_up(k, panel_a, panel_b, own[0], COLUMNS, fetch);
    __asm__ volatile("" ::: "memory"); /* nor do stores of tiles say that they write it */
    for (int i = 0; i < ROWS; i++, c += c_row) {
        v_store(c, v_add(v_load(c), v_load(own[i])));
        v_store(c + VW, v_add(v_load(c + VW), v_load(own[i] + VW)));
    }
}

const sl_tile sl_tile_amx_f32 = {
    .name = "amx, f32",
    .size = PARTS * sizeof(uint16_t),
    .rows = ROWS,
    .columns = COLUMNS,
    .depth = DEPTH,
    .block_k = 768,
    .fetched_bytes = FETCHED,
    .pack_cost = 12,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .pack_square = pack_square,
    .multiply = multiply,
    .begin = sl_tile_amx_begin,
    .end = sl_tile_amx_end,
};
#endif
