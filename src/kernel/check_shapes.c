/* The shape rule of every op. Messages name the op, the argument and the shapes. */
#include "kernel/call.h"

#include <stdio.h>

enum { TEXT = 128 };

static sl_status wrong(const sl_kernel_call *call, const char *what, const sl_meta *given, const char *expected)
{
    char text[2 * TEXT];
    return sl_fail(SL_ERR_SHAPE, "%s: %s is %s, expected %s", sl_op_get_info(call->op)->name, what,
                   sl_meta_text(given, text, sizeof text), expected);
}

/* The argument must have this shape. */
static sl_status want(const sl_kernel_call *call, const char *what, const sl_view *view, const sl_shape *shape)
{
    char text[TEXT];
    if (sl_shape_equal(&view->meta.shape, shape))
        return SL_OK;
    return wrong(call, what, &view->meta, sl_shape_text(shape, text, sizeof text));
}

static sl_status want_or_none(const sl_kernel_call *call, const char *what, const sl_view *view, const sl_shape *shape)
{
    return sl_view_is_none(view) ? SL_OK : want(call, what, view, shape);
}

static sl_status want_rank(const sl_kernel_call *call, const char *what, const sl_view *view, int rank)
{
    char text[TEXT];
    if (view->meta.shape.rank == rank)
        return SL_OK;
    snprintf(text, sizeof text, "%d dims", rank);
    return wrong(call, what, &view->meta, text);
}

static sl_status want_integers(const sl_kernel_call *call, const char *what, const sl_view *view)
{
    if (view->meta.dtype == SL_I32 || view->meta.dtype == SL_I64)
        return SL_OK;
    return wrong(call, what, &view->meta, "i32 or i64");
}

/* shape without its last dim, or with another one. */
static sl_shape without_last(const sl_shape *shape)
{
    sl_shape result = *shape;
    result.rank--;
    return result;
}

static sl_shape with_last(const sl_shape *shape, int64_t last)
{
    sl_shape result = *shape;
    result.dims[result.rank - 1] = last;
    return result;
}

static sl_shape vector(int64_t size)
{
    return (sl_shape){ .rank = 1, .dims = { size } };
}

static sl_shape matrix(int64_t rows, int64_t columns)
{
    return (sl_shape){ .rank = 2, .dims = { rows, columns } };
}

#define IN(i) sl_call_input(call, i)
#define OUT(i) sl_call_output(call, i)
#define SHAPE_IN(i) (&IN(i)->meta.shape)
#define SHAPE_OUT(i) (&OUT(i)->meta.shape)
#define LAST(view) sl_dim_from_last(&(view)->meta, 1)

/* x, w, y of LINEAR and of its gradients, which only change places. */
static sl_status check_linear(const sl_kernel_call *call, const sl_view *x, const sl_view *w, const sl_view *y)
{
    sl_status status = SL_OK;
    if (x->meta.shape.rank < 1)
        return wrong(call, "x", &x->meta, "at least 1 dim");
    if (y->meta.shape.rank < 1)
        return wrong(call, "y", &y->meta, "at least 1 dim");
    sl_shape y_shape = with_last(&x->meta.shape, LAST(y));
    SL_TRY(want(call, "y", y, &y_shape));
    sl_shape w_shape = call->attrs.transpose_w ? matrix(LAST(y), LAST(x)) : matrix(LAST(x), LAST(y));
    SL_TRY(want(call, "w", w, &w_shape));
    if (call->op == SL_OP_LINEAR) {
        sl_shape bias = vector(LAST(y));
        SL_TRY(want_or_none(call, "b", IN(2), &bias));
    }
done:
    return status;
}

static sl_status check_matmul(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    const sl_meta *a = &IN(0)->meta, *b = &IN(1)->meta;
    char expected[TEXT];
    if (a->shape.rank < 2)
        return wrong(call, "a", a, "at least 2 dims");
    if (b->shape.rank < 2)
        return wrong(call, "b", b, "at least 2 dims");
    int64_t m = sl_dim_from_last(a, call->attrs.transpose_a ? 1 : 2);
    int64_t k = sl_dim_from_last(a, call->attrs.transpose_a ? 2 : 1);
    int64_t n = sl_dim_from_last(b, call->attrs.transpose_b ? 2 : 1);
    if (sl_dim_from_last(b, call->attrs.transpose_b ? 1 : 2) != k) {
        snprintf(expected, sizeof expected, "an inner dim of %lld", (long long)k);
        return wrong(call, "b", b, expected);
    }
    sl_shape left = a->shape, right = b->shape, c;
    left.rank -= 2;
    right.rank -= 2;
    SL_TRY(sl_shape_broadcast(&left, &right, &c));
    c.dims[c.rank++] = m;
    c.dims[c.rank++] = n;
    SL_TRY(want(call, "c", OUT(0), &c));
done:
    return status;
}

