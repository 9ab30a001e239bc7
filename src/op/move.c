/* Data movement: concat, copy, fill, cast. */
#include "op/gradient.h"

static sl_status concat_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    int dim = use->attrs->dim;
    sl_shape y = *SL_IN(0);
    if (dim < 0 || dim >= y.rank)
        return sl_use_refuse(use, "there is no dim %d", dim);
    for (int i = 1; i < use->inputs.count; i++) {
        sl_shape like = y;
        if (SL_IN(i)->rank == y.rank)
            like.dims[dim] = SL_IN(i)->dims[dim];
        if (!sl_shape_equal(&like, SL_IN(i)))
            return sl_use_refuse(use, "argument %d differs in more than dim %d", i, dim);
        y.dims[dim] += SL_IN(i)->dims[dim];
    }
    SL_TRY(sl_use_give(use, 0, &y));
done:
    return status;
}

static sl_status concat_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    int dim = rule->attrs->dim;
    int64_t start = 0;
    for (int i = 0; i < rule->input_count; i++) {
        int64_t stop = start + SL_X(i).meta.shape.dims[dim];
        sl_operand part;
        SL_TRY(sl_operand_slice(&rule->dy, dim, start, stop, &part));
        if (SL_WANTED(i))
            SL_TRY(rule->calls->alias(rule, i, &part));
        start = stop;
    }
done:
    return status;
}

const sl_op_info sl_op_concat = {
    .name = "concat",
    .inputs = { { "x", SL_ARG_MOVED, SL_ARG_LIST } },
    .outputs = { { "y", SL_ARG_MOVED, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_DIM,
    .shapes = concat_shapes,
    .gradient = concat_gradient,
};

static sl_status copy_gradient(const sl_gradient_rule *rule)
{
    return rule->calls->alias(rule, 0, &rule->dy);
}

const sl_op_info sl_op_copy = {
    .name = "copy",
    .inputs = { { "x", SL_ARG_MOVED, SL_ARG_INPLACE } },
    .outputs = { { "y", SL_ARG_MOVED, 0 } },
    .accumulates = true,
    .gradient = copy_gradient,
};

const sl_op_info sl_op_fill = {
    .name = "fill",
    .outputs = { { "y", SL_ARG_MOVED, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_ALPHA_BETA,
};

static sl_status cast_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_CAST, NULL, 0, rule->dy);
}

const sl_op_info sl_op_cast = {
    .name = "cast",
    .inputs = { { "x", SL_ARG_ANY, 0 } },
    .outputs = { { "y", SL_ARG_ANY, 0 } },
    .accumulates = true,
    .gradient = cast_gradient,
};
