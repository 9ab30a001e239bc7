/* Backward: the stage's nodes in reverse; each adds its terms to the gradients of its inputs. */
#include "graph/gradient.h"

/* How many terms each gradient has in this stage: one for each use that a gradient comes back from, one for each
 * gradient that is handed in. */
static void count_terms(sl_lowering *lowering)
{
    const sl_graph *graph = lowering->graph;
    const sl_stage_part *part = lowering->part;
    for (int i = 0; i < part->output_count; i++)
        sl_lowered(lowering, part->outputs[i].value)->terms += part->outputs[i].has_grad;
    for (int i = 0; i < part->node_count; i++) {
        const sl_graph_node *node = &graph->nodes[part->nodes[i]];
        bool flows = false;
        for (int o = 0; o < node->output_count; o++)
            flows = flows || sl_value_has_grad(graph, node->outputs[o]);
        for (int k = 0; k < node->input_count && flows; k++)
            sl_lowered(lowering, node->inputs[k])->terms += sl_gradient_wanted(lowering, node, k);
    }
}

static sl_status add_grad_storages(sl_lowering *lowering)
{
    sl_status status = SL_OK;
    const sl_graph *graph = lowering->graph;
    const sl_stage_part *part = lowering->part;
    for (int i = 0; i < part->param_count; i++) {
        sl_meta meta = sl_lowered(lowering, part->params[i])->value.meta;
        meta.dtype = sl_lowering_grad_dtype(lowering, part->params[i]);
        sl_lowered(lowering, part->params[i])->param_port = i;
        lowering->grads[i] = (sl_operand){ .meta = sl_meta_contiguous(meta.dtype, &meta.shape) };
        SL_TRY(sl_storage_add(lowering, SL_HOME_GRAD, i, sl_meta_bytes(&meta), &lowering->grads[i].storage));
    }
    SL_TRY(sl_lower_join_grads(lowering));
    for (int i = 0; i < part->input_count; i++) {
        const sl_meta meta = sl_lowered(lowering, part->inputs[i].value)->value.meta;
        sl_lowered(lowering, part->inputs[i].value)->input_port = i;
        lowering->input_grads[i] = -1;
        if (part->inputs[i].has_grad)
            SL_TRY(sl_storage_add(lowering, SL_HOME_INPUT_GRAD, i, sl_meta_bytes(&meta), &lowering->input_grads[i]));
    }
    for (int i = 0; i < part->output_count; i++) {
        const sl_graph_value *value = &graph->values[part->outputs[i].value];
        const sl_meta meta = sl_meta_contiguous(value->dtype, &value->shape);
        lowering->output_grads[i] = -1;
        if (part->outputs[i].has_grad)
            SL_TRY(sl_storage_add(lowering, SL_HOME_OUTPUT_GRAD, i, sl_meta_bytes(&meta), &lowering->output_grads[i]));
    }
done:
    return status;
}

/* Takes the gradients handed in for a value: what comes from later stages first, what the user gives for an output of
 * the graph last. That is the order of the uncut graph, where later users' terms come first, too. */
static sl_status take_output_grads(sl_lowering *lowering, int value, bool of_graph)
{
    sl_status status = SL_OK;
    const sl_stage_part *part = lowering->part;
    const sl_graph_value *v = &lowering->graph->values[value];
    for (int i = 0; i < part->output_count; i++) {
        if (part->outputs[i].value != value || !part->outputs[i].has_grad || (part->outputs[i].output >= 0) != of_graph)
            continue;
        const sl_operand seed = sl_operand_whole(lowering->output_grads[i], v->dtype, &v->shape);
        SL_TRY(sl_gradient_alias(lowering, value, &seed));
    }
done:
    return status;
}

static sl_status walk_node(sl_lowering *lowering, int index)
{
    sl_status status = SL_OK;
    const sl_graph_node *node = &lowering->graph->nodes[index];
    bool flows = false;
    lowering->node = index;
    for (int i = 0; i < node->output_count; i++) {
        SL_TRY(take_output_grads(lowering, node->outputs[i], true));
        flows = flows || sl_lowered(lowering, node->outputs[i])->terms > 0;
    }
    if (flows && SL_NODE_IS_VIEW(node->op))
        SL_TRY(sl_gradient_of_view(lowering, node));
    else if (flows)
        SL_TRY(sl_gradient_of_node(lowering, node));
done:
    return status;
}

/* Gradients of the stage's inputs that were collected elsewhere go to their ports. */
static sl_status deliver(sl_lowering *lowering, int port)
{
    sl_status status = SL_OK;
    int value = lowering->part->inputs[port].value;
    const sl_graph_value *v = &lowering->graph->values[value];
    SL_TRY(take_output_grads(lowering, value, true));
    const sl_operand to = sl_operand_whole(lowering->input_grads[port], v->dtype, &v->shape);
    const sl_gradient *gradient = &sl_lowered(lowering, value)->gradient;
    if (gradient->present && sl_operand_same(&gradient->operand, &to))
        return SL_OK;
    const sl_instruction copy = { .op = gradient->present ? SL_OP_COPY : SL_OP_FILL,
                                  .node = lowering->node,
                                  .phase = SL_PHASE_I,
                                  .inputs = { gradient->operand },
                                  .input_count = gradient->present ? 1 : 0,
                                  .outputs = { to },
                                  .output_count = 1,
                                  .priors = { sl_operand_none() } };
    SL_TRY(sl_instruction_append(&lowering->backward, &copy));
done:
    return status;
}

sl_status sl_lower_backward(sl_lowering *lowering)
{
    sl_status status = SL_OK;
    const sl_stage_part *part = lowering->part;
    count_terms(lowering);
    SL_TRY(add_grad_storages(lowering));
    lowering->node = part->nodes[part->node_count > 0 ? part->node_count - 1 : 0];
    for (int i = 0; i < part->output_count; i++) {
        if (part->outputs[i].output < 0)
            SL_TRY(take_output_grads(lowering, part->outputs[i].value, false));
    }
    for (int i = part->node_count - 1; i >= 0; i--)
        SL_TRY(walk_node(lowering, part->nodes[i]));
    for (int i = 0; i < part->input_count; i++) {
        if (part->inputs[i].has_grad)
            SL_TRY(deliver(lowering, i));
    }
    for (int i = 0; i < part->param_count; i++)
        SL_TRY(take_output_grads(lowering, part->params[i], true));
done:
    return status;
}