/* x is [..,C]; the other arguments follow from it. */
static sl_status check_norm(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    bool forward = call->op == SL_OP_LAYERNORM || call->op == SL_OP_RMSNORM;
    bool layer =
        call->op == SL_OP_LAYERNORM || call->op == SL_OP_LAYERNORM_GRAD_X || call->op == SL_OP_LAYERNORM_GRAD_W;
    bool weight = call->op == SL_OP_LAYERNORM_GRAD_W || call->op == SL_OP_RMSNORM_GRAD_W;
    const sl_view *x = IN(forward ? 0 : 1);
    if (x->meta.shape.rank < 1)
        return wrong(call, "x", &x->meta, "at least 1 dim");
    sl_shape channels = vector(LAST(x)), rows = without_last(&x->meta.shape);
    if (forward) {
        SL_TRY(want_or_none(call, "w", IN(1), &channels));
        if (layer)
            SL_TRY(want_or_none(call, "b", IN(2), &channels));
        SL_TRY(want(call, "y", OUT(0), &x->meta.shape));
        SL_TRY(want(call, layer ? "mean" : "rstd", OUT(1), &rows));
        if (layer)
            SL_TRY(want(call, "rstd", OUT(2), &rows));
        return SL_OK;
    }
    SL_TRY(want(call, "dy", IN(0), &x->meta.shape));
    int statistics = weight ? 2 : 3;
    if (!weight)
        SL_TRY(want_or_none(call, "w", IN(2), &channels));
    SL_TRY(want(call, layer ? "mean" : "rstd", IN(statistics), &rows));
    if (layer)
        SL_TRY(want(call, "rstd", IN(statistics + 1), &rows));
    SL_TRY(want(call, weight ? "dw" : "dx", OUT(0), weight ? &channels : &x->meta.shape));
    if (weight && layer)
        SL_TRY(want_or_none(call, "db", OUT(1), &channels));
done:
    return status;
}

/* Every argument has the shape of the first output. */
static sl_status check_same(const sl_kernel_call *call, int min_rank)
{
    sl_status status = SL_OK;
    char name[32];
    if (SHAPE_OUT(0)->rank < min_rank)
        return wrong(call, "output 0", &OUT(0)->meta, "at least 1 dim");
    for (int i = 0; i < call->input_count; i++) {
        snprintf(name, sizeof name, "input %d", i);
        SL_TRY(want(call, name, IN(i), SHAPE_OUT(0)));
    }
    for (int i = 1; i < call->output_count; i++) {
        snprintf(name, sizeof name, "output %d", i);
        SL_TRY(want_or_none(call, name, OUT(i), SHAPE_OUT(0)));
    }
done:
    return status;
}

