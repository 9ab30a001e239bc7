/* Collectives in device memory: staging, turns and words. */
#include "comm/device_collective.h"

#include "base/alloc.h"
#include "comm/reduce.h"

#include <stdio.h>

enum { HALVES = 2, ALIGNMENT = 256, WORDS_PER_TURN = 2 };

struct sl_device_collective {
    sl_device_words *words;
    sl_group *group;
    sl_device *device;
    sl_device_sum_fn sum;
    int rank, ranks;
    char *block;          /* this rank's: words, then two halves */
    void **attached;      /* (ranks) those of the others */
    size_t half_bytes;    /* of a half */
    uint32_t tag;         /* of the running collective */
    int64_t turn;         /* of it */
    sl_word_use *told;    /* (2 * ranks) room for what tells the others */
    const void **sources; /* room for those of one sum */
    int source_room;
};

/* ---- Creation -------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* `ready` and its tag, of each half and rank. They lie with the rank that waits for them. */
static size_t word_bytes(int ranks)
{
    return round_up((size_t)HALVES * WORDS_PER_TURN * (size_t)ranks * sizeof(uint32_t));
}

static uint32_t *ready_word(const sl_device_collective *collective, char *block, int half, int from)
{
    return (uint32_t *)(void *)block + ((ptrdiff_t)half * collective->ranks + from) * WORDS_PER_TURN;
}

/* Where a rank's half begins, for this rank's streams. */
static char *half_of(const sl_device_collective *collective, int rank, int half)
{
    char *block = rank == collective->rank ? collective->block : collective->attached[rank];
    return block + word_bytes(collective->ranks) + (size_t)half * collective->half_bytes;
}

/* Whether every rank may try to reach every other; the same on all. */
static sl_status find_reason(sl_device_collective *collective, char *reason)
{
    sl_status status = SL_OK;
    int ranks = collective->ranks;
    sl_rank_offer *offers = NULL;
    SL_TRY(SL_NEW_ARRAY(offers, ranks));
    SL_TRY(sl_rank_offers_gather(collective->group, collective->device, offers));
    for (int i = 0; i < ranks * ranks && !reason[0]; i++) {
        const char *obstacle = i / ranks != i % ranks ? sl_rank_obstacle(offers, ranks, i / ranks, i % ranks) : NULL;
        if (obstacle)
            snprintf(reason, 256, "%s", *obstacle ? obstacle : "NCCL is wished (SLUICE_DEVICE_LINKS)");
    }
done:
    sl_free(offers);
    return status;
}

static sl_status connect_ranks(sl_device_collective *collective, char *reason)
{
    sl_status status = SL_OK;
    int ranks = collective->ranks;
    size_t words = (size_t)HALVES * WORDS_PER_TURN * (size_t)ranks;
    sl_device_handle own = { { 0 } };
    uint8_t *wanted = NULL, *reached = NULL;
    SL_TRY(SL_NEW_ARRAY(wanted, ranks));
    SL_TRY(SL_NEW_ARRAY(reached, (int64_t)ranks * ranks));
    SL_TRY(sl_device_share(collective->device, word_bytes(ranks) + HALVES * collective->half_bytes, &own,
                           (void **)&collective->block));
    SL_TRY(sl_device_words_add(collective->words, (uint32_t *)(void *)collective->block, words));
    for (int p = 0; p < ranks; p++)
        wanted[p] = p != collective->rank;
    SL_TRY(sl_device_attach_peers(collective->group, collective->device, &own, wanted, collective->attached, reached,
                                  reason));
    for (int i = 0; i < ranks * ranks && !reason[0]; i++) {
        if (i / ranks != i % ranks && !reached[i])
            snprintf(reason, 256, "ranks cannot reach each other's memory");
    }
done:
    sl_free(reached);
    sl_free(wanted);
    return status;
}

