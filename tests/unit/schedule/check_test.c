/* The checker: what it accepts, what it refuses, and where it points. */
#include "fixture.h"
#include "make.h"

#include "base/alloc.h"

static void assert_valid(const char *csv, const sl_check_options *options)
{
    sl_schedule *schedule = parse(csv);
    if (sl_schedule_check(schedule, options, NULL) != SL_OK)
        fail_msg("%s: %s", csv, sl_error_message());
    sl_schedule_destroy(schedule);
}

static void assert_violation(const char *csv, const sl_check_options *options, int rank, int cell, const char *text,
                             const char *reason)
{
    sl_violation violation = { .rank = -7 };
    sl_schedule *schedule = parse(csv);
    assert_int_equal(sl_schedule_check(schedule, options, &violation), SL_ERR_SCHEDULE);
    assert_string_equal(violation.reason, reason);
    assert_string_equal(violation.text, text);
    assert_int_equal(violation.rank, rank);
    assert_int_equal(violation.cell, cell);
    assert_non_null(strstr(sl_error_message(), reason));
    sl_schedule_destroy(schedule);
}

static void check_reference(const fixture *given)
{
    sl_schedule *schedule = NULL;
    assert_int_equal(sl_schedule_load_csv(given->path, &schedule), SL_OK);
    if (sl_schedule_check(schedule, NULL, NULL) != SL_OK)
        fail_msg("%s: %s", given->path, sl_error_message());
    sl_schedule_destroy(schedule);
}

static void accepts_every_reference_schedule(void **state)
{
    (void)state;
    assert_int_equal(fixtures_visit(false, check_reference), 238);
    assert_int_equal(fixtures_visit(true, check_reference), 238);
}

/* Whatever the generators are asked for runs. */
static void accepts_what_the_generators_make(void **state)
{
    (void)state;
    for (int g = 0; sl_generator_name(g); g++) {
        for (int ranks = 1; ranks <= 6; ranks++) {
            for (int microbatches = 1; microbatches <= 27; microbatches++) {
                for (int stages = 1; stages <= 5; stages++) {
                    sl_generate_options options = { .name = sl_generator_name(g),
                                                    .ranks = ranks,
                                                    .microbatches = microbatches,
                                                    .stages_per_rank = stages };
                    sl_schedule *schedule = NULL;
                    if (sl_schedule_generate(&options, &schedule) != SL_OK) {
                        assert_non_null(strstr(sl_error_message(), "it needs exactly"));
                        continue;
                    }
                    if (sl_schedule_check(schedule, NULL, NULL) != SL_OK)
                        fail_msg("%s %d %d %d: %s", options.name, ranks, microbatches, stages, sl_error_message());
                    assert_int_equal(sl_schedule_microbatches(schedule), microbatches);
                    assert_int_equal(sl_schedule_stages(schedule), ranks * stages);
                    sl_schedule_destroy(schedule);
                }
            }
        }
    }
}

static void points_at_the_cell(void **state)
{
    (void)state;
    assert_violation("0F0,0F0,0B0\n", NULL, 0, 1, "0F0", "this F has already run");
    assert_violation("0B0,0F0\n", NULL, 0, 0, "0B0", "its F has to run before it");
    assert_violation("0F0,0W0,0I0\n", NULL, 0, 1, "0W0", "its I has to run before it");
    assert_violation("0F0,0I0,0B0\n", NULL, 0, 2, "0B0", "the backward of this microbatch has already run");
    assert_violation("0F0,0B0,0W0\n", NULL, 0, 2, "0W0",
                     "the gradient of the weights has already run for this microbatch");
    assert_violation("0F0,0I0\n", NULL, 0, 2, "0W0", "it is missing");
    assert_violation("0F0,0F1,0B0\n", NULL, 0, 3, "0B1", "it (or I and W) is missing");
    assert_violation("0F0,0B0,0F2,0B2\n", NULL, 0, 4, "0F1", "it is missing");
    assert_violation("0F0,0B0\n1F0,1B0,0B0\n", NULL, 1, 2, "0B0", "stage 0 is already on rank 0");
    assert_violation("0F0,0B0\n2F0,2B0\n", NULL, 1, 0, "2F0", "stage 1 has no actions on any rank");
    assert_violation("1F0,0F0,0B0,1B0\n", NULL, 0, 0, "1F0", "F of stage 0 has to run before it");
    assert_violation("0F0,1F0,0B0,1B0\n", NULL, 0, 2, "0B0", "I or B of stage 1 has to run before it");
    assert_violation("0UNSHARD\n", NULL, 0, 0, "0UNSHARD", "there is no F in the schedule");
    assert_violation("0F0,0B0,0F2147483646\n", NULL, 0, 3, "0F1",
                     "0F1 is missing (2147483647 microbatches by 0F2147483646 at rank 0, cell 2)");
    assert_violation("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n", NULL, 0, 1, "(0F1;0B1)OVERLAP_F_B",
                     "its F has to run before it");
}

