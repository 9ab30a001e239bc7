/* What a step gives back beside its losses: outputs and gradients of the batch, put together from the microbatches as
 * they are made and handed to whoever asked. */
#include "runtime/runtime.h"

#include "pipeline/microbatch.h"

#include <string.h>

/* ---- Outputs --------------------------------------------------------------------------------- */

static sl_status fail_unknown_output(const sl_runtime *runtime, const char *name)
{
    char known[512] = "";
    for (int k = 0; k < runtime->stage_count; k++) {
        for (int j = 0; j < runtime->stages[k]->output_count; j++) {
            if (!runtime->stages[k]->outputs[j].loss)
                sl_runtime_list_name(known, sizeof known, runtime->stages[k]->outputs[j].name);
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "no stage of rank %d has an output '%s'; there is %s", runtime->rank, name,
                   *known ? known : "none");
}

/* The output of this rank's stages that has the name, of the last stage if several have one; NULL: there is none. */
static const sl_border_value *find_output(const sl_runtime *runtime, const char *name, int *row)
{
    for (int k = runtime->stage_count - 1; k >= 0; k--) {
        const sl_stage *stage = runtime->stages[k];
        for (int j = 0; j < stage->output_count; j++) {
            *row = runtime->first_output[stage->index] + j;
            if (!stage->outputs[j].loss && strcmp(stage->outputs[j].name, name) == 0)
                return &stage->outputs[j];
        }
    }
    return NULL;
}

/* What the parts of all microbatches add up to. */
static sl_status whole_meta(const sl_wiring *wiring, const sl_meta *parts, const sl_chunk_spec *chunk, sl_meta *out)
{
    sl_shape shape = parts[0].shape;
    int dim = chunk->dim < 0 ? chunk->dim + shape.rank : chunk->dim;
    if (chunk->kind == SL_CHUNK_SPLIT) {
        if (dim < 0 || dim >= shape.rank)
            return sl_fail(SL_ERR_ARGUMENT, "parts of rank %d cannot be put together along dim %d", shape.rank,
                           chunk->dim);
        shape.dims[dim] = 0;
        for (int m = 0; m < wiring->microbatches; m++)
            shape.dims[dim] += parts[sl_wiring_size(wiring, m)].shape.dims[dim];
    }
    *out = sl_meta_contiguous(parts[0].dtype, &shape);
    return SL_OK;
}

/* Whether the parts fit into the whole, which may have any strides. */
static sl_status check_whole(const sl_runtime *runtime, const sl_meta *parts, const sl_chunk_spec *chunk,
                             const sl_view *whole)
{
    sl_status status = SL_OK;
    sl_meta expected, given = sl_meta_contiguous(whole->meta.dtype, &whole->meta.shape);
    if (!whole->data)
        return sl_fail(SL_ERR_ARGUMENT, "its data is NULL");
    if (chunk->kind == SL_CHUNK_CUSTOM)
        return chunk->merge ? SL_OK
                            : sl_fail(SL_ERR_ARGUMENT, "a custom chunk spec without a merge function cannot merge");
    SL_TRY(whole_meta(runtime->wiring, parts, chunk, &expected));
    SL_TRY(sl_meta_check("of the whole batch", &expected, &given));
done:
    return status;
}

sl_status sl_runtime_bind_outputs(sl_runtime *runtime, const sl_step *step)
{
    sl_status status = SL_OK;
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_stage *stage = runtime->stages[k];
        for (int j = 0; j < stage->output_count; j++)
            runtime->outputs[runtime->first_output[stage->index] + j] = NULL;
    }
    for (int i = 0; i < step->output_count && status == SL_OK; i++) {
        const sl_output *wanted = &step->outputs[i];
        int row = 0;
        if (!wanted->name)
            return sl_fail(SL_ERR_ARGUMENT, "output %d of the step has no name", i);
        const sl_border_value *output = find_output(runtime, wanted->name, &row);
        if (!output)
            return fail_unknown_output(runtime, wanted->name);
        status = check_whole(runtime, output->metas, &wanted->chunk, &wanted->view);
        if (status != SL_OK)
            return sl_fail_context(status, "output '%s'", wanted->name);
        runtime->outputs[row] = wanted;
    }
    return status;
}

/* ---- Gradients of the batch ------------------------------------------------------------------- */

