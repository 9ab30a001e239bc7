/* Inside of timelines. */
#ifndef SL_SCHEDULE_TIMELINE_H
#define SL_SCHEDULE_TIMELINE_H

#include "schedule/schedule.h"

struct sl_timeline {
    const sl_schedule *schedule; /* borrowed */
    sl_stage_cost stage;         /* of every stage */
    sl_stage_cost *stages;       /* NULL, or (stages) in place of it */
    sl_span *spans;              /* all ranks, one after the other */
    int64_t *first;              /* (ranks) where a rank's spans start */
    double makespan;
    double *busy; /* (ranks) time in compute actions */
    int *peak_slots;
    double *peak_memory;
};

/* Finite costs that are not negative, shares from 0 to 1. */
SL_MUST_CHECK sl_status sl_costs_check(const sl_costs *costs, int stages, int edges);

static inline const sl_stage_cost *sl_timeline_cost(const sl_timeline *timeline, int stage)
{
    return timeline->stages ? &timeline->stages[stage] : &timeline->stage;
}

/* With room for every action and the costs copied. */
SL_MUST_CHECK sl_status sl_timeline_create(const sl_schedule *schedule, const sl_costs *costs, sl_timeline **out);
/* Reads the peaks off the finished spans. */
void sl_timeline_find_peaks(sl_timeline *timeline);

#endif
