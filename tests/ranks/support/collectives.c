/* Cases of the suite: groups and collectives. */
#include "ranks/support/suite.h"
#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_status ranks_know_their_places(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    uint64_t id = sl_group_run_id(group), *ids = calloc((size_t)size, sizeof *ids);
    double offset = 1;
    CHECK(me >= 0 && me < size && sl_group_world_rank(group, me) == me);
    CHECK(sl_group_world_rank(group, -1) == -1 && sl_group_world_rank(group, size) == -1);
    CHECK(sl_group_local_rank(group) == me && sl_group_local_size(group) == size);
    SL_TRY(sl_group_all_gather(group, &id, sizeof id, ids));
    for (int r = 0; r < size; r++)
        CHECK(ids[r] == id);
    SL_TRY(sl_group_clock_offset(group, &offset));
    CHECK(offset == 0); /* one machine, one clock */
    SL_TRY(sl_group_check(group));
done:
    free(ids);
    return status;
}

/* ---- Splitting ------------------------------------------------------------------------------- */

/* The sum of the world ranks over the group, to see that its collectives reach its members and nobody else. */
static sl_status sum_of_ranks(sl_group *group, int64_t *out)
{
    int64_t sum = sl_group_world_rank(group, sl_group_rank(group));
    sl_status status = sl_group_all_reduce(group, &sum, 1, SL_I64, SL_REDUCE_SUM);
    *out = sum;
    return status;
}

static sl_status uneven_groups_work(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    suite_random random = { seed };
    int colors[64] = { 0 }, keys[64] = { 0 }, mine = 0, before = 0;
    int64_t expected = 0, sum = -1;
    sl_group *part = NULL, *same = NULL;
    for (int r = 0; r < size; r++) {
        colors[r] = (int)suite_between(&random, -1, 1);
        keys[r] = (int)suite_between(&random, -2, 2);
    }
    for (int r = 0; r < size; r++) {
        if (colors[r] != colors[me])
            continue;
        mine++;
        expected += r;
        before += keys[r] < keys[me] || (keys[r] == keys[me] && r < me);
    }
    SL_TRY(sl_group_split(group, colors[me], keys[me], &part));
    CHECK((part == NULL) == (colors[me] < 0));
    if (part) {
        CHECK(sl_group_size(part) == mine && sl_group_rank(part) == before);
        CHECK(sl_group_world_rank(part, before) == me);
        SL_TRY(sum_of_ranks(part, &sum));
        CHECK(sum == expected);
        SL_TRY(sl_group_split(part, 0, 0, &same)); /* a group of a group, and channels in it */
        sl_channel_spec spec = { 1, 0, mine - 1, 1, 8 };
        sl_channel *channel = NULL;
        sl_message message = { .dtype = SL_I64, .shape = { 0 } };
        SL_TRY(sl_group_open_channels(same, &spec, 1, &channel));
        void *data = NULL;
        if (before == 0) {
            SL_TRY(sl_channel_reserve(channel, &message, &data));
            *(int64_t *)data = expected;
            SL_TRY(sl_channel_commit(channel, data));
        }
        if (before == mine - 1) {
            SL_TRY(sl_channel_receive(channel, &message, NULL, &data));
            CHECK(*(int64_t *)data == expected);
            SL_TRY(sl_channel_release(channel, data));
        }
        SL_TRY(sl_group_barrier(same));
    }
    SL_TRY(sl_group_barrier(group));
done:
    sl_group_close(same);
    sl_group_close(part);
    return status;
}

static sl_status every_mesh_works(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    sl_group *pp_group = NULL, *dp_group = NULL;
    for (int pp = 1; pp <= size; pp++) {
        int dp = size / pp;
        if (size % pp) {
            CHECK_FAILS(sl_group_mesh(group, pp, dp, &pp_group, &dp_group), SL_ERR_ARGUMENT, "a mesh of pp");
            continue;
        }
        int64_t pp_sum = 0, dp_sum = 0, pp_expected = 0, dp_expected = 0;
        SL_TRY(sl_group_mesh(group, pp, dp, &pp_group, &dp_group));
        CHECK(sl_group_size(pp_group) == pp && sl_group_rank(pp_group) == me / dp);
        CHECK(sl_group_size(dp_group) == dp && sl_group_rank(dp_group) == me % dp);
        for (int i = 0; i < pp; i++)
            pp_expected += i * dp + me % dp;
        for (int i = 0; i < dp; i++)
            dp_expected += me / dp * dp + i;
        SL_TRY(sum_of_ranks(pp_group, &pp_sum));
        SL_TRY(sum_of_ranks(dp_group, &dp_sum));
        CHECK(pp_sum == pp_expected && dp_sum == dp_expected);
        sl_group_close(pp_group);
        sl_group_close(dp_group);
        pp_group = dp_group = NULL;
    }
done:
    sl_group_close(pp_group);
    sl_group_close(dp_group);
    return status;
}

