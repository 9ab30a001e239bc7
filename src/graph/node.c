/* Nodes: their names, arguments and results, and what follows from the descriptions of their ops. */
#include "graph/graph.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

const char *sl_node_op_name(int op)
{
    static const char *const views[] = { "reshape", "permute", "slice", "split", "expand" };
    return op < SL_OP_COUNT ? sl_op_name((sl_op)op) : views[op - SL_OP_COUNT];
}

const char *sl_graph_next_name(sl_graph *graph, int op)
{
    char text[768];
    const char *base = sl_graph_full_name(graph, sl_node_op_name(op), text, sizeof text);
    if (!base)
        return NULL;
    size_t length = strlen(text);
    for (int i = 2; sl_names_get(&graph->node_names, text, 0); i++)
        snprintf(text + length, sizeof text - length, "_%d", i);
    char *copy = NULL;
    sl_status status = sl_arena_strdup(graph->arena, text, &copy);
    if (status != SL_OK)
        sl_graph_keep_error(graph, status);
    return copy;
}

bool sl_node_input_differentiable(const sl_graph_node *node, int input)
{
    return SL_NODE_IS_VIEW(node->op) || sl_op_is_differentiable(sl_op_get_info((sl_op)node->op), input);
}

bool sl_node_writes_state(const sl_graph_node *node)
{
    for (int i = 0; i < node->input_count && !SL_NODE_IS_VIEW(node->op); i++) {
        if (sl_op_input_arg(sl_op_get_info((sl_op)node->op), i)->flags & SL_ARG_WRITTEN)
            return true;
    }
    return false;
}

/* ---- Adding ---------------------------------------------------------------------------------- */

bool sl_graph_accepts(sl_graph *graph, int op, const sl_value *inputs, int count)
{
    const char *name = sl_node_op_name(op), *scope = graph->scope, *dot = *scope ? "." : "";
    if (!sl_graph_is_open(graph, name))
        return false;
    for (int i = 0; i < count; i++) {
        if (inputs[i].id < 0 || inputs[i].id >= graph->value_count)
            sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s%s%s: argument %d is no value of this graph", scope, dot, name,
                            i);
    }
    return graph->status == SL_OK;
}

sl_value sl_graph_refuse_node(sl_graph *graph, int op, sl_value x, const char *format, ...)
{
    char why[256], shape[128];
    const char *name = graph->status == SL_OK ? sl_graph_next_name(graph, op) : NULL;
    const sl_graph_value *value = &graph->values[x.id];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return sl_graph_refuse(graph, SL_ERR_SHAPE, "%s(x %s %s): %s", name ? name : sl_node_op_name(op),
                           sl_dtype_name(value->dtype), sl_shape_text(&value->shape, shape, sizeof shape), why);
}

/* Whether a gradient goes through the node. */
static bool requires_grad_of(const sl_graph *graph, const sl_graph_node *node)
{
    bool requires_grad = false;
    for (int i = 0; i < node->input_count; i++) {
        if (node->inputs[i] != 0)
            requires_grad = requires_grad ||
                            (graph->values[node->inputs[i]].requires_grad && sl_node_input_differentiable(node, i));
    }
    return requires_grad;
}

/* Whether what it makes is the same for every microbatch. */
static bool is_fixed(const sl_graph *graph, const sl_graph_node *node)
{
    bool fixed = node->attrs.p == 0 && !sl_node_writes_state(node); /* what is dropped changes */
    for (int i = 0; i < node->input_count; i++) {
        if (node->inputs[i] != 0)
            fixed = fixed && graph->values[node->inputs[i]].fixed;
    }
    return fixed;
}

void sl_graph_derive_grads(sl_graph *graph)
{
    for (int n = 0; n < graph->node_count; n++) {
        const sl_graph_node *node = &graph->nodes[n];
        bool requires_grad = requires_grad_of(graph, node);
        for (int i = 0; i < node->output_count; i++) {
            sl_graph_value *output = &graph->values[node->outputs[i]];
            output->requires_grad = requires_grad && sl_dtype_is_floating(output->dtype);
        }
    }
}

