/* Stages and schedules of a candidate. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "schedule/schedule.h"

#include <math.h>
#include <string.h>

/* Ranks that can work at once. */
static int core_count(const sl_tune *tune)
{
    return (int)fmax(1, sl_tune_cores() / (double)tune->config->parallel.threads);
}

static sl_status measure_costs(const sl_tune *tune, tune_costs *costs)
{
    return sl_tune_measure_costs(&tune->model, tune->ranks, core_count(tune), costs);
}

/* Of the candidate, not known yet. */
static tune_costs costs_of(const sl_tune *tune, const tune_candidate *candidate)
{
    return (tune_costs){ .rows = candidate->rows,
                         .recompute = candidate->recompute,
                         .packs = tune->measure && candidate->microbatches > 1 };
}

static bool are_alike(const tune_costs *a, const tune_costs *b)
{
    return a->rows == b->rows && a->recompute == b->recompute && a->packs == b->packs;
}

/* Those of this size and choice: known, or computed now. */
static sl_status find_costs(sl_tune *tune, const tune_candidate *candidate, tune_costs **out)
{
    sl_status status = SL_OK;
    tune_costs costs = costs_of(tune, candidate);
    for (int i = 0; i < tune->cost_count; i++) {
        if (are_alike(&tune->costs[i], &costs)) {
            *out = &tune->costs[i];
            return SL_OK;
        }
    }
    SL_TRY(sl_tune_count_costs(&tune->model, &tune->cluster, &costs));
    SL_TRY(SL_GROW(tune->costs, &tune->cost_capacity, tune->cost_count + 1));
    if (tune->measure)
        SL_TRY(measure_costs(tune, &costs));
    tune->costs[tune->cost_count] = costs;
    *out = &tune->costs[tune->cost_count++];
    costs.moments = costs.crowd_moments = (tune_moments){ 0 };
done:
    sl_tune_moments_clear(&costs.moments);
    sl_tune_moments_clear(&costs.crowd_moments);
    return status;
}

sl_status sl_tune_measure_layers(sl_tune *tune)
{
    sl_status status = SL_OK;
    for (int i = 0; i < tune->cost_count && tune->measure && status == SL_OK; i++)
        status = measure_costs(tune, &tune->costs[i]);
    return status;
}

void sl_tune_forget_entry(sl_tune *tune, int index)
{
    const tune_costs own = costs_of(tune, &tune->entries[index].candidate);
    for (int i = 0; i < tune->cost_count; i++) {
        if (are_alike(&tune->costs[i], &own))
            tune->costs[i].moments.count = 0;
    }
}

/* What crowded ranks lose stays as it is: it does not change with the speed of the processors. */
sl_status sl_tune_measure_entry(sl_tune *tune, int index)
{
    sl_status status = SL_OK;
    int cores = core_count(tune), at_once = tune->ranks < cores ? tune->ranks : cores;
    tune_costs *costs = NULL;
    SL_TRY(find_costs(tune, &tune->entries[index].candidate, &costs));
    if (tune->measure)
        SL_TRY(sl_tune_measure_costs(&tune->model, at_once, cores, costs));
done:
    return status;
}

static void add_unit(tune_stages *stages, int stage, const tune_cost *cost)
{
    sl_stage_cost *sum = &stages->costs[stage];
    double early = sum->activation * sum->release + cost->until_i;
    sum->f += cost->f;
    sum->i += cost->i;
    sum->w += cost->w;
    sum->b += cost->b;
    sum->activation += cost->until_i + cost->until_w;
    sum->release = sum->activation > 0 ? early / sum->activation : 0;
    stages->kept[stage] += cost->kept;
    stages->params[stage] += cost->params;
    stages->grads[stage] += cost->grads;
    stages->elements[stage] += cost->elements;
    stages->kernels[stage] += cost->kernels;
    stages->scratch[stage] = fmax(stages->scratch[stage], cost->scratch);
}

void sl_tune_clear_stages(tune_stages *stages)
{
    sl_free(stages->cuts);
    sl_free(stages->costs);
    sl_free(stages->hops);
    *stages = (tune_stages){ 0 };
}

