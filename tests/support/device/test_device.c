/* The tests' device: memory that the host cannot reach, streams that are threads. */
#include "support/device/test_device.h"

#include "device/backend.h"
#include "kernel/table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TEST_KIND = 100, MAX_DEVICES = 64 };

#define ARENA_BYTES ((size_t)1 << 32) /* of addresses; memory is taken as it is touched */
#define GARBAGE 0xff                  /* not a number in every float */

/* ---- Memory ---------------------------------------------------------------------------------- */

typedef struct block {
    size_t offset, bytes, room;
    bool used;
    struct block *next; /* by offset */
} block;

typedef struct test_device {
    sl_device head;
    int threads;
    int fd;
    char *far;  /* the addresses given out */
    char *near; /* the memory behind them */
    pthread_mutex_t lock;
    block *blocks;
    uint64_t streams; /* made so far */
} test_device;

/* Of all that are open, so that an address tells where its memory is. */
static struct {
    _Atomic(char *) far; /* NULL: none */
    _Atomic(char *) near;
} arenas[MAX_DEVICES];
static _Atomic bool ignore_waits;
static _Atomic double pause_milliseconds;

void *test_device_near(const void *address)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        const char *far = arenas[i].far;
        if (far && (const char *)address >= far && (const char *)address < far + ARENA_BYTES)
            return arenas[i].near + ((const char *)address - far);
    }
    return (void *)address;
}

static sl_status test_alloc(sl_device *head, size_t bytes, void **out)
{
    test_device *device = (test_device *)head;
    size_t room = (bytes + 255) / 256 * 256 + 256; /* a gap behind each */
    block **at = &device->blocks;
    pthread_mutex_lock(&device->lock);
    while (*at && ((*at)->used || (*at)->room < room))
        at = &(*at)->next;
    block *found = *at;
    if (found && found->room > room) {
        block *rest = malloc(sizeof *rest);
        *rest = (block){ .offset = found->offset + room, .room = found->room - room, .next = found->next };
        found->next = rest;
        found->room = room;
    }
    if (found) {
        found->used = true;
        found->bytes = bytes;
    }
    pthread_mutex_unlock(&device->lock);
    if (!found)
        return sl_fail(SL_ERR_MEMORY, "out of memory: %zu bytes", bytes);
    memset(device->near + found->offset, GARBAGE, room);
    sl_device_count_bytes(head, bytes, 0);
    *out = device->far + found->offset;
    return SL_OK;
}

static void test_free(sl_device *head, void *address)
{
    test_device *device = (test_device *)head;
    size_t offset = (size_t)((char *)address - device->far);
    pthread_mutex_lock(&device->lock);
    block *at = device->blocks;
    while (at && at->offset != offset)
        at = at->next;
    if (!at || !at->used)
        abort(); /* freed twice, or never allocated */
    at->used = false;
    memset(device->near + at->offset, GARBAGE, at->room);
    sl_device_count_bytes(head, 0, at->bytes);
    for (block *each = device->blocks; each; each = each->next) {
        while (!each->used && each->next && !each->next->used) {
            block *gone = each->next;
            each->room += gone->room;
            each->next = gone->next;
            free(gone);
        }
    }
    pthread_mutex_unlock(&device->lock);
}

static sl_status test_alloc_host(sl_device *device, size_t bytes, void **out)
{
    (void)device;
    return posix_memalign(out, SL_DEVICE_ALIGNMENT, bytes ? bytes : 1) == 0 ? SL_OK : SL_ERR_MEMORY;
}

static void test_free_host(sl_device *device, void *memory)
{
    (void)device;
    free(memory);
}

/* The range must lie in one block of the device. */
static sl_status check_far(const test_device *device, const char *what, const void *address, size_t bytes)
{
    size_t offset = (size_t)((const char *)address - device->far);
    pthread_mutex_lock((pthread_mutex_t *)&device->lock);
    const block *at = (const char *)address >= device->far && offset < ARENA_BYTES ? device->blocks : NULL;
    while (at && !(at->used && offset >= at->offset && offset + bytes <= at->offset + at->room))
        at = at->next;
    pthread_mutex_unlock((pthread_mutex_t *)&device->lock);
    if (at)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "test device: %s: %p is no memory of the device", what, address);
}

static sl_status check_host(const char *what, const void *address)
{
    if (test_device_near(address) == address)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "test device: %s: %p is memory of the device, not of the host", what, address);
}

/* ---- Streams --------------------------------------------------------------------------------- */

typedef struct test_event {
    sl_event head;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t recorded, reached; /* how often */
    double time;                /* when it was last reached */
    int users;                  /* the owner, and work that has it */
} test_event;

typedef struct task {
    struct task *next;
    void (*run)(struct task *work);
    struct test_stream *stream;
    test_event *event;
    uint64_t target; /* of the event */
    sl_host_fn fn;
    test_kernel kernel;
    void *to;
    const void *from;
    int byte;
    size_t bytes;
    sl_kernel_call call;
    sl_view *views;
    _Alignas(16) char args[];
} task;

