/* Gathers weights and sums gradients over the replicas. What is posted makes progress whenever the rank waits. */
#include "runtime/runtime.h"

#include "base/alloc.h"

static void drop_all(sl_request **requests, int count)
{
    for (int i = 0; i < count; i++) {
        if (requests[i])
            (void)!sl_request_wait(requests[i]);
    }
}

/* ---- Creation -------------------------------------------------------------------------------- */

sl_status sl_weights_create(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(runtime->requests, runtime->stage_count));
    for (int k = 0; k < runtime->stage_count; k++) {
        SL_TRY(SL_NEW_ARRAY(runtime->requests[k].gathers, runtime->stages[k]->weight_count));
        SL_TRY(SL_NEW_ARRAY(runtime->requests[k].sums, runtime->stages[k]->weight_count));
    }
done:
    return status;
}

void sl_weights_destroy(sl_runtime *runtime)
{
    for (int k = 0; runtime->requests && k < runtime->stage_count; k++) {
        int count = runtime->stages[k]->weight_count; /* of a step that failed, and with it the run: none waits long */
        if (runtime->requests[k].gathers)
            drop_all(runtime->requests[k].gathers, count);
        if (runtime->requests[k].sums)
            drop_all(runtime->requests[k].sums, count);
        sl_free(runtime->requests[k].gathers);
        sl_free(runtime->requests[k].sums);
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

/* Work given from now on finds what has been posted and awaited. */
static sl_status end_posting(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    if (runtime->host)
        return SL_OK;
    SL_TRY(sl_event_record(lanes->after_posted, lanes->posted));
    SL_TRY(sl_stream_wait(runtime->stream, lanes->after_posted));
done:
    return status;
}

static sl_status await_all(sl_runtime *runtime, sl_request **requests, int count)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count && status == SL_OK; i++) {
        sl_request *request = requests[i];
        requests[i] = NULL;
        if (request)
            status = sl_request_wait(request);
    }
    return status == SL_OK ? end_posting(runtime) : status;
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
        const void *part = of->stage->weights[i].data_place;
        if (has_replicas(runtime))
            SL_TRY(sl_group_all_gather_post(runtime->replicas, part, bytes, of->block + weight->block_offset,
                                            runtime->lanes.posted, &of->requests->gathers[i]));
        else
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_DEVICE, of->block + weight->block_offset, part,
                                  bytes));
    }
done:
    return status;
}

/* From now on the stage finds its weights in the block, or nowhere. */
static void point_weights(const weights_of *of, char *block)
{
    for (int i = 0; i < of->wire->weight_count; i++) {
        void *place = block ? block + of->wire->weights[i].block_offset : NULL;
        of->stage->param_pointers[i] = of->stage->weight_views[i].data = place;
    }
}

static sl_status await_weights(sl_runtime *runtime, const weights_of *of, int stage)
{
    sl_status status = SL_OK;
    SL_TRY(await_all(runtime, of->requests->gathers, of->wire->weight_count));
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
        size_t whole = (size_t)runtime->wiring->replicas * sl_meta_bytes(&weight->kept_grad_meta);
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

/* With shards each replica gets its part of the sum in its place of the block. */
static sl_status reduce_grads(sl_runtime *runtime, const weights_of *of)
{
    sl_status status = SL_OK;
    of->requests->sum_start = runtime->trace.capacity ? sl_trace_start(&runtime->trace) : 0;
    if (!has_replicas(runtime) || (!of->block && runtime->grads_partial))
        return SL_OK;
    SL_TRY(begin_posting(runtime));
    for (int i = 0; i < of->wire->weight_count; i++) {
        const sl_wire_weight *weight = &of->wire->weights[i];
        sl_dtype dtype = weight->grad_meta.dtype;
        if (weight->frozen)
            continue;
        if (!of->block) {
            SL_TRY(sl_group_all_reduce_post(runtime->replicas, of->stage->weights[i].grad_place,
                                            sl_meta_count(&weight->grad_meta), dtype, SL_REDUCE_SUM,
                                            runtime->lanes.posted, &of->requests->sums[i]));
            continue;
        }
        char *whole = of->block + weight->grad_block_offset;
        size_t part = sl_meta_bytes(&weight->kept_grad_meta);
        SL_TRY(sl_group_reduce_scatter_post(runtime->replicas, whole,
                                            whole + (size_t)sl_group_rank(runtime->replicas) * part, weight->part,
                                            dtype, SL_REDUCE_SUM, runtime->lanes.posted, &of->requests->sums[i]));
    }
done:
    return status;
}

/* This rank's part of the sum becomes its gradient, or is added to that of the partial steps before. */
static sl_status keep_part(sl_runtime *runtime, const weights_of *of, int i)
{
    const sl_wire_weight *weight = &of->wire->weights[i];
    size_t bytes = sl_meta_bytes(&weight->kept_grad_meta);
    size_t rank = has_replicas(runtime) ? (size_t)sl_group_rank(runtime->replicas) : 0;
    void *part = of->block + weight->grad_block_offset + rank * bytes, *kept = of->stage->weights[i].grad_place;
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
    SL_TRY(await_all(runtime, of->requests->sums, of->wire->weight_count));
    for (int i = 0; of->block && i < of->wire->weight_count; i++) {
        if (!of->wire->weights[i].frozen)
            SL_TRY(keep_part(runtime, of, i));
    }
    trace_action(runtime, of->requests->sum_start, stage, SL_KIND_REDUCE_GRAD);
done:
    return status;
}

sl_status sl_weights_run(sl_runtime *runtime, const sl_instr *instr)
{
    weights_of of = look_up(runtime, instr);
    switch ((sl_code)instr->code) {
    case SL_CODE_UNSHARD:
        return unshard(runtime, &of);
    case SL_CODE_AWAIT_WEIGHTS:
        return await_weights(runtime, &of, instr->stage);
    case SL_CODE_RESHARD:
        point_weights(&of, NULL);
        return SL_OK;
    case SL_CODE_OPEN_GRADS:
        return open_grads(runtime, &of);
    case SL_CODE_REDUCE_GRADS:
        return reduce_grads(runtime, &of);
    case SL_CODE_AWAIT_GRADS:
        return await_grads(runtime, &of, instr->stage);
    default:
        return sl_fail(SL_ERR_INTERNAL, "instruction %d is unknown", instr->code);
    }
}
