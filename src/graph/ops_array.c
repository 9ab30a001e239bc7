/* Builders of arithmetic with broadcasting, reductions, data movement and views. */
#include "graph/build.h"

#include <string.h>

#define BEGIN(op_, names_, ...)                                                                                        \
    const sl_value inputs[] = { __VA_ARGS__ };                                                                         \
    const sl_build build = { g, op_, names_, inputs, (int)(sizeof inputs / sizeof *inputs) };                          \
    if (!sl_build_begin(&build, 0))                                                                                    \
        return (sl_value)                                                                                              \
        {                                                                                                              \
            -1                                                                                                         \
        }

static sl_value add_binary(sl_graph *g, int op, sl_value a, sl_value b)
{
    BEGIN(op, "a b", a, b);
    sl_shape shape;
    if (!sl_build_is_floating(&build, 0) || !sl_build_is_floating(&build, 1))
        return (sl_value){ -1 };
    if (sl_shape_broadcast(&sl_build_input(&build, 0)->shape, &sl_build_input(&build, 1)->shape, &shape) != SL_OK)
        return sl_build_refuse(&build, "the shapes do not broadcast");
    return sl_build_add(&build, NULL, sl_build_input(&build, 0)->dtype, &shape);
}

sl_value sl_add(sl_graph *g, sl_value a, sl_value b)
{
    return add_binary(g, SL_OP_ADD, a, b);
}

sl_value sl_sub(sl_graph *g, sl_value a, sl_value b)
{
    return add_binary(g, SL_OP_SUB, a, b);
}

sl_value sl_mul(sl_graph *g, sl_value a, sl_value b)
{
    return add_binary(g, SL_OP_MUL, a, b);
}

sl_value sl_div(sl_graph *g, sl_value a, sl_value b)
{
    return add_binary(g, SL_OP_DIV, a, b);
}

/* ---- Reductions ------------------------------------------------------------------------------ */

static sl_value add_reduction(sl_graph *g, int op, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    BEGIN(op, "x", x);
    const sl_graph_value *value = sl_build_input(&build, 0);
    uint32_t mask = dim_count == 0 ? (1u << value->shape.rank) - 1 : 0;
    sl_shape shape = { .rank = 0 };
    if (!sl_build_is_floating(&build, 0))
        return (sl_value){ -1 };
    for (int i = 0; i < dim_count; i++) {
        int dim;
        if (!sl_build_dim(&build, 0, dims[i], &dim))
            return (sl_value){ -1 };
        mask |= 1u << dim;
    }
    for (int i = 0; i < value->shape.rank; i++) {
        if (op == SL_OP_MAX && (mask >> i & 1u) && value->shape.dims[i] == 0)
            return sl_build_refuse(&build, "no element to take the maximum of");
        if (!(mask >> i & 1u))
            shape.dims[shape.rank++] = value->shape.dims[i];
        else if (keepdim)
            shape.dims[shape.rank++] = 1;
    }
    return sl_build_add(&build, &(sl_op_attrs){ .dims = mask }, value->dtype, &shape);
}

sl_value sl_sum(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    return add_reduction(g, SL_OP_SUM, x, dims, dim_count, keepdim);
}

sl_value sl_mean(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    return add_reduction(g, SL_OP_MEAN, x, dims, dim_count, keepdim);
}

sl_value sl_max(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    return add_reduction(g, SL_OP_MAX, x, dims, dim_count, keepdim);
}

/* ---- Data movement --------------------------------------------------------------------------- */

sl_value sl_copy(sl_graph *g, sl_value x)
{
    BEGIN(SL_OP_COPY, "x", x);
    return sl_build_add(&build, NULL, sl_build_input(&build, 0)->dtype, &sl_build_input(&build, 0)->shape);
}

sl_value sl_concat(sl_graph *g, const sl_value *values, int count, int dim)
{
    const sl_build build = { g, SL_OP_CONCAT, "x", values, count };
    if (count < 1)
        return sl_build_refuse(&build, "nothing to join");
    if (!sl_build_begin(&build, 0) || !sl_build_dim(&build, 0, dim, &dim))
        return (sl_value){ -1 };
    sl_shape shape = sl_build_input(&build, 0)->shape;
    for (int i = 1; i < count; i++) {
        const sl_graph_value *value = sl_build_input(&build, i);
        sl_shape like = shape;
        if (value->shape.rank == shape.rank)
            like.dims[dim] = value->shape.dims[dim];
        if (!sl_shape_equal(&like, &value->shape) || value->dtype != sl_build_input(&build, 0)->dtype)
            return sl_build_refuse(&build, "argument %d differs in more than dim %d", i, dim);
        shape.dims[dim] += value->shape.dims[dim];
    }
    return sl_build_add(&build, &(sl_op_attrs){ .dim = dim }, sl_build_input(&build, 0)->dtype, &shape);
}

/* ---- Views ----------------------------------------------------------------------------------- */

static sl_value add_view(const sl_build *build, sl_node_draft draft, const sl_shape *shape)
{
    const sl_dtype dtype = sl_build_input(build, 0)->dtype;
    sl_value out;
    draft.op = build->op;
    draft.inputs = build->inputs;
    draft.input_count = build->count;
    draft.output_count = 1;
    draft.dtypes = &dtype;
    draft.shapes = shape;
    sl_graph_add(build->graph, &draft, &out);
    return out;
}

