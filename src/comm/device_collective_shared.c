/* Collectives between ranks of one machine, through device memory that all of them read. They are copies, kernels and words
 * of a stream; each is the same work every time, so that it can be captured.
 *
 * Every rank has a block of staging memory. A collective is a number of turns. In a turn each rank puts something into one
 * half of its block and tells all others, then takes what it needs out of theirs. Turns use the two halves alternately: who
 * hears of a rank's turn knows that this rank has read all of the turn before, so a half is free again without another
 * word. */
#include "comm/collective_kind.h"

#include "base/alloc.h"

#include <stdio.h>

enum { HALVES = 2, ALIGNMENT = 256, WORDS_PER_TURN = 2 };

typedef struct shared_collective {
    sl_device_collective head;
    char *block;       /* this rank's: words, then two halves */
    void **attached;   /* (ranks) those of the others */
    size_t half_bytes; /* of a half */
    uint32_t tag;      /* of the running collective */
    int64_t turn;      /* of it */
    sl_word_use *told; /* (2 * ranks) room for what tells the others */
} shared_collective;

/* ---- Creation -------------------------------------------------------------------------------- */

/* `ready` and its tag, of each half and rank. They lie with the rank that waits for them. */
static size_t word_bytes(int ranks)
{
    return sl_collective_align((size_t)HALVES * WORDS_PER_TURN * (size_t)ranks * sizeof(uint32_t));
}

static uint32_t *ready_word(const shared_collective *collective, char *block, int half, int from)
{
    return (uint32_t *)(void *)block + ((ptrdiff_t)half * collective->head.ranks + from) * WORDS_PER_TURN;
}

/* Where a rank's half begins, for this rank's streams. */
static char *half_of(const shared_collective *collective, int rank, int half)
{
    char *block = rank == collective->head.rank ? collective->block : collective->attached[rank];
    return block + word_bytes(collective->head.ranks) + (size_t)half * collective->half_bytes;
}

static const char *find_obstacle(const sl_rank_offer *offers, int ranks)
{
    const char *obstacle = NULL;
    for (int i = 0; i < ranks * ranks && !obstacle; i++)
        obstacle = i / ranks != i % ranks ? sl_rank_obstacle(offers, ranks, i / ranks, i % ranks) : NULL;
    return obstacle;
}

static sl_status connect_ranks(shared_collective *collective, char *reason)
{
    sl_status status = SL_OK;
    int ranks = collective->head.ranks;
    size_t words = (size_t)HALVES * WORDS_PER_TURN * (size_t)ranks;
    sl_device_handle own = { { 0 } };
    uint8_t *wanted = NULL, *reached = NULL;
    SL_TRY(SL_NEW_ARRAY(wanted, ranks));
    SL_TRY(SL_NEW_ARRAY(reached, (int64_t)ranks * ranks));
    SL_TRY(sl_device_share(collective->head.device, word_bytes(ranks) + HALVES * collective->half_bytes, &own,
                           (void **)&collective->block));
    SL_TRY(sl_device_words_add(collective->head.words, (uint32_t *)(void *)collective->block, words));
    for (int p = 0; p < ranks; p++)
        wanted[p] = p != collective->head.rank;
    SL_TRY(sl_device_attach_peers(collective->head.group, collective->head.device, &own, wanted, collective->attached,
                                  reached, reason));
    for (int i = 0; i < ranks * ranks && !reason[0]; i++) {
        if (i / ranks != i % ranks && !reached[i])
            snprintf(reason, 256, "ranks cannot reach each other's memory");
    }
done:
    sl_free(reached);
    sl_free(wanted);
    return status;
}

static void close_shared(sl_device_collective *head)
{
    shared_collective *collective = (shared_collective *)head;
    if (collective->block)
        sl_device_words_remove(head->words, (uint32_t *)(void *)collective->block);
    for (int p = 0; collective->attached && p < head->ranks; p++)
        sl_device_detach(head->device, collective->attached[p]);
    sl_device_unshare(head->device, collective->block);
    sl_free(collective->attached);
    sl_free(collective->told);
    sl_free(collective);
}

