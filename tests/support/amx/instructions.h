/* The instructions of AMX as functions on tiles in memory. It is included before tile_amx.c is compiled for the tests. As
 * on the processor, tiles are a thread's own, and there are none before they are configured. */
#ifndef TESTS_AMX_INSTRUCTIONS_H
#define TESTS_AMX_INSTRUCTIONS_H

#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_ROW_BYTES = 64 };

static _Thread_local struct emulated_tiles {
    _Alignas(64) unsigned char bytes[EMULATED_TILES][EMULATED_ROWS][EMULATED_ROW_BYTES];
    int configured;
} emulated;

/* Where the processor would raise an exception. */
static inline void emulated_need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "emulated AMX: %s\n", what);
        abort();
    }
}

/* Palette 1, and all tiles of full size: the only configuration of ours. */
static inline void emulated_loadconfig(const void *config)
{
    const unsigned char *bytes = config, *rows = bytes + 48;
    emulated_need(bytes[0] == 1 && bytes[1] == 0, "the configuration is not of palette 1");
    for (int i = 0; i < EMULATED_TILES; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof row_bytes);
        emulated_need(row_bytes == EMULATED_ROW_BYTES && rows[i] == EMULATED_ROWS, "a tile is not of full size");
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

/* Pairs of bf16: a row of A holds 16 pairs along the sum, a row of B a pair of each of 16 columns. */
static inline void emulated_dpbf16ps(int c, int a, int b)
{
    emulated_need(emulated.configured, "tiles are multiplied before tiles are configured");
    for (int i = 0; i < EMULATED_ROWS; i++) {
        __m512 sum = _mm512_load_ps(emulated.bytes[c][i]);
        for (int l = 0; l < EMULATED_ROWS; l++) {
            int pair;
            memcpy(&pair, emulated.bytes[a][i] + (ptrdiff_t)l * 4, sizeof pair);
            sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair),
                                   (__m512bh)_mm512_load_si512(emulated.bytes[b][l]));
        }
        _mm512_store_ps(emulated.bytes[c][i], sum);
    }
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
#define sl_tile_amx_works test_tile_amx_works
#define sl_tile_dot_square test_tile_dot_square
#endif

#endif
