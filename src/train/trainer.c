/* Makes one rank of a run: groups, stages, runtime, optimizer. */
#include "train/trainer.h"

#include "base/alloc.h"
#include "pipeline/pipeline.h"

#include <string.h>

/* ---- Stages ---------------------------------------------------------------------------------- */

static sl_status build_stages(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    const sl_train_plan *plan = trainer->plan;
    SL_TRY(SL_NEW_ARRAY(trainer->stages, plan->stage_count));
    for (int s = 0; s < plan->stage_count; s++) {
        if (plan->stages[s].rank != trainer->pp_rank)
            continue;
        SL_TRY(sl_plan_build_stage(plan, s, trainer->device, &trainer->stages[trainer->stage_count]));
        trainer->stage_count++;
    }
done:
    return status;
}

/* An action that takes a hundred times as long as the plan predicts, and half a minute at least, does not come back. */
static double action_timeout(const sl_trainer *trainer)
{
    const double factor = 100;
    double seconds = 30;
    for (int s = 0; s < trainer->plan->stage_count; s++) {
        double longest = factor * trainer->plan->stages[s].seconds; /* of F and B together */
        seconds = longest > seconds ? longest : seconds;
    }
    return seconds;
}

static sl_status make_runtime(sl_trainer *trainer, int trace_events)
{
    const sl_train_plan *plan = trainer->plan;
    sl_arg_spec args[SL_PLAN_ARGS];
    int arg_count = sl_plan_args(plan, args);
    const sl_runtime_options options = { .group = trainer->pipeline,
                                         .replicas = plan->config->parallel.dp > 1 ? trainer->replicas : NULL,
                                         .device = trainer->device,
                                         .schedule = plan->schedule,
                                         .shard = plan->shard,
                                         .shard_group = plan->shard == SL_SHARD_NONE ? 0 : plan->shard_group,
                                         .unsharded_stages = plan->unsharded,
                                         .offload_bytes = plan->offload,
                                         .sum = (sl_sum_mode)plan->config->parallel.sum,
                                         .staged_messages = plan->pipeline->messages == SL_MESSAGES_STAGED,
                                         .stages = trainer->stages,
                                         .stage_count = trainer->stage_count,
                                         .args = args,
                                         .arg_count = arg_count,
                                         .mean = SL_MEAN_SAMPLES,
                                         .watch_loss = true,
                                         .trace_events = trace_events,
                                         .action_timeout = action_timeout(trainer) };
    return sl_runtime_create(&options, &trainer->runtime);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

sl_view sl_trainer_cut(const sl_view *view, sl_param_range held, sl_param_range range)
{
    if (range.first == held.first && range.count == sl_meta_count(&view->meta))
        return *view;
    size_t skip = (size_t)(range.first - held.first) * sl_dtype_size(view->meta.dtype);
    return (sl_view){ .data = (char *)view->data + skip, .meta = sl_meta_make(view->meta.dtype, 1, &range.count) };
}

static bool is_frozen(const sl_param *param)
{
    return sl_view_is_none(&param->grad);
}

static void add_param(sl_trainer *trainer, const sl_param *param)
{
    const char *name = param->tied_to; /* a tied head has the embedding's values, in files too */
    trainer->params[trainer->param_count++] = (trainer_param){
        .param = param,
        .name = name,
        .index = sl_param_list_find(trainer->plan->params, name),
        .counted = param->owner == trainer->pp_rank,
        .data = sl_trainer_cut(&param->data, param->held, param->updated),
        .grad = is_frozen(param) ? param->grad : sl_trainer_cut(&param->grad, param->held, param->updated),
    };
}

static sl_status list_params(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    int count = 0;
    size_t largest = 0;
    const sl_param *params = sl_runtime_params(trainer->runtime, &count);
    SL_TRY(SL_NEW_ARRAY(trainer->params, count));
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)sl_meta_count(&params[i].data.meta) * sizeof *trainer->staging;
        largest = bytes > largest ? bytes : largest;
        if (!is_frozen(&params[i]))
            add_param(trainer, &params[i]);
    }
    trainer->trained_count = trainer->param_count;
    for (int i = 0; i < count; i++) {
        if (is_frozen(&params[i]))
            add_param(trainer, &params[i]);
    }
    SL_TRY(sl_alloc(largest, 1, (void **)&trainer->staging));
done:
    return status;
}

const trainer_param *sl_trainer_find(const sl_trainer *trainer, const char *name)
{
    int i = 0;
    while (strcmp(trainer->params[i].name, name) != 0)
        i++;
    return &trainer->params[i];
}

sl_view sl_trainer_weight(const sl_trainer *trainer, int i)
{
    return i < trainer->trained_count ? sl_optimizer_weight(trainer->optimizer, i) : trainer->params[i].data;
}

