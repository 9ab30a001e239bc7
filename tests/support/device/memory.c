/* Memory of the tests' device. The addresses that it gives out cannot be read or written: the memory lies elsewhere, and
 * only work of the device finds it. */
#include "support/device/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_DEVICES = 64 };

#define ARENA_BYTES ((size_t)1 << 32) /* of addresses; memory is taken as it is touched */
#define GARBAGE 0xff                  /* not a number in every float */

struct memory_block {
    size_t offset, bytes, room;
    bool used;
    struct memory_block *next; /* by offset */
};

/* Of all that are open, so that its memory is found from an address. */
static struct {
    _Atomic(char *) far; /* NULL: none */
    _Atomic(char *) near;
} arenas[MAX_DEVICES];

void *test_device_near(const void *address)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        const char *far = arenas[i].far;
        if (far && (const char *)address >= far && (const char *)address < far + ARENA_BYTES)
            return arenas[i].near + ((const char *)address - far);
    }
    void *near = test_window_near(address);
    return near ? near : (void *)address;
}

sl_status test_memory_alloc(sl_device *head, size_t bytes, void **out)
{
    test_device *device = (test_device *)head;
    size_t room = (bytes + 255) / 256 * 256 + 256; /* a gap behind each */
    memory_block **at = &device->blocks;
    pthread_mutex_lock(&device->lock);
    while (*at && ((*at)->used || (*at)->room < room))
        at = &(*at)->next;
    memory_block *found = *at;
    if (found && found->room > room) {
        memory_block *rest = malloc(sizeof *rest);
        *rest = (memory_block){ .offset = found->offset + room, .room = found->room - room, .next = found->next };
        found->next = rest;
        found->room = room;
    }
    if (found) {
        found->used = true;
        found->bytes = bytes;
    }
    pthread_mutex_unlock(&device->lock);
    if (!found)
        return sl_fail(SL_ERR_MEMORY, "out of memory: %zu bytes", bytes);
    memset(device->near + found->offset, GARBAGE, room);
    sl_device_count_bytes(head, bytes, 0);
    *out = device->far + found->offset;
    return SL_OK;
}

void test_memory_free(sl_device *head, void *address)
{
    test_device *device = (test_device *)head;
    size_t offset = (size_t)((char *)address - device->far);
    pthread_mutex_lock(&device->lock);
    memory_block *at = device->blocks;
    while (at && at->offset != offset)
        at = at->next;
    if (!at || !at->used)
        abort(); /* freed twice, or never allocated */
    at->used = false;
    memset(device->near + at->offset, GARBAGE, at->room);
    sl_device_count_bytes(head, 0, at->bytes);
    for (memory_block *each = device->blocks; each; each = each->next) {
        while (!each->used && each->next && !each->next->used) {
            memory_block *gone = each->next;
            each->room += gone->room;
            each->next = gone->next;
            free(gone);
        }
    }
    pthread_mutex_unlock(&device->lock);
}

sl_status test_memory_alloc_host(sl_device *device, size_t bytes, void **out)
{
    (void)device;
    return posix_memalign(out, SL_DEVICE_ALIGNMENT, bytes ? bytes : 1) == 0 ? SL_OK : SL_ERR_MEMORY;
}

void test_memory_free_host(sl_device *device, void *memory)
{
    (void)device;
    free(memory);
}

sl_status test_memory_check(const test_device *device, const char *what, const void *address, size_t bytes)
{
    size_t offset = (size_t)((const char *)address - device->far);
    pthread_mutex_lock((pthread_mutex_t *)&device->lock);
    const memory_block *at = (const char *)address >= device->far && offset < ARENA_BYTES ? device->blocks : NULL;
    while (at && !(at->used && offset >= at->offset && offset + bytes <= at->offset + at->room))
        at = at->next;
    pthread_mutex_unlock((pthread_mutex_t *)&device->lock);
    if (at || test_window_has(device, address, bytes))
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "test device: %s: %p is no memory of the device", what, address);
}

sl_status test_memory_check_host(const char *what, const void *address)
{
    if (test_device_near(address) == address)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "test device: %s: %p is memory of the device, not of the host", what, address);
}

void test_memory_open(test_device *device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int place = 0;
    device->fd = memfd_create("test device", MFD_CLOEXEC);
    if (device->fd < 0 || ftruncate(device->fd, (off_t)ARENA_BYTES) != 0)
        abort();
    device->far = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    device->near = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, device->fd, 0);
    if (device->far == MAP_FAILED || device->near == MAP_FAILED)
        abort();
    device->blocks = malloc(sizeof *device->blocks);
    *device->blocks = (memory_block){ .room = ARENA_BYTES };
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_lock(&lock);
    while (place < MAX_DEVICES && arenas[place].far)
        place++;
    if (place == MAX_DEVICES)
        abort();
    arenas[place].near = device->near;
    arenas[place].far = device->far;
    pthread_mutex_unlock(&lock);
}

void test_memory_close(test_device *device)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (arenas[i].far == device->far)
            arenas[i].far = NULL;
    }
    while (device->blocks) {
        memory_block *next = device->blocks->next;
        free(device->blocks);
        device->blocks = next;
    }
    munmap(device->far, ARENA_BYTES);
    munmap(device->near, ARENA_BYTES);
    close(device->fd);
    pthread_mutex_destroy(&device->lock);
}
