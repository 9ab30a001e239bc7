// All gradients of a norm in one pass: of its argument, of its weights, and the sum of the former over rows.
#include "cuda/mma.cuh"
#include "cuda/norm.cuh"

// Packed rows of bf16. A block takes the rows of one chunk of the sums over rows, a warp every eighth of them: the order of
// all additions is that of norm_grad_rows and column_parts. parts are [chunk][sums][size]: of dw, of db, and with three
// sums of dx, whose terms so far lie in shared memory.
struct norm_grad_args {
    const __nv_bfloat16 *dy, *x, *w; // w NULL: 1
    __nv_bfloat16 *dx;
    const float *mean, *rstd; // mean NULL: RMSNORM
    float *parts;
    int64_t rows;
    int size, sums;
    bool add;
};

// What is left of eight elements of dx, given the row's mean of g and of g times the normalized x; returns it as stored.
__device__ __forceinline__ void put_dx(const norm_grad_args &args, int64_t at, const eight_bf16 &dy,
                                       const eight_bf16 &x, const eight_bf16 &w, const eight_bf16 &old, float mean,
                                       float rstd, float sum, float dot, float out[WIDE])
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
    eight_bf16 stored;
    stored.put(out);
    *(uint4 *)(args.dx + at) = stored.bits;
    stored.widen(out);
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

// The sums of the eight lines of threads, one after the other, into the parts of sum k.
__device__ __forceinline__ void join_lines(const norm_grad_args &args, const float *lines, int k)
{
    for (int c = threadIdx.x; c < args.size; c += blockDim.x) {
        float total = lines[c];
        for (int r = 1; r < TILE_ROWS; r++)
            total += lines[r * args.size + c];
        args.parts[((int64_t)blockIdx.x * args.sums + k) * args.size + c] = total;
    }
}

// The sum over a row of which each of WARPS warps holds PIECES pieces, in the order of all pieces. Two places are used by
// turns: nobody writes to one before all have read it.
template <int PIECES, int WARPS>
__device__ __forceinline__ float sum_of_warps(const float dots[PIECES], int line, int part, int turn)
{
    __shared__ float places[2][TILE_ROWS][WARPS * PIECES];
    float *pieces = places[turn % 2][line];
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        float piece = group_sum<32, float>(dots[n]);
        if (threadIdx.x % 32 == 0)
            pieces[part * PIECES + n] = piece;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + line), "n"(32 * WARPS) : "memory"); // those of this row alone
    float total = pieces[0];
#pragma unroll
    for (int n = 1; n < WARPS * PIECES; n++)
        total += pieces[n];
    return total;
}

// Rows on their way: while warps work on one, their next comes to shared memory. A thread reads what it has itself copied.
enum { STAGES = 2 };

template <int PIECES>
__device__ __forceinline__ void fetch_row(const norm_grad_args &args, int64_t row, bool there, int column,
                                          __nv_bfloat16 *to)
{
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        int c = column + n * 32 * WIDE;
        if (!there || c >= args.size)
            break;
        copy_later(to + c, args.dy + row * args.size + c, true);
        copy_later(to + args.size + c, args.x + row * args.size + c, true);
        if (args.add)
            copy_later(to + 2 * args.size + c, args.dx + row * args.size + c, true);
    }
    close_copies();
}

// A row belongs to WARPS warps, of which each holds PIECES pieces of 256 elements. Two warps: for rows of more than 1024
// (RMSNORM, without the sum of dx), whose order is that of a block.
template <int PIECES, int WARPS>
__global__ void __launch_bounds__(BLOCK *WARPS, WARPS > 1 || PIECES > 3 ? 1 : 2)
    norm_grad_chunks(const __grid_constant__ norm_grad_args args)
{
    constexpr bool LONG = WARPS > 1;
    extern __shared__ float lines[]; // [TILE_ROWS][size], then the rows on their way; LONG: in the same place
    int lane = threadIdx.x % 32, part = threadIdx.x / 32 % WARPS, line = threadIdx.x / (32 * WARPS);
    int size = args.size, inputs = args.add ? 3 : 2, column = (part * PIECES * 32 + lane) * WIDE;
    float *own = lines + line * size;
    __nv_bfloat16 *rows = (__nv_bfloat16 *)(lines + (LONG ? 0 : TILE_ROWS * size)) + line * STAGES * inputs * size;
    int64_t first = (int64_t)blockIdx.x * CHUNK_ROWS,
            end = first + CHUNK_ROWS < args.rows ? first + CHUNK_ROWS : args.rows;
    float dw[PIECES][WIDE] = {}, db[PIECES][WIDE] = {}, out[WIDE];
    fetch_row<PIECES>(args, first + line, first + line < end, column, rows);
    float means = 0, rstds = 0; // lane i has those of the line's row i
    if (lane < CHUNK_ROWS / TILE_ROWS && first + line + lane * TILE_ROWS < end) {
        means = args.mean ? args.mean[first + line + lane * TILE_ROWS] : 0;
        rstds = args.rstd[first + line + lane * TILE_ROWS];
    }
    eight_bf16 w[PIECES];
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        int c = column + n * 32 * WIDE;
        w[n] = factors(args, c < size ? c : 0);
    }
    for (int c = lane; !LONG && c < size; c += 32)
        own[c] = 0;
    __syncwarp();
    for (int i = 0; first + line + i * TILE_ROWS < end; i++) {
        int64_t row = first + line + i * TILE_ROWS;
        const __nv_bfloat16 *from = rows + i % STAGES * inputs * size;
        fetch_row<PIECES>(args, row + TILE_ROWS, row + TILE_ROWS < end, column,
                          rows + (i + 1) % STAGES * inputs * size);
        wait_for_copies<1>();
        eight_bf16 dy[PIECES] = {}, x[PIECES] = {}, old = {};
        float mean = __shfl_sync(0xffffffffu, means, i), rstd = __shfl_sync(0xffffffffu, rstds, i);
        float sum = 0, dot = 0, dots[PIECES] = {};
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            int c = column + n * 32 * WIDE;
            if (c >= size)
                continue;
            dy[n].get(from + c);
            x[n].get(from + size + c);
            add_terms(dy[n], x[n], w[n], mean, rstd, &sum, LONG ? &dots[n] : &dot, dw[n], db[n]);
        }
        if constexpr (LONG) {
            sum = 0;
            dot = sum_of_warps<PIECES, WARPS>(dots, line, part, i) / (float)size;
        } else {
            sum = args.mean ? group_sum<32, float>(sum) / (float)size : 0;
            dot = group_sum<32, float>(dot) / (float)size;
        }
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            int c = column + n * 32 * WIDE;
            if (c >= size)
                continue;
            if (args.add)
                old.get(from + 2 * size + c);
            put_dx(args, row * size + c, dy[n], x[n], w[n], old, mean, rstd, sum, dot, out);
            if (!LONG && args.sums > 2) {
                float4 *to = (float4 *)(own + c), low = to[0], high = to[1];
                to[0] = make_float4(low.x + out[0], low.y + out[1], low.z + out[2], low.w + out[3]);
                to[1] = make_float4(high.x + out[4], high.y + out[5], high.z + out[6], high.w + out[7]);
            }
        }
    }
    __syncthreads();
    if (args.sums > 2)
        join_lines(args, lines, 2);
