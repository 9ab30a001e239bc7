/* Vectors of 16 floats (AVX-512 F, DQ, BW, VL; BF16 if the compiler may use it). The other vec_*.h offer the same names. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m512 vf;             /* floats */
typedef __m512i vi;            /* 32-bit integers */
enum { VW = 16, V_GROUP = 4 }; /* lanes; vectors whose computations run side by side */
#define V_NAME "avx512"

static inline __mmask16 v_mask(int64_t n)
{
    return (__mmask16)((1u << n) - 1);
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

/* The first n < VW lanes; the others are 0 and are not touched in memory. */
static inline vf v_load_part(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}

static inline void v_store_part(float *p, vf a, int64_t n)
{
    _mm512_mask_storeu_ps(p, v_mask(n), a);
}

static inline vf v_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf v_fma(vf a, vf b, vf c) /* a * b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf v_fms(vf a, vf b, vf c) /* a * b - c */
{
    return _mm512_fmsub_ps(a, b, c);
}

static inline vf v_fnma(vf a, vf b, vf c) /* c - a * b */
{
    return _mm512_fnmadd_ps(a, b, c);
}

static inline vf v_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

static inline vf v_max(vf a, vf b) /* b if either is NaN */
{
    return _mm512_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf v_abs(vf a)
{
    return _mm512_abs_ps(a);
}

static inline vf v_where_greater(vf a, vf b, vf yes, vf no) /* a > b ? yes : no */
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes);
}

static inline float v_sum(vf a)
{
    return _mm512_reduce_add_ps(a);
}

static inline float v_highest(vf a)
{
    return _mm512_reduce_max_ps(a);
}

static inline vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf v_scale_by_power(vf a, vf n) /* a * 2^n for whole n within -300..300 */
{
    return _mm512_scalef_ps(a, n);
}

static inline vi vi_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

static inline vi vi_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline void vi_store(uint32_t *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

/* Low and high halves of the 64-bit products of unsigned lanes. */
static inline void vi_multiply(vi a, vi b, vi *low, vi *high)
{
    __m512i even = _mm512_mul_epu32(a, b);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    *low = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, _MM_PERM_CCAA);
    *high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}

/* a if word >= limit as unsigned numbers, else 0. */
static inline vf v_keep(vf a, vi word, vi limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(word, limit), a);
}

/* VW x VW in place: lane j of row i becomes lane i of row j. Pairs first, then quads, then the quarters. */
static inline void v_transpose(vf *r)
{
    vf t[VW];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* bf16 as 32-bit words with the value in the low half. */
static inline vf v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}

/* The first n of 32 (16) elements of 16 bits, the others 0. AMD takes several times as long for a load with a mask. */
static inline __m512i v_load_halves(const uint16_t *p, int64_t n)
{
    return n >= 2 * VW ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
}

static inline __m256i v_load_less_halves(const uint16_t *p, int64_t n)
{
    return n >= VW ? _mm256_loadu_si256((const void *)p) : _mm256_maskz_loadu_epi16(v_mask(n), p);
}

static inline __m256i v_round_bf16(vf a)
{
    __m512i bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    rounded = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
    return _mm512_cvtepi32_epi16(rounded);
}

static inline void v_store_bf16(uint16_t *p, vf a)
{
#if defined(__AVX512BF16__) /* one instruction, which takes denormal numbers for 0 */
    enum { DENORMAL = 0x20 };
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(a);
    if (__builtin_expect(_mm512_fpclass_ps_mask(a, DENORMAL) != 0, 0))
        rounded = v_round_bf16(a);
#else
    __m256i rounded = v_round_bf16(a);
#endif
    _mm256_storeu_si256((void *)p, rounded);
}

#if defined(__AVX512BF16__)
/* The instruction that rounds two vectors at once takes denormal numbers for 0. Some of these 0 may have been such. */
static inline bool v_may_hide_denormal(__m512i rounded)
{
    return _mm512_testn_epi16_mask(rounded, _mm512_set1_epi16(0x7fff)) != 0;
}

static inline bool v_is_denormal(vf a)
{
    enum { DENORMAL = 0x20 };
    return _mm512_fpclass_ps_mask(a, DENORMAL) != 0;
}
#endif

/* V_GROUP vectors, side by side. */
static inline void v_store_bf16_group(uint16_t *p, const vf *a)
{
#if defined(__AVX512BF16__)
    __m512i low = (__m512i)_mm512_cvtne2ps_pbh(a[1], a[0]), high = (__m512i)_mm512_cvtne2ps_pbh(a[3], a[2]);
    bool denormal = false;
    if (__builtin_expect(v_may_hide_denormal(low) || v_may_hide_denormal(high), 0))
        denormal = v_is_denormal(a[0]) || v_is_denormal(a[1]) || v_is_denormal(a[2]) || v_is_denormal(a[3]);
    if (__builtin_expect(!denormal, 1)) {
        _mm512_storeu_si512(p, low);
        _mm512_storeu_si512(p + 2 * VW, high);
        return;
    }
#endif
#pragma GCC unroll 4
    for (int i = 0; i < V_GROUP; i++)
        _mm256_storeu_si256((void *)(p + i * VW), v_round_bf16(a[i]));
}

static inline vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

static inline void v_store_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Sum of squares in double: two accumulators of half the lanes each. */
typedef struct vd {
    __m512d low, high;
} vd;

static inline vd vd_zero(void)
{
    return (vd){ _mm512_setzero_pd(), _mm512_setzero_pd() };
}

static inline vd vd_add_square(vd sum, vf a)
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    return (vd){ _mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high) };
}

static inline double vd_sum(vd a)
{
    return _mm512_reduce_add_pd(_mm512_add_pd(a.low, a.high));
}
