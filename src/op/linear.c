/* Linear layers and matrix products. */
#include "op/gradient.h"

/* ---- Linear ---------------------------------------------------------------------------------- */

static sl_status linear_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    bool turned = use->attrs->transpose_w;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    SL_TRY(sl_use_want_rank(use, 1, 2));
    int64_t k = SL_IN(1)->dims[turned ? 1 : 0], n = SL_IN(1)->dims[turned ? 0 : 1];
    if (sl_shape_last(SL_IN(0)) != k)
        return sl_use_refuse(use, "w takes %lld features", (long long)k);
    const sl_shape bias = sl_shape_vector(n), y = sl_shape_with_last(SL_IN(0), n);
    SL_TRY(sl_use_want(use, 2, &bias));
    SL_TRY(sl_use_give(use, 0, &y));
done:
    return status;
}

static sl_status grad_x_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    bool turned = use->attrs->transpose_w;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    SL_TRY(sl_use_want_rank(use, 1, 2));
    int64_t n = SL_IN(1)->dims[turned ? 0 : 1];
    if (sl_shape_last(SL_IN(0)) != n)
        return sl_use_refuse(use, "w makes %lld features", (long long)n);
    const sl_shape dx = sl_shape_with_last(SL_IN(0), SL_IN(1)->dims[turned ? 1 : 0]);
    SL_TRY(sl_use_give(use, 0, &dx));
done:
    return status;
}

static sl_status grad_w_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    SL_TRY(sl_use_want_dims(use, 1, 1));
    int64_t k = sl_shape_last(SL_IN(0)), n = sl_shape_last(SL_IN(1));
    const sl_shape dy = sl_shape_with_last(SL_IN(0), n);
    SL_TRY(sl_use_want(use, 1, &dy));
    const sl_shape dw = use->attrs->transpose_w ? sl_shape_matrix(n, k) : sl_shape_matrix(k, n);
    SL_TRY(sl_use_give(use, 0, &dw));
done:
    return status;
}

/* Each of the three multiplies all of x (or dy) with K x N numbers. */
static void linear_cost(const sl_op_use *use, sl_cost *cost)
{
    const sl_shape *other = use->op == SL_OP_LINEAR_GRAD_W ? SL_IN(1) : SL_OUT(0);
    cost->flops = 2 * sl_shape_elements(SL_IN(0)) * (double)sl_shape_last(other);
}

static sl_status linear_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    if (SL_WANTED(0))
        SL_TRY(SL_EMIT(SL_OP_LINEAR_GRAD_X, NULL, 0, rule->dy, SL_X(1)));
    if (SL_WANTED(1))
        SL_TRY(SL_EMIT(SL_OP_LINEAR_GRAD_W, NULL, 1, SL_X(0), rule->dy));
    if (SL_WANTED(2))
        SL_TRY(SL_EMIT(SL_OP_SUM_TO, NULL, 2, rule->dy));
done:
    return status;
}

