// Layer normalization and RMS normalization over the last dim, and their gradients.
#include "cuda/columns.cuh"

#include "kernel/call.h"

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

// Eight elements as they lie in memory: half the registers.
struct eight_bf16 {
    uint4 bits;
    __device__ __forceinline__ void get(const __nv_bfloat16 *from) { bits = *(const uint4 *)from; }
    __device__ __forceinline__ void put(const float in[WIDE]) { store_eight((__nv_bfloat16 *)&bits, in); }
    __device__ __forceinline__ void widen(float out[WIDE]) const { load_eight((const __nv_bfloat16 *)&bits, out); }
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
                  is_packed(sl_call_input(call, 1), SL_BF16) && (!centered || is_packed(sl_call_input(call, 2), SL_BF16));
    LAUNCH_HELD(run, norm_rows, packed, rows, size, merged(x, 1), view_of(sl_call_input(call, 1)), b,
                merged(sl_call_output(call, 0), 1), mean, merged(sl_call_output(call, centered ? 2 : 1), 0), rows, size,
                call->attrs.eps, centered);
    return launched("norm kernel");
}

// ---- Long rows by single warps ----------------------------------------------------------------

// Rows of more than 1024 elements are held by a block elsewhere, a piece by each warp. Here one warp holds all pieces: it
// waits for nobody, and its sums have the order of the block's.
enum { LONG_PIECES = BLOCK / 32 };

__device__ __forceinline__ float sum_pieces(float parts[LONG_PIECES])
{
    float total = 0;
#pragma unroll
    for (int n = 0; n < LONG_PIECES; n++) {
        float piece = group_sum<32, float>(parts[n]);
        total = n == 0 ? piece : total + piece;
    }
    return total;
}

struct add_norm_args {
    const __nv_bfloat16 *a, *b, *w, *bias; // w, bias NULL: none
    __nv_bfloat16 *sum, *y;
    float *mean, *rstd; // mean NULL: RMSNORM
    int64_t rows;
    int size;
    float eps;
};

