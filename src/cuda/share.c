/* Blocks that several ranks of a machine reach. */
#include "cuda/device.h"

#include "base/alloc.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* A block that devices of this process use; the one that made it is one of its users. */
typedef struct shared_block {
    void *address;
    size_t bytes;
    int index;   /* of the device whose memory it is */
    bool is_own; /* made in this process; else opened through its handle */
    int users;
    struct shared_block *next;
} shared_block;

/* What lies in an sl_device_handle. */
typedef struct block_handle {
    int64_t process;
    uint64_t cookie; /* of the process: numbers of processes are used again, and each container has its own */
    void *address;
    uint64_t bytes;
    int32_t index;
    int32_t has_ipc;
    cudaIpcMemHandle_t ipc;
} block_handle;

_Static_assert(sizeof(block_handle) <= sizeof(sl_device_handle), "a handle has room");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all below */
static shared_block *blocks;
static uint64_t own_cookie;

static shared_block *find_block(const void *address)
{
    shared_block *block = blocks;
    while (block && block->address != address)
        block = block->next;
    return block;
}

static sl_status add_block(shared_block from)
{
    shared_block *block = NULL;
    sl_status status = SL_NEW(block);
    if (status != SL_OK)
        return status;
    *block = from;
    block->next = blocks;
    blocks = block;
    return SL_OK;
}

/* The last user of this process takes the block away. */
static void leave_block(const void *address)
{
    pthread_mutex_lock(&lock);
    shared_block **at = &blocks, *gone = NULL;
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    if (*at && --(*at)->users == 0) {
        gone = *at;
        *at = gone->next;
    }
    if (gone && gone->is_own)
        (void)cudaFree(gone->address);
    else if (gone)
        (void)cudaIpcCloseMemHandle(gone->address);
    pthread_mutex_unlock(&lock);
    sl_free(gone);
}

/* Memory that CUDA gives out by itself: only that has a handle for other processes. */
sl_status cuda_share(sl_device *head, size_t bytes, sl_device_handle *handle, void **out)
{
    sl_status status = SL_OK;
    cuda_device *device = (cuda_device *)head;
    block_handle made = { .process = getpid(), .bytes = bytes, .index = device->index };
    void *address = NULL;
    SL_TRY(cuda_select(device));
    SL_TRY(cuda_check(cudaMalloc(&address, bytes), "allocate memory for messages"));
    SL_TRY(cuda_check(cudaMemset(address, 0, bytes), "clear memory for messages"));
    SL_TRY(cuda_check(cudaStreamSynchronize(cudaStreamLegacy), "clear memory for messages"));
    made.address = address;
    made.has_ipc = cudaIpcGetMemHandle(&made.ipc, address) == cudaSuccess;
    (void)cudaGetLastError();
    pthread_mutex_lock(&lock);
    if (own_cookie == 0)
        own_cookie = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)address ^ (uint64_t)time(NULL);
    made.cookie = own_cookie;
    status = add_block(
        (shared_block){ .address = address, .bytes = bytes, .index = device->index, .is_own = true, .users = 1 });
    pthread_mutex_unlock(&lock);
    if (status != SL_OK)
        goto done;
    memcpy(handle->bytes, &made, sizeof made);
    *out = address;
    address = NULL;
done:
    (void)cudaFree(address);
    return status;
}

void cuda_unshare(sl_device *head, void *address)
{
    cuda_detach(head, address);
}

/* Another GPU's memory, in the same process. */
static sl_status reach_peer(const cuda_device *device, int index)
{
    int can = 0;
    if (index == device->index)
        return SL_OK;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, device->index, index);
    if (error == cudaSuccess && can)
        error = cudaDeviceEnablePeerAccess(index, 0);
    (void)cudaGetLastError();
    if (error == cudaErrorPeerAccessAlreadyEnabled)
        error = cudaSuccess;
    return error == cudaSuccess && can
               ? SL_OK
               : sl_fail(SL_ERR_UNSUPPORTED, "cuda:%d cannot reach the memory of cuda:%d", device->index, index);
}

/* With the lock. */
static sl_status attach_near(const block_handle *from)
{
    shared_block *block = find_block(from->address);
    if (!block)
        return sl_fail(SL_ERR_COMM, "the memory of a rank is gone");
    block->users++;
    return SL_OK;
}

/* With the lock. */
static sl_status attach_far(const block_handle *from, void **out)
{
    void *address = NULL;
    if (!from->has_ipc)
        return sl_fail(SL_ERR_UNSUPPORTED, "CUDA gives no handles for memory that processes share here");
    cudaError_t error = cudaIpcOpenMemHandle(&address, from->ipc, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess)
        return cuda_check(error, "open another process's memory");
    shared_block *block = find_block(address);
    if (block)
        block->users++;
    sl_status status = block
                           ? SL_OK
                           : add_block((shared_block){
                                 .address = address, .bytes = (size_t)from->bytes, .index = from->index, .users = 1 });
    if (status != SL_OK)
        (void)cudaIpcCloseMemHandle(address);
    else
        *out = address;
    return status;
}

sl_status cuda_attach(sl_device *head, const sl_device_handle *handle, void **out)
{
    sl_status status = SL_OK;
    cuda_device *device = (cuda_device *)head;
    block_handle from;
    memcpy(&from, handle->bytes, sizeof from);
    SL_TRY(cuda_select(device));
    pthread_mutex_lock(&lock);
    bool near = from.process == getpid() && from.cookie == own_cookie;
    void *address = near ? from.address : NULL;
    status = near ? reach_peer(device, from.index) : SL_OK;
    if (status == SL_OK)
        status = near ? attach_near(&from) : attach_far(&from, &address);
    pthread_mutex_unlock(&lock);
    if (status == SL_OK)
        *out = address;
done:
    return status;
}

void cuda_detach(sl_device *head, void *address)
{
    if (cuda_select((cuda_device *)head) == SL_OK)
        leave_block(address);
}
