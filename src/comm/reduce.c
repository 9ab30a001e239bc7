/* Element-wise reductions, left to right over the sources, block by block so that the running values stay in cache. */
#include "comm/reduce.h"
#include "base/half.h"

enum { BLOCK = 1024 };

#define KEEP(x) (x)
#define SUM(a, x) ((a) + (x))
#define SUM_WRAP_I32(a, x) ((int32_t)((uint32_t)(a) + (uint32_t)(x)))
#define SUM_WRAP_I64(a, x) ((int64_t)((uint64_t)(a) + (uint64_t)(x)))
#define SUM_WRAP_U8(a, x) ((uint8_t)((a) + (x)))
#define MAX(a, x) ((x) > (a) || (x) != (x) ? (x) : (a))

/* One block: `type` in memory, summed as `wide`. */
#define DEFINE_BLOCK(name, type, wide, load, store, combine)                                                           \
    static void name(const void *const *sources, int sources_count, int64_t start, int count, void *out)               \
    {                                                                                                                  \
        wide running[BLOCK];                                                                                           \
        const type *source = (const type *)sources[0] + start;                                                         \
        for (int i = 0; i < count; i++)                                                                                \
            running[i] = load(source[i]);                                                                              \
        for (int s = 1; s < sources_count; s++) {                                                                      \
            source = (const type *)sources[s] + start;                                                                 \
            for (int i = 0; i < count; i++) {                                                                          \
                wide each = load(source[i]);                                                                           \
                running[i] = combine(running[i], each);                                                                \
            }                                                                                                          \
        }                                                                                                              \
        type *to = (type *)out + start;                                                                                \
        for (int i = 0; i < count; i++)                                                                                \
            to[i] = store(running[i]);                                                                                 \
    }

DEFINE_BLOCK(sum_f32, float, float, KEEP, KEEP, SUM)
DEFINE_BLOCK(max_f32, float, float, KEEP, KEEP, MAX)
DEFINE_BLOCK(sum_f64, double, double, KEEP, KEEP, SUM)
DEFINE_BLOCK(max_f64, double, double, KEEP, KEEP, MAX)
DEFINE_BLOCK(sum_i32, int32_t, int32_t, KEEP, KEEP, SUM_WRAP_I32)
DEFINE_BLOCK(max_i32, int32_t, int32_t, KEEP, KEEP, MAX)
DEFINE_BLOCK(sum_i64, int64_t, int64_t, KEEP, KEEP, SUM_WRAP_I64)
DEFINE_BLOCK(max_i64, int64_t, int64_t, KEEP, KEEP, MAX)
DEFINE_BLOCK(sum_u8, uint8_t, uint8_t, KEEP, KEEP, SUM_WRAP_U8)
DEFINE_BLOCK(max_u8, uint8_t, uint8_t, KEEP, KEEP, MAX)
DEFINE_BLOCK(sum_bf16, uint16_t, float, sl_from_bf16, sl_to_bf16, SUM)
DEFINE_BLOCK(max_bf16, uint16_t, float, sl_from_bf16, sl_to_bf16, MAX)
DEFINE_BLOCK(sum_f16, uint16_t, float, sl_from_f16, sl_to_f16, SUM)
DEFINE_BLOCK(max_f16, uint16_t, float, sl_from_f16, sl_to_f16, MAX)

typedef void (*block_function)(const void *const *sources, int sources_count, int64_t start, int count, void *out);

static const block_function blocks[SL_DTYPE_COUNT][2] = {
    [SL_F32] = { sum_f32, max_f32 }, [SL_BF16] = { sum_bf16, max_bf16 }, [SL_F16] = { sum_f16, max_f16 },
    [SL_I32] = { sum_i32, max_i32 }, [SL_I64] = { sum_i64, max_i64 },    [SL_U8] = { sum_u8, max_u8 },
    [SL_F64] = { sum_f64, max_f64 },
};

sl_status sl_reduce_check(sl_dtype dtype, sl_reduce reduce)
{
    if ((unsigned)reduce > SL_REDUCE_MAX)
        return sl_fail(SL_ERR_ARGUMENT, "there is no reduction %d", (int)reduce);
    if ((unsigned)dtype >= SL_DTYPE_COUNT || !blocks[dtype][reduce])
        return sl_fail(SL_ERR_ARGUMENT, "dtype %s cannot be reduced", sl_dtype_name(dtype));
    return SL_OK;
}

void sl_reduce_run(const void *const *sources, int sources_count, int64_t count, sl_dtype dtype, sl_reduce reduce,
                   void *out)
{
    block_function block = blocks[dtype][reduce];
    for (int64_t start = 0; start < count; start += BLOCK)
        block(sources, sources_count, start, count - start < BLOCK ? (int)(count - start) : BLOCK, out);
}
