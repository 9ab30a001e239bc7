/* Where the terms of gradients are written: straight into parameters' gradients, input gradients or the right part of a
 * larger gradient if possible, added in place after the first. */
#include "graph/gradient.h"

enum {
    TARGET_NONE = -1,   /* an optional output that is left off */
    TARGET_DISCARD = 0, /* an output that nobody wants but the kernel writes */
};

/* A kernel call whose outputs are terms of the gradients of the target values. like[i] is the value whose shape a
 * discarded output i has. The call belongs to W if all its targets are fixed (functions of parameters alone), else to
 * I. */
typedef struct grad_call {
    sl_op op;
    sl_op_attrs attrs;
    sl_operand inputs[SL_OP_INPUTS];
    int input_count;
    int targets[SL_OP_OUTPUTS]; /* value ids */
    int like[SL_OP_OUTPUTS];
    int target_count;
} grad_call;

static sl_status emit(sl_lowering *lowering, const grad_call *call);

bool sl_gradient_wanted(const sl_lowering *lowering, const sl_graph_node *node, int input)
{
    return node->inputs[input] > 0 && sl_node_input_differentiable(node, input) &&
           sl_value_has_grad(lowering->graph, node->inputs[input]);
}

static sl_phase phase_of(const sl_lowering *lowering, int target)
{
    return lowering->graph->values[target].fixed ? SL_PHASE_W : SL_PHASE_I;
}

