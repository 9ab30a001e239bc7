// Attention from its definition, for f64, wide heads and caches: a block for each query (or, for the gradients of keys and
// values, for each key), whose weights lie in shared memory. Deterministic: every sum has one owner and one order. What
// cuDNN does not do and these need not goes to attention_tiled.cu.
#include "cuda/attention.cuh"

#include "kernel/call.h"
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

// delta[b,h,t] = sum of o * do.
template <class S> __global__ void __launch_bounds__(THREADS) find_deltas(const __grid_constant__ attention_args a, S *deltas)
{
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z;
    if (t >= a.queries)
        return;
    S sum = 0;
    int64_t o = start_of(a.o, b, t, h), d_o = start_of(a.d_o, b, t, h);
    for (int64_t d = threadIdx.x % 32; d < a.width; d += 32)
        sum = fma(load<S>(a.o.data, a.o.dtype, o + d * a.o.strides[3]),
                  load<S>(a.d_o.data, a.d_o.dtype, d_o + d * a.d_o.strides[3]), sum);
    sum = group_sum<32, S>(sum);
    if (threadIdx.x % 32 == 0)
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

static attention_args args_of(const sl_kernel_call *call)
{
    attention_args a = {};
    const int64_t *q = call->inputs[0].meta.shape.dims;
    a.q = view_of(&call->inputs[0]);
    a.heads = q[2];
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

static void set_keys(attention_args *a, const sl_view *k, const sl_view *v)
{
    a->k = view_of(k);
    a->v = view_of(v);
    a->keys = a->k.dims[1];
    a->shared = a->k.dims[2] > 0 ? a->heads / a->k.dims[2] : 1;
}

// Room for that many numbers. Some more is asked for, since the compiler reads pairs of them at once.
template <class S> static size_t shared_room(int64_t numbers)
{
    return (size_t)(numbers + 1) / 2 * 2 * sizeof(S) + 16;
}

template <class S> static sl_status forward(const cuda_run *run, const attention_args &a)
{
    sl_status status = SL_OK;
    size_t bytes = shared_room<S>(a.width + a.keys);
    dim3 grid((unsigned)a.queries, (unsigned)a.heads, (unsigned)a.q.dims[0]);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return SL_OK;
    SL_TRY(allow_shared(attend<S>, bytes));
    attend<S><<<grid, THREADS, bytes, run->stream>>>(a);
    SL_TRY(launched("attention kernel"));
done:
    return status;
}

sl_status cuda_attention(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    attention_args a = args_of(call);
    set_keys(&a, &call->inputs[1], &call->inputs[2]);
    set_documents(&a, sl_call_input(call, 3));
    a.o = view_of(&call->outputs[0]);
    a.lse = view_of(&call->outputs[1]);
    if (is_double(call))
        return forward<double>(run, a);
    return attention_fits_tiles(a) ? attend_in_tiles(run, a) : forward<float>(run, a);
}

template <class S> static sl_status start_deltas(const cuda_run *run, const attention_args &a, S *deltas)
{
    dim3 grid((unsigned)((a.queries + WARPS - 1) / WARPS), (unsigned)a.heads, (unsigned)a.q.dims[0]);
    if (grid.x > 0 && grid.y > 0 && grid.z > 0)
        find_deltas<S><<<grid, THREADS, 0, run->stream>>>(a, deltas);
    return launched("attention gradient kernel");
}

template <class S> static sl_status backward(const cuda_run *run, const attention_args &a)
{
    sl_status status = SL_OK;
    S *deltas = (S *)run->call->scratch;
    unsigned batch = (unsigned)a.q.dims[0], heads = (unsigned)a.heads, groups = (unsigned)a.k.dims[2];
    size_t dq_bytes = shared_room<S>(2 * a.width + a.keys);
    size_t dk_bytes = shared_room<S>(4 * a.width + 2 * a.queries);
    SL_TRY(allow_shared(find_dq<S>, dq_bytes));
    SL_TRY(allow_shared(find_dk_dv<S>, dk_bytes));
    SL_TRY(start_deltas(run, a, deltas));
    if (batch > 0 && heads > 0 && a.queries > 0)
        find_dq<S><<<dim3((unsigned)a.queries, heads, batch), THREADS, dq_bytes, run->stream>>>(a, deltas);
    if (batch > 0 && groups > 0 && a.keys > 0)
        find_dk_dv<S><<<dim3((unsigned)a.keys, groups, batch), THREADS, dk_bytes, run->stream>>>(a, deltas);
    SL_TRY(launched("attention gradient kernel"));
done:
    return status;
}

static sl_status backward_in_tiles(const cuda_run *run, const attention_args &a)
{
    sl_status status = SL_OK;
    float *deltas = (float *)run->call->scratch;
    SL_TRY(start_deltas(run, a, deltas));
    SL_TRY(find_dq_in_tiles(run, a, deltas));
    SL_TRY(find_dk_dv_in_tiles(run, a, deltas));
done:
    return status;
}

sl_status cuda_attention_grad(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    attention_args a = args_of(call);
    set_keys(&a, &call->inputs[1], &call->inputs[2]);
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
    if (is_double(call))
        return backward<double>(run, a);
    return attention_fits_tiles(a) ? backward_in_tiles(run, a) : backward<float>(run, a);
}

// ---- With a cache -----------------------------------------------------------------------------

// Copies new keys or values to their place in the cache; the bits travel through double, which holds all of them.
__global__ void append(const __grid_constant__ tensor_view rows, const __grid_constant__ tensor_view cache, const int32_t *position, int64_t count, const __grid_constant__ cuda_reporter reporter)
{
    int64_t first = *position;
    if (first < 0 || first + rows.dims[1] > cache.dims[1]) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            report(reporter, CUDA_FAULT_CACHE, first, rows.dims[1], cache.dims[1]);
        return;
    }
    FOR_EACH_ELEMENT (i, count) {
        int64_t d = i % rows.dims[3], h = i / rows.dims[3] % rows.dims[2], t = i / rows.dims[3] / rows.dims[2];
        int64_t b = t / rows.dims[1];
        t %= rows.dims[1];
        double value = load<double>(rows.data, rows.dtype, start_of(rows, b, t, h) + d * rows.strides[3]);
        store<double>(cache.data, cache.dtype, start_of(cache, b, first + t, h) + d * cache.strides[3], value, false);
    }
}

sl_status cuda_attention_cached(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    attention_args a = args_of(call);
    int64_t count = sl_meta_count(&call->inputs[1].meta);
    set_keys(&a, &call->inputs[3], &call->inputs[4]);
    a.o = view_of(&call->outputs[0]);
    a.position = (const int32_t *)call->inputs[5].data;
    for (int i = 0; i < 2; i++)
        append<<<element_blocks(count > 0 ? count : 1), BLOCK, 0, run->stream>>>(
            view_of(&call->inputs[1 + i]), i == 0 ? a.k : a.v, a.position, count, run->reporter);
    return is_double(call) ? forward<double>(run, a) : forward<float>(run, a);
}

// ---- Rotary embedding -------------------------------------------------------------------------

template <class S>
__global__ void rotate(const __grid_constant__ tensor_view x, const __grid_constant__ tensor_view cosines, const __grid_constant__ tensor_view sines, const __grid_constant__ tensor_view positions, const __grid_constant__ tensor_view y,
                       int64_t count, bool inverse, bool add, const __grid_constant__ cuda_reporter reporter)
{
    int64_t half = cosines.dims[1], pairs = x.dims[3] - half; // a pair to rotate, or one element of the rest
    FOR_EACH_ELEMENT (i, count) {
        int64_t row = quotient(i, pairs), d = i - row * pairs, line = quotient(row, x.dims[2]);
        int64_t h = row - line * x.dims[2], b = quotient(line, x.dims[1]), t = line - b * x.dims[1];
        int64_t position = t;
        bool own = positions.rank == 2; // positions of each row of the batch
        if (positions.data)
            position = ((const int32_t *)positions.data)[own ? b * positions.strides[0] + t * positions.strides[1]
                                                             : t * positions.strides[0]];
        if (position < 0 || position >= cosines.dims[0]) {
            report(reporter, CUDA_FAULT_POSITION, position, own ? line : t, cosines.dims[0]);
            continue;
        }
        int64_t from = start_of(x, b, t, h), to = start_of(y, b, t, h);
        if (d >= half) {
            S rest = load<S>(x.data, x.dtype, from + (d + half) * x.strides[3]);
            store<S>(y.data, y.dtype, to + (d + half) * y.strides[3], rest, add);
            continue;
        }
        S c = load<S>(cosines.data, cosines.dtype, position * cosines.strides[0] + d * cosines.strides[1]);
        S s = load<S>(sines.data, sines.dtype, position * sines.strides[0] + d * sines.strides[1]);
        S first = load<S>(x.data, x.dtype, from + d * x.strides[3]);
        S second = load<S>(x.data, x.dtype, from + (d + half) * x.strides[3]);
        s = inverse ? -s : s;
        store<S>(y.data, y.dtype, to + d * y.strides[3], first * c - second * s, add);
        store<S>(y.data, y.dtype, to + (d + half) * y.strides[3], second * c + first * s, add);
    }
}

sl_status cuda_rope(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    tensor_view cosines = view_of(sl_call_input(call, 1)), sines = view_of(sl_call_input(call, 2));
    tensor_view positions = view_of(sl_call_input(call, 3)), y = view_of(sl_call_output(call, 0));
    bool add = sl_call_accumulates(call, 0);
    int64_t width = x->meta.shape.dims[3];
    int64_t count = width > 0 ? sl_meta_count(&x->meta) / width * (width - cosines.dims[1]) : 0;
    if (count == 0)
        return SL_OK;
    if (is_double(call))
        rotate<double><<<element_blocks(count), BLOCK, 0, run->stream>>>(view_of(x), cosines, sines, positions, y, count,
                                                                         call->attrs.inverse, add, run->reporter);
    else
        rotate<float><<<element_blocks(count), BLOCK, 0, run->stream>>>(view_of(x), cosines, sines, positions, y, count,
                                                                        call->attrs.inverse, add, run->reporter);
    return launched("rope kernel");
}
