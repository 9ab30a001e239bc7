/* The compiler's state: who holds what memory at the current point of the rank's order. */
#ifndef SL_PIPELINE_COMPILER_H
#define SL_PIPELINE_COMPILER_H

#include "pipeline/program.h"

/* Memory that somebody still needs: a block of slots, or a received message. */
typedef struct sl_held {
    int refs;     /* 0: this entry is unused */
    int route;    /* of a message; -1: a block */
    sl_slot slot; /* of a block */
    int32_t cell; /* where its pointer stands */
} sl_held;

/* A region on the host; slot.group -1: it is on the device. */
typedef struct sl_away {
    sl_slot slot;
    int32_t cell;
} sl_away;

/* A block of the device that is free again once another action has computed, while it is copied. */
typedef struct sl_leaving {
    sl_slot slot;
    int64_t until; /* value of computed */
} sl_leaving;

enum { SL_OFFLOAD_REGIONS = SL_REGION_SAVED_W + 1 }; /* what lies between F and its backward */

/* Held values are numbered from 1; 0 is none. Tables have the rank's own rows, with microbatches as the inner dim. */
typedef struct sl_compiler {
    const sl_compile_options *options;
    const sl_wiring *wiring;
    sl_rank_program *program;
    int *inputs;         /* held by each input, from its arrival to its last use */
    int *outputs;        /* by each output: the maker's own share */
    int *sends;          /* by each output: until it has been copied into messages */
    int *grads;          /* by each edge: the gradient that came back, until summed */
    int *output_grads;   /* by each output: the sum */
    int *input_grads;    /* by each input: written and not yet sent */
    sl_slot *regions;    /* of each stage and microbatch: SL_REGION_COUNT */
    int64_t *idle;       /* of each stage and microbatch: actions that compute between F and its backward */
    sl_away *away;       /* of each stage and microbatch, SL_OFFLOAD_REGIONS: what is on the host */
    sl_leaving *leaving; /* memory of what is on its way to the host */
    int leaving_count;
    size_t leaving_capacity;
    int64_t computed;                /* actions that compute so far */
    bool *grads_started;             /* of a stage: a W or B has been compiled */
    bool *root_started;              /* of each root input and microbatch: a part of its gradient has been handed out */
    bool *forward_in_order;          /* of a stage: it sends in the order in which it computes */
    bool *backward_in_order;         /* by local stage, like the two before */
    size_t weight_block, grad_block; /* bytes of the blocks that all stages take turns in; 0: each has its own */
    int *weights;                    /* held by each local stage: its gathered weights */
    int *weight_grads;               /* likewise: its gradients of the step */
    bool *gathering;                 /* of a local stage: its weights have been asked for and not awaited */
    bool *reducing;                  /* likewise: the sum of its gradients has been begun and not awaited */
    sl_held *held;
    int held_count;
    int spare; /* entry of held that is free again, linked through refs and cell; 0: none */
    size_t held_capacity;
} sl_compiler;

SL_MUST_CHECK sl_status sl_compiler_create(const sl_compile_options *options, sl_rank_program *program,
                                           sl_compiler *out);
void sl_compiler_free(sl_compiler *compiler);

/* Entries of the tables. */
int *sl_compiler_input(const sl_compiler *compiler, int *table, int stage, int input, int microbatch);
int *sl_compiler_output(const sl_compiler *compiler, int *table, int stage, int output, int microbatch);
int *sl_compiler_grad(const sl_compiler *compiler, int edge, int microbatch);

SL_MUST_CHECK sl_status sl_compiler_emit(sl_compiler *compiler, sl_pipeline_instr instr);

int32_t sl_compiler_cell(sl_compiler *compiler); /* one more, for what stands in no frame */
SL_MUST_CHECK sl_status sl_compiler_place_slot(sl_compiler *compiler, sl_slot slot, int32_t cell);
/* The pointer in cell becomes the held block's. A message sets its own cell. */
SL_MUST_CHECK sl_status sl_compiler_place(sl_compiler *compiler, int held, int32_t cell);

