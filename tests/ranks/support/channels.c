/* Cases of the suite: opening and closing channels. */
#include "ranks/support/suite.h"

static sl_status a_number_can_be_used_again(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int me = sl_group_rank(group), last = sl_group_size(group) - 1;
    for (uint64_t round = 0; round < 20; round++) {
        sl_channel *channel = NULL;
        void *data = NULL;
        sl_message message = suite_bytes((int64_t)round, 0, 1000);
        SL_TRY(suite_open_one(group, 4, 0, last, 2, 1000 + round, &channel));
        if (me == 0) {
            SL_TRY(sl_channel_reserve(channel, &message, &data));
            suite_fill(data, 1000, seed + round);
            SL_TRY(sl_channel_commit(channel, data));
        }
        if (me == last) {
            SL_TRY(sl_channel_receive(channel, &message, NULL, &data));
            CHECK(suite_is_filled(data, 1000, seed + round));
        }
        SL_TRY(sl_group_barrier(group));
        CHECK(me == 0 || me == last || !channel);
        sl_channel_close(channel); /* with a message still held */
    }
done:
    return status;
}

static sl_status views_must_agree(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int me = sl_group_rank(group), last = 1;
    sl_channel *channel = NULL;
    sl_channel_spec spec = { .id = 9, .src = 0, .dst = last, .capacity = me == last ? 3 : 2, .max_bytes = 16 };
    CHECK_FAILS(sl_group_open_channels(group, &spec, 1, &channel), SL_ERR_COMM,
                "2 messages of 16 bytes, but rank 1 says from rank 0 to rank 1, 3 messages of 16 bytes");
    CHECK(channel == NULL);
    spec.capacity = 2;
    CHECK_FAILS(sl_group_open_channels(group, &spec, me == last ? 0 : 1, &channel), SL_ERR_COMM, "does not list it");
    spec.capacity = me == 0 ? 0 : 2; /* one rank's wrong argument is everybody's error */
    CHECK_FAILS(sl_group_open_channels(group, &spec, 1, &channel), SL_ERR_ARGUMENT, "rank 0: channel 9: capacity 0");
    spec.capacity = 2;
    SL_TRY(sl_group_open_channels(group, &spec, 1, &channel)); /* the group is still good */
    CHECK_FAILS(sl_group_open_channels(group, &spec, 1, &channel), SL_ERR_ARGUMENT, "open already");
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channel);
done:
    return status;
}

static sl_status a_closed_end_is_an_error_for_who_waits(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int me = sl_group_rank(group), last = 1;
    sl_channel *channel = NULL;
    void *data = NULL;
    sl_message message = suite_bytes(2, 1, 64);
    SL_TRY(suite_open_one(group, 6, 0, last, 4, 64, &channel));
    if (me == 0) {
        SL_TRY(sl_channel_reserve(channel, &message, &data));
        suite_fill(data, 64, seed);
        SL_TRY(sl_channel_commit(channel, data));
        sl_channel_close(channel); /* with a message in flight */
        channel = NULL;
    }
    if (me == last) { /* what was sent still arrives */
        SL_TRY(sl_channel_receive(channel, &message, NULL, &data));
        CHECK(suite_is_filled(data, 64, seed));
        CHECK_FAILS(sl_channel_receive(channel, &message, NULL, &data), SL_ERR_PEER,
                    "rank 0 closed its end while rank 1 was waiting to receive on channel 6 from rank 0 (step 2, "
                    "microbatch 1)");
    }
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channel);
done:
    return status;
}

static sl_status a_receiver_that_closes_lets_the_sender_go(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    enum { SLOTS = 2 };
    int me = sl_group_rank(group), last = 1;
    sl_channel *channel = NULL;
    void *data = NULL;
    sl_message message = suite_bytes(2, 1, 64);
    SL_TRY(suite_open_one(group, 6, 0, last, SLOTS, 64, &channel));
    for (int i = 0; i < SLOTS && me == 0; i++) {
        SL_TRY(sl_channel_reserve(channel, &message, &data));
        SL_TRY(sl_channel_commit(channel, data));
    }
    SL_TRY(sl_group_barrier(group));
    if (me == last) {
        sl_channel_close(channel); /* with all its messages in flight */
        channel = NULL;
    }
    if (me == 0)
        CHECK_FAILS(sl_channel_reserve(channel, &message, &data), SL_ERR_PEER,
                    "rank 1 closed its end while rank 0 was waiting for a free slot on channel 6 to rank 1 (step 2, "
                    "microbatch 1)");
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channel);
done:
    return status;
}

const suite_case suite_channels[] = {
    { .name = "a_number_can_be_used_again", .run = a_number_can_be_used_again, .min_ranks = 1 },
    { .name = "views_must_agree", .run = views_must_agree, .min_ranks = 2 },
    { .name = "a_closed_end_is_an_error_for_who_waits", .run = a_closed_end_is_an_error_for_who_waits, .min_ranks = 2 },
    { .name = "a_receiver_that_closes_lets_the_sender_go",
      .run = a_receiver_that_closes_lets_the_sender_go,
      .min_ranks = 2 },
    { .name = NULL },
};
