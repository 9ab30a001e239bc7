/* What all stages share: creation, weights bound by the user, the weight runner, calls made from frames. */
#include "runtime/stage.h"
#include "runtime/store.h"

#include "base/alloc.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static void free_values(sl_border_value *values, int count)
{
    for (int i = 0; values && i < count; i++)
        sl_free(values[i].name);
    sl_free(values);
}

void sl_stage_destroy(sl_stage *stage)
{
    if (!stage)
        return;
    if (stage->table && stage->table->destroy)
        stage->table->destroy(stage);
    free_values(stage->inputs, stage->input_count);
    free_values(stage->outputs, stage->output_count);
    for (int i = 0; stage->weights && i < stage->weight_count; i++) {
        sl_free(stage->weights[i].name);
        sl_free(stage->weights[i].tie);
    }
    sl_free(stage->weights);
    sl_free(stage->input_descs);
    sl_free(stage->output_descs);
    sl_free(stage->weight_descs);
    sl_free(stage->param_pointers);
    sl_free(stage->grad_pointers);
    for (int size = 0; size < SL_MAX_SIZES; size++)
        sl_free(stage->views[size]);
    sl_free(stage->weight_views);
    sl_store_release(stage->store);
    sl_free(stage);
}

static void leave_open(sl_border_value *values, int count)
{
    for (int i = 0; i < count; i++) {
        for (int size = 0; size < SL_MAX_SIZES; size++)
            values[i].declared[size].shape.rank = -1;
    }
}

static void reset_values(sl_border_value *values, int count)
{
    for (int i = 0; i < count; i++)
        memcpy(values[i].metas, values[i].declared, sizeof values[i].metas);
}

void sl_stage_reset(sl_stage *stage)
{
    reset_values(stage->inputs, stage->input_count);
    reset_values(stage->outputs, stage->output_count);
    sl_stage_set_packed(stage, NULL);
}

sl_status sl_stage_alloc(int index, int inputs, int outputs, int weights, sl_stage **out)
{
    sl_status status = SL_OK;
    sl_stage *stage = NULL;
    SL_TRY(SL_NEW(stage));
    stage->index = index;
    stage->input_count = inputs;
    stage->output_count = outputs;
    stage->weight_count = weights;
    SL_TRY(SL_NEW_ARRAY(stage->inputs, inputs));
    SL_TRY(SL_NEW_ARRAY(stage->outputs, outputs));
    leave_open(stage->inputs, inputs);
    leave_open(stage->outputs, outputs);
    SL_TRY(SL_NEW_ARRAY(stage->weights, weights));
    SL_TRY(SL_NEW_ARRAY(stage->input_descs, inputs));
    SL_TRY(SL_NEW_ARRAY(stage->output_descs, outputs));
    SL_TRY(SL_NEW_ARRAY(stage->weight_descs, weights));
    SL_TRY(SL_NEW_ARRAY(stage->param_pointers, weights));
    SL_TRY(SL_NEW_ARRAY(stage->grad_pointers, weights));
    *out = stage;
    stage = NULL;
done:
    sl_stage_destroy(stage);
    return status;
}

int sl_stage_index(const sl_stage *stage)
{
    return stage->index;
}

/* ---- Description ----------------------------------------------------------------------------- */

/* A weight runner may read what the stage itself is done with before its weight gradient. */
static void describe_values(const sl_stage *stage, const sl_border_value *values, int count, sl_value_desc *out)
{
    for (int i = 0; i < count; i++) {
        const sl_border_value *value = &values[i];
        out[i] = (sl_value_desc){ .name = value->name,
                                  .has_grad = value->has_grad,
                                  .loss = value->loss,
                                  .last_use = stage->weight_runner ? SL_PHASE_W : value->last_use,
                                  .grad_last_use = stage->weight_runner ? SL_PHASE_W : value->grad_last_use,
                                  .maker = value->maker,
                                  .maker_output = value->maker_output };
        memcpy(out[i].metas, value->declared, sizeof out[i].metas);
    }
}