static sl_status add_outputs(sl_graph *graph, const sl_node_draft *draft, sl_graph_node *node, bool requires_grad)
{
    sl_status status = SL_OK;
    for (int i = 0; i < node->output_count; i++) {
        sl_graph_value value = { .kind = SL_VALUE_NODE,
                                 .name = node->name,
                                 .dtype = draft->dtypes[i],
                                 .shape = draft->shapes[i],
                                 .node = graph->node_count,
                                 .output = i,
                                 .requires_grad = requires_grad && sl_dtype_is_floating(draft->dtypes[i]),
                                 .fixed = node->fixed };
        if (i > 0) {
            char *name = NULL;
            SL_TRY(sl_arena_printf(graph->arena, &name, "%s:%d", node->name, i));
            value.name = name;
        }
        SL_TRY(sl_graph_append_value(graph, &value, &node->outputs[i]));
    }
done:
    return status;
}

void sl_graph_add(sl_graph *graph, const sl_node_draft *draft, sl_value *outputs)
{
    sl_status status = SL_OK;
    char *scope = NULL;
    sl_graph_node node = { .op = draft->op,
                           .attrs = draft->attrs,
                           .input_count = draft->input_count,
                           .output_count = draft->output_count,
                           .dim = draft->dim,
                           .start = draft->start };
    memcpy(node.order, draft->order, sizeof node.order);
    for (int i = 0; i < draft->output_count; i++)
        outputs[i] = (sl_value){ -1 };
    node.name = sl_graph_next_name(graph, draft->op);
    if (!node.name)
        return;
    SL_TRY(sl_arena_strdup(graph->arena, graph->scope, &scope));
    node.scope = scope;
    SL_TRY(SL_ARENA_ARRAY(graph->arena, node.inputs, node.input_count));
    SL_TRY(SL_ARENA_ARRAY(graph->arena, node.outputs, node.output_count));
    for (int i = 0; i < node.input_count; i++)
        node.inputs[i] = draft->inputs[i].id;
    node.fixed = is_fixed(graph, &node);
    SL_TRY(add_outputs(graph, draft, &node, requires_grad_of(graph, &node)));
    SL_TRY(SL_GROW(graph->nodes, &graph->node_capacity, (size_t)graph->node_count + 1));
    SL_TRY(sl_names_put(&graph->node_names, node.name, graph->node_count + 1));
    graph->nodes[graph->node_count++] = node;
    for (int i = 0; i < node.output_count; i++)
        outputs[i] = (sl_value){ node.outputs[i] };
done:
    if (status != SL_OK)
        sl_graph_keep_error(graph, status);
}

/* ---- Nodes that run a kernel ----------------------------------------------------------------- */

/* What only the graph knows of an op's arguments. */
static sl_status check_sources(const sl_graph *graph, const sl_op_use *use, const sl_value *inputs)
{
    for (int i = 0; i < use->inputs.count; i++) {
        const sl_op_arg *arg = sl_op_input_arg(sl_op_get_info(use->op), i);
        const sl_graph_value *value = &graph->values[inputs[i].id];
        if ((arg->flags & SL_ARG_WRITTEN) && value->kind != SL_VALUE_STATE)
            return sl_use_refuse(use, "%s must be a state", arg->name);
        if ((arg->flags & SL_ARG_CONSTANT) && value->requires_grad)
            return sl_use_refuse(use, "%s has no gradient and cannot be trained", arg->name);
    }
    for (int i = 0; i < sl_op_output_count(sl_op_get_info(use->op)); i++) {
        int64_t count;
        if (sl_shape_count(&use->shapes[i], &count) != SL_OK)
            return sl_use_refuse(use, "the result is too large");
    }
    return SL_OK;
}

