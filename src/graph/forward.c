/* Forward: one kernel call for each node, views resolved, arguments laid out as the op needs them, outputs written where
 * they are wanted. */
#include "graph/lower.h"

/* A copy from one tensor to another as a step of the node. */
static sl_status emit_copy(sl_lowering *lowering, int node, const sl_operand *from, const sl_operand *to)
{
    const sl_instruction copy = { .op = SL_OP_COPY,
                                  .node = node,
                                  .phase = SL_PHASE_F,
                                  .inputs = { *from },
                                  .input_count = 1,
                                  .outputs = { *to },
                                  .output_count = 1,
                                  .priors = { sl_operand_none() } };
    return sl_instruction_append(&lowering->forward, &copy);
}

static sl_status lower_view(sl_lowering *lowering, int index)
{
    sl_status status = SL_OK;
    const sl_graph_node *node = &lowering->graph->nodes[index];
    const sl_operand *x = &sl_lowered(lowering, node->inputs[0])->value;
    bool possible = true;
    for (int i = 0; i < node->output_count; i++) {
        sl_operand *out = &sl_lowered(lowering, node->outputs[i])->value;
        SL_TRY(sl_view_apply(lowering->graph, node, i, x, &possible, out));
        if (!possible) { /* a reshape across strides: of a contiguous copy */
            sl_operand copy;
            SL_TRY(sl_operand_new(lowering, x->meta.dtype, &x->meta.shape, &copy));
            SL_TRY(emit_copy(lowering, index, x, &copy));
            SL_TRY(sl_view_apply(lowering->graph, node, i, &copy, &possible, out));
        }
    }
done:
    return status;
}

static sl_status lower_concat(sl_lowering *lowering, int index)
{
    sl_status status = SL_OK;
    const sl_graph_node *node = &lowering->graph->nodes[index];
    const sl_graph_value *value = &lowering->graph->values[node->outputs[0]];
    sl_operand whole, part;
    int64_t start = 0;
    if (sl_lowered(lowering, node->outputs[0])->joined)
        return SL_OK;
    SL_TRY(sl_operand_new(lowering, value->dtype, &value->shape, &whole));
    for (int i = 0; i < node->input_count; i++) {
        const sl_operand *x = &sl_lowered(lowering, node->inputs[i])->value;
        int64_t stop = start + x->meta.shape.dims[node->attrs.dim];
        SL_TRY(sl_operand_slice(&whole, node->attrs.dim, start, stop, &part));
        SL_TRY(emit_copy(lowering, index, x, &part));
        start = stop;
    }
    sl_lowered(lowering, node->outputs[0])->value = whole;
done:
    return status;
}

