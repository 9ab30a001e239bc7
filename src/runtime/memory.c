/* The memory of a runtime: everything is counted first, then taken from the device in a few blocks, and the programs'
 * pointers are filled in. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <string.h>

static size_t round_up(size_t bytes)
{
    return (bytes + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* The weight of the same name in an earlier stage of this rank: they share their data. */
static sl_stage_weight *find_earlier(const sl_runtime *runtime, int stage, const char *name)
{
    for (int k = 0; k < stage; k++) {
        for (int i = 0; i < runtime->stages[k]->weight_count; i++) {
            if (strcmp(runtime->stages[k]->weights[i].name, name) == 0)
                return &runtime->stages[k]->weights[i];
        }
    }
    return NULL;
}

/* Gives each weight its place in the blocks, or with blocks not yet there counts what they must hold. */
static void place_weights(sl_runtime *runtime)
{
    size_t data = 0, grads = 0;
    char *data_block = runtime->blocks.weights, *grad_block = runtime->blocks.grads;
    bool training = sl_schedule_has_backward(runtime->schedule);
    for (int k = 0; k < runtime->stage_count; k++) {
        for (int i = 0; i < runtime->stages[k]->weight_count; i++) {
            sl_stage_weight *weight = &runtime->stages[k]->weights[i];
            const sl_stage_weight *earlier = find_earlier(runtime, k, weight->name);
            size_t bytes = round_up(sl_meta_bytes(&weight->meta));
            weight->data_place = weight->data;
            weight->grad_place = weight->grad;
            if (earlier && !weight->data) {
                weight->data_place = earlier->data_place;
            } else if (!weight->data) {
                weight->data_place = data_block ? data_block + data : NULL;
                data += bytes;
            }
            if (!weight->frozen && training && !weight->grad) {
                weight->grad_place = grad_block ? grad_block + grads : NULL;
                grads += bytes;
            }
        }
    }
    runtime->memory.params = data;
    runtime->memory.grads = grads;
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
            if (find_earlier(runtime, k, weight->name))
                continue;
            sl_param *param = &runtime->params[runtime->param_count++];
            *param = (sl_param){ .name = weight->name,
                                 .stage = stage->index,
                                 .data = { weight->data_place, weight->meta },
                                 .grad = { weight->grad_place, weight->meta },
                                 .init = weight->init,
                                 .owner = runtime->rank };
            if (!weight->grad_place)
                param->grad = sl_view_none();
            for (int t = 0; t < runtime->wiring->tie_count; t++) {
                const sl_wire_tie *tie = &runtime->wiring->ties[t];
                if (strcmp(tie->name, weight->name) != 0)
                    continue;
                param->tied = true;
                param->owner = runtime->wiring->stages[tie->stages[0]].rank;
            }
        }
    }
done:
    return status;
}

/* ---- Root inputs ----------------------------------------------------------------------------- */

/* Parts of the batch lie in one piece, where a stage can use them. */
static bool parts_are_contiguous(const sl_wire_root *root)
{
    if (root->kind == SL_CHUNK_REPLICATE)
        return true;
    if (root->kind == SL_CHUNK_CUSTOM)
        return false;
    int dim = root->dim < 0 ? root->dim + root->whole.shape.rank : root->dim;
    for (int i = 0; i < dim; i++) {
        if (root->whole.shape.dims[i] != 1)
            return false;
    }
    return true;
}

static sl_status plan_roots(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    SL_TRY(SL_NEW_ARRAY(runtime->roots, wiring->root_count));
    for (int k = runtime->stage_count - 1; k >= 0; k--) {
        const sl_wire_stage *stage = &wiring->stages[runtime->stages[k]->index];
        for (int i = 0; i < stage->input_count; i++) {
            if (stage->inputs[i].root < 0)
                continue;
            runtime->roots[stage->inputs[i].root].used = true;
            runtime->roots[stage->inputs[i].root].stage = runtime->stages[k]->index;
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
        if (!use->used || (runtime->host && parts_are_contiguous(root)))
            continue;
        for (int size = 0; size < wiring->size_count; size++) {
            size_t bytes = round_up(sl_meta_bytes(&root->metas[size]));
            use->copy_bytes = bytes > use->copy_bytes ? bytes : use->copy_bytes;
        }
        use->copy_offset = runtime->memory.inputs;
        runtime->memory.inputs += use->copy_bytes * (size_t)wiring->microbatches;
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
            place += round_up(bytes);
        }
    }
done:
    sl_free(image);
    return status;
}

