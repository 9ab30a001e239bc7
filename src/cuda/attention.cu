// Attention that neither cuDNN nor attention_wgmma.cu does. Here it is by its definition, for f64 and wide heads: a block
// for each query (or, for the gradients of keys and values, for each key), whose weights lie in shared memory. bf16 goes to
// attention_mma.cu, the rest to attention_tiled.cu. Deterministic: every sum has one owner and one order.
#include "cuda/attention.cuh"

#include "kernel/call.h"
#include "kernel/gpu_scratch.h"
#include "kernel/philox.h"

enum { THREADS = 128, WARPS = THREADS / 32 };

// Sum of x[i] * y[i] by a warp; all its threads get it. x lies in shared memory.
template <class S>
__device__ __forceinline__ S dot(const S *x, const tensor_view &y, int64_t start, int64_t width)
{
    S sum = 0;
    for (int64_t d = threadIdx.x % 32; d < width; d += 32)
        sum = fma(x[d], load<S>(y.data, y.dtype, start + d * y.strides[3]), sum);
    return group_sum<32, S>(sum);
}

template <class S>
__device__ __forceinline__ void fetch(S *to, const tensor_view &from, int64_t start, int64_t width)
{
    for (int64_t d = threadIdx.x; d < width; d += THREADS)
        to[d] = load<S>(from.data, from.dtype, start + d * from.strides[3]);
}

// What the weight of key s for query (b, t, h) becomes by dropout.
template <class S>
__device__ __forceinline__ S dropped(const attention_args &a, int64_t b, int64_t t, int64_t h, int64_t s, S value)
{
    if (!a.drops)
        return value;
    const sl_dropout_stream stream = sl_dropout_resolve(&a.stream);
    return (S)sl_dropout_apply(&stream, (uint64_t)(((b * a.heads + h) * a.queries + t) * a.keys + s), (double)value);
}

// The queries that see key s lie from the key's own on up to here: to the last one whose window and document reach it.
// All threads of the block call it.
__device__ __forceinline__ int64_t last_query(const attention_args &a, int64_t b, int64_t s)
{
    __shared__ int last;
    int64_t end = a.window > 0 && s + a.window < a.queries ? s + a.window : a.queries;
    if (!a.documents)
        return end;
    if (threadIdx.x == 0)
        last = (int)s;
    __syncthreads();
    for (int64_t t = s + threadIdx.x; t < end; t += THREADS) {
        if (first_key(a, b, t, t + 1) <= s)
            atomicMax(&last, (int)t + 1);
    }
    __syncthreads();
    return last;
}

// Sum over i of weights[i] * x[row i][d] for one d; rows are `step` apart.
template <class S>
__device__ __forceinline__ S weighted(const S *weights, int64_t first, int64_t count, const tensor_view &x, int64_t start,
                                      int64_t step, int64_t d)
{
    S sum = 0;
#pragma unroll 4
    for (int64_t i = first; i < count; i++)
        sum = fma(weights[i], load<S>(x.data, x.dtype, start + i * step + d * x.strides[3]), sum);
    return sum;
}

extern __shared__ __align__(16) char shared_bytes[];

// ---- Forward ----------------------------------------------------------------------------------

