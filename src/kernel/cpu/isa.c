/* Looks at the machine once and picks the table of loops. */
#include "kernel/cpu/isa.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[SL_ISA_COUNT] = { "reference", "scalar", "avx2", "avx512", "avx512_bf16", "amx" };

static const sl_simd *const tables[SL_ISA_COUNT] = {
    [SL_ISA_SCALAR] = &sl_simd_scalar,
#if defined(__x86_64__)
    [SL_ISA_AVX2] = &sl_simd_avx2,       [SL_ISA_AVX512] = &sl_simd_avx512, [SL_ISA_AVX512_BF16] = &sl_simd_avx512_bf16,
    [SL_ISA_AMX] = &sl_simd_avx512_bf16,
#endif
};

static atomic_int chosen = -1;                   /* -1: not looked yet */
static _Atomic(const sl_tile *) emulated_amx[2]; /* for f32, for bf16 */
static _Thread_local sl_isa asked = SL_ISA_COUNT;

const char *sl_isa_name(sl_isa isa)
{
    return (unsigned)isa < SL_ISA_COUNT ? names[isa] : "?";
}

#if defined(__x86_64__)
/* Conversions to and from f16; not every compiler's __builtin_cpu_supports knows the name. */
static bool has_f16c(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512_bf16(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}
#endif

sl_isa sl_isa_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return !has_avx512_bf16()                                 ? SL_ISA_AVX512
               : sl_tile_amx_works() || atomic_load(emulated_amx) ? SL_ISA_AMX
                                                                  : SL_ISA_AVX512_BF16;
    if (avx2)
        return SL_ISA_AVX2;
#endif
    return SL_ISA_SCALAR;
}

static sl_isa choose(void)
{
    sl_isa best = sl_isa_best();
    const char *wanted = getenv("SLUICE_ISA");
    if (!wanted || !*wanted)
        return best;
    for (int i = 0; i < SL_ISA_COUNT; i++) {
        if (strcmp(wanted, names[i]) != 0)
            continue;
        if (i <= (int)best)
            return (sl_isa)i;
        sl_log(SL_LOG_WARN, "SLUICE_ISA=%s: this machine has no %s; using %s", wanted, wanted, names[best]);
        return best;
    }
    sl_log(SL_LOG_WARN, "SLUICE_ISA=%s is not one of reference, scalar, avx2, avx512, avx512_bf16, amx; using %s",
           wanted, names[best]);
    return best;
}

void sl_isa_ask_for(sl_isa isa)
{
    asked = isa;
}

bool sl_isa_is_asked_for(void)
{
    return asked != SL_ISA_COUNT;
}

sl_isa sl_isa_get(void)
{
    if (sl_isa_is_asked_for())
        return asked;
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)choose();
        atomic_store(&chosen, isa);
    }
    return (sl_isa)isa;
}

bool sl_isa_set(sl_isa isa)
{
    if ((unsigned)isa >= SL_ISA_COUNT || isa > sl_isa_best())
        return false;
    atomic_store(&chosen, (int)isa);
    return true;
}

void sl_isa_emulate_amx(const sl_tile *f32, const sl_tile *bf16)
{
    atomic_store(&emulated_amx[1], bf16);
    atomic_store(&emulated_amx[0], f32);
}

const sl_simd *sl_isa_simd(void)
{
    return tables[sl_isa_get()];
}

/* On Intel the instruction for pairs of bf16 takes four times as long as a multiply-add, so bf16 is widened there. What a
 * thread asks for is never run. */
const sl_tile *sl_isa_tile(bool bf16)
{
#if defined(__x86_64__)
    sl_isa isa = sl_isa_get();
    if (isa == SL_ISA_AMX && !sl_isa_is_asked_for() && !sl_tile_amx_works())
        return atomic_load(&emulated_amx[bf16]);
    if (isa == SL_ISA_AMX)
        return bf16 ? &sl_tile_amx : &sl_tile_amx_f32;
    if (bf16 && isa == SL_ISA_AVX512_BF16 &&
        (sl_isa_is_asked_for() || __builtin_cpu_is("amd") || sl_isa_best() == SL_ISA_AMX))
        return &sl_tile_dot;
#endif
    (void)bf16;
    return sl_isa_simd()->tile;
}
