/* Stands in for NCCL on the tests' device: communicators between threads of one process. As NCCL does, it is ready when all
 * ranks have come, a message passes when both ends are in their streams, and what is under way ends only by the other
 * ranks or by a stop. Its sums run from the last rank to the first, which has other bits than the order of the ranks. */
#include "support/device/internal.h"

#include "base/half.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 16, MOST_CALLS = 4096 };

/* A message that its sender offers until it is taken. */
typedef struct offer {
    struct offer *next;
    const void *data;
    size_t bytes;
    int from, to;
    bool taken;
} offer;

/* What all ends of a communicator share; never freed before all have closed. */
typedef struct meeting {
    uint64_t id;
    int ranks, opened, closed;
    bool stopped, failed;
    offer *offers; /* in the order of their coming */
    struct meeting *next;
} meeting;

typedef struct test_comm {
    sl_carrier_comm head;
    meeting *at;
    int rank;
    bool left; /* and so closed without harm to the others */
} test_comm;

typedef enum call_kind { SEND, RECEIVE, ALL_GATHER, BROADCAST, REDUCE, ALL_REDUCE, REDUCE_SCATTER } call_kind;

typedef struct call {
    call_kind kind;
    const void *from; /* of the device, as the next */
    void *to;
    size_t bytes; /* of a rank */
    int peer;     /* or root */
    sl_dtype dtype;
} call;

/* Calls that start together, as a stream gets them. */
typedef struct call_group {
    meeting *at;
    int rank, count;
    call *calls; /* freed by who runs them */
} call_group;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all below and the meetings */
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static meeting *meetings;
static uint64_t last_id;
static int open_count, opened_count;
static bool refuses, holds;

/* The group that this thread has begun. */
static _Thread_local struct {
    bool begun;
    int count;
    sl_stream *stream;
    call calls[MOST_CALLS];
} pending;

static test_comm *of(sl_carrier_comm *comm)
{
    return (test_comm *)comm;
}

static sl_status make_id(sl_device_words *words, sl_carrier_id *out)
{
    (void)words;
    pthread_mutex_lock(&lock);
    bool refused = refuses;
    last_id++;
    if (!refused)
        memcpy(out->bytes, &last_id, sizeof last_id);
    pthread_mutex_unlock(&lock);
    return refused ? sl_fail(SL_ERR_COMM, "NCCL of the tests: refused") : SL_OK;
}

static sl_status open_end(const sl_carrier_id *id, const sl_carrier_place *place, sl_carrier_comm **out)
{
    uint64_t number;
    memcpy(&number, id->bytes, sizeof number);
    test_comm *made = calloc(1, sizeof *made);
    if (!made || place->ranks > MOST_RANKS || place->blocks < 1)
        abort();
    made->head.carrier = &test_nccl.carrier;
    made->rank = place->rank;
    pthread_mutex_lock(&lock);
    meeting *at = meetings;
    while (at && at->id != number)
        at = at->next;
    if (!at) {
        at = calloc(1, sizeof *at);
        if (!at)
            abort();
        at->id = number;
        at->ranks = place->ranks;
        at->next = meetings;
        meetings = at;
    }
    if (at->ranks != place->ranks)
        abort();
    at->opened++;
    open_count++;
    opened_count++;
    made->at = at;
    pthread_mutex_unlock(&lock);
    *out = &made->head;
    return SL_OK;
}

static sl_status ask_meeting(sl_carrier_comm *comm, bool *ready)
{
    pthread_mutex_lock(&lock);
    bool failed = of(comm)->at->failed;
    *ready = of(comm)->at->opened == of(comm)->at->ranks && !holds;
    pthread_mutex_unlock(&lock);
    return failed ? sl_fail(SL_ERR_COMM, "NCCL of the tests: broken") : SL_OK;
}

/* ---- Messages; the lock is held -------------------------------------------------------------- */

static void *allocate(size_t bytes)
{
    void *block = calloc(1, bytes + 1);
    if (!block)
        abort();
    return block;
}

static void give(meeting *at, int from, int to, const void *data, size_t bytes)
{
    offer *made = allocate(sizeof *made), **last = &at->offers;
    *made = (offer){ .data = data, .bytes = bytes, .from = from, .to = to };
    while (*last)
        last = &(*last)->next;
    *last = made;
    pthread_cond_broadcast(&moved);
}

/* The oldest message of the pair. Sizes that differ never pass. */
static void take(meeting *at, int from, int to, void *data, size_t bytes)
{
    while (!at->stopped) {
        offer *found = at->offers;
        while (found && !(found->from == from && found->to == to && !found->taken))
            found = found->next;
        if (found && found->bytes == bytes) {
            memcpy(data, found->data, bytes);
            found->taken = true;
            pthread_cond_broadcast(&moved);
            return;
        }
        pthread_cond_wait(&moved, &lock);
    }
}