/* Counts all that the blocks must hold. */
static void count_memory(sl_runtime *runtime, size_t *scalars)
{
    sl_runtime_memory *memory = &runtime->memory;
    bool loss =
        runtime->wiring->loss_stage >= 0 && runtime->wiring->stages[runtime->wiring->loss_stage].rank == runtime->rank;
    place_weights(runtime);
    memory->slots = sl_slots_layout(&runtime->layout.slots);
    for (int k = 0; k < runtime->stage_count; k++) {
        if (runtime->stages[k]->scratch_bytes > memory->scratch)
            memory->scratch = runtime->stages[k]->scratch_bytes;
        for (int size = 0; size < runtime->wiring->size_count; size++)
            memory->constants += round_up(runtime->stages[k]->constant_bytes[size]);
    }
    *scalars = loss ? 2 * (size_t)runtime->wiring->microbatches * SL_SCALAR_STRIDE : 0;
    memory->slots += *scalars;
    memory->device =
        memory->params + memory->grads + memory->constants + memory->slots + memory->scratch + memory->inputs;
}

static sl_status take_block(sl_runtime *runtime, size_t bytes, void **out)
{
    return bytes ? sl_device_alloc(runtime->device, bytes, out) : SL_OK;
}

static sl_status take_blocks(sl_runtime *runtime, size_t scalars)
{
    sl_status status = SL_OK;
    const sl_runtime_memory *memory = &runtime->memory;
    sl_blocks *blocks = &runtime->blocks;
    SL_TRY(take_block(runtime, memory->params, &blocks->weights));
    SL_TRY(take_block(runtime, memory->grads, &blocks->grads));
    SL_TRY(take_block(runtime, memory->constants, &blocks->constants));
    SL_TRY(take_block(runtime, memory->slots - scalars, &blocks->slots));
    SL_TRY(take_block(runtime, scalars, &blocks->scalars));
    SL_TRY(take_block(runtime, memory->scratch, &blocks->scratch));
    SL_TRY(take_block(runtime, memory->inputs, &blocks->inputs));
    runtime->context.scratch = blocks->scratch;
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
    size_t largest = 0;
    SL_TRY(SL_NEW_ARRAY(runtime->weights, count));
    SL_TRY(SL_NEW_ARRAY(runtime->losses, count));
    SL_TRY(SL_NEW_ARRAY(runtime->scalars, (size_t)count * SL_SCALAR_STRIDE));
    SL_TRY(SL_NEW_ARRAY(runtime->first_output, runtime->wiring->stage_count));
    for (int k = 0; k < runtime->stage_count; k++) {
        runtime->first_output[runtime->stages[k]->index] = outputs;
        outputs += runtime->stages[k]->output_count;
        for (int i = 0; i < runtime->stages[k]->weight_count; i++) {
            size_t bytes = sl_meta_bytes(&runtime->stages[k]->weights[i].meta);
            largest = bytes > largest ? bytes : largest;
        }
    }
    SL_TRY(SL_NEW_ARRAY(runtime->outputs, outputs));
    if (runtime->replicas && !runtime->host)
        SL_TRY(sl_alloc(1, largest, &runtime->host_copy));
done:
    return status;
}

sl_status sl_runtime_allocate(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    size_t scalars = 0;
    SL_TRY(make_tables(runtime));
    SL_TRY(plan_roots(runtime, options));
    count_memory(runtime, &scalars);
    SL_TRY(take_blocks(runtime, scalars));
    place_weights(runtime);
    SL_TRY(list_params(runtime));
    for (int64_t i = 0; i < runtime->layout.place_count; i++) {
        const sl_place *place = &runtime->layout.places[i];
        *place->cell = (char *)runtime->blocks.slots + sl_slots_offset(&runtime->layout.slots, place->slot);
    }
    place_scalars(runtime, &runtime->train);
    place_scalars(runtime, &runtime->eval);
    SL_TRY(fill_constants(runtime));
    for (int k = 0; k < runtime->stage_count; k++)
        SL_TRY(sl_stage_prepare(runtime->stages[k], runtime->wiring->size_count));
    if (runtime->blocks.grads)
        SL_TRY(sl_runtime_zero_grads(runtime));
done:
    return status;
}

void sl_runtime_free_memory(sl_runtime *runtime)
{
    sl_blocks *blocks = &runtime->blocks;
    void *all[] = { blocks->slots,     blocks->scratch, blocks->weights, blocks->grads,
                    blocks->constants, blocks->inputs,  blocks->scalars };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i])
            sl_device_free(runtime->device, all[i]);
    }
    sl_free(runtime->params);
    sl_free(runtime->roots);
    sl_free(runtime->weights);
    sl_free(runtime->losses);
    sl_free(runtime->scalars);
    sl_free(runtime->first_output);
    sl_free(runtime->outputs);
    sl_free(runtime->host_copy);
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
        if (weight->grad_place && !weight->frozen)
            SL_TRY(sl_stream_memset(runtime->stream, weight->grad_place, 0, sl_meta_bytes(&weight->meta)));
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
