/* sluice bench comm --device: messages between two ranks through device links. */
#include "comm_measure.h"
#include "tools/sluice/command.h"
#include "tools/sluice/ranks.h"

#include "base/alloc.h"
#include "base/json.h"
#include "comm/device_links.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { GATE = 2, CHANNELS = 3 }; /* of the channels */
enum { SIZES = 5, SLOTS = 4, MESSAGES = 65, WARM_MESSAGES = 4 };

static const size_t sizes[SIZES] = { 8, 1 << 20, 4 << 20, 12 << 20, 64 << 20 };

/* One row a size; the best of all rounds. */
typedef struct link_figures {
    double latency_us[SIZES], gb_per_s[SIZES], copy_gb_per_s[SIZES];
} link_figures;

/* In memory that forked ranks share. */
typedef struct link_job {
    const char *device;
    int ranks_as, rounds;
    link_figures figures; /* written by rank 0, as the next */
    char way[64];         /* of the messages */
    char error[512];
} link_job;

/* What a rank has: channel 0 goes from rank 0 to rank 1, channel 1 back, and the gate too. */
typedef struct link_rank {
    sl_group *group;
    int rank;
    sl_device *device;
    sl_stream *stream, *gate;
    sl_device_words *words;
    sl_device_links *links;
    void *data, *copy; /* of the largest size */
    int64_t step;
} link_rank;

typedef enum traffic { ROUND_TRIPS, ONE_WAY } traffic;

static sl_status open_rank(const link_job *job, link_rank *at)
{
    sl_status status = SL_OK;
    const sl_channel_spec specs[] = {
        { .id = 0, .src = 0, .dst = 1, .capacity = SLOTS, .max_bytes = sizes[SIZES - 1] },
        { .id = 1, .src = 1, .dst = 0, .capacity = SLOTS, .max_bytes = sizes[SIZES - 1] },
        { .id = GATE, .src = 1, .dst = 0, .capacity = 1, .max_bytes = 8 },
    };
    SL_TRY(sl_device_open(job->device, NULL, &at->device));
    SL_TRY(sl_stream_create(at->device, &at->stream));
    SL_TRY(sl_stream_create(at->device, &at->gate));
    SL_TRY(sl_device_alloc(at->device, sizes[SIZES - 1], &at->data));
    SL_TRY(sl_device_alloc(at->device, sizes[SIZES - 1], &at->copy));
    SL_TRY(sl_stream_memset(at->stream, at->data, at->rank, sizes[SIZES - 1]));
    SL_TRY(sl_stream_synchronize(at->stream));
    SL_TRY(sl_device_words_open(at->group, at->device, &at->words));
    SL_TRY(sl_device_links_open(at->words, specs, CHANNELS, MESSAGES, &at->links));
    if (sl_device_links_count(at->links) < CHANNELS)
        status =
            sl_fail(SL_ERR_UNSUPPORTED, "device %s has no links: %s", job->device, sl_device_links_reason(at->links));
done:
    return status;
}

static void close_rank(link_rank *at)
{
    sl_stream_destroy(at->stream);
    sl_stream_destroy(at->gate);
    sl_device_links_close(at->links);
    sl_device_words_close(at->words);
    sl_device_free(at->device, at->data);
    sl_device_free(at->device, at->copy);
    sl_device_close(at->device);
}

static sl_message message_of(const link_rank *at, int number, size_t bytes)
{
    return (sl_message){ .step = at->step, .microbatch = number, .dtype = SL_U8, .shape = { 1, { (int64_t)bytes } } };
}

static sl_status send_one(const link_rank *at, int number, size_t bytes)
{
    sl_status status = SL_OK;
    sl_message message = message_of(at, number, bytes);
    void *slot = NULL;
    SL_TRY(sl_device_links_reserve(at->links, at->rank, &message, at->stream, &slot));
    SL_TRY(sl_stream_copy(at->stream, SL_COPY_DEVICE_TO_DEVICE, slot, at->data, bytes));
    SL_TRY(sl_device_links_commit(at->links, at->rank, slot, at->stream));
done:
    return status;
}

