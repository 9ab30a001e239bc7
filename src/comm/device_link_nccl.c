/* Links through NCCL, for ranks whose devices do not reach each other's memory. Every link has a communicator of two ranks
 * and a stream of its own: links that share one would run in one order, and schedules need others. Both ends have slots.
 *
 * All communicators are made when the links are opened, and a first message connects them, so a step connects nothing.
 * What a step's messages were goes through a channel of the host when the step ends. */
#include "comm/device_link.h"

#include "base/alloc.h"
#include "comm/nccl_join.h"
#include "device/share.h"

#include <string.h>

enum { SENDER, RECEIVER, RANKS }; /* of a communicator */
enum { SLOT_ALIGNMENT = 256 };
enum { RECORD_CHANNELS = 1 << 30 }; /* added to the id of the link's channel */
/* This rank's end of a link. */
typedef struct nccl_end {
    sl_nccl_comm *comm; /* NULL: this rank has no end */
    sl_stream *stream;
    void *block;      /* its slots */
    sl_event **full;  /* (capacity) the sender has filled the slot; the receiver has the message */
    sl_event **empty; /* (capacity) the message has left the slot; the receiver has released it */
    sl_channel *records;
    uint32_t *record; /* (1 + messages) */
    int given;        /* messages of the step to the stream */
    bool failed;      /* to open */
} nccl_end;

struct nccl_links {
    const sl_nccl *nccl; /* NULL: this rank cannot use it */
    int most_ends;       /* of a rank */
    nccl_end *ends;      /* (count) by the numbers of the list */
};

static const char *find_obstacle(const sl_rank_offer *offers, int ranks, int a, int b)
{
    const sl_rank_offer *x = &offers[a], *y = &offers[b];
    bool asked = x->wish == SL_LINKS_NCCL && y->wish == SL_LINKS_NCCL;
    (void)ranks;
    if (a == b)
        return "a rank sends to itself";
    if (x->wish == SL_LINKS_NONE || y->wish == SL_LINKS_NONE)
        return "SLUICE_DEVICE_LINKS is 0";
    if (x->kind != y->kind || x->kind == SL_DEVICE_CPU)
        return "NCCL joins devices of one kind";
    if (asked || x->machine == 0 || x->machine != y->machine)
        return NULL;
    return x->unit == y->unit ? "the ranks share a GPU" : NULL;
}

static bool is_nccl(const sl_device_link *link)
{
    return link->kind == &sl_device_link_nccl;
}

static bool has_end(const sl_device_link *link)
{
    return is_nccl(link) && (link->sends || link->receives);
}

static nccl_end *end_of(const sl_device_links *links, const sl_device_link *link)
{
    return &links->nccl->ends[link - links->list];
}

/* ---- Asking a communicator ------------------------------------------------------------------- */

static sl_status settle(sl_device_links *links, const nccl_end *end, double limit)
{
    return sl_nccl_settle(links->words, links->nccl->nccl, end->comm, limit);
}

static sl_status watch(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        if (has_end(&links->list[i]))
            SL_TRY(sl_nccl_check(links->words, links->nccl->nccl, links->nccl->ends[i].comm));
    }
done:
    return status;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void drop(sl_device_links *links, sl_device_link *link, const char *reason)
{
    sl_device_links_set_reason(links, reason);
    link->kind = NULL;
}

/* Takes the kind from links with an end that cannot use NCCL. */
static sl_status agree(sl_device_links *links, const sl_rank_offer *offers)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group), *ends = NULL;
    uint8_t *can = NULL;
    char reason[256] = "";
    SL_TRY(SL_NEW_ARRAY(can, ranks));
    SL_TRY(SL_NEW_ARRAY(ends, ranks));
    SL_TRY(sl_nccl_join(links->group, links->device, offers, can, reason, &links->nccl->nccl));
    sl_device_links_set_reason(links, reason);
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        int a = link->spec.src, b = link->spec.dst;
        const char *obstacle = is_nccl(link) ? sl_nccl_join_obstacle(offers, can, a, b) : NULL;
        if (!is_nccl(link))
            continue;
        if (obstacle)
            drop(links, link, obstacle);
        else
            ends[a]++, ends[b]++;
    }
    for (int r = 0; r < ranks; r++)
        links->nccl->most_ends = ends[r] > links->nccl->most_ends ? ends[r] : links->nccl->most_ends;
done:
    sl_free(ends);
    sl_free(can);
    return status;
}

