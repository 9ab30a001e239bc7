/* Gathers weights and sums gradients over the replicas. What is posted makes progress whenever the rank waits. */
#include "runtime/runtime.h"

#include "base/alloc.h"

/* ---- Creation -------------------------------------------------------------------------------- */

sl_status sl_weights_split_groups(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    int rows = wiring->shard_group, columns = wiring->replicas / rows;
    int rank = runtime->replicas ? sl_group_rank(runtime->replicas) : 0;
    runtime->sharers = (sl_sharers){ .rows = rows, .replica = rank, .part = wiring->part_of[rank] };
    if (!runtime->replicas || wiring->shard == SL_SHARD_NONE || wiring->replicas == 1)
        return SL_OK;
    SL_TRY(sl_group_split(runtime->replicas, rank / rows, rank % rows, &runtime->sharers.shards));
    if (columns > 1)
        SL_TRY(sl_group_split(runtime->replicas, rank % rows, rank / rows, &runtime->sharers.across));
done:
    return status;
}

static sl_own_pieces find_own(const sl_runtime *runtime, const sl_wire_weight *weight)
{
    const sl_sharers *sharers = &runtime->sharers;
    size_t size = sl_dtype_size(weight->meta.dtype), grad_size = sl_dtype_size(weight->grad_meta.dtype);
    size_t shard = (size_t)(sharers->replica % sharers->rows), part = (size_t)sharers->part;
    return (sl_own_pieces){ .shard = shard * (size_t)weight->shard_room * size,
                            .shard_bytes = (size_t)weight->shard_room * size,
                            .grad_shard = shard * (size_t)weight->shard_room * grad_size,
                            .grad_part = part * (size_t)weight->part_room * grad_size,
                            .grad_part_bytes = (size_t)weight->part_room * grad_size };
}

sl_status sl_weights_create(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(runtime->requests, runtime->stage_count));
    for (int k = 0; k < runtime->stage_count; k++) {
        sl_stage_requests *requests = &runtime->requests[k];
        const sl_wire_stage *wire = &runtime->wiring->stages[runtime->stages[k]->index];
        SL_TRY(SL_NEW_ARRAY(requests->own, wire->weight_count));
        SL_TRY(SL_NEW_ARRAY(requests->gather_items, wire->weight_count));
        SL_TRY(SL_NEW_ARRAY(requests->sum_items, wire->weight_count));
        SL_TRY(SL_NEW_ARRAY(requests->join_items, wire->weight_count));
        SL_TRY(SL_NEW_ARRAY(requests->sums, wire->weight_count + 1));
        if (!runtime->host) {
            SL_TRY(sl_event_create(runtime->device, &requests->gathered));
            SL_TRY(sl_event_create(runtime->device, &requests->summed));
        }
        for (int i = 0; i < wire->weight_count; i++)
            requests->own[i] = find_own(runtime, &wire->weights[i]);
    }
done:
    return status;
}

/* What is on its way belongs to a step that failed, and with it the run, or has been posted on all ranks: it ends soon. */
void sl_weights_destroy(sl_runtime *runtime)
{
    if (runtime->words && runtime->lanes.posted && sl_device_words_wait(runtime->words, runtime->lanes.posted) != SL_OK)
        sl_lanes_settle(runtime);
    for (int k = 0; runtime->requests && k < runtime->stage_count; k++) {
        sl_stage_requests *requests = &runtime->requests[k];
        if (requests->gather)
            (void)!sl_request_wait(requests->gather);
        while (requests->sum_count > 0) {
            sl_request *sum = requests->sums[--requests->sum_count];
            if (sum)
                (void)!sl_request_wait(sum);
        }
        sl_event_destroy(requests->gathered);
        sl_event_destroy(requests->summed);
        sl_free(requests->own);
        sl_free(requests->gather_items);
        sl_free(requests->sum_items);
        sl_free(requests->join_items);
        sl_free(requests->sums);
    }
    sl_free(runtime->requests);
}

/* ---- One stage ------------------------------------------------------------------------------- */

/* What an instruction is about. */
typedef struct weights_of {
    sl_stage *stage;
    const sl_wire_stage *wire;
    sl_stage_requests *requests;
    char *block; /* of the gathered weights or gradients; NULL without shards */
} weights_of;

