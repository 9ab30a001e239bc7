/* Graphs being built: scopes, values, nodes, outputs and the first error. */
#include "graph/graph.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

sl_status sl_graph_create(sl_graph **out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    SL_TRY(SL_NEW(graph));
    atomic_init(&graph->owners, 1);
    graph->loss = -1;
    graph->param_dtype = SL_F32;
    SL_TRY(sl_arena_create(&graph->arena));
    SL_TRY(SL_GROW(graph->values, &graph->value_capacity, 1));
    graph->values[0] = (sl_graph_value){ .name = "none", .node = -1, .shape = { .rank = -1 } };
    graph->value_count = 1;
    *out = graph;
    graph = NULL;
done:
    sl_graph_destroy(graph);
    return status;
}

void sl_graph_destroy(sl_graph *graph)
{
    if (!graph || atomic_fetch_sub(&graph->owners, 1) > 1)
        return;
    sl_free(graph->values);
    sl_free(graph->nodes);
    sl_free(graph->inputs.ids);
    sl_free(graph->params.ids);
    sl_free(graph->constants.ids);
    sl_free(graph->states.ids);
    sl_free(graph->outputs);
    sl_free(graph->marks);
    sl_names_clear(&graph->node_names);
    sl_names_clear(&graph->value_names);
    sl_names_clear(&graph->output_names);
    sl_free(graph->message);
    sl_arena_destroy(graph->arena);
    sl_free(graph);
}

/* Takes over the message of a failure that another function has just reported. */
static sl_value keep_error(sl_graph *graph, sl_status code)
{
    graph->status = code;
    if (sl_strdup(sl_error_message(), &graph->message) != SL_OK)
        graph->message = NULL;
    return (sl_value){ -1 };
}

sl_value sl_graph_refuse(sl_graph *graph, sl_status code, const char *format, ...)
{
    if (graph->status != SL_OK)
        return (sl_value){ -1 };
    va_list args;
    va_start(args, format);
    sl_fail_v(code, format, args);
    va_end(args);
    return keep_error(graph, code);
}

sl_status sl_graph_status(const sl_graph *graph)
{
    if (graph->status == SL_OK)
        return SL_OK;
    return sl_fail(graph->status, "%s", graph->message ? graph->message : sl_status_text(graph->status));
}

/* Whether a building call may go on. */
static bool is_open(sl_graph *graph, const char *what)
{
    if (graph->finished)
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s: the graph is finished", what);
    return graph->status == SL_OK;
}

/* ---- Scopes ---------------------------------------------------------------------------------- */

void sl_graph_push(sl_graph *graph, const char *name)
{
    if (!is_open(graph, "push"))
        return;
    size_t length = strlen(graph->scope), room = sizeof graph->scope - length;
    if (!name || !*name) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "push after '%s': a scope needs a name", graph->scope);
        return;
    }
    if (graph->scope_depth == (int)(sizeof graph->scope_lengths / sizeof *graph->scope_lengths) ||
        strlen(name) + 2 > room) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "push '%.60s' after '%s': scopes are nested too deep", name,
                        graph->scope);
        return;
    }
    graph->scope_lengths[graph->scope_depth++] = length;
    snprintf(graph->scope + length, room, "%s%s", length ? "." : "", name);
}

void sl_graph_push_index(sl_graph *graph, const char *name, int index)
{
    char text[256];
    snprintf(text, sizeof text, "%s.%d", name, index);
    sl_graph_push(graph, text);
}

void sl_graph_pop(sl_graph *graph)
{
    if (!is_open(graph, "pop"))
        return;
    if (graph->scope_depth == 0) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "pop: no scope is open");
        return;
    }
    graph->scope[graph->scope_lengths[--graph->scope_depth]] = '\0';
}

/* ---- Values ---------------------------------------------------------------------------------- */

static sl_status append_id(sl_id_list *list, int id)
{
    sl_status status = SL_GROW(list->ids, &list->capacity, (size_t)list->count + 1);
    if (status == SL_OK)
        list->ids[list->count++] = id;
    return status;
}

