/* From a problem to an instance: what cannot be planned is refused here. */
#include "plan/instance.h"

#include "schedule/timeline.h"

#include <inttypes.h>
#include <math.h>

#define MAX_OPERATIONS ((int64_t)1 << 31)
#define MAX_CHUNKS 256

void sl_plan_problem_init(sl_plan_problem *problem, int ranks, int microbatches, sl_placement placement,
                          int stages_per_rank)
{
    int chunks = stages_per_rank ? stages_per_rank : placement == SL_PLACEMENT_V ? 2 : 1;
    *problem = (sl_plan_problem){
        .ranks = ranks, .microbatches = microbatches, .stages_per_rank = chunks, .placement = placement
    };
    sl_costs_init(&problem->costs);
    problem->costs.stage.activation = chunks > 0 ? 1.0 / chunks : 1;
}

static sl_status check_size(const sl_plan_problem *problem, int chunks)
{
    if (problem->ranks < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%d ranks: 1 or more are needed", problem->ranks);
    if (problem->microbatches < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%d microbatches: 1 or more are needed", problem->microbatches);
    if (chunks < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%d stages a rank: 1 or more are needed", chunks);
    if (problem->placement == SL_PLACEMENT_V && chunks != 2)
        return sl_fail(SL_ERR_ARGUMENT, "%d stages a rank: a V has exactly 2, one down and one up", chunks);
    if (chunks > MAX_CHUNKS)
        return sl_fail(SL_ERR_ARGUMENT, "%d stages a rank: at most %d can be planned", chunks, MAX_CHUNKS);
    int64_t stages = (int64_t)problem->ranks * chunks;
    if (stages > SL_MAX_STAGES)
        return sl_fail(SL_ERR_ARGUMENT, "%" PRId64 " stages: at most %d are possible", stages, SL_MAX_STAGES);
    if (stages * problem->microbatches > MAX_OPERATIONS / 3)
        return sl_fail(SL_ERR_ARGUMENT, "%" PRId64 " stages and %d microbatches make more than %" PRId64 " actions",
                       stages, problem->microbatches, MAX_OPERATIONS);
    return SL_OK;
}

static sl_status fill_stages(const sl_plan_problem *problem, sl_instance *self)
{
    const sl_costs *costs = &problem->costs;
    for (int rank = 0; rank < self->ranks; rank++) {
        for (int chunk = 0; chunk < self->chunks; chunk++) {
            int stage = sl_placement_stage(problem->placement, self->ranks, rank, chunk);
            self->stage_of[rank * self->chunks + chunk] = stage;
            self->rank_of[stage] = rank;
        }
    }
    for (int stage = 0; stage < self->stages; stage++) {
        const sl_stage_cost *cost = costs->stages ? &costs->stages[stage] : &costs->stage;
        if (cost->f <= 0)
            return sl_fail(SL_ERR_ARGUMENT, "F of stage %d takes no time; F must be above 0", stage);
        bool message = stage + 1 < self->stages && self->rank_of[stage] != self->rank_of[stage + 1];
        double size = costs->edge_sizes && stage + 1 < self->stages ? costs->edge_sizes[stage] : costs->message_size;
        self->load[stage] = (sl_stage_load){
            .f = cost->f,
            .i = cost->i,
            .w = cost->w,
            .hold = cost->activation,
            .keep = cost->activation * (1 - cost->release),
            .to_next = message ? costs->latency + (costs->bandwidth > 0 ? size / costs->bandwidth : 0) : 0,
        };
        self->work[self->rank_of[stage]] += cost->f + cost->i + cost->w;
    }
    return SL_OK;
}

/* A microbatch that has passed all stages of a rank is held there by all of them: no order gets by with less. */
static sl_status check_memory(const sl_plan_problem *problem, sl_instance *self)
{
    if (!(problem->memory >= 0) || isinf(problem->memory))
        return sl_fail(SL_ERR_ARGUMENT, "a memory of %g: a number of 0 or more is needed", problem->memory);
    double least = 0;
    int fullest = 0;
    for (int rank = 0; rank < self->ranks; rank++) {
        double sum = 0;
        for (int chunk = 0; chunk < self->chunks; chunk++)
            sum += sl_instance_load(self, rank, chunk)->hold;
        if (sum > least) {
            least = sum;
            fullest = rank;
        }
    }
    self->limit = problem->memory > 0 ? problem->memory : INFINITY;
    self->slack = problem->memory * 1e-9;
    if (least > self->limit + self->slack)
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "a memory of %.10g is too little: rank %d holds %.10g for one microbatch, so %.10g is the "
                       "least that would do",
                       problem->memory, fullest, least, least);
    return SL_OK;
}

sl_status sl_instance_create(const sl_plan_problem *problem, sl_instance *out)
{
    sl_status status = SL_OK;
    int chunks = problem->stages_per_rank ? problem->stages_per_rank : problem->placement == SL_PLACEMENT_V ? 2 : 1;
    sl_instance self = { .ranks = problem->ranks,
                         .chunks = chunks,
                         .microbatches = problem->microbatches,
                         .placement = problem->placement,
                         .objective = problem->objective };
    *out = (sl_instance){ 0 };
    SL_TRY(check_size(problem, chunks));
    self.stages = self.ranks * chunks;
    SL_TRY(sl_costs_check(&problem->costs, self.stages, self.stages - 1));
    SL_TRY(SL_NEW_ARRAY(self.load, self.stages));
    SL_TRY(SL_NEW_ARRAY(self.rank_of, self.stages));
    SL_TRY(SL_NEW_ARRAY(self.stage_of, self.stages));
    SL_TRY(SL_NEW_ARRAY(self.work, self.ranks));
    SL_TRY(fill_stages(problem, &self));
    SL_TRY(check_memory(problem, &self));
    *out = self;
    self = (sl_instance){ 0 };
done:
    sl_instance_destroy(&self);
    return status;
}

void sl_instance_destroy(sl_instance *instance)
{
    sl_free(instance->load);
    sl_free(instance->rank_of);
    sl_free(instance->stage_of);
    sl_free(instance->work);
    *instance = (sl_instance){ 0 };
}
