/* Schedules by name: those of the zero-bubble papers, made here, and the generators'. */
#include "plan/heuristics.h"
#include "plan/result.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* Steps that the search for a pattern of a V may take, in seconds of sl_find_order(). */
#define PATTERN_BUDGET 0.3

typedef struct named {
    const char *name;
    sl_placement placement;
    /* The memory it is made for, in microbatches. */
    int (*limit)(int ranks);
    bool pattern;          /* made for equal costs; else for those given */
    const char *generator; /* NULL, or the generator whose order it has */
} named;

static int limit_p(int ranks)
{
    return ranks;
}

static int limit_2p(int ranks)
{
    return 2 * ranks;
}

static int limit_h2(int ranks)
{
    return 2 * ranks - 1;
}

static int limit_half(int ranks)
{
    return ranks / 2 + 1;
}

static int limit_third(int ranks)
{
    return (ranks + 1) / 3 + 1;
}

static const named names[] = {
    { .name = "ZB-H1", .placement = SL_PLACEMENT_LOOP, .limit = limit_p, .pattern = true },
    { .name = "ZB-H2", .placement = SL_PLACEMENT_LOOP, .limit = limit_h2, .pattern = true },
    { .name = "ZB-1p", .placement = SL_PLACEMENT_LOOP, .limit = limit_p },
    { .name = "ZB-2p", .placement = SL_PLACEMENT_LOOP, .limit = limit_2p },
    { .name = "V-ZB", .placement = SL_PLACEMENT_V, .generator = "ZBVZeroBubble" },
    { .name = "V-Half", .placement = SL_PLACEMENT_V, .limit = limit_half, .pattern = true },
    { .name = "V-Min", .placement = SL_PLACEMENT_V, .limit = limit_third, .pattern = true },
};

enum { NAMES = sizeof names / sizeof *names };

/* The generators that go backward stand before the others. */
const char *sl_plan_generator(int index)
{
    const char *name = sl_generator_name(index);
    return name && sl_case_compare(name, "ForwardOnly", 11) != 0 ? name : NULL;
}

const char *sl_plan_name(int index)
{
    if (index < 0)
        return NULL;
    return index < NAMES ? names[index].name : sl_plan_generator(index - NAMES);
}

static const named *find_name(const char *name)
{
    for (int n = 0; n < NAMES; n++) {
        if (sl_case_compare(name, names[n].name, strlen(names[n].name) + 1) == 0)
            return &names[n];
    }
    return NULL;
}

static int stages_of(const named *name)
{
    return name->placement == SL_PLACEMENT_V ? 2 : 1;
}

/* The generator's schedule for two ranks and one microbatch, which each of them can make: if it fails there is no such
 * name. */
