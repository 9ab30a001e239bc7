/* Nodes: their names, arguments and results, and what follows from them. */
#include "graph/graph.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

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

bool sl_graph_accepts(sl_graph *graph, int op, const sl_value *inputs, int count, uint32_t optional)
{
    const char *name = sl_node_op_name(op), *scope = graph->scope, *dot = *scope ? "." : "";
    if (!sl_graph_is_open(graph, name))
        return false;
    for (int i = 0; i < count; i++) {
        if (inputs[i].id < 0 || inputs[i].id >= graph->value_count)
            sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s%s%s: argument %d is no value of this graph", scope, dot, name,
                            i);
        else if (inputs[i].id == 0 && !(optional >> i & 1u))
            sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s%s%s: argument %d is missing", scope, dot, name, i);
    }
    return graph->status == SL_OK;
}

bool sl_node_input_differentiable(const sl_graph_node *node, int input)
{
    switch (node->op) {
    case SL_OP_EMBEDDING:
        return input == 1;
    case SL_OP_CROSS_ENTROPY:
    case SL_OP_ROPE:
        return input == 0;
    case SL_OP_ATTENTION_CACHED:
        return false;
    default:
        return true;
    }
}

/* Fills what follows from the node's inputs: where gradients go, and what is the same for every microbatch. */
static void derive_flags(const sl_graph *graph, sl_graph_node *node, bool *requires_grad)
{
    node->fixed = node->attrs.p == 0 && node->op != SL_OP_ATTENTION_CACHED; /* what is dropped changes */
    *requires_grad = false;
    for (int i = 0; i < node->input_count; i++) {
        const sl_graph_value *input = &graph->values[node->inputs[i]];
        if (node->inputs[i] == 0)
            continue;
        node->fixed = node->fixed && input->fixed;
        *requires_grad = *requires_grad || (input->requires_grad && sl_node_input_differentiable(node, i));
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
    bool requires_grad;
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
    derive_flags(graph, &node, &requires_grad);
    SL_TRY(add_outputs(graph, draft, &node, requires_grad));
    SL_TRY(SL_GROW(graph->nodes, &graph->node_capacity, (size_t)graph->node_count + 1));
    SL_TRY(sl_names_put(&graph->node_names, node.name, graph->node_count + 1));
    graph->nodes[graph->node_count++] = node;
    for (int i = 0; i < node.output_count; i++)
        outputs[i] = (sl_value){ node.outputs[i] };
done:
    if (status != SL_OK)
        sl_graph_keep_error(graph, status);
}
