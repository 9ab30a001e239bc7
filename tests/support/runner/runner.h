/* Runs all stages of a partition one after another in this process, for tests of graphs and models. It shares no code
 * with the runtime. */
#ifndef TESTS_SUPPORT_RUNNER_H
#define TESTS_SUPPORT_RUNNER_H

#include <sluice/graph.h>

#include "base/arena.h"

typedef struct test_runner test_runner; /* stages of a partition run one after another; used by one thread at a time */

/* Zero is the default of every field. */
typedef struct SL_NAMED_FIELDS test_runner_options {
    int microbatches;    /* 0: 1 */
    bool split_backward; /* I and W in place of B */
    bool depth_first;    /* a microbatch's backward follows its forward: one slot; else all forwards come first */
    sl_program_options programs; /* borrowed for the call */
} test_runner_options;

/* Allocates everything: parameters (not initialised), gradients, slots. The device must outlive the runner; options may
 * be NULL. */
SL_MUST_CHECK sl_status test_runner_create(const sl_partition *partition, sl_device *device,
                                           const test_runner_options *options, test_runner **out);
void test_runner_destroy(test_runner *runner); /* NULL is fine */

/* Device memory, by name; none if there is no such. A parameter tied across stages is one; its gradient is the sum
 * over the stages, in stage order. Inputs and seeds stay what they were in the step before; seeds start as 1. */
sl_view test_runner_param(const test_runner *runner, const char *name);
sl_view test_runner_grad(const test_runner *runner, const char *name);
sl_view test_runner_input(const test_runner *runner, int microbatch, const char *name);
sl_view test_runner_input_grad(const test_runner *runner, int microbatch, const char *name);
sl_view test_runner_output(const test_runner *runner, int microbatch, const char *name);
sl_view test_runner_output_grad(const test_runner *runner, int microbatch, const char *name); /* the seed */
sl_view test_runner_state(const test_runner *runner, const char *name);
const sl_stage_program *test_runner_program(const test_runner *runner, int stage);
sl_stream *test_runner_stream(const test_runner *runner);
size_t test_runner_bytes(const test_runner *runner); /* device memory that it holds, from the programs' info */

/* All microbatches: forward alone, or forward and backward, the gradients being those of this step. rng->sample_offset
 * is that of microbatch 0; each microbatch adds the size of dim 0 of the first input. node_seconds as in sl_bindings,
 * or NULL. */
SL_MUST_CHECK sl_status test_runner_forward(test_runner *runner, const sl_rng *rng, double *node_seconds);
SL_MUST_CHECK sl_status test_runner_step(test_runner *runner, const sl_rng *rng, double *node_seconds);

/* ---- Insides --------------------------------------------------------------------------------- */

/* One stage's pointers for one microbatch. */
typedef struct test_runner_slot {
    void **inputs, **outputs, **output_grads, **input_grads; /* NULL entries if there is none */
    void *saved_i, *saved_w, *kept;
} test_runner_slot;

typedef struct test_runner_stage {
    sl_stage_program *program;
    const sl_program_info *info;
    test_runner_slot *slots; /* by microbatch; with depth_first they share the memory that outlives no microbatch */
    void **params, **grads, **states;
    int *param_owner; /* the first stage with this parameter, whose memory all use */
    void *constants, *packed;
} test_runner_stage;

struct test_runner {
    sl_device *device;
    sl_stream *stream;
    test_runner_options options;
    sl_arena *arena;
    test_runner_stage *stages;
    int stage_count;
    void *scratch;
    void **blocks; /* all device memory */
    int block_count;
    size_t block_capacity;
    size_t bytes;
};

/* Every buffer of every stage and microbatch (runner_memory.c). */
SL_MUST_CHECK sl_status test_runner_allocate(test_runner *runner, const sl_partition *partition);

#endif