static sl_status open_shared(const sl_device_collective *head, const sl_rank_offer *offers, size_t bytes, char *reason,
                             sl_device_collective **out)
{
    sl_status status = SL_OK;
    shared_collective *collective = NULL;
    (void)offers;
    if (bytes / HALVES < (size_t)ALIGNMENT)
        return sl_fail(SL_ERR_ARGUMENT, "collectives in %zu bytes of device memory", bytes);
    SL_TRY(SL_NEW(collective));
    *collective = (shared_collective){ .head = *head, .half_bytes = bytes / HALVES / ALIGNMENT * ALIGNMENT };
    collective->head.way = "by streams";
    collective->head.any_order = false; /* none is faster than that of the ranks */
    SL_TRY(SL_NEW_ARRAY(collective->attached, head->ranks));
    SL_TRY(SL_NEW_ARRAY(collective->told, (int64_t)WORDS_PER_TURN * head->ranks));
    SL_TRY(connect_ranks(collective, reason));
    *out = reason[0] ? NULL : &collective->head;
    if (!reason[0])
        collective = NULL; /* now the caller's */
done:
    if (collective)
        close_shared(&collective->head);
    return status;
}

/* ---- Turns ----------------------------------------------------------------------------------- */

/* What all ranks must agree on is part of the tag. */
static void begin(shared_collective *collective, sl_collective what, int64_t count, int64_t more)
{
    const int64_t plain[] = { what, count, more };
    uint64_t hash = sl_hash_bytes(plain, sizeof plain);
    collective->tag = (uint32_t)(hash ^ hash >> 32);
    collective->turn = 0;
}

static int current_half(const shared_collective *collective)
{
    return (int)(collective->turn % HALVES);
}

/* What this rank has put into its half can be read; waits until it can read those of the others. */
static sl_status meet(shared_collective *collective, sl_stream *stream)
{
    sl_status status = SL_OK;
    int half = current_half(collective), count = 0;
    uint32_t tag = collective->tag + (uint32_t)collective->turn;
    for (int i = 1; i < collective->head.ranks; i++) {
        int to = (collective->head.rank + i) % collective->head.ranks;
        uint32_t *word = ready_word(collective, collective->attached[to], half, collective->head.rank);
        collective->told[count++] = (sl_word_use){ .kind = SL_WORD_WRITE, .word = word + 1, .value = tag };
        collective->told[count++] = (sl_word_use){ .kind = SL_WORD_WRITE, .word = word, .value = 1 };
    }
    SL_TRY(sl_stream_use_words(stream, collective->told, count));
    for (int p = 0; p < collective->head.ranks; p++) {
        if (p != collective->head.rank)
            SL_TRY(sl_device_words_take(collective->head.words, ready_word(collective, collective->block, half, p),
                                        &tag, sl_device_words_are_polled(collective->head.words), stream));
    }
done:
    return status;
}

/* An even number of turns leaves the halves as they were: the next collective begins with the first again. */
static sl_status end(shared_collective *collective, sl_stream *stream)
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

/* ---- All-gather and broadcast ---------------------------------------------------------------- */

/* One window of each rank's bytes: this rank's into its half and its place, those of the others out of theirs. */
static sl_status gather_window(shared_collective *collective, const sl_bucket_walk *window, sl_stream *stream)
{
    sl_status status = SL_OK;
    int half = current_half(collective);
    sl_bucket_span span;
    for (sl_bucket_walk walk = *window; sl_bucket_next(&walk, &span);) {
        const char *from = (const char *)span.item->send + span.first;
        char *place = (char *)span.item->recv + collective->head.rank * span.item->count + span.first;
        SL_TRY(copy(stream, half_of(collective, collective->head.rank, half) + span.offset, from, (size_t)span.count));
        SL_TRY(copy(stream, place, from, (size_t)span.count));
    }
    SL_TRY(meet(collective, stream));
    for (int p = 0; p < collective->head.ranks; p++) {
        for (sl_bucket_walk walk = *window; p != collective->head.rank && sl_bucket_next(&walk, &span);) {
            char *place = (char *)span.item->recv + p * span.item->count + span.first;
            SL_TRY(copy(stream, place, half_of(collective, p, half) + span.offset, (size_t)span.count));
        }
    }
done:
    return status;
}

