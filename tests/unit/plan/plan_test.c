/* The planner: named schedules against the paper, plans that keep to their memory, and what it refuses. */
#include <sluice/plan.h>

#include "support/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static sl_plan_problem make_problem(int ranks, int microbatches, sl_placement placement, double memory)
{
    sl_plan_problem problem;
    sl_plan_problem_init(&problem, ranks, microbatches, placement, 0);
    int chunks = problem.stages_per_rank;
    problem.costs.stage.f = 10.0 / chunks;
    problem.costs.stage.i = 12.0 / chunks;
    problem.costs.stage.w = 8.0 / chunks;
    problem.costs.latency = 1;
    problem.memory = memory;
    return problem;
}

static void reproduces_table_5_of_the_zero_bubble_paper(void **state)
{
    (void)state;
    char path[1024], line[256];
    snprintf(path, sizeof path, "%s/planner/zero_bubble_table5.csv", getenv("SLUICE_DATA"));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    int rows = 0;
    for (; fgets(line, sizeof line, file); rows++) {
        static const char *const names[] = { "1F1B", "ZB-1p", "ZB-2p" };
        int ranks, microbatches;
        double f, i, w, comm, bubbles[3];
        assert_int_equal(sscanf(line, "%d,%d,%lf,%lf,%lf,%lf,%lf,%lf,%lf", &ranks, &microbatches, &f, &i, &w, &comm,
                                &bubbles[0], &bubbles[1], &bubbles[2]),
                         9);
        sl_plan_problem problem;
        sl_plan_problem_init(&problem, ranks, microbatches, SL_PLACEMENT_LOOP, 1);
        problem.costs.stage.f = f;
        problem.costs.stage.i = i;
        problem.costs.stage.w = w;
        problem.costs.latency = comm;
        for (int n = 0; n < 3; n++) {
            sl_plan_result *result = NULL;
            assert_int_equal(sl_plan_named(&problem, names[n], &result), SL_OK);
            double bubble = sl_plan_result_figures(result)->bubble_stage;
            if (fabs(bubble - bubbles[n]) > 0.00005 + 1e-9)
                fail_msg("%s, %d ranks, %d microbatches: %.6f, not %.4f", names[n], ranks, microbatches, bubble,
                         bubbles[n]);
            sl_plan_result_destroy(result);
        }
    }
    fclose(file);
    assert_int_equal(rows, 12);
}

/* The schedule is valid, lowered as well, and its memory, counted here, is what the figures say and no more than there
 * is. */
static void assert_sound(const sl_plan_problem *problem, const sl_plan_result *result)
{
    const sl_schedule *schedule = sl_plan_schedule(result);
    sl_schedule *lowered = NULL;
    sl_violation violation;
    assert_int_equal(sl_schedule_check(schedule, NULL, &violation), SL_OK);
    assert_int_equal(sl_schedule_lower(schedule, NULL, &lowered), SL_OK);
    assert_int_equal(sl_schedule_check(lowered, &(sl_check_options){ .limit_links = true }, &violation), SL_OK);
    sl_schedule_destroy(lowered);
    assert_int_equal(sl_schedule_ranks(schedule), problem->ranks);
    assert_int_equal(sl_schedule_stages(schedule), problem->ranks * problem->stages_per_rank);
    assert_int_equal(sl_schedule_microbatches(schedule), problem->microbatches);
    for (int rank = 0; rank < problem->ranks; rank++) {
        int64_t count;
        const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
        double held = 0, most = 0;
        for (int64_t n = 0; n < count; n++) {
            sl_action parts[2];
            int parts_count = sl_action_parts(actions[n], parts);
            const sl_stage_cost *cost =
                problem->costs.stages ? &problem->costs.stages[parts[0].stage] : &problem->costs.stage;
            for (int p = 0; p < parts_count; p++) {
                if (parts[p].kind == SL_KIND_F)
                    held += cost->activation;
                most = held > most ? held : most;
            }
            for (int p = 0; p < parts_count; p++) {
                if (parts[p].kind == SL_KIND_B)
                    held -= cost->activation;
                if (parts[p].kind == SL_KIND_I)
                    held -= cost->activation * cost->release;
                if (parts[p].kind == SL_KIND_W)
                    held -= cost->activation * (1 - cost->release);
            }
        }
        if (problem->memory > 0)
            assert_true(most <= problem->memory * (1 + 1e-9));
        assert_true(fabs(most - sl_plan_peak_memory(result)[rank]) < 1e-9 * (1 + most));
    }
    const sl_plan_figures *figures = sl_plan_result_figures(result);
    assert_true(figures->makespan >= figures->bound.makespan * (1 - 1e-9));
    assert_true(figures->stage_time >= figures->bound.stage_time * (1 - 1e-9));
    assert_true(figures->stage_time <= figures->makespan);
}

