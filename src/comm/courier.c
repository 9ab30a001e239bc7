/* Queues of mail, and the thread that moves them. */
#include "comm/courier.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "comm/device_words.h"
#include "device/share.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { BATCHES = 32 }; /* under way, of a queue */
#define MOST_BYTES ((size_t)1 << 30)
#define CLOSE_SECONDS 1.0

/* A message, or a part of a large one. */
typedef struct mail_parcel {
    bool sends, is_posted, is_done;
    char *data;
    size_t bytes;
    int peer; /* in the run */
    sl_mail_ticket ticket;
} mail_parcel;

typedef enum batch_state { BATCH_FREE, BATCH_GIVEN, BATCH_POSTED, BATCH_DONE } batch_state;

typedef struct mail_batch {
    batch_state state;
    sl_event *ready;        /* the stream has come so far */
    _Atomic uint32_t *word; /* 1: all is done; the stream, which waits for it, makes it 0 again */
    mail_parcel *parcels;
    int count, room, left;
} mail_batch;

typedef struct mail_courier mail_courier;

struct sl_mail_queue {
    mail_courier *courier;
    int tag;
    uint32_t *words;     /* (BATCHES) in host memory of the device */
    sl_mail_queue *next; /* of the courier's */

    /* Guarded by the courier's lock. */
    mail_batch batches[BATCHES];
    int first, count; /* of those that are not free: a ring */
    bool stopped;
    sl_status failed;
    char error[256];
};

/* One for each rank of this process that has queues. */
struct mail_courier {
    sl_link *link;
    const sl_device_mail *mail;
    sl_device *device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    sl_mail_queue *queues;
    int users; /* guarded by couriers_lock, as the next */
    bool stopping;
    mail_courier *next;
};

static pthread_mutex_t couriers_lock = PTHREAD_MUTEX_INITIALIZER;
static mail_courier *couriers;

/* ---- The courier's thread; the lock is held -------------------------------------------------- */

static void fail_queue(sl_mail_queue *queue, sl_status status)
{
    queue->failed = status;
    snprintf(queue->error, sizeof queue->error, "%s", sl_error_message());
}

/* Ends the run, too: nobody may be waiting for this queue here, while others wait for what it should have sent. */
static void fail_run(sl_mail_queue *queue, sl_status status)
{
    sl_link *link = queue->courier->link;
    fail_queue(queue, status);
    link->transport->fail(link, link->rank, status, queue->error);
}

static sl_status post_batch(const sl_mail_queue *queue, mail_batch *batch)
{
    sl_status status = SL_OK;
    const mail_courier *courier = queue->courier;
    for (int turn = 0; turn < 2; turn++) { /* first what others may already send */
        for (int i = 0; i < batch->count; i++) {
            mail_parcel *parcel = &batch->parcels[i];
            if (parcel->sends != (turn == 1))
                continue;
            SL_TRY(parcel->sends ? courier->mail->send(courier->link, parcel->data, parcel->bytes, parcel->peer,
                                                       queue->tag, &parcel->ticket)
                                 : courier->mail->receive(courier->link, parcel->data, parcel->bytes, parcel->peer,
                                                          queue->tag, &parcel->ticket));
            parcel->is_posted = true;
        }
    }
    batch->state = BATCH_POSTED;
done:
    return status;
}

static sl_status test_batch(const sl_mail_queue *queue, mail_batch *batch)
{
    sl_status status = SL_OK;
    const mail_courier *courier = queue->courier;
    for (int i = 0; i < batch->count; i++) {
        mail_parcel *parcel = &batch->parcels[i];
        if (parcel->is_done)
            continue;
        SL_TRY(courier->mail->test(courier->link, &parcel->ticket, &parcel->is_done));
        batch->left -= parcel->is_done;
    }
    if (batch->left == 0) {
        batch->state = BATCH_DONE;
        atomic_store(batch->word, 1);
    }
done:
    return status;
}

