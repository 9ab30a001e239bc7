// Layer normalization and RMS normalization over the last dim, and their gradients.
#include "cuda/columns.cuh"

#include "kernel/call.h"

// A row as its threads hold it: HELD pieces of eight elements each, the whole row. A row that is longer is read each time
// it is needed (HELD = 0). The order of additions is the same.
template <int GROUP, class S, int HELD> struct held_row {
    S pieces[HELD > 0 ? HELD : 1][WIDE];
    __device__ __forceinline__ void fetch(const row_view<S> &row, int64_t size)
    {
        if constexpr (HELD > 0) {
#pragma unroll
            for (int n = 0; n < HELD; n++)
                row.get_wide((n * GROUP + group_lane<GROUP>()) * WIDE, size, 0, pieces[n]);
        }
    }
    // Calls use(first, piece) for each piece; elements past the end are 0.
    template <class Use> __device__ __forceinline__ void each(const row_view<S> &row, int64_t size, Use use)
    {
        if constexpr (HELD > 0) {
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                int64_t first = (n * GROUP + group_lane<GROUP>()) * WIDE;
                if (first < size)
                    use(first, pieces[n]);
            }
        } else {
            for (int64_t first = (int64_t)group_lane<GROUP>() * WIDE; first < size; first += GROUP * WIDE) {
                row.get_wide(first, size, 0, pieces[0]);
                use(first, pieces[0]);
            }
        }
    }
};

// centered: the mean is taken off (LAYERNORM).
template <int GROUP, class S, int HELD>
__global__ void __launch_bounds__(BLOCK)
    norm_rows(const __grid_constant__ tensor_view x_view, const __grid_constant__ tensor_view w_view,
              const __grid_constant__ tensor_view b_view, const __grid_constant__ tensor_view y_view,
              const __grid_constant__ tensor_view mean_view, const __grid_constant__ tensor_view rstd_view, int64_t rows,
              int64_t size, double eps, bool centered)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    row_view<S> x(x_view, row), y(y_view, row), w(w_view, 0), b(b_view, 0);
    held_row<GROUP, S, HELD> held;
    S mean = 0, square = 0;
    held.fetch(x, size);
    if (centered) {
        held.each(x, size, [&](int64_t, const S *v) {
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                mean += v[k];
        });
        mean = size > 0 ? group_sum<GROUP, S>(mean) / (S)size : 0;
    }
    held.each(x, size, [&](int64_t first, const S *v) {
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            square += first + k < size ? (v[k] - mean) * (v[k] - mean) : 0;
    });
    square = size > 0 ? group_sum<GROUP, S>(square) / (S)size : 0;
    S rstd = reciprocal_root(square + (S)eps);
    held.each(x, size, [&](int64_t first, const S *v) {
        S factor[WIDE], offset[WIDE], result[WIDE];
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            factor[k] = 1;
            offset[k] = 0;
        }
        if (w_view.data)
            w.get_wide(first, size, 0, factor);
        if (b_view.data)
            b.get_wide(first, size, 0, offset);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            result[k] = (v[k] - mean) * rstd * factor[k] + offset[k];
        y.put_wide(first, size, result, false);
    });
    if (group_lane<GROUP>() == 0) {
        if (centered)
            store<S>(mean_view.data, mean_view.dtype, mean_view.offset(row), mean, false);
        store<S>(rstd_view.data, rstd_view.dtype, rstd_view.offset(row), rstd, false);
    }
}

// Launches kernel<GROUP, S, HELD> for rows of `size` elements.
#define LAUNCH_HELD(run, kernel, rows, size, ...)                                                                      \
    do {                                                                                                               \
        unsigned blocks_ = row_blocks(rows, size);                                                                     \
        if (blocks_ == 0)                                                                                              \
            break;                                                                                                     \
        if (is_double((run)->call))                                                                                    \
            if ((size) <= SHORT_ROW)                                                                                   \
                kernel<32, double, 0><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                              \
            else                                                                                                       \
                kernel<BLOCK, double, 0><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                           \
        else if ((size) <= 32 * WIDE * 3)                                                                              \
            kernel<32, float, 3><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                                   \
        else if ((size) <= SHORT_ROW)                                                                                  \
            kernel<32, float, 4><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                                   \
        else if ((size) <= BLOCK * WIDE)                                                                               \
            kernel<BLOCK, float, 1><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                                \
        else                                                                                                           \
            kernel<BLOCK, float, 0><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                                \
    } while (0)