/* A sample has one of the three kinds of placement for each size. */
static void every_plan_is_sound(void **state)
{
    (void)state;
    static const double memories[] = { 1, 1.5, 2, 3, 4.25, 8, 0 };
    static const int microbatches[] = { 1, 2, 3, 7, 12 };
    for (int ranks = 1; ranks <= 5; ranks++) {
        for (size_t m = 0; m < sizeof microbatches / sizeof *microbatches; m++) {
            for (size_t n = 0; n < sizeof memories / sizeof *memories; n++) {
                for (int kind = 0; kind < 3; kind++) {
                    if (!test_in_sample((size_t)ranks + m + n, kind, 3))
                        continue;
                    sl_plan_problem problem = make_problem(ranks, microbatches[m],
                                                           kind == 2 ? SL_PLACEMENT_V : SL_PLACEMENT_LOOP, memories[n]);
                    if (kind == 1) {
                        problem.stages_per_rank = 3;
                        problem.costs.stage.activation = 1.0 / 3;
                    }
                    problem.costs.stage.release = (double)(m % 3) / 2;
                    problem.objective = n % 2 ? SL_OBJECTIVE_MAKESPAN : SL_OBJECTIVE_STAGE_TIME;
                    sl_plan_result *result = NULL;
                    assert_int_equal(sl_plan_search(&problem, 0.002, &result), SL_OK);
                    assert_sound(&problem, result);
                    sl_plan_result_destroy(result);
                }
            }
        }
    }
}

static void every_name_gives_a_sound_plan_or_a_reason(void **state)
{
    (void)state;
    int made = 0;
    for (int kind = 0; kind < 3; kind++) {
        sl_plan_problem problem = make_problem(4, 8, kind == 2 ? SL_PLACEMENT_V : SL_PLACEMENT_LOOP, 5);
        if (kind == 1) {
            problem.stages_per_rank = 2;
            problem.costs.stage.activation = 0.5;
        }
        for (int n = 0; sl_plan_name(n); n++) {
            sl_plan_result *result = NULL;
            sl_status status = sl_plan_named(&problem, sl_plan_name(n), &result);
            if (status != SL_OK) {
                assert_int_equal(status, SL_ERR_UNSUPPORTED);
                assert_true(strstr(sl_error_message(), "stage") || strstr(sl_error_message(), "there is 5"));
                continue;
            }
            assert_string_equal(sl_plan_result_figures(result)->method, sl_plan_name(n));
            assert_sound(&problem, result);
            sl_plan_result_destroy(result);
            made++;
        }
    }
    assert_true(made >= 9);
}

/* With equal costs, no messages and all memory held until W the patterns are as good as they can be: ZB-H1 and ZB-H2
 * have the times of the paper, V-Half and V-Min waste next to nothing in a half and a third of the memory. */
