/* The planner: finds the schedule that takes least time for given costs and memory, and says how far from the best it
 * can be. Knows no device; docs/planner.md explains the method and proves the bounds. */
#ifndef SLUICE_PLAN_H
#define SLUICE_PLAN_H

#include <sluice/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a plan is to make small: the time from the first start to the last end over all ranks, or the largest of the
 * ranks' own times from their first start to their last end. */
typedef enum sl_objective { SL_OBJECTIVE_MAKESPAN, SL_OBJECTIVE_STAGE_TIME } sl_objective;

typedef struct sl_plan_problem {
    int ranks;
    int microbatches;
    int stages_per_rank; /* 0: 1 for LOOP, 2 for V */
    sl_placement placement;
    /* Of one microbatch in one stage: F, I, W, activation and release; and of messages: latency, size, bandwidth, edge
     * sizes of neighbor edges. A B costs I + W; the other costs are not looked at. costs.stages is borrowed. */
    sl_costs costs;
    double memory; /* for the activations of a rank, in their unit; 0: no limit */
    sl_objective objective;
} sl_plan_problem;

/* F=1 I=1 W=1, an activation of 1 a rank (set costs.stage.activation to change it), half of it free when I ends. */
SL_API void sl_plan_problem_init(sl_plan_problem *problem, int ranks, int microbatches, sl_placement placement,
                                 int stages_per_rank);

/* Reads {"stages":[{"F":10,"I":12,"W":8,"activation":1.0}, ...], "comm":1}; further keys: B, unshard, reshard, reduce,
 * gather and release of a stage, size and bandwidth of messages. B is I and W unless it is named; all else that a stage
 * does not name is as in costs->stage. Plans count B as I and W and know no weight actions; the simulator takes all.
 * On success costs->stages is new: free it with sl_plan_free_costs(). */
SL_API SL_MUST_CHECK sl_status sl_plan_load_costs(const char *path, sl_costs *costs, int *stage_count);
SL_API void sl_plan_free_costs(sl_costs *costs);

/* No schedule takes less. */
typedef struct sl_plan_bound {
    double makespan, stage_time;
} sl_plan_bound;

/* Refuses what cannot be planned; says how much memory would be enough if the limit is too low. */
SL_API SL_MUST_CHECK sl_status sl_plan_bounds(const sl_plan_problem *problem, sl_plan_bound *out);

typedef struct sl_plan_figures {
    double makespan, stage_time;
    double bubble;       /* idle share of the makespan, mean over ranks */
    double bubble_stage; /* the same of the stage time */
    sl_plan_bound bound;
    double gap_makespan, gap_stage_time; /* time / bound - 1 */
    double peak_memory;                  /* of the fullest rank */
    double seconds;                      /* that planning took */
    const char *method;                  /* lives as long as the program */
} sl_plan_figures;

/* A schedule with its times. Opaque, immutable. */
typedef struct sl_plan_result sl_plan_result;

/* "ZB-H1", "ZB-1p", .. and the generators that go backward; NULL past the last. */
SL_API const char *sl_plan_name(int index);

/* How the named schedule lays its stages on ranks, and how many a rank it has unless told otherwise. */
SL_API SL_MUST_CHECK sl_status sl_plan_named_placement(const char *name, sl_placement *placement, int *stages_per_rank);

/* The named schedule for these costs. Fails with SL_ERR_UNSUPPORTED if it has another placement or needs more memory
 * than there is. The ZB- and V- schedules depend on the costs; the others are the generators'. */
SL_API SL_MUST_CHECK sl_status sl_plan_named(const sl_plan_problem *problem, const char *name, sl_plan_result **out);

/* The schedule alone, without its figures: a generator's does not depend on costs and memory, and is made at once. */
SL_API SL_MUST_CHECK sl_status sl_plan_make(const sl_plan_problem *problem, const char *name, sl_schedule **out);

#define SL_PLAN_BUDGET 0.5 /* seconds; a good default */

/* The best that is found: all named ones that fit, the heuristics, and then a search that may take about
 * budget_seconds. The budget is counted in steps of the search, not by a clock: equal problems give equal plans. */
SL_API SL_MUST_CHECK sl_status sl_plan_search(const sl_plan_problem *problem, double budget_seconds,
                                              sl_plan_result **out);
SL_API void sl_plan_result_destroy(sl_plan_result *result); /* NULL is fine */

/* Borrowed from the result: the compute order (lower it with sl_schedule_lower()), figures, peak memory of each rank. */
SL_API const sl_schedule *sl_plan_schedule(const sl_plan_result *result);
SL_API const sl_plan_figures *sl_plan_result_figures(const sl_plan_result *result);
SL_API const double *sl_plan_peak_memory(const sl_plan_result *result); /* (ranks) */

#ifdef __cplusplus
}
#endif
#endif