/* (ranks, count): the id of each link, made by its sender; zero: it could not be made. */
static sl_status share_ids(sl_device_links *links, sl_nccl_id **out)
{
    sl_status status = SL_OK;
    sl_nccl_id *own = NULL, *all = NULL;
    SL_TRY(SL_NEW_ARRAY(own, links->count));
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)sl_group_size(links->group) * links->count));
    for (int i = 0; i < links->count; i++) {
        if (is_nccl(&links->list[i]) && links->list[i].sends && links->nccl->nccl->make_id(&own[i]) != SL_OK)
            sl_device_links_set_reason(links, sl_error_message());
    }
    SL_TRY(sl_group_all_gather(links->group, own, (size_t)links->count * sizeof *own, all));
    *out = all;
    all = NULL;
done:
    sl_free(all);
    sl_free(own);
    return status;
}

static sl_status make_events(sl_device *device, int count, sl_event ***out)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(*out, count));
    for (int i = 0; i < count; i++)
        SL_TRY(sl_event_create(device, &(*out)[i]));
done:
    return status;
}

/* Begins one end; `connect` goes on. */
static sl_status open_end(sl_device_links *links, sl_device_link *link, const sl_nccl_id *id)
{
    sl_status status = SL_OK;
    nccl_end *end = end_of(links, link);
    static const sl_nccl_id none;
    sl_device_handle unused; /* memory for messages is taken in one way, whoever reads it */
    size_t bytes = link->spec.max_bytes ? link->spec.max_bytes : 1;
    link->stride = (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    SL_TRY(SL_NEW_ARRAY(end->record, 1 + links->messages));
    SL_TRY(sl_device_share(links->device, link->stride * (size_t)link->spec.capacity, &unused, &end->block));
    link->slots = end->block;
    SL_TRY(sl_stream_create(links->device, &end->stream));
    SL_TRY(make_events(links->device, link->spec.capacity, &end->full));
    SL_TRY(make_events(links->device, link->spec.capacity, &end->empty));
    if (memcmp(id, &none, sizeof none) == 0)
        return sl_fail(SL_ERR_COMM, "NCCL: rank %d could not make a communicator", link->spec.src);
    SL_TRY(links->nccl->nccl->open(id, RANKS, link->sends ? SENDER : RECEIVER, sl_nccl_blocks(links->nccl->most_ends),
                                   &end->comm));
done:
    return status;
}

static sl_status transfer(const sl_device_links *links, const sl_device_link *link, int slot, size_t bytes)
{
    const sl_nccl *nccl = links->nccl->nccl;
    const nccl_end *end = end_of(links, link);
    void *data = link->slots + (size_t)slot * link->stride;
    return link->sends ? nccl->send(end->comm, data, bytes, RECEIVER, end->stream)
                       : nccl->receive(end->comm, data, bytes, SENDER, end->stream);
}

/* Does one part of opening at all ends that have not failed: first it is begun everywhere, so that no rank waits for one
 * that waits for another. Fails only if the run has. */
static sl_status settle_ends(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        nccl_end *end = &links->nccl->ends[i];
        if (!has_end(&links->list[i]) || end->failed || settle(links, end, SL_NCCL_OPEN_SECONDS) == SL_OK)
            continue;
        sl_device_links_set_reason(links, sl_error_message());
        end->failed = true;
        SL_TRY(sl_group_progress(links->group));
    }
done:
    return status;
}

static void note_failure(sl_device_links *links, nccl_end *end, sl_status status)
{
    if (status == SL_OK)
        return;
    sl_device_links_set_reason(links, sl_error_message());
    end->failed = true;
}

/* Opens the communicators and sends a first message through each. */
static sl_status open_ends(sl_device_links *links, const sl_nccl_id *ids)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        if (has_end(link))
            note_failure(links, &links->nccl->ends[i], open_end(links, link, &ids[link->spec.src * links->count + i]));
    }
    SL_TRY(settle_ends(links));
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        nccl_end *end = &links->nccl->ends[i];
        if (has_end(link) && !end->failed)
            note_failure(links, end, transfer(links, link, 0, 1));
    }
    SL_TRY(settle_ends(links));
done:
    return status;
}

