/* The tile for bf16 on machines with AMX. Tile registers of 16 rows of 64 bytes: 2 x 2 of them hold C, two each A and B.
 * Virtual machines may hide the processor's description of the registers (CPUID leaves 0x1d and 0x1e), so their form is
 * set by hand. */
#include "kernel/cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "kernel/cpu/simd/vec_avx512.h"

enum { SIDE = 16, ROWS = 2 * SIDE, COLUMNS = 2 * SIDE, DEPTH = 32, TILE = SIDE * DEPTH, BOTH = 2 * TILE, PIECE = 512 };

/* ---- Panels ---------------------------------------------------------------------------------- */

static const uint16_t *element_at(const sl_factor *from, int64_t i, int64_t l)
{
    return (const uint16_t *)from->data + i * from->row + l * from->column;
}

/* Elements of l and l + 1 in pairs, those of the first 16 i and those of the others. Elements of one l are contiguous, and
 * each line of them is read once: rows of l often lie so that few of them fit into the first-level cache at once. */
static inline __attribute__((always_inline)) void load_pairs(const sl_factor *from, int64_t filled, int64_t l,
                                                             int64_t k, __m512i *first, __m512i *second)
{
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i even = _mm512_setzero_si512(), odd = even;
    if (l < k)
        even = v_load_halves(element_at(from, 0, l), filled);
    if (l + 1 < k)
        odd = v_load_halves(element_at(from, 0, l + 1), filled);
    __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
    *first = _mm512_permutex2var_epi64(low, lower, high);
    *second = _mm512_permutex2var_epi64(low, upper, high);
}

/* 32 rows of A, 32 l. */
static void transpose_block(const sl_factor *from, int64_t filled, int64_t l, int64_t k, uint16_t *to)
{
    vf words[2][SIDE];
    for (int i = 0; i < SIDE; i++) {
        __m512i first, second;
        load_pairs(from, filled, l + (int64_t)2 * i, k, &first, &second);
        words[0][i] = _mm512_castsi512_ps(first);
        words[1][i] = _mm512_castsi512_ps(second);
    }
    for (int half = 0; half < 2; half++, to += TILE) {
        v_transpose(words[half]);
        for (int i = 0; i < SIDE; i++)
            _mm512_storeu_ps(to + (int64_t)i * DEPTH, words[half][i]);
    }
}

/* 32 columns of B, 32 l. */
static void interleave_block(const sl_factor *from, int64_t filled, int64_t l, int64_t k, uint16_t *to)
{
    for (int64_t i = 0; i < DEPTH; i += 2, to += DEPTH) {
        __m512i first, second;
        load_pairs(from, filled, l + i, k, &first, &second);
        _mm512_storeu_si512(to, first);
        _mm512_storeu_si512(to + TILE, second);
    }
}

/* Rows of A that lie contiguous: a few at a time, so that the processor sees few streams of reads and fetches ahead. */
enum { STREAMS = 8 };

static void copy_rows(const sl_factor *from, int64_t first, int64_t filled, int64_t k, uint16_t *to)
{
    for (int64_t l = 0; l < k; l += DEPTH, to += BOTH) {
        for (int64_t i = first; i < first + STREAMS; i++)
            _mm512_storeu_si512(to + i * DEPTH,
                                i < filled ? v_load_halves(element_at(from, i, l), k - l) : _mm512_setzero_si512());
    }
}

static void copy_one_by_one(const sl_factor *from, int64_t filled, int64_t k, uint16_t *to)
{
    for (int64_t l = 0; l < k; l += DEPTH, to += BOTH) {
        for (int64_t i = 0; i < ROWS; i++) {
            for (int64_t x = 0; x < DEPTH; x++)
                to[i * DEPTH + x] = i < filled && l + x < k ? *element_at(from, i, l + x) : 0;
        }
    }
}

/* [k / 32][32 rows][32]: a tile register takes 16 rows. */
static void pack_a(const sl_factor *from, int64_t filled, int64_t k, void *panel)
{
    uint16_t *to = panel;
    if (from->column == 1) {
        for (int64_t i = 0; i < ROWS; i += STREAMS)
            copy_rows(from, i, filled, k, to);
    } else if (from->row == 1) {
        for (int64_t l = 0; l < k; l += DEPTH, to += BOTH)
            transpose_block(from, filled, l, k, to);
    } else {
        copy_one_by_one(from, filled, k, to);
    }
}

