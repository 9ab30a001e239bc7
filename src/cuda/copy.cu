// Copies from device memory to device memory, and memory that is filled, by the multiprocessors: inside of a graph a copy
// engine takes longer to be started than a small message takes to be copied, and it is slower at large ones.
#include "cuda/cuda.h"

enum { BLOCK = 256, UNROLL = 4, BLOCKS_PER_MULTIPROCESSOR = 8, MOST_BLOCKS = 1024 };

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

static __global__ void __launch_bounds__(BLOCK) fill_words(uint4 *to, size_t words, char *rest_to, int rest, uint32_t value)
{
    size_t all = (size_t)gridDim.x * BLOCK, first = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (first < (size_t)rest)
        rest_to[first] = (char)(value >> 8 * (first % sizeof value));
    for (; first < words; first += all)
        to[first] = make_uint4(value, value, value, value);
}

// The value in each of its four bytes, two halves or as a whole.
static uint32_t repeated(const cudaMemsetParams *set)
{
    return set->elementSize == 1 ? (set->value & 0xff) * 0x01010101u : set->elementSize == 2 ? (set->value & 0xffff) * 0x00010001u : set->value;
}

cudaError_t cuda_add_fill(cudaGraph_t graph, const cudaGraphNode_t *before, size_t count, const cudaMemsetParams *set, cudaGraphNode_t *out)
{
    size_t bytes = set->width * set->elementSize, words = bytes / sizeof(uint4), blocks = (words + BLOCK - 1) / BLOCK;
    if (set->height > 1 || (size_t)set->dst % sizeof(uint4) || bytes == 0)
        return cudaGraphAddMemsetNode(out, graph, before, count, set);
    uint4 *to = (uint4 *)set->dst;
    char *rest_to = (char *)(to + words);
    int rest = (int)(bytes % sizeof(uint4));
    uint32_t value = repeated(set);
    void *arguments[] = { &to, &words, &rest_to, &rest, &value };
    cudaKernelNodeParams node = {};
    node.func = (void *)fill_words;
    blocks = blocks > MOST_BLOCKS ? (size_t)MOST_BLOCKS : blocks ? blocks : 1;
    node.gridDim = dim3((unsigned)blocks);
    node.blockDim = dim3(BLOCK);
    node.kernelParams = arguments;
    return cudaGraphAddKernelNode(out, graph, before, count, &node);
}