/* ---- Moving bytes ---------------------------------------------------------------------------- */

static size_t random_bytes(suite_random *random)
{
    size_t limit = (size_t)1 << suite_between(random, 0, 20);
    return (size_t)suite_between(random, 0, (int64_t)limit);
}

static sl_status everyone_gets_everyones_bytes(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    suite_random random = { seed };
    size_t bytes = random_bytes(&random);
    int root = (int)suite_between(&random, 0, size - 1);
    char *all = malloc(bytes * (size_t)size + 1), *own = malloc(bytes + 1);
    suite_fill(own, bytes, seed + (uint64_t)me);
    SL_TRY(sl_group_all_gather(group, own, bytes, all));
    for (int r = 0; r < size; r++)
        CHECK(suite_is_filled(all + (size_t)r * bytes, bytes, seed + (uint64_t)r));
    memset(all, 0, bytes * (size_t)size); /* again, from this rank's place in the result */
    memcpy(all + (size_t)me * bytes, own, bytes);
    SL_TRY(sl_group_all_gather(group, all + (size_t)me * bytes, bytes, all));
    for (int r = 0; r < size; r++)
        CHECK(suite_is_filled(all + (size_t)r * bytes, bytes, seed + (uint64_t)r));
    SL_TRY(sl_group_broadcast(group, root, own, bytes));
    CHECK(suite_is_filled(own, bytes, seed + (uint64_t)root));
    SL_TRY(sl_group_barrier(group));
    CHECK_FAILS(sl_group_broadcast(group, size, own, bytes), SL_ERR_ARGUMENT, "broadcast from rank");
done:
    free(own);
    free(all);
    return status;
}

static sl_status blobs_of_different_sizes_are_gathered(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    suite_random random = { seed };
    sl_blobs *blobs = NULL;
    size_t bytes[64] = { 0 };
    for (int r = 0; r < size; r++)
        bytes[r] = random_bytes(&random);
    char *own = malloc(bytes[me] + 1);
    suite_fill(own, bytes[me], seed + (uint64_t)me);
    SL_TRY(sl_group_gather_blobs(group, own, bytes[me], &blobs));
    CHECK(blobs->count == size);
    for (int r = 0; r < size; r++) {
        CHECK(blobs->bytes[r] == bytes[r] && (uintptr_t)blobs->data[r] % 16 == 0);
        CHECK(suite_is_filled(blobs->data[r], bytes[r], seed + (uint64_t)r));
    }
done:
    sl_blobs_destroy(blobs);
    free(own);
    return status;
}

/* ---- Reductions ------------------------------------------------------------------------------ */

/* Element i of rank r: sums of these in another order have other bits. */
static float float_of(uint64_t seed, int r, int64_t i)
{
    suite_random random = { seed + (uint64_t)r * 7919 + (uint64_t)i * 104729 };
    return (float)suite_between(&random, -1000000, 1000000) * ldexpf(1, (int)suite_between(&random, -20, 20));
}

static float expected_f32(uint64_t seed, int size, int64_t i, sl_reduce reduce)
{
    float value = float_of(seed, 0, i);
    for (int r = 1; r < size; r++) {
        float each = float_of(seed, r, i);
        value = reduce == SL_REDUCE_SUM ? value + each : each > value ? each : value;
    }
    return value;
}