/* [k / 32][2][16 pairs of l][16 columns][2]: a tile register is contiguous. */
static void pack_b(const sl_factor *from, int64_t filled, int64_t k, void *panel)
{
    uint16_t *to = panel;
    bool across = from->row == 1 && from->column != 1;
    for (int64_t l = 0; across && l < k; l += DEPTH, to += BOTH)
        interleave_block(from, filled, l, k, to);
    for (int64_t l = 0; !across && l < k; l += DEPTH) {
        for (int64_t i = 0; i < COLUMNS; i += SIDE, to += TILE) {
            sl_factor part = { .dtype = from->dtype, .row = from->row, .column = from->column };
            part.data = i < filled ? element_at(from, i, l) : from->data;
            sl_tile_pack_pairs(&part, i < filled ? filled - i : 0, k - l < DEPTH ? k - l : DEPTH, DEPTH, SIDE, to);
        }
    }
}

/* ---- Multiplication -------------------------------------------------------------------------- */

/* The operand of LDTILECFG. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* A constant, not built on the stack: the compiler's intrinsic does not say that it reads all of it. */
#define EACH(x)                                                                                                        \
    {                                                                                                                  \
        x, x, x, x, x, x, x, x                                                                                         \
    }
static const _Alignas(64) tile_config config = { .palette = 1,
                                                 .row_bytes = EACH(DEPTH * sizeof(uint16_t)),
                                                 .rows = EACH(SIDE) };

void sl_tile_amx_begin(void)
{
    _tile_loadconfig(&config);
}

void sl_tile_amx_end(void)
{
    _tile_release();
}

/* What a tile register takes, on its way to the first-level cache. */
static inline __attribute__((always_inline)) void fetch_tile(const char *tile, long row)
{
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; i++)
        _mm_prefetch(tile + i * row, _MM_HINT_T0);
}

/* Bytes of a panel: from one row of a tile to the next, from tile to tile, from step to step, and to the step that is fetched. */
enum {
    PANEL_ROW = DEPTH * sizeof(uint16_t),
    PANEL_TILE = SIDE * PANEL_ROW,
    PANEL_STEP = 2 * PANEL_TILE,
    PANEL_AHEAD = 2 * PANEL_STEP
};

/* Where A and B come from. */
typedef enum tile_source {
    NEAR,  /* both are in the first-level cache */
    SHORT, /* B is there from the second multiplication on: A goes past it */
    LONG   /* the second-level cache: each line is fetched two steps before its tile is loaded */
} tile_source;

#define LOAD_A(tile, at)                                                                                               \
    do {                                                                                                               \
        if (from == SHORT)                                                                                             \
            _tile_stream_loadd(tile, at, a_row);                                                                       \
        else                                                                                                           \
            _tile_loadd(tile, at, a_row);                                                                              \
    } while (0)

/* A register is loaded for the next step right after its last use: if the core is shared with another hyper-thread, few
 * tiles can be under way, and this order is up to a fifth faster than loads before their use. */
