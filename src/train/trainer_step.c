/* One step: batch, pipeline, norm over all parameters, update. */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Of each tensor every replica counts one part, and the parts are added in the order of the model, so that the norm has
 * the same bits however the model is cut and whatever replicas share: adding the zeros of the other ranks changes
 * nothing. */
static sl_status global_norm(sl_trainer *trainer, double *out)
{
    sl_status status = SL_OK;
    int count = sl_param_list_count(trainer->plan->params), parts = (int)trainer->plan->config->parallel.dp;
    memset(trainer->sums, 0, (size_t)count * (size_t)parts * sizeof *trainer->sums);
    SL_TRY(sl_optimizer_square_sums(trainer->optimizer, sl_runtime_stream(trainer->runtime), trainer->own_sums));
    for (int i = 0; i < trainer->trained_count; i++) {
        const trainer_param *param = &trainer->params[i];
        if (param->counted)
            trainer->sums[param->index * parts + param->param->counted_part] = trainer->own_sums[i];
    }
    SL_TRY(sl_group_all_reduce(trainer->world, trainer->sums, (int64_t)count * parts, SL_F64, SL_REDUCE_SUM));
    for (int i = 0; i < count; i++) {
        const double *own = trainer->sums + (ptrdiff_t)i * parts;
        double sum = own[0];
        for (int part = 1; part < parts; part++)
            sum += own[part];
        trainer->sums[i] = sum;
    }
    *out = sl_grad_norm(trainer->sums, count);
done:
    return status;
}

/* The rows of this replica in batch `number`. */
static sl_status read_batch(sl_trainer *trainer, const sl_batches *batches, int64_t number)
{
    sl_status status = SL_OK;
    const sl_train_plan *plan = trainer->plan;
    int64_t rows = plan->rows, seq = plan->config->batch.seq;
    SL_TRY(sl_batches_read(batches, number, trainer->dp_rank * rows, rows, trainer->tokens, trainer->targets));
    if (plan->config->data.documents)
        sl_document_positions(trainer->tokens, rows, seq, plan->boundary, trainer->positions);
    if (plan->config->data.documents && !plan->config->data.boundary_loss)
        sl_document_mask(trainer->tokens, rows * seq, plan->boundary, SL_IGNORED_TARGET, trainer->targets);
done:
    return status;
}

/* Batch `number` through the pipeline: a step, or a forward pass alone. */
static sl_status run_pipeline(sl_trainer *trainer, const sl_batches *batches, int64_t number, bool training,
                              double *loss)
{
    sl_status status = SL_OK;
    const sl_train_plan *plan = trainer->plan;
    int32_t *const data[SL_PLAN_ARGS] = { trainer->tokens, trainer->targets, trainer->positions };
    sl_arg_spec specs[SL_PLAN_ARGS];
    sl_arg args[SL_PLAN_ARGS];
    sl_step_result result;
    SL_TRY(read_batch(trainer, batches, number));
    int arg_count = sl_plan_args(plan, specs);
    for (int i = 0; i < arg_count; i++)
        args[i] = (sl_arg){ .name = specs[i].name, .view = { .data = data[i], .meta = specs[i].meta } };
    const sl_step step = { .args = args,
                           .arg_count = arg_count,
                           .number = number,
                           .seed = (uint64_t)plan->config->run.seed,
                           .sample_offset = trainer->dp_rank * plan->rows };
    SL_TRY(training ? sl_runtime_step(trainer->runtime, &step, &result)
                    : sl_runtime_eval(trainer->runtime, &step, &result));
    *loss = result.loss;
done:
    return status;
}

sl_status sl_trainer_validate(sl_trainer *trainer, double *loss)
{
    sl_status status = SL_OK;
    const sl_train_plan *plan = trainer->plan;
    double sum = 0;
    for (int64_t i = 0; i < plan->val_steps; i++) {
        double one = 0;
        SL_TRY(run_pipeline(trainer, plan->val_batches, i, false, &one));
        sum += one;
    }
    *loss = sum / (double)plan->val_steps;
done:
    return status;
}

sl_status sl_trainer_step(sl_trainer *trainer, const char *save_grads, sl_step_report *report)
{
    sl_status status = SL_OK;
    const sl_train_config *config = trainer->plan->config;
    const sl_lr_schedule schedule = { .decay = (sl_decay)config->optimizer.schedule,
                                      .lr = config->optimizer.lr,
                                      .min_lr = config->optimizer.min_lr,
                                      .warmup = config->optimizer.warmup,
                                      .steps = config->run.steps };
    SL_TRY(run_pipeline(trainer, trainer->plan->batches, trainer->step, true, &report->loss));
    SL_TRY(global_norm(trainer, &report->grad_norm));
    if (!isfinite(report->grad_norm)) /* the same on all ranks; an update would spoil the weights and what is saved */
        SL_TRY(sl_fail(SL_ERR_NUMERIC,
                       "step %" PRId64 ": the norm of the gradients is %g (a lower optimizer.lr may help)",
                       trainer->step + 1, report->grad_norm));
    if (save_grads)
        SL_TRY(sl_trainer_save_grads(trainer, save_grads));
    report->lr = sl_lr_at(&schedule, trainer->step);
    SL_TRY(sl_optimizer_step(trainer->optimizer, sl_runtime_stream(trainer->runtime), trainer->step + 1, report->lr,
                             sl_clip_scale(report->grad_norm, config->optimizer.clip)));
    SL_TRY(sl_runtime_gather_params_post(trainer->runtime));
    SL_TRY(sl_stream_synchronize(sl_runtime_stream(trainer->runtime)));
    trainer->step++;
    report->step = trainer->step;
    report->steps = config->run.steps;
    report->val_loss = NAN;
done:
    return status;
}