void sl_stage_describe(sl_stage *stage, sl_stage_desc *out)
{
    describe_values(stage, stage->inputs, stage->input_count, stage->input_descs);
    describe_values(stage, stage->outputs, stage->output_count, stage->output_descs);
    for (int i = 0; i < stage->weight_count; i++) {
        const sl_stage_weight *weight = &stage->weights[i];
        stage->weight_descs[i] = (sl_weight_desc){ .name = weight->name,
                                                   .tie = weight->tie,
                                                   .meta = weight->meta,
                                                   .grad_dtype = weight->grad_dtype,
                                                   .frozen = weight->frozen,
                                                   .own_data = weight->data != NULL,
                                                   .own_grad = weight->grad != NULL };
    }
    *out = (sl_stage_desc){ .inputs = stage->input_descs,
                            .input_count = stage->input_count,
                            .outputs = stage->output_descs,
                            .output_count = stage->output_count,
                            .weights = stage->weight_descs,
                            .weight_count = stage->weight_count,
                            .size_count = stage->size_count,
                            .can_train = stage->can_train,
                            .can_split = stage->can_split,
                            .can_infer = stage->table->infer != NULL,
                            .writes_all_grads = stage->table->writes_all_grads,
                            .keeps_in_b = stage->weight_runner != NULL,
                            .saved_i_bytes = stage->saved_i_bytes,
                            .saved_w_bytes = stage->saved_w_bytes,
                            .kept_bytes = stage->kept_bytes,
                            .scratch_bytes = stage->scratch_bytes,
                            .packed_bytes = stage->packed_bytes };
    memcpy(out->constant_bytes, stage->constant_bytes, sizeof out->constant_bytes);
}

/* What the runtime was compiled from may not change under it. */
static sl_status check_free(const sl_stage *stage)
{
    if (!stage->owner)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "stage %d belongs to a runtime already", stage->index);
}

sl_status sl_stage_set_weight_runner(sl_stage *stage, sl_stage_fn runner, void *user)
{
    sl_status status = SL_OK;
    SL_TRY(check_free(stage));
    if (runner && !stage->can_split)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d: a weight runner needs an input gradient that runs on its own",
                       stage->index);
    stage->weight_runner = runner;
    stage->weight_user = user;
done:
    return status;
}

static sl_status find_weight(sl_stage *stage, const char *name, sl_stage_weight **out)
{
    for (int i = 0; i < stage->weight_count; i++) {
        if (strcmp(stage->weights[i].name, name) != 0)
            continue;
        *out = &stage->weights[i];
        return SL_OK;
    }
    return sl_fail(SL_ERR_ARGUMENT, "stage %d has no parameter '%s'", stage->index, name);
}

sl_status sl_stage_bind_param(sl_stage *stage, const char *name, void *data, void *grad)
{
    sl_status status = SL_OK;
    sl_stage_weight *weight = NULL;
    SL_TRY(check_free(stage));
    SL_TRY(find_weight(stage, name, &weight));
    weight->data = data;
    weight->grad = grad;
done:
    return status;
}

const sl_port *sl_stage_states(const sl_stage *stage, int *count)
{
    *count = stage->state_count;
    return stage->states;
}

void sl_stage_bind_states(sl_stage *stage, void *const *states)
{
    stage->state_pointers = states;
}

sl_status sl_stage_tie_param(sl_stage *stage, const char *name, const char *tied_to)
{
    sl_status status = SL_OK;
    sl_stage_weight *weight = NULL;
    char *tie = NULL;
    SL_TRY(check_free(stage));
    SL_TRY(find_weight(stage, name, &weight));
    SL_TRY(sl_strdup(tied_to, &tie));
    sl_free(weight->tie);
    weight->tie = tie;
done:
    return status;
}

sl_cost sl_stage_phase_cost(const sl_stage *stage, sl_phase phase)
{
    return stage->costs[phase];
}

double sl_stage_phase_seconds(const sl_stage *stage, sl_phase phase, const sl_rates *rates)
{
    return stage->table->seconds ? stage->table->seconds(stage, phase, rates) : 0;
}

int sl_stage_phase_launches(const sl_stage *stage, sl_phase phase)
{
    return stage->launches[phase];
}

/* ---- Calls ----------------------------------------------------------------------------------- */