static sl_status append_value(sl_graph *graph, const sl_graph_value *value, int *id)
{
    sl_status status = SL_GROW(graph->values, &graph->value_capacity, (size_t)graph->value_count + 1);
    if (status != SL_OK)
        return status;
    graph->values[graph->value_count] = *value;
    *id = graph->value_count++;
    return SL_OK;
}

static const char *kind_name(sl_value_kind kind)
{
    static const char *const names[] = { "node", "input", "parameter", "constant", "state" };
    return names[kind];
}

/* Adds an input, parameter, constant or state; name is the full one. */
static sl_value add_source(sl_graph *graph, sl_id_list *list, const char *name, sl_graph_value value)
{
    sl_status status = SL_OK;
    int id = 0;
    int64_t count;
    char *copy = NULL;
    status = sl_shape_count(&value.shape, &count);
    if (status != SL_OK)
        return sl_graph_refuse(graph, status, "%s '%s': %s", kind_name(value.kind), name, sl_error_message());
    SL_TRY(sl_arena_strdup(graph->arena, name, &copy));
    value.name = copy;
    value.node = -1;
    value.index = list->count;
    SL_TRY(append_value(graph, &value, &id));
    SL_TRY(append_id(list, id));
    SL_TRY(sl_names_put(&graph->value_names, copy, id));
done:
    return status == SL_OK ? (sl_value){ id } : keep_error(graph, status);
}

/* A shape from a list; a rank that does not fit gives one that sl_shape_count refuses. */
static sl_shape make_shape(int rank, const int64_t *dims)
{
    sl_shape shape = { .rank = rank };
    if (rank > 0 && rank <= SL_MAX_DIMS)
        memcpy(shape.dims, dims, (size_t)rank * sizeof *dims);
    return shape;
}

/* False (an error) where the name is missing or taken. */
static bool name_is_free(sl_graph *graph, sl_value_kind kind, const char *name)
{
    if (!name || !*name) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s without a name in scope '%s'", kind_name(kind), graph->scope);
        return false;
    }
    int taken = sl_names_get(&graph->value_names, name, 0);
    if (taken)
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s '%s': there is a %s of that name", kind_name(kind), name,
                        kind_name(graph->values[taken].kind));
    return !taken;
}

static sl_value add_input(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims, bool grad)
{
    if (!is_open(graph, "input") || !name_is_free(graph, SL_VALUE_INPUT, name))
        return (sl_value){ -1 };
    if (grad && !sl_dtype_is_floating(dtype))
        return sl_graph_refuse(graph, SL_ERR_ARGUMENT, "input '%s': %s has no gradient", name, sl_dtype_name(dtype));
    return add_source(
        graph, &graph->inputs, name,
        (sl_graph_value){
            .kind = SL_VALUE_INPUT, .dtype = dtype, .shape = make_shape(rank, dims), .requires_grad = grad });
}

sl_value sl_graph_input(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims)
{
    return add_input(graph, name, dtype, rank, dims, false);
}

sl_value sl_graph_input_differentiable(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims)
{
    return add_input(graph, name, dtype, rank, dims, true);
}

void sl_graph_set_param_dtype(sl_graph *graph, sl_dtype dtype)
{
    if (!sl_dtype_is_floating(dtype))
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "parameters cannot be %s", sl_dtype_name(dtype));
    else
        graph->param_dtype = dtype;
}

/* The scope's prefix and the name; NULL (an error) where it does not fit. */
static const char *full_name(sl_graph *graph, const char *name, char *text, size_t size)
{
    int length = snprintf(text, size, "%s%s%s", graph->scope, *graph->scope ? "." : "", name ? name : "");
    if (!name || !*name || length < 0 || (size_t)length >= size) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "'%.60s' in scope '%s' makes no usable name", name ? name : "",
                        graph->scope);
        return NULL;
    }
    return text;
}

