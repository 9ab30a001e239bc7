/* Device links on the tests' device, through shared memory and through what stands in for NCCL and for MPI: messages of many steps arrive
 * whole and in order, others than expected are found, and a failure frees the streams that wait. Ranks are threads. */
#include "comm/device_links.h"
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
#include <time.h>

enum { RANKS = 3, CHANNELS = 3, MESSAGES = 5, WORDS = 1000 };

typedef struct link_ring link_ring;
typedef sl_status (*rank_body)(link_ring *ring, int rank);

/* A ring: channel r goes from rank r to the next. */
struct link_ring {
    const char *way, *why; /* of the messages */
    sl_group *groups[RANKS];
    int capacity;
    rank_body body;
    sl_status status[RANKS];
    char messages[RANKS][512];
};

typedef struct rank_thread {
    link_ring *ring;
    int rank;
} rank_thread;

/* What one rank has. */
typedef struct place {
    sl_device *device;
    sl_stream *in, *out;
    sl_device_words *words;
    sl_device_links *links;
    int32_t *sent, *got; /* (MESSAGES, WORDS) of the device */
    int32_t *image;      /* the same on the host */
} place;

static sl_status place_open(link_ring *ring, int rank, place *at)
{
    sl_status status = SL_OK;
    sl_channel_spec specs[CHANNELS];
    size_t bytes = (size_t)MESSAGES * WORDS * sizeof(int32_t);
    for (int c = 0; c < CHANNELS; c++)
        specs[c] = (sl_channel_spec){
            .id = c, .src = c, .dst = (c + 1) % RANKS, .capacity = ring->capacity, .max_bytes = WORDS * sizeof(int32_t)
        };
    SL_TRY(sl_device_open("test", NULL, &at->device));
    SL_TRY(sl_stream_create(at->device, &at->in));
    SL_TRY(sl_stream_create(at->device, &at->out));
    SL_TRY(sl_device_alloc(at->device, bytes, (void **)&at->sent));
    SL_TRY(sl_device_alloc(at->device, bytes, (void **)&at->got));
    SL_TRY(sl_device_alloc_host(at->device, bytes, (void **)&at->image));
    SL_TRY(sl_device_words_open(ring->groups[rank], at->device, &at->words));
    SL_TRY(sl_device_links_open(at->words, specs, CHANNELS, MESSAGES, &at->links));
done:
    return status;
}

static void place_close(place *at)
{
    sl_stream_destroy(at->in);
    sl_stream_destroy(at->out);
    sl_device_links_close(at->links);
    sl_device_words_close(at->words);
    sl_device_free(at->device, at->sent);
    sl_device_free(at->device, at->got);
    sl_device_free_host(at->device, at->image);
    sl_device_close(at->device);
}

/* The end of every rank's body: a failure reaches the others and frees the streams of this rank, which are then waited
 * for. */
static sl_status leave(link_ring *ring, int rank, place *at, sl_status status)
{
    if (status != SL_OK)
        sl_group_fail(ring->groups[rank], status);
    if (status != SL_OK && at->words)
        sl_device_words_free_streams(at->words, (sl_stream *[]){ at->in, at->out }, 2);
    place_close(at);
    return status;
}

static sl_message message_of(int64_t step, int microbatch)
{
    return (sl_message){
        .step = step, .microbatch = microbatch, .dtype = SL_I32, .shape = { .rank = 1, .dims = { WORDS } }
    };
}

static int32_t value_of(int rank, int64_t step, int message, int word)
{
    return (int32_t)(rank * 1000000 + (int)step * 100000 + message * 10000 + word);
}

static sl_status send_one(const place *at, int rank, int64_t step, int number, int microbatch)
{
    sl_status status = SL_OK;
    sl_message message = message_of(step, microbatch);
    void *slot = NULL;
    SL_TRY(sl_device_links_reserve(at->links, rank, &message, at->out, &slot));
    SL_TRY(sl_stream_copy(at->out, SL_COPY_DEVICE_TO_DEVICE, slot, at->sent + (ptrdiff_t)number * WORDS,
                          WORDS * sizeof(int32_t)));
    SL_TRY(sl_device_links_commit(at->links, rank, slot, at->out));
done:
    return status;
}

