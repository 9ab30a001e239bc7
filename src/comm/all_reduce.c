/* Collectives that reduce: each rank reduces its part in rank order, reading the others' in place. */
#include "comm/collective.h"
#include "comm/reduce.h"
#include "base/alloc.h"

#include <string.h>

/* Up to this much, sending everything to everyone is quicker than two rounds of parts. */
#define SMALL_BYTES 4096

/* What reducing one piece needs. */
struct reducer {
    sl_call call;
    sl_dtype dtype;
    sl_reduce reduce;
    size_t each;             /* bytes an element */
    sl_envelope **envelopes; /* (size) pieces that have come, in rank order */
    const void **sources;    /* (size) */
};

static sl_status reducer_start(sl_group *group, sl_collective which, int64_t count, sl_dtype dtype, sl_reduce reduce,
                               struct reducer *out)
{
    sl_status status = SL_OK;
    struct reducer made = { .dtype = dtype, .reduce = reduce, .each = sl_dtype_size(dtype) };
    SL_TRY(sl_reduce_check(dtype, reduce));
    if (count < 0 || (uint64_t)count > SIZE_MAX / 16 / (size_t)group->size) {
        status = sl_fail(SL_ERR_ARGUMENT, "%s of %lld elements", sl_collective_name((int)which), (long long)count);
        goto done;
    }
    SL_TRY(SL_NEW_ARRAY(made.envelopes, group->size));
    SL_TRY(SL_NEW_ARRAY(made.sources, group->size));
    made.call = sl_call_start(group, which, dtype, count);
    *out = made;
    made.envelopes = NULL; /* now the caller's */
done:
    sl_free(made.envelopes);
    return status;
}

static void reducer_end(struct reducer *reducer)
{
    sl_free(reducer->envelopes);
    sl_free(reducer->sources);
}

