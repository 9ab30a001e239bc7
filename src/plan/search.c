/* The planner itself: the heuristics, the named schedules, the search; the best of all. */
#include "plan/heuristics.h"
#include "plan/player.h"
#include "plan/result.h"

#include <math.h>
#include <string.h>

/* Steps that the search plays in a second, about. */
#define EFFORT_PER_SECOND 36e6

void sl_run_rounds(sl_placer *placer, double bound, sl_order *best)
{
    for (int n = 0; n < 8 && best->value > bound * (1 + 1e-12); n++) {
        sl_rounds_run(placer, (sl_rounds_choice){
                                  .overshoot = (n & 4) != 0, .skip_ahead = (n & 2) == 0, .fill_always = (n & 1) == 0 });
        sl_order_keep_better(placer, "rounds", best);
    }
}

static sl_status try_greedy(sl_placer *placer, const sl_greedy_choice *choice, sl_order *best)
{
    placer->stop = best->value;
    sl_status status = sl_greedy_run(placer, choice);
    placer->stop = INFINITY;
    if (status == SL_OK)
        sl_order_keep_better(placer, "greedy", best);
    return status;
}

/* How many more F may be ahead of I for each stage that follows: as many as the tightest rank has room for. A microbatch
 * is longer in flight the more stages follow, so microbatches that enter at even distances are held in proportion. */
static double even_step(const sl_instance *instance)
{
    double step = INFINITY;
    for (int rank = 0; rank < instance->ranks; rank++) {
        double one = 0, more = 0;
        for (int chunk = 0; chunk < instance->chunks; chunk++) {
            const int stage = sl_instance_stage(instance, rank, chunk);
            one += instance->load[stage].hold;
            more += instance->load[stage].hold * (instance->stages - 1 - stage) / instance->chunks;
        }
        if (more > 0)
            step = fmin(step, (instance->limit - one) / more);
    }
    return step;
}

/* Little memory does not let the first ranks run F until it is full: all would wait for the first I. */
static sl_status run_even(sl_placer *placer, sl_order *best)
{
    double step = even_step(placer->instance);
    if (!(step > 0 && step < 1))
        return SL_OK;
    const sl_greedy_choice choice = {
        .fill_first = 1, .fill_last = 1, .ahead = 1, .ahead_step = step, .deep_first = true
    };
    return try_greedy(placer, &choice, best);
}

/* Every choice once; those that are best most often come first. */
static sl_status run_greedy(sl_placer *placer, double bound, int64_t effort, sl_order *best)
{
    sl_status status = SL_OK;
    static const double fills[] = { 1, 0.25, 0.5, 0.75, 0.001 }, patience[] = { 0, 0.5 };
    static const struct {
        double ahead, step;
    } ahead[] = { { 0, 0 }, { 1, 1.5 }, { 1, 1 }, { 2, 1 }, { 1, 2 } };
    int64_t until = placer->placed + effort;
    for (int n = 0; n < 5 * 5 * 5 * 2 * 2; n++) {
        if (n > 0 && (placer->placed >= until || best->value <= bound * (1 + 1e-12)))
            break;
        sl_greedy_choice choice = { .fill_last = fills[n % 5],
                                    .ahead = ahead[n / 5 % 5].ahead,
                                    .ahead_step = ahead[n / 5 % 5].step,
                                    .forward_first = n / 25 % 2,
                                    .patience = patience[n / 50 % 2],
                                    .fill_first = fills[n / 100 % 5],
                                    .deep_first = true };
        SL_TRY(try_greedy(placer, &choice, best));
    }
done:
    return status;
}

static void copy_order(const sl_instance *instance, const sl_order *from, sl_order *to)
{
    memcpy(to->operations, from->operations, (size_t)from->length * (size_t)instance->ranks * sizeof *from->operations);
    to->value = from->value;
    to->method = from->method;
}

/* A rank has less memory than a microbatch for every rank needs. */
static bool is_tight(const sl_instance *instance)
{
    double held = 0;
    for (int chunk = 0; chunk < instance->chunks; chunk++)
        held += sl_instance_load(instance, 0, chunk)->hold;
    return instance->limit < held * instance->ranks - instance->slack;
}

/* The order of ZBVZeroBubble, which is best on a V for equal costs without delays, and so near the best for others. W
 * follow their I; the local search puts them elsewhere. */
static sl_status take_zbv(const sl_instance *instance, sl_order *out)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    const sl_generate_options options = { .name = "ZBVZeroBubble",
                                          .ranks = instance->ranks,
                                          .microbatches = instance->microbatches };
    SL_TRY(sl_schedule_generate(&options, &schedule));
    for (int rank = 0; rank < instance->ranks; rank++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
        sl_operation *at = out->operations + rank * out->length;
        for (int64_t n = 0; n < count; n++) {
            int chunk = actions[n].stage == sl_instance_stage(instance, rank, 1);
            if (actions[n].kind == SL_KIND_F) {
                *at++ = sl_operation_make(chunk, SL_OPERATION_F);
            } else if (actions[n].kind == SL_KIND_I) {
                *at++ = sl_operation_make(chunk, SL_OPERATION_I);
                *at++ = sl_operation_make(chunk, SL_OPERATION_W);
            }
        }
    }
