/* Cases of the suite: channels and messages. */
#include "ranks/support/suite.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Those at which something changes, and others of every magnitude. */
static sl_status messages_of_all_sizes_arrive(sl_group *group, uint64_t seed)
{
    enum { CHOSEN = 13, RANDOM = 14 };
    size_t sizes[CHOSEN + RANDOM] = { 0, 1, 7, 8, 63, 64, 65, 4095, 4096, 65535, 1 << 20, (12 << 20) + 3, 64 << 20 };
    sl_status status = SL_OK;
    suite_random random = { seed };
    sl_channel *channel = NULL;
    int me = sl_group_rank(group), last = sl_group_size(group) - 1;
    for (int i = 0; i < RANDOM; i++)
        sizes[CHOSEN + i] = (size_t)suite_between(&random, 0, (int64_t)8 << suite_between(&random, 0, 23));
    SL_TRY(suite_open_one(group, 0, 0, last, 1, 64 << 20, &channel));
    for (size_t i = 0; i < CHOSEN + RANDOM; i++) {
        sl_message message = suite_bytes(0, (int)i, sizes[i]);
        void *data = NULL;
        if (me == 0) {
            SL_TRY(sl_channel_reserve(channel, &message, &data));
            suite_fill(data, sizes[i], seed + i);
            SL_TRY(sl_channel_commit(channel, data));
        }
        if (me == last) {
            SL_TRY(sl_channel_receive(channel, &message, NULL, &data));
            CHECK(suite_is_filled(data, sizes[i], seed + i));
            SL_TRY(sl_channel_release(channel, data));
        }
    }
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channel);
done:
    return status;
}

/* ---- Capacity -------------------------------------------------------------------------------- */

static sl_status a_full_channel_takes_no_more(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    enum { SLOTS = 3 };
    sl_channel *channel = NULL;
    sl_message message = suite_bytes(1, 0, 8);
    void *data[SLOTS] = { NULL }, *more = NULL;
    int me = sl_group_rank(group), last = sl_group_size(group) - 1;
    SL_TRY(suite_open_one(group, 3, 0, last, SLOTS, 8, &channel));
    if (me == 0) {
        for (int i = 0; i < SLOTS; i++) {
            SL_TRY(sl_channel_reserve(channel, &message, &data[i]));
            memset(data[i], i, 8);
        }
        SL_TRY(sl_channel_try_reserve(channel, &message, &more));
        CHECK(more == NULL);
        for (int i = SLOTS - 1; i >= 0; i--) /* committed in the other order, received in this one */
            SL_TRY(sl_channel_commit(channel, data[i]));
        SL_TRY(sl_channel_try_reserve(channel, &message, &more));
        CHECK(more == NULL);
    }
    SL_TRY(sl_group_barrier(group));
    if (me == last) {
        for (int i = 0; i < SLOTS; i++) {
            SL_TRY(sl_channel_receive(channel, &message, NULL, &data[i]));
            CHECK(((char *)data[i])[7] == i);
        }
        SL_TRY(sl_channel_release(channel, data[1])); /* the middle one is free for the next message */
    }
    if (me == 0) {
        while (!more)
            SL_TRY(sl_channel_try_reserve(channel, &message, &more));
        memset(more, 77, 8);
        SL_TRY(sl_channel_commit(channel, more));
    }
    if (me == last) {
        SL_TRY(sl_channel_receive(channel, &message, NULL, &data[1]));
        CHECK(((char *)data[1])[0] == 77);
        for (int i = 0; i < SLOTS; i++)
            SL_TRY(sl_channel_release(channel, data[i]));
        CHECK_FAILS(sl_channel_release(channel, data[0]), SL_ERR_ARGUMENT, "no message");
        CHECK_FAILS(sl_channel_release(channel, &message), SL_ERR_ARGUMENT, "not a slot");
    }
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channel);
done:
    return status;
}

static sl_status any_of_several_channels_can_be_awaited(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group), seen = 0;
    sl_channel_spec *specs = calloc((size_t)size, sizeof *specs);
    sl_channel **channels = calloc((size_t)size, sizeof *channels);
    bool *heard = calloc((size_t)size, sizeof *heard);
    for (int r = 0; r < size; r++)
        specs[r] = (sl_channel_spec){ r, r, 0, 1, 8 };
    SL_TRY(sl_group_open_channels(group, specs, size, channels));
    CHECK(me == 0 || channels[0] == NULL);
    sl_message message = suite_bytes(0, 0, 8);
    if (me > 0) {
        void *data = NULL;
        SL_TRY(sl_channel_reserve(channels[me], &message, &data));
        memcpy(data, &seed, 8);
        SL_TRY(sl_channel_commit(channels[me], data));
    }
    while (me == 0 && seen < size - 1) {
        int ready = -1;
        void *data = NULL;
        SL_TRY(sl_channel_wait_any(channels + 1, size - 1, &ready));
        SL_TRY(sl_channel_try_receive(channels[1 + ready], &message, NULL, &data));
        CHECK(data && memcmp(data, &seed, 8) == 0 && !heard[ready]);
        heard[ready] = true;
        seen++;
        SL_TRY(sl_channel_release(channels[1 + ready], data));
    }
    SL_TRY(sl_group_barrier(group));
    for (int r = 0; r < size; r++)
        sl_channel_close(channels[r]);
done:
    free(heard);
    free(channels);
    free(specs);
    return status;
}

/* ---- Identity -------------------------------------------------------------------------------- */