/* Receives the others' pieces, reduces them with this rank's own, in rank order, and frees them. out may be own. */
static sl_status reduce_piece(struct reducer *reducer, int64_t at, const void *own, int64_t count, void *out)
{
    sl_status status = SL_OK;
    sl_group *group = reducer->call.group;
    for (int m = 0; m < group->size; m++) {
        if (m == group->rank) {
            reducer->sources[m] = own;
            continue;
        }
        SL_TRY(sl_call_receive(&reducer->call, m, at, (size_t)count * reducer->each, &reducer->envelopes[m]));
        reducer->sources[m] = sl_envelope_payload(reducer->envelopes[m]);
    }
    sl_reduce_run(reducer->sources, group->size, count, reducer->dtype, reducer->reduce, out);
    for (int m = 0; m < group->size; m++) {
        if (m != group->rank)
            SL_TRY(sl_call_release(&reducer->call, m, reducer->envelopes[m]));
    }
done:
    return status;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

sl_status sl_group_reduce_scatter(sl_group *group, const void *send, void *recv, int64_t count, sl_dtype dtype,
                                  sl_reduce reduce)
{
    sl_status status = SL_OK;
    struct reducer reducer = { 0 };
    SL_TRY(reducer_start(group, SL_COLLECTIVE_REDUCE_SCATTER, count, dtype, reduce, &reducer));
    size_t each = reducer.each;
    int64_t per_piece = (int64_t)(reducer.call.piece / each), at = 0;
    do {
        int64_t piece = smaller(count - at, per_piece);
        for (int i = 1; i < group->size; i++) {
            int to = sl_call_to(group, i);
            const char *part = (const char *)send + (size_t)(to * count + at) * each;
            SL_TRY(sl_call_send(&reducer.call, to, at, part, (size_t)piece * each));
        }
        const char *own = (const char *)send + (size_t)(group->rank * count + at) * each;
        SL_TRY(reduce_piece(&reducer, at, own, piece, (char *)recv + (size_t)at * each));
        at += piece;
    } while (at < count);
    SL_TRY(sl_group_check(group));
done:
    reducer_end(&reducer);
    return status;
}

/* Everything to everyone; each reduces all of it, in the same order. */
static sl_status all_reduce_small(struct reducer *reducer, void *data, int64_t count)
{
    sl_status status = SL_OK;
    sl_group *group = reducer->call.group;
    for (int i = 1; i < group->size; i++)
        SL_TRY(sl_call_send(&reducer->call, sl_call_to(group, i), 0, data, (size_t)count * reducer->each));
    SL_TRY(reduce_piece(reducer, 0, data, count, data));
done:
    return status;
}

/* The part of the data that a member reduces: [first, first + count). */
static void part_of(int64_t total, int size, int member, int64_t *first, int64_t *count)
{
    int64_t base = total / size, more = total % size;
    *first = base * member + smaller(member, more);
    *count = base + (member < more);
}

/* The round's piece of a member's part: elements from *at on, none where the part is shorter. */
static int64_t piece_in(const struct reducer *reducer, int64_t total, int member, int64_t round, int64_t *at)
{
    int64_t first, count, per_piece = (int64_t)(reducer->call.piece / reducer->each);
    part_of(total, reducer->call.group->size, member, &first, &count);
    *at = first + round * per_piece;
    int64_t left = count - round * per_piece;
    return left < 0 ? 0 : smaller(left, per_piece);
}

/* Sends every other member its piece of this rank's data. */
static sl_status send_parts(struct reducer *reducer, char *data, int64_t total, int64_t round)
{
    sl_status status = SL_OK;
    sl_group *group = reducer->call.group;
    for (int i = 1; i < group->size; i++) {
        int64_t at, to = sl_call_to(group, i), piece = piece_in(reducer, total, (int)to, round, &at);
        SL_TRY(sl_call_send(&reducer->call, (int)to, at, data + (size_t)at * reducer->each,
                            (size_t)piece * reducer->each));
    }
done:
    return status;
}

/* Reduces this rank's piece and sends the result to all. */
static sl_status reduce_part(struct reducer *reducer, char *data, int64_t total, int64_t round)
{
    sl_status status = SL_OK;
    sl_group *group = reducer->call.group;
    int64_t at, piece = piece_in(reducer, total, group->rank, round, &at);
    char *own = data + (size_t)at * reducer->each;
    SL_TRY(reduce_piece(reducer, at, own, piece, own));
    for (int i = 1; i < group->size; i++)
        SL_TRY(sl_call_send(&reducer->call, sl_call_to(group, i), at, own, (size_t)piece * reducer->each));
done:
    return status;
}

static sl_status fetch_results(struct reducer *reducer, char *data, int64_t total, int64_t round)
{
    sl_status status = SL_OK;
    sl_group *group = reducer->call.group;
    for (int i = 1; i < group->size; i++) {
        int64_t at, from = sl_call_from(group, i), piece = piece_in(reducer, total, (int)from, round, &at);
        SL_TRY(sl_call_fetch(&reducer->call, (int)from, at, data + (size_t)at * reducer->each,
                             (size_t)piece * reducer->each));
    }
done:
    return status;
}

/* The results of a round are fetched after the next round's parts are out, so that ranks need not go in step. */
static sl_status all_reduce_parts(struct reducer *reducer, char *data, int64_t total)
{
    sl_status status = SL_OK;
    int64_t first, longest, per_piece = (int64_t)(reducer->call.piece / reducer->each);
    part_of(total, reducer->call.group->size, 0, &first, &longest);
    int64_t rounds = (longest + per_piece - 1) / per_piece;
    for (int64_t round = 0; round <= rounds; round++) {
        if (round < rounds)
            SL_TRY(send_parts(reducer, data, total, round));
        if (round > 0)
            SL_TRY(fetch_results(reducer, data, total, round - 1));
        if (round < rounds)
            SL_TRY(reduce_part(reducer, data, total, round));
    }
done:
    return status;
}

sl_status sl_group_all_reduce(sl_group *group, void *data, int64_t count, sl_dtype dtype, sl_reduce reduce)
{
    sl_status status = SL_OK;
    struct reducer reducer = { 0 };
    SL_TRY(reducer_start(group, SL_COLLECTIVE_ALL_REDUCE, count, dtype, reduce, &reducer));
    if (group->size > 1) {
        if ((size_t)count * reducer.each <= SMALL_BYTES)
            SL_TRY(all_reduce_small(&reducer, data, count));
        else
            SL_TRY(all_reduce_parts(&reducer, data, count));
    }
    SL_TRY(sl_group_check(group));
done:
    reducer_end(&reducer);
    return status;
}
