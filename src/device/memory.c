/* Memory of devices: counted, and given out of what was reserved if there is such. */
#include "device/backend.h"
#include "device/region.h"

#include "base/alloc.h"

typedef struct device_reserve {
    sl_region *region;
    size_t bytes;
    struct device_reserve *next;
} device_reserve;

void sl_device_count_bytes(sl_device *device, size_t taken, size_t given)
{
    size_t now = atomic_fetch_add(&device->in_use, taken - given) + taken - given;
    size_t peak = atomic_load(&device->peak);
    while (now > peak && taken > 0) {
        if (atomic_compare_exchange_weak(&device->peak, &peak, now))
            break;
    }
}

sl_device_memory sl_device_get_memory(const sl_device *device)
{
    return (sl_device_memory){ .in_use = atomic_load(&device->in_use),
                               .peak = atomic_load(&device->peak),
                               .total = device->total,
                               .context = device->context,
                               .launch = device->launch,
                               .taken = device->backend->taken ? device->backend->taken(device) : 0 };
}

void sl_device_reset_peak(sl_device *device)
{
    atomic_store(&device->peak, atomic_load(&device->in_use));
}

/* ---- Reserves -------------------------------------------------------------------------------- */

static sl_status add_reserve(sl_device *device, size_t bytes)
{
    sl_status status = SL_OK;
    device_reserve *reserve = NULL;
    void *start = NULL;
    size_t peak = atomic_load(&device->peak);
    SL_TRY(SL_NEW(reserve));
    SL_TRY(device->backend->alloc(device, bytes, &start));
    SL_TRY(sl_region_create(start, bytes, &reserve->region));
    reserve->bytes = bytes;
    atomic_fetch_sub(&device->in_use, bytes); /* blocks are counted when they are given out */
    atomic_store(&device->peak, peak);
    reserve->next = device->reserves;
    device->reserves = reserve;
    return SL_OK;
done:
    if (start)
        device->backend->free(device, start);
    sl_free(reserve);
    return status;
}

static void drop_reserve(sl_device *device, device_reserve **at)
{
    device_reserve *reserve = *at;
    *at = reserve->next;
    atomic_fetch_add(&device->in_use, reserve->bytes); /* which free takes off again */
    device->backend->free(device, sl_region_start(reserve->region));
    sl_region_destroy(reserve->region);
    sl_free(reserve);
}

void sl_device_drop_reserves(sl_device *device)
{
    while (device->reserves)
        drop_reserve(device, &device->reserves);
}

sl_status sl_device_reserve(sl_device *device, size_t bytes, int blocks)
{
    sl_status status = SL_OK;
    size_t wanted = bytes + (size_t)blocks * SL_REGION_ALIGNMENT, available = 0;
    if (!device->backend->reserves || bytes == 0)
        return SL_OK;
    pthread_mutex_lock(&device->lock);
    for (const device_reserve *reserve = device->reserves; reserve; reserve = reserve->next) {
        size_t left = sl_region_free_bytes(reserve->region);
        available = left > available ? left : available;
    }
    if (available < wanted)
        status = add_reserve(device, wanted);
    pthread_mutex_unlock(&device->lock);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "device %s", device->name);
}

static sl_status take_reserved(sl_device *device, size_t bytes, void **out)
{
    sl_status status = SL_OK;
    void *block = NULL;
    pthread_mutex_lock(&device->lock);
    for (device_reserve *reserve = device->reserves; reserve && !block; reserve = reserve->next)
        SL_TRY(sl_region_take(reserve->region, bytes, &block));
    if (block) {
        sl_device_count_bytes(device, bytes, 0);
        *out = block;
    }
done:
    pthread_mutex_unlock(&device->lock);
    return status;
}

static bool give_reserved(sl_device *device, const void *block)
{
    size_t bytes = 0;
    bool found = false;
    pthread_mutex_lock(&device->lock);
    device_reserve **at = &device->reserves;
    while (*at && !(found = sl_region_give((*at)->region, block, &bytes)))
        at = &(*at)->next;
    if (found) {
        sl_device_count_bytes(device, 0, bytes);
        if (sl_region_is_empty((*at)->region))
            drop_reserve(device, at);
    }
    pthread_mutex_unlock(&device->lock);
    return found;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

sl_status sl_device_alloc(sl_device *device, size_t bytes, void **out)
{
    sl_status status = SL_OK;
    void *block = NULL;
    SL_TRY(take_reserved(device, bytes, &block));
    if (!block)
        SL_TRY(device->backend->alloc(device, bytes, &block));
    *out = block;
done:
    return status == SL_OK ? SL_OK : sl_fail_context(status, "device %s", device->name);
}

void sl_device_free(sl_device *device, void *block)
{
    if (block && !give_reserved(device, block))
        device->backend->free(device, block);
}

sl_status sl_device_alloc_host(sl_device *device, size_t bytes, void **out)
{
    sl_status status = device->backend->alloc_host(device, bytes, out);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "host memory for device %s", device->name);
}

void sl_device_free_host(sl_device *device, void *block)
{
    if (block)
        device->backend->free_host(device, block);
}
