/* Attention from its definition, one query at a time, so that no T x T matrix exists; rotary embedding. */
#include "kernel/philox.h"
#include "kernel/reference/reference.h"

#include <math.h>

/* Element (b, t, h, d) of a [B,T,H,D] tensor. */
static int64_t place(const sl_view *view, int64_t b, int64_t t, int64_t h, int64_t d)
{
    const int64_t *s = view->meta.strides;
    return b * s[0] + t * s[1] + h * s[2] + d * s[3];
}

static double at(const sl_view *view, int64_t b, int64_t t, int64_t h, int64_t d)
{
    return sl_get(view, place(view, b, t, h, d));
}

static double dot(const sl_view *x, int64_t b, int64_t t, int64_t h, const sl_view *y, int64_t s, int64_t g)
{
    double sum = 0;
    for (int64_t d = 0; d < x->meta.shape.dims[3]; d++)
        sum += at(x, b, t, h, d) * at(y, b, s, g, d);
    return sum;
}

/* A number that belongs to the weight of key s for query (b, t, h), if weights are dropped. */
static double drop(const sl_kernel_call *call, int64_t b, int64_t t, int64_t h, int64_t s, double value)
{
    const int64_t *q = sl_call_input(call, 0)->meta.shape.dims, *k = sl_call_input(call, 1)->meta.shape.dims;
    if (!sl_call_drops(call))
        return value;
    sl_dropout_stream stream = sl_dropout_of_weights(call);
    return sl_dropout_apply(&stream, (uint64_t)(((b * q[2] + h) * q[1] + t) * k[1] + s), value);
}

/* The input that says where each query is in its document; none if a row is one. */
static const sl_view *documents_of(const sl_kernel_call *call)
{
    return call->op == SL_OP_ATTENTION        ? sl_call_input(call, 3)
           : call->op == SL_OP_ATTENTION_GRAD ? sl_call_input(call, 6)
                                              : &sl_absent;
}

/* The first of the keys that query (b, t) at `position` sees, if it would see `visible` without a window and documents.
 */
static int64_t first_key(const sl_kernel_call *call, int64_t b, int64_t t, int64_t position, int64_t visible)
{
    const sl_view *documents = documents_of(call);
    int64_t first = call->attrs.window > 0 ? position + 1 - call->attrs.window : 0;
    if (!sl_view_is_none(documents)) {
        const int64_t *strides = documents->meta.strides;
        int64_t start = t - sl_get_index(documents, b * strides[0] + t * strides[1]);
        first = start > first ? start : first;
    }
    return first < 0 ? 0 : first < visible ? first : visible;
}

/* The score of a product q.k. */
static double score_of(const sl_kernel_call *call, double product)
{
    double score = call->attrs.scale * product, cap = call->attrs.softcap;
    return cap > 0 ? cap * tanh(score / cap) : score;
}

/* One query at `position` against the keys up to `visible`: weights into the scratch, o[b,t,h,:] written; returns
 * log-sum-exp of the scores. */
static double attend(const sl_kernel_call *call, const sl_view *q, const sl_view *k, const sl_view *v, int64_t b,
                     int64_t t, int64_t h, int64_t position, int64_t visible)
{
    const sl_view *o = sl_call_output(call, 0);
    int64_t g = h / (q->meta.shape.dims[2] / k->meta.shape.dims[2]);
    int64_t first = first_key(call, b, t, position, visible);
    double max = -INFINITY, sum = 0, *p = call->scratch;
    for (int64_t s = first; s < visible; s++) {
        p[s] = score_of(call, dot(q, b, t, h, k, s, g));
        max = fmax(max, p[s]);
    }
    for (int64_t s = first; s < visible; s++)
        sum += p[s] = exp(p[s] - max);
    for (int64_t s = first; s < visible; s++)
        p[s] = drop(call, b, t, h, s, p[s] / sum);
    for (int64_t d = 0; d < q->meta.shape.dims[3]; d++) {
        double value = 0;
        for (int64_t s = first; s < visible; s++)
            value += p[s] * at(v, b, s, g, d);
        sl_put(o, place(o, b, t, h, d), value, false);
    }
    return visible > first ? max + log(sum) : -INFINITY;
}

