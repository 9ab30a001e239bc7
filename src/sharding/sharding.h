/* Inside shardings. */
#ifndef SL_SHARDING_SHARDING_H
#define SL_SHARDING_SHARDING_H

#include <sluice/sharding.h>

/* Shards of one copy: [c * run, (c + 1) * run) are copy c. */
static inline int sl_sharding_run(const sl_sharding *sharding)
{
    return sharding->copies > 1 ? sharding->count / sharding->copies : sharding->count;
}

/* Checked as sl_sharding_check does. */
SL_MUST_CHECK sl_status sl_sharding_copy(const sl_sharding *sharding, sl_sharding *out);

/* sl_sharding_merge without the check that the shards are the whole tensor. */
SL_MUST_CHECK sl_status sl_sharding_join(const sl_sharding *const *ranks, int count, sl_sharding *out);

/* The properties of a rank's shards against those of the sharding that it says they are of. */
SL_MUST_CHECK sl_status sl_sharding_compare_properties(int rank, const sl_tensor_properties *sharding,
                                                       const sl_tensor_properties *local);

#endif
