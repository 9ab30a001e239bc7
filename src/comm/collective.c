/* Collectives that move bytes: barrier, broadcast, all-gather, blobs, clocks. Built on the group's mesh of channels, so
 * they are the same over every transport. In each round a rank sends to all before it receives from all; the rank that
 * has come least far can always go on, so they never deadlock. */
#include "comm/collective.h"
#include "base/alloc.h"

#include <string.h>

sl_call sl_call_start(sl_group *group, sl_collective which, sl_dtype dtype, int64_t count)
{
    return (sl_call){
        .group = group,
        .message = { .step = ++group->collectives,
                     .microbatch = (int)which,
                     .dtype = dtype,
                     .shape = { .rank = 2, .dims = { count, 0 } } },
        .piece = sl_mesh_bytes(group->size),
    };
}

sl_status sl_call_send(sl_call *call, int member, int64_t at, const void *data, size_t bytes)
{
    sl_channel *channel = call->group->mesh_to[member];
    sl_envelope *envelope = NULL;
    call->message.shape.dims[1] = at;
    sl_status status = sl_channel_reserve_bytes(channel, &call->message, bytes, true, &envelope);
    if (status != SL_OK)
        return status;
    sl_channel_fill(sl_envelope_payload(envelope), data, bytes);
    return sl_channel_commit_envelope(channel, envelope);
}

sl_status sl_call_receive(sl_call *call, int member, int64_t at, size_t bytes, sl_envelope **out)
{
    call->message.shape.dims[1] = at;
    return sl_channel_receive_bytes(call->group->mesh_from[member], &call->message, bytes, true, out);
}

sl_status sl_call_release(sl_call *call, int member, sl_envelope *envelope)
{
    sl_channel *channel = call->group->mesh_from[member];
    return channel->transport->release(channel->wire, envelope);
}

