/* Runtime: stages joined with a schedule and a group of ranks, compiled once, then run step by step. All that can be
 * known before the first step is computed in sl_runtime_create; a step allocates nothing. */
#ifndef SLUICE_RUNTIME_H
#define SLUICE_RUNTIME_H

#include <sluice/comm.h>
#include <sluice/pipeline.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Stages ---------------------------------------------------------------------------------- */

/* A part of the model. It belongs to one runtime at a time and keeps its parameters, their gradients included, from one
 * runtime to the next: of another schedule, another number of microbatches, for training or evaluation alone. */
typedef struct sl_stage sl_stage;

/* One microbatch at one stage. Pointers are valid for the call; memory is the runtime's device's. */
typedef struct sl_stage_call {
    int stage, microbatch;
    int64_t step;
    sl_phase phase;
    bool training; /* false in sl_runtime_eval */
    const sl_view *inputs;
    int input_count;
    /* F fills the given memory, or sets an entry to a view of its own: that is compared with what was agreed (shape,
     * dtype, stride) and copied. */
    sl_view *outputs;
    int output_count;
    const sl_view *output_grads; /* I, B and W read; data NULL if none flows back */
    const sl_view *input_grads;  /* I and B overwrite; data NULL if nobody wants it */
    const sl_view *params;
    const sl_view *grads; /* W and B add to them */
    int param_count;
    void *saved;     /* saved_bytes of this microbatch, from F to its W or B */
    void *step_user; /* sl_step.user */
    sl_stream *stream;
    sl_rng rng;
} sl_stage_call;

typedef sl_status (*sl_stage_fn)(void *user, const sl_stage_call *call);

typedef enum sl_last_use { SL_LAST_USE_BACKWARD, SL_LAST_USE_F, SL_LAST_USE_I } sl_last_use;

/* A value that enters or leaves a stage. An input gets the output of the same name of the nearest earlier stage that
 * has one; if none has, it is a root input and comes with the batch. */
typedef struct sl_stage_value {
    const char *name;
    sl_meta meta; /* of one microbatch, contiguous; shape.rank -1: the maker's (input), or from infer */
    bool no_grad; /* no gradient flows along it; integers never have one */
    /* Output: an f32 scalar, the mean over the microbatch's samples; its output_grad is the seed. Training without any
     * loss is refused if an output that no stage uses has a gradient. */
    bool loss;
    sl_last_use last_use;      /* when this stage reads it last; earlier frees memory sooner. Default: W or B */
    sl_last_use grad_last_use; /* output: when its output_grad is read last */
} sl_stage_value;

typedef struct sl_stage_param {
    const char *name; /* the same name in two stages: tied; their gradients are summed in stage order */
    sl_meta meta;     /* contiguous */
    void *data;       /* NULL: the runtime allocates it; else the caller's, of the runtime's device */
    void *grad;       /* likewise */
    bool frozen;      /* has no gradient */
} sl_stage_param;

/* A stage of the user's own. Everything is borrowed for the call except user. */
typedef struct SL_NAMED_FIELDS sl_stage_options {
    int index; /* 0 is the first */
    const sl_stage_value *inputs;
    int input_count;
    const sl_stage_value *outputs;
    int output_count;
    const sl_stage_param *params;
    int param_count;
    size_t saved_bytes;
    sl_stage_fn forward;
    /* Training needs backward, or the two others, or all three: a schedule with I and W needs the two, and for a B
     * without backward they run one after the other. */
    sl_stage_fn backward_input;
    sl_stage_fn backward_weight;
    sl_stage_fn backward;
    /* Optional: metadata of the outputs from that of the inputs; needed if a meta is left open or if microbatches
     * differ in size. */
    sl_status (*infer)(void *user, const sl_meta *inputs, int input_count, sl_meta *outputs, int output_count);
    void *user;
    /* The callbacks do nothing but give work to the call's stream, and the same work in every step. A GPU then captures it
     * and does it again without calling them: each is called in the first two steps alone. */
    bool replays;
} sl_stage_options;

