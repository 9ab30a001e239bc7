/* Settles the metadata of all values: from the batch through the stages in order, inferring what a stage leaves open and
 * checking every edge whose two sides are known. */
#include "pipeline/wiring.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

static bool is_open(const sl_meta *meta)
{
    return meta->shape.rank < 0;
}

/* ---- Sizes of microbatches ------------------------------------------------------------------- */

/* A scalar that nobody said how to cut goes to every microbatch. */
static void replicate_scalar(sl_wire_root *root, const sl_meta *meta)
{
    if (root->kind == SL_CHUNK_SPLIT && root->dim == 0 && meta->shape.rank == 0)
        root->kind = SL_CHUNK_REPLICATE;
}

/* Size of the split dim of a root input's metadata; -1 if it has none. */
static int64_t samples_of(const sl_wire_root *root, const sl_meta *meta)
{
    int dim = root->dim < 0 ? root->dim + meta->shape.rank : root->dim;
    bool split = root->kind == SL_CHUNK_SPLIT && meta->shape.rank > 0 && dim >= 0 && dim < meta->shape.rank;
    return split ? meta->shape.dims[dim] : -1;
}

/* Parts of the arguments whose whole is known; they say how many sizes there are. */
static sl_status split_wholes(sl_wiring *wiring)
{
    const char *first = NULL;
    int64_t total = -1;
    int count = wiring->microbatches;
    for (int i = 0; i < wiring->root_count; i++) {
        sl_wire_root *root = &wiring->roots[i];
        replicate_scalar(root, &root->whole);
        sl_chunk_spec spec = { .kind = root->kind, .dim = root->dim };
        if (is_open(&root->whole) || root->kind == SL_CHUNK_CUSTOM)
            continue;
        for (int size = 0; size < SL_MAX_SIZES; size++) {
            int index = size == 0 ? 0 : count - 1;
            sl_status status = sl_microbatch_part_meta(&root->whole, &spec, count, index, &root->metas[size]);
            if (status != SL_OK)
                return sl_fail_context(status, "argument '%s'", root->name);
        }
        int64_t samples = samples_of(root, &root->whole);
        if (samples < 0)
            continue;
        if (first && samples != total)
            return sl_fail(SL_ERR_SHAPE, "argument '%s' has %lld samples, '%s' has %lld", root->name,
                           (long long)samples, first, (long long)total);
        first = root->name;
        total = samples;
    }
    if (total < 0)
        return SL_OK;
    wiring->size_count = total % count ? 2 : 1;
    wiring->large_count = total % count ? (int)(total % count) : count;
    wiring->samples[0] = (total + count - 1) / count;
    wiring->samples[1] = total / count;
    return SL_OK;
}

/* If no argument says it, every microbatch has as many samples as the first split root input of a stage. */
static void count_samples(sl_wiring *wiring)
{
    for (int i = 0; i < wiring->root_count && wiring->samples[0] == 0; i++) {
        int64_t samples = samples_of(&wiring->roots[i], &wiring->roots[i].metas[0]);
        if (samples > 0)
            wiring->samples[0] = wiring->samples[1] = samples;
    }
    if (wiring->samples[0] == 0)
        wiring->samples[0] = wiring->samples[1] = 1; /* nothing is split: all microbatches weigh the same */
}

/* What the whole batch must be, now that its parts are known. */
static sl_status find_wholes(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    for (int i = 0; i < wiring->root_count; i++) {
        sl_wire_root *root = &wiring->roots[i];
        sl_chunk_spec spec = { .kind = root->kind, .dim = root->dim };
        if (!is_open(&root->whole) || root->kind == SL_CHUNK_CUSTOM)
            continue;
        status = sl_microbatch_whole_meta(&root->metas[0], 1, &spec, &root->whole);
        if (status != SL_OK)
            return sl_fail_context(status, "argument '%s'", root->name);
        if (root->kind == SL_CHUNK_SPLIT) {
            int64_t *dim = &root->whole.shape.dims[root->dim < 0 ? root->dim + root->whole.shape.rank : root->dim];
            *dim = wiring->size_count == 1 ? *dim * wiring->microbatches
                                           : sl_wiring_first_sample(wiring, wiring->microbatches);
        }
        root->whole = sl_meta_contiguous(root->whole.dtype, &root->whole.shape);
        root->derived = wiring->size_count == 1;
    }
    return status;
}