/* One share in a new block, or in a message that has been received. */
SL_MUST_CHECK sl_status sl_compiler_hold_block(sl_compiler *compiler, size_t bytes, int32_t cell, int *out);
SL_MUST_CHECK sl_status sl_compiler_hold_message(sl_compiler *compiler, int route, int32_t cell, int *out);
void sl_compiler_share(sl_compiler *compiler, int held); /* one share more */
/* One share less and *held becomes none; the last gives the memory back. None is fine. */
SL_MUST_CHECK sl_status sl_compiler_drop(sl_compiler *compiler, int *held);

/* ---- Messages and regions ---- */

/* Memory of a received forward value or gradient; one share. */
SL_MUST_CHECK sl_status sl_compiler_receive(sl_compiler *compiler, int route, int microbatch, const sl_meta *metas,
                                            int32_t cell, int *held);
SL_MUST_CHECK sl_status sl_compiler_reserve(sl_compiler *compiler, int route, int microbatch, const sl_meta *metas,
                                            int32_t cell);
SL_MUST_CHECK sl_status sl_compiler_commit(sl_compiler *compiler, int route, int32_t cell);
/* A message with a copy of what stands in from. */
SL_MUST_CHECK sl_status sl_compiler_send_copy(sl_compiler *compiler, int route, int microbatch, const sl_meta *metas,
                                              int32_t from);

/* A region of the microbatch, as large as the stage says. */
SL_MUST_CHECK sl_status sl_compiler_take_region(sl_compiler *compiler, int stage, int microbatch, int which);
/* Gives back what phase was the last to use; without training F is the last of all. */
SL_MUST_CHECK sl_status sl_compiler_drop_used(sl_compiler *compiler, int stage, int microbatch, sl_phase phase);

sl_slot *sl_compiler_region(const sl_compiler *compiler, int stage, int microbatch, int which);

/* ---- Offload ---- */
/* Before the first action: how long each microbatch lies idle. */
SL_MUST_CHECK sl_status sl_compile_offload_begin(sl_compiler *compiler);
/* After F: sends what the microbatch has saved to the host, if it pays. */
SL_MUST_CHECK sl_status sl_compile_offload(sl_compiler *compiler, int stage, int microbatch);
/* Before action `at` of the rank: brings back what it needs, and begins to for the one after it. */
SL_MUST_CHECK sl_status sl_compile_fetch(sl_compiler *compiler, const sl_action *actions, int64_t count, int64_t at);
void sl_compile_computed(sl_compiler *compiler);    /* after an action that computes */
void sl_compile_offload_end(sl_compiler *compiler); /* after the last action */

/* RUN of a phase; the first W or B of a stage starts its gradients. */
SL_MUST_CHECK sl_status sl_compiler_run(sl_compiler *compiler, int stage, int microbatch, sl_phase phase);

/* ---- Weights ---- */
/* Before the first action: how large the blocks of gathered weights and gradients are. */
SL_MUST_CHECK sl_status sl_compile_weights_begin(sl_compiler *compiler);
SL_MUST_CHECK sl_status sl_compile_unshard(sl_compiler *compiler, int stage);
SL_MUST_CHECK sl_status sl_compile_reshard(sl_compiler *compiler, int stage);
SL_MUST_CHECK sl_status sl_compile_reduce_grad(sl_compiler *compiler, int stage);
SL_MUST_CHECK sl_status sl_compile_wait_reduce_grad(sl_compiler *compiler, int stage);
/* Before a phase runs: the weights have come, and the gradients have their place. */
SL_MUST_CHECK sl_status sl_compile_weights_ready(sl_compiler *compiler, int stage, bool starts_grads);
/* After the last action: nothing is on its way, nothing is held. */
SL_MUST_CHECK sl_status sl_compile_weights_end(sl_compiler *compiler);

/* ---- Actions ---- */
/* Memory and messages that a phase needs, and what it leaves: around its RUN. */
SL_MUST_CHECK sl_status sl_compile_forward_begin(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_forward_end(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_backward_begin(sl_compiler *compiler, int stage, int microbatch, sl_phase phase);
SL_MUST_CHECK sl_status sl_compile_backward_end(sl_compiler *compiler, int stage, int microbatch, sl_phase phase);
SL_MUST_CHECK sl_status sl_compile_forward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_recv_forward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_send_forward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_backward(sl_compiler *compiler, int stage, int microbatch,
                                            sl_phase phase); /* I, B */
SL_MUST_CHECK sl_status sl_compile_recv_backward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_send_backward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_weights(sl_compiler *compiler, int stage, int microbatch);

#endif