SL_API SL_MUST_CHECK sl_status sl_stage_create(const sl_stage_options *options, sl_stage **out);

/* A stage of a partitioned graph. Uneven microbatches: partitions[0] is built for the larger, partitions[1] for the
 * smaller size, cut at the same places; else one partition. The partitions are not needed afterwards. */
SL_API SL_MUST_CHECK sl_status sl_stage_build(const sl_partition *const *partitions, int partition_count, int index,
                                              sl_device *device, const sl_program_options *options, sl_stage **out);
SL_API void sl_stage_destroy(sl_stage *stage); /* NULL is fine; after its runtime and before its device closes */

/* Lets a stage that has had no runtime yet work on the parameters and gradients of one that has: the same stage built
 * for another batch or sequence size, or to evaluate alone. Both may have their runtimes at the same time, which then run
 * steps in turn. Their parameters must be the same in names, shapes and order, and a runtime takes all stages that lie
 * together with their partners or none. */
SL_API SL_MUST_CHECK sl_status sl_stage_share_params(sl_stage *stage, const sl_stage *from);

SL_API int sl_stage_index(const sl_stage *stage);
/* What a pipeline must know of it, for sl_pipeline_compile(). Borrowed from the stage until the next call. */
SL_API void sl_stage_describe(sl_stage *stage, sl_stage_desc *out);
/* Runs in place of the stage's own weight gradient: once per microbatch, in its W or, after the input gradient, in its
 * B. Inputs, outputs and their gradients are kept for it, whatever the stage itself reads last. runner NULL takes it
 * away. Only while no runtime has the stage. */
SL_API SL_MUST_CHECK sl_status sl_stage_set_weight_runner(sl_stage *stage, sl_stage_fn runner, void *user);
/* Ties the parameter to another of this or another stage: they share their values, and after a step the gradient of
 * each is the sum over all, in the order of the stages and of the parameters in them. By default parameters of the same
 * name in several stages are tied. Only while no runtime has the stage. */
SL_API SL_MUST_CHECK sl_status sl_stage_tie_param(sl_stage *stage, const char *name, const char *tied_to);
/* FLOPs and bytes of one phase of the larger microbatch; zero for a stage of callbacks. */
SL_API sl_cost sl_stage_phase_cost(const sl_stage *stage, sl_phase phase);
/* Instructions that the phase gives to its stream, most of them one kernel; 0 for a stage of callbacks. */
SL_API int sl_stage_phase_launches(const sl_stage *stage, sl_phase phase);
/* Memory of the caller's for a parameter and its gradient (NULL: the runtime's). Only while no runtime has the stage. */
SL_API SL_MUST_CHECK sl_status sl_stage_bind_param(sl_stage *stage, const char *name, void *data, void *grad);
/* State buffers of a stage of a graph (sl_graph_state), such as a key/value cache; borrowed from the stage. The
 * schedule of a stage that has any must have one microbatch. */
SL_API const sl_port *sl_stage_states(const sl_stage *stage, int *count);
/* Memory of the caller's for each of them, of the runtime's device. Needed before the first step; may be changed between
 * steps. The list is borrowed until the next call. Stages of two runtimes may have the same memory. */
SL_API void sl_stage_bind_states(sl_stage *stage, void *const *states);

/* ---- Runtime --------------------------------------------------------------------------------- */

typedef struct sl_runtime sl_runtime; /* one rank's part of a pipeline; used by one thread at a time */

typedef enum sl_loss_mean {
    SL_MEAN_SAMPLES,      /* every sample weighs the same: a microbatch weighs its share of the batch */
    SL_MEAN_MICROBATCHES, /* every microbatch weighs the same, whatever its size */
    SL_MEAN_SUM           /* weight 1: losses and gradients are summed */
} sl_loss_mean;

