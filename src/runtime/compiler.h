/* The compiler's state: who holds what memory at the current point of the rank's order. */
#ifndef SL_RUNTIME_COMPILER_H
#define SL_RUNTIME_COMPILER_H

#include "runtime/program.h"

/* Memory that somebody still needs: a block of slots, or a received message. */
typedef struct sl_held {
    int refs;     /* 0: this entry is unused */
    int route;    /* of a message; -1: a block */
    sl_slot slot; /* of a block */
    void **cell;  /* where its pointer stands */
} sl_held;

/* Held values are numbered from 1; 0 is none. Tables have microbatches as their inner dim. */
typedef struct sl_compiler {
    const sl_compile_options *options;
    const sl_wiring *wiring;
    sl_program *program;
    int *local;                      /* of a stage: its place among the rank's stages; -1 on other ranks */
    int *first_input, *first_output; /* of a stage: its first row in the tables */
    int *inputs;                     /* held by each input, from its arrival to its last use */
    int *outputs;                    /* by each output: the maker's own share */
    int *sends;                      /* by each output: until it has been copied into messages */
    int *grads;                      /* by each edge: the gradient that came back, until summed */
    int *output_grads;               /* by each output: the sum */
    int *input_grads;                /* by each input: written and not yet sent */
    sl_slot *regions;                /* saved_i, saved_w, kept of each stage */
    bool *grads_started;             /* of a stage: a W or B has been compiled */
    bool *forward_in_order;          /* of a stage: it sends in the order in which it computes */
    bool *backward_in_order;
    sl_held *held;
    int held_count;
    size_t held_capacity;
} sl_compiler;

SL_MUST_CHECK sl_status sl_compiler_create(const sl_compile_options *options, sl_program *program, sl_compiler *out);
void sl_compiler_free(sl_compiler *compiler);

sl_frame *sl_compiler_frame(const sl_compiler *compiler, int stage, int microbatch); /* NULL without a layout */
SL_MUST_CHECK sl_status sl_compiler_emit(sl_compiler *compiler, sl_instr instr);

/* A pointer of its own, for what stands in no frame; NULL without a layout. */
SL_MUST_CHECK sl_status sl_compiler_cell(sl_compiler *compiler, void ***out);
/* The pointer in cell becomes the held block's; nothing where it is a message, which sets its own cell. */
SL_MUST_CHECK sl_status sl_compiler_place(sl_compiler *compiler, int held, void **cell);

/* One share in a new block, or in a message that has been received. */
SL_MUST_CHECK sl_status sl_compiler_hold_block(sl_compiler *compiler, size_t bytes, void **cell, int *out);
SL_MUST_CHECK sl_status sl_compiler_hold_message(sl_compiler *compiler, int route, void **cell, int *out);
void sl_compiler_share(sl_compiler *compiler, int held); /* one share more */
/* One share less and *held becomes none; the last gives the memory back. None is fine. */
SL_MUST_CHECK sl_status sl_compiler_drop(sl_compiler *compiler, int *held);

/* ---- Messages and regions ---- */

/* Memory of a received forward value or gradient; one share. cell is NULL without a layout. */
SL_MUST_CHECK sl_status sl_compiler_receive(sl_compiler *compiler, int route, int microbatch, const sl_meta *metas,
                                            void **cell, int *held);
SL_MUST_CHECK sl_status sl_compiler_reserve(sl_compiler *compiler, int route, int microbatch, const sl_meta *metas,
                                            void **cell);
SL_MUST_CHECK sl_status sl_compiler_commit(sl_compiler *compiler, int route, void **cell);
/* A message with a copy of what stands in from. */
SL_MUST_CHECK sl_status sl_compiler_send_copy(sl_compiler *compiler, int route, int microbatch, const sl_meta *metas,
                                              void **from);

enum { SL_REGION_SAVED_I, SL_REGION_SAVED_W, SL_REGION_KEPT };
/* A region of the microbatch, as large as the stage says; other ranks' regions do not matter. */
SL_MUST_CHECK sl_status sl_compiler_take_region(sl_compiler *compiler, int stage, int microbatch, int which);
/* Gives back what phase was the last to use; without training F is the last of all. */
SL_MUST_CHECK sl_status sl_compiler_drop_used(sl_compiler *compiler, int stage, int microbatch, sl_phase phase);

/* RUN of a phase; the first W or B of a stage starts its gradients. */
SL_MUST_CHECK sl_status sl_compiler_run(sl_compiler *compiler, int stage, int microbatch, sl_phase phase);

/* ---- Actions ---- */
SL_MUST_CHECK sl_status sl_compile_forward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_recv_forward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_send_forward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_backward(sl_compiler *compiler, int stage, int microbatch,
                                            sl_phase phase); /* I, B */
SL_MUST_CHECK sl_status sl_compile_recv_backward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_send_backward(sl_compiler *compiler, int stage, int microbatch);
SL_MUST_CHECK sl_status sl_compile_weights(sl_compiler *compiler, int stage, int microbatch);

/* Largest over sizes. */
size_t sl_compiler_bytes(const sl_compiler *compiler, const sl_meta *metas);

#endif
