/* The memory of a runtime: taken from the device in a few blocks, as large as the pipeline says, and the programs bound
 * to it. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <string.h>

/* ---- Weights --------------------------------------------------------------------------------- */

/* Gives each weight its place in the blocks, or the caller's. */
static void place_weights(sl_runtime *runtime)
{
    char *data = runtime->store->data, *grads = runtime->store->grads;
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_wire_stage *wire = &runtime->wiring->stages[runtime->stages[k]->index];
        for (int i = 0; i < wire->weight_count; i++) {
            sl_stage_weight *weight = &runtime->stages[k]->weights[i];
            size_t data_offset = wire->weights[i].data_offset, grad_offset = wire->weights[i].grad_offset;
            const sl_wire_weight *source = wire->weights[i].source;
            weight->data_place = data_offset == SL_NO_OFFSET ? weight->data : data + data_offset;
            if (source) /* an earlier stage's, or an earlier one of this stage: it has its place */
                weight->data_place =
                    runtime->stages[runtime->wiring->stages[source->stage].local]->weights[source->index].data_place;
            weight->grad_place = grad_offset == SL_NO_OFFSET ? weight->grad : grads + grad_offset;
        }
    }
}

static void set_ranges(const sl_runtime *runtime, const sl_wire_weight *wire, sl_param *param)
{
    const sl_sharers *own = &runtime->sharers;
    param->shardings = wire->shardings;
    param->held = sl_shard_range(wire->shardings.held, own->replica);
    param->updated = sl_shard_range(wire->shardings.updated, own->replica);
    param->counted = sl_shard_range(wire->shardings.counted, own->part);
    param->counted_part = own->part;
}

/* The list that callers see: each parameter of this rank once. */
static sl_status list_params(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    for (int k = 0; k < runtime->stage_count; k++)
        count += runtime->stages[k]->weight_count;
    SL_TRY(SL_NEW_ARRAY(runtime->params, count));
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_stage *stage = runtime->stages[k];
        for (int i = 0; i < stage->weight_count; i++) {
            const sl_stage_weight *weight = &stage->weights[i];
            const sl_wire_weight *wire = &runtime->wiring->stages[stage->index].weights[i];
            if (wire->source)
                continue;
            sl_param *param = &runtime->params[runtime->param_count++];
            *param = (sl_param){ .name = weight->name,
                                 .tied_to = wire->tied_to,
                                 .stage = stage->index,
                                 .data = { weight->data_place, wire->kept_meta },
                                 .shape = wire->meta.shape,
                                 .grad = { weight->grad_place, wire->kept_grad_meta },
                                 .init = weight->init,
                                 .owner = runtime->rank,
                                 .tied = wire->tie >= 0 };
            set_ranges(runtime, wire, param);
            if (!weight->grad_place)
                param->grad = sl_view_none();
            if (wire->tie >= 0)
                param->owner = runtime->wiring->stages[runtime->wiring->ties[wire->tie].members[0].stage].rank;
        }
    }
done:
    return status;
}

/* ---- Root inputs ----------------------------------------------------------------------------- */

static sl_status plan_roots(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    size_t offset = 0;
    SL_TRY(SL_NEW_ARRAY(runtime->roots, wiring->root_count));
    for (int k = runtime->stage_count - 1; k >= 0; k--) {
        const sl_wire_stage *stage = &wiring->stages[runtime->stages[k]->index];
        for (int i = 0; i < stage->input_count; i++) {
            if (stage->inputs[i].root < 0)
                continue;
            sl_root_use *use = &runtime->roots[stage->inputs[i].root];
            use->used = true;
            use->stage = runtime->stages[k]->index;
            use->has_grad |=
                stage->inputs[i].has_grad && (stage->writes_all_grads || wiring->roots[stage->inputs[i].root].grad);
        }
    }
    for (int r = 0; r < wiring->root_count; r++) {
        const sl_wire_root *root = &wiring->roots[r];
        sl_root_use *use = &runtime->roots[r];
        use->chunk = (sl_chunk_spec){ .kind = root->kind, .dim = root->dim };
        for (int i = 0; i < options->arg_count; i++) {
            if (strcmp(options->args[i].name, root->name) == 0)
                use->chunk = options->args[i].chunk;
        }
        if (!use->used || (runtime->host && sl_root_is_contiguous(root)))
            continue;
        use->copy_bytes = sl_round_up(sl_wiring_bytes(wiring, root->metas));
        use->copy_offset = offset;
        offset += use->copy_bytes * (size_t)wiring->microbatches;
    }
done:
    return status;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static sl_status fill_constants(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    char *place = runtime->blocks.constants;
    void *image = NULL;
    for (int k = 0; k < runtime->stage_count; k++) {
        sl_stage *stage = runtime->stages[k];
        for (int size = 0; size < runtime->wiring->size_count; size++) {
            size_t bytes = stage->constant_bytes[size];
            stage->constants[size] = place;
            if (bytes == 0)
                continue;
            SL_TRY(sl_alloc(1, bytes, &image));
            stage->table->constants(stage, size, image);
            SL_TRY(sl_stream_copy(runtime->stream, SL_COPY_HOST_TO_DEVICE, place, image, bytes));
            SL_TRY(sl_stream_synchronize(runtime->stream));
            sl_free(image);
            image = NULL;
            place += sl_round_up(bytes);
        }
    }
done:
    sl_free(image);
    return status;
}

/* One block, counted as the device counts it. what: for the message. */
static sl_status take_block(sl_runtime *runtime, const char *what, size_t bytes, size_t *taken, void **out)
{
    size_t before = sl_device_get_memory(runtime->device).in_use;
    if (bytes == 0)
        return SL_OK;
    sl_status status = sl_device_alloc(runtime->device, bytes, out);
    if (status != SL_OK)
        return sl_fail_context(status, "%s", what);
    size_t more = sl_device_get_memory(runtime->device).in_use - before;
    *taken += more;
    runtime->memory.device += more;
    return SL_OK;
}

/* All that the rank needs at once, so that it is refused now or not at all. Parameters may be there already. */
static sl_status reserve_blocks(const sl_runtime *runtime)
{
    const sl_pipeline_memory *memory = &runtime->pipeline->ranks[runtime->rank].memory;
    bool has_params = runtime->stage_count > 0 && runtime->stages[0]->store;
    sl_status status = sl_device_reserve(
        runtime->device, memory->device - (has_params ? memory->params + memory->grads : 0), SL_RUNTIME_BLOCKS);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "memory of its stages");
}

