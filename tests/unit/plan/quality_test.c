/* How good plans are: over the bounds, and beside what other planners reach. With --full all rows of the grid and many
 * more uneven pipelines, else the smaller ones. */
#include "unit/plan/grid.h"

#include "support/sanitized.h"

#include <math.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static bool full;

static double plan(const sl_plan_problem *problem, double budget, sl_plan_figures *figures)
{
    sl_plan_result *result = NULL;
    sl_violation violation;
    assert_int_equal(sl_plan_search(problem, budget, &result), SL_OK);
    assert_int_equal(sl_schedule_check(sl_plan_schedule(result), NULL, &violation), SL_OK);
    *figures = *sl_plan_result_figures(result);
    assert_true(figures->peak_memory <= problem->memory * (1 + 1e-9));
    sl_plan_result_destroy(result);
    return problem->objective == SL_OBJECTIVE_MAKESPAN ? figures->gap_makespan : figures->gap_stage_time;
}

static void fail_row(const grid_row *row, const sl_plan_figures *figures)
{
    const sl_stage_cost *stage = &row->problem.costs.stage;
    fail_msg(
        "%s, %d ranks, %d microbatches, F=%g, memory %g, release %g, objective %d: makespan %g (theirs %g, bound %g), "
        "stage time %g (theirs %g, bound %g)",
        row->planner, row->problem.ranks, row->problem.microbatches, stage->f, row->problem.memory, stage->release,
        row->problem.objective, figures->makespan, row->makespan, figures->bound.makespan, figures->stage_time,
        row->stage_time, figures->bound.stage_time);
}

static void linear_plans_of_equal_stages_are_optimal(void **state)
{
    (void)state;
    FILE *file = grid_open();
    assert_non_null(file);
    grid_row row;
    int rows = 0;
    while (grid_next(file, &row)) {
        if (!grid_is(&row, "zb-auto"))
            continue;
        for (int objective = 0; objective < 2; objective++) {
            sl_plan_figures figures;
            row.problem.objective = (sl_objective)objective;
            if (plan(&row.problem, 0.3, &figures) > 0)
                fail_row(&row, &figures);
        }
        rows++;
    }
    fclose(file);
    assert_int_equal(rows, 96);
}

/* Seconds of the search: the full test takes its time, most of it for the one instance that needs it. */
static double budget_of(const sl_plan_problem *problem)
{
    bool hard = problem->ranks == 16 && problem->microbatches == 32 && problem->memory == 16;
    return !full ? SL_PLAN_BUDGET : hard ? 30 : 3;
}

/* With the memory of p or 2p microbatches: within 1% of the bound, within 3% if there are only p microbatches. */
static void v_plans_with_memory_are_near_the_bound(void **state)
{
    (void)state;
    FILE *file = grid_open();
    assert_non_null(file);
    grid_row row;
    while (grid_next(file, &row)) {
        int ranks = row.problem.ranks, microbatches = row.problem.microbatches;
        if (!grid_is(&row, "zbv-auto") || (!full && (ranks > 8 || microbatches > 2 * ranks)))
            continue;
        sl_plan_figures figures;
        double gap = plan(&row.problem, budget_of(&row.problem), &figures);
        if (gap > (microbatches == ranks ? 0.03 : 0.01) || figures.makespan > row.makespan + 1e-9)
            fail_row(&row, &figures);
    }
    fclose(file);
}

/* With less memory: no worse than the other planners. */
static void v_plans_with_little_memory_are_no_worse_than_others(void **state)
{
    (void)state;
    FILE *file = grid_open();
    assert_non_null(file);
    grid_row row;
    while (grid_next(file, &row)) {
        bool theirs = grid_is(&row, "v-half") || grid_is(&row, "v-min") || grid_is(&row, "v-search");
        if (!theirs || (!full && (row.problem.ranks > 8 || row.problem.microbatches > 2 * row.problem.ranks)))
            continue;
        sl_plan_figures figures;
        plan(&row.problem, budget_of(&row.problem), &figures);
        if (figures.makespan > row.makespan * (1 + 1e-9))
            fail_row(&row, &figures);
    }
    fclose(file);
}

static uint64_t seed = 1;

static double draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

/* One stage a rank, each cost 10 to 50% off: 0.5% over the bound on the mean, 2% at most. */
static void linear_plans_of_uneven_stages_are_near_the_bound(void **state)
{
    (void)state;
    static const int sizes[] = { 4, 6, 8, 12, 16 };
    double sum = 0, worst = 0;
    int count = 0;
    for (int n = 0; n < (full ? 200 : 20); n++) {
        sl_stage_cost stages[16];
        sl_plan_problem problem;
        int ranks = sizes[full ? n % 5 : n % 3];
        sl_plan_problem_init(&problem, ranks, ranks * (2 + n % 3), SL_PLACEMENT_LOOP, 1);
        double spread = 0.1 + 0.4 * draw();
        for (int stage = 0; stage < ranks; stage++) {
            stages[stage] = problem.costs.stage;
            stages[stage].f = 10 * (1 + spread * (2 * draw() - 1));
            stages[stage].i = 12 * (1 + spread * (2 * draw() - 1));
            stages[stage].w = 8 * (1 + spread * (2 * draw() - 1));
        }
        problem.costs.stages = stages;
        problem.costs.latency = 1;
        problem.memory = n % 2 ? ranks : 2 * ranks;
        sl_plan_figures figures;
        double gap = plan(&problem, full ? 3 : SL_PLAN_BUDGET, &figures);
        sum += gap;
        worst = gap > worst ? gap : worst;
        count++;
        if (gap > 0.02)
            print_message("%d ranks, %d microbatches, memory %g, spread %.2f: %.2f%% over %g\n", ranks,
                          problem.microbatches, problem.memory, spread, 100 * gap, figures.bound.makespan);
    }
    print_message("uneven: mean %.3f%%, worst %.3f%% over the bound\n", 100 * sum / count, 100 * worst);
    assert_true(sum / count <= 0.005);
    assert_true(worst <= 0.02);
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "--full") == 0;
    const struct CMUnitTest quick[] = {
        cmocka_unit_test(linear_plans_of_equal_stages_are_optimal),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_plans_of_equal_stages_are_optimal),
        cmocka_unit_test(linear_plans_of_uneven_stages_are_near_the_bound),
        cmocka_unit_test(v_plans_with_memory_are_near_the_bound),
        cmocka_unit_test(v_plans_with_little_memory_are_no_worse_than_others),
    };
    /* The others place a thousand million operations, which takes long under a sanitizer. */
    return TEST_SANITIZED ? cmocka_run_group_tests(quick, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
