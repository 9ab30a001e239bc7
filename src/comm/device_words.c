/* Who reaches whose device memory, and waiting for words in it. */
#include "comm/device_words.h"

#include "base/alloc.h"
#include "comm/group.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t sl_hash_bytes(const void *data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

/* ---- Who can reach whom ---------------------------------------------------------------------- */

/* A rank has up to six streams, two if it has only links. Streams that share a queue to the device hold each other up, for
 * ever if one waits for a word that the other is to write. */
enum { STREAMS_OF_A_RANK = 6 };

const char *sl_rank_queue_obstacle(const sl_rank_offer *offer)
{
    if (offer->queues == 0)
        return "a device shares no memory";
    if (offer->neighbors * STREAMS_OF_A_RANK <= offer->queues)
        return NULL;
    return offer->neighbors > 1 ? "too many ranks are threads of one process"
                                : "a process has too few queues to its device (CUDA_DEVICE_MAX_CONNECTIONS)";
}

int sl_rank_spare_queues(const sl_rank_offer *offer)
{
    return offer->queues / offer->neighbors - STREAMS_OF_A_RANK;
}

static uint64_t find_machine(void)
{
    char text[64];
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, text, sizeof text) : -1;
    if (file >= 0)
        close(file);
    return got > 0 ? sl_hash_bytes(text, (size_t)got) : 0;
}

const char *sl_rank_obstacle(const sl_rank_offer *offers, int ranks, int a, int b)
{
    (void)ranks;
    if (a == b)
        return "a rank sends to itself";
    if (offers[a].wish == SL_LINKS_NCCL || offers[a].wish == SL_LINKS_MPI)
        return "";
    if (offers[a].wish == SL_LINKS_NONE || offers[b].wish == SL_LINKS_NONE)
        return "SLUICE_DEVICE_LINKS is 0";
    if (offers[a].kind != offers[b].kind)
        return "the devices are of different kinds";
    if (offers[a].machine == 0 || offers[a].machine != offers[b].machine)
        return "ranks are on several machines";
    const char *obstacle = sl_rank_queue_obstacle(&offers[a]);
    return obstacle ? obstacle : sl_rank_queue_obstacle(&offers[b]);
}

sl_status sl_links_read_wish(int32_t *wish)
{
    static const char *const values[] = { "", "0", "1", "nccl", "mpi" }; /* as sl_links_wish */
    const char *given = getenv("SLUICE_DEVICE_LINKS");
    for (int32_t i = 0; i < (int32_t)(sizeof values / sizeof *values); i++) {
        if (strcmp(given ? given : "", values[i]) == 0) {
            *wish = i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "SLUICE_DEVICE_LINKS is '%s': it can be 0, 1, nccl or mpi", given);
}

const char *sl_links_wish_reason(int32_t wish)
{
    return wish == SL_LINKS_NCCL  ? "SLUICE_DEVICE_LINKS is nccl"
           : wish == SL_LINKS_MPI ? "SLUICE_DEVICE_LINKS is mpi"
                                  : "the ranks are on one machine";
}

static bool are_threads(const sl_group *group)
{
    return strcmp(sl_group_transport(group), "threads") == 0;
}

sl_status sl_rank_offers_gather(sl_group *group, const sl_device *device, sl_rank_offer *offers)
{
    sl_status status = SL_OK;
    sl_rank_offer own = { .machine = find_machine(),
                          .process = getpid(),
                          .unit = device->unit,
                          .kind = (int32_t)sl_device_get_kind(device),
                          .queues = device->queues,
                          .neighbors = are_threads(group) ? sl_group_local_size(group) : 1 };
    SL_TRY(sl_links_read_wish(&own.wish));
    SL_TRY(sl_group_all_gather(group, &own, sizeof own, offers));
done:
    return status;
}

sl_status sl_device_attach_peers(sl_group *group, sl_device *device, const sl_device_handle *own, const uint8_t *wanted,
                                 void **attached, uint8_t *reached, char *reason)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(group);
    sl_device_handle *handles = NULL;
    uint8_t *mine = NULL;
    SL_TRY(SL_NEW_ARRAY(handles, ranks));
    SL_TRY(SL_NEW_ARRAY(mine, ranks));
    SL_TRY(sl_group_all_gather(group, own, sizeof *own, handles));
    for (int p = 0; p < ranks; p++) {
        mine[p] = wanted[p] && sl_device_attach(device, &handles[p], &attached[p]) == SL_OK;
        if (wanted[p] && !mine[p] && !reason[0])
            snprintf(reason, 256, "%s", sl_error_message());
    }
    SL_TRY(sl_group_all_gather(group, mine, (size_t)ranks, reached));
done:
    sl_free(mine);
    sl_free(handles);
    return status;
}

