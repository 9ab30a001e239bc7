/* Normalization over the last dim. Statistics of a row (mean, 1 / deviation) go from the forward to the gradients. */
#include "op/gradient.h"

/* x[..,C] with weights [C] after it; one output like x, the others one number a row. */
static sl_status norm_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    const sl_shape channels = sl_shape_vector(sl_shape_last(SL_IN(0))), rows = sl_shape_without_last(SL_IN(0));
    for (int i = 1; i < use->inputs.count; i++)
        SL_TRY(sl_use_want(use, i, &channels));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
    for (int i = 1; sl_op_get_info(use->op)->outputs[i].name; i++)
        SL_TRY(sl_use_give(use, i, &rows));
done:
    return status;
}

/* dy, x, w?, then statistics. */
static sl_status grad_x_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    const sl_shape channels = sl_shape_vector(sl_shape_last(SL_IN(0))), rows = sl_shape_without_last(SL_IN(0));
    SL_TRY(sl_use_want(use, 1, SL_IN(0)));
    SL_TRY(sl_use_want(use, 2, &channels));
    for (int i = 3; i < use->inputs.count; i++)
        SL_TRY(sl_use_want(use, i, &rows));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
done:
    return status;
}

/* dy, x, then statistics. */
static sl_status grad_w_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    const sl_shape channels = sl_shape_vector(sl_shape_last(SL_IN(0))), rows = sl_shape_without_last(SL_IN(0));
    SL_TRY(sl_use_want(use, 1, SL_IN(0)));
    for (int i = 2; i < use->inputs.count; i++)
        SL_TRY(sl_use_want(use, i, &rows));
    for (int i = 0; sl_op_get_info(use->op)->outputs[i].name; i++)
        SL_TRY(sl_use_give(use, i, &channels));
done:
    return status;
}

static sl_status layernorm_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    if (SL_WANTED(0))
        SL_TRY(SL_EMIT(SL_OP_LAYERNORM_GRAD_X, NULL, 0, rule->dy, SL_X(0), SL_X(1), SL_Y(1), SL_Y(2)));
    if (SL_WANTED(1)) {
        const sl_operand inputs[] = { rule->dy, SL_X(0), SL_Y(1), SL_Y(2) };
        SL_TRY(rule->calls->emit(rule, &(sl_gradient_term){ .op = SL_OP_LAYERNORM_GRAD_W,
                                                            .inputs = inputs,
                                                            .input_count = 4,
                                                            .targets = { 1, 2 },
                                                            .target_count = 2 }));
    } else if (SL_WANTED(2)) {
        SL_TRY(SL_EMIT(SL_OP_SUM_TO, NULL, 2, rule->dy));
    }
done:
    return status;
}

static sl_status rmsnorm_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    if (SL_WANTED(0))
        SL_TRY(SL_EMIT(SL_OP_RMSNORM_GRAD_X, NULL, 0, rule->dy, SL_X(0), SL_X(1), SL_Y(1)));
    if (SL_WANTED(1))
        SL_TRY(SL_EMIT(SL_OP_RMSNORM_GRAD_W, NULL, 1, rule->dy, SL_X(0), SL_Y(1)));
done:
    return status;
}

const sl_op_info sl_op_layernorm = {
    .name = "layernorm",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_INPLACE },
                { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL },
                { "b", SL_ARG_FLOAT, SL_ARG_OPTIONAL | SL_ARG_FREE_GRADIENT } },
    .outputs = { { "y", SL_ARG_DATA, 0 }, { "mean", SL_ARG_STATISTIC, 0 }, { "rstd", SL_ARG_STATISTIC, 0 } },
    .attrs = SL_ATTR_EPS,
    .layout = SL_LAYOUT_HEADS,
    .dy_layout = SL_LAYOUT_HEADS,
    .shapes = norm_shapes,
    .flops_per_element = 8,
    .gradient = layernorm_gradient,
};

const sl_op_info sl_op_layernorm_grad_x = {
    .name = "layernorm_grad_x",
    .inputs = { { "dy", SL_ARG_DATA, SL_ARG_INPLACE },
                { "x", SL_ARG_DATA, SL_ARG_INPLACE },
                { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL },
                { "mean", SL_ARG_STATISTIC, 0 },
                { "rstd", SL_ARG_STATISTIC, 0 } },
    .outputs = { { "dx", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .shapes = grad_x_shapes,
    .flops_per_element = 8,
};

const sl_op_info sl_op_layernorm_grad_w = {
    .name = "layernorm_grad_w",
    .inputs = { { "dy", SL_ARG_DATA, 0 },
                { "x", SL_ARG_DATA, 0 },
                { "mean", SL_ARG_STATISTIC, 0 },
                { "rstd", SL_ARG_STATISTIC, 0 } },
    .outputs = { { "dw", SL_ARG_DATA, 0 }, { "db", SL_ARG_DATA, SL_ARG_OPTIONAL } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .shapes = grad_w_shapes,
    .flops_per_element = 3,
};

const sl_op_info sl_op_rmsnorm = {
    .name = "rmsnorm",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_INPLACE }, { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL } },
    .outputs = { { "y", SL_ARG_DATA, 0 }, { "rstd", SL_ARG_STATISTIC, 0 } },
    .attrs = SL_ATTR_EPS,
    .layout = SL_LAYOUT_HEADS,
    .dy_layout = SL_LAYOUT_HEADS,
    .shapes = norm_shapes,
    .flops_per_element = 8,
    .gradient = rmsnorm_gradient,
};

const sl_op_info sl_op_rmsnorm_grad_x = {
    .name = "rmsnorm_grad_x",
    .inputs = { { "dy", SL_ARG_DATA, SL_ARG_INPLACE },
                { "x", SL_ARG_DATA, SL_ARG_INPLACE },
                { "w", SL_ARG_FLOAT, SL_ARG_OPTIONAL },
                { "rstd", SL_ARG_STATISTIC, 0 } },
    .outputs = { { "dx", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .shapes = grad_x_shapes,
    .flops_per_element = 8,
};

const sl_op_info sl_op_rmsnorm_grad_w = {
    .name = "rmsnorm_grad_w",
    .inputs = { { "dy", SL_ARG_DATA, 0 }, { "x", SL_ARG_DATA, 0 }, { "rstd", SL_ARG_STATISTIC, 0 } },
    .outputs = { { "dw", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .shapes = grad_w_shapes,
    .flops_per_element = 3,
};
