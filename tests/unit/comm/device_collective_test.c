/* Collectives on devices, through shared memory and through what stands in for NCCL: the bits of the host's collectives for
 * random sizes, ranks and staging memory; a rank that fails in the middle lets everybody go. Ranks are threads on the
 * tests' device. */
#include "base/half.h"
#include "comm/device_collective.h"
#include "runtime/exchange.h"
#include "support/device/test_device.h"
#include "unit/comm/ways.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 5, MOST_ITEMS = 4 };

typedef struct crew crew;
typedef sl_status (*crew_body)(crew *all, int rank);

/* Ranks that do the same. */
struct crew {
    sl_group *groups[MOST_RANKS];
    int ranks;
    uint64_t seed;
    size_t staging;
    bool any_order;
    crew_body body;
    sl_status status[MOST_RANKS];
    char messages[MOST_RANKS][512];
};

typedef struct crew_rank {
    crew *all;
    int rank;
} crew_rank;

/* What one rank has. */
typedef struct seat {
    crew *all;
    sl_group *group;
    int rank;
    uint64_t random; /* the same on all ranks */
    sl_device *device;
    sl_stream *stream;
    sl_device_words *words;
    sl_device_collective *collective;
    char reason[256];
} seat;

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static sl_status seat_open(crew *all, int rank, seat *at)
{
    sl_status status = SL_OK;
    *at = (seat){ .all = all, .group = all->groups[rank], .rank = rank, .random = all->seed };
    SL_TRY(sl_device_open("test", NULL, &at->device));
    SL_TRY(sl_stream_create(at->device, &at->stream));
    SL_TRY(sl_device_words_open(at->group, at->device, &at->words));
    const sl_device_collective_options options = { .bytes = all->staging,
                                                   .sum = sl_exchange_add_up,
                                                   .any_order = all->any_order };
    SL_TRY(sl_device_collective_open(at->group, at->words, &options, at->reason, &at->collective));
done:
    return status;
}

static void seat_close(seat *at)
{
    sl_stream_destroy(at->stream);
    sl_device_collective_close(at->collective);
    sl_device_words_close(at->words);
    sl_device_close(at->device);
}

/* ---- Tensors of the host and their twins on the device ---- */

typedef struct twin {
    char *host;
    char *device;
    size_t bytes;
} twin;

/* Values of which no two sums in another order have the same bits. */
static sl_status twin_make(const seat *at, size_t bytes, sl_dtype dtype, uint64_t random, twin *out)
{
    sl_status status = SL_OK;
    *out = (twin){ .bytes = bytes };
    random += (uint64_t)at->rank * 977;
    SL_TRY(sl_device_alloc_host(at->device, bytes + 1, (void **)&out->host));
    SL_TRY(sl_device_alloc(at->device, bytes + 1, (void **)&out->device));
    for (size_t i = 0; i < bytes / sl_dtype_size(dtype); i++) {
        double value = (double)next_random(&random) / 3e5 - 3579.1;
        if (dtype == SL_F32)
            ((float *)(void *)out->host)[i] = (float)value;
        else if (dtype == SL_F64)
            ((double *)(void *)out->host)[i] = value / 7;
        else if (dtype == SL_BF16)
            ((uint16_t *)(void *)out->host)[i] = sl_to_bf16((float)value);
        else
            out->host[i] = (char)next_random(&random);
    }
    SL_TRY(sl_stream_copy(at->stream, SL_COPY_HOST_TO_DEVICE, out->device, out->host, bytes));
    SL_TRY(sl_stream_synchronize(at->stream));
done:
    return status;
}

static void twin_free(const seat *at, twin *gone)
{
    sl_device_free_host(at->device, gone->host);
    sl_device_free(at->device, gone->device);
}

/* Once the stream is through. */
static sl_status twin_compare(const seat *at, const char *what, const twin *each)
{
    sl_status status = SL_OK;
    char *image = NULL;
    SL_TRY(sl_device_alloc_host(at->device, each->bytes + 1, (void **)&image));
    SL_TRY(sl_device_words_wait(at->words, at->stream));
    SL_TRY(sl_stream_copy(at->stream, SL_COPY_DEVICE_TO_HOST, image, each->device, each->bytes));
    SL_TRY(sl_stream_synchronize(at->stream));
    for (size_t i = 0; i < each->bytes; i++) {
        if (image[i] != each->host[i])
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "%s: byte %zu of %zu differs: %d, not %d", what, i, each->bytes, image[i],
                           each->host[i]));
    }
