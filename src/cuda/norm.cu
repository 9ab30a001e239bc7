// Layer normalization and RMS normalization over the last dim, and their gradients.
#include "cuda/columns.cuh"

#include "kernel/call.h"

// centered: the mean is taken off (LAYERNORM).
template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK, 3)
    norm_rows(const __grid_constant__ tensor_view x_view, const __grid_constant__ tensor_view w_view, const __grid_constant__ tensor_view b_view, const __grid_constant__ tensor_view y_view, const __grid_constant__ tensor_view mean_view,
              const __grid_constant__ tensor_view rstd_view, int64_t rows, int64_t size, double eps, bool centered)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    int first = group_lane<GROUP>() * WIDE, step = GROUP * WIDE;
    row_view<S> x(x_view, row), y(y_view, row), w(w_view, 0), b(b_view, 0);
    S v[WIDE], mean = 0, square = 0;
    if (centered) {
        for (int64_t i = first; i < size; i += step) {
            x.get_wide(i, size, 0, v);
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                mean += v[k];
        }
        mean = size > 0 ? group_sum<GROUP, S>(mean) / (S)size : 0;
    }
    for (int64_t i = first; i < size; i += step) {
        x.get_wide(i, size, mean, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            square += (v[k] - mean) * (v[k] - mean);
    }
    square = size > 0 ? group_sum<GROUP, S>(square) / (S)size : 0;
    S rstd = reciprocal_root(square + (S)eps);
    for (int64_t i = first; i < size; i += step) {
        S factor[WIDE], offset[WIDE];
        x.get_wide(i, size, 0, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            factor[k] = 1;
            offset[k] = 0;
        }
        if (w_view.data)
            w.get_wide(i, size, 0, factor);
        if (b_view.data)
            b.get_wide(i, size, 0, offset);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            v[k] = (v[k] - mean) * rstd * factor[k] + offset[k];
        y.put_wide(i, size, v, false);
    }
    if (first == 0) {
        if (centered)
            store<S>(mean_view.data, mean_view.dtype, mean_view.offset(row), mean, false);
        store<S>(rstd_view.data, rstd_view.dtype, rstd_view.offset(row), rstd, false);
    }
}

sl_status cuda_norm(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    bool centered = call->op == SL_OP_LAYERNORM;
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1);
    tensor_view b = centered ? view_of(sl_call_input(call, 2)) : tensor_view();
    tensor_view mean = centered ? merged(sl_call_output(call, 1), 0) : tensor_view();
    LAUNCH_ROWS(run, norm_rows, rows, size, merged(x, 1), view_of(sl_call_input(call, 1)), b,
                merged(sl_call_output(call, 0), 1), mean, merged(sl_call_output(call, centered ? 2 : 1), 0), rows, size,
                call->attrs.eps, centered);
    return launched("norm kernel");
}

// mean is absent for RMSNORM.
template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK, 4)
    norm_grad_rows(const __grid_constant__ tensor_view dy_view, const __grid_constant__ tensor_view x_view, const __grid_constant__ tensor_view w_view, const __grid_constant__ tensor_view mean_view,
                   const __grid_constant__ tensor_view rstd_view, const __grid_constant__ tensor_view dx_view, int64_t rows, int64_t size, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    int first = group_lane<GROUP>() * WIDE, step = GROUP * WIDE;
    row_view<S> dy(dy_view, row), x(x_view, row), w(w_view, 0), dx(dx_view, row);
    S mean = mean_view.data ? load<S>(mean_view.data, mean_view.dtype, mean_view.offset(row)) : 0;
    S rstd = load<S>(rstd_view.data, rstd_view.dtype, rstd_view.offset(row));
    S sum = 0, dot = 0; // of g = dy * w, and of g with the normalized x
    for (int64_t i = first; i < size; i += step) {
        S g[WIDE], v[WIDE], factor[WIDE];
        dy.get_wide(i, size, 0, g);
        x.get_wide(i, size, 0, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            factor[k] = 1;
        if (w_view.data)
            w.get_wide(i, size, 0, factor);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            g[k] *= factor[k];
            sum += g[k];
            dot += g[k] * (v[k] - mean) * rstd;
        }
    }
    sum = mean_view.data ? group_sum<GROUP, S>(sum) / (S)size : 0;
    dot = group_sum<GROUP, S>(dot) / (S)size;
    for (int64_t i = first; i < size; i += step) {
        S g[WIDE], v[WIDE], factor[WIDE];
        dy.get_wide(i, size, 0, g);
        x.get_wide(i, size, 0, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            factor[k] = 1;
        if (w_view.data)
            w.get_wide(i, size, 0, factor);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            g[k] = rstd * (g[k] * factor[k] - sum - (v[k] - mean) * rstd * dot);
        dx.put_wide(i, size, g, add);
    }
}

sl_status cuda_norm_grad_x(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 1);
    bool centered = call->op == SL_OP_LAYERNORM_GRAD_X;
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1);
    tensor_view mean = centered ? merged(sl_call_input(call, 3), 0) : tensor_view();
    if (size == 0)
        return SL_OK;
    LAUNCH_ROWS(run, norm_grad_rows, rows, size, merged(sl_call_input(call, 0), 1), merged(x, 1),
                view_of(sl_call_input(call, 2)), mean, merged(sl_call_input(call, centered ? 4 : 3), 0),
                merged(sl_call_output(call, 0), 1), rows, size, sl_call_accumulates(call, 0));
    return launched("norm gradient kernel");
}

