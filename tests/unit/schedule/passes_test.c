/* The lowering passes: the reference's set of actions, their limits, and no deadlock over any link. */
#include "fixture.h"
#include "make.h"

#include "base/alloc.h"
#include "schedule/schedule.h"

static int compare_actions(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(sl_action));
}

/* The rank's actions in an order of their own. */
static sl_action *sorted(const sl_schedule *schedule, int rank, int64_t *count)
{
    const sl_action *actions = sl_schedule_actions(schedule, rank, count);
    sl_action *copy = malloc((size_t)*count * sizeof *copy);
    memcpy(copy, actions, (size_t)*count * sizeof *copy);
    qsort(copy, (size_t)*count, sizeof *copy, compare_actions);
    return copy;
}

static void compare_with_reference(const fixture *given)
{
    sl_schedule *theirs = NULL;
    sl_schedule *ours = NULL;
    sl_schedule *compute = generate(given->generator, given->ranks, given->microbatches, given->stages_per_rank);
    assert_int_equal(sl_schedule_load_csv(given->path, &theirs), SL_OK);
    assert_int_equal(sl_schedule_lower(compute, NULL, &ours), SL_OK);
    for (int rank = 0; rank < given->ranks; rank++) {
        int64_t count;
        int64_t their_count;
        sl_action *a = sorted(ours, rank, &count);
        sl_action *b = sorted(theirs, rank, &their_count);
        if (count != their_count || memcmp(a, b, (size_t)count * sizeof *a) != 0)
            fail_msg("%s: rank %d has other actions", given->path, rank);
        free(a);
        free(b);
    }
    sl_schedule_destroy(compute);
    sl_schedule_destroy(theirs);
    sl_schedule_destroy(ours);
}

static void lowers_to_the_actions_of_the_reference(void **state)
{
    (void)state;
    assert_int_equal(fixtures_visit(true, compare_with_reference), 238);
}

/* Drops messages and weight actions: what is left must be what was given. */
static void assert_same_computation(const sl_schedule *lowered, const sl_schedule *compute)
{
    for (int rank = 0; rank < sl_schedule_ranks(compute); rank++) {
        int64_t count;
        int64_t compute_count;
        int64_t seen = 0;
        const sl_action *actions = sl_schedule_actions(lowered, rank, &count);
        const sl_action *expected = sl_schedule_actions(compute, rank, &compute_count);
        for (int64_t i = 0; i < count; i++) {
            if (sl_kind_class_of((sl_kind)actions[i].kind) == SL_CLASS_COMPUTE)
                assert_true(sl_action_equal(actions[i], expected[seen++]));
        }
        assert_int_equal(seen, compute_count);
    }
}

static void assert_tight(const sl_schedule *lowered)
{
    sl_schedule *tight = NULL;
    assert_int_equal(sl_schedule_tighten_messages(lowered, NULL, 0, &tight), SL_OK);
    assert_true(sl_schedule_equal(tight, lowered));
    sl_schedule_destroy(tight);
}

static void cannot_deadlock_whatever_the_links_hold(void **state)
{
    (void)state;
    for (int g = 0; sl_generator_name(g); g++) {
        for (int ranks = 1; ranks <= 5; ranks++) {
            for (int microbatches = 1; microbatches <= 13; microbatches++) {
                for (int stages = 1; stages <= 5; stages++) {
                    sl_generate_options options = { .name = sl_generator_name(g),
                                                    .ranks = ranks,
                                                    .microbatches = microbatches,
                                                    .stages_per_rank = stages };
                    sl_schedule *compute = NULL;
                    sl_schedule *lowered = NULL;
                    if (sl_schedule_generate(&options, &compute) != SL_OK)
                        continue;
                    assert_int_equal(sl_schedule_lower(compute, NULL, &lowered), SL_OK);
                    for (int capacity = 0; capacity <= 2; capacity++) {
                        sl_check_options check = { .limit_links = true, .link_capacity = capacity };
                        if (sl_schedule_check(lowered, &check, NULL) != SL_OK)
                            fail_msg("%s %d %d %d: %s", options.name, ranks, microbatches, stages, sl_error_message());
                    }
                    assert_same_computation(lowered, compute);
                    assert_tight(lowered);
                    sl_schedule_destroy(compute);
                    sl_schedule_destroy(lowered);
                }
            }
        }
    }
}

