/* What rounds of predictions and measurements say. */
#include "bench/tune_compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static bool is_near(double value, double expected)
{
    return fabs(value - expected) < 1e-9 * fabs(expected);
}

/* A row of rounds, each with the seconds measured and the ratio that was predicted. */
static tune_row row_of(const double (*rounds)[2], int count)
{
    tune_moments moments = { 0 };
    tune_row row = { .text = "" };
    for (int i = 0; i < count; i++) {
        double seconds = rounds[i][0] * rounds[i][1];
        const sl_tune_choice choice = { .seconds = seconds,
                                        .work = 0.5 * seconds,
                                        .idle = 0.25 * seconds,
                                        .exchange = 0.125 * seconds,
                                        .update = 0.125 * seconds };
        assert_int_equal(tune_add_round(&moments, rounds[i][0], &choice), SL_OK);
    }
    tune_take_rounds(&moments, &row);
    sl_tune_moments_clear(&moments);
    return row;
}

static void a_machine_that_changes_its_speed_changes_no_error(void **state)
{
    (void)state;
    static const double rounds[][2] = { { 4, 1.25 }, { 8, 1.25 }, { 1, 1.25 }, { 2, 1.25 }, { 16, 1.25 } };
    tune_row row = row_of(rounds, 5);
    assert_true(is_near(row.measured, 2) && is_near(row.predicted, 2.5) && is_near(row.predicted_alone, 2.5));
    assert_true(is_near(row.work, 1.25) && is_near(row.idle, 0.625));
    assert_true(is_near(row.exchange, 0.3125) && is_near(row.update, 0.3125));
}

static void neither_a_disturbed_training_nor_disturbed_layers_count(void **state)
{
    (void)state;
    static const double rounds[][2] = { { 2, 1.25 }, { 2, 1.25 }, { 20, 0.125 }, { 2, 12.5 }, { 2, 1.25 } };
    tune_row row = row_of(rounds, 5);
    assert_true(is_near(row.measured, 2) && is_near(row.predicted, 2.5));
}

/* One round's ratio does not stand in for another's: with quartiles of each side the error would be nothing. */
static void a_prediction_is_compared_with_its_own_round(void **state)
{
    (void)state;
    static const double rounds[][2] = { { 1, 2 }, { 2, 2 }, { 4, 2 }, { 8, 0.125 }, { 16, 0.125 } };
    tune_row row = row_of(rounds, 5);
    assert_true(is_near(row.measured, 2) && is_near(row.predicted_alone, 2) && is_near(row.predicted, 4));
}

static void a_case_has_the_largest_error_the_order_and_the_cost_of_the_choice(void **state)
{
    (void)state;
    static tune_case all = {
        .count = 3,
        .rows = { { .measured = 11, .predicted = 11, .predicted_alone = 9 },
                  { .measured = 10, .predicted = 8, .predicted_alone = 10 },
                  { .measured = 20, .predicted = 21, .predicted_alone = 21 } },
    };
    tune_compare_rows(&all);
    assert_true(is_near(all.error, 0.2) && is_near(all.mean_error, 0.25 / 3));
    assert_true(is_near(all.tau, 1.0 / 3)); /* the first two are predicted the other way round */
    assert_true(is_near(all.chosen, 0.1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_that_changes_its_speed_changes_no_error),
        cmocka_unit_test(neither_a_disturbed_training_nor_disturbed_layers_count),
        cmocka_unit_test(a_prediction_is_compared_with_its_own_round),
        cmocka_unit_test(a_case_has_the_largest_error_the_order_and_the_cost_of_the_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
