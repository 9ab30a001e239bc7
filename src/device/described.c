/* GPUs by their data sheets, for plans on machines that have none: a device with sizes and rates, and nothing else. */
#include "device/backend.h"

#include "base/alloc.h"

/* Memory as the driver reports it; products are dense, with f32 sums. */
static const sl_gpu_model models[] = {
    { "b200", "NVIDIA B200", 100, 192.2e9, 2250e12, 80e12, 8.0e12 },
    { "h200", "NVIDIA H200", 90, 150.1e9, 989e12, 67e12, 4.8e12 },
    { "h100", "NVIDIA H100 SXM", 90, 85.0e9, 989e12, 67e12, 3.35e12 },
    { "h100-pcie", "NVIDIA H100 PCIe", 90, 85.0e9, 756e12, 51e12, 2.0e12 },
    { "a100-80gb", "NVIDIA A100 80 GB", 80, 85.1e9, 312e12, 19.5e12, 2.04e12 },
    { "a100-40gb", "NVIDIA A100 40 GB", 80, 42.4e9, 312e12, 19.5e12, 1.56e12 },
    { "l40s", "NVIDIA L40S", 89, 47.7e9, 362e12, 91.6e12, 0.864e12 },
    { "l4", "NVIDIA L4", 89, 23.6e9, 121e12, 30.3e12, 0.3e12 },
    { "rtx4090", "NVIDIA GeForce RTX 4090", 89, 25.4e9, 165e12, 82.6e12, 1.01e12 },
    { "rtx3090", "NVIDIA GeForce RTX 3090", 86, 25.3e9, 71e12, 35.6e12, 0.936e12 },
};

const sl_gpu_model *sl_gpu_model_get(int index)
{
    return index >= 0 && index < (int)(sizeof models / sizeof *models) ? &models[index] : NULL;
}

static sl_status refuse(const sl_device *device)
{
    return sl_fail(SL_ERR_UNSUPPORTED, "%s is known by its data sheet alone: it can be planned for, not used",
                   device->model->title);
}

static sl_status open_described(int index, const sl_device_options *options, sl_device **out)
{
    (void)options;
    sl_device *device = NULL;
    sl_status status = SL_NEW(device);
    if (status != SL_OK)
        return status;
    device->model = &models[index];
    device->total = (size_t)models[index].memory;
    device->context = SL_CUDA_CONTEXT_BYTES;
    device->launch = SL_CUDA_LAUNCH_BYTES;
    *out = device;
    return SL_OK;
}

static void close_described(sl_device *device)
{
    sl_free(device);
}

static int threads(const sl_device *device)
{
    (void)device;
    return 1;
}

static sl_status allocate(sl_device *device, size_t bytes, void **out)
{
    (void)bytes, (void)out;
    return refuse(device);
}

static void free_block(sl_device *device, void *block)
{
    (void)device, (void)block; /* nobody has one */
}

static sl_status stream_create(sl_device *device, sl_stream **out)
{
    (void)out;
    return refuse(device);
}

static void stream_destroy(sl_stream *stream)
{
    (void)stream;
}

static sl_status stream_synchronize(sl_stream *stream)
{
    return refuse(stream->device);
}

static sl_status copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    (void)kind, (void)to, (void)from, (void)bytes;
    return refuse(stream->device);
}

static sl_status set(sl_stream *stream, void *to, int byte, size_t bytes)
{
    (void)to, (void)byte, (void)bytes;
    return refuse(stream->device);
}

static sl_status call(sl_stream *stream, sl_host_fn fn, void *arg)
{
    (void)fn, (void)arg;
    return refuse(stream->device);
}

static sl_status event_create(sl_device *device, sl_event **out)
{
    (void)out;
    return refuse(device);
}

static void event_destroy(sl_event *event)
{
    (void)event;
}

static sl_status event_record(sl_event *event, sl_stream *stream)
{
    (void)stream;
    return refuse(event->device);
}

static sl_status event_wait(sl_stream *stream, sl_event *event)
{
    (void)stream;
    return refuse(event->device);
}

static sl_status event_synchronize(sl_event *event)
{
    return refuse(event->device);
}

static sl_status event_query(sl_event *event, bool *done)
{
    (void)done;
    return refuse(event->device);
}

static sl_status event_elapsed(sl_event *from, sl_event *to, double *seconds)
{
    (void)to, (void)seconds;
    return refuse(from->device);
}

const sl_device_backend sl_device_described = {
    .name = "", /* found by the model's name */
    .kind = SL_DEVICE_CUDA,
    .is_host = false,
    .open = open_described,
    .close = close_described,
    .threads = threads,
    .alloc = allocate,
    .free = free_block,
    .alloc_host = allocate,
    .free_host = free_block,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .copy = copy,
    .set = set,
    .call = call,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize,
    .event_query = event_query,
    .event_elapsed = event_elapsed,
};
