/* A stage's weights and gradients as a whole: gathered and reduced by instructions, beside what the rank computes. */
#ifndef SL_RUNTIME_WEIGHTS_H
#define SL_RUNTIME_WEIGHTS_H

#include "runtime/exchange.h"
#include "runtime/program.h"

/* Who shares what with whom. Replicas [n * rows, (n + 1) * rows) are one group of those that share. */
typedef struct sl_sharers {
    sl_group *shards;                 /* a part each: this rank's group; NULL: none */
    sl_group *across;                 /* the same part: one rank of each group; NULL: there is one group */
    sl_exchange sums, gathers, joins; /* over the replicas, shards and across */
    int rows;                         /* members of shards */
    int replica;                      /* this rank's number: of its shard in the shardings of weights */
    int part;                         /* of its part in those of what is counted */
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
    bool gathering;                                        /* its weights are on their way */
    sl_request *gather;                                    /* NULL: the stream does it */
    sl_request **sums; /* room for one a weight, and the gather across groups; NULL: the stream does it */
    int sum_count;
    sl_event *gathered, *summed;      /* by the stream of collectives; NULL on a host device */
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
/* Collective over the replicas: opens the exchanges. */
SL_MUST_CHECK sl_status sl_weights_connect(sl_runtime *runtime);
void sl_weights_disconnect(sl_runtime *runtime);
void sl_weights_destroy(sl_runtime *runtime);

/* Before a step, if streams may wait for other ranks. is_fresh, the same on all ranks: it is one of the first of its kind,
 * in which no stream may be held up. may_wait: this rank may wait for the whole device in it. */
SL_MUST_CHECK sl_status sl_weights_begin(sl_runtime *runtime, bool is_fresh, bool may_wait);
/* Collective over the replicas: no stream of any of them waits for another one any more. */
SL_MUST_CHECK sl_status sl_weights_end_moving(sl_runtime *runtime);
/* Whether a collective is on its way in device memory. */
bool sl_weights_are_moving(const sl_runtime *runtime);

/* Waits for what sl_runtime_gather_params_post has begun: for all of it, or for what local stage k needs. */
SL_MUST_CHECK sl_status sl_weights_settle(sl_runtime *runtime);
SL_MUST_CHECK sl_status sl_weights_settle_stage(sl_runtime *runtime, int k);

/* UNSHARD to AWAIT_GRADS. */
SL_MUST_CHECK sl_status sl_weights_run(sl_runtime *runtime, const sl_instr *instr);

#endif
