/* Opening and closing links through carriers: who can use which, and the first message of each. */
#include "comm/carried_links.h"

#include "base/alloc.h"
#include "device/share.h"

#include <string.h>

enum { SLOT_ALIGNMENT = 256 };

/* Every link has a stream: ranks with more of them than queues have none through this carrier. ends: of each rank. */
static void drop_crowded(sl_device_links *links, const sl_rank_offer *offers, const int *ends, int *count)
{
    for (int i = 0; i < links->count; i++) {
        sl_carried_end *end = &links->carried->ends[i];
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
        sl_carried_end *end = &links->carried->ends[i];
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
static sl_status make_end(sl_device_links *links, sl_device_link *link, sl_carried_end *end)
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
    sl_carried_end *end = sl_carried_end_of(links, link);
    static const sl_carrier_id none;
    const int members[SL_CARRIED_RANKS] = { sl_group_world_rank(links->group, link->spec.src),
                                            sl_group_world_rank(links->group, link->spec.dst) };
    const sl_carrier_place place = { .words = links->words,
                                     .members = members,
                                     .ranks = SL_CARRIED_RANKS,
                                     .rank = link->sends ? SL_CARRIED_SENDER : SL_CARRIED_RECEIVER,
                                     .blocks = sl_nccl_blocks(links->carried->most_ends) };
    SL_TRY(make_end(links, link, end));
    if (memcmp(id, &none, sizeof none) == 0)
        return sl_fail(SL_ERR_COMM, "rank %d could not make a communicator", link->spec.src);
    SL_TRY(carrier->open(id, &place, &end->comm));
done:
    return status;
}

sl_status sl_carried_transfer(const sl_device_links *links, const sl_device_link *link, int slot, size_t bytes)
{
    const sl_carried_end *end = sl_carried_end_of(links, link);
    const sl_carrier *carrier = end->comm->carrier;
    void *data = link->slots + (size_t)slot * link->stride;
    return link->sends ? carrier->send(end->comm, data, bytes, SL_CARRIED_RECEIVER, end->stream)
                       : carrier->receive(end->comm, data, bytes, SL_CARRIED_SENDER, end->stream);
}

static bool is_opening(const sl_device_links *links, int i)
{
    const sl_carried_end *end = &links->carried->ends[i];
    return end->tried && !end->failed && (links->list[i].sends || links->list[i].receives);
}

/* Does one part of opening at all ends that have not failed: first it is begun everywhere, so that no rank waits for one
 * that waits for another. Fails only if the run has. */
static sl_status settle_ends(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        sl_carried_end *end = &links->carried->ends[i];
        if (!is_opening(links, i) || sl_carrier_settle(links->words, end->comm, SL_CARRIER_OPEN_SECONDS) == SL_OK)
            continue;
        sl_device_links_set_reason(links, sl_error_message());
        end->failed = true;
        SL_TRY(sl_group_progress(links->group));
    }
done:
    return status;
}

static void note_failure(sl_device_links *links, sl_carried_end *end, sl_status status)
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
            note_failure(links, &links->carried->ends[i], sl_carried_transfer(links, &links->list[i], 0, 1));
    }
    SL_TRY(settle_ends(links));
done:
    return status;
}

static void close_comm(sl_carried_end *end)
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
        sl_carried_end *end = &links->carried->ends[i];
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
        const sl_carried_end *end = &links->carried->ends[i];
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
        sl_carried_end *end = &links->carried->ends[i];
        end->tried =
            sl_is_carried(link) && !end->carrier && !sl_carrier_obstacle(name, offers, link->spec.src, link->spec.dst);
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

sl_status sl_carried_links_open(sl_device_links *links, const sl_rank_offer *offers)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW(links->carried));
    SL_TRY(SL_NEW_ARRAY(links->carried->ends, links->count));
    for (int name = 0; name < SL_CARRIERS; name++)
        SL_TRY(try_carrier(links, offers, (sl_carrier_name)name));
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        if (sl_is_carried(link) && !links->carried->ends[i].carrier)
            link->kind = NULL;
    }
    SL_TRY(await_first(links));
    SL_TRY(sl_device_records_open(links, sl_is_carried, &links->carried->records));
done:
    return status;
}

static void destroy_events(sl_event **events, int count)
{
    for (int i = 0; events && i < count; i++)
        sl_event_destroy(events[i]);
    sl_free(events);
}

void sl_carried_links_leave(sl_device_links *links)
{
    for (int i = 0; links->carried->ends && i < links->count; i++) {
        if (links->carried->ends[i].comm)
            sl_carrier_leave(links->words, links->carried->ends[i].comm);
    }
}

void sl_carried_links_close(sl_device_links *links)
{
    struct carried_links *own = links->carried;
    if (!own)
        return;
    sl_carried_links_leave(links);
    for (int i = 0; own->ends && i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        sl_carried_end *end = &own->ends[i];
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
