/* A step from outside: the batch in, losses and outputs out, the program in between. */
#include "runtime/runtime.h"

#include "base/status.h"
#include "pipeline/microbatch.h"

#include <math.h>
#include <string.h>

/* ---- Losses ---------------------------------------------------------------------------------- */

/* What each microbatch's loss counts in the step's. */
static void choose_weights(sl_runtime *runtime, const sl_step *step)
{
    const sl_wiring *wiring = runtime->wiring;
    int count = wiring->microbatches;
    double total = (double)sl_wiring_first_sample(wiring, count);
    for (int m = 0; m < count; m++) {
        if (step->weights)
            runtime->weights[m] = step->weights[m];
        else if (runtime->mean == SL_MEAN_SAMPLES)
            runtime->weights[m] = (double)sl_wiring_samples(wiring, m) / total;
        else
            runtime->weights[m] = runtime->mean == SL_MEAN_SUM ? 1 : 1.0 / count;
    }
}

static sl_dtype loss_dtype(const sl_runtime *runtime)
{
    return runtime->wiring->stages[runtime->wiring->loss_stage].outputs[runtime->wiring->loss_output].metas[0].dtype;
}

/* The gradient of the step's result by each microbatch's loss; replicas are averaged by it, too. */
static sl_status write_seeds(sl_runtime *runtime, const sl_step *step)
{
    int count = runtime->wiring->microbatches;
    size_t bytes = (size_t)count * SL_SCALAR_STRIDE;
    double scale = step->grad_scale != 0 ? step->grad_scale : 1;
    if (!runtime->blocks.scalars)
        return SL_OK;
    if (runtime->replicas)
        scale /= sl_group_size(runtime->replicas);
    char *seeds = runtime->lanes.scalars + bytes; /* not written again before the step has ended */
    for (int m = 0; m < count; m++) {
        double seed = runtime->weights[m] * scale;
        float single = (float)seed;
        if (loss_dtype(runtime) == SL_F64)
            memcpy(seeds + (size_t)m * SL_SCALAR_STRIDE, &seed, sizeof seed);
        else
            memcpy(seeds + (size_t)m * SL_SCALAR_STRIDE, &single, sizeof single);
    }
    return sl_stream_copy(runtime->stream, SL_COPY_HOST_TO_DEVICE, (char *)runtime->blocks.scalars + bytes, seeds,
                          bytes);
}

/* To a device that works by itself: the batch, which its image has, and the state of the generator. */
static sl_status send_inputs(sl_runtime *runtime)
{
    size_t bytes = runtime->pipeline->ranks[runtime->rank].memory.inputs;
    const sl_rng *place = runtime->context.step_rng;
    if (!place)
        return SL_OK;
    memcpy(runtime->lanes.inputs + ((const char *)place - (const char *)runtime->blocks.inputs), &runtime->context.rng,
           sizeof *place);
    return sl_stream_copy(runtime->stream, SL_COPY_HOST_TO_DEVICE, runtime->blocks.inputs, runtime->lanes.inputs,
                          bytes);
}

/* If the host could not look at the loss as it was made, its F is still the place of the failure. */
static sl_status fail_loss(sl_runtime *runtime, int microbatch)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(runtime->schedule, runtime->rank, &count);
    sl_status status = sl_fail(SL_ERR_NUMERIC, "the loss is %g", (double)runtime->losses[microbatch]);
    for (int64_t cell = 0; cell < count; cell++) {
        sl_action parts[2];
        int n = sl_action_parts(actions[cell], parts);
        if (n > 0 && parts[0].kind == SL_KIND_F && parts[0].stage == runtime->wiring->loss_stage &&
            parts[0].microbatch == microbatch)
            return sl_runtime_fail(runtime, status, cell, actions[cell]);
    }
    return status;
}

