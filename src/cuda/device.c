/* A GPU as a device: opening it and its memory. */
#include "cuda/device.h"

#include "cuda/clears.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stands for an allocation of no bytes, which CUDA answers with NULL. */
enum { LEAST_BYTES = 256 };

sl_status cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError(); /* what is reported here is not reported again */
    return sl_fail(error == cudaErrorMemoryAllocation ? SL_ERR_MEMORY : SL_ERR_STAGE, "%s: %s", what,
                   cudaGetErrorString(error));
}

int cuda_count(void)
{
    int count = 0;
    cuda_choose_queues();
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

sl_status cuda_select(const cuda_device *device)
{
    return cuda_check(cudaSetDevice(device->index), "select the device");
}

static void cuda_close(sl_device *head)
{
    cuda_device *device = (cuda_device *)head;
    (void)!cuda_select(device);
    cuda_clears_close(device);
    cuda_dnn_destroy(device->dnn);
    cuda_blas_destroy(device->blas);
    cudaFree(device->fault_lock);
    cudaFreeHost(device->fault);
    pthread_mutex_destroy(&device->lock);
    sl_free(device);
}

/* The spec has no index: the ranks of one machine take its GPUs in turn. */
static int default_index(int count)
{
    static const char *const local_ranks[] = { "SLUICE_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                               "LOCAL_RANK", "SLURM_LOCALID" };
    for (size_t i = 0; i < sizeof local_ranks / sizeof *local_ranks; i++) {
        const char *rank = getenv(local_ranks[i]);
        if (rank && *rank)
            return (int)(strtoul(rank, NULL, 10) % (unsigned)count);
    }
    return 0;
}

/* Why no GPU was found. CUDA takes a machine without a driver for one whose driver is too old. */
static sl_status refuse(cudaError_t error)
{
    int driver = 0, runtime = 0;
    const char *why = error == cudaSuccess ? "no device" : cudaGetErrorString(error);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess)
        return sl_fail(SL_ERR_UNSUPPORTED, "cuda: there is no GPU that can be used: %s", why);
    if (driver == 0)
        return sl_fail(SL_ERR_UNSUPPORTED, "cuda: there is no GPU that can be used: this machine has no NVIDIA driver");
    return sl_fail(SL_ERR_UNSUPPORTED,
                   "cuda: there is no GPU that can be used: the NVIDIA driver knows CUDA %d.%d, %d.%d is needed",
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

static sl_status cuda_open(int index, const sl_device_options *options, sl_device **out)
{
    sl_status status = SL_OK;
    cuda_device *device = NULL;
    int count = 0;
    (void)options;
    cuda_choose_queues();
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        return refuse(error);
    if (index >= count)
        return sl_fail(SL_ERR_ARGUMENT, "cuda:%d: there %s only %d GPU%s", index, count == 1 ? "is" : "are", count,
                       count == 1 ? "" : "s");
    SL_TRY(SL_NEW(device));
    pthread_mutex_init(&device->lock, NULL);
    device->index = index >= 0 ? index : default_index(count);
    snprintf(device->head.name, sizeof device->head.name, "cuda:%d", device->index);
    SL_TRY(cuda_select(device));
    SL_TRY(cuda_check(cudaGetDeviceProperties(&device->properties, device->index), "read the device's properties"));
    memcpy(&device->head.unit, device->properties.uuid.bytes, sizeof device->head.unit);
    device->head.total = device->properties.totalGlobalMem;
    device->head.pool = index >= 0 ? 1 : count;
    device->head.context = SL_CUDA_CONTEXT_BYTES;
    device->head.launch = SL_CUDA_LAUNCH_BYTES;
    device->head.queues = cuda_queues();
    if (device->properties.major < 8) {
        status = sl_fail(SL_ERR_UNSUPPORTED, "cuda:%d: %s has compute capability %d.%d; 8.0 or more is needed",
                         device->index, device->properties.name, device->properties.major, device->properties.minor);
        goto done;
    }
    SL_TRY(cuda_check(cudaHostAlloc((void **)&device->fault, sizeof *device->fault, cudaHostAllocMapped),
                      "allocate the word for faults"));
    memset(device->fault, 0, sizeof *device->fault);
    SL_TRY(cuda_check(cudaMalloc((void **)&device->fault_lock, sizeof *device->fault_lock), "allocate a lock"));
    SL_TRY(cuda_check(cudaMemset(device->fault_lock, 0, sizeof *device->fault_lock), "clear a lock"));
    SL_TRY(cuda_blas_create(&device->properties, &device->blas));
    device->dnn = cuda_dnn_create();
    *out = &device->head;
    device = NULL;
done:
    if (device)
        cuda_close(&device->head);
    return status;
}

static int cuda_threads(const sl_device *device)
{
    (void)device;
    return 1;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static sl_status out_of_memory(const cuda_device *device, size_t bytes)
{
    size_t free_bytes = 0, total = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &total);
    return sl_fail(SL_ERR_MEMORY, "out of memory: %zu bytes were asked for, %zu of %zu are free on %s", bytes,
                   free_bytes, total, device->properties.name);
}

/* Notes a block and its size; a device has few. */
static sl_status note_block(cuda_device *device, void *address, size_t bytes)
{
    cuda_block *block = NULL;
    sl_status status = SL_NEW(block);
    if (status != SL_OK)
        return status;
    *block = (cuda_block){ .address = address, .bytes = bytes };
    pthread_mutex_lock(&device->lock);
    block->next = device->blocks;
    device->blocks = block;
    pthread_mutex_unlock(&device->lock);
    return SL_OK;
}

/* The size of a block, which is forgotten. */
static size_t forget_block(cuda_device *device, const void *address)
{
    pthread_mutex_lock(&device->lock);
    cuda_block **at = &device->blocks;
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    cuda_block *block = *at;
    if (block)
        *at = block->next;
    pthread_mutex_unlock(&device->lock);
    size_t bytes = block ? block->bytes : 0;
    sl_free(block);
    return bytes;
}

/* For tests: with SLUICE_GPU_FILL=255 every byte of new memory is 255, so that numbers that nobody wrote are NaN. */
static sl_status fill(void *address, size_t bytes)
{
    const char *value = getenv("SLUICE_GPU_FILL");
    return value ? cuda_check(cudaMemset(address, atoi(value), bytes), "fill memory") : SL_OK;
}

static sl_status cuda_alloc(sl_device *head, size_t bytes, void **out)
{
    sl_status status = SL_OK;
    cuda_device *device = (cuda_device *)head;
    void *address = NULL;
    SL_TRY(cuda_select(device));
    if (cudaMalloc(&address, bytes ? bytes : LEAST_BYTES) != cudaSuccess)
        return out_of_memory(device, bytes);
    SL_TRY(fill(address, bytes));
    SL_TRY(note_block(device, address, bytes));
    cuda_host->count_bytes(head, bytes, 0);
    *out = address;
    address = NULL;
done:
    cudaFree(address);
    return status;
}

static void cuda_free(sl_device *head, void *address)
{
    cuda_device *device = (cuda_device *)head;
    cuda_host->count_bytes(head, 0, forget_block(device, address));
    if (cuda_select(device) == SL_OK)
        cudaFree(address); /* waits for work that may still use it */
}

static size_t cuda_taken(const sl_device *head)
{
    size_t free_bytes = 0, total = 0;
    if (cuda_select((const cuda_device *)head) != SL_OK || cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        return 0;
    return total - free_bytes;
}

static sl_status cuda_alloc_host(sl_device *head, size_t bytes, void **out)
{
    sl_status status = cuda_select((cuda_device *)head);
    if (status != SL_OK)
        return status;
    if (cudaHostAlloc(out, bytes ? bytes : LEAST_BYTES, cudaHostAllocPortable) == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError();
    return sl_fail(SL_ERR_MEMORY, "out of pinned memory: %zu bytes were asked for", bytes);
}

static void cuda_free_host(sl_device *head, void *block)
{
    if (cuda_select((cuda_device *)head) == SL_OK)
        cudaFreeHost(block);
}

const sl_device_backend cuda_backend = {
    .name = "cuda",
    .kind = SL_DEVICE_CUDA,
    .is_host = false,
    .reserves = true,
    .open = cuda_open,
    .close = cuda_close,
    .threads = cuda_threads,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .taken = cuda_taken,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_native = cuda_stream_native,
    .stream_synchronize = cuda_stream_synchronize,
    .copy = cuda_stream_copy,
    .set = cuda_stream_set,
    .call = cuda_stream_call,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_stamp = cuda_event_stamp,
    .event_wait = cuda_event_wait,
    .event_synchronize = cuda_event_synchronize,
    .event_query = cuda_event_query,
    .event_elapsed = cuda_event_elapsed,
    .share = cuda_share,
    .unshare = cuda_unshare,
    .attach = cuda_attach,
    .detach = cuda_detach,
    .use_words = cuda_use_words,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .capture_launch = cuda_capture_launch,
    .capture_destroy = cuda_capture_destroy,
};