static sl_status take_blocks(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_rank_plan *plan = &runtime->pipeline->ranks[runtime->rank];
    sl_pipeline_memory *memory = &runtime->memory;
    sl_blocks *blocks = &runtime->blocks;
    SL_TRY(reserve_blocks(runtime));
    SL_TRY(sl_store_open(runtime));
    SL_TRY(take_block(runtime, "constants", plan->memory.constants, &memory->constants, &blocks->constants));
    SL_TRY(take_block(runtime, "packed weights", plan->memory.packed, &memory->packed, &blocks->packed));
    SL_TRY(take_block(runtime, "slots of microbatches", plan->slot_bytes, &memory->slots, &blocks->slots));
    SL_TRY(take_block(runtime, "losses", plan->scalar_bytes, &memory->slots, &blocks->scalars));
    SL_TRY(take_block(runtime, "scratch", plan->memory.scratch, &memory->scratch, &blocks->scratch));
    SL_TRY(take_block(runtime, "inputs", plan->memory.inputs, &memory->inputs, &blocks->inputs));
    runtime->context.scratch = blocks->scratch;
    if (!runtime->host)
        runtime->context.step_rng =
            (const sl_rng *)((char *)blocks->inputs + plan->memory.inputs - sl_round_up(sizeof(sl_rng)));
    if (!runtime->host && blocks->scalars) /* they are copied with what lies between them */
        SL_TRY(sl_stream_memset(runtime->stream, blocks->scalars, 0, plan->scalar_bytes));
    if (plan->memory.offload > 0)
        SL_TRY(sl_device_alloc_host(runtime->device, plan->memory.offload, &blocks->offload));
    memory->offload = plan->memory.offload;
done:
    return status;
}

/* Losses, then seeds, of all microbatches. */
static void place_scalars(sl_runtime *runtime, const sl_program *program)
{
    int s = runtime->wiring->loss_stage, count = runtime->wiring->microbatches;
    char *losses = runtime->blocks.scalars;
    if (!losses || !program->frames)
        return;
    for (int k = 0; k < runtime->stage_count; k++) {
        if (runtime->stages[k]->index != s)
            continue;
        for (int m = 0; m < count; m++) {
            sl_frame *frame = &program->frames[(size_t)k * (size_t)count + (size_t)m];
            frame->outputs[runtime->wiring->loss_output] = losses + (size_t)m * SL_SCALAR_STRIDE;
            frame->output_grads[runtime->wiring->loss_output] = losses + ((size_t)count + (size_t)m) * SL_SCALAR_STRIDE;
        }
    }
}

static sl_status make_tables(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int outputs = 0, count = runtime->wiring->microbatches;
    SL_TRY(SL_NEW_ARRAY(runtime->weights, count));
    SL_TRY(SL_NEW_ARRAY(runtime->losses, count));
    int pipelines = runtime->replicas ? sl_group_size(runtime->replicas) : 1, ranks = runtime->wiring->rank_count;
    SL_TRY(SL_NEW_ARRAY(runtime->starts, ranks > pipelines ? ranks : pipelines));
    SL_TRY(SL_NEW_ARRAY(runtime->first_output, runtime->wiring->stage_count));
    for (int k = 0; k < runtime->stage_count; k++) {
        runtime->first_output[runtime->stages[k]->index] = outputs;
        outputs += runtime->stages[k]->output_count;
    }
    SL_TRY(SL_NEW_ARRAY(runtime->outputs, outputs));
done:
    return status;
}

