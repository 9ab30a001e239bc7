/* Values of the parameters: random, from a Hugging Face folder, or from a checkpoint or a snapshot with the optimizer's state. */
#include "train/trainer.h"

#include "base/alloc.h"
#include "train/attributes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static sl_status write_view(sl_trainer *trainer, const sl_view *view, const void *host)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(trainer->runtime);
    SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, view->data, host, sl_meta_bytes(&view->meta)));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

sl_status sl_trainer_read(sl_trainer *trainer, const sl_view *view, const void **out)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(trainer->runtime);
    if (!sl_device_is_host(trainer->device))
        SL_TRY(
            sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, trainer->staging, view->data, sl_meta_bytes(&view->meta)));
    SL_TRY(sl_stream_synchronize(stream));
    *out = sl_device_is_host(trainer->device) ? view->data : (const void *)trainer->staging;
done:
    return status;
}

/* The staging buffer's f32 values, rounded if the view has another dtype. */
static sl_status write_staged(sl_trainer *trainer, const sl_view *view)
{
    sl_status status = sl_f32_convert(trainer->staging, sl_meta_count(&view->meta), view->meta.dtype, trainer->staging);
    return status == SL_OK ? write_view(trainer, view, trainer->staging) : status;
}

/* What the forward pass reads follows from what was loaded, which is what this rank updates. */
static sl_status round_weights(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(trainer->runtime);
    SL_TRY(sl_optimizer_round_masters(trainer->optimizer, stream));
    SL_TRY(sl_runtime_gather_params(trainer->runtime));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

/* What is loaded of parameter i, and where it goes. Replicas share the updates of a parameter, and each loads what it
 * updates; a frozen one is loaded whole by each that holds it whole. */
static sl_view find_target(const sl_trainer *trainer, int i, sl_param_range *range)
{
    const sl_param *param = trainer->params[i].param;
    *range = i < trainer->trained_count ? param->updated : param->held;
    return i < trainer->trained_count ? sl_trainer_weight(trainer, i)
                                      : sl_trainer_cut(&param->data, param->held, param->held);
}

sl_status sl_trainer_load_start(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    sl_model_weights *weights = NULL;
    const sl_train_plan *plan = trainer->plan;
    const char *folder = plan->config->model.init;
    if (folder)
        SL_TRY(sl_model_weights_open(&plan->model, folder, &weights));
    for (int i = 0; i < trainer->param_count; i++) {
        const trainer_param *param = &trainer->params[i];
        const sl_param_info *info = sl_param_list_at(plan->params, param->index);
        sl_param_range own;
        const sl_view weight = find_target(trainer, i, &own);
        if (weights)
            SL_TRY(sl_model_weights_read(weights, param->name, own.first, own.count, trainer->staging));
        else
            sl_param_init(info, (uint64_t)plan->config->run.seed, own.first, own.count, trainer->staging);
        SL_TRY(write_staged(trainer, &weight));
    }
    SL_TRY(round_weights(trainer));
    trainer->step = 0;
done:
    sl_model_weights_close(weights);
    return status;
}

/* Tensors by name: a checkpoint, or a snapshot in memory. */
typedef struct tensor_source {
    const char *label; /* for messages */
    const void *from;
    const sl_tensor_entry *(*find)(const void *from, const char *name);
    const sl_checkpoint *checkpoint; /* NULL for a snapshot */
} tensor_source;

/* The elements from `first` on, from the file to the view, past the staging buffer if the device's memory is the host's. A
 * run in another precision may have written it: then it goes through f32. */
static sl_status read_tensor(sl_trainer *trainer, const char *label, const sl_tensor_entry *entry, int64_t first,
                             const sl_view *view)
{
    sl_status status = SL_OK;
    bool same = entry->dtype == view->meta.dtype;
    int64_t count = sl_meta_count(&view->meta);
    void *to = same && sl_device_is_host(trainer->device) ? view->data : (void *)trainer->staging;
    size_t skip = (size_t)first * sl_dtype_size(entry->dtype);
    SL_TRY(same ? sl_tensor_entry_read(entry, skip, sl_meta_bytes(&view->meta), to)
                : sl_tensor_entry_read_f32(entry, first, count, trainer->staging));
    int64_t bad = sl_find_nonfinite(same ? entry->dtype : SL_F32, to, count);
    if (bad >= 0)
        SL_TRY(sl_fail(SL_ERR_NUMERIC, "%s: element %" PRId64 " of %s is infinite or not a number", label, first + bad,
                       entry->name));
    if (!same)
        SL_TRY(write_staged(trainer, view));
    else if (to != view->data)
        SL_TRY(write_view(trainer, view, to));
done:
    return status;
}

/* Elements of the tensor `name`, which has the shape, into the view. */
static sl_status load_tensor(sl_trainer *trainer, const tensor_source *source, const char *name, const sl_shape *shape,
                             int64_t first, const sl_view *view)
{
    char expected[128], given[128];
    const sl_tensor_entry *entry = source->find(source->from, name);
    if (!entry)
        return sl_fail(SL_ERR_FORMAT, "%s: it lacks the tensor %s", source->label, name);
    if (!sl_shape_equal(&entry->shape, shape))
        return sl_fail(SL_ERR_SHAPE, "%s: %s is %s, the model needs %s", source->label, name,
                       sl_shape_text(&entry->shape, given, sizeof given),
                       sl_shape_text(shape, expected, sizeof expected));
    return read_tensor(trainer, source->label, entry, first, view);
}

static sl_status load_tensors(sl_trainer *trainer, const tensor_source *source)
{
    sl_status status = SL_OK;
    for (int i = 0; i < trainer->param_count; i++) {
        sl_param_range own;
        const sl_view weight = find_target(trainer, i, &own);
        SL_TRY(load_tensor(trainer, source, trainer->params[i].name, &trainer->params[i].param->shape, own.first,
                           &weight));
    }
    for (int i = 0; i < sl_optimizer_state_count(trainer->optimizer); i++) {
        sl_optim_state state = sl_optimizer_state_at(trainer->optimizer, i);
        const sl_param *param = sl_trainer_find(trainer, state.param)->param;
        char name[1024];
        if (source->checkpoint && sl_attributes_froze(trainer->plan, source->checkpoint, state.param))
            continue; /* it was not trained then, so its state is that of a beginning: zero */
        snprintf(name, sizeof name, "optimizer.%s.%s", state.kind, state.param);
        SL_TRY(load_tensor(trainer, source, name, &param->shape, param->updated.first, &state.view));
    }
    SL_TRY(round_weights(trainer));
done:
    return status;
}

static const sl_tensor_entry *find_in_checkpoint(const void *from, const char *name)
{
    return sl_checkpoint_find(from, name);
}

sl_status sl_trainer_load_checkpoint(sl_trainer *trainer, const char *path)
{
    sl_status status = SL_OK;
    sl_checkpoint *checkpoint = NULL;
    SL_TRY(sl_checkpoint_open(path, false, &checkpoint)); /* rank 0 has verified it */
    const tensor_source source = {
        .label = path, .from = checkpoint, .find = find_in_checkpoint, .checkpoint = checkpoint
    };
    SL_TRY(load_tensors(trainer, &source));
    trainer->step = trainer->committed = sl_checkpoint_step(checkpoint);
done:
    sl_checkpoint_close(checkpoint);
    return status;
}

static const sl_tensor_entry *find_in_snapshot(const void *from, const char *name)
{
    return sl_snapshot_find(from, name);
}

sl_status sl_trainer_load_snapshot(sl_trainer *trainer, const sl_snapshot *snapshot, int64_t step)
{
    const tensor_source source = { .label = "the snapshot in memory", .from = snapshot, .find = find_in_snapshot };
    sl_status status = load_tensors(trainer, &source);
    if (status == SL_OK)
        trainer->step = step;
    return status;
}