const sl_op_info sl_op_linear = {
    .name = "linear",
    .inputs = { { "x", SL_ARG_DATA, 0 },
                { "w", SL_ARG_FLOAT, SL_ARG_TRANSPOSABLE },
                { "b", SL_ARG_FLOAT, SL_ARG_OPTIONAL | SL_ARG_FREE_GRADIENT } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_TRANSPOSE_W,
    .layout = SL_LAYOUT_ROWS,
    .dy_layout = SL_LAYOUT_CONTIGUOUS, /* the gradient of b sums it over rows */
    .shapes = linear_shapes,
    .cost = linear_cost,
    .gradient_work_per_input = 1,
    .gradient = linear_gradient,
};

const sl_op_info sl_op_linear_grad_x = {
    .name = "linear_grad_x",
    .inputs = { { "dy", SL_ARG_DATA, 0 }, { "w", SL_ARG_FLOAT, SL_ARG_TRANSPOSABLE } },
    .outputs = { { "dx", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_TRANSPOSE_W,
    .layout = SL_LAYOUT_ROWS,
    .shapes = grad_x_shapes,
    .cost = linear_cost,
};

const sl_op_info sl_op_linear_grad_w = {
    .name = "linear_grad_w",
    .inputs = { { "x", SL_ARG_DATA, 0 }, { "dy", SL_ARG_DATA, 0 } },
    .outputs = { { "dw", SL_ARG_DATA, SL_ARG_TRANSPOSABLE } },
    .accumulates = true,
    .attrs = SL_ATTR_TRANSPOSE_W,
    .layout = SL_LAYOUT_ROWS,
    .shapes = grad_w_shapes,
    .cost = linear_cost,
};

/* ---- Matrix product -------------------------------------------------------------------------- */

static sl_status matmul_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    sl_shape a = *SL_IN(0), b = *SL_IN(1), c;
    bool ta = use->attrs->transpose_a, tb = use->attrs->transpose_b;
    SL_TRY(sl_use_want_dims(use, 0, 2));
    SL_TRY(sl_use_want_dims(use, 1, 2));
    int64_t m = a.dims[a.rank - (ta ? 1 : 2)], k = a.dims[a.rank - (ta ? 2 : 1)];
    int64_t n = b.dims[b.rank - (tb ? 2 : 1)], kb = b.dims[b.rank - (tb ? 1 : 2)];
    if (k != kb)
        return sl_use_refuse(use, "inner dims %lld and %lld differ", (long long)k, (long long)kb);
    a.rank -= 2;
    b.rank -= 2;
    if (sl_shape_broadcast(&a, &b, &c) != SL_OK)
        return sl_use_refuse(use, "leading dims do not broadcast");
    c.dims[c.rank++] = m;
    c.dims[c.rank++] = n;
    SL_TRY(sl_use_give(use, 0, &c));
done:
    return status;
}

static void matmul_cost(const sl_op_use *use, sl_cost *cost)
{
    const sl_shape *a = SL_IN(0);
    cost->flops = 2 * sl_shape_elements(SL_OUT(0)) * (double)a->dims[a->rank - (use->attrs->transpose_a ? 2 : 1)];
}

/* With C = A B, where A is a or its transpose: dA = dC B', dB = A' dC, and the transposed forms for a and b that are
 * stored transposed. */
static sl_status matmul_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    bool ta = rule->attrs->transpose_a, tb = rule->attrs->transpose_b;
    for (int i = 0; i < 2; i++) {
        bool own = i == 0 ? ta : tb, other = i == 0 ? tb : ta;
        sl_op_attrs attrs = { 0 };
        sl_shape wide = rule->dy.meta.shape;
        const sl_shape x = SL_X(i).meta.shape;
        if (!SL_WANTED(i))
            continue;
        wide.dims[wide.rank - 2] = x.dims[x.rank - 2];
        wide.dims[wide.rank - 1] = x.dims[x.rank - 1];
        bool dy_first = (i == 0) != own;
        if (dy_first) {
            attrs.transpose_a = i == 1;
            attrs.transpose_b = i == 0 ? !other : other;
        } else {
            attrs.transpose_a = i == 0 ? other : !other;
            attrs.transpose_b = i == 0;
        }
        SL_TRY(sl_gradient_emit_reduced(rule, SL_OP_MATMUL, &attrs, i, dy_first ? rule->dy : SL_X(1 - i),
                                        dy_first ? SL_X(1 - i) : rule->dy, &wide));
    }
done:
    return status;
}

const sl_op_info sl_op_matmul = {
    .name = "matmul",
    .inputs = { { "a", SL_ARG_DATA, 0 }, { "b", SL_ARG_DATA, 0 } },
    .outputs = { { "c", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_TRANSPOSE_AB,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .dy_layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = matmul_shapes,
    .cost = matmul_cost,
    .gradient_work_per_input = 1,
    .gradient = matmul_gradient,
};