/* What happens to the parameters of replicas before the first step, when the caller has set or loaded them. */
typedef enum sl_replica_params {
    SL_REPLICAS_COMPARE,   /* their hashes must be the same, frozen ones too; else the step is refused and says which */
    SL_REPLICAS_BROADCAST, /* they become those of replica 0 */
    SL_REPLICAS_TRUST      /* nothing */
} sl_replica_params;

/* A thread of the runtime's own that moves posted collectives along while the rank computes in host memory. Without it
 * they go on between actions and while the rank waits. The bits are the same. */
typedef enum sl_helper {
    SL_HELPER_AUTO, /* if this rank may use more cores than its device has threads, and the machine has more than all ranks
                       on it have */
    SL_HELPER_OFF,
    SL_HELPER_ON /* unless the transport is for one thread alone (mpi) */
} sl_helper;

/* How gradients of replicas are added. */
typedef enum sl_sum_mode {
    SL_SUM_EXACT, /* in the order of the replicas: the same bits on every transport and device */
    SL_SUM_FAST /* in any order, if that is faster: NCCL's own reductions. Everything else adds in order all the same */
} sl_sum_mode;

/* Zero is the default of every field except group, device, schedule and stages. Lists are borrowed for the call; the
 * group, the device, the stages and user pointers must outlive the runtime. */
typedef struct SL_NAMED_FIELDS sl_runtime_options {
    sl_group *group;    /* the ranks of this pipeline, in the order of the schedule's ranks */
    sl_group *replicas; /* ranks that hold the same stages: REDUCE_GRAD takes the mean over them; NULL: none */
    sl_replica_params replica_params;
    sl_device *device;           /* of this rank */
    const sl_schedule *schedule; /* lowered if it is not yet; forward-only allows sl_runtime_eval alone */
    sl_stage *const *stages;     /* of this rank, in any order: those that the schedule gives it */
    int stage_count;
    const sl_arg_spec *args; /* those that differ from: split along dim 0 */
    int arg_count;
    /* As in sl_pipeline_options. The bits are the same in all modes, except that with SL_SHARD_FULL each partial step is
     * summed over the replicas by itself. */
    sl_shard_mode shard;
    int shard_group, unsharded_stages; /* likewise */
    size_t offload_bytes;              /* likewise; ranks may have different ones */
    bool staged_messages; /* copies messages also if stages could work on them in place; on all ranks alike */
    sl_sum_mode sum;      /* over the replicas */
    sl_helper helper;     /* for what is posted to the replicas */
    sl_loss_mean mean;
    bool watch_loss;  /* a loss that is not finite is an error */
    bool local_loss;  /* losses stay on the rank that has them: no message at the end of a step */
    int trace_events; /* actions and waits that the trace keeps, the newest; 0: no trace */
    /* Seconds that an action may take, its waits for other ranks not counted. One that takes longer fails the run: the
     * message names it and shows the stack of its thread, and this process ends unless the action comes back within
     * half a second. 0: any time. A hang timeout that the user has set (sl_group_options, SLUICE_HANG_TIMEOUT,
     * `sluice launch --hang-timeout`) takes its place. */
    double action_timeout;
} sl_runtime_options;

/* Fails with SL_ERR_ARGUMENT if SLUICE_DEVICE_LINKS or SLUICE_GRAPHS has a value that means nothing; the message lists those
 * that do. Runtimes of every device check it. */
SL_API SL_MUST_CHECK sl_status sl_runtime_check_environment(void);

/* Collective over group. Agrees on all metadata, checks the schedule, opens the channels, allocates, compiles. Any
 * mismatch is the same error on every rank and names stage, value, expected and given. */
SL_API SL_MUST_CHECK sl_status sl_runtime_create(const sl_runtime_options *options, sl_runtime **out);
/* NULL is fine; works after a failure, too. Not collective. */
SL_API void sl_runtime_destroy(sl_runtime *runtime);

/* Where to put an output that no stage consumes. */
typedef struct sl_output {
    const char *name;
    sl_view view; /* whole batch, host memory */
    sl_chunk_spec chunk;
} sl_output;

