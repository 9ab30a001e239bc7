/* Pipelines: the pure compile. From descriptions of all stages, a schedule and the shape of the batch comes everything
 * that all ranks will do: the lowered and checked schedule, the channels and their capacities, every rank's program,
 * its exact memory and the predicted time. No group, device or memory is involved, so a planner or a dry run can ask
 * thousands of times. A runtime calls the same function and binds the result to memory and channels. */
#ifndef SLUICE_PIPELINE_H
#define SLUICE_PIPELINE_H

#include <sluice/graph.h>
#include <sluice/schedule.h>
#include <sluice/sharding.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Microbatches ---------------------------------------------------------------------------- */

typedef enum sl_chunk_kind {
    SL_CHUNK_SPLIT,     /* along dim: the first size % count microbatches get one more */
    SL_CHUNK_REPLICATE, /* every microbatch gets (or, when merging, gave) the same */
    SL_CHUNK_CUSTOM     /* by the functions below */
} sl_chunk_kind;

/* How one argument is cut into microbatches, or one output put together again. Zero splits along dim 0; a scalar, which
 * has no dim, then goes to every microbatch. */
typedef struct sl_chunk_spec {
    sl_chunk_kind kind;
    int dim; /* SPLIT; negative counts from the end */
    /* CUSTOM: microbatch `index` of `count`; *part may be any view into whole. Optional if it is only merged. */
    sl_status (*split)(void *user, const sl_view *whole, int count, int index, sl_view *part);
    /* CUSTOM: takes part `index` of `count` into whole, which is not cleared before; called once for each part, in the
     * order in which they are made. Optional if it is only split. */
    sl_status (*merge)(void *user, const sl_view *part, int count, int index, const sl_view *whole);
    void *user;
} sl_chunk_spec;

/* Fills parts[0..count) with views into whole; nothing is copied. spec NULL is the default. A dim smaller than count
 * fails: no microbatch may be empty. */
SL_API SL_MUST_CHECK sl_status sl_microbatch_split(const sl_view *whole, const sl_chunk_spec *spec, int count,
                                                   sl_view *parts);
/* The reverse: copies host memory into whole, whose metadata must be what the parts add up to. */
SL_API SL_MUST_CHECK sl_status sl_microbatch_merge(const sl_view *parts, int count, const sl_chunk_spec *spec,
                                                   const sl_view *whole);
/* Metadata of the same: of microbatch `index`, and of the whole that `count` parts add up to. Not for CUSTOM. */
SL_API SL_MUST_CHECK sl_status sl_microbatch_part_meta(const sl_meta *whole, const sl_chunk_spec *spec, int count,
                                                       int index, sl_meta *out);
SL_API SL_MUST_CHECK sl_status sl_microbatch_whole_meta(const sl_meta *parts, int count, const sl_chunk_spec *spec,
                                                        sl_meta *out);

/* An argument of the pipeline: a root input of any stage. The n-th without a name is the n-th root input in the order
 * of stages and their inputs. */
typedef struct sl_arg {
    const char *name;
    sl_view view;
} sl_arg;

/* All arguments at once: parts[m * arg_count + a] is microbatch m of args[a]. specs NULL, or one for each argument. All
 * split arguments must give the same number of samples to each microbatch. */
SL_API SL_MUST_CHECK sl_status sl_microbatch_split_args(const sl_arg *args, const sl_chunk_spec *specs, int arg_count,
                                                        int count, sl_view *parts);

/* How an argument is cut. */
typedef struct sl_arg_spec {
    const char *name;
    /* Of the whole batch; zero, or shape.rank -1: the stages that use it say what a microbatch is. If microbatches
     * differ in size, the spec of at least one split argument must give it. */
    sl_meta meta;
    sl_chunk_spec chunk;
    /* Its gradient is wanted (sl_step.input_grads), so that stages get memory to write it to. Not needed for what a graph
     * says itself (sl_graph_input_differentiable). */
    bool grad;
} sl_arg_spec;