template <class S> __global__ void __launch_bounds__(THREADS) attend(const __grid_constant__ attention_args a)
{
    int64_t t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, g = h / a.shared, visible = visible_keys(a, t);
    int64_t first = first_key(a, b, t, visible);
    S *query = (S *)shared_bytes, *weights = query + a.width;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (a.position && (*a.position < 0 || *a.position + a.queries > a.keys))
        return; // was reported
    fetch(query, a.q, start_of(a.q, b, t, h), a.width);
    __syncthreads();
    S max = -INFINITY, sum = 0;
    for (int64_t s = first + warp; s < visible; s += WARPS) {
        S score = score_of(a, dot(query, a.k, start_of(a.k, b, s, g), a.width));
        if (lane == 0)
            weights[s] = score;
        max = fmax(max, score);
    }
    max = group_max<THREADS, S>(max);
    for (int64_t s = first + threadIdx.x; s < visible; s += THREADS) {
        weights[s] = exponential(weights[s] - max);
        sum += weights[s];
    }
    sum = group_sum<THREADS, S>(sum);
    for (int64_t s = first + threadIdx.x; s < visible; s += THREADS)
        weights[s] = dropped(a, b, t, h, s, weights[s] / sum);
    __syncthreads();
    for (int64_t d = threadIdx.x; d < a.width; d += THREADS) {
        S value = weighted(weights, first, visible, a.v, start_of(a.v, b, 0, g), a.v.strides[1], d);
        store<S>(a.o.data, a.o.dtype, start_of(a.o, b, t, h) + d * a.o.strides[3], value, false);
    }
    if (threadIdx.x == 0 && a.lse.data)
        store<S>(a.lse.data, a.lse.dtype, b * a.lse.strides[0] + h * a.lse.strides[1] + t * a.lse.strides[2],
                 visible > first ? max + logarithm(sum) : (S)-INFINITY, false);
}

// ---- Gradients --------------------------------------------------------------------------------

// delta[b,h,t] = sum of o * do. Eight lanes have a row.
enum { DELTA_LANES = 8, DELTA_ROWS = THREADS / DELTA_LANES };

template <class S> __global__ void __launch_bounds__(THREADS) find_deltas(const __grid_constant__ attention_args a, S *deltas)
{
    int64_t t = (int64_t)blockIdx.x * DELTA_ROWS + threadIdx.x / DELTA_LANES, h = blockIdx.y, b = blockIdx.z;
    int64_t row = t < a.queries ? t : a.queries - 1;
    const row_view<S> o(a.o.data, start_of(a.o, b, row, h), a.o.dtype, a.o.strides[3]);
    const row_view<S> d_o(a.d_o.data, start_of(a.d_o, b, row, h), a.d_o.dtype, a.d_o.strides[3]);
    S sum = 0;
    for (int64_t d = threadIdx.x % DELTA_LANES * WIDE; d < a.width; d += DELTA_LANES * WIDE) {
        S x[WIDE], y[WIDE];
        o.get_wide(d, a.width, 0, x);
        d_o.get_wide(d, a.width, 0, y);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sum = fma(x[k], y[k], sum);
    }
#pragma unroll
    for (int distance = DELTA_LANES / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % DELTA_LANES == 0 && t < a.queries)
        deltas[(b * a.heads + h) * a.queries + t] = sum;
}

template <class S>
__global__ void __launch_bounds__(THREADS) find_dq(const __grid_constant__ attention_args a, const S *deltas)
{
    int64_t t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, g = h / a.shared, visible = visible_keys(a, t);
    int64_t first = first_key(a, b, t, visible);
    S *query = (S *)shared_bytes, *gradient = query + a.width, *ds = gradient + a.width;
    S lse = statistic<S>(a, b, h, t), delta = deltas[(b * a.heads + h) * a.queries + t];
    fetch(query, a.q, start_of(a.q, b, t, h), a.width);
    fetch(gradient, a.d_o, start_of(a.d_o, b, t, h), a.width);
    __syncthreads();
    for (int64_t s = first + threadIdx.x / 32; s < visible; s += WARPS) {
        S score = score_of(a, dot(query, a.k, start_of(a.k, b, s, g), a.width)), p = exponential(score - lse);
        S dp = dropped(a, b, t, h, s, dot(gradient, a.v, start_of(a.v, b, s, g), a.width));
        if (threadIdx.x % 32 == 0)
            ds[s] = (S)a.scale * p * (dp - delta) * slope_of(a, score);
    }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < a.width; d += THREADS) {
        S value = weighted(ds, first, visible, a.k, start_of(a.k, b, 0, g), a.k.strides[1], d);
        store<S>(a.dq.data, a.dq.dtype, start_of(a.dq, b, t, h) + d * a.dq.strides[3], value, a.add_q);
    }
}

