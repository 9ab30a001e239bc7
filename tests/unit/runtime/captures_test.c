/* Captured pieces of a step, on the tests' device: the same bits, and as few launches as there are pieces. */
#include "support/device/test_device.h"
#include "unit/runtime/captures.h"

static void every_schedule_gives_the_bits_of_a_run_without_captures(void **state)
{
    (void)state;
    gpt_run run;
    for (int i = 0; sl_generator_name(i); i++) {
        if (strncmp(sl_generator_name(i), "ForwardOnly", 11) != 0)
            expect_equal_bits("test", &(gpt_case){ .schedule = sl_generator_name(i), .ranks = 2 }, &run);
    }
}

/* The first step and the first evaluation give call by call; those that follow are one launch each. */
static void a_rank_without_messages_launches_its_whole_step_at_once(void **state)
{
    (void)state;
    gpt_run run;
    for (int stages = 1; stages <= 4; stages *= 2) {
        int64_t before = test_device_launches();
        const gpt_case alone = { .schedule = "Interleaved1F1B", .ranks = 1, .stages_per_rank = stages };
        expect_equal_bits("test", &alone, &run);
        assert_int_equal(test_device_launches() - before, (STEPS - 3 - 1) + (3 - 1) + (STEPS - 1));
    }
}

static void a_traced_step_launches_phase_by_phase(void **state)
{
    (void)state;
    gpt_run run;
    int64_t before = test_device_launches();
    const gpt_case traced = { .schedule = "GPipe", .ranks = 1, .trace_events = 1000, .dtype = SL_BF16 };
    expect_equal_bits("test", &traced, &run);
    assert_int_equal(test_device_launches() - before,
                     ((STEPS - 3 - 1) + (3 - 1)) * 2 * MICROBATCHES + (STEPS - 1) * MICROBATCHES);
}

static void a_wrong_switch_is_refused(void **state)
{
    (void)state;
    gpt_rank rank = { .run = &(gpt_run){ .device = "test" } };
    expect_ok(sl_schedule_generate(&(sl_generate_options){ .name = "GPipe", .ranks = 1, .microbatches = MICROBATCHES },
                                   &rank.run->schedule));
    rank.run->partition = cut_gpt(1, SL_F32);
    expect_ok(sl_group_open_threads(1, NULL, &rank.group));
    assert_int_equal(setenv("SLUICE_GRAPHS", "sometimes", 1), 0);
    run_rank(&rank);
    assert_string_equal(rank.error, "rank 0: SLUICE_GRAPHS=sometimes: it is on or off");
    assert_int_equal(unsetenv("SLUICE_GRAPHS"), 0);
    sl_partition_destroy(rank.run->partition);
    sl_schedule_destroy(rank.run->schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_gives_the_bits_of_a_run_without_captures),
        cmocka_unit_test(a_rank_without_messages_launches_its_whole_step_at_once),
        cmocka_unit_test(a_traced_step_launches_phase_by_phase),
        cmocka_unit_test(a_wrong_switch_is_refused),
    };
    test_device_install();
    return cmocka_run_group_tests_name("runtime/captures", tests, NULL, NULL);
}