static sl_status sums_have_the_bits_of_the_rank_order(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    suite_random random = { seed };
    sl_reduce reduce = (sl_reduce)suite_between(&random, 0, 1);
    int64_t count = (int64_t)(random_bytes(&random) / 4 + (suite_between(&random, 0, 3) == 0 ? 300000 : 0));
    float *data = malloc((size_t)(count * size + 1) * sizeof *data), *part = malloc((size_t)(count + 1) * sizeof *part);
    for (int64_t i = 0; i < count; i++)
        data[i] = float_of(seed, me, i);
    SL_TRY(sl_group_all_reduce(group, data, count, SL_F32, reduce));
    for (int64_t i = 0; i < count; i++) {
        float expected = expected_f32(seed, size, i, reduce);
        CHECK(memcmp(&data[i], &expected, 4) == 0);
    }
    for (int64_t i = 0; i < count * size; i++)
        data[i] = float_of(seed, me, i);
    SL_TRY(sl_group_reduce_scatter(group, data, part, count, SL_F32, reduce));
    for (int64_t i = 0; i < count; i++) {
        float expected = expected_f32(seed, size, me * count + i, reduce);
        CHECK(memcmp(&part[i], &expected, 4) == 0);
    }
    SL_TRY(sl_group_reduce_scatter(group, data, data + me * count, count, SL_F32, reduce)); /* into its own place */
    CHECK(memcmp(data + me * count, part, (size_t)count * sizeof *part) == 0);
done:
    free(part);
    free(data);
    return status;
}

enum { BUCKET_ITEMS = 5 };

/* Tensors of random lengths, some of them empty, one after another: item k has `size` parts of items[k].count. */
static int64_t lay_out_bucket(suite_random *random, int size, char *all, size_t each, sl_bucket_item *items)
{
    int64_t count = 0, longest = size <= 3 ? 90000 : size > 16 ? 9000 : 900; /* more than a message, if that is quick */
    for (int k = 0; k < BUCKET_ITEMS; k++) {
        items[k].count = suite_between(random, 0, 3) == 0 ? 0 : suite_between(random, 1, k == 3 ? longest : 900);
        items[k].recv = all ? all + (size_t)count * each : NULL;
        count += items[k].count * size;
    }
    return count;
}

/* One sum over all tensors has the bits of a sum of each, also with the parts in columns of some neighbors. */
static sl_status buckets_are_summed_like_their_tensors(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    suite_random random = { seed }, again = random;
    sl_bucket_item items[BUCKET_ITEMS];
    float *data = malloc((size_t)lay_out_bucket(&random, size, NULL, 0, items) * sizeof *data + 1);
    int64_t total = lay_out_bucket(&again, size, (char *)data, sizeof *data, items);
    for (int rows = 1; rows <= size; rows++) {
        sl_request *request = NULL;
        int64_t place = (int64_t)(me % rows) * (size / rows) + me / rows;
        if (size % rows != 0)
            continue;
        for (int64_t i = 0; i < total; i++)
            data[i] = float_of(seed, me, i);
        float *at = data;
        for (int k = 0; k < BUCKET_ITEMS; at += items[k++].count * size) {
            items[k].send = at;
            items[k].recv = at + place * items[k].count;
        }
        SL_TRY(sl_group_reduce_scatter_bucket_post(group, items, BUCKET_ITEMS, rows, SL_F32, SL_REDUCE_SUM, NULL,
                                                   &request));
        SL_TRY(sl_request_wait(request));
        for (int k = 0; k < BUCKET_ITEMS; k++) {
            for (int64_t i = 0; i < items[k].count; i++) {
                const float *sum = (const float *)items[k].recv + i;
                float expected = expected_f32(seed, size, sum - data, SL_REDUCE_SUM);
                CHECK(memcmp(sum, &expected, sizeof expected) == 0);
            }
        }
    }
    CHECK_FAILS(sl_group_reduce_scatter_bucket_post(group, items, BUCKET_ITEMS, size + 1, SL_F32, SL_REDUCE_SUM, NULL,
                                                    &(sl_request *){ NULL }),
                SL_ERR_ARGUMENT, "rows");
done:
    free(data);
    return status;
}