static sl_status all_gather(sl_device_collective *head, const sl_bucket_item *items, int count, sl_stream *stream)
{
    sl_status status = SL_OK;
    shared_collective *collective = (shared_collective *)head;
    int64_t total = sl_bucket_count(items, count), most = (int64_t)collective->half_bytes;
    begin(collective, SL_COLLECTIVE_ALL_GATHER, total, count);
    for (int64_t at = 0; at < total; at += most, collective->turn++) {
        const sl_bucket_walk window = sl_bucket_window(items, count, at, most);
        SL_TRY(gather_window(collective, &window, stream));
    }
    SL_TRY(end(collective, stream));
done:
    return status;
}

static sl_status broadcast(sl_device_collective *head, int root, void *data, size_t bytes, sl_stream *stream)
{
    sl_status status = SL_OK;
    shared_collective *collective = (shared_collective *)head;
    size_t most = collective->half_bytes;
    begin(collective, SL_COLLECTIVE_BROADCAST, (int64_t)bytes, root);
    for (size_t at = 0; at < bytes; at += most, collective->turn++) {
        char *place = (char *)data + at;
        size_t some = bytes - at < most ? bytes - at : most;
        char *staging = half_of(collective, root, current_half(collective));
        if (collective->head.rank == root)
            SL_TRY(copy(stream, staging, place, some));
        SL_TRY(meet(collective, stream));
        if (collective->head.rank != root)
            SL_TRY(copy(stream, place, staging, some));
    }
    SL_TRY(end(collective, stream));
done:
    return status;
}

/* ---- Reduce-scatter -------------------------------------------------------------------------- */

/* This rank's span of the window, of all ranks. */
static sl_status sum_span(shared_collective *collective, const sl_scatter_sum *what, const sl_bucket_span *span,
                          sl_stream *stream)
{
    sl_status status = SL_OK;
    int half = current_half(collective), me = collective->head.rank;
    size_t in_slot = (size_t)me * what->slot + (size_t)span->offset * what->each;
    size_t in_item = (size_t)span->first * what->each;
    for (int p = 0; p < collective->head.ranks; p++)
        collective->head.sources[p] =
            p == me ? sl_scatter_part(what, span->item, me) + in_item : half_of(collective, p, half) + in_slot;
    SL_TRY(collective->head.sum(stream, what->dtype, span->count, collective->head.sources, collective->head.ranks,
                                half_of(collective, me, half) + (size_t)me * what->slot,
                                (char *)span->item->recv + in_item));
done:
    return status;
}

/* One window of each part: slot q of a half is for rank q; this rank's own has room for its sum so far. */
static sl_status scatter_window(shared_collective *collective, const sl_scatter_sum *what, const sl_bucket_walk *window,
                                sl_stream *stream)
{
    sl_status status = SL_OK;
    char *staging = half_of(collective, collective->head.rank, current_half(collective));
    sl_bucket_span span;
    for (int q = 0; q < collective->head.ranks; q++) {
        for (sl_bucket_walk walk = *window; q != collective->head.rank && sl_bucket_next(&walk, &span);)
            SL_TRY(copy(stream, staging + (size_t)q * what->slot + (size_t)span.offset * what->each,
                        sl_scatter_part(what, span.item, q) + (size_t)span.first * what->each,
                        (size_t)span.count * what->each));
    }
    SL_TRY(meet(collective, stream));
    for (sl_bucket_walk walk = *window; sl_bucket_next(&walk, &span);)
        SL_TRY(sum_span(collective, what, &span, stream));
done:
    return status;
}

