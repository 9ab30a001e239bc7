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

void sl_attention_row_weights(const sl_attention *j, int64_t row, int64_t key, int64_t from, int64_t seen, int64_t n,
                              float delta, float *p, float *ds)
{
    float capped[SL_KEYS]; /* tanh(score / softcap) */
    int64_t count = seen - from;
    if (count <= 0) {
        memset(p, 0, (size_t)n * sizeof *p);
        memset(ds, 0, (size_t)n * sizeof *ds);
        return;
    }
    sl_attention_drop(j, row, key + from, count, ds + from);
    if (j->softcap > 0) {
        j->simd->unary(SL_OP_SCALE, j->score_scale / j->softcap, 0, p + from, NULL, capped, count, false);
        j->simd->unary(SL_OP_TANH, 0, 0, capped, NULL, capped, count, false);
        j->simd->unary(SL_OP_SCALE, j->softcap, 0, capped, NULL, p + from, count, false);
    }
    j->simd->attention_row_grad(p, ds, from, seen, n, j->softcap > 0 ? 1 : j->score_scale, j->scale,
                                *sl_rows_at(&j->lse, row), delta);
    if (j->softcap > 0)
        j->simd->unary(SL_OP_TANH_GRAD, 0, 0, capped, ds + from, ds + from, count, false);
    sl_attention_drop(j, row, key + from, count, p + from);
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
        sl_attention_row_weights(j, x->row + first + i, key, from, seen, n, delta[i], p[i], ds[i]);
    }
}

