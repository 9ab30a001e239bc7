/* Inside of the planner: plans with their figures. */
#ifndef SL_PLAN_RESULT_H
#define SL_PLAN_RESULT_H

#include "plan/placer.h"

struct sl_plan_result {
    sl_schedule *schedule;
    sl_plan_figures figures;
    double *peak_memory; /* (ranks) */
};

/* Takes the schedule over, simulates it and fills the figures; started is when planning began. Fails with
 * SL_ERR_UNSUPPORTED if it needs more memory than there is. */
SL_MUST_CHECK sl_status sl_plan_result_create(const sl_plan_problem *problem, const sl_instance *instance,
                                              const sl_plan_bound *bound, sl_schedule *schedule, const char *method,
                                              double started, sl_plan_result **out);

/* sl_plan_named() for an instance of the problem whose bound is known. */
SL_MUST_CHECK sl_status sl_plan_named_within(const sl_plan_problem *problem, const sl_instance *instance,
                                             const sl_plan_bound *bound, const char *name, sl_plan_result **out);

static inline double sl_plan_result_value(const sl_plan_result *result, sl_objective objective)
{
    return objective == SL_OBJECTIVE_MAKESPAN ? result->figures.makespan : result->figures.stage_time;
}

#endif
