/* Cases of the suite: messages and collectives on memory of a device that works by itself. */
#include "ranks/support/suite.h"
#include "support/device/test_device.h"

#include <stdlib.h>
#include <string.h>

/* A device with a stream for kernels and one for what is posted, and some of its memory. */
typedef struct place {
    sl_device *device;
    sl_stream *compute, *posted;
    sl_event *made, *done;
    char *far;
    char *near; /* host memory of the same size */
    size_t bytes;
} place;

/* Collective: with a group of its own. */
static sl_status open_place(sl_group *world, size_t bytes, place *at, sl_group **group)
{
    sl_status status = SL_OK;
    *at = (place){ .bytes = bytes };
    SL_TRY(sl_group_split(world, 0, 0, group));
    SL_TRY(sl_device_open("test", NULL, &at->device));
    SL_TRY(sl_stream_create(at->device, &at->compute));
    SL_TRY(sl_stream_create(at->device, &at->posted));
    SL_TRY(sl_event_create(at->device, &at->made));
    SL_TRY(sl_event_create(at->device, &at->done));
    SL_TRY(sl_device_alloc(at->device, bytes, (void **)&at->far));
    at->near = malloc(bytes + 1);
done:
    return status;
}

static void close_place(place *at)
{
    if (!at->device)
        return;
    sl_stream_destroy(at->compute);
    sl_stream_destroy(at->posted);
    sl_event_destroy(at->made);
    sl_event_destroy(at->done);
    sl_device_free(at->device, at->far);
    sl_device_close(at->device);
    free(at->near);
}

/* What is in near goes to the device on the compute stream; the other stream waits for it. */
static sl_status hand_to_posted(place *at, size_t bytes)
{
    sl_status status = SL_OK;
    SL_TRY(sl_stream_copy(at->compute, SL_COPY_HOST_TO_DEVICE, at->far, at->near, bytes));
    SL_TRY(sl_event_record(at->made, at->compute));
    SL_TRY(sl_stream_wait(at->posted, at->made));
done:
    return status;
}

/* And back. Nobody has waited for a stream before this. */
static sl_status fetch_back(place *at, char *to, const char *from, size_t bytes)
{
    sl_status status = SL_OK;
    SL_TRY(sl_event_record(at->done, at->posted));
    SL_TRY(sl_stream_wait(at->compute, at->done));
    SL_TRY(sl_stream_copy(at->compute, SL_COPY_DEVICE_TO_HOST, to, from, bytes));
    SL_TRY(sl_stream_synchronize(at->compute));
done:
    return status;
}

static float value_of(uint64_t seed, int rank, int64_t i)
{
    suite_random random = { seed + (uint64_t)rank * 7919 + (uint64_t)i * 104729 };
    return (float)suite_between(&random, -1000000, 1000000) / 1024;
}

static float sum_of(uint64_t seed, int size, int64_t i)
{
    float sum = value_of(seed, 0, i);
    for (int r = 1; r < size; r++)
        sum += value_of(seed, r, i);
    return sum;
}

static sl_status sums_on_a_device_have_the_same_bits(sl_group *world, uint64_t seed)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    suite_random random = { seed };
    int size = sl_group_size(world), me = sl_group_rank(world);
    int64_t count = suite_between(&random, 1, seed % 2 ? 1000 : 150000);
    size_t part = (size_t)count * sizeof(float), whole = part * (size_t)size;
    sl_request *request = NULL;
    place at;
    SL_TRY(open_place(world, whole, &at, &group));
    float *near = (float *)(void *)at.near;
    for (int64_t i = 0; i < count * size; i++)
        near[i] = value_of(seed, me, i);
    SL_TRY(hand_to_posted(&at, whole));
    SL_TRY(sl_group_all_reduce_post(group, at.far, count, SL_F32, SL_REDUCE_SUM, at.posted, &request));
    SL_TRY(sl_request_wait(request));
    SL_TRY(fetch_back(&at, at.near, at.far, part));
    for (int64_t i = 0; i < count; i++) {
        float expected = sum_of(seed, size, i);
        CHECK(memcmp(&near[i], &expected, sizeof expected) == 0);
    }
    for (int64_t i = 0; i < count * size; i++)
        near[i] = value_of(seed, me, i);
    SL_TRY(hand_to_posted(&at, whole));
    /* A bucket of two tensors. */
    int64_t first = count / 3, rest = count - first;
    char *second = at.far + (size_t)(first * size) * sizeof(float);
    const sl_bucket_item items[] = {
        { .send = at.far, .recv = at.far + (size_t)(me * first) * sizeof(float), .count = first },
        { .send = second, .recv = second + (size_t)(me * rest) * sizeof(float), .count = rest },
    };
    SL_TRY(sl_group_reduce_scatter_bucket_post(group, items, 2, 1, SL_F32, SL_REDUCE_SUM, at.posted, &request));
    SL_TRY(sl_request_wait(request));
    SL_TRY(fetch_back(&at, at.near, at.far, whole));
    for (int64_t i = 0; i < count; i++) {
        int64_t own = i < first ? me * first + i : size * first + me * rest + i - first;
        float expected = sum_of(seed, size, own);
        CHECK(memcmp(&near[own], &expected, sizeof expected) == 0);
    }
    SL_TRY(sl_group_barrier(group));