done:
    sl_device_free_host(at->device, image);
    return status;
}

/* ---- One collective each, on the host and on the device ---- */

static sl_dtype random_dtype(seat *at)
{
    static const sl_dtype dtypes[] = { SL_F32, SL_F64, SL_BF16 };
    return dtypes[next_random(&at->random) % 3];
}

static sl_status try_gather(seat *at)
{
    sl_status status = SL_OK;
    int count = 1 + (int)(next_random(&at->random) % MOST_ITEMS), ranks = at->all->ranks;
    bool placed = next_random(&at->random) % 2;
    twin send[MOST_ITEMS] = { { .bytes = 0 } }, recv[MOST_ITEMS] = { { .bytes = 0 } };
    sl_bucket_item near[MOST_ITEMS], far[MOST_ITEMS];
    sl_request *request = NULL;
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)(next_random(&at->random) % 30000);
        SL_TRY(twin_make(at, bytes, SL_U8, next_random(&at->random), &send[i]));
        SL_TRY(twin_make(at, bytes * (size_t)ranks, SL_U8, next_random(&at->random), &recv[i]));
        size_t own = (size_t)at->rank * bytes;
        near[i] = (sl_bucket_item){ .send = placed ? recv[i].host + own : send[i].host,
                                    .recv = recv[i].host,
                                    .count = (int64_t)bytes };
        far[i] = (sl_bucket_item){ .send = placed ? recv[i].device + own : send[i].device,
                                   .recv = recv[i].device,
                                   .count = (int64_t)bytes };
    }
    SL_TRY(sl_device_all_gather(at->collective, far, count, at->stream));
    SL_TRY(sl_group_all_gather_bucket_post(at->group, near, count, NULL, &request));
    SL_TRY(sl_request_wait(request));
    for (int i = 0; i < count; i++)
        SL_TRY(twin_compare(at, "gather", &recv[i]));
done:
    for (int i = 0; i < count; i++) {
        twin_free(at, &send[i]);
        twin_free(at, &recv[i]);
    }
    return status;
}

static sl_status try_scatter(seat *at)
{
    sl_status status = SL_OK;
    sl_dtype dtype = random_dtype(at);
    int count = 1 + (int)(next_random(&at->random) % MOST_ITEMS), ranks = at->all->ranks;
    int rows = next_random(&at->random) % 2 ? ranks : 1;
    if (ranks == 4 && next_random(&at->random) % 2)
        rows = 2;
    bool placed = next_random(&at->random) % 2; /* the sum goes where this rank's own summand is */
    size_t part = (size_t)(at->rank % rows) * (size_t)(ranks / rows) + (size_t)(at->rank / rows);
    twin send[MOST_ITEMS] = { { .bytes = 0 } }, recv[MOST_ITEMS] = { { .bytes = 0 } };
    sl_bucket_item near[MOST_ITEMS], far[MOST_ITEMS];
    sl_request *request = NULL;
    for (int i = 0; i < count; i++) {
        int64_t elements = (int64_t)(next_random(&at->random) % 5000);
        size_t bytes = (size_t)elements * sl_dtype_size(dtype);
        SL_TRY(twin_make(at, bytes * (size_t)ranks, dtype, next_random(&at->random), &send[i]));
        SL_TRY(twin_make(at, bytes, dtype, next_random(&at->random), &recv[i]));
        near[i] = (sl_bucket_item){ .send = send[i].host,
                                    .recv = placed ? send[i].host + part * bytes : recv[i].host,
                                    .count = elements };
        far[i] = (sl_bucket_item){ .send = send[i].device,
                                   .recv = placed ? send[i].device + part * bytes : recv[i].device,
                                   .count = elements };
    }
    SL_TRY(sl_device_reduce_scatter(at->collective, far, count, rows, dtype, at->stream));
    SL_TRY(sl_group_reduce_scatter_bucket_post(at->group, near, count, rows, dtype, SL_REDUCE_SUM, NULL, &request));
    SL_TRY(sl_request_wait(request));
    for (int i = 0; i < count; i++) {
        SL_TRY(twin_compare(at, "reduce-scatter", &recv[i]));
        SL_TRY(twin_compare(at, "what reduce-scatter reads", &send[i]));
    }
done:
    for (int i = 0; i < count; i++) {
        twin_free(at, &send[i]);
        twin_free(at, &recv[i]);
    }
    return status;
}

