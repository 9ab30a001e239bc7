/* Views: nodes that no kernel runs. Builders, and what they do to a tensor. Their gradients are in gradient.c. */
#include "graph/lower.h"

#include <string.h>

/* ---- Building -------------------------------------------------------------------------------- */

/* Whether a view of x can be added; x must be there. */
static bool begin(sl_graph *g, sl_node_op op, sl_value x)
{
    if (!sl_graph_accepts(g, op, &x, 1))
        return false;
    if (x.id == 0)
        sl_graph_refuse(g, SL_ERR_ARGUMENT, "%s: x is missing", sl_node_op_name(op));
    return x.id != 0;
}

static sl_shape shape_of(const sl_graph *g, sl_value x)
{
    return g->values[x.id].shape;
}

/* A negative dim counts from the end; an error if it is out of range. */
static bool find_dim(sl_graph *g, sl_node_op op, sl_value x, int dim, int *out)
{
    int rank = shape_of(g, x).rank;
    if (dim < -rank || dim >= rank) {
        sl_graph_refuse_node(g, op, x, "dim %d is out of range", dim);
        return false;
    }
    *out = dim < 0 ? dim + rank : dim;
    return true;
}

static sl_value add_view(sl_graph *g, sl_node_op op, sl_value x, sl_node_draft draft, const sl_shape *shape)
{
    const sl_dtype dtype = g->values[x.id].dtype;
    sl_value out;
    draft.op = op;
    draft.inputs = &x;
    draft.input_count = 1;
    draft.output_count = 1;
    draft.dtypes = &dtype;
    draft.shapes = shape;
    sl_graph_add(g, &draft, &out);
    return out;
}

sl_value sl_reshape(sl_graph *g, sl_value x, int rank, const int64_t *dims)
{
    if (!begin(g, SL_NODE_RESHAPE, x))
        return (sl_value){ -1 };
    const sl_shape from = shape_of(g, x);
    sl_shape shape = { .rank = rank };
    int64_t have = 1, known = 1;
    int open = -1;
    char text[128];
    if (rank < 0 || rank > SL_MAX_DIMS)
        return sl_graph_refuse_node(g, SL_NODE_RESHAPE, x, "%d dims; 0 to %d are possible", rank, SL_MAX_DIMS);
    if (sl_shape_count(&from, &have) != SL_OK)
        return sl_graph_refuse_node(g, SL_NODE_RESHAPE, x, "%s", sl_error_message());
    for (int i = 0; i < rank; i++) {
        shape.dims[i] = dims[i];
        if (dims[i] == -1 && open < 0)
            open = i;
        else if (dims[i] < 0 || __builtin_mul_overflow(known, dims[i], &known))
            return sl_graph_refuse_node(g, SL_NODE_RESHAPE, x, "dim %d of the result is %lld (one may be -1)", i,
                                        (long long)dims[i]);
    }
    if (open >= 0 && known > 0)
        shape.dims[open] = have / known;
    if ((open >= 0 && known == 0) || known * (open >= 0 ? shape.dims[open] : 1) != have)
        return sl_graph_refuse_node(g, SL_NODE_RESHAPE, x, "does not fill %s",
                                    sl_shape_text(&shape, text, sizeof text));
    return add_view(g, SL_NODE_RESHAPE, x, (sl_node_draft){ 0 }, &shape);
}

sl_value sl_permute(sl_graph *g, sl_value x, const int *order)
{
    if (!begin(g, SL_NODE_PERMUTE, x))
        return (sl_value){ -1 };
    const sl_shape from = shape_of(g, x);
    sl_shape shape = from;
    sl_node_draft draft = { 0 };
    uint32_t seen = 0;
    for (int i = 0; i < from.rank; i++) {
        if (!find_dim(g, SL_NODE_PERMUTE, x, order[i], &draft.order[i]))
            return (sl_value){ -1 };
        seen |= 1u << draft.order[i];
        shape.dims[i] = from.dims[draft.order[i]];
    }
    if (seen != (1u << from.rank) - 1)
        return sl_graph_refuse_node(g, SL_NODE_PERMUTE, x, "the order names a dim twice");
    return add_view(g, SL_NODE_PERMUTE, x, draft, &shape);
}

sl_value sl_transpose(sl_graph *g, sl_value x, int dim_a, int dim_b)
{
    int order[SL_MAX_DIMS];
    if (!begin(g, SL_NODE_PERMUTE, x) || !find_dim(g, SL_NODE_PERMUTE, x, dim_a, &dim_a) ||
        !find_dim(g, SL_NODE_PERMUTE, x, dim_b, &dim_b))
        return (sl_value){ -1 };
    for (int i = 0; i < SL_MAX_DIMS; i++)
        order[i] = i == dim_a ? dim_b : i == dim_b ? dim_a : i;
    return sl_permute(g, x, order);
}

