// Layer normalization and RMS normalization over the last dim, and their gradients.
#include "cuda/mma.cuh"
#include "cuda/norm.cuh"

// A row as its threads hold it: HELD pieces of eight elements each, the whole row. A row that is longer is read each time
// it is needed (HELD = 0). The order of additions is the same.
template <int GROUP, class S, int HELD> struct held_row {
    S pieces[HELD > 0 ? HELD : 1][WIDE];
    template <class Row> __device__ __forceinline__ void fetch(const Row &row, int64_t size)
    {
        if constexpr (HELD > 0) {
#pragma unroll
            for (int n = 0; n < HELD; n++)
                row.get_wide((n * GROUP + group_lane<GROUP>()) * WIDE, size, 0, pieces[n]);
        }
    }
    // Calls use(first, piece) for each piece; elements past the end are 0.
    template <class Row, class Use> __device__ __forceinline__ void each(const Row &row, int64_t size, Use use)
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

// centered: the mean is taken off (LAYERNORM). If ADDS, x + other is stored as the sum, and what was stored is
// normalized; the row must be held. Row: row_view<S> or packed_row.
template <int GROUP, class S, int HELD, class Row, bool ADDS>
__device__ __forceinline__ void
norm_row(const tensor_view &x_view, const tensor_view &other_view, const tensor_view &sum_view,
         const tensor_view &w_view, const tensor_view &b_view, const tensor_view &y_view, const tensor_view &mean_view,
         const tensor_view &rstd_view, int64_t rows, int64_t size, double eps, bool centered)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    Row x(x_view, row), y(y_view, row), w(w_view, 0), b(b_view, 0);
    held_row<GROUP, S, HELD> held;
    S mean = 0, square = 0;
    held.fetch(x, size);
    if constexpr (ADDS) {
        Row other(other_view, row), sum(sum_view, row);
        held_row<GROUP, S, HELD> second;
        second.fetch(other, size);
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            int64_t first = (n * GROUP + group_lane<GROUP>()) * WIDE;
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                held.pieces[n][k] = as_stored<S>(held.pieces[n][k] + second.pieces[n][k], sum_view.dtype);
            if (first < size)
                sum.put_wide(first, size, held.pieces[n], false);
        }
    }
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

template <int GROUP, class S, int HELD, class Row>
__global__ void __launch_bounds__(BLOCK)
    norm_rows(const __grid_constant__ tensor_view x, const __grid_constant__ tensor_view w,
              const __grid_constant__ tensor_view b, const __grid_constant__ tensor_view y,
              const __grid_constant__ tensor_view mean, const __grid_constant__ tensor_view rstd, int64_t rows,
              int64_t size, double eps, bool centered)
{
    norm_row<GROUP, S, HELD, Row, false>(x, x, x, w, b, y, mean, rstd, rows, size, eps, centered);
}

template <int GROUP, class S, int HELD, class Row>
__global__ void __launch_bounds__(BLOCK)
    add_norm_rows(const __grid_constant__ tensor_view x, const __grid_constant__ tensor_view other,
                  const __grid_constant__ tensor_view sum, const __grid_constant__ tensor_view w,
                  const __grid_constant__ tensor_view b, const __grid_constant__ tensor_view y,
                  const __grid_constant__ tensor_view mean, const __grid_constant__ tensor_view rstd, int64_t rows,
                  int64_t size, double eps, bool centered)
{
    norm_row<GROUP, S, HELD, Row, true>(x, other, sum, w, b, y, mean, rstd, rows, size, eps, centered);
}

// Launches kernel<GROUP, S, HELD, Row> for rows of `size` elements of float.
#define LAUNCH_FLOAT(run, kernel, Row, rows, size, ...)                                                                \
    do {                                                                                                               \
        unsigned groups_ = row_blocks(rows, size);                                                                     \
        if ((size) <= 32 * WIDE * 3)                                                                                   \
            kernel<32, float, 3, Row><<<groups_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                              \
        else if ((size) <= SHORT_ROW)                                                                                  \
            kernel<32, float, 4, Row><<<groups_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                              \
        else                                                                                                           \
            kernel<BLOCK, float, 1, Row><<<groups_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);                           \
    } while (0)

