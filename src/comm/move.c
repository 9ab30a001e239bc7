/* The moves that collectives are made of: in host memory at once, else by copies and host functions of a stream. */
#include "comm/reduce.h"
#include "comm/request.h"

#include <string.h>

/* Whether the request's memory has to be reached by its stream. */
static bool is_far(const sl_request *request)
{
    return request->stream && !request->staged;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Some of a move's memory that lies together. */
typedef struct move_span {
    char *place;
    size_t offset, bytes; /* in the message */
} move_span;

/* Where a member's part of an item begins: what is read of it, or what is written. */
static char *part_place(const sl_request *request, const sl_bucket_item *item, int part, bool write)
{
    size_t bytes = (size_t)item->count * request->each;
    if (!request->scatters && (write || part != request->group->rank))
        return (char *)item->recv + (size_t)part * bytes;
    if (!request->scatters)
        return (char *)item->send;
    if (write)
        return item->recv;
    int columns = request->group->size / request->rows;
    size_t place = (size_t)(part % request->rows) * (size_t)columns + (size_t)(part / request->rows);
    return (char *)item->send + place * bytes;
}

/* The span after the given one, of which zero starts; false at the end. */
static bool next_span(const sl_request *request, bool write, move_span *span)
{
    const sl_move *move = &request->move;
    size_t offset = span->offset + span->bytes, left = move->bytes - offset, at = move->first + offset;
    if (left == 0)
        return false;
    if (!move->in_bucket) {
        *span = (move_span){ .place = write ? move->to : (char *)move->from, .offset = 0, .bytes = left };
        return true;
    }
    for (int i = 0; i < request->item_count; i++) {
        const sl_bucket_item *item = &request->items[i];
        size_t bytes = (size_t)item->count * request->each;
        if (at < bytes) {
            *span = (move_span){ .place = part_place(request, item, move->part, write) + at,
                                 .offset = offset,
                                 .bytes = left < bytes - at ? left : bytes - at };
            return true;
        }
        at -= bytes;
    }
    return false;
}

/* From the device's memory to the host's, or back. */
static sl_status copy_far(const sl_request *request, bool write, char *near)
{
    sl_status status = SL_OK;
    for (move_span span = { 0 }; status == SL_OK && next_span(request, write, &span);)
        status =
            write ? sl_stream_copy(request->stream, SL_COPY_HOST_TO_DEVICE, span.place, near + span.offset, span.bytes)
                  : sl_stream_copy(request->stream, SL_COPY_DEVICE_TO_HOST, near + span.offset, span.place, span.bytes);
    return status;
}

/* ---- Slots and messages, without waiting ------------------------------------------------------ */

static sl_status try_reserve(sl_request *request, int member, size_t bytes, sl_envelope **out)
{
    request->message.shape.dims[1] = request->move.at;
    return sl_channel_reserve_bytes(request->group->mesh_to[member], &request->message, bytes, false, out);
}

static sl_status try_receive(sl_request *request, int member, size_t bytes, sl_envelope **out)
{
    request->message.shape.dims[1] = request->move.at;
    return sl_channel_receive_bytes(request->group->mesh_from[member], &request->message, bytes, false, out);
}

static sl_status commit(const sl_request *request, int member, sl_envelope *envelope)
{
    return sl_channel_hand_over(request->group->mesh_to[member], envelope, SL_HANDOFF_COMMIT,
                                is_far(request) ? request->stream : NULL);
}

static sl_status release(const sl_request *request, int member, sl_envelope *envelope)
{
    return sl_channel_hand_over(request->group->mesh_from[member], envelope, SL_HANDOFF_RELEASE,
                                is_far(request) ? request->stream : NULL);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static sl_status make_send(sl_request *request, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    sl_envelope *envelope = NULL;
    SL_TRY(try_reserve(request, move->member, move->bytes, &envelope));
    if (!envelope)
        return SL_OK;
    char *payload = sl_envelope_payload(envelope);
    if (is_far(request))
        SL_TRY(copy_far(request, false, payload));
    for (move_span span = { 0 }; !is_far(request) && next_span(request, false, &span);)
        sl_channel_fill(payload + span.offset, span.place, span.bytes);
    SL_TRY(commit(request, move->member, envelope));
    *made = true;
done:
    return status;
}

static sl_status make_fetch(sl_request *request, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    sl_envelope *envelope = NULL;
    SL_TRY(try_receive(request, move->member, move->bytes, &envelope));
    if (!envelope)
        return SL_OK;
    char *payload = sl_envelope_payload(envelope);
    if (is_far(request))
        SL_TRY(copy_far(request, true, payload));
    for (move_span span = { 0 }; !is_far(request) && next_span(request, true, &span);)
        memcpy(span.place, payload + span.offset, span.bytes);
    SL_TRY(release(request, move->member, envelope));
    *made = true;
done:
    return status;
}

/* This rank's own, into its place in the result unless it is there. */
static sl_status make_keep(const sl_request *request)
{
    sl_status status = SL_OK;
    for (move_span from = { 0 }, to = { 0 }; next_span(request, false, &from) && next_span(request, true, &to);) {
        if (is_far(request) && from.place != to.place)
            SL_TRY(sl_stream_copy(request->stream, SL_COPY_DEVICE_TO_DEVICE, to.place, from.place, from.bytes));
        else if (from.place != to.place)
            memcpy(to.place, from.place, from.bytes);
    }
done:
    return status;
}

/* What came and the slot for the next: both, or neither is used. A side that is not wanted counts as there. */
static sl_status take_both(sl_request *request, size_t bytes_in, size_t bytes_out, bool *both)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    sl_envelope **in = &request->envelopes[0], **out = &request->envelopes[1];
    if (move->member >= 0 && !*in)
        SL_TRY(try_receive(request, move->member, bytes_in, in));
    if (move->next >= 0 && !*out)
        SL_TRY(try_reserve(request, move->next, bytes_out, out));
    *both = (move->member < 0 || *in) && (move->next < 0 || *out);
done:
    return status;
}

/* From a message into another: host memory on every device. */
static sl_status make_forward(sl_request *request, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    bool both = false;
    sl_envelope **pair = request->envelopes;
    SL_TRY(take_both(request, move->bytes, move->bytes, &both));
    if (!both)
        return SL_OK;
    sl_channel_fill(sl_envelope_payload(pair[1]), sl_envelope_payload(pair[0]), move->bytes);
    SL_TRY(sl_channel_hand_over(request->group->mesh_to[move->next], pair[1], SL_HANDOFF_COMMIT, NULL));
    SL_TRY(sl_channel_hand_over(request->group->mesh_from[move->member], pair[0], SL_HANDOFF_RELEASE, NULL));
    pair[0] = pair[1] = NULL;
    *made = true;
done:
    return status;
}

/* ---- Sums in a stream ------------------------------------------------------------------------- */

/* Host functions in stream order: the own piece lies in staging, and the result goes there unless it is a message. */
static void run_reduce(void *arg)
{
    sl_reduction *reduction = arg;
    sl_request *request = reduction->request;
    sl_group *group = request->group;
    sl_reduce_run(reduction->sources, group->size, (int64_t)(reduction->move.bytes / request->each), request->dtype,
                  request->reduce, request->staging);
    for (int m = 0; m < group->size; m++) {
        if (m != group->rank)
            sl_channel_hand_over_now(group->mesh_from[m], reduction->envelopes[m], SL_HANDOFF_RELEASE);
    }
    atomic_store_explicit(&reduction->busy, false, memory_order_release);
}

static void run_add(void *arg)
{
    sl_reduction *reduction = arg;
    sl_request *request = reduction->request;
    sl_group *group = request->group;
    const sl_move *move = &reduction->move;
    sl_envelope *in = reduction->envelopes[0], *out = reduction->envelopes[1];
    sl_reduce_next(in ? sl_envelope_payload(in) : NULL, request->staging, (int64_t)(move->bytes / request->each),
                   request->dtype, request->reduce, move->last, out ? sl_envelope_payload(out) : request->staging);
    if (in)
        sl_channel_hand_over_now(group->mesh_from[move->member], in, SL_HANDOFF_RELEASE);
    if (out)
        sl_channel_hand_over_now(group->mesh_to[move->next], out, SL_HANDOFF_COMMIT);
    atomic_store_explicit(&reduction->busy, false, memory_order_release);
}

/* Own piece to staging, the sum, and the result, if it stays here, to the device. As many as a channel has slots can be
 * on their way: the messages of one more cannot have come before one of them has freed its own. */
static sl_status sum_in_stream(sl_request *request, sl_host_fn sum, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    sl_reduction *reduction = &request->reductions[request->reduction];
    if (atomic_load_explicit(&reduction->busy, memory_order_acquire))
        return SL_OK;
    reduction->move = *move;
    memcpy(reduction->envelopes, request->envelopes, sizeof reduction->envelopes);
    for (int m = 0; sum == run_reduce && m < request->group->size; m++)
        reduction->sources[m] =
            m == request->group->rank ? request->staging : sl_envelope_payload(request->envelopes[m]);
    atomic_store_explicit(&reduction->busy, true, memory_order_relaxed);
    request->reduction = (request->reduction + 1) % SL_MESH_SLOTS;
    SL_TRY(copy_far(request, false, request->staging));
    SL_TRY(sl_stream_call(request->stream, sum, reduction));
    if (sum == run_reduce || move->next < 0) /* the result stays here */
        SL_TRY(copy_far(request, true, request->staging));
    *made = true;
done:
    return status;
}

/* ---- Sums ------------------------------------------------------------------------------------- */

/* In rank order, reading the others' pieces in place. */
static sl_status make_reduce(sl_request *request, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    sl_group *group = request->group;
    const void *sources[SL_MESH_DIRECT];
    for (; request->arrived < group->size; request->arrived++) {
        int m = request->arrived;
        if (m == group->rank)
            continue;
        request->envelopes[m] = NULL;
        SL_TRY(try_receive(request, m, move->bytes, &request->envelopes[m]));
        if (!request->envelopes[m])
            return SL_OK;
    }
    if (is_far(request)) {
        SL_TRY(sum_in_stream(request, run_reduce, made));
    } else {
        for (move_span own = { 0 }, sum = { 0 }; next_span(request, false, &own) && next_span(request, true, &sum);) {
            for (int m = 0; m < group->size; m++)
                sources[m] = m == group->rank ? own.place
                                              : (const char *)sl_envelope_payload(request->envelopes[m]) + own.offset;
            sl_reduce_run(sources, group->size, (int64_t)(own.bytes / request->each), request->dtype, request->reduce,
                          sum.place);
        }
        for (int m = 0; m < group->size; m++) {
            if (m != group->rank)
                SL_TRY(release(request, m, request->envelopes[m]));
        }
        *made = true;
    }
    if (*made) {
        request->arrived = 0;
        request->envelopes[0] = request->envelopes[1] = NULL;
    }
done:
    return status;
}

static void add_near(const sl_request *request)
{
    const sl_move *move = &request->move;
    size_t each = sl_dtype_size(sl_reduce_wide(request->dtype)); /* of what is summed so far */
    const char *in = request->envelopes[0] ? sl_envelope_payload(request->envelopes[0]) : NULL;
    char *out = request->envelopes[1] ? sl_envelope_payload(request->envelopes[1]) : NULL;
    for (move_span own = { 0 }, sum = { 0 }; next_span(request, false, &own) && next_span(request, true, &sum);) {
        size_t first = own.offset / request->each, count = own.bytes / request->each;
        char *place = out ? out + first * (move->last ? request->each : each) : sum.place;
        sl_reduce_next(in ? in + first * each : NULL, own.place, (int64_t)count, request->dtype, request->reduce,
                       move->last, place);
    }
}

/* One more member's share on what those before it have summed. Sums on their way are as wide as they are made. */
static sl_status make_add(sl_request *request, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    sl_envelope **pair = request->envelopes;
    size_t wide = move->bytes / request->each * sl_dtype_size(sl_reduce_wide(request->dtype));
    bool both = false;
    SL_TRY(take_both(request, wide, move->last ? move->bytes : wide, &both));
    if (!both)
        return SL_OK;
    if (is_far(request)) {
        SL_TRY(sum_in_stream(request, run_add, made));
    } else {
        add_near(request);
        if (pair[1])
            SL_TRY(commit(request, move->next, pair[1]));
        if (pair[0])
            SL_TRY(release(request, move->member, pair[0]));
        *made = true;
    }
    if (*made)
        pair[0] = pair[1] = NULL;
done:
    return status;
}

static void make_sum_board(sl_request *request)
{
    sl_group *group = request->group;
    for (int m = 0; m < group->size; m++)
        group->board_places[m] = group->board + (size_t)m * request->move.bytes;
    sl_reduce_run(group->board_places, group->size, (int64_t)(request->move.bytes / request->each), request->dtype,
                  request->reduce, request->move.to);
}

/* ---- Small things of a device go through the host -------------------------------------------- */

static void arrive_at_host(void *arg)
{
    sl_request *request = arg;
    sl_link *link = request->group->link;
    atomic_store(&request->at_host, true);
    if (link->transport->wake)
        link->transport->wake(link);
}

static sl_status make_to_host(sl_request *request, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    if (!request->asked_host) {
        request->asked_host = true;
        SL_TRY(sl_stream_copy(request->stream, SL_COPY_DEVICE_TO_HOST, request->small, move->from, move->bytes));
        SL_TRY(sl_stream_call(request->stream, arrive_at_host, request));
    }
    *made = atomic_load(&request->at_host);
done:
    return status;
}

sl_status sl_request_make_move(sl_request *request, bool *made)
{
    switch (request->move.kind) {
    case SL_MOVE_SEND:
        return make_send(request, made);
    case SL_MOVE_FETCH:
        return make_fetch(request, made);
    case SL_MOVE_KEEP:
        *made = true;
        return make_keep(request);
    case SL_MOVE_REDUCE:
        return make_reduce(request, made);
    case SL_MOVE_ADD:
        return make_add(request, made);
    case SL_MOVE_FORWARD:
        return make_forward(request, made);
    case SL_MOVE_SUM_BOARD:
        make_sum_board(request);
        *made = true;
        return SL_OK;
    case SL_MOVE_TO_HOST:
        return make_to_host(request, made);
    case SL_MOVE_FROM_HOST:
        *made = true;
        return sl_stream_copy(request->stream, SL_COPY_HOST_TO_DEVICE, request->move.to, request->small,
                              request->move.bytes);
    }
    return sl_fail(SL_ERR_INTERNAL, "there is no move %d", (int)request->move.kind);
}