static void detach_peers(sl_device *device, void **attached, int ranks)
{
    for (int p = 0; attached && p < ranks; p++) {
        sl_device_detach(device, attached[p]);
        attached[p] = NULL;
    }
}

/* Collective: whether each rank can attach the block of each other. */
static sl_status try_to_attach(sl_group *group, sl_device *device, bool *out)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(group), own = sl_group_rank(group);
    char reason[256] = "";
    sl_device_handle handle = { { 0 } };
    void *block = NULL, **attached = NULL;
    uint8_t *wanted = NULL, *reached = NULL;
    bool all = true;
    SL_TRY(SL_NEW_ARRAY(attached, ranks));
    SL_TRY(SL_NEW_ARRAY(wanted, ranks));
    SL_TRY(SL_NEW_ARRAY(reached, (int64_t)ranks * ranks));
    SL_TRY(sl_device_share(device, sizeof(uint32_t), &handle, &block));
    for (int p = 0; p < ranks; p++)
        wanted[p] = p != own;
    SL_TRY(sl_device_attach_peers(group, device, &handle, wanted, attached, reached, reason));
    for (int i = 0; i < ranks * ranks; i++)
        all = all && (reached[i] || i / ranks == i % ranks);
    detach_peers(device, attached, ranks);
    SL_TRY(sl_group_barrier(group)); /* a block is freed after all have left it */
    *out = all;
done:
    detach_peers(device, attached, ranks);
    sl_device_unshare(device, block);
    sl_free(reached);
    sl_free(wanted);
    sl_free(attached);
    return status;
}

sl_status sl_ranks_share_device(sl_group *group, sl_device *device, bool *out)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(group);
    sl_rank_offer *offers = NULL;
    bool shared = true;
    SL_TRY(SL_NEW_ARRAY(offers, ranks));
    SL_TRY(sl_rank_offers_gather(group, device, offers));
    for (int r = 1; r < ranks; r++)
        shared = shared && !sl_rank_obstacle(offers, ranks, 0, r) && offers[r].unit == offers[0].unit;
    if (shared && ranks > 1 && !are_threads(group))
        SL_TRY(try_to_attach(group, device, &shared));
    *out = shared;
done:
    sl_free(offers);
    return status;
}

/* Between two looks at what holds a stream up. */
#define LOOK_SECONDS 0.1

/* ---- Words ----------------------------------------------------------------------------------- */

/* Words of one block, with what writes 1 to each. */
typedef struct word_set {
    const uint32_t *first;
    sl_word_use *ones;
    int count;
    struct word_set *next;
} word_set;

struct sl_device_words {
    sl_group *group;
    sl_device *device;
    sl_stream *side;
    sl_event *reached; /* by the stream that is waited for */
    uint32_t *seen;    /* a word and its tag, on the host */
    word_set *sets;
    sl_device_waits *waits;
    bool polled;
    bool (*is_held_up)(void *user); /* NULL: by another rank, if at all */
    void *watch_user;
};

sl_status sl_device_words_open(sl_group *group, sl_device *device, sl_device_words **out)
{
    sl_status status = SL_OK;
    sl_device_words *words = NULL;
    SL_TRY(SL_NEW(words));
    words->group = group;
    words->device = device;
    words->polled = true;
    SL_TRY(sl_stream_create(device, &words->side));
    SL_TRY(sl_event_create(device, &words->reached));
    SL_TRY(sl_device_alloc_host(device, 2 * sizeof *words->seen, (void **)&words->seen));
    *out = words;
    words = NULL; /* now the caller's */
done:
    sl_device_words_close(words);
    return status;
}

