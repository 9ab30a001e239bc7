// What the kernels of attention share: their arguments, masks and scores.
#ifndef SL_CUDA_ATTENTION_CUH
#define SL_CUDA_ATTENTION_CUH

#include "cuda/element.cuh"
#include "cuda/shared_memory.cuh"

#include "kernel/call.h"
#include "kernel/philox.h"

#define LOG2_E 1.44269504f

struct attention_args {
    tensor_view q, k, v, o, lse; // [B,T,H,D], [B,S,G,D], [B,S,G,D], [B,T,H,D], [B,H,T]
    tensor_view d_o, dq, dk, dv;
    int64_t heads, shared, queries, keys, width; // H, H / G, T, S, D
    double scale, softcap;
    int64_t window;
    bool causal, drops, add_q, add_k, add_v;
    sl_dropout_stream stream;
    const int32_t *position;  // with a cache: of query 0; else NULL
    const int32_t *documents; // place of each query in its document, [B,T] with these strides; NULL: a row is one
    int64_t document_strides[2];
};

__device__ __forceinline__ int64_t visible_keys(const attention_args &a, int64_t t)
{
    if (a.position)
        return *a.position + t + 1;
    return a.causal && t + 1 < a.keys ? t + 1 : a.keys;
}

// The first key that query (b, t) sees, if it would see `visible` without a window and documents.
__device__ __forceinline__ int64_t first_key(const attention_args &a, int64_t b, int64_t t, int64_t visible)
{
    int64_t place = a.position ? *a.position + t : t, first = a.window > 0 ? place + 1 - a.window : 0;
    if (a.documents) {
        int64_t start = t - a.documents[b * a.document_strides[0] + t * a.document_strides[1]];
        first = start > first ? start : first;
    }
    return first < 0 ? 0 : first < visible ? first : visible;
}

// The score of a product q.k.
template <class S> __device__ __forceinline__ S score_of(const attention_args &a, S product)
{
    S score = (S)a.scale * product;
    return a.softcap > 0 ? (S)a.softcap * hyperbolic(score / (S)a.softcap) : score;
}

// The derivative of a score by scale * q.k.
template <class S> __device__ __forceinline__ S slope_of(const attention_args &a, S score)
{
    S part = a.softcap > 0 ? score / (S)a.softcap : (S)0;
    return 1 - part * part;
}

template <class S> __device__ __forceinline__ S statistic(const attention_args &a, int64_t b, int64_t h, int64_t t)
{
    return load<S>(a.lse.data, a.lse.dtype, b * a.lse.strides[0] + h * a.lse.strides[1] + t * a.lse.strides[2]);
}

// 2 to the power of x, good to 2^-22.
__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Starts a kernel, unless there is nothing to do.
template <class Kernel, class... Args>
static sl_status start_attention(const cuda_run *run, Kernel kernel, dim3 grid, int threads, size_t bytes,
                                 const Args &...args)
{
    sl_status status = SL_OK;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return SL_OK;
    if (allow_shared(kernel, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "attention: the sequence is too long for this GPU (%zu bytes of shared memory)", bytes);
    }
    kernel<<<grid, threads, bytes, run->stream>>>(args...);
    SL_TRY(launched("attention kernel"));
done:
    return status;
}

// attention.cu. All that a call says but results, gradients and documents.
attention_args attention_args_of(const sl_kernel_call *call);
attention_args attention_grad_args_of(const sl_kernel_call *call); // with those
template <class S> sl_status attend_by_definition(const cuda_run *run, const attention_args &a);

// attention_mma.cu: by the matrix units, if sl_gpu_mma_fits. The gradients also take room for the bits of dropout.
sl_status attend_by_mma(const cuda_run *run, const attention_args &a);
sl_status attention_grad_by_mma(const cuda_run *run, const attention_args &a, const float *deltas, uint64_t *kept);

// attention_tiled.cu: all kernels of f32 sums, for heads of at most 128.
bool attention_fits_tiles(const attention_args &a);
sl_status attend_in_tiles(const cuda_run *run, const attention_args &a);
sl_status attention_grad_in_tiles(const cuda_run *run, const attention_args &a, const float *deltas);

#endif
