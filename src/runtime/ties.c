/* Sums of gradients across stages and ranks: parameters that several stages share, and replicas of a stage. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <string.h>

/* The gradient of one weight of the tie. */
typedef struct part {
    int rank;
    char *grad;       /* here; NULL on other ranks */
    char *copy;       /* here, if the host cannot reach grad: one piece of it */
    sl_channel *from; /* from where it is */
    sl_channel **to;  /* from here, to other ranks that take part */
    int to_count;
} part;

/* One piece of a sum, as a stream gets it: host memory of every part of it. */
typedef struct tie_piece {
    const sl_tie *tie;
    size_t offset, bytes;
    void **parts;
} tie_piece;

struct sl_tie {
    const sl_wire_tie *wire;
    sl_meta meta; /* of the gradients */
    part *parts;  /* in the order of the tie's members */
    bool here;    /* one of them is on this rank */
    tie_piece *pieces;
    int piece_count;
    void **piece_parts; /* (piece_count, parts) */
};

/* ---- Creation -------------------------------------------------------------------------------- */

static sl_status make_pieces(sl_tie *tie)
{
    sl_status status = SL_OK;
    size_t bytes = sl_meta_bytes(&tie->meta);
    tie->piece_count = (int)((bytes + SL_TIE_PIECE_BYTES - 1) / SL_TIE_PIECE_BYTES);
    SL_TRY(SL_NEW_ARRAY(tie->pieces, tie->piece_count));
    SL_TRY(SL_NEW_ARRAY(tie->piece_parts, (int64_t)tie->piece_count * tie->wire->member_count));
    for (int i = 0; i < tie->piece_count; i++) {
        size_t offset = (size_t)i * SL_TIE_PIECE_BYTES, left = bytes - offset;
        tie->pieces[i] = (tie_piece){ .tie = tie,
                                      .offset = offset,
                                      .bytes = left < SL_TIE_PIECE_BYTES ? left : SL_TIE_PIECE_BYTES,
                                      .parts = tie->piece_parts + (int64_t)i * tie->wire->member_count };
    }
done:
    return status;
}

static sl_status tie_init(sl_runtime *runtime, const sl_wire_tie *wire, sl_tie *tie)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    tie->wire = wire;
    tie->meta = wiring->stages[wire->members[0].stage].weights[wire->members[0].weight].grad_meta;
    SL_TRY(SL_NEW_ARRAY(tie->parts, wire->member_count));
    for (int p = 0; p < wire->member_count; p++) {
        part *each = &tie->parts[p];
        const sl_wire_stage *stage = &wiring->stages[wire->members[p].stage];
        each->rank = stage->rank;
        if (each->rank != runtime->rank)
            continue;
        tie->here = true;
        each->grad = runtime->stages[stage->local]->weights[wire->members[p].weight].grad_place;
        SL_TRY(SL_NEW_ARRAY(each->to, wire->member_count));
        if (!runtime->host)
            SL_TRY(sl_device_alloc_host(runtime->device, SL_TIE_PIECE_BYTES, (void **)&each->copy));
    }
    SL_TRY(make_pieces(tie));
done:
    return status;
}

sl_status sl_ties_create(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    if (!runtime->pipeline->training)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(runtime->ties, wiring->tie_count));
    for (int t = 0; t < wiring->tie_count; t++)
        SL_TRY(tie_init(runtime, &wiring->ties[t], &runtime->ties[runtime->tie_count++]));
done:
    return status;
}

void sl_ties_destroy(sl_runtime *runtime)
{
    for (int t = 0; t < runtime->tie_count; t++) {
        sl_tie *tie = &runtime->ties[t];
        for (int p = 0; tie->parts && p < tie->wire->member_count; p++) {
            sl_device_free_host(runtime->device, tie->parts[p].copy);
            sl_free(tie->parts[p].to);
        }
        sl_free(tie->parts);
        sl_free(tie->pieces);
        sl_free(tie->piece_parts);
    }
    sl_free(runtime->ties);
}

void sl_ties_take_channels(sl_runtime *runtime)
{
    const sl_routes *routes = &runtime->pipeline->routes;
    for (int i = routes->edge_routes; i < routes->count; i++) {
        const sl_route *route = &routes->list[i];
        part *each = &runtime->ties[route->tie].parts[route->member];
        if (route->dst == runtime->rank)
            each->from = runtime->channels[i];
        else if (route->src == runtime->rank)
            each->to[each->to_count++] = runtime->channels[i];
    }
}

/* ---- Summing --------------------------------------------------------------------------------- */