void sl_device_words_close(sl_device_words *words)
{
    if (!words)
        return;
    while (words->sets)
        sl_device_words_remove(words, words->sets->first);
    sl_stream_destroy(words->side);
    sl_event_destroy(words->reached);
    sl_device_free_host(words->device, words->seen);
    sl_free(words);
}

bool sl_device_words_are_used(const sl_device_words *words)
{
    return words->sets || words->waits;
}

sl_group *sl_device_words_group(const sl_device_words *words)
{
    return words->group;
}

sl_device *sl_device_words_device(const sl_device_words *words)
{
    return words->device;
}

sl_stream *sl_device_words_side(const sl_device_words *words)
{
    return words->side;
}

void sl_device_words_set_polled(sl_device_words *words, bool polled)
{
    words->polled = polled;
}

bool sl_device_words_are_polled(const sl_device_words *words)
{
    return words->polled;
}

void sl_device_words_add_waits(sl_device_words *words, sl_device_waits *waits)
{
    waits->next = words->waits;
    words->waits = waits;
}

void sl_device_words_remove_waits(sl_device_words *words, const sl_device_waits *waits)
{
    sl_device_waits **at = &words->waits;
    while (*at && *at != waits)
        at = &(*at)->next;
    if (*at)
        *at = waits->next;
}

void sl_device_words_leave(const sl_device_words *words)
{
    for (const sl_device_waits *waits = words->waits; waits; waits = waits->next)
        waits->leave(waits->user);
}

static sl_status check_waits(const sl_device_words *words)
{
    sl_status status = SL_OK;
    for (const sl_device_waits *waits = words->waits; waits; waits = waits->next)
        SL_TRY(waits->check(waits->user));
done:
    return status;
}

static bool release_waits(const sl_device_words *words)
{
    bool all = true;
    for (const sl_device_waits *waits = words->waits; waits; waits = waits->next)
        all = waits->release(waits->user) && all;
    return all;
}

sl_status sl_device_words_add(sl_device_words *words, uint32_t *first, size_t count)
{
    sl_status status = SL_OK;
    word_set *set = NULL;
    SL_TRY(SL_NEW(set));
    SL_TRY(SL_NEW_ARRAY(set->ones, (int64_t)count));
    for (size_t w = 0; w < count; w++)
        set->ones[w] = (sl_word_use){ .kind = SL_WORD_WRITE, .word = first + w, .value = 1 };
    set->first = first;
    set->count = (int)count;
    set->next = words->sets;
    words->sets = set;
    set = NULL;
done:
    sl_free(set);
    return status;
}

void sl_device_words_remove(sl_device_words *words, const uint32_t *first)
{
    word_set **at = &words->sets;
    while (*at && (*at)->first != first)
        at = &(*at)->next;
    word_set *gone = *at;
    if (!gone)
        return;
    *at = gone->next;
    sl_free(gone->ones);
    sl_free(gone);
}

void sl_device_pause(double since)
{
    double passed = sl_now() - since;
    if (passed < 2e-4)
        sched_yield();
    else
        nanosleep(&(struct timespec){ .tv_nsec = passed > 0.1 ? 200000 : 20000 }, NULL);
}

void sl_device_words_count_waiting(sl_device_words *words, int more)
{
    atomic_fetch_add(&words->group->link->waiting, more);
}

/* A wait of the host for what another rank writes, or for a stream of its own that may wait for that. */
typedef struct host_wait {
    double since, looked;
    int counted; /* 1: it counts as a wait for another rank; 0: as an action */
} host_wait;

static host_wait begin_wait(sl_device_words *words)
{
    double now = sl_now();
    sl_device_words_count_waiting(words, 1);
    return (host_wait){ .since = now, .looked = now, .counted = 1 };
}

static void pass_time(sl_device_words *words, host_wait *wait)
{
    sl_device_pause(wait->since);
    if (!words->is_held_up || sl_now() - wait->looked < LOOK_SECONDS)
        return;
    int now = words->is_held_up(words->watch_user);
    sl_device_words_count_waiting(words, now - wait->counted);
    wait->counted = now;
    wait->looked = sl_now();
}

