/* Device links: who can reach whom, and the words and slots of a step. */
#include "comm/device_links.h"

#include "base/alloc.h"
#include "comm/group.h"
#include "device/share.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLOT_ALIGNMENT = 256 };

/* One channel, seen from one rank. */
typedef struct device_link {
    sl_channel_spec spec;
    bool is_linked;
    size_t stride; /* bytes from slot to slot */
    /* Offsets: of the records, the words `arrived` and the slots in the receiver's block, of `free` in the sender's. */
    size_t record_at, arrived_at, slots_at, free_at;
    /* The same as addresses of this rank's device; NULL if this rank has no end. */
    uint32_t *record; /* the step, then a tag for each message of the step */
    uint32_t *arrived, *free;
    char *slots;
    uint32_t *tags;  /* (messages) as this end says they are, on the host */
    int32_t *number; /* (capacity) message of the step that is in the slot */
    int next;        /* message of the step */
} device_link;

struct sl_device_links {
    sl_group *group;
    sl_device *device;
    device_link *list;
    int count, linked;
    int messages;      /* of a step, at most */
    char *block;       /* this rank's; NULL: it has no end */
    void **attached;   /* (ranks) the blocks of the others; NULL: not needed */
    size_t words;      /* of this rank's block, before its slots */
    size_t records;    /* of them, at its beginning */
    sl_stream *side;   /* for what must not wait behind a step */
    uint32_t *fetched; /* (records) on the host */
    uint32_t *seen;    /* one word, on the host */
    sl_word_use *ones; /* (words) writes 1 to each */
    sl_event *reached; /* by the stream that is waited for */
    sl_event *paces[SL_LINK_AHEAD];
    int64_t paced; /* calls of the step */
    int64_t step;
    bool polled;
    char reason[256];
};

/* ---- Who can reach whom ---------------------------------------------------------------------- */

/* What a rank says of itself; plain data. */
typedef struct rank_offer {
    uint64_t machine; /* 0: it does not know */
    int64_t process;
    int32_t kind;  /* of its device */
    int32_t limit; /* see sl_device_share_limit */
} rank_offer;

static uint64_t hash_bytes(const void *data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t find_machine(void)
{
    char text[64];
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, text, sizeof text) : -1;
    if (file >= 0)
        close(file);
    return got > 0 ? hash_bytes(text, (size_t)got) : 0;
}

static void set_reason(sl_device_links *links, const char *text)
{
    if (!links->reason[0])
        snprintf(links->reason, sizeof links->reason, "%s", text);
}

/* NULL if the two may try; else why not. */
static const char *find_obstacle(const rank_offer *offers, int ranks, int a, int b)
{
    int neighbors = 0;
    for (int r = 0; r < ranks; r++)
        neighbors += offers[r].machine == offers[a].machine && offers[r].process == offers[a].process;
    if (a == b)
        return "a rank sends to itself";
    if (offers[a].limit == 0 || offers[b].limit == 0)
        return "a device shares no memory (SLUICE_DEVICE_LINKS)";
    if (offers[a].kind != offers[b].kind)
        return "the devices are of different kinds";
    if (offers[a].machine == 0 || offers[a].machine != offers[b].machine)
        return "ranks are on several machines";
    if (neighbors > offers[a].limit)
        return "too many ranks are threads of one process";
    return NULL;
}

/* Marks the channels that may become links. */
static sl_status choose(sl_device_links *links)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group);
    rank_offer *offers = NULL, own = { .machine = find_machine(), .process = getpid() };
    own.kind = (int32_t)sl_device_get_kind(links->device);
    own.limit = sl_device_share_limit(links->device);
    SL_TRY(SL_NEW_ARRAY(offers, ranks));
    SL_TRY(sl_group_all_gather(links->group, &own, sizeof own, offers));
    for (int i = 0; i < links->count; i++) {
        device_link *link = &links->list[i];
        const char *obstacle = find_obstacle(offers, ranks, link->spec.src, link->spec.dst);
        link->is_linked = !obstacle;
        if (obstacle)
            set_reason(links, obstacle);
    }
done:
    sl_free(offers);
    return status;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
}

