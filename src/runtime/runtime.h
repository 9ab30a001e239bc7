/* A runtime: one rank's compiled part of a pipeline with its memory, channels and records. */
#ifndef SL_RUNTIME_RUNTIME_H
#define SL_RUNTIME_RUNTIME_H

#include "comm/carrier.h"
#include "comm/device_links.h"
#include "runtime/gather.h"
#include "runtime/lanes.h"
#include "runtime/mover.h"
#include "runtime/store.h"
#include "runtime/trace.h"
#include "runtime/watchdog.h"
#include "runtime/weights.h"

/* Device memory, one block each. */
typedef struct sl_blocks {
    void *slots, *scratch, *constants, *packed, *inputs, *scalars;
    void *offload; /* host memory */
} sl_blocks;

/* One root input that this rank's stages use. */
typedef struct sl_root_use {
    sl_chunk_spec chunk;
    bool used;
    bool given;           /* with this step */
    bool has_grad;        /* stages of this rank write its gradient */
    const sl_arg *wanted; /* where this step wants it; NULL: nowhere */
    int stage;            /* the first that uses it */
    size_t copy_offset;   /* in the block of inputs, of microbatch 0's copy */
    size_t copy_bytes;    /* of each microbatch's; 0: used where it lies */
} sl_root_use;

/* What a rank says before the first action of a step. */
enum { SL_STEP_VALUES = 4 };
typedef struct sl_step_start {
    int64_t outcome; /* an sl_status: whether its arguments are right */
    int64_t values[SL_STEP_VALUES];
} sl_step_start;

/* A parameter shared across ranks or stages, as far as this rank takes part. */
typedef struct sl_tie sl_tie;

struct sl_runtime {
    sl_group *group, *replicas; /* its own, split from the caller's; replicas NULL: none */
    sl_device *device;
    sl_stream *stream;
    bool host; /* device memory is host memory */
    sl_pipeline *pipeline;
    const sl_schedule *schedule; /* the pipeline's */
    const sl_wiring *wiring;     /* likewise */
    sl_stage **stages;           /* of this rank, by index; borrowed */
    int stage_count;
    int rank;

    sl_channel **channels;   /* one a route; NULL if this rank has no end, or it is a link */
    sl_device_words *words;  /* that its streams wait for; NULL: they wait for no other rank */
    sl_device_links *links;  /* routes through memory of the device, by the same numbers; NULL: there are none */
    int *link_counts;        /* (3 x routes of edges) room for a look at how far the links are; NULL: without links */
    sl_sum_mode sum;         /* over the replicas */
    char messages_text[320]; /* where messages lie, and why */
    char collectives_text[320]; /* where collectives do their work, and why */
    sl_program train, eval;
    sl_lanes lanes;
    sl_blocks blocks;
    sl_param_store *store;     /* parameters and gradients, which its stages keep */
    bool fresh_grads;          /* the gradients' memory is new */
    sl_pipeline_memory memory; /* as taken */
    sl_param *params;
    int param_count;
    sl_tie *ties;
    int tie_count;
    sl_root_use *roots;          /* one a root input of the wiring */
    sl_stage_requests *requests; /* one a stage of this rank */
    sl_sharers sharers;
    sl_posted posted;
    bool gathering;  /* parameters may be on their way that a stage has to wait for before it runs */
    sl_mover *mover; /* NULL: there is none */

    sl_replica_params replica_params;
    bool replicas_ready; /* their parameters have been compared or broadcast */
    sl_loss_mean mean;
    bool watch_loss, local_loss;
    double *weights; /* of each microbatch's loss, this step */
    float *losses;
    const sl_output **outputs; /* of each output of this rank's stages: who asked, this step */
    int *first_output;         /* of each stage: its first row in outputs */
    sl_step_start *starts;     /* room for those of all ranks, or of all replicas */

    struct {
        sl_action_fn fn;
        void *user;
    } custom[SL_KIND_COUNT];
    sl_update_fn update; /* ends steps that ask for it */
    void *update_user;
    bool updates;              /* the running step does, and it has not been given to the stream yet */
    const sl_program *running; /* NULL between steps */
    int64_t current;           /* action of the running program; -1 before the first */
    sl_run_context context;
    char note[96];         /* "step 7 2F3" */
    sl_watchdog *watchdog; /* NULL: an action may take any time */

    sl_trace trace;
    sl_status failed; /* SL_OK while nothing has */
    sl_runtime_failure failure;
};

/* ---- Creation, in order ---- */
SL_MUST_CHECK sl_status sl_runtime_allocate(sl_runtime *runtime, const sl_runtime_options *options);
void sl_runtime_free_memory(sl_runtime *runtime);

/* ---- A step ---- */
/* Collective. *outcome is whether this rank's arguments are right, and becomes what all ranks have agreed on: the first
 * failure, with the same message everywhere. Costs nothing with one rank. */