// The same for all; packed: tensors of bf16 that packed_row takes.
#define LAUNCH_HELD(run, kernel, packed, rows, size, ...)                                                              \
    do {                                                                                                               \
        unsigned blocks_ = row_blocks(rows, size);                                                                     \
        if (blocks_ == 0)                                                                                              \
            break;                                                                                                     \
        if (is_double((run)->call))                                                                                    \
            if ((size) <= SHORT_ROW)                                                                                   \
                kernel<32, double, 0, row_view<double>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);            \
            else                                                                                                       \
                kernel<BLOCK, double, 0, row_view<double>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);         \
        else if ((size) > BLOCK * WIDE)                                                                                \
            kernel<BLOCK, float, 0, row_view<float>><<<blocks_, BLOCK, 0, (run)->stream>>>(__VA_ARGS__);               \
        else if (packed)                                                                                               \
            LAUNCH_FLOAT(run, kernel, packed_row<__nv_bfloat16>, rows, size, __VA_ARGS__);                             \
        else                                                                                                           \
            LAUNCH_FLOAT(run, kernel, row_view<float>, rows, size, __VA_ARGS__);                                       \
    } while (0)

sl_status cuda_norm(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    bool centered = call->op == SL_OP_LAYERNORM;
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1);
    tensor_view b = centered ? view_of(sl_call_input(call, 2)) : tensor_view();
    tensor_view mean = centered ? merged(sl_call_output(call, 1), 0) : tensor_view();
    bool packed = is_packed(x, SL_BF16) && is_packed(sl_call_output(call, 0), SL_BF16) &&
                  is_packed(sl_call_input(call, 1), SL_BF16) &&
                  (!centered || is_packed(sl_call_input(call, 2), SL_BF16));
    LAUNCH_HELD(run, norm_rows, packed, rows, size, merged(x, 1), view_of(sl_call_input(call, 1)), b,
                merged(sl_call_output(call, 0), 1), mean, merged(sl_call_output(call, centered ? 2 : 1), 0), rows, size,
                call->attrs.eps, centered);
    return launched("norm kernel");
}

// ---- Packed rows by single warps --------------------------------------------------------------

struct add_norm_args {
    const __nv_bfloat16 *a, *b, *w, *bias; // w, bias NULL: none
    __nv_bfloat16 *sum, *y;
    float *mean, *rstd; // mean NULL: RMSNORM
    int64_t rows;
    int size;
    float eps;
};

// The two rows that a warp adds next come to shared memory meanwhile. A thread reads what it has itself copied.
__device__ __forceinline__ void fetch_pair(const add_norm_args &args, int64_t row, __nv_bfloat16 *to)
{
    for (int c = threadIdx.x % 32 * WIDE; row < args.rows && c < args.size; c += 32 * WIDE) {
        copy_later(to + c, args.a + row * args.size + c, true);
        copy_later(to + args.size + c, args.b + row * args.size + c, true);
    }
    close_copies();
}

// The sum over a row, of which parts[n] is the lane's in piece n.
template <int PIECES, bool LONG> __device__ __forceinline__ float sum_row(float parts[PIECES])
{
    if constexpr (LONG)
        return sum_pieces(parts);
    else
        return group_sum<32, float>(parts[0]);
}

// A row is PIECES pieces of 256 elements. LONG: more than 1024 elements, whose sums have the order of a block's.
template <int PIECES, bool LONG>
__global__ void __launch_bounds__(BLOCK, LONG ? 1 : 2) add_norm_packed(const __grid_constant__ add_norm_args args)
{
    extern __shared__ __nv_bfloat16 pairs[]; // [warps][2 on their way][2 summands][size]
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, size = args.size;
    __nv_bfloat16 *own = pairs + warp * 4 * size;
    int64_t row = (int64_t)blockIdx.x * (BLOCK / 32) + warp, step = (int64_t)gridDim.x * (BLOCK / 32);
    fetch_pair(args, row, own);
    eight_bf16 w[PIECES] = {}, bias[PIECES] = {};
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        int c = (n * 32 + lane) * WIDE;
        w[n].bits = make_uint4(0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u); // ones
        if (args.w && c < size)
            w[n].get(args.w + c);
        if (args.bias && c < size)
            bias[n].get(args.bias + c);
    }
    for (int i = 0; row < args.rows; i++, row += step) {
        const __nv_bfloat16 *from = own + i % 2 * 2 * size;
        int64_t start = row * size;
        eight_bf16 x[PIECES] = {}, other = {};
        float parts[PIECES] = {}, v[WIDE], more[WIDE], mean = 0;
        fetch_pair(args, row + step, own + (i + 1) % 2 * 2 * size);
        wait_for_copies<1>();
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            int c = (n * 32 + lane) * WIDE;
            if (c >= size)
                continue;
            x[n].get(from + c);
            other.get(from + size + c);
            x[n].widen(v);
            other.widen(more);
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                v[k] += more[k];
            x[n].put(v); // as it is stored
            *(uint4 *)(args.sum + start + c) = x[n].bits;
            x[n].widen(v);
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                parts[LONG ? n : 0] += v[k];
        }
        if (args.mean)
            mean = sum_row<PIECES, LONG>(parts) / (float)size;
