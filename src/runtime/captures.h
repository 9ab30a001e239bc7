/* What of a step the device does without the host: pieces of a program, runs of instructions on the stream of kernels
 * that wait for no other stream and need nothing of the host in between. A program's first step gives their work to the
 * stream call by call, so that the device has seen every kernel and shape; the second captures each piece, and from then
 * on each is launched as one. On one rank without messages the whole program is one piece, and on several ranks if all
 * messages are those of links. What changes from step to step lies in memory of the device that is written when a step
 * begins.
 *
 * Pieces that hold messages are captured before the second step begins, and all ranks wait for each other before they
 * launch any: making a graph may wait for the device, and then no stream of it may wait for another rank. */
#ifndef SL_RUNTIME_CAPTURES_H
#define SL_RUNTIME_CAPTURES_H

#include "runtime/program.h"

typedef struct sl_piece {
    int64_t first, last; /* instructions; those between that do nothing on the device belong to none */
} sl_piece;

/* The captures of a program's pieces for steps that do the same. */
typedef struct sl_captured {
    sl_capture **pieces; /* NULL each until it is captured */
    int64_t steps;       /* begun */
    bool is_ready;       /* all are captured, ahead of the step */
} sl_captured;

typedef enum sl_captured_kind {
    SL_CAPTURED_STEP,
    SL_CAPTURED_UPDATING, /* with the update that ends the step */
    SL_CAPTURED_KEEPING,  /* a step that adds to the gradients of the one before */
    SL_CAPTURED_EVAL,
    SL_CAPTURED_COUNT
} sl_captured_kind;

/* Of an OVERLAP_F_B in a captured piece: F is on a stream of its own, with scratch of its own. */
typedef struct sl_halves {
    sl_stream *stream; /* NULL: one half runs after the other */
    void *scratch;
    sl_event *parted, *joined;
    bool apart; /* the first has been given to the stream, and the second has not been joined with it */
} sl_halves;

typedef struct sl_captures {
    bool off;
    sl_beside beside; /* for what runs beside the rest of a B in a captured piece; stream NULL: nothing does */
    sl_captured kinds[2][SL_CAPTURED_COUNT]; /* the second for steps that deliver */
    int64_t steps[SL_CAPTURED_COUNT];        /* begun, the same on all ranks */
    int64_t step;                            /* of the running one's kind, from 0 */
    sl_captured *current;                    /* of the running step; NULL: nothing of it is captured or launched */
    bool holds_update;                       /* and it has the update that ends the step */
    sl_stream *capturing;                    /* the stream whose capture has begun; else NULL */
    bool ahead;                              /* pieces are captured now and launched later */
} sl_captures;

/* Finds the pieces, once the order of the instructions is known. */
SL_MUST_CHECK sl_status sl_captures_create(sl_runtime *runtime);
void sl_captures_destroy(sl_runtime *runtime);
/* Another update is to be captured. */
void sl_captures_forget_update(sl_runtime *runtime);

/* The running program begins, and has ended; a capture that a failure interrupted is dropped. */
void sl_captures_begin(sl_runtime *runtime);
void sl_captures_finish(sl_runtime *runtime);

/* Around what an instruction gives to the stream of kernels. *is_done: a launch has given it already. */
SL_MUST_CHECK sl_status sl_captures_enter(sl_runtime *runtime, const sl_instr *instr, bool *is_done);
SL_MUST_CHECK sl_status sl_captures_leave(sl_runtime *runtime, const sl_instr *instr);

/* Around a RUN that is not done yet. If it is captured, *context may get a second stream for parts of it. If it is the first half of an OVERLAP_F_B that is captured, *context gets the stream and
 * the scratch of its own; after the second half the stream of kernels goes on once both are done. */
SL_MUST_CHECK sl_status sl_captures_part(sl_runtime *runtime, const sl_instr *instr, sl_run_context *context);
SL_MUST_CHECK sl_status sl_captures_join(sl_runtime *runtime, const sl_instr *instr);

#endif
