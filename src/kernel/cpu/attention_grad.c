/* Gradient of attention: the weights of a block are recomputed from the saved log-sum-exp, never stored. */
#include "kernel/cpu/attention.h"

#include <string.h>

/* The matrices of one query head and of the key/value head it uses. */
typedef struct grad_heads {
    sl_head q, k, o, d_o, dq, dk, dv;
    const float *keys, *values; /* packed; the keys times scale */
    int64_t b;                  /* the row of the batch */
    int64_t row;                /* of query 0 among all rows of lse and of the weights */
} grad_heads;

/* A row's products become weights p and gradients of the scores ds; row = (b * H + h) * T + t. */
static void row_weights(const sl_attention *j, int64_t row, int64_t key, int64_t n, float delta, float *p, float *ds)
{
    float capped[SL_KEYS]; /* tanh(score / softcap) */
    sl_attention_drop(j, row, key, n, ds);
    if (j->softcap > 0) {
        j->simd->unary(SL_OP_SCALE, 1 / j->softcap, 0, p, NULL, capped, n, false);
        j->simd->unary(SL_OP_TANH, 0, 0, capped, NULL, capped, n, false);
        j->simd->unary(SL_OP_SCALE, j->softcap, 0, capped, NULL, p, n, false);
    }
    j->simd->attention_row_grad(p, ds, j->scale, *sl_rows_at(&j->lse, row), delta, n);
    if (j->softcap > 0)
        j->simd->unary(SL_OP_TANH_GRAD, 0, 0, capped, ds, ds, n, false);
    sl_attention_drop(j, row, key, n, p);
}

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
                             .b = sl_packed_row(x->keys, j->d_size, key),
                             .b_row = SL_KEYS,
                             .c = p[0],
                             .c_row = SL_KEYS };
    sl_small_gemm products = { .m = count,
                               .n = n,
                               .k = j->d_size,
                               .a = sl_head_row(&x->d_o, first),
                               .a_row = x->d_o.step,
                               .a_column = 1,
                               .b = sl_packed_row(x->values, j->d_size, key),
                               .b_row = SL_KEYS,
                               .c = ds[0],
                               .c_row = SL_KEYS };
    j->simd->small_gemm(&scores);
    j->simd->small_gemm(&products);
    for (int64_t i = 0; i < count; i++) {
        int64_t seen = sl_attention_seen(j, first + i, key, n);
        int64_t from = sl_attention_before(j, x->b, first + i, key, seen);
        row_weights(j, x->row + first + i, key + from, seen - from, delta[i], p[i] + from, ds[i] + from);
        if (from > 0) {
            memset(p[i], 0, (size_t)from * sizeof **p);
            memset(ds[i], 0, (size_t)from * sizeof **ds);
        }
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
    for (int64_t key = sl_attention_begin(j, x->b, first, count), end; key < limit; key = end) {
        end = sl_attention_block_end(key, limit);
        int64_t n = end - key;
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

/* A thread's scratch: keys and values packed, and each head if it is widened. */
typedef struct grad_memory {
    float *keys, *values;
    float *q, *k, *v, *o, *d_o, *dq, *dk, *dv;
} grad_memory;

static grad_memory take_memory(const sl_attention *j, char *scratch)
{
    grad_memory m;
    m.keys = sl_attention_take(&scratch, j->packed_bytes);
    m.values = sl_attention_take(&scratch, j->packed_bytes);
    m.q = sl_attention_take(&scratch, sl_wide_head_bytes(j->q, j->t_size));
    m.o = sl_attention_take(&scratch, sl_wide_head_bytes(j->o, j->t_size));
    m.d_o = sl_attention_take(&scratch, sl_wide_head_bytes(j->d_o, j->t_size));
    m.dq = sl_attention_take(&scratch, sl_wide_head_bytes(j->dq, j->t_size));
    m.k = sl_attention_take(&scratch, sl_wide_head_bytes(j->k, j->keys));
    m.v = sl_attention_take(&scratch, sl_wide_head_bytes(j->v, j->keys));
    m.dk = sl_attention_take(&scratch, sl_wide_head_bytes(j->dk, j->keys));
    m.dv = sl_attention_take(&scratch, sl_wide_head_bytes(j->dv, j->keys));
    return m;
}

/* A thread takes whole key/value heads, so that dk and dv are summed by one thread, in the order of the query heads. */
static void grad_part(void *context, int part, int parts)
{
    const sl_attention *j = context;
    int64_t group = j->h_size / j->kv_size;
    sl_head_index head;
    grad_memory m = take_memory(j, sl_scratch_part(j->scratch, part, j->part_bytes));
    (void)parts;
    while (sl_attention_take_head(j, &head)) {
        int64_t b = head.b, g = head.g;
        sl_head v = sl_head_read(j->simd, j->v, b, g, j->keys, m.v);
        grad_heads x = { .k = sl_head_read(j->simd, j->k, b, g, j->keys, m.k),
                         .dk = sl_head_begin_write(j->simd, j->dk, b, g, j->keys, j->add & 2, m.dk),
                         .dv = sl_head_begin_write(j->simd, j->dv, b, g, j->keys, j->add & 4, m.dv),
                         .keys = m.keys,
                         .values = m.values,
                         .b = b };
        sl_pack_head(j->simd, &x.k, j->keys, j->d_size, j->scale, m.keys);
        sl_pack_head(j->simd, &v, j->keys, j->d_size, 1, m.values);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            x.q = sl_head_read(j->simd, j->q, b, h, j->t_size, m.q);
            x.o = sl_head_read(j->simd, j->o, b, h, j->t_size, m.o);
            x.d_o = sl_head_read(j->simd, j->d_o, b, h, j->t_size, m.d_o);
            x.dq = sl_head_begin_write(j->simd, j->dq, b, h, j->t_size, j->add & 1, m.dq);
            x.row = (b * j->h_size + h) * j->t_size;
            for (int64_t first = 0; first < j->t_size; first += SL_QUERIES)
                grad_block(j, &x, first, sl_least(j->t_size - first, SL_QUERIES));
            sl_head_end_write(j->simd, j->dq, b, h, j->t_size, &x.dq);
        }
        sl_head_end_write(j->simd, j->dk, b, g, j->keys, &x.dk);
        sl_head_end_write(j->simd, j->dv, b, g, j->keys, &x.dv);
    }
}

/* The arguments of the call, and what one thread needs. */
static sl_attention start(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_attention j =
        sl_attention_start(cpu, call, sl_call_input(call, 1), sl_call_input(call, 2), sl_call_input(call, 6));
    j.o = sl_call_input(call, 3);
    j.lse = sl_rows_of(sl_call_input(call, 4), 0);
    j.d_o = sl_call_input(call, 5);
    j.dq = sl_call_output(call, 0);
    j.dk = sl_call_output(call, 1);
    j.dv = sl_call_output(call, 2);
    j.add = call->accumulate;
    j.part_bytes = 2 * j.packed_bytes;
    for (int i = 0; i < 6; i++)
        j.part_bytes += i == 4 ? 0 : sl_wide_head_bytes(&call->inputs[i], i == 1 || i == 2 ? j.keys : j.t_size);
    for (int i = 0; i < 3; i++)
        j.part_bytes += sl_wide_head_bytes(&call->outputs[i], i == 0 ? j.t_size : j.keys);
    return j;
}

static sl_status run_attention_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_attention j = start(cpu, call);
    sl_attention_run(cpu, call, &j, grad_part);
    return SL_OK;
}

static size_t scratch_attention_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    return start(cpu, call).part_bytes * (size_t)sl_attention_parts(cpu, call);
}

static bool accepts(const sl_kernel_call *call)
{
    return sl_cpu_is_narrow(call) && sl_call_input(call, 4)->meta.dtype == SL_F32;
}

const sl_cpu_kernel sl_cpu_attention_grad = { .accepts = accepts,
                                              .run = run_attention_grad,
                                              .halves = true,
                                              .takes = sl_cpu_takes_rows,
                                              .scratch = scratch_attention_grad };