/* ---- Descriptions of stages ------------------------------------------------------------------ */

/* A batch that does not divide has microbatches of two sizes: 0 is the larger (or only) one. */
#define SL_MAX_SIZES 2

#define SL_MAKER_ROOT (-1)    /* the value comes with the batch */
#define SL_MAKER_BY_NAME (-2) /* from the nearest earlier stage with an output of this name, else with the batch */

/* A value that enters or leaves a stage. */
typedef struct sl_value_desc {
    const char *name;
    sl_meta metas[SL_MAX_SIZES]; /* of one microbatch, contiguous; shape.rank -1: left open */
    bool has_grad;               /* input: the stage can write its gradient; output: the stage reads one */
    bool loss;                   /* output: one f32 or f64 */
    sl_phase last_use;           /* F, I or W: the phase of this stage that reads it last */
    sl_phase grad_last_use;      /* output: I or W */
    int maker, maker_output;     /* input: the stage and output that make it, or SL_MAKER_* */
} sl_value_desc;

typedef struct sl_weight_desc {
    const char *name;
    const char *tie; /* weights with the same tie share their values and the sum of their gradients; NULL: name */
    sl_meta meta;
    sl_dtype grad_dtype;
    bool frozen;             /* has no gradient */
    bool own_data, own_grad; /* the caller brings the memory, so it is not counted */
} sl_weight_desc;

/* What a pipeline must know of a stage. All pointers are borrowed for the call that takes them. */
typedef struct sl_stage_desc {
    const sl_value_desc *inputs;
    int input_count;
    const sl_value_desc *outputs;
    int output_count;
    const sl_weight_desc *weights;
    int weight_count;
    int size_count;        /* sizes of microbatch that metas has */
    bool can_train;        /* has a backward */
    bool can_split;        /* I and W can run apart */
    bool can_infer;        /* sl_pipeline_options.infer can settle open metadata */
    bool writes_all_grads; /* of inputs that have one, even if nobody wants it */
    bool keeps_in_b;       /* B keeps what I hands to W: they run one after the other inside it */
    /* Bytes of the regions of one microbatch and of what one call needs, the largest over the sizes. */
    size_t saved_i_bytes; /* from F to I */
    size_t saved_w_bytes; /* from F to W */
    size_t kept_bytes;    /* from I to W */
    size_t scratch_bytes; /* during a call */
    size_t constant_bytes[SL_MAX_SIZES];
    size_t packed_bytes; /* of weights packed for products, shared by all microbatches */
} sl_stage_desc;

/* ---- Compiling ------------------------------------------------------------------------------- */

typedef struct sl_pipeline sl_pipeline; /* opaque, immutable */

/* Elements [first, first + count) of a parameter, as if it had one dim. */
typedef struct sl_param_range {
    int64_t first, count;
} sl_param_range;

/* What the replicas of a stage share out among themselves. The bits of a step are the same in all modes. */
typedef enum sl_shard_mode {
    SL_SHARD_NONE,      /* nothing: each has whole weights and gradients, and updates all of them */
    SL_SHARD_OPTIMIZER, /* updates: each has whole weights, and the whole sum of a part of every gradient */
    SL_SHARD_FULL       /* everything: each keeps a part of every weight and gradient. UNSHARD gathers a stage's weights
                           into a slot, RESHARD gives it back, REDUCE_GRAD leaves each replica its part of the sum */
} sl_shard_mode;

/* Which replica of a stage has which part of a weight: flat shardings (sl_sharding_flat), in which ranks are the numbers of
 * replicas. A pipeline knows no devices: they are "meta". */
typedef struct sl_weight_shardings {
    const sl_sharding *held;    /* kept between steps: the whole by each, or with SL_SHARD_FULL shards */
    const sl_sharding *updated; /* what each has the sum of the gradient of and updates: the whole, or shards */
    const sl_sharding *counted; /* what each alone of all sums and counts in a norm: one part, whatever the mode */
} sl_weight_shardings;

