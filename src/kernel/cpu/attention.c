/* Attention forward: a block of queries meets one block of keys after the other, with the softmax kept up to date
 * (maximum and sum per query), so scores exist for one block only. */
#include "kernel/cpu/attention.h"

#include <math.h>
#include <string.h>

/* ---- Heads ----------------------------------------------------------------------------------- */

static char *head_at(const sl_view *view, int64_t b, int64_t h)
{
    const int64_t *strides = view->meta.strides;
    int64_t offset = (b * strides[0] + h * strides[2]) * (int64_t)sl_dtype_size(view->meta.dtype);
    return view->data ? (char *)view->data + offset : NULL; /* keys may be none */
}

static sl_head head_in_place(const sl_view *view, int64_t b, int64_t h)
{
    return (sl_head){ (float *)(void *)head_at(view, b, h), view->meta.strides[1] };
}

/* The rows in f32, side by side. */
static void copy_rows(const sl_simd *simd, const sl_view *view, int64_t b, int64_t h, sl_head_rows rows, float *to)
{
    int64_t size = view->meta.shape.dims[3], width = (int64_t)sl_dtype_size(view->meta.dtype);
    for (int64_t t = rows.first; t < rows.end; t++) {
        const char *from = head_at(view, b, h) + t * view->meta.strides[1] * width;
        if (view->meta.dtype == SL_F32)
            memcpy(to + t * size, from, (size_t)(size * width));
        else
            simd->from_half(view->meta.dtype, (const uint16_t *)(const void *)from, to + t * size, size);
    }
}

sl_head sl_head_place(const sl_view *view, int64_t b, int64_t h, float *buffer)
{
    return buffer ? (sl_head){ buffer, view->meta.shape.dims[3] } : head_in_place(view, b, h);
}

sl_head sl_head_read(const sl_simd *simd, const sl_view *view, int64_t b, int64_t h, sl_head_rows rows, float *buffer)
{
    if (buffer)
        copy_rows(simd, view, b, h, rows, buffer);
    return sl_head_place(view, b, h, buffer);
}

sl_head sl_head_begin_write(const sl_simd *simd, const sl_view *view, int64_t b, int64_t h, sl_head_rows rows, bool add,
                            float *buffer)
{
    int64_t size = view->meta.shape.dims[3];
    sl_head head = sl_head_place(view, b, h, buffer);
    if (add && buffer)
        copy_rows(simd, view, b, h, rows, buffer);
    for (int64_t t = rows.first; !add && t < rows.end; t++)
        memset(sl_head_row(&head, t), 0, (size_t)size * sizeof(float));
    return head;
}

void sl_head_end_write(const sl_simd *simd, const sl_view *view, int64_t b, int64_t h, sl_head_rows rows,
                       const sl_head *head)
{
    sl_head to = head_in_place(view, b, h);
    int64_t size = view->meta.shape.dims[3];
    if (head->data == to.data)
        return;
    for (int64_t t = rows.first; t < rows.end; t++) {
        if (view->meta.dtype == SL_F32)
            memcpy(sl_head_row(&to, t), sl_head_row(head, t), (size_t)size * sizeof(float));
        else
            simd->to_half(view->meta.dtype, sl_head_row(head, t),
                          (uint16_t *)(void *)to.data + t * view->meta.strides[1], size);
    }
}

/* ---- Fetching -------------------------------------------------------------------------------- */

void sl_head_fetch(const sl_view *view, int64_t b, int64_t h, sl_head_rows rows)
{
    enum { LINE = 64 };
    int64_t size = (int64_t)sl_dtype_size(view->meta.dtype), bytes = view->meta.shape.dims[3] * size;
    for (int64_t t = rows.first; t < rows.end; t++) {
        const char *row = head_at(view, b, h) + t * view->meta.strides[1] * size;
        for (int64_t i = 0; i < bytes; i += LINE)
            __builtin_prefetch(row + i);
    }
}

void sl_attention_fetch_queries(const sl_attention *j, int64_t b, int64_t h, int64_t first, int64_t block)
{
    const sl_head_rows rows = { first, sl_least(first + block, j->t_size) };
    sl_head_fetch(j->q, b, h, rows);
    if (j->d_o) {
        sl_head_fetch(j->d_o, b, h, rows);
        sl_head_fetch(j->o, b, h, rows);
    }
}