/* Until all that the rank gave is taken; then its memory is its own again. */
static void await_taken(meeting *at, int rank)
{
    for (;;) {
        offer **each = &at->offers;
        bool open = false;
        while (*each) {
            offer *found = *each;
            if (found->from == rank && (found->taken || at->stopped)) {
                *each = found->next;
                free(found);
                continue;
            }
            open |= found->from == rank;
            each = &found->next;
        }
        if (!open)
            return;
        pthread_cond_wait(&moved, &lock);
    }
}

static void add(sl_dtype dtype, void *sum, const void *more, size_t bytes)
{
    for (size_t i = 0; i < bytes / sl_dtype_size(dtype); i++) {
        if (dtype == SL_F32)
            ((float *)sum)[i] += ((const float *)more)[i];
        else if (dtype == SL_F64)
            ((double *)sum)[i] += ((const double *)more)[i];
        else if (dtype == SL_BF16)
            ((uint16_t *)sum)[i] =
                sl_to_bf16(sl_from_bf16(((uint16_t *)sum)[i]) + sl_from_bf16(((const uint16_t *)more)[i]));
        else
            abort();
    }
}

/* ---- Calls: what a rank gives, and what it takes --------------------------------------------- */

/* Which bytes of `from` go to the rank; NULL: none. */
static const char *given_to(const call *what, int me, int to)
{
    const char *from = test_device_near(what->from);
    switch (what->kind) {
    case SEND:
        return to == what->peer ? from : NULL;
    case ALL_GATHER:
    case ALL_REDUCE:
        return from;
    case BROADCAST:
        return me == what->peer ? from : NULL;
    case REDUCE:
        return to == what->peer ? from : NULL;
    case REDUCE_SCATTER:
        return from + (size_t)to * what->bytes;
    default:
        return NULL;
    }
}

static bool takes_from(const call *what, int me, int from)
{
    switch (what->kind) {
    case SEND:
        return false;
    case RECEIVE:
    case BROADCAST:
        return from == what->peer && from != me;
    case REDUCE:
        return me == what->peer;
    default:
        return true;
    }
}

static bool is_sum(const call *what)
{
    return what->kind == REDUCE || what->kind == ALL_REDUCE || what->kind == REDUCE_SCATTER;
}

static size_t result_bytes(const call_group *group, const call *what)
{
    return what->bytes * (what->kind == ALL_GATHER ? (size_t)group->at->ranks : 1);
}

static void give_all(const call_group *group, const call *what)
{
    for (int to = 0; to < group->at->ranks; to++) {
        const char *data = to != group->rank ? given_to(what, group->rank, to) : NULL;
        if (data)
            give(group->at, group->rank, to, data, what->bytes);
    }
}

/* What comes of the call on this rank, in memory of the host; NULL: nothing. */
static char *take_all(const call_group *group, const call *what)
{
    int me = group->rank, ranks = group->at->ranks;
    char *result = NULL, *more = allocate(what->bytes);
    for (int from = ranks - 1; from >= 0; from--) {
        if (!takes_from(what, me, from))
            continue;
        if (from == me)
            memcpy(more, given_to(what, me, me), what->bytes);
        else
            take(group->at, from, me, more, what->bytes);
        bool first = !result;
        if (first)
            result = allocate(result_bytes(group, what));
        if (first || !is_sum(what))
            memcpy(what->kind == ALL_GATHER ? result + (size_t)from * what->bytes : result, more, what->bytes);
        else
            add(what->dtype, result, more, what->bytes);
    }
    free(more);
    return result;
}

/* Memory that others read is written when they have read it. */
static void run_group(const void *args)
{
    const call_group *group = args;
    char **results = allocate((size_t)group->count * sizeof *results);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < group->count; i++)
        give_all(group, &group->calls[i]);
    for (int i = 0; i < group->count; i++)
        results[i] = take_all(group, &group->calls[i]);
    await_taken(group->at, group->rank);
    for (int i = 0; i < group->count; i++) {
        const call *what = &group->calls[i];
        if (results[i] && !group->at->stopped)
            memcpy(test_device_near(what->to), results[i], result_bytes(group, what));
        free(results[i]);
    }
    pthread_mutex_unlock(&lock);
    free(results);
    free(group->calls);
}

/* ---- Giving calls to streams ----------------------------------------------------------------- */

static sl_status launch(sl_carrier_comm *comm, const call *calls, int count, sl_stream *stream)
{
    call_group group = { .at = of(comm)->at, .rank = of(comm)->rank, .count = count };
    group.calls = allocate((size_t)count * sizeof *calls);
    memcpy(group.calls, calls, (size_t)count * sizeof *calls);
    return test_device_launch(stream, run_group, &group, sizeof group);
}

