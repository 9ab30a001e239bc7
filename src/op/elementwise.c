/* Elementwise ops: functions of one argument, the gated unit, softmax, arithmetic with broadcasting. */
#include "op/gradient.h"

/* ---- One argument ---------------------------------------------------------------------------- */

/* A function of x whose gradient rule follows, and the gradient op of those that have one. */
#define FUNCTION(op_, work, attributes, rule_)                                                                         \
    const sl_op_info sl_op_##op_ = {                                                                                   \
        .name = #op_,                                                                                                  \
        .inputs = { { "x", SL_ARG_DATA, SL_ARG_INPLACE } },                                                            \
        .outputs = { { "y", SL_ARG_DATA, 0 } },                                                                        \
        .accumulates = true,                                                                                           \
        .attrs = attributes,                                                                                           \
        .flops_per_element = work,                                                                                     \
        .gradient = rule_,                                                                                             \
    }
#define FUNCTION_GRAD(op_, argument, work)                                                                             \
    const sl_op_info sl_op_##op_ = {                                                                                   \
        .name = #op_,                                                                                                  \
        .inputs = { { argument, SL_ARG_DATA, SL_ARG_INPLACE }, { "dy", SL_ARG_DATA, SL_ARG_INPLACE } },                \
        .outputs = { { "dx", SL_ARG_DATA, 0 } },                                                                       \
        .accumulates = true,                                                                                           \
        .flops_per_element = work,                                                                                     \
    }

static sl_status gelu_tanh_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_GELU_TANH_GRAD, NULL, 0, SL_X(0), rule->dy);
}
FUNCTION(gelu_tanh, 15, 0, gelu_tanh_gradient);
FUNCTION_GRAD(gelu_tanh_grad, "x", 15);

static sl_status gelu_erf_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_GELU_ERF_GRAD, NULL, 0, SL_X(0), rule->dy);
}
FUNCTION(gelu_erf, 15, 0, gelu_erf_gradient);
FUNCTION_GRAD(gelu_erf_grad, "x", 15);

static sl_status silu_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_SILU_GRAD, NULL, 0, SL_X(0), rule->dy);
}
FUNCTION(silu, 8, 0, silu_gradient);
FUNCTION_GRAD(silu_grad, "x", 15);

static sl_status relu_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_RELU_GRAD, NULL, 0, SL_Y(0), rule->dy);
}
FUNCTION(relu, 1, 0, relu_gradient);
FUNCTION_GRAD(relu_grad, "y", 1);

static sl_status tanh_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_TANH_GRAD, NULL, 0, SL_Y(0), rule->dy);
}
FUNCTION(tanh, 8, 0, tanh_gradient);
FUNCTION_GRAD(tanh_grad, "y", 1);

static sl_status exp_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_MUL, NULL, 0, rule->dy, SL_Y(0));
}
FUNCTION(exp, 8, 0, exp_gradient);

static sl_status log_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_DIV, NULL, 0, rule->dy, SL_X(0));
}
FUNCTION(log, 8, 0, log_gradient);

static sl_status neg_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_NEG, NULL, 0, rule->dy);
}
FUNCTION(neg, 1, 0, neg_gradient);

static sl_status scale_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_SCALE, (&(sl_op_attrs){ .alpha = rule->attrs->alpha }), 0, rule->dy);
}
FUNCTION(scale, 1, SL_ATTR_ALPHA_BETA, scale_gradient);

/* ---- Dropout, softmax, gated unit ------------------------------------------------------------ */

static sl_status same_with_a_dim(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_dims(use, 0, 1));
    for (int i = 1; i < use->inputs.count; i++)
        SL_TRY(sl_use_want(use, i, SL_IN(0)));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
done:
    return status;
}

static sl_status dropout_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_DROPOUT, NULL, 0, rule->dy); /* the same mask */
}

const sl_op_info sl_op_dropout = {
    .name = "dropout",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_INPLACE } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_DROPOUT,
    .shapes = same_with_a_dim, /* dim 0 counts samples */
    .flops_per_element = 15,
    .gradient = dropout_gradient,
};

static sl_status softmax_gradient(const sl_gradient_rule *rule)
{
    return SL_EMIT(SL_OP_SOFTMAX_GRAD, NULL, 0, SL_Y(0), rule->dy);
}

const sl_op_info sl_op_softmax = {
    .name = "softmax",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_INPLACE } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .dy_layout = SL_LAYOUT_HEADS,
    .shapes = same_with_a_dim,
    .flops_per_element = 8,
    .gradient = softmax_gradient,
};

