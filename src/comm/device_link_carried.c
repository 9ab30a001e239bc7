/* Links through a carrier (carrier.h), for ranks whose devices do not reach each other's memory. Every link has a communicator
 * of two ranks and a stream of its own: links that share one would run in one order, and schedules need others. Both ends have
 * slots.
 *
 * All communicators are made when the links are opened, and a first message connects them, so a step connects nothing. */
#include "comm/device_link.h"

#include "base/alloc.h"
#include "comm/carrier.h"
#include "comm/device_records.h"
#include "device/share.h"

#include <string.h>

enum { SENDER, RECEIVER, RANKS }; /* of a communicator */
enum { SLOT_ALIGNMENT = 256 };

/* A link, and this rank's end of it. */
typedef struct carried_end {
    const sl_carrier *carrier; /* the same on all ranks that have it; NULL: none carries the link so far */
    sl_carrier_name name;
    sl_carrier_comm *comm; /* NULL: this rank has no end */
    sl_stream *stream;
    void *block;      /* its slots */
    sl_event **full;  /* (capacity) the sender has filled the slot; the receiver has the message */
    sl_event **empty; /* (capacity) the message has left the slot; the receiver has released it */
    int given;        /* messages of the step to the stream */
    bool tried;       /* the carrier that is being tried may serve it */
    bool failed;      /* to open */
} carried_end;

struct carried_links {
    int most_ends;     /* of a rank, through NCCL */
    carried_end *ends; /* (count) by the numbers of the list */
    sl_device_records *records;
};

static const char *find_obstacle(const sl_rank_offer *offers, int ranks, int a, int b)
{
    const char *first = NULL;
    (void)ranks;
    for (int name = 0; name < SL_CARRIERS; name++) {
        const char *obstacle = sl_carrier_obstacle((sl_carrier_name)name, offers, a, b);
        if (!obstacle)
            return NULL;
        first = first && *first ? first : obstacle;
    }
    return first;
}

static bool is_carried(const sl_device_link *link)
{
    return link->kind == &sl_device_link_carried;
}

static carried_end *end_of(const sl_device_links *links, const sl_device_link *link)
{
    return &links->carried->ends[link - links->list];
}

/* A communicator that is or may be used. */
static sl_carrier_comm *comm_of(const sl_device_links *links, int i)
{
    return is_carried(&links->list[i]) ? links->carried->ends[i].comm : NULL;
}

/* ---- Asking a communicator ------------------------------------------------------------------- */

static sl_status watch(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        if (comm_of(links, i))
            SL_TRY(sl_carrier_check(links->words, comm_of(links, i)));
    }
done:
    return status;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Every link has a stream: ranks with more of them than queues have none through this carrier. ends: of each rank. */
static void drop_crowded(sl_device_links *links, const sl_rank_offer *offers, const int *ends, int *count)
{
    for (int i = 0; i < links->count; i++) {
        carried_end *end = &links->carried->ends[i];
        int a = links->list[i].spec.src, b = links->list[i].spec.dst;
        bool crowded = ends[a] > sl_rank_spare_queues(&offers[a]) || ends[b] > sl_rank_spare_queues(&offers[b]);
        if (!end->tried || !crowded)
            continue;
        end->tried = false;
        --*count;
        sl_device_links_set_reason(links, "a rank has more links than queues to its device");
    }
}

/* Chooses the links that the carrier may serve and all ends of which can use it: `tried`. *count: how many. */
static sl_status agree(sl_device_links *links, const sl_rank_offer *offers, sl_carrier_name name,
                       const sl_carrier **carrier, int *count)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group), *ends = NULL;
    uint8_t *can = NULL;
    char reason[256] = "";
    *count = 0;
    SL_TRY(SL_NEW_ARRAY(can, ranks));
    SL_TRY(SL_NEW_ARRAY(ends, ranks));
    SL_TRY(sl_carrier_join(name, links->words, links->group, offers, can, reason, carrier));
    sl_device_links_set_reason(links, reason);
    for (int i = 0; i < links->count; i++) {
        carried_end *end = &links->carried->ends[i];
        if (!end->tried)
            continue;
        int a = links->list[i].spec.src, b = links->list[i].spec.dst;
        const char *obstacle = sl_carrier_join_obstacle(name, offers, can, a, b);
        end->tried = !obstacle;
        sl_device_links_set_reason(links, obstacle ? obstacle : "");
        if (!obstacle)
            ends[a]++, ends[b]++, ++*count;
    }
    for (int r = 0; name == SL_CARRIER_NCCL && r < ranks; r++)
        links->carried->most_ends = ends[r] > links->carried->most_ends ? ends[r] : links->carried->most_ends;
    if (*carrier && (*carrier)->holds_queues)
        drop_crowded(links, offers, ends, count);
done:
    sl_free(ends);
    sl_free(can);
    return status;
}

