/* Stages of the user's own: callbacks in place of programs. */
#include "runtime/stage.h"

#include "base/alloc.h"
#include "base/status.h"
#include "pipeline/microbatch.h"

#include <stdio.h>
#include <string.h>

typedef struct callbacks {
    sl_stage_fn forward, backward_input, backward_weight, backward;
    sl_status (*infer)(void *user, const sl_meta *inputs, int input_count, sl_meta *outputs, int output_count);
    void *user;
    sl_meta *metas; /* inputs, then outputs: room for infer */
} callbacks;

/* ---- Running --------------------------------------------------------------------------------- */

static bool same_meta(const sl_meta *a, const sl_meta *b)
{
    return a->dtype == b->dtype && sl_meta_equal(a, b);
}

/* A callback may hand back views of its own: they must be what was agreed, and are copied into place. */
static sl_status take_outputs(const sl_stage *stage, const sl_frame *frame, const sl_stage_call *call)
{
    sl_status status = SL_OK;
    bool host = sl_device_is_host(sl_stream_device(call->stream));
    for (int j = 0; j < call->output_count; j++) {
        const sl_view *given = &call->outputs[j];
        const sl_meta *agreed = &stage->outputs[j].metas[frame->size];
        if (!same_meta(agreed, &given->meta)) {
            char what[256];
            snprintf(what, sizeof what, "output '%s'", stage->outputs[j].name);
            SL_TRY(sl_meta_check(what, agreed, &given->meta));
        }
        if (given->data == frame->outputs[j])
            continue;
        if (!given->data)
            SL_TRY(sl_fail(SL_ERR_STAGE, "forward set the data of output '%s' to NULL", stage->outputs[j].name));
        if (host)
            SL_TRY(sl_microbatch_copy(given, &(sl_view){ frame->outputs[j], *agreed }));
        else
            SL_TRY(sl_stream_copy(call->stream, SL_COPY_DEVICE_TO_DEVICE, frame->outputs[j], given->data,
                                  sl_meta_bytes(agreed)));
    }
done:
    return status;
}

static sl_status call_back(const sl_stage *stage, const char *what, sl_stage_fn function, const sl_stage_call *call)
{
    uint64_t count = sl_fail_count();
    const callbacks *own = stage->own;
    return sl_stage_fail_call(stage, call, sl_fail_callback(function(own->user, call), count, what));
}

static sl_status callbacks_run(sl_stage *stage, sl_phase phase, const sl_frame *frame, const sl_run_context *context)
{
    const callbacks *own = stage->own;
    sl_status status = SL_OK;
    sl_stage_call call;
    sl_stage_fill_call(stage, phase, frame, context, &call);
    switch (phase) {
    case SL_PHASE_F:
        SL_TRY(call_back(stage, "forward", own->forward, &call));
        SL_TRY(take_outputs(stage, frame, &call));
        break;
    case SL_PHASE_I:
        SL_TRY(call_back(stage, "backward_input", own->backward_input, &call));
        break;
    case SL_PHASE_W:
        SL_TRY(call_back(stage, "backward_weight", own->backward_weight, &call));
        break;
    default:
        if (own->backward) {
            SL_TRY(call_back(stage, "backward", own->backward, &call));
            break;
        }
        call.phase = SL_PHASE_I;
        SL_TRY(call_back(stage, "backward_input", own->backward_input, &call));
        call.phase = SL_PHASE_W;
        SL_TRY(call_back(stage, "backward_weight", own->backward_weight, &call));
    }
done:
    return status;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static sl_status check_inferred(const sl_stage *stage, int size, int output, sl_meta *meta)
{
    const sl_border_value *value = &stage->outputs[output];
    int64_t count;
    if (meta->shape.rank < 0 || meta->shape.rank > SL_MAX_DIMS || sl_shape_count(&meta->shape, &count) != SL_OK)
        return sl_fail(SL_ERR_SHAPE, "stage %d: infer left no shape for output '%s'", stage->index, value->name);
    *meta = sl_meta_contiguous(meta->dtype, &meta->shape);
    if (size != 0 || value->declared[0].shape.rank < 0)
        return SL_OK;
    char what[256];
    snprintf(what, sizeof what, "stage %d: output '%s' as declared against as inferred", stage->index, value->name);
    return sl_meta_check(what, &value->declared[0], meta);
}

static sl_status callbacks_infer(sl_stage *stage, int size)
{
    callbacks *own = stage->own;
    sl_status status = SL_OK;
    sl_meta *inputs = own->metas, *outputs = own->metas + stage->input_count;
    if (!own->infer)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d has no infer function, which %s needs", stage->index,
                       size ? "a batch with microbatches of two sizes" : "metadata left open");
    for (int i = 0; i < stage->input_count; i++)
        inputs[i] = stage->inputs[i].metas[size];
    for (int j = 0; j < stage->output_count; j++) {
        outputs[j] = stage->outputs[j].metas[0];
        if (size != 0)
            outputs[j].shape.rank = -1;
    }
    uint64_t count = sl_fail_count();
    status = own->infer(own->user, inputs, stage->input_count, outputs, stage->output_count);
    if (status != SL_OK)
        return sl_fail_context(sl_fail_callback(status, count, "it"), "stage %d: infer", stage->index);
    for (int j = 0; j < stage->output_count; j++)
        SL_TRY(check_inferred(stage, size, j, &outputs[j]));
    for (int j = 0; j < stage->output_count; j++)
        stage->outputs[j].metas[size] = outputs[j];
done:
    return status;
}

/* ---- Creation -------------------------------------------------------------------------------- */

static void callbacks_destroy(sl_stage *stage)
{
    callbacks *own = stage->own;
    if (own)
        sl_free(own->metas);
    sl_free(own);
}