/* Batches of a queue are posted in their order. Returns how many changed their state. */
static int move_queue(sl_mail_queue *queue)
{
    sl_status status = SL_OK;
    int moved = 0;
    bool is_ready = true;
    for (int i = 0; i < queue->count && !queue->stopped && queue->failed == SL_OK; i++) {
        mail_batch *batch = &queue->batches[(queue->first + i) % BATCHES];
        batch_state before = batch->state;
        if (batch->state == BATCH_GIVEN && is_ready) {
            sl_status query = sl_event_query(batch->ready, &is_ready);
            if (query != SL_OK) { /* the device has failed; the rank finds in which action */
                fail_queue(queue, query);
                break;
            }
            if (is_ready)
                SL_TRY(post_batch(queue, batch));
        }
        if (batch->state == BATCH_POSTED)
            SL_TRY(test_batch(queue, batch));
        moved += batch->state != before;
    }
done:
    if (status != SL_OK)
        fail_run(queue, status);
    return moved;
}

static bool has_work(const sl_mail_queue *queue)
{
    bool has = false;
    for (int i = 0; i < queue->count; i++)
        has |= queue->batches[(queue->first + i) % BATCHES].state != BATCH_DONE;
    return has && !queue->stopped && queue->failed == SL_OK;
}

static void *run_courier(void *user)
{
    mail_courier *courier = user;
    double since = sl_now();
    pthread_mutex_lock(&courier->lock);
    while (!courier->stopping) {
        int moved = 0;
        bool busy = false;
        for (sl_mail_queue *queue = courier->queues; queue; queue = queue->next) {
            moved += move_queue(queue);
            busy |= has_work(queue);
        }
        if (moved > 0)
            since = sl_now();
        if (!busy) {
            pthread_cond_wait(&courier->more, &courier->lock);
            since = sl_now();
        } else {
            pthread_mutex_unlock(&courier->lock);
            sl_device_pause(since);
            pthread_mutex_lock(&courier->lock);
        }
    }
    pthread_mutex_unlock(&courier->lock);
    return NULL;
}

/* ---- Couriers -------------------------------------------------------------------------------- */

static sl_status start_courier(sl_link *link, sl_device *device, mail_courier **out)
{
    sl_status status = SL_OK;
    mail_courier *made = NULL;
    SL_TRY(SL_NEW(made));
    made->link = link;
    made->mail = sl_device_mail_of(link);
    made->device = device;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->more, NULL);
    status = sl_thread_start("the thread that talks to MPI", run_courier, made, &made->thread);
    if (status != SL_OK) {
        pthread_mutex_destroy(&made->lock);
        pthread_cond_destroy(&made->more);
        sl_free(made);
        return status;
    }
    *out = made;
done:
    return status;
}

/* The rank's; started if it has none. */
static sl_status take_courier(sl_link *link, sl_device *device, mail_courier **out)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&couriers_lock);
    mail_courier *found = couriers;
    while (found && found->link != link)
        found = found->next;
    if (!found) {
        SL_TRY(start_courier(link, device, &found));
        found->next = couriers;
        couriers = found;
    }
    found->users++;
    *out = found;
done:
    pthread_mutex_unlock(&couriers_lock);
    return status;
}

static void give_back_courier(mail_courier *courier)
{
    pthread_mutex_lock(&couriers_lock);
    bool is_last = --courier->users == 0;
    mail_courier **at = &couriers;
    while (is_last && *at != courier)
        at = &(*at)->next;
    if (is_last)
        *at = courier->next;
    pthread_mutex_unlock(&couriers_lock);
    if (!is_last)
        return;
    pthread_mutex_lock(&courier->lock);
    courier->stopping = true;
    pthread_cond_signal(&courier->more);
    pthread_mutex_unlock(&courier->lock);
    pthread_join(courier->thread, NULL);
    pthread_mutex_destroy(&courier->lock);
    pthread_cond_destroy(&courier->more);
    sl_free(courier);
}