static weights_of look_up(sl_runtime *runtime, const sl_instr *instr)
{
    const sl_wire_stage *wire = &runtime->wiring->stages[instr->stage];
    return (weights_of){ .stage = runtime->stages[wire->local],
                         .wire = wire,
                         .requests = &runtime->requests[wire->local],
                         .block = instr->cell ? *instr->cell : NULL };
}

static bool has_replicas(const sl_runtime *runtime)
{
    return runtime->replicas && sl_group_size(runtime->replicas) > 1;
}

/* On a device that works by itself collectives have a stream of their own, so that they hide behind kernels. What is
 * posted now starts when the work given so far is done. */
static sl_status begin_posting(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    if (runtime->host)
        return SL_OK;
    SL_TRY(sl_event_record(lanes->before_posted, runtime->stream));
    SL_TRY(sl_stream_wait(lanes->posted, lanes->before_posted));
done:
    return status;
}

/* The stream of collectives has been given all of one. */
static sl_status mark_posted(const sl_runtime *runtime, sl_event *event)
{
    return event ? sl_event_record(event, runtime->lanes.posted) : SL_OK;
}

/* Work given from now on finds what was posted before the event. */
static sl_status await_posted(const sl_runtime *runtime, sl_event *event)
{
    return event ? sl_stream_wait(runtime->stream, event) : SL_OK;
}

/* ---- Buckets --------------------------------------------------------------------------------- */

static void count_posted(sl_runtime *runtime, const sl_group *group, const sl_bucket_item *items, int count,
                         size_t each)
{
    runtime->posted.count++;
    for (int i = 0; i < count; i++)
        runtime->posted.bytes += (uint64_t)items[i].count * each * (uint64_t)sl_group_size(group);
}

/* The first `count` items of the stage's gather, as one collective. */
static sl_status post_gather(sl_runtime *runtime, sl_stage_requests *requests, int count)
{
    sl_status status = SL_OK;
    if (count == 0)
        return SL_OK;
    count_posted(runtime, runtime->sharers.shards, requests->gather_items, count, 1);
    SL_TRY(sl_exchange_gather(&runtime->sharers.gathers, requests->gather_items, count, runtime->lanes.posted, NULL,
                              &requests->gather));
    requests->gathering = true;
    SL_TRY(mark_posted(runtime, requests->gathered));
done:
    return status;
}

/* What the host moved is in the stream when it has been waited for, and is marked then. */
static sl_status await_gather(sl_runtime *runtime, sl_stage_requests *requests)
{
    sl_status status = SL_OK;
    sl_request *request = requests->gather;
    requests->gather = NULL;
    if (!requests->gathering)
        return SL_OK;
    requests->gathering = false;
    if (request) {
        SL_TRY(sl_request_wait(request));
        SL_TRY(mark_posted(runtime, requests->gathered));
    }
    SL_TRY(await_posted(runtime, requests->gathered));
done:
    return status;
}

/* The last one posted first: it may have to come after the others. */
static sl_status await_sums(sl_runtime *runtime, sl_stage_requests *requests)
{
    sl_status status = SL_OK;
    bool posted = requests->sum_count > 0, moved = false;
    while (requests->sum_count > 0) {
        sl_request *sum = requests->sums[--requests->sum_count];
        moved |= sum != NULL;
        if (sum)
            SL_TRY(sl_request_wait(sum));
    }
    if (moved)
        SL_TRY(mark_posted(runtime, requests->summed));
    if (posted)
        SL_TRY(await_posted(runtime, requests->summed));
done:
    return status;
}

static void trace_action(sl_runtime *runtime, uint64_t start, int stage, sl_kind kind)
{
    if (runtime->trace.capacity)
        sl_trace_add(&runtime->trace, (sl_trace_event){ .start = start,
                                                        .step = runtime->context.step,
                                                        .microbatch = -1,
                                                        .stage = (uint16_t)stage,
                                                        .kind = SL_TRACE_WEIGHTS,
                                                        .what = (uint8_t)kind });
}

/* ---- Weights --------------------------------------------------------------------------------- */

static sl_status unshard(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    of->requests->gather_start = runtime->trace.capacity ? sl_trace_start(&runtime->trace) : 0;
    SL_TRY(begin_posting(runtime));
    for (int i = 0; i < of->wire->weight_count; i++) {
        const sl_wire_weight *weight = &of->wire->weights[i];
        size_t bytes = sl_meta_bytes(&weight->kept_meta);
        void *part = of->stage->weights[i].data_place, *whole = of->block + weight->block_offset;
        of->requests->gather_items[i] = (sl_bucket_item){ .send = part, .recv = whole, .count = (int64_t)bytes };
        if (!runtime->sharers.shards)
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_DEVICE, whole, part, bytes));
    }
    if (runtime->sharers.shards)
        SL_TRY(post_gather(runtime, of->requests, of->wire->weight_count));