/* What stages can do with messages. */
typedef enum sl_message_place {
    SL_MESSAGES_ON_HOST,  /* work on them in place; the device's memory is the host's */
    SL_MESSAGES_STAGED,   /* nothing: each is copied to or from a buffer of the device, which works by itself */
    SL_MESSAGES_ON_DEVICE /* work on them in place, in memory of a device that works by itself. Slots are used in turn */
} sl_message_place;

/* Zero is the default of every field except schedule and stages. Everything is borrowed for the call. */
typedef struct SL_NAMED_FIELDS sl_pipeline_options {
    const sl_schedule *schedule; /* lowered if it has no messages */
    const sl_stage_desc *stages; /* of all ranks: one for each stage of the schedule */
    int stage_count;
    const sl_arg_spec *args; /* those that differ from: split along dim 0 */
    int arg_count;
    int replicas; /* pipelines that hold the same stages and sum their gradients; 0: 1 */
    sl_shard_mode shard;
    /* Replicas that share: parts are of 1 / shard_group, and every group of so many neighbors has all of them. Divides
     * replicas; 0: all. */
    int shard_group;
    int unsharded_stages; /* FULL: most on a rank at once, if the schedule has no UNSHARD; 0: 3 */
    sl_message_place messages;
    /* Host memory of a rank, in bytes, for what microbatches save between F and their backward: what would lie idle on the
     * device for long goes there and comes back in time. 0: none. Changes no result. */
    size_t offload_bytes;
    /* The device may run both halves of an OVERLAP_F_B at the same time: they share no memory, and messages of both come
     * before and go after the two. */
    bool overlaps;
    /* Optional: metadata of a stage's outputs from that of its inputs, for stages that can infer. */
    sl_status (*infer)(void *user, int stage, int size, const sl_meta *inputs, int input_count, sl_meta *outputs,
                       int output_count);
    void *user;
} sl_pipeline_options;

/* Joins the stages, lowers and checks the schedule, and compiles every rank's programs. Time and memory are linear in
 * the number of actions. On success the caller owns *out, which borrows nothing. */
SL_API SL_MUST_CHECK sl_status sl_pipeline_compile(const sl_pipeline_options *options, sl_pipeline **out);
SL_API void sl_pipeline_destroy(sl_pipeline *pipeline); /* NULL is fine */

SL_API const sl_schedule *sl_pipeline_schedule(const sl_pipeline *pipeline); /* as lowered; borrowed */
SL_API int sl_pipeline_ranks(const sl_pipeline *pipeline);
SL_API int sl_pipeline_stages(const sl_pipeline *pipeline);
SL_API int sl_pipeline_microbatches(const sl_pipeline *pipeline);

/* Bytes on one rank, by what they are for. */
typedef struct sl_pipeline_memory {
    size_t params, grads, constants;
    size_t packed;   /* weights packed for products; with SL_SHARD_FULL they are in slots */
    size_t slots;    /* activations, saved regions, gradients between stages of this rank, gathered weights */
    size_t scratch;  /* shared by all stages; twice as much if halves of an OVERLAP_F_B run at the same time */
    size_t inputs;   /* copies of arguments that cannot be used in place */
    size_t device;   /* sum of the above: device memory */
    size_t messages; /* in channels that end at this rank, and staging of collectives */
    size_t offload;  /* host memory for what is off the device between F and its backward */
} sl_pipeline_memory;

SL_API sl_pipeline_memory sl_pipeline_get_memory(const sl_pipeline *pipeline, int rank);
/* Bytes of a stage that leave the device in a step, and come back (sl_pipeline_options.offload_bytes). */
SL_API size_t sl_pipeline_offloaded(const sl_pipeline *pipeline, int stage);

