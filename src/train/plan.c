/* The plan of a run: made in order, each part checked before the next needs it. */
#include "train/plan.h"

#include "base/alloc.h"

static sl_status begin(const sl_train_config *config, const char *device, sl_train_plan **out)
{
    sl_status status = SL_OK;
    sl_train_plan *plan = NULL;
    SL_TRY(SL_NEW(plan));
    plan->config = config;
    SL_TRY(sl_arena_create(&plan->arena));
    SL_TRY(sl_arena_strdup(plan->arena, device ? device : "cpu", &plan->device));
    *out = plan;
    plan = NULL;
done:
    sl_train_plan_destroy(plan);
    return status;
}

static sl_status create(const sl_train_config *config, const char *device, bool threads, sl_train_plan **out)
{
    sl_status status = SL_OK;
    sl_train_plan *plan = NULL;
    SL_TRY(begin(config, device, &plan));
    plan->threads = threads;
    SL_TRY(sl_plan_open_data(plan));
    SL_TRY(sl_plan_choose_model(plan));
    SL_TRY(sl_plan_check_data(plan));
    SL_TRY(sl_plan_make_schedule(plan));
    SL_TRY(sl_plan_cut(plan));
    SL_TRY(sl_plan_predict(plan, true));
    *out = plan;
    plan = NULL;
done:
    sl_train_plan_destroy(plan);
    return status;
}

sl_status sl_train_plan_create(const sl_train_config *config, const char *device, sl_train_plan **out)
{
    return create(config, device, false, out);
}

sl_status sl_train_plan_create_threads(const sl_train_config *config, const char *device, sl_train_plan **out)
{
    return create(config, device, true, out);
}

sl_status sl_plan_create_shape(const sl_train_config *config, const char *device, const sl_schedule *given,
                               sl_train_plan **out)
{
    sl_status status = SL_OK;
    sl_train_plan *plan = NULL;
    SL_TRY(begin(config, device, &plan));
    if (!config->model.init && config->model.vocab == 0)
        SL_TRY(sl_plan_open_data(plan));
    SL_TRY(sl_plan_choose_model(plan));
    plan->schedule = given;
    SL_TRY(sl_plan_make_schedule(plan));
    SL_TRY(sl_plan_cut(plan));
    SL_TRY(sl_plan_predict(plan, false));
    *out = plan;
    plan = NULL;
done:
    sl_train_plan_destroy(plan);
    return status;
}

sl_status sl_plan_create_stages(const sl_train_config *config, const sl_model *model, sl_train_plan **out)
{
    sl_status status = SL_OK;
    sl_train_plan *plan = NULL;
    SL_TRY(SL_NEW(plan));
    plan->config = config;
    plan->device = "cpu"; /* nothing runs: the parameters and their stages are the same on all */
    plan->model = *model;
    SL_TRY(sl_arena_create(&plan->arena));
    SL_TRY(sl_plan_set_model(plan));
    SL_TRY(sl_plan_make_schedule(plan));
    SL_TRY(sl_plan_cut(plan));
    *out = plan;
    plan = NULL;
done:
    sl_train_plan_destroy(plan);
    return status;
}

void sl_train_plan_destroy(sl_train_plan *plan)
{
    if (!plan)
        return;
    sl_pipeline_destroy(plan->pipeline);
    sl_partition_destroy(plan->partitions[1]);
    sl_partition_destroy(plan->partitions[0]);
    sl_schedule_destroy(plan->own_schedule);
    sl_batches_destroy(plan->val_batches);
    sl_batches_destroy(plan->batches);
    sl_plan_data_close(&plan->val);
    sl_plan_data_close(&plan->data);
    sl_param_list_destroy(plan->params);
    sl_arena_destroy(plan->arena);
    sl_free(plan);
}

int sl_train_plan_ranks(const sl_train_plan *plan)
{
    return (int)(plan->config->parallel.pp * plan->config->parallel.dp);
}

int sl_train_plan_stages(const sl_train_plan *plan)
{
    return plan->stage_count;
}

sl_plan_stage sl_train_plan_stage(const sl_train_plan *plan, int stage)
{
    return plan->stages[stage];
}

sl_plan_memory sl_train_plan_memory(const sl_train_plan *plan, int rank)
{
    return plan->memory[rank];
}

const sl_pipeline *sl_train_plan_pipeline(const sl_train_plan *plan)
{
    return plan->pipeline;
}

double sl_train_plan_step_seconds(const sl_train_plan *plan)
{
    return plan->step_seconds;
}

double sl_train_plan_bubble(const sl_train_plan *plan)
{
    return plan->bubble;
}

double sl_train_plan_flops(const sl_train_plan *plan)
{
    return plan->flops;
}
