/* What a kind of device provides. Each backend is one const table, listed in device.c. */
#ifndef SL_DEVICE_BACKEND_H
#define SL_DEVICE_BACKEND_H

#include <sluice/device.h>

#include <pthread.h>
#include <stdatomic.h>

typedef struct sl_device_backend sl_device_backend;

/* The head of every backend's own device, stream and event struct. */
struct sl_device {
    const sl_device_backend *backend;
    char name[32];        /* open may set it; else it is the spec */
    atomic_size_t in_use; /* bytes; kept by sl_device_count_bytes */
    atomic_size_t peak;
    size_t total;   /* bytes of memory that it has, set by open; 0: the host's */
    uint64_t unit;  /* set by open: the same for all who open this piece of hardware; 0: not known */
    int pool;       /* set by open: devices that the ranks of a machine take in turn; 0: each rank has one of its own */
    size_t context; /* bytes of it that driver and libraries take, set by open */
    size_t launch;  /* and that the driver takes for a captured kernel */
    int queues;     /* set by open: streams of this process that never hold each other up; 0: shares nothing */
    const sl_gpu_model *model;       /* set by open if the device is only described */
    pthread_mutex_t lock;            /* for the reserve */
    struct device_reserve *reserves; /* memory taken in advance; kept by memory.c */
};

struct sl_stream {
    sl_device *device;
    void *staging; /* kept by sl_stream_get_staging */
};

struct sl_event {
    sl_device *device;
};

struct sl_capture {
    sl_stream *stream;
};

/* How the device of another rank finds a shared block: plain data, for the backend alone. */
typedef struct sl_device_handle {
    unsigned char bytes[160];
} sl_device_handle;

typedef enum sl_word_kind { SL_WORD_WRITE, SL_WORD_WAIT } sl_word_kind;

/* One thing that a stream does with a word of a shared block. */
typedef struct sl_word_use {
    sl_word_kind kind;
    uint32_t *word;
    uint32_t value; /* to write; a wait is for an odd word */
} sl_word_use;

/* Every entry is required unless it is marked optional. Outputs are set only on success; blocks, streams and events
 * given in are never NULL. */
struct SL_NAMED_FIELDS sl_device_backend {
    const char *name; /* what stands before ":INDEX" in a spec */
    sl_device_kind kind;
    bool is_host;
    bool reserves; /* sl_device_reserve takes memory in advance; false: it does nothing */
    /* index is -1 if the spec names none. The backend allocates a struct that starts with sl_device; open() in
     * device.c fills in the head. */
    sl_status (*open)(int index, const sl_device_options *options, sl_device **out);
    void (*close)(sl_device *device);
    int (*threads)(const sl_device *device);

    /* alloc and free report what they took and gave through sl_device_count_bytes. */
    sl_status (*alloc)(sl_device *device, size_t bytes, void **out);
    void (*free)(sl_device *device, void *block);
    size_t (*taken)(const sl_device *device); /* optional: sl_device_memory.taken */

    /* Host memory for copies. */
    sl_status (*alloc_host)(sl_device *device, size_t bytes, void **out);
    void (*free_host)(sl_device *device, void *block);

    sl_status (*stream_create)(sl_device *device, sl_stream **out);
    void (*stream_destroy)(sl_stream *stream);
    void *(*stream_native)(const sl_stream *stream); /* optional */
    sl_status (*stream_synchronize)(sl_stream *stream);
    sl_status (*copy)(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes);
    sl_status (*set)(sl_stream *stream, void *to, int byte, size_t bytes);

    sl_status (*call)(sl_stream *stream, sl_host_fn fn, void *arg);

    sl_status (*event_create)(sl_device *device, sl_event **out);
    void (*event_destroy)(sl_event *event);
    sl_status (*event_record)(sl_event *event, sl_stream *stream);
    sl_status (*event_stamp)(sl_event *event, sl_stream *stream); /* optional: as event_record */
    sl_status (*event_wait)(sl_stream *stream, sl_event *event);
    sl_status (*event_synchronize)(sl_event *event);
    sl_status (*event_query)(sl_event *event, bool *done);
    sl_status (*event_elapsed)(sl_event *from, sl_event *to, double *seconds);

    /* Optional, all or none: blocks that devices of other ranks reach, and words in them (share.h). */
    sl_status (*share)(sl_device *device, size_t bytes, sl_device_handle *handle, void **out);
    void (*unshare)(sl_device *device, void *block);
    sl_status (*attach)(sl_device *device, const sl_device_handle *handle, void **out);
    void (*detach)(sl_device *device, void *block);
    sl_status (*use_words)(sl_stream *stream, const sl_word_use *uses, int count);

    /* Optional, all or none. */
    sl_status (*capture_begin)(sl_stream *stream);
    sl_status (*capture_end)(sl_stream *stream, sl_capture **out);
    sl_status (*capture_launch)(sl_capture *capture);
    void (*capture_destroy)(sl_capture *capture);
};

/* Measured on an H200 with driver 580, cuBLASLt 13.1 and cuDNN 9.14, after steps of training: what is taken beside blocks
 * and graphs (550 to 554 MiB), and graphs by instructions of programs (3482 to 3745 bytes; 2587 for a node, 1.35 nodes each). */
#define SL_CUDA_CONTEXT_BYTES ((size_t)553 << 20)
#define SL_CUDA_LAUNCH_BYTES ((size_t)3584)

extern const sl_device_backend sl_device_cpu;
extern const sl_device_backend sl_device_described; /* index: of the model */

/* One more backend than those of the list, under its own name; NULL takes it away. For tests: it lives as long as the
 * process, and no device is open when it changes. */
void sl_device_set_extra_backend(const sl_device_backend *backend);

/* SL_STREAM_STAGING bytes of host memory for copies, to be used in the order of the stream alone: work that is given
 * later may overwrite it. It lives as long as the stream. */
enum { SL_STREAM_STAGING = 256 << 10 };
SL_MUST_CHECK sl_status sl_stream_get_staging(sl_stream *stream, void **out);

void sl_device_count_bytes(sl_device *device, size_t taken, size_t given);
void sl_device_drop_reserves(sl_device *device); /* gives back all that was taken in advance */

#endif