/* Queries first..first+count against those of the keys that they see. */
static void grad_block(const sl_attention *j, const grad_heads *x, int64_t first, int64_t count, sl_head_rows keys)
{
    float p[SL_QUERIES][SL_KEYS], ds[SL_QUERIES][SL_KEYS], delta[SL_QUERIES];
    int64_t limit = sl_least(sl_attention_seen(j, first + count - 1, 0, j->keys), keys.end);
    int64_t begin = sl_attention_begin(j, x->b, first, count);
    begin = begin > keys.first ? begin : keys.first;
    for (int64_t i = 0; begin < limit && i < count; i++)
        delta[i] = j->simd->dot(sl_head_row(&x->d_o, first + i), sl_head_row(&x->o, first + i), j->d_size);
    for (int64_t key = begin, end; key < limit; key = end) {
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

/* A thread's scratch: keys and values packed; heads side by side that are read or written for many queries, and each other
 * one if it is widened. */
typedef struct grad_memory {
    float *keys, *values;
    float *q, *k, *v, *o, *d_o, *dq, *dk, *dv;
} grad_memory;

static grad_memory take_memory(const sl_attention *j, char *scratch)
{
    grad_memory m;
    m.keys = sl_attention_memory(&scratch, j->packed_bytes);
    m.values = sl_attention_memory(&scratch, j->packed_bytes);
    m.q = sl_attention_memory(&scratch, sl_wide_head_bytes(j->q, j->t_size));
    m.o = sl_attention_memory(&scratch, sl_wide_head_bytes(j->o, j->t_size));
    m.d_o = sl_attention_memory(&scratch, sl_wide_head_bytes(j->d_o, j->t_size));
    m.dq = sl_attention_memory(&scratch, sl_wide_head_bytes(j->dq, j->t_size));
    m.k = sl_attention_memory(&scratch, sl_own_head_bytes(j->k, j->keys));
    m.v = sl_attention_memory(&scratch, sl_wide_head_bytes(j->v, j->keys));
    m.dk = sl_attention_memory(&scratch, sl_own_head_bytes(j->dk, j->keys));
    m.dv = sl_attention_memory(&scratch, sl_own_head_bytes(j->dv, j->keys));
    return m;
}

/* Memory of the heads in pieces, after that of the threads: dq of each if it is widened, which one piece after the other
 * adds to, and how many pieces are still to do so. */
typedef struct cut_head {
    _Alignas(64) atomic_int left;
} cut_head;

/* Of one query head. */
static size_t dq_bytes(const sl_attention *j)
{
    return j->tile ? sl_attention_tile_dq_bytes(j) : sl_wide_head_bytes(j->dq, j->t_size);
}

static size_t cut_dq_bytes(const sl_attention *j)
{
    return (size_t)(j->h_size / j->kv_size) * dq_bytes(j);
}

static size_t cut_bytes(const sl_attention *j)
{
    return (size_t)j->split.cut * (cut_dq_bytes(j) + sizeof(cut_head));
}

static cut_head *cut_heads(const sl_attention *j)
{
    return (cut_head *)(void *)((char *)j->scratch + (size_t)j->split.parts * j->part_bytes);
}

float *sl_attention_cut_dq(const sl_attention *j, const sl_head_unit *unit, int64_t i)
{
    char *buffers = (char *)(cut_heads(j) + j->split.cut);
    return (float *)(void *)(buffers + (size_t)unit->cut * cut_dq_bytes(j) + (size_t)i * dq_bytes(j));
}

void sl_attention_await_piece(const sl_attention *j, const sl_head_unit *unit)
{
    if (unit->piece > 0)
        sl_pool_await(j->pool, &cut_heads(j)[unit->cut].left, unit->pieces - unit->piece);
}

void sl_attention_end_piece(const sl_attention *j, const sl_head_unit *unit)
{
    if (unit->pieces > 1)
        atomic_fetch_sub_explicit(&cut_heads(j)[unit->cut].left, 1, memory_order_release);
}

/* One query head against the keys of a unit. The first piece of a head clears dq, the last one rounds it. */
static void grad_head(const sl_attention *j, grad_heads *x, const sl_head_unit *unit, int parts, int64_t h,
                      sl_head_rows keys, const grad_memory *m)
{
    const sl_head_rows all = { 0, j->t_size };
    int64_t b = unit->b, group = j->h_size / j->kv_size;
    int64_t blind = j->causal && keys.first > j->before ? keys.first - j->before : 0; /* queries before all the keys */
    const sl_head_rows queries = { sl_least(blind, j->t_size) / SL_QUERIES * SL_QUERIES, j->t_size };
    bool cut = unit->pieces > 1 && j->dq->meta.dtype != SL_F32;
    float *dq = cut ? sl_attention_cut_dq(j, unit, h % group) : m->dq;
    x->q = sl_head_read(j->simd, j->q, b, h, queries, m->q);
    x->o = sl_head_read(j->simd, j->o, b, h, queries, m->o);
    x->d_o = sl_head_read(j->simd, j->d_o, b, h, queries, m->d_o);
    x->dq = unit->piece == 0 ? sl_head_begin_write(j->simd, j->dq, b, h, all, j->add & 1, dq)
                             : sl_head_place(j->dq, b, h, dq);
    x->row = (b * j->h_size + h) * j->t_size;
    int64_t blocks = sl_divide_up(j->t_size, SL_QUERIES);
    for (int64_t first = queries.first; first < queries.end; first += SL_QUERIES) {
        sl_attention_fetch_queries(j, b, h, first + SL_QUERIES, SL_QUERIES);
        sl_attention_fetch_next(j, unit, parts, h % group * blocks + first / SL_QUERIES, group * blocks, SL_QUERIES);
        grad_block(j, x, first, sl_least(j->t_size - first, SL_QUERIES), keys);
    }
    if (unit->piece == unit->pieces - 1)
        sl_head_end_write(j->simd, j->dq, b, h, all, &x->dq);
}

/* A key/value head, or a piece of its keys: dk and dv of a key are summed by one thread, in the order of the query heads and
 * of the queries, and dq of a query in the order of the keys, however heads are cut. */
static void grad_part(void *context, int part, int parts)
{
    const sl_attention *j = context;
    int64_t group = j->h_size / j->kv_size;
    sl_head_unit unit;
    grad_memory m = take_memory(j, sl_scratch_part(j->scratch, part, j->part_bytes));
    while (sl_attention_take(j, &unit)) {
        int64_t b = unit.b, g = unit.g;
        sl_head_rows keys = sl_head_piece(j->keys, SL_KEYS, unit.piece, unit.pieces);
        sl_head v = sl_head_read(j->simd, j->v, b, g, keys, m.v);
        grad_heads x = { .k = sl_head_read(j->simd, j->k, b, g, keys, m.k),
                         .dk = sl_head_begin_write(j->simd, j->dk, b, g, keys, j->add & 2, m.dk),
                         .dv = sl_head_begin_write(j->simd, j->dv, b, g, keys, j->add & 4, m.dv),
                         .keys = m.keys,
                         .values = m.values,
                         .b = b };
        sl_pack_head(j->simd, &x.k, keys, j->d_size, j->scale, m.keys);
        sl_pack_head(j->simd, &v, keys, j->d_size, 1, m.values);
        sl_attention_await_piece(j, &unit);
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            grad_head(j, &x, &unit, parts, h, keys, &m);
        sl_attention_end_piece(j, &unit);
        sl_head_end_write(j->simd, j->dk, b, g, keys, &x.dk);
        sl_head_end_write(j->simd, j->dv, b, g, keys, &x.dv);
    }
}

/* What one thread needs. */
static size_t part_bytes(const sl_attention *j)
{
    size_t bytes = 2 * j->packed_bytes + sl_wide_head_bytes(j->q, j->t_size) + sl_wide_head_bytes(j->o, j->t_size) +
                   sl_wide_head_bytes(j->d_o, j->t_size) + sl_wide_head_bytes(j->dq, j->t_size);
    return bytes + sl_own_head_bytes(j->k, j->keys) + sl_wide_head_bytes(j->v, j->keys) +
           sl_own_head_bytes(j->dk, j->keys) + sl_own_head_bytes(j->dv, j->keys);
}

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
    j.tile = sl_attention_tile(&j);
    j.score_scale = j.tile ? j.scale : 1;
    j.part_bytes = j.tile ? sl_attention_tile_bytes(&j) : part_bytes(&j);
    int64_t blocks = (j.keys + SL_KEYS - 1) / SL_KEYS;
    j.split = sl_head_split_of(cpu, j.batch * j.kv_size, (int)sl_least(blocks, SL_HEAD_PIECES));
    return j;
}

static sl_status run_attention_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_attention j = start(cpu, call);
    for (int64_t i = 0; i < j.split.cut; i++)
        atomic_init(&cut_heads(&j)[i].left, j.split.pieces);
    sl_attention_run(cpu, &j, j.tile ? sl_attention_grad_tiles_part : grad_part);
    return SL_OK;
}

static size_t scratch_attention_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_attention j = start(cpu, call);
    return j.part_bytes * (size_t)j.split.parts + cut_bytes(&j);
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
