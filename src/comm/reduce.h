/* Element-wise reductions in the order of the sources. */
#ifndef SL_COMM_REDUCE_H
#define SL_COMM_REDUCE_H

#include <sluice/comm.h>

/* Refuses what cannot be reduced. */
sl_status sl_reduce_check(sl_dtype dtype, sl_reduce reduce);

/* out[i] = sources[0][i] op sources[1][i] op ..., from left to right. out may be one of the sources. */
void sl_reduce_run(const void *const *sources, int sources_count, int64_t count, sl_dtype dtype, sl_reduce reduce,
                   void *out);

/* The same one source at a time: what the sources so far make is kept in the dtype that it is summed in. */
sl_dtype sl_reduce_wide(sl_dtype dtype);
/* out = running op source. running is wide, NULL for the first source; out is wide unless this is the last source. With
 * the last one, out may be source. */
void sl_reduce_next(const void *running, const void *source, int64_t count, sl_dtype dtype, sl_reduce reduce, bool last,
                    void *out);

#endif