#pragma unroll
        for (int n = 0; n < PIECES; n++)
            parts[n] = 0;
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            bool inside = (n * 32 + lane) * WIDE < size;
            x[n].widen(v);
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                parts[LONG ? n : 0] += inside ? (v[k] - mean) * (v[k] - mean) : 0;
        }
        float rstd = reciprocal_root(sum_row<PIECES, LONG>(parts) / (float)size + args.eps);
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            int c = (n * 32 + lane) * WIDE;
            float factor[WIDE], offset[WIDE];
            if (c >= size)
                continue;
            x[n].widen(v);
            w[n].widen(factor);
            bias[n].widen(offset);
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                v[k] = (v[k] - mean) * rstd * factor[k] + offset[k];
            store_eight(args.y + start + c, v);
        }
        if (lane == 0) {
            if (args.mean)
                args.mean[row] = mean;
            args.rstd[row] = rstd;
        }
    }
}

static size_t shared_bytes(int64_t size)
{
    return (size_t)size * 4 * (BLOCK / 32) * sizeof(__nv_bfloat16);
}

template <int PIECES, bool LONG> static sl_status launch_pairs(const cuda_run *run, const add_norm_args &args)
{
    size_t bytes = shared_bytes(args.size);
    int64_t all = (args.rows + BLOCK / 32 - 1) / (BLOCK / 32), at_once = (int64_t)run->multiprocessors * (LONG ? 1 : 2);
    cudaError_t error = allow_shared(add_norm_packed<PIECES, LONG>, bytes);
    if (error == cudaSuccess)
        add_norm_packed<PIECES, LONG><<<(unsigned)(all < at_once ? all : at_once), BLOCK, bytes, run->stream>>>(args);
    return error == cudaSuccess ? launched("norm kernel") : cuda_check(error, "norm kernel");
}

static sl_status launch_add_norm(const cuda_run *run, int64_t rows, int64_t size, bool *is_done)
{
    const sl_kernel_call *call = run->call;
    bool centered = call->op == SL_OP_ADD_LAYERNORM;
    const sl_view *w = sl_call_input(call, 2), *bias = centered ? sl_call_input(call, 3) : &sl_absent;
    add_norm_args args = {};
    args.a = (const __nv_bfloat16 *)sl_call_input(call, 0)->data;
    args.b = (const __nv_bfloat16 *)sl_call_input(call, 1)->data;
    args.w = sl_view_is_none(w) ? NULL : (const __nv_bfloat16 *)w->data;
    args.bias = sl_view_is_none(bias) ? NULL : (const __nv_bfloat16 *)bias->data;
    args.sum = (__nv_bfloat16 *)sl_call_output(call, 0)->data;
    args.y = (__nv_bfloat16 *)sl_call_output(call, 1)->data;
    args.mean = centered ? statistic(sl_call_output(call, 2)) : NULL;
    args.rstd = statistic(sl_call_output(call, centered ? 3 : 2));
    args.rows = rows;
    args.size = (int)size;
    args.eps = (float)call->attrs.eps;
    *is_done = size > 0 && args.rstd && (args.mean || !centered) && fits_shared(shared_bytes(size));
    if (!*is_done)
        return SL_OK;
    if (size <= 32 * WIDE * 3)
        return launch_pairs<3, false>(run, args);
    return size <= SHORT_ROW ? launch_pairs<4, false>(run, args) : launch_pairs<LONG_PIECES, true>(run, args);
}

sl_status cuda_add_norm(const cuda_run *run, bool *is_done)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    bool centered = call->op == SL_OP_ADD_LAYERNORM;
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1);
    tensor_view a = merged(x, 1), other = merged(sl_call_input(call, 1), 1), sum = merged(sl_call_output(call, 0), 1);
    tensor_view w = view_of(sl_call_input(call, 2)), b = centered ? view_of(sl_call_input(call, 3)) : tensor_view();
    tensor_view y = merged(sl_call_output(call, 1), 1), mean = merged(sl_call_output(call, 2), 0);
    tensor_view rstd = merged(sl_call_output(call, centered ? 3 : 2), 0);
    bool packed = is_packed(sl_call_output(call, 1), SL_BF16);
    for (int i = 0; i < call->input_count; i++)
        packed = packed && is_packed(&call->inputs[i], SL_BF16) && is_packed(sl_call_output(call, 0), SL_BF16);
    *is_done = !is_double(call) && size <= BLOCK * WIDE;
    if (!*is_done || row_blocks(rows, size) == 0)
        return SL_OK;
    bool by_warps = false;
    sl_status status = packed ? launch_add_norm(run, rows, size, &by_warps) : SL_OK;
    if (by_warps || status != SL_OK)
        return status;
    if (packed)
        LAUNCH_FLOAT(run, add_norm_rows, packed_row<__nv_bfloat16>, rows, size, a, other, sum, w, b, y, mean, rstd,
                     rows, size, call->attrs.eps, centered);
    else
        LAUNCH_FLOAT(run, add_norm_rows, row_view<float>, rows, size, a, other, sum, w, b, y, mean, rstd, rows, size,
                     call->attrs.eps, centered);
    return launched("norm kernel");
}

