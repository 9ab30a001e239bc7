/* How sluice plan prints what it found. */
#ifndef SLUICE_PLAN_REPORT_H
#define SLUICE_PLAN_REPORT_H

#include <sluice/plan.h>

/* One JSON object with the figures of the plan. */
void plan_print_json(const sl_plan_result *result, int ranks);

/* The plan beside all named schedules, best first, and why a schedule is not among them. */
sl_status plan_print_table(const sl_plan_problem *problem, const sl_plan_result *result);

#endif
