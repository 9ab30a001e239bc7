/* Panels of the packed product in f32, and the way of a tile's sums into C. */
#include "kernel/cpu/tile.h"

/* The tile of C: as many sums as the registers hold beside a row of B and one element of A. Three vectors of B need
 * fewer loads for as many sums than two. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 8, TILE_VECTORS = 3, TILE_COLUMNS = TILE_VECTORS * VW };
#else
enum { TILE_ROWS = ROWS, TILE_VECTORS = 2, TILE_COLUMNS = TILE_VECTORS * VW };
#endif

/* n >= 1 contiguous elements as floats; the lanes behind them are 0. */
V_INLINE vf load_any(const void *p, sl_dtype dtype, int64_t n)
{
    uint16_t part[VW];
    if (dtype == SL_F32)
        return load_upto(p, n);
    if (n < VW) {
        for (int i = 0; i < VW; i++)
            part[i] = i < n ? ((const uint16_t *)p)[i] : 0;
        p = part;
    }
    return dtype == SL_BF16 ? v_load_bf16(p) : v_load_f16(p);
}

V_INLINE const void *element_at(const sl_factor *from, int64_t i, int64_t l)
{
    return (const char *)from->data + (i * from->row + l * from->column) * (from->dtype == SL_F32 ? 4 : 2);
}

/* Rows of l are contiguous: VW x VW elements are transposed at a time. */
V_INLINE void pack_transposed(const sl_factor *from, sl_dtype dtype, int64_t filled, int64_t k, const int width,
                              float *to)
{
    vf tile[VW];
    for (int first = 0; first < width; first += VW) {
        int lanes = width - first < VW ? width - first : VW;
        for (int64_t l = 0; l < k; l += VW) {
            int64_t n = k - l < VW ? k - l : VW;
            for (int i = 0; i < VW; i++)
                tile[i] =
                    i < lanes && first + i < filled ? load_any(element_at(from, first + i, l), dtype, n) : v_set(0.0f);
            v_transpose(tile);
            for (int64_t i = 0; i < n; i++)
                emit_upto(to + (l + i) * width + first, tile[i], lanes, false);
        }
    }
}

/* Elements of one l are contiguous, as they are in the panel. */
V_INLINE void pack_straight(const sl_factor *from, sl_dtype dtype, int64_t filled, int64_t k, const int width,
                            float *to)
{
    for (int64_t l = 0; l < k; l++) {
        for (int first = 0; first < width; first += VW) {
            int lanes = width - first < VW ? width - first : VW;
            int64_t n = filled - first < lanes ? filled - first : lanes;
            vf row = n > 0 ? load_any(element_at(from, first, l), dtype, n) : v_set(0.0f);
            emit_upto(to + l * width + first, row, lanes, false);
        }
    }
}

static void pack_one_by_one(const sl_factor *from, int64_t filled, int64_t k, int width, float *to)
{
    for (int64_t l = 0; l < k; l++) {
        for (int64_t i = 0; i < width; i++) {
            float value = 0;
            if (i < filled && from->dtype == SL_F32)
                value = *(const float *)element_at(from, i, l);
            else if (i < filled)
                simd_from_half(from->dtype, element_at(from, i, l), &value, 1);
            to[l * width + i] = value;
        }
    }
}

V_INLINE void pack_panel(const sl_factor *from, int64_t filled, int64_t k, const int width, float *to)
{
    if (from->column == 1 && from->dtype == SL_F32)
        pack_transposed(from, SL_F32, filled, k, width, to);
    else if (from->column == 1)
        pack_transposed(from, from->dtype, filled, k, width, to);
    else if (from->row == 1 && from->dtype == SL_F32)
        pack_straight(from, SL_F32, filled, k, width, to);
    else if (from->row == 1)
        pack_straight(from, from->dtype, filled, k, width, to);
    else
        pack_one_by_one(from, filled, k, width, to);
}

static void simd_pack_a(const sl_factor *from, int64_t filled, int64_t k, void *to)
{
    pack_panel(from, filled, k, TILE_ROWS, to);
}

static void simd_pack_b(const sl_factor *from, int64_t filled, int64_t k, void *to)
{
    pack_panel(from, filled, k, TILE_COLUMNS, to);
}

/* Element (i, l) of A is a[i * row + l * step], b has k groups of TILE_COLUMNS elements. AVX-512 fetches B from the
 * second-level cache a few steps ahead: a core that another hyper-thread shares does not look that far by itself. */
V_INLINE void multiply_steps(int64_t k, const float *a, const int64_t row, const int64_t step, const float *b,
                             vf sum[TILE_ROWS][TILE_VECTORS])
{
    enum { FETCHED = 8, HALF = TILE_ROWS / 2 };
    const float *below = a + HALF * row; /* few registers address all rows, if they are apart */
    for (int64_t l = 0; l < k; l++, a += step, below += step, b += TILE_COLUMNS) {
        vf right[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++) {
            if (VW == 16)
                __builtin_prefetch(b + (int64_t)FETCHED * TILE_COLUMNS + (int64_t)j * VW);
            right[j] = v_load(b + (int64_t)j * VW);
        }
#pragma GCC unroll 16
        for (int i = 0; i < TILE_ROWS; i++) {
            vf element = v_set(row == 1 || i < HALF ? a[i * row] : below[(i - HALF) * row]);
#pragma GCC unroll 4
            for (int j = 0; j < TILE_VECTORS; j++)
                sum[i][j] = v_fma(element, right[j], sum[i][j]);
        }
    }
}