/* One step. Zero is the default of every field. */
typedef struct SL_NAMED_FIELDS sl_step {
    /* The whole batch, host memory. Each rank gives what its stages use; it may give those of other ranks, of
     * which only the names are checked. */
    const sl_arg *args;
    int arg_count;
    bool split;               /* args are pre-split: arg_count for microbatch 0, arg_count for microbatch 1, .. */
    const double *weights;    /* of the microbatches' losses, in place of the runtime's mean */
    double grad_scale;        /* on the seed of every gradient; 0: 1 */
    bool keep_grads;          /* add to the gradients of the step before, which must have been partial */
    bool partial;             /* more steps add to the gradients: no sum over replicas and tied stages yet */
    const sl_output *outputs; /* wanted on this rank, which must have their stages */
    int output_count;
    /* Gradients of arguments by name, wanted on this rank, which must have stages that read them (sl_arg_spec.grad). Each
     * view is host memory with the shape of the argument and any strides; it is overwritten with what this step's result
     * (grad_scale and the share of a replica included) has as gradient by this rank's stages. If stages of several ranks
     * read the argument, the gradient is the sum over them. The parts of the microbatches are put together as the
     * argument is cut: along its dim, added up if all microbatches read the same, or by the merge function of its spec,
     * which gets one part for each microbatch and each stage that reads it. */
    const sl_arg *input_grads;
    int input_grad_count;
    int64_t number;        /* from 0, for the trace and random numbers; errors count from 1 and say number + 1 */
    uint64_t seed;         /* of random numbers */
    int64_t sample_offset; /* index in the global batch of this pipeline's first sample, for random numbers */
    void *user;            /* handed to every callback of a stage as sl_stage_call.step_user */
    bool update;           /* the function of sl_runtime_set_update ends the step; not if it is partial */
} sl_step;

/* What came of a step; arrays are borrowed from the runtime until its next step. */
typedef struct sl_step_result {
    double loss;         /* weighted sum over microbatches (and mean over replicas); NAN if this rank has none */
    const float *losses; /* of each microbatch of this pipeline; NULL if this rank has none */
    int loss_count;
} sl_step_result;

/* Collective. Forward and backward of all microbatches; afterwards the gradients are complete on every rank. result may
 * be NULL.
 *
 * The step itself is checked before the first action, by all ranks and replicas together: arguments, outputs, and that
 * all mean the same step. What is wrong on one of them is the same error on all, nothing has run, and the next step may
 * be right. Any other failure is the end of the runtime: every call returns it, and sl_group_check() of the group says
 * why. A new runtime on a new group may use the same stages once this one is destroyed. */
SL_API SL_MUST_CHECK sl_status sl_runtime_step(sl_runtime *runtime, const sl_step *step, sl_step_result *result);
/* The forwards of the same schedule alone; gradients stay as they are. */
SL_API SL_MUST_CHECK sl_status sl_runtime_eval(sl_runtime *runtime, const sl_step *step, sl_step_result *result);

SL_API int sl_runtime_microbatches(const sl_runtime *runtime);
/* As all ranks have agreed on it: stages, shapes of all values, arguments and outputs of a step. Borrowed. */
SL_API const sl_pipeline *sl_runtime_pipeline(const sl_runtime *runtime);
SL_API const sl_schedule *sl_runtime_schedule(const sl_runtime *runtime); /* as lowered; borrowed */
SL_API sl_stream *sl_runtime_stream(const sl_runtime *runtime);           /* all work goes here; borrowed */
SL_API sl_group *sl_runtime_group(const sl_runtime *runtime);
/* Where the messages between ranks lie, and why: "host memory", "device memory, ...". */
SL_API const char *sl_runtime_messages(const sl_runtime *runtime);
/* The same of what ranks sum and gather: tied weights, gradients and weights of replicas; "" if there is nothing of it. */
SL_API const char *sl_runtime_collectives(const sl_runtime *runtime);