sl_status sl_runtime_allocate(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    SL_TRY(make_tables(runtime));
    SL_TRY(plan_roots(runtime, options));
    SL_TRY(take_blocks(runtime));
    place_weights(runtime);
    SL_TRY(list_params(runtime));
    if (runtime->pipeline->training)
        SL_TRY(sl_program_bind(runtime->pipeline, runtime->rank, true, runtime->blocks.slots, runtime->blocks.offload,
                               &runtime->train));
    SL_TRY(sl_program_bind(runtime->pipeline, runtime->rank, false, runtime->blocks.slots, NULL, &runtime->eval));
    place_scalars(runtime, &runtime->train);
    place_scalars(runtime, &runtime->eval);
    SL_TRY(fill_constants(runtime));
    for (int k = 0; k < runtime->stage_count; k++)
        SL_TRY(sl_stage_prepare(runtime->stages[k], runtime->wiring->size_count));
    SL_TRY(sl_weights_create(runtime));
    SL_TRY(sl_store_fill(runtime));
done:
    return status;
}

void sl_runtime_free_memory(sl_runtime *runtime)
{
    sl_blocks *blocks = &runtime->blocks;
    void *all[] = {
        blocks->slots, blocks->scratch, blocks->constants, blocks->packed, blocks->inputs, blocks->scalars
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i])
            sl_device_free(runtime->device, all[i]);
    }
    sl_device_free_host(runtime->device, blocks->offload);
    sl_store_release(runtime->store);
    sl_free(runtime->params);
    sl_free(runtime->roots);
    sl_free(runtime->weights);
    sl_free(runtime->losses);
    sl_free(runtime->starts);
    sl_free(runtime->first_output);
    sl_free(runtime->outputs);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

const sl_param *sl_runtime_params(const sl_runtime *runtime, int *count)
{
    *count = runtime->param_count;
    return runtime->params;
}

sl_status sl_runtime_find_param(const sl_runtime *runtime, const char *name, const sl_param **out)
{
    for (int i = 0; i < runtime->param_count; i++) {
        if (strcmp(runtime->params[i].name, name) != 0)
            continue;
        *out = &runtime->params[i];
        return SL_OK;
    }
    return sl_fail(SL_ERR_ARGUMENT, "rank %d has no parameter '%s'", runtime->rank, name);
}

sl_status sl_runtime_zero_stage(sl_runtime *runtime, int k)
{
    sl_status status = SL_OK;
    for (int i = 0; i < runtime->stages[k]->weight_count; i++) {
        const sl_stage_weight *weight = &runtime->stages[k]->weights[i];
        const sl_wire_weight *wire = &runtime->wiring->stages[runtime->stages[k]->index].weights[i];
        if (weight->grad_place && !weight->frozen)
            SL_TRY(sl_stream_memset(runtime->stream, weight->grad_place, 0, sl_meta_bytes(&wire->kept_grad_meta)));
    }
done:
    return status;
}

sl_status sl_runtime_zero_grads(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    for (int k = 0; k < runtime->stage_count; k++)
        SL_TRY(sl_runtime_zero_stage(runtime, k));
done:
    return status;
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

static bool has_part(const sl_wiring *wiring, const sl_wire_tie *tie, int rank)
{
    bool here = false;
    for (int p = 0; p < tie->member_count; p++)
        here |= wiring->stages[tie->members[p].stage].rank == rank;
    return here;
}

static int count_links(const sl_pipeline *pipeline, int rank)
{
    int count = 0;
    for (int i = 0; i < pipeline->routes.edge_routes; i++)
        count += pipeline->routes.list[i].src == rank || pipeline->routes.list[i].dst == rank;
    return count;
}

size_t sl_runtime_carrier_bytes(const sl_pipeline *pipeline, int rank, sl_carrier_name carrier)
{
    const sl_wiring *wiring = pipeline->wiring;
    const sl_staging staging = sl_staging_of(wiring, rank, pipeline->training);
    sl_nccl_use use = { .links = count_links(pipeline, rank),
                        .groups = (staging.sums > 0) + (staging.gathers > 0) + (staging.joins > 0) };
    size_t slots = 0;
    for (int r = 0; r < wiring->rank_count; r++) {
        int links = count_links(pipeline, r);
        use.most_links = links > use.most_links ? links : use.most_links;
    }
    for (int t = 0; pipeline->training && t < wiring->tie_count; t++)
        use.groups += has_part(wiring, &wiring->ties[t], rank) && sl_staging_of_tie(wiring, &wiring->ties[t]) > 0;
    for (int i = 0; i < pipeline->routes.edge_routes; i++) {
        const sl_route *route = &pipeline->routes.list[i];
        slots += route->src == rank ? (size_t)route->capacity * route->bytes : 0;
    }
    return slots + (carrier == SL_CARRIER_NCCL ? sl_nccl_memory(&use) : 0);
}
