/* Collectives on devices: which kind serves a group, and what all kinds count in the same way. */
#include "comm/collective_kind.h"

#include "base/alloc.h"
#include "comm/reduce.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 256 };

/* The first one that can serve a group does. */
static const sl_collective_kind *const kinds[] = { &sl_collective_shared, &sl_collective_carried };
enum { KINDS = sizeof kinds / sizeof *kinds };

sl_status sl_device_collective_open(sl_group *group, sl_device_words *words,
                                    const sl_device_collective_options *options, char *reason,
                                    sl_device_collective **out)
{
    sl_status status = SL_OK;
    sl_rank_offer *offers = NULL;
    sl_device_collective *made = NULL;
    sl_device_collective head = { .words = words,
                                  .group = group,
                                  .device = sl_device_words_device(words),
                                  .sum = options->sum,
                                  .any_order = options->any_order,
                                  .rank = sl_group_rank(group),
                                  .ranks = sl_group_size(group) };
    char first[256] = "";
    SL_TRY(SL_NEW_ARRAY(offers, head.ranks));
    SL_TRY(sl_rank_offers_gather(group, head.device, offers));
    for (int k = 0; k < KINDS && !made; k++) {
        char why[256] = "";
        const char *obstacle = kinds[k]->find_obstacle(offers, head.ranks);
        head.kind = kinds[k];
        if (obstacle)
            snprintf(why, sizeof why, "%s", obstacle);
        else
            SL_TRY(kinds[k]->open(&head, offers, options->bytes, why, &made));
        size_t used = strlen(first);
        if (!used || !obstacle)
            snprintf(first + used, sizeof first - used, "%s%s", used && why[0] ? "; " : "", why);
    }
    if (made && !first[0])
        snprintf(first, sizeof first, "%s", sl_links_wish_reason(offers[head.rank].wish));
    snprintf(reason, 256, "%s", first);
    *out = made;
done:
    sl_free(offers);
    return status;
}

void sl_device_collective_close(sl_device_collective *collective)
{
    if (!collective)
        return;
    sl_free(collective->sources);
    collective->sources = NULL;
    collective->kind->close(collective);
}

bool sl_device_collective_adds_in_order(const sl_device_collective *collective)
{
    return !collective->any_order;
}

int sl_device_collective_communicators(const sl_device_collective *collective)
{
    return collective->communicators;
}

const char *sl_device_collective_way(const sl_device_collective *collective)
{
    return collective->way;
}

/* Room for the sources of a sum; kept for the next ones. */
static sl_status make_sources(sl_device_collective *collective, int count)
{
    sl_status status = SL_OK;
    if (count <= collective->source_room)
        return SL_OK;
    sl_free(collective->sources);
    collective->sources = NULL;
    collective->source_room = 0;
    SL_TRY(SL_NEW_ARRAY(collective->sources, count));
    collective->source_room = count;
done:
    return status;
}

sl_status sl_device_all_gather(sl_device_collective *collective, const sl_bucket_item *items, int count,
                               sl_stream *stream)
{
    return collective->kind->all_gather(collective, items, count, stream);
}

sl_status sl_device_reduce_scatter(sl_device_collective *collective, const sl_bucket_item *items, int count, int rows,
                                   sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(sl_reduce_check(dtype, SL_REDUCE_SUM));
    SL_TRY(make_sources(collective, collective->ranks));
    SL_TRY(collective->kind->reduce_scatter(collective, items, count, rows, dtype, stream));
done:
    return status;
}

sl_status sl_device_sum(sl_device_collective *collective, const sl_device_part *parts, int part_count, int64_t count,
                        sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(sl_reduce_check(dtype, SL_REDUCE_SUM));
    SL_TRY(make_sources(collective, part_count));
    SL_TRY(collective->kind->sum_parts(collective, parts, part_count, count, dtype, stream));
done:
    return status;
}

