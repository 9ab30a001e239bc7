/* Where the terms of gradients are written: straight into parameters' gradients, input gradients or the right part of a
 * larger gradient where possible, added in place after the first. */
#include "graph/gradient.h"

bool sl_gradient_wanted(const sl_lowering *lowering, const sl_graph_node *node, int input)
{
    return node->inputs[input] > 0 && sl_node_input_differentiable(node, input) &&
           sl_value_has_grad(lowering->graph, node->inputs[input]);
}

static sl_phase phase_of(const sl_lowering *lowering, int target)
{
    return lowering->graph->values[target].fixed ? SL_PHASE_W : SL_PHASE_I;
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* True where the gradient of a fixed value is a view of a parameter's, to which every term is added at once. */
static bool lies_in_param(const sl_lowering *lowering, int value, sl_operand *out)
{
    const sl_graph_value *v = &lowering->graph->values[value];
    if (v->kind == SL_VALUE_PARAM) {
        *out = sl_operand_whole(lowering->grads[lowering->param_port[value]], v->dtype, &v->shape);
        return true;
    }
    if (!v->fixed || v->node < 0)
        return false;
    const sl_graph_node *node = &lowering->graph->nodes[v->node];
    sl_operand whole;
    bool possible = false;
    if (!SL_NODE_IS_VIEW(node->op) || node->op == SL_NODE_EXPAND || !lies_in_param(lowering, node->inputs[0], &whole))
        return false;
    return sl_view_apply(lowering->graph, node, v->output, &whole, &possible, out) == SL_OK && possible;
}

/* What the kernel needs of the place where it writes its term of input `slot`. */
static sl_op_layout term_layout(const sl_graph_node *node, int slot)
{
    switch (node->op) {
    case SL_OP_SUM:
    case SL_OP_MEAN: /* dy stretched, by an elementwise op */
        return SL_LAYOUT_ANY;
    case SL_OP_LINEAR:
    case SL_OP_LAYERNORM: /* a bias' term is a sum, which takes care of itself */
        return slot == 2 ? SL_LAYOUT_ANY : sl_layout_needed(node->op);
    default:
        return sl_layout_needed(node->op);
    }
}

/* Whether every kernel of the stage that adds to the gradient of the value can write to a tensor laid out so. */
static bool suits_all_terms(const sl_lowering *lowering, int value, const sl_meta *meta)
{
    for (int i = 0; i < lowering->part->node_count; i++) {
        const sl_graph_node *node = &lowering->graph->nodes[lowering->part->nodes[i]];
        for (int k = 0; k < node->input_count; k++) {
            if (node->inputs[k] == value && !sl_layout_fits(meta, term_layout(node, k)))
                return false;
        }
    }
    return true;
}

/* The gradient of a view's result can lie inside that of the view's argument where the view is the argument's only
 * term: then a call that writes the one writes the other. */
static sl_status home_in_argument(sl_lowering *lowering, int value, bool *found, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_graph_value *v = &lowering->graph->values[value];
    sl_operand whole;
    *found = false;
    if (v->fixed || v->node < 0 || lowering->input_port[value] >= 0)
        return SL_OK;
    const sl_graph_node *node = &lowering->graph->nodes[v->node];
    if (node->op != SL_NODE_RESHAPE && node->op != SL_NODE_PERMUTE && node->op != SL_NODE_SPLIT)
        return SL_OK;
    if (lowering->terms[node->inputs[0]] != 1)
        return SL_OK;
    sl_operand view;
    SL_TRY(sl_gradient_home(lowering, node->inputs[0], &whole));
    SL_TRY(sl_view_apply(lowering->graph, node, v->output, &whole, found, &view));
    *found = *found && suits_all_terms(lowering, value, &view.meta);
    if (*found)
        *out = view;
done:
    return status;
}

sl_status sl_gradient_home(sl_lowering *lowering, int value, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_graph_value *v = &lowering->graph->values[value];
    sl_operand *home = &lowering->homes[value];
    int port = lowering->input_port[value];
    bool found = false;
    if (home->storage < 0) {
        SL_TRY(home_in_argument(lowering, value, &found, home));
        if (!found && port >= 0 && lowering->input_grads[port] >= 0)
            *home = sl_operand_whole(lowering->input_grads[port], v->dtype, &v->shape);
        else if (!found)
            SL_TRY(sl_operand_new(lowering, v->dtype, &v->shape, home));
    }
    *out = *home;
done:
    return status;
}

/* ---- Terms ----------------------------------------------------------------------------------- */

/* How a term is written: to the operand, perhaps adding to what is there or to what lies elsewhere. */
typedef struct grad_sink {
    sl_operand operand;
    sl_operand prior; /* absent unless it has to come from another storage */
    bool accumulate;
} grad_sink;

/* Takes the next term of the target's gradient. */
static sl_status open_sink(sl_lowering *lowering, int target, grad_sink *out)
{
    sl_status status = SL_OK;
    sl_gradient *gradient = &lowering->gradients[target];
    grad_sink sink = { .prior = sl_operand_none(), .accumulate = true };
    if (!lies_in_param(lowering, target, &sink.operand)) {
        if (gradient->present && gradient->owned) {
            sink.operand = gradient->operand;
        } else {
            SL_TRY(sl_gradient_home(lowering, target, &sink.operand));
            if (gradient->present)
                sink.prior = gradient->operand;
            else
                sink.accumulate = false;
            *gradient = (sl_gradient){ sink.operand, true, true };
        }
    }
    *out = sink;
done:
    return status;
}

static void set_output(sl_instruction *step, int i, const grad_sink *sink, const sl_operand *operand)
{
    step->outputs[i] = *operand;
    step->accumulate |= (uint32_t)sink->accumulate << i;
    step->priors[i] = sink->prior;
    step->wholes[i] = sink->operand;
}

static bool is_repeated(const sl_gradient_call *call, int i)
{
    for (int j = 0; j < i; j++) {
        if (call->targets[j] == call->targets[i])
            return true;
    }
    return false;
}

/* Whether the kernel can write its term of the target itself; if not it goes through a tensor of its own. */
static bool writes_directly(const sl_lowering *lowering, const sl_gradient_call *call, int i, sl_phase phase)
{
    int target = call->targets[i];
    sl_operand place;
    sl_op_attrs attrs = call->attrs;
    bool in_param = lies_in_param(lowering, target, &place);
    if (phase_of(lowering, target) != phase || is_repeated(call, i))
        return false;
    if (in_param) {
        if (call->op == SL_OP_LINEAR_GRAD_W)
            sl_layout_turn_weight(&place, &attrs);
        return sl_layout_fits(&place.meta, sl_layout_needed((int)call->op)) && sl_op_get_info(call->op)->accumulates;
    }
    /* A sum that starts from what is there adds up in another order than one that is added afterwards. */
    return call->op != SL_OP_SUM_TO && (!lowering->gradients[target].present || sl_op_get_info(call->op)->accumulates);
}

sl_status sl_gradient_emit(sl_lowering *lowering, const sl_gradient_call *call)
{
    sl_status status = SL_OK;
    bool indirect[SL_STEP_OUTPUTS] = { false };
    sl_instruction step = { .op = call->op,
                            .attrs = call->attrs,
                            .node = lowering->node,
                            .phase = SL_PHASE_W,
                            .input_count = call->input_count,
                            .output_count = call->target_count };
    for (int i = 0; i < call->input_count; i++)
        step.inputs[i] = call->inputs[i];
    for (int i = 0; i < call->target_count; i++) {
        if (call->targets[i] > 0 && phase_of(lowering, call->targets[i]) == SL_PHASE_I)
            step.phase = SL_PHASE_I;
    }
    for (int i = 0; i < call->target_count; i++) {
        int target = call->targets[i];
        grad_sink sink = { .operand = sl_operand_none(), .prior = sl_operand_none() };
        indirect[i] = target > 0 && !writes_directly(lowering, call, i, step.phase);
        if (target > 0 && !indirect[i]) {
            SL_TRY(open_sink(lowering, target, &sink));
        } else if (target != SL_TARGET_NONE) {
            const sl_graph_value *like = &lowering->graph->values[target > 0 ? target : call->like[i]];
            SL_TRY(sl_operand_new(lowering, like->dtype, &like->shape, &sink.operand));
        }
        set_output(&step, i, &sink, &sink.operand);
    }
    if (call->op == SL_OP_LINEAR_GRAD_W)
        sl_layout_turn_weight(&step.outputs[0], &step.attrs);
    SL_TRY(sl_instruction_append(&lowering->backward, &step));
    for (int i = 0; i < call->target_count; i++) {
        if (indirect[i])
            SL_TRY(sl_gradient_alias(lowering, call->targets[i], &step.outputs[i]));
    }
done:
    return status;
}

sl_status sl_gradient_alias(sl_lowering *lowering, int target, const sl_operand *term)
{
    sl_operand in_param;
    if (!lowering->gradients[target].present && !lies_in_param(lowering, target, &in_param)) {
        lowering->gradients[target] = (sl_gradient){ *term, true, false };
        return SL_OK;
    }
    return sl_gradient_emit(
        lowering,
        &(sl_gradient_call){
            .op = SL_OP_COPY, .inputs = { *term }, .input_count = 1, .targets = { target }, .target_count = 1 });
}

sl_status sl_gradient_temporary(sl_lowering *lowering, int target, sl_op op, const sl_op_attrs *attrs,
                                const sl_operand *inputs, int input_count, const sl_shape *shape, sl_operand *out)
{
    sl_status status = SL_OK;
    sl_instruction step = { .op = op,
                            .node = lowering->node,
                            .phase = phase_of(lowering, target),
                            .input_count = input_count,
                            .output_count = 1,
                            .priors = { sl_operand_none() } };
    if (attrs)
        step.attrs = *attrs;
    for (int i = 0; i < input_count; i++)
        step.inputs[i] = inputs[i];
    SL_TRY(sl_operand_new(lowering, lowering->graph->values[target].dtype, shape, &step.outputs[0]));
    SL_TRY(sl_instruction_append(&lowering->backward, &step));
    *out = step.outputs[0];
done:
    return status;
}

sl_status sl_gradient_straight(sl_lowering *lowering, int target, sl_op_layout needed, sl_operand *operand)
{
    if (sl_layout_fits(&operand->meta, needed))
        return SL_OK;
    const sl_operand from = *operand;
    return sl_gradient_temporary(lowering, target, SL_OP_COPY, NULL, &from, 1, &from.meta.shape, operand);
}

sl_status sl_gradient_sum_to(sl_lowering *lowering, int target, const sl_operand *term)
{
    sl_operand straight = *term;
    sl_status status = sl_gradient_straight(lowering, target, SL_LAYOUT_CONTIGUOUS, &straight);
    if (status != SL_OK)
        return status;
    return sl_gradient_emit(
        lowering,
        &(sl_gradient_call){
            .op = SL_OP_SUM_TO, .inputs = { straight }, .input_count = 1, .targets = { target }, .target_count = 1 });
}

/* ---- Terms of a part ------------------------------------------------------------------------- */

static sl_status append_simple(sl_lowering *lowering, int target, sl_op op, const sl_operand *input,
                               const grad_sink *sink, const sl_operand *output)
{
    sl_instruction step = { .op = op, .node = lowering->node, .phase = phase_of(lowering, target), .output_count = 1 };
    if (input)
        step.inputs[step.input_count++] = *input;
    set_output(&step, 0, sink, output);
    return sl_instruction_append(&lowering->backward, &step);
}

/* Zeroes elements start..stop of a dim. */
static sl_status fill_zero(sl_lowering *lowering, int target, const sl_operand *whole, int dim, int64_t start,
                           int64_t stop)
{
    sl_operand part;
    const grad_sink sink = { .operand = *whole, .prior = sl_operand_none() };
    if (start == stop)
        return SL_OK;
    sl_status status = sl_operand_slice(whole, dim, start, stop, &part);
    return status == SL_OK ? append_simple(lowering, target, SL_OP_FILL, NULL, &sink, &part) : status;
}

/* A term that covers part of a dim of the target. */
static sl_status add_to_slice(sl_lowering *lowering, int target, int dim, int64_t start, const sl_operand *term)
{
    sl_status status = SL_OK;
    grad_sink sink;
    sl_operand part;
    int64_t stop = start + term->meta.shape.dims[dim];
    SL_TRY(open_sink(lowering, target, &sink));
    SL_TRY(sl_operand_slice(&sink.operand, dim, start, stop, &part));
    if (!sink.accumulate) {
        SL_TRY(fill_zero(lowering, target, &sink.operand, dim, 0, start));
        SL_TRY(fill_zero(lowering, target, &sink.operand, dim, stop, sink.operand.meta.shape.dims[dim]));
    }
    SL_TRY(append_simple(lowering, target, SL_OP_COPY, term, &sink, &part));
done:
    return status;
}

/* The parts' gradients into one: those that were written in place are there already. */
static sl_status join_parts(sl_lowering *lowering, const sl_graph_node *node)
{
    sl_status status = SL_OK;
    int target = node->inputs[0];
    grad_sink sink = { .prior = sl_operand_none() };
    SL_TRY(sl_gradient_home(lowering, target, &sink.operand));
    for (int i = 0; i < node->output_count; i++) {
        const sl_gradient *gradient = &lowering->gradients[node->outputs[i]];
        int64_t start = sl_split_start(lowering->graph, node, i);
        int64_t stop = start + lowering->graph->values[node->outputs[i]].shape.dims[node->dim];
        sl_operand part;
        SL_TRY(sl_operand_slice(&sink.operand, node->dim, start, stop, &part));
        if (!gradient->present)
            SL_TRY(fill_zero(lowering, target, &sink.operand, node->dim, start, stop));
        else if (!sl_operand_same(&gradient->operand, &part))
            SL_TRY(append_simple(lowering, target, SL_OP_COPY, &gradient->operand, &sink, &part));
    }
    lowering->gradients[target] = (sl_gradient){ sink.operand, true, true };
done:
    return status;
}

/* ---- Views ----------------------------------------------------------------------------------- */

static sl_status split_gradient(sl_lowering *lowering, const sl_graph_node *node)
{
    sl_status status = SL_OK;
    sl_operand in_param;
    if (lies_in_param(lowering, node->outputs[0], &in_param))
        return SL_OK; /* the terms of the parts were added there */
    if (lowering->terms[node->inputs[0]] == 1)
        return join_parts(lowering, node);
    for (int i = 0; i < node->output_count; i++) {
        const sl_operand part = lowering->gradients[node->outputs[i]].operand;
        if (lowering->gradients[node->outputs[i]].present)
            SL_TRY(add_to_slice(lowering, node->inputs[0], node->dim, sl_split_start(lowering->graph, node, i), &part));
    }
done:
    return status;
}

/* The gradient of a reshape's or permutation's argument, seen through that of its result. */
static sl_status turn_back(sl_lowering *lowering, const sl_graph_node *node, const sl_operand *dy, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_graph_value *x = &lowering->graph->values[node->inputs[0]];
    sl_operand view = *dy, copy;
    if (node->op == SL_NODE_PERMUTE) {
        int inverse[SL_MAX_DIMS];
        for (int i = 0; i < x->shape.rank; i++)
            inverse[node->order[i]] = i;
        SL_TRY(sl_meta_permute(&dy->meta, inverse, &view.meta));
    } else if (sl_meta_reshape(&dy->meta, &x->shape, &view.meta) != SL_OK) {
        SL_TRY(sl_gradient_temporary(lowering, node->inputs[0], SL_OP_COPY, NULL, dy, 1, &dy->meta.shape, &copy));
        SL_TRY(sl_meta_reshape(&copy.meta, &x->shape, &copy.meta));
        view = copy;
    }
    *out = view;
done:
    return status;
}

sl_status sl_gradient_of_view(sl_lowering *lowering, const sl_graph_node *node)
{
    sl_status status = SL_OK;
    int x = node->inputs[0], y = node->outputs[0];
    sl_operand in_param, term;
    if (node->op == SL_NODE_SPLIT)
        return split_gradient(lowering, node);
    if (node->op != SL_NODE_EXPAND && lies_in_param(lowering, y, &in_param))
        return SL_OK;
    const sl_gradient gradient = lowering->gradients[y];
    if (node->op == SL_NODE_EXPAND)
        return sl_gradient_sum_to(lowering, x, &gradient.operand);
    if (node->op == SL_NODE_SLICE)
        return add_to_slice(lowering, x, node->dim, node->start, &gradient.operand);
    if (gradient.owned && lowering->homes[x].storage >= 0 && lowering->terms[x] == 1 &&
        lowering->homes[x].storage == gradient.operand.storage) {
        lowering->gradients[x] = (sl_gradient){ lowering->homes[x], true, true };
        return SL_OK;
    }
    SL_TRY(turn_back(lowering, node, &gradient.operand, &term));
    SL_TRY(sl_gradient_alias(lowering, x, &term));
done:
    return status;
}