static sl_status try_sum(seat *at)
{
    sl_status status = SL_OK;
    sl_dtype dtype = random_dtype(at);
    int64_t count = (int64_t)(next_random(&at->random) % 20000);
    sl_device_part parts[MOST_RANKS];
    twin data = { .bytes = 0 };
    SL_TRY(twin_make(at, (size_t)count * sl_dtype_size(dtype), dtype, next_random(&at->random), &data));
    for (int r = 0; r < at->all->ranks; r++)
        parts[r] = (sl_device_part){ .rank = r, .data = r == at->rank ? data.device : NULL };
    SL_TRY(sl_device_sum(at->collective, parts, at->all->ranks, count, dtype, at->stream));
    SL_TRY(sl_group_all_reduce(at->group, data.host, count, dtype, SL_REDUCE_SUM));
    SL_TRY(twin_compare(at, "sum", &data));
done:
    twin_free(at, &data);
    return status;
}

/* Parts in any order, several or none on a rank: as if each were a rank of its own. */
static sl_status try_parts(seat *at)
{
    enum { MOST_PARTS = 6 };
    sl_status status = SL_OK;
    int64_t count = (int64_t)(next_random(&at->random) % 9000);
    int part_count = 2 + (int)(next_random(&at->random) % (MOST_PARTS - 1));
    size_t bytes = (size_t)count * sizeof(float);
    sl_device_part parts[MOST_PARTS];
    twin data[MOST_PARTS] = { { .bytes = 0 } };
    float *all = malloc((size_t)MOST_RANKS * bytes + 1), *sum = calloc(1, bytes + 1);
    for (int p = 0; p < part_count; p++) {
        parts[p] = (sl_device_part){ .rank = (int)(next_random(&at->random) % (uint64_t)at->all->ranks) };
        SL_TRY(twin_make(at, bytes, SL_F32, next_random(&at->random), &data[p]));
        parts[p].data = parts[p].rank == at->rank ? data[p].device : NULL;
        SL_TRY(sl_group_all_gather(at->group, data[p].host, bytes, all));
        const float *from = all + parts[p].rank * count;
        for (int64_t i = 0; i < count; i++)
            sum[i] = p == 0 ? from[i] : sum[i] + from[i];
    }
    SL_TRY(sl_device_sum(at->collective, parts, part_count, count, SL_F32, at->stream));
    for (int p = 0; p < part_count; p++) {
        if (parts[p].rank == at->rank)
            memcpy(data[p].host, sum, bytes);
        SL_TRY(twin_compare(at, "sum of parts", &data[p]));
    }
done:
    for (int p = 0; p < part_count; p++)
        twin_free(at, &data[p]);
    free(all);
    free(sum);
    return status;
}

static sl_status try_broadcast(seat *at)
{
    sl_status status = SL_OK;
    size_t bytes = (size_t)(next_random(&at->random) % 100000);
    int root = (int)(next_random(&at->random) % (uint64_t)at->all->ranks);
    twin data = { .bytes = 0 };
    SL_TRY(twin_make(at, bytes, SL_U8, next_random(&at->random), &data));
    SL_TRY(sl_device_broadcast(at->collective, root, data.device, bytes, at->stream));
    SL_TRY(sl_group_broadcast(at->group, root, data.host, bytes));
    SL_TRY(twin_compare(at, "broadcast", &data));
done:
    twin_free(at, &data);
    return status;
}

/* ---- Ranks ---- */

