/* Fused ops: what the ops that they stand for take and give, in one. */
#include "op/op.h"

/* Inputs first.. are as wide as input 0, if they are there. */
static sl_status want_channels(const sl_op_use *use, int first, int end)
{
    sl_status status = SL_OK;
    const sl_shape channels = sl_shape_vector(sl_shape_last(SL_IN(0)));
    for (int i = first; i < end && i < use->inputs.count; i++)
        SL_TRY(sl_use_want(use, i, &channels));
done:
    return status;
}

/* a, b, weights -> sum, y, statistics. */
static sl_status add_norm_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    const sl_shape rows = sl_shape_without_last(SL_IN(0));
    SL_TRY(sl_use_want(use, 1, SL_IN(0)));
    SL_TRY(want_channels(use, 2, use->inputs.count));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
    SL_TRY(sl_use_give(use, 1, SL_IN(0)));
    for (int i = 2; sl_op_get_info(use->op)->outputs[i].name; i++)
        SL_TRY(sl_use_give(use, i, &rows));
done:
    return status;
}

/* dy, x, w?, statistics -> dx, sums over rows. */
static sl_status norm_grad_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    const sl_shape rows = sl_shape_without_last(SL_IN(0)), channels = sl_shape_vector(sl_shape_last(SL_IN(0)));
    SL_TRY(sl_use_want(use, 1, SL_IN(0)));
    SL_TRY(want_channels(use, 2, 3));
    for (int i = 3; i < use->inputs.count; i++)
        SL_TRY(sl_use_want(use, i, &rows));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
    for (int i = 1; sl_op_get_info(use->op)->outputs[i].name; i++)
        SL_TRY(sl_use_give(use, i, &channels));
done:
    return status;
}

static sl_status grad_sum_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    const sl_shape channels = sl_shape_vector(sl_shape_last(SL_IN(0)));
    SL_TRY(sl_use_want(use, 1, SL_IN(0)));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
    SL_TRY(sl_use_give(use, 1, &channels));
done:
    return status;
}

const sl_op_info sl_op_add_layernorm = {
    .name = "add_layernorm",
    .inputs = { { "a", SL_ARG_DATA, SL_ARG_INPLACE },
                { "b", SL_ARG_DATA, SL_ARG_INPLACE },
                { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL },
                { "bias", SL_ARG_FLOAT, SL_ARG_OPTIONAL } },
    .outputs = { { "sum", SL_ARG_DATA, 0 },
                 { "y", SL_ARG_DATA, 0 },
                 { "mean", SL_ARG_STATISTIC, 0 },
                 { "rstd", SL_ARG_STATISTIC, 0 } },
    .attrs = SL_ATTR_EPS,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = add_norm_shapes,
    .flops_per_element = 9,
};

const sl_op_info sl_op_add_rmsnorm = {
    .name = "add_rmsnorm",
    .inputs = { { "a", SL_ARG_DATA, SL_ARG_INPLACE },
                { "b", SL_ARG_DATA, SL_ARG_INPLACE },
                { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL } },
    .outputs = { { "sum", SL_ARG_DATA, 0 }, { "y", SL_ARG_DATA, 0 }, { "rstd", SL_ARG_STATISTIC, 0 } },
    .attrs = SL_ATTR_EPS,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = add_norm_shapes,
    .flops_per_element = 9,
};

const sl_op_info sl_op_layernorm_grad = {
    .name = "layernorm_grad",
    .inputs = { { "dy", SL_ARG_DATA, SL_ARG_INPLACE },
                { "x", SL_ARG_DATA, SL_ARG_INPLACE },
                { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL },
                { "mean", SL_ARG_STATISTIC, 0 },
                { "rstd", SL_ARG_STATISTIC, 0 } },
    .outputs = { { "dx", SL_ARG_DATA, 0 },
                 { "dw", SL_ARG_DATA, 0 },
                 { "db", SL_ARG_DATA, SL_ARG_OPTIONAL },
                 { "total", SL_ARG_DATA, SL_ARG_OPTIONAL } },
    .accumulates = true,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = norm_grad_shapes,
    .flops_per_element = 12,
};

const sl_op_info sl_op_rmsnorm_grad = {
    .name = "rmsnorm_grad",
    .inputs = { { "dy", SL_ARG_DATA, SL_ARG_INPLACE },
                { "x", SL_ARG_DATA, SL_ARG_INPLACE },
                { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL },
                { "rstd", SL_ARG_STATISTIC, 0 } },
    .outputs = { { "dx", SL_ARG_DATA, 0 }, { "dw", SL_ARG_DATA, 0 }, { "total", SL_ARG_DATA, SL_ARG_OPTIONAL } },
    .accumulates = true,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = norm_grad_shapes,
    .flops_per_element = 11,
};

const sl_op_info sl_op_gelu_tanh_grad_sum = {
    .name = "gelu_tanh_grad_sum",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_INPLACE }, { "dy", SL_ARG_DATA, SL_ARG_INPLACE } },
    .outputs = { { "dx", SL_ARG_DATA, 0 }, { "total", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_CONTIGUOUS,
    .shapes = grad_sum_shapes,
    .flops_per_element = 16,
};