/* A link that one end could not open is none. */
static sl_status agree_on_ends(sl_device_links *links)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group), count = links->count;
    uint8_t *own = NULL, *all = NULL;
    SL_TRY(SL_NEW_ARRAY(own, count));
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)ranks * count));
    for (int i = 0; i < count; i++)
        own[i] = links->nccl->ends[i].failed;
    SL_TRY(sl_group_all_gather(links->group, own, (size_t)count, all));
    for (int i = 0; i < count; i++) {
        sl_device_link *link = &links->list[i];
        bool failed = all[link->spec.src * count + i] || all[link->spec.dst * count + i];
        if (is_nccl(link) && failed)
            drop(links, link, "NCCL: a rank could not open a communicator");
    }
done:
    sl_free(all);
    sl_free(own);
    return status;
}

/* For the first messages, which nobody waits for otherwise. */
static sl_status await_first(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        const nccl_end *end = &links->nccl->ends[i];
        if (has_end(&links->list[i]))
            SL_TRY(sl_nccl_await(links->words, links->nccl->nccl, end->comm, end->stream));
    }
done:
    return status;
}

static sl_status open_records(sl_device_links *links)
{
    sl_status status = SL_OK;
    sl_channel_spec *specs = NULL;
    sl_channel **opened = NULL;
    int count = 0, at = 0;
    SL_TRY(SL_NEW_ARRAY(specs, links->count));
    SL_TRY(SL_NEW_ARRAY(opened, links->count));
    for (int i = 0; i < links->count; i++) {
        const sl_channel_spec *spec = &links->list[i].spec;
        if (is_nccl(&links->list[i]))
            specs[count++] = (sl_channel_spec){ .id = RECORD_CHANNELS + spec->id,
                                                .src = spec->src,
                                                .dst = spec->dst,
                                                .capacity = 1,
                                                .max_bytes = (1 + (size_t)links->messages) * sizeof(uint32_t) };
    }
    SL_TRY(sl_group_open_channels(links->group, specs, count, opened));
    for (int i = 0; i < links->count; i++) {
        if (is_nccl(&links->list[i]))
            links->nccl->ends[i].records = opened[at++];
    }
done:
    sl_free(opened);
    sl_free(specs);
    return status;
}

static sl_status open_links(sl_device_links *links, const sl_rank_offer *offers)
{
    sl_status status = SL_OK;
    sl_nccl_id *ids = NULL;
    SL_TRY(SL_NEW(links->nccl));
    SL_TRY(SL_NEW_ARRAY(links->nccl->ends, links->count));
    SL_TRY(agree(links, offers));
    SL_TRY(share_ids(links, &ids));
    SL_TRY(open_ends(links, ids));
    SL_TRY(agree_on_ends(links));
    SL_TRY(await_first(links));
    SL_TRY(open_records(links));
done:
    sl_free(ids);
    return status;
}

static void destroy_events(sl_event **events, int count)
{
    for (int i = 0; events && i < count; i++)
        sl_event_destroy(events[i]);
    sl_free(events);
}

/* The sender has slots, too. */
static size_t count_memory(const sl_device_links *links, sl_nccl_use *use)
{
    size_t bytes = 0;
    use->most_links = links->nccl->most_ends;
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        use->links += has_end(link);
        if (has_end(link) && link->sends)
            bytes += (size_t)link->spec.capacity * link->spec.max_bytes;
    }
    return bytes;
}

static void leave(sl_device_links *links)
{
    for (int i = 0; links->nccl->ends && i < links->count; i++) {
        if (links->nccl->ends[i].comm)
            sl_nccl_leave(links->words, links->nccl->nccl, links->nccl->ends[i].comm);
    }
}

