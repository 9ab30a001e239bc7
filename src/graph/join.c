/* Parameters side by side: a concat of parameters that lie one after another in memory is a view of them all, and so is
 * its gradient. So one product does the work of several that share an argument, and each parameter keeps its name. */
#include "graph/lower.h"

static sl_meta param_meta(const sl_lowering *lowering, int value, bool grad)
{
    const sl_graph_value *v = &lowering->graph->values[value];
    return sl_meta_contiguous(grad ? sl_lowering_grad_dtype(lowering, value) : v->dtype, &v->shape);
}

/* The port of a parameter of the stage; -1: the value is none. */
static int port_of(const sl_lowering *lowering, int value)
{
    for (int i = 0; i < lowering->part->param_count; i++) {
        if (lowering->part->params[i] == value)
            return i;
    }
    return -1;
}

/* Whether nothing lies between a parameter and the one after it, however they are placed one after the other. */
static bool leaves_no_gap(const sl_lowering *lowering, int value)
{
    const sl_meta data = param_meta(lowering, value, false), grad = param_meta(lowering, value, true);
    return sl_meta_bytes(&data) % SL_DEVICE_ALIGNMENT == 0 && sl_meta_bytes(&grad) % SL_DEVICE_ALIGNMENT == 0;
}

/* Whether the node joins parameters that follow each other, by their first dim: all trained or all frozen, and none that
 * another node has joined. */
static bool is_join(const sl_lowering *lowering, const sl_graph_node *node)
{
    const sl_graph_value *values = lowering->graph->values;
    if (node->op != SL_OP_CONCAT || node->attrs.dim != 0)
        return false;
    int first = port_of(lowering, node->inputs[0]);
    for (int i = 0; i < node->input_count; i++) {
        int value = node->inputs[i];
        if (first < 0 || first + i >= lowering->part->param_count || lowering->part->params[first + i] != value ||
            values[value].requires_grad != values[node->inputs[0]].requires_grad || !leaves_no_gap(lowering, value) ||
            !sl_operand_fills(lowering, &sl_lowered(lowering, value)->value))
            return false;
    }
    return true;
}

/* One storage for the node's parameters, or for their gradients; each becomes a part of it. */
static sl_status join(sl_lowering *lowering, const sl_graph_node *node, bool grads)
{
    sl_status status = SL_OK;
    int first = port_of(lowering, node->inputs[0]), storage = -1;
    int64_t offset = 0;
    size_t bytes = 0;
    for (int i = 0; i < node->input_count; i++) {
        const sl_meta meta = param_meta(lowering, node->inputs[i], grads);
        bytes += sl_meta_bytes(&meta);
    }
    SL_TRY(sl_storage_add(lowering, grads ? SL_HOME_GRAD : SL_HOME_PARAM, first, bytes, &storage));
    lowering->storages[storage].more = node->input_count - 1;
    for (int i = 0; i < node->input_count; i++) {
        const sl_operand part = { .storage = storage,
                                  .offset = offset,
                                  .meta = param_meta(lowering, node->inputs[i], grads) };
        if (grads)
            lowering->grads[first + i] = part;
        else
            sl_lowered(lowering, node->inputs[i])->value = part;
        offset += sl_meta_count(&part.meta);
    }
    if (!grads) {
        const sl_graph_value *whole = &lowering->graph->values[node->outputs[0]];
        sl_lowered(lowering, node->outputs[0])->value = sl_operand_whole(storage, whole->dtype, &whole->shape);
        sl_lowered(lowering, node->outputs[0])->joined = true;
    }
done:
    return status;
}

sl_status sl_lower_joins(sl_lowering *lowering)
{
    sl_status status = SL_OK;
    for (int i = 0; i < lowering->part->node_count; i++) {
        const sl_graph_node *node = &lowering->graph->nodes[lowering->part->nodes[i]];
        if (is_join(lowering, node))
            SL_TRY(join(lowering, node, false));
    }
done:
    return status;
}

sl_status sl_lower_join_grads(sl_lowering *lowering)
{
    sl_status status = SL_OK;
    for (int i = 0; i < lowering->part->node_count; i++) {
        const sl_graph_node *node = &lowering->graph->nodes[lowering->part->nodes[i]];
        if (node->op == SL_OP_CONCAT && sl_lowered(lowering, node->outputs[0])->joined)
            SL_TRY(join(lowering, node, true));
    }
done:
    return status;
}
