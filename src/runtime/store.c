/* Parameters and gradients that outlive a runtime. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

void sl_store_release(sl_param_store *store)
{
    if (!store || --store->users > 0)
        return;
    if (store->data)
        sl_device_free(store->device, store->data);
    if (store->grads)
        sl_device_free(store->device, store->grads);
    sl_free(store);
}

/* ---- Layout ---------------------------------------------------------------------------------- */

static const sl_wire_weight *wire_of(const sl_runtime *runtime, int k, int i)
{
    return &runtime->wiring->stages[runtime->stages[k]->index].weights[i];
}

/* What this rank keeps of a weight. */
static sl_param_range held_by(const sl_runtime *runtime, const sl_wire_weight *weight)
{
    return sl_shard_range(weight->shardings.held, runtime->sharers.replica);
}

static bool same_range(sl_param_range a, sl_param_range b)
{
    return a.first == b.first && a.count == b.count;
}

/* The weight that has the values: itself, or an earlier one of the rank that it is tied to. */
static const sl_wire_weight *value_of(const sl_wire_weight *weight)
{
    return weight->source ? weight->source : weight;
}

/* Whether every weight already lies where this runtime would put it. */
static bool has_layout(const sl_runtime *runtime, const sl_param_store *store)
{
    const sl_pipeline_memory *need = &runtime->pipeline->ranks[runtime->rank].memory;
    if (store->device != runtime->device || store->data_bytes != need->params ||
        (store->grads && need->grads && store->grad_bytes != need->grads))
        return false;
    for (int k = 0; k < runtime->stage_count; k++) {
        for (int i = 0; i < runtime->stages[k]->weight_count; i++) {
            const sl_stage_weight *weight = &runtime->stages[k]->weights[i];
            const sl_wire_weight *value = value_of(wire_of(runtime, k, i));
            if (value->data_offset == SL_NO_OFFSET)
                continue; /* the caller's */
            if (weight->kept_data != (char *)store->data + value->data_offset ||
                !same_range(weight->held, held_by(runtime, value)))
                return false;
        }
    }
    return true;
}

/* The one that all stages of the runtime have; NULL: they have none, or different ones. */
static sl_param_store *common_store(const sl_runtime *runtime)
{
    sl_param_store *store = runtime->stage_count ? runtime->stages[0]->store : NULL;
    for (int k = 1; k < runtime->stage_count; k++)
        store = runtime->stages[k]->store == store ? store : NULL;
    return store;
}

/* ---- Moving ---------------------------------------------------------------------------------- */

/* Values move to a new layout only if nobody else works on them. */
static sl_status check_alone(const sl_runtime *runtime, const sl_stage *stage)
{
    int own = 0;
    for (int k = 0; k < runtime->stage_count; k++)
        own += runtime->stages[k]->store == stage->store;
    if (own == stage->store->users)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT,
                   "stage %d shares its parameters with stages that this runtime does not have: a runtime needs all "
                   "stages that lie together, with the same device and shards",
                   stage->index);
}

/* One weight into the new store, if the stage has values. */
static sl_status move_weight(sl_runtime *runtime, int k, int i)
{
    const sl_stage *stage = runtime->stages[k];
    const sl_stage_weight *weight = &stage->weights[i];
    const sl_wire_weight *wire = wire_of(runtime, k, i);
    if (!stage->store || !weight->kept_data || wire->source || wire->data_offset == SL_NO_OFFSET)
        return SL_OK;
    const sl_param_range held = held_by(runtime, wire);
    if (!same_range(weight->held, held))
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "stage %d: of parameter '%s' an earlier runtime has left %" PRId64 " elements from %" PRId64
                       " on here; this one holds %" PRId64 " from %" PRId64 " on",
                       stage->index, weight->name, weight->held.count, weight->held.first, held.count, held.first);
    if (stage->store->device != runtime->device)
        return sl_fail(SL_ERR_UNSUPPORTED, "stage %d: its parameters are on another device", stage->index);
    return sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_DEVICE, weight->data_place, weight->kept_data,
                          (size_t)held.count * sl_dtype_size(wire->meta.dtype));
}

/* ---- A runtime's store ----------------------------------------------------------------------- */

