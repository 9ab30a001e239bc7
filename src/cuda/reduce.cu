// Sums, means and maxima over chosen dims; the reverse of a broadcast; the sum of squares. Which way is taken follows
// from the shape alone, so that the order of additions does too.
#include "cuda/columns.cuh"

#include "kernel/call.h"

// A tensor's dims in two groups: those that stay (one result each) and those reduced over.
struct grouped {
    void *data;
    int dtype;
    tensor_view kept, reduced; // places only
    int64_t results, size;
    bool leading; // the dims reduced over come first: sums over the rows of a matrix
};

static void append(tensor_view *part, int64_t dim, int64_t stride)
{
    int last = part->rank - 1;
    if (last >= 0 && part->strides[last] == stride * dim) {
        part->dims[last] *= dim;
        part->strides[last] = stride;
        return;
    }
    part->dims[part->rank] = dim;
    part->strides[part->rank++] = stride;
}

static grouped group(const sl_view *view, uint32_t dims)
{
    grouped g = {};
    g.data = view->data;
    g.dtype = view->meta.dtype;
    g.results = g.size = 1;
    g.leading = true;
    for (int i = 0; i < view->meta.shape.rank; i++) {
        int64_t dim = view->meta.shape.dims[i];
        bool reduced = dims >> i & 1;
        (reduced ? g.size : g.results) *= dim;
        if (dim == 1)
            continue;
        if (reduced && g.kept.rank > 0)
            g.leading = false;
        append(reduced ? &g.reduced : &g.kept, dim, view->meta.strides[i]);
    }
    return g;
}

static uint32_t reduced_dims(const sl_kernel_call *call)
{
    if (call->op != SL_OP_SUM_TO)
        return call->attrs.dims;
    const sl_shape *x = &call->inputs[0].meta.shape, *y = &call->outputs[0].meta.shape;
    int added = x->rank - y->rank;
    uint32_t dims = 0;
    for (int i = 0; i < x->rank; i++) {
        if (i < added || y->dims[i - added] != x->dims[i])
            dims |= 1u << i;
    }
    return dims;
}

// Enough columns to fill the threads of a tile.
static bool by_columns(const grouped &g)
{
    return g.leading && g.results >= 32 && g.size > 1;
}

// ---- A group of threads for each result -------------------------------------------------------

template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK) reduce_each(const __grid_constant__ grouped x, const __grid_constant__ tensor_view y, int64_t rows, int op, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    int64_t start = x.kept.offset(row);
    S value = op == SL_OP_MAX ? (S)-INFINITY : 0;
    for (int64_t i = group_lane<GROUP>(); i < x.size; i += GROUP) {
        S term = load<S>(x.data, x.dtype, start + x.reduced.offset(i));
        value = op == SL_OP_MAX ? larger_of<S>(term, value) : value + term;
    }
    value = op == SL_OP_MAX ? group_max<GROUP, S>(value) : group_sum<GROUP, S>(value);
    if (op == SL_OP_MEAN)
        value /= (S)x.size;
    if (group_lane<GROUP>() == 0)
        store<S>(y.data, y.dtype, y.offset(row), value, add);
}

// ---- Sums over the rows of a matrix -----------------------------------------------------------

template <class S> struct plain_columns {
    grouped x;
    __device__ __forceinline__ void add(int64_t row, int64_t column, int64_t columns, S sums[1][WIDE]) const
    {
        int64_t at = x.reduced.offset(row);
        S v[WIDE];
        if (x.kept.rank == 1) {
            row_view<S>(x.data, at, x.dtype, x.kept.strides[0]).get_wide(column, columns, 0, v);
        } else {
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                v[k] = column + k < columns ? load<S>(x.data, x.dtype, at + x.kept.offset(column + k)) : 0;
        }
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sums[0][k] += v[k];
    }
};

template <class S> static void sum_columns(const cuda_run *run, const grouped &g, const tensor_view &y, double factor)
{
    plain_columns<S> source;
    source.x = g;
    launch_columns<S, 1>(run, source, g.size, g.results, y, tensor_view(), sl_call_accumulates(run->call, 0), false,
                         factor);
}