__global__ void __launch_bounds__(BLOCK) add_norm_long(const __grid_constant__ add_norm_args args)
{
    int lane = threadIdx.x % 32, size = args.size;
    int64_t row = (int64_t)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32, start = row * size;
    if (row >= args.rows)
        return;
    eight_bf16 x[LONG_PIECES] = {}, other[LONG_PIECES] = {};
    float parts[LONG_PIECES] = {}, v[WIDE], more[WIDE], mean = 0;
#pragma unroll
    for (int n = 0; n < LONG_PIECES; n++) {
        int c = (n * 32 + lane) * WIDE;
        if (c < size) {
            x[n].get(args.a + start + c);
            other[n].get(args.b + start + c);
        }
    }
#pragma unroll
    for (int n = 0; n < LONG_PIECES; n++) {
        int c = (n * 32 + lane) * WIDE;
        x[n].widen(v);
        other[n].widen(more);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            v[k] += more[k];
        x[n].put(v); // as it is stored
        if (c < size)
            *(uint4 *)(args.sum + start + c) = x[n].bits;
        x[n].widen(v);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            parts[n] += v[k];
    }
    if (args.mean)
        mean = sum_pieces(parts) / (float)size;
#pragma unroll
    for (int n = 0; n < LONG_PIECES; n++) {
        bool inside = (n * 32 + lane) * WIDE < size;
        x[n].widen(v);
        parts[n] = 0;
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            parts[n] += inside ? (v[k] - mean) * (v[k] - mean) : 0;
    }
    float rstd = reciprocal_root(sum_pieces(parts) / (float)size + args.eps);
#pragma unroll
    for (int n = 0; n < LONG_PIECES; n++) {
        int c = (n * 32 + lane) * WIDE;
        float factor[WIDE], offset[WIDE];
        if (c >= size)
            continue;
        x[n].widen(v);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            factor[k] = 1;
            offset[k] = 0;
        }
        if (args.w)
            load_eight(args.w + c, factor);
        if (args.bias)
            load_eight(args.bias + c, offset);
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

static float *statistic(const sl_view *view)
{
    return view->meta.dtype == SL_F32 && sl_meta_is_contiguous(&view->meta) ? (float *)view->data : NULL;
}

static bool launch_add_norm_long(const cuda_run *run, int64_t rows, int64_t size)
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
    if (!args.rstd || (centered && !args.mean))
        return false;
    add_norm_long<<<(unsigned)((rows + BLOCK / 32 - 1) / (BLOCK / 32)), BLOCK, 0, run->stream>>>(args);
    return true;
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
    if (packed && size > SHORT_ROW && launch_add_norm_long(run, rows, size))
        return launched("norm kernel");
    if (packed)
        LAUNCH_FLOAT(run, add_norm_rows, packed_row<__nv_bfloat16>, rows, size, a, other, sum, w, b, y, mean, rstd, rows,
                     size, call->attrs.eps, centered);
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
    __device__ __forceinline__ void add(int64_t row, int64_t column, int64_t columns, S sums[2][WIDE]) const
    {
        S center = mean.data ? load<S>(mean.data, mean.dtype, mean.offset(row)) : 0;
        S scale = load<S>(rstd.data, rstd.dtype, rstd.offset(row)), g[WIDE], v[WIDE];
        Row(dy, row).get_wide(column, columns, 0, g);
        Row(x, row).get_wide(column, columns, 0, v);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            sums[0][k] = fma(g[k], (v[k] - center) * scale, sums[0][k]);
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
    launch_columns<S, 2>(run, source, sl_row_count(&x->meta, 1), sl_dim_from_last(&x->meta, 1),
                         view_of(sl_call_output(call, 0)), view_of(sl_call_output(call, 1)),
                         sl_call_accumulates(call, 0), sl_call_accumulates(call, 1), 1);
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

// ---- All gradients at once --------------------------------------------------------------------

// Packed rows of bf16 that the threads of a warp, or of a block, hold. A block takes the rows of one chunk of the sums over rows, a warp
// every eighth of them: the order of all additions is that of norm_grad_rows and column_parts. parts are those of dw and
// db; total_parts (NULL: none) those of the sum of dx, whose terms so far lie in shared memory.
struct norm_grad_args {
    const __nv_bfloat16 *dy, *x, *w; // w NULL: 1
    __nv_bfloat16 *dx;
    const float *mean, *rstd; // mean NULL: RMSNORM
    float *parts, *total_parts;
    int64_t rows;
    int size;
    bool add;
};

// What is left of eight elements of dx, given the row's mean of g and of g times the normalized x; returns it as stored.
__device__ __forceinline__ void put_dx(const norm_grad_args &args, int64_t at, const eight_bf16 &dy, const eight_bf16 &x,
                                       const eight_bf16 &w, const eight_bf16 &old, float mean, float rstd, float sum,
                                       float dot, float out[WIDE])
{
    float given[WIDE], v[WIDE], factor[WIDE], before[WIDE];
    dy.widen(given);
    x.widen(v);
    w.widen(factor);
    old.widen(before);
#pragma unroll
    for (int k = 0; k < WIDE; k++) {
        out[k] = rstd * fma((mean - v[k]) * rstd, dot, given[k] * factor[k] - sum);
        out[k] = args.add ? out[k] + before[k] : out[k];
    }
    store_eight(args.dx + at, out);
#pragma unroll
    for (int k = 0; k < WIDE; k++)
        out[k] = as_stored<float>(out[k], SL_BF16);
}

// The terms of eight elements in the sums over the row and over rows.
__device__ __forceinline__ void add_terms(const eight_bf16 &dy, const eight_bf16 &x, const eight_bf16 &w, float mean,
                                          float rstd, float *sum, float *dot, float dw[WIDE], float db[WIDE])
{
    float given[WIDE], v[WIDE], factor[WIDE];
    dy.widen(given);
    x.widen(v);
    w.widen(factor);
#pragma unroll
    for (int k = 0; k < WIDE; k++) {
        float g = given[k] * factor[k], normalized = (v[k] - mean) * rstd;
        *sum += g;
        *dot = fma(g, normalized, *dot);
        dw[k] = fma(given[k], normalized, dw[k]);
        db[k] += given[k];
    }
}

__device__ __forceinline__ eight_bf16 factors(const norm_grad_args &args, int column)
{
    eight_bf16 w;
    if (args.w)
        w.get(args.w + column);
    else
        w.bits = make_uint4(0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u); // ones
    return w;
}

// The sums of the eight lines of threads, one after the other, into the parts of sum k of `sums`.
__device__ __forceinline__ void join_lines(const float *lines, int size, float *parts, int sums, int k)
{
    for (int c = threadIdx.x; c < size; c += BLOCK) {
        float total = lines[c];
        for (int r = 1; r < TILE_ROWS; r++)
            total += lines[r * size + c];
        parts[((int64_t)blockIdx.x * sums + k) * size + c] = total;
    }
}

template <int HELD>
__global__ void __launch_bounds__(BLOCK, 2) norm_grad_chunks(const __grid_constant__ norm_grad_args args)
{
    extern __shared__ float lines[]; // [TILE_ROWS][size]
    int lane = threadIdx.x % 32, line = threadIdx.x / 32, size = args.size;
    float *own = lines + line * size;
    int64_t first = (int64_t)blockIdx.x * CHUNK_ROWS, end = first + CHUNK_ROWS < args.rows ? first + CHUNK_ROWS : args.rows;
    float dw[HELD][WIDE] = {}, db[HELD][WIDE] = {}, out[WIDE];
    eight_bf16 w[HELD];
#pragma unroll
    for (int n = 0; n < HELD; n++) {
        int c = (n * 32 + lane) * WIDE;
        w[n] = factors(args, c < size ? c : 0);
    }
    for (int c = lane; c < size; c += 32)
        own[c] = 0;
    __syncwarp();
    for (int64_t row = first + line; row < end; row += TILE_ROWS) {
        eight_bf16 dy[HELD] = {}, x[HELD] = {}, old[HELD] = {};
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            int c = (n * 32 + lane) * WIDE;
            if (c < size) {
                dy[n].get(args.dy + row * size + c);
                x[n].get(args.x + row * size + c);
                if (args.add)
                    old[n].get(args.dx + row * size + c);
            }
        }
        float mean = args.mean ? args.mean[row] : 0, rstd = args.rstd[row], sum = 0, dot = 0;
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            if ((n * 32 + lane) * WIDE < size)
                add_terms(dy[n], x[n], w[n], mean, rstd, &sum, &dot, dw[n], db[n]);
        }
        sum = args.mean ? group_sum<32, float>(sum) / (float)size : 0;
        dot = group_sum<32, float>(dot) / (float)size;
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            int c = (n * 32 + lane) * WIDE;
            if (c >= size)
                continue;
            put_dx(args, row * size + c, dy[n], x[n], w[n], old[n], mean, rstd, sum, dot, out);
            if (args.total_parts) {
                float4 *to = (float4 *)(own + c), low = to[0], high = to[1];
                to[0] = make_float4(low.x + out[0], low.y + out[1], low.z + out[2], low.w + out[3]);
                to[1] = make_float4(high.x + out[4], high.y + out[5], high.z + out[6], high.w + out[7]);
            }
        }
    }
    __syncthreads();
    if (args.total_parts)
        join_lines(lines, size, args.total_parts, 1, 0);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        __syncthreads();
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            int c = (n * 32 + lane) * WIDE;
            if (c < size)
                store_eight(own + c, k == 0 ? dw[n] : db[n]);
        }
        __syncthreads();
        join_lines(lines, size, args.parts, 2, k);
    }
}