/* Where everything lies in the blocks of all ranks; *bytes of this rank's own. */
static sl_status lay_out(sl_device_links *links, size_t *bytes)
{
    sl_status status = SL_OK;
    int rank = sl_group_rank(links->group);
    size_t *used = NULL;
    SL_TRY(SL_NEW_ARRAY(used, sl_group_size(links->group)));
    for (int i = 0; i < links->count; i++) {
        device_link *link = &links->list[i];
        link->record_at = used[link->spec.dst];
        if (link->is_linked)
            used[link->spec.dst] += (1 + (size_t)links->messages) * sizeof(uint32_t);
    }
    links->records = used[rank] / sizeof(uint32_t);
    for (int i = 0; i < links->count; i++) {
        device_link *link = &links->list[i];
        size_t words = link->is_linked ? (size_t)link->spec.capacity * sizeof(uint32_t) : 0;
        link->arrived_at = used[link->spec.dst];
        used[link->spec.dst] += words;
        link->free_at = used[link->spec.src];
        used[link->spec.src] += words;
    }
    links->words = used[rank] / sizeof(uint32_t);
    for (int i = 0; i < links->count; i++) {
        device_link *link = &links->list[i];
        link->stride = round_up(link->spec.max_bytes ? link->spec.max_bytes : 1);
        link->slots_at = round_up(used[link->spec.dst]);
        if (link->is_linked)
            used[link->spec.dst] = link->slots_at + link->stride * (size_t)link->spec.capacity;
    }
    *bytes = used[rank];
done:
    sl_free(used);
    return status;
}

static bool has_end(const sl_device_links *links, const device_link *link)
{
    int rank = sl_group_rank(links->group);
    return link->is_linked && (link->spec.src == rank || link->spec.dst == rank);
}

/* The words are zero but those of the free slots. */
static sl_status fill_words(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        const device_link *link = &links->list[i];
        if (!link->is_linked || link->spec.src != sl_group_rank(links->group))
            continue;
        size_t first = link->free_at / sizeof(uint32_t);
        SL_TRY(sl_stream_use_words(links->side, &links->ones[first], link->spec.capacity));
    }
    SL_TRY(sl_stream_synchronize(links->side));
done:
    return status;
}

/* Takes this rank's block and says in *handle how others find it. */
static sl_status take_block(sl_device_links *links, size_t bytes, sl_device_handle *handle)
{
    sl_status status = SL_OK;
    if (bytes == 0)
        return SL_OK;
    SL_TRY(sl_stream_create(links->device, &links->side));
    SL_TRY(sl_event_create(links->device, &links->reached));
    for (int i = 0; i < SL_LINK_AHEAD; i++)
        SL_TRY(sl_event_create(links->device, &links->paces[i]));
    SL_TRY(sl_device_alloc_host(links->device, (links->records + 1) * sizeof(uint32_t), (void **)&links->fetched));
    links->seen = links->fetched + links->records;
    SL_TRY(sl_device_share(links->device, bytes, handle, (void **)&links->block));
    SL_TRY(SL_NEW_ARRAY(links->ones, (int64_t)links->words));
    for (size_t w = 0; w < links->words; w++)
        links->ones[w] =
            (sl_word_use){ .kind = SL_WORD_WRITE, .word = (uint32_t *)(void *)links->block + w, .value = 1 };
    SL_TRY(fill_words(links));
done:
    return status;
}

/* Attaches the blocks of those with whom this rank shares a link; reached[r]: could be reached. */
static void attach(sl_device_links *links, const sl_device_handle *handles, uint8_t *reached)
{
    int rank = sl_group_rank(links->group);
    for (int i = 0; i < links->count; i++) {
        const device_link *link = &links->list[i];
        if (!has_end(links, link))
            continue;
        int peer = link->spec.src == rank ? link->spec.dst : link->spec.src;
        if (links->attached[peer])
            continue;
        reached[peer] = sl_device_attach(links->device, &handles[peer], &links->attached[peer]) == SL_OK;
        if (!reached[peer])
            set_reason(links, sl_error_message());
    }
}