static void end_wait(sl_device_words *words, const host_wait *wait)
{
    sl_device_words_count_waiting(words, -wait->counted);
    if (words->is_held_up)
        sl_group_note_wait(words->group, NULL, 0);
}

/* Until the word is odd, on the host; the word behind it comes along if there is a tag. */
static sl_status poll_word(sl_device_words *words, const uint32_t *word, const uint32_t *tag)
{
    sl_status status = SL_OK;
    host_wait wait = begin_wait(words);
    do {
        SL_TRY(sl_group_progress(words->group));
        SL_TRY(sl_stream_copy(words->side, SL_COPY_DEVICE_TO_HOST, words->seen, word, (tag ? 2 : 1) * sizeof *word));
        SL_TRY(sl_stream_synchronize(words->side));
        pass_time(words, &wait);
    } while (words->seen[0] % 2 == 0);
    if (tag && words->seen[1] != *tag)
        status =
            sl_fail(SL_ERR_COMM, "another rank does something else here (tag %08x, not %08x)", words->seen[1], *tag);
done:
    end_wait(words, &wait);
    return status;
}

/* The host waits and takes it back: what a stream is given afterwards comes after it. */
static sl_status take_polled(sl_device_words *words, uint32_t *word, const uint32_t *tag)
{
    sl_status status = SL_OK;
    const sl_word_use back = { .kind = SL_WORD_WRITE, .word = word, .value = 0 };
    SL_TRY(poll_word(words, word, tag));
    SL_TRY(sl_stream_use_words(words->side, &back, 1));
    SL_TRY(sl_stream_synchronize(words->side));
done:
    return status;
}

sl_status sl_device_words_await(sl_device_words *words, uint32_t *word, bool polled, sl_stream *stream)
{
    const sl_word_use use = { .kind = SL_WORD_WAIT, .word = word };
    return polled ? poll_word(words, word, NULL) : sl_stream_use_words(stream, &use, 1);
}

sl_status sl_device_words_take(sl_device_words *words, uint32_t *word, const uint32_t *tag, bool polled,
                               sl_stream *stream)
{
    const sl_word_use uses[] = { { .kind = SL_WORD_WAIT, .word = word },
                                 { .kind = SL_WORD_WRITE, .word = word, .value = 0 } };
    return polled ? take_polled(words, word, tag) : sl_stream_use_words(stream, uses, 2);
}

void sl_device_words_set_watch(sl_device_words *words, bool (*is_held_up)(void *user), void *user)
{
    words->is_held_up = is_held_up;
    words->watch_user = user;
}

sl_status sl_device_words_wait_event(sl_device_words *words, sl_event *event)
{
    sl_status status = SL_OK;
    bool done = false;
    host_wait wait = begin_wait(words);
    SL_TRY(sl_event_query(event, &done));
    while (!done) {
        SL_TRY(sl_group_progress(words->group));
        SL_TRY(check_waits(words));
        pass_time(words, &wait);
        SL_TRY(sl_event_query(event, &done));
    }
done:
    end_wait(words, &wait);
    return status;
}

sl_status sl_device_words_wait(sl_device_words *words, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(sl_event_record(words->reached, stream));
    SL_TRY(sl_device_words_wait_event(words, words->reached));
    SL_TRY(sl_group_check(words->group)); /* what has arrived may be what a failed rank let through */
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

/* Writes all words once. */
static bool let_through(sl_device_words *words)
{
    sl_status status = SL_OK;
    for (const word_set *set = words->sets; set; set = set->next)
        SL_TRY(sl_stream_use_words(words->side, set->ones, set->count));
    SL_TRY(sl_stream_synchronize(words->side));
done:
    return status == SL_OK && release_waits(words);
}

void sl_device_words_free_streams(sl_device_words *words, sl_stream *const *streams, int count)
{
    if (!sl_link_has_failed(words->group->link))
        return; /* all words will be written */
    for (int i = 0; i < count; i++) {
        bool done = false;
        if (sl_event_record(words->reached, streams[i]) != SL_OK)
            continue;
        while (sl_event_query(words->reached, &done) == SL_OK && !done && let_through(words))
            nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
}
