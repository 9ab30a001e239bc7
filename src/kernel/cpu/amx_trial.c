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

enum { SIDE = 32, LONGEST = 512 + SIDE, COUNT = SIDE * LONGEST, PARTS = 3 };

/* Row i of A holds i % 5 + 1 and a fraction, column i of B i % 7 + 1, along all of the sum. */
typedef struct trial_factors {
    float fraction;
    union {
        float f32[COUNT];
        uint16_t bf16[COUNT];
    } a, b;
    _Alignas(64) uint16_t panel_a[PARTS * COUNT];
    _Alignas(64) uint16_t panel_b[PARTS * COUNT];
} trial_factors;

static void make_factors(const sl_tile *tile, sl_dtype dtype, trial_factors *f)
{
    const sl_factor a = { &f->a, dtype, LONGEST, 1 }, b = { &f->b, dtype, LONGEST, 1 };
    f->fraction = dtype == SL_F32 ? 0x1p-9f : 0; /* which takes the second part of a number */
    for (int64_t i = 0; i < COUNT; i++) {
        float left = (float)(i / LONGEST % 5 + 1) + f->fraction, right = (float)(i / LONGEST % 7 + 1);
        if (dtype == SL_F32) {
            f->a.f32[i] = left;
            f->b.f32[i] = right;
        } else {
            f->a.bf16[i] = sl_bf16_from_f32(left);
            f->b.bf16[i] = sl_bf16_from_f32(right);
        }
    }
    tile->pack_a(&a, SIDE, LONGEST, f->panel_a);
    tile->pack_b(&b, SIDE, LONGEST, f->panel_b);
}

/* Each element is `times` the sum of k products, without an error. */
static bool is_product(const trial_factors *f, const float *c, int64_t k, int64_t times)
{
    bool right = true;
    for (int64_t i = 0; i < (int64_t)SIDE * SIDE; i++)
        right = right && c[i] == (float)(times * k * (i % SIDE % 7 + 1)) * ((float)(i / SIDE % 5 + 1) + f->fraction);
    return right;
}

/* Every form that products have. The compiler cannot see through the pointer: it makes no other forms for this alone. */
static bool gives_right_results(const sl_tile *of, sl_dtype dtype)
{
    static trial_factors f; /* one thread alone is here */
    const sl_tile *volatile tile = of;
    const sl_tile_fetch nothing = { .panel = NULL };
    const int64_t lengths[] = { SIDE, (int64_t)4 * SIDE, LONGEST };
    float c[SIDE * SIDE];
    bool right = true;
    make_factors(tile, dtype, &f);
    sl_tile_begin(tile);
    for (int i = 0; i < 3; i++) {
        int64_t k = lengths[i];
        tile->multiply(k, f.panel_a, f.panel_b, c, SIDE, false, NULL);
        right = right && is_product(&f, c, k, 1);
        tile->multiply(k, f.panel_a, f.panel_b, c, SIDE, true, &nothing);
        right = right && is_product(&f, c, k, 2);
        if (tile->multiply_rows)
            tile->multiply_rows(k, &f.a, LONGEST, f.panel_b, c, SIDE, true, &nothing);
        right = right && is_product(&f, c, k, tile->multiply_rows ? 3 : 2);
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