static sl_status leave(seat *at, void *data, sl_status status)
{
    char message[512];
    snprintf(message, sizeof message, "%s", sl_error_message());
    if (status != SL_OK)
        sl_group_fail(at->group, status);
    if (at->words)
        sl_device_words_free_streams(at->words, &at->stream, 1);
    if (data) {
        (void)!sl_stream_synchronize(at->stream);
        sl_device_free(at->device, data);
    }
    seat_close(at);
    return status == SL_OK ? SL_OK : sl_fail(status, "%s", message);
}

/* What SLUICE_DEVICE_LINKS asks for. */
static const char *wanted_way(void)
{
    const char *wish = getenv("SLUICE_DEVICE_LINKS");
    if (wish && strcmp(wish, "mpi") == 0)
        return "through MPI";
    return wish && strcmp(wish, "nccl") == 0 ? "through NCCL" : "by streams";
}

static sl_status run_many(crew *all, int rank)
{
    static sl_status (*const tries[])(seat *) = { try_gather, try_scatter, try_sum, try_parts, try_broadcast };
    sl_status status = SL_OK;
    seat at;
    SL_TRY(seat_open(all, rank, &at));
    if (!at.collective)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "not in device memory: %s", at.reason));
    if (strcmp(sl_device_collective_way(at.collective), wanted_way()) != 0)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "not %s", wanted_way()));
    for (int i = 0; i < 12; i++) {
        sl_device_words_set_polled(at.words, i % 4 == 0);
        SL_TRY(tries[next_random(&at.random) % (sizeof tries / sizeof *tries)](&at));
    }
done:
    return leave(&at, NULL, status);
}

static void *play(void *user)
{
    crew_rank *self = user;
    crew *all = self->all;
    all->status[self->rank] = all->body(all, self->rank);
    snprintf(all->messages[self->rank], sizeof *all->messages, "%s", sl_error_message());
    return NULL;
}

static void run_crew(crew *all)
{
    pthread_t threads[MOST_RANKS];
    crew_rank ranks[MOST_RANKS];
    test_device_install();
    assert_int_equal(sl_group_open_threads(all->ranks, NULL, all->groups), SL_OK);
    for (int r = 0; r < all->ranks; r++) {
        ranks[r] = (crew_rank){ all, r };
        assert_int_equal(pthread_create(&threads[r], NULL, play, &ranks[r]), 0);
    }
    for (int r = 0; r < all->ranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < all->ranks; r++)
        sl_group_close(all->groups[r]);
}

static void expect_all_ok(const crew *all)
{
    for (int r = 0; r < all->ranks; r++) {
        if (all->status[r] != SL_OK)
            fail_msg("seed %d, rank %d of %d: %s", (int)all->seed, r, all->ranks, all->messages[r]);
    }
}

static void they_have_the_bits_of_the_host(void **state)
{
    (void)state;
    static const size_t staging[] = { 1 << 14, 1 << 16, 1 << 20 };
    for (int i = 0; i < 12; i++) {
        crew all = { .ranks = 2 + i % 4, .seed = 77 + (uint64_t)i, .staging = staging[i % 3], .body = run_many };
        run_crew(&all);
        expect_all_ok(&all);
    }
}

/* The last rank fails when it has done some; the others have given their streams everything. */
static sl_status fail_in_the_middle(crew *all, int rank)
{
    sl_status status = SL_OK;
    seat at;
    float *data = NULL;
    sl_device_part parts[MOST_RANKS];
    SL_TRY(seat_open(all, rank, &at));
    SL_TRY(sl_device_alloc(at.device, 100000 * sizeof *data, (void **)&data));
    SL_TRY(sl_stream_memset(at.stream, data, 0, 100000 * sizeof *data));
    for (int r = 0; r < all->ranks; r++)
        parts[r] = (sl_device_part){ .rank = r, .data = r == rank ? data : NULL };
    sl_device_words_set_polled(at.words, false);
    for (int i = 0; i < 4; i++) {
        if (i == 2 && rank == all->ranks - 1)
            SL_TRY(sl_fail(SL_ERR_STAGE, "its stage failed"));
        SL_TRY(sl_device_sum(at.collective, parts, all->ranks, 100000, SL_F32, at.stream));
    }
    SL_TRY(sl_device_words_wait(at.words, at.stream));
done:
    return leave(&at, data, status);
}

