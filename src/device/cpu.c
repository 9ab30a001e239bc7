/* The cpu as a device: host memory, streams that are done at once. */
#include "device/cpu.h"

#include "base/alloc.h"
#include "device/backend.h"

#include <string.h>
#include <sys/mman.h>

enum { MAX_THREADS = 1024 };

#define HUGE_PAGE ((size_t)2 << 20) /* bytes */

typedef struct cpu_device {
    sl_device head;
    sl_pool *pool;
    bool any;
} cpu_device;

typedef struct cpu_event {
    sl_event head;
    double time; /* of sl_now(); 0 before the first record */
} cpu_event;

/* Stands before each block and keeps its alignment. */
typedef union block_head {
    size_t bytes;
    char padding[SL_DEVICE_ALIGNMENT];
} block_head;

static void cpu_close(sl_device *device)
{
    cpu_device *cpu = (cpu_device *)device;
    sl_pool_destroy(cpu->pool);
    sl_free(cpu);
}

static sl_status cpu_open(int index, const sl_device_options *options, sl_device **out)
{
    sl_status status = SL_OK;
    cpu_device *cpu = NULL;

    if (index > 0)
        return sl_fail(SL_ERR_ARGUMENT, "device cpu:%d: there is one cpu device, number 0", index);
    if (options->threads < 0 || options->threads > MAX_THREADS)
        return sl_fail(SL_ERR_ARGUMENT, "threads: %d is not in 0..%d", options->threads, MAX_THREADS);
    SL_TRY(SL_NEW(cpu));
    SL_TRY(sl_pool_create(options->threads ? options->threads : 1, &cpu->pool));
    cpu->any = index == SL_DEVICE_ANY_CPU_INDEX;
    *out = &cpu->head;
    cpu = NULL;
done:
    sl_free(cpu);
    return status;
}

static int cpu_threads(const sl_device *device)
{
    return sl_pool_threads(sl_device_cpu_pool(device));
}

sl_pool *sl_device_cpu_pool(const sl_device *device)
{
    return ((const cpu_device *)device)->pool;
}

bool sl_device_cpu_is_any(const sl_device *device)
{
    return ((const cpu_device *)device)->any;
}

static sl_status cpu_alloc(sl_device *device, size_t bytes, void **out)
{
    void *block = NULL;
    if (bytes > SIZE_MAX / 2)
        return sl_fail(SL_ERR_MEMORY, "out of memory: %zu bytes", bytes);
    size_t total = bytes + sizeof(block_head);
    bool huge = total >= 2 * HUGE_PAGE;
    sl_status status = sl_alloc_aligned(total, huge ? HUGE_PAGE : SL_DEVICE_ALIGNMENT, &block);
    if (status != SL_OK)
        return status;
    if (huge)
        madvise(block, total, MADV_HUGEPAGE); /* fewer TLB misses; no harm if it is refused */
    block_head *head = block;
    head->bytes = bytes;
    sl_device_count_bytes(device, bytes, 0);
    *out = head + 1;
    return SL_OK;
}

static void cpu_free(sl_device *device, void *block)
{
    block_head *head = (block_head *)block - 1;
    sl_device_count_bytes(device, 0, head->bytes);
    sl_free(head);
}

static sl_status cpu_alloc_host(sl_device *device, size_t bytes, void **out)
{
    (void)device;
    return sl_alloc_aligned(bytes, SL_DEVICE_ALIGNMENT, out);
}

static void cpu_free_host(sl_device *device, void *block)
{
    (void)device;
    sl_free(block);
}

static sl_status cpu_stream_create(sl_device *device, sl_stream **out)
{
    sl_stream *stream = NULL;
    sl_status status = SL_NEW(stream);
    if (status != SL_OK)
        return status;
    stream->device = device;
    *out = stream;
    return SL_OK;
}

static void cpu_stream_destroy(sl_stream *stream)
{
    sl_free(stream);
}

static sl_status cpu_stream_synchronize(sl_stream *stream)
{
    (void)stream;
    return SL_OK;
}

static sl_status cpu_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    (void)stream;
    (void)kind;
    memcpy(to, from, bytes);
    return SL_OK;
}

static sl_status cpu_set(sl_stream *stream, void *to, int byte, size_t bytes)
{
    (void)stream;
    memset(to, byte, bytes);
    return SL_OK;
}

static sl_status cpu_call(sl_stream *stream, sl_host_fn fn, void *arg)
{
    (void)stream;
    fn(arg);
    return SL_OK;
}

static sl_status cpu_event_create(sl_device *device, sl_event **out)
{
    cpu_event *event = NULL;
    sl_status status = SL_NEW(event);
    if (status != SL_OK)
        return status;
    event->head.device = device;
    *out = &event->head;
    return SL_OK;
}

static void cpu_event_destroy(sl_event *event)
{
    sl_free(event);
}

static sl_status cpu_event_record(sl_event *event, sl_stream *stream)
{
    (void)stream;
    ((cpu_event *)event)->time = sl_now();
    return SL_OK;
}

static sl_status cpu_event_wait(sl_stream *stream, sl_event *event)
{
    (void)stream;
    (void)event;
    return SL_OK;
}

static sl_status cpu_event_synchronize(sl_event *event)
{
    (void)event;
    return SL_OK;
}

static sl_status cpu_event_query(sl_event *event, bool *done)
{
    (void)event;
    *done = true;
    return SL_OK;
}

static sl_status cpu_event_elapsed(sl_event *from, sl_event *to, double *seconds)
{
    double start = ((cpu_event *)from)->time, end = ((cpu_event *)to)->time;
    if (start == 0 || end == 0)
        return sl_fail(SL_ERR_ARGUMENT, "elapsed time: an event has not been recorded");
    *seconds = end - start;
    return SL_OK;
}

const sl_device_backend sl_device_cpu = {
    .name = "cpu",
    .kind = SL_DEVICE_CPU,
    .is_host = true,
    .open = cpu_open,
    .close = cpu_close,
    .threads = cpu_threads,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_host = cpu_alloc_host,
    .free_host = cpu_free_host,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_synchronize = cpu_stream_synchronize,
    .copy = cpu_copy,
    .set = cpu_set,
    .call = cpu_call,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_synchronize = cpu_event_synchronize,
    .event_query = cpu_event_query,
    .event_elapsed = cpu_event_elapsed,
};