/* Where the stages begin. What they hold is estimated as with 1F1B and replicas that share the optimizer. */
static sl_status cut_model(const sl_tune *tune, const tune_candidate *candidate, const tune_costs *costs, int *cuts)
{
    sl_status status = SL_OK;
    const tune_model *model = &tune->model;
    int units = model->unit_count, stages = candidate->pp * candidate->chunks;
    double *seconds = NULL, *in_flight = NULL, most = (double)candidate->microbatches;
    SL_TRY(SL_NEW_ARRAY(seconds, (int64_t)3 * units));
    SL_TRY(SL_NEW_ARRAY(in_flight, stages));
    double *fixed = seconds + units, *held = fixed + units;
    for (int u = 0; u < units; u++) {
        const tune_cost *cost = &costs->kinds[model->units[u].kind];
        bool inside = candidate->recompute == 1 && model->units[u].inner; /* the block's input alone is held */
        double state = cost->elements * tune->setting.state_bytes;
        seconds[u] = cost->f + fmin(cost->b, cost->i + cost->w);
        fixed[u] = cost->params + cost->grads + (cost->params + 2 * state) / candidate->dp;
        held[u] = cost->until_i + cost->until_w - (inside ? cost->input : 0);
    }
    for (int s = 0; s < stages; s++)
        in_flight[s] = fmin(most, ceil((double)(stages - s) / candidate->chunks));
    const tune_cut_costs all = { .seconds = seconds, .fixed = fixed, .held = held, .in_flight = in_flight };
    SL_TRY(sl_tune_cut(&all, units, stages, cuts));
done:
    sl_free(in_flight);
    sl_free(seconds);
    return status;
}

sl_status sl_tune_make_stages(sl_tune *tune, const tune_candidate *candidate, const int *cuts, tune_stages *out)
{
    sl_status status = SL_OK;
    const tune_model *model = &tune->model;
    tune_costs *costs = NULL;
    tune_stages made = { .count = candidate->pp * candidate->chunks };
    SL_TRY(find_costs(tune, candidate, &costs));
    made.crowded = costs->crowded;
    made.waking = tune->setting.machine.waking;
    SL_TRY(SL_NEW_ARRAY(made.cuts, made.count));
    SL_TRY(SL_NEW_ARRAY(made.costs, made.count));
    SL_TRY(SL_NEW_ARRAY(made.hops, (int64_t)7 * made.count));
    made.kept = made.hops + made.count;
    made.scratch = made.kept + made.count;
    made.params = made.scratch + made.count;
    made.grads = made.params + made.count;
    made.elements = made.grads + made.count;
    made.kernels = made.elements + made.count;
    if (cuts)
        memcpy(made.cuts, cuts, (size_t)(made.count - 1) * sizeof *cuts);
    else
        SL_TRY(cut_model(tune, candidate, costs, made.cuts));
    double block_scratch = 0; /* of the units of a block so far: computed again, they are all there at once */
    for (int u = 0, s = 0; u < model->unit_count; u++) {
        const tune_cost *cost = &costs->kinds[model->units[u].kind];
        bool starts = s + 1 < made.count && made.cuts[s] == u;
        if (starts) {
            int from = sl_placement_rank(candidate->placement, candidate->pp, s);
            int to = sl_placement_rank(candidate->placement, candidate->pp, s + 1);
            made.hops[s++] = sl_tune_hop(&tune->cluster, candidate->dp, from, to, cost->input);
        }
        tune_cost own = *cost;
        own.f += cost->pack_f / (double)candidate->microbatches;
        own.i += cost->pack_i / (double)candidate->microbatches;
        own.b += cost->pack_i / (double)candidate->microbatches;
        block_scratch = cost->scratch + (model->units[u].inner && !starts ? block_scratch : 0);
        if (candidate->recompute == 1)
            own.scratch = block_scratch;
        if (candidate->recompute == 1 && model->units[u].inner && !starts) { /* the block's input alone is held */
            double *held = own.until_w >= own.input ? &own.until_w : &own.until_i;
            *held = fmax(0, *held - own.input);
        }
        add_unit(&made, s, &own);
    }
    *out = made;
    made = (tune_stages){ 0 };
done:
    sl_tune_clear_stages(&made);
    return status;
}

void sl_tune_split_costs(const tune_stages *stages, sl_stage_cost *out)
{
    for (int s = 0; s < stages->count; s++) {
        const sl_stage_cost *whole = &stages->costs[s];
        double after = whole->activation * (1 - whole->release) + stages->kept[s]; /* held when I has ended */
        out[s] = *whole;
        out[s].activation = fmax(whole->activation, after);
        out[s].release = out[s].activation > 0 ? 1 - after / out[s].activation : 0;
    }
}

