/* Trace: a ring of what a rank did and waited for, filled without allocating. */
#ifndef SL_RUNTIME_TRACE_H
#define SL_RUNTIME_TRACE_H

#include <sluice/runtime.h>

typedef enum sl_trace_kind {
    SL_TRACE_PHASE,   /* F, I, W or B of a stage */
    SL_TRACE_RECEIVE, /* from asking for a message until it was there */
    SL_TRACE_RESERVE, /* from asking for room until it was there */
    SL_TRACE_WEIGHTS, /* UNSHARD, RESHARD, REDUCE_GRAD */
    SL_TRACE_END      /* sums over tied stages and losses at the end of a step */
} sl_trace_kind;

typedef struct sl_trace_event {
    double start, end; /* sl_now() */
    int64_t step;
    int32_t microbatch;
    uint16_t stage;
    uint8_t kind;  /* an sl_trace_kind */
    uint8_t what;  /* PHASE: an sl_phase; WEIGHTS: an sl_kind */
    int32_t route; /* of a message */
} sl_trace_event;

typedef struct sl_trace {
    sl_trace_event *events;
    int64_t capacity; /* 0: no trace */
    int64_t count;    /* ever recorded; the newest `capacity` are kept */
} sl_trace;

static inline void sl_trace_add(sl_trace *trace, sl_trace_event event)
{
    trace->events[trace->count++ % trace->capacity] = event;
}

#endif