/* Rows of A as they lie are fetched a line each, two lines before they are used. */
V_INLINE void fetch_rows(const float *a, const int64_t row, int64_t l)
{
    enum { LINE = 16, AHEAD = 2 * LINE };
    for (int i = 0; l % LINE == 0 && i < TILE_ROWS; i++)
        __builtin_prefetch(a + i * row + l + AHEAD);
}

V_INLINE void multiply_tile(int64_t k, const float *a, const int64_t row, const int64_t step, const float *b, float *c,
                            int64_t c_row, bool add, const sl_tile_fetch *wanted)
{
    /* Of the wanted panel some lines are fetched every few steps. */
    enum { STEPS = VW == 16 ? 8 : 24, LINES = STEPS / 4, LINE = 64 };
    sl_tile_fetch fetch = wanted ? *wanted : (sl_tile_fetch){ .panel = NULL };
    vf sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 64
    for (int i = 0; i < TILE_ROWS * TILE_VECTORS; i++)
        sum[i / TILE_VECTORS][i % TILE_VECTORS] = v_set(0.0f);
    int64_t l = 0;
    for (; wanted && l + STEPS <= k; l += STEPS) {
        for (int i = 0; fetch.panel && i < LINES; i++, fetch.panel += LINE)
            __builtin_prefetch(fetch.panel, 0, 2);
        for (int i = 0; i < SL_TILE_WRITES; i++)
            sl_fetch_rows(&fetch.writes[i], 1);
        if (step == 1)
            fetch_rows(a, row, l);
        multiply_steps(STEPS, a + l * step, row, step, b + l * TILE_COLUMNS, sum);
    }
    multiply_steps(k - l, a + l * step, row, step, b + l * TILE_COLUMNS, sum);
#pragma GCC unroll 64
    for (int i = 0; i < TILE_ROWS * TILE_VECTORS; i++)
        v_emit(c + i / TILE_VECTORS * c_row + (int64_t)(i % TILE_VECTORS) * VW, sum[i / TILE_VECTORS][i % TILE_VECTORS],
               add);
}

static void simd_multiply(int64_t k, const void *a, const void *b, float *c, int64_t c_row, bool add,
                          const sl_tile_fetch *fetch)
{
    multiply_tile(k, a, 1, TILE_ROWS, b, c, c_row, add, fetch);
}

/* With AVX2 there are too few registers, and packing pays. */
#if defined(__AVX512F__)
static void simd_multiply_rows(int64_t k, const void *a, int64_t a_row, const void *b, float *c, int64_t c_row,
                               bool add, const sl_tile_fetch *fetch)
{
    multiply_tile(k, a, a_row, 1, b, c, c_row, add, fetch);
}
#else
#define simd_multiply_rows NULL
#endif

static const sl_tile simd_tile = {
    .name = "f32",
    .size = sizeof(float),
    .rows = TILE_ROWS,
    .columns = TILE_COLUMNS,
    .depth = 1,
    .block_k = 768,
    .fetched_bytes = 16,
    .pack_cost = 8,
    .pack_a = simd_pack_a,
    .pack_b = simd_pack_b,
    .multiply = simd_multiply,
    .multiply_rows = simd_multiply_rows,
    .crowded = 8192,
};

/* One vector of results: sums + bias + what C holds. */
V_INLINE void put_vector(const sl_tile_result *r, int64_t row, int64_t column, sl_dtype dtype)
{
    int64_t n = r->columns - column;
    char *c = (char *)r->c + (row * r->c_row + column) * (dtype == SL_F32 ? 4 : 2);
    vf value = load_upto(r->sums + row * r->sums_row + column, n);
    if (r->bias)
        value = v_add(value, load_upto(r->bias + column, n));
    if (r->add)
        value = v_add(value, load_any(c, dtype, n));
    uint16_t part[VW], *half = n < VW ? part : (uint16_t *)(void *)c;
    if (dtype == SL_F32)
        emit_upto((float *)(void *)c, value, n, false);
    else if (dtype == SL_BF16)
        v_store_bf16(half, value);
    else
        v_store_f16(half, value);
    for (int64_t i = 0; dtype != SL_F32 && n < VW && i < n; i++)
        ((uint16_t *)(void *)c)[i] = part[i];
}

/* V_GROUP vectors of them in bf16. */
V_INLINE void put_bf16_group(const sl_tile_result *r, int64_t row, int64_t column)
{
    const float *sums = r->sums + row * r->sums_row + column;
    uint16_t *c = (uint16_t *)r->c + row * r->c_row + column;
    vf values[V_GROUP];
#pragma GCC unroll 4
    for (int i = 0; i < V_GROUP; i++) {
        values[i] = v_load(sums + i * VW);
        if (r->bias)
            values[i] = v_add(values[i], v_load(r->bias + column + i * VW));
        if (r->add)
            values[i] = v_add(values[i], v_load_bf16(c + i * VW));
    }
    v_store_bf16_group(c, values);
}

static void simd_put_tile(const sl_tile_result *r)
{
    for (int64_t row = 0; row < r->rows; row++) {
        int64_t column = 0;
        for (; r->dtype == SL_BF16 && column + V_GROUP * VW <= r->columns; column += V_GROUP * VW)
            put_bf16_group(r, row, column);
        for (; column < r->columns; column += VW) {
            if (r->dtype == SL_F32)
                put_vector(r, row, column, SL_F32);
            else if (r->dtype == SL_BF16)
                put_vector(r, row, column, SL_BF16);
            else
                put_vector(r, row, column, SL_F16);
        }
    }
}