template <class S>
__global__ void __launch_bounds__(THREADS) find_dk_dv(const __grid_constant__ attention_args a, const S *deltas)
{
    int64_t s = blockIdx.x, g = blockIdx.y, b = blockIdx.z, first = a.causal ? s : 0, last = last_query(a, b, s);
    S *key = (S *)shared_bytes, *value = key + a.width, *dk = value + a.width, *dv = dk + a.width;
    S *ds = dv + a.width, *used = ds + a.queries;
    fetch(key, a.k, start_of(a.k, b, s, g), a.width);
    fetch(value, a.v, start_of(a.v, b, s, g), a.width);
    for (int64_t d = threadIdx.x; d < a.width; d += THREADS)
        dk[d] = dv[d] = 0;
    for (int64_t h = g * a.shared; h < (g + 1) * a.shared; h++) {
        __syncthreads();
        for (int64_t t = first + threadIdx.x / 32; t < last; t += WARPS) {
            if (a.documents && first_key(a, b, t, t + 1) > s) { // of another document
                if (threadIdx.x % 32 == 0)
                    ds[t] = used[t] = 0;
                continue;
            }
            S score = score_of(a, dot(key, a.q, start_of(a.q, b, t, h), a.width));
            S p = exponential(score - statistic<S>(a, b, h, t));
            S dp = dropped(a, b, t, h, s, dot(value, a.d_o, start_of(a.d_o, b, t, h), a.width));
            if (threadIdx.x % 32 == 0) {
                ds[t] = (S)a.scale * p * (dp - deltas[(b * a.heads + h) * a.queries + t]) * slope_of(a, score);
                used[t] = dropped(a, b, t, h, s, p);
            }
        }
        __syncthreads();
        for (int64_t d = threadIdx.x; d < a.width; d += THREADS) {
            dk[d] += weighted(ds, first, last, a.q, start_of(a.q, b, 0, h), a.q.strides[1], d);
            dv[d] += weighted(used, first, last, a.d_o, start_of(a.d_o, b, 0, h), a.d_o.strides[1], d);
        }
    }
    for (int64_t d = threadIdx.x; d < a.width; d += THREADS) {
        store<S>(a.dk.data, a.dk.dtype, start_of(a.dk, b, s, g) + d * a.dk.strides[3], dk[d], a.add_k);
        store<S>(a.dv.data, a.dv.dtype, start_of(a.dv, b, s, g) + d * a.dv.strides[3], dv[d], a.add_v);
    }
}

// ---- Calls ------------------------------------------------------------------------------------

attention_args attention_args_of(const sl_kernel_call *call)
{
    attention_args a = {};
    const int64_t *q = call->inputs[0].meta.shape.dims;
    const bool cached = call->op == SL_OP_ATTENTION_CACHED;
    a.q = view_of(&call->inputs[0]);
    a.k = view_of(&call->inputs[cached ? 3 : 1]);
    a.v = view_of(&call->inputs[cached ? 4 : 2]);
    a.keys = a.k.dims[1];
    a.heads = q[2];
    a.shared = a.k.dims[2] > 0 ? a.heads / a.k.dims[2] : 1;
    a.queries = q[1];
    a.width = q[3];
    a.scale = call->attrs.scale;
    a.softcap = call->attrs.softcap;
    a.window = call->attrs.window;
    a.causal = call->attrs.causal;
    a.drops = sl_call_drops(call);
    a.stream = sl_dropout_of_weights(call);
    return a;
}

static void set_documents(attention_args *a, const sl_view *positions)
{
    a->documents = (const int32_t *)positions->data;
    a->document_strides[0] = positions->meta.strides[0];
    a->document_strides[1] = positions->meta.strides[1];
}

