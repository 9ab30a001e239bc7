/* Collectives on the device or through the host, and the kernel that adds for the former. */
#include "runtime/exchange.h"

#include "base/alloc.h"

#include <sluice/kernel.h>
#include <stdio.h>

/* out = a + b, or if b is NULL: out = a, out += a. */
static sl_status run_flat(sl_stream *stream, int64_t count, sl_dtype dtype, const void *a, const void *b,
                          sl_dtype out_dtype, void *out, bool accumulates)
{
    const sl_meta meta = sl_meta_make(dtype, 1, &count), out_meta = sl_meta_make(out_dtype, 1, &count);
    const sl_view inputs[] = { { (void *)a, meta }, { (void *)b, meta } }, output = { out, out_meta };
    const sl_kernel_call call = { .op = b ? SL_OP_ADD : SL_OP_CAST,
                                  .inputs = inputs,
                                  .input_count = b ? 2 : 1,
                                  .outputs = &output,
                                  .output_count = 1,
                                  .accumulate = accumulates };
    return sl_kernel_run(stream, &call);
}

/* Sums of bf16 and f16 run in f32 and are rounded once. */
static sl_status add_up_narrow(sl_stream *stream, sl_dtype dtype, int64_t count, const void *const *sources,
                               int source_count, void *running, void *out)
{
    sl_status status = SL_OK;
    for (int i = 0; i < source_count; i++)
        SL_TRY(run_flat(stream, count, dtype, sources[i], NULL, SL_F32, running, i > 0));
    SL_TRY(run_flat(stream, count, SL_F32, running, NULL, dtype, out, false));
done:
    return status;
}

/* The sum so far lies in running until the last summand comes, since out may be one of them. */
sl_status sl_exchange_add_up(sl_stream *stream, sl_dtype dtype, int64_t count, const void *const *sources,
                             int source_count, void *running, void *out)
{
    sl_status status = SL_OK;
    const void *so_far = sources[0];
    if (source_count == 1)
        return sl_stream_copy(stream, SL_COPY_DEVICE_TO_DEVICE, out, sources[0], (size_t)count * sl_dtype_size(dtype));
    if (source_count > 2 && sl_dtype_size(dtype) < sizeof(float))
        return add_up_narrow(stream, dtype, count, sources, source_count, running, out);
    for (int i = 1; i < source_count; i++) {
        void *to = i + 1 < source_count ? running : out;
        SL_TRY(run_flat(stream, count, dtype, so_far, sources[i], dtype, to, false));
        so_far = to;
    }
done:
    return status;
}

sl_status sl_exchange_open(sl_exchange *exchange, sl_group *group, sl_device_words *words, size_t bytes,
                           sl_sum_mode sums)
{
    sl_status status = SL_OK;
    const sl_device_collective_options options = { .bytes = bytes,
                                                   .sum = sl_exchange_add_up,
                                                   .any_order = sums == SL_SUM_FAST };
    exchange->group = group;
    if (!words)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(exchange->parts, sl_group_size(group)));
    SL_TRY(sl_device_collective_open(group, words, &options, exchange->reason, &exchange->device));
done:
    return status;
}

bool sl_exchange_adds_in_order(const sl_exchange *exchange)
{
    return !exchange->device || sl_device_collective_adds_in_order(exchange->device);
}

void sl_exchange_count(const sl_exchange *exchange, sl_exchange_ways *ways)
{
    if (!exchange->group || sl_group_size(exchange->group) < 2)
        return;
    const char *way = exchange->device ? sl_device_collective_way(exchange->device) : ways->way;
    ways->all++;
    ways->on_device += exchange->device != NULL;
    ways->communicators += exchange->device ? sl_device_collective_communicators(exchange->device) : 0;
    if (!exchange->device && !ways->reason)
        ways->reason = exchange->reason;
    if (exchange->device && !ways->why)
        ways->why = exchange->reason;
    ways->way = ways->way && way != ways->way ? "by streams or through NCCL" : way;
}

void sl_exchange_close(sl_exchange *exchange)
{
    sl_device_collective_close(exchange->device);
    sl_free(exchange->parts);
    exchange->device = NULL;
    exchange->parts = NULL;
}

sl_status sl_exchange_gather(const sl_exchange *exchange, const sl_bucket_item *items, int count, sl_stream *stream,
                             sl_request *after, sl_request **out)
{
    if (after)
        return sl_group_all_gather_bucket_post_after(exchange->group, items, count, stream, after, out);
    if (!exchange->device)
        return sl_group_all_gather_bucket_post(exchange->group, items, count, stream, out);
    *out = NULL;
    return sl_device_all_gather(exchange->device, items, count, stream);
}

sl_status sl_exchange_scatter_sum(const sl_exchange *exchange, const sl_bucket_item *items, int count, int rows,
                                  sl_dtype dtype, sl_stream *stream, sl_request **out)
{
    if (!exchange->device)
        return sl_group_reduce_scatter_bucket_post(exchange->group, items, count, rows, dtype, SL_REDUCE_SUM, stream,
                                                   out);
    *out = NULL;
    return sl_device_reduce_scatter(exchange->device, items, count, rows, dtype, stream);
}

sl_status sl_exchange_sum(const sl_exchange *exchange, void *data, int64_t count, sl_dtype dtype, sl_stream *stream,
                          sl_request **out)
{
    int ranks = sl_group_size(exchange->group);
    if (!exchange->device)
        return sl_group_all_reduce_post(exchange->group, data, count, dtype, SL_REDUCE_SUM, stream, out);
    for (int r = 0; r < ranks; r++)
        exchange->parts[r] = (sl_device_part){ .rank = r, .data = r == sl_group_rank(exchange->group) ? data : NULL };
    *out = NULL;
    return sl_device_sum(exchange->device, exchange->parts, ranks, count, dtype, stream);
}

sl_status sl_exchange_broadcast(const sl_exchange *exchange, int root, void *data, size_t bytes, sl_stream *stream,
                                sl_request **out)
{
    if (!exchange->device)
        return sl_group_broadcast_post(exchange->group, root, data, bytes, stream, out);
    *out = NULL;
    return sl_device_broadcast(exchange->device, root, data, bytes, stream);
}