void sl_attention_fetch_next(const sl_attention *j, const sl_head_unit *unit, int parts, int64_t share, int64_t shares,
                             int64_t block)
{
    int64_t head = unit->b * j->kv_size + unit->g + parts, first, count;
    if (unit->pieces > 1 || head >= j->batch * j->kv_size)
        return;
    int64_t b = head / j->kv_size, g = head % j->kv_size;
    sl_chunk_range(j->keys, (int)shares, (int)share, &first, &count);
    sl_head_fetch(j->k, b, g, (sl_head_rows){ first, first + count });
    sl_head_fetch(j->v, b, g, (sl_head_rows){ first, first + count });
    if (share == shares - 1)
        sl_attention_fetch_queries(j, b, g * (j->h_size / j->kv_size), 0, block);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* One query head and the key/value head it uses. */
typedef struct heads {
    sl_head q, v, o;
    const float *keys; /* packed, times scale */
    int64_t b;         /* the row of the batch */
    int64_t row;       /* of query 0 among all rows of lse and of the weights */
} heads;

void sl_pack_head(const sl_simd *simd, const sl_head *head, sl_head_rows rows, int64_t size, float scale, float *packed)
{
    for (int64_t first = rows.first; first < rows.end; first += SL_KEYS) {
        float *to = packed + first * size;
        int64_t filled = sl_least(rows.end - first, SL_KEYS);
        if (filled < SL_KEYS)
            memset(to, 0, (size_t)(SL_KEYS * size) * sizeof *to);
        simd->transpose(sl_head_row(head, first), head->step, filled, size, scale, to, SL_KEYS);
    }
}

/* Scores become softcap * tanh(score / softcap). */
static void cap_scores(const sl_attention *j, float *scores, int64_t n)
{
    j->simd->unary(SL_OP_SCALE, j->score_scale / j->softcap, 0, scores, NULL, scores, n, false);
    j->simd->unary(SL_OP_TANH, 0, 0, scores, NULL, scores, n, false);
    j->simd->unary(SL_OP_SCALE, j->softcap, 0, scores, NULL, scores, n, false);
}

void sl_attention_raise_row(const sl_attention *j, sl_running *r, float *scores, int64_t from, int64_t seen, float *o)
{
    if (seen <= from)
        return;
    if (j->softcap > 0)
        cap_scores(j, scores + from, seen - from);
    float highest = j->simd->highest_score(scores, from, seen, j->softcap > 0 ? 1 : j->score_scale);
    if (highest <= r->max)
        return;
    if (r->max > -INFINITY) {
        float factor = expf(r->max - highest);
        r->sum *= factor;
        j->simd->unary(SL_OP_SCALE, factor, 0, o, NULL, o, j->d_size, false);
    }
    r->max = highest;
}

void sl_attention_weigh_row(const sl_attention *j, sl_running *r, float *scores, int64_t from, int64_t seen, int64_t n)
{
    if (seen > from)
        r->sum += j->simd->softmax_row(scores, from, seen, n, j->softcap > 0 ? 1 : j->score_scale, r->max);
    else
        memset(scores, 0, (size_t)n * sizeof *scores);
}

void sl_attention_finish_row(const sl_attention *j, const sl_running *r, int64_t row, float *o)
{
    if (r->sum != 0)
        j->simd->unary(SL_OP_SCALE, 1 / r->sum, 0, o, NULL, o, j->d_size, false);
    if (j->lse.data)
        *sl_rows_at(&j->lse, row) = r->sum != 0 ? r->max + logf(r->sum) : -INFINITY;
}

/* Queries first..first+count of a head against all keys they see. */
static void attend_block(const sl_attention *j, const heads *x, int64_t first, int64_t count)
{
    float scores[SL_QUERIES][SL_KEYS];
    sl_running r[SL_QUERIES];
    const sl_head *q = &x->q, *v = &x->v, *o = &x->o;
    int64_t limit = sl_attention_seen(j, first + count - 1, 0, j->keys);
    for (int64_t i = 0; i < count; i++)
        r[i] = (sl_running){ .max = -INFINITY };
    for (int64_t key = sl_attention_begin(j, x->b, first, count), end; key < limit; key = end) {
        end = sl_attention_block_end(key, limit);
        int64_t n = end - key;
        sl_small_gemm product = { .m = count,
                                  .n = n,
                                  .k = j->d_size,
                                  .a = sl_head_row(q, first),
                                  .a_row = q->step,
                                  .a_column = 1,
                                  .b = sl_packed_row(x->keys, j->d_size, key),
                                  .b_row = SL_KEYS,
                                  .c = scores[0],
                                  .c_row = SL_KEYS };
        j->simd->small_gemm(&product);
        for (int64_t i = 0; i < count; i++) {
            int64_t seen = sl_attention_seen(j, first + i, key, n);
            int64_t from = sl_attention_before(j, x->b, first + i, key, seen);
            sl_attention_raise_row(j, &r[i], scores[i], from, seen, sl_head_row(o, first + i));
        }
        for (int64_t i = 0; i < count; i++) {
            int64_t seen = sl_attention_seen(j, first + i, key, n);
            int64_t from = sl_attention_before(j, x->b, first + i, key, seen);
            sl_attention_weigh_row(j, &r[i], scores[i], from, seen, n);
            sl_attention_drop(j, x->row + first + i, key + from, seen - from, scores[i] + from);
        }
        sl_small_gemm weigh = { .m = count,
                                .n = j->d_size,
                                .k = n,
                                .a = scores[0],
                                .a_row = SL_KEYS,
                                .a_column = 1,
                                .b = sl_head_row(v, key),
                                .b_row = v->step,
                                .c = sl_head_row(o, first),
                                .c_row = o->step,
                                .add = true };
        j->simd->small_gemm(&weigh);
    }
    for (int64_t i = 0; i < count; i++)
        sl_attention_finish_row(j, &r[i], x->row + first + i, sl_head_row(o, first + i));
}

/* A key/value head, or a piece of its queries: the keys they see are packed once for the query heads that share them. The
 * last queries, which see the most keys, come first. */
static void attend_part(void *context, int part, int parts)
{
    const sl_attention *j = context;
    int64_t group = j->h_size / j->kv_size;
    sl_head_unit unit;
    char *scratch = sl_scratch_part(j->scratch, part, j->part_bytes);
    float *keys = sl_attention_memory(&scratch, j->packed_bytes);
    float *k_wide = sl_attention_memory(&scratch, sl_wide_head_bytes(j->k, j->k->meta.shape.dims[1]));
    float *v_own = sl_attention_memory(&scratch, sl_own_head_bytes(j->v, j->k->meta.shape.dims[1]));
    float *q_wide = sl_attention_memory(&scratch, sl_wide_head_bytes(j->q, j->t_size));
    float *o_wide = sl_attention_memory(&scratch, sl_wide_head_bytes(j->o, j->t_size));
    while (sl_attention_take(j, &unit)) {
        int64_t b = unit.b, g = unit.g, share = 0, shares = group * sl_divide_up(j->t_size, SL_QUERIES);
        sl_head_rows queries = sl_head_piece(j->t_size, SL_QUERIES, unit.pieces - 1 - unit.piece, unit.pieces);
        sl_head_rows seen = { .end = sl_attention_seen(j, queries.end - 1, 0, j->keys) };
        sl_head k = sl_head_read(j->simd, j->k, b, g, seen, k_wide);
        heads x = { .v = sl_head_read(j->simd, j->v, b, g, seen, v_own), .keys = keys, .b = b };
        sl_pack_head(j->simd, &k, seen, j->d_size, j->scale, keys);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            x.q = sl_head_read(j->simd, j->q, b, h, queries, q_wide);
            x.o = sl_head_begin_write(j->simd, j->o, b, h, queries, false, o_wide);
            x.row = (b * j->h_size + h) * j->t_size;
            for (int64_t first = queries.first; first < queries.end; first += SL_QUERIES) {
                sl_attention_fetch_queries(j, b, h, first + SL_QUERIES, SL_QUERIES);
                sl_attention_fetch_next(j, &unit, parts, share++, shares, SL_QUERIES);
                attend_block(j, &x, first, sl_least(queries.end - first, SL_QUERIES));
            }
            sl_head_end_write(j->simd, j->o, b, h, queries, &x.o);
        }
    }
}