static sl_status check_attention(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    SL_TRY(want_rank(call, "q", IN(0), 4));
    SL_TRY(want_rank(call, "k", IN(1), 4));
    const int64_t *q = SHAPE_IN(0)->dims, *k = SHAPE_IN(1)->dims;
    bool cached = call->op == SL_OP_ATTENTION_CACHED;
    if (k[0] != q[0] || k[3] != q[3] || k[2] < 1 || q[2] % k[2] != 0 || (cached && k[1] != q[1]))
        return wrong(call, "k", &IN(1)->meta, "the batch and head size of q, and heads that divide those of q");
    SL_TRY(want(call, "v", IN(2), SHAPE_IN(1)));
    sl_shape lse = { .rank = 3, .dims = { q[0], q[2], q[1] } };
    if (cached) {
        SL_TRY(want_rank(call, "cache_k", IN(3), 4));
        sl_shape cache = { .rank = 4, .dims = { k[0], SHAPE_IN(3)->dims[1], k[2], k[3] } };
        SL_TRY(want(call, "cache_k", IN(3), &cache));
        SL_TRY(want(call, "cache_v", IN(4), &cache));
        SL_TRY(want_rank(call, "position", IN(5), 0));
        SL_TRY(want(call, "o", OUT(0), SHAPE_IN(0)));
        if (IN(5)->meta.dtype != SL_I32)
            return wrong(call, "position", &IN(5)->meta, "i32");
    } else if (call->op == SL_OP_ATTENTION) {
        SL_TRY(want(call, "o", OUT(0), SHAPE_IN(0)));
        SL_TRY(want(call, "lse", OUT(1), &lse));
    } else {
        SL_TRY(want(call, "o", IN(3), SHAPE_IN(0)));
        SL_TRY(want(call, "lse", IN(4), &lse));
        SL_TRY(want(call, "do", IN(5), SHAPE_IN(0)));
        SL_TRY(want(call, "dq", OUT(0), SHAPE_IN(0)));
        SL_TRY(want(call, "dk", OUT(1), SHAPE_IN(1)));
        SL_TRY(want(call, "dv", OUT(2), SHAPE_IN(1)));
    }
done:
    return status;
}

static sl_status check_rope(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    SL_TRY(want_rank(call, "x", IN(0), 4));
    SL_TRY(want(call, "y", OUT(0), SHAPE_IN(0)));
    SL_TRY(want_rank(call, "cos", IN(1), 2));
    const int64_t *x = SHAPE_IN(0)->dims;
    bool listed = !sl_view_is_none(IN(3));
    if (x[3] % 2 != 0)
        return wrong(call, "x", &IN(0)->meta, "an even last dim");
    if (SHAPE_IN(1)->dims[1] != x[3] / 2 || (!listed && SHAPE_IN(1)->dims[0] < x[1]))
        return wrong(call, "cos", &IN(1)->meta, "a row for every position, half the last dim of x long");
    SL_TRY(want(call, "sin", IN(2), SHAPE_IN(1)));
    if (listed) {
        sl_shape positions = vector(x[1]);
        SL_TRY(want(call, "positions", IN(3), &positions));
        if (IN(3)->meta.dtype != SL_I32)
            return wrong(call, "positions", &IN(3)->meta, "i32");
    }
done:
    return status;
}

static sl_status check_embedding(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    bool forward = call->op == SL_OP_EMBEDDING;
    const sl_view *table = forward ? IN(1) : OUT(0), *rows = forward ? OUT(0) : IN(1);
    SL_TRY(want_integers(call, "ids", IN(0)));
    SL_TRY(want_rank(call, "table", table, 2));
    SL_TRY(want_rank(call, "y", rows, SHAPE_IN(0)->rank + 1));
    sl_shape ids = without_last(&rows->meta.shape);
    SL_TRY(want(call, "ids", IN(0), &ids));
    sl_shape y = with_last(&rows->meta.shape, table->meta.shape.dims[1]);
    SL_TRY(want(call, "y", rows, &y));
done:
    return status;
}

static sl_status check_loss(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    bool forward = call->op == SL_OP_CROSS_ENTROPY;
    if (SHAPE_IN(0)->rank < 1)
        return wrong(call, "logits", &IN(0)->meta, "at least 1 dim");
    sl_shape rows = without_last(SHAPE_IN(0));
    SL_TRY(want_integers(call, "targets", IN(1)));
    SL_TRY(want(call, "targets", IN(1), &rows));
    SL_TRY(want(call, "lse", forward ? OUT(1) : IN(2), &rows));
    SL_TRY(want_rank(call, "loss", forward ? OUT(0) : IN(3), 0));
    if (!forward)
        SL_TRY(want(call, "dlogits", OUT(0), SHAPE_IN(0)));
done:
    return status;
}

static sl_status check_binary(const sl_kernel_call *call)
{
    sl_shape shape;
    sl_status status = SL_OK;
    SL_TRY(sl_shape_broadcast(SHAPE_IN(0), SHAPE_IN(1), &shape));
    SL_TRY(want(call, "c", OUT(0), &shape));
done:
    return status;
}

static sl_status check_sum_to(const sl_kernel_call *call)
{
    sl_meta stretched;
    sl_status status = sl_meta_expand(&OUT(0)->meta, SHAPE_IN(0), &stretched);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "sum_to: y");
}