__global__ void __launch_bounds__(BLOCK, 1) norm_grad_long(const __grid_constant__ norm_grad_args args)
{
    __shared__ float lines[TILE_ROWS][SHORT_ROW];
    int lane = threadIdx.x % 32, line = threadIdx.x / 32, size = args.size;
    int64_t first = (int64_t)blockIdx.x * CHUNK_ROWS, end = first + CHUNK_ROWS < args.rows ? first + CHUNK_ROWS : args.rows;
    float dw[LONG_PIECES][WIDE] = {}, unused[WIDE] = {}, out[WIDE];
    for (int64_t row = first + line; row < end; row += TILE_ROWS) {
        eight_bf16 dy[LONG_PIECES] = {}, x[LONG_PIECES] = {}, old[LONG_PIECES] = {};
        float rstd = args.rstd[row], dots[LONG_PIECES] = {}, sum = 0;
#pragma unroll
        for (int n = 0; n < LONG_PIECES; n++) {
            int c = (n * 32 + lane) * WIDE;
            if (c < size) {
                dy[n].get(args.dy + row * size + c);
                x[n].get(args.x + row * size + c);
                if (args.add)
                    old[n].get(args.dx + row * size + c);
            }
        }
#pragma unroll
        for (int n = 0; n < LONG_PIECES; n++) {
            int c = (n * 32 + lane) * WIDE;
            if (c < size)
                add_terms(dy[n], x[n], factors(args, c), 0, rstd, &sum, &dots[n], dw[n], unused);
        }
        float dot = sum_pieces(dots) / (float)size;
#pragma unroll
        for (int n = 0; n < LONG_PIECES; n++) {
            int c = (n * 32 + lane) * WIDE;
            if (c < size)
                put_dx(args, row * size + c, dy[n], x[n], factors(args, c), old[n], 0, rstd, 0, dot, out);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) { // of the columns
        __syncthreads();
#pragma unroll
        for (int n = 0; n < LONG_PIECES / 2; n++)
            store_eight(&lines[line][(n * 32 + lane) * WIDE], dw[half * LONG_PIECES / 2 + n]);
        __syncthreads();
        for (int c = threadIdx.x; c < SHORT_ROW && half * SHORT_ROW + c < size; c += BLOCK) {
            float total = lines[0][c];
            for (int r = 1; r < TILE_ROWS; r++)
                total += lines[r][c];
            args.parts[(int64_t)blockIdx.x * 2 * size + half * SHORT_ROW + c] = total;
        }
    }
}

sl_status cuda_norm_grad(const cuda_run *run, bool *is_done)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 1), *dx = sl_call_output(call, 0), *w = sl_call_input(call, 2);
    bool centered = call->op == SL_OP_LAYERNORM_GRAD;
    const sl_view *db = centered ? sl_call_output(call, 2) : &sl_absent;
    const sl_view *total = sl_call_output(call, centered ? 3 : 2);
    int64_t size = sl_dim_from_last(&x->meta, 1);
    norm_grad_args args = {};
    args.rows = sl_row_count(&x->meta, 1);
    args.size = (int)size;
    args.dy = (const __nv_bfloat16 *)sl_call_input(call, 0)->data;
    args.x = (const __nv_bfloat16 *)x->data;
    args.w = sl_view_is_none(w) ? NULL : (const __nv_bfloat16 *)w->data;
    args.dx = (__nv_bfloat16 *)dx->data;
    args.mean = centered ? statistic(sl_call_input(call, 3)) : NULL;
    args.rstd = statistic(sl_call_input(call, centered ? 4 : 3));
    args.add = sl_call_accumulates(call, 0);
    args.parts = (float *)call->scratch;
    int64_t chunks = column_chunks(args.rows);
    if (!sl_view_is_none(total))
        args.total_parts = args.parts + 2 * chunks * size;
    bool is_short = size <= SHORT_ROW, is_long = !centered && !args.total_parts && size <= BLOCK * WIDE;
    *is_done = is_packed(sl_call_input(call, 0), SL_BF16) && is_packed(x, SL_BF16) && is_packed(dx, SL_BF16) &&
               is_packed(w, SL_BF16) && !is_double(call) && args.rstd && (args.mean || !centered) && size > 0 &&
               args.rows > 0 && (is_short || is_long);
    if (!*is_done)
        return SL_OK;
    size_t shared = (size_t)(TILE_ROWS * size) * sizeof(float);
    if (size <= 32 * WIDE * 3)
        norm_grad_chunks<3><<<(unsigned)chunks, BLOCK, shared, run->stream>>>(args);
    else if (is_short)
        norm_grad_chunks<4><<<(unsigned)chunks, BLOCK, shared, run->stream>>>(args);
    else
        norm_grad_long<<<(unsigned)chunks, BLOCK, 0, run->stream>>>(args);
    launch_totals<float, 2>(run, args.parts, args.rows, size, view_of(sl_call_output(call, 1)), view_of(db),
                            sl_call_accumulates(call, 1), sl_call_accumulates(call, 2), 1);
    if (args.total_parts)
        launch_totals<float, 1>(run, args.total_parts, args.rows, size, view_of(total), tensor_view(),
                                sl_call_accumulates(call, centered ? 3 : 2), false, 1);
    return launched("norm gradient kernel");
}
