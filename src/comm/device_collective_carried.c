/* Collectives through a carrier (carrier.h), for ranks that do not all reach each other's memory: one communicator for the group, made and
 * connected when the collective is opened.
 *
 * A carrier that adds does it in an order of its own. Sums in the order of the ranks are therefore exchanges of pieces, which each rank
 * receives into its staging memory and adds up by the kernel that the other kinds use. */
#include "comm/collective_kind.h"

#include "base/alloc.h"
#include "comm/carrier.h"

#include <stdio.h>
#include <string.h>

typedef struct carried_collective {
    sl_device_collective head;
    sl_carrier_comm *comm; /* NULL: it could not be opened */
    sl_device_waits waits;
    char *block; /* staging memory */
    size_t bytes;
    uint64_t *tags; /* (ranks) what each rank is about to do */
} carried_collective;

/* ---- Creation -------------------------------------------------------------------------------- */

/* Of all pairs of ranks. */
static const char *find_carrier_obstacle(sl_carrier_name name, const sl_rank_offer *offers, int ranks)
{
    const char *obstacle = NULL;
    for (int i = 0; i < ranks * ranks && !obstacle; i++)
        obstacle = i / ranks < i % ranks ? sl_carrier_obstacle(name, offers, i / ranks, i % ranks) : NULL;
    return obstacle;
}

static const char *find_obstacle(const sl_rank_offer *offers, int ranks)
{
    const char *first = NULL;
    for (int name = 0; name < SL_CARRIERS; name++) {
        const char *obstacle = find_carrier_obstacle((sl_carrier_name)name, offers, ranks);
        if (!obstacle)
            return NULL;
        first = first && *first ? first : obstacle;
    }
    return first;
}

static sl_status check_comm(void *user)
{
    const carried_collective *collective = user;
    return sl_carrier_check(collective->head.words, collective->comm);
}

static bool release_comm(void *user)
{
    const carried_collective *collective = user;
    collective->comm->carrier->stop(collective->comm);
    return true;
}

static void leave_comm(void *user)
{
    const carried_collective *collective = user;
    sl_carrier_leave(collective->head.words, collective->comm);
}

static void close_comm(carried_collective *collective)
{
    if (!collective->comm)
        return;
    leave_comm(collective);
    collective->comm->carrier->close(collective->comm);
    collective->comm = NULL;
}

static void close_carried(sl_device_collective *head)
{
    carried_collective *collective = (carried_collective *)head;
    sl_device_words_remove_waits(head->words, &collective->waits);
    close_comm(collective);
    sl_device_unshare(head->device, collective->block);
    sl_free(collective->tags);
    sl_free(collective);
}

static sl_status settle(const carried_collective *collective, double limit)
{
    return sl_carrier_settle(collective->head.words, collective->comm, limit);
}

/* Whatever happened since begin. */
static sl_status end_group(const carried_collective *collective, sl_status status)
{
    sl_status ended = collective->comm->carrier->end(collective->comm);
    return status != SL_OK ? status : ended;
}

/* One message from every rank to every other, of so many bytes: what is at send + to * stride comes to
 * receive + from * stride. */
static sl_status exchange_bytes(const carried_collective *collective, const char *send, char *receive, size_t stride,
                                size_t bytes, sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = collective->comm->carrier;
    SL_TRY(carrier->begin(collective->comm));
    for (int p = 0; p < collective->head.ranks; p++) {
        if (p == collective->head.rank)
            continue;
        SL_TRY(carrier->send(collective->comm, send + (size_t)p * stride, bytes, p, stream));
        SL_TRY(carrier->receive(collective->comm, receive + (size_t)p * stride, bytes, p, stream));
    }
done:
    return end_group(collective, status);
}

