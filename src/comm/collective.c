/* Collectives that move bytes: barrier, broadcast, all-gather, blobs, clocks. Each is a script of moves over the group's
 * mesh of channels, so they are the same over every transport. */
#include "comm/request.h"
#include "base/alloc.h"

#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- Barrier --------------------------------------------------------------------------------- */

/* In round k each rank hears, through others, of the 2^k ranks before it. */
static bool next_barrier(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    int distance = 1 << request->i;
    if (distance >= group->size)
        return false;
    bool send = request->part == 0;
    *out = (sl_move){ .kind = send ? SL_MOVE_SEND : SL_MOVE_FETCH,
                      .member = send ? sl_member_after(group, distance) : sl_member_before(group, distance),
                      .at = distance };
    request->part = send;
    request->i += !send;
    return true;
}

sl_status sl_group_barrier(sl_group *group)
{
    sl_request *request = NULL;
    sl_status status = sl_request_take(group, SL_COLLECTIVE_BARRIER, SL_U8, 0, NULL, &request);
    if (status != SL_OK)
        return status;
    request->recv = group->board;
    request->bytes = 0;
    sl_request_start(request, sl_mesh_is_direct(group->size) ? next_barrier : sl_next_tree_gather);
    return sl_request_finish(request);
}

/* ---- Broadcast ------------------------------------------------------------------------------- */

static sl_move whole_piece(const sl_request *request, sl_move_kind kind, int member)
{
    size_t at = (size_t)request->round * request->piece;
    return (sl_move){ .kind = kind,
                      .member = member,
                      .at = (int64_t)at,
                      .from = request->recv ? request->recv + at : NULL,
                      .to = request->recv ? request->recv + at : NULL,
                      .bytes = smaller(request->bytes - at, request->piece) };
}

/* Goes to the next piece; false if there is none. */
static bool next_piece(sl_request *request)
{
    request->round++;
    request->part = request->i = 0;
    return (size_t)request->round * request->piece < request->bytes;
}

static bool next_broadcast(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    bool root = group->rank == request->root;
    do {
        if (root && ++request->i < group->size) {
            *out = whole_piece(request, SL_MOVE_SEND, sl_member_after(group, request->i));
            return true;
        }
        if (!root && request->part == 0) {
            request->part = 1;
            *out = whole_piece(request, SL_MOVE_FETCH, request->root);
            return true;
        }
    } while (next_piece(request));
    return false;
}

static bool is_below(const sl_group *group, int member, int subtree)
{
    return member >= subtree && member < subtree + sl_tree_span(group->size, subtree);
}

/* Whom a piece comes from: the members from the root of the broadcast up to that of the tree get it from below. */
static int tree_source(const sl_group *group, int root)
{
    int child = -1;
    if (!is_below(group, root, group->rank))
        return sl_tree_parent(group->rank);
    for (int i = 0; (child = sl_tree_child(group->size, group->rank, i)) >= 0 && !is_below(group, root, child); i++)
        ;
    return child;
}

/* Up from the root of the broadcast to that of the tree, and from each of these down to all that are not among them. */
static bool next_tree_broadcast(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    int me = group->rank, child;
    do {
        if (request->part == 0) {
            request->part = 1;
            if (me != request->root) {
                *out = whole_piece(request, SL_MOVE_FETCH, tree_source(group, request->root));
                return true;
            }
        }
        if (request->part == 1) {
            request->part = 2;
            if (me > 0 && is_below(group, request->root, me)) {
                *out = whole_piece(request, SL_MOVE_SEND, sl_tree_parent(me));
                return true;
            }
        }
        while ((child = sl_tree_child(group->size, me, request->i++)) >= 0) {
            if (!is_below(group, request->root, child)) {
                *out = whole_piece(request, SL_MOVE_SEND, child);
                return true;
            }
        }
    } while (next_piece(request));
    return false;
}

sl_status sl_group_broadcast_post(sl_group *group, int root, void *data, size_t bytes, sl_stream *stream,
                                  sl_request **out)
{
    sl_request *request = NULL;
    if (root < 0 || root >= group->size)
        return sl_fail(SL_ERR_ARGUMENT, "broadcast from rank %d: the group has %d ranks", root, group->size);
    sl_status status = sl_request_take(group, SL_COLLECTIVE_BROADCAST, SL_U8, (int64_t)bytes, stream, &request);
    if (status != SL_OK)
        return status;
    request->recv = data;
    request->bytes = bytes;
    request->root = root;
    sl_request_start(request, sl_mesh_is_direct(group->size) ? next_broadcast : next_tree_broadcast);
    *out = request;
    return SL_OK;
}