/* The losses to the host; they are there once the step has ended. */
static sl_status fetch_losses(sl_runtime *runtime)
{
    return runtime->blocks.scalars
               ? sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_HOST, runtime->lanes.scalars,
                                runtime->blocks.scalars, (size_t)runtime->wiring->microbatches * SL_SCALAR_STRIDE)
               : SL_OK;
}

static sl_status read_losses(sl_runtime *runtime)
{
    int count = runtime->wiring->microbatches;
    const char *scalars = runtime->lanes.scalars;
    for (int m = 0; m < count; m++) {
        double wide;
        memcpy(&runtime->losses[m], scalars + (size_t)m * SL_SCALAR_STRIDE, sizeof *runtime->losses);
        if (loss_dtype(runtime) != SL_F64)
            continue;
        memcpy(&wide, scalars + (size_t)m * SL_SCALAR_STRIDE, sizeof wide);
        runtime->losses[m] = (float)wide;
    }
    for (int m = 0; runtime->watch_loss && m < count; m++) {
        if (!isfinite(runtime->losses[m]))
            return fail_loss(runtime, m);
    }
    return SL_OK;
}

/* Losses to every rank that wants them, and their sum; the mean over replicas. */
static sl_status share_losses(sl_runtime *runtime, sl_step_result *result)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    *result = (sl_step_result){ .loss = NAN };
    if (wiring->loss_stage < 0)
        return SL_OK;
    bool here = runtime->blocks.scalars != NULL;
    if (here)
        SL_TRY(read_losses(runtime));
    if (!runtime->local_loss && wiring->rank_count > 1)
        SL_TRY(sl_group_broadcast(runtime->group, wiring->stages[wiring->loss_stage].rank, runtime->losses,
                                  (size_t)wiring->microbatches * sizeof *runtime->losses));
    else if (!here)
        return SL_OK;
    result->loss = 0;
    for (int m = 0; m < wiring->microbatches; m++)
        result->loss += runtime->weights[m] * (double)runtime->losses[m];
    result->losses = runtime->losses;
    result->loss_count = wiring->microbatches;
    if (runtime->replicas && sl_group_size(runtime->replicas) > 1) {
        SL_TRY(sl_group_all_reduce(runtime->replicas, &result->loss, 1, SL_F64, SL_REDUCE_SUM));
        result->loss /= sl_group_size(runtime->replicas);
    }
done:
    return status;
}

/* If stages do not start their gradients themselves. */
static sl_status zero_grads(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    for (int k = 0; runtime->wiring->shard != SL_SHARD_FULL && k < runtime->stage_count; k++) {
        if (!runtime->stages[k]->table->starts_grads || runtime->stages[k]->weight_runner)
            SL_TRY(sl_runtime_zero_stage(runtime, k));
    }
done:
    return status;
}

/* ---- Update ---------------------------------------------------------------------------------- */

void sl_runtime_set_update(sl_runtime *runtime, sl_update_fn fn, void *user)
{
    sl_captures_forget_update(runtime);
    runtime->update = fn;
    runtime->update_user = user;
}

