/* Words that streams write and wait for. Captured one after the other, they are one node of the graph: a node of its own
 * takes longer than a word. */
#include "cuda/device.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <string.h>

enum { MOST_WORDS = 128 }; /* of one call or node; CUDA takes 256 */

/* The driver's functions: the module links the runtime alone and loads without a driver, too. */
static struct driver_calls {
    PFN_cuStreamBatchMemOp_v11070 give; /* NULL: there is none */
    PFN_cuStreamGetCaptureInfo_v11030 get_capture;
    PFN_cuGraphNodeGetType_v10000 get_type;
    PFN_cuGraphBatchMemOpNodeGetParams_v11070 get_words;
    PFN_cuGraphBatchMemOpNodeSetParams_v11070 set_words;
} driver;

/* *call stays NULL if the driver has no such function. size: of the pointer. */
static void find_call(const char *name, unsigned version, void *call, size_t size)
{
    enum cudaDriverEntryPointQueryResult found;
    void *function = NULL;
    if (cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess)
        memcpy(call, &function, size);
    (void)cudaGetLastError();
}

static void find_calls(void)
{
    find_call("cuStreamBatchMemOp", 11070, &driver.give, sizeof driver.give);
    find_call("cuStreamGetCaptureInfo", 11030, &driver.get_capture, sizeof driver.get_capture);
    find_call("cuGraphNodeGetType", 10000, &driver.get_type, sizeof driver.get_type);
    find_call("cuGraphBatchMemOpNodeGetParams", 11070, &driver.get_words, sizeof driver.get_words);
    find_call("cuGraphBatchMemOpNodeSetParams", 11070, &driver.set_words, sizeof driver.set_words);
}

static CUstreamBatchMemOpParams operation_of(const sl_word_use *use)
{
    CUstreamBatchMemOpParams operation;
    memset(&operation, 0, sizeof operation);
    if (use->kind == SL_WORD_WAIT)
        operation.waitValue = (struct CUstreamMemOpWaitValueParams_st){
            .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
            .address = (CUdeviceptr)(uintptr_t)use->word,
            .value = 1,
            .flags = CU_STREAM_WAIT_VALUE_AND,
        };
    else
        operation.writeValue = (struct CUstreamMemOpWriteValueParams_st){
            .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
            .address = (CUdeviceptr)(uintptr_t)use->word,
            .value = use->value,
            .flags = CU_STREAM_WRITE_VALUE_DEFAULT,
        };
    return operation;
}

/* The node that a capture of the stream has ended with so far; NULL: there is none, or several. */
static CUgraphNode find_last_node(cudaStream_t stream)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL;
    size_t count = 0;
    if (!driver.get_capture || driver.get_capture(stream, &state, NULL, NULL, &nodes, &count) != CUDA_SUCCESS)
        return NULL;
    return state == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1 ? nodes[0] : NULL;
}

/* Adds the operations to the node that was captured last. False: it has none, or no room. */
static bool join(cudaStream_t stream, const CUstreamBatchMemOpParams *operations, int count)
{
    CUstreamBatchMemOpParams joined[MOST_WORDS];
    CUgraphNodeType type;
    CUDA_BATCH_MEM_OP_NODE_PARAMS words;
    CUgraphNode last = find_last_node(stream);
    if (!last || !driver.get_type || !driver.get_words || !driver.set_words ||
        driver.get_type(last, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP ||
        driver.get_words(last, &words) != CUDA_SUCCESS || words.count + (unsigned)count > MOST_WORDS)
        return false;
    memcpy(joined, words.paramArray, words.count * sizeof *joined);
    memcpy(joined + words.count, operations, (size_t)count * sizeof *joined);
    words.paramArray = joined;
    words.count += (unsigned)count;
    return driver.set_words(last, &words) == CUDA_SUCCESS;
}

sl_status cuda_use_words(sl_stream *head, const sl_word_use *uses, int count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    CUstreamBatchMemOpParams operations[MOST_WORDS];
    cudaStream_t stream = ((cuda_stream *)head)->stream;
    sl_status status = cuda_select((cuda_device *)head->device);
    pthread_once(&once, find_calls);
    if (status == SL_OK && !driver.give)
        return sl_fail(SL_ERR_UNSUPPORTED, "the driver has no operations on words in streams");
    for (int first = 0; first < count && status == SL_OK; first += MOST_WORDS) {
        int some = count - first < MOST_WORDS ? count - first : MOST_WORDS;
        for (int i = 0; i < some; i++)
            operations[i] = operation_of(&uses[first + i]);
        CUresult result =
            join(stream, operations, some) ? CUDA_SUCCESS : driver.give(stream, (unsigned)some, operations, 0);
        status = cuda_check((cudaError_t)result, "words in a stream"); /* both have the same numbers */
    }
    return status;
}
