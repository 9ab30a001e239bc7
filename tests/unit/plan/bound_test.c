/* The lower bounds against an exact solver: never above the best order there is; and no heuristic below it. */
#include "support/sample.h"
#include "unit/plan/exact.h"
#include "unit/plan/grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static uint64_t seed = 7;

static int draw(int most)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)(most + 1));
}

/* How often the bound was the optimum, of how many. */
typedef struct exact_tally {
    int solved, tight, too_long;
} exact_tally;

static void hold_against_exact(const sl_plan_problem *problem, exact_tally *tally)
{
    sl_plan_bound bound;
    sl_plan_result *found = NULL;
    assert_int_equal(sl_plan_bounds(problem, &bound), SL_OK);
    assert_int_equal(sl_plan_search(problem, 0.02, &found), SL_OK);
    const sl_plan_figures *figures = sl_plan_result_figures(found);
    bool makespan = problem->objective == SL_OBJECTIVE_MAKESPAN;
    double value = makespan ? figures->makespan : figures->stage_time;
    double least = makespan ? bound.makespan : bound.stage_time;
    double best = exact_solve(problem, value * (1 + 1e-9), 400000);
    sl_plan_result_destroy(found);
    if (isnan(best)) {
        tally->too_long++;
        return;
    }
    if (least > best * (1 + 1e-9) || value < best * (1 - 1e-6))
        fail_msg("%d ranks, %d stages each, %d microbatches, memory %g, objective %d: bound %g, best %g, found %g",
                 problem->ranks, problem->stages_per_rank, problem->microbatches, problem->memory, problem->objective,
                 least, best, value);
    tally->solved++;
    tally->tight += least > best * (1 - 1e-9);
}

static void draw_problem(sl_placement placement, int chunks, int ranks, int microbatches, bool uneven,
                         sl_stage_cost *stages, sl_plan_problem *problem)
{
    sl_plan_problem_init(problem, ranks, microbatches, placement, chunks);
    double release = draw(2) / 2.0;
    for (int stage = 0; stage < ranks * chunks; stage++) {
        stages[stage] = problem->costs.stage;
        stages[stage].f = 1 + draw(3);
        stages[stage].i = 1 + draw(3);
        stages[stage].w = draw(4);
        stages[stage].release = release;
        stages[stage].activation = uneven ? 1 + draw(2) : 1;
        if (!uneven && stage > 0)
            stages[stage] = stages[0];
    }
    problem->costs.stages = stages;
    problem->costs.latency = draw(2);
    double least = 0;
    for (int rank = 0; rank < ranks; rank++) {
        double sum = 0;
        for (int chunk = 0; chunk < chunks; chunk++)
            sum += stages[sl_placement_stage(placement, ranks, rank, chunk)].activation;
        least = sum > least ? sum : least;
    }
    problem->memory = draw(4) == 0 ? 0 : least + draw(4) * 0.5 * chunks;
    problem->objective = draw(1) ? SL_OBJECTIVE_MAKESPAN : SL_OBJECTIVE_STAGE_TIME;
}

/* A sample has a quarter of the problems. */
static void bounds_are_never_above_the_best_order(void **state)
{
    (void)state;
    static const struct {
        sl_placement placement;
        int chunks, ranks, microbatches, times;
    } sizes[] = { { SL_PLACEMENT_LOOP, 1, 1, 3, 20 }, { SL_PLACEMENT_LOOP, 1, 2, 2, 60 },
                  { SL_PLACEMENT_LOOP, 1, 2, 3, 60 }, { SL_PLACEMENT_LOOP, 1, 2, 4, 40 },
                  { SL_PLACEMENT_LOOP, 1, 3, 2, 40 }, { SL_PLACEMENT_LOOP, 1, 3, 3, 30 },
                  { SL_PLACEMENT_LOOP, 1, 4, 2, 20 }, { SL_PLACEMENT_V, 2, 2, 2, 40 },
                  { SL_PLACEMENT_V, 2, 3, 1, 20 },    { SL_PLACEMENT_V, 2, 3, 2, 20 },
                  { SL_PLACEMENT_LOOP, 2, 2, 2, 40 } };
    exact_tally tally = { 0 };
    const int share = test_takes_sample() ? 4 : 1;
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        for (int time = 0; time < sizes[n].times / share; time++) {
            sl_stage_cost stages[EXACT_STAGES];
            sl_plan_problem problem;
            draw_problem(sizes[n].placement, sizes[n].chunks, sizes[n].ranks, sizes[n].microbatches, time % 2, stages,
                         &problem);
            hold_against_exact(&problem, &tally);
        }
    }
    print_message("%d solved, the bound is the optimum in %d; %d too long\n", tally.solved, tally.tight,
                  tally.too_long);
    assert_true(tally.solved > 300 / share);
    assert_true(tally.tight > tally.solved / 2);
}

static void bounds_are_at_least_the_reference_and_below_all_schedules(void **state)
{
    (void)state;
    FILE *file = grid_open();
    assert_non_null(file);
    grid_row row;
    int rows = 0;
    while (grid_next(file, &row)) {
        sl_plan_bound bound;
        assert_int_equal(sl_plan_bounds(&row.problem, &bound), SL_OK);
        if (bound.makespan < row.bound_makespan - 1e-3 || bound.stage_time < row.bound_stage_time - 1e-3 ||
            bound.makespan > row.makespan + 1e-6 || bound.stage_time > row.stage_time + 1e-6)
            fail_msg("%s, %d ranks, %d microbatches, memory %g: makespan %g to %g, bound %g; stage time %g to %g, "
                     "bound %g",
                     row.planner, row.problem.ranks, row.problem.microbatches, row.problem.memory, row.bound_makespan,
                     row.makespan, bound.makespan, row.bound_stage_time, row.stage_time, bound.stage_time);
        rows++;
    }
    fclose(file);
    assert_int_equal(rows, 468);
}

/* What an exact solver proved to be the best of eight uneven stages: the bound is within 1.3% of it. */
static void windows_show_what_uneven_stages_wait_for(void **state)
{
    (void)state;
    static const double costs[8][3] = { { 7.01, 11.33, 7.09 }, { 7.66, 9.83, 10.36 },   { 8.01, 13.6, 7.72 },
                                        { 9.62, 13.18, 7.13 }, { 10.35, 10.28, 10.44 }, { 8.04, 11.94, 7.21 },
                                        { 12.56, 9.02, 7.77 }, { 12.59, 10.4, 5.7 } };
    const double best = 561.54;
    sl_stage_cost stages[8];
    sl_plan_problem problem;
    sl_plan_bound bound;
    sl_plan_problem_init(&problem, 8, 16, SL_PLACEMENT_LOOP, 1);
    for (int stage = 0; stage < 8; stage++) {
        stages[stage] = problem.costs.stage;
        stages[stage].f = costs[stage][0];
        stages[stage].i = costs[stage][1];
        stages[stage].w = costs[stage][2];
    }
    problem.costs.stages = stages;
    problem.costs.latency = 1;
    problem.memory = 8;
    assert_int_equal(sl_plan_bounds(&problem, &bound), SL_OK);
    assert_true(bound.makespan <= best);
    assert_true(bound.makespan >= best * (1 - 0.013));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_never_above_the_best_order),
        cmocka_unit_test(bounds_are_at_least_the_reference_and_below_all_schedules),
        cmocka_unit_test(windows_show_what_uneven_stages_wait_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