static sl_status receive_one(const link_rank *at, int number, size_t bytes)
{
    sl_status status = SL_OK;
    sl_message message = message_of(at, number, bytes);
    void *slot = NULL;
    SL_TRY(sl_device_links_receive(at->links, 1 - at->rank, &message, at->stream, &slot));
    SL_TRY(sl_stream_copy(at->stream, SL_COPY_DEVICE_TO_DEVICE, at->copy, slot, bytes));
    SL_TRY(sl_device_links_release(at->links, 1 - at->rank, slot, at->stream));
done:
    return status;
}

static sl_status give_messages(const link_rank *at, traffic way, int count, size_t bytes)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++) {
        if (at->rank == 0)
            SL_TRY(send_one(at, i, bytes));
        if (at->rank == 1 || way == ROUND_TRIPS)
            SL_TRY(receive_one(at, i, bytes));
        if (at->rank == 1 && way == ROUND_TRIPS)
            SL_TRY(send_one(at, i, bytes));
    }
done:
    return status;
}

/* What the host needs to give the streams their work must not count: rank 0's stream begins with a message that rank 1
 * sends once both streams have all of it. */
static sl_status run_gated(link_rank *at, traffic way, int count, size_t bytes, double *seconds)
{
    sl_status status = SL_OK;
    sl_message gate = message_of(at, -1, 8);
    double times[2], all[4];
    void *slot = NULL;
    SL_TRY(sl_device_links_begin(at->links, ++at->step, false, at->stream));
    if (at->rank == 1)
        SL_TRY(sl_device_links_reserve(at->links, GATE, &gate, at->gate, &slot));
    else
        SL_TRY(sl_device_links_receive(at->links, GATE, &gate, at->stream, &slot));
    if (at->rank == 0)
        SL_TRY(sl_device_links_release(at->links, GATE, slot, at->stream));
    SL_TRY(give_messages(at, way, count, bytes));
    SL_TRY(sl_device_links_fetch(at->links, at->stream));
    SL_TRY(sl_group_barrier(at->group));
    times[0] = sl_now();
    if (at->rank == 1)
        SL_TRY(sl_device_links_commit(at->links, GATE, slot, at->gate));
    SL_TRY(sl_device_words_wait(at->words, at->stream));
    times[1] = sl_now();
    SL_TRY(sl_device_words_wait(at->words, at->gate));
    SL_TRY(sl_device_links_check(at->links));
    SL_TRY(sl_group_all_gather(at->group, times, sizeof times, all));
    *seconds = (all[1] > all[3] ? all[1] : all[3]) - all[2]; /* from rank 1's gate to the later end */
done:
    return status;
}

/* Copies to memory of its own are as fast as messages can be. */
static sl_status time_copies(const link_rank *at, int count, size_t bytes, double *seconds)
{
    sl_status status = SL_OK;
    double start = sl_now();
    for (int i = 0; at->rank == 0 && i < count; i++)
        SL_TRY(sl_stream_copy(at->stream, SL_COPY_DEVICE_TO_DEVICE, at->copy, at->data, bytes));
    SL_TRY(sl_stream_synchronize(at->stream));
    *seconds = sl_now() - start;
done:
    return status;
}

static sl_status measure_round(link_rank *at, link_figures *best)
{
    sl_status status = SL_OK;
    for (int s = 0; s < SIZES; s++) {
        int count = sizes[s] > 4 << 20 ? 16 : MESSAGES - 1;
        double seconds = 0, bytes = (double)sizes[s] * count;
        SL_TRY(run_gated(at, ROUND_TRIPS, count, sizes[s], &seconds));
        double us = seconds * 1e6 / count / 2;
        best->latency_us[s] = best->latency_us[s] > 0 && best->latency_us[s] < us ? best->latency_us[s] : us;
        SL_TRY(run_gated(at, ONE_WAY, count, sizes[s], &seconds));
        best->gb_per_s[s] = bytes / seconds * 1e-9 > best->gb_per_s[s] ? bytes / seconds * 1e-9 : best->gb_per_s[s];
        SL_TRY(time_copies(at, count, sizes[s], &seconds));
        SL_TRY(sl_group_barrier(at->group));
        if (bytes / seconds * 1e-9 > best->copy_gb_per_s[s])
            best->copy_gb_per_s[s] = bytes / seconds * 1e-9;
    }
done:
    return status;
}

