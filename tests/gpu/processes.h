/* Shared by tests whose ranks are processes on one GPU. */
#ifndef TESTS_GPU_PROCESSES_H
#define TESTS_GPU_PROCESSES_H

#include <sluice/comm.h>
#include <sluice/device.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { NO_DEVICE = 77 }; /* exit code of a test that is skipped */

/* Zeroed; ranks that are forked later share it. */
static inline void *share_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    return memory;
}

/* SLUICE_GPU_DEVICE names another device than the GPU. */
static inline const char *name_of_device(void)
{
    const char *name = getenv("SLUICE_GPU_DEVICE");
    return name ? name : "cuda";
}

static inline int open_device_once(void *user, int rank)
{
    sl_device *device = NULL;
    (void)rank;
    if (sl_device_open(user, NULL, &device) != SL_OK) {
        printf("skipped: %s\n", sl_error_message());
        return NO_DEVICE;
    }
    sl_device_close(device);
    return 0;
}

/* Prints why not. The device is opened in a fork: a process that has opened a GPU cannot fork ranks that use it. */
static inline bool has_device(const char *name)
{
    sl_launch_result result;
    const sl_launch_options check = { .ranks = 1, .run = open_device_once, .user = (void *)name };
    return sl_launch(&check, &result) == SL_OK && result.exit_code == 0;
}

#endif
