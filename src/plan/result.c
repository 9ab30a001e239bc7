/* Plans with their figures: every plan is simulated, whatever made it. */
#include "plan/result.h"

#include "schedule/timeline.h"

#include <string.h>

static sl_stage_cost compute_costs(const sl_stage_cost *cost)
{
    return (sl_stage_cost){ .f = cost->f,
                            .i = cost->i,
                            .w = cost->w,
                            .b = cost->i + cost->w,
                            .activation = cost->activation,
                            .release = cost->release };
}

/* The problem's costs with B = I + W, without weight actions. stages is the caller's to free. */
static sl_status plan_costs(const sl_plan_problem *problem, int stages, sl_costs *out, sl_stage_cost **copy)
{
    sl_status status = SL_OK;
    *out = problem->costs;
    out->stage = compute_costs(&out->stage);
    out->overlap = 0;
    if (!problem->costs.stages)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(*copy, stages));
    for (int stage = 0; stage < stages; stage++)
        (*copy)[stage] = compute_costs(&problem->costs.stages[stage]);
    out->stages = *copy;
done:
    return status;
}

static double gap(double value, double bound)
{
    double over = bound > 0 ? value / bound - 1 : 0;
    return over > 1e-9 ? over : 0; /* sums in another order differ in the last digits */
}

static void fill_figures(sl_plan_result *self, const sl_instance *instance, const sl_timeline *timeline)
{
    sl_plan_figures *figures = &self->figures;
    double busy = 0;
    figures->makespan = sl_timeline_makespan(timeline);
    for (int rank = 0; rank < instance->ranks; rank++) {
        int64_t count;
        (void)sl_schedule_actions(self->schedule, rank, &count);
        const sl_span *spans = sl_timeline_spans(timeline, rank);
        double own = spans[count - 1].end - spans[0].start; /* compute actions alone, one after the other */
        figures->stage_time = own > figures->stage_time ? own : figures->stage_time;
        busy += instance->work[rank] * instance->microbatches;
        self->peak_memory[rank] = sl_timeline_peak_memory(timeline, rank);
        if (self->peak_memory[rank] > figures->peak_memory)
            figures->peak_memory = self->peak_memory[rank];
    }
    busy /= instance->ranks;
    figures->bubble = 1 - busy / figures->makespan;
    figures->bubble_stage = 1 - busy / figures->stage_time;
    figures->gap_makespan = gap(figures->makespan, figures->bound.makespan);
    figures->gap_stage_time = gap(figures->stage_time, figures->bound.stage_time);
}

sl_status sl_plan_result_create(const sl_plan_problem *problem, const sl_instance *instance, const sl_plan_bound *bound,
                                sl_schedule *schedule, const char *method, double started, sl_plan_result **out)
{
    sl_status status = SL_OK;
    sl_plan_result *self = NULL;
    sl_timeline *timeline = NULL;
    sl_stage_cost *stages = NULL;
    sl_costs costs;

    SL_TRY(SL_NEW(self));
    self->figures.method = method;
    self->figures.bound = *bound;
    SL_TRY(SL_NEW_ARRAY(self->peak_memory, instance->ranks));
    SL_TRY(plan_costs(problem, instance->stages, &costs, &stages));
    SL_TRY(sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline));
    self->schedule = schedule;
    fill_figures(self, instance, timeline);
    if (self->figures.peak_memory > instance->limit + instance->slack) {
        self->schedule = NULL;
        SL_TRY(sl_fail(SL_ERR_UNSUPPORTED, "%s needs a memory of %.10g, there is %.10g", method,
                       self->figures.peak_memory, instance->limit));
    }
    self->figures.seconds = sl_now() - started;
    schedule = NULL;
    *out = self;
    self = NULL;
done:
    sl_plan_result_destroy(self);
    sl_schedule_destroy(schedule);
    sl_timeline_destroy(timeline);
    sl_free(stages);
    return status;
}

void sl_plan_result_destroy(sl_plan_result *result)
{
    if (!result)
        return;
    sl_schedule_destroy(result->schedule);
    sl_free(result->peak_memory);
    sl_free(result);
}

const sl_schedule *sl_plan_schedule(const sl_plan_result *result)
{
    return result->schedule;
}

const sl_plan_figures *sl_plan_result_figures(const sl_plan_result *result)
{
    return &result->figures;
}

const double *sl_plan_peak_memory(const sl_plan_result *result)
{
    return result->peak_memory;
}
