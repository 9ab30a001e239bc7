/* What `sluice bench step` measures (step_measure.c); step.c reads the options and prints. */
#ifndef SLUICE_BENCH_STEP_MEASURE_H
#define SLUICE_BENCH_STEP_MEASURE_H

#include <sluice/nn.h>
#include <sluice/optim.h>
#include <sluice/runtime.h>

typedef struct SL_NAMED_FIELDS step_options {
    const sl_model_family *family; /* gpt2 or llama */
    int64_t batch, seq, embd, layers, heads, vocab;
    int64_t kv_heads, inner; /* llama: heads of keys and values, width of the MLP; gpt2: not used */
    int microbatches, threads, repeats;
    const char *device; /* as sl_device_open takes it */
    bool profile;       /* measure every instruction as well */
    bool unfused;       /* plain ops alone */
    bool unpacked;      /* weights are packed anew for every microbatch */
    sl_dtype dtype;     /* of parameters and activations: f32, or bf16 with f32 gradients and master weights */
} step_options;

typedef struct step_node {
    const char *name; /* owned by the result */
    double seconds;   /* forward and backward, one step */
} step_node;

/* All instructions of a step that are alike: the same op on the same shapes. */
typedef struct step_op {
    char name[96];
    sl_op op;
    int calls;
    double seconds;
    sl_cost cost;
} step_op;

typedef struct step_result {
    double step_s, forward_backward_s, optimizer_s; /* of the best step */
    double median_s;                                /* of all steps: a GPU at its power limit has few of the best */
    double gemm_s;                                  /* the best time of the products alone */
    double step_cpu_s, gemm_cpu_s;                  /* least processor time: what a busy machine disturbs little */
    double flops, gemm_flops;
    double fma_peak;     /* operations a second */
    double product_peak; /* of products in the dtype */
    /* On the processor: what all threads reach together between the steps, for as long as a step takes. */
    double fma_sustained, product_sustained;
    /* Clocks in an unknown unit: the highest after bursts of multiply-adds, the mean after products. */
    double burst_clock, product_clock;
    double stolen;         /* share of the processors' time that a hypervisor gave to others during the steps */
    int64_t interruptions; /* involuntary switches of this process's threads during the steps */
    double loss;
    int64_t peak_memory, predicted_memory; /* bytes */
    int64_t parameters;
    char kernels[256];
    /* With a profile: */
    bool has_profile;
    double copy_rate; /* bytes a second, read and written, that a large copy reaches */
    step_node *nodes; /* slowest first */
    int node_count;
    step_op *ops; /* slowest first */
    int op_count;
} step_result;

/* Gradients are f32 whatever the parameters are; weights are packed once if there are several microbatches. */
sl_program_options step_program_options(const step_options *options);

SL_MUST_CHECK sl_status step_measure(const step_options *options, step_result *out);
void step_result_clear(step_result *result);

/* ---- The matrix products of the linear layers (step_gemm.c) --------------------------------- */

typedef struct step_gemms step_gemms;

/* Products over the rows of a microbatch with the weights and gradients of the runtime as operands, and buffers of their
 * own for what flows between layers. program: the one stage's, which says what the layers are. */
SL_MUST_CHECK sl_status step_gemms_create(const step_options *options, sl_device *device,
                                          const sl_stage_program *program, const sl_runtime *runtime, step_gemms **out);
void step_gemms_destroy(step_gemms *gemms); /* NULL is fine */
double step_gemms_flops(const step_gemms *gemms);
/* All of one step: forward, gradient of the input, gradient of the weight, layer by layer and back. */
SL_MUST_CHECK sl_status step_gemms_run(const step_gemms *gemms, sl_stream *stream);

/* ---- Where the time goes (step_profile.c) ---------------------------------------------------- */

/* Runs forward and backward of the one stage a few times more, without the runtime, with an event before every
 * instruction, then the optimizer, and fills the result's nodes and ops. Parameters are the runtime's; its gradients
 * are overwritten. Nodes and ops are those of a whole step: of all microbatches. */
SL_MUST_CHECK sl_status step_profile(const step_options *options, const sl_graph *graph,
                                     const sl_stage_program *program, sl_device *device, const sl_runtime *runtime,
                                     sl_optimizer *optimizer, const sl_arg args[2], step_result *result);

/* Seconds of a profiled step in products, in attention and in all else. */
typedef struct step_shares {
    double gemm, attention, other;
} step_shares;
step_shares step_profile_shares(const step_result *result);
/* Brings the times of the profile to the clock of the measured step: warm_s is a step as the device ran right after the
 * profile. What is left of the step is the time between its kernels. */
void step_profile_scale(double warm_s, step_result *result);
/* Seconds that the ops would take at the peak of products or at the speed of a copy, whichever takes longer. */
double step_op_limit(const step_result *result, const step_op *op);

#endif
