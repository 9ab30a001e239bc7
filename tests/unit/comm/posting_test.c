/* What posting a collective costs the thread that posts it: no wait for another thread's move, and no move of its own if
 * a mover sees to them. */
#include "comm/request.h"

#include <sluice/comm.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

enum { RANKS = 2, COUNT = 1 << 16 };

typedef struct poster {
    sl_group *groups[RANKS];
    sl_request *requests[RANKS];
    float data[RANKS][COUNT];
} poster;

static poster *open_poster(void)
{
    poster *self = test_calloc(1, sizeof *self);
    assert_int_equal(sl_group_open_threads(RANKS, NULL, self->groups), SL_OK);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < COUNT; i++)
            self->data[r][i] = (float)(r + i);
    }
    return self;
}

static void post(poster *self, int rank)
{
    assert_int_equal(sl_group_all_reduce_post(self->groups[rank], self->data[rank], COUNT, SL_F32, SL_REDUCE_SUM, NULL,
                                              &self->requests[rank]),
                     SL_OK);
}

/* One thread plays both ranks: each moves as far as it can without the other. */
static void finish(poster *self)
{
    bool done[RANKS] = { false };
    while (!done[0] || !done[1]) {
        for (int r = 0; r < RANKS; r++) {
            if (!done[r])
                assert_int_equal(sl_request_test(self->requests[r], &done[r]), SL_OK);
        }
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(self->data[0][i] == (float)(2 * i + 1) && self->data[1][i] == self->data[0][i]);
    sl_group_close(self->groups[0]);
    sl_group_close(self->groups[1]);
    test_free(self);
}

static bool has_begun(const sl_request *request)
{
    return request->has_move || request->i > 0 || request->part > 0 || request->round > 0;
}

static void posting_waits_for_no_move(void **state)
{
    (void)state;
    poster *self = open_poster();
    atomic_flag *progressing = &self->groups[0]->link->progressing;
    assert_false(atomic_flag_test_and_set(progressing)); /* as if another thread were in the middle of a move */
    alarm(20);
    post(self, 0);
    alarm(0);
    assert_false(has_begun(self->requests[0]));
    atomic_flag_clear(progressing);
    post(self, 1);
    finish(self);
}

static void a_mover_leaves_nothing_to_whoever_posts(void **state)
{
    (void)state;
    poster *self = open_poster();
    atomic_fetch_add(&self->groups[0]->link->movers, 1);
    post(self, 0);
    post(self, 1); /* this one has none */
    assert_false(has_begun(self->requests[0]));
    assert_true(has_begun(self->requests[1]));
    atomic_fetch_sub(&self->groups[0]->link->movers, 1);
    finish(self);
}

/* Progress makes one move at a time, so that a thread that waits for a message looks for it in between. */
static void progress_is_one_move(void **state)
{
    (void)state;
    poster *self = open_poster();
    atomic_fetch_add(&self->groups[0]->link->movers, 1);
    post(self, 0);
    assert_true(sl_link_progress(self->groups[0]->link)); /* its part to rank 1 */
    assert_true(has_begun(self->requests[0]) && self->requests[0]->part == 0);
    assert_false(sl_link_progress(self->groups[0]->link)); /* rank 1 has sent nothing */
    atomic_fetch_sub(&self->groups[0]->link->movers, 1);
    post(self, 1);
    finish(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(posting_waits_for_no_move),
        cmocka_unit_test(a_mover_leaves_nothing_to_whoever_posts),
        cmocka_unit_test(progress_is_one_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