sl_value sl_slice(sl_graph *g, sl_value x, int dim, int64_t start, int64_t stop)
{
    if (!begin(g, SL_NODE_SLICE, x) || !find_dim(g, SL_NODE_SLICE, x, dim, &dim))
        return (sl_value){ -1 };
    sl_shape shape = shape_of(g, x);
    if (start < 0 || stop < start || stop > shape.dims[dim])
        return sl_graph_refuse_node(g, SL_NODE_SLICE, x, "%lld..%lld is not within dim %d", (long long)start,
                                    (long long)stop, dim);
    shape.dims[dim] = stop - start;
    return add_view(g, SL_NODE_SLICE, x, (sl_node_draft){ .dim = dim, .start = start }, &shape);
}

sl_value sl_expand(sl_graph *g, sl_value x, int rank, const int64_t *dims)
{
    if (!begin(g, SL_NODE_EXPAND, x))
        return (sl_value){ -1 };
    const sl_shape from = shape_of(g, x);
    sl_shape shape = { .rank = rank }, joined;
    char text[128];
    if (rank < 0 || rank > SL_MAX_DIMS)
        return sl_graph_refuse_node(g, SL_NODE_EXPAND, x, "%d dims; 0 to %d are possible", rank, SL_MAX_DIMS);
    memcpy(shape.dims, dims, (size_t)rank * sizeof *dims);
    if (sl_shape_broadcast(&from, &shape, &joined) != SL_OK || !sl_shape_equal(&joined, &shape))
        return sl_graph_refuse_node(g, SL_NODE_EXPAND, x, "does not expand to %s",
                                    sl_shape_text(&shape, text, sizeof text));
    return add_view(g, SL_NODE_EXPAND, x, (sl_node_draft){ 0 }, &shape);
}

void sl_split(sl_graph *g, sl_value x, int dim, const int64_t *sizes, int count, sl_value *parts)
{
    enum { MOST = 64 };
    sl_dtype dtypes[MOST];
    sl_shape shapes[MOST];
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        parts[i] = (sl_value){ -1 };
    if (!begin(g, SL_NODE_SPLIT, x) || !find_dim(g, SL_NODE_SPLIT, x, dim, &dim))
        return;
    if (count < 1 || count > MOST) {
        sl_graph_refuse_node(g, SL_NODE_SPLIT, x, "%d parts; 1 to %d are possible", count, MOST);
        return;
    }
    const sl_graph_value whole = g->values[x.id];
    for (int i = 0; i < count; i++) {
        dtypes[i] = whole.dtype;
        shapes[i] = whole.shape;
        shapes[i].dims[dim] = sizes[i];
        if (sizes[i] < 0 || __builtin_add_overflow(total, sizes[i], &total)) {
            sl_graph_refuse_node(g, SL_NODE_SPLIT, x, "part %d has size %lld", i, (long long)sizes[i]);
            return;
        }
    }
    if (total != whole.shape.dims[dim]) {
        sl_graph_refuse_node(g, SL_NODE_SPLIT, x, "the parts of dim %d add up to %lld", dim, (long long)total);
        return;
    }
    sl_graph_add(g,
                 &(sl_node_draft){ .op = SL_NODE_SPLIT,
                                   .inputs = &x,
                                   .input_count = 1,
                                   .dim = dim,
                                   .output_count = count,
                                   .dtypes = dtypes,
                                   .shapes = shapes },
                 parts);
}

/* ---- Applying -------------------------------------------------------------------------------- */

int64_t sl_split_start(const sl_graph *graph, const sl_graph_node *node, int output)
{
    int64_t start = 0;
    for (int i = 0; i < output; i++)
        start += graph->values[node->outputs[i]].shape.dims[node->dim];
    return start;
}

sl_status sl_view_apply(const sl_graph *graph, const sl_graph_node *node, int output, const sl_operand *x,
                        bool *possible, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_shape *shape = &graph->values[node->outputs[output]].shape;
    sl_operand view = *x;
    int64_t start = node->start;
    *possible = true;
    switch (node->op) {
    case SL_NODE_RESHAPE:
        *possible = sl_meta_reshape(&x->meta, shape, &view.meta) == SL_OK; /* the shapes fit: strides alone forbid it */
        break;
    case SL_NODE_PERMUTE:
        SL_TRY(sl_meta_permute(&x->meta, node->order, &view.meta));
        break;
    case SL_NODE_EXPAND:
        SL_TRY(sl_meta_expand(&x->meta, shape, &view.meta));
        break;
    case SL_NODE_SPLIT:
        start = sl_split_start(graph, node, output); /* fall through */
    default:
        SL_TRY(sl_operand_slice(x, node->dim, start, start + shape->dims[node->dim], &view));
    }
    if (*possible)
        *out = view;
done:
    return status;
}
