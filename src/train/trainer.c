/* Makes one rank of a run: groups, stages, runtime, optimizer. */
#include "train/trainer.h"

#include "base/alloc.h"

#include <string.h>

/* ---- Stages ---------------------------------------------------------------------------------- */

static sl_status build_stages(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    const sl_train_plan *plan = trainer->plan;
    const sl_program_options options = { .recompute = plan->recompute.items,
                                         .recompute_count = (int)plan->recompute.count };
    SL_TRY(SL_NEW_ARRAY(trainer->stages, plan->stage_count));
    for (int s = 0; s < plan->stage_count; s++) {
        if (plan->stages[s].rank != trainer->pp_rank)
            continue;
        SL_TRY(sl_stage_build((const sl_partition *const *)plan->partitions, plan->size_count, s, trainer->device,
                              &options, &trainer->stages[trainer->stage_count]));
        trainer->stage_count++;
    }
done:
    return status;
}

static sl_stage *find_stage(const sl_trainer *trainer, int index)
{
    for (int i = 0; i < trainer->stage_count; i++) {
        if (sl_stage_index(trainer->stages[i]) == index)
            return trainer->stages[i];
    }
    return NULL;
}

static sl_status share_values(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    const sl_train_plan *plan = trainer->plan;
    sl_stage *embedding = find_stage(trainer, plan->embedding_stage), *head = find_stage(trainer, plan->head_stage);
    if (!plan->tied || !embedding || !head)
        return SL_OK;
    const sl_param_info *info = sl_param_list_at(plan->params, sl_param_list_find(plan->params, plan->embedding));
    int64_t count = 0;
    SL_TRY(sl_shape_count(&info->shape, &count));
    SL_TRY(sl_device_alloc(trainer->device, (size_t)count * sl_dtype_size(info->dtype), &trainer->shared_values));
    SL_TRY(sl_stage_bind_param(embedding, plan->embedding, trainer->shared_values, NULL));
    SL_TRY(sl_stage_bind_param(head, plan->head, trainer->shared_values, NULL));
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
    const int64_t dims[] = { plan->rows, plan->config->batch.seq };
    const sl_arg_spec args[] = { { .name = "tokens", .meta = sl_meta_make(SL_I32, 2, dims) },
                                 { .name = "targets", .meta = sl_meta_make(SL_I32, 2, dims) } };
    const sl_runtime_options options = { .group = trainer->pipeline,
                                         .replicas = plan->config->parallel.dp > 1 ? trainer->replicas : NULL,
                                         .device = trainer->device,
                                         .schedule = plan->schedule,
                                         .stages = trainer->stages,
                                         .stage_count = trainer->stage_count,
                                         .args = args,
                                         .arg_count = 2,
                                         .mean = SL_MEAN_SAMPLES,
                                         .watch_loss = true,
                                         .trace_events = trace_events,
                                         .action_timeout = action_timeout(trainer) };
    return sl_runtime_create(&options, &trainer->runtime);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

static sl_status list_params(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    const sl_train_plan *plan = trainer->plan;
    int count = 0;
    size_t largest = 0;
    const sl_param *params = sl_runtime_params(trainer->runtime, &count);
    SL_TRY(SL_NEW_ARRAY(trainer->params, count));
    for (int i = 0; i < count; i++) {
        bool head = plan->tied && strcmp(params[i].name, plan->head) == 0;
        size_t bytes = sl_meta_bytes(&params[i].data.meta);
        largest = bytes > largest ? bytes : largest;
        if (head)
            trainer->head_grad = params[i].grad;
        else if (plan->tied && strcmp(params[i].name, plan->embedding) == 0)
            trainer->embedding_grad = params[i].grad;
        if (head && trainer->shared_values)
            continue; /* the embedding stands for both */
        const char *name = head ? plan->embedding : params[i].name;
        trainer->params[trainer->param_count++] = (trainer_param){
            .param = &params[i], .name = name, .index = sl_param_list_find(plan->params, name), .counted = !head
        };
    }
    SL_TRY(sl_alloc(largest, 1, (void **)&trainer->staging));
done:
    return status;
}

static sl_status make_optimizer(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    sl_optim_param *params = NULL;
    const sl_optim_options options = sl_plan_optim_options(trainer->plan->config);
    SL_TRY(SL_NEW_ARRAY(params, trainer->param_count));
    for (int i = 0; i < trainer->param_count; i++) {
        const sl_param *param = trainer->params[i].param;
        params[i] = (sl_optim_param){ .name = trainer->params[i].name,
                                      .data = param->data,
                                      .grad = param->grad,
                                      .decay = param->data.meta.shape.rank >= 2 };
    }
    SL_TRY(sl_optimizer_create(&options, trainer->device, params, trainer->param_count, &trainer->optimizer));
    SL_TRY(SL_NEW_ARRAY(trainer->own_sums, trainer->param_count));
    SL_TRY(SL_NEW_ARRAY(trainer->sums, sl_param_list_count(trainer->plan->params)));
done:
    sl_free(params);
    return status;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

/* The ranks of the embedding and of the head, in this order; a group of their own where they are two. */
static sl_status make_tie_group(sl_trainer *trainer)
{
    const sl_train_plan *plan = trainer->plan;
    int embedding = plan->stages[plan->embedding_stage].rank, head = plan->stages[plan->head_stage].rank;
    if (!plan->tied || embedding == head)
        return SL_OK;
    bool member = trainer->pp_rank == embedding || trainer->pp_rank == head;
    return sl_group_split(trainer->pipeline, member ? 0 : -1, trainer->pp_rank == head, &trainer->tie);
}

static sl_status make_groups(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    const sl_train_config *config = trainer->plan->config;
    SL_TRY(sl_group_mesh(trainer->world, (int)config->parallel.pp, (int)config->parallel.dp, &trainer->pipeline,
                         &trainer->replicas));
    trainer->pp_rank = sl_group_rank(trainer->pipeline);
    trainer->dp_rank = sl_group_rank(trainer->replicas);
    SL_TRY(make_tie_group(trainer));
    SL_TRY(SL_NEW_ARRAY(trainer->notes, sl_group_size(trainer->world)));
done:
    return status;
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
    trainer->pending = trainer->committed = -1;
    SL_TRY(make_groups(trainer));
    SL_TRY(sl_device_open("cpu", &device_options, &trainer->device));
    SL_TRY(build_stages(trainer));
    SL_TRY(share_values(trainer));
    SL_TRY(make_runtime(trainer, trace_events));
    SL_TRY(list_params(trainer));
    SL_TRY(make_optimizer(trainer));
    SL_TRY(SL_NEW_ARRAY(trainer->tokens, tokens));
    SL_TRY(SL_NEW_ARRAY(trainer->targets, tokens));
    *out = trainer;
    trainer = NULL;
done:
    sl_trainer_destroy(trainer);
    return status;
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
    sl_device_free(trainer->device, trainer->shared_values);
    sl_device_close(trainer->device);
    sl_group_close(trainer->tie);
    sl_group_close(trainer->replicas);
    sl_group_close(trainer->pipeline);
    sl_free(trainer->params);
    sl_free(trainer->staging);
    sl_free(trainer->own_sums);
    sl_free(trainer->sums);
    sl_free(trainer->tokens);
    sl_free(trainer->targets);
    sl_free(trainer->notes);
    sl_free(trainer);
}
