// Attention with a cache of keys and values, as generation uses it: few queries and many keys. A block has one query of
// one head; eight lanes share a key, and 32 such groups go through the cache at a time with a running softmax each.
#include "cuda/attention.cuh"

#include "kernel/call.h"
#include "kernel/gpu_scratch.h"

// ---- New keys and values ----------------------------------------------------------------------

struct append_args {
    tensor_view rows[2], caches[2]; // of keys and of values
    const int32_t *position;
    int64_t count; // elements of rows
};

// Copies new keys and values to their place; the bits travel through double, which holds all of them.
__global__ void append(const __grid_constant__ append_args args, const __grid_constant__ cuda_reporter reporter)
{
    const tensor_view &rows = args.rows[blockIdx.y], &cache = args.caches[blockIdx.y];
    int64_t first = *args.position;
    if (first < 0 || first + rows.dims[1] > cache.dims[1]) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            report(reporter, CUDA_FAULT_CACHE, first, rows.dims[1], cache.dims[1]);
        return;
    }
    FOR_EACH_ELEMENT (i, args.count) {
        int64_t d = i % rows.dims[3], h = i / rows.dims[3] % rows.dims[2], t = i / rows.dims[3] / rows.dims[2];
        int64_t b = t / rows.dims[1];
        t %= rows.dims[1];
        double value = load<double>(rows.data, rows.dtype, start_of(rows, b, t, h) + d * rows.strides[3]);
        store<double>(cache.data, cache.dtype, start_of(cache, b, first + t, h) + d * cache.strides[3], value, false);
    }
}

// ---- Attention --------------------------------------------------------------------------------

enum { CACHE_THREADS = 256, KEY_LANES = 8, KEY_GROUPS = CACHE_THREADS / KEY_LANES, KEYS_AT_ONCE = 4 };

__device__ __forceinline__ row_view<float> cached_row(const tensor_view &view, int64_t b, int64_t t, int64_t h)
{
    return row_view<float>(view.data, start_of(view, b, t, h), view.dtype, view.strides[3]);
}

// A lane has PIECES times eight numbers of every row: heads are at most 64 * PIECES wide.
template <int PIECES>
__global__ void __launch_bounds__(CACHE_THREADS) attend_cached(const __grid_constant__ attention_args a)
{
    __shared__ float sums[KEY_GROUPS][64 * PIECES], most_of[KEY_GROUPS], total_of[KEY_GROUPS];
    const int64_t t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, g = h / a.shared, width = a.width;
    const int group = (int)threadIdx.x / KEY_LANES, lane = (int)threadIdx.x % KEY_LANES;
    float query[PIECES][WIDE], out[PIECES][WIDE] = {}, most = -INFINITY, total = 0;
    if (*a.position < 0 || *a.position + a.queries > a.keys)
        return; // was reported
    const int64_t visible = visible_keys(a, t), first = first_key(a, b, t, visible);
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        cached_row(a.q, b, t, h).get_wide((p * KEY_LANES + lane) * WIDE, width, 0, query[p]);
    for (int64_t s0 = first + group; s0 - group < visible; s0 += KEY_GROUPS * KEYS_AT_ONCE) {
        float scores[KEYS_AT_ONCE], largest = most;
#pragma unroll
        for (int n = 0; n < KEYS_AT_ONCE; n++) {
            const int64_t s = s0 + n * KEY_GROUPS;
            scores[n] = 0;
#pragma unroll
            for (int p = 0; p < PIECES && s < visible; p++) {
                float key[WIDE];
                cached_row(a.k, b, s, g).get_wide((p * KEY_LANES + lane) * WIDE, width, 0, key);
#pragma unroll
                for (int k = 0; k < WIDE; k++)
                    scores[n] = fmaf(query[p][k], key[k], scores[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS_AT_ONCE; n++) {
#pragma unroll
            for (int distance = KEY_LANES / 2; distance > 0; distance /= 2)
                scores[n] += __shfl_xor_sync(0xffffffffu, scores[n], distance);
            scores[n] = s0 + n * KEY_GROUPS < visible ? score_of(a, scores[n]) : -INFINITY;
            largest = fmaxf(largest, scores[n]);
        }
        const float base = largest == -INFINITY ? 0 : largest, shrink = expf(most - base);
        most = largest;
        total *= shrink;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                out[p][k] *= shrink;
        }
#pragma unroll
        for (int n = 0; n < KEYS_AT_ONCE; n++) {
            const int64_t s = s0 + n * KEY_GROUPS;
            const float weight = expf(scores[n] - base);
            total += weight;
#pragma unroll
            for (int p = 0; p < PIECES && s < visible; p++) {
                float value[WIDE];
                cached_row(a.v, b, s, g).get_wide((p * KEY_LANES + lane) * WIDE, width, 0, value);
#pragma unroll
                for (int k = 0; k < WIDE; k++)
                    out[p][k] = fmaf(weight, value[k], out[p][k]);
            }
        }
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sums[group][(p * KEY_LANES + lane) * WIDE + k] = out[p][k];
    }
    if (lane == 0) {
        most_of[group] = most;
        total_of[group] = total;
    }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < width; d += CACHE_THREADS) {
        float largest = -INFINITY, sum = 0, all = 0;
        for (int i = 0; i < KEY_GROUPS; i++)
            largest = fmaxf(largest, most_of[i]);
        for (int i = 0; i < KEY_GROUPS && largest > -INFINITY; i++) {
            const float share = expf(most_of[i] - largest);
            sum = fmaf(share, sums[i][d], sum);
            all = fmaf(share, total_of[i], all);
        }
        store<float>(a.o.data, a.o.dtype, start_of(a.o, b, t, h) + d * a.o.strides[3], all > 0 ? sum / all : 0, false);
    }
}

// ---- Calls ------------------------------------------------------------------------------------

enum { FEW_QUERIES = 16 }; // fewer leave the matrix units mostly idle

sl_status cuda_attention_cached(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    attention_args a = attention_args_of(call);
    append_args added = {};
    a.o = view_of(&call->outputs[0]);
    a.position = (const int32_t *)call->inputs[5].data;
    added = { { view_of(&call->inputs[1]), view_of(&call->inputs[2]) },
              { a.k, a.v },
              a.position,
              sl_meta_count(&call->inputs[1].meta) };
    append<<<dim3(element_blocks(added.count > 0 ? added.count : 1), 2), BLOCK, 0, run->stream>>>(added, run->reporter);
    if (is_double(call))
        return attend_by_definition<double>(run, a);
    if (a.queries >= FEW_QUERIES && sl_gpu_mma_fits(call))
        return attend_by_mma(run, a);
    dim3 grid((unsigned)a.queries, (unsigned)a.heads, (unsigned)a.q.dims[0]);
    if (a.width <= 64)
        return start_attention(run, attend_cached<1>, grid, CACHE_THREADS, 0, a);
    return a.width <= 128 ? start_attention(run, attend_cached<2>, grid, CACHE_THREADS, 0, a)
                          : attend_by_definition<float>(run, a);
}
