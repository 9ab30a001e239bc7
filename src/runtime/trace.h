/* Trace: a ring of what a rank did and waited for, filled without allocating. */
#ifndef SL_RUNTIME_TRACE_H
#define SL_RUNTIME_TRACE_H

#include "base/clock.h"
#include <sluice/runtime.h>

typedef enum sl_trace_kind {
    SL_TRACE_PHASE,   /* F, I, W or B of a stage */
    SL_TRACE_RECEIVE, /* from asking for a message until it was there */
    SL_TRACE_RESERVE, /* from asking for room until it was there */
    SL_TRACE_WEIGHTS, /* UNSHARD, RESHARD, REDUCE_GRAD */
    SL_TRACE_END      /* sums over tied stages and losses at the end of a step */
} sl_trace_kind;

typedef struct sl_trace_event {
    uint64_t start, end; /* ticks of the trace's clock */
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
    int64_t next;     /* count % capacity */
    sl_clock clock;
    uint64_t last; /* end of the newest event where what follows begins there; else 0 */
} sl_trace;

/* Start of what comes now. An event that follows another at once shares its time stamp. */
static inline uint64_t sl_trace_start(const sl_trace *trace)
{
    return trace->last ? trace->last : sl_clock_ticks(&trace->clock);
}

/* The event ends now. */
static inline void sl_trace_add(sl_trace *trace, sl_trace_event event)
{
    event.end = trace->last = sl_clock_ticks(&trace->clock);
    trace->events[trace->next] = event;
    trace->count++;
    if (++trace->next == trace->capacity)
        trace->next = 0;
}

/* Something that is not recorded takes time: the next event starts when it starts. */
static inline void sl_trace_break(sl_trace *trace)
{
    trace->last = 0;
}

#endif
