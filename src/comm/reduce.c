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

/* name, type in memory, type of the running value, between the two, the operation */
#define REDUCTIONS(X)                                                                                                  \
    X(sum_f32, float, float, KEEP, KEEP, SUM)                                                                          \
    X(max_f32, float, float, KEEP, KEEP, MAX)                                                                          \
    X(sum_f64, double, double, KEEP, KEEP, SUM)                                                                        \
    X(max_f64, double, double, KEEP, KEEP, MAX)                                                                        \
    X(sum_i32, int32_t, int32_t, KEEP, KEEP, SUM_WRAP_I32)                                                             \
    X(max_i32, int32_t, int32_t, KEEP, KEEP, MAX)                                                                      \
    X(sum_i64, int64_t, int64_t, KEEP, KEEP, SUM_WRAP_I64)                                                             \
    X(max_i64, int64_t, int64_t, KEEP, KEEP, MAX)                                                                      \
    X(sum_u8, uint8_t, uint8_t, KEEP, KEEP, SUM_WRAP_U8)                                                               \
    X(max_u8, uint8_t, uint8_t, KEEP, KEEP, MAX)                                                                       \
    X(sum_bf16, uint16_t, float, sl_from_bf16, sl_to_bf16, SUM)                                                        \
    X(max_bf16, uint16_t, float, sl_from_bf16, sl_to_bf16, MAX)                                                        \
    X(sum_f16, uint16_t, float, sl_from_f16, sl_to_f16, SUM)                                                           \
    X(max_f16, uint16_t, float, sl_from_f16, sl_to_f16, MAX)

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

/* One source onto a running value that is `wide` in memory; NULL starts one. */
#define DEFINE_NEXT(name, type, wide, load, store, combine)                                                            \
    static void name(const void *running, const void *source, int64_t count, bool last, void *out)                     \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            wide each = load(((const type *)source)[i]);                                                               \
            if (running) {                                                                                             \
                wide before = ((const wide *)running)[i];                                                              \
                each = combine(before, each);                                                                          \
            }                                                                                                          \
            if (last)                                                                                                  \
                ((type *)out)[i] = store(each);                                                                        \
            else                                                                                                       \
                ((wide *)out)[i] = each;                                                                               \
        }                                                                                                              \
    }

#define DEFINE_BOTH(name, type, wide, load, store, combine)                                                            \
    DEFINE_BLOCK(name, type, wide, load, store, combine)                                                               \
    DEFINE_NEXT(name##_next, type, wide, load, store, combine)
REDUCTIONS(DEFINE_BOTH)

typedef void (*block_function)(const void *const *sources, int sources_count, int64_t start, int count, void *out);

static const block_function blocks[SL_DTYPE_COUNT][2] = {
    [SL_F32] = { sum_f32, max_f32 }, [SL_BF16] = { sum_bf16, max_bf16 }, [SL_F16] = { sum_f16, max_f16 },
    [SL_I32] = { sum_i32, max_i32 }, [SL_I64] = { sum_i64, max_i64 },    [SL_U8] = { sum_u8, max_u8 },
    [SL_F64] = { sum_f64, max_f64 },
};

typedef void (*next_function)(const void *running, const void *source, int64_t count, bool last, void *out);

static const next_function nexts[SL_DTYPE_COUNT][2] = {
    [SL_F32] = { sum_f32_next, max_f32_next }, [SL_BF16] = { sum_bf16_next, max_bf16_next },
    [SL_F16] = { sum_f16_next, max_f16_next }, [SL_I32] = { sum_i32_next, max_i32_next },
    [SL_I64] = { sum_i64_next, max_i64_next }, [SL_U8] = { sum_u8_next, max_u8_next },
    [SL_F64] = { sum_f64_next, max_f64_next },
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

sl_dtype sl_reduce_wide(sl_dtype dtype)
{
    return dtype == SL_BF16 || dtype == SL_F16 ? SL_F32 : dtype;
}

void sl_reduce_next(const void *running, const void *source, int64_t count, sl_dtype dtype, sl_reduce reduce, bool last,
                    void *out)
{
    nexts[dtype][reduce](running, source, count, last, out);
}