static void a_failure_in_the_middle_frees_all_streams(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++) {
        crew all = { .ranks = ranks, .staging = 1 << 16, .body = fail_in_the_middle };
        double start = sl_now();
        run_crew(&all);
        assert_int_equal(all.status[ranks - 1], SL_ERR_STAGE);
        for (int r = 0; r < ranks - 1; r++) {
            assert_int_equal(all.status[r], SL_ERR_PEER);
            assert_non_null(strstr(all.messages[r], "failed: its stage failed"));
        }
        assert_true(sl_now() - start < 10);
    }
}

/* Rank 1 believes that there is less to sum. */
static sl_status sum_another(crew *all, int rank)
{
    sl_status status = SL_OK;
    seat at;
    float *data = NULL;
    SL_TRY(seat_open(all, rank, &at));
    SL_TRY(sl_device_alloc(at.device, 4000, (void **)&data));
    SL_TRY(sl_stream_memset(at.stream, data, 0, 4000));
    const sl_device_part parts[] = { { 0, data }, { 1, data } };
    SL_TRY(sl_device_sum(at.collective, parts, 2, rank == 0 ? 1000 : 900, SL_F32, at.stream));
    SL_TRY(sl_device_words_wait(at.words, at.stream));
done:
    return leave(&at, data, status);
}

static void another_collective_than_the_others_is_found(void **state)
{
    (void)state;
    crew all = { .ranks = 2, .staging = 1 << 16, .body = sum_another };
    run_crew(&all);
    int first = all.status[0] == SL_ERR_COMM ? 0 : 1;
    assert_int_equal(all.status[first], SL_ERR_COMM);
    assert_non_null(strstr(all.messages[first], "another rank does something else here"));
}

static sl_status expect_none(crew *all, int rank)
{
    sl_status status = SL_OK;
    seat at;
    SL_TRY(seat_open(all, rank, &at));
    if (at.collective || !strstr(at.reason, "SLUICE_DEVICE_LINKS"))
        status = sl_fail(SL_ERR_INTERNAL, "reason: '%s'", at.reason);
done:
    return leave(&at, NULL, status);
}

static void the_environment_can_forbid_them(void **state)
{
    (void)state;
    crew all = { .ranks = 3, .staging = 1 << 16, .body = expect_none };
    run_crew(&all);
    expect_all_ok(&all);
}

/* ---- NCCL ---- */

static sl_status expect_refusal(crew *all, int rank)
{
    sl_status status = SL_OK;
    seat at;
    SL_TRY(seat_open(all, rank, &at));
    if (at.collective || !strstr(at.reason, rank == 0 ? "refused" : "rank 0 of 3 could not do its part"))
        status = sl_fail(SL_ERR_INTERNAL, "reason: '%s'", at.reason);
done:
    return leave(&at, NULL, status);
}

static void without_a_communicator_there_is_a_reason(void **state)
{
    (void)state;
    crew all = { .ranks = 3, .staging = 1 << 16, .body = expect_refusal };
    test_nccl_refuse(true);
    run_crew(&all);
    test_nccl_refuse(false);
    expect_all_ok(&all);
}

/* Compares sums on the device, which may have been added in any order, with those of the host. *others: how many elements
 * have other bits than the sum in the order of the ranks. */
static sl_status compare_near(const seat *at, const twin *each, int *others)
{
    sl_status status = SL_OK;
    float *image = NULL;
    const float *exact = (const float *)(void *)each->host;
    SL_TRY(sl_device_alloc_host(at->device, each->bytes + 1, (void **)&image));
    SL_TRY(sl_device_words_wait(at->words, at->stream));
    SL_TRY(sl_stream_copy(at->stream, SL_COPY_DEVICE_TO_HOST, image, each->device, each->bytes));
    SL_TRY(sl_stream_synchronize(at->stream));
    for (size_t i = 0; i < each->bytes / sizeof *image; i++) {
        float off = image[i] - exact[i];
        if (!(off < 0.01F && off > -0.01F))
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "element %zu: %g, not %g", i, (double)image[i], (double)exact[i]));
        *others += off != 0;
    }