done:
    return status;
}

/* From now on the stage finds its weights in the block, or nowhere. */
static void point_weights(const weights_of *of, char *block)
{
    sl_stage_set_packed(of->stage, block && of->wire->packed_bytes ? block + of->wire->packed_offset : NULL);
    for (int i = 0; i < of->wire->weight_count; i++) {
        void *place = block ? block + of->wire->weights[i].block_offset : NULL;
        of->stage->param_pointers[i] = of->stage->weight_views[i].data = place;
    }
}

static sl_status await_weights(sl_runtime *runtime, const weights_of *of, int stage)
{
    sl_status status = SL_OK;
    SL_TRY(await_gather(runtime, of->requests));
    point_weights(of, of->block);
    trace_action(runtime, of->requests->gather_start, stage, SL_KIND_UNSHARD);
done:
    return status;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* The block starts as zero, but for what the stage overwrites itself. */
static sl_status open_grads(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    bool overwrites = of->stage->table->starts_grads && !of->stage->weight_runner;
    for (int i = 0; i < of->wire->weight_count; i++) {
        const sl_wire_weight *weight = &of->wire->weights[i];
        size_t whole = (size_t)runtime->wiring->shard_group * sl_meta_bytes(&weight->kept_grad_meta);
        size_t used = overwrites ? sl_meta_bytes(&weight->grad_meta) : 0;
        if (weight->frozen)
            continue;
        char *place = of->block + weight->grad_block_offset;
        of->stage->grad_pointers[i] = of->stage->weight_views[of->wire->weight_count + i].data = place;
        if (whole > used)
            SL_TRY(sl_stream_memset(runtime->stream, place + used, 0, whole - used));
    }
done:
    return status;
}

/* The gradients of a stage that lie side by side are one bucket: weights [first, *end). Frozen ones take no place. */
static int64_t find_bucket(const weights_of *of, int first, int *end)
{
    const sl_wire_weight *weights = of->wire->weights;
    const char *begin = of->stage->weights[first].grad_place, *stop = begin;
    sl_dtype dtype = weights[first].grad_meta.dtype;
    int i = first;
    for (; i < of->wire->weight_count; i++) {
        if (weights[i].frozen)
            continue;
        if (i > first && (weights[first].own_grad || weights[i].own_grad || weights[i].grad_meta.dtype != dtype ||
                          of->stage->weights[i].grad_place != stop))
            break;
        stop += weights[i].own_grad ? weights[i].grad_room : sl_round_up(weights[i].grad_room);
    }
    *end = i;
    return (stop - begin) / (int64_t)sl_dtype_size(dtype);
}

/* Every replica gets the sums of all gradients. */
static sl_status reduce_whole(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    sl_stage_requests *requests = of->requests;
    for (int i = 0, end; i < of->wire->weight_count; i = end) {
        end = i + 1;
        if (of->wire->weights[i].frozen)
            continue;
        sl_dtype dtype = of->wire->weights[i].grad_meta.dtype;
        int64_t count = find_bucket(of, i, &end);
        runtime->posted.count++;
        runtime->posted.bytes += (uint64_t)count * sl_dtype_size(dtype);
        SL_TRY(sl_exchange_sum(&runtime->sharers.sums, of->stage->weights[i].grad_place, count, dtype,
                               runtime->lanes.posted, &requests->sums[requests->sum_count]));
        requests->sum_count++;
    }
done:
    return status;
}

/* All of a step's gradient on this rank: in the block or, with whole gradients, where it is kept. */
static char *whole_grad(const weights_of *of, int i)
{
    return of->block ? of->block + of->wire->weights[i].grad_block_offset : of->stage->weights[i].grad_place;
}

/* Whether this rank's part of a sum can go where its gradient is kept: nothing is added to it, and it is the whole shard. */
static bool sums_into_place(const sl_runtime *runtime, const weights_of *of)
{
    return of->block && !runtime->context.keep_grads && !runtime->sharers.across;
}

/* A bucket of the sum's items [first, end), which have one dtype. */
static sl_status post_sum(sl_runtime *runtime, sl_stage_requests *requests, int first, int end, sl_dtype dtype)
{
    sl_status status = SL_OK;
    const sl_bucket_item *items = &requests->sum_items[first];
    if (first == end)
        return SL_OK;
    count_posted(runtime, runtime->replicas, items, end - first, sl_dtype_size(dtype));
    SL_TRY(sl_exchange_scatter_sum(&runtime->sharers.sums, items, end - first, runtime->sharers.rows, dtype,
                                   runtime->lanes.posted, &requests->sums[requests->sum_count]));
    requests->sum_count++;
done:
    return status;
}

/* Every replica gets one part of the sum. */
static sl_status reduce_parts(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    sl_dtype dtype = SL_F32;
    int first = 0, end = 0;
    for (int i = 0; i < of->wire->weight_count; i++) {
        const sl_wire_weight *weight = &of->wire->weights[i];
        if (weight->frozen)
            continue;
        if (weight->grad_meta.dtype != dtype) {
            SL_TRY(post_sum(runtime, of->requests, first, end, dtype));
            first = end;
            dtype = weight->grad_meta.dtype;
        }
        char *whole = whole_grad(of, i), *part = whole + of->requests->own[i].grad_part;
        of->requests->sum_items[end++] =
            (sl_bucket_item){ .send = whole,
                              .recv = sums_into_place(runtime, of) ? of->stage->weights[i].grad_place : part,
                              .count = weight->part_room };
    }
    SL_TRY(post_sum(runtime, of->requests, first, end, dtype));
done:
    return status;
}

/* If several groups share, a shard is the parts of several ranks, which are side by side in the whole. They are gathered
 * once this rank's part is summed. */
static sl_status join_parts(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    sl_stage_requests *requests = of->requests;
    sl_bucket_item *items = requests->join_items;
    int count = 0;
    if (!runtime->sharers.across || requests->sum_count == 0)
        return SL_OK;
    for (int i = 0; i < of->wire->weight_count; i++) {
        const sl_own_pieces *own = &requests->own[i];
        char *whole = whole_grad(of, i);
        if (!of->wire->weights[i].frozen)
            items[count++] = (sl_bucket_item){ .send = whole + own->grad_part,
                                               .recv = whole + own->grad_shard,
                                               .count = (int64_t)own->grad_part_bytes };
    }
    count_posted(runtime, runtime->sharers.across, items, count, 1);
    SL_TRY(sl_exchange_gather(&runtime->sharers.joins, items, count, runtime->lanes.posted,
                              requests->sums[requests->sum_count - 1], &requests->sums[requests->sum_count]));
    requests->sum_count++;
done:
    return status;
}

static sl_status reduce_whole_or_parts(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    if (runtime->wiring->shard == SL_SHARD_NONE)
        return reduce_whole(runtime, of);
    SL_TRY(reduce_parts(runtime, of));
    SL_TRY(join_parts(runtime, of));
done:
    return status;
}

static sl_status reduce_grads(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    of->requests->sum_start = runtime->trace.capacity ? sl_trace_start(&runtime->trace) : 0;
    if (!has_replicas(runtime) || (!of->block && runtime->store->grads_partial))
        return SL_OK;
    SL_TRY(begin_posting(runtime));
    SL_TRY(reduce_whole_or_parts(runtime, of));
    SL_TRY(mark_posted(runtime, of->requests->summed));
done:
    return status;
}

/* This rank's part of the sum becomes its gradient, or is added to that of the partial steps before. */
static sl_status keep_part(sl_runtime *runtime, const weights_of *of, int i)
{
    const sl_wire_weight *weight = &of->wire->weights[i];
    size_t bytes = sl_meta_bytes(&weight->kept_grad_meta);
    void *part = whole_grad(of, i) + of->requests->own[i].grad_shard;
    void *kept = of->stage->weights[i].grad_place;
    if (!runtime->context.keep_grads)
        return sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_DEVICE, kept, part, bytes);
    const sl_view inputs[] = { { kept, weight->kept_grad_meta }, { part, weight->kept_grad_meta } };
    const sl_kernel_call call = {
        .op = SL_OP_ADD, .inputs = inputs, .input_count = 2, .outputs = inputs, .output_count = 1
    };
    return sl_kernel_run(runtime->stream, &call);
}

