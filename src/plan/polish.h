/* Inside of the local search: the critical path of an order. */
#ifndef SL_PLAN_POLISH_H
#define SL_PLAN_POLISH_H

#include "plan/placer.h"

/* An F or I on the path: the step-th of its rank. */
typedef struct sl_critical_step {
    int rank, step;
} sl_critical_step;

typedef struct sl_critical {
    sl_critical_step *steps; /* (capacity) from the end to the start */
    int count, capacity;
    int *place_f, *place_i; /* (stages, microbatches) where the operation stands in its rank's order */
    int *step_of;           /* (ranks, operations) how many F and I stand before */
    int *seen;              /* (chunks, kinds) */
} sl_critical;

/* Of the order that the placer has just finished; it must record the starts. */
void sl_critical_find(const sl_placer *placer, sl_critical *self);

#endif