/* What both ends can reach becomes a link. */
static sl_status connect_links(sl_device_links *links)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group);
    size_t bytes = 0;
    sl_device_handle own = { { 0 } }, *handles = NULL;
    uint8_t *reached = NULL, *all = NULL;
    SL_TRY(lay_out(links, &bytes));
    SL_TRY(SL_NEW_ARRAY(handles, ranks));
    SL_TRY(SL_NEW_ARRAY(reached, ranks));
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)ranks * ranks));
    SL_TRY(take_block(links, bytes, &own));
    SL_TRY(sl_group_all_gather(links->group, &own, sizeof own, handles));
    attach(links, handles, reached);
    SL_TRY(sl_group_all_gather(links->group, reached, (size_t)ranks, all));
    for (int i = 0; i < links->count; i++) {
        device_link *link = &links->list[i];
        int src = link->spec.src, dst = link->spec.dst;
        if (link->is_linked && !(all[src * ranks + dst] && all[dst * ranks + src])) {
            set_reason(links, "ranks cannot reach each other's memory");
            link->is_linked = false;
        }
        links->linked += link->is_linked;
    }
done:
    sl_free(all);
    sl_free(reached);
    sl_free(handles);
    return status;
}

/* Offsets become addresses. */
static sl_status bind_ends(sl_device_links *links)
{
    sl_status status = SL_OK;
    int rank = sl_group_rank(links->group);
    for (int i = 0; i < links->count; i++) {
        device_link *link = &links->list[i];
        if (!has_end(links, link))
            continue;
        bool sends = link->spec.src == rank;
        char *receiver = sends ? links->attached[link->spec.dst] : links->block;
        char *sender = sends ? links->block : links->attached[link->spec.src];
        link->record = (uint32_t *)(void *)(receiver + link->record_at);
        link->arrived = (uint32_t *)(void *)(receiver + link->arrived_at);
        link->slots = receiver + link->slots_at;
        link->free = (uint32_t *)(void *)(sender + link->free_at);
        SL_TRY(SL_NEW_ARRAY(link->tags, links->messages));
        SL_TRY(SL_NEW_ARRAY(link->number, link->spec.capacity));
    }
done:
    return status;
}

sl_status sl_device_links_open(sl_group *group, sl_device *device, const sl_channel_spec *specs, int count,
                               int messages, sl_device_links **out)
{
    sl_status status = SL_OK;
    sl_device_links *links = NULL;
    SL_TRY(SL_NEW(links));
    links->group = group;
    links->device = device;
    links->count = count;
    links->messages = messages;
    SL_TRY(SL_NEW_ARRAY(links->list, count));
    SL_TRY(SL_NEW_ARRAY(links->attached, sl_group_size(group)));
    for (int i = 0; i < count; i++)
        links->list[i].spec = specs[i];
    SL_TRY(choose(links));
    SL_TRY(connect_links(links));
    SL_TRY(bind_ends(links));
    *out = links;
    links = NULL; /* now the caller's */
done:
    sl_device_links_close(links);
    return status;
}

void sl_device_links_close(sl_device_links *links)
{
    if (!links)
        return;
    sl_stream_destroy(links->side);
    sl_event_destroy(links->reached);
    for (int i = 0; i < SL_LINK_AHEAD; i++)
        sl_event_destroy(links->paces[i]);
    for (int r = 0; links->attached && r < sl_group_size(links->group); r++)
        sl_device_detach(links->device, links->attached[r]);
    sl_device_unshare(links->device, links->block);
    sl_device_free_host(links->device, links->fetched);
    for (int i = 0; links->list && i < links->count; i++) {
        sl_free(links->list[i].tags);
        sl_free(links->list[i].number);
    }
    sl_free(links->ones);
    sl_free(links->attached);
    sl_free(links->list);
    sl_free(links);
}

bool sl_device_links_has(const sl_device_links *links, int i)
{
    return links && i < links->count && links->list[i].is_linked;
}

int sl_device_links_count(const sl_device_links *links)
{
    return links->linked;
}

