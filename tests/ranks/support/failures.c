/* Cases of the suite: one rank fails, all hear of it. */
#include "ranks/support/suite.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* Rank 1 fails after a moment, in which the others have begun to wait in the way that `wait` does. */
static sl_status fail_while_others(sl_group *group, sl_status (*wait)(sl_group *group, sl_channel *channel),
                                   const char *doing)
{
    sl_status status = SL_OK;
    sl_channel *channel = NULL;
    sl_channel_spec spec = { 2, 1, 0, 1, 8 };
    SL_TRY(sl_group_open_channels(group, &spec, 1, &channel));
    if (sl_group_rank(group) == 1) {
        usleep(20000);
        sl_fail(SL_ERR_STAGE, "stage 1 broke");
        CHECK(sl_group_fail(group, SL_ERR_STAGE) == SL_ERR_STAGE);
        CHECK_FAILS(sl_group_check(group), SL_ERR_STAGE, "stage 1 broke"); /* its own code */
    } else {
        double start = sl_now();
        CHECK_FAILS(wait(group, channel), SL_ERR_PEER, "rank 1 failed: stage 1 broke");
        SL_TRY(suite_expect(SL_ERR_PEER, SL_ERR_PEER, doing, __FILE__, __LINE__));
        CHECK(sl_now() - start < 1);
        CHECK_FAILS(sl_group_barrier(group), SL_ERR_PEER, "stage 1 broke"); /* and each call after it */
        CHECK_FAILS(sl_group_check(group), SL_ERR_PEER, "rank 1 failed");
    }
done:
    return status;
}

static sl_status wait_in_receive(sl_group *group, sl_channel *channel)
{
    sl_message message = { .step = 3, .microbatch = 7, .dtype = SL_F32, .shape = { 0 } };
    void *data = NULL;
    if (sl_group_rank(group) != 0) {
        float sum = 0;
        return sl_group_all_reduce(group, &sum, 1, SL_F32, SL_REDUCE_SUM);
    }
    return sl_channel_receive(channel, &message, NULL, &data);
}

static sl_status a_failure_ends_receives_and_collectives(sl_group *group, uint64_t seed)
{
    (void)seed;
    return fail_while_others(group, wait_in_receive,
                             sl_group_rank(group) == 0
                                 ? "rank 0 was waiting to receive on channel 2 from rank 1 (step 3, microbatch 7)"
                                 : "in all_reduce");
}

static sl_status wait_in_barrier(sl_group *group, sl_channel *channel)
{
    (void)channel;
    return sl_group_barrier(group);
}

static sl_status a_failure_ends_barriers(sl_group *group, uint64_t seed)
{
    (void)seed;
    return fail_while_others(group, wait_in_barrier, "in barrier");
}

/* The posted one can only be ended while the rank waits in something else. */
static sl_status wait_with_one_posted(sl_group *group, sl_channel *channel)
{
    static _Thread_local float sums[5000];
    sl_request *request = NULL;
    void *data = NULL;
    sl_status status = sl_group_all_reduce_post(group, sums, 5000, SL_F32, SL_REDUCE_SUM, NULL, &request);
    if (status == SL_OK && sl_group_rank(group) == 0)
        status = sl_channel_receive(channel, NULL, NULL, &data);
    else if (status == SL_OK)
        status = sl_request_wait(request);
    return status;
}

static sl_status a_failure_ends_what_is_posted(sl_group *group, uint64_t seed)
{
    (void)seed;
    return fail_while_others(group, wait_with_one_posted, "waiting");
}

static sl_status wait_polling(sl_group *group, sl_channel *channel)
{
    sl_status status = SL_OK;
    void *data = NULL;
    if (sl_group_rank(group) != 0)
        return sl_group_barrier(group);
    while (status == SL_OK && !data) {
        status = sl_channel_try_receive(channel, NULL, NULL, &data);
        sched_yield();
    }
    return status;
}

static sl_status a_failure_ends_polling(sl_group *group, uint64_t seed)
{
    (void)seed;
    return fail_while_others(group, wait_polling, "stage 1 broke");
}

static sl_status wait_for_any(sl_group *group, sl_channel *channel)
{
    int ready = -1;
    return sl_group_rank(group) == 0 ? sl_channel_wait_any(&channel, 1, &ready) : sl_group_barrier(group);
}

static sl_status a_failure_ends_waits_for_any(sl_group *group, uint64_t seed)
{
    (void)seed;
    return fail_while_others(group, wait_for_any, "waiting for");
}

/* The first failure is the one that counts. */
static sl_status of_many_failures_all_report_the_same(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    char first[512];
    if (sl_group_barrier(group) == SL_OK) { /* all have come; another may have failed by now */
        sl_fail(SL_ERR_NUMERIC, "broken on %d", sl_group_rank(group));
        sl_group_fail(group, SL_ERR_NUMERIC);
    }
    status = sl_group_check(group);
    CHECK(status != SL_OK);
    snprintf(first, sizeof first, "%s", sl_error_message());
    usleep(10000);
    sl_fail(SL_ERR_IO, "another one");
    sl_group_fail(group, SL_ERR_IO);
    status = sl_group_check(group);
    CHECK(status != SL_OK);
    CHECK_FAILS(status, status, first);
done:
    return status;
}

const suite_case suite_failures[] = {
    { "a_failure_ends_receives_and_collectives", a_failure_ends_receives_and_collectives, 2, true, 1 },
    { "a_failure_ends_barriers", a_failure_ends_barriers, 2, true, 1 },
    { "a_failure_ends_what_is_posted", a_failure_ends_what_is_posted, 2, true, 1 },
    { "a_failure_ends_polling", a_failure_ends_polling, 2, true, 1 },
    { "a_failure_ends_waits_for_any", a_failure_ends_waits_for_any, 2, true, 1 },
    { "of_many_failures_all_report_the_same", of_many_failures_all_report_the_same, 2, true, 1 },
    { .name = NULL },
};
