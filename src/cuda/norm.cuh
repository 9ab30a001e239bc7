// What kernels of norms share: sums of long rows by one warp, room for rows in shared memory.
#ifndef SL_CUDA_NORM_CUH
#define SL_CUDA_NORM_CUH

#include "cuda/columns.cuh"
#include "cuda/shared_memory.cuh"

#include "kernel/call.h"

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

// Whether a block of the current device can have so many bytes of shared memory.
static inline bool fits_shared(size_t bytes)
{
    return bytes <= most_shared();
}

// The numbers of a packed f32 tensor; NULL if it is another.
static inline float *statistic(const sl_view *view)
{
    return view->meta.dtype == SL_F32 && sl_meta_is_contiguous(&view->meta) ? (float *)view->data : NULL;
}

#endif