/* ---- One stage ------------------------------------------------------------------------------- */

/* What an input is according to the batch or its maker. */
static const sl_meta *given_meta(const sl_wiring *wiring, const sl_wire_input *input, int size)
{
    if (input->root >= 0)
        return &wiring->roots[input->root].metas[size];
    return &wiring->stages[input->maker].outputs[input->maker_output].metas[size];
}

/* A root input of which nobody said what its smaller part is: that follows from the larger one. */
static sl_status shrink_root(const sl_wiring *wiring, int s, sl_wire_root *root)
{
    sl_meta part = root->metas[0];
    int64_t samples = samples_of(root, &part);
    if (root->kind == SL_CHUNK_SPLIT && samples != wiring->samples[0])
        return sl_fail(SL_ERR_SHAPE,
                       "stage %d: input '%s' has %lld samples a microbatch, but the batch has %lld and %lld; no stage "
                       "makes it, so it comes with the batch, and no argument's spec says how it is cut",
                       s, root->name, (long long)(samples < 0 ? 0 : samples), (long long)wiring->samples[0],
                       (long long)wiring->samples[1]);
    if (root->kind == SL_CHUNK_SPLIT)
        part.shape.dims[root->dim < 0 ? root->dim + part.shape.rank : root->dim] = wiring->samples[1];
    root->metas[1] = sl_meta_contiguous(part.dtype, &part.shape);
    return SL_OK;
}

/* A stage that says nothing of the smaller size takes what it is given, as far as infer can follow. */
static sl_status settle_input(sl_wiring *wiring, int s, sl_wire_input *input, int size)
{
    const sl_meta *given = given_meta(wiring, input, size);
    sl_meta *meta = &input->metas[size];
    char what[512], source[256];
    if (size == 1 && input->root >= 0 && is_open(given)) {
        sl_status status = shrink_root(wiring, s, &wiring->roots[input->root]);
        if (status != SL_OK)
            return status;
    }
    if (is_open(meta) && is_open(given))
        return sl_fail(SL_ERR_SHAPE,
                       "stage %d: no stage makes the input '%s', so it comes with the batch, and neither the stage nor "
                       "an argument's spec gives its shape",
                       s, input->name);
    if (is_open(given)) {
        replicate_scalar(&wiring->roots[input->root], meta);
        wiring->roots[input->root].metas[size] = *meta; /* makers come first, so that only a root can be open */
        return SL_OK;
    }
    if (is_open(meta)) {
        *meta = *given;
        return SL_OK;
    }
    if (input->root >= 0)
        snprintf(source, sizeof source, "the batch");
    else
        snprintf(source, sizeof source, "output '%s' of stage %d",
                 wiring->stages[input->maker].outputs[input->maker_output].name, input->maker);
    snprintf(what, sizeof what, "stage %d: input '%s' from %s", s, input->name, source);
    return sl_meta_check(what, meta, given);
}

