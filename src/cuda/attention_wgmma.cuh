// What both kernels of attention_wgmma*.cu have in common.
#ifndef SL_CUDA_ATTENTION_WGMMA_CUH
#define SL_CUDA_ATTENTION_WGMMA_CUH

#include "cuda/attention.cuh"
#include "cuda/wgmma.cuh"

#include "kernel/gpu_scratch.h"

enum { STAGES = 4 };

// Gradients of the scores of 64 queries and 64 keys: pieces of 16 by 16, row after row of keys, each as the 32 lanes of a warp
// have it in a left operand [keys][queries].
enum { BLOCK_BYTES = GROUP_ROWS * GROUP_ROWS * 2, PIECE_BYTES = 16 * 16 * 2 };

static_assert((int)GROUP_ROWS == (int)SL_GPU_WGMMA_ROWS, "rows of scratch are whole tiles");

struct wgmma_args {
    CUtensorMap q, k, v, d_o; // copied in panels of 64 rows
    tensor_view dq, dk, dv;
    const float *lse, *deltas; // rows of 64 * tiles for each head: lse * log2(e) and the sum of o * do; inf and 0 past the end
    char *changes;             // gradients of scores, a block for each pair of tiles of 64 queries and 64 keys
    int batch, heads, shared, length, tiles;
    float scale;
};

extern __shared__ __align__(16) char wgmma_memory[];

// Panels begin at multiples of 1024 bytes.
template <class Memory> __device__ __forceinline__ Memory &memory_of()
{
    return *(Memory *)(((uintptr_t)wgmma_memory + 1023) / 1024 * 1024);
}

#if CUDA_WGMMA_CODE

#define GROUP_WARP ((int)threadIdx.x / 32 % 4)

// 0 or 1, or -1 for the warps that copy; the compiler sees that a warp agrees about it.
__device__ __forceinline__ int group_of_warp()
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP_THREADS, 0) - 1;
}

// A tile of ROWS rows of head h, in panels.
template <int ROWS, int D>
__device__ __forceinline__ void copy_tile(char *to, const CUtensorMap *map, uint64_t *barrier, int b, int h, int t)
{
#pragma unroll
    for (int d = 0; d < D; d += PANEL_COLUMNS) {
#pragma unroll
        for (int row = 0; row < ROWS; row += GROUP_ROWS)
            copy_panel(to + (d / PANEL_COLUMNS * ROWS + row) * PANEL_ROW_BYTES, map, barrier, d, h, t + row, b);
    }
}

// A group has used what the barrier guards.
__device__ __forceinline__ void release(uint64_t *barrier)
{
    __syncwarp();
    if (LANE == 0)
        arrive(barrier);
}

// The group's 64 rows of a result, from row `first` on.
template <int COUNT>
__device__ __forceinline__ void store_sums(const tensor_view &to, int64_t b, int64_t h, int first, int length,
                                           const float (&sums)[COUNT], float factor)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + 16 * GROUP_WARP + SUM_ROW + 8 * half;
        if (row >= length)
            continue;
        bf16 *at = (bf16 *)to.data + start_of(to, b, row, h) + SUM_COLUMN;
#pragma unroll
        for (int n = 0; n < COUNT / 4; n++)
            *(uint32_t *)(at + 8 * n) = pair_of(sums[4 * n + 2 * half] * factor, sums[4 * n + 2 * half + 1] * factor);
    }
}

// The block of gradients of scores of two tiles. Those of a tile of queries lie side by side; of causal attention there are
// only those whose keys are seen.
template <bool CAUSAL> __device__ __forceinline__ char *block_of(const wgmma_args &a, int b, int h, int queries, int keys)
{
    const int64_t head = b * a.heads + h, tiles = a.tiles;
    return a.changes + BLOCK_BYTES * (CAUSAL ? head * (tiles * (tiles + 1) / 2) + queries * (queries + 1) / 2 + keys
                                             : (head * tiles + queries) * tiles + keys);
}

#endif

// attention_wgmma_keys.cu: the gradients of keys and values, and those of the scores.
sl_status start_wgmma_by_keys(const cuda_run *run, const wgmma_args &a, int64_t width, bool causal);

#endif