sl_status cuda_norm(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    bool centered = call->op == SL_OP_LAYERNORM;
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1);
    tensor_view b = centered ? view_of(sl_call_input(call, 2)) : tensor_view();
    tensor_view mean = centered ? merged(sl_call_output(call, 1), 0) : tensor_view();
    LAUNCH_HELD(run, norm_rows, rows, size, merged(x, 1), view_of(sl_call_input(call, 1)), b,
                merged(sl_call_output(call, 0), 1), mean, merged(sl_call_output(call, centered ? 2 : 1), 0), rows, size,
                call->attrs.eps, centered);
    return launched("norm kernel");
}

// mean is absent for RMSNORM.
template <int GROUP, class S, int HELD>
__global__ void __launch_bounds__(BLOCK)
    norm_grad_rows(const __grid_constant__ tensor_view dy_view, const __grid_constant__ tensor_view x_view,
                   const __grid_constant__ tensor_view w_view, const __grid_constant__ tensor_view mean_view,
                   const __grid_constant__ tensor_view rstd_view, const __grid_constant__ tensor_view dx_view,
                   int64_t rows, int64_t size, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    row_view<S> dy(dy_view, row), x(x_view, row), w(w_view, 0), dx(dx_view, row);
    S mean = mean_view.data ? load<S>(mean_view.data, mean_view.dtype, mean_view.offset(row)) : 0;
    S rstd = load<S>(rstd_view.data, rstd_view.dtype, rstd_view.offset(row));
    S sum = 0, dot = 0; // of g = dy * w, and of g with the normalized x
    held_row<GROUP, S, HELD> gradients;
    gradients.fetch(dy, size);
    auto scaled = [&](int64_t first, const S *given, S *g) {
        S factor[WIDE];
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            factor[k] = 1;
        if (w_view.data)
            w.get_wide(first, size, 0, factor);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            g[k] = given[k] * factor[k];
    };
    gradients.each(dy, size, [&](int64_t first, const S *given) {
        S g[WIDE], v[WIDE];
        x.get_wide(first, size, 0, v);
        scaled(first, given, g);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            sum += g[k];
            dot += g[k] * (v[k] - mean) * rstd;
        }
    });
    sum = mean_view.data ? group_sum<GROUP, S>(sum) / (S)size : 0;
    dot = group_sum<GROUP, S>(dot) / (S)size;
    gradients.each(dy, size, [&](int64_t first, const S *given) {
        S g[WIDE], v[WIDE];
        x.get_wide(first, size, 0, v);
        scaled(first, given, g);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            g[k] = rstd * (g[k] - sum - (v[k] - mean) * rstd * dot);
        dx.put_wide(first, size, g, add);
    });
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
    LAUNCH_HELD(run, norm_grad_rows, rows, size, merged(sl_call_input(call, 0), 1), merged(x, 1),
                view_of(sl_call_input(call, 2)), mean, merged(sl_call_input(call, centered ? 4 : 3), 0),
                merged(sl_call_output(call, 0), 1), rows, size, sl_call_accumulates(call, 0));
    return launched("norm gradient kernel");
}

// ---- Gradients of scale and offset ------------------------------------------------------------

template <class S> struct norm_columns {
    tensor_view dy, x, mean, rstd;
    __device__ __forceinline__ void add(int64_t row, int64_t column, int64_t columns, S sums[2][WIDE]) const
    {
        S center = mean.data ? load<S>(mean.data, mean.dtype, mean.offset(row)) : 0;
        S scale = load<S>(rstd.data, rstd.dtype, rstd.offset(row)), g[WIDE], v[WIDE];
        row_view<S>(dy, row).get_wide(column, columns, 0, g);
        row_view<S>(x, row).get_wide(column, columns, 0, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            sums[0][k] += g[k] * (v[k] - center) * scale;
            sums[1][k] += g[k];
        }
    }
};

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