sl_value sl_reshape(sl_graph *g, sl_value x, int rank, const int64_t *dims)
{
    BEGIN(SL_NODE_RESHAPE, "x", x);
    sl_shape shape = { .rank = rank };
    int64_t have = 1, known = 1;
    int open = -1;
    char text[128];
    if (rank < 0 || rank > SL_MAX_DIMS)
        return sl_build_refuse(&build, "%d dims; 0 to %d are possible", rank, SL_MAX_DIMS);
    if (sl_shape_count(&sl_build_input(&build, 0)->shape, &have) != SL_OK)
        return sl_build_refuse(&build, "%s", sl_error_message());
    for (int i = 0; i < rank; i++) {
        shape.dims[i] = dims[i];
        if (dims[i] == -1 && open < 0)
            open = i;
        else if (dims[i] < 0 || __builtin_mul_overflow(known, dims[i], &known))
            return sl_build_refuse(&build, "dim %d of the result is %lld (one may be -1)", i, (long long)dims[i]);
    }
    if (open >= 0 && known > 0)
        shape.dims[open] = have / known;
    if ((open >= 0 && known == 0) || known * (open >= 0 ? shape.dims[open] : 1) != have)
        return sl_build_refuse(&build, "does not fill %s", sl_shape_text(&shape, text, sizeof text));
    return add_view(&build, (sl_node_draft){ 0 }, &shape);
}

sl_value sl_permute(sl_graph *g, sl_value x, const int *order)
{
    BEGIN(SL_NODE_PERMUTE, "x", x);
    const sl_shape from = sl_build_input(&build, 0)->shape;
    sl_shape shape = from;
    sl_node_draft draft = { 0 };
    uint32_t seen = 0;
    for (int i = 0; i < from.rank; i++) {
        if (!sl_build_dim(&build, 0, order[i], &draft.order[i]))
            return (sl_value){ -1 };
        seen |= 1u << draft.order[i];
        shape.dims[i] = from.dims[draft.order[i]];
    }
    if (seen != (1u << from.rank) - 1)
        return sl_build_refuse(&build, "the order names a dim twice");
    return add_view(&build, draft, &shape);
}

sl_value sl_transpose(sl_graph *g, sl_value x, int dim_a, int dim_b)
{
    BEGIN(SL_NODE_PERMUTE, "x", x);
    int order[SL_MAX_DIMS];
    if (!sl_build_dim(&build, 0, dim_a, &dim_a) || !sl_build_dim(&build, 0, dim_b, &dim_b))
        return (sl_value){ -1 };
    for (int i = 0; i < SL_MAX_DIMS; i++)
        order[i] = i == dim_a ? dim_b : i == dim_b ? dim_a : i;
    return sl_permute(g, x, order);
}

sl_value sl_slice(sl_graph *g, sl_value x, int dim, int64_t start, int64_t stop)
{
    BEGIN(SL_NODE_SLICE, "x", x);
    sl_shape shape = sl_build_input(&build, 0)->shape;
    if (!sl_build_dim(&build, 0, dim, &dim))
        return (sl_value){ -1 };
    if (start < 0 || stop < start || stop > shape.dims[dim])
        return sl_build_refuse(&build, "%lld..%lld is not within dim %d", (long long)start, (long long)stop, dim);
    shape.dims[dim] = stop - start;
    return add_view(&build, (sl_node_draft){ .dim = dim, .start = start }, &shape);
}

sl_value sl_expand(sl_graph *g, sl_value x, int rank, const int64_t *dims)
{
    BEGIN(SL_NODE_EXPAND, "x", x);
    const sl_shape *from = &sl_build_input(&build, 0)->shape;
    sl_shape shape = { .rank = rank }, joined;
    char text[128];
    if (rank < 0 || rank > SL_MAX_DIMS)
        return sl_build_refuse(&build, "%d dims; 0 to %d are possible", rank, SL_MAX_DIMS);
    memcpy(shape.dims, dims, (size_t)rank * sizeof *dims);
    if (sl_shape_broadcast(from, &shape, &joined) != SL_OK || !sl_shape_equal(&joined, &shape))
        return sl_build_refuse(&build, "does not expand to %s", sl_shape_text(&shape, text, sizeof text));
    return add_view(&build, (sl_node_draft){ 0 }, &shape);
}

void sl_split(sl_graph *g, sl_value x, int dim, const int64_t *sizes, int count, sl_value *parts)
{
    enum { MOST = 64 };
    const sl_build build = { g, SL_NODE_SPLIT, "x", &x, 1 };
    sl_dtype dtypes[MOST];
    sl_shape shapes[MOST];
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        parts[i] = (sl_value){ -1 };
    if (!sl_build_begin(&build, 0) || !sl_build_dim(&build, 0, dim, &dim))
        return;
    if (count < 1 || count > MOST) {
        sl_build_refuse(&build, "%d parts; 1 to %d are possible", count, MOST);
        return;
    }
    const sl_graph_value whole = *sl_build_input(&build, 0);
    for (int i = 0; i < count; i++) {
        dtypes[i] = whole.dtype;
        shapes[i] = whole.shape;
        shapes[i].dims[dim] = sizes[i];
        if (sizes[i] < 0 || __builtin_add_overflow(total, sizes[i], &total)) {
            sl_build_refuse(&build, "part %d has size %lld", i, (long long)sizes[i]);
            return;
        }
    }
    if (total != whole.shape.dims[dim]) {
        sl_build_refuse(&build, "the parts of dim %d add up to %lld", dim, (long long)total);
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
