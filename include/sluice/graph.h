/* Graphs: a model as SSA nodes with shapes, cut into stages; per stage the programs F, I, W and B with every buffer
 * placed before the first step. Running a program allocates, hashes and searches nothing. */
#ifndef SLUICE_GRAPH_H
#define SLUICE_GRAPH_H

#include <sluice/kernel.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Graph ----------------------------------------------------------------------------------- */

typedef struct sl_graph sl_graph; /* opaque; used by one thread at a time while it is built, immutable once finished */

/* A value of one graph: an input, a parameter, a constant, a state buffer or an output of a node. */
typedef struct sl_value {
    int id; /* 0: none (an optional argument left out); -1: what a failed call returns */
} sl_value;

#ifdef __cplusplus
#define SL_NO_VALUE (sl_value{ 0 })
#else
#define SL_NO_VALUE ((sl_value){ 0 })
#endif

SL_API SL_MUST_CHECK sl_status sl_graph_create(sl_graph **out);
SL_API void sl_graph_destroy(sl_graph *graph); /* NULL is fine; partitions and programs made from it do not need it */

/* Building calls do not return a status: the first error is kept, with the node and the shapes in its message, and
 * every later call is a no-op that returns an invalid value. sl_graph_finish reports it. */

/* Puts "name." before the names of all that follows until the pop: push "h.3", push "mlp", param "c_fc.weight" makes
 * "h.3.mlp.c_fc.weight". What lies between push and pop is the module of that path. */
SL_API void sl_graph_push(sl_graph *graph, const char *name);
SL_API void sl_graph_push_index(sl_graph *graph, const char *name, int index); /* "name.index" */
SL_API void sl_graph_pop(sl_graph *graph);

/* Fixes the graph: reports the first error, an empty graph, a graph without outputs, a scope left open. */
SL_API SL_MUST_CHECK sl_status sl_graph_finish(sl_graph *graph);
/* Parameters that are not trained: they get no gradient, and nothing is differentiated that only they need. A name that
 * the graph does not have is an error. Before the graph is cut. */
SL_API SL_MUST_CHECK sl_status sl_graph_freeze(sl_graph *graph, const char *const *names, int count);
/* The first error so far, SL_OK if there is none; for builders that want to stop early. */
SL_API sl_status sl_graph_status(const sl_graph *graph);

/* A tensor that the user hands in for every microbatch (tokens, targets). Its name does not take the scope's prefix. */
SL_API sl_value sl_graph_input(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims);
/* The same, and its gradient is wanted: the stage that uses it has it among its input_grads, and a step of a runtime
 * hands it out (sl_step.input_grads). */
SL_API sl_value sl_graph_input_differentiable(sl_graph *graph, const char *name, sl_dtype dtype, int rank,
                                              const int64_t *dims);

typedef enum sl_init_kind { SL_INIT_ZEROS, SL_INIT_ONES, SL_INIT_NORMAL, SL_INIT_UNIFORM } sl_init_kind;

/* How a parameter starts. Only recorded here; whoever owns the parameters applies it. */
typedef struct sl_init {
    sl_init_kind kind;
    double scale; /* NORMAL: standard deviation; UNIFORM: -scale..scale */
} sl_init;

/* A trained tensor, f32 in a graph by default. The same full name asked for twice with the same shape is the same
 * parameter (tied). */
SL_API sl_value sl_graph_param(sl_graph *graph, const char *name, int rank, const int64_t *dims, sl_init init);
SL_API void sl_graph_set_param_dtype(sl_graph *graph, sl_dtype dtype); /* of those that follow; floating */
/* Fixed data; the graph copies it. */
SL_API sl_value sl_graph_constant(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims,
                                  const void *data);
/* A buffer that outlives a run and that nodes may write (caches). Such graphs have no backward. */
SL_API sl_value sl_graph_state(sl_graph *graph, const char *name, sl_dtype dtype, int rank, const int64_t *dims);

