/* The tile for bf16 on machines with AMX. Tile registers of 16 rows of 64 bytes: 2 x 2 of them hold C, two each A and B.
 * Virtual machines may hide the processor's description of the registers (CPUID leaves 0x1d and 0x1e), so their form is
 * set by hand, and a trial says whether they can be used. */
#include "kernel/cpu/tile.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel/cpu/simd/vec_avx512.h"

enum { SIDE = 16, ROWS = 2 * SIDE, COLUMNS = 2 * SIDE, DEPTH = 32, TILE = SIDE * DEPTH, BOTH = 2 * TILE };

/* ---- Panels ---------------------------------------------------------------------------------- */

static const uint16_t *element_at(const sl_factor *from, int64_t i, int64_t l)
{
    return (const uint16_t *)from->data + i * from->row + l * from->column;
}

static __m512i load_upto(const uint16_t *p, int64_t n)
{
    return _mm512_maskz_loadu_epi16(n < DEPTH ? (__mmask32)((1u << n) - 1) : (__mmask32)-1, p);
}

/* 16 rows of A, 32 l: elements of one l are contiguous, so pairs of l are interleaved and then transposed. */
static void transpose_block(const sl_factor *from, int64_t first, int64_t filled, int64_t l, int64_t k, uint16_t *to)
{
    vf words[SIDE];
    int64_t n = filled - first < SIDE ? filled - first : SIDE;
    __mmask16 mask = n > 0 ? (__mmask16)((1u << n) - 1) : 0;
    for (int i = 0; i < SIDE; i++) {
        int64_t at = l + (int64_t)2 * i;
        __m512i low = _mm512_setzero_si512(), high = low;
        if (n > 0 && at < k)
            low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, element_at(from, first, at)));
        if (n > 0 && at + 1 < k)
            high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, element_at(from, first, at + 1)));
        words[i] = _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
    v_transpose(words);
    for (int i = 0; i < SIDE; i++)
        _mm512_storeu_ps(to + (int64_t)i * DEPTH, words[i]);
}

/* Rows of A that lie contiguous: a few at a time, so that the processor sees few streams of reads and fetches ahead. */
enum { STREAMS = 8 };

static void copy_rows(const sl_factor *from, int64_t first, int64_t filled, int64_t k, uint16_t *to)
{
    for (int64_t l = 0; l < k; l += DEPTH, to += BOTH) {
        for (int64_t i = first; i < first + STREAMS; i++)
            _mm512_storeu_si512(to + i * DEPTH,
                                i < filled ? load_upto(element_at(from, i, l), k - l) : _mm512_setzero_si512());
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
        for (int64_t l = 0; l < k; l += DEPTH, to += BOTH) {
            transpose_block(from, 0, filled, l, k, to);
            transpose_block(from, SIDE, filled, l, k, to + TILE);
        }
    } else {
        copy_one_by_one(from, filled, k, to);
    }
}