typedef struct test_stream {
    sl_stream head;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, empty;
    task *first, *last; /* the first one is being done */
    bool stop;
    uint64_t random;
    sl_device *cpu;
    sl_stream *cpu_stream;
    sl_status failed;
    char message[512];
} test_stream;

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

static task *new_work(sl_stream *stream, void (*run)(task *), size_t more)
{
    task *made = calloc(1, sizeof *made + more);
    if (!made)
        abort();
    made->run = run;
    made->stream = (test_stream *)stream;
    return made;
}

static sl_status give(task *work)
{
    test_stream *stream = work->stream;
    pthread_mutex_lock(&stream->lock);
    if (stream->last)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&stream->lock);
    return SL_OK;
}

static void test_stream_destroy(sl_stream *head)
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

static sl_status test_stream_create(sl_device *head, sl_stream **out)
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

static sl_status test_stream_synchronize(sl_stream *head)
{
    test_stream *stream = (test_stream *)head;
    pthread_mutex_lock(&stream->lock);
    while (stream->first)
        pthread_cond_wait(&stream->empty, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    return stream->failed == SL_OK ? SL_OK : sl_fail(stream->failed, "%s", stream->message);
}

static void run_copy(task *work)
{
    memmove(test_device_near(work->to), test_device_near(work->from), work->bytes);
}

static sl_status test_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    sl_status status = SL_OK;
    const test_device *device = (const test_device *)stream->device;
    if (kind == SL_COPY_DEVICE_TO_HOST)
        SL_TRY(check_host("target of a copy", to));
    else
        SL_TRY(check_far(device, "target of a copy", to, bytes));
    if (kind == SL_COPY_HOST_TO_DEVICE)
        SL_TRY(check_host("source of a copy", from));
    else
        SL_TRY(check_far(device, "source of a copy", from, bytes));
    task *work = new_work(stream, run_copy, 0);
    work->to = to;
    work->from = from;
    work->bytes = bytes;
    return give(work);
done:
    return status;
}

static void run_set(task *work)
{
    memset(test_device_near(work->to), work->byte, work->bytes);
}

static sl_status test_set(sl_stream *stream, void *to, int byte, size_t bytes)
{
    sl_status status = check_far((const test_device *)stream->device, "memset", to, bytes);
    if (status != SL_OK)
        return status;
    task *work = new_work(stream, run_set, 0);
    work->to = to;
    work->byte = byte;
    work->bytes = bytes;
    return give(work);
}

static void run_call(task *work)
{
    work->fn(work->to);
}

static sl_status test_call(sl_stream *stream, sl_host_fn fn, void *arg)
{
    task *work = new_work(stream, run_call, 0);
    work->fn = fn;
    work->to = arg;
    return give(work);
}

static void run_launch(task *work)
{
    work->kernel(work->args);
}

sl_status test_device_launch(sl_stream *stream, test_kernel fn, const void *args, size_t bytes)
{
    if (stream->device->backend->kind != (sl_device_kind)TEST_KIND) {
        fn(args);
        return SL_OK;
    }
    task *work = new_work(stream, run_launch, bytes);
    memcpy(work->args, args, bytes);
    work->kernel = fn;
    return give(work);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static sl_status test_event_create(sl_device *device, sl_event **out)
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

static void test_event_destroy(sl_event *event)
{
    leave_event((test_event *)event);
}

static void run_record(task *work)
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

static void run_wait(task *work)
{
    if (!ignore_waits)
        wait_until_reached(work->event, work->target);
    leave_event(work->event);
}

static task *event_work(sl_stream *stream, sl_event *head, void (*run)(task *), bool record)
{
    test_event *event = (test_event *)head;
    task *work = new_work(stream, run, 0);
    work->event = event;
    pthread_mutex_lock(&event->lock);
    event->recorded += record;
    event->users++;
    work->target = event->recorded;
    pthread_mutex_unlock(&event->lock);
    return work;
}

static sl_status test_event_record(sl_event *event, sl_stream *stream)
{
    return give(event_work(stream, event, run_record, true));
}

static sl_status test_event_wait(sl_stream *stream, sl_event *event)
{
    return give(event_work(stream, event, run_wait, false));
}

static sl_status test_event_synchronize(sl_event *head)
{
    test_event *event = (test_event *)head;
    wait_until_reached(event, event->recorded);
    return SL_OK;
}

static sl_status test_event_query(sl_event *head, bool *done)
{
    test_event *event = (test_event *)head;
    pthread_mutex_lock(&event->lock);
    *done = event->reached == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return SL_OK;
}

static sl_status test_event_elapsed(sl_event *from, sl_event *to, double *seconds)
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

/* ---- Kernels --------------------------------------------------------------------------------- */

static void run_kernel(task *work)
{
    test_stream *stream = work->stream;
    sl_status status = sl_kernel_run(stream->cpu_stream, &work->call);
    if (status != SL_OK && stream->failed == SL_OK) {
        stream->failed = status;
        snprintf(stream->message, sizeof stream->message, "%s", sl_error_message());
    }
}

/* The views of a call with the memory behind them. */
static sl_status near_views(const test_device *device, const sl_view *given, int count, sl_view *out)
{
    for (int i = 0; i < count; i++) {
        out[i] = given[i];
        if (!given[i].data)
            continue;
        sl_status status = check_far(device, "argument of a kernel", given[i].data, 0);
        if (status != SL_OK)
            return status;
        out[i].data = test_device_near(given[i].data);
    }
    return SL_OK;
}

static sl_status test_kernel_run(sl_stream *stream, const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    const test_device *device = (const test_device *)stream->device;
    size_t count = (size_t)call->input_count + (size_t)call->output_count;
    task *work = new_work(stream, run_kernel, count * sizeof(sl_view));
    sl_view *views = (sl_view *)(void *)work->args;
    work->call = *call;
    SL_TRY(near_views(device, call->inputs, call->input_count, views));
    SL_TRY(near_views(device, call->outputs, call->output_count, views + call->input_count));
    work->call.inputs = views;
    work->call.outputs = views + call->input_count;
    if (call->scratch_bytes > 0) {
        SL_TRY(check_far(device, "scratch of a kernel", call->scratch, call->scratch_bytes));
        work->call.scratch = test_device_near(call->scratch);
    }
    return give(work);
done:
    free(work);
    return status;
}

/* Scratch depends on the number of threads alone. */
static sl_status test_kernel_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    sl_device *cpu = NULL;
    sl_device_options options = { .threads = ((test_device *)device)->threads };
    sl_status status = sl_device_open("cpu", &options, &cpu);
    if (status == SL_OK)
        status = sl_kernel_scratch(cpu, call, bytes);
    sl_device_close(cpu);
    return status;
}

