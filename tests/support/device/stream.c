/* Streams and events of the tests' device: each stream is a thread that does its work in order, with pauses. */
#include "support/device/internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic bool ignore_waits;
static _Atomic double pause_milliseconds;

void test_device_ignore_waits(bool ignore)
{
    ignore_waits = ignore;
}

void test_device_set_pause(double milliseconds)
{
    pause_milliseconds = milliseconds;
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return z ^ z >> 31;
}

static void sleep_seconds(double seconds)
{
    struct timespec time = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    nanosleep(&time, NULL);
}

/* Late at the start of each burst of work, and now and then within it. */
static void pause_at_random(test_stream *stream, bool fresh)
{
    double given = pause_milliseconds;
    uint64_t draw = next_random(&stream->random);
    if (given > 0)
        sleep_seconds(given * 1e-3);
    else if (draw % (fresh ? 3 : 40) == 0)
        sleep_seconds((double)(draw >> 32 & 255) * 1e-6);
}

static void *stream_main(void *user)
{
    test_stream *stream = user;
    bool fresh = true;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->stop) {
            pthread_cond_broadcast(&stream->empty);
            pthread_cond_wait(&stream->more, &stream->lock);
            fresh = true;
        }
        task *work = stream->first;
        if (!work)
            break;
        pthread_mutex_unlock(&stream->lock);
        pause_at_random(stream, fresh);
        fresh = false;
        work->run(work);
        pthread_mutex_lock(&stream->lock);
        stream->first = work->next;
        if (!stream->first)
            stream->last = NULL;
        free(work);
    }
    pthread_cond_broadcast(&stream->empty);
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

task *test_task_new(sl_stream *stream, void (*run)(task *), size_t more)
{
    task *made = calloc(1, sizeof *made + more);
    if (!made)
        abort();
    made->run = run;
    made->stream = (test_stream *)stream;
    made->args_bytes = more;
    return made;
}

static void append(task **first, task **last, task *work)
{
    if (*last)
        (*last)->next = work;
    else
        *first = work;
    *last = work;
}

sl_status test_task_give(task *work)
{
    test_stream *stream = work->stream;
    if (stream->capture) {
        append(&stream->capture->first, &stream->capture->last, work);
        return SL_OK;
    }
    pthread_mutex_lock(&stream->lock);
    append(&stream->first, &stream->last, work);
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&stream->lock);
    return SL_OK;
}

void test_stream_destroy(sl_stream *head)
{
    test_stream *stream = (test_stream *)head;
    pthread_mutex_lock(&stream->lock);
    stream->stop = true; /* what it was given is still done */
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    sl_stream_destroy(stream->cpu_stream);
    sl_device_close(stream->cpu);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->more);
    pthread_cond_destroy(&stream->empty);
    free(stream);
}

sl_status test_stream_create(sl_device *head, sl_stream **out)
{
    test_device *device = (test_device *)head;
    sl_status status = SL_OK;
    const char *seed = getenv("SLUICE_TEST_SEED");
    test_stream *stream = calloc(1, sizeof *stream);
    sl_device_options options = { .threads = device->threads };
    stream->head.device = head;
    SL_TRY(sl_device_open("cpu", &options, &stream->cpu));
    SL_TRY(sl_stream_create(stream->cpu, &stream->cpu_stream));
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->more, NULL);
    pthread_cond_init(&stream->empty, NULL);
    stream->random = (seed ? strtoull(seed, NULL, 10) : 1) * 1000003u + device->streams++ * 7919u;
    if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0)
        abort();
    *out = &stream->head;
    return SL_OK;
done:
    sl_device_close(stream->cpu);
    free(stream);
    return status;
}