static sl_status bind_input_grad(sl_runtime *runtime, const sl_arg *wanted)
{
    const sl_wiring *wiring = runtime->wiring;
    int r = sl_wiring_find_root(wiring, wanted->name);
    if (r < 0)
        return sl_runtime_fail_unknown_arg(wiring, wanted->name);
    sl_root_use *use = &runtime->roots[r];
    if (!use->used)
        return sl_fail(SL_ERR_ARGUMENT, "no stage of rank %d reads it", runtime->rank);
    if (!use->has_grad)
        return sl_fail(
            SL_ERR_ARGUMENT,
            "nobody has asked for its gradient: its sl_arg_spec needs .grad = true, or the input of the graph "
            "sl_graph_input_differentiable");
    if (use->wanted)
        return sl_fail(SL_ERR_ARGUMENT, "it is asked for twice");
    use->wanted = wanted;
    return check_whole(runtime, wiring->roots[r].metas, &use->chunk, &wanted->view);
}

sl_status sl_runtime_bind_input_grads(sl_runtime *runtime, const sl_step *step)
{
    for (int r = 0; r < runtime->wiring->root_count; r++)
        runtime->roots[r].wanted = NULL;
    for (int i = 0; i < step->input_grad_count; i++) {
        const sl_arg *wanted = &step->input_grads[i];
        if (!wanted->name)
            return sl_fail(SL_ERR_ARGUMENT, "input gradient %d of the step has no name", i);
        sl_status status = bind_input_grad(runtime, wanted);
        if (status != SL_OK)
            return sl_fail_context(status, "gradient of argument '%s'", wanted->name);
    }
    return SL_OK;
}

static const sl_root_use *root_of(const sl_runtime *runtime, const sl_instr *instr)
{
    return &runtime->roots[runtime->wiring->stages[instr->stage].inputs[instr->index].root];
}

static sl_status merge_grad(const sl_runtime *runtime, const sl_instr *instr, const sl_view *part)
{
    sl_status status = SL_OK;
    const sl_root_use *use = root_of(runtime, instr);
    int count = runtime->wiring->microbatches;
    sl_view place;
    if (use->chunk.kind == SL_CHUNK_CUSTOM)
        return sl_microbatch_merge_part(part, &use->chunk, count, instr->microbatch, &use->wanted->view);
    SL_TRY(sl_microbatch_part_view(&use->wanted->view, &use->chunk, count, instr->microbatch, &place));
    SL_TRY(instr->starts_grads ? sl_microbatch_copy(part, &place) : sl_microbatch_add(part, &place));
done:
    return status;
}

/* ---- Handing over ----------------------------------------------------------------------------- */

static const sl_output *output_of(const sl_runtime *runtime, const sl_instr *instr)
{
    return runtime->outputs[runtime->first_output[instr->stage] + instr->index];
}

static sl_status merge(const sl_runtime *runtime, const sl_instr *instr, void *data)
{
    sl_view part = { data, *instr->meta };
    bool grad = instr->code == SL_CODE_INPUT_GRAD;
    const sl_output *output = grad ? NULL : output_of(runtime, instr);
    sl_status status = grad ? merge_grad(runtime, instr, &part)
                            : sl_microbatch_merge_part(&part, &output->chunk, runtime->wiring->microbatches,
                                                       instr->microbatch, &output->view);
    if (status == SL_OK)
        return SL_OK;
    return grad ? sl_fail_context(status, "gradient of argument '%s'", root_of(runtime, instr)->wanted->name)
                : sl_fail_context(status, "output '%s'", output->name);
}

/* In the order of the stream that brings outputs to the host, by a thread of the device. The first failure is kept. */
static void merge_delivery(void *arg)
{
    const sl_delivery *delivery = arg;
    sl_lanes *lanes = &delivery->runtime->lanes;
    sl_status status = merge(delivery->runtime, delivery->instr, lanes->output);
    if (status == SL_OK || lanes->failed != SL_OK)
        return;
    lanes->failed = status;
    lanes->failed_instr = delivery->instr;
    snprintf(lanes->message, sizeof lanes->message, "%s", sl_error_message());
}

static bool is_wanted(const sl_runtime *runtime, const sl_instr *instr)
{
    return instr->code == SL_CODE_INPUT_GRAD ? root_of(runtime, instr)->wanted != NULL
                                             : output_of(runtime, instr) != NULL;
}

sl_status sl_runtime_deliver(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    sl_stream *stream = lanes->streams[SL_LANE_OUT];
    if (!is_wanted(runtime, instr))
        return SL_OK;
    if (runtime->host)
        return merge(runtime, instr, *instr->cell);
    const sl_program_order *running = sl_lanes_order(runtime);
    SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, lanes->output, *instr->cell, sl_meta_bytes(instr->meta)));
    SL_TRY(sl_stream_call(stream, merge_delivery, &running->deliveries[instr - runtime->running->instrs]));
done:
    return status;
}
