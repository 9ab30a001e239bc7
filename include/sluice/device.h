/* Devices: memory, streams, events and copies. Work on a stream may be asynchronous: whoever reads a result on the host
 * synchronizes first. Device memory may be out of the host's reach: only copies (or sl_device_is_host) open it. */
#ifndef SLUICE_DEVICE_H
#define SLUICE_DEVICE_H

#include <sluice/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_device sl_device;   /* one opened device; used by one thread at a time unless said otherwise */
typedef struct sl_stream sl_stream;   /* work in order; belongs to a device */
typedef struct sl_event sl_event;     /* a point on a stream */
typedef struct sl_capture sl_capture; /* work of a stream that can be given again as one piece */

typedef enum sl_device_kind { SL_DEVICE_CPU, SL_DEVICE_CUDA } sl_device_kind;

typedef struct SL_NAMED_FIELDS sl_device_options {
    int threads; /* cpu: threads that share one kernel's work, the caller among them; 0 means 1 */
} sl_device_options;

/* spec: "cpu"; "cuda" or "cuda:INDEX", a GPU of NVIDIA, if the module libsluice_cuda.so is installed; "auto", the first
 * GPU if there is one that can be used, else the cpu; or the name of a model of GPU such as "h200" (sl_gpu_model_get),
 * which need not be here: it can be planned for, and has neither memory nor streams. "any-cpu" is the cpu as well, with
 * scratch memory for every instruction set, to plan for processors that are not here. options may be NULL. The caller
 * closes *out after all that came from it. A process that has opened a GPU must not go on using it after fork(). */
SL_API SL_MUST_CHECK sl_status sl_device_open(const char *spec, const sl_device_options *options, sl_device **out);
SL_API void sl_device_close(sl_device *device); /* NULL is fine */
/* Of the device that sl_device_open would open; whether it can be opened is not known. */
SL_API SL_MUST_CHECK sl_status sl_device_find_kind(const char *spec, sl_device_kind *out);

SL_API const char *sl_device_name(const sl_device *device); /* "cpu", "cuda:0" */
SL_API sl_device_kind sl_device_get_kind(const sl_device *device);
SL_API int sl_device_threads(const sl_device *device); /* 1 if the notion does not apply */
/* True if the host may read and write the device's memory directly (after synchronizing). */
SL_API bool sl_device_is_host(const sl_device *device);

/* ---- Models of GPUs -------------------------------------------------------------------------- */

typedef struct sl_gpu_model {
    const char *name, *title; /* "h200", "NVIDIA H200" */
    int capability;           /* 90: sm_90 */
    double memory;            /* bytes */
    double bf16_flops;        /* a second, of dense products in the matrix units, by the data sheet */
    double f32_flops;         /* a second, of products in full f32 */
    double bytes_per_s;       /* of its memory */
} sl_gpu_model;

SL_API const sl_gpu_model *sl_gpu_model_get(int index); /* NULL past the last */
/* The model that a device was opened by; NULL if it is a device that is here. */
SL_API const sl_gpu_model *sl_device_get_model(const sl_device *device);
/* What products and memory reach of a model's rates: what kernels reached on an H200, as shares. */
#define SL_GPU_REACHED_FLOPS 0.69
#define SL_GPU_REACHED_BYTES 0.86
/* The least time of an op in a step, in seconds, on an H200: one to four kernels, however little they do. */
#define SL_GPU_KERNEL_SECONDS 4.5e-6
/* Gradients of weights with so many operations are worth a second stream (sl_program_options.beside_flops): 0.3 ms on an
 * H200. */
#define SL_GPU_BESIDE_FLOPS 2e11
/* Between a GPU and pinned memory of the host, one way, over PCIe. */
#define SL_GPU_HOST_BYTES_PER_S 40e9

/* ---- Memory ---------------------------------------------------------------------------------- */

#define SL_DEVICE_ALIGNMENT 64 /* bytes; every block starts on such a boundary */

/* Not zeroed. 0 bytes gives a unique pointer. */
SL_API SL_MUST_CHECK sl_status sl_device_alloc(sl_device *device, size_t bytes, void **out);
SL_API void sl_device_free(sl_device *device, void *block); /* NULL is fine */

/* Takes memory for the next allocations from the device at once, `bytes` in `blocks` blocks: what does not fit is refused
 * here. Blocks come from it until it is used up. If that much of an earlier reserve is left, nothing is taken. It is given
 * back with its last block. Does nothing on the cpu. */
SL_API SL_MUST_CHECK sl_status sl_device_reserve(sl_device *device, size_t bytes, int blocks);

/* Memory of the host that copies to and from the device reach at full speed and without holding up the host. Aligned to
 * SL_DEVICE_ALIGNMENT, not zeroed, not part of sl_device_get_memory. */
