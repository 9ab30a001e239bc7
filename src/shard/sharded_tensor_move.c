/* Sharded tensors that move: gather, all-gather and reshard are one exchange between two shardings of the same tensor.
 * Every rank knows both, so each computes the same list of pieces, sends those of its own shards to the ranks that need
 * them, and knows in which order the others' arrive. */
#include "shard/sharded_tensor.h"

#include "base/alloc.h"
#include "shard/piece.h"
#include "sharding/box_index.h"

#include <string.h>

enum { PIECE_BYTES = 1 << 20, SLOTS = 2 };

/* One side of an exchange. */
typedef struct exchange_side {
    const sl_sharding *sharding;
    const int *owners;
    void *const *data; /* of this rank's shards; NULL for others */
} exchange_side;

/* What goes to a member of the group, or comes from it, in this order. */
typedef struct exchange_queue {
    sl_shard_move *pieces;
    size_t capacity;
    int count, next;
    sl_channel *channel;
} exchange_queue;

typedef struct exchange {
    sl_group *group; /* its own, so that its channels meet no others */
    int rank, size;
    size_t element_bytes;
    sl_dtype dtype;
    exchange_side from, to;
    sl_stream *stream;                /* NULL: the host's memory */
    exchange_queue *sends, *receives; /* one a member */
    exchange_queue own;               /* what stays on this rank */
    int64_t remote;                   /* pieces that any rank sends */
    sl_channel **channels;            /* those with pieces left, to wait for */
} exchange;

/* ---- Pieces ---------------------------------------------------------------------------------- */

static sl_status add_piece(exchange_queue *queue, const sl_shard_move *piece)
{
    sl_status status = SL_GROW(queue->pieces, &queue->capacity, queue->count + 1);
    if (status == SL_OK)
        queue->pieces[queue->count++] = *piece;
    return status;
}

/* Cuts the piece into such as fit into a message of `most` elements. */
static sl_status cut_piece(exchange_queue *queue, const sl_shard_move *piece, int64_t most)
{
    sl_status status = SL_OK;
    const int64_t volume = sl_box_volume(&piece->size);
    for (int64_t at = 0; at < volume;) {
        const sl_shard box = sl_box_of_range(&piece->size, at, volume - at < most ? volume - at : most);
        sl_shard_move part = { .from = piece->from, .to = piece->to, .size = box.size };
        for (int d = 0; d < box.size.rank; d++)
            part.offsets[d] = piece->offsets[d] + box.offsets[d];
        SL_TRY(add_piece(queue, &part));
        at += sl_box_volume(&box.size);
    }
done:
    return status;
}

static sl_status list_pieces(exchange *work)
{
    sl_status status = SL_OK;
    sl_shard_move *moves = NULL;
    int count = 0;
    const int64_t most = PIECE_BYTES / (int64_t)work->element_bytes;
    SL_TRY(sl_reshard_plan(work->from.sharding, work->to.sharding, &moves, &count));
    for (int i = 0; i < count; i++) {
        int source = work->from.owners[moves[i].from], target = work->to.owners[moves[i].to];
        work->remote += source != target;
        if (source == target && source == work->rank)
            SL_TRY(add_piece(&work->own, &moves[i]));
        else if (source == work->rank)
            SL_TRY(cut_piece(&work->sends[target], &moves[i], most));
        else if (target == work->rank)
            SL_TRY(cut_piece(&work->receives[source], &moves[i], most));
    }
done:
    sl_free(moves);
    return status;
}

static sl_shard_data shard_data(const exchange *work, const exchange_side *side, int shard)
{
    return (
        sl_shard_data){ .shard = &side->sharding->shards[shard], .data = side->data[shard], .stream = work->stream };
}

