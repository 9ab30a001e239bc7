/* Collectives that reduce, in rank order. Small groups: each rank reduces its part, reading the others' in place. Large
 * groups: small things are gathered over the tree and summed by everybody; large ones go along a chain, from rank 0 to
 * the last, each adding its own, and the sums come back the same way. */
#include "comm/reduce.h"
#include "comm/request.h"

#include <string.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements in a full piece: as many as fit in the dtype that they are summed in. */
static int64_t per_piece(const sl_request *request)
{
    return (int64_t)(request->piece / sl_dtype_size(sl_reduce_wide(request->dtype)));
}

static sl_status take(sl_group *group, sl_collective which, int64_t count, sl_dtype dtype, sl_reduce reduce,
                      sl_stream *stream, sl_request **out)
{
    sl_status status = SL_OK;
    SL_TRY(sl_reduce_check(dtype, reduce));
    if (count < 0 || (uint64_t)count > SIZE_MAX / 16 / (size_t)group->size)
        return sl_fail(SL_ERR_ARGUMENT, "%s of %lld elements", sl_collective_name((int)which), (long long)count);
    SL_TRY(sl_request_take(group, which, dtype, count, stream, out));
    (*out)->reduce = reduce;
done:
    return status;
}

/* ---- Small groups: reduce-scatter ------------------------------------------------------------- */

static bool next_reduce_scatter(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    int64_t at = request->round * per_piece(request);
    if (request->round > 0 && at >= request->count && request->i == 0)
        return false;
    int64_t piece = smaller(request->count - at, per_piece(request));
    bool send = ++request->i < group->size;
    int part = send ? sl_member_after(group, request->i) : group->rank;
    *out = (sl_move){ .kind = send ? SL_MOVE_SEND : SL_MOVE_REDUCE,
                      .member = part,
                      .at = at,
                      .in_bucket = true,
                      .part = part,
                      .first = (size_t)at * request->each,
                      .bytes = (size_t)piece * request->each };
    if (!send) {
        request->round++;
        request->i = 0;
    }
    return true;
}

/* ---- Small groups: all-reduce ----------------------------------------------------------------- */

/* Everything to everyone; each reduces all of it, in the same order. */
static bool next_small(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    bool send = ++request->i < group->size;
    *out = (sl_move){ .kind = send ? SL_MOVE_SEND : SL_MOVE_REDUCE,
                      .member = send ? sl_member_after(group, request->i) : group->rank,
                      .from = request->recv,
                      .to = request->recv,
                      .bytes = request->bytes };
    return request->i <= group->size && group->size > 1;
}

/* The part of the data that a member reduces: [first, first + count). */
static void part_of(int64_t total, int size, int member, int64_t *first, int64_t *count)
{
    int64_t base = total / size, more = total % size;
    *first = base * member + smaller(member, more);
    *count = base + (member < more);
}

/* A move of the round's piece of a member's part, which is empty if the part is shorter. */
static sl_move part_move(const sl_request *request, sl_move_kind kind, int part, int member, int64_t round)
{
    int64_t first, count, start = round * per_piece(request);
    part_of(request->count, request->group->size, part, &first, &count);
    int64_t piece = start < count ? smaller(count - start, per_piece(request)) : 0;
    char *place = request->recv + (size_t)(first + start) * request->each;
    return (sl_move){ .kind = kind,
                      .member = member,
                      .at = first + start,
                      .from = place,
                      .to = place,
                      .bytes = (size_t)piece * request->each };
}

enum { PARTS_OUT, RESULTS_IN, OWN_PART, RESULT_OUT, PARTS_PHASES };

/* In each round: everybody its piece of this rank's data; the results of the round before, so that ranks need not go in
 * step; this rank's piece reduced; its result to all. */
static bool next_parts(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    int64_t first, longest, round = request->round;
    part_of(request->count, group->size, 0, &first, &longest);
    int64_t rounds = (longest + per_piece(request) - 1) / per_piece(request);
    for (; request->round <= rounds; request->round++, round++, request->part = 0) {
        for (; request->part < PARTS_PHASES; request->part++, request->i = 0) {
            int i = ++request->i, to = sl_member_after(group, i), from = sl_member_before(group, i);
            bool reducing = round < rounds;
            if (request->part == OWN_PART && i == 1 && reducing) {
                *out = part_move(request, SL_MOVE_REDUCE, group->rank, group->rank, round);
                return true;
            }
            if (request->part == OWN_PART || i >= group->size || (request->part == RESULTS_IN ? round == 0 : !reducing))
                continue;
            *out = request->part == PARTS_OUT    ? part_move(request, SL_MOVE_SEND, to, to, round)
                   : request->part == RESULTS_IN ? part_move(request, SL_MOVE_FETCH, from, from, round - 1)
                                                 : part_move(request, SL_MOVE_SEND, group->rank, to, round);
            return true;
        }
    }
    return false;
}