/* What is computed again is computed by I, and kept until W: apart from each other they would hold what recomputation is
 * to save. */
static bool runs_whole_backward(const tune_candidate *candidate)
{
    return candidate->recompute > 0;
}

/* The planner's problem: memory in shares of what each rank has left for activations. A whole backward is an I that takes
 * the time of B and frees everything, with a W of no time. For a bound it is the least that any order holds. */
typedef enum problem_purpose { PROBLEM_SEARCH, PROBLEM_BOUND } problem_purpose;

static sl_status state_problem(const sl_tune *tune, const tune_candidate *candidate, const tune_stages *stages,
                               problem_purpose purpose, sl_stage_cost *costs, sl_plan_problem *out)
{
    sl_plan_problem_init(out, candidate->pp, (int)candidate->microbatches, candidate->placement, candidate->chunks);
    sl_tune_split_costs(stages, costs);
    for (int s = 0; s < stages->count; s++) {
        int rank = sl_placement_rank(candidate->placement, candidate->pp, s);
        double left = candidate->target - sl_tune_fixed_memory(&tune->setting, stages, candidate, rank);
        if (left <= 0)
            return sl_fail(SL_ERR_UNSUPPORTED, "rank %d has no memory for activations", rank);
        if (purpose == PROBLEM_BOUND) {
            costs[s] = stages->costs[s];
        } else if (runs_whole_backward(candidate)) {
            costs[s] = stages->costs[s];
            costs[s].i = costs[s].b;
            costs[s].release = 1;
        }
        costs[s].activation /= left;
        costs[s].w = fmin(costs[s].w, fmax(0, costs[s].b - costs[s].i)); /* a B may take less than I and W */
    }
    out->costs.stages = costs;
    out->costs.edge_sizes = stages->hops;
    out->costs.bandwidth = 1;
    out->memory = 1;
    return SL_OK;
}

/* Every I becomes a B, and W are left out. */
static sl_status join_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    sl_status status = SL_OK;
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(in, rank, &count);
    (void)user;
    for (int64_t i = 0; i < count && status == SL_OK; i++) {
        sl_action action = actions[i];
        if (action.kind == SL_KIND_I)
            action.kind = SL_KIND_B;
        if (action.kind != SL_KIND_W)
            status = sl_action_list_push(out, action);
    }
    return status;
}

sl_status sl_tune_make_schedule(const sl_tune *tune, const tune_candidate *candidate, const tune_stages *stages,
                                const char *name, double budget, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_plan_problem problem;
    sl_plan_result *result = NULL;
    sl_stage_cost *costs = NULL;
    SL_TRY(SL_NEW_ARRAY(costs, stages->count));
    if (strcmp(name, "found") != 0) {
        const sl_generate_options options = { .name = name,
                                              .ranks = candidate->pp,
                                              .microbatches = (int)candidate->microbatches,
                                              .stages_per_rank = candidate->chunks };
        SL_TRY(sl_schedule_generate(&options, out));
    } else {
        SL_TRY(state_problem(tune, candidate, stages, PROBLEM_SEARCH, costs, &problem));
        SL_TRY(sl_plan_search(&problem, budget, &result));
        SL_TRY(runs_whole_backward(candidate) ? sl_schedule_map(sl_plan_schedule(result), join_rank, NULL, out)
                                              : sl_schedule_merge_backward(sl_plan_schedule(result), out));
    }
done:
    sl_plan_result_destroy(result);
    sl_free(costs);
    return status;
}

sl_status sl_tune_bound_schedules(const sl_tune *tune, const tune_candidate *candidate, const tune_stages *stages,
                                  double *bound, double *unlimited)
{
    sl_status status = SL_OK;
    sl_plan_problem problem;
    sl_stage_cost *costs = NULL;
    sl_plan_bound least, free;
    SL_TRY(SL_NEW_ARRAY(costs, stages->count));
    SL_TRY(state_problem(tune, candidate, stages, PROBLEM_BOUND, costs, &problem));
    SL_TRY(sl_plan_bounds(&problem, &least));
    problem.memory = 0;
    SL_TRY(sl_plan_bounds(&problem, &free));
    *bound = least.makespan;
    *unlimited = free.makespan;
done:
    sl_free(costs);
    return status;
}
