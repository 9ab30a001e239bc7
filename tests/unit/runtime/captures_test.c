/* Captured pieces of a step, on the tests' device: the same bits, and as few launches as there are pieces. */
#include "support/device/test_device.h"
#include "support/sample.h"
#include "unit/runtime/captures.h"

/* A sample has every other schedule. */
static void every_schedule_gives_the_bits_of_a_run_without_captures(void **state)
{
    (void)state;
    gpt_run run;
    for (int i = 0; sl_generator_name(i); i++) {
        if (strncmp(sl_generator_name(i), "ForwardOnly", 11) != 0 && test_in_sample((size_t)i, 1, 2))
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

/* Their messages go through links: the whole step of each rank is one launch, whatever the schedule. */
static void ranks_with_links_launch_their_whole_step_at_once(void **state)
{
    (void)state;
    static const gpt_case cases[] = { { .schedule = "1F1B", .ranks = 2 },
                                      { .schedule = "1F1B", .ranks = 4 },
                                      { .schedule = "Interleaved1F1B", .ranks = 2, .stages_per_rank = 2 },
                                      { .schedule = "ZBVZeroBubble", .ranks = 2 },
                                      { .schedule = "DualPipeV", .ranks = 2, .dtype = SL_BF16 } };
    gpt_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t before = test_device_launches();
        expect_equal_bits("test", &cases[i], &run);
        assert_int_equal(test_device_launches() - before, cases[i].ranks * ((STEPS - 3 - 1) + (3 - 1) + (STEPS - 1)));
    }
}

/* Both kinds of steps that train are captured with a second stream; the tests' streams run as late as they like, so halves
 * that shared memory would differ. A trace has one half after the other, and so have threads, which share queues. */
static void halves_of_an_overlap_are_on_two_streams(void **state)
{
    (void)state;
    static const struct {
        gpt_case wanted;
        int branches;
    } cases[] = { { { .schedule = "DualPipeV", .ranks = 1 }, 2 },
                  { { .schedule = "DualPipeV", .ranks = 1, .dtype = SL_BF16, .updates_last = true }, 3 },
                  { { .schedule = "DualPipeV", .ranks = 1, .trace_events = 1000 }, 0 },
                  { { .schedule = "DualPipeV", .ranks = 2 }, 0 } };
    gpt_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t before = test_device_branches();
        expect_equal_bits("test", &cases[i].wanted, &run);
        assert_int_equal(test_device_branches() - before, cases[i].branches);
    }
    int64_t before = test_device_branches();
    assert_int_equal(setenv("SLUICE_OVERLAP", "off", 1), 0);
    expect_equal_bits("test", &cases[0].wanted, &run);
    assert_int_equal(unsetenv("SLUICE_OVERLAP"), 0);
    assert_int_equal(test_device_branches(), before);
}

/* Each kind of step that trains is captured with a second stream for them, for all of its microbatches; not if traced, nor on
 * several ranks, nor beside another half. */
static void gradients_of_weights_are_on_a_second_stream(void **state)
{
    (void)state;
    static const struct {
        gpt_case wanted;
        int branches;
    } cases[] = { { { .schedule = "1F1B", .ranks = 1, .beside = true }, 2 },
                  { { .schedule = "1F1B", .ranks = 1, .beside = true, .dtype = SL_BF16, .updates_last = true }, 3 },
                  { { .schedule = "Interleaved1F1B", .ranks = 1, .stages_per_rank = 4, .beside = true }, 2 },
                  { { .schedule = "1F1B", .ranks = 1 }, 0 },
                  { { .schedule = "1F1B", .ranks = 1, .beside = true, .trace_events = 1000 }, 0 },
                  { { .schedule = "1F1B", .ranks = 2, .beside = true }, 0 } };
    gpt_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t before = test_device_branches();
        expect_equal_bits("test", &cases[i].wanted, &run);
        assert_int_equal(test_device_branches() - before, cases[i].branches);
    }
}

static sl_status count_call(void *user, const sl_stage_call *call)
{
    (void)call;
    ++*(int *)user;
    return SL_OK;
}