SL_API SL_MUST_CHECK sl_status sl_device_alloc_host(sl_device *device, size_t bytes, void **out);
SL_API void sl_device_free_host(sl_device *device, void *block); /* NULL is fine */

/* Bytes asked for, without the allocator's own overhead. */
typedef struct sl_device_memory {
    size_t in_use;
    size_t peak;  /* highest in_use since the device was opened or the peak was reset */
    size_t total; /* what the device has; 0 for the cpu */
    /* Of a GPU: what the driver and the libraries take beside all blocks, about; what the driver takes for each kernel of a
     * captured step, about; and all that is taken on it now, by whomever. 0 for the cpu. */
    size_t context, launch, taken;
} sl_device_memory;

SL_API sl_device_memory sl_device_get_memory(const sl_device *device);
SL_API void sl_device_reset_peak(sl_device *device); /* peak becomes in_use */

/* ---- Streams --------------------------------------------------------------------------------- */

SL_API SL_MUST_CHECK sl_status sl_stream_create(sl_device *device, sl_stream **out);
SL_API void sl_stream_destroy(sl_stream *stream); /* waits for its work; NULL is fine */
SL_API sl_device *sl_stream_device(const sl_stream *stream);
/* The stream as the device's own interface knows it, for your own kernels: a cudaStream_t on a GPU. NULL on devices
 * that have no such thing. */
SL_API void *sl_stream_native(const sl_stream *stream);
/* Waits for all work given so far and reports what went wrong in it. */
SL_API SL_MUST_CHECK sl_status sl_stream_synchronize(sl_stream *stream);

typedef enum sl_copy_kind { SL_COPY_HOST_TO_DEVICE, SL_COPY_DEVICE_TO_HOST, SL_COPY_DEVICE_TO_DEVICE } sl_copy_kind;

/* In stream order; both buffers stay untouched by others until the stream has passed this point, host memory, too. No
 * overlap. */
SL_API SL_MUST_CHECK sl_status sl_stream_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from,
                                              size_t bytes);
SL_API SL_MUST_CHECK sl_status sl_stream_memset(sl_stream *stream, void *to, int byte, size_t bytes);

/* Calls fn(arg) on the host once the stream has passed this point, before later work of the stream starts. If the
 * stream is asynchronous, it runs in another thread. fn must not use the device, and must not wait for anything. */
typedef void (*sl_host_fn)(void *arg);
SL_API SL_MUST_CHECK sl_status sl_stream_call(sl_stream *stream, sl_host_fn fn, void *arg);

/* ---- Events ---------------------------------------------------------------------------------- */

SL_API SL_MUST_CHECK sl_status sl_event_create(sl_device *device, sl_event **out);
SL_API void sl_event_destroy(sl_event *event); /* NULL is fine */
/* Marks the point the stream has been given work up to; replaces an earlier mark. */
SL_API SL_MUST_CHECK sl_status sl_event_record(sl_event *event, sl_stream *stream);
/* The same for times alone, no stream can wait for it: if the stream's work is captured, every launch marks it anew. */
SL_API SL_MUST_CHECK sl_status sl_event_stamp(sl_event *event, sl_stream *stream);
/* Work given to the stream from now on starts after the event; does not hold up the host. */
SL_API SL_MUST_CHECK sl_status sl_stream_wait(sl_stream *stream, sl_event *event);
SL_API SL_MUST_CHECK sl_status sl_event_synchronize(sl_event *event); /* holds up the host */
/* Sets *done without waiting; an event never recorded is done. */
SL_API SL_MUST_CHECK sl_status sl_event_query(sl_event *event, bool *done);
/* Seconds between two recorded events of one device; both must have been reached. */
SL_API SL_MUST_CHECK sl_status sl_event_elapsed(sl_event *from, sl_event *to, double *seconds);

/* ---- Captures -------------------------------------------------------------------------------- */

/* False: the calls below fail. The cpu captures nothing. */
SL_API bool sl_device_can_capture(const sl_device *device);
/* From here on the stream keeps what it is given instead of doing it: kernels, copies, memsets and calls of the host.
 * Another stream that waits for an event recorded on it is captured with it, and must be waited for by an event before
 * the end. The thread that began must end it, and until then neither waits for the stream nor allocates memory of the
 * device. A kernel or shape that is new to the device may need both: it must have run before. */
SL_API SL_MUST_CHECK sl_status sl_stream_begin_capture(sl_stream *stream);
/* The stream works again. If it fails, what was kept is lost. */
SL_API SL_MUST_CHECK sl_status sl_stream_end_capture(sl_stream *stream, sl_capture **out);
/* Gives the captured work to its stream again, with the arguments it had: memory has what is in it by then. */
SL_API SL_MUST_CHECK sl_status sl_capture_launch(sl_capture *capture);
/* Once the stream has done it, and before the stream is destroyed. NULL is fine. */
SL_API void sl_capture_destroy(sl_capture *capture);

#ifdef __cplusplus
}
#endif
#endif