static void receives_before_it_sends_where_it_must(void **state)
{
    (void)state;
    sl_schedule *compute = generate("1F1B", 2, 3, 1);
    sl_schedule *lowered = NULL;
    sl_lower_options options = { .no_unshard = true, .no_reduce_grad = true };
    assert_int_equal(sl_schedule_lower(compute, &options, &lowered), SL_OK);
    assert_csv(lowered, "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
                        "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1RECV_F2,1SEND_B1,1F2,1B2,1SEND_B2\n");
    sl_schedule_destroy(compute);
}

static void moves_receives_down_and_sends_up(void **state)
{
    (void)state;
    sl_schedule *loose =
        parse("0UNSHARD,0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0RESHARD,0UNSHARD,0B0,0B1,0RESHARD\n"
              "1RECV_F0,1RECV_F1,1UNSHARD,1F0,1F1,1I0,1W0,1I1,1W1,1SEND_B0,1SEND_B1,1RESHARD\n");
    sl_schedule *tight = NULL;
    sl_schedule *again = NULL;
    assert_int_equal(sl_schedule_tighten_messages(loose, NULL, 0, &tight), SL_OK);
    assert_int_equal(sl_schedule_tighten_messages(tight, NULL, 0, &again), SL_OK);
    assert_true(sl_schedule_equal(tight, again));
    assert_csv(tight, "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RESHARD,0UNSHARD,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD\n"
                      "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1F1,1I0,1SEND_B0,1W0,1I1,1SEND_B1,1W1,1RESHARD\n");
    sl_schedule_destroy(loose);
    sl_schedule_destroy(again);
}

static sl_schedule *defer(const sl_schedule *compute)
{
    sl_schedule *lowered = NULL;
    sl_lower_options options = { .no_unshard = true, .no_reduce_grad = true };
    assert_int_equal(sl_schedule_lower(compute, &options, &lowered), SL_OK);
    assert_int_equal(sl_schedule_defer_receives(lowered), SL_OK);
    return lowered;
}

/* Before what is sent there is no wait for what is not needed yet. */
static void receives_right_before_the_use(void **state)
{
    (void)state;
    sl_schedule *compute = generate("1F1B", 2, 3, 1);
    assert_csv(defer(compute), "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
                               "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2\n");
    sl_schedule_destroy(compute);
}

/* Its own message, or one of the same stage and kind that has to come before it. */
static bool serves(sl_action receive, sl_action action)
{
    sl_action parts[2];
    for (int p = 0, count = sl_action_parts(action, parts); p < count; p++) {
        bool forward = parts[p].kind == SL_KIND_F;
        if (parts[p].kind != SL_KIND_W && parts[p].stage == receive.stage &&
            receive.kind == (forward ? SL_KIND_RECV_F : SL_KIND_RECV_B))
            return true;
    }
    return false;
}

static bool is_receive(sl_action action)
{
    return action.kind == SL_KIND_RECV_F || action.kind == SL_KIND_RECV_B;
}

static void assert_beside_use(const sl_schedule *schedule)
{
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        int64_t count, use = 0;
        const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
        for (int64_t i = 0; i < count; i++) {
            for (use = i; is_receive(actions[use]);)
                use++;
            if (use > i)
                assert_true(serves(actions[i], actions[use]));
        }
    }
}