/* A channel of the pipeline. It carries a value forward, its gradient back, or the gradient of a tied weight. */
typedef struct sl_route {
    int from, to;     /* stages */
    const char *name; /* of the value or weight */
    bool grad;        /* a gradient that goes back along an edge */
    int tie;          /* number of the tied weight; -1: a value or its gradient */
    int member;       /* which of the tie's weights */
    int edge;         /* number of the edge; -1: a tied weight */
    int src, dst;     /* ranks */
    size_t bytes;     /* of the largest message */
    int capacity;     /* messages that it holds */
} sl_route;

SL_API const sl_route *sl_pipeline_routes(const sl_pipeline *pipeline, int *count); /* borrowed */

/* A value that goes from one stage to another. */
typedef struct sl_pipeline_edge {
    const char *name;
    int from, output;
    int to, input;
    bool has_grad; /* a gradient comes back along it */
    bool remote;   /* the two stages are on different ranks */
    size_t bytes;  /* of the largest microbatch */
} sl_pipeline_edge;

SL_API const sl_pipeline_edge *sl_pipeline_edges(const sl_pipeline *pipeline, int *count); /* borrowed */

/* ---- What was agreed on ----------------------------------------------------------------------
 * Names are borrowed from the pipeline. An index that does not exist gives a name of NULL and shapes of rank -1. */

SL_API bool sl_pipeline_is_first(const sl_pipeline *pipeline, int stage);
SL_API bool sl_pipeline_is_last(const sl_pipeline *pipeline, int stage);

/* A value at the border of a stage, with all that was left open settled. */
typedef struct sl_pipeline_value {
    const char *name;
    sl_meta metas[SL_MAX_SIZES]; /* of a microbatch of each size; shape.rank -1 if there is no such size */
    sl_meta whole;               /* of all microbatches, joined along dim 0; a root input's: as the batch has it */
    bool has_grad;
    bool loss;               /* output: the loss, one of every microbatch */
    int users;               /* output: inputs of later stages that take it; 0: it is a final output */
    int maker, maker_output; /* input: where it comes from; -1: with the batch */
    int root;                /* input: which root input it is; -1: a stage makes it */
} sl_pipeline_value;

SL_API int sl_pipeline_input_count(const sl_pipeline *pipeline, int stage);
SL_API int sl_pipeline_output_count(const sl_pipeline *pipeline, int stage);
SL_API sl_pipeline_value sl_pipeline_get_input(const sl_pipeline *pipeline, int stage, int index);
SL_API sl_pipeline_value sl_pipeline_get_output(const sl_pipeline *pipeline, int stage, int index);

/* An argument that a step takes. */
typedef struct sl_pipeline_root {
    const char *name;
    sl_meta metas[SL_MAX_SIZES]; /* as above */
    sl_meta whole;               /* of the batch; shape.rank -1 for SL_CHUNK_CUSTOM if no spec gives it */
    sl_chunk_kind kind;
    int dim;
    int position;  /* among arguments without a name */
    bool has_grad; /* a step can hand out its gradient */
} sl_pipeline_root;

SL_API int sl_pipeline_root_count(const sl_pipeline *pipeline);
SL_API sl_pipeline_root sl_pipeline_get_root(const sl_pipeline *pipeline, int index);

/* Which of the metas a microbatch has, and how many samples. */
SL_API int sl_pipeline_size_of(const sl_pipeline *pipeline, int microbatch);
SL_API int64_t sl_pipeline_samples(const sl_pipeline *pipeline, int microbatch);

/* Blocks of one size that the values of a step take turns in on a rank; count 0 past the last. How many microbatches a
 * stage holds at once: sl_schedule_count_slots(). */
typedef struct sl_pipeline_slots {
    size_t bytes;
    int count;
} sl_pipeline_slots;

SL_API sl_pipeline_slots sl_pipeline_get_slots(const sl_pipeline *pipeline, int rank, int index);

/* ---- Programs -------------------------------------------------------------------------------- */

