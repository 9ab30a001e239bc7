// Copies from device memory to device memory, by the multiprocessors: inside of a graph a copy engine takes longer to be
// started than a small message takes to be copied, and it is slower at large ones.
#include "cuda/cuda.h"

enum { BLOCK = 256, UNROLL = 4, BLOCKS_PER_MULTIPROCESSOR = 8 };

static __global__ void __launch_bounds__(BLOCK) copy_words(uint4 *to, const uint4 *from, size_t words, char *rest_to, const char *rest_from, int rest)
{
    size_t all = (size_t)gridDim.x * BLOCK, first = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (first < (size_t)rest)
        rest_to[first] = rest_from[first];
    for (; first < words; first += all * UNROLL) {
        uint4 values[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (first + i * all < words)
                values[i] = from[first + i * all];
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (first + i * all < words)
                to[first + i * all] = values[i];
    }
}

cudaError_t cuda_copy_bytes(void *to, const void *from, size_t bytes, int multiprocessors, cudaStream_t stream)
{
    size_t words = bytes / sizeof(uint4), each = (size_t)BLOCK * UNROLL, blocks = (words + each - 1) / each;
    size_t most = (size_t)multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    if (bytes == 0)
        return cudaSuccess;
    if (((size_t)to | (size_t)from) % sizeof(uint4))
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    blocks = blocks > most ? most : blocks ? blocks : 1;
    copy_words<<<(unsigned)blocks, BLOCK, 0, stream>>>((uint4 *)to, (const uint4 *)from, words, (char *)to + words * sizeof(uint4),
                                                       (const char *)from + words * sizeof(uint4), (int)(bytes % sizeof(uint4)));
    return cudaGetLastError();
}