const sl_op_info sl_op_softmax_grad = {
    .name = "softmax_grad",
    .inputs = { { "y", SL_ARG_DATA, SL_ARG_INPLACE }, { "dy", SL_ARG_DATA, SL_ARG_INPLACE } },
    .outputs = { { "dx", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .shapes = same_with_a_dim,
    .flops_per_element = 8,
};

static sl_status swiglu_gradient(const sl_gradient_rule *rule)
{
    const sl_operand inputs[] = { SL_X(0), SL_X(1), rule->dy };
    return rule->calls->emit(
        rule,
        &(sl_gradient_term){
            .op = SL_OP_SWIGLU_GRAD, .inputs = inputs, .input_count = 3, .targets = { 0, 1 }, .target_count = 2 });
}

const sl_op_info sl_op_swiglu = {
    .name = "swiglu",
    .inputs = { { "gate", SL_ARG_DATA, SL_ARG_INPLACE }, { "up", SL_ARG_DATA, SL_ARG_INPLACE } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .flops_per_element = 8,
    .gradient = swiglu_gradient,
};

const sl_op_info sl_op_swiglu_grad = {
    .name = "swiglu_grad",
    .inputs = { { "gate", SL_ARG_DATA, SL_ARG_INPLACE },
                { "up", SL_ARG_DATA, SL_ARG_INPLACE },
                { "dy", SL_ARG_DATA, SL_ARG_INPLACE } },
    .outputs = { { "dgate", SL_ARG_DATA, 0 }, { "dup", SL_ARG_DATA, SL_ARG_OPTIONAL } },
    .accumulates = true,
    .flops_per_element = 15,
};

/* ---- Arithmetic with broadcasting ------------------------------------------------------------ */

static sl_status broadcast_shapes(sl_op_use *use)
{
    sl_shape shape;
    if (sl_shape_broadcast(SL_IN(0), SL_IN(1), &shape) != SL_OK)
        return sl_use_refuse(use, "the shapes do not broadcast");
    return sl_use_give(use, 0, &shape);
}

/* The gradient of a broadcast argument is dy itself, or dy summed. */
static sl_status reduce_to(const sl_gradient_rule *rule, int target, const sl_operand *term)
{
    const sl_operand x = SL_X(target);
    if (sl_shape_equal(&term->meta.shape, &x.meta.shape))
        return rule->calls->alias(rule, target, term);
    return rule->calls->sum_to(rule, target, term);
}

static sl_status add_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    for (int i = 0; i < 2; i++) {
        if (SL_WANTED(i))
            SL_TRY(reduce_to(rule, i, &rule->dy));
    }
done:
    return status;
}

/* -term, summed to the shape of input 1 first. */
static sl_status emit_negative(const sl_gradient_rule *rule, sl_operand term)
{
    sl_status status = SL_OK;
    const sl_shape shape = SL_X(1).meta.shape;
    if (!sl_shape_equal(&shape, &term.meta.shape)) {
        if (!sl_layout_fits(&term.meta, SL_LAYOUT_CONTIGUOUS))
            SL_TRY(
                sl_gradient_temporary_of(rule, SL_OP_COPY, NULL, 1, term, sl_operand_none(), &term.meta.shape, &term));
        SL_TRY(sl_gradient_temporary_of(rule, SL_OP_SUM_TO, NULL, 1, term, sl_operand_none(), &shape, &term));
    }
    SL_TRY(SL_EMIT(SL_OP_NEG, NULL, 1, term));
done:
    return status;
}

static sl_status sub_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    if (SL_WANTED(0))
        SL_TRY(reduce_to(rule, 0, &rule->dy));
    if (SL_WANTED(1))
        SL_TRY(emit_negative(rule, rule->dy));
done:
    return status;
}

static sl_status mul_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    for (int i = 0; i < 2; i++) {
        if (SL_WANTED(i))
            SL_TRY(sl_gradient_emit_reduced(rule, SL_OP_MUL, NULL, i, rule->dy, SL_X(1 - i), &rule->dy.meta.shape));
    }
done:
    return status;
}

/* y = a / b: da = dy / b, db = -(dy y / b). */
static sl_status div_gradient(const sl_gradient_rule *rule)
{
    sl_status status = SL_OK;
    const sl_shape *wide = &rule->dy.meta.shape;
    sl_operand term;
    if (SL_WANTED(0))
        SL_TRY(sl_gradient_emit_reduced(rule, SL_OP_DIV, NULL, 0, rule->dy, SL_X(1), wide));
    if (SL_WANTED(1)) {
        SL_TRY(sl_gradient_temporary_of(rule, SL_OP_MUL, NULL, 1, rule->dy, SL_Y(0), wide, &term));
        SL_TRY(sl_gradient_temporary_of(rule, SL_OP_DIV, NULL, 1, term, SL_X(1), wide, &term));
        SL_TRY(emit_negative(rule, term));
    }
done:
    return status;
}

#define ARITHMETIC(op_, rule_)                                                                                         \
    const sl_op_info sl_op_##op_ = {                                                                                   \
        .name = #op_,                                                                                                  \
        .inputs = { { "a", SL_ARG_DATA, SL_ARG_INPLACE }, { "b", SL_ARG_DATA, SL_ARG_INPLACE } },                      \
        .outputs = { { "c", SL_ARG_DATA, 0 } },                                                                        \
        .accumulates = true,                                                                                           \
        .shapes = broadcast_shapes,                                                                                    \
        .flops_per_element = 1,                                                                                        \
        .gradient = rule_,                                                                                             \
    }
ARITHMETIC(add, add_gradient);
ARITHMETIC(sub, sub_gradient);
ARITHMETIC(mul, mul_gradient);
ARITHMETIC(div, div_gradient);
