/* Ranks that wait for each other in a circle are found, and no others. */
#include "comm/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 4 };
#define HANG_TIMEOUT 10.0

static sl_group *groups[RANKS];

static int open_groups(void **state)
{
    (void)state;
    return sl_group_open_threads(RANKS, &(sl_group_options){ .hang_timeout = HANG_TIMEOUT }, groups) == SL_OK ? 0 : -1;
}

static int close_groups(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++)
        sl_group_close(groups[r]);
    return 0;
}

/* For `seconds`, as a program does that follows an order. */
static void wait_for(int rank, int peer, double seconds)
{
    const sl_wait wait = { .kind = rank < peer ? SL_WAIT_RECEIVE : SL_WAIT_RESERVE,
                           .channel = 10 * rank + peer,
                           .peer = peer,
                           .microbatch = rank,
                           .step = 7,
                           .in_order = true };
    char note[16];
    snprintf(note, sizeof note, "step 7 %dF%d", rank, rank);
    sl_group_note(groups[rank], note);
    sl_group_note_wait(groups[rank], &wait, sl_now() - seconds);
}

static void a_circle_is_named_with_the_actions_of_its_ranks(void **state)
{
    (void)state;
    wait_for(0, 3, 20); /* waits for one of the circle */
    wait_for(3, 1, 20);
    wait_for(1, 2, 20);
    assert_int_equal(sl_group_check(groups[0]), SL_OK);
    wait_for(2, 3, 20);
    assert_int_equal(sl_group_check(groups[0]), SL_ERR_PEER);
    assert_string_equal(sl_error_message(),
                        "rank 1 waits in a circle that nothing ends; last doing: "
                        "rank 1: step 7 1F1, waiting to receive on channel 12 from rank 2 (step 7, microbatch 1); "
                        "rank 2: step 7 2F2, waiting to receive on channel 23 from rank 3 (step 7, microbatch 2); "
                        "rank 3: step 7 3F3, waiting for a free slot on channel 31 to rank 1 (step 7, microbatch 3)");
    assert_int_equal(sl_group_failure_code(groups[0]), SL_ERR_TIMEOUT);
}

static void who_may_go_on_is_in_no_circle(void **state)
{
    (void)state;
    wait_for(0, 1, 20);
    wait_for(1, 0, 1); /* not for long */
    assert_int_equal(sl_group_check(groups[0]), SL_OK);

    wait_for(2, 3, 20);
    atomic_fetch_add(&groups[3]->link->streaming->left, 1); /* its stream may send what rank 2 waits for */
    wait_for(3, 2, 20);
    assert_int_equal(sl_group_check(groups[0]), SL_OK);

    atomic_fetch_sub(&groups[3]->link->streaming->left, 1);
    atomic_store(&groups[3]->link->streaming->last, (uint64_t)(sl_now() * 1e9)); /* has just sent it */
    wait_for(3, 2, 20);
    assert_int_equal(sl_group_check(groups[0]), SL_OK);

    atomic_store(&groups[3]->link->streaming->last, 0);
    sl_group_note_wait(groups[2], NULL, 0); /* goes on */
    wait_for(3, 2, 20);
    assert_int_equal(sl_group_check(groups[0]), SL_OK);
    wait_for(2, 3, 20);
    assert_int_equal(sl_group_check(groups[0]), SL_ERR_PEER);
}

/* It may have what it waited for, and not have come to see it. */
static void a_rank_that_is_stopped_is_in_no_circle(void **state)
{
    (void)state;
    sl_group *pair[2];
    const sl_wait waits[] = { { .kind = SL_WAIT_RECEIVE, .channel = 1, .peer = 1, .in_order = true },
                              { .kind = SL_WAIT_RECEIVE, .channel = 2, .peer = 0, .in_order = true } };
    assert_int_equal(sl_group_open_threads(2, &(sl_group_options){ .hang_timeout = 0.2 }, pair), SL_OK);
    double since = sl_now();
    for (int r = 0; r < 2; r++)
        sl_group_note_wait(pair[r], &waits[r], since);
    while (sl_now() - since < 0.3)
        usleep(10000);
    sl_group_note_wait(pair[0], &waits[0], since);
    assert_int_equal(sl_group_check(pair[0]), SL_OK);
    sl_group_note_wait(pair[1], &waits[1], since); /* goes on, and waits still */
    assert_int_equal(sl_group_check(pair[1]), SL_ERR_PEER);
    for (int r = 0; r < 2; r++)
        sl_group_close(pair[r]);
}

/* Another thread of a rank may send what is waited for, unless it follows a program. */
static void ranks_that_follow_no_program_are_in_no_circle(void **state)
{
    (void)state;
    const sl_wait waits[] = { { .kind = SL_WAIT_RECEIVE, .channel = 1, .peer = 1 },
                              { .kind = SL_WAIT_RECEIVE, .channel = 2, .peer = 0 } };
    for (int r = 0; r < 2; r++)
        sl_group_note_wait(groups[r], &waits[r], sl_now() - 20);
    sl_group_note_wait(groups[0], &waits[0], sl_now() - 20);
    assert_int_equal(sl_group_check(groups[0]), SL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_circle_is_named_with_the_actions_of_its_ranks, open_groups, close_groups),
        cmocka_unit_test_setup_teardown(who_may_go_on_is_in_no_circle, open_groups, close_groups),
        cmocka_unit_test(a_rank_that_is_stopped_is_in_no_circle),
        cmocka_unit_test_setup_teardown(ranks_that_follow_no_program_are_in_no_circle, open_groups, close_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