static char *test_kernel_describe(sl_device *device, char *text, size_t size)
{
    (void)device;
    snprintf(text, size, "test device");
    return text;
}

static double test_kernel_measure_peak(sl_device *device)
{
    (void)device;
    return 1e9;
}

static const sl_kernel_table test_kernels = {
    .kind = (sl_device_kind)TEST_KIND,
    .run = test_kernel_run,
    .scratch = test_kernel_scratch,
    .describe = test_kernel_describe,
    .measure_peak = test_kernel_measure_peak,
};

/* ---- The device ------------------------------------------------------------------------------ */

static void test_close(sl_device *head)
{
    test_device *device = (test_device *)head;
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (arenas[i].far == device->far)
            arenas[i].far = NULL;
    }
    while (device->blocks) {
        block *next = device->blocks->next;
        free(device->blocks);
        device->blocks = next;
    }
    munmap(device->far, ARENA_BYTES);
    munmap(device->near, ARENA_BYTES);
    close(device->fd);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static sl_status test_open(int index, const sl_device_options *options, sl_device **out)
{
    test_device *device = calloc(1, sizeof *device);
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int place = 0;
    (void)index;
    device->threads = options->threads ? options->threads : 1;
    device->fd = memfd_create("test device", MFD_CLOEXEC);
    if (device->fd < 0 || ftruncate(device->fd, (off_t)ARENA_BYTES) != 0)
        abort();
    device->far = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    device->near = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, device->fd, 0);
    if (device->far == MAP_FAILED || device->near == MAP_FAILED)
        abort();
    device->blocks = malloc(sizeof *device->blocks);
    *device->blocks = (block){ .room = ARENA_BYTES };
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_lock(&lock);
    while (place < MAX_DEVICES && arenas[place].far)
        place++;
    if (place == MAX_DEVICES)
        abort();
    arenas[place].near = device->near;
    arenas[place].far = device->far;
    pthread_mutex_unlock(&lock);
    *out = &device->head;
    return SL_OK;
}

static int test_threads(const sl_device *device)
{
    return ((const test_device *)device)->threads;
}

static const sl_device_backend test_backend = {
    .name = "test",
    .kind = (sl_device_kind)TEST_KIND,
    .is_host = false,
    .open = test_open,
    .close = test_close,
    .threads = test_threads,
    .alloc = test_alloc,
    .free = test_free,
    .alloc_host = test_alloc_host,
    .free_host = test_free_host,
    .stream_create = test_stream_create,
    .stream_destroy = test_stream_destroy,
    .stream_synchronize = test_stream_synchronize,
    .copy = test_copy,
    .set = test_set,
    .call = test_call,
    .event_create = test_event_create,
    .event_destroy = test_event_destroy,
    .event_record = test_event_record,
    .event_wait = test_event_wait,
    .event_synchronize = test_event_synchronize,
    .event_query = test_event_query,
    .event_elapsed = test_event_elapsed,
};

static void install(void)
{
    sl_device_set_extra_backend(&test_backend);
    sl_kernel_set_extra_table(&test_kernels);
}

void test_device_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

const char *test_device_spec(void)
{
    const char *spec = getenv("SLUICE_TEST_DEVICE");
    if (!spec)
        return "cpu";
    if (strcmp(spec, "test") == 0)
        test_device_install();
    return spec;
}

void test_device_ignore_waits(bool ignore)
{
    ignore_waits = ignore;
}

void test_device_set_pause(double milliseconds)
{
    pause_milliseconds = milliseconds;
}