static sl_status send_one(sl_channel *channel, const sl_message *message)
{
    void *data = NULL;
    sl_status status = sl_channel_reserve(channel, message, &data);
    return status == SL_OK ? sl_channel_commit(channel, data) : status;
}

static sl_status a_message_must_be_the_expected_one(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int me = sl_group_rank(group), last = 1;
    sl_channel *channel = NULL;
    void *data = NULL;
    const sl_message sent = { .step = 3, .microbatch = 2, .dtype = SL_F32, .shape = { 2, { 4, 8 } } };
    SL_TRY(suite_open_one(group, 5, 0, last, 1, 128, &channel));
    if (me == 0)
        SL_TRY(send_one(channel, &sent));
    if (me == last) {
        sl_message expected = sent;
        expected.shape.dims[0] = 3;
        CHECK_FAILS(sl_channel_receive(channel, &expected, NULL, &data), SL_ERR_SHAPE,
                    "channel 5 from rank 0 to rank 1: the receiver expects step 3, microbatch 2, f32 [3, 8], 96 bytes; "
                    "the sender sent step 3, microbatch 2, f32 [4, 8], 128 bytes");
        expected = sent;
        expected.dtype = SL_I32;
        CHECK_FAILS(sl_channel_receive(channel, &expected, NULL, &data), SL_ERR_SHAPE, "i32 [4, 8]");
        expected = sent;
        expected.microbatch = 1;
        CHECK_FAILS(sl_channel_try_receive(channel, &expected, NULL, &data), SL_ERR_COMM, "microbatch 1, f32");
        expected = sent;
        expected.step = 4;
        CHECK_FAILS(sl_channel_receive(channel, &expected, NULL, &data), SL_ERR_COMM, "expects step 4");
        expected.shape.dims[0] = 5;
        CHECK_FAILS(sl_channel_receive(channel, &expected, NULL, &data), SL_ERR_SHAPE, "more than its 128 bytes");
        CHECK_FAILS(sl_channel_reserve(channel, &sent, &data), SL_ERR_ARGUMENT, "rank 1 cannot send on it");
        SL_TRY(sl_channel_receive(channel, &sent, NULL, &data)); /* it is still there */
        SL_TRY(sl_channel_release(channel, data));
    }
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channel);
done:
    return status;
}

/* ---- Oneself --------------------------------------------------------------------------------- */

static sl_status a_rank_never_waits_for_itself(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int me = sl_group_rank(group);
    sl_channel *channel = NULL;
    void *data = NULL, *none = NULL;
    sl_message message = suite_bytes(0, 0, 1);
    SL_TRY(suite_open_one(group, 100 + me, me, me, 1, 8, &channel));
    CHECK_FAILS(sl_channel_receive(channel, &message, NULL, &none), SL_ERR_COMM, "would wait for itself");
    SL_TRY(sl_channel_reserve(channel, &message, &data));
    CHECK_FAILS(sl_channel_reserve(channel, &message, &none), SL_ERR_COMM, "would wait for itself");
    SL_TRY(sl_channel_commit(channel, data));
    SL_TRY(sl_channel_receive(channel, &message, NULL, &data));
    SL_TRY(sl_channel_release(channel, data));
    sl_channel_close(channel);
done:
    return status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* After a first round. With ranks as threads the others' allocations count too: between the barriers there are none. */
static sl_status nothing_is_allocated_per_message(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int me = sl_group_rank(group), size = sl_group_size(group);
    sl_channel_spec specs[2] = { { me, me, (me + 1) % size, 2, 64 },
                                 { (me + size - 1) % size, (me + size - 1) % size, me, 2, 64 } };
    sl_channel *channels[2];
    int64_t before = 0;
    SL_TRY(sl_group_open_channels(group, specs, size == 1 ? 1 : 2, channels));
    if (size == 1)
        channels[1] = channels[0];
    for (int round = 0; round < 50; round++) {
        sl_message message = suite_bytes(round, 0, 64);
        void *slot = NULL;
        if (round < 2) {
            SL_TRY(sl_group_barrier(group));
            before = sl_alloc_count();
            SL_TRY(sl_group_barrier(group));
        }
        SL_TRY(sl_channel_reserve(channels[0], &message, &slot));
        SL_TRY(sl_channel_commit(channels[0], slot));
        SL_TRY(sl_channel_receive(channels[1], &message, NULL, &slot));
        SL_TRY(sl_channel_release(channels[1], slot));
        sl_group_note(group, "round");
    }
    SL_TRY(sl_group_barrier(group));
    CHECK(sl_alloc_count() == before);
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channels[0]);
    if (size > 1)
        sl_channel_close(channels[1]);
done:
    return status;
}

const suite_case suite_messages[] = {
    { .name = "messages_of_all_sizes_arrive", .run = messages_of_all_sizes_arrive, .min_ranks = 1 },
    { .name = "a_full_channel_takes_no_more", .run = a_full_channel_takes_no_more, .min_ranks = 1 },
    { .name = "any_of_several_channels_can_be_awaited", .run = any_of_several_channels_can_be_awaited, .min_ranks = 2 },
    { .name = "a_message_must_be_the_expected_one", .run = a_message_must_be_the_expected_one, .min_ranks = 2 },
    { .name = "a_rank_never_waits_for_itself", .run = a_rank_never_waits_for_itself, .min_ranks = 1 },
    { .name = "nothing_is_allocated_per_message", .run = nothing_is_allocated_per_message, .min_ranks = 1 },
    { .name = NULL },
};