static void finds_ranks_that_wait_for_each_other(void **state)
{
    (void)state;
    assert_violation("0F0,0B1,0F1,0B0\n1F0,1B0,1F1,1B1\n", NULL, 0, 1, "0B1", "its F has to run before it");
    assert_violation("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", NULL, 0, 1, "0B0",
                     "deadlock: it waits for I or B of stage 1, microbatch 0 on rank 1, which waits at cell 1, 1F1");
    assert_violation("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n2RECV_F0,2F0,2B0,2SEND_B0\n", NULL, 1, 2,
                     "1B0", "its RECV_B has to come before it");
    assert_violation("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", NULL, 0, 1, "0RECV_B0",
                     "deadlock: it waits for 1SEND_B0 on rank 1, which waits at cell 0, 1RECV_F0");
}

static void holds_messages_to_their_rules(void **state)
{
    (void)state;
    assert_valid("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", NULL);
    assert_violation("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", NULL, 1, 0, "1F0",
                     "its RECV_F has to come before it");
    assert_violation("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", NULL, 0, 3, "0SEND_F0", "it is missing");
    assert_violation("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", NULL, 0, 0, "0SEND_F0",
                     "its F has to run before it");
    assert_violation("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", NULL, 0, 2, "0SEND_F0",
                     "it is already in the schedule");
    assert_violation("0RECV_F0,0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", NULL, 0, 0, "0RECV_F0",
                     "no stage on another rank sends what it receives");
    assert_violation("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n", NULL, 1, 0, "1RECV_F1",
                     "it is receive 0 of its stage (from 0), but 0SEND_F1 is send 1 of rank 0: both sides need the "
                     "same order");
    assert_violation("0F0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0\n", NULL, 0, 2, "0RECV_B0", "the schedule has no backward");
}

static void holds_weights_to_their_rules(void **state)
{
    (void)state;
    assert_valid("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n", NULL);
    assert_violation("0F0,0UNSHARD,0B0,0RESHARD\n", NULL, 0, 0, "0F0", "its stage has to be unsharded before it");
    assert_violation("0UNSHARD,0F0,0RESHARD,0B0\n", NULL, 0, 3, "0B0", "its stage has to be unsharded before it");
    assert_violation("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD\n", NULL, 0, 1, "0UNSHARD", "the stage is already unsharded");
    assert_violation("0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n", NULL, 0, 4, "0RESHARD", "the stage is not unsharded");
    assert_violation("0UNSHARD,0F0,0B0\n", NULL, 0, 3, "0RESHARD", "it is missing: the stage is left unsharded");
    assert_violation("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", NULL, 0, 3, "0REDUCE_GRAD",
                     "a W or B of the stage comes after it or is missing");
    assert_violation("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", NULL, 0, 3, "0REDUCE_GRAD",
                     "the gradients of the stage are already reduced");
    assert_violation("0F0,1F0,1B0,1REDUCE_GRAD,0B0\n", NULL, 0, 5, "0REDUCE_GRAD",
                     "it is missing, though other stages have it");
}

