// Softmax over the last dim, and cross entropy on top of it.
#include "cuda/element.cuh"

#include "kernel/call.h"

template <class S> __device__ __forceinline__ S plain_max(S a, S b) { return fmax(a, b); }

// The part of a thread in log(sum(exp(x))) of a row: the largest value that it has seen, and the sum relative to it.
template <class S> struct running_sum {
    S max, sum;
    template <bool QUICK> __device__ __forceinline__ void add(const S v[WIDE])
    {
        S largest = max, part = 0;
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            largest = fmax(largest, v[k]);
        if (largest == -INFINITY)
            return; // nothing to see yet
        sum = largest == max ? sum : sum * exponential(max - largest);
        max = largest;
        const S shift = max * (S)-LOG_2_E;
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            part += QUICK ? quick_exponential_of_2(fma(v[k], (S)LOG_2_E, shift)) : exponential(v[k] - max);
        sum += part;
    }
};

// log(sum(exp(x))) of a row without overflow, in one pass; -inf for an empty row.
template <int GROUP, class S, class Row> __device__ __forceinline__ S log_sum_exp(const Row &x, int64_t size)
{
    running_sum<S> own = { (S)-INFINITY, 0 };
    S v[WIDE];
    int64_t first = (int64_t)group_lane<GROUP>() * WIDE;
    if (x.dtype == SL_BF16) {
#pragma unroll 4
        for (int64_t i = first; i < size; i += GROUP * WIDE) {
            x.get_wide(i, size, -INFINITY, v);
            own.template add<true>(v);
        }
    } else {
        for (int64_t i = first; i < size; i += GROUP * WIDE) {
            x.get_wide(i, size, -INFINITY, v);
            own.template add<false>(v);
        }
    }
    S all = join_group<GROUP, S, plain_max<S>>(own.max);
    S sum = group_sum<GROUP, S>(own.max == all ? own.sum : own.sum * exponential(own.max - all));
    return sum > 0 ? all + logarithm(sum) : sum == 0 ? -INFINITY : sum;
}

template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK)
    softmax_rows(const __grid_constant__ tensor_view x_view, const __grid_constant__ tensor_view y_view, int64_t rows, int64_t size, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    row_view<S> x(x_view, row), y(y_view, row);
    S lse = log_sum_exp<GROUP, S, row_view<S>>(x, size), v[WIDE];
    for (int64_t i = (int64_t)group_lane<GROUP>() * WIDE; i < size; i += GROUP * WIDE) {
        x.get_wide(i, size, 0, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            v[k] = exponential(v[k] - lse);
        y.put_wide(i, size, v, add);
    }
}

template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK)
    softmax_grad_rows(const __grid_constant__ tensor_view y_view, const __grid_constant__ tensor_view dy_view, const __grid_constant__ tensor_view dx_view, int64_t rows, int64_t size, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    row_view<S> y(y_view, row), dy(dy_view, row), dx(dx_view, row);
    S dot = 0, v[WIDE], g[WIDE];
    for (int64_t i = (int64_t)group_lane<GROUP>() * WIDE; i < size; i += GROUP * WIDE) {
        y.get_wide(i, size, 0, v);
        dy.get_wide(i, size, 0, g);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            dot += v[k] * g[k];
    }
    dot = group_sum<GROUP, S>(dot);
    for (int64_t i = (int64_t)group_lane<GROUP>() * WIDE; i < size; i += GROUP * WIDE) {
        y.get_wide(i, size, 0, v);
        dy.get_wide(i, size, 0, g);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            v[k] *= g[k] - dot;
        dx.put_wide(i, size, v, add);
    }
}

sl_status cuda_softmax(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1);
    bool add = sl_call_accumulates(call, 0);
    if (size == 0)
        return SL_OK;
    if (call->op == SL_OP_SOFTMAX)
        LAUNCH_ROWS(run, softmax_rows, rows, size, merged(x, 1), merged(sl_call_output(call, 0), 1), rows, size, add);
    else
        LAUNCH_ROWS(run, softmax_grad_rows, rows, size, merged(x, 1), merged(sl_call_input(call, 1), 1),
                    merged(sl_call_output(call, 0), 1), rows, size, add);
    return launched("softmax kernel");
}

// ---- Cross entropy ----------------------------------------------------------------------------

// lse of each row, and its term of the loss into terms[row]. Row: row_view<S> or packed_row.
template <int GROUP, class S, class Row>
__global__ void __launch_bounds__(BLOCK, 4)
    loss_rows(const __grid_constant__ tensor_view x_view, const __grid_constant__ tensor_view targets, const __grid_constant__ tensor_view lse_view, double *terms, int64_t rows, int64_t size,
              int64_t ignored, const __grid_constant__ cuda_reporter reporter)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    Row x(x_view, row);
    S lse = log_sum_exp<GROUP, S, Row>(x, size);
    if (group_lane<GROUP>() != 0)
        return;
    store<S>(lse_view.data, lse_view.dtype, lse_view.offset(row), lse, false);
    int64_t target = load_index(targets.data, targets.dtype, targets.offset(row));
    double term = 0;
    if (target != ignored && (target < 0 || target >= size))
        report(reporter, CUDA_FAULT_TARGET, target, row, size);
    else if (target != ignored)
        term = (double)(lse - x.get(target));
    terms[row] = term;
}

enum { MEAN_BLOCK = 1024 }; // threads of the one block that goes through all rows

__device__ int64_t count_targets(const tensor_view &targets, int64_t rows, int64_t ignored)
{
    int64_t counted = 0;
#pragma unroll 8
    for (int64_t row = threadIdx.x; row < rows; row += MEAN_BLOCK)
        counted += load_index(targets.data, targets.dtype, targets.offset(row)) != ignored;
    return (int64_t)group_sum<MEAN_BLOCK, long long>((long long)counted);
}