static sl_status make_optimizer(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    sl_optim_param *params = NULL;
    const sl_optim_options options = sl_plan_optim_options(trainer->plan->config);
    bool alone = sl_group_size(trainer->world) == 1; /* and its parameters are in the order of the model */
    SL_TRY(SL_NEW_ARRAY(params, trainer->trained_count));
    for (int i = 0; i < trainer->trained_count; i++) {
        const sl_param *param = trainer->params[i].param;
        params[i] = (sl_optim_param){ .name = trainer->params[i].name,
                                      .data = trainer->params[i].data,
                                      .grad = trainer->params[i].grad,
                                      .counted = sl_trainer_cut(&param->grad, param->held, param->counted),
                                      .decay = param->shape.rank >= 2,
                                      .uncounted = !trainer->params[i].counted };
        alone = alone && (i == 0 || trainer->params[i].index >= trainer->params[i - 1].index);
    }
    size_t before = sl_device_get_memory(trainer->device).in_use;
    SL_TRY(sl_optimizer_create(&options, trainer->device, params, trainer->trained_count, &trainer->optimizer));
    trainer->optimizer_bytes = sl_device_get_memory(trainer->device).in_use - before;
    SL_TRY(SL_NEW_ARRAY(trainer->own_sums, trainer->trained_count));
    SL_TRY(
        SL_NEW_ARRAY(trainer->sums, sl_param_list_count(trainer->plan->params) * trainer->plan->config->parallel.dp));
    trainer->updates_alone = alone;
    sl_runtime_set_update(trainer->runtime, sl_trainer_update, trainer);
done:
    sl_free(params);
    return status;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static sl_status make_groups(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    const sl_train_config *config = trainer->plan->config;
    SL_TRY(sl_group_mesh(trainer->world, (int)config->parallel.pp, (int)config->parallel.dp, &trainer->pipeline,
                         &trainer->replicas));
    trainer->pp_rank = sl_group_rank(trainer->pipeline);
    trainer->dp_rank = sl_group_rank(trainer->replicas);
    SL_TRY(SL_NEW_ARRAY(trainer->notes, sl_group_size(trainer->world)));
done:
    return status;
}

/* All device memory of this rank at once: what does not fit is refused before anything starts. */
static sl_status reserve_memory(const sl_trainer *trainer)
{
    int rank = sl_group_rank(trainer->world), params = sl_param_list_count(trainer->plan->params) + 1; /* a tied head */
    const sl_plan_memory memory = sl_train_plan_memory(trainer->plan, rank);
    sl_status status =
        sl_device_reserve(trainer->device, memory.weights + memory.gradients + memory.optimizer + memory.activations,
                          SL_OPTIM_BLOCKS(params) + SL_RUNTIME_BLOCKS);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "memory of rank %d", rank);
}

sl_status sl_trainer_create(const sl_train_plan *plan, sl_group *world, int trace_events, sl_trainer **out)
{
    sl_status status = SL_OK;
    sl_trainer *trainer = NULL;
    const sl_device_options device_options = { .threads = (int)plan->config->parallel.threads };
    int64_t tokens = plan->rows * plan->config->batch.seq;
    SL_TRY(SL_NEW(trainer));
    trainer->plan = plan;
    trainer->world = world;
    trainer->pending = trainer->committed = trainer->best = -1;
    SL_TRY(make_groups(trainer));
    SL_TRY(sl_device_open(plan->device, &device_options, &trainer->device));
    SL_TRY(build_stages(trainer));
    SL_TRY(reserve_memory(trainer));
    SL_TRY(make_runtime(trainer, trace_events));
    SL_TRY(list_params(trainer));
    SL_TRY(make_optimizer(trainer));
    SL_TRY(SL_NEW_ARRAY(trainer->tokens, tokens));
    SL_TRY(SL_NEW_ARRAY(trainer->targets, tokens));
    if (plan->config->data.documents)
        SL_TRY(SL_NEW_ARRAY(trainer->positions, tokens));
    *out = trainer;
    trainer = NULL;
done:
    sl_trainer_destroy(trainer);
    return status;
}

sl_plan_memory sl_trainer_memory(const sl_trainer *trainer)
{
    sl_pipeline_memory runtime = sl_runtime_get_memory(trainer->runtime);
    sl_plan_memory memory = sl_plan_memory_of(&runtime);
    memory.context = trainer->plan->memory[sl_group_rank(trainer->world)].context;
    memory.optimizer = trainer->optimizer_bytes;
    memory.checkpoint = trainer->writer ? sl_checkpoint_writer_bytes(trainer->writer) : 0;
    sl_plan_memory_sum(&memory);
    return memory;
}

void sl_trainer_destroy(sl_trainer *trainer)
{
    if (!trainer)
        return;
    sl_checkpoint_writer_destroy(trainer->writer);
    sl_free(trainer->entries);
    sl_free(trainer->entry_names);
    sl_free(trainer->checkpoints);
    sl_optimizer_destroy(trainer->optimizer);
    sl_runtime_destroy(trainer->runtime);
    for (int i = 0; i < trainer->stage_count; i++)
        sl_stage_destroy(trainer->stages[i]);
    sl_free(trainer->stages);
    sl_device_close(trainer->device);
    sl_group_close(trainer->replicas);
    sl_group_close(trainer->pipeline);
    sl_free(trainer->params);
    sl_free(trainer->staging);
    sl_free(trainer->own_sums);
    sl_free(trainer->sums);
    sl_free(trainer->tokens);
    sl_free(trainer->targets);
    sl_free(trainer->positions);
    sl_free(trainer->notes);
    sl_free(trainer);
}
