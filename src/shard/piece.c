/* Copies of pieces, between shards and packed, and between host and device. */
#include "shard/piece.h"

#include "sharding/box_index.h"

#include <string.h>

sl_status sl_shard_copy(const sl_shard_move *piece, size_t element_bytes, const sl_shard_data *from,
                        const sl_shard_data *to)
{
    sl_status status = SL_OK;
    sl_stream *stream = from->stream ? from->stream : to->stream;
    const sl_copy_kind kind = from->stream ? SL_COPY_DEVICE_TO_HOST : SL_COPY_HOST_TO_DEVICE;
    const sl_box_runs runs = sl_box_find_runs(&from->shard->size, &to->shard->size, &piece->size);
    size_t bytes = (size_t)runs.length * element_bytes;
    for (int64_t run = 0; bytes > 0 && run < runs.count; run++) {
        int64_t source = sl_box_run_place(&runs, from->shard, piece->offsets, &piece->size, run);
        int64_t target = sl_box_run_place(&runs, to->shard, piece->offsets, &piece->size, run);
        const char *read = (const char *)from->data + (size_t)source * element_bytes;
        char *written = (char *)to->data + (size_t)target * element_bytes;
        if (stream)
            SL_TRY(sl_stream_copy(stream, kind, written, read, bytes));
        else
            memcpy(written, read, bytes);
    }
done:
    return status;
}

/* The piece alone, as a shard. */
static sl_shard packed_shard(const sl_shard_move *move)
{
    sl_shard shard = { .size = move->size };
    memcpy(shard.offsets, move->offsets, sizeof shard.offsets);
    return shard;
}

void sl_shard_pack(const sl_shard *shard, const sl_shard_move *move, size_t element_bytes, const void *data,
                   void *packed)
{
    const sl_shard alone = packed_shard(move);
    const sl_shard_data from = { .shard = shard, .data = (void *)(uintptr_t)data };
    const sl_shard_data to = { .shard = &alone, .data = packed };
    (void)!sl_shard_copy(move, element_bytes, &from, &to); /* copies of the host do not fail */
}

void sl_shard_unpack(const sl_shard *shard, const sl_shard_move *move, size_t element_bytes, const void *packed,
                     void *data)
{
    const sl_shard alone = packed_shard(move);
    const sl_shard_data from = { .shard = &alone, .data = (void *)(uintptr_t)packed };
    const sl_shard_data to = { .shard = shard, .data = data };
    (void)!sl_shard_copy(move, element_bytes, &from, &to);
}