/* ---- Parameters ------------------------------------------------------------------------------ */

/* A parameter of this rank. One that several stages of the rank share is listed once. */
typedef struct sl_param {
    const char *name;
    const char *tied_to; /* what its values are shared under; its name if nothing else was said */
    int stage;           /* the first of this rank that uses it */
    sl_view data;        /* of this rank: the whole, or with SL_SHARD_FULL its part in one dim, zeros past the end */
    sl_shape shape;      /* of the whole */
    sl_view grad;        /* laid out as data; none if frozen */
    /* Who of the replicas holds, updates and counts what; ranks are those of sl_runtime_options.replicas. Borrowed from the
     * runtime. NULL in sl_chunks, which know no replicas. */
    sl_weight_shardings shardings;
    /* What is this rank's in them: the part that data holds; that it has the gradient of and updates; that it alone counts
     * in a norm. Ranges may be empty. */
    sl_param_range held, updated, counted;
    int counted_part; /* the number of that last part */
    sl_init init;     /* of graph-made stages */
    int owner; /* rank of the group that counts it (norms, checkpoints): the one with the first stage that uses it */
    bool tied; /* other stages use it, here or elsewhere */
} sl_param;

/* Borrowed from the runtime; by stage, then in the stage's order. Data are not initialized, unless the stages had an
 * earlier runtime or share their parameters: then they are as they were left. */
SL_API const sl_param *sl_runtime_params(const sl_runtime *runtime, int *count);
SL_API SL_MUST_CHECK sl_status sl_runtime_find_param(const sl_runtime *runtime, const char *name, const sl_param **out);
SL_API SL_MUST_CHECK sl_status sl_runtime_zero_grads(sl_runtime *runtime);
/* Collective over the replicas: fails on all of them if a parameter does not have the same bits everywhere. The first
 * step does it by itself (sl_runtime_options.replica_params); later it shows whether replicas have drifted apart. With
 * SL_SHARD_FULL only what several replicas hold is compared. */
SL_API SL_MUST_CHECK sl_status sl_runtime_compare_params(sl_runtime *runtime);
/* Collective over the replicas: all parameters become those of replica 0, or of the first that holds the same part. */
SL_API SL_MUST_CHECK sl_status sl_runtime_broadcast_params(sl_runtime *runtime);
/* Collective over the replicas, after each has updated its part of the parameters: they become whole everywhere again.
 * In the order of the runtime's stream. Does nothing unless the mode is SL_SHARD_OPTIMIZER. */
SL_API SL_MUST_CHECK sl_status sl_runtime_gather_params(sl_runtime *runtime);
/* Begins it, one collective a stage; in the next step each stage waits for its own before it first runs. Until then, or
 * until sl_runtime_gather_params has waited for all, only a replica's own part may be read, and none written. */
SL_API SL_MUST_CHECK sl_status sl_runtime_gather_params_post(sl_runtime *runtime);

/* ---- Several batch or sequence sizes ----------------------------------------------------------
 * A runtime is compiled for one shape of the batch. For others there are others, whose stages share their parameters; a
 * cache makes each once, and a change of size then costs nothing. */

typedef struct sl_runtime_cache sl_runtime_cache;

typedef struct SL_NAMED_FIELDS sl_runtime_cache_options {
    int capacity; /* runtimes at once; 0: 8. One more, and the least recently used is dropped */
    /* Makes the runtime for a key, such as a sequence length. All ranks ask for the same keys in the same order. */
    sl_status (*make)(void *user, int64_t key, sl_runtime **out);
    /* Optional: destroys a runtime and what was made with it. NULL: sl_runtime_destroy. */
    void (*drop)(void *user, int64_t key, sl_runtime *runtime);
    void *user;
} sl_runtime_cache_options;

SL_API SL_MUST_CHECK sl_status sl_runtime_cache_create(const sl_runtime_cache_options *options, sl_runtime_cache **out);
SL_API void sl_runtime_cache_destroy(sl_runtime_cache *cache); /* drops all, the youngest first; NULL is fine */
/* *out belongs to the cache and is good until the next call. */
SL_API SL_MUST_CHECK sl_status sl_runtime_cache_get(sl_runtime_cache *cache, int64_t key, sl_runtime **out);

