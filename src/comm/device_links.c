/* Device links: which channels become links of which kind, the slots and tags of a step, and waiting for its end. */
#include "comm/device_link.h"

#include "base/alloc.h"
#include "comm/nccl.h"
#include "device/backend.h"

#include <stdio.h>
#include <string.h>

/* The first one that can serve a channel does. */
static const sl_device_link_kind *const kinds[] = { &sl_device_link_shared, &sl_device_link_carried };
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- Who can reach whom ---------------------------------------------------------------------- */

void sl_device_links_set_reason(sl_device_links *links, const char *text)
{
    if (!links->why[0] && text[0])
        snprintf(links->why, sizeof links->why, "%s", text);
}

void sl_device_links_end_reason(sl_device_links *links)
{
    size_t used = strlen(links->reason);
    if (links->why[0] && !strstr(links->reason, links->why))
        snprintf(links->reason + used, sizeof links->reason - used, "%s%s", used ? "; " : "", links->why);
    links->why[0] = 0;
}

/* Gives the kind to the channels that have none and may try it; *count: how many. */
static void choose(sl_device_links *links, const sl_device_link_kind *kind, const sl_rank_offer *offers, int *count)
{
    *count = 0;
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        if (link->kind)
            continue;
        const char *obstacle = kind->find_obstacle(offers, sl_group_size(links->group), link->spec.src, link->spec.dst);
        if (obstacle) {
            sl_device_links_set_reason(links, links->reason[0] ? "" : obstacle);
            continue;
        }
        link->kind = kind;
        ++*count;
    }
}

/* All ways that messages go. */
static void describe_ways(sl_device_links *links)
{
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        const char *way = link->kind ? link->kind->get_way(links, link) : "";
        size_t used = strlen(links->way);
        if (!strstr(links->way, way))
            snprintf(links->way + used, sizeof links->way - used, "%s%s", used ? " or " : "", way);
    }
}

/* Each channel becomes a link of the first kind that both its ends can use. */
static sl_status connect_links(sl_device_links *links)
{
    sl_status status = SL_OK;
    sl_rank_offer *offers = NULL;
    SL_TRY(SL_NEW_ARRAY(offers, sl_group_size(links->group)));
    SL_TRY(sl_rank_offers_gather(links->group, links->device, offers));
    for (int k = 0; k < KINDS; k++) {
        int count = 0;
        choose(links, kinds[k], offers, &count);
        if (count > 0)
            SL_TRY(kinds[k]->open(links, offers));
        sl_device_links_end_reason(links);
    }
    links->wish = offers[sl_group_rank(links->group)].wish;
    for (int i = 0; i < links->count; i++)
        links->linked += links->list[i].kind != NULL;
    describe_ways(links);
done:
    sl_free(offers);
    return status;
}

/* ---- All links of a rank --------------------------------------------------------------------- */

static sl_status make_list(sl_device_links *links, const sl_channel_spec *specs)
{
    sl_status status = SL_OK;
    int rank = sl_group_rank(links->group);
    SL_TRY(SL_NEW_ARRAY(links->list, links->count));
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        link->spec = specs[i];
        link->sends = specs[i].src == rank;
        link->receives = specs[i].dst == rank;
        if (!link->sends && !link->receives)
            continue;
        SL_TRY(SL_NEW_ARRAY(link->tags, links->messages));
        SL_TRY(SL_NEW_ARRAY(link->number, specs[i].capacity));
        SL_TRY(SL_NEW_ARRAY(link->bytes, specs[i].capacity));
    }
done:
    return status;
}

/* Whether any channel of the pipeline has the kind. */
static bool uses_kind(const sl_device_links *links, const sl_device_link_kind *kind)
{
    for (int i = 0; i < links->count; i++) {
        if (links->list[i].kind == kind)
            return true;
    }
    return false;
}

static sl_status watch(void *user)
{
    sl_status status = SL_OK;
    sl_device_links *links = user;
    for (int k = 0; k < KINDS; k++) {
        if (kinds[k]->watch && uses_kind(links, kinds[k]))
            SL_TRY(kinds[k]->watch(links));
    }
done:
    return status;
}

/* What streams wait for that is no word. */
static bool let_through(void *user)
{
    sl_device_links *links = user;
    for (int k = 0; k < KINDS; k++) {
        if (uses_kind(links, kinds[k]) && kinds[k]->let_through && !kinds[k]->let_through(links))
            return false;
    }
    return true;
}