static sl_status receive_one(const place *at, int channel, int64_t step, int number)
{
    sl_status status = SL_OK;
    sl_message message = message_of(step, number);
    void *slot = NULL;
    SL_TRY(sl_device_links_receive(at->links, channel, &message, at->in, &slot));
    SL_TRY(sl_stream_copy(at->in, SL_COPY_DEVICE_TO_DEVICE, at->got + (ptrdiff_t)number * WORDS, slot,
                          WORDS * sizeof(int32_t)));
    SL_TRY(sl_device_links_release(at->links, channel, slot, at->in));
done:
    return status;
}

static sl_status end_step(const place *at)
{
    sl_status status = SL_OK;
    SL_TRY(sl_device_links_fetch(at->links, at->in));
    SL_TRY(sl_device_words_wait(at->words, at->in));
    SL_TRY(sl_device_words_wait(at->words, at->out));
    SL_TRY(sl_device_links_check(at->links));
done:
    return status;
}

/* All messages of a step, given to the streams without waiting for anything. */
static sl_status run_step(link_ring *ring, const place *at, int rank, int64_t step, bool polled)
{
    sl_status status = SL_OK;
    int before = (rank + RANKS - 1) % RANKS;
    size_t bytes = (size_t)MESSAGES * WORDS * sizeof(int32_t);
    (void)ring;
    for (int i = 0; i < MESSAGES * WORDS; i++)
        at->image[i] = value_of(rank, step, i / WORDS, i % WORDS);
    SL_TRY(sl_stream_copy(at->out, SL_COPY_HOST_TO_DEVICE, at->sent, at->image, bytes));
    SL_TRY(sl_stream_synchronize(at->out));
    SL_TRY(sl_device_links_begin(at->links, step, polled, at->out));
    for (int m = 0; m < MESSAGES; m++) {
        SL_TRY(send_one(at, rank, step, m, m));
        SL_TRY(receive_one(at, before, step, m));
    }
    SL_TRY(end_step(at));
    SL_TRY(sl_stream_copy(at->in, SL_COPY_DEVICE_TO_HOST, at->image, at->got, bytes));
    SL_TRY(sl_stream_synchronize(at->in));
    for (int i = 0; i < MESSAGES * WORDS; i++) {
        if (at->image[i] != value_of(before, step, i / WORDS, i % WORDS))
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "step %d, message %d, word %d: %d", (int)step, i / WORDS, i % WORDS,
                           at->image[i]));
    }
done:
    return status;
}

static sl_status run_steps(link_ring *ring, int rank)
{
    sl_status status = SL_OK;
    place at = { .device = NULL };
    SL_TRY(place_open(ring, rank, &at));
    if (sl_device_links_count(at.links) != CHANNELS || strcmp(sl_device_links_reason(at.links), ring->why) != 0)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "not all are links: %s", sl_device_links_reason(at.links)));
    if (strcmp(sl_device_links_way(at.links), ring->way) != 0)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "messages go %s", sl_device_links_way(at.links)));
    for (int64_t step = 0; step < 8; step++)
        SL_TRY(run_step(ring, &at, rank, step, step % 3 == 0));
done:
    return leave(ring, rank, &at, status);
}

static void *play(void *user)
{
    rank_thread *thread = user;
    link_ring *ring = thread->ring;
    ring->status[thread->rank] = ring->body(ring, thread->rank);
    snprintf(ring->messages[thread->rank], sizeof *ring->messages, "%s", sl_error_message());
    return NULL;
}

static const char *wanted_way, *wanted_why; /* if it is not what SLUICE_DEVICE_LINKS says */