static inline __attribute__((always_inline)) void multiply_tiles(int64_t k, const char *a, const long a_row,
                                                                 const long a_step, const char *b, float *c,
                                                                 int64_t c_row, bool add, const sl_tile_fetch *wanted,
                                                                 const tile_source from)
{
    enum { LINE = 64, LINES = DEPTH / 4 }; /* of a panel that are fetched in each step */
    const long a_ahead = 2 * a_step;
    sl_tile_fetch fetch = from == NEAR ? (sl_tile_fetch){ .panel = NULL } : *wanted;
    int rows[SL_TILE_WRITES];
    for (int i = 0; i < SL_TILE_WRITES; i++)
        rows[i] = sl_rows_a_step(&fetch.writes[i], (k - 1) / DEPTH);
    const long row = (long)c_row * (long)sizeof *c;
    const char *a_below = a + SIDE * a_row, *b_right = b + PANEL_TILE;
    float *below = c + SIDE * c_row;
    __asm__ volatile("" ::: "memory"); /* nor do the loads say that they read memory: what was written is there now */
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + SIDE, row);
        _tile_loadd(2, below, row);
        _tile_loadd(3, below + SIDE, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    LOAD_A(4, a);
    _tile_loadd(6, b, PANEL_ROW);
    _tile_loadd(7, b_right, PANEL_ROW);
    LOAD_A(5, a_below);
    for (int64_t l = DEPTH; l < k; l += DEPTH) {
        for (int i = 0; fetch.panel && i < LINES; i++, fetch.panel += LINE)
            _mm_prefetch(fetch.panel, _MM_HINT_T1);
        for (int i = 0; i < SL_TILE_WRITES; i++)
            sl_fetch_rows(&fetch.writes[i], rows[i]);
        a += a_step;
        a_below += a_step;
        b += PANEL_STEP;
        b_right += PANEL_STEP;
        _tile_dpbf16ps(0, 4, 6);
        if (from == LONG)
            fetch_tile(a + a_ahead, a_row);
        _tile_dpbf16ps(1, 4, 7);
        LOAD_A(4, a);
        if (from == LONG)
            fetch_tile(b + PANEL_AHEAD, PANEL_ROW);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(6, b, PANEL_ROW);
        if (from == LONG)
            fetch_tile(a_below + a_ahead, a_row);
        _tile_dpbf16ps(3, 5, 7);
        LOAD_A(5, a_below);
        _tile_loadd(7, b_right, PANEL_ROW);
        if (from == LONG)
            fetch_tile(b_right + PANEL_AHEAD, PANEL_ROW);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_stored(0, c, row);
    _tile_stored(1, c + SIDE, row);
    _tile_stored(2, below, row);
    _tile_stored(3, below + SIDE, row);
}

static __attribute__((noinline)) void multiply_short(int64_t k, const char *a, long a_row, long a_step, const char *b,
                                                     float *c, int64_t c_row, bool add, const sl_tile_fetch *fetch)
{
    multiply_tiles(k, a, a_row, a_step, b, c, c_row, add, fetch, SHORT);
}

static void multiply(int64_t k, const void *panel_a, const void *panel_b, float *c, int64_t c_row, bool add,
                     const sl_tile_fetch *fetch)
{
    if (!fetch)
        multiply_tiles(k, panel_a, PANEL_ROW, PANEL_STEP, panel_b, c, c_row, add, NULL, NEAR);
    else if (k <= PIECE)
        multiply_short(k, panel_a, PANEL_ROW, PANEL_STEP, panel_b, c, c_row, add, fetch);
    else
        multiply_tiles(k, panel_a, PANEL_ROW, PANEL_STEP, panel_b, c, c_row, add, fetch, LONG);
}

static void multiply_rows(int64_t k, const void *a, int64_t a_row, const void *panel_b, float *c, int64_t c_row,
                          bool add, const sl_tile_fetch *fetch)
{
    const long row = (long)a_row * (long)sizeof(uint16_t);
    if (k <= PIECE)
        multiply_short(k, a, row, PANEL_ROW, panel_b, c, c_row, add, fetch);
    else
        multiply_tiles(k, a, row, PANEL_ROW, panel_b, c, c_row, add, fetch, LONG);
}

/* The same with AVX512-BF16, a few rows at a time. */
static void multiply_pairs(int64_t k, const void *panel_a, const void *panel_b, float *c, int64_t c_row, bool add,
                           const sl_tile_fetch *fetch)
{
    enum { AT_ONCE = 8 };
    (void)fetch;
    for (int64_t first = 0; first < ROWS; first += AT_ONCE, c += AT_ONCE * c_row) {
        const uint16_t *a = (const uint16_t *)panel_a + first * DEPTH;
        const int *b = panel_b;
        vf sum[AT_ONCE][2];
#pragma GCC unroll 8
        for (int i = 0; i < AT_ONCE; i++) {
            sum[i][0] = add ? v_load(c + i * c_row) : v_set(0.0f);
            sum[i][1] = add ? v_load(c + i * c_row + SIDE) : v_set(0.0f);
        }
        for (int64_t l = 0; l < k; l += DEPTH, a += BOTH, b += BOTH / 2) {
            for (int64_t pair = 0; pair < SIDE; pair++) {
                const __m512bh left = (__m512bh)_mm512_loadu_si512(b + pair * SIDE);
                const __m512bh right = (__m512bh)_mm512_loadu_si512(b + TILE / 2 + pair * SIDE);
#pragma GCC unroll 8
                for (int i = 0; i < AT_ONCE; i++) {
                    int both;
                    memcpy(&both, a + (int64_t)i * DEPTH + 2 * pair, sizeof both);
                    sum[i][0] = _mm512_dpbf16_ps(sum[i][0], (__m512bh)_mm512_set1_epi32(both), left);
                    sum[i][1] = _mm512_dpbf16_ps(sum[i][1], (__m512bh)_mm512_set1_epi32(both), right);
                }
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < AT_ONCE; i++) {
            v_store(c + i * c_row, sum[i][0]);
            v_store(c + i * c_row + SIDE, sum[i][1]);
        }
    }
}

const sl_tile sl_tile_amx = {
    .name = "amx",
    .size = sizeof(uint16_t),
    .rows = ROWS,
    .columns = COLUMNS,
    .depth = DEPTH,
    .block_k = 2048,
    .piece_k = PIECE,
    .fetched_bytes = 16,
    .pack_cost = 50,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .multiply = multiply,
    .multiply_rows = multiply_rows,
    .crowded = 1024,
    .put = sl_tile_put_bf16,
    .begin = sl_tile_amx_begin,
    .end = sl_tile_amx_end,
};

const sl_tile sl_tile_dot_square = {
    .name = "bf16 dot, 32 x 32",
    .size = sizeof(uint16_t),
    .rows = ROWS,
    .columns = COLUMNS,
    .depth = DEPTH,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .multiply = multiply_pairs,
};
#endif