/* With parts that lie elsewhere, or in their place in the whole. */
static sl_status buckets_are_gathered_like_their_tensors(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    suite_random random = { seed }, again = random;
    sl_bucket_item items[BUCKET_ITEMS];
    sl_request *request = NULL;
    int64_t total = lay_out_bucket(&random, size, NULL, 0, items);
    char *data = calloc(1, (size_t)total + 1), *parts = malloc((size_t)total + 1), *part = parts;
    lay_out_bucket(&again, size, data, 1, items);
    for (int k = 0; k < BUCKET_ITEMS; part += items[k++].count) {
        char *own = k % 2 ? (char *)items[k].recv + me * items[k].count : part;
        suite_fill(own, (size_t)items[k].count, seed + (uint64_t)(me * BUCKET_ITEMS + k));
        items[k].send = own;
    }
    SL_TRY(sl_group_all_gather_bucket_post(group, items, BUCKET_ITEMS, NULL, &request));
    SL_TRY(sl_request_wait(request));
    for (int k = 0; k < BUCKET_ITEMS; k++) {
        for (int r = 0; r < size; r++)
            CHECK(suite_is_filled((char *)items[k].recv + r * items[k].count, (size_t)items[k].count,
                                  seed + (uint64_t)(r * BUCKET_ITEMS + k)));
    }
done:
    free(parts);
    free(data);
    return status;
}

/* A gather of another group takes what a sum leaves here, though both are posted at once: everybody gets all sums. */
static sl_status a_gather_begins_after_a_sum(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    suite_random random = { seed }, again = random;
    sl_bucket_item sums[BUCKET_ITEMS], gathers[BUCKET_ITEMS];
    sl_group *other = NULL;
    sl_request *sum = NULL, *gather = NULL;
    float *data = malloc((size_t)lay_out_bucket(&random, size, NULL, 0, sums) * sizeof *data + 1), *at = data;
    int64_t total = lay_out_bucket(&again, size, (char *)data, sizeof *data, sums);
    for (int64_t i = 0; i < total; i++)
        data[i] = float_of(seed, me, i);
    for (int k = 0; k < BUCKET_ITEMS; at += sums[k++].count * size) {
        sums[k].send = at;
        sums[k].recv = at + me * sums[k].count;
        gathers[k] = (sl_bucket_item){ .send = sums[k].recv, .recv = at, .count = sums[k].count * (int64_t)sizeof *at };
    }
    SL_TRY(sl_group_split(group, 0, me, &other));
    SL_TRY(sl_group_reduce_scatter_bucket_post(group, sums, BUCKET_ITEMS, 1, SL_F32, SL_REDUCE_SUM, NULL, &sum));
    CHECK_FAILS(sl_group_all_gather_bucket_post_after(group, gathers, BUCKET_ITEMS, NULL, sum, &gather),
                SL_ERR_ARGUMENT, "of its own group");
    gathers[0].send = gathers;
    CHECK_FAILS(sl_group_all_gather_bucket_post_after(other, gathers, BUCKET_ITEMS, NULL, sum, &gather),
                SL_ERR_ARGUMENT, "item 0 of a later gather is not in its place");
    gathers[0].send = sums[0].recv;
    SL_TRY(sl_group_all_gather_bucket_post_after(other, gathers, BUCKET_ITEMS, NULL, sum, &gather));
    SL_TRY(sl_request_wait(gather));
    SL_TRY(sl_request_wait(sum));
    for (int64_t i = 0; i < total; i++) {
        float expected = expected_f32(seed, size, i, SL_REDUCE_SUM);
        CHECK(memcmp(&data[i], &expected, sizeof expected) == 0);
    }
done:
    sl_group_close(other);
    free(data);
    return status;
}

static sl_status other_types_are_reduced(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int size = sl_group_size(group), me = sl_group_rank(group);
    double f64[2] = { me + 0.25, me == 0 ? (double)NAN : -me };
    int32_t i32[2] = { me, INT32_MAX };
    uint8_t u8[1] = { (uint8_t)(200 + me) };
    uint16_t bf16[2] = { 0x3f80, (uint16_t)(me == 0 ? 0x3f80 : 0x3b00) }; /* 1; 1 and then 2^-9 from each other rank */
    uint16_t f16[2] = { 0x3c00, 0x0001 };                                 /* 1; the smallest there is */
    bool truth[1] = { true };
    int64_t total = (int64_t)size * (size - 1) / 2;
    SL_TRY(sl_group_all_reduce(group, f64, 1, SL_F64, SL_REDUCE_SUM));
    CHECK(f64[0] == (double)total + 0.25 * size);
    SL_TRY(sl_group_all_reduce(group, f64 + 1, 1, SL_F64, SL_REDUCE_MAX));
    CHECK(isnan(f64[1]));
    SL_TRY(sl_group_all_reduce(group, i32, 1, SL_I32, SL_REDUCE_SUM));
    CHECK(i32[0] == (int32_t)total);
    SL_TRY(sl_group_all_reduce(group, i32 + 1, 1, SL_I32, SL_REDUCE_MAX));
    CHECK(i32[1] == INT32_MAX);
    SL_TRY(sl_group_all_reduce(group, u8, 1, SL_U8, SL_REDUCE_MAX));
    CHECK(u8[0] == 200 + size - 1);
    SL_TRY(sl_group_all_reduce(group, bf16, 2, SL_BF16, SL_REDUCE_SUM));
    /* Sums in f32 keep the small terms: 1 + 3 * 2^-9 rounds up to 1 + 2^-7, one at a time they would all be lost. */
    CHECK(bf16[1] == (size < 4 ? 0x3f80 : size < 6 ? 0x3f81 : bf16[1]));
    SL_TRY(sl_group_all_reduce(group, f16, 2, SL_F16, SL_REDUCE_SUM));
    static const uint16_t halves[] = { 0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500 };
    CHECK(size > 5 || (f16[0] == halves[size] && f16[1] == size));
    CHECK_FAILS(sl_group_all_reduce(group, truth, 1, SL_BOOL, SL_REDUCE_SUM), SL_ERR_ARGUMENT, "dtype bool");
done:
    return status;
}

