/* A stage's weights and gradients as a whole: gathered and reduced by instructions, beside what the rank computes. */
#ifndef SL_RUNTIME_WEIGHTS_H
#define SL_RUNTIME_WEIGHTS_H

#include "runtime/program.h"

/* Who shares what with whom. Replicas [n * rows, (n + 1) * rows) are one group of those that share. */
typedef struct sl_sharers {
    sl_group *shards; /* a part each: this rank's group; NULL: none */
    sl_group *across; /* the same part: one rank of each group; NULL: there is one group */
    int rows;         /* members of shards */
    int replica;      /* this rank's number: of its shard in the shardings of weights */
    int part;         /* of its part in those of what is counted */
} sl_sharers;

/* Where in a whole weight or gradient, as collectives see it, this rank's pieces begin. Bytes. */
typedef struct sl_own_pieces {
    size_t shard, grad_shard, grad_part;
    size_t shard_bytes, grad_part_bytes;
} sl_own_pieces;

/* Collectives of one stage that are on their way: its weights in one bucket, its gradients in one for each dtype. */
typedef struct sl_stage_requests {
    sl_own_pieces *own;                                    /* one a weight */
    sl_bucket_item *gather_items, *sum_items, *join_items; /* room for one a weight */
    sl_request *gather;                                    /* NULL: none */
    sl_request **sums;                                     /* room for one a weight, and the gather across groups */
    int sum_count;
    uint64_t gather_start, sum_start; /* for the trace */
} sl_stage_requests;

/* What the runtime has posted so far. */
typedef struct sl_posted {
    int64_t count;  /* collectives */
    uint64_t bytes; /* of the tensors that they gather or sum */
    double seconds; /* that the rank's own thread has spent on them: it posted or waited and computed nothing */
} sl_posted;

/* Collective over the replicas: the groups of the mode that the pipeline was compiled for. */
SL_MUST_CHECK sl_status sl_weights_split_groups(sl_runtime *runtime);
SL_MUST_CHECK sl_status sl_weights_create(sl_runtime *runtime);
void sl_weights_destroy(sl_runtime *runtime);

/* Waits for what sl_runtime_gather_params_post has begun: for all of it, or for what local stage k needs. */
SL_MUST_CHECK sl_status sl_weights_settle(sl_runtime *runtime);
SL_MUST_CHECK sl_status sl_weights_settle_stage(sl_runtime *runtime, int k);

/* UNSHARD to AWAIT_GRADS. */
SL_MUST_CHECK sl_status sl_weights_run(sl_runtime *runtime, const sl_instr *instr);

#endif
