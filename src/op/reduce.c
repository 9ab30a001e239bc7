/* Sums, means and maxima over chosen dims; the reverse of a broadcast; the sum of squares. */
#include "op/gradient.h"

/* x with the reduced dims as size 1, and without them. */
static void reduced_shapes(const sl_shape *x, uint32_t dims, sl_shape *kept, sl_shape *dropped)
{
    *kept = *x;
    *dropped = (sl_shape){ .rank = 0 };
    for (int i = 0; i < x->rank; i++) {
        if (dims >> i & 1u)
            kept->dims[i] = 1;
        else
            dropped->dims[dropped->rank++] = x->dims[i];
    }
}

static sl_status want_dims(const sl_op_use *use)
{
    const sl_shape *x = SL_IN(0);
    bool max = use->op == SL_OP_MAX || use->op == SL_OP_MAX_GRAD;
    if (use->attrs->dims >> x->rank)
        return sl_use_refuse(use, "dims 0x%x are not all among the %d of x", (unsigned)use->attrs->dims, x->rank);
    for (int i = 0; i < x->rank && max; i++) {
        if ((use->attrs->dims >> i & 1u) && x->dims[i] == 0)
            return sl_use_refuse(use, "no element to take the maximum of");
    }
    return SL_OK;
}

static sl_status reduce_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    sl_shape kept, dropped;
    SL_TRY(want_dims(use));
    reduced_shapes(SL_IN(0), use->attrs->dims, &kept, &dropped);
    bool keeps = use->outputs.first ? SL_OUT(0)->rank == SL_IN(0)->rank : use->attrs->keepdim;
    SL_TRY(sl_use_give(use, 0, keeps ? &kept : &dropped));
done:
    return status;
}

static sl_status max_grad_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    sl_shape kept, dropped;
    SL_TRY(want_dims(use));
    reduced_shapes(SL_IN(0), use->attrs->dims, &kept, &dropped);
    SL_TRY(sl_use_want(use, 1, SL_IN(1)->rank == SL_IN(0)->rank ? &kept : &dropped));
    SL_TRY(sl_use_want(use, 2, SL_IN(1)));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
done:
    return status;
}

/* dy with the reduced dims back as size 1, stretched over x. */
static sl_status stretched(const sl_gradient_rule *rule, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_shape x = SL_X(0).meta.shape;
    sl_shape kept, dropped;
    sl_operand wide = rule->dy;
    reduced_shapes(&x, rule->attrs->dims, &kept, &dropped);
    SL_TRY(sl_meta_reshape(&rule->dy.meta, &kept, &wide.meta)); /* dims of size 1 come and go at any strides */
    SL_TRY(sl_meta_expand(&wide.meta, &x, &wide.meta));
    *out = wide;
done:
    return status;
}

static sl_status sum_gradient(const sl_gradient_rule *rule)
{
    sl_operand wide;
    sl_status status = stretched(rule, &wide);
    return status == SL_OK ? rule->calls->alias(rule, 0, &wide) : status;
}

static sl_status mean_gradient(const sl_gradient_rule *rule)
{
    sl_operand wide;
    const sl_shape x = SL_X(0).meta.shape;
    double count = 1;
    sl_status status = stretched(rule, &wide);
    if (status != SL_OK)
        return status;
    for (int i = 0; i < x.rank; i++) {
        if (rule->attrs->dims >> i & 1u)
            count *= (double)x.dims[i];
    }
    return SL_EMIT(SL_OP_SCALE, (&(sl_op_attrs){ .alpha = count > 0 ? 1 / count : 0 }), 0, wide);
}

static sl_status max_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_MAX_GRAD, NULL, 0, SL_X(0), SL_Y(0), rule->dy);
}

const sl_op_info sl_op_sum = {
    .name = "sum",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_FREE_GRADIENT } }, /* dy stretched, by an elementwise op */
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_DIMS,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .dy_layout = SL_LAYOUT_ANY,
    .shapes = reduce_shapes,
    .flops_per_element = 1,
    .gradient = sum_gradient,
};

const sl_op_info sl_op_mean = {
    .name = "mean",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_FREE_GRADIENT } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_DIMS,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .dy_layout = SL_LAYOUT_ANY,
    .shapes = reduce_shapes,
    .flops_per_element = 1,
    .gradient = mean_gradient,
};

const sl_op_info sl_op_max = {
    .name = "max",
    .inputs = { { "x", SL_ARG_DATA, 0 } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .attrs = SL_ATTR_DIMS,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .dy_layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = reduce_shapes,
    .flops_per_element = 1,
    .gradient = max_gradient,
};

const sl_op_info sl_op_max_grad = {
    .name = "max_grad",
    .inputs = { { "x", SL_ARG_DATA, 0 }, { "y", SL_ARG_DATA, 0 }, { "dy", SL_ARG_DATA, 0 } },
    .outputs = { { "dx", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_DIMS,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = max_grad_shapes,
    .flops_per_element = 1,
};

/* ---- Whole sums ------------------------------------------------------------------------------ */

static sl_status sum_to_shapes(sl_op_use *use)
{
    sl_meta wide;
    char text[128];
    sl_status status = sl_use_needs_output(use, 0);
    if (status == SL_OK && sl_meta_expand(sl_use_output(use, 0), SL_IN(0), &wide) != SL_OK)
        return sl_use_refuse(use, "y does not stretch to %s", sl_shape_text(SL_IN(0), text, sizeof text));
    return status;
}

const sl_op_info sl_op_sum_to = {
    .name = "sum_to",
    .inputs = { { "x", SL_ARG_DATA, 0 } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = sum_to_shapes,
    .flops_per_element = 1,
};

static sl_status clip_shapes(sl_op_use *use)
{
    sl_status status = sl_use_give(use, 0, &(sl_shape){ .rank = 0 });
    return status == SL_OK ? sl_use_give(use, 1, &(sl_shape){ .rank = 0 }) : status;
}

const sl_op_info sl_op_clip = {
    .name = "clip",
    .inputs = { { "x", SL_ARG_DATA, 0 } },
    .outputs = { { "norm", SL_ARG_F64, 0 }, { "scale", SL_ARG_F64, 0 } },
    .shapes = clip_shapes,
    .flops_per_element = 1,
};

static sl_status square_sum_shapes(sl_op_use *use)
{
    return sl_use_give(use, 0, &(sl_shape){ .rank = 0 });
}

const sl_op_info sl_op_square_sum = {
    .name = "square_sum",
    .inputs = { { "x", SL_ARG_DATA, 0 } },
    .outputs = { { "y", SL_ARG_F64, 0 } },
    .accumulates = true,
    .shapes = square_sum_shapes,
    .flops_per_element = 1,
};
