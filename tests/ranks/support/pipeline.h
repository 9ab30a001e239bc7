/* Training runs of small models, made in two ways: as a pipeline of ranks, and one stage after another in one process.
 * Both must give the same bits. */
#ifndef PIPELINE_H
#define PIPELINE_H

#include <sluice/data.h>
#include <sluice/nn.h>
#include <sluice/runtime.h>

enum { BATCH = 8, SEQ = 16, STEPS = 5, MAX_MICROBATCHES = 8, MAX_PARAMS = 64, MLP_INPUT = 12, MLP_CLASSES = 10 };

/* gpt2-tiny, llama-tiny, and a perceptron with skip connections and tied weights. */
enum { MODEL_GPT2, MODEL_LLAMA, MODEL_MLP, MODEL_COUNT };
extern const char *const model_names[MODEL_COUNT];

/* One training run. */
typedef struct run_config {
    int model;
    sl_dtype dtype; /* of weights, activations and messages; gradients of weights and masters are f32 */
    char schedule[32];
    int ranks, stages_per_rank, microbatches;
} run_config;

/* Bits of a run. Parameters are in the order of the model's list. */
typedef struct run_result {
    float losses[STEPS][MAX_MICROBATCHES];
    uint64_t first_grads[MAX_PARAMS]; /* hashes: after step 0, after the last step, weights after it */
    uint64_t last_grads[MAX_PARAMS];
    uint64_t weights[MAX_PARAMS];
    int copies_differ; /* a tied parameter is not the same on all ranks that have it */
    char messages[64]; /* how they went, as rank 0's runtime says */
    char error[512];
} run_result;

/* The reference. It knows nothing of the runtime; the only thing taken from the schedule is the order in which each
 * stage adds up its gradients. */
sl_status run_sequential(const run_config *config, run_result *result);
/* This rank's part; all ranks write into the same result. */
sl_status run_pipelined(sl_group *group, const run_config *config, run_result *result);

/* ---- What both use ---- */

/* A batch of one step: the arguments are whole tensors in the memory before them. */
typedef struct batch {
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    float x[BATCH * MLP_INPUT];
    sl_arg args[2];
} batch;

sl_status model_of(int which, sl_model *model);
/* Where the first values of the model's parameters come from; NULL for the perceptron, which makes them from their
 * names. The caller closes it. */
sl_status open_weights(int which, const sl_model *model, sl_model_weights **out);
sl_status first_weight(sl_model_weights *weights, const sl_param_info *param, float *out);
sl_status read_batch(int which, int step, batch *out);
/* Partitions for the larger and the smaller microbatch, cut at the same nodes; *count is how many there are. */
sl_status cut_model(const run_config *config, const sl_model *model, int stages, sl_partition *out[2], int *count);
sl_status make_schedule(const run_config *config, sl_schedule **out);
extern const sl_program_options program_options; /* gradients in f32 */
uint64_t hash_of(const void *data, size_t bytes);
/* Plain gradient descent on the f32 master w; the weight is w rounded. */
sl_status descend(float *w, const float *g, int64_t count, sl_dtype dtype, void *weight);

#endif
