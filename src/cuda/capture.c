/* Captured work of a stream as a CUDA graph. */
#include "cuda/clears.h"
#include "cuda/device.h"

#include "base/alloc.h"

typedef struct cuda_capture {
    sl_capture head;
    cudaGraphExec_t graph;
    cuda_clears *clears;
} cuda_capture;

static cuda_device *device_of(const sl_stream *stream)
{
    return (cuda_device *)stream->device;
}

/* Other threads may use the device meanwhile: only this one may not wait or allocate. */
sl_status cuda_capture_begin(sl_stream *stream)
{
    sl_status status = SL_OK;
    cudaStream_t own = ((cuda_stream *)stream)->stream;
    SL_TRY(cuda_select(device_of(stream)));
    SL_TRY(cuda_check(cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal), "begin a capture"));
    cuda_clears_begin(device_of(stream), own);
done:
    return status;
}

/* Makes the graph ready to be launched, its upload to the device included. */
static sl_status instantiate(cuda_capture *capture, cudaGraph_t graph)
{
    sl_status status = SL_OK;
    const cuda_device *device = device_of(capture->head.stream);
    size_t nodes = 0, before = 0, after = 0, total = 0;
    (void)cudaGraphGetNodes(graph, NULL, &nodes);
    (void)cudaMemGetInfo(&before, &total);
    SL_TRY(cuda_check(cudaGraphInstantiate(&capture->graph, graph, 0), "make a graph of a capture"));
    SL_TRY(cuda_check(cudaGraphUpload(capture->graph, ((cuda_stream *)capture->head.stream)->stream),
                      "bring a graph to the device"));
    (void)cudaMemGetInfo(&after, &total);
    cuda_host->log(SL_LOG_DEBUG, "%s: a graph of %zu nodes takes %lld bytes", device->head.name, nodes,
                   (long long)before - (long long)after);
done:
    return status;
}

sl_status cuda_capture_end(sl_stream *stream, sl_capture **out)
{
    sl_status status = SL_OK;
    cudaGraph_t graph = NULL;
    cuda_capture *capture = NULL;
    SL_TRY(cuda_select(device_of(stream)));
    SL_TRY(SL_NEW(capture));
    capture->head.stream = stream;
    capture->clears = cuda_clears_end(device_of(stream), ((cuda_stream *)stream)->stream);
    SL_TRY(cuda_check(cudaStreamEndCapture(((cuda_stream *)stream)->stream, &graph), "end a capture"));
    SL_TRY(cuda_clears_join(capture->clears, graph));
    SL_TRY(instantiate(capture, graph));
    *out = &capture->head;
    capture = NULL;
done:
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (capture)
        cuda_capture_destroy(&capture->head);
    return status;
}

sl_status cuda_capture_launch(sl_capture *head)
{
    sl_status status = cuda_select(device_of(head->stream));
    if (status != SL_OK)
        return status;
    return cuda_check(cudaGraphLaunch(((cuda_capture *)head)->graph, ((cuda_stream *)head->stream)->stream),
                      "launch a graph");
}

void cuda_capture_destroy(sl_capture *head)
{
    cuda_capture *capture = (cuda_capture *)head;
    if (cuda_select(device_of(head->stream)) == SL_OK && capture->graph)
        (void)cudaGraphExecDestroy(capture->graph);
    cuda_clears_destroy(capture->clears);
    sl_free(capture);
}