static void a_stage_that_replays_is_called_in_the_first_two_steps_alone(void **state)
{
    (void)state;
    int calls[2] = { 0, 0 };
    for (int replays = 0; replays < 2; replays++) {
        sl_group *group = NULL;
        sl_device *device = NULL;
        sl_schedule *schedule = NULL;
        sl_stage *stage = NULL;
        sl_runtime *runtime = NULL;
        expect_ok(sl_group_open_threads(1, NULL, &group));
        expect_ok(sl_device_open("test", NULL, &device));
        expect_ok(sl_schedule_generate(
            &(sl_generate_options){ .name = "GPipe", .ranks = 1, .microbatches = MICROBATCHES }, &schedule));
        expect_ok(sl_stage_create(
            &(sl_stage_options){
                .forward = count_call, .backward = count_call, .user = &calls[replays], .replays = replays == 1 },
            &stage));
        const sl_runtime_options options = {
            .group = group, .device = device, .schedule = schedule, .stages = &stage, .stage_count = 1
        };
        expect_ok(sl_runtime_create(&options, &runtime));
        for (int step = 0; step < STEPS; step++)
            expect_ok(sl_runtime_step(runtime, &(sl_step){ .number = step }, NULL));
        sl_runtime_destroy(runtime);
        sl_stage_destroy(stage);
        sl_schedule_destroy(schedule);
        sl_device_close(device);
        sl_group_close(group);
    }
    assert_int_equal(calls[0], STEPS * MICROBATCHES * 2);
    assert_int_equal(calls[1], 2 * MICROBATCHES * 2);
}

/* Three steps by themselves hold their update, those that add to others end with it. */
static void an_update_is_part_of_the_launch(void **state)
{
    (void)state;
    gpt_run run;
    for (int stages = 1; stages <= 2; stages++) {
        int64_t before = test_device_launches();
        const gpt_case alone = {
            .schedule = "Interleaved1F1B", .ranks = 1, .stages_per_rank = stages, .updates_last = true
        };
        expect_equal_bits("test", &alone, &run);
        int whole = 3, partial = (STEPS - 3) / 2, keeping = (STEPS - 3) / 2;
        assert_int_equal(test_device_launches() - before, whole - 1 + partial - 1 + keeping - 1 + STEPS - 1);
    }
}

static void a_traced_step_is_one_launch_too(void **state)
{
    (void)state;
    gpt_run run;
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        int64_t before = test_device_launches();
        const gpt_case traced = { .schedule = "1F1B", .ranks = ranks, .trace_events = 1000, .dtype = SL_BF16 };
        expect_equal_bits("test", &traced, &run);
        assert_int_equal(test_device_launches() - before, ranks * ((STEPS - 3 - 1) + (3 - 1) + (STEPS - 1)));
    }
}

static void a_wrong_switch_is_refused_on_every_device(void **state)
{
    (void)state;
    static const char *const devices[] = { "test", "cpu" };
    static const char *const wrong[][3] = {
        { "SLUICE_GRAPHS", "sometimes", "SLUICE_GRAPHS is 'sometimes': it can be on or off" },
        { "SLUICE_OVERLAP", "sometimes", "SLUICE_OVERLAP is 'sometimes': it can be on or off" },
        { "SLUICE_DEVICE_LINKS", "fast", "SLUICE_DEVICE_LINKS is 'fast': it can be 0, 1, nccl or mpi" },
    };
    for (int i = 0; i < 6; i++) {
        gpt_rank rank = { .run = &(gpt_run){ .device = devices[i % 2] } };
        const char *const *each = wrong[i / 2];
        expect_ok(sl_schedule_generate(
            &(sl_generate_options){ .name = "GPipe", .ranks = 1, .microbatches = MICROBATCHES }, &rank.run->schedule));
        rank.run->partition = cut_gpt(1, SL_F32);
        expect_ok(sl_group_open_threads(1, NULL, &rank.group));
        assert_int_equal(setenv(each[0], each[1], 1), 0);
        run_rank(&rank);
        assert_non_null(strstr(rank.error, each[2]));
        assert_int_equal(unsetenv(each[0]), 0);
        sl_partition_destroy(rank.run->partition);
        sl_schedule_destroy(rank.run->schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_gives_the_bits_of_a_run_without_captures),
        cmocka_unit_test(a_rank_without_messages_launches_its_whole_step_at_once),
        cmocka_unit_test(ranks_with_links_launch_their_whole_step_at_once),
        cmocka_unit_test(halves_of_an_overlap_are_on_two_streams),
        cmocka_unit_test(gradients_of_weights_are_on_a_second_stream),
        cmocka_unit_test(a_stage_that_replays_is_called_in_the_first_two_steps_alone),
        cmocka_unit_test(an_update_is_part_of_the_launch),
        cmocka_unit_test(a_traced_step_is_one_launch_too),
        cmocka_unit_test(a_wrong_switch_is_refused_on_every_device),
    };
    test_device_install();
    return cmocka_run_group_tests_name("runtime/captures", tests, NULL, NULL);
}