static void close_links(sl_device_links *links)
{
    struct nccl_links *own = links->nccl;
    if (!own)
        return;
    leave(links);
    for (int i = 0; own->ends && i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        nccl_end *end = &own->ends[i];
        if (end->comm)
            own->nccl->close(end->comm);
        sl_channel_close(end->records);
        sl_free(end->record);
        sl_stream_destroy(end->stream);
        destroy_events(end->full, link->spec.capacity);
        destroy_events(end->empty, link->spec.capacity);
        sl_device_unshare(links->device, end->block);
    }
    sl_free(own->ends);
    sl_free(own);
    links->nccl = NULL;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static sl_status begin(sl_device_links *links, sl_stream *out)
{
    (void)out;
    for (int i = 0; i < links->count; i++)
        links->nccl->ends[i].given = 0;
    return SL_OK;
}

static sl_status reserve(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    return sl_stream_wait(stream, end_of(links, link)->empty[slot]);
}

/* The link's stream sends what the slot has once `stream` has come so far. */
static sl_status commit(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    sl_status status = SL_OK;
    nccl_end *end = end_of(links, link);
    SL_TRY(sl_event_record(end->full[slot], stream));
    SL_TRY(sl_stream_wait(end->stream, end->full[slot]));
    SL_TRY(transfer(links, link, slot, link->bytes[slot]));
    SL_TRY(settle(links, end, 0));
    SL_TRY(sl_event_record(end->empty[slot], end->stream));
    end->given++;
done:
    return status;
}

static sl_status receive(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    sl_status status = SL_OK;
    nccl_end *end = end_of(links, link);
    SL_TRY(sl_stream_wait(end->stream, end->empty[slot]));
    SL_TRY(transfer(links, link, slot, link->bytes[slot]));
    SL_TRY(settle(links, end, 0));
    SL_TRY(sl_event_record(end->full[slot], end->stream));
    end->given++;
    if (links->polled)
        SL_TRY(sl_device_words_wait_event(links->words, end->full[slot]));
    SL_TRY(sl_stream_wait(stream, end->full[slot]));
done:
    return status;
}

static sl_status release(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    return sl_event_record(end_of(links, link)->empty[slot], stream);
}

/* ---- The end of a step ----------------------------------------------------------------------- */

static sl_message record_message(const sl_device_links *links)
{
    return (sl_message){ .step = links->step, .dtype = SL_I32, .shape = { 1, { 1 + links->messages } } };
}

/* The host knows what it has sent. */
static sl_status fetch(sl_device_links *links, sl_stream *in)
{
    sl_status status = SL_OK;
    sl_message message = record_message(links);
    (void)in;
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        sl_channel *records = links->nccl->ends[i].records;
        void *slot = NULL;
        if (!is_nccl(link) || !link->sends)
            continue;
        SL_TRY(sl_channel_reserve(records, &message, &slot));
        uint32_t *record = slot;
        memset(record, 0, (1 + (size_t)links->messages) * sizeof *record);
        record[0] = (uint32_t)links->step;
        memcpy(record + 1, link->tags, (size_t)link->next * sizeof *record);
        SL_TRY(sl_channel_commit(records, slot));
    }
done:
    return status;
}

static sl_status get_record(sl_device_links *links, const sl_device_link *link, const uint32_t **out)
{
    sl_status status = SL_OK;
    const nccl_end *end = end_of(links, link);
    sl_message message = record_message(links);
    void *slot = NULL;
    SL_TRY(sl_channel_receive(end->records, &message, NULL, &slot));
    memcpy(end->record, slot, (1 + (size_t)links->messages) * sizeof *end->record);
    SL_TRY(sl_channel_release(end->records, slot));
    *out = end->record;
done:
    return status;
}

/* Messages that have left this end, or come to it. All but the last ones of the slots have. */
static sl_status count_sent(sl_device_links *links, const sl_device_link *link, int *out)
{
    sl_status status = SL_OK;
    const nccl_end *end = end_of(links, link);
    sl_event **passed = link->sends ? end->empty : end->full;
    int capacity = link->spec.capacity, count = end->given > capacity ? end->given - capacity : 0;
    bool done = true;
    while (count < end->given && done) {
        SL_TRY(sl_event_query(passed[count % capacity], &done));
        count += done;
    }
    *out = count;
done:
    return status;
}

/* Of the first message that has not left: once the slot is full it waits for the receiver. */
static sl_status has_room(sl_device_links *links, const sl_device_link *link, int number, bool *out)
{
    sl_status status = SL_OK;
    const nccl_end *end = end_of(links, link);
    int slot = number % link->spec.capacity;
    bool full = true, empty = true;
    SL_TRY(sl_event_query(end->full[slot], &full));
    SL_TRY(sl_event_query(end->empty[slot], &empty));
    *out = empty || !full;
done:
    return status;
}

static bool let_through(sl_device_links *links)
{
    for (int i = 0; i < links->count; i++) {
        if (has_end(&links->list[i]))
            links->nccl->nccl->stop(links->nccl->ends[i].comm);
    }
    return true;
}

const sl_device_link_kind sl_device_link_nccl = {
    .way = "through NCCL",
    .find_obstacle = find_obstacle,
    .open = open_links,
    .close = close_links,
    .begin = begin,
    .reserve = reserve,
    .commit = commit,
    .receive = receive,
    .release = release,
    .fetch = fetch,
    .get_record = get_record,
    .count_sent = count_sent,
    .has_room = has_room,
    .watch = watch,
    .let_through = let_through,
    .count_memory = count_memory,
    .leave = leave,
};
