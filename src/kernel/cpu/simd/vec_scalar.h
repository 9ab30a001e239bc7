/* "Vectors" of one float for machines without AVX2; the names are those of vec_avx512.h. */
#include <sluice/tensor.h>

#include <math.h>
#include <stdint.h>

typedef float vf;
typedef uint32_t vi;
enum { VW = 1, V_GROUP = 4 };
#define V_NAME "scalar"

static inline vf v_load(const float *p)
{
    return *p;
}

static inline void v_store(float *p, vf a)
{
    *p = a;
}

/* n < VW means n == 0 here. */
static inline vf v_load_part(const float *p, int64_t n)
{
    (void)p;
    (void)n;
    return 0;
}

static inline void v_store_part(float *p, vf a, int64_t n)
{
    (void)p;
    (void)a;
    (void)n;
}

static inline vf v_set(float x)
{
    return x;
}

static inline vf v_add(vf a, vf b)
{
    return a + b;
}

static inline vf v_sub(vf a, vf b)
{
    return a - b;
}

static inline vf v_mul(vf a, vf b)
{
    return a * b;
}

static inline vf v_div(vf a, vf b)
{
    return a / b;
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf v_fms(vf a, vf b, vf c)
{
    return (float)((double)a * b - c); /* the product is not rounded */
}

static inline vf v_fnma(vf a, vf b, vf c)
{
    return c - a * b;
}

static inline vf v_sqrt(vf a)
{
    return sqrtf(a);
}

static inline vf v_max(vf a, vf b)
{
    return a > b ? a : b;
}

static inline vf v_min(vf a, vf b)
{
    return a < b ? a : b;
}

static inline vf v_abs(vf a)
{
    return fabsf(a);
}

static inline vf v_where_greater(vf a, vf b, vf yes, vf no)
{
    return a > b ? yes : no;
}

static inline float v_sum(vf a)
{
    return a;
}

static inline float v_highest(vf a)
{
    return a;
}

static inline vf v_round(vf a)
{
    return rintf(a);
}

static inline vf v_scale_by_power(vf a, vf n)
{
    return a != a ? a : ldexpf(a, (int)n);
}

static inline vi vi_set(uint32_t x)
{
    return x;
}

static inline vi vi_load(const uint32_t *p)
{
    return *p;
}

static inline void vi_store(uint32_t *p, vi a)
{
    *p = a;
}

static inline vi vi_add(vi a, vi b)
{
    return a + b;
}

static inline vi vi_xor(vi a, vi b)
{
    return a ^ b;
}

static inline void vi_multiply(vi a, vi b, vi *low, vi *high)
{
    uint64_t product = (uint64_t)a * b;
    *low = (uint32_t)product;
    *high = (uint32_t)(product >> 32);
}

static inline vf v_keep(vf a, vi word, vi limit)
{
    return word >= limit ? a : 0;
}

static inline void v_transpose(vf *r)
{
    (void)r;
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return sl_bf16_to_f32(*p);
}

static inline void v_store_bf16(uint16_t *p, vf a)
{
    *p = sl_bf16_from_f32(a);
}

static inline void v_store_bf16_group(uint16_t *p, const vf *a)
{
    for (int i = 0; i < V_GROUP; i++)
        v_store_bf16(p + i * VW, a[i]);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return sl_f16_to_f32(*p);
}

static inline void v_store_f16(uint16_t *p, vf a)
{
    *p = sl_f16_from_f32(a);
}

typedef double vd;

static inline vd vd_zero(void)
{
    return 0;
}

static inline vd vd_add_square(vd sum, vf a)
{
    return sum + (double)a * a;
}

static inline double vd_sum(vd a)
{
    return a;
}