/* The op that brings one tensor into another, whatever their dtypes. */
static sl_op copy_op(const sl_operand *from, sl_dtype to)
{
    return from->meta.dtype == to ? SL_OP_COPY : SL_OP_CAST;
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* True if the gradient of a fixed value is a view of a parameter's, to which every term is added at once. */
static bool lies_in_param(const sl_lowering *lowering, int value, sl_operand *out)
{
    const sl_graph_value *v = &lowering->graph->values[value];
    if (v->kind == SL_VALUE_PARAM) {
        *out = lowering->grads[sl_lowered(lowering, value)->param_port];
        return true;
    }
    if (!v->fixed || v->node < 0)
        return false;
    const sl_graph_node *node = &lowering->graph->nodes[v->node];
    if (sl_lowered(lowering, value)->joined) {
        const sl_operand *first = &lowering->grads[sl_lowered(lowering, node->inputs[0])->param_port];
        *out = sl_operand_whole(first->storage, first->meta.dtype, &v->shape);
        return true;
    }
    sl_operand whole;
    bool possible = false;
    if (!SL_NODE_IS_VIEW(node->op) || node->op == SL_NODE_EXPAND || !lies_in_param(lowering, node->inputs[0], &whole))
        return false;
    return sl_view_apply(lowering->graph, node, v->output, &whole, &possible, out) == SL_OK && possible;
}

/* What the kernel needs of the place where it writes its term of input `slot`. */
static sl_op_layout term_layout(const sl_graph_node *node, int slot)
{
    if (SL_NODE_IS_VIEW(node->op))
        return SL_LAYOUT_ANY;
    const sl_op_info *info = sl_op_get_info((sl_op)node->op);
    return sl_op_input_arg(info, slot)->flags & SL_ARG_FREE_GRADIENT ? SL_LAYOUT_ANY : info->layout;
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

static sl_status gradient_home(sl_lowering *lowering, int value, sl_operand *out);

/* The gradient of a view's result can lie inside that of the view's argument if the view is the argument's only
 * term: then a call that writes the one writes the other. */
static sl_status home_in_argument(sl_lowering *lowering, int value, bool *found, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_graph_value *v = &lowering->graph->values[value];
    sl_operand whole;
    *found = false;
    if (v->fixed || v->node < 0 || sl_lowered(lowering, value)->input_port >= 0)
        return SL_OK;
    const sl_graph_node *node = &lowering->graph->nodes[v->node];
    if (node->op != SL_NODE_RESHAPE && node->op != SL_NODE_PERMUTE && node->op != SL_NODE_SPLIT)
        return SL_OK;
    if (sl_lowered(lowering, node->inputs[0])->terms != 1)
        return SL_OK;
    sl_operand view;
    SL_TRY(gradient_home(lowering, node->inputs[0], &whole));
    SL_TRY(sl_view_apply(lowering->graph, node, v->output, &whole, found, &view));
    *found = *found && suits_all_terms(lowering, value, &view.meta);
    if (*found)
        *out = view;
done:
    return status;
}

static sl_status gradient_home(sl_lowering *lowering, int value, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_graph_value *v = &lowering->graph->values[value];
    sl_operand *home = &sl_lowered(lowering, value)->home;
    int port = sl_lowered(lowering, value)->input_port;
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
    sl_gradient *gradient = &sl_lowered(lowering, target)->gradient;
    grad_sink sink = { .prior = sl_operand_none(), .accumulate = true };
    if (!lies_in_param(lowering, target, &sink.operand)) {
        if (gradient->present && gradient->owned) {
            sink.operand = gradient->operand;
        } else {
            SL_TRY(gradient_home(lowering, target, &sink.operand));
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

static bool is_repeated(const grad_call *call, int i)
{
    for (int j = 0; j < i; j++) {
        if (call->targets[j] == call->targets[i])
            return true;
    }
    return false;
}

/* Whether the kernel can write its term of the target itself; if not it goes through a tensor of its own. */
static bool writes_directly(const sl_lowering *lowering, const grad_call *call, int i, sl_phase phase)
{
    const sl_op_info *info = sl_op_get_info(call->op);
    int target = call->targets[i];
    sl_operand place;
    sl_op_attrs attrs = call->attrs;
    bool in_param = lies_in_param(lowering, target, &place);
    if (phase_of(lowering, target) != phase || is_repeated(call, i))
        return false;
    if (in_param) {
        if (info->outputs[i].flags & SL_ARG_TRANSPOSABLE)
            sl_operand_transpose_weight(&place, &attrs);
        return sl_layout_fits(&place.meta, info->layout) && info->accumulates;
    }
    /* A sum that starts from what is there adds up in another order than one that is added afterwards. */
    return call->op != SL_OP_SUM_TO && (!sl_lowered(lowering, target)->gradient.present || info->accumulates);
}

/* Turns attrs.transpose_w with a matrix that is given transposed. */
static void transpose_weights(sl_instruction *step)
{
    const sl_op_info *info = sl_op_get_info(step->op);
    for (int i = 0; i < step->input_count; i++) {
        if (info->inputs[i].flags & SL_ARG_TRANSPOSABLE)
            sl_operand_transpose_weight(&step->inputs[i], &step->attrs);
    }
    for (int i = 0; i < step->output_count; i++) {
        if (info->outputs[i].flags & SL_ARG_TRANSPOSABLE)
            sl_operand_transpose_weight(&step->outputs[i], &step->attrs);
    }
}

static sl_status emit(sl_lowering *lowering, const grad_call *call)
{
    sl_status status = SL_OK;
    bool indirect[SL_OP_OUTPUTS] = { false };
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
        } else if (target != TARGET_NONE) {
            int like = target > 0 ? target : call->like[i];
            SL_TRY(sl_operand_new(lowering, sl_lowering_grad_dtype(lowering, like),
                                  &lowering->graph->values[like].shape, &sink.operand));
        }
        set_output(&step, i, &sink, &sink.operand);
    }
    transpose_weights(&step);
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
    if (!sl_lowered(lowering, target)->gradient.present && !lies_in_param(lowering, target, &in_param)) {
        sl_lowered(lowering, target)->gradient = (sl_gradient){ *term, true, false };
        return SL_OK;
    }
    return emit(lowering, &(grad_call){ .op = copy_op(term, sl_lowering_grad_dtype(lowering, target)),
                                        .inputs = { *term },
                                        .input_count = 1,
                                        .targets = { target },
                                        .target_count = 1 });
}

/* A call whose output goes to a tensor of its own, on the way to the gradient of `target`. */
static sl_status emit_temporary(sl_lowering *lowering, int target, const grad_call *call, sl_dtype dtype,
                                const sl_shape *shape, sl_operand *out)
{
    sl_status status = SL_OK;
    sl_instruction step = { .op = call->op,
                            .attrs = call->attrs,
                            .node = lowering->node,
                            .phase = phase_of(lowering, target),
                            .input_count = call->input_count,
                            .output_count = 1,
                            .priors = { sl_operand_none() } };
    for (int i = 0; i < call->input_count; i++)
        step.inputs[i] = call->inputs[i];
    SL_TRY(sl_operand_new(lowering, dtype, shape, &step.outputs[0]));
    SL_TRY(sl_instruction_append(&lowering->backward, &step));
    *out = step.outputs[0];
done:
    return status;
}

/* Replaces *operand, a tensor on the way to the gradient of `target`, by a contiguous copy if it does not fit. */
static sl_status make_fit(sl_lowering *lowering, int target, sl_op_layout needed, sl_operand *operand)
{
    if (sl_layout_fits(&operand->meta, needed))
        return SL_OK;
    const grad_call copy = { .op = SL_OP_COPY, .inputs = { *operand }, .input_count = 1 };
    return emit_temporary(lowering, target, &copy, copy.inputs[0].meta.dtype, &copy.inputs[0].meta.shape, operand);
}

/* The term of a target that was broadcast: summed over the dims it was stretched in. */
static sl_status emit_sum_to(sl_lowering *lowering, int target, const sl_operand *term)
{
    grad_call call = {
        .op = SL_OP_SUM_TO, .inputs = { *term }, .input_count = 1, .targets = { target }, .target_count = 1
    };
    sl_status status = make_fit(lowering, target, SL_LAYOUT_CONTIGUOUS, &call.inputs[0]);
    return status == SL_OK ? emit(lowering, &call) : status;
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
    SL_TRY(append_simple(lowering, target, copy_op(term, part.meta.dtype), term, &sink, &part));
done:
    return status;
}

/* The parts' gradients into one: those that were written in place are there already. */
static sl_status join_parts(sl_lowering *lowering, const sl_graph_node *node)
{
    sl_status status = SL_OK;
    int target = node->inputs[0];
    grad_sink sink = { .prior = sl_operand_none() };
    SL_TRY(gradient_home(lowering, target, &sink.operand));
    for (int i = 0; i < node->output_count; i++) {
        const sl_gradient *gradient = &sl_lowered(lowering, node->outputs[i])->gradient;
        int64_t start = sl_split_start(lowering->graph, node, i);
        int64_t stop = start + lowering->graph->values[node->outputs[i]].shape.dims[node->dim];
        sl_operand part;
        SL_TRY(sl_operand_slice(&sink.operand, node->dim, start, stop, &part));
        if (!gradient->present)
            SL_TRY(fill_zero(lowering, target, &sink.operand, node->dim, start, stop));
        else if (!sl_operand_same(&gradient->operand, &part))
            SL_TRY(append_simple(lowering, target, SL_OP_COPY, &gradient->operand, &sink, &part));
    }
    sl_lowered(lowering, target)->gradient = (sl_gradient){ sink.operand, true, true };
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
    if (sl_lowered(lowering, node->inputs[0])->terms == 1)
        return join_parts(lowering, node);
    for (int i = 0; i < node->output_count; i++) {
        const sl_operand part = sl_lowered(lowering, node->outputs[i])->gradient.operand;
        if (sl_lowered(lowering, node->outputs[i])->gradient.present)
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
        copy = *dy;
        SL_TRY(make_fit(lowering, node->inputs[0], SL_LAYOUT_CONTIGUOUS, &copy));
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
    const sl_gradient gradient = sl_lowered(lowering, y)->gradient;
    if (node->op == SL_NODE_EXPAND)
        return emit_sum_to(lowering, x, &gradient.operand);
    if (node->op == SL_NODE_SLICE)
        return add_to_slice(lowering, x, node->dim, node->start, &gradient.operand);
    if (gradient.owned && sl_lowered(lowering, x)->home.storage >= 0 && sl_lowered(lowering, x)->terms == 1 &&
        sl_lowered(lowering, x)->home.storage == gradient.operand.storage) {
        sl_lowered(lowering, x)->gradient = (sl_gradient){ sl_lowered(lowering, x)->home, true, true };
        return SL_OK;
    }
    SL_TRY(turn_back(lowering, node, &gradient.operand, &term));
    SL_TRY(sl_gradient_alias(lowering, x, &term));
done:
    return status;
}

/* ---- Rules of the ops ------------------------------------------------------------------------ */

static sl_operand rule_input(const sl_gradient_rule *rule, int input)
{
    const sl_lowering *lowering = rule->lowering;
    int value = ((const sl_graph_node *)rule->node)->inputs[input];
    if (value == 0)
        return sl_operand_none();
    return sl_lowered(lowering, value)->straight.storage >= 0 ? sl_lowered(lowering, value)->straight
                                                              : sl_lowered(lowering, value)->value;
}

static sl_operand rule_output(const sl_gradient_rule *rule, int output)
{
    const sl_lowering *lowering = rule->lowering;
    return sl_lowered(lowering, ((const sl_graph_node *)rule->node)->outputs[output])->value;
}

static bool rule_wanted(const sl_gradient_rule *rule, int input)
{
    return sl_gradient_wanted(rule->lowering, rule->node, input);
}

static grad_call call_of(const sl_gradient_rule *rule, const sl_gradient_term *term)
{
    grad_call call = { .op = term->op,
                       .attrs = term->attrs ? *term->attrs : *rule->attrs,
                       .input_count = term->input_count };
    for (int i = 0; i < term->input_count; i++)
        call.inputs[i] = term->inputs[i];
    return call;
}

static sl_status rule_emit(const sl_gradient_rule *rule, const sl_gradient_term *term)
{
    const int *inputs = ((const sl_graph_node *)rule->node)->inputs;
    const sl_op_arg *outputs = sl_op_get_info(term->op)->outputs;
    grad_call call = call_of(rule, term);
    for (int i = 0; i < term->target_count; i++) {
        bool wanted = rule_wanted(rule, term->targets[i]);
        call.targets[i] = wanted                               ? inputs[term->targets[i]]
                          : outputs[i].flags & SL_ARG_OPTIONAL ? TARGET_NONE
                                                               : TARGET_DISCARD;
        call.like[i] = inputs[term->targets[i]];
        if (call.targets[i] != TARGET_NONE)
            call.target_count = i + 1; /* trailing ones are left off */
    }
    return emit(rule->lowering, &call);
}

static sl_status rule_alias(const sl_gradient_rule *rule, int target, const sl_operand *term)
{
    return sl_gradient_alias(rule->lowering, ((const sl_graph_node *)rule->node)->inputs[target], term);
}

static sl_status rule_sum_to(const sl_gradient_rule *rule, int target, const sl_operand *term)
{
    return emit_sum_to(rule->lowering, ((const sl_graph_node *)rule->node)->inputs[target], term);
}

static sl_status rule_temporary(const sl_gradient_rule *rule, const sl_gradient_term *term, const sl_shape *shape,
                                sl_operand *out)
{
    const sl_lowering *lowering = rule->lowering;
    int target = ((const sl_graph_node *)rule->node)->inputs[term->targets[0]];
    const grad_call call = call_of(rule, term);
    return emit_temporary(rule->lowering, target, &call, lowering->graph->values[target].dtype, shape, out);
}

sl_status sl_gradient_of_node(sl_lowering *lowering, const sl_graph_node *node)
{
    static const sl_gradient_calls calls = {
        .input = rule_input,
        .output = rule_output,
        .wanted = rule_wanted,
        .emit = rule_emit,
        .alias = rule_alias,
        .sum_to = rule_sum_to,
        .temporary = rule_temporary,
    };
    const sl_op_info *info = sl_op_get_info((sl_op)node->op);
    if (sl_lowered(lowering, node->outputs[0])->joined)
        return SL_OK; /* all terms went to the parameters */
    sl_gradient_rule rule = { .op = (sl_op)node->op,
                              .attrs = &node->attrs,
                              .input_count = node->input_count,
                              .dy = sl_lowered(lowering, node->outputs[0])->gradient.operand,
                              .calls = &calls,
                              .lowering = lowering,
                              .node = node };
    sl_status status = make_fit(lowering, node->outputs[0], info->dy_layout, &rule.dy);
    return status == SL_OK ? info->gradient(&rule) : status;
}