static void leave(void *user)
{
    sl_device_links *links = user;
    for (int k = 0; k < KINDS; k++) {
        if (uses_kind(links, kinds[k]) && kinds[k]->leave)
            kinds[k]->leave(links);
    }
}

sl_status sl_device_links_open(sl_device_words *words, const sl_channel_spec *specs, int count, int messages,
                               sl_device_links **out)
{
    sl_status status = SL_OK;
    sl_device_links *links = NULL;
    SL_TRY(SL_NEW(links));
    links->words = words;
    links->group = sl_device_words_group(words);
    links->device = sl_device_words_device(words);
    links->count = count;
    links->messages = messages;
    SL_TRY(make_list(links, specs));
    SL_TRY(connect_links(links));
    links->waits = (sl_device_waits){ .check = watch, .release = let_through, .leave = leave, .user = links };
    sl_device_words_add_waits(words, &links->waits);
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
    sl_device_words_remove_waits(links->words, &links->waits);
    for (int k = 0; k < KINDS; k++)
        kinds[k]->close(links);
    for (int i = 0; links->list && i < links->count; i++) {
        sl_free(links->list[i].tags);
        sl_free(links->list[i].number);
        sl_free(links->list[i].bytes);
    }
    sl_free(links->list);
    sl_free(links);
}

bool sl_device_links_has(const sl_device_links *links, int i)
{
    return links && i < links->count && links->list[i].kind;
}

bool sl_device_links_can_capture(const sl_device_links *links)
{
    for (int i = 0; i < links->count; i++) {
        if (!links->list[i].kind || !links->list[i].kind->can_capture)
            return false;
    }
    return true;
}

int sl_device_links_count(const sl_device_links *links)
{
    return links->linked;
}

const char *sl_device_links_reason(const sl_device_links *links)
{
    if (links->linked < links->count || links->reason[0])
        return links->reason;
    return sl_links_wish_reason(links->wish);
}

size_t sl_device_links_count_memory(const sl_device_links *links, sl_nccl_use *use)
{
    size_t bytes = 0;
    for (int k = 0; k < KINDS; k++) {
        if (uses_kind(links, kinds[k]) && kinds[k]->count_memory)
            bytes += kinds[k]->count_memory(links, use);
    }
    return bytes;
}

const char *sl_device_links_way(const sl_device_links *links)
{
    return links->way;
}

/* Whether MPI takes device memory is known once it has started. */
static void describe_far(int32_t wish, char *text, size_t size)
{
    const sl_nccl *nccl = NULL;
    const char *mpi = "MPI if it takes device memory, else host memory";
    if (wish == SL_LINKS_MPI)
        snprintf(text, size, "%s", mpi);
    else if (sl_nccl_load(&nccl) == SL_OK)
        snprintf(text, size, "NCCL %s", nccl->carrier.version);
    else
        snprintf(text, size, "%s (%s)", wish == SL_LINKS_NCCL ? "host memory" : mpi, sl_error_message());
}

char *sl_device_links_describe(const sl_device *device, char *text, size_t size)
{
    char far[384];
    int32_t wish = SL_LINKS_UNSAID;
    if (sl_links_read_wish(&wish) != SL_OK) {
        snprintf(text, size, "%s", sl_error_message());
    } else if (!device || sl_device_is_host(device)) {
        snprintf(text, size, "host memory: there is no GPU");
    } else if (wish == SL_LINKS_NONE) {
        snprintf(text, size, "host memory: SLUICE_DEVICE_LINKS is 0");
    } else {
        const sl_rank_offer own = { .queues = device->queues, .neighbors = 1 };
        bool one_way = wish == SL_LINKS_NCCL || wish == SL_LINKS_MPI;
        const char *obstacle = one_way ? sl_links_wish_reason(wish) : sl_rank_queue_obstacle(&own);
        describe_far(wish, far, sizeof far);
        if (obstacle)
            snprintf(text, size, "%s: %s", far, obstacle);
        else
            snprintf(text, size, "device memory on one machine, %s between machines", far);
    }
    return text;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static uint32_t tag_of(const sl_device_link *link, const sl_message *message)
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
    uint64_t hash = sl_hash_bytes(&plain, sizeof plain);
    return (uint32_t)(hash ^ hash >> 32) | 1; /* never what a cleared record has */
}

