/* Sums of the gradients of tied parameters, across stages and ranks. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <string.h>

/* The gradient of one weight of the tie. */
typedef struct part {
    int rank;
    char *grad;       /* here; NULL on other ranks */
    sl_channel *from; /* from where it is */
    sl_channel **to;  /* from here, to other ranks that take part */
    int to_count;
    void *message; /* while summing: that came from there */
} part;

struct sl_tie {
    const sl_wire_tie *wire;
    sl_meta meta; /* of the gradients */
    part *parts;  /* in the order of the tie's members */
    bool here;    /* one of them is on this rank */

    sl_group *group; /* of the ranks that have one; NULL: it was not wanted, or not this rank */
    sl_exchange exchange;
    sl_device_part *device_parts; /* the parts by ranks of that group */
};

/* ---- Creation -------------------------------------------------------------------------------- */

static sl_status tie_init(sl_runtime *runtime, const sl_wire_tie *wire, sl_tie *tie)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    tie->wire = wire;
    const sl_wire_weight *first = &wiring->stages[wire->members[0].stage].weights[wire->members[0].weight];
    tie->meta = first->kept_grad_meta;
    size_t own = 0; /* with SL_SHARD_OPTIMIZER a rank has the sum of its shard alone, inside of the whole */
    if (wiring->shard == SL_SHARD_OPTIMIZER) {
        sl_param_range range = sl_shard_range(first->shardings.updated, runtime->sharers.replica);
        tie->meta = sl_meta_make(first->grad_meta.dtype, 1, &range.count);
        own = (size_t)range.first * sl_dtype_size(first->grad_meta.dtype);
    }
    SL_TRY(SL_NEW_ARRAY(tie->parts, wire->member_count));
    for (int p = 0; p < wire->member_count; p++) {
        part *each = &tie->parts[p];
        const sl_wire_stage *stage = &wiring->stages[wire->members[p].stage];
        each->rank = stage->rank;
        if (each->rank != runtime->rank)
            continue;
        tie->here = true;
        char *grad = runtime->stages[stage->local]->weights[wire->members[p].weight].grad_place;
        each->grad = grad ? grad + own : NULL; /* NULL: frozen */
        SL_TRY(SL_NEW_ARRAY(each->to, wire->member_count));
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
            sl_free(tie->parts[p].to);
        }
        sl_free(tie->parts);
    }
    sl_free(runtime->ties);
}

/* ---- In device memory ------------------------------------------------------------------------ */

/* Ranks of the group are those with a part, in the order of their ranks. */
static sl_status list_device_parts(sl_tie *tie)
{
    sl_status status = SL_OK;
    int count = tie->wire->member_count;
    SL_TRY(SL_NEW_ARRAY(tie->device_parts, count));
    for (int p = 0; p < count; p++) {
        int rank = 0;
        for (int other = 0; other < tie->parts[p].rank; other++) {
            bool has_part = false;
            for (int q = 0; q < count; q++)
                has_part |= tie->parts[q].rank == other;
            rank += has_part;
        }
        tie->device_parts[p] = (sl_device_part){ .rank = rank, .data = tie->parts[p].grad };
    }
done:
    return status;
}

static sl_status open_tie(sl_runtime *runtime, sl_tie *tie)
{
    sl_status status = SL_OK;
    size_t bytes = sl_staging_of_tie(runtime->wiring, tie->wire);
    if (bytes == 0)
        return SL_OK;
    SL_TRY(sl_group_split(runtime->group, tie->here ? 0 : -1, runtime->rank, &tie->group));
    if (!tie->group)
        return SL_OK;
    SL_TRY(sl_exchange_open(&tie->exchange, tie->group, runtime->words, bytes, SL_SUM_EXACT));
    if (!tie->exchange.device)
        return SL_OK;
    runtime->memory.messages += bytes;
    SL_TRY(list_device_parts(tie));
done:
    return status;
}

sl_status sl_ties_open(sl_runtime *runtime, uint8_t *on_device)
{
    sl_status status = SL_OK;
    int count = runtime->tie_count, ranks = sl_group_size(runtime->group);
    uint8_t *all = NULL;
    if (!runtime->words || count == 0)
        return SL_OK;
    for (int t = 0; t < count; t++) {
        SL_TRY(open_tie(runtime, &runtime->ties[t]));
        on_device[t] = runtime->ties[t].exchange.device != NULL;
    }
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)count * ranks));
    SL_TRY(sl_group_all_gather(runtime->group, on_device, (size_t)count, all));
    for (int i = 0; i < count * ranks; i++)
        on_device[i % count] |= all[i];
done:
    sl_free(all);
    return status;
}

void sl_ties_count_exchanges(const sl_runtime *runtime, sl_exchange_ways *ways)
{
    for (int t = 0; t < runtime->tie_count; t++)
        sl_exchange_count(&runtime->ties[t].exchange, ways);
}

void sl_ties_close(sl_runtime *runtime)
{
    for (int t = 0; t < runtime->tie_count; t++) {
        sl_exchange_close(&runtime->ties[t].exchange);
        sl_group_close(runtime->ties[t].group);
        sl_free(runtime->ties[t].device_parts);
    }
}