sl_status sl_call_fetch(sl_call *call, int member, int64_t at, void *data, size_t bytes)
{
    sl_envelope *envelope = NULL;
    sl_status status = sl_call_receive(call, member, at, bytes, &envelope);
    if (status != SL_OK)
        return status;
    if (bytes > 0)
        memcpy(data, sl_envelope_payload(envelope), bytes);
    return sl_call_release(call, member, envelope);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* In round k each rank hears, through others, of the 2^k ranks before it. */
sl_status sl_group_barrier(sl_group *group)
{
    sl_status status = SL_OK;
    sl_call call = sl_call_start(group, SL_COLLECTIVE_BARRIER, SL_U8, 0);
    for (int distance = 1; distance < group->size; distance *= 2) {
        SL_TRY(sl_call_send(&call, sl_call_to(group, distance), distance, NULL, 0));
        SL_TRY(sl_call_fetch(&call, sl_call_from(group, distance), distance, NULL, 0));
    }
done:
    return status == SL_OK ? sl_group_check(group) : status;
}

sl_status sl_group_broadcast(sl_group *group, int root, void *data, size_t bytes)
{
    sl_status status = SL_OK;
    if (root < 0 || root >= group->size)
        return sl_fail(SL_ERR_ARGUMENT, "broadcast from rank %d: the group has %d ranks", root, group->size);
    sl_call call = sl_call_start(group, SL_COLLECTIVE_BROADCAST, SL_U8, (int64_t)bytes);
    size_t at = 0;
    do {
        size_t piece = smaller(bytes - at, call.piece);
        char *place = data ? (char *)data + at : NULL;
        if (group->rank == root) {
            for (int i = 1; i < group->size; i++)
                SL_TRY(sl_call_send(&call, sl_call_to(group, i), (int64_t)at, place, piece));
        } else {
            SL_TRY(sl_call_fetch(&call, root, (int64_t)at, place, piece));
        }
        at += piece;
    } while (at < bytes);
done:
    return status == SL_OK ? sl_group_check(group) : status;
}

sl_status sl_group_all_gather(sl_group *group, const void *send, size_t bytes, void *recv)
{
    sl_status status = SL_OK;
    sl_call call = sl_call_start(group, SL_COLLECTIVE_ALL_GATHER, SL_U8, (int64_t)bytes);
    char *own = (char *)recv + (size_t)group->rank * bytes;
    if (bytes > 0 && send != own)
        memcpy(own, send, bytes);
    size_t at = 0;
    do {
        size_t piece = smaller(bytes - at, call.piece);
        for (int i = 1; i < group->size; i++)
            SL_TRY(sl_call_send(&call, sl_call_to(group, i), (int64_t)at, own + at, piece));
        for (int i = 1; i < group->size; i++) {
            int from = sl_call_from(group, i);
            SL_TRY(sl_call_fetch(&call, from, (int64_t)at, (char *)recv + (size_t)from * bytes + at, piece));
        }
        at += piece;
    } while (at < bytes);
done:
    return status == SL_OK ? sl_group_check(group) : status;
}

/* ---- Blobs ----------------------------------------------------------------------------------- */

/* One block: the structure, the two arrays, then the blobs at multiples of 16 bytes. */
static sl_status new_blobs(const uint64_t *bytes, int count, sl_blobs **out)
{
    size_t head = sizeof(sl_blobs) + (size_t)count * (sizeof(size_t) + sizeof(void *)), total = (head + 15) / 16 * 16;
    for (int i = 0; i < count; i++) {
        if (__builtin_add_overflow(total, ((size_t)bytes[i] + 15) / 16 * 16, &total))
            return sl_fail(SL_ERR_MEMORY, "out of memory: blobs of %d ranks", count);
    }
    char *block = NULL;
    sl_status status = sl_alloc(total, 1, (void **)&block);
    if (status != SL_OK)
        return status;
    sl_blobs *blobs = (sl_blobs *)block;
    blobs->count = count;
    blobs->data = (void **)(blobs + 1);
    blobs->bytes = (size_t *)(blobs->data + count);
    size_t at = (head + 15) / 16 * 16;
    for (int i = 0; i < count; i++) {
        blobs->bytes[i] = (size_t)bytes[i];
        blobs->data[i] = block + at;
        at += ((size_t)bytes[i] + 15) / 16 * 16;
    }
    *out = blobs;
    return SL_OK;
}

/* What member i has of the piece at `at`. */
static size_t piece_of(const sl_blobs *blobs, int i, size_t at, size_t piece)
{
    return at < blobs->bytes[i] ? smaller(blobs->bytes[i] - at, piece) : 0;
}

sl_status sl_group_gather_blobs(sl_group *group, const void *blob, size_t bytes, sl_blobs **out)
{
    sl_status status = SL_OK;
    uint64_t own_bytes = bytes, *all_bytes = NULL;
    sl_blobs *blobs = NULL;
    size_t longest = 0;
    SL_TRY(SL_NEW_ARRAY(all_bytes, group->size));
    SL_TRY(sl_group_all_gather(group, &own_bytes, sizeof own_bytes, all_bytes));
    SL_TRY(new_blobs(all_bytes, group->size, &blobs));
    if (bytes > 0)
        memcpy(blobs->data[group->rank], blob, bytes);
    for (int i = 0; i < group->size; i++)
        longest = all_bytes[i] > longest ? (size_t)all_bytes[i] : longest;

    sl_call call = sl_call_start(group, SL_COLLECTIVE_GATHER_BLOBS, SL_U8, (int64_t)longest);
    for (size_t at = 0; at < longest; at += call.piece) {
        size_t own = piece_of(blobs, group->rank, at, call.piece);
        for (int i = 1; own > 0 && i < group->size; i++)
            SL_TRY(sl_call_send(&call, sl_call_to(group, i), (int64_t)at, (const char *)blob + at, own));
        for (int i = 1; i < group->size; i++) {
            int from = sl_call_from(group, i);
            size_t piece = piece_of(blobs, from, at, call.piece);
            if (piece > 0)
                SL_TRY(sl_call_fetch(&call, from, (int64_t)at, (char *)blobs->data[from] + at, piece));
        }
    }
    SL_TRY(sl_group_check(group));
    *out = blobs;
    blobs = NULL; /* now the caller's */
done:
    sl_blobs_destroy(blobs);
    sl_free(all_bytes);
    return status;
}

void sl_blobs_destroy(sl_blobs *blobs)
{
    sl_free(blobs);
}

/* ---- Clocks ---------------------------------------------------------------------------------- */

enum { CLOCK_ROUNDS = 32 };

/* Rank 0 answers each other rank in turn with its time. */
static sl_status answer_clocks(sl_call *call)
{
    sl_status status = SL_OK;
    for (int member = 1; member < call->group->size; member++) {
        for (int round = 0; round < CLOCK_ROUNDS; round++) {
            SL_TRY(sl_call_fetch(call, member, round, NULL, 0));
            double now = sl_now();
            SL_TRY(sl_call_send(call, member, round, &now, sizeof now));
        }
    }
done:
    return status;
}

/* The quickest answer tells best: the time in it is that of half way, give or take half the trip. */
static sl_status ask_clock(sl_call *call, double *out)
{
    sl_status status = SL_OK;
    double offset = 0, quickest = 0;
    for (int round = 0; round < CLOCK_ROUNDS; round++) {
        double start = sl_now(), theirs = 0;
        SL_TRY(sl_call_send(call, 0, round, NULL, 0));
        SL_TRY(sl_call_fetch(call, 0, round, &theirs, sizeof theirs));
        double trip = sl_now() - start;
        if (round == 0 || trip < quickest) {
            quickest = trip;
            offset = theirs - (start + trip / 2);
        }
    }
    *out = offset;
done:
    return status;
}

sl_status sl_group_clock_offset(sl_group *group, double *out)
{
    double offset = 0;
    sl_call call = sl_call_start(group, SL_COLLECTIVE_CLOCK_OFFSET, SL_F64, 0);
    if (group->link->local_size < group->link->size) {
        sl_status status = group->rank == 0 ? answer_clocks(&call) : ask_clock(&call, &offset);
        if (status != SL_OK)
            return status;
    }
    *out = offset;
    return sl_group_check(group);
}