static void deferred_receives_stand_beside_their_use_in_every_schedule(void **state)
{
    (void)state;
    for (int g = 0; sl_generator_name(g); g++) {
        for (int ranks = 2; ranks <= 5; ranks++) {
            for (int microbatches = ranks; microbatches <= 3 * ranks; microbatches += ranks) {
                sl_generate_options options = { .name = sl_generator_name(g),
                                                .ranks = ranks,
                                                .microbatches = microbatches };
                sl_schedule *compute = NULL;
                if (sl_schedule_generate(&options, &compute) != SL_OK)
                    continue;
                sl_schedule *late = defer(compute);
                assert_int_equal(sl_schedule_check(late, NULL, NULL), SL_OK);
                assert_same_computation(late, compute);
                assert_beside_use(late);
                sl_schedule_destroy(compute);
                sl_schedule_destroy(late);
            }
        }
    }
}

static void tightens_the_reference(const fixture *given)
{
    sl_schedule *theirs = NULL;
    sl_schedule *tight = NULL;
    sl_check_options rendezvous = { .limit_links = true };
    assert_int_equal(sl_schedule_load_csv(given->path, &theirs), SL_OK);
    assert_int_equal(sl_schedule_tighten_messages(theirs, NULL, 0, &tight), SL_OK);
    assert_int_equal(sl_schedule_check(tight, NULL, NULL), SL_OK);
    if (sl_schedule_check(theirs, &rendezvous, NULL) == SL_OK)
        assert_int_equal(sl_schedule_check(tight, &rendezvous, NULL), SL_OK);
    sl_schedule_destroy(theirs);
    sl_schedule_destroy(tight);
}

static void keeps_what_could_run_able_to(void **state)
{
    (void)state;
    assert_int_equal(fixtures_visit(true, tightens_the_reference), 238);
}

static void joins_adjacent_backwards(void **state)
{
    (void)state;
    sl_schedule *split = parse("0F0,0F1,0I0,0W0,0I1,0F2,0W1,0I2,0W2\n");
    sl_schedule *joined = NULL;
    assert_int_equal(sl_schedule_merge_backward(split, &joined), SL_OK);
    assert_csv(joined, "0F0,0F1,0B0,0I1,0F2,0W1,0B2\n");
    sl_schedule_destroy(split);
}

static void reduces_after_the_last_weight_gradient(void **state)
{
    (void)state;
    sl_schedule *in = parse("0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,0I0,1B1,0I1,0W0,0W1\n");
    sl_schedule *out = NULL;
    assert_int_equal(sl_schedule_add_reduce_grad(in, &out), SL_OK);
    sl_schedule *again = NULL;
    assert_int_equal(sl_schedule_add_reduce_grad(out, &again), SL_ERR_ARGUMENT);
    assert_csv(out, "0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,0I0,1B1,1REDUCE_GRAD,0I1,0W0,0W1,0REDUCE_GRAD\n");
    sl_schedule_destroy(in);
}