static int64_t visible_keys(const sl_kernel_call *call, int64_t t, int64_t keys)
{
    return call->attrs.causal && t + 1 < keys ? t + 1 : keys;
}

sl_status sl_reference_attention(const sl_kernel_call *call)
{
    const sl_view *q = sl_call_input(call, 0), *k = sl_call_input(call, 1), *v = sl_call_input(call, 2);
    const sl_view *lse = sl_call_output(call, 1);
    const int64_t *dims = q->meta.shape.dims;
    int64_t keys = k->meta.shape.dims[1];
    for (int64_t b = 0; b < dims[0]; b++) {
        for (int64_t h = 0; h < dims[2]; h++) {
            for (int64_t t = 0; t < dims[1]; t++) {
                double value = attend(call, q, k, v, b, t, h, t, visible_keys(call, t, keys));
                sl_put(lse, sl_row_offset(&lse->meta, (b * dims[2] + h) * dims[1] + t, 0), value, false);
            }
        }
    }
    return SL_OK;
}

/* Sums of the gradients of one key head, in double: they are rounded once, whatever the outputs' element types. */
typedef struct head_sums {
    double *dq;      /* of the query at hand: D */
    double *dk, *dv; /* [S,D] */
} head_sums;

static head_sums sums_of(const sl_kernel_call *call)
{
    const int64_t *k = sl_call_input(call, 1)->meta.shape.dims;
    double *scratch = call->scratch;
    return (head_sums){ .dq = scratch, .dk = scratch + k[3], .dv = scratch + k[3] + k[1] * k[3] };
}

/* Adds the contribution of query (b, t, h) to all visible rows of dk and dv, and writes its own row of dq. */
static void attend_grad(const sl_kernel_call *call, int64_t b, int64_t t, int64_t h, int64_t g, const head_sums *sums)
{
    const sl_view *q = sl_call_input(call, 0), *k = sl_call_input(call, 1), *v = sl_call_input(call, 2);
    const sl_view *o = sl_call_input(call, 3), *lse_view = sl_call_input(call, 4), *d_o = sl_call_input(call, 5);
    const sl_view *dq = sl_call_output(call, 0);
    const int64_t *dims = q->meta.shape.dims;
    double lse = sl_get(lse_view, sl_row_offset(&lse_view->meta, (b * dims[2] + h) * dims[1] + t, 0));
    double delta = dot(d_o, b, t, h, o, t, h);
    sl_clear(sums->dq, dims[3]);
    int64_t visible = visible_keys(call, t, k->meta.shape.dims[1]);
    for (int64_t s = first_key(call, b, t, t, visible); s < visible; s++) {
        double score = score_of(call, dot(q, b, t, h, k, s, g)), p = exp(score - lse);
        double dp = drop(call, b, t, h, s, dot(d_o, b, t, h, v, s, g)), ds = call->attrs.scale * p * (dp - delta);
        if (call->attrs.softcap > 0)
            ds *= 1 - score / call->attrs.softcap * (score / call->attrs.softcap);
        double used = drop(call, b, t, h, s, p);
        for (int64_t d = 0; d < dims[3]; d++) {
            sums->dq[d] += ds * at(k, b, s, g, d);
            sums->dk[s * dims[3] + d] += ds * at(q, b, t, h, d);
            sums->dv[s * dims[3] + d] += used * at(d_o, b, t, h, d);
        }
    }
    for (int64_t d = 0; d < dims[3]; d++)
        sl_put(dq, place(dq, b, t, h, d), sums->dq[d], sl_call_accumulates(call, 0));
}

sl_status sl_reference_attention_grad(const sl_kernel_call *call)
{
    const int64_t *q = sl_call_input(call, 0)->meta.shape.dims, *k = sl_call_input(call, 1)->meta.shape.dims;
    const sl_view *dk = sl_call_output(call, 1), *dv = sl_call_output(call, 2);
    const head_sums sums = sums_of(call);
    int64_t share = q[2] / k[2]; /* query heads for each key head */
    for (int64_t row = 0; row < q[0] * k[2]; row++) {
        int64_t b = row / k[2], g = row % k[2];
        sl_clear(sums.dk, 2 * k[1] * k[3]); /* and dv after it */
        for (int64_t i = 0; i < share * q[1]; i++)
            attend_grad(call, b, i % q[1], g * share + i / q[1], g, &sums);
        for (int64_t i = 0; i < k[1] * k[3]; i++) {
            sl_put(dk, place(dk, b, i / k[3], g, i % k[3]), sums.dk[i], sl_call_accumulates(call, 1));
            sl_put(dv, place(dv, b, i / k[3], g, i % k[3]), sums.dv[i], sl_call_accumulates(call, 2));
        }
    }
    return SL_OK;
}