sl_status sl_runtime_give_update(sl_runtime *runtime)
{
    sl_status status = sl_ties_sum(runtime, sl_runtime_step_label(runtime));
    runtime->updates = false;
    if (status != SL_OK)
        return status;
    uint64_t count = sl_fail_count();
    return sl_fail_callback(runtime->update(runtime->update_user, runtime->stream), count, "the update of the step");
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Without a loss nothing flows back into an output that no stage uses: its backward would get no gradient. A stage that
 * begins the gradient itself says so. */
static sl_status check_loss(const sl_wiring *wiring)
{
    for (int s = 0; wiring->loss_stage < 0 && s < wiring->stage_count; s++) {
        for (int j = 0; j < wiring->stages[s].output_count; j++) {
            const sl_wire_output *output = &wiring->stages[s].outputs[j];
            if (output->has_grad && output->edge_count == 0)
                return sl_fail(SL_ERR_ARGUMENT,
                               "stage %d: no gradient comes back for output '%s': no stage uses it and no output is "
                               "the loss; set .loss = true for the loss, or .no_grad = true for an output without one",
                               s, output->name);
        }
    }
    return SL_OK;
}

/* What the caller got wrong before anything of the step has begun. */
static sl_status check_step(const sl_runtime *runtime, const sl_program *program, const sl_step *step, bool training)
{
    if (!step)
        return sl_fail(SL_ERR_ARGUMENT, "no step was given: it is NULL");
    if (step->arg_count < 0 || (step->arg_count > 0 && !step->args))
        return sl_fail(SL_ERR_ARGUMENT, "the step has %d arguments, but their list is NULL", step->arg_count);
    if (step->output_count < 0 || (step->output_count > 0 && !step->outputs))
        return sl_fail(SL_ERR_ARGUMENT, "the step wants %d outputs, but their list is NULL", step->output_count);
    if (step->input_grad_count < 0 || (step->input_grad_count > 0 && !step->input_grads))
        return sl_fail(SL_ERR_ARGUMENT, "the step wants %d input gradients, but their list is NULL",
                       step->input_grad_count);
    if (!training && step->input_grad_count > 0)
        return sl_fail(SL_ERR_ARGUMENT, "an evaluation goes forward alone: it has no gradient of '%s'",
                       step->input_grads[0].name);
    if (training && program->action_count == 0)
        return sl_fail(SL_ERR_ARGUMENT, "the schedule is forward only: it can evaluate, not train");
    if (step->update && (!training || step->partial || !runtime->update))
        return sl_fail(SL_ERR_ARGUMENT, !runtime->update ? "the step is to end with an update, but none was set"
                                                         : "an update ends a whole training step");
    if (training && step->keep_grads && !runtime->store->grads_partial)
        return sl_fail(SL_ERR_ARGUMENT, "keep_grads adds to a partial step, and the step before was not partial");
    return training ? check_loss(runtime->wiring) : SL_OK;
}

/* All that can be wrong with the caller's arguments shows here, and nothing is sent: if it fails, the next step can be
 * right. */
static sl_status prepare(sl_runtime *runtime, const sl_program *program, const sl_step *step, bool training)
{
    sl_status status = SL_OK;
    runtime->current = -1;
    SL_TRY(check_step(runtime, program, step, training));
    runtime->context.step = step->number;
    SL_TRY(sl_runtime_bind_args(runtime, program, step));
    SL_TRY(sl_runtime_bind_outputs(runtime, step));
    SL_TRY(sl_runtime_bind_input_grads(runtime, step));
done:
    return status;
}

/* Whoever changes weights does so between steps: what was packed of them before is old. */
static void forget_packed(sl_runtime *runtime)
{
    char *block = runtime->blocks.packed;
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_wire_stage *wire = &runtime->wiring->stages[runtime->stages[k]->index];
        sl_stage_set_packed(runtime->stages[k], block && wire->packed_bytes ? block + wire->packed_offset : NULL);
    }
}

static sl_status begin(sl_runtime *runtime, const sl_step *step, bool training)
{
    sl_status status = SL_OK;
    forget_packed(runtime);
    runtime->lanes.failed = SL_OK;
    runtime->updates = step->update;
    runtime->lanes.delivers = step->output_count > 0 || step->input_grad_count > 0;
    runtime->context.training = training;
    runtime->context.user = step->user;
    runtime->context.rng = (sl_rng){
        .seed = step->seed, .step = (uint64_t)step->number, .sample_offset = step->sample_offset, .training = training
    };
    choose_weights(runtime, step);
    SL_TRY(send_inputs(runtime));
    if (!training)
        return SL_OK;
    SL_TRY(write_seeds(runtime, step));
    if (!step->keep_grads)
        SL_TRY(zero_grads(runtime));
    runtime->context.keep_grads = step->keep_grads;
    runtime->context.fresh_grads = runtime->wiring->shard == SL_SHARD_FULL;
    runtime->store->grads_partial = step->partial;
done:
    return status;
}