sl_status sl_device_broadcast(sl_device_collective *collective, int root, void *data, size_t bytes, sl_stream *stream)
{
    return collective->kind->broadcast(collective, root, data, bytes, stream);
}

/* ---- Buckets --------------------------------------------------------------------------------- */

sl_bucket_walk sl_bucket_window(const sl_bucket_item *items, int count, int64_t at, int64_t most)
{
    int64_t rest = sl_bucket_count(items, count) - at;
    return (sl_bucket_walk){ .items = items, .item_count = count, .at = at, .left = rest < most ? rest : most };
}

bool sl_bucket_next(sl_bucket_walk *walk, sl_bucket_span *out)
{
    int64_t at = walk->at;
    for (int i = 0; walk->left > 0 && i < walk->item_count; i++) {
        int64_t rest = walk->items[i].count - at;
        if (rest > 0) {
            int64_t count = rest < walk->left ? rest : walk->left;
            *out = (sl_bucket_span){ .item = &walk->items[i], .first = at, .offset = walk->passed, .count = count };
            walk->at += count;
            walk->left -= count;
            walk->passed += count;
            return true;
        }
        at -= walk->items[i].count;
    }
    return false;
}

sl_scatter_sum sl_scatter_sum_of(const sl_device_collective *collective, const sl_bucket_item *items, int count,
                                 int rows, sl_dtype dtype)
{
    return (sl_scatter_sum){ .items = items,
                             .item_count = count,
                             .ranks = collective->ranks,
                             .rows = rows,
                             .dtype = dtype,
                             .each = sl_dtype_size(dtype) };
}

const char *sl_scatter_part(const sl_scatter_sum *sum, const sl_bucket_item *item, int rank)
{
    int columns = sum->ranks / sum->rows;
    size_t place = (size_t)(rank % sum->rows) * (size_t)columns + (size_t)(rank / sum->rows);
    return (const char *)item->send + place * (size_t)item->count * sum->each;
}

/* ---- Sums of parts --------------------------------------------------------------------------- */

int sl_parts_sum_number(const sl_parts_sum *sum, int part)
{
    int number = 0;
    for (int i = 0; i < part; i++)
        number += sum->parts[i].rank == sum->parts[part].rank;
    return number;
}

sl_parts_sum sl_parts_sum_of(const sl_device_collective *collective, const sl_device_part *parts, int part_count,
                             int64_t count, sl_dtype dtype)
{
    sl_parts_sum sum = { .parts = parts,
                         .part_count = part_count,
                         .most_parts = 1,
                         .ranks = collective->ranks,
                         .dtype = dtype,
                         .each = sl_dtype_size(dtype),
                         .count = count };
    for (int i = 0; i < part_count; i++) {
        int number = sl_parts_sum_number(&sum, i);
        sum.most_parts = number + 1 > sum.most_parts ? number + 1 : sum.most_parts;
    }
    return sum;
}

int64_t sl_parts_sum_piece(const sl_parts_sum *sum, int rank, int64_t round, int64_t *first)
{
    int64_t base = sum->count / sum->ranks, more = sum->count % sum->ranks;
    int64_t range = base + (rank < more), start = round * sum->piece, left = range - start;
    *first = base * rank + (rank < more ? rank : more) + start;
    return left <= 0 ? 0 : left < sum->piece ? left : sum->piece;
}

bool sl_parts_sum_has(const sl_parts_sum *sum, int64_t round)
{
    return round * sum->piece < (sum->count + sum->ranks - 1) / sum->ranks;
}

size_t sl_collective_align(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

sl_status sl_collective_slot(size_t room, int slots, sl_dtype dtype, size_t *bytes, int64_t *elements)
{
    size_t each = room / (size_t)slots / ALIGNMENT * ALIGNMENT;
    if (each == 0)
        return sl_fail(SL_ERR_ARGUMENT, "a sum of %d parts in %zu bytes of device memory", slots, room);
    *bytes = each;
    *elements = (int64_t)(each / sl_dtype_size(sl_reduce_wide(dtype)));
    return SL_OK;
}
