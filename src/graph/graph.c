/* Graphs being built: the first error, scopes, the values that nodes start from, outputs, and what the finished graph
 * knows about its values. */
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

sl_value sl_graph_keep_error(sl_graph *graph, sl_status code)
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
    return sl_graph_keep_error(graph, code);
}

sl_status sl_graph_status(const sl_graph *graph)
{
    if (graph->status == SL_OK)
        return SL_OK;
    return sl_fail(graph->status, "%s", graph->message ? graph->message : sl_status_text(graph->status));
}

bool sl_graph_is_open(sl_graph *graph, const char *what)
{
    if (graph->finished)
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s: the graph is finished", what);
    return graph->status == SL_OK;
}

/* ---- Scopes ---------------------------------------------------------------------------------- */

void sl_graph_push(sl_graph *graph, const char *name)
{
    if (!sl_graph_is_open(graph, "push"))
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
    if (!sl_graph_is_open(graph, "pop"))
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

sl_status sl_graph_append_value(sl_graph *graph, const sl_graph_value *value, int *id)
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
    SL_TRY(sl_graph_append_value(graph, &value, &id));
    SL_TRY(append_id(list, id));
    SL_TRY(sl_names_put(&graph->value_names, copy, id));
done:
    return status == SL_OK ? (sl_value){ id } : sl_graph_keep_error(graph, status);
}

/* A shape from a list; a rank that does not fit gives one that sl_shape_count refuses. */
static sl_shape make_shape(int rank, const int64_t *dims)
{
    sl_shape shape = { .rank = rank };
    if (rank > 0 && rank <= SL_MAX_DIMS)
        memcpy(shape.dims, dims, (size_t)rank * sizeof *dims);
    return shape;
}

/* False (an error) if the name is missing or taken. */
static bool name_is_free(sl_graph *graph, sl_value_kind kind, const char *name)
{
    if (!name || !*name) {
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s without a name in scope '%s'", kind_name(kind), graph->scope);
        return false;
    }
    int taken = sl_names_get(&graph->value_names, name, 0);
    if (taken)
        sl_graph_refuse(graph, SL_ERR_ARGUMENT, "%s '%s': the name is that of another %s", kind_name(kind), name,
                        kind_name(graph->values[taken].kind));
    return !taken;
}

static sl_value add_input(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims, bool grad)
{
    if (!sl_graph_is_open(graph, "input") || !name_is_free(graph, SL_VALUE_INPUT, name))
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

const char *sl_graph_full_name(sl_graph *graph, const char *name, char *text, size_t size)
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
    if (!sl_graph_is_open(graph, "parameter") || !sl_graph_full_name(graph, name, text, sizeof text))
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

sl_status sl_graph_freeze(sl_graph *graph, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        int id = sl_names_get(&graph->value_names, names[i], 0);
        if (!id || graph->values[id].kind != SL_VALUE_PARAM)
            return sl_fail(SL_ERR_ARGUMENT, "the graph has no parameter '%.200s' that could be frozen", names[i]);
        graph->values[id].requires_grad = false;
    }
    sl_graph_derive_grads(graph);
    return SL_OK;
}

sl_value sl_graph_constant(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims,
                           const void *data)
{
    char text[768];
    if (!sl_graph_is_open(graph, "constant") || !sl_graph_full_name(graph, name, text, sizeof text) ||
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
    if (!sl_graph_is_open(graph, "state") || !sl_graph_full_name(graph, name, text, sizeof text) ||
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

/* ---- Outputs --------------------------------------------------------------------------------- */

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
        node->live = sl_node_writes_state(node);
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

bool sl_graph_has_input(const sl_graph *graph, const char *name)
{
    int id = sl_names_get(&graph->value_names, name, 0);
    return id > 0 && graph->values[id].kind == SL_VALUE_INPUT;
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