static sl_status infer_outputs(sl_wiring *wiring, const sl_pipeline_options *options, int s, int size)
{
    sl_status status = SL_OK;
    sl_wire_stage *stage = &wiring->stages[s];
    sl_meta *inputs = NULL, *outputs = NULL;
    bool can_infer = stage->can_infer && options->infer;
    if (!can_infer && size == 0)
        return sl_fail(SL_ERR_SHAPE, "stage %d: the shape of an output is open, and the stage cannot infer it", s);
    if (!can_infer)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d was made for one size of microbatch, the batch needs two", s);
    SL_TRY(SL_NEW_ARRAY(inputs, stage->input_count));
    SL_TRY(SL_NEW_ARRAY(outputs, stage->output_count));
    for (int i = 0; i < stage->input_count; i++)
        inputs[i] = stage->inputs[i].metas[size];
    for (int j = 0; j < stage->output_count; j++)
        outputs[j] = stage->outputs[j].metas[size];
    SL_TRY(options->infer(options->user, s, size, inputs, stage->input_count, outputs, stage->output_count));
    for (int j = 0; j < stage->output_count; j++)
        stage->outputs[j].metas[size] = outputs[j];
done:
    sl_free(inputs);
    sl_free(outputs);
    return status;
}

static sl_status settle_stage(sl_wiring *wiring, const sl_pipeline_options *options, int s, int size)
{
    sl_status status = SL_OK;
    sl_wire_stage *stage = &wiring->stages[s];
    bool open = false;
    for (int i = 0; i < stage->input_count; i++)
        SL_TRY(settle_input(wiring, s, &stage->inputs[i], size));
    for (int j = 0; j < stage->output_count; j++)
        open |= is_open(&stage->outputs[j].metas[size]);
    if (open)
        SL_TRY(infer_outputs(wiring, options, s, size));
done:
    return status;
}

static sl_status check_loss(const sl_wiring *wiring)
{
    if (wiring->loss_stage < 0)
        return SL_OK;
    const sl_wire_output *loss = &wiring->stages[wiring->loss_stage].outputs[wiring->loss_output];
    char text[128];
    const sl_meta *meta = &loss->metas[0];
    if (sl_meta_count(meta) == 1 && (meta->dtype == SL_F32 || meta->dtype == SL_F64))
        return SL_OK;
    return sl_fail(SL_ERR_SHAPE, "stage %d: the loss '%s' is %s, not one f32 or f64", wiring->loss_stage, loss->name,
                   sl_meta_text(meta, text, sizeof text));
}

/* A gradient that is wanted must come from somewhere. */
static sl_status check_grad(const sl_wiring *wiring, int root)
{
    bool found = !wiring->roots[root].grad;
    for (int s = 0; s < wiring->stage_count && !found; s++) {
        const sl_wire_stage *stage = &wiring->stages[s];
        for (int i = 0; i < stage->input_count; i++)
            found |= stage->inputs[i].root == root && stage->inputs[i].has_grad;
    }
    return found ? SL_OK
                 : sl_fail(SL_ERR_ARGUMENT,
                           "argument '%s': its gradient is wanted, but no stage gives one: integers, inputs with "
                           "no_grad and inputs of a graph that are not differentiable have none",
                           wiring->roots[root].name);
}

sl_status sl_wiring_settle_shapes(sl_wiring *wiring, const sl_pipeline_options *options)
{
    sl_status status = SL_OK;
    wiring->size_count = 1;
    wiring->large_count = wiring->microbatches;
    SL_TRY(split_wholes(wiring));
    for (int s = 0; s < wiring->stage_count; s++) {
        if (wiring->size_count == 1 && wiring->stages[s].size_count > 1 && wiring->samples[0] == 0)
            SL_TRY(sl_fail(
                SL_ERR_ARGUMENT,
                "stage %d was made for microbatches of two sizes, but no argument's spec has the whole batch", s));
        for (int size = 0; size < wiring->size_count; size++)
            SL_TRY(settle_stage(wiring, options, s, size));
    }
    count_samples(wiring);
    SL_TRY(find_wholes(wiring));
    SL_TRY(check_loss(wiring));
    for (int r = 0; r < wiring->root_count; r++)
        SL_TRY(check_grad(wiring, r));
    for (int e = 0; e < wiring->edge_count; e++) {
        sl_pipeline_edge *edge = &wiring->edges[e];
        edge->bytes = sl_wiring_bytes(wiring, wiring->stages[edge->to].inputs[edge->input].metas);
    }
done:
    return status;
}
