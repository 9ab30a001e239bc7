/* Streams and events of a GPU, and what its kernels found wrong. */
#include "cuda/device.h"

#include "base/alloc.h"

#include <stdio.h>

typedef struct cuda_event {
    sl_event head;
    cudaEvent_t event;
    bool recorded;
} cuda_event;

static cuda_device *device_of(const sl_stream *stream)
{
    return (cuda_device *)stream->device;
}

static cudaStream_t stream_of(const sl_stream *stream)
{
    return ((const cuda_stream *)stream)->stream;
}

/* ---- Streams --------------------------------------------------------------------------------- */

sl_status cuda_stream_create(sl_device *head, sl_stream **out)
{
    sl_status status = SL_OK;
    cuda_stream *stream = NULL;
    SL_TRY(cuda_select((cuda_device *)head));
    SL_TRY(SL_NEW(stream));
    stream->head.device = head;
    SL_TRY(cuda_check(cudaStreamCreateWithFlags(&stream->stream, cudaStreamNonBlocking), "create a stream"));
    *out = &stream->head;
    stream = NULL;
done:
    sl_free(stream);
    return status;
}

void cuda_stream_destroy(sl_stream *stream)
{
    if (cuda_select(device_of(stream)) == SL_OK) {
        (void)cudaStreamSynchronize(stream_of(stream));
        (void)cudaStreamDestroy(stream_of(stream));
    }
    sl_free(stream);
}

void *cuda_stream_native(const sl_stream *stream)
{
    return stream_of(stream);
}

/* The message that the kernel of the cpu gives, with the name of the node. */
static sl_status fault_message(const cuda_fault *fault)
{
    static const char *const names[SL_OP_COUNT] = {
#define NAME(name, description) #description,
        SL_OP_LIST(NAME)
#undef NAME
    };
    const char *op = names[fault->op], *node = fault->node ? fault->node : "";
    const char *open = fault->node ? "'" : "", *close = fault->node ? "': " : "";
    long long value = (long long)fault->value, element = (long long)fault->element, limit = (long long)fault->limit;
    switch ((cuda_fault_kind)fault->what) {
    case CUDA_FAULT_ID:
        return sl_fail(SL_ERR_ARGUMENT, "%s%s%s%s: id %lld at element %lld is not in 0..%lld", open, node, close, op,
                       value, element, limit - 1);
    case CUDA_FAULT_TARGET:
        return sl_fail(SL_ERR_ARGUMENT, "%s%s%s%s: target %lld at element %lld is not in 0..%lld", open, node, close,
                       op, value, element, limit - 1);
    case CUDA_FAULT_CACHE:
        return sl_fail(SL_ERR_ARGUMENT, "%s%s%s%s: positions %lld..%lld do not fit into a cache of %lld", open, node,
                       close, op, value, value + element - 1, limit);
    default:
        return sl_fail(SL_ERR_ARGUMENT, "%s%s%s%s: position %lld at element %lld is not in 0..%lld", open, node, close,
                       op, value, element, limit - 1);
    }
}

/* What a kernel found since the last time somebody asked; the word is free again afterwards. */
static sl_status take_fault(cuda_device *device)
{
    cuda_fault fault = *device->fault;
    if (!((volatile cuda_fault *)device->fault)->found)
        return SL_OK;
    device->fault->found = 0;
    sl_status status = cuda_check(cudaMemset(device->fault_lock, 0, sizeof *device->fault_lock), "clear a lock");
    return status == SL_OK ? fault_message(&fault) : status;
}

sl_status cuda_stream_synchronize(sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(cuda_select(device_of(stream)));
    SL_TRY(cuda_check(cudaStreamSynchronize(stream_of(stream)), "work on the GPU"));
    SL_TRY(take_fault(device_of(stream)));
done:
    return status;
}

sl_status cuda_stream_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    sl_status status = cuda_select(device_of(stream));
    if (status != SL_OK)
        return status;
    if (kind == SL_COPY_DEVICE_TO_DEVICE)
        return cuda_check(
            cuda_copy_bytes(to, from, bytes, device_of(stream)->properties.multiProcessorCount, stream_of(stream)),
            "copy");
    return cuda_check(cudaMemcpyAsync(to, from, bytes,
                                      kind == SL_COPY_HOST_TO_DEVICE ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                      stream_of(stream)),
                      "copy");
}