sl_status sl_group_broadcast(sl_group *group, int root, void *data, size_t bytes)
{
    sl_request *request = NULL;
    sl_status status = sl_group_broadcast_post(group, root, data, bytes, NULL, &request);
    return status == SL_OK ? sl_request_finish(request) : status;
}

/* ---- All-gather ------------------------------------------------------------------------------ */

/* Up the tree each member gathers what lies below it, which is one range; down the tree everybody gets all. */
bool sl_next_tree_gather(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    size_t bytes = request->bytes;
    int me = group->rank, size = group->size, child;
    if (request->part == 0) {
        child = sl_tree_child(size, me, request->i++);
        if (child >= 0) {
            *out = (sl_move){ .kind = SL_MOVE_FETCH,
                              .member = child,
                              .at = child,
                              .to = request->recv + (size_t)child * bytes,
                              .bytes = (size_t)sl_tree_span(size, child) * bytes };
            return true;
        }
        request->part = 1;
        request->i = 0;
        if (me > 0) {
            *out = (sl_move){ .kind = SL_MOVE_SEND,
                              .member = sl_tree_parent(me),
                              .at = me,
                              .from = request->recv + (size_t)me * bytes,
                              .bytes = (size_t)sl_tree_span(size, me) * bytes };
            return true;
        }
    }
    if (request->part == 1) {
        request->part = 2;
        if (me > 0) {
            *out = (sl_move){ .kind = SL_MOVE_FETCH,
                              .member = sl_tree_parent(me),
                              .at = size,
                              .to = request->recv,
                              .bytes = (size_t)size * bytes };
            return true;
        }
    }
    child = sl_tree_child(size, me, request->i++);
    *out = (sl_move){
        .kind = SL_MOVE_SEND, .member = child, .at = size, .from = request->recv, .bytes = (size_t)size * bytes
    };
    return child >= 0;
}

/* The round's piece of a member's part; false if it has none. Every part has a first piece, unless it is a blob. */
static bool part_piece(const sl_request *request, sl_move_kind kind, int part, int member, sl_move *out)
{
    size_t at = (size_t)request->round * request->piece;
    size_t whole = request->blobs ? request->blobs->bytes[part] : request->bytes;
    if (at >= whole && (at > 0 || request->blobs))
        return false;
    char *place = request->blobs ? (char *)request->blobs->data[part] + at : NULL;
    *out = (sl_move){ .kind = kind,
                      .member = member,
                      .at = (int64_t)at,
                      .in_bucket = !request->blobs,
                      .part = part,
                      .first = at,
                      .from = place,
                      .to = place,
                      .bytes = smaller(whole - at, request->piece) };
    return true;
}

enum { GATHER_KEEP, GATHER_SEND, GATHER_FETCH, GATHER_PHASES };

/* In each round a rank keeps its piece, sends it to all, then receives from all. count is the longest part's bytes. */
static bool next_all_gather(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    for (; request->round == 0 || request->round * (int64_t)request->piece < request->count; request->round++) {
        for (; request->part < GATHER_PHASES; request->part++, request->i = 0) {
            while (++request->i < (request->part == GATHER_KEEP ? 2 : group->size)) {
                int from = sl_member_before(group, request->i), to = sl_member_after(group, request->i);
                bool keeps = request->part == GATHER_KEEP && !request->blobs; /* a blob is where it belongs */
                if (keeps && part_piece(request, SL_MOVE_KEEP, group->rank, group->rank, out))
                    return true;
                if (request->part == GATHER_SEND && part_piece(request, SL_MOVE_SEND, group->rank, to, out))
                    return true;
                if (request->part == GATHER_FETCH && part_piece(request, SL_MOVE_FETCH, from, from, out))
                    return true;
            }
        }
        request->part = 0;
    }
    return false;
}