static const sl_stage_table callbacks_table = {
    .run = callbacks_run,
    .infer = callbacks_infer,
    .destroy = callbacks_destroy,
};

static bool is_float(sl_dtype dtype)
{
    return dtype == SL_F32 || dtype == SL_F64 || dtype == SL_BF16 || dtype == SL_F16;
}

static sl_phase phase_of(sl_last_use use)
{
    return use == SL_LAST_USE_F ? SL_PHASE_F : use == SL_LAST_USE_I ? SL_PHASE_I : SL_PHASE_W;
}

static sl_status check_meta(int stage, const char *what, const char *name, const sl_meta *meta)
{
    int64_t count;
    if (!name || !*name)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d: an %s has no name", stage, what);
    if (meta->shape.rank > SL_MAX_DIMS || meta->dtype >= SL_DTYPE_COUNT ||
        (meta->shape.rank >= 0 && sl_shape_count(&meta->shape, &count) != SL_OK))
        return sl_fail(SL_ERR_ARGUMENT, "stage %d: %s '%s' has no valid shape and dtype", stage, what, name);
    if (meta->shape.rank >= 0 && !sl_meta_is_contiguous(meta))
        return sl_fail(SL_ERR_ARGUMENT, "stage %d: %s '%s' is not contiguous", stage, what, name);
    return SL_OK;
}

static sl_status take_values(sl_stage *stage, const char *what, const sl_stage_value *values, int count,
                             sl_border_value *out)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++) {
        const sl_stage_value *value = &values[i];
        SL_TRY(check_meta(stage->index, what, value->name, &value->meta));
        for (int k = 0; k < i; k++) {
            if (strcmp(values[k].name, value->name) == 0)
                return sl_fail(SL_ERR_ARGUMENT, "stage %d has two %ss '%s'", stage->index, what, value->name);
        }
        SL_TRY(sl_strdup(value->name, &out[i].name));
        out[i].declared[0] = value->meta;
        out[i].has_grad = !value->no_grad && is_float(value->meta.dtype) && stage->can_train;
        out[i].loss = value->loss;
        out[i].maker = SL_MAKER_BY_NAME;
        out[i].last_use = phase_of(value->last_use);
        out[i].grad_last_use = phase_of(value->grad_last_use);
    }
done:
    return status;
}

static sl_status take_weights(sl_stage *stage, const sl_stage_options *options)
{
    sl_status status = SL_OK;
    for (int i = 0; i < options->param_count; i++) {
        const sl_stage_param *param = &options->params[i];
        SL_TRY(check_meta(stage->index, "parameter", param->name, &param->meta));
        if (param->meta.shape.rank < 0)
            return sl_fail(SL_ERR_ARGUMENT, "stage %d: parameter '%s' has no shape", stage->index, param->name);
        SL_TRY(sl_strdup(param->name, &stage->weights[i].name));
        stage->weights[i].meta = param->meta;
        stage->weights[i].grad_dtype = param->meta.dtype;
        stage->weights[i].data = param->data;
        stage->weights[i].grad = param->grad;
        stage->weights[i].frozen = param->frozen || !is_float(param->meta.dtype) || !stage->can_train;
    }
done:
    return status;
}

static sl_status check_list(int stage, const char *what, const void *list, int count)
{
    if (count < 0 || (count > 0 && !list))
        return sl_fail(SL_ERR_ARGUMENT, "stage %d: %d %s are announced, but the list is NULL", stage, count, what);
    return SL_OK;
}

static sl_status check_options(const sl_stage_options *options)
{
    sl_status status = SL_OK;
    if (!options)
        return sl_fail(SL_ERR_ARGUMENT, "a stage needs options: NULL was given");
    if (options->index < 0 || options->index >= SL_MAX_STAGES)
        return sl_fail(SL_ERR_ARGUMENT, "stage index %d is out of range", options->index);
    if (!options->forward)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d has no forward function", options->index);
    if (!options->backward_input != !options->backward_weight)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d has one of backward_input and backward_weight without the other",
                       options->index);
    SL_TRY(check_list(options->index, "inputs", options->inputs, options->input_count));
    SL_TRY(check_list(options->index, "outputs", options->outputs, options->output_count));
    SL_TRY(check_list(options->index, "parameters", options->params, options->param_count));
done:
    return status;
}

sl_status sl_stage_create(const sl_stage_options *options, sl_stage **out)
{
    sl_status status = SL_OK;
    sl_stage *stage = NULL;
    callbacks *own = NULL;
    SL_TRY(check_options(options));
    SL_TRY(sl_stage_alloc(options->index, options->input_count, options->output_count, options->param_count, &stage));
    stage->table = &callbacks_table;
    SL_TRY(SL_NEW(own));
    stage->own = own;
    *own = (callbacks){ .forward = options->forward,
                        .backward_input = options->backward_input,
                        .backward_weight = options->backward_weight,
                        .backward = options->backward,
                        .infer = options->infer,
                        .user = options->user };
    SL_TRY(SL_NEW_ARRAY(own->metas, options->input_count + options->output_count));
    stage->size_count = 1;
    stage->can_capture = options->replays;
    stage->can_split = options->backward_input != NULL;
    stage->can_train = options->backward || options->backward_input;
    stage->saved_w_bytes = options->saved_bytes;
    SL_TRY(take_values(stage, "input", options->inputs, options->input_count, stage->inputs));
    SL_TRY(take_values(stage, "output", options->outputs, options->output_count, stage->outputs));
    SL_TRY(take_weights(stage, options));
    *out = stage;
    stage = NULL;
done:
    sl_stage_destroy(stage);
    return status;
}