/* ---- One microbatch at a time -----------------------------------------------------------------
 * For callers with a schedule loop of their own: forward and backward of one microbatch at one stage, without ranks,
 * messages or a schedule. All memory is the device's and all work goes to one stream; the caller brings inputs and
 * gradients of outputs, and they stay as they are until the microbatch's last backward has run. What comes out of order
 * is refused and changes nothing. */

typedef struct sl_chunks sl_chunks; /* the microbatches of one stage; used by one thread at a time */

typedef struct SL_NAMED_FIELDS sl_chunks_options {
    sl_stage *stage; /* belongs to the chunks as to a runtime; keeps its parameters afterwards */
    sl_device *device;
    int microbatches;      /* numbered from 0, all of the stage's larger size */
    const sl_meta *inputs; /* optional: of a microbatch, for what the stage leaves open */
    bool evaluates;        /* forward alone */
} sl_chunks_options;

SL_API SL_MUST_CHECK sl_status sl_chunks_create(const sl_chunks_options *options, sl_chunks **out);
SL_API void sl_chunks_destroy(sl_chunks *chunks); /* NULL is fine */
SL_API sl_stream *sl_chunks_stream(const sl_chunks *chunks);
/* As sl_runtime_params. Gradients are the chunks' own. */
SL_API const sl_param *sl_chunks_params(const sl_chunks *chunks, int *count);

/* Begins a step: no microbatch has run, and gradients start anew unless keep_grads is set. Of the step number, seed,
 * sample_offset, keep_grads and user count. */
SL_API SL_MUST_CHECK sl_status sl_chunks_begin(sl_chunks *chunks, const sl_step *step);
/* inputs: as many as the stage has. *outputs, if not NULL, are views of the chunks' memory, good until the microbatch's
 * next forward. */
SL_API SL_MUST_CHECK sl_status sl_chunks_forward(sl_chunks *chunks, int microbatch, const sl_view *inputs,
                                                 const sl_view **outputs);
/* phase B: all; I: gradients of inputs; W: of parameters, after I. output_grads (not for W): as many as the stage has
 * outputs; a stage of a graph needs all that have a gradient, one of callbacks gets data NULL if none flows back. That of
 * a loss is its weight in the step. *input_grads, if not NULL, are the gradients of the inputs, none for those without. */
SL_API SL_MUST_CHECK sl_status sl_chunks_backward(sl_chunks *chunks, int microbatch, sl_phase phase,
                                                  const sl_view *output_grads, const sl_view **input_grads);

/* ---- Updates --------------------------------------------------------------------------------- */

/* Gives the work that ends a training step to the stream: an update of the parameters by their gradients, which are
 * complete. It gives the same work each time and waits for nothing. If a step needs nothing of the host, as on one rank, a
 * capture holds it with the rest of the step, and the function is not called again. */
typedef sl_status (*sl_update_fn)(void *user, sl_stream *stream);
/* Between steps; for those that say so (sl_step.update). NULL: none. */
SL_API void sl_runtime_set_update(sl_runtime *runtime, sl_update_fn fn, void *user);

/* ---- Custom actions -------------------------------------------------------------------------- */

/* Runs in place of what the runtime does for one kind of action; sl_runtime_run_action inside it does that. Without
 * SL_SHARD_FULL, UNSHARD and RESHARD do nothing unless set. */
typedef sl_status (*sl_action_fn)(void *user, sl_runtime *runtime, sl_action action);
/* fn NULL restores the runtime's own. Refused for WAIT_SEND_F and WAIT_SEND_B, which the runtime has no need to run. */
SL_API SL_MUST_CHECK sl_status sl_runtime_set_action(sl_runtime *runtime, sl_kind kind, sl_action_fn fn, void *user);
/* Only inside an sl_action_fn, with its action. */
SL_API SL_MUST_CHECK sl_status sl_runtime_run_action(sl_runtime *runtime, sl_action action);