// mean is absent for RMSNORM.
template <int GROUP, class S, int HELD, class Row>
__global__ void __launch_bounds__(BLOCK)
    norm_grad_rows(const __grid_constant__ tensor_view dy_view, const __grid_constant__ tensor_view x_view,
                   const __grid_constant__ tensor_view w_view, const __grid_constant__ tensor_view mean_view,
                   const __grid_constant__ tensor_view rstd_view, const __grid_constant__ tensor_view dx_view,
                   int64_t rows, int64_t size, bool add)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    Row dy(dy_view, row), x(x_view, row), w(w_view, 0), dx(dx_view, row);
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
            dot = fma(g[k], (v[k] - mean) * rstd, dot);
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
            g[k] = rstd * fma((mean - v[k]) * rstd, dot, g[k] - sum);
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
    bool packed = is_packed(sl_call_input(call, 0), SL_BF16) && is_packed(x, SL_BF16) &&
                  is_packed(sl_call_input(call, 2), SL_BF16) && is_packed(sl_call_output(call, 0), SL_BF16);
    LAUNCH_HELD(run, norm_grad_rows, packed, rows, size, merged(sl_call_input(call, 0), 1), merged(x, 1),
                view_of(sl_call_input(call, 2)), mean, merged(sl_call_input(call, centered ? 4 : 3), 0),
                merged(sl_call_output(call, 0), 1), rows, size, sl_call_accumulates(call, 0));
    return launched("norm gradient kernel");
}

// ---- Gradients of scale and offset ------------------------------------------------------------

template <class S, class Row> struct norm_columns {
    tensor_view dy, x, mean, rstd;
    struct fetched {
        typename Row::piece dy, x;
        S center, scale;
    };
    __device__ __forceinline__ fetched fetch(int64_t row, int64_t column, int64_t columns) const
    {
        fetched what;
        what.dy = Row(dy, row).fetch(column, columns);
        what.x = Row(x, row).fetch(column, columns);
        what.center = mean.data ? load<S>(mean.data, mean.dtype, mean.offset(row)) : 0;
        what.scale = load<S>(rstd.data, rstd.dtype, rstd.offset(row));
        return what;
    }
    __device__ __forceinline__ void add(const fetched &what, int64_t, int64_t, int64_t, S sums[2][WIDE]) const
    {
        S g[WIDE], v[WIDE];
        what.dy.widen(g);
        what.x.widen(v);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            sums[0][k] = fma(g[k], (v[k] - what.center) * what.scale, sums[0][k]);
            sums[1][k] += g[k];
        }
    }
};

template <class S, class Row> static void grad_w(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 1);
    bool centered = call->op == SL_OP_LAYERNORM_GRAD_W;
    norm_columns<S, Row> source;
    source.dy = merged(sl_call_input(call, 0), 1);
    source.x = merged(x, 1);
    source.mean = centered ? merged(sl_call_input(call, 2), 0) : tensor_view();
    source.rstd = merged(sl_call_input(call, centered ? 3 : 2), 0);
    column_results results = {};
    for (int k = 0; k < (centered ? 2 : 1); k++) {
        results.to[k] = view_of(sl_call_output(call, k));
        results.add[k] = sl_call_accumulates(call, k);
    }
    launch_columns<S, 2>(run, source, sl_row_count(&x->meta, 1), sl_dim_from_last(&x->meta, 1), results, 1);
}

sl_status cuda_norm_grad_w(const cuda_run *run)
{
    if (is_double(run->call))
        grad_w<double, row_view<double>>(run);
    else if (is_packed(sl_call_input(run->call, 0), SL_BF16) && is_packed(sl_call_input(run->call, 1), SL_BF16))
        grad_w<float, packed_row<__nv_bfloat16>>(run);
    else
        grad_w<float, row_view<float>>(run);
    return launched("norm gradient kernel");
}