static void unshards_those_used_next(void **state)
{
    (void)state;
    sl_schedule *in = parse("0F0,1F0,2F0,3F0,3B0,2B0,1B0,0B0\n");
    sl_schedule *out = NULL;
    assert_int_equal(sl_schedule_add_unshard(in, 2, &out), SL_OK);
    assert_csv(out, "0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,1RESHARD,3UNSHARD,2F0,3F0,3B0,3RESHARD,1UNSHARD,2B0,"
                    "2RESHARD,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
    assert_int_equal(sl_schedule_add_unshard(in, -1, &out), SL_ERR_ARGUMENT);
    sl_schedule_destroy(in);
}

static void keeps_to_the_limit_of_active_stages(void **state)
{
    (void)state;
    static const char *const names[] = { "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "DualPipeV" };
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        for (int limit = 1; limit <= 4; limit++) {
            sl_schedule *compute = generate(names[n], 2, 5, n == 3 ? 2 : 6);
            sl_schedule *out = NULL;
            assert_int_equal(sl_schedule_add_unshard(compute, limit, &out), SL_OK);
            assert_int_equal(sl_schedule_check(out, NULL, NULL), SL_OK);
            for (int rank = 0; rank < 2; rank++) {
                int64_t count;
                int active = 0;
                const sl_action *actions = sl_schedule_actions(out, rank, &count);
                for (int64_t i = 0; i < count; i++) {
                    active += actions[i].kind == SL_KIND_UNSHARD;
                    active -= actions[i].kind == SL_KIND_RESHARD;
                    assert_true(active <= limit || (n == 3 && active <= 2));
                }
            }
            sl_schedule_destroy(compute);
            sl_schedule_destroy(out);
        }
    }
}

/* Stage 0 feeds 1 and 3, 1 and 2 feed 3: messages over stages in between. */
static void lowers_any_edges(void **state)
{
    (void)state;
    static const sl_edge edges[] = { { 0, 1 }, { 0, 3 }, { 1, 2 }, { 1, 3 }, { 2, 3 } };
    static const char *const names[] = { "GPipe", "1F1B", "InterleavedZeroBubble", "LoopedBFS", "DualPipeV" };
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        sl_schedule *compute = generate(names[n], n < 2 ? 4 : 2, 6, 0);
        sl_schedule *lowered = NULL;
        sl_lower_options options = { .edges = edges, .edge_count = 5 };
        sl_check_options check = { .edges = edges, .edge_count = 5 };
        if (sl_schedule_lower(compute, &options, &lowered) != SL_OK ||
            sl_schedule_check(lowered, &check, NULL) != SL_OK)
            fail_msg("%s: %s", names[n], sl_error_message());
        assert_same_computation(lowered, compute);
        sl_schedule_destroy(compute);
        sl_schedule_destroy(lowered);
    }
}

static void says_where_edges_cannot_be_lowered(void **state)
{
    (void)state;
    static const sl_edge edges[] = { { 0, 2 }, { 1, 2 } };
    sl_schedule *in = parse("0F0,0F1\n1F1,1F0\n2F0,2F1\n");
    sl_schedule *out = NULL;
    assert_int_equal(sl_schedule_add_messages(in, edges, 2, &out), SL_ERR_SCHEDULE);
    assert_non_null(strstr(sl_error_message(), "run their microbatches in different orders"));
    sl_schedule_destroy(in);
    in = parse("0F0,0SEND_F0\n1RECV_F0,1F0\n");
    assert_int_equal(sl_schedule_add_messages(in, NULL, 0, &out), SL_ERR_ARGUMENT);
    sl_schedule_destroy(in);
    in = parse("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
    assert_int_equal(sl_schedule_lower(in, NULL, &out), SL_ERR_SCHEDULE);
    assert_non_null(strstr(sl_error_message(), "deadlock"));
    assert_null(out);
    sl_schedule_destroy(in);
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    sl_schedule *compute = generate("DualPipeV", 2, 4, 2);
    sl_lower_options options = { .merge_backward = true };
    for (int n = 0;; n++) {
        sl_schedule *lowered = NULL;
        sl_alloc_fail_after(n);
        sl_status status = sl_schedule_lower(compute, &options, &lowered);
        sl_alloc_fail_after(-1);
        if (status == SL_OK) {
            sl_schedule_destroy(lowered);
            assert_true(n > 50);
            break;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
        assert_null(lowered);
    }
    sl_schedule_destroy(compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowers_to_the_actions_of_the_reference),
        cmocka_unit_test(cannot_deadlock_whatever_the_links_hold),
        cmocka_unit_test(receives_before_it_sends_where_it_must),
        cmocka_unit_test(moves_receives_down_and_sends_up),
        cmocka_unit_test(receives_right_before_the_use),
        cmocka_unit_test(deferred_receives_stand_beside_their_use_in_every_schedule),
        cmocka_unit_test(keeps_what_could_run_able_to),
        cmocka_unit_test(joins_adjacent_backwards),
        cmocka_unit_test(reduces_after_the_last_weight_gradient),
        cmocka_unit_test(unshards_those_used_next),
        cmocka_unit_test(keeps_to_the_limit_of_active_stages),
        cmocka_unit_test(lowers_any_edges),
        cmocka_unit_test(says_where_edges_cannot_be_lowered),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