/* ---- Through the host ------------------------------------------------------------------------ */

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

/* All in the order of the stream: a device that works by itself copies to and from messages and adds; the memory of the
 * host is used where it lies. */

/* The own parts of one piece go to the others. */
static sl_status send_pieces(sl_runtime *runtime, sl_tie *tie, const sl_message *message, size_t offset, size_t bytes)
{
    sl_status status = SL_OK;
    for (int p = 0; p < tie->wire->member_count; p++) {
        const part *each = &tie->parts[p];
        for (int r = 0; r < each->to_count; r++) {
            void *data = NULL;
            SL_TRY(sl_channel_reserve(each->to[r], message, &data));
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, data, each->grad + offset, bytes));
            SL_TRY(sl_channel_commit_after(each->to[r], data, runtime->stream));
        }
    }
done:
    return status;
}

/* The part's piece where the device can read it. A device that works by itself gets a copy in half `half` (0 or 1) of the
 * scratch, which is free: no stage runs any more. */
static sl_status fetch_piece(sl_runtime *runtime, part *each, const sl_message *message, size_t offset, size_t bytes,
                             int half, void **out)
{
    sl_status status = SL_OK;
    void *data = NULL;
    if (!each->from) {
        *out = each->grad + offset;
        return SL_OK;
    }
    SL_TRY(sl_channel_receive(each->from, message, NULL, &data));
    each->message = *out = data;
    if (runtime->host)
        return SL_OK;
    char *copy = (char *)runtime->context.scratch + (size_t)half * SL_TIE_PIECE_BYTES;
    SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_HOST_TO_DEVICE, copy, data, bytes));
    *out = copy;
done:
    return status;
}

static sl_status add_piece(sl_runtime *runtime, const sl_message *message, void *sum, void *more)
{
    const sl_meta meta = sl_meta_make(message->dtype, 1, message->shape.dims);
    const sl_view inputs[] = { { sum, meta }, { more, meta } };
    const sl_kernel_call call = {
        .op = SL_OP_ADD, .inputs = inputs, .input_count = 2, .outputs = inputs, .output_count = 1
    };
    return sl_kernel_run(runtime->stream, &call);
}

/* Adds up in the order of the parts: the memory of the first carries the sum, which goes to all own parts. */
static sl_status sum_piece(sl_runtime *runtime, sl_tie *tie, int64_t step, int number, size_t offset, size_t bytes)
{
    sl_status status = SL_OK;
    void *sum = NULL, *more = NULL;
    sl_message message = { .step = step, .microbatch = number, .dtype = tie->meta.dtype };
    message.shape.rank = 1;
    message.shape.dims[0] = (int64_t)(bytes / sl_dtype_size(message.dtype));
    SL_TRY(send_pieces(runtime, tie, &message, offset, bytes));
    SL_TRY(fetch_piece(runtime, &tie->parts[0], &message, offset, bytes, 0, &sum));
    for (int p = 1; p < tie->wire->member_count; p++) {
        SL_TRY(fetch_piece(runtime, &tie->parts[p], &message, offset, bytes, 1, &more));
        SL_TRY(add_piece(runtime, &message, sum, more));
    }
    for (int p = 0; p < tie->wire->member_count; p++) {
        char *place = tie->parts[p].grad ? tie->parts[p].grad + offset : NULL;
        if (place && place != sum)
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_DEVICE, place, sum, bytes));
    }
    for (int p = 0; p < tie->wire->member_count; p++) {
        part *each = &tie->parts[p];
        if (each->message)
            SL_TRY(sl_channel_release_after(each->from, each->message, runtime->stream));
        each->message = NULL;
    }
done:
    return status;
}

static sl_status sum_pieces(sl_runtime *runtime, sl_tie *tie, int64_t step)
{
    sl_status status = SL_OK;
    size_t bytes = sl_meta_bytes(&tie->meta);
    int number = 0;
    bool frozen = !tie->parts[0].grad && !tie->parts[0].from;
    for (size_t offset = 0; tie->here && !frozen && offset < bytes; offset += SL_TIE_PIECE_BYTES) {
        size_t piece = bytes - offset < SL_TIE_PIECE_BYTES ? bytes - offset : SL_TIE_PIECE_BYTES;
        SL_TRY(sum_piece(runtime, tie, step, number++, offset, piece));
    }
done:
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

sl_status sl_ties_sum(sl_runtime *runtime, int64_t step)
{
    for (int t = 0; t < runtime->tie_count; t++) {
        sl_tie *tie = &runtime->ties[t];
        sl_status status = tie->exchange.device
                               ? sl_device_sum(tie->exchange.device, tie->device_parts, tie->wire->member_count,
                                               sl_meta_count(&tie->meta), tie->meta.dtype, runtime->stream)
                               : sum_pieces(runtime, tie, step);
        if (status != SL_OK)
            return sl_fail_context(status, "gradient of the tied parameter '%s'", tie->wire->name);
    }
    return SL_OK;
}