/* Round the ring: what came from one side goes on to the other, until everybody has all. i counts the parts. */
static bool next_ring_gather(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    for (; request->i < group->size - 1; request->i++, request->round = 0) {
        int mine = sl_member_before(group, request->i), theirs = sl_member_before(group, request->i + 1);
        while (request->round * (int64_t)request->piece < request->count || request->round == 0) {
            if (request->part == 0) {
                request->part = 1;
                if (part_piece(request, SL_MOVE_SEND, mine, sl_member_after(group, 1), out))
                    return true;
            }
            request->part = 0;
            bool found = part_piece(request, SL_MOVE_FETCH, theirs, sl_member_before(group, 1), out);
            request->round++;
            if (found)
                return true;
        }
    }
    return false;
}

/* The tree moves parts of several members at once, which only lie side by side if there is one item. */
static sl_script choose_gather(const sl_group *group, size_t bytes, bool alone)
{
    if (sl_mesh_is_direct(group->size))
        return next_all_gather;
    bool small = bytes <= sl_mesh_bytes(group->size) / (size_t)group->size;
    return small && alone ? sl_next_tree_gather : next_ring_gather;
}

int64_t sl_bucket_count(const sl_bucket_item *items, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += items[i].count;
    return sum;
}

/* This rank's part into its place in the result, for scripts that do not do it. */
static sl_status place_own(sl_group *group, const sl_bucket_item *item, sl_stream *stream)
{
    size_t bytes = (size_t)item->count;
    char *own = (char *)item->recv + (size_t)group->rank * bytes;
    if (bytes == 0 || item->send == own)
        return SL_OK;
    if (stream)
        return sl_stream_copy(stream, SL_COPY_DEVICE_TO_DEVICE, own, item->send, bytes);
    memcpy(own, item->send, bytes);
    return SL_OK;
}

/* items NULL: the one of the request. after NULL: it begins at once. */
static sl_status post_gather(sl_group *group, const sl_bucket_item *items, sl_bucket_item one, int item_count,
                             sl_stream *stream, sl_request *after, sl_request **out)
{
    sl_status status = SL_OK;
    sl_request *request = NULL;
    int64_t bytes = items ? sl_bucket_count(items, item_count) : one.count;
    if (!after && !sl_mesh_is_direct(group->size)) {
        for (int i = 0; i < item_count; i++)
            SL_TRY(place_own(group, items ? &items[i] : &one, stream));
    }
    SL_TRY(sl_request_take(group, SL_COLLECTIVE_ALL_GATHER, SL_U8, bytes, stream, &request));
    request->one = one;
    request->items = items ? items : &request->one;
    request->item_count = item_count;
    request->recv = one.recv;
    request->bytes = (size_t)bytes;
    request->after = after;
    sl_request_start(request, choose_gather(group, request->bytes, !items));
    *out = request;
done:
    return status;
}

sl_status sl_group_all_gather_bucket_post(sl_group *group, const sl_bucket_item *items, int count, sl_stream *stream,
                                          sl_request **out)
{
    return post_gather(group, items, (sl_bucket_item){ .count = 0 }, count, stream, NULL, out);
}

sl_status sl_group_all_gather_bucket_post_after(sl_group *group, const sl_bucket_item *items, int count,
                                                sl_stream *stream, sl_request *after, sl_request **out)
{
    if (after->group == group)
        return sl_fail(SL_ERR_ARGUMENT, "a gather after a collective of its own group");
    for (int i = 0; i < count; i++) {
        if (items[i].send != (char *)items[i].recv + group->rank * items[i].count)
            return sl_fail(SL_ERR_ARGUMENT, "item %d of a later gather is not in its place in the result", i);
    }
    return post_gather(group, items, (sl_bucket_item){ .count = 0 }, count, stream, after, out);
}

sl_status sl_group_all_gather_post(sl_group *group, const void *send, size_t bytes, void *recv, sl_stream *stream,
                                   sl_request **out)
{
    return post_gather(group, NULL, (sl_bucket_item){ .send = send, .recv = recv, .count = (int64_t)bytes }, 1, stream,
                       NULL, out);
}

