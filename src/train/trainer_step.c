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

typedef enum pass { PASS_FORWARD, PASS_GRADIENTS, PASS_UPDATE } pass;

/* Batch `number` through the pipeline. */
static sl_status run_pipeline(sl_trainer *trainer, const sl_batches *batches, int64_t number, pass kind, double *loss)
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
                           .sample_offset = trainer->dp_rank * plan->rows,
                           .update = kind == PASS_UPDATE };
    SL_TRY(kind == PASS_FORWARD ? sl_runtime_eval(trainer->runtime, &step, &result)
                                : sl_runtime_step(trainer->runtime, &step, &result));
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
        SL_TRY(run_pipeline(trainer, plan->val_batches, i, PASS_FORWARD, &one));
        sum += one;
    }
    *loss = sum / (double)plan->val_steps;
done:
    return status;
}

sl_status sl_trainer_update(void *user, sl_stream *stream)
{
    const sl_trainer *trainer = user;
    return sl_optimizer_update(trainer->optimizer, stream, trainer->plan->config->optimizer.clip);
}

/* The same on all ranks; an update would spoil the weights and what is saved. */
static sl_status check_norm(const sl_trainer *trainer, double norm)
{
    if (isfinite(norm))
        return SL_OK;
    return sl_fail(SL_ERR_NUMERIC, "step %" PRId64 ": the norm of the gradients is %g (a lower optimizer.lr may help)",
                   trainer->step + 1, norm);
}

/* The only rank of a run: its device needs nothing of the host between forward and update. */
static sl_status step_alone(sl_trainer *trainer, sl_step_report *report)
{
    sl_status status = SL_OK;
    SL_TRY(sl_optimizer_begin_update(trainer->optimizer, sl_runtime_stream(trainer->runtime), trainer->step + 1,
                                     report->lr));
    SL_TRY(run_pipeline(trainer, trainer->plan->batches, trainer->step, PASS_UPDATE, &report->loss));
    report->grad_norm = sl_optimizer_norm(trainer->optimizer);
    SL_TRY(check_norm(trainer, report->grad_norm));
done:
    return status;
}

/* One of several ranks, or the gradients are asked for: the host adds up the norm. */
static sl_status step_together(sl_trainer *trainer, const char *save_grads, sl_step_report *report)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(trainer->runtime);
    SL_TRY(run_pipeline(trainer, trainer->plan->batches, trainer->step, PASS_GRADIENTS, &report->loss));
    SL_TRY(global_norm(trainer, &report->grad_norm));
    SL_TRY(check_norm(trainer, report->grad_norm));
    if (save_grads)
        SL_TRY(sl_trainer_save_grads(trainer, save_grads));
    SL_TRY(sl_optimizer_step(trainer->optimizer, stream, trainer->step + 1, report->lr,
                             sl_clip_scale(report->grad_norm, trainer->plan->config->optimizer.clip)));
    SL_TRY(sl_runtime_gather_params_post(trainer->runtime));
    SL_TRY(sl_stream_synchronize(stream));
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
    report->lr = sl_lr_at(&schedule, trainer->step);
    SL_TRY(trainer->updates_alone && !save_grads ? step_alone(trainer, report)
                                                 : step_together(trainer, save_grads, report));
    trainer->step++;
    report->step = trainer->step;
    report->steps = config->run.steps;
    report->val_loss = NAN;
done:
    return status;
}