// ---- Gradients of scale and offset ------------------------------------------------------------

template <class S> struct norm_columns {
    tensor_view dy, x, mean, rstd;
    bool paired; // two neighbours lie side by side in bf16
    __device__ __forceinline__ void add(int64_t row, int64_t column, int count, S sums[2][2]) const
    {
        S center = mean.data ? load<S>(mean.data, mean.dtype, mean.offset(row)) : 0;
        S scale = load<S>(rstd.data, rstd.dtype, rstd.offset(row));
        int64_t dy_at = dy.offset(row, 1), x_at = x.offset(row, 1);
        if (paired && count == 2) {
            float2 g = __bfloat1622float2(*(const __nv_bfloat162 *)((const __nv_bfloat16 *)dy.data + dy_at + column));
            float2 v = __bfloat1622float2(*(const __nv_bfloat162 *)((const __nv_bfloat16 *)x.data + x_at + column));
            sums[0][0] += (S)g.x * ((S)v.x - center) * scale;
            sums[0][1] += (S)g.y * ((S)v.y - center) * scale;
            sums[1][0] += (S)g.x;
            sums[1][1] += (S)g.y;
            return;
        }
        for (int k = 0; k < count; k++) {
            S g = load<S>(dy.data, dy.dtype, dy_at + (column + k) * dy.strides[dy.rank - 1]);
            S v = load<S>(x.data, x.dtype, x_at + (column + k) * x.strides[x.rank - 1]);
            sums[0][k] += g * (v - center) * scale;
            sums[1][k] += g;
        }
    }
};

// Whether pairs of elements can be read at once.
static bool has_pairs(const tensor_view &view)
{
    bool pairs = view.dtype == SL_BF16 && ((uintptr_t)view.data & 3) == 0 && view.strides[view.rank - 1] == 1;
    for (int i = 0; i < view.rank - 1; i++)
        pairs = pairs && view.strides[i] % 2 == 0;
    return pairs;
}

size_t cuda_norm_grad_w_scratch(const sl_kernel_call *call)
{
    const sl_meta *x = &call->inputs[1].meta;
    return (size_t)(column_chunks(sl_row_count(x, 1)) * 2 * sl_dim_from_last(x, 1)) * sizeof(double);
}

template <class S> static void grad_w(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 1);
    bool centered = call->op == SL_OP_LAYERNORM_GRAD_W;
    norm_columns<S> source;
    source.dy = merged(sl_call_input(call, 0), 1);
    source.x = merged(x, 1);
    source.mean = centered ? merged(sl_call_input(call, 2), 0) : tensor_view();
    source.rstd = merged(sl_call_input(call, centered ? 3 : 2), 0);
    source.paired = has_pairs(source.dy) && has_pairs(source.x);
    launch_columns<S, 2>(run, source, sl_row_count(&x->meta, 1), sl_dim_from_last(&x->meta, 1),
                         view_of(sl_call_output(call, 0)), view_of(sl_call_output(call, 1)),
                         sl_call_accumulates(call, 0), sl_call_accumulates(call, 1), 1);
}

sl_status cuda_norm_grad_w(const cuda_run *run)
{
    if (is_double(run->call))
        grad_w<double>(run);
    else
        grad_w<float>(run);
    return launched("norm gradient kernel");
}