sl_head_split sl_head_split_of(const sl_cpu *cpu, int64_t count, int pieces)
{
    int threads = sl_pool_threads(cpu->pool);
    sl_head_split split = { .pieces = pieces, .cut = threads > 1 && pieces > 1 ? sl_least(count, threads) : 0 };
    split.whole = count - split.cut;
    int64_t units = split.whole + split.cut * pieces;
    split.parts = units < 1 ? 1 : (int)sl_least(units, threads);
    return split;
}

void sl_attention_run(const sl_cpu *cpu, sl_attention *j, sl_pool_task task)
{
    atomic_llong next_unit = 0;
    j->next_unit = &next_unit;
    sl_pool_run(cpu->pool, j->split.parts, task, j);
    j->next_unit = NULL;
}

sl_attention sl_attention_start(const sl_cpu *cpu, const sl_kernel_call *call, const sl_view *k, const sl_view *v,
                                const sl_view *positions)
{
    const sl_view *q = sl_call_input(call, 0);
    const int64_t *dims = q->meta.shape.dims;
    return (sl_attention){ .simd = cpu->simd,
                           .pool = cpu->pool,
                           .q = q,
                           .k = k,
                           .v = v,
                           .batch = dims[0],
                           .t_size = dims[1],
                           .keys = k->meta.shape.dims[1],
                           .h_size = dims[2],
                           .kv_size = k->meta.shape.dims[2],
                           .d_size = dims[3],
                           .causal = call->attrs.causal,
                           .window = call->attrs.window,
                           .positions = positions->data,
                           .position_strides = { positions->meta.strides[0], positions->meta.strides[1] },
                           .scale = (float)call->attrs.scale,
                           .score_scale = 1,
                           .softcap = (float)call->attrs.softcap,
                           .drops = sl_call_drops(call),
                           .stream = sl_dropout_of_weights(call),
                           .scratch = call->scratch,
                           .packed_bytes = sl_packed_head_bytes(&k->meta.shape) };
}