__global__ void __launch_bounds__(MEAN_BLOCK)
    mean_loss(const double *terms, const __grid_constant__ tensor_view targets, const __grid_constant__ tensor_view loss, int64_t rows, int64_t ignored)
{
    int64_t counted = count_targets(targets, rows, ignored);
    double total = 0;
#pragma unroll 8
    for (int64_t row = threadIdx.x; row < rows; row += MEAN_BLOCK)
        total += terms[row];
    total = group_sum<MEAN_BLOCK, double>(total);
    if (threadIdx.x == 0)
        store<double>(loss.data, loss.dtype, 0, counted ? total / (double)counted : 0, false);
}

// LAUNCH_ROWS for kernels that also take packed rows of bf16.
#define LAUNCH_LOSS(run, kernel, packed, rows, size, ...)                                                              \
    do {                                                                                                               \
        unsigned blocks_ = row_blocks(rows, size);                                                                     \
        bool double_ = is_double((run)->call), short_ = (size) <= SHORT_ROW;                                           \
        if (blocks_ == 0)                                                                                              \
            break;                                                                                                     \
        if (double_ && short_)                                                                                         \
            kernel<32, double, row_view<double>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                   \
        else if (double_)                                                                                              \
            kernel<BLOCK, double, row_view<double>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                \
        else if (short_)                                                                                               \
            kernel<32, float, row_view<float>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                     \
        else if (packed)                                                                                               \
            kernel<BLOCK, float, packed_row<__nv_bfloat16>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);        \
        else                                                                                                           \
            kernel<BLOCK, float, row_view<float>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                  \
    } while (0)

sl_status cuda_cross_entropy(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1), ignored = call->attrs.ignore_index;
    tensor_view targets = merged(sl_call_input(call, 1), 0);
    double *terms = (double *)call->scratch;
    LAUNCH_LOSS(run, loss_rows, is_packed(x, SL_BF16), rows, size, merged(x, 1), targets, merged(sl_call_output(call, 1), 0), terms, rows, size,
                ignored, run->reporter);
    mean_loss<<<1, MEAN_BLOCK, 0, run->stream>>>(terms, targets, view_of(sl_call_output(call, 0)), rows, ignored);
    return launched("cross entropy kernel");
}

__global__ void __launch_bounds__(MEAN_BLOCK) count_rows(const __grid_constant__ tensor_view targets, int64_t rows, int64_t ignored, double *out)
{
    int64_t counted = count_targets(targets, rows, ignored);
    if (threadIdx.x == 0)
        *out = (double)(counted ? counted : 1);
}

// Four pieces are read before any is written: the result may lie on the logits.
template <int GROUP, class S, bool QUICK, class Row>
__device__ __forceinline__ void write_gradient(const Row &x, const Row &dx, int64_t size, S lse, S weight, int64_t target,
                                               bool add)
{
    const int64_t step = GROUP * WIDE;
    const S shift = lse * (S)-LOG_2_E;
    for (int64_t start = (int64_t)group_lane<GROUP>() * WIDE; start < size; start += 4 * step) {
        S v[4][WIDE];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (start + n * step < size)
                x.get_wide(start + n * step, size, 0, v[n]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int64_t i = start + n * step;
            int own = target >= i && target < i + WIDE ? (int)(target - i) : -1; // the target's place in the piece
#pragma unroll
            for (int k = 0; k < WIDE; k++) {
                S p = QUICK ? quick_exponential_of_2(fma(v[n][k], (S)LOG_2_E, shift)) : exponential(v[n][k] - lse);
                v[n][k] = weight * (p - (S)(k == own ? 1 : 0));
            }
            if (i < size)
                dx.put_wide(i, size, v[n], add);
        }
    }
}

template <int GROUP, class S, class Row>
__global__ void __launch_bounds__(BLOCK, 4)
    loss_grad_rows(const __grid_constant__ tensor_view x_view, const __grid_constant__ tensor_view targets, const __grid_constant__ tensor_view lse_view, const __grid_constant__ tensor_view dloss, const __grid_constant__ tensor_view dx_view,
                   const double *counted, int64_t rows, int64_t size, int64_t ignored, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    Row x(x_view, row), dx(dx_view, row);
    S lse = load<S>(lse_view.data, lse_view.dtype, lse_view.offset(row));
    int64_t target = load_index(targets.data, targets.dtype, targets.offset(row));
    S weight = target == ignored ? 0 : (S)(load<double>(dloss.data, dloss.dtype, 0) / *counted);
    if (x.dtype == SL_BF16)
        write_gradient<GROUP, S, true, Row>(x, dx, size, lse, weight, target, add);
    else
        write_gradient<GROUP, S, false, Row>(x, dx, size, lse, weight, target, add);
}

sl_status cuda_cross_entropy_grad(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1), ignored = call->attrs.ignore_index;
    tensor_view targets = merged(sl_call_input(call, 1), 0);
    double *counted = (double *)call->scratch;
    if (rows == 0 || size == 0)
        return SL_OK;
    count_rows<<<1, MEAN_BLOCK, 0, run->stream>>>(targets, rows, ignored, counted);
    bool packed = is_packed(x, SL_BF16) && is_packed(sl_call_output(call, 0), SL_BF16);
    LAUNCH_LOSS(run, loss_grad_rows, packed, rows, size, merged(x, 1), targets, merged(sl_call_input(call, 2), 0),
                view_of(sl_call_input(call, 3)), merged(sl_call_output(call, 0), 1), counted, rows, size, ignored,
                sl_call_accumulates(call, 0));
    return launched("cross entropy gradient kernel");
}