sl_status sl_device_collective_open(sl_group *group, sl_device_words *words, size_t bytes, sl_device_sum_fn sum,
                                    char *reason, sl_device_collective **out)
{
    sl_status status = SL_OK;
    sl_device_collective *collective = NULL;
    char own_reason[256] = "";
    if (bytes / HALVES < (size_t)ALIGNMENT)
        return sl_fail(SL_ERR_ARGUMENT, "collectives in %zu bytes of device memory", bytes);
    SL_TRY(SL_NEW(collective));
    *collective = (sl_device_collective){ .words = words,
                                          .group = group,
                                          .device = sl_device_words_device(words),
                                          .sum = sum,
                                          .rank = sl_group_rank(group),
                                          .ranks = sl_group_size(group),
                                          .half_bytes = bytes / HALVES / ALIGNMENT * ALIGNMENT };
    SL_TRY(SL_NEW_ARRAY(collective->attached, collective->ranks));
    SL_TRY(SL_NEW_ARRAY(collective->told, (int64_t)WORDS_PER_TURN * collective->ranks));
    SL_TRY(find_reason(collective, own_reason));
    if (!own_reason[0])
        SL_TRY(connect_ranks(collective, own_reason));
    snprintf(reason, 256, "%s", own_reason);
    *out = own_reason[0] ? NULL : collective;
    if (!own_reason[0])
        collective = NULL; /* now the caller's */
done:
    sl_device_collective_close(collective);
    return status;
}

void sl_device_collective_close(sl_device_collective *collective)
{
    if (!collective)
        return;
    if (collective->block)
        sl_device_words_remove(collective->words, (uint32_t *)(void *)collective->block);
    for (int p = 0; collective->attached && p < collective->ranks; p++)
        sl_device_detach(collective->device, collective->attached[p]);
    sl_device_unshare(collective->device, collective->block);
    sl_free(collective->attached);
    sl_free(collective->told);
    sl_free(collective->sources);
    sl_free(collective);
}

/* ---- Turns ----------------------------------------------------------------------------------- */

typedef enum collective_kind { ALL_GATHER = 1, REDUCE_SCATTER, SUM, BROADCAST } collective_kind;

/* What all ranks must agree on is part of the tag. */
static void begin(sl_device_collective *collective, collective_kind kind, int64_t count, int64_t more)
{
    const int64_t plain[] = { kind, count, more };
    uint64_t hash = sl_hash_bytes(plain, sizeof plain);
    collective->tag = (uint32_t)(hash ^ hash >> 32);
    collective->turn = 0;
}

static int current_half(const sl_device_collective *collective)
{
    return (int)(collective->turn % HALVES);
}

/* What this rank has put into its half can be read; waits until it can read those of the others. */
static sl_status meet(sl_device_collective *collective, sl_stream *stream)
{
    sl_status status = SL_OK;
    int half = current_half(collective), count = 0;
    uint32_t tag = collective->tag + (uint32_t)collective->turn;
    for (int i = 1; i < collective->ranks; i++) {
        int to = (collective->rank + i) % collective->ranks;
        uint32_t *word = ready_word(collective, collective->attached[to], half, collective->rank);
        collective->told[count++] = (sl_word_use){ .kind = SL_WORD_WRITE, .word = word + 1, .value = tag };
        collective->told[count++] = (sl_word_use){ .kind = SL_WORD_WRITE, .word = word, .value = 1 };
    }
    SL_TRY(sl_stream_use_words(stream, collective->told, count));
    for (int p = 0; p < collective->ranks; p++) {
        if (p != collective->rank)
            SL_TRY(sl_device_words_take(collective->words, ready_word(collective, collective->block, half, p), &tag,
                                        sl_device_words_are_polled(collective->words), stream));
    }
done:
    return status;
}

/* An even number of turns leaves the halves as they were: the next collective begins with the first again. */
static sl_status end(sl_device_collective *collective, sl_stream *stream)
{
    sl_status status = SL_OK;
    if (collective->turn % HALVES != 0)
        SL_TRY(meet(collective, stream));
done:
    return status;
}

static sl_status copy(sl_stream *stream, void *to, const void *from, size_t bytes)
{
    return bytes > 0 && to != from ? sl_stream_copy(stream, SL_COPY_DEVICE_TO_DEVICE, to, from, bytes) : SL_OK;
}

/* ---- Buckets --------------------------------------------------------------------------------- */