/* Between two shards of this rank; device memory goes through the host, a piece at a time. */
static sl_status copy_own(exchange *work)
{
    sl_status status = SL_OK;
    void *buffer = NULL;
    exchange_queue cut = { 0 };
    if (work->stream && work->own.count > 0)
        SL_TRY(sl_alloc(PIECE_BYTES, 1, &buffer));
    for (int i = 0; i < work->own.count; i++) {
        cut.count = 0;
        SL_TRY(work->stream ? cut_piece(&cut, &work->own.pieces[i], PIECE_BYTES / (int64_t)work->element_bytes)
                            : add_piece(&cut, &work->own.pieces[i]));
        for (int c = 0; c < cut.count; c++) {
            const sl_shard_move *piece = &cut.pieces[c];
            const sl_shard_data from = shard_data(work, &work->from, piece->from);
            const sl_shard_data to = shard_data(work, &work->to, piece->to);
            sl_shard alone = { .size = piece->size };
            const sl_shard_data between = { .shard = &alone, .data = buffer };
            memcpy(alone.offsets, piece->offsets, sizeof alone.offsets);
            if (!work->stream) {
                SL_TRY(sl_shard_copy(piece, work->element_bytes, &from, &to));
                continue;
            }
            SL_TRY(sl_shard_copy(piece, work->element_bytes, &from, &between));
            SL_TRY(sl_shard_copy(piece, work->element_bytes, &between, &to));
            SL_TRY(sl_stream_synchronize(work->stream)); /* the buffer is used again */
        }
    }
done:
    sl_free(cut.pieces);
    sl_free(buffer);
    return status;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static size_t largest_piece(const exchange *work, const exchange_queue *queue)
{
    size_t most = 0;
    for (int i = 0; i < queue->count; i++) {
        size_t bytes = (size_t)sl_box_volume(&queue->pieces[i].size) * work->element_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static sl_status open_channels(exchange *work)
{
    sl_status status = SL_OK;
    sl_channel_spec *specs = NULL;
    sl_channel **channels = NULL;
    exchange_queue **queues = NULL;
    int count = 0;
    SL_TRY(SL_NEW_ARRAY(specs, 2 * (size_t)work->size));
    SL_TRY(SL_NEW_ARRAY(channels, 2 * (size_t)work->size));
    SL_TRY(SL_NEW_ARRAY(queues, 2 * (size_t)work->size));
    for (int peer = 0; peer < work->size; peer++) {
        for (int sends = 0; sends < 2; sends++) {
            exchange_queue *queue = sends ? &work->sends[peer] : &work->receives[peer];
            int src = sends ? work->rank : peer, dst = sends ? peer : work->rank;
            if (queue->count == 0)
                continue;
            queues[count] = queue;
            specs[count++] = (sl_channel_spec){ .id = src * work->size + dst,
                                                .src = src,
                                                .dst = dst,
                                                .capacity = SLOTS,
                                                .max_bytes = largest_piece(work, queue) };
        }
    }
    SL_TRY(sl_group_open_channels(work->group, specs, count, channels));
    for (int i = 0; i < count; i++)
        queues[i]->channel = channels[i];
done:
    sl_free(queues);
    sl_free(channels);
    sl_free(specs);
    return status;
}

/* Sends or receives as much as goes without waiting; *moved is set if anything did. */
static sl_status move_some(exchange *work, exchange_queue *queue, bool sends, bool *moved)
{
    sl_status status = SL_OK;
    while (queue->next < queue->count) {
        const sl_shard_move *piece = &queue->pieces[queue->next];
        const sl_message message = { .step = queue->next, .dtype = work->dtype, .shape = piece->size };
        sl_shard alone = { .size = piece->size };
        sl_shard_data slot = { .shard = &alone };
        memcpy(alone.offsets, piece->offsets, sizeof alone.offsets);
        SL_TRY(sends ? sl_channel_try_reserve(queue->channel, &message, &slot.data)
                     : sl_channel_try_receive(queue->channel, &message, NULL, &slot.data));
        if (!slot.data)
            break;
        const sl_shard_data own =
            sends ? shard_data(work, &work->from, piece->from) : shard_data(work, &work->to, piece->to);
        SL_TRY(sl_shard_copy(piece, work->element_bytes, sends ? &own : &slot, sends ? &slot : &own));
        SL_TRY(sends ? sl_channel_commit_after(queue->channel, slot.data, work->stream)
                     : sl_channel_release_after(queue->channel, slot.data, work->stream));
        queue->next++;
        *moved = true;
    }
done:
    return status;
}

static sl_status move_all(exchange *work)
{
    sl_status status = SL_OK;
    for (;;) {
        int waiting = 0, ready;
        bool moved = false;
        for (int peer = 0; peer < work->size; peer++) {
            exchange_queue *out = &work->sends[peer], *in = &work->receives[peer];
            SL_TRY(move_some(work, out, true, &moved));
            SL_TRY(move_some(work, in, false, &moved));
            if (out->next < out->count)
                work->channels[waiting++] = out->channel;
            if (in->next < in->count)
                work->channels[waiting++] = in->channel;
        }
        if (waiting == 0)
            break;
        if (!moved)
            SL_TRY(sl_channel_wait_any(work->channels, waiting, &ready));
    }
done:
    return status;
}

static sl_status run_exchange(exchange *work, sl_group *group)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(work->sends, work->size));
    SL_TRY(SL_NEW_ARRAY(work->receives, work->size));
    SL_TRY(SL_NEW_ARRAY(work->channels, 2 * (size_t)work->size));
    SL_TRY(list_pieces(work));
    if (work->remote > 0) { /* all ranks count the same */
        SL_TRY(sl_group_split(group, 0, work->rank, &work->group));
        SL_TRY(open_channels(work));
        SL_TRY(move_all(work));
    }
    SL_TRY(copy_own(work));
    if (work->stream)
        SL_TRY(sl_stream_synchronize(work->stream));
    if (work->remote > 0)
        SL_TRY(sl_group_barrier(work->group)); /* who leaves the group drops what nobody has taken yet */
done:
    sl_group_close(work->group);
    for (int peer = 0; peer < work->size; peer++) {
        if (work->sends)
            sl_free(work->sends[peer].pieces);
        if (work->receives)
            sl_free(work->receives[peer].pieces);
    }
    sl_free(work->sends);
    sl_free(work->receives);
    sl_free(work->own.pieces);
    sl_free(work->channels);
    return status;
}

static sl_status move_tensor(const sl_sharded_tensor *tensor, const exchange_side *to)
{
    sl_status status = SL_OK;
    const sl_dtype dtype = tensor->sharding.properties.dtype;
    exchange work = { .rank = sl_group_rank(tensor->group),
                      .size = sl_group_size(tensor->group),
                      .dtype = dtype,
                      .element_bytes = sl_dtype_size(dtype),
                      .from = { .sharding = &tensor->sharding, .owners = tensor->owners, .data = tensor->data },
                      .to = *to };
    if (tensor->device && !sl_device_is_host(tensor->device))
        SL_TRY(sl_stream_create(tensor->device, &work.stream));
    SL_TRY(run_exchange(&work, tensor->group));
done:
    sl_stream_destroy(work.stream);
    return status;
}

/* ---- Gather and reshard ---------------------------------------------------------------------- */

static sl_status check_output(const sl_sharded_tensor *tensor, const sl_view *output)
{
    if (output->meta.dtype != tensor->sharding.properties.dtype)
        return sl_fail(SL_ERR_SHAPE, "the output of the gather is %s, the tensor %s", sl_dtype_name(output->meta.dtype),
                       sl_dtype_name(tensor->sharding.properties.dtype));
    if (!sl_meta_is_contiguous(&output->meta))
        return sl_fail(SL_ERR_UNSUPPORTED, "the output of the gather is not contiguous");
    return SL_OK;
}

/* The whole tensor on the members [first, first + count). */
static sl_status gather_to(const sl_sharded_tensor *tensor, int first, int count, const sl_view *output)
{
    sl_status status = SL_OK;
    sl_sharding whole = {
        .size = tensor->sharding.size, .properties = tensor->sharding.properties, .count = count, .copies = count
    };
    int *owners = NULL;
    void **data = NULL;
    SL_TRY(SL_NEW_ARRAY(whole.shards, count));
    SL_TRY(SL_NEW_ARRAY(owners, count));
    SL_TRY(SL_NEW_ARRAY(data, count));
    for (int i = 0; i < count; i++) {
        whole.shards[i].size = whole.size;
        owners[i] = first + i;
        whole.shards[i].placement.rank = sl_group_world_rank(tensor->group, owners[i]);
        data[i] = owners[i] == sl_group_rank(tensor->group) ? output->data : NULL;
    }
    SL_TRY(move_tensor(tensor, &(exchange_side){ .sharding = &whole, .owners = owners, .data = data }));
done:
    sl_free(data);
    sl_free(owners);
    sl_sharding_destroy(&whole);
    return status;
}

sl_status sl_sharded_tensor_gather(const sl_sharded_tensor *tensor, int root, const sl_view *output)
{
    int rank = sl_group_rank(tensor->group), size = sl_group_size(tensor->group);
    sl_status own =
        root >= 0 && root < size ? SL_OK : sl_fail(SL_ERR_ARGUMENT, "a gather to member %d of %d", root, size);
    if (own == SL_OK)
        own = sl_gather_check(rank, root, &tensor->sharding.size, output ? &output->meta.shape : NULL);
    if (own == SL_OK && output)
        own = check_output(tensor, output);
    sl_status status = sl_shard_agree(tensor->group, "the root of a gather", own, (uint64_t)root + 1);
    return status == SL_OK ? gather_to(tensor, root, 1, output) : status;
}

sl_status sl_sharded_tensor_all_gather(const sl_sharded_tensor *tensor, const sl_view *output)
{
    int rank = sl_group_rank(tensor->group);
    sl_status own = sl_gather_check(rank, rank, &tensor->sharding.size, &output->meta.shape);
    if (own == SL_OK)
        own = check_output(tensor, output);
    sl_status status = sl_shard_agree(tensor->group, "an all-gather", own, 0);
    return status == SL_OK ? gather_to(tensor, 0, sl_group_size(tensor->group), output) : status;
}

static sl_status check_reshard(const sl_sharded_tensor *tensor, const sl_sharding *to)
{
    char before[160], after[160];
    const sl_sharding *from = &tensor->sharding;
    if (sl_shape_equal(&from->size, &to->size) && from->properties.dtype == to->properties.dtype)
        return SL_OK;
    return sl_fail(SL_ERR_SHAPE, "a reshard from %s %s to %s %s", sl_dtype_name(from->properties.dtype),
                   sl_shape_text(&from->size, before, sizeof before), sl_dtype_name(to->properties.dtype),
                   sl_shape_text(&to->size, after, sizeof after));
}

sl_status sl_sharded_tensor_reshard(const sl_sharded_tensor *tensor, const sl_sharding *sharding,
                                    sl_sharded_tensor **out)
{
    sl_status status = SL_OK;
    sl_sharded_tensor *made = NULL;
    uint64_t hash = 0;
    sl_status own = check_reshard(tensor, sharding);
    if (own == SL_OK)
        own = sl_sharding_hash(sharding, &hash);
    if (own == SL_OK)
        own = sl_sharded_tensor_make(tensor->group, tensor->device, sharding, &made);
    SL_TRY(sl_shard_agree(tensor->group, "the sharding of a reshard", own, hash));
    const exchange_side to = { .sharding = &made->sharding, .owners = made->owners, .data = made->data };
    SL_TRY(move_tensor(tensor, &to));
    *out = made;
    made = NULL;
done:
    sl_sharded_tensor_destroy(made);
    return status;
}
