/* The runner's insides. */
#ifndef SL_GRAPH_RUNNER_H
#define SL_GRAPH_RUNNER_H

#include <sluice/graph.h>

#include "base/arena.h"

/* One stage's pointers for one microbatch. */
typedef struct sl_runner_slot {
    void **inputs, **outputs, **output_grads, **input_grads; /* NULL entries where there is none */
    void *saved_i, *saved_w, *kept;
} sl_runner_slot;

typedef struct sl_runner_stage {
    sl_stage_program *program;
    const sl_program_info *info;
    sl_runner_slot *slots; /* by microbatch; with depth_first they share the memory that outlives no microbatch */
    void **params, **grads, **states;
    int *param_owner; /* the first stage with this parameter, whose memory all use */
    void *constants;
} sl_runner_stage;

struct sl_runner {
    sl_device *device;
    sl_stream *stream;
    sl_runner_options options;
    sl_arena *arena;
    sl_runner_stage *stages;
    int stage_count;
    void *scratch;
    void **blocks; /* all device memory */
    int block_count;
    size_t block_capacity;
    size_t bytes;
};

SL_MUST_CHECK sl_status sl_runner_allocate(sl_runner *runner, const sl_partition *partition);

#endif
