/* What attention and its gradient share: heads as matrices, keys and values packed the other way round. */
#ifndef SL_KERNEL_CPU_ATTENTION_H
#define SL_KERNEL_CPU_ATTENTION_H

#include "kernel/cpu/cpu.h"

/* Queries and keys are taken in blocks whose scores fit the first-level cache. */
enum { SL_QUERIES = 24, SL_KEYS = 128 };

/* One head of a [B,T,H,D] tensor: rows of D floats, `step` apart. */
typedef struct sl_head {
    float *data;
    int64_t step;
} sl_head;

static inline sl_head sl_head_of(const sl_view *view, int64_t b, int64_t h)
{
    return (sl_head){ (float *)view->data + b * view->meta.strides[0] + h * view->meta.strides[2],
                      view->meta.strides[1] };
}

static inline float *sl_head_row(const sl_head *head, int64_t t)
{
    return head->data + t * head->step;
}

/* Floats that packed rows of a head take. */
static inline int64_t sl_packed_head_size(int64_t rows, int64_t size)
{
    return (rows + SL_KEYS - 1) / SL_KEYS * SL_KEYS * size;
}

/* Block j of the result holds rows j * SL_KEYS.. as columns: [size][SL_KEYS], times scale; missing rows are 0. */
void sl_pack_head(const sl_simd *simd, const sl_head *head, int64_t rows, int64_t size, float scale, float *packed);

static inline const float *sl_packed_block(const float *packed, int64_t size, int64_t first_row)
{
    return packed + first_row * size;
}

static inline int64_t sl_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
