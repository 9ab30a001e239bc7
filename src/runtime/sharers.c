/* How replicas exchange weights and gradients: opening the exchanges, and when their streams may wait for each other. */
#include "runtime/runtime.h"

static sl_status connect_one(sl_runtime *runtime, sl_group *group, size_t bytes, sl_device_words *words,
                             sl_sum_mode sum, sl_exchange *exchange)
{
    sl_status status = SL_OK;
    if (!group)
        return SL_OK;
    SL_TRY(sl_exchange_open(exchange, group, sl_group_size(group) > 1 ? words : NULL, bytes, sum));
    if (exchange->device)
        runtime->memory.messages += bytes;
done:
    return status;
}

sl_status sl_weights_connect(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_sharers *sharers = &runtime->sharers;
    const sl_staging staging = sl_staging_of(runtime->wiring, runtime->rank, runtime->pipeline->training);
    SL_TRY(connect_one(runtime, runtime->replicas, staging.sums, runtime->words, runtime->sum, &sharers->sums));
    SL_TRY(connect_one(runtime, sharers->shards, staging.gathers, runtime->words, SL_SUM_EXACT, &sharers->gathers));
    /* It comes after a sum: if the host has to wait for that, it has to give the gather, too. */
    SL_TRY(connect_one(runtime, sharers->across, staging.joins, sharers->sums.device ? runtime->words : NULL,
                       SL_SUM_EXACT, &sharers->joins));
done:
    return status;
}

void sl_weights_disconnect(sl_runtime *runtime)
{
    sl_exchange_close(&runtime->sharers.sums);
    sl_exchange_close(&runtime->sharers.gathers);
    sl_exchange_close(&runtime->sharers.joins);
}

/* ---- Streams that wait for other ranks ------------------------------------------------------- */

sl_status sl_weights_end_moving(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    if (!runtime->sharers.sums.device && !runtime->sharers.gathers.device)
        return SL_OK;
    SL_TRY(sl_device_words_wait(runtime->words, runtime->lanes.posted));
    SL_TRY(sl_group_barrier(runtime->replicas));
done:
    return status;
}

sl_status sl_weights_begin(sl_runtime *runtime, bool is_fresh, bool may_wait)
{
    sl_status status = SL_OK;
    if (is_fresh)
        SL_TRY(sl_weights_end_moving(runtime));
    sl_device_words_set_polled(runtime->words, is_fresh || may_wait);
done:
    return status;
}

bool sl_weights_are_moving(const sl_runtime *runtime)
{
    bool moving = false;
    for (int k = 0; runtime->sharers.sums.device && k < runtime->stage_count && !moving; k++) {
        bool gathered = true, summed = true;
        moving = sl_event_query(runtime->requests[k].gathered, &gathered) != SL_OK ||
                 sl_event_query(runtime->requests[k].summed, &summed) != SL_OK || !gathered || !summed;
    }
    return moving;
}
