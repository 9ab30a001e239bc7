/* Stages as the runtime sees them: named values at the border, parameters, regions, and one way to run a phase,
 * whoever made the stage. */
#ifndef SL_RUNTIME_STAGE_H
#define SL_RUNTIME_STAGE_H

#include <sluice/runtime.h>

#include "graph/program.h"

/* A value that enters or leaves a stage. */
typedef struct sl_border_value {
    char *name;
    sl_meta declared[SL_MAX_SIZES]; /* as the stage was made; contiguous; rank -1: left open */
    sl_meta metas[SL_MAX_SIZES];    /* as a pipeline has agreed */
    bool has_grad;                  /* input: the stage can write its gradient; output: it reads one */
    bool loss;
    sl_phase last_use;       /* F, I or W */
    sl_phase grad_last_use;  /* output: I or W */
    int maker, maker_output; /* input: where it comes from; maker SL_MAKER_BY_NAME: found by its name */
} sl_border_value;

typedef struct sl_stage_weight {
    char *name;
    char *tie; /* what it is tied to; NULL: other stages' weights of its name */
    sl_meta meta;
    sl_dtype grad_dtype;
    sl_init init;
    bool frozen;
    void *data, *grad;             /* the caller's, else NULL */
    void *data_place, *grad_place; /* where it lies once a runtime has the stage */
    void *kept_data;               /* in the stage's store, from one runtime to the next; NULL: the caller's */
    sl_param_range held;           /* the elements that are kept there */
} sl_stage_weight;

/* Pointers of one microbatch at one stage; filled by the compiler, and by messages if they are used in place. */
typedef struct sl_frame {
    int stage, microbatch;
    int size;             /* which of the stage's sizes it has */
    int64_t first_sample; /* of the microbatch in the pipeline's batch */
    void **inputs;        /* as many as the stage has inputs, outputs, outputs, inputs */
    void **outputs;
    void **output_grads;
    void **input_grads;
    void *saved_i, *saved_w, *kept;
    bool starts_grads; /* the stage's first microbatch of the step to reach its weight gradient */
} sl_frame;

/* What all microbatches of a step share. */
typedef struct sl_run_context {
    sl_stream *stream;
    void *scratch;
    int64_t step;
    void *user;             /* the step's */
    sl_rng rng;             /* sample_offset: of the pipeline's first sample */
    const sl_rng *step_rng; /* the same in device memory, if the device works by itself; else NULL */
    bool keep_grads;        /* this step adds to the gradients of the one before */
    bool fresh_grads;       /* but in other memory: what is there now does not count */
    bool training;
    const sl_beside *beside; /* NULL: a phase runs in order */
} sl_run_context;

/* How a kind of stage runs and ends. */
typedef struct SL_NAMED_FIELDS sl_stage_table {
    sl_status (*run)(sl_stage *stage, sl_phase phase, const sl_frame *frame, const sl_run_context *context);
    /* Optional: metadata of the outputs of one size from that of the inputs. */
    sl_status (*infer)(sl_stage *stage, int size);
    /* Optional if there are none: writes constant_bytes[size] of host memory. */
    void (*constants)(const sl_stage *stage, int size, void *host);
    /* Optional: of one microbatch of the larger size. */
    double (*seconds)(const sl_stage *stage, sl_phase phase, const sl_rates *rates);
    void (*destroy)(sl_stage *stage);
    bool writes_all_grads; /* of inputs that have one, even if nobody wants it */
    bool shares_nothing;   /* a phase uses no memory but what it is given: two may run at the same time */
    bool starts_grads;     /* overwrites the gradients of parameters when a step begins: they need not be zeroed */
} sl_stage_table;

struct sl_stage {
    const sl_stage_table *table;
    int index;
    int size_count; /* sizes that the stage was made for; a stage with infer takes any */
    sl_border_value *inputs, *outputs;
    int input_count, output_count;
    sl_stage_weight *weights;
    int weight_count;
    bool can_split; /* I and W can run apart */
    bool can_train;
    bool can_capture; /* a phase gives the stream the same work in every step */
    bool can_part;    /* B can give some of it to another stream */

    /* Bytes of the regions of one microbatch and of what a call needs, the largest over sizes. */
    size_t saved_i_bytes, saved_w_bytes, kept_bytes, scratch_bytes;
    size_t constant_bytes[SL_MAX_SIZES];
    void *constants[SL_MAX_SIZES]; /* device memory of the runtime's */
    size_t packed_bytes;
    void *packed;      /* likewise, for packed weights; NULL: there is none */
    bool is_packed[2]; /* since the weights changed: for F, for I and B */

    sl_cost costs[SL_PHASE_COUNT]; /* of one microbatch of the larger size */
    int launches[SL_PHASE_COUNT];  /* the same: kernels */

    /* Pointers in the order of weights, for programs. */
    const void **param_pointers;
    void **grad_pointers;

    const sl_port *states; /* the program's */
    int state_count;
    void *const *state_pointers; /* the caller's; NULL until bound */

    const void *owner;            /* the runtime or chunks that were made with it; NULL: none */
    struct sl_param_store *store; /* of its parameters, once it has had a runtime */
    sl_stage_fn weight_runner;
    void *weight_user;

    /* Views for callbacks, made once metadata is agreed: [size] then inputs, outputs, output_grads, input_grads. */
    sl_view *views[SL_MAX_SIZES];
    sl_view *weight_views; /* params, then grads */

    /* The description's lists; filled by sl_stage_describe. */
    sl_value_desc *input_descs, *output_descs;
    sl_weight_desc *weight_descs;

    void *own; /* of the kind */
};

/* Zeroed arrays for the counts; for the two kinds of create. */
SL_MUST_CHECK sl_status sl_stage_alloc(int index, int inputs, int outputs, int weights, sl_stage **out);

/* Forgets what an earlier pipeline has agreed on. */
void sl_stage_reset(sl_stage *stage);

/* Of one microbatch of the larger size, at these rates; 0 for a stage of callbacks. */
double sl_stage_phase_seconds(const sl_stage *stage, sl_phase phase, const sl_rates *rates);

/* Views of the callbacks from the agreed metadata; needed before the first run. */
SL_MUST_CHECK sl_status sl_stage_prepare(sl_stage *stage, int size_count);

/* Another step, or other memory of the weights: what is packed of them does not count any more. */
static inline void sl_stage_set_packed(sl_stage *stage, void *packed)
{
    stage->packed = packed;
    stage->is_packed[0] = stage->is_packed[1] = false;
}

/* One phase of one microbatch, with the weight runner in its place. */
SL_MUST_CHECK sl_status sl_stage_run(sl_stage *stage, sl_phase phase, const sl_frame *frame,
                                     const sl_run_context *context);

/* Fills a call from the frame; its views belong to the stage and are good until the next fill. */
void sl_stage_fill_call(sl_stage *stage, sl_phase phase, const sl_frame *frame, const sl_run_context *context,
                        sl_stage_call *call);
/* A call that failed: the message also says what the stage's inputs are. SL_OK is handed through. */
sl_status sl_stage_fail_call(const sl_stage *stage, const sl_stage_call *call, sl_status status);

#endif