SL_MUST_CHECK sl_status sl_runtime_agree(sl_runtime *runtime, const sl_step *step, bool training, sl_status *outcome);
/* Points the frames' root inputs at the batch. */
SL_MUST_CHECK sl_status sl_runtime_bind_args(sl_runtime *runtime, const sl_program *program, const sl_step *step);
SL_MUST_CHECK sl_status sl_runtime_bind_outputs(sl_runtime *runtime, const sl_step *step);
SL_MUST_CHECK sl_status sl_runtime_bind_input_grads(sl_runtime *runtime, const sl_step *step);
/* Appends "'name'" to a list of names, as far as there is room. */
void sl_runtime_list_name(char *list, size_t size, const char *name);
sl_status sl_runtime_fail_unknown_arg(const sl_wiring *wiring, const char *name);
/* Whether the instruction is about a message that streams hand over. */
static inline bool sl_runtime_is_link_message(const sl_runtime *runtime, const sl_instr *instr)
{
    switch ((sl_code)instr->code) {
    case SL_CODE_RECEIVE:
    case SL_CODE_FROM_MESSAGE:
    case SL_CODE_RELEASE:
    case SL_CODE_RESERVE:
    case SL_CODE_TO_MESSAGE:
    case SL_CODE_COMMIT:
        return sl_device_links_has(runtime->links, instr->index);
    default:
        return false;
    }
}
/* What SLUICE_OVERLAP says of the halves of an OVERLAP_F_B: nothing; at the same time also on a device that ranks share; one
 * after the other. */
typedef enum sl_overlap_wish { SL_OVERLAP_UNSAID, SL_OVERLAP_ON, SL_OVERLAP_OFF } sl_overlap_wish;
SL_MUST_CHECK sl_status sl_overlap_read_switch(sl_overlap_wish *out);
/* Sums of tied gradients, then the update, to the stream. */
SL_MUST_CHECK sl_status sl_runtime_give_update(sl_runtime *runtime);
/* Runs all actions of the program. A failure has been told to all ranks when it returns. */
SL_MUST_CHECK sl_status sl_runtime_execute(sl_runtime *runtime, const sl_program *program);
/* While the host waits for a step with links (user: the runtime): notes the action that its streams are at, and whether
 * they wait for another rank there. */
bool sl_progress_is_held_up(void *user);
/* The stream of kernels is to say how far it is, if there are other ranks and the device can. */
SL_MUST_CHECK sl_status sl_phases_create(sl_runtime *runtime);
void sl_phases_destroy(sl_runtime *runtime); /* no stream is left */
void sl_phases_begin(sl_runtime *runtime, const sl_program *program);
/* The host has given a RUN to the stream; mark: not by launching what has the mark in it. */
SL_MUST_CHECK sl_status sl_phases_give(sl_runtime *runtime, const sl_instr *instr, bool mark);
/* The action that the stream of kernels is at; NULL if it has done all that it was given, or nobody watches. *passed: changes
 * when it goes on. From any thread. */
const sl_program_action *sl_phases_find_busy(const sl_runtime *runtime, uint32_t *passed);
/* Device memory that a rank takes for messages and collectives through a carrier, beside what the pipeline counts: slots of
 * the senders, and what NCCL itself takes. */
size_t sl_runtime_carrier_bytes(const sl_pipeline *pipeline, int rank, sl_carrier_name carrier);
/* Zeroes the gradients of the k-th of this rank's stages. */
SL_MUST_CHECK sl_status sl_runtime_zero_stage(sl_runtime *runtime, int k);
/* OUTPUT and INPUT_GRAD: to whoever asked. */
SL_MUST_CHECK sl_status sl_runtime_deliver(sl_runtime *runtime, const sl_instr *instr);

/* Collective over the replicas, before each step: does what replica_params says once. Returns how the talking went;
 * *outcome is what was found. */
SL_MUST_CHECK sl_status sl_replicas_begin(sl_runtime *runtime, sl_status *outcome);

/* ---- Tied parameters ---- */
SL_MUST_CHECK sl_status sl_ties_create(sl_runtime *runtime);
void sl_ties_destroy(sl_runtime *runtime);
/* Collective: ties whose ranks reach each other's memory are summed there. on_device[t] tells of each, the same on all
 * ranks. */
SL_MUST_CHECK sl_status sl_ties_open(sl_runtime *runtime, uint8_t *on_device);
void sl_ties_close(sl_runtime *runtime);
/* Counts the exchanges of this rank's ties, those in device memory, and gives the first reason why one is not. */
void sl_ties_count_exchanges(const sl_runtime *runtime, sl_exchange_ways *ways);
SL_MUST_CHECK sl_status sl_ties_sum(sl_runtime *runtime, int64_t step);
void sl_ties_take_channels(sl_runtime *runtime);

/* ---- Failures ---- */
/* The running step as people count: from 1. Messages between ranks, notes and errors name it by this. */
static inline int64_t sl_runtime_step_label(const sl_runtime *runtime)
{
    return runtime->context.step + 1;
}

/* "pipeline rank 1, cell 7, 2F3 (stage 2, microbatch 3, step 5)"; step as in sl_runtime_step_label. */
void sl_runtime_describe_action(const sl_runtime *runtime, int64_t step, const sl_program_action *action, char *text,
                                size_t size);
/* Records the failure on its way up, tells all ranks if it is this rank's own, and returns status.
 * cell -1: outside any action. */
sl_status sl_runtime_fail(sl_runtime *runtime, sl_status status, int64_t cell, sl_action action);

#endif