const char *sl_device_links_reason(const sl_device_links *links)
{
    return links->linked < links->count ? links->reason : "";
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* Busily for a moment, but others may have the core. */
static void sleep_briefly(double since)
{
    double passed = sl_now() - since;
    if (passed < 2e-4)
        sched_yield();
    else
        nanosleep(&(struct timespec){ .tv_nsec = passed > 0.1 ? 200000 : 20000 }, NULL);
}

/* Whether a thread of this rank waits for another rank is what tells a wait from an action that does not come back. */
static void count_waiting(sl_device_links *links, int more)
{
    atomic_fetch_add(&links->group->link->waiting, more);
}

/* Until the word is 1, on the host. */
static sl_status poll_word(sl_device_links *links, const uint32_t *word)
{
    sl_status status = SL_OK;
    double since = sl_now();
    count_waiting(links, 1);
    do {
        SL_TRY(sl_group_progress(links->group));
        SL_TRY(sl_stream_copy(links->side, SL_COPY_DEVICE_TO_HOST, links->seen, word, sizeof *word));
        SL_TRY(sl_stream_synchronize(links->side));
        sleep_briefly(since);
    } while (*links->seen != 1);
done:
    count_waiting(links, -1);
    return status;
}

/* Waits for the word and takes it back, so that the next wait is for the next write. */
static sl_status take_word(sl_device_links *links, uint32_t *word, sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_word_use uses[] = { { .kind = SL_WORD_WAIT, .word = word, .value = 1 },
                                 { .kind = SL_WORD_WRITE, .word = word, .value = 0 } };
    if (links->polled)
        SL_TRY(poll_word(links, word));
    SL_TRY(sl_stream_use_words(stream, uses, 2));
done:
    return status;
}

static uint32_t tag_of(const device_link *link, const sl_message *message)
{
    struct {
        int64_t dims[SL_MAX_DIMS];
        int32_t channel, microbatch, dtype, rank;
    } plain = { .channel = link->spec.id,
                .microbatch = message->microbatch,
                .dtype = (int32_t)message->dtype,
                .rank = message->shape.rank };
    for (int d = 0; d < message->shape.rank; d++)
        plain.dims[d] = message->shape.dims[d];
    uint64_t hash = hash_bytes(&plain, sizeof plain);
    return (uint32_t)(hash ^ hash >> 32) | 1; /* never what a cleared record has */
}

/* The next message of the step: its slot. */
static sl_status next_slot(sl_device_links *links, device_link *link, const sl_message *message, int *slot)
{
    if (link->next >= links->messages)
        return sl_fail(SL_ERR_COMM, "channel %d: message %d of a step that has %d at most", link->spec.id,
                       link->next + 1, links->messages);
    *slot = link->next % link->spec.capacity;
    link->number[*slot] = link->next;
    link->tags[link->next++] = tag_of(link, message);
    return SL_OK;
}

static int slot_of(const device_link *link, const void *slot)
{
    return (int)((size_t)((const char *)slot - link->slots) / link->stride);
}

sl_status sl_device_links_begin(sl_device_links *links, int64_t step, bool polled, sl_stream *out)
{
    sl_status status = SL_OK;
    links->step = step;
    links->polled = polled;
    links->paced = 0;
    for (int i = 0; i < links->count; i++) {
        device_link *link = &links->list[i];
        const sl_word_use use = { .kind = SL_WORD_WRITE, .word = link->record, .value = (uint32_t)step };
        link->next = 0;
        if (has_end(links, link) && link->spec.src == sl_group_rank(links->group))
            SL_TRY(sl_stream_use_words(out, &use, 1));
    }
done:
    return status;
}

sl_status sl_device_links_reserve(sl_device_links *links, int i, const sl_message *message, sl_stream *stream,
                                  void **slot)
{
    sl_status status = SL_OK;
    device_link *link = &links->list[i];
    int s = 0;
    SL_TRY(next_slot(links, link, message, &s));
    SL_TRY(take_word(links, &link->free[s], stream));
    *slot = link->slots + (size_t)s * link->stride;
done:
    return status;
}

sl_status sl_device_links_commit(sl_device_links *links, int i, const void *slot, sl_stream *stream)
{
    device_link *link = &links->list[i];
    int s = slot_of(link, slot), number = link->number[s];
    const sl_word_use uses[] = {
        { .kind = SL_WORD_WRITE, .word = &link->record[1 + number], .value = link->tags[number] },
        { .kind = SL_WORD_WRITE, .word = &link->arrived[s], .value = 1 },
    };
    return sl_stream_use_words(stream, uses, 2);
}

sl_status sl_device_links_receive(sl_device_links *links, int i, const sl_message *expected, sl_stream *stream,
                                  void **slot)
{
    sl_status status = SL_OK;
    device_link *link = &links->list[i];
    int s = 0;
    SL_TRY(next_slot(links, link, expected, &s));
    SL_TRY(take_word(links, &link->arrived[s], stream));
    *slot = link->slots + (size_t)s * link->stride;
done:
    return status;
}

sl_status sl_device_links_release(sl_device_links *links, int i, const void *slot, sl_stream *stream)
{
    device_link *link = &links->list[i];
    const sl_word_use use = { .kind = SL_WORD_WRITE, .word = &link->free[slot_of(link, slot)], .value = 1 };
    return sl_stream_use_words(stream, &use, 1);
}

/* ---- The end of a step ----------------------------------------------------------------------- */

sl_status sl_device_links_fetch(sl_device_links *links, sl_stream *in)
{
    sl_status status = SL_OK;
    size_t bytes = links->records * sizeof(uint32_t);
    if (bytes == 0)
        return SL_OK;
    SL_TRY(sl_stream_copy(in, SL_COPY_DEVICE_TO_HOST, links->fetched, links->block, bytes));
    SL_TRY(sl_stream_memset(in, links->block, 0, bytes));
done:
    return status;
}

/* All messages of one link were those that this rank expected. */
static sl_status check_link(const sl_device_links *links, const device_link *link)
{
    const uint32_t *record = links->fetched + link->record_at / sizeof(uint32_t);
    if (link->next > 0 && record[0] != (uint32_t)links->step)
        return sl_fail(SL_ERR_COMM, "channel %d: rank %d sent in step %lld, this rank is in step %lld", link->spec.id,
                       link->spec.src, (long long)record[0], (long long)links->step);
    for (int k = 0; k < link->next; k++) {
        if (record[1 + k] != link->tags[k])
            return sl_fail(SL_ERR_COMM,
                           "channel %d: message %d of step %lld from rank %d is another than this rank expected (tag "
                           "%08x, not %08x)",
                           link->spec.id, k, (long long)links->step, link->spec.src, record[1 + k], link->tags[k]);
    }
    return SL_OK;
}

sl_status sl_device_links_check(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        const device_link *link = &links->list[i];
        if (has_end(links, link) && link->spec.dst == sl_group_rank(links->group))
            SL_TRY(check_link(links, link));
    }
    /* Nobody goes on, and perhaps waits for a whole device, while a stream of another rank is still held up. */
    SL_TRY(sl_group_barrier(links->group));
done:
    return status;
}

