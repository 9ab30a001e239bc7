/* One rank of a pipelined training run. */
#include "ranks/support/pipeline.h"

#include "base/alloc.h"
#include "support/device/test_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value of the device as the host sees it; the caller frees it. */
static void *fetch(const sl_runtime *runtime, const sl_view *view)
{
    sl_stream *stream = sl_runtime_stream(runtime);
    void *host = malloc(sl_meta_bytes(&view->meta) + 1);
    if (sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, host, view->data, sl_meta_bytes(&view->meta)) != SL_OK ||
        sl_stream_synchronize(stream) != SL_OK)
        abort();
    return host;
}

static sl_status store(const sl_runtime *runtime, const sl_view *view, const void *host)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(runtime);
    SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, view->data, host, sl_meta_bytes(&view->meta)));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

static uint64_t hash_view(const sl_runtime *runtime, const sl_view *view)
{
    void *host = fetch(runtime, view);
    uint64_t hash = hash_of(host, sl_meta_bytes(&view->meta));
    free(host);
    return hash;
}

static void take_params(const sl_runtime *runtime, int rank, const sl_param_list *list, bool grads, uint64_t *out)
{
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        const sl_view *view = grads ? &params[i].grad : &params[i].data;
        int place = sl_param_list_find(list, params[i].name);
        if (params[i].owner == rank)
            out[place] = hash_view(runtime, view);
    }
}

/* Copies of a tied parameter on ranks that do not own it must be what the owner wrote. */
static void check_copies(const sl_runtime *runtime, int rank, const sl_param_list *list, run_result *result)
{
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        int place = sl_param_list_find(list, params[i].name);
        if (params[i].owner == rank)
            continue;
        if (hash_view(runtime, &params[i].data) != result->weights[place] ||
            hash_view(runtime, &params[i].grad) != result->last_grads[place])
            __atomic_fetch_add(&result->copies_differ, 1, __ATOMIC_SEQ_CST);
    }
}

/* Of each parameter the f32 master, in host memory that the caller frees, and the weight: the master rounded. */
static sl_status set_weights(sl_runtime *runtime, const run_config *config, const sl_model *model,
                             const sl_param_list *list, float **masters)
{
    sl_status status = SL_OK;
    sl_model_weights *weights = NULL;
    void *rounded = NULL;
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    SL_TRY(open_weights(config->model, model, &weights));
    for (int i = 0; i < count; i++) {
        const sl_meta *meta = &params[i].data.meta;
        int64_t elements = sl_meta_count(meta);
        free(rounded);
        rounded = malloc(sl_meta_bytes(meta) + 1);
        masters[i] = malloc((size_t)elements * sizeof **masters + 1);
        SL_TRY(first_weight(weights, sl_param_list_at(list, sl_param_list_find(list, params[i].name)), masters[i]));
        SL_TRY(sl_f32_convert(masters[i], elements, meta->dtype, rounded));
        SL_TRY(store(runtime, &params[i].data, rounded));
    }
done:
    free(rounded);
    sl_model_weights_close(weights);
    return status;
}

static sl_status train(sl_runtime *runtime, sl_group *group, const run_config *config, const sl_param_list *list,
                       float **masters, run_result *result)
{
    sl_status status = SL_OK;
    int count = 0, rank = sl_group_rank(group);
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int step = 0; step < STEPS; step++) {
        batch data;
        sl_step_result losses;
        SL_TRY(read_batch(config->model, step, &data));
        sl_step what = { .args = data.args, .arg_count = 2, .number = step };
        int64_t allocations = sl_alloc_count();
        SL_TRY(sl_runtime_step(runtime, &what, &losses));
        int settled = strcmp(test_device_spec(), "cuda") == 0 ? 3 : 1; /* a GPU captures and chooses algorithms first */
        if (step >= settled && strcmp(sl_group_transport(group), "threads") != 0 && sl_alloc_count() != allocations)
            return sl_fail(SL_ERR_INTERNAL, "step %d allocated memory", step);
        if (rank == 0)
            memcpy(result->losses[step], losses.losses, (size_t)config->microbatches * sizeof(float));
        if (step == 0)
            take_params(runtime, rank, list, true, result->first_grads);
        for (int i = 0; i < count; i++) {
            void *w = fetch(runtime, &params[i].data), *g = fetch(runtime, &params[i].grad);
            status = descend(masters[i], g, sl_meta_count(&params[i].data.meta), params[i].data.meta.dtype, w);
            if (status == SL_OK)
                status = store(runtime, &params[i].data, w);
            free(w);
            free(g);
            SL_TRY(status);
        }
    }
    take_params(runtime, rank, list, true, result->last_grads);
    take_params(runtime, rank, list, false, result->weights);
    SL_TRY(sl_group_barrier(group)); /* the owners have written */
    check_copies(runtime, rank, list, result);
done:
    return status;
}

sl_status run_pipelined(sl_group *group, const run_config *config, run_result *result)
{
    sl_status status = SL_OK;
    sl_model model;
    sl_schedule *schedule = NULL;
    sl_param_list *list = NULL;
    sl_partition *partitions[2] = { NULL, NULL };
    sl_device *device = NULL;
    sl_stage *stages[16];
    sl_runtime *runtime = NULL;
    float *masters[MAX_PARAMS] = { NULL };
    batch shapes;
    int sizes = 0, count = 0;
    SL_TRY(make_schedule(config, &schedule));
    SL_TRY(model_of(config->model, &model));
    SL_TRY(sl_model_params(&model, &list));
    SL_TRY(cut_model(config, &model, sl_schedule_stages(schedule), partitions, &sizes));
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(read_batch(config->model, 0, &shapes));
    for (int s = 0; s < sl_schedule_stages(schedule); s++) {
        if (sl_schedule_rank_of(schedule, s) != sl_group_rank(group))
            continue;
        sl_program_options packed = program_options; /* the reference packs nothing beforehand */
        packed.pack_weights = true;
        SL_TRY(sl_stage_build((const sl_partition *const *)partitions, sizes, s, device, &packed, &stages[count]));
        count++;
    }
    sl_arg_spec specs[2] = { { .name = shapes.args[0].name, .meta = shapes.args[0].view.meta },
                             { .name = shapes.args[1].name, .meta = shapes.args[1].view.meta } };
    sl_runtime_options options = { .group = group,
                                   .device = device,
                                   .schedule = schedule,
                                   .stages = stages,
                                   .stage_count = count,
                                   .args = specs,
                                   .arg_count = 2 };
    SL_TRY(sl_runtime_create(&options, &runtime));
    if (sl_group_rank(group) == 0)
        snprintf(result->messages, sizeof result->messages, "%s", sl_runtime_messages(runtime));
    SL_TRY(set_weights(runtime, config, &model, list, masters));
    SL_TRY(train(runtime, group, config, list, masters, result));
    sl_device_memory memory = sl_device_get_memory(device);
    if (memory.peak != sl_runtime_get_memory(runtime).device)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "%zu bytes were predicted, %zu taken", sl_runtime_get_memory(runtime).device,
                       memory.peak));
done:
    if (status != SL_OK)
        snprintf(result->error, sizeof result->error, "rank %d: %s", sl_group_rank(group), sl_error_message());
    for (int i = 0; i < MAX_PARAMS; i++)
        free(masters[i]);
    sl_runtime_destroy(runtime);
    for (int i = 0; i < count; i++)
        sl_stage_destroy(stages[i]);
    sl_partition_destroy(partitions[0]);
    sl_partition_destroy(partitions[1]);
    sl_param_list_destroy(list);
    sl_schedule_destroy(schedule);
    sl_device_close(device);
    return status;
}
