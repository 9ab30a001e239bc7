/* Gradient of attention: the weights of a block are recomputed from the saved log-sum-exp, never stored. */
#include "kernel/cpu/attention.h"

#include <string.h>

/* The matrices of one query head and of the key/value head it uses. */
typedef struct grad_heads {
    sl_head q, k, v, o, d_o, dq, dk, dv;
    const float *keys, *values; /* packed; the keys times scale */
    int64_t row;                /* of query 0 among all rows of lse and of the weights */
} grad_heads;

/* Weights of `count` queries against n keys from `key` on, and gradients of the scores: p and ds, 0 if not visible.
 */
static void weights_of(const sl_attention *j, const grad_heads *x, int64_t first, int64_t count, int64_t key, int64_t n,
                       const float *delta, float (*p)[SL_KEYS], float (*ds)[SL_KEYS])
{
    sl_small_gemm scores = { .m = count,
                             .n = n,
                             .k = j->d_size,
                             .a = sl_head_row(&x->q, first),
                             .a_row = x->q.step,
                             .a_column = 1,
                             .b = sl_packed_block(x->keys, j->d_size, key),
                             .b_row = SL_KEYS,
                             .c = p[0],
                             .c_row = SL_KEYS };
    sl_small_gemm products = { .m = count,
                               .n = n,
                               .k = j->d_size,
                               .a = sl_head_row(&x->d_o, first),
                               .a_row = x->d_o.step,
                               .a_column = 1,
                               .b = sl_packed_block(x->values, j->d_size, key),
                               .b_row = SL_KEYS,
                               .c = ds[0],
                               .c_row = SL_KEYS };
    j->simd->small_gemm(&scores);
    j->simd->small_gemm(&products);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = x->row + first + i, seen = sl_attention_seen(j, first + i, key, n);
        sl_attention_drop(j, row, key, seen, ds[i]);
        j->simd->attention_row_grad(p[i], ds[i], j->scale, *sl_rows_at(&j->lse, row), delta[i], seen);
        sl_attention_drop(j, row, key, seen, p[i]);
        if (seen < n) {
            memset(p[i] + seen, 0, (size_t)(n - seen) * sizeof **p);
            memset(ds[i] + seen, 0, (size_t)(n - seen) * sizeof **ds);
        }
    }
}

static void grad_block(const sl_attention *j, const grad_heads *x, int64_t first, int64_t count)
{
    float p[SL_QUERIES][SL_KEYS], ds[SL_QUERIES][SL_KEYS], delta[SL_QUERIES];
    int64_t limit = sl_attention_seen(j, first + count - 1, 0, j->keys);
    for (int64_t i = 0; i < count; i++)
        delta[i] = j->simd->dot(sl_head_row(&x->d_o, first + i), sl_head_row(&x->o, first + i), j->d_size);
    for (int64_t key = 0; key < limit; key += SL_KEYS) {
        int64_t n = sl_least(limit - key, SL_KEYS);
        weights_of(j, x, first, count, key, n, delta, p, ds);
        sl_small_gemm to_q = { .m = count,
                               .n = j->d_size,
                               .k = n,
                               .a = ds[0],
                               .a_row = SL_KEYS,
                               .a_column = 1,
                               .b = sl_head_row(&x->k, key),
                               .b_row = x->k.step,
                               .c = sl_head_row(&x->dq, first),
                               .c_row = x->dq.step,
                               .add = true };
        sl_small_gemm to_k = { .m = n,
                               .n = j->d_size,
                               .k = count,
                               .a = ds[0],
                               .a_row = 1,
                               .a_column = SL_KEYS,
                               .b = sl_head_row(&x->q, first),
                               .b_row = x->q.step,
                               .c = sl_head_row(&x->dk, key),
                               .c_row = x->dk.step,
                               .add = true };
        sl_small_gemm to_v = { .m = n,
                               .n = j->d_size,
                               .k = count,
                               .a = p[0],
                               .a_row = 1,
                               .a_column = SL_KEYS,
                               .b = sl_head_row(&x->d_o, first),
                               .b_row = x->d_o.step,
                               .c = sl_head_row(&x->dv, key),
                               .c_row = x->dv.step,
                               .add = true };
        j->simd->small_gemm(&to_q);
        j->simd->small_gemm(&to_k);
        j->simd->small_gemm(&to_v);
    }
}

static void clear_head(const sl_head *head, int64_t rows, int64_t size)
{
    for (int64_t t = 0; t < rows; t++)
        memset(sl_head_row(head, t), 0, (size_t)size * sizeof(float));
}

/* A part takes whole key/value heads, so that dk and dv are summed by one thread, in the order of the query heads. */
static void grad_part(void *context, int part, int parts)
{
    const sl_attention *j = context;
    int64_t start, length, group = j->h_size / j->kv_size;
    float *keys = sl_scratch_part(j->scratch, 2 * part, j->packed_bytes);
    float *values = sl_scratch_part(j->scratch, 2 * part + 1, j->packed_bytes);
    sl_chunk_range(j->batch * j->kv_size, parts, part, &start, &length);
    for (int64_t item = start; item < start + length; item++) {
        int64_t b = item / j->kv_size, g = item % j->kv_size;
        grad_heads x = { .k = sl_head_of(j->k, b, g),
                         .v = sl_head_of(j->v, b, g),
                         .dk = sl_head_of(j->dk, b, g),
                         .dv = sl_head_of(j->dv, b, g),
                         .keys = keys,
                         .values = values };
        sl_pack_head(j->simd, &x.k, j->keys, j->d_size, j->scale, keys);
        sl_pack_head(j->simd, &x.v, j->keys, j->d_size, 1, values);
        if (!(j->add & 2))
            clear_head(&x.dk, j->keys, j->d_size);
        if (!(j->add & 4))
            clear_head(&x.dv, j->keys, j->d_size);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            x.q = sl_head_of(j->q, b, h);
            x.o = sl_head_of(j->o, b, h);
            x.d_o = sl_head_of(j->d_o, b, h);
            x.dq = sl_head_of(j->dq, b, h);
            x.row = (b * j->h_size + h) * j->t_size;
            if (!(j->add & 1))
                clear_head(&x.dq, j->t_size, j->d_size);
            for (int64_t first = 0; first < j->t_size; first += SL_QUERIES)
                grad_block(j, &x, first, sl_least(j->t_size - first, SL_QUERIES));
        }
    }
}

static sl_status run_attention_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_attention j = sl_attention_start(cpu, call, sl_call_input(call, 1), sl_call_input(call, 2));
    j.o = sl_call_input(call, 3);
    j.lse = sl_rows_of(sl_call_input(call, 4), 0);
    j.d_o = sl_call_input(call, 5);
    j.dq = sl_call_output(call, 0);
    j.dk = sl_call_output(call, 1);
    j.dv = sl_call_output(call, 2);
    j.add = call->accumulate;
    sl_pool_run(cpu->pool, sl_attention_parts(cpu, call), grad_part, &j);
    return SL_OK;
}

static size_t scratch_attention_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    return 2 * sl_packed_head_bytes(&sl_call_input(call, 1)->meta.shape) * (size_t)sl_attention_parts(cpu, call);
}

const sl_cpu_kernel sl_cpu_attention_grad = {
    .accepts = sl_cpu_is_f32, .run = run_attention_grad, .takes = sl_cpu_takes_rows, .scratch = scratch_attention_grad
};
