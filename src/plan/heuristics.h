/* Inside of the planner: what makes orders for a whole instance. */
#ifndef SL_PLAN_HEURISTICS_H
#define SL_PLAN_HEURISTICS_H

#include "plan/placer.h"

/* Rounds with all choices, for one stage a rank. */
void sl_run_rounds(sl_placer *placer, double bound, sl_order *best);

/* Rounds, greedy and waves, as far as the budget goes or until the bound is met. */
SL_MUST_CHECK sl_status sl_find_order(const sl_instance *instance, const sl_plan_bound *bound, double budget_seconds,
                                      sl_order *best);

/* Generators that go backward; NULL past the last. */
const char *sl_plan_generator(int index);

#endif