sl_status sl_stage_prepare(sl_stage *stage, int size_count)
{
    sl_status status = SL_OK;
    int ins = stage->input_count, outs = stage->output_count, weights = stage->weight_count;
    for (int size = 0; size < size_count; size++) {
        sl_free(stage->views[size]);
        stage->views[size] = NULL;
        SL_TRY(SL_NEW_ARRAY(stage->views[size], 2 * (ins + outs)));
        sl_view *view = stage->views[size];
        for (int i = 0; i < ins; i++)
            view[i].meta = view[ins + 2 * outs + i].meta = stage->inputs[i].metas[size];
        for (int j = 0; j < outs; j++)
            view[ins + j].meta = view[ins + outs + j].meta = stage->outputs[j].metas[size];
    }
    sl_free(stage->weight_views);
    stage->weight_views = NULL;
    SL_TRY(SL_NEW_ARRAY(stage->weight_views, 2 * weights));
    for (int i = 0; i < weights; i++) {
        const sl_stage_weight *weight = &stage->weights[i];
        stage->weight_views[i] = (sl_view){ weight->data_place, weight->meta };
        stage->weight_views[weights + i] =
            (sl_view){ weight->grad_place, sl_meta_contiguous(weight->grad_dtype, &weight->meta.shape) };
        stage->param_pointers[i] = weight->data_place;
        stage->grad_pointers[i] = weight->grad_place;
    }
done:
    return status;
}

void sl_stage_fill_call(sl_stage *stage, sl_phase phase, const sl_frame *frame, const sl_run_context *context,
                        sl_stage_call *call)
{
    int ins = stage->input_count, outs = stage->output_count;
    sl_view *inputs = stage->views[frame->size], *outputs = inputs + ins;
    sl_view *output_grads = outputs + outs, *input_grads = output_grads + outs;
    for (int i = 0; i < ins; i++) {
        inputs[i].data = frame->inputs[i];
        input_grads[i].data = frame->input_grads[i];
    }
    for (int j = 0; j < outs; j++) {
        /* The metadata too: a callback may have changed it. */
        outputs[j] = (sl_view){ frame->outputs[j], stage->outputs[j].metas[frame->size] };
        output_grads[j].data = frame->output_grads[j];
    }
    *call = (sl_stage_call){
        .stage = stage->index,
        .microbatch = frame->microbatch,
        .step = context->step,
        .phase = phase,
        .training = context->training,
        .inputs = inputs,
        .input_count = ins,
        .outputs = outputs,
        .output_count = outs,
        .output_grads = output_grads,
        .input_grads = input_grads,
        .params = stage->weight_views,
        .grads = stage->weight_views + stage->weight_count,
        .param_count = stage->weight_count,
        .saved = frame->saved_w,
        .step_user = context->user,
        .stream = context->stream,
        .rng = context->rng,
    };
    call->rng.sample_offset += frame->first_sample;
}

sl_status sl_stage_fail_call(const sl_stage *stage, const sl_stage_call *call, sl_status status)
{
    char reason[1024], inputs[512] = "none", meta[128];
    size_t used = 0;
    if (status == SL_OK)
        return SL_OK;
    snprintf(reason, sizeof reason, "%s", sl_error_message());
    for (int i = 0; i < call->input_count && used + 1 < sizeof inputs; i++) {
        int more = snprintf(inputs + used, sizeof inputs - used, "%s'%.60s' %s", i ? ", " : "", stage->inputs[i].name,
                            sl_meta_text(&call->inputs[i].meta, meta, sizeof meta));
        used += more > 0 ? (size_t)more : 0;
    }
    return sl_fail(status, "%s (inputs: %s)", reason, inputs);
}

static sl_status run_weight_runner(sl_stage *stage, const sl_frame *frame, const sl_run_context *context)
{
    sl_stage_call call;
    sl_stage_fill_call(stage, SL_PHASE_W, frame, context, &call);
    uint64_t count = sl_fail_count();
    return sl_stage_fail_call(
        stage, &call, sl_fail_callback(stage->weight_runner(stage->weight_user, &call), count, "the weight runner"));
}

sl_status sl_stage_run(sl_stage *stage, sl_phase phase, const sl_frame *frame, const sl_run_context *context)
{
    sl_status status = SL_OK;
    if (!stage->weight_runner || phase == SL_PHASE_F || phase == SL_PHASE_I)
        return stage->table->run(stage, phase, frame, context);
    if (phase == SL_PHASE_B)
        SL_TRY(stage->table->run(stage, SL_PHASE_I, frame, context));
    SL_TRY(run_weight_runner(stage, frame, context));
done:
    return status;
}