static sl_status await_grads(sl_runtime *runtime, const weights_of *of, int stage)
{
    sl_status status = SL_OK;
    bool placed = sums_into_place(runtime, of) && of->requests->sum_count > 0;
    SL_TRY(await_sums(runtime, of->requests));
    for (int i = 0; of->block && !placed && i < of->wire->weight_count; i++) {
        if (!of->wire->weights[i].frozen)
            SL_TRY(keep_part(runtime, of, i));
    }
    trace_action(runtime, of->requests->sum_start, stage, SL_KIND_REDUCE_GRAD);
done:
    return status;
}

/* ---- After an update ------------------------------------------------------------------------- */

static sl_status gather_stage(sl_runtime *runtime, int k)
{
    const sl_wire_stage *wire = &runtime->wiring->stages[runtime->stages[k]->index];
    sl_stage_requests *requests = &runtime->requests[k];
    int count = 0;
    for (int i = 0; i < wire->weight_count; i++) {
        const sl_wire_weight *weight = &wire->weights[i];
        const sl_own_pieces *own = &requests->own[i];
        char *whole = runtime->stages[k]->weights[i].data_place;
        if (!weight->frozen && !weight->source)
            requests->gather_items[count++] =
                (sl_bucket_item){ .send = whole + own->shard, .recv = whole, .count = (int64_t)own->shard_bytes };
    }
    return post_gather(runtime, requests, count);
}