/* Names a result. Its name does not take the scope's prefix. */
SL_API void sl_graph_output(sl_graph *graph, const char *name, sl_value value);
/* The output that is differentiated: one floating scalar, output "loss". In a graph without one every floating output
 * is, and the caller hands in a gradient for each. */
SL_API void sl_graph_loss(sl_graph *graph, sl_value value);
/* A place where SL_SPLIT_MARKS cuts: between the node before and the node after. */
SL_API void sl_split_mark(sl_graph *graph);

SL_API sl_shape sl_value_shape(const sl_graph *graph, sl_value value); /* rank -1 for no or an invalid value */
SL_API sl_dtype sl_value_dtype(const sl_graph *graph, sl_value value); /* SL_DTYPE_COUNT likewise */

/* ---- Operations ------------------------------------------------------------------------------ */

/* A node is named for its scope and op ("h.3.mlp.gelu_tanh"), with _2, _3 if the name is taken. Shapes are the
 * kernels' (kernel.h). Negative dims count from the end. */

SL_API sl_value sl_linear(sl_graph *g, sl_value x, sl_value w, sl_value b); /* x[..,K] w[N,K] b?[N] -> [..,N] */
SL_API sl_value sl_affine(sl_graph *g, sl_value x, sl_value w, sl_value b); /* the same with w[K,N] (GPT-2's Conv1D) */
SL_API sl_value sl_matmul(sl_graph *g, sl_value a, sl_value b, bool transpose_a, bool transpose_b);
SL_API sl_value sl_layernorm(sl_graph *g, sl_value x, sl_value w, sl_value b, double eps); /* w, b optional */
SL_API sl_value sl_rmsnorm(sl_graph *g, sl_value x, sl_value w, double eps);               /* w optional */

SL_API sl_value sl_gelu_tanh(sl_graph *g, sl_value x);
SL_API sl_value sl_gelu_erf(sl_graph *g, sl_value x);
SL_API sl_value sl_silu(sl_graph *g, sl_value x);
SL_API sl_value sl_relu(sl_graph *g, sl_value x);
SL_API sl_value sl_tanh(sl_graph *g, sl_value x);
SL_API sl_value sl_exp(sl_graph *g, sl_value x);
SL_API sl_value sl_logarithm(sl_graph *g, sl_value x); /* natural; sl_log writes log lines */
SL_API sl_value sl_neg(sl_graph *g, sl_value x);
SL_API sl_value sl_scale(sl_graph *g, sl_value x, double alpha, double beta); /* alpha * x + beta */
SL_API sl_value sl_dropout(sl_graph *g, sl_value x, double p);                /* x[N,..]: dim 0 counts samples */
SL_API sl_value sl_cast(sl_graph *g, sl_value x, sl_dtype dtype);

SL_API sl_value sl_swiglu(sl_graph *g, sl_value gate, sl_value up);
SL_API sl_value sl_softmax(sl_graph *g, sl_value x);
/* q[B,T,H,D], k and v [B,S,Hkv,D] -> [B,T,H,D]; scale 0 means 1/sqrt(D) */
SL_API sl_value sl_attention(sl_graph *g, sl_value q, sl_value k, sl_value v, double scale, bool causal);
/* All that attention can do; zero is the default of all. */
typedef struct SL_NAMED_FIELDS sl_attention_options {
    double scale; /* 0: 1/sqrt(D) */
    bool causal;
    double dropout; /* in training: of the weights, as sl_dropout would drop the tensor [B,H,T,S] */
    int64_t window; /* a query sees itself and the window - 1 positions before it; 0: all. Needs causal */
    double softcap; /* a score s becomes softcap * tanh(s / softcap); 0: it stays */
    /* i32[B,T]: places in documents that share a row. Query t of row b sees no key before t - positions[b,t], the start
     * of its document. SL_NO_VALUE: a row is one document. Needs causal, and as many keys as queries. */
    sl_value positions;
} sl_attention_options;
SL_API sl_value sl_attention_with(sl_graph *g, sl_value q, sl_value k, sl_value v, const sl_attention_options *options);
/* Inference with caches (states [B,S,Hkv,D]) and position, an i32 scalar input: no gradient. It is causal and drops
 * nothing; options may be NULL. */