static void run_ring(link_ring *made, int capacity, rank_body body)
{
    pthread_t threads[RANKS];
    rank_thread ranks[RANKS];
    const char *wish = getenv("SLUICE_DEVICE_LINKS");
    test_device_install();
    *made = (link_ring){ .capacity = capacity, .body = body };
    bool nccl = wish && strcmp(wish, "nccl") == 0, mpi = wish && strcmp(wish, "mpi") == 0;
    made->way = wanted_way ? wanted_way : nccl ? "through NCCL" : mpi ? "through MPI" : "handed over by streams";
    made->why = wanted_why ? wanted_why
                : nccl     ? "SLUICE_DEVICE_LINKS is nccl"
                : mpi      ? "SLUICE_DEVICE_LINKS is mpi"
                           : "the ranks are on one machine";
    assert_int_equal(sl_group_open_threads(RANKS, NULL, made->groups), SL_OK);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (rank_thread){ made, r };
        assert_int_equal(pthread_create(&threads[r], NULL, play, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++)
        sl_group_close(made->groups[r]);
}

static void assert_all_succeeded(const link_ring *made)
{
    for (int r = 0; r < RANKS; r++) {
        if (made->status[r] != SL_OK)
            fail_msg("messages '%s' with capacity %d, rank %d: %s", made->way, made->capacity, r, made->messages[r]);
    }
}

/* ---- All ways ------------------------------------------------------------------------------- */

static void messages_of_many_steps_arrive_whole_and_in_order(void **state)
{
    (void)state;
    for (int capacity = 1; capacity <= MESSAGES + 1; capacity += 2) {
        link_ring made;
        run_ring(&made, capacity, run_steps);
        assert_all_succeeded(&made);
    }
}

/* Rank 1 sends microbatch 4 in place of 2. */
static sl_status send_another(link_ring *ring, int rank)
{
    sl_status status = SL_OK;
    place at = { .device = NULL };
    int before = (rank + RANKS - 1) % RANKS;
    SL_TRY(place_open(ring, rank, &at));
    SL_TRY(sl_stream_memset(at.out, at.sent, 0, (size_t)MESSAGES * WORDS * sizeof(int32_t)));
    SL_TRY(sl_device_links_begin(at.links, 7, false, at.out));
    for (int m = 0; m < MESSAGES; m++) {
        SL_TRY(send_one(&at, rank, 7, m, rank == 1 && m == 2 ? 4 : m));
        SL_TRY(receive_one(&at, before, 7, m));
    }
    SL_TRY(end_step(&at));
done:
    return leave(ring, rank, &at, status);
}

static void another_message_than_expected_is_found(void **state)
{
    (void)state;
    link_ring made;
    run_ring(&made, 2, send_another);
    assert_int_equal(made.status[2], SL_ERR_COMM);
    assert_non_null(strstr(made.messages[2], "channel 1: message 2 of step 7 from rank 1 is another"));
    assert_int_equal(made.status[0], SL_ERR_PEER);
    assert_int_equal(made.status[1], SL_ERR_PEER);
}

/* Rank 0 fails after its first message; the others have given their streams everything. */
static sl_status fail_early(link_ring *ring, int rank)
{
    sl_status status = SL_OK;
    place at = { .device = NULL };
    int before = (rank + RANKS - 1) % RANKS;
    SL_TRY(place_open(ring, rank, &at));
    SL_TRY(sl_stream_memset(at.out, at.sent, 0, (size_t)MESSAGES * WORDS * sizeof(int32_t)));
    SL_TRY(sl_device_links_begin(at.links, 0, false, at.out));
    for (int m = 0; m < MESSAGES; m++) {
        SL_TRY(send_one(&at, rank, 0, m, m));
        SL_TRY(receive_one(&at, before, 0, m));
        if (rank == 0)
            SL_TRY(sl_fail(SL_ERR_STAGE, "its stage failed"));
    }
    SL_TRY(end_step(&at));
done:
    return leave(ring, rank, &at, status);
}

static void a_failure_frees_the_streams_that_wait(void **state)
{
    (void)state;
    link_ring made;
    double start = sl_now();
    run_ring(&made, 1, fail_early);
    assert_int_equal(made.status[0], SL_ERR_STAGE);
    for (int r = 1; r < RANKS; r++) {
        assert_int_equal(made.status[r], SL_ERR_PEER);
        assert_non_null(strstr(made.messages[r], "rank 0 failed: its stage failed"));
    }
    assert_true(sl_now() - start < 10);
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

static void every_link_has_a_communicator_from_the_start(void **state)
{
    (void)state;
    link_ring made;
    int opened = 0;
    run_ring(&made, 2, run_steps);
    assert_all_succeeded(&made);
    assert_int_equal(test_nccl_count(&opened), 0);
    assert_int_equal(opened, 2 * CHANNELS);
}

static sl_status expect_refusal(link_ring *ring, int rank)
{
    place at = { .device = NULL };
    sl_status status = place_open(ring, rank, &at);
    if (status == SL_OK && sl_device_links_count(at.links) > 0)
        status = sl_fail(SL_ERR_INTERNAL, "there are links");
    if (status == SL_OK && !strstr(sl_device_links_reason(at.links), "refused"))
        status = sl_fail(SL_ERR_INTERNAL, "another reason: %s", sl_device_links_reason(at.links));
    place_close(&at);
    return status;
}

static void without_communicators_there_are_no_links_and_a_reason(void **state)
{
    (void)state;
    link_ring made;
    test_nccl_refuse(true);
    run_ring(&made, 1, expect_refusal);
    test_nccl_refuse(false);
    assert_all_succeeded(&made);
}

static void *fail_soon(void *user)
{
    nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    sl_fail(SL_ERR_STAGE, "it died");
    sl_group_fail(user, SL_ERR_STAGE);
    return NULL;
}

/* Rank 0 fails while all wait for communicators that never come. */
static sl_status open_in_vain(link_ring *ring, int rank)
{
    place at = { .device = NULL };
    pthread_t thread;
    if (rank == 0 && pthread_create(&thread, NULL, fail_soon, ring->groups[0]) != 0)
        return sl_fail(SL_ERR_MEMORY, "no thread");
    sl_status status = place_open(ring, rank, &at);
    if (rank == 0)
        pthread_join(thread, NULL);
    place_close(&at);
    return status;
}

static void a_failure_ends_the_wait_for_communicators(void **state)
{
    (void)state;
    link_ring made;
    double start = sl_now();
    test_nccl_hold(true);
    run_ring(&made, 1, open_in_vain);
    test_nccl_hold(false);
    for (int r = 1; r < RANKS; r++) {
        assert_int_equal(made.status[r], SL_ERR_PEER);
        assert_non_null(strstr(made.messages[r], "rank 0 failed: it died"));
    }
    assert_true(sl_now() - start < 10);
}

/* Rank 0 sends nothing and says that NCCL is broken. */
static sl_status break_early(link_ring *ring, int rank)
{
    sl_status status = SL_OK;
    place at = { .device = NULL };
    int before = (rank + RANKS - 1) % RANKS;
    SL_TRY(place_open(ring, rank, &at));
    SL_TRY(sl_device_links_begin(at.links, 0, false, at.out));
    if (rank != 0)
        SL_TRY(receive_one(&at, before, 0, 0));
    else
        test_nccl_break();
    SL_TRY(end_step(&at));
done:
    return leave(ring, rank, &at, status);
}

static void an_error_of_nccl_ends_the_step(void **state)
{
    (void)state;
    link_ring made;
    double start = sl_now();
    run_ring(&made, 1, break_early);
    int found = 0;
    for (int r = 0; r < RANKS; r++) {
        assert_int_not_equal(made.status[r], SL_OK);
        found += strstr(made.messages[r], "NCCL of the tests: broken") != NULL;
    }
    assert_true(found > 0);
    assert_true(sl_now() - start < 10);
}

/* ---- MPI ------------------------------------------------------------------------------------- */

/* MPI takes nothing any more once rank 0 begins to send. */
static sl_status break_mpi(link_ring *ring, int rank)
{
    sl_status status = SL_OK;
    place at = { .device = NULL };
    SL_TRY(place_open(ring, rank, &at));
    SL_TRY(sl_device_links_begin(at.links, 0, false, at.out));
    if (rank == 0) {
        test_mpi_break(true);
        SL_TRY(send_one(&at, rank, 0, 0, 0));
    } else if (rank == 1) {
        SL_TRY(receive_one(&at, 0, 0, 0));
    }
    SL_TRY(end_step(&at));
done:
    return leave(ring, rank, &at, status);
}

static void an_error_of_mpi_ends_the_step(void **state)
{
    (void)state;
    link_ring made;
    double start = sl_now();
    run_ring(&made, 1, break_mpi);
    test_mpi_break(false);
    for (int r = 0; r < RANKS; r++) {
        assert_int_not_equal(made.status[r], SL_OK);
        assert_non_null(strstr(made.messages[r], "MPI of the tests: broken"));
    }
    assert_true(sl_now() - start < 10);
}

static sl_status expect_wanted(link_ring *ring, int rank)
{
    place at = { .device = NULL };
    sl_status status = place_open(ring, rank, &at);
    if (status == SL_OK && (strcmp(sl_device_links_way(at.links), ring->way) != 0 ||
                            strcmp(sl_device_links_reason(at.links), ring->why) != 0))
        status = sl_fail(SL_ERR_INTERNAL, "messages go '%s': %s", sl_device_links_way(at.links),
                         sl_device_links_reason(at.links));
    place_close(&at);
    return status;
}

/* Devices that do not reach each other: NCCL, else MPI, else the host. */
static void the_next_way_is_taken_if_one_cannot_be_had(void **state)
{
    (void)state;
    static const struct {
        bool nccl, mpi; /* there is */
        const char *way, *why;
    } cases[] = {
        { true, true, "through NCCL", "test device: it is apart" },
        { false, true, "through MPI", "test device: it is apart; NCCL of the tests: refused" },
        { false, false, "", "test device: it is apart; NCCL of the tests: refused; this MPI is not CUDA-aware" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        link_ring made;
        test_device_set_apart(true);
        test_nccl_refuse(!cases[i].nccl);
        test_mpi_refuse(!cases[i].mpi);
        wanted_way = cases[i].way;
        wanted_why = cases[i].why;
        run_ring(&made, 1, expect_wanted);
        wanted_way = wanted_why = NULL;
        test_mpi_refuse(false);
        test_nccl_refuse(false);
        test_device_set_apart(false);
        assert_all_succeeded(&made);
    }
}

/* ---- Choices --------------------------------------------------------------------------------- */

static sl_status count_links(link_ring *ring, int rank)
{
    place at = { .device = NULL };
    sl_status status = place_open(ring, rank, &at);
    if (status == SL_OK && (sl_device_links_count(at.links) > 0 || sl_device_links_has(at.links, 0)))
        status = sl_fail(SL_ERR_INTERNAL, "there are links");
    if (status == SL_OK && !strstr(sl_device_links_reason(at.links), "SLUICE_DEVICE_LINKS"))
        status = sl_fail(SL_ERR_INTERNAL, "another reason: %s", sl_device_links_reason(at.links));
    place_close(&at);
    return status;
}

static void the_environment_can_forbid_them(void **state)
{
    (void)state;
    link_ring made;
    run_ring(&made, 1, count_links);
    assert_all_succeeded(&made);
}

static void a_wish_that_means_nothing_is_an_error(void **state)
{
    (void)state;
    link_ring made;
    run_ring(&made, 1, run_steps);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(made.status[r], SL_ERR_ARGUMENT);
        assert_string_equal(made.messages[r], "SLUICE_DEVICE_LINKS is 'fast': it can be 0, 1, nccl or mpi");
    }
}

int main(void)
{
    static char one[] = "1", nccl[] = "nccl", mpi[] = "mpi", none[] = "0", fast[] = "fast";
    const struct CMUnitTest tests[] = {
        TEST_OF(messages_of_many_steps_arrive_whole_and_in_order, one),
        TEST_OF(messages_of_many_steps_arrive_whole_and_in_order, nccl),
        TEST_OF(messages_of_many_steps_arrive_whole_and_in_order, mpi),
        TEST_OF(another_message_than_expected_is_found, one),
        TEST_OF(another_message_than_expected_is_found, nccl),
        TEST_OF(another_message_than_expected_is_found, mpi),
        TEST_OF(a_failure_frees_the_streams_that_wait, one),
        TEST_OF(a_failure_frees_the_streams_that_wait, nccl),
        TEST_OF(a_failure_frees_the_streams_that_wait, mpi),
        TEST_OF(every_link_has_a_communicator_from_the_start, nccl),
        TEST_OF(without_communicators_there_are_no_links_and_a_reason, nccl),
        TEST_OF(a_failure_ends_the_wait_for_communicators, nccl),
        TEST_OF(an_error_of_nccl_ends_the_step, nccl),
        TEST_OF(an_error_of_mpi_ends_the_step, mpi),
        TEST_OF(the_next_way_is_taken_if_one_cannot_be_had, NULL),
        TEST_OF(the_environment_can_forbid_them, none),
        TEST_OF(a_wish_that_means_nothing_is_an_error, fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
