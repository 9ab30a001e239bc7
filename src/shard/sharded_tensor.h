/* Inside sharded tensors. */
#ifndef SL_SHARD_SHARDED_TENSOR_H
#define SL_SHARD_SHARDED_TENSOR_H

#include <sluice/shard.h>

#include "sharding/sharding.h"

struct sl_sharded_tensor {
    sl_group *group;
    sl_device *device; /* NULL: the host */
    sl_sharding sharding;
    int *owners;            /* member of the group that holds each shard */
    sl_local_shard *locals; /* this rank's, in the order of the sharding */
    int local_count;
    void **data;      /* of each shard; NULL if it is another rank's */
    bool owns_memory; /* the data of locals is this tensor's */
};

/* sl_sharded_tensor_create without its agreement. */
SL_MUST_CHECK sl_status sl_sharded_tensor_make(sl_group *group, sl_device *device, const sl_sharding *sharding,
                                               sl_sharded_tensor **out);

/* Collective. Every rank says how it stands (its status and message) and what it asks for (a hash, 0 for nothing). All get
 * the error of the first that failed, or one that names two ranks that ask for different things. */
SL_MUST_CHECK sl_status sl_shard_agree(sl_group *group, const char *what, sl_status own, uint64_t hash);
/* Of all that the sharding says. */
SL_MUST_CHECK sl_status sl_sharding_hash(const sl_sharding *sharding, uint64_t *out);

#endif
