/* What `sluice bench sharding` runs: a GPT on pipelines that share, timed beside the same pipelines on their own and
 * beside the simulator. */
#ifndef SLUICE_BENCH_SHARDING_MEASURE_H
#define SLUICE_BENCH_SHARDING_MEASURE_H

#include "pipeline_measure.h"

typedef struct SL_NAMED_FIELDS sharding_options {
    pipeline_options model; /* ranks: of one pipeline */
    const char *schedule;
    int replicas, stages_per_rank, unsharded;
    int shard_group; /* 0: all replicas */
} sharding_options;

typedef struct sharding_case {
    sl_shard_mode shard;
    /* Medians of the time until all ranks are through, taken in turns. */
    double alone_s;      /* of a step of every pipeline by itself, without collectives */
    double step_s;       /* of a step with all its collectives; no update */
    double collective_s; /* of the collectives of a step with nothing else */
    double exposed_s; /* that a rank posts or waits for collectives in a step and computes nothing: that of the replica
                            that waits least, since others also wait for it to come; mean of the pipeline's ranks. On
                            a device that works by itself: step_s - alone_s */
    double hideable;  /* share of collective_s by which a simulated step does not take longer for its collectives */
    int64_t count;    /* collectives of a step, on the rank that has most */
    int64_t bytes;    /* that they gather or sum */
    bool helper;      /* ranks have a thread that moves collectives along */
    char collectives[320]; /* where they do their work, and why */
} sharding_case;

/* Runs the case on local ranks that it starts; fills in the figures. */
sl_status sharding_measure(const sharding_options *options, sharding_case *each);

#endif