/* (ranks, count): the id of each link, made by its sender; zero: it could not be made. */
static sl_status share_ids(sl_device_links *links, const sl_carrier *carrier, sl_carrier_id **out)
{
    sl_status status = SL_OK;
    sl_carrier_id *own = NULL, *all = NULL;
    SL_TRY(SL_NEW_ARRAY(own, links->count));
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)sl_group_size(links->group) * links->count));
    for (int i = 0; i < links->count; i++) {
        bool makes = links->carried->ends[i].tried && links->list[i].sends;
        if (makes && carrier->make_id(links->words, &own[i]) != SL_OK)
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

/* Slots, stream and events, which all carriers use. */
static sl_status make_end(sl_device_links *links, sl_device_link *link, carried_end *end)
{
    sl_status status = SL_OK;
    sl_device_handle unused; /* memory for messages is taken in one way, whoever reads it */
    size_t bytes = link->spec.max_bytes ? link->spec.max_bytes : 1;
    link->stride = (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    if (end->block)
        return SL_OK;
    SL_TRY(sl_device_share(links->device, link->stride * (size_t)link->spec.capacity, &unused, &end->block));
    link->slots = end->block;
    SL_TRY(sl_stream_create(links->device, &end->stream));
    SL_TRY(make_events(links->device, link->spec.capacity, &end->full));
    SL_TRY(make_events(links->device, link->spec.capacity, &end->empty));
done:
    return status;
}

/* Begins one end; `settle_ends` goes on. */
static sl_status open_end(sl_device_links *links, sl_device_link *link, const sl_carrier *carrier,
                          const sl_carrier_id *id)
{
    sl_status status = SL_OK;
    carried_end *end = end_of(links, link);
    static const sl_carrier_id none;
    const int members[RANKS] = { sl_group_world_rank(links->group, link->spec.src),
                                 sl_group_world_rank(links->group, link->spec.dst) };
    const sl_carrier_place place = { .words = links->words,
                                     .members = members,
                                     .ranks = RANKS,
                                     .rank = link->sends ? SENDER : RECEIVER,
                                     .blocks = sl_nccl_blocks(links->carried->most_ends) };
    SL_TRY(make_end(links, link, end));
    if (memcmp(id, &none, sizeof none) == 0)
        return sl_fail(SL_ERR_COMM, "rank %d could not make a communicator", link->spec.src);
    SL_TRY(carrier->open(id, &place, &end->comm));
done:
    return status;
}

static sl_status transfer(const sl_device_links *links, const sl_device_link *link, int slot, size_t bytes)
{
    const carried_end *end = end_of(links, link);
    const sl_carrier *carrier = end->comm->carrier;
    void *data = link->slots + (size_t)slot * link->stride;
    return link->sends ? carrier->send(end->comm, data, bytes, RECEIVER, end->stream)
                       : carrier->receive(end->comm, data, bytes, SENDER, end->stream);
}

static bool is_opening(const sl_device_links *links, int i)
{
    const carried_end *end = &links->carried->ends[i];
    return end->tried && !end->failed && (links->list[i].sends || links->list[i].receives);
}

/* Does one part of opening at all ends that have not failed: first it is begun everywhere, so that no rank waits for one
 * that waits for another. Fails only if the run has. */
static sl_status settle_ends(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        carried_end *end = &links->carried->ends[i];
        if (!is_opening(links, i) || sl_carrier_settle(links->words, end->comm, SL_CARRIER_OPEN_SECONDS) == SL_OK)
            continue;
        sl_device_links_set_reason(links, sl_error_message());
        end->failed = true;
        SL_TRY(sl_group_progress(links->group));
    }
done:
    return status;
}

static void note_failure(sl_device_links *links, carried_end *end, sl_status status)
{
    if (status == SL_OK)
        return;
    sl_device_links_set_reason(links, sl_error_message());
    end->failed = true;
}

/* Opens the communicators and sends a first message through each. */
static sl_status open_ends(sl_device_links *links, const sl_carrier *carrier, const sl_carrier_id *ids)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        if (is_opening(links, i))
            note_failure(links, &links->carried->ends[i],
                         open_end(links, link, carrier, &ids[link->spec.src * links->count + i]));
    }
    SL_TRY(settle_ends(links));
    for (int i = 0; i < links->count; i++) {
        if (is_opening(links, i))
            note_failure(links, &links->carried->ends[i], transfer(links, &links->list[i], 0, 1));
    }
    SL_TRY(settle_ends(links));
done:
    return status;
}

static void close_comm(carried_end *end)
{
    if (end->comm)
        end->comm->carrier->close(end->comm);
    end->comm = NULL;
}

/* A link that both ends could open is the carrier's; another one is left to the next. */
static sl_status agree_on_ends(sl_device_links *links, sl_carrier_name name, const sl_carrier *carrier)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group), count = links->count;
    uint8_t *own = NULL, *all = NULL;
    SL_TRY(SL_NEW_ARRAY(own, count));
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)ranks * count));
    for (int i = 0; i < count; i++)
        own[i] = links->carried->ends[i].failed;
    SL_TRY(sl_group_all_gather(links->group, own, (size_t)count, all));
    for (int i = 0; i < count; i++) {
        carried_end *end = &links->carried->ends[i];
        const sl_channel_spec *spec = &links->list[i].spec;
        bool failed = all[spec->src * count + i] || all[spec->dst * count + i];
        if (!end->tried)
            continue;
        end->tried = end->failed = false;
        if (failed) {
            sl_device_links_set_reason(links, "a rank could not open a communicator");
            close_comm(end);
        } else {
            end->carrier = carrier;
            end->name = name;
        }
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
        const carried_end *end = &links->carried->ends[i];
        if (end->comm)
            SL_TRY(sl_carrier_await(links->words, end->comm, end->stream));
    }