sl_value sl_graph_param(sl_graph *graph, const char *name, int rank, const int64_t *dims, sl_init init)
{
    char text[768], was[128], asked[128];
    if (!is_open(graph, "parameter") || !full_name(graph, name, text, sizeof text))
        return (sl_value){ -1 };
    sl_shape shape = make_shape(rank, dims);
    int id = sl_names_get(&graph->value_names, text, 0);
    const sl_graph_value *known = &graph->values[id];
    if (id && known->kind == SL_VALUE_PARAM && known->dtype == graph->param_dtype) {
        if (sl_shape_equal(&known->shape, &shape))
            return (sl_value){ id };
        return sl_graph_refuse(graph, SL_ERR_SHAPE, "parameter '%s' is %s and was asked for again as %s", text,
                               sl_shape_text(&known->shape, was, sizeof was),
                               sl_shape_text(&shape, asked, sizeof asked));
    }
    if (!name_is_free(graph, SL_VALUE_PARAM, text))
        return (sl_value){ -1 };
    return add_source(graph, &graph->params, text,
                      (sl_graph_value){ .kind = SL_VALUE_PARAM,
                                        .dtype = graph->param_dtype,
                                        .shape = shape,
                                        .requires_grad = true,
                                        .fixed = true,
                                        .init = init });
}

sl_value sl_graph_constant(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims,
                           const void *data)
{
    char text[768];
    if (!is_open(graph, "constant") || !full_name(graph, name, text, sizeof text) ||
        !name_is_free(graph, SL_VALUE_CONSTANT, text))
        return (sl_value){ -1 };
    sl_shape shape = make_shape(rank, dims);
    int64_t count = 0;
    void *copy = NULL;
    sl_status status = sl_shape_count(&shape, &count);
    if (status == SL_OK)
        status = sl_arena_copy(graph->arena, data, (size_t)count * sl_dtype_size(dtype), &copy);
    if (status != SL_OK)
        return sl_graph_refuse(graph, status, "constant '%s': %s", text, sl_error_message());
    return add_source(
        graph, &graph->constants, text,
        (sl_graph_value){ .kind = SL_VALUE_CONSTANT, .dtype = dtype, .shape = shape, .fixed = true, .data = copy });
}

sl_value sl_graph_state(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims)
{
    char text[768];
    if (!is_open(graph, "state") || !full_name(graph, name, text, sizeof text) ||
        !name_is_free(graph, SL_VALUE_STATE, text))
        return (sl_value){ -1 };
    return add_source(graph, &graph->states, text,
                      (sl_graph_value){ .kind = SL_VALUE_STATE, .dtype = dtype, .shape = make_shape(rank, dims) });
}

sl_shape sl_value_shape(const sl_graph *graph, sl_value value)
{
    if (value.id <= 0 || value.id >= graph->value_count)
        return (sl_shape){ .rank = -1 };
    return graph->values[value.id].shape;
}

sl_dtype sl_value_dtype(const sl_graph *graph, sl_value value)
{
    if (value.id <= 0 || value.id >= graph->value_count)
        return SL_DTYPE_COUNT;
    return graph->values[value.id].dtype;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

const char *sl_graph_next_name(sl_graph *graph, int op)
{
    char text[768];
    const char *base = full_name(graph, sl_node_op_name(op), text, sizeof text);
    if (!base)
        return NULL;
    size_t length = strlen(text);
    for (int i = 2; sl_names_get(&graph->node_names, text, 0); i++)
        snprintf(text + length, sizeof text - length, "_%d", i);
    char *copy = NULL;
    sl_status status = sl_arena_strdup(graph->arena, text, &copy);
    if (status != SL_OK)
        keep_error(graph, status);
    return copy;
}

bool sl_graph_accepts(sl_graph *graph, int op, const sl_value *inputs, int count, uint32_t optional)
{
    const char *name = sl_node_op_name(op), *scope = graph->scope, *dot = *scope ? "." : "";
    if (!is_open(graph, name))
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
    node->fixed = node->op != SL_OP_DROPOUT && node->op != SL_OP_ATTENTION_CACHED;
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
        SL_TRY(append_value(graph, &value, &node->outputs[i]));
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
        keep_error(graph, status);
}