/* The heads of a call without a cache are cut by queries. With one, few queries see many keys, which each piece would pack
 * again. */
static sl_head_split split_of(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const int64_t *dims = sl_call_input(call, 0)->meta.shape.dims;
    int64_t blocks = (dims[1] + SL_QUERIES - 1) / SL_QUERIES;
    int pieces = call->op == SL_OP_ATTENTION ? (int)sl_least(blocks, SL_HEAD_PIECES) : 1;
    return sl_head_split_of(cpu, dims[0] * sl_call_input(call, 1)->meta.shape.dims[2], pieces);
}

/* Scratch of one thread: the packed keys, the values side by side, and the other heads if they are widened. */
static size_t part_bytes(const sl_kernel_call *call, const sl_view *k, size_t v_bytes)
{
    int64_t queries = sl_call_input(call, 0)->meta.shape.dims[1], keys = k->meta.shape.dims[1];
    return sl_packed_head_bytes(&k->meta.shape) + sl_wide_head_bytes(k, keys) + v_bytes +
           sl_wide_head_bytes(sl_call_input(call, 0), queries) + sl_wide_head_bytes(sl_call_output(call, 0), queries);
}

static sl_attention start(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_attention j =
        sl_attention_start(cpu, call, sl_call_input(call, 1), sl_call_input(call, 2), sl_call_input(call, 3));
    j.o = sl_call_output(call, 0);
    j.lse = sl_rows_of(sl_call_output(call, 1), 0);
    j.tile = sl_attention_tile(&j);
    j.score_scale = j.tile ? j.scale : 1;
    j.part_bytes = j.tile ? sl_attention_tile_bytes(&j) : part_bytes(call, j.k, sl_own_head_bytes(j.v, j.keys));
    j.split = split_of(cpu, call);
    return j;
}

static sl_status run_attention(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_attention j = start(cpu, call);
    sl_attention_run(cpu, &j, j.tile ? sl_attend_tiles_part : attend_part);
    return SL_OK;
}

static size_t scratch_attention(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_attention j = start(cpu, call);
    return j.part_bytes * (size_t)j.split.parts;
}

/* ---- With a cache ---------------------------------------------------------------------------- */

/* The new rows of keys or values go to the end of the cache, which has the same dtype. */
static void append(const sl_view *rows, const sl_view *cache, int64_t position)
{
    const int64_t *dims = rows->meta.shape.dims;
    int64_t size = (int64_t)sl_dtype_size(rows->meta.dtype);
    for (int64_t b = 0; b < dims[0]; b++) {
        for (int64_t h = 0; h < dims[2]; h++) {
            const char *from = head_at(rows, b, h);
            char *to = head_at(cache, b, h);
            for (int64_t t = 0; t < dims[1]; t++)
                memcpy(to + (position + t) * cache->meta.strides[1] * size, from + t * rows->meta.strides[1] * size,
                       (size_t)(dims[3] * size));
        }
    }
}

