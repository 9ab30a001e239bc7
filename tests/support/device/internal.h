/* What the files of the tests' device know of each other. */
#ifndef TESTS_SUPPORT_DEVICE_INTERNAL_H
#define TESTS_SUPPORT_DEVICE_INTERNAL_H

#include "support/device/test_device.h"

#include "comm/mail.h"
#include "comm/nccl.h"
#include "device/backend.h"
#include "kernel/table.h"

#include <pthread.h>

#define TEST_KIND ((sl_device_kind)100)

typedef struct memory_block memory_block;
typedef struct memory_window memory_window;

typedef struct test_device {
    sl_device head;
    int threads;
    int fd;
    char *far;  /* the addresses given out */
    char *near; /* the memory behind them */
    pthread_mutex_t lock;
    memory_block *blocks;
    memory_window *windows; /* shared and attached blocks */
    uint64_t streams;       /* made so far */
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

/* ---- Streams and events ---------------------------------------------------------------------- */

typedef struct test_capture test_capture;

typedef struct test_event {
    sl_event head;
    test_capture *capture; /* in which it was recorded last; NULL: not in one */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t recorded, reached; /* how often */
    double time;                /* when it was last reached */
    int users;                  /* the owner, and work that has it */
} test_event;

typedef struct task {
    struct task *next;
    void (*run)(struct task *work);
    struct test_stream *stream;
    test_event *event;
    uint64_t target; /* of the event */
    sl_host_fn fn;
    test_kernel kernel;
    void *to;
    const void *from;
    int byte;
    size_t bytes;
    size_t args_bytes;
    _Alignas(16) char args[];
} task;

enum { MOST_CAPTURED = 4 };

struct test_capture {
    sl_capture head;
    task *first, *last;
    struct test_stream *streams[MOST_CAPTURED]; /* the first began it, the others waited for its events */
    int stream_count;
    bool ended;
};

typedef struct test_stream {
    sl_stream head;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, empty;
    task *first, *last;    /* the first one is being done */
    test_capture *capture; /* gets the work while there is one; of the thread that gives it */
    bool stop;
    uint64_t random;
    sl_device *cpu;
    sl_stream *cpu_stream;
    sl_status failed;
    char message[512];
} test_stream;

/* Work for a stream, with room for so many bytes of arguments; and giving it to the stream or to its capture. */
task *test_task_new(sl_stream *stream, void (*run)(task *), size_t bytes);
sl_status test_task_give(task *work);
/* What records an event, and waits for one. */
void test_task_record(task *work);
void test_task_wait(task *work);

/* ---- share.c --------------------------------------------------------------------------------- */

sl_status test_share(sl_device *head, size_t bytes, sl_device_handle *handle, void **out);
sl_status test_attach(sl_device *head, const sl_device_handle *handle, void **out);
/* A block that was shared or attached; the memory goes with the last that has it. */
void test_leave(sl_device *head, void *address);
/* Whether the range lies in such a block of the device. */
bool test_window_has(const test_device *device, const void *address, size_t bytes);
void *test_window_near(const void *address); /* NULL: it lies in none */

/* ---- stream.c -------------------------------------------------------------------------------- */

sl_status test_stream_create(sl_device *head, sl_stream **out);
void test_stream_destroy(sl_stream *head);
sl_status test_stream_synchronize(sl_stream *head);
sl_status test_stream_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes);
sl_status test_stream_set(sl_stream *stream, void *to, int byte, size_t bytes);
sl_status test_stream_call(sl_stream *stream, sl_host_fn fn, void *arg);
sl_status test_stream_use_words(sl_stream *stream, const sl_word_use *uses, int count);
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

/* ---- capture.c ------------------------------------------------------------------------------- */

sl_status test_capture_begin(sl_stream *stream);
sl_status test_capture_end(sl_stream *stream, sl_capture **out);
sl_status test_capture_launch(sl_capture *head);
void test_capture_destroy(sl_capture *head);

/* ---- kernel.c -------------------------------------------------------------------------------- */

extern const sl_kernel_table test_kernels;

/* ---- nccl.c ---------------------------------------------------------------------------------- */

extern const sl_nccl test_nccl;

/* ---- mail.c ---------------------------------------------------------------------------------- */

extern const sl_device_mail test_mail_service;

#endif
