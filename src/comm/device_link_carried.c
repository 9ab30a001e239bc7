/* Steps of links through carriers, and what is asked of their communicators. */
#include "comm/carried_links.h"

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

/* A communicator that is or may be used. */
static sl_carrier_comm *comm_of(const sl_device_links *links, int i)
{
    return sl_is_carried(&links->list[i]) ? links->carried->ends[i].comm : NULL;
}

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
    return sl_carried_end_of(links, link)->carrier->way;
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
    return sl_stream_wait(stream, sl_carried_end_of(links, link)->empty[slot]);
}

/* The link's stream sends what the slot has once `stream` has come so far. */
static sl_status commit(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    sl_status status = SL_OK;
    sl_carried_end *end = sl_carried_end_of(links, link);
    SL_TRY(sl_event_record(end->full[slot], stream));
    SL_TRY(sl_stream_wait(end->stream, end->full[slot]));
    SL_TRY(sl_carried_transfer(links, link, slot, link->bytes[slot]));
    SL_TRY(sl_carrier_settle(links->words, end->comm, 0));
    SL_TRY(sl_event_record(end->empty[slot], end->stream));
    end->given++;
done:
    return status;
}

static sl_status receive(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    sl_status status = SL_OK;
    sl_carried_end *end = sl_carried_end_of(links, link);
    SL_TRY(sl_stream_wait(end->stream, end->empty[slot]));
    SL_TRY(sl_carried_transfer(links, link, slot, link->bytes[slot]));
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
    return sl_event_record(sl_carried_end_of(links, link)->empty[slot], stream);
}

/* Messages that have left this end, or come to it. All but the last ones of the slots have. */
static sl_status count_sent(sl_device_links *links, const sl_device_link *link, int *out)
{
    sl_status status = SL_OK;
    const sl_carried_end *end = sl_carried_end_of(links, link);
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
    const sl_carried_end *end = sl_carried_end_of(links, link);
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
    .open = sl_carried_links_open,
    .close = sl_carried_links_close,
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
    .leave = sl_carried_links_leave,
};
