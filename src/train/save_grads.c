/* Gradients of all stages in one safetensors file, one parameter at a time. */
#include "train/trainer.h"

#include "base/alloc.h"
#include "pipeline/pipeline.h"

#include <string.h>

static const trainer_param *find_counted(const sl_trainer *trainer, int index)
{
    for (int i = 0; i < trainer->param_count; i++) {
        if (trainer->params[i].index == index && trainer->params[i].counted)
            return &trainer->params[i];
    }
    return NULL;
}

/* The pipeline rank that counts each parameter: its number + 1 in owners[i]. */
static sl_status find_owners(sl_trainer *trainer, int32_t *owners, int count)
{
    for (int i = 0; i < count; i++)
        owners[i] = find_counted(trainer, i) ? trainer->pp_rank + 1 : 0;
    return sl_group_all_reduce(trainer->pipeline, owners, count, SL_I32, SL_REDUCE_SUM);
}

/* Frozen parameters have no gradient. */
static sl_status declare_all(const sl_train_plan *plan, sl_safetensors_writer *writer)
{
    sl_status status = SL_OK;
    for (int i = 0; i < sl_param_list_count(plan->params); i++) {
        const sl_param_info *info = sl_param_list_at(plan->params, i);
        int index = 0;
        if (!plan->frozen[i])
            SL_TRY(sl_safetensors_writer_add(writer, info->name, info->dtype, &info->shape, &index));
    }
done:
    return status;
}

static sl_status read_view(sl_trainer *trainer, const sl_view *view, float *values)
{
    sl_status status = SL_OK;
    sl_tensor_entry entry = { .name = "", .dtype = view->meta.dtype, .count = sl_meta_count(&view->meta) };
    SL_TRY(sl_trainer_read(trainer, view, &entry.data));
    SL_TRY(sl_tensor_entry_read_f32(&entry, 0, entry.count, values));
done:
    return status;
}

/* The whole gradient. If every replica has a part of the sum, each gives the part that it alone counts. */
static sl_status read_gradient(sl_trainer *trainer, const sl_param *param, float *values)
{
    sl_status status = SL_OK;
    const sl_sharding *parts = param->shardings.counted;
    const sl_view own = sl_trainer_cut(&param->grad, param->held, param->counted);
    const int64_t room = parts->shards[0].size.dims[0]; /* of the longest */
    float *all = NULL;
    if (trainer->plan->shard == SL_SHARD_NONE)
        return read_view(trainer, &param->grad, values);
    SL_TRY(SL_NEW_ARRAY(all, room * parts->count));
    SL_TRY(read_view(trainer, &own, all + trainer->dp_rank * room));
    SL_TRY(sl_group_all_gather(trainer->replicas, all + trainer->dp_rank * room, (size_t)room * sizeof *all, all));
    for (int p = 0; p < parts->count; p++) {
        const sl_shard *part = &parts->shards[p];
        if (part->size.dims[0] > 0)
            memcpy(values + part->offsets[0], all + part->placement.rank * room,
                   (size_t)part->size.dims[0] * sizeof *all);
    }
done:
    sl_free(all);
    return status;
}

sl_status sl_trainer_save_grads(sl_trainer *trainer, const char *path)
{
    sl_status status = SL_OK;
    const sl_param_list *params = trainer->plan->params;
    int count = sl_param_list_count(params);
    int32_t *owners = NULL;
    float *values = NULL;
    int64_t capacity = 0;
    sl_safetensors_writer *writer = NULL;
    bool writes = sl_group_rank(trainer->world) == 0;
    SL_TRY(SL_NEW_ARRAY(owners, count));
    SL_TRY(find_owners(trainer, owners, count));
    if (writes) {
        SL_TRY(sl_safetensors_writer_create(path, &writer));
        SL_TRY(declare_all(trainer->plan, writer));
    }
    for (int i = 0, place = 0; i < count; i++) {
        int64_t elements = 0;
        const trainer_param *own = find_counted(trainer, i);
        if (trainer->plan->frozen[i])
            continue;
        SL_TRY(sl_shape_count(&sl_param_list_at(params, i)->shape, &elements));
        if (elements > capacity) {
            SL_TRY(sl_realloc((void **)&values, (size_t)elements, sizeof *values));
            capacity = elements;
        }
        size_t bytes = (size_t)elements * sizeof *values;
        if (own)
            SL_TRY(read_gradient(trainer, own->param, values));
        SL_TRY(sl_group_broadcast(trainer->pipeline, owners[i] - 1, values, bytes));
        if (writes)
            SL_TRY(sl_safetensors_writer_write(writer, place++, 0, values, bytes));
    }
    if (writes)
        SL_TRY(sl_safetensors_writer_finish(writer));
done:
    sl_safetensors_writer_destroy(writer);
    sl_free(values);
    sl_free(owners);
    return status;
}
