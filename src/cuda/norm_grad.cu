// All gradients of a norm in one pass: of its argument, of its weights, and the sum of the former over rows.
#include "cuda/norm.cuh"

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