/* The first messages of each size are waited for by the host: a copy may be a kernel that is loaded. */
static sl_status warm_up(link_rank *at)
{
    sl_status status = SL_OK;
    for (int s = 0; s < SIZES; s++) {
        SL_TRY(sl_device_links_begin(at->links, ++at->step, true, at->stream));
        SL_TRY(give_messages(at, ROUND_TRIPS, WARM_MESSAGES, sizes[s]));
        SL_TRY(sl_device_links_fetch(at->links, at->stream));
        SL_TRY(sl_device_words_wait(at->words, at->stream));
        SL_TRY(sl_device_links_check(at->links));
    }
done:
    return status;
}

static int run_rank(void *user, sl_group *group)
{
    sl_status status = SL_OK;
    link_job *job = user;
    link_rank at = { .group = group, .rank = sl_group_rank(group) };
    link_figures best = { .latency_us = { 0 } };
    SL_TRY(open_rank(job, &at));
    SL_TRY(warm_up(&at));
    for (int round = 0; round < job->rounds; round++)
        SL_TRY(measure_round(&at, &best));
    if (at.rank == 0) {
        job->figures = best;
        snprintf(job->way, sizeof job->way, "%s", sl_device_links_way(at.links));
    }
done:
    if (status != SL_OK) {
        snprintf(job->error, sizeof job->error, "%s", sl_error_message());
        sl_group_fail(group, status);
        if (at.links)
            sl_device_words_free_streams(at.words, (sl_stream *const[]){ at.stream, at.gate }, 2);
    }
    close_rank(&at);
    return status == SL_OK ? EXIT_OK : ranks_failure("bench comm", group, status);
}

/* One rank, or both. */
static int rank_main(void *user, int rank)
{
    link_job *job = user;
    sl_group *group = NULL;
    (void)rank;
    if (job->ranks_as == RANKS_AS_THREADS)
        return ranks_run_threads("bench comm", 2, 0, run_rank, job);
    if (sl_group_open(NULL, &group) != SL_OK)
        return EXIT_FAILED;
    int code = run_rank(job, group);
    sl_group_close(group);
    return code;
}

static void print_json(const link_job *job)
{
    const link_figures *figures = &job->figures;
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_key(&json, "cases");
    sl_json_begin(&json, '[');
    for (int s = 0; s < SIZES; s++) {
        sl_json_newline(&json);
        sl_json_begin(&json, '{');
        sl_json_put_string(&json, "transport", "device links");
        sl_json_put_string(&json, "way", job->way);
        sl_json_put_int(&json, "bytes", (int64_t)sizes[s]);
        sl_json_put_double(&json, "latency_us", figures->latency_us[s]);
        sl_json_put_double(&json, "gb_per_s", figures->gb_per_s[s]);
        sl_json_put_double(&json, "copy_gb_per_s", figures->copy_gb_per_s[s]);
        sl_json_end(&json, '}');
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const link_job *job)
{
    const link_figures *figures = &job->figures;
    printf("messages %s\n", job->way);
    printf("%10s %12s %10s %12s\n", "bytes", "one way us", "GB/s", "copy GB/s");
    for (int s = 0; s < SIZES; s++)
        printf("%10zu %12.2f %10.1f %12.1f\n", sizes[s], figures->latency_us[s], figures->gb_per_s[s],
               figures->copy_gb_per_s[s]);
}

sl_status comm_measure_links(const char *device, int ranks_as, int rounds, bool as_json)
{
    sl_status status = SL_OK;
    sl_launch_result result;
    link_job *job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "no shared memory");
    *job = (link_job){ .device = device, .ranks_as = ranks_as, .rounds = rounds };
    const sl_launch_options launch = { .ranks = ranks_as == RANKS_AS_THREADS ? 1 : 2, .run = rank_main, .user = job };
    SL_TRY(sl_launch(&launch, &result));
    if (result.exit_code != 0)
        SL_TRY(sl_fail(SL_ERR_COMM, "%s", *job->error ? job->error : result.report));
    (as_json ? print_json : print_text)(job);
done:
    munmap(job, sizeof *job);
    return status;
}
