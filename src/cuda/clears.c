/* What clears memory in a captured graph. */
#include "cuda/clears.h"

#include "cuda/device.h"

#include "base/alloc.h"

enum { BLOCK_BYTES = 1 << 16, ALIGNMENT = 256 };

struct cuda_clear_block {
    char *data;
    size_t used;
    struct cuda_clear_block *next;
};

struct cuda_clears {
    cuda_device *device;
    cudaStream_t stream;        /* that the capture began with */
    unsigned long long capture; /* its number */
    cuda_clear_block *blocks;
    struct cuda_clears *next; /* of other captures under way on the device */
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

/* The device keeps the blocks: to free memory waits for all that runs on it, and that may wait for this thread. */
void cuda_clears_destroy(cuda_clears *clears)
{
    if (!clears)
        return;
    pthread_mutex_lock(&clears->device->lock);
    while (clears->blocks) {
        cuda_clear_block *block = clears->blocks;
        clears->blocks = block->next;
        block->next = clears->device->clear_blocks;
        clears->device->clear_blocks = block;
    }
    pthread_mutex_unlock(&clears->device->lock);
    sl_free(clears);
}

void cuda_clears_close(cuda_device *device)
{
    while (device->clears)
        cuda_clears_destroy(cuda_clears_end(device, device->clears->stream));
    while (device->clear_blocks) {
        cuda_clear_block *block = device->clear_blocks;
        device->clear_blocks = block->next;
        cudaFree(block->data);
        sl_free(block);
    }
}

void cuda_clears_begin(cuda_device *device, cudaStream_t stream)
{
    cuda_clears *clears = NULL;
    cuda_clears_destroy(cuda_clears_end(device, stream)); /* of a capture that was never ended */
    if (SL_NEW(clears) != SL_OK)
        return;
    clears->device = device;
    clears->stream = stream;
    clears->capture = capture_of(stream);
    pthread_mutex_lock(&device->lock);
    clears->next = device->clears;
    device->clears = clears;
    pthread_mutex_unlock(&device->lock);
}

cuda_clears *cuda_clears_end(cuda_device *device, cudaStream_t stream)
{
    pthread_mutex_lock(&device->lock);
    cuda_clears **at = &device->clears;
    while (*at && (*at)->stream != stream)
        at = &(*at)->next;
    cuda_clears *clears = *at;
    if (clears)
        *at = clears->next;
    pthread_mutex_unlock(&device->lock);
    return clears;
}

/* Other streams belong to a capture, too. What is found stays: the thread that asks is the one that captures. */
static cuda_clears *find_clears(cuda_device *device, cudaStream_t stream)
{
    unsigned long long capture = capture_of(stream);
    if (capture == 0)
        return NULL;
    pthread_mutex_lock(&device->lock);
    cuda_clears *clears = device->clears;
    while (clears && clears->capture != capture)
        clears = clears->next;
    pthread_mutex_unlock(&device->lock);
    return clears;
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

static cuda_clear_block *create_block(void)
{
    cuda_clear_block *block = NULL;
    if (SL_NEW(block) != SL_OK)
        return NULL;
    block->data = allocate(BLOCK_BYTES);
    if (!block->data) {
        sl_free(block);
        block = NULL;
    }
    return block;
}

/* One that the device has left, or a new one. */
static bool add_block(cuda_clears *clears)
{
    pthread_mutex_lock(&clears->device->lock);
    cuda_clear_block *block = clears->device->clear_blocks;
    if (block)
        clears->device->clear_blocks = block->next;
    pthread_mutex_unlock(&clears->device->lock);
    if (!block)
        block = create_block();
    if (!block)
        return false;
    block->used = 0;
    block->next = clears->blocks;
    clears->blocks = block;
    return true;
}

void *cuda_clears_take(cuda_device *device, cudaStream_t stream, size_t bytes)
{
    size_t taken = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes == 0 || taken > BLOCK_BYTES / 8)
        return NULL;
    cuda_clears *clears = find_clears(device, stream);
    if (!clears)
        return NULL;
    if ((!clears->blocks || clears->blocks->used + taken > BLOCK_BYTES) && !add_block(clears))
        return NULL;
    cuda_clear_block *block = clears->blocks;
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
    for (const cuda_clear_block *block = clears ? clears->blocks : NULL; block; block = block->next) {
        if (set->value == 0 && (char *)set->dst >= block->data && (char *)set->dst < block->data + block->used)
            return true;
    }
    return false;
}

/* The runtime answers with an error about nodes that it has no name for, such as those that wait for words. */
static bool find_memset(cudaGraphNode_t node, struct cudaMemsetParams *set, neighbors *around)
{
    enum cudaGraphNodeType type;
    bool found = cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeMemset &&
                 cudaGraphMemsetNodeGetParams(node, set) == cudaSuccess && find_neighbors(node, around);
    if (!found)
        (void)cudaGetLastError(); /* else the next launch finds it */
    return found;
}

/* Takes the node out of the graph if it clears words of ours; else a kernel takes its place. */
static sl_status change_node(const cuda_clears *clears, cudaGraph_t graph, cudaGraphNode_t node, int *cleared)
{
    sl_status status = SL_OK;
    struct cudaMemsetParams set;
    neighbors around;
    cudaGraphNode_t fill = NULL;
    if (!find_memset(node, &set, &around))
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
    for (const cuda_clear_block *block = clears->blocks; block; block = block->next) {
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