/* Everything once that a step may ask for, so that nothing is connected later. */
static sl_status use_once(const carried_collective *collective, sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = collective->comm->carrier;
    size_t ranks = (size_t)collective->head.ranks, half = collective->bytes / 2;
    SL_TRY(exchange_bytes(collective, collective->block, collective->block + half, 1, 1, stream));
    SL_TRY(settle(collective, SL_CARRIER_OPEN_SECONDS));
    SL_TRY(carrier->all_gather(collective->comm, collective->block, half / ranks, collective->block + half, stream));
    SL_TRY(settle(collective, SL_CARRIER_OPEN_SECONDS));
    SL_TRY(carrier->broadcast(collective->comm, collective->block, half, 0, stream));
    SL_TRY(settle(collective, SL_CARRIER_OPEN_SECONDS));
    if (!collective->head.any_order)
        goto done;
    for (int64_t count = 1; count <= (int64_t)(half / sizeof(float)); count *= 16) { /* NCCL chooses by the size */
        SL_TRY(carrier->all_reduce(collective->comm, collective->block, count, SL_F32, stream));
        SL_TRY(settle(collective, SL_CARRIER_OPEN_SECONDS));
    }
    SL_TRY(carrier->reduce_scatter(collective->comm, collective->block, collective->block + half,
                                   (int64_t)(half / sizeof(float) / ranks), SL_F32, stream));
    SL_TRY(settle(collective, SL_CARRIER_OPEN_SECONDS));
    SL_TRY(carrier->reduce(collective->comm, collective->block, collective->block + half, 1, SL_F32, 0, stream));
    SL_TRY(settle(collective, SL_CARRIER_OPEN_SECONDS));
done:
    return status == SL_OK ? sl_carrier_await(collective->head.words, collective->comm, stream) : status;
}

/* Through this carrier; collective->comm stays NULL, with a reason, if it cannot be had. */
static sl_status try_carrier(carried_collective *collective, sl_carrier_name name, const sl_rank_offer *offers,
                             char *reason)
{
    sl_status status = SL_OK, used = SL_OK;
    sl_device_collective *head = &collective->head;
    sl_stream *stream = NULL;
    SL_TRY(sl_carrier_open_group(name, head->words, head->group, offers, reason, &collective->comm));
    if (reason[0])
        goto done;
    head->any_order = head->any_order && collective->comm->carrier->all_reduce;
    head->way = collective->comm->carrier->way;
    head->communicators = name == SL_CARRIER_NCCL;
    SL_TRY(sl_stream_create(head->device, &stream));
    used = use_once(collective, stream);
    SL_TRY(sl_carrier_agree(head->group, used, reason));
done:
    if (reason[0] || status != SL_OK)
        close_comm(collective); /* lets the stream go */
    sl_stream_destroy(stream);
    return status;
}

/* The first carrier that serves all ranks. reason: of each that does not, why. */
static sl_status choose_carrier(carried_collective *collective, const sl_rank_offer *offers, char *reason)
{
    sl_status status = SL_OK;
    bool any_order = collective->head.any_order;
    for (int name = 0; name < SL_CARRIERS && !collective->comm; name++) {
        char why[256] = "";
        size_t used = strlen(reason);
        if (find_carrier_obstacle((sl_carrier_name)name, offers, collective->head.ranks))
            continue;
        collective->head.any_order = any_order;
        SL_TRY(try_carrier(collective, (sl_carrier_name)name, offers, why));
        if (why[0])
            snprintf(reason + used, 256 - used, "%s%s", used ? "; " : "", why);
    }
done:
    return status;
}

static sl_status open_carried(const sl_device_collective *head, const sl_rank_offer *offers, size_t bytes, char *reason,
                              sl_device_collective **out)
{
    sl_status status = SL_OK;
    carried_collective *collective = NULL;
    sl_device_handle unused; /* memory for messages is taken in one way, whoever reads it */
    SL_TRY(SL_NEW(collective));
    *collective = (carried_collective){ .head = *head, .bytes = bytes };
    *out = NULL;
    SL_TRY(SL_NEW_ARRAY(collective->tags, head->ranks));
    SL_TRY(sl_device_share(head->device, bytes, &unused, (void **)&collective->block));
    SL_TRY(choose_carrier(collective, offers, reason));
    if (!collective->comm)
        goto done;
    collective->waits =
        (sl_device_waits){ .check = check_comm, .release = release_comm, .leave = leave_comm, .user = collective };
    sl_device_words_add_waits(head->words, &collective->waits);
    *out = &collective->head;
    collective = NULL; /* now the caller's */
done:
    if (collective)
        close_carried(&collective->head);
    return status;
}

/* ---- In steps -------------------------------------------------------------------------------- */