/* 1F1B with the messages next to their computation: both ranks send before they receive. */
static void knows_the_capacity_of_links(void **state)
{
    (void)state;
    const char *naive = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
    const char *careful = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                          "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n";
    sl_check_options rendezvous = { .limit_links = true, .link_capacity = 0 };
    sl_check_options one = { .limit_links = true, .link_capacity = 1 };
    assert_valid(naive, NULL);
    assert_valid(naive, &one);
    assert_violation(naive, &rendezvous, 0, 3, "0SEND_F1",
                     "deadlock: it waits for 1RECV_F1 on rank 1, which waits at cell 3, 1SEND_B0");
    assert_valid(careful, &rendezvous);
    /* three messages ahead of the first receive */
    const char *ahead = "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,2RECV_F0,2F0,2RECV_F1,2F1,2RECV_F2,2F2\n"
                        "1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2,1SEND_F0,1SEND_F1,1SEND_F2\n";
    assert_valid(ahead, &rendezvous);
    const char *blocked = "0F0,0F1,0F2,0SEND_F0,0SEND_F1,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
                          "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2\n";
    sl_check_options two = { .limit_links = true, .link_capacity = 2 };
    assert_valid(blocked, &two);
    assert_valid(blocked, &one);
    sl_check_options negative = { .limit_links = true, .link_capacity = -1 };
    sl_schedule *schedule = parse(blocked);
    assert_int_equal(sl_schedule_check(schedule, &negative, NULL), SL_ERR_ARGUMENT);
    sl_schedule_destroy(schedule);
}

static void follows_the_edges_it_is_given(void **state)
{
    (void)state;
    static const sl_edge skip[] = { { 0, 1 }, { 1, 2 }, { 0, 2 } };
    sl_check_options options = { .edges = skip, .edge_count = 3 };
    assert_valid("0F0,2F0,2B0,0B0\n1F0,1B0\n", &options);
    assert_valid("0F0\n1F0\n2F0\n", &options);
    /* stages 0 and 1 do not depend on each other here */
    static const sl_edge fork[] = { { 0, 2 }, { 1, 2 } };
    sl_check_options forked = { .edges = fork, .edge_count = 2 };
    assert_valid("1F0,0F0,2F0,2B0,0B0,1B0\n", &forked);
    assert_violation("1F0,2F0,0F0,2B0,0B0,1B0\n", &forked, 0, 1, "2F0", "F of stage 0 has to run before it");
    static const sl_edge none[1];
    sl_check_options apart = { .edges = none, .edge_count = 0 };
    assert_valid("1F0\n0F0\n", &apart);
    assert_violation("0F0,0SEND_F0\n1RECV_F0,1F0\n", &apart, 0, 1, "0SEND_F0",
                     "no stage on another rank needs what it sends");
}

/* A schedule that has passed remembers it: for the edges between neighbors alone. */
static void checks_anew_for_other_edges(void **state)
{
    (void)state;
    static const sl_edge none[1], skip[] = { { 0, 1 }, { 1, 2 }, { 0, 2 } };
    const sl_check_options apart = { .edges = none, .edge_count = 0 }, skipping = { .edges = skip, .edge_count = 3 };
    sl_schedule *schedule = parse("0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2F0\n");
    for (int time = 0; time < 2; time++) {
        assert_int_equal(sl_schedule_check(schedule, NULL, NULL), SL_OK);
        assert_int_equal(sl_schedule_check(schedule, &apart, NULL), SL_ERR_SCHEDULE);
        assert_int_equal(sl_schedule_check(schedule, &skipping, NULL), SL_OK);
    }
    sl_schedule_destroy(schedule);
    schedule = parse("0F0,0B0\n1F0\n");
    for (int time = 0; time < 2; time++)
        assert_int_equal(sl_schedule_check(schedule, NULL, NULL), SL_ERR_SCHEDULE);
    sl_schedule_destroy(schedule);
}