SL_API sl_value sl_attention_cached(sl_graph *g, sl_value q, sl_value k, sl_value v, sl_value cache_k, sl_value cache_v,
                                    sl_value position, const sl_attention_options *options);
/* x[B,T,H,D], cos and sin [P,R], positions? i32[T] or [B,T]; the first 2R elements of D are rotated */
SL_API sl_value sl_rope(sl_graph *g, sl_value x, sl_value cos, sl_value sin, sl_value positions);
SL_API sl_value sl_embedding(sl_graph *g, sl_value ids, sl_value table);
/* Mean over the targets that are not ignore_index. logits[..,V], targets[..] -> [] */
SL_API sl_value sl_cross_entropy(sl_graph *g, sl_value logits, sl_value targets, int64_t ignore_index);

SL_API sl_value sl_add(sl_graph *g, sl_value a, sl_value b); /* numpy's broadcasting */
SL_API sl_value sl_sub(sl_graph *g, sl_value a, sl_value b);
SL_API sl_value sl_mul(sl_graph *g, sl_value a, sl_value b);
SL_API sl_value sl_div(sl_graph *g, sl_value a, sl_value b);

/* dim_count 0 reduces over all dims. */
SL_API sl_value sl_sum(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim);
SL_API sl_value sl_mean(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim);
SL_API sl_value sl_max(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim);

SL_API sl_value sl_concat(sl_graph *g, const sl_value *values, int count, int dim);
SL_API sl_value sl_copy(sl_graph *g, sl_value x);

/* Views: they cost nothing if the strides allow it (a reshape that they forbid becomes a copy). */
SL_API sl_value sl_reshape(sl_graph *g, sl_value x, int rank, const int64_t *dims); /* one dim may be -1 */
SL_API sl_value sl_permute(sl_graph *g, sl_value x, const int *order);              /* as many as x has dims */
SL_API sl_value sl_transpose(sl_graph *g, sl_value x, int dim_a, int dim_b);
SL_API sl_value sl_slice(sl_graph *g, sl_value x, int dim, int64_t start, int64_t stop);
SL_API sl_value sl_expand(sl_graph *g, sl_value x, int rank, const int64_t *dims);
/* Parts of the given sizes, which must add up to the dim; fills parts[0..count). */
SL_API void sl_split(sl_graph *g, sl_value x, int dim, const int64_t *sizes, int count, sl_value *parts);

/* ---- Looking at a graph ---------------------------------------------------------------------- */

typedef enum sl_phase { SL_PHASE_F, SL_PHASE_I, SL_PHASE_W, SL_PHASE_B, SL_PHASE_COUNT } sl_phase;
SL_API const char *sl_phase_name(sl_phase phase); /* "F" */

SL_API int sl_graph_node_count(const sl_graph *graph);
SL_API const char *sl_graph_node_name(const sl_graph *graph, int node); /* full name; borrowed */
SL_API const char *sl_graph_node_op(const sl_graph *graph, int node);   /* "linear"; static */
/* Of one microbatch; forward and both gradients. Views cost nothing. */
SL_API sl_cost sl_graph_node_cost(const sl_graph *graph, int node);

typedef struct sl_param_info {
    const char *name; /* full name; borrowed from the graph */
    sl_dtype dtype;
    sl_shape shape;
    sl_init init;
} sl_param_info;

SL_API bool sl_graph_has_input(const sl_graph *graph, const char *name);
SL_API int sl_graph_param_count(const sl_graph *graph);
SL_API sl_param_info sl_graph_param_at(const sl_graph *graph, int index); /* in the order of their first call */

/* One line a node: "%12 = gelu_tanh(%11) -> f32 [2, 8, 64]  # h.0.mlp.gelu_tanh". Errors show in ferror(file). */
SL_API void sl_graph_dump(const sl_graph *graph, FILE *file);

