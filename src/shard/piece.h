/* Moving a piece of a tensor from one shard to another. */
#ifndef SL_SHARD_PIECE_H
#define SL_SHARD_PIECE_H

#include <sluice/shard.h>

/* A shard and its data: row-major, of the host, or of the stream's device if stream is not NULL. */
typedef struct sl_shard_data {
    const sl_shard *shard;
    void *data;
    sl_stream *stream;
} sl_shard_data;

/* The piece, from one to the other, of which one at least is of the host. In the order of the stream if there is one. */
SL_MUST_CHECK sl_status sl_shard_copy(const sl_shard_move *piece, size_t element_bytes, const sl_shard_data *from,
                                      const sl_shard_data *to);

#endif
