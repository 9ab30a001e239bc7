/* Short forms that the gradient rules share. */
#include "op/gradient.h"

sl_operand sl_operand_none(void)
{
    return (sl_operand){ .storage = -1, .meta = { .shape = { .rank = -1 } } };
}

sl_status sl_operand_slice(const sl_operand *x, int dim, int64_t start, int64_t stop, sl_operand *out)
{
    int64_t moved = 0;
    sl_operand part = *x;
    sl_status status = sl_meta_slice(&x->meta, dim, start, stop, 1, &part.meta, &moved);
    if (status != SL_OK)
        return status;
    part.offset += moved;
    *out = part;
    return SL_OK;
}

sl_status sl_gradient_emit_one(const sl_gradient_rule *rule, sl_op op, const sl_op_attrs *attrs, int target, int count,
                               const sl_operand *inputs)
{
    const sl_gradient_term term = {
        .op = op, .attrs = attrs, .inputs = inputs, .input_count = count, .targets = { target }, .target_count = 1
    };
    return rule->calls->emit(rule, &term);
}

sl_status sl_gradient_temporary_of(const sl_gradient_rule *rule, sl_op op, const sl_op_attrs *attrs, int target,
                                   sl_operand a, sl_operand b, const sl_shape *shape, sl_operand *out)
{
    const sl_operand inputs[] = { a, b };
    const sl_gradient_term term = { .op = op,
                                    .attrs = attrs,
                                    .inputs = inputs,
                                    .input_count = b.storage < 0 ? 1 : 2,
                                    .targets = { target },
                                    .target_count = 1 };
    return rule->calls->temporary(rule, &term, shape, out);
}

sl_status sl_gradient_emit_reduced(const sl_gradient_rule *rule, sl_op op, const sl_op_attrs *attrs, int target,
                                   sl_operand a, sl_operand b, const sl_shape *shape)
{
    sl_operand wide;
    const sl_operand x = SL_X(target);
    if (sl_shape_equal(shape, &x.meta.shape))
        return SL_EMIT(op, attrs, target, a, b);
    sl_status status = sl_gradient_temporary_of(rule, op, attrs, target, a, b, shape, &wide);
    return status == SL_OK ? rule->calls->sum_to(rule, target, &wide) : status;
}
