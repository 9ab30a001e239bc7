/* Blocks of the tests' device that other ranks reach: each is a file in memory of its own, which others of this process or
 * another map through its descriptor. */
#include "support/device/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct memory_window {
    char *far;  /* the addresses given out, which the host cannot use */
    char *near; /* the memory behind them */
    size_t bytes;
    int fd;
    memory_window *next;     /* of the device */
    memory_window *next_all; /* of the process */
};

/* What lies in an sl_device_handle. */
typedef struct window_handle {
    int64_t process, fd;
    uint64_t bytes;
} window_handle;

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* for the list, and those of the devices */
static memory_window *all;

static void add_window(test_device *device, int fd, size_t bytes, void **out)
{
    memory_window *made = calloc(1, sizeof *made);
    if (!made)
        abort();
    *made = (memory_window){ .bytes = bytes, .fd = fd };
    made->far = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    made->near = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (made->far == MAP_FAILED || made->near == MAP_FAILED)
        abort();
    pthread_rwlock_wrlock(&lock);
    made->next = device->windows;
    device->windows = made;
    made->next_all = all;
    all = made;
    pthread_rwlock_unlock(&lock);
    *out = made->far;
}

sl_status test_share(sl_device *head, size_t bytes, sl_device_handle *handle, void **out)
{
    int fd = memfd_create("test device, shared", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        abort();
    const window_handle made = { .process = getpid(), .fd = fd, .bytes = bytes };
    memcpy(handle->bytes, &made, sizeof made);
    add_window((test_device *)head, fd, bytes, out);
    return SL_OK;
}

sl_status test_attach(sl_device *head, const sl_device_handle *handle, void **out)
{
    window_handle from;
    char path[64];
    memcpy(&from, handle->bytes, sizeof from);
    if (head->unit != 0)
        return sl_fail(SL_ERR_COMM, "test device: it is apart");
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)from.process, (long long)from.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return sl_fail(SL_ERR_COMM, "test device: the memory of a rank is gone: %s", path);
    add_window((test_device *)head, fd, (size_t)from.bytes, out);
    return SL_OK;
}

void test_leave(sl_device *head, void *address)
{
    pthread_rwlock_wrlock(&lock);
    memory_window **at = &((test_device *)head)->windows, **any = &all;
    while (*at && (*at)->far != address)
        at = &(*at)->next;
    memory_window *gone = *at;
    if (!gone)
        abort(); /* left twice, or never there */
    *at = gone->next;
    while (*any != gone)
        any = &(*any)->next_all;
    *any = gone->next_all;
    pthread_rwlock_unlock(&lock);
    munmap(gone->far, gone->bytes);
    munmap(gone->near, gone->bytes);
    close(gone->fd);
    free(gone);
}

bool test_window_has(const test_device *device, const void *address, size_t bytes)
{
    pthread_rwlock_rdlock(&lock);
    const memory_window *at = device->windows;
    while (at && !((const char *)address >= at->far && (const char *)address + bytes <= at->far + at->bytes))
        at = at->next;
    pthread_rwlock_unlock(&lock);
    return at != NULL;
}

void *test_window_near(const void *address)
{
    pthread_rwlock_rdlock(&lock);
    const memory_window *at = all;
    while (at && !((const char *)address >= at->far && (const char *)address < at->far + at->bytes))
        at = at->next_all;
    void *near = at ? at->near + ((const char *)address - at->far) : NULL;
    pthread_rwlock_unlock(&lock);
    return near;
}
