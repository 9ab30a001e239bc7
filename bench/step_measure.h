/* What `sluice bench step` measures (step_measure.c); step.c reads the options and prints. */
#ifndef SLUICE_BENCH_STEP_MEASURE_H
#define SLUICE_BENCH_STEP_MEASURE_H

#include <sluice/nn.h>
#include <sluice/optim.h>
#include <sluice/runtime.h>

typedef struct SL_NAMED_FIELDS step_options {
    int64_t batch, seq, embd, layers, heads, vocab;
    int microbatches, threads, repeats;
    const char *device; /* as sl_device_open takes it */
    bool nodes;         /* measure the nodes of the graph as well */
    bool unpacked;      /* weights are packed anew for every microbatch */
    sl_dtype dtype;     /* of parameters and activations: f32, or bf16 with f32 gradients and master weights */
} step_options;

typedef struct step_node {
    const char *name; /* owned by the result */
    double seconds;   /* forward and backward, one step */
} step_node;

typedef struct step_result {
    double step_s, forward_backward_s, optimizer_s; /* of the best step */
    double gemm_s;                                  /* the best time of the products alone */
    double step_cpu_s, gemm_cpu_s;                  /* least processor time: what a busy machine disturbs little */
    double flops, gemm_flops;
    double fma_peak;     /* operations a second */
    double product_peak; /* of products in the dtype */
    double loss;
    int64_t peak_memory, predicted_memory; /* bytes */
    int64_t parameters;
    char kernels[256];
    step_node *nodes; /* slowest first */
    int node_count;
} step_result;

/* Gradients are f32 whatever the parameters are; weights are packed once if there are several microbatches. */
sl_program_options step_program_options(const step_options *options);

SL_MUST_CHECK sl_status step_measure(const step_options *options, step_result *out);
void step_result_clear(step_result *result);

/* ---- The matrix products of the linear layers (step_gemm.c) --------------------------------- */

typedef struct step_gemms step_gemms;

/* Products over `rows` tokens with the weights and gradients of the runtime as operands, and buffers of their own for
 * what flows between layers. */
SL_MUST_CHECK sl_status step_gemms_create(const step_options *options, sl_device *device, const sl_runtime *runtime,
                                          step_gemms **out);
void step_gemms_destroy(step_gemms *gemms); /* NULL is fine */
double step_gemms_flops(const step_gemms *gemms);
/* All of one step: forward, gradient of the input, gradient of the weight, layer by layer and back. */
SL_MUST_CHECK sl_status step_gemms_run(const step_gemms *gemms, sl_stream *stream);

/* ---- Where the time goes (step_nodes.c) ------------------------------------------------------ */

/* Runs forward and backward of the one stage once more, for one microbatch, without the runtime, and adds the seconds of each node to
 * seconds. Parameters are the runtime's; its gradients are overwritten. */
SL_MUST_CHECK sl_status step_time_nodes(const step_options *options, const sl_partition *partition, sl_device *device,
                                        const sl_runtime *runtime, const sl_arg args[2], double *seconds);

#endif
