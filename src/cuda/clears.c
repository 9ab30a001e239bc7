/* What clears memory in a captured graph. */
#include "cuda/clears.h"

#include "cuda/device.h"

#include "base/alloc.h"

enum { BLOCK_BYTES = 1 << 16, ALIGNMENT = 256 };

typedef struct clear_block {
    char *data;
    size_t used;
    struct clear_block *next;
} clear_block;

struct cuda_clears {
    unsigned long long capture; /* its number */
    clear_block *blocks;
};

/* 0: the stream is not captured. */
static unsigned long long capture_of(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
    if (cudaStreamGetCaptureInfo(stream, &state, &number, NULL, NULL, NULL, NULL) != cudaSuccess)
        return 0;
    return state == cudaStreamCaptureStatusActive ? number : 0;
}

cuda_clears *cuda_clears_create(cudaStream_t stream)
{
    cuda_clears *clears = NULL;
    if (SL_NEW(clears) == SL_OK)
        clears->capture = capture_of(stream);
    return clears;
}

void cuda_clears_destroy(cuda_clears *clears)
{
    if (!clears)
        return;
    while (clears->blocks) {
        clear_block *next = clears->blocks->next;
        cudaFree(clears->blocks->data);
        sl_free(clears->blocks);
        clears->blocks = next;
    }
    sl_free(clears);
}

/* A thread that captures may allocate only if it says so. */
static void *allocate(size_t bytes)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    void *data = NULL;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (cudaMalloc(&data, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        data = NULL;
    }
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return data;
}

static bool add_block(cuda_clears *clears)
{
    clear_block *block = NULL;
    if (SL_NEW(block) != SL_OK)
        return false;
    block->data = allocate(BLOCK_BYTES);
    block->next = clears->blocks;
    if (block->data)
        clears->blocks = block;
    else
        sl_free(block);
    return clears->blocks == block;
}

void *cuda_clears_take(cuda_clears *clears, cudaStream_t stream, size_t bytes)
{
    size_t taken = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!clears || bytes == 0 || taken > BLOCK_BYTES / 8 || capture_of(stream) != clears->capture)
        return NULL;
    if ((!clears->blocks || clears->blocks->used + taken > BLOCK_BYTES) && !add_block(clears))
        return NULL;
    clear_block *block = clears->blocks;
    block->used += taken;
    return block->data + block->used - taken;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

enum { NEIGHBORS = 16 };

/* The nodes that a node comes after, and those that come after it. */
typedef struct neighbors {
    cudaGraphNode_t before[NEIGHBORS], behind[NEIGHBORS];
    size_t before_count, behind_count;
} neighbors;

/* False: there are too many. */
static bool find_neighbors(cudaGraphNode_t node, neighbors *out)
{
    cudaGraphEdgeData edges[NEIGHBORS];
    return cudaGraphNodeGetDependencies(node, NULL, NULL, &out->before_count) == cudaSuccess &&
           cudaGraphNodeGetDependentNodes(node, NULL, NULL, &out->behind_count) == cudaSuccess &&
           out->before_count <= NEIGHBORS && out->behind_count <= NEIGHBORS &&
           cudaGraphNodeGetDependencies(node, out->before, edges, &out->before_count) == cudaSuccess &&
           cudaGraphNodeGetDependentNodes(node, out->behind, edges, &out->behind_count) == cudaSuccess;
}

static sl_status add_edges(cudaGraph_t graph, const cudaGraphNode_t *from, size_t from_count, const cudaGraphNode_t *to,
                           size_t to_count)
{
    sl_status status = SL_OK;
    for (size_t i = 0; i < from_count * to_count; i++)
        SL_TRY(cuda_check(cudaGraphAddDependencies(graph, &from[i / to_count], &to[i % to_count], NULL, 1),
                          "change a graph"));
done:
    return status;
}

static bool is_ours(const cuda_clears *clears, const struct cudaMemsetParams *set)
{
    for (const clear_block *block = clears ? clears->blocks : NULL; block; block = block->next) {
        if (set->value == 0 && (char *)set->dst >= block->data && (char *)set->dst < block->data + block->used)
            return true;
    }
    return false;
}

/* Takes the node out of the graph if it clears words of ours; else a kernel takes its place. */
static sl_status change_node(const cuda_clears *clears, cudaGraph_t graph, cudaGraphNode_t node, int *cleared)
{
    sl_status status = SL_OK;
    enum cudaGraphNodeType type;
    struct cudaMemsetParams set;
    neighbors around;
    cudaGraphNode_t fill = NULL;
    if (cudaGraphNodeGetType(node, &type) != cudaSuccess || type != cudaGraphNodeTypeMemset ||
        cudaGraphMemsetNodeGetParams(node, &set) != cudaSuccess || !find_neighbors(node, &around))
        return SL_OK;
    if (is_ours(clears, &set)) {
        SL_TRY(add_edges(graph, around.before, around.before_count, around.behind, around.behind_count));
        ++*cleared;
    } else {
        SL_TRY(cuda_check(cuda_add_fill(graph, around.before, around.before_count, &set, &fill), "change a graph"));
        SL_TRY(add_edges(graph, &fill, 1, around.behind, around.behind_count));
    }
    SL_TRY(cuda_check(cudaGraphDestroyNode(node), "change a graph"));
done:
    return status;
}

static sl_status change_nodes(const cuda_clears *clears, cudaGraph_t graph, int *cleared)
{
    sl_status status = SL_OK;
    cudaGraphNode_t *nodes = NULL;
    size_t count = 0;
    SL_TRY(cuda_check(cudaGraphGetNodes(graph, NULL, &count), "look at a graph"));
    SL_TRY(SL_NEW_ARRAY(nodes, count));
    SL_TRY(cuda_check(cudaGraphGetNodes(graph, nodes, &count), "look at a graph"));
    for (size_t i = 0; i < count; i++)
        SL_TRY(change_node(clears, graph, nodes[i], cleared));
done:
    sl_free(nodes);
    return status;
}

/* One node for each block, before all others. */
static sl_status clear_first(const cuda_clears *clears, cudaGraph_t graph)
{
    sl_status status = SL_OK;
    cudaGraphNode_t *roots = NULL;
    size_t count = 0;
    SL_TRY(cuda_check(cudaGraphGetRootNodes(graph, NULL, &count), "look at a graph"));
    SL_TRY(SL_NEW_ARRAY(roots, count));
    SL_TRY(cuda_check(cudaGraphGetRootNodes(graph, roots, &count), "look at a graph"));
    for (const clear_block *block = clears->blocks; block; block = block->next) {
        const struct cudaMemsetParams set = { .dst = block->data, .elementSize = 1, .width = block->used, .height = 1 };
        cudaGraphNode_t clear = NULL;
        SL_TRY(cuda_check(cuda_add_fill(graph, NULL, 0, &set, &clear), "change a graph"));
        SL_TRY(add_edges(graph, &clear, 1, roots, count));
    }
done:
    sl_free(roots);
    return status;
}

sl_status cuda_clears_join(const cuda_clears *clears, cudaGraph_t graph)
{
    sl_status status = SL_OK;
    int cleared = 0;
    SL_TRY(change_nodes(clears, graph, &cleared));
    if (cleared == 0)
        return SL_OK;
    SL_TRY(clear_first(clears, graph));
    cuda_host->log(SL_LOG_DEBUG, "a graph clears the words of %d products as it begins", cleared);
done:
    return status;
}