static void patterns_have_the_times_of_their_papers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        sl_placement placement;
        double stage_time, memory;
    } expected[] = { { "ZB-H1", SL_PLACEMENT_LOOP, 99, 4 },
                     { "ZB-H2", SL_PLACEMENT_LOOP, 96, 7 },
                     { "V-ZB", SL_PLACEMENT_V, 97.5, 4 },
                     { "V-Half", SL_PLACEMENT_V, 98.5, 3 },
                     { "V-Min", SL_PLACEMENT_V, 101.5, 2 } };
    for (size_t n = 0; n < sizeof expected / sizeof *expected; n++) {
        sl_plan_problem problem;
        sl_plan_result *result = NULL;
        sl_plan_problem_init(&problem, 4, 32, expected[n].placement, 0);
        problem.costs.stage.f = problem.costs.stage.i = problem.costs.stage.w = 1.0 / problem.stages_per_rank;
        problem.costs.stage.release = 0;
        assert_int_equal(sl_plan_named(&problem, expected[n].name, &result), SL_OK);
        const sl_plan_figures *figures = sl_plan_result_figures(result);
        if (figures->stage_time > expected[n].stage_time + 1e-9 || figures->peak_memory > expected[n].memory + 1e-9)
            fail_msg("%s: stage time %g, memory %g", expected[n].name, figures->stage_time, figures->peak_memory);
        sl_plan_result_destroy(result);
    }
}

static void equal_problems_give_equal_plans(void **state)
{
    (void)state;
    sl_plan_problem problem = make_problem(4, 9, SL_PLACEMENT_V, 2.5);
    sl_plan_result *a = NULL, *b = NULL;
    assert_int_equal(sl_plan_search(&problem, 0.05, &a), SL_OK);
    assert_int_equal(sl_plan_search(&problem, 0.05, &b), SL_OK);
    assert_true(sl_schedule_equal(sl_plan_schedule(a), sl_plan_schedule(b)));
    sl_plan_result_destroy(a);
    sl_plan_result_destroy(b);
}

static void more_budget_is_never_worse(void **state)
{
    (void)state;
    sl_plan_problem problem = make_problem(4, 8, SL_PLACEMENT_V, 2);
    double before = INFINITY;
    for (double budget = 0; budget < 0.3; budget = budget * 4 + 0.01) {
        sl_plan_result *result = NULL;
        assert_int_equal(sl_plan_search(&problem, budget, &result), SL_OK);
        double value = sl_plan_result_figures(result)->makespan;
        assert_true(value <= before * 1.02); /* another share goes to another method: nearly */
        before = value;
        sl_plan_result_destroy(result);
    }
}

/* Bytes and bandwidth give the same plan as the latency they amount to, if messages do not queue. */
static void takes_messages_as_bytes_and_bandwidth(void **state)
{
    (void)state;
    sl_plan_problem latency = make_problem(4, 12, SL_PLACEMENT_LOOP, 4), bytes = latency;
    bytes.costs.latency = 0.25;
    bytes.costs.message_size = 3e6;
    bytes.costs.bandwidth = 4e6;
    sl_plan_result *a = NULL, *b = NULL;
    assert_int_equal(sl_plan_search(&latency, 0.01, &a), SL_OK);
    assert_int_equal(sl_plan_search(&bytes, 0.01, &b), SL_OK);
    assert_true(fabs(sl_plan_result_figures(a)->makespan - sl_plan_result_figures(b)->makespan) < 1e-6);
    sl_plan_result_destroy(a);
    sl_plan_result_destroy(b);
}

static void assert_refused(const sl_plan_problem *problem, sl_status code, const char *text)
{
    sl_plan_result *result = NULL;
    sl_plan_bound bound;
    assert_int_equal(sl_plan_search(problem, 0, &result), code);
    assert_null(result);
    if (!strstr(sl_error_message(), text))
        fail_msg("'%s' lacks '%s'", sl_error_message(), text);
    assert_int_equal(sl_plan_bounds(problem, &bound), code);
    assert_int_equal(sl_plan_named(problem, "1F1B", &result), code);
}

