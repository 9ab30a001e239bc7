/* Whether the tiles of AMX can be used. Virtual machines may hide the processor's description of them, offer them and
 * not let them be used, so a trial says it. */
#include "kernel/cpu/tile.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

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

enum { SIDE = 32, LONGEST = 512 + SIDE, COUNT = SIDE * LONGEST, PARTS = 3, LENGTHS = 3 };

static const int64_t lengths[LENGTHS] = { SIDE, (int64_t)4 * SIDE, LONGEST };

/* Rows of A and columns of B, as they are and as panels. */
typedef struct trial_factors {
    float a[COUNT], b[COUNT];
    uint16_t halves_a[COUNT], halves_b[COUNT];
    _Alignas(64) uint16_t panel_a[PARTS * COUNT];
    _Alignas(64) uint16_t panel_b[PARTS * COUNT];
} trial_factors;

/* Of bf16: small whole numbers. */
static float whole_number(bool is_b, int64_t i, int64_t l)
{
    return (float)((i + l) % (is_b ? 7 : 5) - 2);
}

/* Of f32: three in a step, so that each part of a number of A meets each of B that counts. Steps have opposite signs: a sum
 * is small, and has no more than 24 bits. */
static float number_in_parts(bool is_b, int64_t i, int64_t l)
{
    enum { OF_B = 5, OF_BOTH = 11, OF_A = 21 };
    float sign = !is_b && l / SIDE % 2 ? -1 : 1, simple = (float)(1 + i % 3), all = 1 + 0x1p-9f + 0x1p-18f;
    switch (l % SIDE) {
    case OF_B:
        return sign * (is_b ? all : simple);
    case OF_BOTH:
        return sign * (1 + 0x1p-9f);
    case OF_A:
        return sign * (is_b ? simple : all);
    default:
        return 0;
    }
}

static void make_factors(const sl_tile *tile, sl_dtype dtype, trial_factors *f)
{
    bool wide = dtype == SL_F32;
    const sl_factor a = { wide ? (void *)f->a : f->halves_a, dtype, LONGEST, 1 };
    const sl_factor b = { wide ? (void *)f->b : f->halves_b, dtype, LONGEST, 1 };
    for (int64_t i = 0; i < COUNT; i++) {
        f->a[i] = (wide ? number_in_parts : whole_number)(false, i / LONGEST, i % LONGEST);
        f->b[i] = (wide ? number_in_parts : whole_number)(true, i / LONGEST, i % LONGEST);
        f->halves_a[i] = sl_bf16_from_f32(f->a[i]);
        f->halves_b[i] = sl_bf16_from_f32(f->b[i]);
    }
    tile->pack_a(&a, SIDE, LONGEST, f->panel_a);
    tile->pack_b(&b, SIDE, LONGEST, f->panel_b);
}

/* Each element is `times` the sum of k products, without an error. */
static bool is_product(const trial_factors *f, const float *c, int64_t k, int64_t times)
{
    for (int64_t i = 0; i < (int64_t)SIDE * SIDE; i++) {
        const float *a = f->a + i / SIDE * LONGEST, *b = f->b + i % SIDE * LONGEST;
        double sum = 0;
        for (int64_t l = 0; l < k; l++)
            sum += (double)a[l] * (double)b[l];
        if ((double)c[i] != (double)times * sum)
            return false;
    }
    return true;
}

/* Every form that products have. The compiler cannot see through the pointer: it makes no other forms for this alone. */
static bool gives_right_results(const sl_tile *of, sl_dtype dtype)
{
    static trial_factors f; /* one thread alone is here */
    const sl_tile *volatile tile = of;
    const sl_tile_fetch nothing = { .panel = NULL };
    float c[SIDE * SIDE];
    bool right = true;
    make_factors(tile, dtype, &f);
    sl_tile_begin(tile);
    for (int i = 0; i < LENGTHS; i++) {
        int64_t k = lengths[i];
        tile->multiply(k, f.panel_a, f.panel_b, c, SIDE, false, NULL);
        right = right && is_product(&f, c, k, 1);
        tile->multiply(k, f.panel_a, f.panel_b, c, SIDE, true, &nothing);
        right = right && is_product(&f, c, k, 2);
        if (!tile->multiply_rows)
            continue;
        tile->multiply_rows(k, f.halves_a, LONGEST, f.panel_b, c, SIDE, true, &nothing);
        right = right && is_product(&f, c, k, 3);
    }
    sl_tile_end(tile);
    return right;
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
        works = gives_right_results(&sl_tile_amx, SL_BF16) && gives_right_results(&sl_tile_amx_f32, SL_F32);
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