typedef enum sl_code {
    SL_CODE_RECEIVE,       /* waits for the route's next message; cell gets its memory */
    SL_CODE_RELEASE,       /* gives the message in cell back */
    SL_CODE_RESERVE,       /* waits for room for a message; cell gets its memory */
    SL_CODE_COMMIT,        /* sends the message in cell */
    SL_CODE_TO_MESSAGE,    /* copies from -> cell, device to message */
    SL_CODE_FROM_MESSAGE,  /* copies from -> cell, message to device */
    SL_CODE_ADD,           /* adds from to cell, elementwise */
    SL_CODE_RUN,           /* one phase of the microbatch at its stage */
    SL_CODE_LOSS,          /* looks at the loss that was just made */
    SL_CODE_OUTPUT,        /* hands an output to whoever asked for it */
    SL_CODE_INPUT_GRAD,    /* likewise the gradient of a root input */
    SL_CODE_OFFLOAD,       /* copies a region of a microbatch, device to host: from -> cell */
    SL_CODE_FETCH,         /* copies it back, host to device; later phases find it at cell */
    SL_CODE_UNSHARD,       /* begins to gather the stage's weights into the block at cell */
    SL_CODE_AWAIT_WEIGHTS, /* until they are there; from now on the stage reads them at cell */
    SL_CODE_RESHARD,       /* the stage has no weights at hand any more */
    SL_CODE_OPEN_GRADS,    /* the stage's gradients of this step add up in the block at cell */
    SL_CODE_REDUCE_GRADS,  /* begins to sum the stage's gradients over the replicas */
    SL_CODE_AWAIT_GRADS    /* until they are summed */
} sl_code;

/* One instruction of a rank's program. Values are reached through cells, the rank's table of pointers. */
typedef struct sl_pipeline_instr {
    uint8_t code;      /* an sl_code */
    uint8_t phase;     /* RUN: an sl_phase */
    bool starts_grads; /* RUN: the stage's first weight gradient of the step; INPUT_GRAD: the first part of its place */
    bool beside;       /* RUN: may run at the same time as the next RUN */
    int32_t index;     /* messages: the route; LOSS, OUTPUT, INPUT_GRAD: which of the stage's outputs or inputs;
                        * OFFLOAD, FETCH: 0 for what I and W need, 1 for what W alone needs */
    int32_t stage, microbatch;
    int32_t cell, from;  /* -1: none */
    const sl_meta *meta; /* of the value in cell; NULL: none */
} sl_pipeline_instr;

/* The instructions of one action of the schedule are [first, first + count). */
typedef struct sl_pipeline_action {
    sl_action action;
    int64_t cell; /* its place in the rank's list of the lowered schedule */
    int64_t first, count;
} sl_pipeline_action;

/* What a rank does in a training step, or in an evaluation (the forwards alone). Borrowed from the pipeline. */
typedef struct sl_pipeline_program {
    const sl_pipeline_action *actions;
    int64_t action_count;
    const sl_pipeline_instr *instrs;
    int64_t instr_count;
    int64_t tail; /* the instructions from here on belong to no action: they end the step */
    int64_t cell_count;
} sl_pipeline_program;

SL_API sl_pipeline_program sl_pipeline_get_program(const sl_pipeline *pipeline, int rank, bool training);
SL_API SL_MUST_CHECK sl_status sl_pipeline_dump(const sl_pipeline *pipeline, int rank, FILE *file);

/* Fills in the times of each stage's collectives among the replicas (unshard, reduce_grad, gather), by the bytes that a
 * rank has to get for them. Those that its mode does not have are 0. */
SL_API void sl_pipeline_cost_collectives(const sl_pipeline *pipeline, double bytes_per_s, sl_stage_cost *stages);
/* Runs the lowered schedule in time. costs NULL means the defaults; its edge_sizes are ignored, since the pipeline
 * knows how many bytes each message has. The timeline must not outlive the pipeline. */
SL_API SL_MUST_CHECK sl_status sl_pipeline_simulate(const sl_pipeline *pipeline, const sl_costs *costs,
                                                    sl_timeline **out);

#ifdef __cplusplus
}
#endif
#endif