/* In polled steps all ranks compare what they are about to do. */
static sl_status compare(const carried_collective *collective, sl_collective what, int64_t count, int64_t more)
{
    sl_status status = SL_OK;
    const int64_t plain[] = { what, count, more };
    uint64_t own = sl_hash_bytes(plain, sizeof plain);
    if (!sl_device_words_are_polled(collective->head.words))
        return SL_OK;
    SL_TRY(sl_group_all_gather(collective->head.group, &own, sizeof own, collective->tags));
    for (int r = 0; r < collective->head.ranks; r++) {
        if (collective->tags[r] != own)
            return sl_fail(SL_ERR_COMM, "another rank does something else here (tag %016llx, not %016llx)",
                           (unsigned long long)collective->tags[r], (unsigned long long)own);
    }
done:
    return status;
}

/* The stream has what was asked for. In polled steps it has also done it. */
static sl_status finish(const carried_collective *collective, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(settle(collective, 0));
    if (sl_device_words_are_polled(collective->head.words))
        SL_TRY(sl_device_words_wait(collective->head.words, stream));
done:
    return status;
}

static sl_status all_gather(sl_device_collective *head, const sl_bucket_item *items, int count, sl_stream *stream)
{
    sl_status status = SL_OK;
    const carried_collective *collective = (carried_collective *)head;
    const sl_carrier *carrier = collective->comm->carrier;
    int64_t total = sl_bucket_count(items, count);
    status = compare(collective, SL_COLLECTIVE_ALL_GATHER, total, count);
    if (status != SL_OK || total == 0)
        return status;
    SL_TRY(carrier->begin(collective->comm));
    for (int i = 0; i < count; i++) {
        if (items[i].count > 0)
            SL_TRY(carrier->all_gather(collective->comm, items[i].send, (size_t)items[i].count, items[i].recv, stream));
    }
done:
    status = end_group(collective, status);
    return status == SL_OK ? finish(collective, stream) : status;
}

static sl_status broadcast(sl_device_collective *head, int root, void *data, size_t bytes, sl_stream *stream)
{
    sl_status status = SL_OK;
    const carried_collective *collective = (carried_collective *)head;
    SL_TRY(compare(collective, SL_COLLECTIVE_BROADCAST, (int64_t)bytes, root));
    if (bytes == 0)
        return SL_OK;
    SL_TRY(collective->comm->carrier->broadcast(collective->comm, data, bytes, root, stream));
    SL_TRY(finish(collective, stream));
done:
    return status;
}

/* ---- Reduce-scatter -------------------------------------------------------------------------- */

/* Slot p of the staging memory gets what rank p has for this one. */
static sl_status exchange_window(const carried_collective *collective, const sl_scatter_sum *what,
                                 const sl_bucket_walk *window, sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = collective->comm->carrier;
    sl_bucket_span span;
    SL_TRY(carrier->begin(collective->comm));
    for (int p = 0; p < collective->head.ranks; p++) {
        for (sl_bucket_walk walk = *window; p != collective->head.rank && sl_bucket_next(&walk, &span);) {
            size_t bytes = (size_t)span.count * what->each;
            SL_TRY(carrier->send(collective->comm,
                                 sl_scatter_part(what, span.item, p) + (size_t)span.first * what->each, bytes, p,
                                 stream));
            SL_TRY(carrier->receive(collective->comm,
                                    collective->block + (size_t)p * what->slot + (size_t)span.offset * what->each,
                                    bytes, p, stream));
        }
    }
done:
    return end_group(collective, status);
}

/* This rank's span of the window, of all ranks; its own slot has room for the sum so far. */
static sl_status sum_span(const carried_collective *collective, const sl_scatter_sum *what, const sl_bucket_span *span,
                          sl_stream *stream)
{
    const sl_device_collective *head = &collective->head;
    size_t in_item = (size_t)span->first * what->each, in_slot = (size_t)span->offset * what->each;
    for (int p = 0; p < head->ranks; p++)
        head->sources[p] = p == head->rank ? sl_scatter_part(what, span->item, p) + in_item
                                           : collective->block + (size_t)p * what->slot + in_slot;
    return head->sum(stream, what->dtype, span->count, head->sources, head->ranks,
                     collective->block + (size_t)head->rank * what->slot, (char *)span->item->recv + in_item);
}