/* Few queries: packing the keys would cost more than it saves, so each key is read once, as it lies. */
static void attend_few_part(void *context, int part, int parts)
{
    const sl_attention *j = context;
    int64_t group = j->h_size / j->kv_size;
    sl_head_unit unit;
    char *scratch = sl_scratch_part(j->scratch, part, j->part_bytes);
    float *scores = sl_attention_memory(&scratch, j->packed_bytes);
    float *k_wide = sl_attention_memory(&scratch, sl_wide_head_bytes(j->k, j->k->meta.shape.dims[1]));
    float *v_wide = sl_attention_memory(&scratch, sl_wide_head_bytes(j->v, j->k->meta.shape.dims[1]));
    float *q_wide = sl_attention_memory(&scratch, sl_wide_head_bytes(j->q, j->t_size));
    float *o_wide = sl_attention_memory(&scratch, sl_wide_head_bytes(j->o, j->t_size));
    const sl_head_rows all_keys = { 0, j->keys }, queries = { 0, j->t_size };
    (void)parts;
    while (sl_attention_take(j, &unit)) {
        int64_t b = unit.b, g = unit.g;
        sl_head k = sl_head_read(j->simd, j->k, b, g, all_keys, k_wide);
        sl_head v = sl_head_read(j->simd, j->v, b, g, all_keys, v_wide);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            sl_head q = sl_head_read(j->simd, j->q, b, h, queries, q_wide);
            sl_head o = sl_head_begin_write(j->simd, j->o, b, h, queries, false, o_wide);
            for (int64_t t = 0; t < j->t_size; t++) {
                int64_t n = sl_attention_seen(j, t, 0, j->keys), from = sl_attention_before(j, b, t, 0, n);
                for (int64_t s = from; s < n; s++)
                    scores[s] = j->scale * j->simd->dot(sl_head_row(&q, t), sl_head_row(&k, s), j->d_size);
                if (j->softcap > 0)
                    cap_scores(j, scores + from, n - from);
                float max = j->simd->highest_score(scores, from, n, 1);
                float sum = j->simd->softmax_row(scores, from, n, n, 1, max);
                for (int64_t s = from; s < n; s++)
                    j->simd->axpy(scores[s] / sum, sl_head_row(&v, s), sl_head_row(&o, t), j->d_size);
            }
            sl_head_end_write(j->simd, j->o, b, h, queries, &o);
        }
    }
}

enum { FEW = 8 };

static size_t cached_part_bytes(const sl_kernel_call *call)
{
    const sl_view *k = sl_call_input(call, 3), *v = sl_call_input(call, 4);
    int64_t capacity = k->meta.shape.dims[1];
    bool few = sl_call_input(call, 0)->meta.shape.dims[1] < FEW;
    return part_bytes(call, k, few ? sl_wide_head_bytes(v, capacity) : sl_own_head_bytes(v, capacity));
}

static size_t scratch_attention_cached(const sl_cpu *cpu, const sl_kernel_call *call)
{
    return cached_part_bytes(call) * (size_t)split_of(cpu, call).parts;
}

static sl_status run_attention_cached(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *cache_k = sl_call_input(call, 3), *cache_v = sl_call_input(call, 4);
    sl_attention j = sl_attention_start(cpu, call, cache_k, cache_v, &sl_absent);
    int64_t position = *(const int32_t *)sl_call_input(call, 5)->data, capacity = cache_k->meta.shape.dims[1];
    if (position < 0 || position + j.t_size > capacity)
        return sl_fail(SL_ERR_ARGUMENT, "attention_cached: positions %lld..%lld do not fit into a cache of %lld",
                       (long long)position, (long long)(position + j.t_size - 1), (long long)capacity);
    append(sl_call_input(call, 1), cache_k, position);
    append(sl_call_input(call, 2), cache_v, position);
    j.o = sl_call_output(call, 0);
    j.causal = true;
    j.before = position;
    j.keys = position + j.t_size;
    j.part_bytes = cached_part_bytes(call);
    j.split = split_of(cpu, call);
    sl_attention_run(cpu, &j, j.t_size < FEW ? attend_few_part : attend_part);
    return SL_OK;
}

/* The log-sum-exp is f32; another dtype of it is left to the reference, as is a cache that the new keys do not fit. */
static bool accepts(const sl_kernel_call *call)
{
    const sl_view *lse = sl_call_output(call, 1);
    return sl_cpu_is_narrow(call) && (sl_view_is_none(lse) || lse->meta.dtype == SL_F32);
}

static bool accepts_cached(const sl_kernel_call *call)
{
    sl_dtype k = sl_call_input(call, 1)->meta.dtype, v = sl_call_input(call, 2)->meta.dtype;
    return sl_cpu_is_narrow(call) && sl_call_input(call, 3)->meta.dtype == k && sl_call_input(call, 4)->meta.dtype == v;
}

const sl_cpu_kernel sl_cpu_attention = {
    .accepts = accepts, .run = run_attention, .halves = true, .takes = sl_cpu_takes_rows, .scratch = scratch_attention
};
const sl_cpu_kernel sl_cpu_attention_cached = { .accepts = accepts_cached,
                                                .run = run_attention_cached,
                                                .halves = true,
                                                .takes = sl_cpu_takes_rows,
                                                .scratch = scratch_attention_cached };
