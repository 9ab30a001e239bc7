/* The order of a step on a device that works by itself. Kernels, copies from messages and copies to messages run on a
 * stream each, so that copies hide behind kernels. What must wait for what is known once the program and its memory are:
 * two instructions on different streams that touch the same block, one of them writing, are joined by an event. On a
 * device whose memory is the host's there is one stream and nothing to order. */
#ifndef SL_RUNTIME_LANES_H
#define SL_RUNTIME_LANES_H

#include "runtime/captures.h"
#include "runtime/program.h"

#include <stdatomic.h>

typedef enum sl_lane { SL_LANE_COMPUTE, SL_LANE_IN, SL_LANE_OUT, SL_LANE_COUNT } sl_lane;

/* What an instruction waits for, and what waits for it. */
typedef struct sl_instr_order {
    uint8_t lane;
    int32_t waits[SL_LANE_COUNT]; /* event of that lane to wait for first; -1: none */
    int32_t event;                /* to record afterwards; -1: none */
    int32_t piece;                /* captured piece that it belongs to; -1: none */
} sl_instr_order;

/* An output on its way to whoever asked. */
typedef struct sl_delivery {
    sl_runtime *runtime;
    const sl_instr *instr;
} sl_delivery;

/* What a program needs beside its instructions; arrays are empty on a host device. */
typedef struct sl_program_order {
    sl_instr_order *instrs;  /* one an instruction */
    sl_delivery *deliveries; /* one an instruction */
    sl_piece *pieces;        /* see captures.h */
    int piece_count;
    bool holds_messages; /* the pieces do: links give all messages to the stream of kernels */
    bool is_one_piece;   /* all that the device does */
} sl_program_order;

typedef struct sl_lanes {
    sl_stream *streams[SL_LANE_COUNT]; /* all the runtime's stream without copy lanes */
    bool has_copy_lanes;               /* not on a host device */
    sl_stream *posted;                 /* for collectives; the runtime's if there are none, and on a host device */
    sl_event *before_posted;           /* what it waits for of the runtime's stream */
    sl_halves halves;
    sl_event **events;
    int event_count;
    sl_program_order train[2], eval[2]; /* the second for steps that deliver outputs or gradients of the batch */
    bool delivers;                      /* the running step does */
    const sl_program *given;            /* to the streams; what they were last seen at (progress.c) */
    const sl_program_action *seen_at;
    /* How far the stream of kernels is, for the watch (progress.c): 1 + the last RUN of the running program that the host
     * has given to it, and that it has passed; it writes the latter itself. NULL: nobody watches. */
    _Atomic(const sl_program *) watched;
    _Atomic uint32_t given_runs;
    _Atomic uint32_t *passed_runs;
    atomic_bool
        may_be_held_up; /* by another rank, while it runs the program: what it does not pass may be no fault of its own */
    int64_t held_at;    /* instruction at which they were seen to wait for another rank; -1: none */
    double held_since;
    sl_captures captures;

    /* Host memory that copies go through. */
    char *inputs;  /* image of the block of inputs */
    char *output;  /* one output or input gradient at a time */
    char *scalars; /* losses, then seeds */

    /* The first output of the step that could not be delivered. */
    sl_status failed;
    const sl_instr *failed_instr;
    char message[512];
} sl_lanes;

/* Once the runtime has its memory. */
SL_MUST_CHECK sl_status sl_lanes_create(sl_runtime *runtime);
/* Waits for all streams; what is freed afterwards no stream touches. */
void sl_lanes_destroy(sl_runtime *runtime);

/* Of the running program. */
const sl_program_order *sl_lanes_order(const sl_runtime *runtime);
/* Around an instruction of the running program. */
SL_MUST_CHECK sl_status sl_lanes_before(sl_runtime *runtime, const sl_instr *instr);
SL_MUST_CHECK sl_status sl_lanes_after(sl_runtime *runtime, const sl_instr *instr);

/* The end of a step: waits for all streams, and tells of an output that could not be delivered. */
SL_MUST_CHECK sl_status sl_lanes_finish(sl_runtime *runtime, const sl_program *program);
/* The end of a step that failed: waits for all streams, so that none still writes to what the caller gave. */
void sl_lanes_settle(sl_runtime *runtime);

#endif
