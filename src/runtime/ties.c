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
    void *piece; /* while summing */
} part;

struct sl_tie {
    const sl_wire_tie *wire;
    sl_meta meta; /* of the gradients */
    part *parts;  /* in the order of the tie's members */
    bool here;    /* one of them is on this rank */
};

/* ---- Creation -------------------------------------------------------------------------------- */

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
            SL_TRY(sl_alloc(1, SL_TIE_PIECE_BYTES, (void **)&each->copy));
    }
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
            sl_free(tie->parts[p].copy);
            sl_free(tie->parts[p].to);
        }
        sl_free(tie->parts);
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

/* The own parts of one piece go to the others. */
static sl_status send_pieces(sl_runtime *runtime, sl_tie *tie, const sl_message *message, size_t offset, size_t bytes)
{
    sl_status status = SL_OK;
    for (int p = 0; p < tie->wire->member_count; p++) {
        part *each = &tie->parts[p];
        if (each->rank != runtime->rank)
            continue;
        each->piece = each->grad + offset;
        if (each->copy) {
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, each->copy, each->grad + offset, bytes));
            SL_TRY(sl_stream_synchronize(runtime->stream));
            each->piece = each->copy;
        }
        for (int r = 0; r < each->to_count; r++) {
            void *data = NULL;
            SL_TRY(sl_channel_reserve(each->to[r], message, &data));
            memcpy(data, each->piece, bytes);
            SL_TRY(sl_channel_commit(each->to[r], data));
        }
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

/* The sum goes to all own parts; the memory of the first part carries it. */
static sl_status spread_sum(sl_runtime *runtime, sl_tie *tie, size_t offset, size_t bytes)
{
    sl_status status = SL_OK;
    const void *sum = tie->parts[0].piece;
    for (int p = 0; p < tie->wire->member_count; p++) {
        part *each = &tie->parts[p];
        if (each->copy)
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_HOST_TO_DEVICE, each->grad + offset, sum, bytes));
        else if (each->grad && each->piece != sum)
            memcpy(each->piece, sum, bytes);
    }
    if (!runtime->host)
        SL_TRY(sl_stream_synchronize(runtime->stream));
done:
    return status;
}

static sl_status sum_piece(sl_runtime *runtime, sl_tie *tie, int64_t step, int number, size_t offset, size_t bytes)
{
    sl_status status = SL_OK;
    sl_message message = { .step = step, .microbatch = number, .dtype = tie->meta.dtype };
    message.shape.rank = 1;
    message.shape.dims[0] = (int64_t)(bytes / sl_dtype_size(message.dtype));
    SL_TRY(send_pieces(runtime, tie, &message, offset, bytes));
    for (int p = 0; p < tie->wire->member_count; p++) {
        part *each = &tie->parts[p];
        if (each->from)
            SL_TRY(sl_channel_receive(each->from, &message, NULL, &each->piece));
        if (p > 0)
            add_piece(message.dtype, tie->parts[0].piece, each->piece, bytes);
    }
    SL_TRY(spread_sum(runtime, tie, offset, bytes));
    for (int p = 0; p < tie->wire->member_count; p++) {
        if (tie->parts[p].from)
            SL_TRY(sl_channel_release(tie->parts[p].from, tie->parts[p].piece));
    }
done:
    return status;
}

sl_status sl_ties_sum(sl_runtime *runtime, int64_t step)
{
    sl_status status = SL_OK;
    for (int t = 0; t < runtime->tie_count; t++) {
        sl_tie *tie = &runtime->ties[t];
        size_t bytes = sl_meta_bytes(&tie->meta);
        int number = 0;
        bool frozen = !tie->parts[0].grad && !tie->parts[0].from;
        for (size_t offset = 0; tie->here && !frozen && offset < bytes; offset += SL_TIE_PIECE_BYTES) {
            size_t piece = bytes - offset < SL_TIE_PIECE_BYTES ? bytes - offset : SL_TIE_PIECE_BYTES;
            status = sum_piece(runtime, tie, step, number++, offset, piece);
            if (status != SL_OK)
                return sl_fail_context(status, "gradient of the tied parameter '%s'", tie->wire->name);
        }
    }
    return status;
}

/* ---- Replicas -------------------------------------------------------------------------------- */

sl_status sl_runtime_reduce_stage(sl_runtime *runtime, int stage)
{
    sl_status status = SL_OK;
    if (!runtime->replicas || sl_group_size(runtime->replicas) == 1)
        return SL_OK;
    SL_TRY(sl_stream_synchronize(runtime->stream));
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_stage *own = runtime->stages[k];
        for (int i = 0; own->index == stage && i < own->weight_count; i++) {
            const sl_stage_weight *weight = &own->weights[i];
            size_t bytes = sl_meta_bytes(&weight->meta);
            void *data = runtime->host ? weight->grad_place : runtime->host_copy;
            if (weight->frozen)
                continue;
            if (!runtime->host) {
                SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, data, weight->grad_place, bytes));
                SL_TRY(sl_stream_synchronize(runtime->stream));
            }
            SL_TRY(sl_group_all_reduce(runtime->replicas, data, sl_meta_count(&weight->meta), weight->meta.dtype,
                                       SL_REDUCE_SUM));
            if (!runtime->host) {
                SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_HOST_TO_DEVICE, weight->grad_place, data, bytes));
                SL_TRY(sl_stream_synchronize(runtime->stream));
            }
        }
    }
done:
    return status;
}
