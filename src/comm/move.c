/* The moves that collectives are made of: in host memory at once, else by copies and host functions of a stream. */
#include "comm/reduce.h"
#include "comm/request.h"

#include <string.h>

/* Whether the request's memory has to be reached by its stream. */
static bool is_far(const sl_request *request)
{
    return request->stream && !request->staged;
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
    if (is_far(request))
        SL_TRY(sl_stream_copy(request->stream, SL_COPY_DEVICE_TO_HOST, sl_envelope_payload(envelope), move->from,
                              move->bytes));
    else
        sl_channel_fill(sl_envelope_payload(envelope), move->from, move->bytes);
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
    if (is_far(request))
        SL_TRY(sl_stream_copy(request->stream, SL_COPY_HOST_TO_DEVICE, move->to, sl_envelope_payload(envelope),
                              move->bytes));
    else if (move->bytes > 0)
        memcpy(move->to, sl_envelope_payload(envelope), move->bytes);
    SL_TRY(release(request, move->member, envelope));
    *made = true;
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
    SL_TRY(sl_stream_copy(request->stream, SL_COPY_DEVICE_TO_HOST, request->staging, move->from, move->bytes));
    SL_TRY(sl_stream_call(request->stream, sum, reduction));
    if (move->to)
        SL_TRY(sl_stream_copy(request->stream, SL_COPY_HOST_TO_DEVICE, move->to, request->staging, move->bytes));
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
        for (int m = 0; m < group->size; m++)
            sources[m] = m == group->rank ? (const void *)move->from : sl_envelope_payload(request->envelopes[m]);
        sl_reduce_run(sources, group->size, (int64_t)(move->bytes / request->each), request->dtype, request->reduce,
                      move->to);
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

/* One more member's share on what those before it have summed. Sums on their way are as wide as they are made. */
static sl_status make_add(sl_request *request, bool *made)
{
    sl_status status = SL_OK;
    const sl_move *move = &request->move;
    sl_envelope **pair = request->envelopes;
    int64_t count = (int64_t)(move->bytes / request->each);
    size_t wide = (size_t)count * sl_dtype_size(sl_reduce_wide(request->dtype));
    bool both = false;
    SL_TRY(take_both(request, wide, move->last ? move->bytes : wide, &both));
    if (!both)
        return SL_OK;
    if (is_far(request)) {
        SL_TRY(sum_in_stream(request, run_add, made));
    } else {
        sl_reduce_next(pair[0] ? sl_envelope_payload(pair[0]) : NULL, move->from, count, request->dtype,
                       request->reduce, move->last, pair[1] ? sl_envelope_payload(pair[1]) : move->to);
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