#pragma unroll
    for (int k = 0; k < (LONG ? 1 : 2); k++) {
        __syncthreads();
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            int c = column + n * 32 * WIDE;
            if (c < size)
                store_eight(own + c, k == 0 ? dw[n] : db[n]);
        }
        __syncthreads();
        join_lines(args, lines, k);
    }
}

static size_t shared_bytes(const norm_grad_args &args)
{
    size_t row = (size_t)args.size * TILE_ROWS, rows = row * STAGES * (args.add ? 3 : 2) * sizeof(__nv_bfloat16);
    size_t lines = row * sizeof(float);
    return args.size <= SHORT_ROW ? rows + lines : rows > lines ? rows : lines;
}

template <int PIECES, int WARPS> static sl_status launch_chunks(const cuda_run *run, const norm_grad_args &args)
{
    size_t bytes = shared_bytes(args);
    cudaError_t error = allow_shared(norm_grad_chunks<PIECES, WARPS>, bytes);
    if (error == cudaSuccess)
        norm_grad_chunks<PIECES, WARPS>
            <<<(unsigned)column_chunks(args.rows), BLOCK * WARPS, bytes, run->stream>>>(args);
    return cuda_check(error, "norm gradient kernel");
}

static sl_status launch_size(const cuda_run *run, const norm_grad_args &args)
{
    if (args.size <= 32 * WIDE * 3)
        return launch_chunks<3, 1>(run, args);
    if (args.size <= SHORT_ROW)
        return launch_chunks<4, 1>(run, args);
    return launch_chunks<LONG_PIECES / 2, 2>(run, args);
}

sl_status cuda_norm_grad(const cuda_run *run, bool *is_done)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 1), *dx = sl_call_output(call, 0), *w = sl_call_input(call, 2);
    bool centered = call->op == SL_OP_LAYERNORM_GRAD;
    const int at[MOST_SUMS] = { 1, centered ? 2 : -1, centered ? 3 : 2 }; // the outputs that are sums
    bool has_total = !sl_view_is_none(sl_call_output(call, at[2]));
    int64_t size = sl_dim_from_last(&x->meta, 1);
    norm_grad_args args = {};
    args.rows = sl_row_count(&x->meta, 1);
    args.size = (int)size;
    args.sums = has_total ? 3 : 2;
    args.dy = (const __nv_bfloat16 *)sl_call_input(call, 0)->data;
    args.x = (const __nv_bfloat16 *)x->data;
    args.w = sl_view_is_none(w) ? NULL : (const __nv_bfloat16 *)w->data;
    args.dx = (__nv_bfloat16 *)dx->data;
    args.mean = centered ? statistic(sl_call_input(call, 3)) : NULL;
    args.rstd = statistic(sl_call_input(call, centered ? 4 : 3));
    args.add = sl_call_accumulates(call, 0);
    args.parts = (float *)call->scratch;
    bool is_short = size <= SHORT_ROW, is_long = !centered && !has_total && size <= BLOCK * WIDE;
    *is_done = is_packed(sl_call_input(call, 0), SL_BF16) && is_packed(x, SL_BF16) && is_packed(dx, SL_BF16) &&
               is_packed(w, SL_BF16) && !is_double(call) && args.rstd && (args.mean || !centered) && size > 0 &&
               args.rows > 0 && (is_short || is_long) && fits_shared(shared_bytes(args));
    if (!*is_done)
        return SL_OK;
    column_results results = {};
    for (int k = 0; k < args.sums; k++) {
        if (at[k] < 0)
            continue;
        results.to[k] = view_of(sl_call_output(call, at[k]));
        results.add[k] = sl_call_accumulates(call, at[k]);
    }
    sl_status status = launch_size(run, args);
    if (status != SL_OK)
        return status;
    launch_totals<float>(run, args.parts, args.sums, args.rows, size, results, 1);
    return launched("norm gradient kernel");
}