done:
    sl_schedule_destroy(schedule);
    return status;
}

/* Waves, then the local search from the best order there is; on a V with memory for a microbatch of every rank more of it
 * from ZBVZeroBubble. With little memory good waves are rare, and more of the effort goes into finding one. */
static sl_status search(const sl_instance *instance, int64_t effort, double bound, sl_order *best)
{
    sl_status status = SL_OK;
    sl_order other = { 0 };
    bool tight = is_tight(instance), zbv = instance->placement == SL_PLACEMENT_V && !tight;
    int64_t part = effort / 20, polish = (tight ? 8 : 12) * part;
    SL_TRY(sl_order_create(instance, &other));
    SL_TRY(sl_wave_search(instance, 19 * part - polish, bound, tight, &other));
    if (other.value < best->value)
        copy_order(instance, &other, best);
    if (best->value > bound * (1 + 1e-12) && zbv) {
        other.value = INFINITY;
        SL_TRY(take_zbv(instance, &other));
        SL_TRY(sl_polish(instance, 9 * part, bound, &other));
        polish -= 9 * part;
        if (other.value < best->value)
            copy_order(instance, &other, best);
    }
    if (best->value > bound * (1 + 1e-12))
        SL_TRY(sl_polish(instance, polish, bound, best));
done:
    sl_order_destroy(&other);
    return status;
}

sl_status sl_find_order(const sl_instance *instance, const sl_plan_bound *bounds, double budget_seconds, sl_order *best)
{
    sl_status status = SL_OK;
    sl_placer placer = { 0 };
    double bound = instance->objective == SL_OBJECTIVE_MAKESPAN ? bounds->makespan : bounds->stage_time;
    int64_t effort = (int64_t)(budget_seconds * EFFORT_PER_SECOND);
    SL_TRY(sl_placer_create(instance, &placer));
    if (instance->chunks == 1)
        sl_run_rounds(&placer, bound, best);
    if (best->value > bound * (1 + 1e-12))
        SL_TRY(run_even(&placer, best));
    if (best->value > bound * (1 + 1e-12))
        SL_TRY(run_greedy(&placer, bound, effort / 20, best));
    bool worth_it = effort > 20 * best->length * instance->ranks; /* some orders at least */
    if (best->value > bound * (1 + 1e-12) && worth_it)
        SL_TRY(search(instance, effort, bound, best));
done:
    sl_placer_destroy(&placer);
    return status;
}

/* The better one of the two stays in *best. */
static void keep_better(sl_objective objective, sl_plan_result *other, sl_plan_result **best)
{
    if (!*best || sl_plan_result_value(other, objective) < sl_plan_result_value(*best, objective) * (1 - 1e-12)) {
        sl_plan_result *worse = *best;
        *best = other;
        other = worse;
    }
    sl_plan_result_destroy(other);
}

static bool is_optimal(const sl_plan_result *result, sl_objective objective)
{
    const sl_plan_figures *figures = &result->figures;
    return (objective == SL_OBJECTIVE_MAKESPAN ? figures->gap_makespan : figures->gap_stage_time) == 0;
}

sl_status sl_plan_search(const sl_plan_problem *problem, double budget_seconds, sl_plan_result **out)
{
    sl_status status = SL_OK;
    double started = sl_now();
    sl_instance instance = { 0 };
    sl_order order = { 0 };
    sl_schedule *schedule = NULL;
    sl_plan_result *best = NULL, *other = NULL;
    sl_plan_bound bound;

    SL_TRY(sl_instance_create(problem, &instance));
    if (!(budget_seconds >= 0))
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "a budget of %g seconds: 0 or more is needed", budget_seconds));
    SL_TRY(sl_order_create(&instance, &order));
    SL_TRY(sl_instance_bounds(&instance, &bound));
    SL_TRY(sl_find_order(&instance, &bound, budget_seconds, &order));
    SL_TRY(sl_order_schedule(&instance, &order, &schedule));
    SL_TRY(sl_plan_result_create(problem, &instance, &bound, schedule, order.method, started, &best));
    sl_order_destroy(&order);
    for (int n = 0; sl_plan_generator(n) && !is_optimal(best, problem->objective); n++) {
        if (sl_plan_named_within(problem, &instance, &bound, sl_plan_generator(n), &other) == SL_OK)
            keep_better(problem->objective, other, &best);
    }
    best->figures.seconds = sl_now() - started;
    *out = best;
    best = NULL;
done:
    sl_plan_result_destroy(best);
    sl_order_destroy(&order);
    sl_instance_destroy(&instance);
    return status;
}
