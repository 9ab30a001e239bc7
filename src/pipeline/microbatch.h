/* Microbatches one at a time, for the step, which allocates nothing. */
#ifndef SL_PIPELINE_MICROBATCH_H
#define SL_PIPELINE_MICROBATCH_H

#include <sluice/pipeline.h>

/* Microbatch `index` of whole. */
SL_MUST_CHECK sl_status sl_microbatch_part_view(const sl_view *whole, const sl_chunk_spec *spec, int count, int index,
                                                sl_view *part);
/* Host memory to host memory, any strides. */
SL_MUST_CHECK sl_status sl_microbatch_copy(const sl_view *from, const sl_view *to);
/* The same, added to what is there: f32, f64, bf16 and f16. */
SL_MUST_CHECK sl_status sl_microbatch_add(const sl_view *from, const sl_view *to);
SL_MUST_CHECK sl_status sl_microbatch_merge_part(const sl_view *part, const sl_chunk_spec *spec, int count, int index,
                                                 const sl_view *whole);

#endif
