/* Programs bound to memory: what this rank does in a step, with every buffer and channel resolved to its address. */
#ifndef SL_RUNTIME_PROGRAM_H
#define SL_RUNTIME_PROGRAM_H

#include "pipeline/pipeline.h"
#include "runtime/stage.h"

typedef struct sl_instr {
    uint8_t code;      /* an sl_code */
    uint8_t phase;     /* RUN */
    bool starts_grads; /* INPUT_GRAD: overwrites its place in the whole; else adds to it */
    bool beside;       /* RUN: may run at the same time as the next RUN */
    int32_t index;     /* channel of a message; OUTPUT, INPUT_GRAD: which of the stage's */
    int32_t microbatch;
    int32_t stage;
    sl_frame *frame;     /* RUN, LOSS, OUTPUT */
    void **cell, **from; /* where the pointers stand */
    const sl_meta *meta; /* of the value in cell */
} sl_instr;

/* The instructions of one action of the schedule. */
typedef struct sl_program_action {
    sl_action action;
    int64_t cell; /* its place in the rank's list of the schedule */
    int64_t first, count;
    char text[48]; /* as far as a note takes it */
} sl_program_action;

typedef struct sl_program {
    sl_program_action *actions;
    int64_t action_count;
    sl_instr *instrs;
    int64_t instr_count, tail; /* those from tail on end the step */
    /* Of the rank's stages: [local stage * microbatches + microbatch], for F; behind them as many again, for the phases
     * that follow: the same, but what was off the device in between lies elsewhere. */
    sl_frame *frames;
    int64_t frame_count; /* of F */
    void **cells;        /* that frames and instructions point to */
} sl_program;

/* The rank's stage that a frame belongs to. */
int sl_program_local_stage(const sl_program *program, const sl_wiring *wiring, const sl_frame *frame);

/* Resolves the rank's program. Slots lie at `slots`, those on the host at `offload`; the caller fills the cells of root
 * inputs, losses and seeds. */
SL_MUST_CHECK sl_status sl_program_bind(const sl_pipeline *pipeline, int rank, bool training, void *slots,
                                        void *offload, sl_program *out);
void sl_program_free(sl_program *program);

#endif
