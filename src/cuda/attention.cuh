// What the kernels of attention share: their arguments, masks and scores.
#ifndef SL_CUDA_ATTENTION_CUH
#define SL_CUDA_ATTENTION_CUH

#include "cuda/element.cuh"

#include "kernel/call.h"
#include "kernel/philox.h"

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

// Where row (b, t, h) of a [B,T,H,D] tensor starts.
__device__ __forceinline__ int64_t start_of(const tensor_view &view, int64_t b, int64_t t, int64_t h)
{
    return b * view.strides[0] + t * view.strides[1] + h * view.strides[2];
}

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

template <class S>
__device__ __forceinline__ S statistic(const attention_args &a, int64_t b, int64_t h, int64_t t)
{
    return load<S>(a.lse.data, a.lse.dtype, b * a.lse.strides[0] + h * a.lse.strides[1] + t * a.lse.strides[2]);
}

// Lets a kernel have that much shared memory; more than 48 KiB must be asked for.
template <class Kernel> static sl_status allow_shared(Kernel kernel, size_t bytes)
{
    if (bytes <= 48 << 10)
        return SL_OK;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError();
    return sl_fail(SL_ERR_UNSUPPORTED, "attention: the sequence is too long for this GPU (%zu bytes of shared memory)",
                   bytes);
}

// attention_tiled.cu: all kernels of f32 sums, for heads of at most 128.
bool attention_fits_tiles(const attention_args &a);
sl_status attend_in_tiles(const cuda_run *run, const attention_args &a);
sl_status find_dq_in_tiles(const cuda_run *run, const attention_args &a, const float *deltas);
sl_status find_dk_dv_in_tiles(const cuda_run *run, const attention_args &a, const float *deltas);

#endif