/* Copies the new keys or values to their place in the cache. */
static void append(const sl_view *rows, const sl_view *cache, int64_t position)
{
    const int64_t *dims = rows->meta.shape.dims;
    for (int64_t b = 0; b < dims[0]; b++) {
        for (int64_t t = 0; t < dims[1]; t++) {
            for (int64_t h = 0; h < dims[2]; h++) {
                for (int64_t d = 0; d < dims[3]; d++)
                    sl_put(cache, place(cache, b, position + t, h, d), at(rows, b, t, h, d), false);
            }
        }
    }
}

sl_status sl_reference_attention_cached(const sl_kernel_call *call)
{
    const sl_view *q = sl_call_input(call, 0), *cache_k = sl_call_input(call, 3), *cache_v = sl_call_input(call, 4);
    const int64_t *dims = q->meta.shape.dims;
    int64_t position = sl_get_index(sl_call_input(call, 5), 0), capacity = cache_k->meta.shape.dims[1];
    if (position < 0 || position + dims[1] > capacity)
        return sl_fail(SL_ERR_ARGUMENT, "attention_cached: positions %lld..%lld do not fit into a cache of %lld",
                       (long long)position, (long long)(position + dims[1] - 1), (long long)capacity);
    append(sl_call_input(call, 1), cache_k, position);
    append(sl_call_input(call, 2), cache_v, position);
    for (int64_t b = 0; b < dims[0]; b++) {
        for (int64_t h = 0; h < dims[2]; h++) {
            for (int64_t t = 0; t < dims[1]; t++)
                attend(call, q, cache_k, cache_v, b, t, h, position + t, position + t + 1);
        }
    }
    return SL_OK;
}

sl_status sl_reference_rope(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *cosines = sl_call_input(call, 1), *sines = sl_call_input(call, 2);
    const sl_view *positions = sl_call_input(call, 3), *y = sl_call_output(call, 0);
    const int64_t *dims = x->meta.shape.dims;
    int64_t half = cosines->meta.shape.dims[1], rows = cosines->meta.shape.dims[0];
    for (int64_t i = 0; i < dims[0] * dims[1] * dims[2] * half; i++) {
        int64_t d = i % half, h = i / half % dims[2], t = i / half / dims[2] % dims[1],
                b = i / half / dims[2] / dims[1];
        int64_t element = positions->meta.shape.rank == 2 ? b * dims[1] + t : t, position = t;
        if (!sl_view_is_none(positions))
            position = sl_get_index(positions, sl_row_offset(&positions->meta, element, 0));
        if (position < 0 || position >= rows)
            return sl_fail(SL_ERR_ARGUMENT, "rope: position %lld at element %lld is not in 0..%lld",
                           (long long)position, (long long)element, (long long)rows - 1);
        double c = sl_get(cosines, position * cosines->meta.strides[0] + d * cosines->meta.strides[1]);
        double s = sl_get(sines, position * sines->meta.strides[0] + d * sines->meta.strides[1]);
        double first = at(x, b, t, h, d), second = at(x, b, t, h, d + half);
        if (call->attrs.inverse)
            s = -s;
        sl_put(y, place(y, b, t, h, d), first * c - second * s, sl_call_accumulates(call, 0));
        sl_put(y, place(y, b, t, h, d + half), second * c + first * s, sl_call_accumulates(call, 0));
    }
    int64_t rest = dims[3] - 2 * half;
    for (int64_t i = 0; i < dims[0] * dims[1] * dims[2] * rest; i++) {
        int64_t d = 2 * half + i % rest, h = i / rest % dims[2], t = i / rest / dims[2] % dims[1],
                b = i / rest / dims[2] / dims[1];
        sl_put(y, place(y, b, t, h, d), at(x, b, t, h, d), sl_call_accumulates(call, 0));
    }
    return SL_OK;
}