/* ---- Partition ------------------------------------------------------------------------------- */

typedef enum sl_split_kind {
    SL_SPLIT_WHOLE,  /* one stage */
    SL_SPLIT_POINTS, /* before or after named modules */
    SL_SPLIT_MARKS,  /* at sl_split_mark */
    SL_SPLIT_NODES,  /* at nodes given by index */
    SL_SPLIT_EQUAL   /* contiguous stages with the least possible maximum cost */
} sl_split_kind;

typedef struct sl_split_point {
    const char *module; /* path of a scope, "h.3", or the full name of a node */
    bool after;         /* the next stage starts after its last node; else before its first */
} sl_split_point;

/* How to cut; zero is one stage. Everything is borrowed for the call. */
typedef struct SL_NAMED_FIELDS sl_split_spec {
    sl_split_kind kind;
    const sl_split_point *points; /* POINTS: in any order */
    int point_count;
    const int *nodes; /* NODES: first node of stage 1, 2, ..; rising */
    int node_count;
    int stages; /* EQUAL: how many */
    /* EQUAL: seconds of each node, forward and backward, as measured (sl_bindings.node_seconds) or otherwise known;
     * NULL takes the model flops / flops_per_s + bytes / bytes_per_s. A stage's cost also has its edges' bytes (both
     * ways) / link_bytes_per_s. Rates of 0 mean 1e11, 1e10 and 1e10. */
    const double *node_costs;
    double flops_per_s, bytes_per_s, link_bytes_per_s;
} sl_split_spec;

typedef struct sl_partition sl_partition; /* opaque, immutable */

/* A value that one stage makes and another uses. A differentiable value with several users is passed from user to
 * user in stage order (s -> t -> u), so that its gradient adds up along the way back in the order of the uncut graph:
 * an output has at most one differentiable edge, and nobody sums gradients between stages. Users from which no gradient
 * comes back get the value from the nearest stage before them that has it, by further edges of that output. */
typedef struct sl_value_edge {
    const char *name; /* of the value */
    int from, to;     /* stages; from < to */
    int output;       /* index among the outputs of `from` */
    int input;        /* index among the inputs of `to` */
    bool differentiable;
    size_t bytes; /* of one microbatch, each way */
} sl_value_edge;

/* A parameter that several stages use: each has its own copy and gradient, to be kept equal by whoever owns them (the
 * gradient of the parameter is the sum over the stages in stage order). */
typedef struct sl_tied_param {
    const char *name;
    const int *stages; /* rising */
    int stage_count;   /* at least 2 */
} sl_tied_param;

/* A tensor from outside the pipeline, and the stages that use it. */
typedef struct sl_root_input {
    const char *name;
    sl_dtype dtype;
    sl_shape shape;
    const int *stages;
    int stage_count; /* 0 if nothing uses it */
    bool differentiable;
} sl_root_input;

/* The result does not borrow from the graph. Fails, naming the module or node, if a point does not exist, if a stage
 * would be empty, or if nothing is left to cut. */
SL_API SL_MUST_CHECK sl_status sl_graph_partition(const sl_graph *graph, const sl_split_spec *spec, sl_partition **out);
SL_API void sl_partition_destroy(sl_partition *partition); /* NULL is fine; programs made from it do not need it */

SL_API int sl_partition_stage_count(const sl_partition *partition);
/* First node of each stage but the first: as SL_SPLIT_NODES they cut the same model, built for another batch size, at
 * the same places. Borrowed; *count is stages - 1. */
SL_API const int *sl_partition_cuts(const sl_partition *partition, int *count);
SL_API const sl_value_edge *sl_partition_edges(const sl_partition *partition,
                                               int *count); /* by from, to, name's position */
