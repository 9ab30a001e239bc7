/* Kernels: how a device runs operations, one table of them per kind of device. */
#ifndef SLUICE_KERNEL_H
#define SLUICE_KERNEL_H

#include <sluice/device.h>
#include <sluice/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Calls ----------------------------------------------------------------------------------- */

/* State of the counter-based generator: no kernel keeps any of its own. */
typedef struct sl_rng {
    uint64_t seed;
    uint64_t step;
    int64_t sample_offset; /* index in the global batch of the call's first sample (dim 0) */
    bool training;
} sl_rng;

/* What an update has that changes from step to step. */
typedef struct sl_update_numbers {
    double lr;
    double grad_scale;               /* if it is not a number, the update does nothing */
    double correction1, correction2; /* AdamW's: 1 - beta^t */
    int64_t t;
} sl_update_numbers;

typedef struct sl_kernel_call {
    sl_op op;
    sl_op_attrs attrs;
    const sl_view *inputs;
    int input_count;
    const sl_view *outputs;
    int output_count;
    uint32_t accumulate; /* bit i: output i += result; only if the op accumulates */
    void *scratch;       /* device memory on a SL_DEVICE_ALIGNMENT boundary; may be NULL if 0 bytes are needed */
    size_t scratch_bytes;
    const void *packed; /* input 1, the weight, as sl_kernel_pack left it; NULL: the kernel packs it if it needs to */
    sl_rng rng;
    /* Device memory that has seed, step and sample offset when the stream gets to the call; the sample offset of rng is
     * added. NULL: rng has them. So a capture of the call can draw other bits in each step. */
    const sl_rng *step_rng;
    /* ADAMW, SGD: device memory that has these numbers when the stream gets to the call. NULL: attrs.optim has them. */
    const sl_update_numbers *numbers;
    const char
        *node; /* name for the message of an error that comes to light after the call; NULL: none. It outlives the
                         stream's work */
} sl_kernel_call;

/* Bytes of scratch that the call needs; looks at metadata only, data pointers may be NULL. Depends on the device's
 * number of threads, not on what is in the tensors. */
SL_API SL_MUST_CHECK sl_status sl_kernel_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes);

/* Checks the call and gives it to the stream. The call struct may go at once, the memory after the stream ran it. */
SL_API SL_MUST_CHECK sl_status sl_kernel_run(sl_stream *stream, const sl_kernel_call *call);

/* Several calls that do not depend on each other, with scratch of their own each: as if run one after the other, and with
 * the same bits. A device may do with one pass what would be many small ones (updates of parameters, sums of squares). */
SL_API SL_MUST_CHECK sl_status sl_kernel_run_many(sl_stream *stream, const sl_kernel_call *calls, int count);

/* Products reorder ("pack") their weight before they multiply. If calls that differ in their rows alone share a weight, it
 * can be packed once for all of them: bytes that LINEAR or LINEAR_GRAD_X wants for that; 0: the kernel has no use for it,
 * and so for all other ops. Looks at metadata only. The result of a call has the same bits either way. */
SL_API SL_MUST_CHECK sl_status sl_kernel_packed_bytes(sl_device *device, const sl_kernel_call *call, size_t *bytes);
/* Packs the weight of the call, whose other tensors need no memory, into device memory of that many bytes on a
 * SL_DEVICE_ALIGNMENT boundary. Only for a call that has such bytes. */
SL_API SL_MUST_CHECK sl_status sl_kernel_pack(sl_stream *stream, const sl_kernel_call *call, void *to);

/* Writes what the device's kernels run on into text and returns it: "cpu: avx512_bf16, own products, 1 thread".
 */
SL_API char *sl_kernel_describe(sl_device *device, char *text, size_t size);

/* The f32 peak of the device in operations a second, measured by multiply-adds in registers on all its threads; takes a
 * few hundredths of a second. */
SL_API double sl_kernel_measure_peak(sl_device *device);
/* The same for matrix products of operands of this dtype, with f32 sums: bf16 may have instructions of its own. */
SL_API double sl_kernel_measure_product_peak(sl_device *device, sl_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