done:
    close_place(&at);
    sl_group_close(group);
    return status;
}

static sl_status bytes_on_a_device_reach_everybody(sl_group *world, uint64_t seed)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    suite_random random = { seed };
    int size = sl_group_size(world), me = sl_group_rank(world), root = (int)suite_between(&random, 0, size - 1);
    size_t bytes = (size_t)suite_between(&random, 1, seed % 2 ? 500 : 600000), whole = bytes * (size_t)size;
    sl_request *requests[2] = { NULL };
    place at;
    SL_TRY(open_place(world, whole + bytes, &at, &group));
    memset(at.near, 0, whole + bytes);
    suite_fill(at.near + (size_t)me * bytes, bytes, seed + (uint64_t)me);
    suite_fill(at.near + whole, bytes, seed + 100 + (uint64_t)me);
    SL_TRY(hand_to_posted(&at, whole + bytes));
    SL_TRY(sl_group_all_gather_post(group, at.far + (size_t)me * bytes, bytes, at.far, at.posted, &requests[0]));
    SL_TRY(sl_group_broadcast_post(group, root, at.far + whole, bytes, at.posted, &requests[1]));
    SL_TRY(sl_request_wait(requests[1]));
    SL_TRY(sl_request_wait(requests[0]));
    SL_TRY(fetch_back(&at, at.near, at.far, whole + bytes));
    for (int r = 0; r < size; r++)
        CHECK(suite_is_filled(at.near + (size_t)r * bytes, bytes, seed + (uint64_t)r));
    CHECK(suite_is_filled(at.near + whole, bytes, seed + 100 + (uint64_t)root));
    SL_TRY(sl_group_barrier(group));
done:
    close_place(&at);
    sl_group_close(group);
    return status;
}

enum { MESSAGES = 30 };

/* Round a ring of ranks: each copies what comes to its device, adds one there, and sends it on, with no stream ever
 * waited for. */
static void add_one(const void *args)
{
    const struct ring_kernel {
        void *data;
        size_t bytes;
    } *what = args;
    unsigned char *data = test_device_near(what->data);
    for (size_t i = 0; i < what->bytes; i++)
        data[i]++;
}

static sl_status messages_are_handed_over_in_stream_order(sl_group *world, uint64_t seed)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    int size = sl_group_size(world), me = sl_group_rank(world);
    size_t bytes = 1000 + (size_t)(seed % 7) * 5000;
    sl_channel_spec specs[2] = { { me, me, (me + 1) % size, 2, bytes },
                                 { (me + size - 1) % size, (me + size - 1) % size, me, 2, bytes } };
    sl_channel *channels[2];
    place at;
    SL_TRY(open_place(world, bytes, &at, &group));
    SL_TRY(sl_group_open_channels(group, specs, 2, channels));
    struct {
        void *data;
        size_t bytes;
    } kernel = { at.far, bytes };
    for (int m = 0; m < MESSAGES; m++) {
        sl_message message = suite_bytes(0, m, bytes);
        void *slot = NULL;
        if (me == 0)
            SL_TRY(sl_stream_memset(at.compute, at.far, m, bytes));
        else
            SL_TRY(sl_channel_receive(channels[1], &message, NULL, &slot));
        if (me > 0)
            SL_TRY(sl_stream_copy(at.compute, SL_COPY_HOST_TO_DEVICE, at.far, slot, bytes));
        if (me > 0)
            SL_TRY(sl_channel_release_after(channels[1], slot, at.compute));
        SL_TRY(test_device_launch(at.compute, add_one, &kernel, sizeof kernel));
        SL_TRY(sl_channel_reserve(channels[0], &message, &slot));
        SL_TRY(sl_stream_copy(at.compute, SL_COPY_DEVICE_TO_HOST, slot, at.far, bytes));
        SL_TRY(sl_channel_commit_after(channels[0], slot, at.compute));
        if (me > 0)
            continue;
        SL_TRY(sl_channel_receive(channels[1], &message, NULL, &slot));
        for (size_t i = 0; i < bytes; i++)
            CHECK(((unsigned char *)slot)[i] == m + size);
        SL_TRY(sl_channel_release(channels[1], slot));
    }
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channels[0]);
    sl_channel_close(channels[1]);
done:
    close_place(&at);
    sl_group_close(group);
    return status;
}

const suite_case suite_streams[] = {
    { .name = "sums_on_a_device_have_the_same_bits",
      .run = sums_on_a_device_have_the_same_bits,
      .min_ranks = 1,
      .rounds = 6 },
    { .name = "bytes_on_a_device_reach_everybody",
      .run = bytes_on_a_device_reach_everybody,
      .min_ranks = 1,
      .rounds = 6 },
    { .name = "messages_are_handed_over_in_stream_order",
      .run = messages_are_handed_over_in_stream_order,
      .min_ranks = 2,
      .rounds = 4 },
    { .name = NULL },
};
