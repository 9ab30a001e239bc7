/* What strides kernels may be given. */
#include "graph/layout.h"

sl_op_layout sl_layout_needed(int op)
{
    switch (op) {
    case SL_OP_LINEAR:
    case SL_OP_LINEAR_GRAD_X:
    case SL_OP_LINEAR_GRAD_W:
    case SL_OP_EMBEDDING:
    case SL_OP_EMBEDDING_GRAD:
    case SL_OP_CROSS_ENTROPY:
    case SL_OP_CROSS_ENTROPY_GRAD:
        return SL_LAYOUT_ROWS;
    case SL_OP_LAYERNORM:
    case SL_OP_LAYERNORM_GRAD_X:
    case SL_OP_LAYERNORM_GRAD_W:
    case SL_OP_RMSNORM:
    case SL_OP_RMSNORM_GRAD_X:
    case SL_OP_RMSNORM_GRAD_W:
    case SL_OP_SOFTMAX:
    case SL_OP_SOFTMAX_GRAD:
    case SL_OP_ATTENTION:
    case SL_OP_ATTENTION_GRAD:
    case SL_OP_ATTENTION_CACHED:
    case SL_OP_ROPE:
        return SL_LAYOUT_HEADS;
    case SL_OP_MATMUL:
    case SL_OP_SUM_TO:
    case SL_OP_SUM:
    case SL_OP_MEAN:
    case SL_OP_MAX:
    case SL_OP_MAX_GRAD:
        return SL_LAYOUT_CONTIGUOUS;
    default:
        return SL_LAYOUT_ANY;
    }
}

/* Whether all dims but the last can be walked with one stride. */
static bool leading_dims_merge(const sl_meta *meta)
{
    int64_t next = -1; /* stride times size of the dim after, among those that count */
    for (int i = meta->shape.rank - 2; i >= 0; i--) {
        if (meta->shape.dims[i] == 1)
            continue;
        if (next >= 0 && meta->strides[i] != next)
            return false;
        next = meta->strides[i] * meta->shape.dims[i];
    }
    return true;
}

bool sl_layout_fits(const sl_meta *meta, sl_op_layout needed)
{
    int last = meta->shape.rank - 1;
    if (needed == SL_LAYOUT_ANY || last < 0 || !sl_dtype_is_floating(meta->dtype))
        return true;
    if (needed == SL_LAYOUT_CONTIGUOUS)
        return sl_meta_is_contiguous(meta);
    if (meta->shape.dims[last] > 1 && meta->strides[last] != 1)
        return false;
    return needed == SL_LAYOUT_HEADS || leading_dims_merge(meta);
}

void sl_layout_turn_weight(sl_operand *weight, sl_op_attrs *attrs)
{
    sl_operand turned = *weight;
    if (sl_layout_fits(&weight->meta, SL_LAYOUT_ROWS) || weight->meta.shape.rank != 2)
        return;
    turned.meta.shape.dims[0] = weight->meta.shape.dims[1];
    turned.meta.shape.dims[1] = weight->meta.shape.dims[0];
    turned.meta.strides[0] = weight->meta.strides[1];
    turned.meta.strides[1] = weight->meta.strides[0];
    if (!sl_layout_fits(&turned.meta, SL_LAYOUT_ROWS))
        return;
    *weight = turned;
    attrs->transpose_w = !attrs->transpose_w;
}

sl_status sl_layout_input(sl_lowering *lowering, const sl_graph_node *node, int input, sl_operand *out)
{
    sl_status status = SL_OK;
    int value = node->inputs[input];
    if (value == 0) {
        *out = sl_operand_none();
        return SL_OK;
    }
    const sl_operand *x = &lowering->values[value];
    sl_operand *straight = &lowering->straight[value];
    sl_operand turned = *x;
    if (node->op == SL_OP_LINEAR && input == 1)
        sl_layout_turn_weight(&turned, &(sl_op_attrs){ 0 });
    if (sl_layout_fits(&turned.meta, sl_layout_needed(node->op))) {
        *out = *x;
        return SL_OK;
    }
    if (straight->storage < 0) {
        sl_instruction copy = { .op = SL_OP_COPY,
                                .node = (int)(node - lowering->graph->nodes),
                                .phase = SL_PHASE_F,
                                .inputs = { *x },
                                .input_count = 1,
                                .output_count = 1,
                                .priors = { sl_operand_none() } };
        SL_TRY(sl_operand_new(lowering, x->meta.dtype, &x->meta.shape, &copy.outputs[0]));
        SL_TRY(sl_instruction_append(&lowering->forward, &copy));
        *straight = copy.outputs[0];
    }
    *out = *straight;
done:
    return status;
}
