/* The instructions of AMX as functions on tiles in memory. It is included before tile_amx.c and tile_amx_f32.c are compiled
 * for the tests. As on the processor, tiles are a thread's own, and there are none before they are configured. */
#ifndef TESTS_AMX_INSTRUCTIONS_H
#define TESTS_AMX_INSTRUCTIONS_H

#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/amx/tiles.h"

/* Where the processor would raise an exception. */
static inline void emulated_need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "emulated AMX: %s\n", what);
        abort();
    }
}

/* Palette 1, and all tiles of full size: the only configuration of ours. All else must be 0. */
static inline void emulated_loadconfig(const void *config)
{
    enum { SIZES = 16, ROWS_AT = 48, ALL_TILES = 16 };
    const unsigned char *bytes = config;
    emulated_need(bytes[0] == 1, "the configuration is not of palette 1");
    for (int i = 1; i < SIZES; i++)
        emulated_need(bytes[i] == 0, "a reserved byte of the configuration is not 0");
    for (int i = 0; i < ALL_TILES; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + SIZES + 2 * i, sizeof row_bytes);
        emulated_need(row_bytes == (i < EMULATED_TILES ? EMULATED_ROW_BYTES : 0), "a tile has rows of another size");
        emulated_need(bytes[ROWS_AT + i] == (i < EMULATED_TILES ? EMULATED_ROWS : 0),
                      "a tile has too few or many rows");
    }
    memset(emulated.bytes, 0, sizeof emulated.bytes);
    emulated.configured = 1;
}

static inline void emulated_release(void)
{
    emulated.configured = 0;
}

static inline void emulated_zero(int tile)
{
    emulated_need(emulated.configured, "a tile is cleared before tiles are configured");
    memset(emulated.bytes[tile], 0, sizeof emulated.bytes[tile]);
}

static inline void emulated_loadd(int tile, const void *from, long stride)
{
    emulated_need(emulated.configured, "a tile is loaded before tiles are configured");
    for (int i = 0; i < EMULATED_ROWS; i++)
        memcpy(emulated.bytes[tile][i], (const char *)from + i * stride, EMULATED_ROW_BYTES);
}

/* Past the first-level cache. */
static inline void emulated_stream_loadd(int tile, const void *from, long stride)
{
    emulated_loadd(tile, from, stride);
}

static inline void emulated_stored(int tile, void *to, long stride)
{
    emulated_need(emulated.configured, "a tile is stored before tiles are configured");
    for (int i = 0; i < EMULATED_ROWS; i++)
        memcpy((char *)to + i * stride, emulated.bytes[tile][i], EMULATED_ROW_BYTES);
}

/* One of the two elements of each pair, as floats. */
static inline __m512 emulated_halves(__m512i pairs, int upper)
{
    return _mm512_castsi512_ps(upper ? _mm512_andnot_si512(_mm512_set1_epi32(0xffff), pairs)
                                     : _mm512_slli_epi32(pairs, 16));
}

/* Pairs of bf16: a row of A holds 16 pairs along the sum, a row of B a pair of each of 16 columns. The products of the
 * pairs' first elements and those of their second ones are summed apart, then both sums are added to C. Denormal numbers
 * are 0, as operands and as results. */
static inline void emulated_dpbf16ps(int c, int a, int b)
{
    enum { FLUSH = 0x8040 };
    emulated_need(emulated.configured, "tiles are multiplied before tiles are configured");
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH);
    for (int i = 0; i < EMULATED_ROWS; i++) {
        __m512 sums[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
        for (int l = 0; l < EMULATED_ROWS; l++) {
            int pair;
            memcpy(&pair, emulated.bytes[a][i] + (ptrdiff_t)l * 4, sizeof pair);
            for (int upper = 0; upper < 2; upper++)
                sums[upper] =
                    _mm512_fmadd_ps(emulated_halves(_mm512_set1_epi32(pair), upper),
                                    emulated_halves(_mm512_load_si512(emulated.bytes[b][l]), upper), sums[upper]);
        }
        _mm512_store_ps(emulated.bytes[c][i],
                        _mm512_add_ps(_mm512_load_ps(emulated.bytes[c][i]), _mm512_add_ps(sums[0], sums[1])));
    }
    _mm_setcsr(before);
}

/* NOLINTBEGIN(bugprone-reserved-identifier): the names are those of the compiler */
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stream_loadd emulated_stream_loadd
#define _tile_stored emulated_stored
#define _tile_dpbf16ps emulated_dpbf16ps
/* NOLINTEND(bugprone-reserved-identifier) */

/* Beside those of the library. */
#define sl_tile_amx test_tile_amx
#define sl_tile_amx_f32 test_tile_amx_f32
#define sl_tile_amx_begin test_tile_amx_begin
#define sl_tile_amx_end test_tile_amx_end
#define sl_tile_dot_square test_tile_dot_square
#endif

#endif