sl_status test_stream_synchronize(sl_stream *head)
{
    test_stream *stream = (test_stream *)head;
    if (stream->capture)
        return sl_fail(SL_ERR_ARGUMENT, "test device: a stream that is captured cannot be waited for");
    pthread_mutex_lock(&stream->lock);
    while (stream->first)
        pthread_cond_wait(&stream->empty, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    return stream->failed == SL_OK ? SL_OK : sl_fail(stream->failed, "%s", stream->message);
}

/* Words are copied whole: another stream may write them meanwhile. Only words are copied from shared memory to the host;
 * messages stay on the device. */
static void run_copy(task *work)
{
    void *to = test_device_near(work->to), *from = test_device_near(work->from);
    bool words = to == work->to && test_window_near(work->from) && work->bytes % sizeof(uint32_t) == 0;
    for (size_t i = 0; words && i < work->bytes / sizeof(uint32_t); i++)
        ((uint32_t *)to)[i] = atomic_load((_Atomic uint32_t *)from + i);
    if (!words)
        memmove(to, from, work->bytes);
}

sl_status test_stream_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    sl_status status = SL_OK;
    const test_device *device = (const test_device *)stream->device;
    if (kind == SL_COPY_DEVICE_TO_HOST)
        SL_TRY(test_memory_check_host("target of a copy", to));
    else
        SL_TRY(test_memory_check(device, "target of a copy", to, bytes));
    if (kind == SL_COPY_HOST_TO_DEVICE)
        SL_TRY(test_memory_check_host("source of a copy", from));
    else
        SL_TRY(test_memory_check(device, "source of a copy", from, bytes));
    task *work = test_task_new(stream, run_copy, 0);
    work->to = to;
    work->from = from;
    work->bytes = bytes;
    return test_task_give(work);
done:
    return status;
}

static void run_set(task *work)
{
    void *to = test_device_near(work->to);
    bool words = test_window_near(work->to) && work->bytes % sizeof(uint32_t) == 0;
    for (size_t i = 0; words && i < work->bytes / sizeof(uint32_t); i++)
        atomic_store((_Atomic uint32_t *)to + i, (uint32_t)work->byte * 0x01010101u);
    if (!words)
        memset(to, work->byte, work->bytes);
}

sl_status test_stream_set(sl_stream *stream, void *to, int byte, size_t bytes)
{
    sl_status status = test_memory_check((const test_device *)stream->device, "memset", to, bytes);
    if (status != SL_OK)
        return status;
    task *work = test_task_new(stream, run_set, 0);
    work->to = to;
    work->byte = byte;
    work->bytes = bytes;
    return test_task_give(work);
}

static void run_call(task *work)
{
    work->fn(work->to);
}

sl_status test_stream_call(sl_stream *stream, sl_host_fn fn, void *arg)
{
    task *work = test_task_new(stream, run_call, 0);
    work->fn = fn;
    work->to = arg;
    return test_task_give(work);
}

static void run_launch(task *work)
{
    work->kernel(work->args);
}

sl_status test_device_launch(sl_stream *stream, test_kernel fn, const void *args, size_t bytes)
{
    if (stream->device->backend->kind != TEST_KIND) {
        fn(args);
        return SL_OK;
    }
    task *work = test_task_new(stream, run_launch, bytes);
    memcpy(work->args, args, bytes);
    work->kernel = fn;
    return test_task_give(work);
}

/* ---- Words ----------------------------------------------------------------------------------- */

static void run_words(task *work)
{
    const sl_word_use *uses = (const sl_word_use *)work->args;
    for (size_t i = 0; i < work->bytes / sizeof *uses; i++) {
        _Atomic uint32_t *word = test_device_near(uses[i].word);
        if (uses[i].kind == SL_WORD_WRITE)
            atomic_store(word, uses[i].value);
        while (uses[i].kind == SL_WORD_WAIT && atomic_load(word) % 2 == 0)
            sleep_seconds(20e-6);
    }
}

sl_status test_stream_use_words(sl_stream *stream, const sl_word_use *uses, int count)
{
    size_t bytes = (size_t)count * sizeof *uses;
    for (int i = 0; i < count; i++) {
        bool is_shared = test_window_has((const test_device *)stream->device, uses[i].word, sizeof *uses[i].word);
        if (!is_shared && test_memory_check_host("a word", uses[i].word) != SL_OK)
            return sl_fail(SL_ERR_ARGUMENT, "test device: a word at %p, which is neither shared nor of the host",
                           (void *)uses[i].word);
    }
    task *work = test_task_new(stream, run_words, bytes);
    memcpy(work->args, uses, bytes);
    work->bytes = bytes;
    return test_task_give(work);
}

sl_stream *test_stream_cpu(sl_stream *stream)
{
    return ((test_stream *)stream)->cpu_stream;
}

void test_stream_fail(sl_stream *head, sl_status status)
{
    test_stream *stream = (test_stream *)head;
    if (stream->failed != SL_OK)
        return;
    stream->failed = status;
    snprintf(stream->message, sizeof stream->message, "%s", sl_error_message());
}