static void refuses_what_cannot_be_planned(void **state)
{
    (void)state;
    sl_plan_problem good = make_problem(4, 8, SL_PLACEMENT_LOOP, 4), bad = good;
    bad.memory = 0.75;
    assert_refused(&bad, SL_ERR_UNSUPPORTED, "1 is the least that would do");
    bad.memory = -1;
    assert_refused(&bad, SL_ERR_ARGUMENT, "memory of -1");
    bad.memory = NAN;
    assert_refused(&bad, SL_ERR_ARGUMENT, "memory");
    bad = good;
    bad.costs.stage.f = 0;
    assert_refused(&bad, SL_ERR_ARGUMENT, "F of stage 0 takes no time");
    bad.costs.stage.f = -1;
    assert_refused(&bad, SL_ERR_ARGUMENT, "cost F: -1 is out of range");
    bad.costs.stage.f = NAN;
    assert_refused(&bad, SL_ERR_ARGUMENT, "cost F");
    bad = good;
    bad.costs.stage.w = INFINITY;
    assert_refused(&bad, SL_ERR_ARGUMENT, "cost W");
    bad = good;
    bad.costs.latency = NAN;
    assert_refused(&bad, SL_ERR_ARGUMENT, "cost comm");
    bad = good;
    bad.ranks = 0;
    assert_refused(&bad, SL_ERR_ARGUMENT, "0 ranks");
    bad = good;
    bad.microbatches = -3;
    assert_refused(&bad, SL_ERR_ARGUMENT, "-3 microbatches");
    bad = good;
    bad.ranks = 60000;
    bad.stages_per_rank = 2;
    assert_refused(&bad, SL_ERR_ARGUMENT, "120000 stages: at most 65535");
    bad = good;
    bad.ranks = 1;
    bad.stages_per_rank = 60000;
    assert_refused(&bad, SL_ERR_ARGUMENT, "60000 stages a rank: at most 256");
    bad = good;
    bad.placement = SL_PLACEMENT_V;
    bad.stages_per_rank = 3;
    assert_refused(&bad, SL_ERR_ARGUMENT, "a V has exactly 2");
    bad = good;
    bad.ranks = 1024;
    bad.microbatches = 2000000;
    assert_refused(&bad, SL_ERR_ARGUMENT, "actions");
    sl_plan_result *result = NULL;
    assert_int_equal(sl_plan_search(&good, NAN, &result), SL_ERR_ARGUMENT);
    assert_int_equal(sl_plan_named(&good, "ForwardOnly", &result), SL_ERR_UNSUPPORTED);
    assert_int_equal(sl_plan_named(&good, "NoSuch", &result), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(),
                        "there is no schedule 'NoSuch'; there are ZB-H1, ZB-H2, ZB-1p, ZB-2p, V-ZB, V-Half, V-Min, "
                        "GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, "
                        "ForwardOnly, ForwardOnlyV");
}

/* The least memory that the error names is enough. */
static void the_least_memory_does(void **state)
{
    (void)state;
    sl_stage_cost stages[8];
    sl_plan_problem problem = make_problem(4, 6, SL_PLACEMENT_V, 0.1);
    for (int stage = 0; stage < 8; stage++) {
        stages[stage] = problem.costs.stage;
        stages[stage].activation = 0.5 + 0.25 * (stage % 3);
    }
    problem.costs.stages = stages;
    sl_plan_result *result = NULL;
    assert_int_equal(sl_plan_search(&problem, 0, &result), SL_ERR_UNSUPPORTED);
    const char *least = strstr(sl_error_message(), "so ");
    assert_non_null(least);
    problem.memory = atof(least + 3);
    assert_int_equal(sl_plan_search(&problem, 0.01, &result), SL_OK);
    assert_sound(&problem, result);
    sl_plan_result_destroy(result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproduces_table_5_of_the_zero_bubble_paper),
        cmocka_unit_test(every_plan_is_sound),
        cmocka_unit_test(every_name_gives_a_sound_plan_or_a_reason),
        cmocka_unit_test(patterns_have_the_times_of_their_papers),
        cmocka_unit_test(equal_problems_give_equal_plans),
        cmocka_unit_test(more_budget_is_never_worse),
        cmocka_unit_test(takes_messages_as_bytes_and_bandwidth),
        cmocka_unit_test(refuses_what_cannot_be_planned),
        cmocka_unit_test(the_least_memory_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
