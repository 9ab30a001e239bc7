/* Inside of the planner: what is planned. */
#ifndef SL_PLAN_INSTANCE_H
#define SL_PLAN_INSTANCE_H

#include <sluice/plan.h>

#include "base/alloc.h"

/* Of one microbatch in one stage. */
typedef struct sl_stage_load {
    double f, i, w;
    double hold;    /* memory from the start of F to the end of I */
    double keep;    /* of it, what stays to the end of W */
    double to_next; /* time of a message between this stage and the next, either way; 0 on the same rank */
} sl_stage_load;

/* A problem that has been checked, stage by stage. A rank's stages are its chunks, in rising order. */
typedef struct sl_instance {
    int ranks, chunks, stages, microbatches;
    sl_placement placement;
    sl_objective objective;
    sl_stage_load *load; /* (stages) */
    int *rank_of;        /* (stages) */
    int *stage_of;       /* (ranks, chunks) */
    double *work;        /* (ranks) F, I and W of all chunks */
    double limit;        /* memory of a rank; infinity: none */
    double slack;        /* sums of memory may exceed the limit by this: rounding */
} sl_instance;

/* Refuses what cannot be planned. On failure *out is empty; destroy accepts that. */
SL_MUST_CHECK sl_status sl_instance_create(const sl_plan_problem *problem, sl_instance *out);
void sl_instance_destroy(sl_instance *instance);

static inline int sl_instance_stage(const sl_instance *instance, int rank, int chunk)
{
    return instance->stage_of[rank * instance->chunks + chunk];
}

static inline const sl_stage_load *sl_instance_load(const sl_instance *instance, int rank, int chunk)
{
    return &instance->load[sl_instance_stage(instance, rank, chunk)];
}

SL_MUST_CHECK sl_status sl_instance_bounds(const sl_instance *instance, sl_plan_bound *out);

/* A part of it: all ranks together. tail: (stages) from the end of I to the end of all that must follow; most_forward:
 * (ranks) how long F can run before the first I. */
SL_MUST_CHECK sl_status sl_unrolled_bound(const sl_instance *instance, const double *tail, const double *most_forward,
                                          sl_plan_bound *out);

/* Another part: raises the known bound of the makespan by what windows of time leave no room for. */
SL_MUST_CHECK sl_status sl_windows_bound(const sl_instance *instance, double known, double *makespan);

#endif