/* The own parts of one piece go to the others, and to where the host can add them up. */
static sl_status send_pieces(sl_runtime *runtime, sl_tie *tie, const sl_message *message, const tie_piece *piece)
{
    sl_status status = SL_OK;
    for (int p = 0; p < tie->wire->member_count; p++) {
        part *each = &tie->parts[p];
        const char *grad = each->grad + piece->offset;
        if (each->rank != runtime->rank)
            continue;
        for (int r = 0; r < each->to_count; r++) {
            void *data = NULL;
            SL_TRY(sl_channel_reserve(each->to[r], message, &data));
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, data, grad, piece->bytes));
            SL_TRY(sl_channel_commit_after(each->to[r], data, runtime->stream));
        }
        piece->parts[p] = each->copy ? each->copy : each->grad + piece->offset;
        if (each->copy)
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, each->copy, grad, piece->bytes));
    }
done:
    return status;
}

static void add_piece(sl_dtype dtype, void *sum, const void *more, size_t bytes)
{
    if (dtype == SL_F64) {
        double *to = sum;
        const double *from = more;
        for (size_t i = 0; i < bytes / sizeof *to; i++)
            to[i] += from[i];
        return;
    }
    float *to = sum;
    const float *from = more;
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] += from[i];
}

/* A host function: the memory of the first part gets the sum. */
static void add_parts(void *arg)
{
    const tie_piece *piece = arg;
    for (int p = 1; p < piece->tie->wire->member_count; p++)
        add_piece(piece->tie->meta.dtype, piece->parts[0], piece->parts[p], piece->bytes);
}

/* The sum goes to all own parts. */
static sl_status spread_sum(sl_runtime *runtime, const sl_tie *tie, const tie_piece *piece)
{
    sl_status status = SL_OK;
    for (int p = 0; p < tie->wire->member_count; p++) {
        const part *each = &tie->parts[p];
        if (each->grad && each->grad + piece->offset != piece->parts[0])
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_HOST_TO_DEVICE, each->grad + piece->offset, piece->parts[0],
                                  piece->bytes));
    }
done:
    return status;
}

static sl_status sum_piece(sl_runtime *runtime, sl_tie *tie, int64_t step, int number)
{
    sl_status status = SL_OK;
    tie_piece *piece = &tie->pieces[number];
    sl_message message = { .step = step, .microbatch = number, .dtype = tie->meta.dtype };
    message.shape.rank = 1;
    message.shape.dims[0] = (int64_t)(piece->bytes / sl_dtype_size(message.dtype));
    SL_TRY(send_pieces(runtime, tie, &message, piece));
    for (int p = 0; p < tie->wire->member_count; p++) {
        if (tie->parts[p].from)
            SL_TRY(sl_channel_receive(tie->parts[p].from, &message, NULL, &piece->parts[p]));
    }
    SL_TRY(sl_stream_call(runtime->stream, add_parts, piece));
    SL_TRY(spread_sum(runtime, tie, piece));
    for (int p = 0; p < tie->wire->member_count; p++) {
        if (tie->parts[p].from)
            SL_TRY(sl_channel_release_after(tie->parts[p].from, piece->parts[p], runtime->stream));
    }
done:
    return status;
}

sl_status sl_ties_sum(sl_runtime *runtime, int64_t step)
{
    for (int t = 0; t < runtime->tie_count; t++) {
        sl_tie *tie = &runtime->ties[t];
        bool frozen = !tie->parts[0].grad && !tie->parts[0].from;
        for (int i = 0; tie->here && !frozen && i < tie->piece_count; i++) {
            sl_status status = sum_piece(runtime, tie, step, i);
            if (status != SL_OK)
                return sl_fail_context(status, "gradient of the tied parameter '%s'", tie->wire->name);
        }
    }
    return SL_OK;
}

/* ---- Replicas -------------------------------------------------------------------------------- */

/* Posted: the sums go on beside the rest of the step. On a device that works by itself they have a stream of their own,
 * which starts when the gradients are there. */
sl_status sl_runtime_reduce_stage(sl_runtime *runtime, int stage)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    if (!runtime->replicas || sl_group_size(runtime->replicas) == 1)
        return SL_OK;
    if (!runtime->host) {
        SL_TRY(sl_event_record(lanes->grads_made, runtime->stream));
        SL_TRY(sl_stream_wait(lanes->posted, lanes->grads_made));
    }
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_stage *own = runtime->stages[k];
        for (int i = 0; own->index == stage && i < own->weight_count; i++) {
            const sl_stage_weight *weight = &own->weights[i];
            if (weight->frozen)
                continue;
            SL_TRY(sl_group_all_reduce_post(runtime->replicas, weight->grad_place, sl_meta_count(&weight->meta),
                                            weight->grad_dtype, SL_REDUCE_SUM, lanes->posted,
                                            &runtime->requests[runtime->request_count]));
            runtime->request_count++;
        }
    }
done:
    return status;
}

sl_status sl_runtime_finish_reduce(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    if (runtime->request_count == 0)
        return SL_OK;
    while (runtime->request_count > 0)
        SL_TRY(sl_request_wait(runtime->requests[--runtime->request_count]));
    if (!runtime->host) {
        SL_TRY(sl_event_record(lanes->grads_summed, lanes->posted));
        SL_TRY(sl_stream_wait(runtime->stream, lanes->grads_summed));
    }
done:
    return status;
}