sl_status cuda_stream_set(sl_stream *stream, void *to, int byte, size_t bytes)
{
    sl_status status = cuda_select(device_of(stream));
    return status == SL_OK ? cuda_check(cudaMemsetAsync(to, byte, bytes, stream_of(stream)), "memset") : status;
}

sl_status cuda_stream_call(sl_stream *stream, sl_host_fn fn, void *arg)
{
    sl_status status = cuda_select(device_of(stream));
    return status == SL_OK ? cuda_check(cudaLaunchHostFunc(stream_of(stream), fn, arg), "call on the host") : status;
}

/* ---- Events ---------------------------------------------------------------------------------- */

sl_status cuda_event_create(sl_device *head, sl_event **out)
{
    sl_status status = SL_OK;
    cuda_event *event = NULL;
    SL_TRY(cuda_select((cuda_device *)head));
    SL_TRY(SL_NEW(event));
    event->head.device = head;
    SL_TRY(cuda_check(cudaEventCreate(&event->event), "create an event"));
    *out = &event->head;
    event = NULL;
done:
    sl_free(event);
    return status;
}

void cuda_event_destroy(sl_event *event)
{
    if (cuda_select((cuda_device *)event->device) == SL_OK)
        (void)cudaEventDestroy(((cuda_event *)event)->event);
    sl_free(event);
}

static sl_status record(cuda_event *event, const sl_stream *stream, unsigned flags)
{
    sl_status status = cuda_select(device_of(stream));
    if (status == SL_OK)
        status = cuda_check(cudaEventRecordWithFlags(event->event, stream_of(stream), flags), "record an event");
    event->recorded = event->recorded || status == SL_OK;
    return status;
}

sl_status cuda_event_record(sl_event *head, sl_stream *stream)
{
    return record((cuda_event *)head, stream, cudaEventRecordDefault);
}

/* Only inside of a capture an event can be external to it. */
sl_status cuda_event_stamp(sl_event *head, sl_stream *stream)
{
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    sl_status status = cuda_check(cudaStreamIsCapturing(stream_of(stream), &state), "look for a capture");
    bool captured = state == cudaStreamCaptureStatusActive;
    return status == SL_OK
               ? record((cuda_event *)head, stream, captured ? cudaEventRecordExternal : cudaEventRecordDefault)
               : status;
}

sl_status cuda_event_wait(sl_stream *stream, sl_event *event)
{
    sl_status status = cuda_select(device_of(stream));
    if (status != SL_OK)
        return status;
    return cuda_check(cudaStreamWaitEvent(stream_of(stream), ((cuda_event *)event)->event, 0), "wait for an event");
}

sl_status cuda_event_synchronize(sl_event *event)
{
    sl_status status = cuda_select((cuda_device *)event->device);
    if (status != SL_OK)
        return status;
    return cuda_check(cudaEventSynchronize(((cuda_event *)event)->event), "work before an event");
}

sl_status cuda_event_query(sl_event *event, bool *done)
{
    sl_status status = cuda_select((cuda_device *)event->device);
    if (status != SL_OK)
        return status;
    cudaError_t error = cudaEventQuery(((cuda_event *)event)->event);
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    else
        status = cuda_check(error, "work before an event");
    if (status == SL_OK)
        *done = error == cudaSuccess;
    return status;
}

sl_status cuda_event_elapsed(sl_event *from, sl_event *to, double *seconds)
{
    float milliseconds = 0;
    if (!((cuda_event *)from)->recorded || !((cuda_event *)to)->recorded)
        return sl_fail(SL_ERR_ARGUMENT, "elapsed time: an event has not been recorded");
    sl_status status = cuda_select((cuda_device *)from->device);
    if (status == SL_OK)
        status = cuda_check(cudaEventElapsedTime(&milliseconds, ((cuda_event *)from)->event, ((cuda_event *)to)->event),
                            "elapsed time");
    if (status == SL_OK)
        *seconds = (double)milliseconds * 1e-3;
    return status;
}