/* ---- Large groups ----------------------------------------------------------------------------- */

/* Over the tree onto the board, and summed there. */
static bool next_board(sl_request *request, sl_move *out)
{
    sl_group *group = request->group;
    if (!request->on_board) {
        request->on_board = true;
        request->result = request->recv;
        memcpy(group->board + (size_t)group->rank * request->bytes, request->recv, request->bytes);
        request->recv = group->board;
    }
    if (request->part < 3 && sl_next_tree_gather(request, out))
        return true;
    bool first = request->part < 3;
    request->part = 3;
    *out = (sl_move){ .kind = SL_MOVE_SUM_BOARD, .to = request->result, .bytes = request->bytes };
    return first;
}

/* Where a piece of the chain is: reduce-scatter has the members' parts one after another, all-reduce has one part. */
typedef struct link_piece {
    int part;      /* whose it is; -1: everybody's */
    int64_t at;    /* in the whole */
    int64_t first; /* in the part */
    int64_t count;
} link_piece;

static int64_t pieces_of_part(const sl_request *request)
{
    return (request->count + per_piece(request) - 1) / per_piece(request);
}

static link_piece find_piece(const sl_request *request, int64_t number)
{
    int64_t in_part = pieces_of_part(request), first = number % in_part * per_piece(request);
    int part = request->scatters ? (int)(number / in_part) : -1;
    return (link_piece){ .part = part,
                         .at = (part > 0 ? part * request->count : 0) + first,
                         .first = first,
                         .count = smaller(request->count - first, per_piece(request)) };
}

/* One more share on the sum; at the end of the chain it is whole, and stays or goes back. */
static sl_move chain_up(const sl_request *request, int64_t number)
{
    const sl_group *group = request->group;
    int me = group->rank, last = group->size - 1;
    link_piece piece = find_piece(request, number);
    char *place = request->scatters ? NULL : request->recv + (size_t)piece.first * request->each;
    bool stays = me == last && (piece.part < 0 || piece.part == last);
    return (sl_move){ .kind = SL_MOVE_ADD,
                      .member = me > 0 ? me - 1 : -1,
                      .next = me < last ? me + 1
                              : stays   ? -1
                                        : me - 1,
                      .at = piece.at,
                      .in_bucket = request->scatters,
                      .part = piece.part,
                      .first = (size_t)piece.first * request->each,
                      .from = place,
                      .to = place,
                      .bytes = (size_t)piece.count * request->each,
                      .last = me == last };
}

/* A sum on its way back: what this rank does with it, in up to two moves. False if there is no such move. */
static bool chain_down(const sl_request *request, int64_t number, int which, sl_move *out)
{
    const sl_group *group = request->group;
    int me = group->rank, last = group->size - 1;
    link_piece piece = find_piece(request, number);
    char *place = request->scatters ? NULL : request->recv + (size_t)piece.first * request->each;
    sl_move move = { .member = me + 1,
                     .next = -1,
                     .at = piece.at,
                     .in_bucket = request->scatters,
                     .part = piece.part,
                     .first = (size_t)piece.first * request->each,
                     .from = place,
                     .to = place,
                     .bytes = (size_t)piece.count * request->each };
    if (piece.part < 0) { /* everybody keeps it and passes it on */
        move.kind = which == 0 ? SL_MOVE_FETCH : SL_MOVE_SEND;
        move.member = which == 0 ? me + 1 : me - 1;
        *out = move;
        return which == 0 ? me < last : me > 0;
    }
    if (which > 0 || me == last || me < piece.part)
        return false;
    move.kind = me == piece.part ? SL_MOVE_FETCH : SL_MOVE_FORWARD;
    move.next = me - 1;
    *out = move;
    return true;
}

/* The sums come back 2 * (distance to the end) pieces late, so that the chain is always full. round: pieces up. */
static bool next_chain(sl_request *request, sl_move *out)
{
    const sl_group *group = request->group;
    int64_t total = pieces_of_part(request) * (request->scatters ? group->size : 1);
    int64_t late = 2 * (int64_t)(group->size - 1 - group->rank);
    for (; request->round < total + late; request->round++, request->part = 0) {
        while (request->part < 3) {
            int part = request->part++;
            if (part == 0 && request->round < total) {
                *out = chain_up(request, request->round);
                return true;
            }
            if (part > 0 && request->round >= late && chain_down(request, request->round - late, part - 1, out))
                return true;
        }
    }
    return false;
}