sl_value sl_graph_add_op(sl_graph *graph, sl_op op, const sl_op_attrs *attrs, sl_dtype dtype, const sl_value *inputs,
                         int count)
{
    sl_status status = SL_OK;
    const sl_op_attrs none = { 0 };
    sl_meta *metas = NULL;
    sl_op_use use = { .op = op, .attrs = attrs ? attrs : &none, .dtypes = { dtype } };
    sl_value outputs[SL_OP_OUTPUTS] = { { -1 }, { -1 }, { -1 }, { -1 } };
    if (!sl_graph_accepts(graph, op, inputs, count))
        return outputs[0];
    SL_TRY(SL_NEW_ARRAY(metas, count));
    for (int i = 0; i < count; i++) {
        const sl_graph_value *value = &graph->values[inputs[i].id];
        metas[i] = sl_meta_contiguous(value->dtype, &value->shape);
    }
    use.inputs = (sl_meta_list){ .first = metas, .stride = sizeof *metas, .count = count };
    use.name = sl_graph_next_name(graph, op);
    if (!use.name)
        goto done;
    SL_TRY(sl_op_check(&use));
    SL_TRY(check_sources(graph, &use, inputs));
    sl_graph_add(graph,
                 &(sl_node_draft){ .op = op,
                                   .attrs = *use.attrs,
                                   .inputs = inputs,
                                   .input_count = count,
                                   .output_count = sl_op_output_count(sl_op_get_info(op)),
                                   .dtypes = use.dtypes,
                                   .shapes = use.shapes },
                 outputs);
done:
    sl_free(metas);
    if (status != SL_OK)
        sl_graph_keep_error(graph, status);
    return outputs[0];
}

/* ---- Costs ----------------------------------------------------------------------------------- */

/* How many times the forward's work the gradients take. */
static double gradient_factor(const sl_graph *graph, const sl_graph_node *node)
{
    const sl_op_info *info = sl_op_get_info((sl_op)node->op);
    int wanted = 0;
    for (int i = 0; i < node->input_count; i++)
        /* vectors (biases, weights of norms) add little to the work of the others */
        wanted += sl_node_input_differentiable(node, i) && sl_value_has_grad(graph, node->inputs[i]) &&
                  graph->values[node->inputs[i]].shape.rank > 1;
    if (info->gradient_work_per_input > 0)
        return wanted * info->gradient_work_per_input;
    return wanted == 0 ? 0 : info->gradient_work > 0 ? info->gradient_work : 1.5;
}

sl_cost sl_graph_node_cost(const sl_graph *graph, int index)
{
    enum { MOST = 8 };
    const sl_graph_node *node = &graph->nodes[index];
    sl_meta inputs[MOST], outputs[SL_OP_OUTPUTS];
    if (SL_NODE_IS_VIEW(node->op) || !node->live)
        return (sl_cost){ 0, 0 };
    int count = node->input_count < MOST ? node->input_count : MOST; /* concat alone may have more */
    for (int i = 0; i < count; i++) {
        const sl_graph_value *value = &graph->values[node->inputs[i]];
        inputs[i] = (sl_meta){ .dtype = value->dtype, .shape = value->shape };
    }
    for (int i = 0; i < node->output_count; i++) {
        const sl_graph_value *value = &graph->values[node->outputs[i]];
        outputs[i] = (sl_meta){ .dtype = value->dtype, .shape = value->shape };
    }
    const sl_op_use use = { .op = (sl_op)node->op,
                            .attrs = &node->attrs,
                            .inputs = { inputs, sizeof *inputs, count },
                            .outputs = { outputs, sizeof *outputs, node->output_count } };
    sl_cost cost = sl_op_cost(&use);
    double factor = 1 + gradient_factor(graph, node);
    return (sl_cost){ cost.flops * factor, cost.bytes * factor };
}