/* ---- Posted ---------------------------------------------------------------------------------- */

/* Rank 0 waits for a message that rank 1 sends once its posted sum is done: only if rank 0's part of the sum goes on
 * while it waits for the message does either end. */
static sl_status what_is_posted_goes_on_while_the_rank_waits(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    int me = sl_group_rank(group), size = sl_group_size(group);
    int64_t count = 200000;
    float *data = malloc((size_t)count * sizeof *data);
    sl_request *request = NULL;
    sl_channel *channel = NULL;
    void *slot = NULL;
    sl_message message = suite_bytes(0, 0, 8);
    for (int64_t i = 0; i < count; i++)
        data[i] = float_of(seed, me, i);
    SL_TRY(suite_open_one(group, 3, 1, 0, 1, 8, &channel));
    SL_TRY(sl_group_all_reduce_post(group, data, count, SL_F32, SL_REDUCE_SUM, NULL, &request));
    if (me == 0)
        SL_TRY(sl_channel_receive(channel, &message, NULL, &slot));
    SL_TRY(sl_request_wait(request));
    if (me == 1) {
        SL_TRY(sl_channel_reserve(channel, &message, &slot));
        SL_TRY(sl_channel_commit(channel, slot));
    }
    for (int64_t i = 0; i < count; i += 997) {
        float expected = expected_f32(seed, size, i, SL_REDUCE_SUM);
        CHECK(memcmp(&data[i], &expected, 4) == 0);
    }
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channel);
done:
    free(data);
    return status;
}

enum { POSTED = 6 };

/* Several at once, waited for in any order, with blocking calls among them; later rounds allocate nothing. */
static sl_status posted_collectives_run_in_order_and_allocate_nothing(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    suite_random random = { seed };
    int me = sl_group_rank(group), size = sl_group_size(group);
    int64_t allocated = 0, counts[POSTED];
    int64_t *data[POSTED] = { NULL }, *gathered = malloc((size_t)size * sizeof *gathered);
    for (int i = 0; i < POSTED; i++) {
        counts[i] = suite_between(&random, 0, i % 2 ? 60000 : 40);
        data[i] = malloc((size_t)(counts[i] + 1) * sizeof **data);
    }
    for (int round = 0; round < 4; round++) {
        sl_request *requests[POSTED] = { NULL };
        if (round == 1) {
            SL_TRY(sl_group_barrier(group)); /* with ranks as threads the others' allocations count, too */
            allocated = sl_alloc_count();
            SL_TRY(sl_group_barrier(group));
        }
        for (int i = 0; i < POSTED; i++) {
            for (int64_t k = 0; k < counts[i]; k++)
                data[i][k] = me * 1000 + k + i + round;
            SL_TRY(sl_group_all_reduce_post(group, data[i], counts[i], SL_I64, SL_REDUCE_SUM, NULL, &requests[i]));
            SL_TRY(sl_group_progress(group));
        }
        int64_t mine = me + round;
        SL_TRY(sl_group_all_gather(group, &mine, sizeof mine, gathered));
        for (int r = 0; r < size; r++)
            CHECK(gathered[r] == r + round);
        for (int i = POSTED - 1; i >= 0; i--) {
            bool done = false;
            while (i % 2 && !done)
                SL_TRY(sl_request_test(requests[i], &done));
            if (i % 2 == 0)
                SL_TRY(sl_request_wait(requests[i]));
            for (int64_t k = 0; k < counts[i]; k++)
                CHECK(data[i][k] == (int64_t)size * (size - 1) / 2 * 1000 + size * (k + i + round));
        }
    }
    SL_TRY(sl_group_barrier(group));
    CHECK(sl_alloc_count() == allocated);
    SL_TRY(sl_group_barrier(group));
done:
    for (int i = 0; i < POSTED; i++)
        free(data[i]);
    free(gathered);
    return status;
}

