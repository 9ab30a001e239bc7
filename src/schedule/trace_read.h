/* What a Chrome trace says was run. */
#ifndef SL_SCHEDULE_TRACE_READ_H
#define SL_SCHEDULE_TRACE_READ_H

#include "schedule/timeline.h"

/* A compute action that ran. */
typedef struct sl_ran_action {
    double start, end; /* microseconds */
    int64_t step;
    int rank;
    sl_action action;
} sl_ran_action;

typedef struct sl_ran_list {
    sl_ran_action *items;
    size_t count, capacity;
    int ranks, microbatches;
} sl_ran_list;

/* The compute actions of a file, by rank, then by time; the caller frees items, also after a failure. */
SL_MUST_CHECK sl_status sl_trace_read(const char *path, sl_ran_list *list);
/* The same as a schedule. */
SL_MUST_CHECK sl_status sl_trace_schedule(const sl_ran_list *list, sl_schedule **out);
/* Measured times, in milliseconds from the first action. The items are in the order of the schedule's lists, and so of
 * the timeline's spans. */
void sl_trace_fill(const sl_ran_list *list, sl_timeline *timeline);

#endif