/* The input of a node as its kernel is given it: the tensor itself, or a contiguous copy that F makes once. */
static sl_status kernel_input(sl_lowering *lowering, const sl_graph_node *node, int input, sl_operand *out)
{
    sl_status status = SL_OK;
    int value = node->inputs[input];
    if (value == 0) {
        *out = sl_operand_none();
        return SL_OK;
    }
    const sl_operand *x = &sl_lowered(lowering, value)->value;
    sl_operand *straight = &sl_lowered(lowering, value)->straight;
    sl_operand turned = *x;
    const sl_op_info *info = sl_op_get_info((sl_op)node->op);
    if (info->inputs[input].flags & SL_ARG_TRANSPOSABLE)
        sl_operand_transpose_weight(&turned, &(sl_op_attrs){ 0 });
    if (sl_layout_fits(&turned.meta, info->layout)) {
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

static sl_status lower_kernel(sl_lowering *lowering, int index)
{
    sl_status status = SL_OK;
    const sl_graph_node *node = &lowering->graph->nodes[index];
    const sl_op_arg *args = sl_op_get_info((sl_op)node->op)->inputs;
    sl_instruction step = { .op = (sl_op)node->op,
                            .attrs = node->attrs,
                            .node = index,
                            .phase = SL_PHASE_F,
                            .input_count = node->input_count,
                            .output_count = node->output_count };
    for (int i = 0; i < node->input_count; i++) {
        SL_TRY(kernel_input(lowering, node, i, &step.inputs[i]));
        if (args[i].flags & SL_ARG_TRANSPOSABLE)
            sl_operand_transpose_weight(&step.inputs[i], &step.attrs);
    }
    for (int i = 0; i < node->output_count; i++) {
        const sl_graph_value *value = &lowering->graph->values[node->outputs[i]];
        SL_TRY(sl_operand_new(lowering, value->dtype, &value->shape, &step.outputs[i]));
        sl_lowered(lowering, node->outputs[i])->value = step.outputs[i];
        step.priors[i] = sl_operand_none();
    }
    SL_TRY(sl_instruction_append(&lowering->forward, &step));
done:
    return status;
}

/* The storage of an output's tensor becomes the port's buffer if the tensor fills it; else the port gets a copy. */
static sl_status bind_output(sl_lowering *lowering, int port)
{
    sl_status status = SL_OK;
    int value = lowering->part->outputs[port].value, storage = -1;
    const sl_operand *x = &sl_lowered(lowering, value)->value;
    const sl_storage *from = &lowering->storages[x->storage];
    if (from->home == SL_HOME_FREE && sl_operand_fills(lowering, x)) {
        lowering->storages[x->storage] = (sl_storage){ .home = SL_HOME_OUTPUT, .index = port, .bytes = from->bytes };
        return SL_OK;
    }
    SL_TRY(sl_storage_add(lowering, SL_HOME_OUTPUT, port, sl_meta_bytes(&x->meta), &storage));
    const sl_operand to = sl_operand_whole(storage, x->meta.dtype, &x->meta.shape);
    int node = lowering->graph->values[value].node;
    SL_TRY(emit_copy(lowering, node < 0 ? lowering->part->nodes[0] : node, x, &to));
done:
    return status;
}

static sl_status add_sources(sl_lowering *lowering, sl_home home, const int *values, int count)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++) {
        const sl_graph_value *value = &lowering->graph->values[values[i]];
        const sl_meta meta = sl_meta_contiguous(value->dtype, &value->shape);
        int storage = -1;
        SL_TRY(sl_storage_add(lowering, home, i, sl_meta_bytes(&meta), &storage));
        sl_lowered(lowering, values[i])->value = (sl_operand){ .storage = storage, .meta = meta };
    }
done:
    return status;
}

sl_status sl_lower_forward(sl_lowering *lowering)
{
    sl_status status = SL_OK;
    const sl_stage_part *part = lowering->part;
    SL_TRY(add_sources(lowering, SL_HOME_PARAM, part->params, part->param_count));
    SL_TRY(sl_lower_joins(lowering));
    SL_TRY(add_sources(lowering, SL_HOME_CONSTANT, part->constants, part->constant_count));
    SL_TRY(add_sources(lowering, SL_HOME_STATE, part->states, part->state_count));
    for (int i = 0; i < part->input_count; i++) {
        int storage = -1, value = part->inputs[i].value;
        const sl_graph_value *from = &lowering->graph->values[value];
        const sl_meta meta = sl_meta_contiguous(from->dtype, &from->shape);
        SL_TRY(sl_storage_add(lowering, SL_HOME_INPUT, i, sl_meta_bytes(&meta), &storage));
        sl_lowered(lowering, value)->value = (sl_operand){ .storage = storage, .meta = meta };
    }
    for (int i = 0; i < part->node_count; i++) {
        int op = lowering->graph->nodes[part->nodes[i]].op;
        if (SL_NODE_IS_VIEW(op))
            SL_TRY(lower_view(lowering, part->nodes[i]));
        else if (op == SL_OP_CONCAT)
            SL_TRY(lower_concat(lowering, part->nodes[i]));
        else
            SL_TRY(lower_kernel(lowering, part->nodes[i]));
    }
    for (int i = 0; i < part->output_count; i++)
        SL_TRY(bind_output(lowering, i));
done:
    return status;
}