done:
    sl_device_free_host(at->device, image);
    return status;
}

/* Parts of a reduce-scatter in rows, whose order is that of the ranks if there is one row. */
static sl_status scatter_near(seat *at, int rows, int *others)
{
    sl_status status = SL_OK;
    enum { COUNT = 700 };
    twin send = { .bytes = 0 }, recv = { .bytes = 0 };
    sl_request *request = NULL;
    SL_TRY(twin_make(at, COUNT * sizeof(float) * (size_t)at->all->ranks, SL_F32, 5, &send));
    SL_TRY(twin_make(at, COUNT * sizeof(float), SL_F32, 6, &recv));
    const sl_bucket_item near = { .send = send.host, .recv = recv.host, .count = COUNT };
    const sl_bucket_item far = { .send = send.device, .recv = recv.device, .count = COUNT };
    SL_TRY(sl_device_reduce_scatter(at->collective, &far, 1, rows, SL_F32, at->stream));
    SL_TRY(sl_group_reduce_scatter_bucket_post(at->group, &near, 1, rows, SL_F32, SL_REDUCE_SUM, NULL, &request));
    SL_TRY(sl_request_wait(request));
    SL_TRY(compare_near(at, &recv, others));
done:
    twin_free(at, &send);
    twin_free(at, &recv);
    return status;
}

static sl_status sum_in_any_order(crew *all, int rank)
{
    sl_status status = SL_OK;
    seat at;
    sl_device_part parts[MOST_RANKS];
    twin data = { .bytes = 0 };
    int others = 0;
    SL_TRY(seat_open(all, rank, &at));
    SL_TRY(twin_make(&at, 900 * sizeof(float), SL_F32, 3, &data));
    for (int r = 0; r < all->ranks; r++)
        parts[r] = (sl_device_part){ .rank = r, .data = r == rank ? data.device : NULL };
    SL_TRY(sl_device_sum(at.collective, parts, all->ranks, 900, SL_F32, at.stream));
    SL_TRY(sl_group_all_reduce(at.group, data.host, 900, SL_F32, SL_REDUCE_SUM));
    SL_TRY(compare_near(&at, &data, &others));
    SL_TRY(scatter_near(&at, 1, &others));
    SL_TRY(scatter_near(&at, 2, &others));
    bool in_order = sl_device_collective_adds_in_order(at.collective);
    if (in_order != (others == 0) || in_order == (strcmp(wanted_way(), "through NCCL") == 0))
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "%d elements have other bits", others));
done:
    twin_free(&at, &data);
    return leave(&at, NULL, status);
}

static void sums_in_any_order_are_those_of_nccl_if_there_is_one(void **state)
{
    (void)state;
    crew all = { .ranks = 4, .staging = 1 << 16, .any_order = true, .body = sum_in_any_order };
    run_crew(&all);
    expect_all_ok(&all);
}

/* ---- */

int main(void)
{
    static char one[] = "1", nccl[] = "nccl", mpi[] = "mpi", none[] = "0";
    const struct CMUnitTest tests[] = {
        TEST_OF(they_have_the_bits_of_the_host, one),
        TEST_OF(they_have_the_bits_of_the_host, nccl),
        TEST_OF(they_have_the_bits_of_the_host, mpi),
        TEST_OF(a_failure_in_the_middle_frees_all_streams, one),
        TEST_OF(a_failure_in_the_middle_frees_all_streams, nccl),
        TEST_OF(a_failure_in_the_middle_frees_all_streams, mpi),
        TEST_OF(another_collective_than_the_others_is_found, one),
        TEST_OF(another_collective_than_the_others_is_found, nccl),
        TEST_OF(another_collective_than_the_others_is_found, mpi),
        TEST_OF(sums_in_any_order_are_those_of_nccl_if_there_is_one, one),
        TEST_OF(sums_in_any_order_are_those_of_nccl_if_there_is_one, nccl),
        TEST_OF(sums_in_any_order_are_those_of_nccl_if_there_is_one, mpi),
        TEST_OF(without_a_communicator_there_is_a_reason, nccl),
        TEST_OF(the_environment_can_forbid_them, none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
