/* What the files of the tests' device know of each other. */
#ifndef TESTS_SUPPORT_DEVICE_INTERNAL_H
#define TESTS_SUPPORT_DEVICE_INTERNAL_H

#include "support/device/test_device.h"

#include "device/backend.h"
#include "kernel/table.h"

#include <pthread.h>

#define TEST_KIND ((sl_device_kind)100)

typedef struct memory_block memory_block;

typedef struct test_device {
    sl_device head;
    int threads;
    int fd;
    char *far;  /* the addresses given out */
    char *near; /* the memory behind them */
    pthread_mutex_t lock;
    memory_block *blocks;
    uint64_t streams; /* made so far */
} test_device;

/* ---- memory.c -------------------------------------------------------------------------------- */

void test_memory_open(test_device *device);
void test_memory_close(test_device *device);
sl_status test_memory_alloc(sl_device *head, size_t bytes, void **out);
void test_memory_free(sl_device *head, void *address);
sl_status test_memory_alloc_host(sl_device *device, size_t bytes, void **out);
void test_memory_free_host(sl_device *device, void *memory);
/* Fails if the range does not lie in one block of the device. `what` is for the message. */
sl_status test_memory_check(const test_device *device, const char *what, const void *address, size_t bytes);
/* Fails if the address is one of a device. */
sl_status test_memory_check_host(const char *what, const void *address);

/* ---- stream.c -------------------------------------------------------------------------------- */

sl_status test_stream_create(sl_device *head, sl_stream **out);
void test_stream_destroy(sl_stream *head);
sl_status test_stream_synchronize(sl_stream *head);
sl_status test_stream_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes);
sl_status test_stream_set(sl_stream *stream, void *to, int byte, size_t bytes);
sl_status test_stream_call(sl_stream *stream, sl_host_fn fn, void *arg);
sl_stream *test_stream_cpu(sl_stream *stream); /* on which its kernels run */
/* Work of the stream failed: its next synchronize says so. The first failure and its message are kept. */
void test_stream_fail(sl_stream *head, sl_status status);

sl_status test_event_create(sl_device *device, sl_event **out);
void test_event_destroy(sl_event *event);
sl_status test_event_record(sl_event *event, sl_stream *stream);
sl_status test_event_wait(sl_stream *stream, sl_event *event);
sl_status test_event_synchronize(sl_event *head);
sl_status test_event_query(sl_event *head, bool *done);
sl_status test_event_elapsed(sl_event *from, sl_event *to, double *seconds);

sl_status test_capture_begin(sl_stream *stream);
sl_status test_capture_end(sl_stream *stream, sl_capture **out);
sl_status test_capture_launch(sl_capture *head);
void test_capture_destroy(sl_capture *head);

/* ---- kernel.c -------------------------------------------------------------------------------- */

extern const sl_kernel_table test_kernels;

#endif