/* ---- Calls ------------------------------------------------------------------------------------ */

/* items NULL: the one of the request. */
static sl_status post_reduce_scatter(sl_group *group, const sl_bucket_item *items, sl_bucket_item one, int item_count,
                                     int rows, sl_dtype dtype, sl_reduce reduce, sl_stream *stream, sl_request **out)
{
    sl_request *request = NULL;
    int64_t count = items ? sl_bucket_count(items, item_count) : one.count;
    sl_status status = take(group, SL_COLLECTIVE_REDUCE_SCATTER, count, dtype, reduce, stream, &request);
    if (status != SL_OK)
        return status;
    request->one = one;
    request->items = items ? items : &request->one;
    request->item_count = item_count;
    request->scatters = true;
    request->rows = rows;
    sl_request_start(request, sl_mesh_is_direct(group->size) ? next_reduce_scatter : next_chain);
    *out = request;
    return SL_OK;
}

sl_status sl_group_reduce_scatter_bucket_post(sl_group *group, const sl_bucket_item *items, int count, int rows,
                                              sl_dtype dtype, sl_reduce reduce, sl_stream *stream, sl_request **out)
{
    if (rows < 1 || group->size % rows != 0)
        return sl_fail(SL_ERR_ARGUMENT, "reduce-scatter of %d parts in %d rows", group->size, rows);
    return post_reduce_scatter(group, items, (sl_bucket_item){ .count = 0 }, count, rows, dtype, reduce, stream, out);
}

sl_status sl_group_reduce_scatter_post(sl_group *group, const void *send, void *recv, int64_t count, sl_dtype dtype,
                                       sl_reduce reduce, sl_stream *stream, sl_request **out)
{
    const sl_bucket_item one = { .send = send, .recv = recv, .count = count };
    return post_reduce_scatter(group, NULL, one, 1, 1, dtype, reduce, stream, out);
}

/* A small thing on a device comes to the host first and goes back at the end. */
static bool next_staged(sl_request *request, sl_move *out)
{
    if (!request->asked_host) {
        *out = (sl_move){ .kind = SL_MOVE_TO_HOST, .member = -1, .from = request->far, .bytes = request->bytes };
        return true;
    }
    if (request->far && request->near_script(request, out))
        return true;
    *out = (sl_move){ .kind = SL_MOVE_FROM_HOST, .member = -1, .to = request->far, .bytes = request->bytes };
    request->far = NULL;
    return out->to != NULL;
}

static sl_script choose_all_reduce(const sl_group *group, size_t bytes)
{
    if (sl_mesh_is_direct(group->size))
        return bytes <= SL_SMALL_BYTES ? next_small : next_parts;
    bool small = bytes <= SL_SMALL_BYTES && bytes <= sl_mesh_bytes(group->size) / (size_t)group->size;
    return small ? next_board : next_chain;
}

sl_status sl_group_all_reduce_post(sl_group *group, void *data, int64_t count, sl_dtype dtype, sl_reduce reduce,
                                   sl_stream *stream, sl_request **out)
{
    sl_request *request = NULL;
    sl_status status = take(group, SL_COLLECTIVE_ALL_REDUCE, count, dtype, reduce, stream, &request);
    if (status != SL_OK)
        return status;
    sl_script script = NULL;
    request->recv = data;
    request->bytes = (size_t)count * request->each;
    script = choose_all_reduce(group, request->bytes);
    request->staged = request->stream && (script == next_small || script == next_board);
    if (request->staged) {
        request->far = data;
        request->recv = request->small;
        request->near_script = script;
        script = next_staged;
    }
    sl_request_start(request, script);
    *out = request;
    return SL_OK;
}

sl_status sl_group_reduce_scatter(sl_group *group, const void *send, void *recv, int64_t count, sl_dtype dtype,
                                  sl_reduce reduce)
{
    sl_request *request = NULL;
    sl_status status = sl_group_reduce_scatter_post(group, send, recv, count, dtype, reduce, NULL, &request);
    return status == SL_OK ? sl_request_finish(request) : status;
}

sl_status sl_group_all_reduce(sl_group *group, void *data, int64_t count, sl_dtype dtype, sl_reduce reduce)
{
    sl_request *request = NULL;
    sl_status status = sl_group_all_reduce_post(group, data, count, dtype, reduce, NULL, &request);
    return status == SL_OK ? sl_request_finish(request) : status;
}
