/* Which replica has which part of each weight: the shardings that memory, collectives, updates, norms and checkpoints all
 * read. And what follows for the memory of a rank. */
#include "pipeline/wiring.h"

#include "base/alloc.h"
#include "pipeline/slots.h"

/* The numbers of replicas: in their order, and in that of the parts. Every group of shard_group neighbors has all shards,
 * and the parts of those that have the same shard are side by side in it. */
static sl_status place_replicas(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    int group = wiring->shard_group, groups = wiring->replicas / group;
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->places, wiring->replicas));
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->part_places, wiring->replicas));
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->part_of, wiring->replicas));
    for (int replica = 0; replica < wiring->replicas; replica++) {
        int part = replica % group * groups + replica / group;
        wiring->places[replica] = wiring->part_places[part] = (sl_shard_place){ .rank = replica, .device = "meta" };
        wiring->part_of[replica] = part;
    }
done:
    return status;
}

/* One for all weights that have as many elements, so that a pipeline with many replicas has few. */
static sl_status find_sharding(sl_wiring *wiring, const sl_wire_weight *weight, int group, const sl_shard_place *places,
                               const sl_sharding **out)
{
    sl_status status = SL_OK;
    const sl_tensor_properties properties = { .dtype = weight->meta.dtype, .requires_grad = !weight->frozen };
    int64_t elements = sl_meta_count(&weight->meta);
    for (sl_wire_sharding *known = wiring->shardings; known; known = known->next) {
        const sl_tensor_properties *own = &known->sharding.properties;
        if (known->sharding.size.dims[0] == elements && own->dtype == properties.dtype &&
            own->requires_grad == properties.requires_grad && known->group == group && known->places == places) {
            *out = &known->sharding;
            return SL_OK;
        }
    }
    sl_wire_sharding *made = NULL;
    SL_TRY(SL_ARENA_NEW(wiring->arena, made));
    SL_TRY(sl_sharding_flat(&weight->meta.shape, &properties, group, places, wiring->replicas, &made->sharding));
    made->group = group;
    made->places = places;
    made->next = wiring->shardings;
    wiring->shardings = made;
    *out = &made->sharding;
done:
    return status;
}

static sl_status describe_weight(sl_wiring *wiring, sl_wire_weight *weight)
{
    sl_status status = SL_OK;
    sl_weight_shardings *to = &weight->shardings;
    int held = wiring->shard == SL_SHARD_FULL ? wiring->shard_group : 1;
    int updated = wiring->shard == SL_SHARD_NONE ? 1 : wiring->shard_group;
    SL_TRY(find_sharding(wiring, weight, held, wiring->places, &to->held));
    SL_TRY(find_sharding(wiring, weight, updated, wiring->places, &to->updated));
    SL_TRY(find_sharding(wiring, weight, wiring->replicas, wiring->part_places, &to->counted));
    weight->part_room = to->counted->shards[0].size.dims[0]; /* the first is the longest */
    weight->shard_room = weight->part_room * (wiring->replicas / wiring->shard_group);
done:
    return status;
}

/* What a rank keeps of the stage's weights, and with shards how they lie when gathered. */
static sl_status shard_stage(sl_wiring *wiring, sl_wire_stage *stage, int s)
{
    sl_status status = SL_OK;
    for (int i = 0; i < stage->weight_count; i++) {
        sl_wire_weight *weight = &stage->weights[i];
        SL_TRY(describe_weight(wiring, weight));
        weight->kept_meta = weight->meta;
        weight->kept_grad_meta = weight->grad_meta;
        weight->data_room = sl_meta_bytes(&weight->meta);
        weight->grad_room = sl_meta_bytes(&weight->grad_meta);
        if (wiring->shard == SL_SHARD_NONE)
            continue;
        if (weight->own_data || weight->own_grad)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT,
                           "stage %d: parameter '%s' lies in the caller's memory: it cannot be sharded", s,
                           weight->name));
        size_t all_parts = (size_t)(wiring->replicas * weight->part_room);
        weight->data_room = all_parts * sl_dtype_size(weight->meta.dtype);
        weight->grad_room = all_parts * sl_dtype_size(weight->grad_meta.dtype);
        if (wiring->shard == SL_SHARD_OPTIMIZER)
            continue;
        weight->block_offset = stage->weight_block_bytes;
        stage->weight_block_bytes += sl_round_up(weight->data_room);
        if (!weight->frozen) {
            weight->grad_block_offset = stage->grad_block_bytes;
            stage->grad_block_bytes += sl_round_up(weight->grad_room);
        }
        weight->kept_meta = sl_meta_make(weight->meta.dtype, 1, &weight->shard_room);
        weight->kept_grad_meta = sl_meta_make(weight->grad_meta.dtype, 1, &weight->shard_room);
        weight->data_room = sl_meta_bytes(&weight->kept_meta);
        weight->grad_room = sl_meta_bytes(&weight->kept_grad_meta);
    }
    if (wiring->shard == SL_SHARD_FULL) {
        stage->packed_offset = stage->weight_block_bytes;
        stage->weight_block_bytes += sl_round_up(stage->packed_bytes);
    }
done:
    return status;
}

sl_status sl_wiring_shard_weights(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    SL_TRY(place_replicas(wiring));
    for (int s = 0; s < wiring->stage_count; s++)
        SL_TRY(shard_stage(wiring, &wiring->stages[s], s));
done:
    return status;
}

void sl_wiring_free_shardings(sl_wiring *wiring)
{
    for (sl_wire_sharding *each = wiring->shardings; each; each = each->next)
        sl_sharding_destroy(&each->sharding);
}