static sl_status scatter_in_order(const carried_collective *collective, sl_scatter_sum *what, int64_t total,
                                  sl_stream *stream)
{
    sl_status status = SL_OK;
    int64_t most = 0;
    SL_TRY(sl_collective_slot(collective->bytes, what->ranks, what->dtype, &what->slot, &most));
    for (int64_t at = 0; at < total; at += most) {
        const sl_bucket_walk window = sl_bucket_window(what->items, what->item_count, at, most);
        sl_bucket_span span;
        SL_TRY(exchange_window(collective, what, &window, stream));
        SL_TRY(finish(collective, stream));
        for (sl_bucket_walk walk = window; sl_bucket_next(&walk, &span);)
            SL_TRY(sum_span(collective, what, &span, stream));
    }
done:
    return status;
}

/* NCCL takes the parts in the order of the ranks; if they lie in another, each is a sum of its own. */
static sl_status scatter_item(const carried_collective *collective, const sl_scatter_sum *what,
                              const sl_bucket_item *item, sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = collective->comm->carrier;
    if (item->count == 0)
        return SL_OK;
    if (what->rows == 1 || what->rows == what->ranks)
        return carrier->reduce_scatter(collective->comm, item->send, item->recv, item->count, what->dtype, stream);
    for (int p = 0; p < what->ranks; p++)
        SL_TRY(carrier->reduce(collective->comm, sl_scatter_part(what, item, p),
                               p == collective->head.rank ? item->recv : NULL, item->count, what->dtype, p, stream));
done:
    return status;
}

static sl_status scatter_in_any_order(const carried_collective *collective, const sl_scatter_sum *what,
                                      sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(collective->comm->carrier->begin(collective->comm));
    for (int i = 0; i < what->item_count; i++)
        SL_TRY(scatter_item(collective, what, &what->items[i], stream));
done:
    status = end_group(collective, status);
    return status == SL_OK ? finish(collective, stream) : status;
}

static sl_status reduce_scatter(sl_device_collective *head, const sl_bucket_item *items, int count, int rows,
                                sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    const carried_collective *collective = (carried_collective *)head;
    int64_t total = sl_bucket_count(items, count);
    sl_scatter_sum what = sl_scatter_sum_of(head, items, count, rows, dtype);
    SL_TRY(compare(collective, SL_COLLECTIVE_REDUCE_SCATTER, total, (int64_t)dtype * 4096 + rows));
    if (total > 0)
        SL_TRY(head->any_order ? scatter_in_any_order(collective, &what, stream)
                               : scatter_in_order(collective, &what, total, stream));
done:
    return status;
}

/* ---- Sums for all ---------------------------------------------------------------------------- */

/* The slot of a part of another rank. */
static char *slot_of(const carried_collective *collective, const sl_parts_sum *what, int part)
{
    int place = what->parts[part].rank * what->most_parts + sl_parts_sum_number(what, part);
    return collective->block + (size_t)place * what->slot;
}

/* The last slot has this rank's sum. */
static char *sum_slot(const carried_collective *collective, const sl_parts_sum *what)
{
    return collective->block + (size_t)(what->ranks * what->most_parts) * what->slot;
}

/* This rank's parts go in pieces to those that add them up; of its own piece all others come. */
static sl_status exchange_parts(const carried_collective *collective, const sl_parts_sum *what, int64_t round,
                                sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = collective->comm->carrier;
    int me = collective->head.rank;
    int64_t first, own = sl_parts_sum_piece(what, me, round, &first);
    SL_TRY(carrier->begin(collective->comm));
    for (int i = 0; i < what->part_count; i++) {
        const sl_device_part *part = &what->parts[i];
        for (int q = 0; part->rank == me && q < what->ranks; q++) {
            int64_t count = sl_parts_sum_piece(what, q, round, &first);
            if (q != me && count > 0)
                SL_TRY(carrier->send(collective->comm, (char *)part->data + (size_t)first * what->each,
                                     (size_t)count * what->each, q, stream));
        }
        if (part->rank != me && own > 0)
            SL_TRY(carrier->receive(collective->comm, slot_of(collective, what, i), (size_t)own * what->each,
                                    part->rank, stream));
    }
done:
    return end_group(collective, status);
}

