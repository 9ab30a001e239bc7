/* Vectors of 8 floats (AVX2, FMA, F16C); the names are those of vec_avx512.h. */
#include <immintrin.h>
#include <stdint.h>

typedef __m256 vf;
typedef __m256i vi;
enum { VW = 8, V_GROUP = 4 };
#define V_NAME "avx2"

static inline __m256i v_mask(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline vf v_load_part(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, v_mask(n));
}

static inline void v_store_part(float *p, vf a, int64_t n)
{
    _mm256_maskstore_ps(p, v_mask(n), a);
}

static inline vf v_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf v_fms(vf a, vf b, vf c)
{
    return _mm256_fmsub_ps(a, b, c);
}

static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

static inline vf v_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}

static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf v_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

static inline vf v_where_greater(vf a, vf b, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline float v_sum(vf a)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static inline float v_highest(vf a)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

static inline vf v_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf v_power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* In two steps, so that neither factor leaves the range of normal floats. */
static inline vf v_scale_by_power(vf a, vf n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(a, v_power_of_two(half)), v_power_of_two(_mm256_sub_epi32(whole, half)));
}

static inline vi vi_set(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}

static inline vi vi_load(const uint32_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

static inline void vi_store(uint32_t *p, vi a)
{
    _mm256_storeu_si256((void *)p, a);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}

static inline void vi_multiply(vi a, vi b, vi *low, vi *high)
{
    __m256i even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

static inline vf v_keep(vf a, vi word, vi limit)
{
    __m256i kept = _mm256_cmpeq_epi32(_mm256_max_epu32(word, limit), word);
    return _mm256_and_ps(_mm256_castsi256_ps(kept), a);
}

static inline void v_transpose(vf *r)
{
    vf t[VW];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

static inline void v_store_bf16(uint16_t *p, vf a)
{
    __m256i bits = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(packed));
}

static inline void v_store_bf16_group(uint16_t *p, const vf *a)
{
    for (int i = 0; i < V_GROUP; i++)
        v_store_bf16(p + i * VW, a[i]);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

static inline void v_store_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

typedef struct vd {
    __m256d low, high;
} vd;

static inline vd vd_zero(void)
{
    return (vd){ _mm256_setzero_pd(), _mm256_setzero_pd() };
}

static inline vd vd_add_square(vd sum, vf a)
{
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(a)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
    return (vd){ _mm256_fmadd_pd(low, low, sum.low), _mm256_fmadd_pd(high, high, sum.high) };
}

static inline double vd_sum(vd a)
{
    __m256d sum = _mm256_add_pd(a.low, a.high);
    __m128d half = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}