/* ---- Trees ----------------------------------------------------------------------------------- */

/* Nested arguments (sl_tree) as flat lists: one entry for each leaf, in order, named by its path. An output "kv.key" of
 * one stage is the input "kv.key" of a later one. The caller frees each list, and with it the names, with one sl_free.
 * Tensors' memory and the leaves that are no tensors are borrowed: the tree must outlive the use of its arguments. */

/* How the leaves at and below a path are cut; the longest path counts. Without any, tensors are split along dim 0, and
 * scalars and leaves that are no tensors go to every microbatch. */
typedef struct sl_tree_chunk {
    const char *path; /* with the prefix, if there is one */
    sl_chunk_spec chunk;
} sl_tree_chunk;

/* The whole batch, for sl_step.args. */
SL_API SL_MUST_CHECK sl_status sl_tree_args(const sl_tree *tree, const char *prefix, sl_arg **out, int *count);
/* How it is cut, for sl_runtime_options.args. A path without any leaf is refused. */
SL_API SL_MUST_CHECK sl_status sl_tree_arg_specs(const sl_tree *tree, const char *prefix, const sl_tree_chunk *chunks,
                                                 int chunk_count, sl_arg_spec **out, int *count);
/* Memory for outputs, for sl_step.outputs: all leaves are tensors. */
SL_API SL_MUST_CHECK sl_status sl_tree_outputs(const sl_tree *tree, const char *prefix, const sl_tree_chunk *chunks,
                                               int chunk_count, sl_output **out, int *count);
/* Inputs or outputs of a stage, from a tree with the metadata of one microbatch. In a callback, sl_tree_bind() gives
 * call->inputs, outputs or gradients to a tree of the same structure. No gradient flows along leaves that are no
 * tensors; the entries may be changed before they are given to sl_stage_create. */
SL_API SL_MUST_CHECK sl_status sl_tree_values(const sl_tree *tree, const char *prefix, sl_stage_value **out,
                                              int *count);

/* ---- Reports --------------------------------------------------------------------------------- */

/* The most blocks in which a runtime takes its device memory, for sl_device_reserve. */
#define SL_RUNTIME_BLOCKS 8
/* Bytes that this rank has taken. They equal what sl_pipeline_get_memory() predicts. */
SL_API sl_pipeline_memory sl_runtime_get_memory(const sl_runtime *runtime);

/* Where a run failed. */
typedef struct sl_runtime_failure {
    int rank;     /* of the group; -1 if it is not known */
    int64_t cell; /* place in that rank's actions of sl_runtime_schedule; -1 if it failed outside any */
    sl_action action;
    char message[1024];
} sl_runtime_failure;
/* False while nothing has failed; a step that was refused before its first action is no failure. The same on all ranks;
 * sl_error_message() may say more, such as what this rank was waiting for. */
SL_API bool sl_runtime_get_failure(const sl_runtime *runtime, sl_runtime_failure *out);
/* The schedule as a text grid with the place of the failure marked. */
SL_API SL_MUST_CHECK sl_status sl_runtime_write_failure(const sl_runtime *runtime, FILE *file);

/* Collective. Rank 0 writes what all ranks' traces hold as a Chrome trace on one clock; others ignore path. */
SL_API SL_MUST_CHECK sl_status sl_runtime_save_trace(sl_runtime *runtime, const char *path);
/* Collective. Mean seconds of F, I, W and B of every stage (as many as sl_schedule_stages) in the trace; 0 if none
 * was run. Input for sl_schedule_simulate. */
SL_API SL_MUST_CHECK sl_status sl_runtime_measure_costs(sl_runtime *runtime, sl_stage_cost *out);
SL_API void sl_runtime_clear_trace(sl_runtime *runtime);

#ifdef __cplusplus
}
#endif
#endif