sl_status sl_group_all_gather(sl_group *group, const void *send, size_t bytes, void *recv)
{
    sl_request *request = NULL;
    sl_status status = sl_group_all_gather_post(group, send, bytes, recv, NULL, &request);
    return status == SL_OK ? sl_request_finish(request) : status;
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

sl_status sl_group_gather_blobs(sl_group *group, const void *blob, size_t bytes, sl_blobs **out)
{
    sl_status status = SL_OK;
    uint64_t own_bytes = bytes, *all_bytes = NULL, longest = 0;
    sl_blobs *blobs = NULL;
    sl_request *request = NULL;
    SL_TRY(SL_NEW_ARRAY(all_bytes, group->size));
    SL_TRY(sl_group_all_gather(group, &own_bytes, sizeof own_bytes, all_bytes));
    SL_TRY(new_blobs(all_bytes, group->size, &blobs));
    if (bytes > 0)
        memcpy(blobs->data[group->rank], blob, bytes);
    for (int i = 0; i < group->size; i++)
        longest = all_bytes[i] > longest ? all_bytes[i] : longest;
    SL_TRY(sl_request_take(group, SL_COLLECTIVE_GATHER_BLOBS, SL_U8, (int64_t)longest, NULL, &request));
    request->blobs = blobs;
    sl_request_start(request, sl_mesh_is_direct(group->size) ? next_all_gather : next_ring_gather);
    SL_TRY(sl_request_finish(request));
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

typedef struct clock_call {
    sl_group *group;
    sl_message message;
} clock_call;

static sl_status clock_send(clock_call *call, int member, int round, const double *time)
{
    sl_envelope *envelope = NULL;
    sl_channel *channel = call->group->mesh_to[member];
    call->message.shape.dims[1] = round;
    sl_status status = sl_channel_reserve_bytes(channel, &call->message, sizeof *time, true, &envelope);
    if (status != SL_OK)
        return status;
    memcpy(sl_envelope_payload(envelope), time, sizeof *time);
    return sl_channel_hand_over(channel, envelope, SL_HANDOFF_COMMIT, NULL);
}

static sl_status clock_fetch(clock_call *call, int member, int round, double *time)
{
    sl_envelope *envelope = NULL;
    sl_channel *channel = call->group->mesh_from[member];
    call->message.shape.dims[1] = round;
    sl_status status = sl_channel_receive_bytes(channel, &call->message, sizeof *time, true, &envelope);
    if (status != SL_OK)
        return status;
    memcpy(time, sl_envelope_payload(envelope), sizeof *time);
    return sl_channel_hand_over(channel, envelope, SL_HANDOFF_RELEASE, NULL);
}

/* The quickest answer tells best: the time in it is that of half way, give or take half the trip. */
static sl_status ask_clock(clock_call *call, int member, double *out)
{
    sl_status status = SL_OK;
    double offset = 0, quickest = 0;
    for (int round = 0; round < CLOCK_ROUNDS; round++) {
        double start = sl_now(), theirs = 0;
        SL_TRY(clock_send(call, member, round, &start));
        SL_TRY(clock_fetch(call, member, round, &theirs));
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

/* Answers with rank 0's time, as far as it is known here. */
static sl_status answer_clock(clock_call *call, int member, double offset)
{
    sl_status status = SL_OK;
    for (int round = 0; round < CLOCK_ROUNDS; round++) {
        double theirs;
        SL_TRY(clock_fetch(call, member, round, &theirs));
        double now = sl_now() + offset;
        SL_TRY(clock_send(call, member, round, &now));
    }
done:
    return status;
}

/* Down the tree: each member asks its parent, then answers its children in turn. */
sl_status sl_group_clock_offset(sl_group *group, double *out)
{
    sl_status status = SL_OK;
    double offset = 0;
    int child;
    SL_TRY(sl_group_drain(group));
    clock_call call = { .group = group,
                        .message = { .step = ++group->collectives,
                                     .microbatch = SL_COLLECTIVE_CLOCK_OFFSET,
                                     .dtype = SL_F64,
                                     .shape = { 2, { 0, 0 } } } };
    if (group->link->local_size < group->link->size) {
        if (group->rank > 0)
            SL_TRY(ask_clock(&call, sl_tree_parent(group->rank), &offset));
        for (int i = 0; (child = sl_tree_child(group->size, group->rank, i)) >= 0; i++)
            SL_TRY(answer_clock(&call, child, offset));
    }
    SL_TRY(sl_group_check(group));
    *out = offset;
done:
    return status;
}