static sl_status reduce_scatter(sl_device_collective *head, const sl_bucket_item *items, int count, int rows,
                                sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    shared_collective *collective = (shared_collective *)head;
    int64_t total = sl_bucket_count(items, count), most = 0;
    sl_scatter_sum what = sl_scatter_sum_of(head, items, count, rows, dtype);
    SL_TRY(sl_collective_slot(collective->half_bytes, head->ranks, dtype, &what.slot, &most));
    begin(collective, SL_COLLECTIVE_REDUCE_SCATTER, total, (int64_t)dtype * 4096 + rows);
    for (int64_t at = 0; at < total; at += most, collective->turn++) {
        const sl_bucket_walk window = sl_bucket_window(items, count, at, most);
        SL_TRY(scatter_window(collective, &what, &window, stream));
    }
    SL_TRY(end(collective, stream));
done:
    return status;
}

/* ---- Sums for all ---------------------------------------------------------------------------- */

/* Each rank gets the pieces of its range from all others and adds them up: into its half of the next turn. */
static sl_status sum_piece(shared_collective *collective, const sl_parts_sum *what, int64_t round, sl_stream *stream)
{
    sl_status status = SL_OK;
    int me = collective->head.rank, half = current_half(collective);
    int64_t first, count;
    for (int q = 0; q < collective->head.ranks; q++) {
        count = sl_parts_sum_piece(what, q, round, &first);
        for (int i = 0; q != me && i < what->part_count; i++) {
            size_t slot = (size_t)(q * what->most_parts + sl_parts_sum_number(what, i)) * what->slot;
            if (what->parts[i].rank == me)
                SL_TRY(copy(stream, half_of(collective, me, half) + slot,
                            (char *)what->parts[i].data + (size_t)first * what->each, (size_t)count * what->each));
        }
    }
    SL_TRY(meet(collective, stream));
    count = sl_parts_sum_piece(what, me, round, &first);
    for (int i = 0; i < what->part_count; i++) {
        const sl_device_part *part = &what->parts[i];
        size_t slot = (size_t)(me * what->most_parts + sl_parts_sum_number(what, i)) * what->slot;
        collective->head.sources[i] = part->rank == me ? (char *)part->data + (size_t)first * what->each
                                                       : half_of(collective, part->rank, half) + slot;
    }
    if (count > 0)
        SL_TRY(collective->head.sum(stream, what->dtype, count, collective->head.sources, what->part_count,
                                    half_of(collective, me, half) + (size_t)(me * what->most_parts) * what->slot,
                                    half_of(collective, me, 1 - half)));
done:
    return status;
}

/* All sums of the round to all parts of this rank. */
static sl_status spread_sums(shared_collective *collective, const sl_parts_sum *what, int64_t round, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(meet(collective, stream));
    for (int p = 0; p < collective->head.ranks; p++) {
        int64_t first, count = sl_parts_sum_piece(what, p, round, &first);
        for (int i = 0; i < what->part_count; i++) {
            if (what->parts[i].rank == collective->head.rank)
                SL_TRY(copy(stream, (char *)what->parts[i].data + (size_t)first * what->each,
                            half_of(collective, p, current_half(collective)), (size_t)count * what->each));
        }
    }
done:
    return status;
}

static sl_status sum_parts(sl_device_collective *head, const sl_device_part *parts, int part_count, int64_t count,
                           sl_dtype dtype, sl_stream *stream)
{
    sl_status status = SL_OK;
    shared_collective *collective = (shared_collective *)head;
    sl_parts_sum what = sl_parts_sum_of(head, parts, part_count, count, dtype);
    SL_TRY(sl_collective_slot(collective->half_bytes, head->ranks * what.most_parts, dtype, &what.slot, &what.piece));
    begin(collective, SL_COLLECTIVE_ALL_REDUCE, count, (int64_t)dtype * 4096 + part_count);
    for (int64_t round = 0; sl_parts_sum_has(&what, round); round++) {
        SL_TRY(sum_piece(collective, &what, round, stream));
        collective->turn++;
        SL_TRY(spread_sums(collective, &what, round, stream));
        collective->turn++;
    }
done:
    return status;
}

const sl_collective_kind sl_collective_shared = {
    .find_obstacle = find_obstacle,
    .open = open_shared,
    .close = close_shared,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .sum_parts = sum_parts,
    .broadcast = broadcast,
};
