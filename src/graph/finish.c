/* What a graph gives: outputs, loss, split marks, and what the finished graph knows about its values. */
#include "graph/graph.h"

#include "base/alloc.h"

#include <string.h>

void sl_graph_output(sl_graph *graph, const char *name, sl_value value)
{
    sl_status status = SL_OK;
    char *copy = NULL;
    if (graph->status != SL_OK)
        return;
    if (graph->finished || !name || !*name || value.id <= 0 || value.id >= graph->value_count) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "output '%s': %s", name ? name : "",
                        graph->finished ? "the graph is finished" : "not a name and a value of this graph");
        return;
    }
    if (sl_names_get(&graph->output_names, name, 0)) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "output '%s' is named twice", name);
        return;
    }
    SL_TRY(sl_arena_strdup(graph->arena, name, &copy));
    SL_TRY(SL_GROW(graph->outputs, &graph->output_capacity, (size_t)graph->output_count + 1));
    SL_TRY(sl_names_put(&graph->output_names, copy, graph->output_count + 1));
    graph->outputs[graph->output_count++] = (sl_graph_output_entry){ copy, value.id };
done:
    if (status != SL_OK)
        sl_graph_refuse(graph, status, "output '%s': %s", name, sl_error_message());
}

void sl_graph_loss(sl_graph *graph, sl_value value)
{
    char text[128];
    if (graph->status != SL_OK)
        return;
    if (graph->loss >= 0) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "loss: the graph has one already");
        return;
    }
    if (value.id > 0 && value.id < graph->value_count) {
        const sl_graph_value *loss = &graph->values[value.id];
        if (loss->shape.rank != 0 || !sl_dtype_is_floating(loss->dtype)) {
            sl_graph_refuse(graph, SL_ERR_SHAPE, "loss: '%s' is %s %s, not a floating scalar", loss->name,
                            sl_dtype_name(loss->dtype), sl_shape_text(&loss->shape, text, sizeof text));
            return;
        }
    }
    sl_graph_output(graph, "loss", value);
    if (graph->status == SL_OK)
        graph->loss = graph->output_count - 1;
}

void sl_split_mark(sl_graph *graph)
{
    if (graph->status != SL_OK)
        return;
    sl_status status = SL_GROW(graph->marks, &graph->mark_capacity, (size_t)graph->mark_count + 1);
    if (status != SL_OK)
        sl_graph_refuse(graph, status, "split mark: %s", sl_error_message());
    else
        graph->marks[graph->mark_count++] = graph->node_count;
}

/* A node without whose effect the graph would mean something else, used or not. */
static bool writes_state(const sl_graph_node *node)
{
    return node->op == SL_OP_ATTENTION_CACHED;
}

/* Marks what outputs depend on and what gradients reach. */
static void mark_live(sl_graph *graph)
{
    for (int i = 0; i < graph->output_count; i++) {
        sl_graph_value *value = &graph->values[graph->outputs[i].value];
        value->live = true;
        value->reaches = (graph->loss < 0 || i == graph->loss) && sl_dtype_is_floating(value->dtype);
    }
    for (int n = graph->node_count - 1; n >= 0; n--) {
        sl_graph_node *node = &graph->nodes[n];
        bool reaches = false;
        node->live = writes_state(node);
        for (int i = 0; i < node->output_count; i++) {
            node->live = node->live || graph->values[node->outputs[i]].live;
            reaches = reaches || graph->values[node->outputs[i]].reaches;
        }
        for (int i = 0; i < node->input_count && node->live; i++) {
            sl_graph_value *input = &graph->values[node->inputs[i]];
            input->live = true;
            input->reaches = input->reaches ||
                             (reaches && sl_node_input_differentiable(node, i) && sl_dtype_is_floating(input->dtype));
        }
    }
}

bool sl_value_has_grad(const sl_graph *graph, int value)
{
    return value > 0 && graph->values[value].requires_grad && graph->values[value].reaches;
}

sl_status sl_graph_finish(sl_graph *graph)
{
    sl_status status = sl_graph_status(graph);
    if (status != SL_OK || graph->finished)
        return status;
    if (graph->scope_depth > 0)
        return sl_fail(SL_ERR_ARGUMENT, "the graph's scope '%s' is still open", graph->scope);
    if (graph->node_count == 0)
        return sl_fail(SL_ERR_ARGUMENT, "the graph is empty: it has no nodes");
    if (graph->output_count == 0)
        return sl_fail(SL_ERR_ARGUMENT, "the graph has no outputs and no loss");
    mark_live(graph);
    graph->finished = true;
    return SL_OK;
}

int sl_graph_node_count(const sl_graph *graph)
{
    return graph->node_count;
}

const char *sl_graph_node_name(const sl_graph *graph, int node)
{
    return graph->nodes[node].name;
}

const char *sl_graph_node_op(const sl_graph *graph, int node)
{
    return sl_node_op_name(graph->nodes[node].op);
}

int sl_graph_param_count(const sl_graph *graph)
{
    return graph->params.count;
}

sl_param_info sl_graph_param_at(const sl_graph *graph, int index)
{
    const sl_graph_value *param = &graph->values[graph->params.ids[index]];
    return (sl_param_info){ param->name, param->dtype, param->shape, param->init };
}