// Room for that many numbers. Some more is asked for, since the compiler reads pairs of them at once.
template <class S> static size_t shared_room(int64_t numbers)
{
    return (size_t)(numbers + 1) / 2 * 2 * sizeof(S) + 16;
}

template <class S> sl_status attend_by_definition(const cuda_run *run, const attention_args &a)
{
    dim3 grid((unsigned)a.queries, (unsigned)a.heads, (unsigned)a.q.dims[0]);
    return start_attention(run, attend<S>, grid, THREADS, shared_room<S>(a.width + a.keys), a);
}

template sl_status attend_by_definition<double>(const cuda_run *run, const attention_args &a);
template sl_status attend_by_definition<float>(const cuda_run *run, const attention_args &a);

sl_status cuda_attention(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    attention_args a = attention_args_of(call);
    set_documents(&a, sl_call_input(call, 3));
    a.o = view_of(&call->outputs[0]);
    a.lse = view_of(&call->outputs[1]);
    if (is_double(call))
        return attend_by_definition<double>(run, a);
    if (sl_gpu_mma_fits(call))
        return attend_by_mma(run, a);
    return attention_fits_tiles(a) ? attend_in_tiles(run, a) : attend_by_definition<float>(run, a);
}

template <class S> static sl_status start_deltas(const cuda_run *run, const attention_args &a, S *deltas)
{
    dim3 grid((unsigned)((a.queries + DELTA_ROWS - 1) / DELTA_ROWS), (unsigned)a.heads, (unsigned)a.q.dims[0]);
    return start_attention(run, find_deltas<S>, grid, THREADS, 0, a, deltas);
}

template <class S> static sl_status backward(const cuda_run *run, const attention_args &a)
{
    sl_status status = SL_OK;
    const S *deltas = (const S *)run->call->scratch;
    dim3 queries((unsigned)a.queries, (unsigned)a.heads, (unsigned)a.q.dims[0]);
    dim3 keys((unsigned)a.keys, (unsigned)a.k.dims[2], (unsigned)a.q.dims[0]);
    SL_TRY(start_deltas(run, a, (S *)run->call->scratch));
    SL_TRY(start_attention(run, find_dq<S>, queries, THREADS, shared_room<S>(2 * a.width + a.keys), a, deltas));
    SL_TRY(start_attention(run, find_dk_dv<S>, keys, THREADS, shared_room<S>(4 * a.width + 2 * a.queries), a, deltas));
done:
    return status;
}

// By kernels that take the deltas in f32.
static sl_status backward_in_tiles(const cuda_run *run, const attention_args &a)
{
    sl_status status = SL_OK;
    float *deltas = (float *)run->call->scratch;
    uint64_t *kept = (uint64_t *)((char *)deltas + sl_gpu_deltas_bytes(run->call));
    SL_TRY(start_deltas(run, a, deltas));
    SL_TRY(sl_gpu_mma_fits(run->call) ? attention_grad_by_mma(run, a, deltas, kept)
                                      : attention_grad_in_tiles(run, a, deltas));
done:
    return status;
}

attention_args attention_grad_args_of(const sl_kernel_call *call)
{
    attention_args a = attention_args_of(call);
    set_documents(&a, sl_call_input(call, 6));
    a.o = view_of(&call->inputs[3]);
    a.lse = view_of(&call->inputs[4]);
    a.d_o = view_of(&call->inputs[5]);
    a.dq = view_of(&call->outputs[0]);
    a.dk = view_of(&call->outputs[1]);
    a.dv = view_of(&call->outputs[2]);
    a.add_q = sl_call_accumulates(call, 0);
    a.add_k = sl_call_accumulates(call, 1);
    a.add_v = sl_call_accumulates(call, 2);
    return a;
}

sl_status cuda_attention_grad(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const attention_args a = attention_grad_args_of(call);
    if (is_double(call))
        return backward<double>(run, a);
    return sl_gpu_mma_fits(call) || attention_fits_tiles(a) ? backward_in_tiles(run, a) : backward<float>(run, a);
}
