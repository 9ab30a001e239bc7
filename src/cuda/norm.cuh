// What kernels of norms share: packed bf16 as it lies in memory, sums of long rows by one warp.
#ifndef SL_CUDA_NORM_CUH
#define SL_CUDA_NORM_CUH

#include "cuda/columns.cuh"

#include "kernel/call.h"

// Eight elements as they lie in memory: half the registers.
struct eight_bf16 {
    uint4 bits;
    __device__ __forceinline__ void get(const __nv_bfloat16 *from) { bits = *(const uint4 *)from; }
    __device__ __forceinline__ void put(const float in[WIDE]) { store_eight((__nv_bfloat16 *)&bits, in); }
    __device__ __forceinline__ void widen(float out[WIDE]) const { load_eight((const __nv_bfloat16 *)&bits, out); }
};

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

// The numbers of a packed f32 tensor; NULL if it is another.
static inline float *statistic(const sl_view *view)
{
    return view->meta.dtype == SL_F32 && sl_meta_is_contiguous(&view->meta) ? (float *)view->data : NULL;
}

#endif