sl_status cuda_reduce(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    grouped g = group(sl_call_input(call, 0), reduced_dims(call));
    tensor_view y = merged(sl_call_output(call, 0), 0);
    bool add = sl_call_accumulates(call, 0);
    if (call->op == SL_OP_MAX || !by_columns(g)) {
        LAUNCH_ROWS(run, reduce_each, g.results, g.size, g, y, g.results, (int)call->op, add);
        return launched("reduction kernel");
    }
    double factor = call->op == SL_OP_MEAN ? 1 / (double)g.size : 1;
    if (is_double(call))
        sum_columns<double>(run, g, y, factor);
    else
        sum_columns<float>(run, g, y, factor);
    return launched("reduction kernel");
}

// ---- Gradient of the maximum ------------------------------------------------------------------

// Equal maxima share the gradient.
template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK)
    max_grad_each(const __grid_constant__ grouped x, const __grid_constant__ grouped dx, const __grid_constant__ tensor_view y, const __grid_constant__ tensor_view dy, int64_t rows, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    int64_t start = x.kept.offset(row), to = dx.kept.offset(row);
    S max = load<S>(y.data, y.dtype, y.offset(row)), gradient = load<S>(dy.data, dy.dtype, dy.offset(row)), ties = 0;
    for (int64_t i = group_lane<GROUP>(); i < x.size; i += GROUP)
        ties += (S)(load<S>(x.data, x.dtype, start + x.reduced.offset(i)) == max ? 1 : 0);
    ties = group_sum<GROUP, S>(ties);
    for (int64_t i = group_lane<GROUP>(); i < x.size; i += GROUP) {
        bool is_max = load<S>(x.data, x.dtype, start + x.reduced.offset(i)) == max;
        store<S>(dx.data, dx.dtype, to + dx.reduced.offset(i), is_max ? gradient / ties : 0, add);
    }
}

sl_status cuda_max_grad(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    grouped x = group(sl_call_input(call, 0), call->attrs.dims), dx = group(sl_call_output(call, 0), call->attrs.dims);
    LAUNCH_ROWS(run, max_grad_each, x.results, x.size, x, dx, merged(sl_call_input(call, 1), 0),
                merged(sl_call_input(call, 2), 0), x.results, sl_call_accumulates(call, 0));
    return launched("gradient of a maximum");
}

// ---- Sum of squares ---------------------------------------------------------------------------

enum { SQUARE_BLOCKS = SL_GPU_SQUARE_BLOCKS };

// Threads take eight neighbours at a time, wherever they lie.
__global__ void __launch_bounds__(BLOCK)
    square_parts(const __grid_constant__ tensor_view x, int64_t count, bool flat, double *parts)
{
    double sum = 0;
    row_view<double> row(x, 0);
    FOR_EACH_ELEMENT (group, (count + WIDE - 1) / WIDE) {
        double v[WIDE] = {};
        if (flat) {
            row.get_wide(group * WIDE, count, 0, v);
        } else {
#pragma unroll
            for (int k = 0; k < WIDE; k++) {
                if (group * WIDE + k < count)
                    v[k] = load<double>(x.data, x.dtype, x.offset(group * WIDE + k));
            }
        }
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sum += v[k] * v[k];
    }
    sum = group_sum<BLOCK, double>(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(BLOCK) square_total(const double *parts, const __grid_constant__ tensor_view y, bool add)
{
    double sum = 0;
    for (int i = threadIdx.x; i < SQUARE_BLOCKS; i += BLOCK)
        sum += parts[i];
    sum = group_sum<BLOCK, double>(sum);
    if (threadIdx.x == 0)
        store<double>(y.data, y.dtype, 0, sum, add);
}

sl_status cuda_square_sum(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    double *parts = (double *)call->scratch;
    tensor_view view = merged(x, 0);
    bool flat = view.rank == 1 && view.strides[0] == 1;
    square_parts<<<SQUARE_BLOCKS, BLOCK, 0, run->stream>>>(view, sl_meta_count(&x->meta), flat, parts);
    square_total<<<1, BLOCK, 0, run->stream>>>(parts, view_of(sl_call_output(call, 0)), sl_call_accumulates(call, 0));
    return launched("sum of squares");
}