/* Posted, and never waited for: closing the group ends them. */
static sl_status what_is_posted_may_be_left_behind(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    sl_group *part = NULL;
    static _Thread_local float data[50000];
    sl_request *request = NULL;
    SL_TRY(sl_group_split(group, 0, 0, &part));
    if (sl_group_rank(group) != 0)
        SL_TRY(sl_group_all_reduce_post(part, data, 50000, SL_F32, SL_REDUCE_SUM, NULL, &request));
    SL_TRY(sl_group_barrier(group));
    sl_group_close(part);
    part = NULL;
    SL_TRY(sl_group_barrier(group));
done:
    sl_group_close(part);
    return status;
}

static sl_status calling_different_collectives_is_an_error(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    float data[64] = { 0 };
    if (sl_group_rank(group) == 0)
        status = sl_group_all_reduce(group, data, 16, SL_F32, SL_REDUCE_SUM);
    else
        status = sl_group_all_gather(group, data, 4, data);
    if (sl_group_size(group) > 16) { /* those who do not talk to rank 0 hear of it from others */
        CHECK(status == SL_ERR_COMM || status == SL_ERR_PEER);
        return SL_OK;
    }
    CHECK_FAILS(status, SL_ERR_COMM, "different collectives");
    SL_TRY(suite_expect(SL_ERR_COMM, SL_ERR_COMM, "all_reduce of 16 x f32", __FILE__, __LINE__));
done:
    return status;
}

const suite_case suite_collectives[] = {
    { .name = "ranks_know_their_places", .run = ranks_know_their_places, .min_ranks = 1 },
    { .name = "uneven_groups_work", .run = uneven_groups_work, .min_ranks = 1, .rounds = 10 },
    { .name = "every_mesh_works", .run = every_mesh_works, .min_ranks = 1 },
    { .name = "everyone_gets_everyones_bytes", .run = everyone_gets_everyones_bytes, .min_ranks = 1, .rounds = 20 },
    { .name = "blobs_of_different_sizes_are_gathered",
      .run = blobs_of_different_sizes_are_gathered,
      .min_ranks = 1,
      .rounds = 10 },
    { .name = "sums_have_the_bits_of_the_rank_order",
      .run = sums_have_the_bits_of_the_rank_order,
      .min_ranks = 1,
      .rounds = 10 },
    { .name = "buckets_are_summed_like_their_tensors",
      .run = buckets_are_summed_like_their_tensors,
      .min_ranks = 1,
      .rounds = 4 },
    { .name = "a_gather_begins_after_a_sum", .run = a_gather_begins_after_a_sum, .min_ranks = 1, .rounds = 4 },
    { .name = "buckets_are_gathered_like_their_tensors",
      .run = buckets_are_gathered_like_their_tensors,
      .min_ranks = 1,
      .rounds = 6 },
    { .name = "other_types_are_reduced", .run = other_types_are_reduced, .min_ranks = 1 },
    { .name = "what_is_posted_goes_on_while_the_rank_waits",
      .run = what_is_posted_goes_on_while_the_rank_waits,
      .min_ranks = 2,
      .rounds = 4 },
    { .name = "posted_collectives_run_in_order_and_allocate_nothing",
      .run = posted_collectives_run_in_order_and_allocate_nothing,
      .min_ranks = 1,
      .rounds = 10 },
    { .name = "what_is_posted_may_be_left_behind", .run = what_is_posted_may_be_left_behind, .min_ranks = 1 },
    { .name = "calling_different_collectives_is_an_error",
      .run = calling_different_collectives_is_an_error,
      .min_ranks = 2,
      .ends_run = true },
    { .name = NULL },
};
