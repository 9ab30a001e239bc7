/* Programs bound to memory: what this rank does in a step, with every buffer and channel resolved to its address. */
#ifndef SL_RUNTIME_PROGRAM_H
#define SL_RUNTIME_PROGRAM_H

#include "pipeline/pipeline.h"
#include "runtime/stage.h"

typedef struct sl_instr {
    uint8_t code;      /* an sl_code */
    uint8_t phase;     /* RUN */
    bool starts_grads; /* INPUT_GRAD: overwrites its place in the whole; else adds to it */
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
    sl_frame *frames;          /* of the rank's stages: [local stage * microbatches + microbatch] */
    void **cells;              /* that frames and instructions point to */
} sl_program;

/* Resolves the rank's program. Slots lie at `slots`; the caller fills the cells of root inputs, losses and seeds. */
SL_MUST_CHECK sl_status sl_program_bind(const sl_pipeline *pipeline, int rank, bool training, void *slots,
                                        sl_program *out);
void sl_program_free(sl_program *program);

#endif