done:
    return status;
}

/* Makes those links that the carrier can serve and no other does. */
static sl_status try_carrier(sl_device_links *links, const sl_rank_offer *offers, sl_carrier_name name)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = NULL;
    sl_carrier_id *ids = NULL;
    int count = 0;
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        carried_end *end = &links->carried->ends[i];
        end->tried =
            is_carried(link) && !end->carrier && !sl_carrier_obstacle(name, offers, link->spec.src, link->spec.dst);
        count += end->tried;
    }
    if (count == 0)
        return SL_OK;
    SL_TRY(agree(links, offers, name, &carrier, &count));
    if (count > 0) {
        SL_TRY(share_ids(links, carrier, &ids));
        SL_TRY(open_ends(links, carrier, ids));
        SL_TRY(agree_on_ends(links, name, carrier));
    }
    sl_device_links_end_reason(links);
done:
    sl_free(ids);
    return status;
}

static sl_status open_links(sl_device_links *links, const sl_rank_offer *offers)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW(links->carried));
    SL_TRY(SL_NEW_ARRAY(links->carried->ends, links->count));
    for (int name = 0; name < SL_CARRIERS; name++)
        SL_TRY(try_carrier(links, offers, (sl_carrier_name)name));
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        if (is_carried(link) && !links->carried->ends[i].carrier)
            link->kind = NULL;
    }
    SL_TRY(await_first(links));
    SL_TRY(sl_device_records_open(links, is_carried, &links->carried->records));
done:
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
    use->most_links = links->carried->most_ends;
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        if (!comm_of(links, i))
            continue;
        use->links += links->carried->ends[i].name == SL_CARRIER_NCCL;
        if (link->sends)
            bytes += (size_t)link->spec.capacity * link->spec.max_bytes;
    }
    return bytes;
}

static const char *get_way(const sl_device_links *links, const sl_device_link *link)
{
    return end_of(links, link)->carrier->way;
}

static void leave(sl_device_links *links)
{
    for (int i = 0; links->carried->ends && i < links->count; i++) {
        if (links->carried->ends[i].comm)
            sl_carrier_leave(links->words, links->carried->ends[i].comm);
    }
}

static void close_links(sl_device_links *links)
{
    struct carried_links *own = links->carried;
    if (!own)
        return;
    leave(links);
    for (int i = 0; own->ends && i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        carried_end *end = &own->ends[i];
        close_comm(end);
        sl_stream_destroy(end->stream);
        destroy_events(end->full, link->spec.capacity);
        destroy_events(end->empty, link->spec.capacity);
        sl_device_unshare(links->device, end->block);
    }
    sl_device_records_close(own->records);
    sl_free(own->ends);
    sl_free(own);
    links->carried = NULL;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static sl_status begin(sl_device_links *links, sl_stream *out)
{
    (void)out;
    for (int i = 0; i < links->count; i++)
        links->carried->ends[i].given = 0;
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
    carried_end *end = end_of(links, link);
    SL_TRY(sl_event_record(end->full[slot], stream));
    SL_TRY(sl_stream_wait(end->stream, end->full[slot]));
    SL_TRY(transfer(links, link, slot, link->bytes[slot]));
    SL_TRY(sl_carrier_settle(links->words, end->comm, 0));
    SL_TRY(sl_event_record(end->empty[slot], end->stream));
    end->given++;
done:
    return status;
}

static sl_status receive(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    sl_status status = SL_OK;
    carried_end *end = end_of(links, link);
    SL_TRY(sl_stream_wait(end->stream, end->empty[slot]));
    SL_TRY(transfer(links, link, slot, link->bytes[slot]));
    SL_TRY(sl_carrier_settle(links->words, end->comm, 0));
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

/* Messages that have left this end, or come to it. All but the last ones of the slots have. */
static sl_status count_sent(sl_device_links *links, const sl_device_link *link, int *out)
{
    sl_status status = SL_OK;
    const carried_end *end = end_of(links, link);
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
    const carried_end *end = end_of(links, link);
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
        if (comm_of(links, i))
            comm_of(links, i)->carrier->stop(comm_of(links, i));
    }
    return true;
}

/* The host knows what it has sent. */
static sl_status fetch(sl_device_links *links, sl_stream *in)
{
    (void)in;
    return sl_device_records_send(links->carried->records);
}

static sl_status get_record(sl_device_links *links, const sl_device_link *link, const uint32_t **out)
{
    return sl_device_records_receive(links->carried->records, link, out);
}

const sl_device_link_kind sl_device_link_carried = {
    .get_way = get_way,
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