static sl_status make_sample(const char *name, sl_schedule **out)
{
    char known[400] = "";
    size_t used = 0;
    sl_status status = sl_schedule_generate(&(sl_generate_options){ .name = name, .ranks = 2, .microbatches = 1 }, out);
    if (status != SL_ERR_ARGUMENT)
        return status;
    for (int n = 0; n < NAMES && used < sizeof known; n++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", n ? ", " : "", names[n].name);
    for (int n = 0; sl_generator_name(n) && used < sizeof known; n++)
        used += (size_t)snprintf(known + used, sizeof known - used, ", %s", sl_generator_name(n));
    return sl_fail(SL_ERR_ARGUMENT, "there is no schedule '%.100s'; there are %s", name, known);
}

sl_status sl_plan_named_placement(const char *name, sl_placement *placement, int *stages_per_rank)
{
    sl_status status = SL_OK;
    sl_schedule *sample = NULL;
    const named *found = find_name(name);
    if (found) {
        *placement = found->placement;
        *stages_per_rank = stages_of(found);
        return SL_OK;
    }
    /* Two ranks show where a generator puts its stages. */
    SL_TRY(make_sample(name, &sample));
    int stages = sl_schedule_stages(sample);
    *placement = stages > 2 && sl_schedule_rank_of(sample, 2) == 1 ? SL_PLACEMENT_V : SL_PLACEMENT_LOOP;
    *stages_per_rank = stages / 2;
done:
    sl_schedule_destroy(sample);
    return status;
}

/* The order for equal costs: F, I and W take the same time, messages none, and all memory is held until W. */
static sl_status make_pattern(const named *name, const sl_plan_problem *problem, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_plan_problem equal;
    sl_instance instance = { 0 };
    sl_order order = { 0 };
    sl_plan_bound bound;
    sl_plan_problem_init(&equal, problem->ranks, problem->microbatches, name->placement, 0);
    equal.costs.stage.release = 0;
    equal.memory = name->limit(problem->ranks);
    SL_TRY(sl_instance_create(&equal, &instance));
    SL_TRY(sl_order_create(&instance, &order));
    SL_TRY(sl_instance_bounds(&instance, &bound));
    SL_TRY(sl_find_order(&instance, &bound, name->placement == SL_PLACEMENT_V ? PATTERN_BUDGET : 0, &order));
    SL_TRY(sl_order_schedule(&instance, &order, out));
done:
    sl_order_destroy(&order);
    sl_instance_destroy(&instance);
    return status;
}

/* The paper's heuristic: of all choices the one with the least stage time, whatever the objective. */
static sl_status make_rounds(const named *name, const sl_plan_problem *problem, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_plan_problem limited = *problem;
    sl_instance instance = { 0 };
    sl_order order = { 0 };
    sl_placer placer = { 0 };
    limited.objective = SL_OBJECTIVE_STAGE_TIME;
    limited.memory = 0;
    SL_TRY(sl_instance_create(&limited, &instance));
    double most = 0;
    for (int stage = 0; stage < instance.stages; stage++)
        most = instance.load[stage].hold > most ? instance.load[stage].hold : most;
    instance.limit = most > 0 ? name->limit(problem->ranks) * most : INFINITY;
    instance.slack = most > 0 ? instance.limit * 1e-9 : 0;
    SL_TRY(sl_order_create(&instance, &order));
    SL_TRY(sl_placer_create(&instance, &placer));
    sl_run_rounds(&placer, 0, &order);
    if (order.value == INFINITY)
        SL_TRY(sl_fail(SL_ERR_UNSUPPORTED, "%s finds no order for these costs", name->name));
    SL_TRY(sl_order_schedule(&instance, &order, out));
done:
    sl_placer_destroy(&placer);
    sl_order_destroy(&order);
    sl_instance_destroy(&instance);
    return status;
}

static sl_status check_placement(const sl_instance *instance, const char *name, sl_placement placement, int chunks)
{
    const char *made_for = placement == SL_PLACEMENT_V ? "a V of 2" : chunks == 1 ? "1" : "a loop of several";
    bool fits = instance->placement == placement || (instance->chunks == 1 && chunks == 1);
    if (fits && (chunks == instance->chunks || (chunks > 1 && instance->chunks > 1 && placement == SL_PLACEMENT_LOOP)))
        return SL_OK;
    return sl_fail(SL_ERR_UNSUPPORTED, "%s is made for %s stage%s a rank", name, made_for,
                   chunks == 1 && placement == SL_PLACEMENT_LOOP ? "" : "s");
}

static const char *proper_name(const char *name)
{
    for (int n = 0; sl_plan_name(n); n++) {
        if (sl_case_compare(name, sl_plan_name(n), strlen(sl_plan_name(n)) + 1) == 0)
            return sl_plan_name(n);
    }
    return "schedule";
}

sl_status sl_plan_make(const sl_plan_problem *problem, const char *name, sl_schedule **out)
{
    const named *found = find_name(name);
    sl_generate_options options = { .name = name,
                                    .ranks = problem->ranks,
                                    .microbatches = problem->microbatches,
                                    .stages_per_rank = problem->stages_per_rank };
    if (!found)
        return sl_schedule_generate(&options, out);
    options.name = found->generator;
    if (problem->stages_per_rank && problem->stages_per_rank != stages_of(found))
        return sl_fail(SL_ERR_ARGUMENT, "%s: %d stages a rank: it needs exactly %d", found->name,
                       problem->stages_per_rank, stages_of(found));
    if (found->generator)
        return sl_schedule_generate(&options, out);
    return found->pattern ? make_pattern(found, problem, out) : make_rounds(found, problem, out);
}

sl_status sl_plan_named_within(const sl_plan_problem *problem, const sl_instance *instance, const sl_plan_bound *bound,
                               const char *name, sl_plan_result **out)
{
    sl_status status = SL_OK;
    double started = sl_now();
    sl_schedule *schedule = NULL;
    sl_placement placement;
    int chunks;

    SL_TRY(sl_plan_named_placement(name, &placement, &chunks));
    SL_TRY(check_placement(instance, proper_name(name), placement, chunks));
    sl_plan_problem sized = *problem;
    sized.stages_per_rank = instance->chunks;
    SL_TRY(sl_plan_make(&sized, name, &schedule));
    if (!sl_schedule_has_backward(schedule)) {
        sl_schedule_destroy(schedule);
        SL_TRY(sl_fail(SL_ERR_UNSUPPORTED, "%s goes forward alone: there is nothing to plan", name));
    }
    SL_TRY(sl_plan_result_create(problem, instance, bound, schedule, proper_name(name), started, out));
done:
    return status;
}

sl_status sl_plan_named(const sl_plan_problem *problem, const char *name, sl_plan_result **out)
{
    sl_status status = SL_OK;
    sl_instance instance = { 0 };
    sl_plan_bound bound;
    SL_TRY(sl_instance_create(problem, &instance));
    SL_TRY(sl_instance_bounds(&instance, &bound));
    SL_TRY(sl_plan_named_within(problem, &instance, &bound, name, out));
done:
    sl_instance_destroy(&instance);
    return status;
}
