/* Sums of gradients across stages and ranks: parameters that several stages share, and replicas of a stage. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <string.h>

/* Tied gradients travel in pieces of this size: two of them a channel, whatever the size of the parameter. */
#define PIECE_BYTES (1 << 20)
#define PIECES_IN_FLIGHT 2

/* The gradient of one stage that shares the parameter. */
typedef struct part {
    int stage, rank;
    char *grad;       /* here; NULL on other ranks */
    char *copy;       /* here, where the host cannot reach grad: one piece of it */
    sl_channel *from; /* from where it is */
    sl_channel **to;  /* from here, to every other rank that takes part */
    void *piece;      /* while summing */
} part;

struct sl_tie {
    const sl_wire_tie *wire;
    part *parts; /* in stage order */
    int *ranks;  /* that take part, each once */
    int rank_count;
    bool here; /* this rank is among them */
};

/* ---- Creation -------------------------------------------------------------------------------- */

static char *find_grad(const sl_runtime *runtime, int stage, const char *name)
{
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_stage *own = runtime->stages[k];
        for (int i = 0; own->index == stage && i < own->weight_count; i++) {
            if (strcmp(own->weights[i].name, name) == 0)
                return own->weights[i].grad_place;
        }
    }
    return NULL;
}

static sl_status tie_init(sl_runtime *runtime, const sl_wire_tie *wire, sl_tie *tie)
{
    sl_status status = SL_OK;
    tie->wire = wire;
    SL_TRY(SL_NEW_ARRAY(tie->parts, wire->stage_count));
    SL_TRY(SL_NEW_ARRAY(tie->ranks, wire->stage_count));
    for (int p = 0; p < wire->stage_count; p++) {
        part *each = &tie->parts[p];
        bool known = false;
        each->stage = wire->stages[p];
        each->rank = runtime->wiring->stages[each->stage].rank;
        for (int i = 0; i < tie->rank_count; i++)
            known |= tie->ranks[i] == each->rank;
        if (!known)
            tie->ranks[tie->rank_count++] = each->rank;
        if (each->rank != runtime->rank)
            continue;
        tie->here = true;
        each->grad = find_grad(runtime, each->stage, wire->name);
        if (!runtime->host)
            SL_TRY(sl_alloc(1, PIECE_BYTES, (void **)&each->copy));
    }
    for (int p = 0; p < wire->stage_count; p++)
        SL_TRY(SL_NEW_ARRAY(tie->parts[p].to, tie->rank_count));
    if (wire->meta.dtype != SL_F32 && wire->meta.dtype != SL_F64)
        return sl_fail(SL_ERR_UNSUPPORTED, "parameter '%s' is tied between stages and %s: only f32 and f64 can be",
                       wire->name, sl_dtype_name(wire->meta.dtype));
done:
    return status;
}

sl_status sl_ties_create(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    if (!sl_schedule_has_backward(runtime->schedule))
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(runtime->ties, wiring->tie_count));
    for (int t = 0; t < wiring->tie_count; t++) {
        if (!wiring->ties[t].frozen)
            SL_TRY(tie_init(runtime, &wiring->ties[t], &runtime->ties[runtime->tie_count++]));
    }
done:
    return status;
}

void sl_ties_destroy(sl_runtime *runtime)
{
    for (int t = 0; t < runtime->tie_count; t++) {
        sl_tie *tie = &runtime->ties[t];
        for (int p = 0; tie->parts && p < tie->wire->stage_count; p++) {
            sl_free(tie->parts[p].copy);
            sl_free(tie->parts[p].to);
        }
        sl_free(tie->parts);
        sl_free(tie->ranks);
    }
    sl_free(runtime->ties);
}

/* ---- Channels: each part to every other rank that takes part, in the same order everywhere -------- */

typedef void (*visit)(sl_runtime *runtime, sl_tie *tie, int p, int r, int index, void *user);

