/* Look-up of rows in a table, and the loss. */
#include "op/gradient.h"

static sl_status embedding_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    sl_shape y = *SL_IN(0);
    SL_TRY(sl_use_want_rank(use, 1, 2));
    if (y.rank == SL_MAX_DIMS)
        return sl_use_refuse(use, "the result would have more than %d dims", SL_MAX_DIMS);
    y.dims[y.rank++] = SL_IN(1)->dims[1];
    SL_TRY(sl_use_give(use, 0, &y));
done:
    return status;
}

static sl_status embedding_grad_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_needs_output(use, 0)); /* how many rows the table has */
    SL_TRY(sl_use_want_rank(use, 1, SL_IN(0)->rank + 1));
    const sl_shape dy = *SL_IN(1), ids = sl_shape_without_last(&dy), *table = SL_OUT(0);
    SL_TRY(sl_use_want(use, 0, &ids));
    const sl_shape dtable = sl_shape_matrix(table->dims[0], sl_shape_last(&dy));
    SL_TRY(sl_use_give(use, 0, &dtable));
done:
    return status;
}

/* The rows that are looked up count, not the table. */
static void embedding_cost(const sl_op_use *use, sl_cost *cost)
{
    const sl_meta *table = sl_use_input(use, 1);
    double saved = sl_shape_elements(&table->shape) - sl_shape_elements(SL_OUT(0));
    cost->bytes -= saved * (double)sl_dtype_size(table->dtype);
}

static void embedding_grad_cost(const sl_op_use *use, sl_cost *cost)
{
    const sl_meta *table = sl_use_output(use, 0);
    double touched = 2 * sl_shape_elements(SL_IN(1)); /* read and written */
    cost->bytes += (touched - sl_shape_elements(&table->shape)) * (double)sl_dtype_size(table->dtype);
    cost->flops = touched;
}

static sl_status embedding_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_EMBEDDING_GRAD, NULL, 1, SL_X(0), rule->dy);
}

const sl_op_info sl_op_embedding = {
    .name = "embedding",
    .inputs = { { "ids", SL_ARG_INDEX, 0 }, { "table", SL_ARG_DATA, 0 } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_ROWS,
    .dy_layout = SL_LAYOUT_ROWS,
    .shapes = embedding_shapes,
    .cost = embedding_cost,
    .gradient = embedding_gradient,
};

const sl_op_info sl_op_embedding_grad = {
    .name = "embedding_grad",
    .inputs = { { "ids", SL_ARG_INDEX, 0 }, { "dy", SL_ARG_DATA, 0 } },
    .outputs = { { "dtable", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_ROWS,
    .shapes = embedding_grad_shapes,
    .cost = embedding_grad_cost,
};

/* ---- Loss ------------------------------------------------------------------------------------ */

static sl_status want_targets(const sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    const sl_shape rows = sl_shape_without_last(SL_IN(0));
    if (!sl_shape_equal(&rows, SL_IN(1)))
        return sl_use_refuse(use, "there must be one target for each row of logits");
done:
    return status;
}

static sl_status cross_entropy_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(want_targets(use));
    SL_TRY(sl_use_give(use, 0, &(sl_shape){ .rank = 0 }));
    SL_TRY(sl_use_give(use, 1, SL_IN(1)));
done:
    return status;
}

static sl_status cross_entropy_grad_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(want_targets(use));
    SL_TRY(sl_use_want(use, 2, SL_IN(1)));
    SL_TRY(sl_use_want_rank(use, 3, 0));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
done:
    return status;
}

static sl_status cross_entropy_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_CROSS_ENTROPY_GRAD, NULL, 0, SL_X(0), SL_X(1), SL_Y(1), rule->dy);
}

const sl_op_info sl_op_cross_entropy = {
    .name = "cross_entropy",
    .inputs = { { "logits", SL_ARG_DATA, 0 }, { "targets", SL_ARG_INDEX, 0 } },
    .outputs = { { "loss", SL_ARG_STATISTIC, 0 }, { "lse", SL_ARG_STATISTIC, 0 } },
    .attrs = SL_ATTR_IGNORE_INDEX,
    .layout = SL_LAYOUT_ROWS,
    .dy_layout = SL_LAYOUT_ROWS,
    .shapes = cross_entropy_shapes,
    .flops_per_element = 8,
    .gradient = cross_entropy_gradient,
};

const sl_op_info sl_op_cross_entropy_grad = {
    .name = "cross_entropy_grad",
    .inputs = { { "logits", SL_ARG_DATA, SL_ARG_INPLACE },
                { "targets", SL_ARG_INDEX, 0 },
                { "lse", SL_ARG_STATISTIC, 0 },
                { "dloss", SL_ARG_STATISTIC, 0 } },
    .outputs = { { "dlogits", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_IGNORE_INDEX,
    .layout = SL_LAYOUT_ROWS,
    .shapes = cross_entropy_grad_shapes,
    .flops_per_element = 8,
};
