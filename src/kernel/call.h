/* What every kernel needs to read a call: arguments by place, rows of strided tensors. */
#ifndef SL_KERNEL_CALL_H
#define SL_KERNEL_CALL_H

#include <sluice/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const sl_view sl_absent; /* none */

/* Argument i, none if it was left off. */
static inline const sl_view *sl_call_input(const sl_kernel_call *call, int i)
{
    return i < call->input_count ? &call->inputs[i] : &sl_absent;
}

static inline const sl_view *sl_call_output(const sl_kernel_call *call, int i)
{
    return i < call->output_count ? &call->outputs[i] : &sl_absent;
}

static inline bool sl_call_accumulates(const sl_kernel_call *call, int output)
{
    return call->accumulate >> output & 1;
}

/* Dim counted from the last (1 = last); 1 if the rank is smaller. */
static inline int64_t sl_dim_from_last(const sl_meta *meta, int place)
{
    return place <= meta->shape.rank ? meta->shape.dims[meta->shape.rank - place] : 1;
}

static inline int64_t sl_stride_from_last(const sl_meta *meta, int place)
{
    return place <= meta->shape.rank ? meta->strides[meta->shape.rank - place] : 0;
}

/* sl_kernel_run for a call that sl_kernel_scratch has accepted with the same metadata: it is not checked again. */
SL_MUST_CHECK sl_status sl_kernel_run_checked(sl_stream *stream, const sl_kernel_call *call);

/* Elements in the leading dims, all but the last `inner`. */
int64_t sl_row_count(const sl_meta *meta, int inner);

/* Offset (elements) of row `row`, counted row-major over all dims but the last `inner`. */
int64_t sl_row_offset(const sl_meta *meta, int64_t row, int inner);

/* The meta seen with the shape of a broadcast result; the shapes were checked before. */
sl_meta sl_meta_stretched(const sl_meta *meta, const sl_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
