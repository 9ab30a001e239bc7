/* The weights of replicas: compared by their hashes before the first step, or made those of the first replica. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <xxhash.h>

/* What a device with memory of its own copies to the host at a time. */
#define HASH_PIECE ((size_t)1 << 20)

/* The ranks that have the same of every weight; NULL: nobody else has. */
static sl_group *holders(const sl_runtime *runtime)
{
    sl_group *group = runtime->wiring->shard == SL_SHARD_FULL ? runtime->sharers.across : runtime->replicas;
    return group && sl_group_size(group) > 1 ? group : NULL;
}

static sl_status hash_view(sl_runtime *runtime, const sl_view *view, char *room, XXH64_hash_t *out)
{
    sl_status status = SL_OK;
    size_t bytes = sl_meta_bytes(&view->meta);
    XXH64_hash_t hash = 0;
    for (size_t at = 0; at < bytes; at += HASH_PIECE) {
        size_t piece = bytes - at < HASH_PIECE ? bytes - at : HASH_PIECE;
        const char *data = (const char *)view->data + at;
        if (!runtime->host) {
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, room, data, piece));
            SL_TRY(sl_stream_synchronize(runtime->stream));
            data = room;
        }
        hash = XXH64(data, piece, hash);
    }
    *out = hash;
done:
    return status;
}

/* hashes[0] is how that went. */
static void hash_params(sl_runtime *runtime, XXH64_hash_t *hashes)
{
    sl_status status = SL_OK;
    char *room = NULL;
    if (!runtime->host)
        SL_TRY(sl_device_alloc_host(runtime->device, HASH_PIECE, (void **)&room));
    SL_TRY(sl_stream_synchronize(runtime->stream)); /* which may still write them */
    for (int i = 0; i < runtime->param_count; i++)
        SL_TRY(hash_view(runtime, &runtime->params[i].data, room, &hashes[1 + i]));
done:
    sl_device_free_host(runtime->device, room);
    hashes[0] = (XXH64_hash_t)status;
}

/* The same on all, since all compare the same list. */
static sl_status compare(const sl_runtime *runtime, const XXH64_hash_t *all, int members)
{
    size_t row = (size_t)runtime->param_count + 1;
    for (int m = 0; m < members; m++) {
        if (all[(size_t)m * row] != SL_OK)
            return sl_fail((sl_status)all[(size_t)m * row], "replica %d could not read its parameters", m);
    }
    for (int i = 0; i < runtime->param_count; i++) {
        for (int m = 1; m < members; m++) {
            if (all[(size_t)m * row + 1 + (size_t)i] != all[1 + i])
                return sl_fail(
                    SL_ERR_ARGUMENT,
                    "parameter '%s' of stage %d is not the same on all replicas: %d has other values than 0; "
                    "sl_runtime_broadcast_params hands out those of 0",
                    runtime->params[i].name, runtime->params[i].stage, m);
        }
    }
    return SL_OK;
}

/* Returns how the talking went; *outcome is what was found. */
static sl_status compare_together(sl_runtime *runtime, sl_status *outcome)
{
    sl_status status = SL_OK;
    sl_group *group = holders(runtime);
    XXH64_hash_t *own = NULL, *all = NULL;
    int64_t row = runtime->param_count + 1;
    *outcome = SL_OK;
    if (!group)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(own, row));
    SL_TRY(SL_NEW_ARRAY(all, row * sl_group_size(group)));
    hash_params(runtime, own);
    SL_TRY(sl_group_all_gather(group, own, (size_t)row * sizeof *own, all));
    *outcome = compare(runtime, all, sl_group_size(group));
done:
    sl_free(own);
    sl_free(all);
    return status;
}

sl_status sl_runtime_compare_params(sl_runtime *runtime)
{
    sl_status outcome = SL_OK, status = compare_together(runtime, &outcome);
    return status != SL_OK ? status : outcome;
}

sl_status sl_runtime_broadcast_params(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_sharers *sharers = &runtime->sharers;
    const sl_exchange *exchange = runtime->wiring->shard == SL_SHARD_FULL ? &sharers->joins : &sharers->sums;
    for (int i = 0; holders(runtime) && i < runtime->param_count; i++) {
        const sl_view *data = &runtime->params[i].data;
        sl_request *request = NULL;
        SL_TRY(sl_exchange_broadcast(exchange, 0, data->data, sl_meta_bytes(&data->meta), runtime->stream, &request));
        if (request)
            SL_TRY(sl_request_wait(request));
    }
    if (exchange->device)
        SL_TRY(sl_device_words_wait(runtime->words, runtime->stream));
done:
    return status;
}

sl_status sl_replicas_begin(sl_runtime *runtime, sl_status *outcome)
{
    sl_status status = SL_OK;
    *outcome = SL_OK;
    if (runtime->replicas_ready)
        return SL_OK;
    if (runtime->replica_params == SL_REPLICAS_BROADCAST)
        SL_TRY(sl_runtime_broadcast_params(runtime));
    else if (runtime->replica_params == SL_REPLICAS_COMPARE)
        SL_TRY(compare_together(runtime, outcome));
    runtime->replicas_ready = *outcome == SL_OK;
done:
    return status;
}
