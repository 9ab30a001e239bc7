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
    using fetched = typename row_view<S>::piece;
    __device__ __forceinline__ fetched fetch(int64_t row, int64_t column, int64_t columns) const
    {
        int64_t at = x.reduced.offset(row);
        fetched what;
        if (x.kept.rank == 1)
            return row_view<S>(x.data, at, x.dtype, x.kept.strides[0]).fetch(column, columns);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            what.values[k] = column + k < columns ? load<S>(x.data, x.dtype, at + x.kept.offset(column + k)) : 0;
        return what;
    }
    __device__ __forceinline__ void add(const fetched &what, int64_t, int64_t, int64_t, S sums[1][WIDE]) const
    {
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sums[0][k] += what.values[k];
    }
};

// Packed rows of bf16.
struct packed_columns {
    const __nv_bfloat16 *x;
    using fetched = eight_bf16;
    __device__ __forceinline__ fetched fetch(int64_t row, int64_t column, int64_t columns) const
    {
        fetched what;
        what.get(x + row * columns + column);
        return what;
    }
    __device__ __forceinline__ void add(const fetched &what, int64_t, int64_t, int64_t, float sums[1][WIDE]) const
    {
        float v[WIDE];
        what.widen(v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sums[0][k] += v[k];
    }
};

template <class S> static void sum_columns(const cuda_run *run, const grouped &g, const tensor_view &y, double factor)
{
    column_results results = {};
    results.to[0] = y;
    results.add[0] = sl_call_accumulates(run->call, 0);
    if (is_packed(sl_call_input(run->call, 0), SL_BF16) && g.results % WIDE == 0 && !is_double(run->call)) {
        packed_columns source = { (const __nv_bfloat16 *)g.data };
        launch_columns<float, 1>(run, source, g.size, g.results, results, factor);
        return;
    }
    plain_columns<S> source;
    source.x = g;
    launch_columns<S, 1>(run, source, g.size, g.results, results, factor);
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

// A tensor in chunks of a fixed size, a block of threads for each; then the chunks' sums, one block for each tensor.
enum { SQUARE_CHUNK = SL_GPU_SQUARE_CHUNK };

// Threads take eight neighbors at a time, wherever they lie.
template <class Get> __device__ __forceinline__ double chunk_squares(int64_t start, int64_t count, Get get)
{
    double sum = 0;
#pragma unroll 4
    for (int64_t i = start + threadIdx.x * WIDE; i < start + SQUARE_CHUNK; i += BLOCK * WIDE) {
        double v[WIDE] = {};
        if (i < count)
            get(i, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sum += v[k] * v[k];
    }
    return group_sum<BLOCK, double>(sum);
}

__device__ __forceinline__ double part_squares(const double *parts, int64_t count)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += BLOCK)
        sum += parts[i];
    return group_sum<BLOCK, double>(sum);
}

// Packed tensors of f32 or bf16, many at once; the table travels with the launch.
struct square_entry {
    void *x;
    int64_t count;
    double *parts, *sum;
    int32_t chunk, dtype;
    bool add;
};

enum { TABLE_SIZE = 640 };

struct square_table {
    int32_t count, chunks;
    square_entry entries[TABLE_SIZE];
};

__global__ void __launch_bounds__(BLOCK) square_chunks(const __grid_constant__ square_table table)
{
    const square_entry &e = table.entries[entry_of_chunk(table.entries, table.count, (int32_t)blockIdx.x)];
    int64_t chunk = (int32_t)blockIdx.x - e.chunk;
    row_view<float> row(e.x, 0, e.dtype, 1);
    double sum = chunk_squares(chunk * SQUARE_CHUNK, e.count, [&](int64_t i, double *out) {
        float v[WIDE];
        row.get_wide(i, e.count, 0, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            out[k] = v[k];
    });
    if (threadIdx.x == 0)
        e.parts[chunk] = sum;
}

__global__ void __launch_bounds__(BLOCK) square_sums(const __grid_constant__ square_table table)
{
    const square_entry &e = table.entries[blockIdx.x];
    double sum = part_squares(e.parts, (e.count + SQUARE_CHUNK - 1) / SQUARE_CHUNK);
    if (threadIdx.x == 0)
        *e.sum = e.add ? *e.sum + sum : sum;
}

static bool fits_table(const sl_kernel_call *call)
{
    const sl_meta *x = &call->inputs[0].meta;
    return call->op == SL_OP_SQUARE_SUM && (x->dtype == SL_F32 || x->dtype == SL_BF16) && sl_meta_is_contiguous(x);
}

sl_status cuda_square_sum_many(const cuda_run *run, const sl_kernel_call *calls, int count, int *taken)
{
    square_table table;
    table.count = table.chunks = 0;
    *taken = 0;
    while (*taken < count && table.count < TABLE_SIZE && fits_table(&calls[*taken])) {
        const sl_kernel_call *call = &calls[(*taken)++];
        square_entry *e = &table.entries[table.count++];
        e->x = call->inputs[0].data;
        e->count = sl_meta_count(&call->inputs[0].meta);
        e->parts = (double *)call->scratch;
        e->sum = (double *)call->outputs[0].data;
        e->chunk = table.chunks;
        e->dtype = call->inputs[0].meta.dtype;
        e->add = sl_call_accumulates(call, 0);
        table.chunks += (int32_t)((e->count + SQUARE_CHUNK - 1) / SQUARE_CHUNK);
    }
    if (table.chunks > 0)
        square_chunks<<<(unsigned)table.chunks, BLOCK, 0, run->stream>>>(table);
    if (table.count > 0)
        square_sums<<<(unsigned)table.count, BLOCK, 0, run->stream>>>(table);
    return launched("sum of squares");
}

// Any tensor.
__global__ void __launch_bounds__(BLOCK)
    square_parts(const __grid_constant__ tensor_view x, int64_t count, double *parts)
{
    double sum = chunk_squares((int64_t)blockIdx.x * SQUARE_CHUNK, count, [&](int64_t i, double *out) {
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            if (i + k < count)
                out[k] = load<double>(x.data, x.dtype, x.offset(i + k));
        }
    });
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(BLOCK)
    square_total(const double *parts, int64_t count, const __grid_constant__ tensor_view y, bool add)
{
    double sum = part_squares(parts, count);
    if (threadIdx.x == 0)
        store<double>(y.data, y.dtype, 0, sum, add);
}

// A number a tensor of a model: one thread adds them, in the order of the host; all threads read.
__global__ void __launch_bounds__(BLOCK)
    clip_norm(const __grid_constant__ tensor_view x, int64_t count, double clip, double *norm, double *scale)
{
    __shared__ double values[BLOCK];
    double sum = 0;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int here = count - first < BLOCK ? (int)(count - first) : BLOCK;
        if ((int)threadIdx.x < here)
            values[threadIdx.x] = load<double>(x.data, x.dtype, x.offset(first + threadIdx.x));
        __syncthreads();
#pragma unroll 8
        for (int i = 0; threadIdx.x == 0 && i < here; i++)
            sum += values[i];
        __syncthreads();
    }
    if (threadIdx.x != 0)
        return;
    *norm = sqrt(sum);
    double factor = clip > 0 ? clip / (*norm + 1e-6) : 1;
    *scale = !isfinite(*norm) ? (double)NAN : factor < 1 ? factor : 1;
}

sl_status cuda_clip(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    clip_norm<<<1, BLOCK, 0, run->stream>>>(merged(x, 0), sl_meta_count(&x->meta), call->attrs.alpha,
                                            (double *)sl_call_output(call, 0)->data,
                                            (double *)sl_call_output(call, 1)->data);
    return launched("norm");
}

sl_status cuda_square_sum(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    double *parts = (double *)call->scratch;
    int64_t count = sl_meta_count(&x->meta), chunks = (count + SQUARE_CHUNK - 1) / SQUARE_CHUNK;
    int taken = 0;
    sl_status status = cuda_square_sum_many(run, call, 1, &taken);
    if (taken > 0 || status != SL_OK)
        return status;
    if (chunks > 0)
        square_parts<<<(unsigned)chunks, BLOCK, 0, run->stream>>>(merged(x, 0), count, parts);
    square_total<<<1, BLOCK, 0, run->stream>>>(parts, chunks, view_of(sl_call_output(call, 0)),
                                               sl_call_accumulates(call, 0));
    return launched("sum of squares");
}