/* ---- Queues ---------------------------------------------------------------------------------- */

static sl_status make_room(mail_batch *batch, int room)
{
    sl_status status = SL_OK;
    mail_parcel *grown = NULL;
    SL_TRY(SL_NEW_ARRAY(grown, room));
    if (batch->count > 0)
        memcpy(grown, batch->parcels, (size_t)batch->count * sizeof *grown);
    sl_free(batch->parcels);
    batch->parcels = grown;
    batch->room = room;
done:
    return status;
}

/* Also one that was made in part. words: no stream uses them any more. */
static void destroy_queue(sl_mail_queue *queue, bool words)
{
    for (int i = 0; i < BATCHES; i++) {
        sl_event_destroy(queue->batches[i].ready);
        sl_free(queue->batches[i].parcels);
    }
    if (queue->courier) {
        if (words)
            sl_device_free_host(queue->courier->device, queue->words);
        give_back_courier(queue->courier);
    }
    sl_free(queue);
}

sl_status sl_mail_queue_open(sl_link *link, sl_device *device, int tag, int room, sl_mail_queue **out)
{
    sl_status status = SL_OK;
    sl_mail_queue *queue = NULL;
    SL_TRY(SL_NEW(queue));
    queue->tag = tag;
    SL_TRY(take_courier(link, device, &queue->courier));
    SL_TRY(sl_device_alloc_host(device, BATCHES * sizeof *queue->words, (void **)&queue->words));
    memset(queue->words, 0, BATCHES * sizeof *queue->words);
    for (int i = 0; i < BATCHES; i++) {
        queue->batches[i].word = (_Atomic uint32_t *)&queue->words[i];
        SL_TRY(sl_event_create(device, &queue->batches[i].ready));
        SL_TRY(make_room(&queue->batches[i], room));
    }
    pthread_mutex_lock(&queue->courier->lock);
    queue->next = queue->courier->queues;
    queue->courier->queues = queue;
    pthread_mutex_unlock(&queue->courier->lock);
    *out = queue;
    queue = NULL; /* now the caller's */
done:
    if (queue)
        destroy_queue(queue, true);
    return status;
}

/* Batches that are done, and whose word the stream has taken, can be used again. */
static void free_batches(sl_mail_queue *queue)
{
    while (queue->count > 0) {
        mail_batch *oldest = &queue->batches[queue->first];
        if (oldest->state != BATCH_DONE || atomic_load(oldest->word) != 0)
            return;
        oldest->state = BATCH_FREE;
        oldest->count = 0;
        queue->first = (queue->first + 1) % BATCHES;
        queue->count--;
    }
}

sl_status sl_mail_queue_ask(sl_mail_queue *queue, bool *ready)
{
    pthread_mutex_lock(&queue->courier->lock);
    free_batches(queue);
    *ready = queue->count < BATCHES;
    sl_status failed = queue->failed;
    pthread_mutex_unlock(&queue->courier->lock);
    return failed == SL_OK ? SL_OK : sl_fail(failed, "%s", queue->error); /* written once, before failed */
}

/* The batch that is being put together: free, as ask has said, and the host's alone. */
static mail_batch *next_batch(sl_mail_queue *queue)
{
    return &queue->batches[(queue->first + queue->count) % BATCHES];
}

/* Room for one batch is made for all that are free, so that the first steps make all that later ones need. */
static sl_status add_parcel(sl_mail_queue *queue, const mail_parcel *parcel)
{
    sl_status status = SL_OK;
    mail_batch *batch = next_batch(queue);
    int room = 2 * batch->room;
    for (int i = 0; batch->count == batch->room && i < BATCHES - queue->count; i++) {
        mail_batch *each = &queue->batches[(queue->first + BATCHES - 1 - i) % BATCHES]; /* this one comes last */
        if (each->room < room)
            SL_TRY(make_room(each, room));
    }
    batch->parcels[batch->count++] = *parcel;
done:
    return status;
}