SL_API const sl_tied_param *sl_partition_tied_params(const sl_partition *partition, int *count);
SL_API const sl_root_input *sl_partition_root_inputs(const sl_partition *partition, int *count);
/* Sum over the stage's nodes of sl_graph_node_cost. */
SL_API sl_cost sl_partition_stage_cost(const sl_partition *partition, int stage);
SL_API void sl_partition_dump(const sl_partition *partition, FILE *file);
/* Graphviz; stages (partition may be NULL) and modules are clusters. */
SL_API void sl_graph_dump_dot(const sl_graph *graph, const sl_partition *partition, FILE *file);

/* ---- Stage programs -------------------------------------------------------------------------- */

/* Opaque, immutable. May run on several threads at once, each on a stream of a device of its own, of the same kind and
 * with as many threads as the one it was made for. */
typedef struct sl_stage_program sl_stage_program;

/* Whether fused ops take the place of plain ones (src/graph/fuse.c has the rules); changes no bit. */
typedef enum sl_fusion {
    SL_FUSION_AUTO, /* on a GPU */
    SL_FUSION_NONE,
    SL_FUSION_ALL
} sl_fusion;

typedef struct SL_NAMED_FIELDS sl_program_options {
    bool forward_only; /* F alone: nothing is saved, output_grads and input_grads are empty */
    /* Modules whose activations F drops and I or B computes again just before their gradients; W never recomputes.
     * Paths of scopes; a component "*" matches any one ("h.*"). Not one match is an error. */
    const char *const *recompute;
    int recompute_count;
    /* Element type of all parameters' gradients; NULL: each gradient has that of its parameter. f32 gradients of bf16
     * parameters add up over microbatches without being rounded to bf16 in between. */
    const sl_dtype *grad_dtype;
    /* Products can use parameters that sl_stage_program_pack has packed for them, once for all microbatches that see the
     * same values. Takes packed_bytes of memory, one to three times as much as the parameters; changes no bit. */
    bool pack_weights;
    /* B's gradients of the weights of linear layers that take at least so many operations can run beside the rest of B
     * (sl_bindings.beside); 0: none. What they read stays in memory for longer; changes no bit. */
    double beside_flops;
    sl_fusion fusion;
} sl_program_options;

/* A buffer outside the program: contiguous, on a SL_DEVICE_ALIGNMENT boundary if it is large. */
typedef struct sl_port {
    const char *name; /* of the value, parameter, input or output */
    sl_dtype dtype;
    sl_shape shape;
    size_t bytes;
    /* Its last reader or writer: the owner keeps it until that phase has run (until B if B runs in place of I and
     * W). params, grads: W. */
    sl_phase last_use;
    /* input: input_grads[i] is written, its gradient; output: output_grads[i] is read. Elsewhere the pointer is not
     * looked at and may be NULL. */
    bool has_grad;
    bool root;   /* input: from outside the pipeline; output: a named output of the graph (the loss among them) */
    bool frozen; /* params: has no gradient (sl_graph_freeze) */
    /* params: one product uses it with the parameter before it (a concat of both): it must begin where that one ends, and
     * its gradient, too. In the order of the ports, each at the next multiple of SL_DEVICE_ALIGNMENT, they do. */
    bool follows;
    sl_init init;           /* params */
    sl_dtype grad_dtype;    /* params: of the gradient, which has the same shape */
    size_t grad_bytes;      /* params: of the gradient */
    int output_of;          /* input that comes along an edge: the stage that makes it; else -1 */
    sl_phase grad_last_use; /* output with has_grad: last reader of output_grads[i], I or W */
} sl_port;

/* All that is known before running. Borrowed from the program. */
typedef struct sl_program_info {
    int stage, stage_count;
    const sl_port *params; /* grads[] has one entry for each, with the port's grad_dtype; NULL if frozen */
    int param_count;
    const sl_port *inputs;
    int input_count;
    const sl_port *outputs;
    int output_count;
    int loss; /* index of the output that is the loss; -1 if it is in another stage */
    const sl_port *states;
    int state_count;

    /* Bytes of the regions below; multiples of SL_DEVICE_ALIGNMENT, exact. */
    size_t saved_i_bytes, saved_w_bytes, kept_bytes;
    size_t scratch_bytes[SL_PHASE_COUNT];
    size_t constant_bytes;
    size_t param_bytes, grad_bytes; /* sums over params */
    size_t packed_bytes;            /* 0 without pack_weights, or if the device's products have no use for it */

    int instruction_count[SL_PHASE_COUNT];
    sl_cost cost[SL_PHASE_COUNT];
} sl_program_info;