sl_status sl_runtime_gather_params_post(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    if (runtime->wiring->shard != SL_SHARD_OPTIMIZER || !runtime->sharers.shards)
        return SL_OK;
    SL_TRY(sl_weights_settle(runtime));
    double start = sl_now();
    SL_TRY(begin_posting(runtime));
    for (int k = 0; k < runtime->stage_count; k++)
        SL_TRY(gather_stage(runtime, k));
    runtime->gathering = true;
    sl_mover_wake(runtime->mover);
    runtime->posted.seconds += sl_now() - start;
done:
    return status;
}

sl_status sl_runtime_gather_params(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    if (!runtime->gathering)
        SL_TRY(sl_runtime_gather_params_post(runtime));
    SL_TRY(sl_weights_settle(runtime));
    SL_TRY(sl_weights_end_moving(runtime)); /* nobody waits for a stream that waits for a rank which may be gone */
done:
    return status;
}

sl_status sl_weights_settle(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    for (int k = 0; runtime->gathering && k < runtime->stage_count; k++)
        SL_TRY(sl_weights_settle_stage(runtime, k));
    runtime->gathering = false;
done:
    return status;
}

/* A tied weight has its values in another stage of the rank. */
sl_status sl_weights_settle_stage(sl_runtime *runtime, int k)
{
    sl_status status = SL_OK;
    const sl_wire_stage *wire = &runtime->wiring->stages[runtime->stages[k]->index];
    double start = sl_now();
    SL_TRY(await_gather(runtime, &runtime->requests[k]));
    for (int i = 0; i < wire->weight_count; i++) {
        const sl_wire_weight *source = wire->weights[i].source;
        int other = source ? runtime->wiring->stages[source->stage].local : k;
        SL_TRY(await_gather(runtime, &runtime->requests[other]));
    }
    runtime->posted.seconds += sl_now() - start;
done:
    return status;
}

static sl_status move_along(sl_runtime *runtime, sl_status posted)
{
    sl_mover_wake(runtime->mover);
    return posted;
}

static sl_status run(sl_runtime *runtime, const sl_instr *instr)
{
    weights_of of = look_up(runtime, instr);
    switch ((sl_code)instr->code) {
    case SL_CODE_UNSHARD:
        return move_along(runtime, unshard(runtime, &of));
    case SL_CODE_AWAIT_WEIGHTS:
        return await_weights(runtime, &of, instr->stage);
    case SL_CODE_RESHARD:
        point_weights(&of, NULL);
        return SL_OK;
    case SL_CODE_OPEN_GRADS:
        return open_grads(runtime, &of);
    case SL_CODE_REDUCE_GRADS:
        return move_along(runtime, reduce_grads(runtime, &of));
    case SL_CODE_AWAIT_GRADS:
        return await_grads(runtime, &of, instr->stage);
    default:
        return sl_fail(SL_ERR_INTERNAL, "instruction %d is unknown", instr->code);
    }
}

sl_status sl_weights_run(sl_runtime *runtime, const sl_instr *instr)
{
    double start = sl_now();
    sl_status status = run(runtime, instr);
    if (instr->code != SL_CODE_OPEN_GRADS)
        runtime->posted.seconds += sl_now() - start;
    return status;
}