static sl_status finish(sl_runtime *runtime, const sl_program *program, bool training, sl_step_result *result)
{
    sl_status status = SL_OK;
    uint64_t start = runtime->trace.capacity ? sl_trace_start(&runtime->trace) : 0;
    if (runtime->links) /* what follows may hold the host up inside of a copy: no stream waits for a rank any more */
        SL_TRY(sl_device_words_wait(runtime->words, runtime->stream));
    runtime->lanes.given = NULL;        /* from here on streams wait for other ranks alone */
    SL_TRY(sl_weights_settle(runtime)); /* all stages have run: nothing is left to wait for */
    if (runtime->updates)
        SL_TRY(sl_runtime_give_update(runtime));
    else if (training && !runtime->store->grads_partial && !runtime->lanes.captures.holds_update)
        SL_TRY(sl_ties_sum(runtime, sl_runtime_step_label(runtime)));
    SL_TRY(fetch_losses(runtime));
    SL_TRY(sl_lanes_finish(runtime, program));
    SL_TRY(sl_trace_resolve(&runtime->trace, runtime->stream));
    if (runtime->trace.capacity && runtime->links) { /* until now the streams did what the host gave them long ago */
        sl_trace_break(&runtime->trace);
        start = sl_trace_start(&runtime->trace);
    }
    SL_TRY(share_losses(runtime, result));
    if (runtime->trace.capacity)
        sl_trace_add(
            &runtime->trace,
            (sl_trace_event){ .start = start, .step = runtime->context.step, .microbatch = -1, .kind = SL_TRACE_END });
done:
    return status;
}

/* A stream that fails in the middle of what it was given has a place. */
static sl_status fail_step(sl_runtime *runtime, sl_status status)
{
    uint32_t passed;
    const sl_program_action *at = sl_phases_find_busy(runtime, &passed);
    return at ? sl_runtime_fail(runtime, status, at->cell, at->action)
              : sl_runtime_fail(runtime, status, -1, (sl_action){ .microbatch = -1 });
}

/* The status, with its message, once no stream works any more. */
static sl_status settle(sl_runtime *runtime, sl_status status)
{
    char message[2048];
    snprintf(message, sizeof message, "%s", sl_error_message());
    sl_lanes_settle(runtime);
    return sl_fail(status, "%s", message);
}

static sl_status run_step(sl_runtime *runtime, const sl_program *program, const sl_step *step, bool training,
                          sl_step_result *result)
{
    sl_step_result own = { .loss = NAN };
    if (runtime->failed != SL_OK)
        return sl_fail(runtime->failed, "%s", runtime->failure.message);
    if (runtime->running)
        return sl_fail(SL_ERR_ARGUMENT, "a step was started inside a callback of the step that is running");
    sl_status outcome = SL_OK, status = sl_replicas_begin(runtime, &outcome);
    if (status == SL_OK && outcome == SL_OK)
        outcome = prepare(runtime, program, step, training);
    if (status == SL_OK)
        status = sl_runtime_agree(runtime, step, training, &outcome);
    if (status == SL_OK && outcome != SL_OK)
        return settle(runtime, outcome);
    if (status == SL_OK)
        status = begin(runtime, step, training);
    if (status == SL_OK)
        status = sl_runtime_execute(runtime, program);
    if (status == SL_OK)
        status = finish(runtime, program, training, &own);
    if (status != SL_OK)
        status = settle(runtime, fail_step(runtime, status));
    if (runtime->watchdog)
        sl_watchdog_note(runtime->watchdog, NULL);
    if (status != SL_OK)
        return status;
    if (result)
        *result = own;
    return SL_OK;
}

sl_status sl_runtime_step(sl_runtime *runtime, const sl_step *step, sl_step_result *result)
{
    return run_step(runtime, &runtime->train, step, true, result);
}

sl_status sl_runtime_eval(sl_runtime *runtime, const sl_step *step, sl_step_result *result)
{
    return run_step(runtime, &runtime->eval, step, false, result);
}