/* [k / 32][2][16 pairs of l][16 columns][2]: a tile register is contiguous. */
static void pack_b(const sl_factor *from, int64_t filled, int64_t k, void *panel)
{
    uint16_t *to = panel;
    for (int64_t l = 0; l < k; l += DEPTH) {
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

/* Not inlined, here and below, so that the trial runs what products run. */
static __attribute__((noinline)) void begin(void)
{
    _tile_loadconfig(&config);
}

static __attribute__((noinline)) void end(void)
{
    _tile_release();
}

/* Panels come from the second-level cache. Those of A must not drive B, which the next tiles read again, out of the
 * first. A register is loaded for the next step right after its last use: if the core is shared with another hyper-thread,
 * few tiles can be under way, and this order is up to a fifth faster than loads before their use. */
static __attribute__((noinline)) void multiply(int64_t k, const void *panel_a, const void *panel_b, float *c,
                                               int64_t c_row, bool add, const void *ahead)
{
    enum { LINE = 64, LINES = DEPTH / 4 }; /* fetched in each step */
    const uint16_t *a = panel_a, *b = panel_b;
    const char *line = ahead;
    const long tile_row = DEPTH * (long)sizeof *a, row = (long)c_row * (long)sizeof *c;
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
    _tile_stream_loadd(4, a, tile_row);
    _tile_loadd(6, b, tile_row);
    _tile_loadd(7, b + TILE, tile_row);
    _tile_stream_loadd(5, a + TILE, tile_row);
    for (int64_t l = DEPTH; l < k; l += DEPTH) {
        for (int i = 0; line && i < LINES; i++, line += LINE)
            _mm_prefetch(line, _MM_HINT_T1);
        a += BOTH;
        b += BOTH;
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(4, a, tile_row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(6, b, tile_row);
        _tile_dpbf16ps(3, 5, 7);
        _tile_stream_loadd(5, a + TILE, tile_row);
        _tile_loadd(7, b + TILE, tile_row);
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

/* The same panels with AVX512-BF16. */
static void multiply_pairs(int64_t k, const void *panel_a, const void *panel_b, float *c, int64_t c_row, bool add,
                           const void *ahead)
{
    (void)ahead;
    for (int64_t i = 0; i < (int64_t)2 * ROWS; i++) {
        float *to = c + i / 2 * c_row + i % 2 * SIDE;
        vf sum = add ? v_load(to) : v_set(0.0f);
        const int *a = (const int *)panel_a + i / 2 * SIDE, *b = (const int *)panel_b + i % 2 * (TILE / 2);
        for (int64_t l = 0; l < k; l += DEPTH, a += BOTH / 2, b += BOTH / 2) {
            for (int64_t pair = 0; pair < SIDE; pair++)
                sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(a[pair]),
                                       (__m512bh)_mm512_loadu_si512(b + pair * SIDE));
        }
        v_store(to, sum);
    }
}

const sl_tile sl_tile_amx = {
    .name = "amx",
    .size = sizeof(uint16_t),
    .rows = ROWS,
    .columns = COLUMNS,
    .depth = DEPTH,
    .block_k = 1536,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .multiply = multiply,
    .begin = begin,
    .end = end,
};

const sl_tile sl_tile_amx_emulated = {
    .name = "amx, emulated",
    .size = sizeof(uint16_t),
    .rows = ROWS,
    .columns = COLUMNS,
    .depth = DEPTH,
    .block_k = 1536,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .multiply = multiply_pairs,
};

/* ---- Trial ----------------------------------------------------------------------------------- */

static bool is_offered(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
    enum { BF16 = 1u << 22, TILES = 1u << 24, OSXSAVE = 1u << 27, TILE_STATE = 3u << 17 };
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) || !(d & TILES))
        return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & TILE_STATE) == TILE_STATE;
}

static bool is_allowed(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static _Thread_local sigjmp_buf *on_trial; /* of the thread that tries, else NULL */
static struct sigaction before;

/* A fault of another thread goes to whoever handled it before. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    if (on_trial)
        siglongjmp(*on_trial, 1);
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        signal(number, SIG_DFL); /* the instruction runs again and ends the process */
    } else {
        before.sa_handler(number);
    }
}

/* 32 x 32 elements of ones: each sum is 32. */
static bool gives_right_results(void)
{
    static const uint16_t one = 0x3f80;
    uint16_t a[BOTH], b[BOTH];
    float c[ROWS * COLUMNS];
    for (int i = 0; i < BOTH; i++)
        a[i] = b[i] = one;
    begin();
    multiply(DEPTH, a, b, c, COLUMNS, false, NULL);
    end();
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        if (c[i] != DEPTH)
            return false;
    }
    return true;
}

static bool survives_trial(void)
{
    sigjmp_buf back;
    bool works = false;
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGILL, &action, &before) != 0)
        return false;
    if (sigsetjmp(back, 1) == 0) {
        on_trial = &back;
        works = gives_right_results();
    }
    on_trial = NULL;
    sigaction(SIGILL, &before, NULL);
    return works;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool works;

static void try_once(void)
{
    works = is_offered() && is_allowed() && survives_trial();
}

bool sl_tile_amx_works(void)
{
    pthread_once(&once, try_once);
    return works;
}
#endif