/* ---- Events ---------------------------------------------------------------------------------- */

sl_status test_event_create(sl_device *device, sl_event **out)
{
    test_event *event = calloc(1, sizeof *event);
    event->head.device = device;
    event->users = 1;
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->moved, NULL);
    *out = &event->head;
    return SL_OK;
}

static void leave_event(test_event *event)
{
    pthread_mutex_lock(&event->lock);
    bool last = --event->users == 0;
    pthread_mutex_unlock(&event->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->moved);
    free(event);
}

void test_event_destroy(sl_event *event)
{
    leave_event((test_event *)event);
}

void test_task_record(task *work)
{
    test_event *event = work->event;
    pthread_mutex_lock(&event->lock);
    if (work->target > event->reached) {
        event->reached = work->target;
        event->time = sl_now();
    }
    pthread_cond_broadcast(&event->moved);
    pthread_mutex_unlock(&event->lock);
    leave_event(event);
}

static void wait_until_reached(test_event *event, uint64_t target)
{
    pthread_mutex_lock(&event->lock);
    while (event->reached < target)
        pthread_cond_wait(&event->moved, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

void test_task_wait(task *work)
{
    if (!ignore_waits)
        wait_until_reached(work->event, work->target);
    leave_event(work->event);
}

/* In a capture the event itself is kept: each launch records it, or waits for it, anew. */
static sl_status capture_event(sl_stream *stream, test_event *event, void (*run)(task *))
{
    task *work = test_task_new(stream, run, 0);
    work->event = event;
    return test_task_give(work);
}

static _Atomic int64_t branches;

int64_t test_device_branches(void)
{
    return branches;
}

/* A stream that waits for an event of a capture becomes part of it. */
static sl_status join_capture(test_stream *stream, const test_event *event)
{
    test_capture *capture = event->capture;
    if (capture == stream->capture)
        return SL_OK;
    if (!capture || stream->capture || capture->ended || capture->stream_count == MOST_CAPTURED)
        return sl_fail(SL_ERR_ARGUMENT, "test device: the event was recorded outside the stream's capture");
    stream->capture = capture;
    capture->streams[capture->stream_count++] = stream;
    branches++;
    return SL_OK;
}

static task *event_work(sl_stream *stream, sl_event *head, void (*run)(task *), bool record)
{
    test_event *event = (test_event *)head;
    task *work = test_task_new(stream, run, 0);
    work->event = event;
    pthread_mutex_lock(&event->lock);
    event->recorded += record;
    event->users++;
    work->target = event->recorded;
    pthread_mutex_unlock(&event->lock);
    return work;
}

sl_status test_event_record(sl_event *head, sl_stream *stream)
{
    test_event *event = (test_event *)head;
    event->capture = ((test_stream *)stream)->capture;
    if (event->capture)
        return capture_event(stream, event, test_task_record);
    return test_task_give(event_work(stream, head, test_task_record, true));
}

sl_status test_event_wait(sl_stream *stream, sl_event *head)
{
    test_event *event = (test_event *)head;
    sl_status status = join_capture((test_stream *)stream, event);
    if (status != SL_OK)
        return status;
    if (event->capture)
        return capture_event(stream, event, test_task_wait);
    return test_task_give(event_work(stream, head, test_task_wait, false));
}

sl_status test_event_synchronize(sl_event *head)
{
    test_event *event = (test_event *)head;
    wait_until_reached(event, event->recorded);
    return SL_OK;
}

sl_status test_event_query(sl_event *head, bool *done)
{
    test_event *event = (test_event *)head;
    pthread_mutex_lock(&event->lock);
    *done = event->reached == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return SL_OK;
}

sl_status test_event_elapsed(sl_event *from, sl_event *to, double *seconds)
{
    test_event *pair[2] = { (test_event *)from, (test_event *)to };
    double times[2];
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&pair[i]->lock);
        bool there = pair[i]->recorded > 0 && pair[i]->reached == pair[i]->recorded;
        times[i] = pair[i]->time;
        pthread_mutex_unlock(&pair[i]->lock);
        if (!there)
            return sl_fail(SL_ERR_ARGUMENT, "elapsed time: an event has not been reached");
    }
    *seconds = times[1] - times[0];
    return SL_OK;
}