static sl_status add_parts(const carried_collective *collective, const sl_parts_sum *what, int64_t round,
                           sl_stream *stream)
{
    const sl_device_collective *head = &collective->head;
    int64_t first, count = sl_parts_sum_piece(what, head->rank, round, &first);
    if (count == 0)
        return SL_OK;
    for (int i = 0; i < what->part_count; i++)
        head->sources[i] = what->parts[i].rank == head->rank ? (char *)what->parts[i].data + (size_t)first * what->each
                                                             : slot_of(collective, what, i);
    return head->sum(stream, what->dtype, count, head->sources, what->part_count,
                     collective->block + (size_t)(head->rank * what->most_parts) * what->slot,
                     sum_slot(collective, what));
}

/* The rank's first part; NULL: it has none. */
static const sl_device_part *first_part(const sl_parts_sum *what, int rank)
{
    for (int i = 0; i < what->part_count; i++) {
        if (what->parts[i].rank == rank)
            return &what->parts[i];
    }
    return NULL;
}

/* Sums go to the first part of every rank that has one. */
static sl_status exchange_sums(const carried_collective *collective, const sl_parts_sum *what, int64_t round,
                               sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = collective->comm->carrier;
    int me = collective->head.rank;
    const sl_device_part *here = first_part(what, me);
    int64_t first, own = sl_parts_sum_piece(what, me, round, &first);
    SL_TRY(carrier->begin(collective->comm));
    for (int p = 0; p < what->ranks; p++) {
        int64_t count = sl_parts_sum_piece(what, p, round, &first);
        if (p != me && own > 0 && first_part(what, p))
            SL_TRY(carrier->send(collective->comm, sum_slot(collective, what), (size_t)own * what->each, p, stream));
        if (p != me && count > 0 && here)
            SL_TRY(carrier->receive(collective->comm, (char *)here->data + (size_t)first * what->each,
                                    (size_t)count * what->each, p, stream));
    }
done:
    return end_group(collective, status);
}

/* The own sum to the first part, and all sums of the round from there to the rank's other parts. */
static sl_status copy_sums(const carried_collective *collective, const sl_parts_sum *what, int64_t round,
                           sl_stream *stream)
{
    sl_status status = SL_OK;
    int me = collective->head.rank;
    const sl_device_part *here = first_part(what, me);
    for (int p = 0; here && p < what->ranks; p++) {
        int64_t first, count = sl_parts_sum_piece(what, p, round, &first);
        size_t at = (size_t)first * what->each, bytes = (size_t)count * what->each;
        for (int i = 0; count > 0 && i < what->part_count; i++) {
            const sl_device_part *part = &what->parts[i];
            const char *from = p == me ? sum_slot(collective, what) : (char *)here->data + at;
            if (part->rank == me && (p == me || part != here))
                SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_DEVICE, (char *)part->data + at, from, bytes));
        }
    }
done:
    return status;
}

static sl_status sum_in_order(const carried_collective *collective, sl_parts_sum *what, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(sl_collective_slot(collective->bytes, what->ranks * what->most_parts + 1, what->dtype, &what->slot,
                              &what->piece));
    for (int64_t round = 0; sl_parts_sum_has(what, round); round++) {
        SL_TRY(exchange_parts(collective, what, round, stream));
        SL_TRY(finish(collective, stream));
        SL_TRY(add_parts(collective, what, round, stream));
        SL_TRY(exchange_sums(collective, what, round, stream));
        SL_TRY(finish(collective, stream));
        SL_TRY(copy_sums(collective, what, round, stream));
    }
done:
    return status;
}

static sl_status sum_parts(sl_device_collective *head, const sl_device_part *parts, int part_count, int64_t count,
                           sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    const carried_collective *collective = (carried_collective *)head;
    sl_parts_sum what = sl_parts_sum_of(head, parts, part_count, count, dtype);
    bool one_each = part_count == head->ranks && what.most_parts == 1;
    SL_TRY(compare(collective, SL_COLLECTIVE_ALL_REDUCE, count, (int64_t)dtype * 4096 + part_count));
    if (count == 0)
        return SL_OK;
    if (!head->any_order || !one_each)
        return sum_in_order(collective, &what, stream);
    SL_TRY(collective->comm->carrier->all_reduce(collective->comm, first_part(&what, head->rank)->data, count, dtype,
                                                 stream));
    SL_TRY(finish(collective, stream));
done:
    return status;
}

const sl_collective_kind sl_collective_carried = {
    .find_obstacle = find_obstacle,
    .open = open_carried,
    .close = close_carried,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .sum_parts = sum_parts,
    .broadcast = broadcast,
};