static int visit_channels(const sl_runtime *runtime, visit each, void *user)
{
    int index = 0;
    for (int t = 0; t < runtime->tie_count; t++) {
        sl_tie *tie = &runtime->ties[t];
        for (int p = 0; p < tie->wire->stage_count; p++) {
            for (int r = 0; r < tie->rank_count; r++) {
                if (tie->ranks[r] == tie->parts[p].rank)
                    continue;
                if (each)
                    each((sl_runtime *)runtime, tie, p, r, index, user);
                index++;
            }
        }
    }
    return index;
}

int sl_ties_channel_count(const sl_runtime *runtime)
{
    return visit_channels(runtime, NULL, NULL);
}

static size_t piece_bytes(const sl_tie *tie)
{
    size_t bytes = sl_meta_bytes(&tie->wire->meta);
    return bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
}

static void write_spec(sl_runtime *runtime, sl_tie *tie, int p, int r, int index, void *user)
{
    sl_channel_spec *spec = (sl_channel_spec *)user + index;
    spec->id += index; /* the caller put the first number there */
    spec->src = tie->parts[p].rank;
    spec->dst = tie->ranks[r];
    spec->capacity = PIECES_IN_FLIGHT;
    spec->max_bytes = piece_bytes(tie);
    if (spec->dst == runtime->rank)
        runtime->memory.messages += PIECES_IN_FLIGHT * spec->max_bytes;
}

void sl_ties_channel_specs(const sl_runtime *runtime, int first_id, sl_channel_spec *out)
{
    int count = sl_ties_channel_count(runtime);
    for (int i = 0; i < count; i++)
        out[i] = (sl_channel_spec){ .id = first_id };
    visit_channels(runtime, write_spec, out);
}

static void take_channel(sl_runtime *runtime, sl_tie *tie, int p, int r, int index, void *user)
{
    sl_channel *channel = ((sl_channel **)user)[index];
    if (tie->ranks[r] == runtime->rank)
        tie->parts[p].from = channel;
    else if (tie->parts[p].rank == runtime->rank)
        tie->parts[p].to[r] = channel;
}

void sl_ties_take_channels(sl_runtime *runtime, sl_channel *const *channels)
{
    visit_channels(runtime, take_channel, (void *)channels);
}

/* ---- Summing --------------------------------------------------------------------------------- */

/* The own parts of one piece go to the others. */
static sl_status send_pieces(sl_runtime *runtime, sl_tie *tie, const sl_message *message, size_t offset, size_t bytes)
{
    sl_status status = SL_OK;
    for (int p = 0; p < tie->wire->stage_count; p++) {
        part *each = &tie->parts[p];
        if (each->rank != runtime->rank)
            continue;
        each->piece = each->grad + offset;
        if (each->copy) {
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, each->copy, each->grad + offset, bytes));
            SL_TRY(sl_stream_synchronize(runtime->stream));
            each->piece = each->copy;
        }
        for (int r = 0; r < tie->rank_count; r++) {
            void *data = NULL;
            if (!each->to[r])
                continue;
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
    for (int p = 0; p < tie->wire->stage_count; p++) {
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
    sl_message message = { .step = step, .microbatch = number, .dtype = tie->wire->meta.dtype };
    message.shape.rank = 1;
    message.shape.dims[0] = (int64_t)(bytes / sl_dtype_size(message.dtype));
    SL_TRY(send_pieces(runtime, tie, &message, offset, bytes));
    for (int p = 0; p < tie->wire->stage_count; p++) {
        part *each = &tie->parts[p];
        if (each->from)
            SL_TRY(sl_channel_receive(each->from, &message, NULL, &each->piece));
        if (p > 0)
            add_piece(message.dtype, tie->parts[0].piece, each->piece, bytes);
    }
    SL_TRY(spread_sum(runtime, tie, offset, bytes));
    for (int p = 0; p < tie->wire->stage_count; p++) {
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
        size_t bytes = sl_meta_bytes(&tie->wire->meta);
        int number = 0;
        for (size_t offset = 0; tie->here && offset < bytes; offset += PIECE_BYTES) {
            size_t piece = bytes - offset < PIECE_BYTES ? bytes - offset : PIECE_BYTES;
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
