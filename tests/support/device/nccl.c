/* Stands in for NCCL on the tests' device: communicators of two ranks, between threads of one process. As NCCL does, it is
 * ready when both ranks have come, a message passes when both ends are in their streams, and what is under way ends only
 * by the other end or by a stop. */
#include "support/device/internal.h"

#include <stdlib.h>
#include <string.h>

/* What both ends of a communicator share; never freed before both have closed. */
typedef struct meeting {
    uint64_t id;
    int opened, closed;
    bool stopped, failed;
    const void *message; /* of the sender that waits; NULL: none does */
    size_t bytes;
    struct meeting *next;
} meeting;

struct sl_nccl_comm {
    meeting *at;
    int rank;
};

/* One end of a message, as a stream gets it. */
typedef struct message_end {
    meeting *at;
    void *data;
    size_t bytes;
    bool sends;
} message_end;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all below and the meetings */
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static meeting *meetings;
static uint64_t last_id;
static int open_count, opened_count;
static bool refuses, holds;

static void prepare(const char *host_id)
{
    (void)host_id;
}

static sl_status make_id(sl_nccl_id *out)
{
    pthread_mutex_lock(&lock);
    bool refused = refuses;
    last_id++;
    if (!refused)
        memcpy(out->bytes, &last_id, sizeof last_id);
    pthread_mutex_unlock(&lock);
    return refused ? sl_fail(SL_ERR_COMM, "NCCL of the tests: refused") : SL_OK;
}

static sl_status open_comm(const sl_nccl_id *id, int ranks, int rank, sl_nccl_comm **out)
{
    uint64_t number;
    memcpy(&number, id->bytes, sizeof number);
    sl_nccl_comm *made = calloc(1, sizeof *made);
    if (!made || ranks != 2)
        abort();
    made->rank = rank;
    pthread_mutex_lock(&lock);
    meeting *at = meetings;
    while (at && at->id != number)
        at = at->next;
    if (!at) {
        at = calloc(1, sizeof *at);
        if (!at)
            abort();
        at->id = number;
        at->next = meetings;
        meetings = at;
    }
    at->opened++;
    open_count++;
    opened_count++;
    made->at = at;
    pthread_mutex_unlock(&lock);
    *out = made;
    return SL_OK;
}

static sl_status ask(sl_nccl_comm *comm, bool *ready)
{
    pthread_mutex_lock(&lock);
    bool failed = comm->at->failed;
    *ready = comm->at->opened == 2 && !holds;
    pthread_mutex_unlock(&lock);
    return failed ? sl_fail(SL_ERR_COMM, "NCCL of the tests: broken") : SL_OK;
}

/* Sizes that differ never pass. */
static void run_end(const void *args)
{
    const message_end *end = args;
    meeting *at = end->at;
    pthread_mutex_lock(&lock);
    if (end->sends) {
        at->message = end->data;
        at->bytes = end->bytes;
        pthread_cond_broadcast(&moved);
        while (at->message && !at->stopped)
            pthread_cond_wait(&moved, &lock);
    } else {
        while (!(at->message && at->bytes == end->bytes) && !at->stopped)
            pthread_cond_wait(&moved, &lock);
        if (!at->stopped)
            memcpy(test_device_near(end->data), test_device_near(at->message), end->bytes);
        at->message = NULL;
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&lock);
}

static sl_status send_message(sl_nccl_comm *comm, const void *data, size_t bytes, int to, sl_stream *stream)
{
    const message_end end = { .at = comm->at, .data = (void *)data, .bytes = bytes, .sends = true };
    if (to == comm->rank)
        abort();
    return test_device_launch(stream, run_end, &end, sizeof end);
}

static sl_status receive_message(sl_nccl_comm *comm, void *data, size_t bytes, int from, sl_stream *stream)
{
    const message_end end = { .at = comm->at, .data = data, .bytes = bytes };
    if (from == comm->rank)
        abort();
    return test_device_launch(stream, run_end, &end, sizeof end);
}

static void stop(sl_nccl_comm *comm)
{
    pthread_mutex_lock(&lock);
    comm->at->stopped = true;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

/* The streams of the other end may still have work of it, so what they share stays. */
static void close_comm(sl_nccl_comm *comm)
{
    stop(comm);
    pthread_mutex_lock(&lock);
    comm->at->closed++;
    open_count--;
    pthread_mutex_unlock(&lock);
    free(comm);
}

const sl_nccl test_nccl = {
    .version = "of the tests",
    .device_kind = TEST_KIND,
    .serves_threads = true,
    .prepare = prepare,
    .make_id = make_id,
    .open = open_comm,
    .ask = ask,
    .send = send_message,
    .receive = receive_message,
    .stop = stop,
    .close = close_comm,
};

void test_nccl_refuse(bool refuse)
{
    pthread_mutex_lock(&lock);
    refuses = refuse;
    pthread_mutex_unlock(&lock);
}

void test_nccl_hold(bool hold)
{
    pthread_mutex_lock(&lock);
    holds = hold;
    pthread_mutex_unlock(&lock);
}

void test_nccl_break(void)
{
    pthread_mutex_lock(&lock);
    for (meeting *at = meetings; at; at = at->next)
        at->failed = at->closed == 0;
    pthread_mutex_unlock(&lock);
}

int test_nccl_count(int *opened)
{
    pthread_mutex_lock(&lock);
    int count = open_count;
    *opened = opened_count;
    pthread_mutex_unlock(&lock);
    return count;
}

void test_nccl_clear(void)
{
    pthread_mutex_lock(&lock);
    while (meetings) {
        meeting *gone = meetings;
        meetings = gone->next;
        free(gone);
    }
    opened_count = 0;
    pthread_mutex_unlock(&lock);
}
