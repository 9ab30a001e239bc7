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
    bool marked;   /* start and end are numbers of marks until the step has ended */
} sl_trace_event;

typedef struct sl_trace {
    sl_trace_event *events;
    int64_t capacity; /* 0: no trace */
    int64_t count;    /* ever recorded; the newest `capacity` are kept */
    int64_t next;     /* count % capacity */
    sl_clock clock;
    uint64_t last; /* end of the newest event if what follows begins there; else 0 */

    /* A device that works by itself: events on its stream in place of times. */
    sl_event **marks;
    int64_t mark_capacity; /* 0: the device's times are the host's */
    int64_t mark_count;    /* of this step */
    sl_event *now[2];
} sl_trace;

/* Marks for `phases` phases and messages a step. */
SL_MUST_CHECK sl_status sl_trace_create_marks(sl_trace *trace, sl_device *device, int64_t phases);
void sl_trace_free(sl_trace *trace);
/* The time at which the stream gets here: known at the end of the step. stream: NULL if a launch has given it the mark. */
SL_MUST_CHECK sl_status sl_trace_mark(sl_trace *trace, sl_stream *stream, uint64_t *out);
/* The event ends when the stream gets here. */
SL_MUST_CHECK sl_status sl_trace_add_marked(sl_trace *trace, sl_stream *stream, sl_trace_event event);
/* Turns the marks of the step, which has ended, into times. */
SL_MUST_CHECK sl_status sl_trace_resolve(sl_trace *trace, sl_stream *stream);

/* Start of what comes now. An event that follows another at once shares its time stamp. */
static inline uint64_t sl_trace_start(const sl_trace *trace)
{
    return trace->last ? trace->last : sl_clock_ticks(&trace->clock);
}

static inline void sl_trace_put(sl_trace *trace, sl_trace_event event)
{
    trace->events[trace->next] = event;
    trace->count++;
    if (++trace->next == trace->capacity)
        trace->next = 0;
}

/* The event ends now. */
static inline void sl_trace_add(sl_trace *trace, sl_trace_event event)
{
    event.end = trace->last = sl_clock_ticks(&trace->clock);
    sl_trace_put(trace, event);
}

/* Something that is not recorded takes time: the next event starts when it starts. */
static inline void sl_trace_break(sl_trace *trace)
{
    trace->last = 0;
}

#endif