/* Some elements of a bucket that lie in one item. */
typedef struct bucket_span {
    const sl_bucket_item *item;
    int64_t first;  /* in the item */
    int64_t offset; /* in the window */
    int64_t count;
} bucket_span;

/* A range of what all items have, one after another, and how far one has come in it. */
typedef struct bucket_walk {
    const sl_bucket_item *items;
    int item_count;
    int64_t at, left; /* from here on */
    int64_t passed;
} bucket_walk;

static bool next_span(bucket_walk *walk, bucket_span *out)
{
    int64_t at = walk->at;
    for (int i = 0; walk->left > 0 && i < walk->item_count; i++) {
        int64_t rest = walk->items[i].count - at;
        if (rest > 0) {
            int64_t count = rest < walk->left ? rest : walk->left;
            *out = (bucket_span){ .item = &walk->items[i], .first = at, .offset = walk->passed, .count = count };
            walk->at += count;
            walk->left -= count;
            walk->passed += count;
            return true;
        }
        at -= walk->items[i].count;
    }
    return false;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t count_bucket(const sl_bucket_item *items, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += items[i].count;
    return sum;
}

/* ---- All-gather and broadcast ---------------------------------------------------------------- */

/* One window of each rank's bytes: this rank's into its half and its place, those of the others out of theirs. */
static sl_status gather_window(sl_device_collective *collective, const bucket_walk *window, sl_stream *stream)
{
    sl_status status = SL_OK;
    int half = current_half(collective);
    bucket_span span;
    for (bucket_walk walk = *window; next_span(&walk, &span);) {
        const char *from = (const char *)span.item->send + span.first;
        char *place = (char *)span.item->recv + collective->rank * span.item->count + span.first;
        SL_TRY(copy(stream, half_of(collective, collective->rank, half) + span.offset, from, (size_t)span.count));
        SL_TRY(copy(stream, place, from, (size_t)span.count));
    }
    SL_TRY(meet(collective, stream));
    for (int p = 0; p < collective->ranks; p++) {
        for (bucket_walk walk = *window; p != collective->rank && next_span(&walk, &span);) {
            char *place = (char *)span.item->recv + p * span.item->count + span.first;
            SL_TRY(copy(stream, place, half_of(collective, p, half) + span.offset, (size_t)span.count));
        }
    }
done:
    return status;
}

sl_status sl_device_all_gather(sl_device_collective *collective, const sl_bucket_item *items, int count,
                               sl_stream *stream)
{
    sl_status status = SL_OK;
    int64_t total = count_bucket(items, count), most = (int64_t)collective->half_bytes;
    begin(collective, ALL_GATHER, total, count);
    for (int64_t at = 0; at < total; at += most, collective->turn++) {
        const bucket_walk window = { .items = items, .item_count = count, .at = at, .left = smaller(total - at, most) };
        SL_TRY(gather_window(collective, &window, stream));
    }
    SL_TRY(end(collective, stream));
done:
    return status;
}

sl_status sl_device_broadcast(sl_device_collective *collective, int root, void *data, size_t bytes, sl_stream *stream)
{
    sl_status status = SL_OK;
    size_t most = collective->half_bytes;
    begin(collective, BROADCAST, (int64_t)bytes, root);
    for (size_t at = 0; at < bytes; at += most, collective->turn++) {
        char *place = (char *)data + at;
        size_t some = bytes - at < most ? bytes - at : most;
        char *staging = half_of(collective, root, current_half(collective));
        if (collective->rank == root)
            SL_TRY(copy(stream, staging, place, some));
        SL_TRY(meet(collective, stream));
        if (collective->rank != root)
            SL_TRY(copy(stream, place, staging, some));
    }
    SL_TRY(end(collective, stream));
done:
    return status;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* Room for so many summands; nothing is allocated any more once a collective of each kind has been. */
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

/* The bytes and elements of a slot if a half has so many of them. It begins at an aligned address and has room for a
 * running sum. */
static sl_status find_slot(const sl_device_collective *collective, int slots, sl_dtype dtype, size_t *bytes,
                           int64_t *elements)
{
    size_t room = collective->half_bytes / (size_t)slots / ALIGNMENT * ALIGNMENT;
    if (room == 0)
        return sl_fail(SL_ERR_ARGUMENT, "a sum of %d parts in %zu bytes of device memory", slots,
                       HALVES * collective->half_bytes);
    *bytes = room;
    *elements = (int64_t)(room / sl_dtype_size(sl_reduce_wide(dtype)));
    return SL_OK;
}

/* ---- Reduce-scatter -------------------------------------------------------------------------- */

typedef struct scatter {
    const sl_bucket_item *items;
    int item_count, rows;
    sl_dtype dtype;
    size_t each, slot; /* bytes of an element, of a rank's slot */
} scatter;

/* Where a rank's part of an item begins in what this rank has of it. */
static const char *part_of_item(const sl_device_collective *collective, const scatter *what, const sl_bucket_item *item,
                                int part)
{
    int columns = collective->ranks / what->rows;
    size_t place = (size_t)(part % what->rows) * (size_t)columns + (size_t)(part / what->rows);
    return (const char *)item->send + place * (size_t)item->count * what->each;
}

/* This rank's span of the window, of all ranks. */
static sl_status sum_span(sl_device_collective *collective, const scatter *what, const bucket_span *span,
                          sl_stream *stream)
{
    sl_status status = SL_OK;
    int half = current_half(collective), me = collective->rank;
    size_t in_slot = (size_t)me * what->slot + (size_t)span->offset * what->each;
    size_t in_item = (size_t)span->first * what->each;
    for (int p = 0; p < collective->ranks; p++)
        collective->sources[p] =
            p == me ? part_of_item(collective, what, span->item, me) + in_item : half_of(collective, p, half) + in_slot;
    SL_TRY(collective->sum(stream, what->dtype, span->count, collective->sources, collective->ranks,
                           half_of(collective, me, half) + (size_t)me * what->slot,
                           (char *)span->item->recv + in_item));
done:
    return status;
}

/* One window of each part: slot q of a half is for rank q; this rank's own has room for its sum so far. */
static sl_status scatter_window(sl_device_collective *collective, const scatter *what, const bucket_walk *window,
                                sl_stream *stream)
{
    sl_status status = SL_OK;
    char *staging = half_of(collective, collective->rank, current_half(collective));
    bucket_span span;
    for (int q = 0; q < collective->ranks; q++) {
        for (bucket_walk walk = *window; q != collective->rank && next_span(&walk, &span);)
            SL_TRY(copy(stream, staging + (size_t)q * what->slot + (size_t)span.offset * what->each,
                        part_of_item(collective, what, span.item, q) + (size_t)span.first * what->each,
                        (size_t)span.count * what->each));
    }
    SL_TRY(meet(collective, stream));
    for (bucket_walk walk = *window; next_span(&walk, &span);)
        SL_TRY(sum_span(collective, what, &span, stream));
done:
    return status;
}

sl_status sl_device_reduce_scatter(sl_device_collective *collective, const sl_bucket_item *items, int count, int rows,
                                   sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(sl_reduce_check(dtype, SL_REDUCE_SUM));
    SL_TRY(make_sources(collective, collective->ranks));
    int64_t total = count_bucket(items, count), most = 0;
    scatter what = { .items = items, .item_count = count, .rows = rows, .dtype = dtype, .each = sl_dtype_size(dtype) };
    SL_TRY(find_slot(collective, collective->ranks, dtype, &what.slot, &most));
    begin(collective, REDUCE_SCATTER, total, (int64_t)dtype * 4096 + rows);
    for (int64_t at = 0; at < total; at += most, collective->turn++) {
        const bucket_walk window = { .items = items, .item_count = count, .at = at, .left = smaller(total - at, most) };
        SL_TRY(scatter_window(collective, &what, &window, stream));
    }
    SL_TRY(end(collective, stream));
done:
    return status;
}

/* ---- Sums for all ---------------------------------------------------------------------------- */

typedef struct parts_sum {
    const sl_device_part *parts;
    int part_count, most_parts; /* of all ranks; of one */
    sl_dtype dtype;
    size_t each, slot; /* bytes of an element, of a part's slot */
    int64_t count, piece;
} parts_sum;

/* The round's piece of the range that a rank sums up: from *first on. */
static int64_t piece_of(const sl_device_collective *collective, const parts_sum *what, int rank, int64_t round,
                        int64_t *first)
{
    int64_t base = what->count / collective->ranks, more = what->count % collective->ranks;
    int64_t range = base + (rank < more), start = round * what->piece;
    *first = base * rank + smaller(rank, more) + start;
    return start < range ? smaller(range - start, what->piece) : 0;
}

/* Which of its rank's parts it is. */
static int number_of(const parts_sum *what, int part)
{
    int number = 0;
    for (int i = 0; i < part; i++)
        number += what->parts[i].rank == what->parts[part].rank;
    return number;
}

/* Each rank gets the pieces of its range from all others and adds them up: into its half of the next turn. */
static sl_status sum_piece(sl_device_collective *collective, const parts_sum *what, int64_t round, sl_stream *stream)
{
    sl_status status = SL_OK;
    int me = collective->rank, half = current_half(collective);
    int64_t first, count;
    for (int q = 0; q < collective->ranks; q++) {
        count = piece_of(collective, what, q, round, &first);
        for (int i = 0; q != me && i < what->part_count; i++) {
            size_t slot = (size_t)(q * what->most_parts + number_of(what, i)) * what->slot;
            if (what->parts[i].rank == me)
                SL_TRY(copy(stream, half_of(collective, me, half) + slot,
                            (char *)what->parts[i].data + (size_t)first * what->each, (size_t)count * what->each));
        }
    }
    SL_TRY(meet(collective, stream));
    count = piece_of(collective, what, me, round, &first);
    for (int i = 0; i < what->part_count; i++) {
        const sl_device_part *part = &what->parts[i];
        size_t slot = (size_t)(me * what->most_parts + number_of(what, i)) * what->slot;
        collective->sources[i] = part->rank == me ? (char *)part->data + (size_t)first * what->each
                                                  : half_of(collective, part->rank, half) + slot;
    }
    if (count > 0)
        SL_TRY(collective->sum(stream, what->dtype, count, collective->sources, what->part_count,
                               half_of(collective, me, half) + (size_t)(me * what->most_parts) * what->slot,
                               half_of(collective, me, 1 - half)));
done:
    return status;
}

/* All sums of the round to all parts of this rank. */
static sl_status spread_sums(sl_device_collective *collective, const parts_sum *what, int64_t round, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(meet(collective, stream));
    for (int p = 0; p < collective->ranks; p++) {
        int64_t first, count = piece_of(collective, what, p, round, &first);
        for (int i = 0; i < what->part_count; i++) {
            if (what->parts[i].rank == collective->rank)
                SL_TRY(copy(stream, (char *)what->parts[i].data + (size_t)first * what->each,
                            half_of(collective, p, current_half(collective)), (size_t)count * what->each));
        }
    }
done:
    return status;
}

sl_status sl_device_sum(sl_device_collective *collective, const sl_device_part *parts, int part_count, int64_t count,
                        sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(sl_reduce_check(dtype, SL_REDUCE_SUM));
    SL_TRY(make_sources(collective, part_count));
    parts_sum what = { .parts = parts,
                       .part_count = part_count,
                       .most_parts = 1,
                       .dtype = dtype,
                       .each = sl_dtype_size(dtype),
                       .count = count };
    for (int i = 0; i < part_count; i++) {
        int number = number_of(&what, i);
        what.most_parts = number + 1 > what.most_parts ? number + 1 : what.most_parts;
    }
    SL_TRY(find_slot(collective, collective->ranks * what.most_parts, dtype, &what.slot, &what.piece));
    begin(collective, SUM, count, (int64_t)dtype * 4096 + part_count);
    int64_t longest = (count + collective->ranks - 1) / collective->ranks;
    for (int64_t round = 0; round * what.piece < longest; round++) {
        SL_TRY(sum_piece(collective, &what, round, stream));
        collective->turn++;
        SL_TRY(spread_sums(collective, &what, round, stream));
        collective->turn++;
    }
done:
    return status;
}