static sl_status take(sl_param_store *store, const char *what, size_t bytes, void **out)
{
    sl_status status = bytes ? sl_device_alloc(store->device, bytes, out) : SL_OK;
    return status == SL_OK ? SL_OK : sl_fail_context(status, "%s", what);
}

sl_status sl_store_open(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_pipeline_memory *need = &runtime->pipeline->ranks[runtime->rank].memory;
    sl_param_store *store = common_store(runtime);
    if (store && has_layout(runtime, store)) {
        store->users++;
    } else {
        for (int k = 0; k < runtime->stage_count; k++) {
            if (runtime->stages[k]->store)
                SL_TRY(check_alone(runtime, runtime->stages[k]));
        }
        SL_TRY(SL_NEW(store));
        *store = (sl_param_store){ .device = runtime->device, .data_bytes = need->params, .users = 1 };
    }
    runtime->store = store;
    if (!store->data && need->params) {
        SL_TRY(take(store, "parameters", need->params, &store->data));
        /* Zeros past the end of parameters; and whoever reads a parameter before it has a value finds one on every device. */
        if (runtime->wiring->shard != SL_SHARD_NONE || !runtime->host)
            SL_TRY(sl_stream_memset(runtime->stream, store->data, 0, need->params));
    }
    if (!store->grads && need->grads) {
        SL_TRY(take(store, "gradients", need->grads, &store->grads));
        store->grad_bytes = need->grads; /* what lies between gradients is summed with them */
        SL_TRY(sl_stream_memset(runtime->stream, store->grads, 0, need->grads));
        runtime->fresh_grads = true;
    }
    runtime->memory.params = need->params;
    runtime->memory.grads = need->grads;
    runtime->memory.device += need->params + need->grads;
done:
    return status;
}

sl_status sl_store_fill(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_param_store *store = runtime->store;
    for (int k = 0; k < runtime->stage_count; k++) {
        for (int i = 0; runtime->stages[k]->store != store && i < runtime->stages[k]->weight_count; i++)
            SL_TRY(move_weight(runtime, k, i));
    }
    if (runtime->fresh_grads)
        SL_TRY(sl_runtime_zero_grads(runtime));
    SL_TRY(sl_stream_synchronize(runtime->stream));
done:
    return status;
}

static void give(sl_runtime *runtime, int k)
{
    sl_stage *stage = runtime->stages[k];
    if (stage->store != runtime->store) {
        sl_store_release(stage->store);
        stage->store = runtime->store;
        stage->store->users++;
    }
    for (int i = 0; i < stage->weight_count; i++) {
        sl_stage_weight *weight = &stage->weights[i];
        const sl_wire_weight *value = value_of(wire_of(runtime, k, i));
        weight->kept_data = value->data_offset == SL_NO_OFFSET ? NULL : weight->data_place;
        weight->held = held_by(runtime, value);
    }
}

void sl_store_commit(sl_runtime *runtime)
{
    for (int k = 0; k < runtime->stage_count; k++)
        give(runtime, k);
}

/* ---- Stages ---------------------------------------------------------------------------------- */

sl_status sl_stage_share_params(sl_stage *stage, const sl_stage *from)
{
    if (stage->owner)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d belongs to a runtime already", stage->index);
    if (stage->store)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d has parameters of its own already", stage->index);
    if (!from->store)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d has no parameters yet: they come with its first runtime",
                       from->index);
    if (stage->index != from->index || stage->weight_count != from->weight_count)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d has %d parameters, stage %d has %d: they cannot share them",
                       stage->index, stage->weight_count, from->index, from->weight_count);
    for (int i = 0; i < stage->weight_count; i++) {
        const sl_stage_weight *to = &stage->weights[i], *source = &from->weights[i];
        if (strcmp(to->name, source->name) != 0 || !sl_meta_equal(&to->meta, &source->meta) ||
            to->meta.dtype != source->meta.dtype)
            return sl_fail(SL_ERR_ARGUMENT, "parameter '%s' of stage %d is '%s' in the stage that it would share with",
                           to->name, stage->index, source->name);
    }
    for (int i = 0; i < stage->weight_count; i++) {
        sl_stage_weight *to = &stage->weights[i];
        const sl_stage_weight *source = &from->weights[i];
        to->kept_data = source->kept_data;
        to->data = source->data;
        to->grad = source->grad;
        to->held = source->held;
    }
    stage->store = from->store;
    stage->store->users++;
    return SL_OK;
}