/* The next message of the step: its slot. */
static sl_status next_slot(sl_device_links *links, sl_device_link *link, const sl_message *message, int *slot)
{
    sl_status status = SL_OK;
    int64_t count = 0;
    if (link->next >= links->messages)
        return sl_fail(SL_ERR_COMM, "channel %d: message %d of a step that has %d at most", link->spec.id,
                       link->next + 1, links->messages);
    SL_TRY(sl_shape_count(&message->shape, &count));
    size_t bytes = (size_t)count * sl_dtype_size(message->dtype);
    if (bytes > link->spec.max_bytes)
        return sl_fail(SL_ERR_COMM, "channel %d: a message of %zu bytes, %zu at most", link->spec.id, bytes,
                       link->spec.max_bytes);
    *slot = link->next % link->spec.capacity;
    link->bytes[*slot] = bytes;
    link->number[*slot] = link->next;
    link->tags[link->next++] = tag_of(link, message);
done:
    return status;
}

static int slot_of(const sl_device_link *link, const void *slot)
{
    return (int)((size_t)((const char *)slot - link->slots) / link->stride);
}

sl_status sl_device_links_begin(sl_device_links *links, int64_t step, bool polled, sl_stream *out)
{
    sl_status status = SL_OK;
    links->step = step;
    links->polled = polled;
    for (int i = 0; i < links->count; i++)
        links->list[i].next = 0;
    for (int k = 0; k < KINDS; k++) {
        if (uses_kind(links, kinds[k]))
            SL_TRY(kinds[k]->begin(links, out));
    }
done:
    return status;
}

bool sl_device_links_are_polled(const sl_device_links *links)
{
    return links->polled;
}

sl_status sl_device_links_reserve(sl_device_links *links, int i, const sl_message *message, sl_stream *stream,
                                  void **slot)
{
    sl_status status = SL_OK;
    sl_device_link *link = &links->list[i];
    int s = 0;
    SL_TRY(next_slot(links, link, message, &s));
    SL_TRY(link->kind->reserve(links, link, s, stream));
    *slot = link->slots + (size_t)s * link->stride;
done:
    return status;
}

sl_status sl_device_links_commit(sl_device_links *links, int i, const void *slot, sl_stream *stream)
{
    sl_device_link *link = &links->list[i];
    return link->kind->commit(links, link, slot_of(link, slot), stream);
}

sl_status sl_device_links_receive(sl_device_links *links, int i, const sl_message *expected, sl_stream *stream,
                                  void **slot)
{
    sl_status status = SL_OK;
    sl_device_link *link = &links->list[i];
    int s = 0;
    SL_TRY(next_slot(links, link, expected, &s));
    SL_TRY(link->kind->receive(links, link, s, stream));
    *slot = link->slots + (size_t)s * link->stride;
done:
    return status;
}

sl_status sl_device_links_release(sl_device_links *links, int i, const void *slot, sl_stream *stream)
{
    sl_device_link *link = &links->list[i];
    return link->kind->release(links, link, slot_of(link, slot), stream);
}

sl_status sl_device_links_repeat(sl_device_links *links, int i, const sl_message *message)
{
    int slot = 0;
    return next_slot(links, &links->list[i], message, &slot);
}

/* ---- The end of a step ----------------------------------------------------------------------- */

sl_status sl_device_links_fetch(sl_device_links *links, sl_stream *in)
{
    sl_status status = SL_OK;
    for (int k = 0; k < KINDS; k++) {
        if (uses_kind(links, kinds[k]))
            SL_TRY(kinds[k]->fetch(links, in));
    }
done:
    return status;
}

/* All messages of one link were those that this rank expected. */
static sl_status check_link(sl_device_links *links, const sl_device_link *link)
{
    sl_status status = SL_OK;
    const uint32_t *record = NULL;
    SL_TRY(link->kind->get_record(links, link, &record));
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
done:
    return status;
}

sl_status sl_device_links_check(sl_device_links *links)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        if (link->kind && link->receives)
            SL_TRY(check_link(links, link));
    }
    /* Nobody goes on, and perhaps waits for a whole device, while a stream of another rank is still held up. */
    SL_TRY(sl_group_barrier(links->group));
done:
    return status;
}

sl_status sl_device_links_count_sent(sl_device_links *links, int i, int *out)
{
    const sl_device_link *link = &links->list[i];
    if (link->kind && (link->sends || link->receives))
        return link->kind->count_sent(links, link, out);
    *out = 0;
    return SL_OK;
}

int sl_device_links_peer(const sl_device_links *links, int i)
{
    const sl_device_link *link = &links->list[i];
    return link->sends ? link->spec.dst : link->spec.src;
}

sl_status sl_device_links_has_room(sl_device_links *links, int i, int number, bool *out)
{
    const sl_device_link *link = &links->list[i];
    return link->kind->has_room(links, link, number, out);
}
