/* The generators: PyTorch's compute order, the textbook's 1F1B, and what they refuse. */
#include "fixture.h"
#include "make.h"

#include "base/alloc.h"

#include <time.h>

static void compare_with_reference(const fixture *given)
{
    sl_schedule *theirs = NULL;
    sl_schedule *ours = generate(given->generator, given->ranks, given->microbatches, given->stages_per_rank);
    assert_int_equal(sl_schedule_load_csv(given->path, &theirs), SL_OK);
    if (!sl_schedule_equal(ours, theirs))
        fail_msg("%s differs", given->path);
    sl_schedule_destroy(ours);
    sl_schedule_destroy(theirs);
}

static void gives_the_reference_order(void **state)
{
    (void)state;
    assert_int_equal(fixtures_visit(false, compare_with_reference), 238);
}

static void gives_the_textbook_1f1b(void **state)
{
    (void)state;
    assert_csv(generate("1F1B", 3, 4, 0), "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
                                          "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
                                          "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
    assert_csv(generate("1F1B", 3, 1, 0), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
    assert_csv(generate("Interleaved1F1B", 2, 2, 1), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

static void takes_any_number_of_microbatches(void **state)
{
    (void)state;
    /* 5 microbatches on 2 ranks: rounds of 3 and 2 */
    assert_csv(generate("Interleaved1F1B", 2, 5, 2),
               "0F0,0F1,0F2,2F0,2F1,2F2,2B0,0F3,2B1,0F4,2B2,2F3,0B0,2F4,0B1,0B2,2B3,2B4,0B3,0B4\n"
               "1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1F3,1B0,1F4,1B1,3F3,1B2,3F4,3B3,3B4,1B3,1B4\n");
    assert_csv(generate("DualPipeV", 2, 1, 0), "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n");
}

static void runs_forward_alone_in_each_placement(void **state)
{
    (void)state;
    assert_csv(generate("ForwardOnly", 2, 3, 1), "0F0,0F1,0F2\n1F0,1F1,1F2\n");
    assert_csv(generate("ForwardOnly", 2, 4, 2), "0F0,0F1,2F0,2F1,0F2,0F3,2F2,2F3\n1F0,1F1,3F0,3F1,1F2,1F3,3F2,3F3\n");
    assert_csv(generate("ForwardOnlyV", 2, 3, 2), "0F0,0F1,3F0,0F2,3F1,3F2\n1F0,2F0,1F1,2F1,1F2,2F2\n");
    sl_schedule *schedule = NULL;
    sl_generate_options options = { .name = "DualPipeV", .ranks = 2, .microbatches = 3, .forward_only = true };
    assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
    assert_csv(schedule, "0F0,0F1,3F0,0F2,3F1,3F2\n1F0,2F0,1F1,2F1,1F2,2F2\n");
}

static void finds_names_however_they_are_spelt(void **state)
{
    (void)state;
    static const char *const names[] = { "gpipe", "GPIPE", "ScheduleGPipe", "g-pipe" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_csv(generate(names[i], 1, 1, 0), "0F0,0B0\n");
    sl_schedule_destroy(generate("interleaved_zero_bubble", 2, 2, 0));
    for (int i = 0; sl_generator_name(i); i++)
        sl_schedule_destroy(generate(sl_generator_name(i), 3, 2, 0));
    assert_null(sl_generator_name(-1));
}

static void assert_refused(sl_generate_options options, const char *message)
{
    sl_schedule *schedule = NULL;
    assert_int_equal(sl_schedule_generate(&options, &schedule), SL_ERR_ARGUMENT);
    assert_null(schedule);
    assert_string_equal(sl_error_message(), message);
}

static void says_what_it_refuses(void **state)
{
    (void)state;
    assert_refused((sl_generate_options){ .name = "nope", .ranks = 1, .microbatches = 1 },
                   "there is no schedule 'nope'; there are GPipe, 1F1B, Interleaved1F1B, LoopedBFS, "
                   "InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, ForwardOnly, ForwardOnlyV");
    assert_refused((sl_generate_options){ .name = "GPipe", .microbatches = 1 }, "GPipe: 0 ranks: 1 or more are needed");
    assert_refused((sl_generate_options){ .name = "GPipe", .ranks = 2 }, "GPipe: 0 microbatches: 1 or more are needed");
    assert_refused((sl_generate_options){ .name = "1f1b", .ranks = 2, .microbatches = 2, .stages_per_rank = 2 },
                   "1F1B: 2 stages a rank: it needs exactly 1 (Interleaved1F1B is the same for several)");
    assert_refused(
        (sl_generate_options){ .name = "ZBVZeroBubble", .ranks = 2, .microbatches = 2, .stages_per_rank = 3 },
        "ZBVZeroBubble: 3 stages a rank: it needs exactly 2 (one on the way down, one on the way up)");
    assert_refused(
        (sl_generate_options){ .name = "LoopedBFS", .ranks = 30000, .microbatches = 2, .stages_per_rank = 3 },
        "LoopedBFS: 90000 stages: at most 65535 are possible");
    assert_refused((sl_generate_options){ .name = "1F1B", .ranks = 60000, .microbatches = 2147483646 },
                   "1F1B: 60000 stages and 2147483646 microbatches make more than 2147483648 actions");
    assert_refused((sl_generate_options){ .name = "LoopedBFS", .ranks = 2, .microbatches = 2, .stages_per_rank = -1 },
                   "LoopedBFS: -1 stages a rank: 1 or more are needed");
}

/* Few microbatches on many ranks: the work must be that of the actions, not of the ranks squared. */
static void work_follows_the_actions(void **state)
{
    (void)state;
    static const char *const names[] = { "ZBVZeroBubble", "DualPipeV", "ForwardOnlyV" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        clock_t start = clock();
        sl_schedule *schedule = generate(names[i], 32000, 1, 2);
        assert_true(clock() - start < 2 * CLOCKS_PER_SEC); /* ranks squared would be 10^9 steps */
        assert_true(sl_schedule_size(schedule) <= 32000 * 6);
        sl_schedule_destroy(schedule);
    }
}

static void placements_map_both_ways(void **state)
{
    (void)state;
    static const int v_ranks[] = { 0, 1, 2, 2, 1, 0, 0, 1, 2 };
    for (int stage = 0; stage < 9; stage++) {
        assert_int_equal(sl_placement_rank(SL_PLACEMENT_V, 3, stage), v_ranks[stage]);
        assert_int_equal(sl_placement_rank(SL_PLACEMENT_LOOP, 3, stage), stage % 3);
    }
    for (int rank = 0; rank < 3; rank++) {
        for (int index = 0; index < 4; index++) {
            int loop = sl_placement_stage(SL_PLACEMENT_LOOP, 3, rank, index);
            int v = sl_placement_stage(SL_PLACEMENT_V, 3, rank, index);
            assert_int_equal(sl_placement_rank(SL_PLACEMENT_LOOP, 3, loop), rank);
            assert_int_equal(sl_placement_rank(SL_PLACEMENT_V, 3, v), rank);
            assert_int_equal(v / 3, index);
        }
    }
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        sl_schedule *schedule = NULL;
        sl_generate_options options = { .name = "DualPipeV", .ranks = 3, .microbatches = 5 };
        sl_alloc_fail_after(n);
        sl_status status = sl_schedule_generate(&options, &schedule);
        sl_alloc_fail_after(-1);
        if (status == SL_OK) {
            sl_schedule_destroy(schedule);
            assert_true(n > 4);
            return;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
    }
}

static void assert_says(sl_status status, const char *words)
{
    assert_int_equal(status, SL_ERR_ARGUMENT);
    if (!strstr(sl_error_message(), words))
        fail_msg("expected '%s', the message is: %s", words, sl_error_message());
}

static void placements_of_so_many_stages_are_checked(void **state)
{
    (void)state;
    int ranks[9] = { -1 }, stages[9] = { -1 }, count = -1;
    sl_placement placement = SL_PLACEMENT_LOOP;
    assert_int_equal(sl_placement_parse("v", &placement), SL_OK);
    assert_int_equal(placement, SL_PLACEMENT_V);
    assert_says(sl_placement_parse("zigzag", &placement), "placement 'zigzag' is not known: loop or v");
    assert_says(sl_placement_parse("V", &placement), "is not known");
    assert_int_equal(placement, SL_PLACEMENT_V);

    assert_int_equal(sl_placement_map(SL_PLACEMENT_V, 3, 9, ranks), SL_OK);
    assert_memory_equal(ranks, ((int[]){ 0, 1, 2, 2, 1, 0, 0, 1, 2 }), sizeof ranks);
    assert_int_equal(sl_placement_list(SL_PLACEMENT_V, 3, 9, 0, stages, &count), SL_OK);
    assert_int_equal(count, 3);
    assert_memory_equal(stages, ((int[]){ 0, 5, 6 }), 3 * sizeof(int));
    assert_int_equal(sl_placement_map(SL_PLACEMENT_LOOP, 3, 7, ranks), SL_OK); /* a loop need not divide */
    assert_int_equal(ranks[6], 0);
    assert_int_equal(sl_placement_list(SL_PLACEMENT_LOOP, 3, 7, 2, stages, &count), SL_OK);
    assert_int_equal(count, 2);
    assert_int_equal(stages[1], 5);
    assert_int_equal(sl_placement_list(SL_PLACEMENT_LOOP, 3, 2, 2, stages, &count), SL_OK);
    assert_int_equal(count, 0);

    assert_says(sl_placement_map(SL_PLACEMENT_V, 3, 7, ranks), "7 stages on 3 ranks: a V needs as many");
    assert_says(sl_placement_list(SL_PLACEMENT_V, 3, 8, 0, stages, &count), "8 stages on 3 ranks");
    assert_says(sl_placement_map((sl_placement)2, 3, 6, ranks), "placement 2 is not known");
    assert_says(sl_placement_map(SL_PLACEMENT_LOOP, 0, 6, ranks), "6 stages on 0 ranks");
    assert_says(sl_placement_list(SL_PLACEMENT_LOOP, 3, 6, 3, stages, &count), "there is no rank 3 among 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_reference_order),
        cmocka_unit_test(gives_the_textbook_1f1b),
        cmocka_unit_test(takes_any_number_of_microbatches),
        cmocka_unit_test(runs_forward_alone_in_each_placement),
        cmocka_unit_test(finds_names_however_they_are_spelt),
        cmocka_unit_test(says_what_it_refuses),
        cmocka_unit_test(work_follows_the_actions),
        cmocka_unit_test(placements_map_both_ways),
        cmocka_unit_test(placements_of_so_many_stages_are_checked),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