/* A second stream, for instructions that nobody waits for soon. */
#define SL_BESIDE_EVENTS 8
typedef struct sl_beside {
    sl_stream *stream;
    sl_event *parted;                 /* what it waits for */
    sl_event *done[SL_BESIDE_EVENTS]; /* what others wait for, in turn */
} sl_beside;

/* Memory and context of one run. The program reads the arrays' pointers during the call only. */
typedef struct sl_bindings {
    const void *const *params;
    void *const *grads; /* W and B add to them */
    /* W and B overwrite the gradients instead, as if they were zero before: for the first microbatch of a step. Cheaper
     * than zeroing them; the sign of a zero may differ. */
    bool overwrite_grads;
    const void *const *inputs;
    void *const *outputs;            /* written by F, read until their last_use */
    const void *const *output_grads; /* the loss' is the seed: 1, or a loss scale; never written */
    void *const *input_grads;        /* overwritten by I or B */
    void *const *states;
    const void *constants; /* constant_bytes, filled by sl_stage_program_constants */
    /* packed_bytes that all microbatches share, filled by sl_stage_program_pack; NULL: every product packs its parameter
     * again. */
    void *packed;
    /* Regions of one microbatch: saved_i is written by F and dead after I, saved_w is written by F (I may change it)
     * and dead after W, kept is written by I and dead after W (B does not use it). scratch is dead between calls. */
    void *saved_i, *saved_w, *kept, *scratch;
    sl_rng rng;
    const sl_rng *step_rng; /* as sl_kernel_call's */
    /* Optional: seconds spent are added to element n for node n of the graph; synchronizes after every instruction. */
    double *node_seconds;
    /* Optional: events of the device, one recorded before each instruction of the phase and one after the last
     * (instruction_count + 1). What lies between two of them is the time of an instruction; nothing is synchronized. */
    sl_event *const *events;
    /* Optional, for B of a program whose options say so; not with the two before. When B has been given to its stream, that
     * waits for all of it. */
    const sl_beside *beside;
} sl_bindings;

/* Derives the programs of one stage for the kernels of the device. options may be NULL. */
SL_API SL_MUST_CHECK sl_status sl_stage_program_create(const sl_partition *partition, int stage, sl_device *device,
                                                       const sl_program_options *options, sl_stage_program **out);
SL_API void sl_stage_program_destroy(sl_stage_program *program); /* NULL is fine */
SL_API const sl_program_info *sl_stage_program_info(const sl_stage_program *program);

/* Writes the constants, host memory of constant_bytes; the caller copies them to the device once. */
SL_API void sl_stage_program_constants(const sl_stage_program *program, void *host);

/* Packs the parameters for the phase, F or I (B is as I, W needs none): before its first run after the parameters have
 * changed, with the same packed and params in the bindings; I needs both. */
SL_API SL_MUST_CHECK sl_status sl_stage_program_pack(const sl_stage_program *program, sl_phase phase, sl_stream *stream,
                                                     const sl_bindings *bindings);

/* Gives one phase of one microbatch to the stream: F, then B, or I and later W. Any number of microbatches may be in
 * flight, each with its own regions and ports. */
SL_API SL_MUST_CHECK sl_status sl_stage_program_run(const sl_stage_program *program, sl_phase phase, sl_stream *stream,
                                                    const sl_bindings *bindings);

/* Ports, regions and the instructions of every phase, as text. */
SL_API void sl_stage_program_dump(const sl_stage_program *program, FILE *file);

#ifdef __cplusplus
}
#endif
#endif
