/* Choosing tokens: greedy, temperature, top-k and top-p; the choice depends on its counters alone. */
#include "train/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { VOCAB = 5, DRAWS = 20000 };

/* Probabilities 0.1, 0.4, 0.05, 0.3, 0.15 at temperature 1. */
static const double chances[VOCAB] = { 0.1, 0.4, 0.05, 0.3, 0.15 };

static void fill(float *logits)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(log(chances[i]) + 7);
}

static void count_draws(const sl_sample_options *options, int *counts)
{
    float logits[VOCAB];
    sl_candidate scratch[VOCAB];
    fill(logits);
    for (int i = 0; i < VOCAB; i++)
        counts[i] = 0;
    for (int i = 0; i < DRAWS; i++)
        counts[sl_sample(logits, VOCAB, options, (uint64_t)(i % 7), (uint64_t)(i / 7), scratch)]++;
}

/* Five standard deviations of a binomial count. */
static void assert_share(int count, double chance)
{
    double expected = chance * DRAWS, deviation = sqrt(expected * (1 - chance));
    assert_true(fabs(count - expected) <= 5 * deviation);
}

static void temperature_0_takes_the_likeliest(void **state)
{
    (void)state;
    const float logits[] = { 1, 3, 2, 3 };
    assert_int_equal(sl_sample(logits, 4, &(sl_sample_options){ .seed = 1 }, 0, 0, NULL), 1);
}

static void tokens_come_as_often_as_their_probability_says(void **state)
{
    (void)state;
    int counts[VOCAB];
    count_draws(&(sl_sample_options){ .temperature = 1, .seed = 3 }, counts);
    for (int i = 0; i < VOCAB; i++)
        assert_share(counts[i], chances[i]);
    count_draws(&(sl_sample_options){ .temperature = 2, .seed = 3 }, counts);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += sqrt(chances[i]);
    for (int i = 0; i < VOCAB; i++)
        assert_share(counts[i], sqrt(chances[i]) / sum);
}

static void top_k_leaves_the_k_likeliest(void **state)
{
    (void)state;
    int counts[VOCAB];
    count_draws(&(sl_sample_options){ .temperature = 1, .top_k = 2, .seed = 3 }, counts);
    assert_share(counts[1], 0.4 / 0.7);
    assert_share(counts[3], 0.3 / 0.7);
    assert_int_equal(counts[0] + counts[2] + counts[4], 0);
}

static void top_p_leaves_the_likeliest_that_add_up_to_p(void **state)
{
    (void)state;
    int counts[VOCAB];
    count_draws(&(sl_sample_options){ .temperature = 1, .top_p = 0.75, .seed = 3 }, counts);
    assert_share(counts[1], 0.4 / 0.85);
    assert_share(counts[3], 0.3 / 0.85);
    assert_share(counts[4], 0.15 / 0.85);
    assert_int_equal(counts[0] + counts[2], 0);
    count_draws(&(sl_sample_options){ .temperature = 1, .top_p = 1e-9, .seed = 3 }, counts);
    assert_int_equal(counts[1], DRAWS);
}

static void another_seed_is_another_choice(void **state)
{
    (void)state;
    float logits[VOCAB];
    sl_candidate scratch[VOCAB];
    int same = 0;
    fill(logits);
    for (int i = 0; i < 1000; i++) {
        const sl_sample_options one = { .temperature = 1, .seed = 1 }, two = { .temperature = 1, .seed = 2 };
        int32_t token = sl_sample(logits, VOCAB, &one, 0, (uint64_t)i, scratch);
        assert_int_equal(token, sl_sample(logits, VOCAB, &one, 0, (uint64_t)i, scratch));
        same += token == sl_sample(logits, VOCAB, &two, 0, (uint64_t)i, scratch);
    }
    assert_in_range(same, 150, 450); /* 0.285 of 1000 by chance */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_0_takes_the_likeliest),
        cmocka_unit_test(tokens_come_as_often_as_their_probability_says),
        cmocka_unit_test(top_k_leaves_the_k_likeliest),
        cmocka_unit_test(top_p_leaves_the_likeliest_that_add_up_to_p),
        cmocka_unit_test(another_seed_is_another_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