/* Until the event is reached; fails if a rank has failed. */
static sl_status poll_event(sl_device_links *links, sl_event *event)
{
    sl_status status = SL_OK;
    bool done = false;
    double since = sl_now();
    count_waiting(links, 1);
    SL_TRY(sl_event_query(event, &done));
    while (!done) {
        SL_TRY(sl_group_progress(links->group));
        sleep_briefly(since);
        SL_TRY(sl_event_query(event, &done));
    }
done:
    count_waiting(links, -1);
    return status;
}

sl_status sl_device_links_pace(sl_device_links *links, sl_stream *stream, int ahead)
{
    sl_status status = SL_OK;
    if (links->polled || !links->reached)
        return SL_OK;
    if (links->paced >= ahead)
        SL_TRY(poll_event(links, links->paces[(links->paced - ahead) % SL_LINK_AHEAD]));
    SL_TRY(sl_event_record(links->paces[links->paced % SL_LINK_AHEAD], stream));
    links->paced++;
done:
    return status;
}

sl_status sl_device_links_wait(sl_device_links *links, sl_stream *stream)
{
    sl_status status = SL_OK;
    if (links->reached) {
        SL_TRY(sl_event_record(links->reached, stream));
        SL_TRY(poll_event(links, links->reached));
    }
    SL_TRY(sl_group_check(links->group)); /* what has arrived may be what a failed rank let through */
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

void sl_device_links_free_streams(sl_device_links *links, sl_stream *const *streams, int count)
{
    if (!sl_link_has_failed(links->group->link))
        return; /* all words will be written */
    for (int i = 0; links->reached && i < count; i++) {
        bool done = false;
        if (sl_event_record(links->reached, streams[i]) != SL_OK)
            continue;
        while (sl_event_query(links->reached, &done) == SL_OK && !done) {
            if (sl_stream_use_words(links->side, links->ones + links->records, (int)(links->words - links->records)) !=
                    SL_OK ||
                sl_stream_synchronize(links->side) != SL_OK)
                break;
            nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
        }
    }
}
