/* Element-wise reductions in the order of the sources. */
#ifndef SL_COMM_REDUCE_H
#define SL_COMM_REDUCE_H

#include <sluice/comm.h>

/* Refuses what cannot be reduced. */
sl_status sl_reduce_check(sl_dtype dtype, sl_reduce reduce);

/* out[i] = sources[0][i] op sources[1][i] op ..., from left to right. out may be one of the sources. */
void sl_reduce_run(const void *const *sources, int sources_count, int64_t count, sl_dtype dtype, sl_reduce reduce,
                   void *out);

#endif