static void refuses_what_is_no_edge(void **state)
{
    (void)state;
    static const sl_edge bad[][2] = { { { 0, 1 }, { 1, 1 } },
                                      { { 0, 1 }, { 1, 0 } },
                                      { { 0, 1 }, { 0, 2 } },
                                      { { 0, 1 }, { -1, 1 } },
                                      { { 0, 1 }, { 0, 1 } } };
    sl_schedule *schedule = parse("0F0\n1F0\n");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_check_options options = { .edges = bad[i], .edge_count = 2 };
        assert_int_equal(sl_schedule_check(schedule, &options, NULL), SL_ERR_ARGUMENT);
        assert_non_null(strstr(sl_error_message(), "edge 1"));
    }
    sl_schedule_destroy(schedule);
}

static void reports_a_rank_without_actions(void **state)
{
    (void)state;
    sl_schedule_builder *builder = NULL;
    sl_schedule *schedule = NULL;
    sl_violation violation;
    assert_int_equal(sl_schedule_builder_create(2, &builder), SL_OK);
    assert_int_equal(sl_schedule_builder_add(builder, 0, sl_action_make(SL_KIND_F, 0, 0)), SL_OK);
    assert_int_equal(sl_schedule_builder_finish(builder, &schedule), SL_OK);
    assert_int_equal(sl_schedule_check(schedule, NULL, &violation), SL_ERR_SCHEDULE);
    assert_int_equal(violation.rank, 1);
    assert_string_equal(violation.reason, "the rank has no actions");
    sl_schedule_destroy(schedule);
    sl_schedule_builder_destroy(builder);
}

static void counts_slots(void **state)
{
    (void)state;
    int per_rank[4];
    int per_stage[8];
    sl_schedule *schedule = NULL;
    sl_generate_options options = { .name = "1F1B", .ranks = 4, .microbatches = 8 };
    assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
    assert_int_equal(sl_schedule_count_slots(schedule, per_rank, per_stage), SL_OK);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(per_rank[rank], 4 - rank); /* the textbook's */
        assert_int_equal(per_stage[rank], 4 - rank);
    }
    sl_schedule_destroy(schedule);
    schedule = parse("0F0,0F1,(3F0;0B1)OVERLAP_F_B,3I0,3W0,3F1,3B1,0B0\n");
    assert_int_equal(sl_schedule_count_slots(schedule, per_rank, per_stage), SL_OK);
    assert_int_equal(per_rank[0], 3); /* F takes its slot before B gives one back */
    assert_int_equal(per_stage[0], 2);
    assert_int_equal(per_stage[3], 1);
    sl_schedule_destroy(schedule);
    schedule = parse("0F0,0F1\n1F0,1F1\n");
    assert_int_equal(sl_schedule_count_slots(schedule, per_rank, NULL), SL_OK);
    assert_int_equal(per_rank[0], 1);
    sl_schedule_destroy(schedule);
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
    for (int n = 0;; n++) {
        sl_alloc_fail_after(n);
        sl_status status = sl_schedule_check(schedule, NULL, NULL);
        sl_alloc_fail_after(-1);
        if (status == SL_OK) {
            assert_true(n > 10);
            break;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
    }
    sl_schedule_destroy(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_every_reference_schedule),
        cmocka_unit_test(accepts_what_the_generators_make),
        cmocka_unit_test(points_at_the_cell),
        cmocka_unit_test(finds_ranks_that_wait_for_each_other),
        cmocka_unit_test(holds_messages_to_their_rules),
        cmocka_unit_test(holds_weights_to_their_rules),
        cmocka_unit_test(knows_the_capacity_of_links),
        cmocka_unit_test(follows_the_edges_it_is_given),
        cmocka_unit_test(checks_anew_for_other_edges),
        cmocka_unit_test(refuses_what_is_no_edge),
        cmocka_unit_test(reports_a_rank_without_actions),
        cmocka_unit_test(counts_slots),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