sl_status sl_mail_queue_add(sl_mail_queue *queue, bool sends, const void *data, size_t bytes, int peer)
{
    sl_status status = SL_OK;
    for (size_t at = 0; at < bytes; at += MOST_BYTES) {
        const mail_parcel parcel = { .sends = sends,
                                     .data = (char *)data + at,
                                     .bytes = bytes - at < MOST_BYTES ? bytes - at : MOST_BYTES,
                                     .peer = peer };
        SL_TRY(add_parcel(queue, &parcel));
    }
done:
    return status;
}

/* The stream waits until the batch is done; the courier waits until the stream has come so far. */
sl_status sl_mail_queue_give(sl_mail_queue *queue, sl_stream *stream)
{
    sl_status status = SL_OK;
    mail_batch *batch = next_batch(queue);
    const sl_word_use take[] = { { .kind = SL_WORD_WAIT, .word = (uint32_t *)batch->word },
                                 { .kind = SL_WORD_WRITE, .word = (uint32_t *)batch->word, .value = 0 } };
    if (batch->count == 0)
        return SL_OK;
    batch->left = batch->count;
    SL_TRY(sl_event_record(batch->ready, stream));
    SL_TRY(sl_stream_use_words(stream, take, 2));
    pthread_mutex_lock(&queue->courier->lock);
    batch->state = queue->stopped ? BATCH_DONE : BATCH_GIVEN;
    atomic_store(batch->word, queue->stopped ? 1 : 0);
    queue->count++;
    pthread_cond_signal(&queue->courier->more);
    pthread_mutex_unlock(&queue->courier->lock);
done:
    if (status != SL_OK)
        batch->count = 0;
    return status;
}

/* ---- The end --------------------------------------------------------------------------------- */

void sl_mail_queue_stop(sl_mail_queue *queue)
{
    mail_courier *courier = queue->courier;
    pthread_mutex_lock(&courier->lock);
    for (int i = 0; i < queue->count && !queue->stopped; i++) {
        mail_batch *batch = &queue->batches[(queue->first + i) % BATCHES];
        for (int k = 0; batch->state != BATCH_DONE && k < batch->count; k++) {
            if (batch->parcels[k].is_posted && !batch->parcels[k].is_done)
                courier->mail->drop(courier->link, &batch->parcels[k].ticket);
        }
        if (batch->state != BATCH_DONE)
            atomic_store(batch->word, 1);
        batch->state = BATCH_DONE;
    }
    queue->stopped = true;
    pthread_mutex_unlock(&courier->lock);
}

/* A stream that was let go takes its words. One whose device has failed never does: false. */
static bool await_words(sl_mail_queue *queue)
{
    double since = sl_now();
    bool ready = false;
    while (queue->count > 0 && sl_now() - since < CLOSE_SECONDS) {
        (void)!sl_mail_queue_ask(queue, &ready); /* frees batches */
        sl_device_pause(since);
    }
    return queue->count == 0;
}

void sl_mail_queue_close(sl_mail_queue *queue)
{
    if (!queue)
        return;
    sl_mail_queue **at = &queue->courier->queues;
    sl_mail_queue_stop(queue);
    bool passed = await_words(queue);
    pthread_mutex_lock(&queue->courier->lock);
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    pthread_mutex_unlock(&queue->courier->lock);
    destroy_queue(queue, passed);
}

/* ---- Which mail ------------------------------------------------------------------------------ */

static const sl_device_mail *_Atomic extra_mail;

void sl_device_mail_set_extra(const sl_device_mail *mail)
{
    extra_mail = mail;
}

const sl_device_mail *sl_device_mail_of(const sl_link *link)
{
    const sl_device_mail *extra = extra_mail;
    return link->transport->device_mail ? link->transport->device_mail : extra;
}
