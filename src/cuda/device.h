/* The device's own structs, for the module's C files. */
#ifndef SL_CUDA_DEVICE_H
#define SL_CUDA_DEVICE_H

#include "cuda/blas.h"
#include "cuda/dnn.h"
#include "device/module.h"
#include "kernel/table.h"

#include <pthread.h>

typedef struct cuda_block {
    void *address;
    size_t bytes;
    struct cuda_block *next;
} cuda_block;

typedef struct cuda_clears cuda_clears;           /* clears.c */
typedef struct cuda_clear_block cuda_clear_block; /* the same */

struct cuda_device {
    sl_device head;
    int index;
    struct cudaDeviceProp properties;
    cuda_fault *fault; /* host memory that the device sees */
    int32_t *fault_lock;
    pthread_mutex_t lock; /* for all blocks and clears */
    cuda_block *blocks;
    cuda_blas *blas;
    cuda_dnn *dnn;                  /* NULL: cuDNN is not installed */
    cuda_clears *clears;            /* of the captures under way */
    cuda_clear_block *clear_blocks; /* that no capture has */
};

typedef struct cuda_stream {
    sl_stream head;
    cudaStream_t stream;
} cuda_stream;

extern const sl_module_host *cuda_host;
extern const sl_device_backend cuda_backend;
extern const sl_kernel_table cuda_kernels;

int cuda_count(void);          /* devices that can be opened */
void cuda_choose_queues(void); /* before CUDA is first used in this process */
int cuda_queues(void);         /* of this process to each device */

/* Every call of the runtime works on the thread's current device: this makes it the right one. */
sl_status cuda_select(const cuda_device *device);

/* Streams and events: stream.c. */
sl_status cuda_stream_create(sl_device *head, sl_stream **out);
void cuda_stream_destroy(sl_stream *stream);
void *cuda_stream_native(const sl_stream *stream);
sl_status cuda_stream_synchronize(sl_stream *stream);
sl_status cuda_stream_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes);
sl_status cuda_stream_set(sl_stream *stream, void *to, int byte, size_t bytes);
sl_status cuda_stream_call(sl_stream *stream, sl_host_fn fn, void *arg);
sl_status cuda_event_create(sl_device *head, sl_event **out);
void cuda_event_destroy(sl_event *event);
sl_status cuda_event_record(sl_event *head, sl_stream *stream);
sl_status cuda_event_stamp(sl_event *head, sl_stream *stream);
sl_status cuda_event_wait(sl_stream *stream, sl_event *event);
sl_status cuda_event_synchronize(sl_event *event);
sl_status cuda_event_query(sl_event *event, bool *done);
sl_status cuda_event_elapsed(sl_event *from, sl_event *to, double *seconds);

/* Shared blocks: share.c; their words: words.c. */
sl_status cuda_share(sl_device *head, size_t bytes, sl_device_handle *handle, void **out);
void cuda_unshare(sl_device *head, void *address);
sl_status cuda_attach(sl_device *head, const sl_device_handle *handle, void **out);
void cuda_detach(sl_device *head, void *address);
sl_status cuda_use_words(sl_stream *head, const sl_word_use *uses, int count);

/* Captures: capture.c. */
sl_status cuda_capture_begin(sl_stream *stream);
sl_status cuda_capture_end(sl_stream *stream, sl_capture **out);
sl_status cuda_capture_launch(sl_capture *head);
void cuda_capture_destroy(sl_capture *head);

#endif