static sl_status check_reduce(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    const sl_shape *x = SHAPE_IN(0);
    bool gradient = call->op == SL_OP_MAX_GRAD;
    const sl_view *y = gradient ? IN(1) : OUT(0);
    sl_shape kept = *x, dropped = { .rank = 0 };
    for (int i = 0; i < x->rank; i++) {
        if (call->attrs.dims >> i & 1)
            kept.dims[i] = 1;
        else
            dropped.dims[dropped.rank++] = x->dims[i];
        if ((call->op == SL_OP_MAX || gradient) && (call->attrs.dims >> i & 1) && x->dims[i] == 0)
            return wrong(call, "x", &IN(0)->meta, "at least one element to take the maximum of");
    }
    if (call->attrs.dims >> x->rank)
        return sl_fail(SL_ERR_ARGUMENT, "%s: dims 0x%x are not all among the %d of x", sl_op_get_info(call->op)->name,
                       (unsigned)call->attrs.dims, x->rank);
    SL_TRY(want(call, "y", y, y->meta.shape.rank == x->rank ? &kept : &dropped));
    if (gradient) {
        SL_TRY(want(call, "dy", IN(2), &y->meta.shape));
        SL_TRY(want(call, "dx", OUT(0), x));
    }
done:
    return status;
}

static sl_status check_concat(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    char name[32];
    int dim = call->attrs.dim;
    sl_shape y = *SHAPE_OUT(0);
    if (dim < 0 || dim >= y.rank)
        return sl_fail(SL_ERR_ARGUMENT, "concat: the result has no dim %d", dim);
    int64_t total = 0;
    for (int i = 0; i < call->input_count; i++) {
        sl_shape part = y;
        part.dims[dim] = SHAPE_IN(i)->rank == y.rank ? SHAPE_IN(i)->dims[dim] : 0;
        snprintf(name, sizeof name, "input %d", i);
        SL_TRY(want(call, name, IN(i), &part));
        total += part.dims[dim];
    }
    y.dims[dim] = total;
    SL_TRY(want(call, "y", OUT(0), &y));
done:
    return status;
}

sl_status sl_call_check_shapes(const sl_kernel_call *call)
{
    switch (call->op) {
    case SL_OP_LINEAR:
        return check_linear(call, IN(0), IN(1), OUT(0));
    case SL_OP_LINEAR_GRAD_X:
        return check_linear(call, OUT(0), IN(1), IN(0));
    case SL_OP_LINEAR_GRAD_W:
        return check_linear(call, IN(0), OUT(0), IN(1));
    case SL_OP_MATMUL:
        return check_matmul(call);
    case SL_OP_LAYERNORM:
    case SL_OP_LAYERNORM_GRAD_X:
    case SL_OP_LAYERNORM_GRAD_W:
    case SL_OP_RMSNORM:
    case SL_OP_RMSNORM_GRAD_X:
    case SL_OP_RMSNORM_GRAD_W:
        return check_norm(call);
    case SL_OP_SOFTMAX:
    case SL_OP_SOFTMAX_GRAD:
    case SL_OP_DROPOUT:
        return check_same(call, 1);
    case SL_OP_ATTENTION:
    case SL_OP_ATTENTION_GRAD:
    case SL_OP_ATTENTION_CACHED:
        return check_attention(call);
    case SL_OP_ROPE:
        return check_rope(call);
    case SL_OP_EMBEDDING:
    case SL_OP_EMBEDDING_GRAD:
        return check_embedding(call);
    case SL_OP_CROSS_ENTROPY:
    case SL_OP_CROSS_ENTROPY_GRAD:
        return check_loss(call);
    case SL_OP_ADD:
    case SL_OP_SUB:
    case SL_OP_MUL:
    case SL_OP_DIV:
        return check_binary(call);
    case SL_OP_SUM_TO:
        return check_sum_to(call);
    case SL_OP_SUM:
    case SL_OP_MEAN:
    case SL_OP_MAX:
    case SL_OP_MAX_GRAD:
        return check_reduce(call);
    case SL_OP_CONCAT:
        return check_concat(call);
    case SL_OP_SQUARE_SUM:
        return want_rank(call, "y", OUT(0), 0);
    default:
        return check_same(call, 0);
    }
}