static sl_status post(sl_carrier_comm *comm, sl_stream *stream, call what)
{
    if (!pending.begun)
        return launch(comm, &what, 1, stream);
    if (pending.count == MOST_CALLS || (pending.count > 0 && pending.stream != stream))
        abort();
    pending.stream = stream;
    pending.calls[pending.count++] = what;
    return SL_OK;
}

static sl_status begin_calls(sl_carrier_comm *comm)
{
    (void)comm;
    if (pending.begun)
        abort();
    pending.begun = true;
    pending.count = 0;
    return SL_OK;
}

static sl_status end_calls(sl_carrier_comm *comm)
{
    if (!pending.begun)
        abort();
    pending.begun = false;
    return pending.count > 0 ? launch(comm, pending.calls, pending.count, pending.stream) : SL_OK;
}

static sl_status offer_message(sl_carrier_comm *comm, const void *data, size_t bytes, int to, sl_stream *stream)
{
    if (to == of(comm)->rank)
        abort();
    return post(comm, stream, (call){ .kind = SEND, .from = data, .bytes = bytes, .peer = to });
}

static sl_status await_message(sl_carrier_comm *comm, void *data, size_t bytes, int from, sl_stream *stream)
{
    if (from == of(comm)->rank)
        abort();
    return post(comm, stream, (call){ .kind = RECEIVE, .to = data, .bytes = bytes, .peer = from });
}

static sl_status all_gather(sl_carrier_comm *comm, const void *data, size_t bytes, void *all, sl_stream *stream)
{
    return post(comm, stream, (call){ .kind = ALL_GATHER, .from = data, .to = all, .bytes = bytes });
}

static sl_status broadcast(sl_carrier_comm *comm, void *data, size_t bytes, int root, sl_stream *stream)
{
    return post(comm, stream, (call){ .kind = BROADCAST, .from = data, .to = data, .bytes = bytes, .peer = root });
}

static sl_status all_reduce(sl_carrier_comm *comm, void *data, int64_t count, sl_dtype dtype, sl_stream *stream)
{
    size_t bytes = (size_t)count * sl_dtype_size(dtype);
    return post(comm, stream, (call){ .kind = ALL_REDUCE, .from = data, .to = data, .bytes = bytes, .dtype = dtype });
}

static sl_status reduce(sl_carrier_comm *comm, const void *data, void *sum, int64_t count, sl_dtype dtype, int root,
                        sl_stream *stream)
{
    size_t bytes = (size_t)count * sl_dtype_size(dtype);
    return post(comm, stream,
                (call){ .kind = REDUCE, .from = data, .to = sum, .bytes = bytes, .peer = root, .dtype = dtype });
}

static sl_status reduce_scatter(sl_carrier_comm *comm, const void *parts, void *sum, int64_t count, sl_dtype dtype,
                                sl_stream *stream)
{
    size_t bytes = (size_t)count * sl_dtype_size(dtype);
    return post(comm, stream,
                (call){ .kind = REDUCE_SCATTER, .from = parts, .to = sum, .bytes = bytes, .dtype = dtype });
}

/* ---- The end --------------------------------------------------------------------------------- */

static void stop(sl_carrier_comm *comm)
{
    pthread_mutex_lock(&lock);
    of(comm)->at->stopped = true;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

static void leave(sl_carrier_comm *comm)
{
    of(comm)->left = true;
}

/* The streams of other ends may still have work of it, so what they share stays. */
static void close_end(sl_carrier_comm *comm)
{
    if (!of(comm)->left)
        stop(comm);
    pthread_mutex_lock(&lock);
    of(comm)->at->closed++;
    open_count--;
    pthread_mutex_unlock(&lock);
    free(comm);
}

const sl_nccl test_nccl = {
    .device_kind = TEST_KIND,
    .carrier = { .way = "through NCCL",
                 .version = "of the tests",
                 .serves_threads = true,
                 .make_id = make_id,
                 .open = open_end,
                 .ask = ask_meeting,
                 .send = offer_message,
                 .receive = await_message,
                 .begin = begin_calls,
                 .end = end_calls,
                 .all_gather = all_gather,
                 .broadcast = broadcast,
                 .all_reduce = all_reduce,
                 .reduce = reduce,
                 .reduce_scatter = reduce_scatter,
                 .stop = stop,
                 .leave = leave,
                 .close = close_end },
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
        while (gone->offers) {
            offer *left = gone->offers;
            gone->offers = left->next;
            free(left);
        }
        free(gone);
    }
    opened_count = 0;
    pthread_mutex_unlock(&lock);
}
