/* One microbatch of one stage at a time, for callers with a schedule loop of their own. Every microbatch has its memory
 * from the start; which call may follow which is checked. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <string.h>

typedef enum progress { NOT_BEGUN, FORWARD_DONE, INPUT_DONE, ALL_DONE } progress;

typedef struct chunk_state {
    sl_frame frame;
    progress done;
} chunk_state;

struct sl_chunks {
    sl_stage *stage;
    sl_device *device;
    sl_stream *stream;
    chunk_state *list;
    int count;
    void **pointers; /* that the frames' lists point to */
    sl_view *views;  /* what the caller gets: outputs and input gradients of each */
    void *blocks, *scratch, *constants, *grads;
    sl_param *params;
    sl_run_context context;
    bool evaluates;
    bool begun;         /* a step has */
    bool grads_started; /* in this step */
};

/* ---- Memory ---------------------------------------------------------------------------------- */

static sl_status take(const sl_chunks *chunks, size_t bytes, void **out)
{
    return bytes ? sl_device_alloc(chunks->device, bytes, out) : SL_OK;
}

/* What the stage leaves open comes from the caller, outputs from the stage's infer. */
static sl_status settle_metas(sl_stage *stage, const sl_meta *inputs)
{
    sl_status status = SL_OK;
    bool open = false;
    sl_stage_reset(stage);
    for (int i = 0; i < stage->input_count; i++) {
        sl_meta *meta = &stage->inputs[i].metas[0];
        if (inputs && meta->shape.rank >= 0)
            SL_TRY(sl_meta_check(stage->inputs[i].name, meta, &inputs[i]));
        else if (inputs)
            *meta = inputs[i];
        if (meta->shape.rank < 0)
            return sl_fail(SL_ERR_ARGUMENT, "input '%s' has no shape: sl_chunks_options.inputs must give it",
                           stage->inputs[i].name);
    }
    for (int j = 0; j < stage->output_count; j++)
        open |= stage->outputs[j].metas[0].shape.rank < 0;
    if (open && !stage->table->infer)
        return sl_fail(SL_ERR_ARGUMENT, "its outputs have no shape");
    if (open)
        SL_TRY(stage->table->infer(stage, 0));
done:
    return status;
}

static size_t rounded(const sl_meta *meta)
{
    return sl_round_up(sl_meta_bytes(meta));
}

/* Lays one microbatch out from `at` on; NULL only counts. */
static size_t lay_out(const sl_stage *stage, sl_frame *frame, char *at)
{
    size_t used = 0;
    struct {
        size_t bytes;
        void **place;
    } regions[] = { { stage->saved_i_bytes, &frame->saved_i },
                    { stage->saved_w_bytes, &frame->saved_w },
                    { stage->kept_bytes, &frame->kept } };
    for (int j = 0; j < stage->output_count; j++) {
        if (at)
            frame->outputs[j] = at + used;
        used += rounded(&stage->outputs[j].metas[0]);
    }
    for (int i = 0; i < stage->input_count; i++) {
        if (!stage->inputs[i].has_grad)
            continue;
        if (at)
            frame->input_grads[i] = at + used;
        used += rounded(&stage->inputs[i].metas[0]);
    }
    for (size_t r = 0; r < sizeof regions / sizeof *regions; r++) {
        if (at && regions[r].bytes)
            *regions[r].place = at + used;
        used += sl_round_up(regions[r].bytes);
    }
    return used;
}

static sl_status make_frames(sl_chunks *chunks)
{
    sl_status status = SL_OK;
    const sl_stage *stage = chunks->stage;
    int ins = stage->input_count, outs = stage->output_count;
    int64_t each = 2 * ((int64_t)ins + outs);
    sl_frame none = { .stage = 0 };
    size_t bytes = lay_out(stage, &none, NULL);
    SL_TRY(SL_NEW_ARRAY(chunks->list, chunks->count));
    SL_TRY(SL_NEW_ARRAY(chunks->pointers, each * chunks->count));
    SL_TRY(SL_NEW_ARRAY(chunks->views, ((int64_t)ins + outs) * chunks->count));
    SL_TRY(take(chunks, bytes * (size_t)chunks->count, &chunks->blocks));
    int64_t samples = ins && stage->inputs[0].metas[0].shape.rank > 0 ? stage->inputs[0].metas[0].shape.dims[0] : 1;
    for (int m = 0; m < chunks->count; m++) {
        void **pointers = chunks->pointers + each * m;
        sl_frame *frame = &chunks->list[m].frame;
        *frame = (sl_frame){ .stage = stage->index,
                             .microbatch = m,
                             .first_sample = samples * m,
                             .inputs = pointers,
                             .outputs = pointers + ins,
                             .output_grads = pointers + ins + outs,
                             .input_grads = pointers + ins + outs + outs };
        if (bytes)
            lay_out(stage, frame, (char *)chunks->blocks + bytes * (size_t)m);
    }
done:
    return status;
}

static sl_status fill_constants(sl_chunks *chunks)
{
    sl_status status = SL_OK;
    sl_stage *stage = chunks->stage;
    void *image = NULL;
    if (stage->constant_bytes[0] == 0)
        return SL_OK;
    SL_TRY(take(chunks, stage->constant_bytes[0], &chunks->constants));
    SL_TRY(sl_alloc(1, stage->constant_bytes[0], &image));
    stage->table->constants(stage, 0, image);
    stage->constants[0] = chunks->constants;
    SL_TRY(sl_stream_copy(chunks->stream, SL_COPY_HOST_TO_DEVICE, chunks->constants, image, stage->constant_bytes[0]));
    SL_TRY(sl_stream_synchronize(chunks->stream));
done:
    sl_free(image);
    return status;
}

/* ---- Parameters ------------------------------------------------------------------------------ */

/* The stage keeps the values; a stage that had no runtime gets memory for them now. */
static sl_status place_values(sl_chunks *chunks)
{
    sl_status status = SL_OK;
    sl_stage *stage = chunks->stage;
    size_t used = 0;
    for (int i = 0; i < stage->weight_count; i++) {
        sl_stage_weight *weight = &stage->weights[i];
        if (stage->store && weight->held.count < sl_meta_count(&weight->meta))
            return sl_fail(SL_ERR_UNSUPPORTED, "replicas share parameter '%s': only a part of it is here",
                           weight->name);
        used += weight->data ? 0 : rounded(&weight->meta);
    }
    if (!stage->store) {
        SL_TRY(SL_NEW(stage->store));
        *stage->store = (sl_param_store){ .device = chunks->device, .users = 1, .data_bytes = used };
        SL_TRY(take(chunks, used, &stage->store->data));
        char *at = stage->store->data;
        for (int i = 0; i < stage->weight_count; i++) {
            sl_stage_weight *weight = &stage->weights[i];
            weight->kept_data = weight->data ? NULL : at;
            weight->held = (sl_param_range){ .first = 0, .count = sl_meta_count(&weight->meta) };
            at += weight->data ? 0 : rounded(&weight->meta);
        }
    }
    for (int i = 0; i < stage->weight_count; i++)
        stage->weights[i].data_place = stage->weights[i].data ? stage->weights[i].data : stage->weights[i].kept_data;
done:
    return status;
}

static sl_meta grad_meta(const sl_stage_weight *weight)
{
    return sl_meta_contiguous(weight->grad_dtype, &weight->meta.shape);
}

static sl_status place_grads(sl_chunks *chunks)
{
    sl_status status = SL_OK;
    sl_stage *stage = chunks->stage;
    size_t used = 0;
    for (int pass = 0; pass < 2; pass++) {
        char *at = chunks->grads;
        for (int i = 0; i < stage->weight_count; i++) {
            sl_stage_weight *weight = &stage->weights[i];
            sl_meta meta = grad_meta(weight);
            bool own = !weight->frozen && !chunks->evaluates && !weight->grad;
            weight->grad_place = own ? at : weight->grad;
            if (own && pass == 0)
                used += rounded(&meta);
            else if (own)
                at += rounded(&meta);
        }
        if (pass == 0)
            SL_TRY(take(chunks, used, &chunks->grads));
    }
done:
    return status;
}

static sl_status list_params(sl_chunks *chunks)
{
    sl_status status = SL_OK;
    const sl_stage *stage = chunks->stage;
    SL_TRY(SL_NEW_ARRAY(chunks->params, stage->weight_count));
    for (int i = 0; i < stage->weight_count; i++) {
        const sl_stage_weight *weight = &stage->weights[i];
        const sl_param_range whole = { .first = 0, .count = sl_meta_count(&weight->meta) };
        chunks->params[i] = (sl_param){ .name = weight->name,
                                        .tied_to = weight->tie ? weight->tie : weight->name,
                                        .stage = stage->index,
                                        .data = { weight->data_place, weight->meta },
                                        .shape = weight->meta.shape,
                                        .grad = weight->grad_place ? (sl_view){ weight->grad_place, grad_meta(weight) }
                                                                   : sl_view_none(),
                                        .held = whole,
                                        .updated = whole,
                                        .counted = whole,
                                        .init = weight->init };
    }
done:
    return status;
}

const sl_param *sl_chunks_params(const sl_chunks *chunks, int *count)
{
    *count = chunks->stage->weight_count;
    return chunks->params;
}

/* ---- Creation -------------------------------------------------------------------------------- */

static sl_status build(sl_chunks *chunks, const sl_chunks_options *options)
{
    sl_status status = SL_OK;
    SL_TRY(sl_stream_create(chunks->device, &chunks->stream));
    SL_TRY(settle_metas(chunks->stage, options->inputs));
    SL_TRY(place_values(chunks));
    SL_TRY(place_grads(chunks));
    SL_TRY(list_params(chunks));
    SL_TRY(make_frames(chunks));
    SL_TRY(fill_constants(chunks));
    SL_TRY(take(chunks, chunks->stage->scratch_bytes, &chunks->scratch));
    SL_TRY(sl_stage_prepare(chunks->stage, 1));
    chunks->context = (sl_run_context){ .stream = chunks->stream, .scratch = chunks->scratch };
done:
    return status;
}

sl_status sl_chunks_create(const sl_chunks_options *options, sl_chunks **out)
{
    sl_status status = SL_OK;
    sl_chunks *chunks = NULL;
    if (!options || !options->stage || !options->device)
        return sl_fail(SL_ERR_ARGUMENT, "chunks need a stage and a device");
    if (options->stage->owner)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d belongs to a runtime already", options->stage->index);
    if (options->microbatches < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%d microbatches: at least 1 is needed", options->microbatches);
    SL_TRY(SL_NEW(chunks));
    chunks->stage = options->stage;
    chunks->device = options->device;
    chunks->count = options->microbatches;
    chunks->evaluates = options->evaluates || !options->stage->can_train;
    chunks->stage->owner = chunks;
    status = build(chunks, options);
    if (status != SL_OK)
        SL_TRY(sl_fail_context(status, "stage %d", options->stage->index));
    *out = chunks;
    chunks = NULL;
done:
    sl_chunks_destroy(chunks);
    return status;
}

void sl_chunks_destroy(sl_chunks *chunks)
{
    if (!chunks)
        return;
    if (chunks->stream)
        (void)!sl_stream_synchronize(chunks->stream);
    void *blocks[] = { chunks->blocks, chunks->scratch, chunks->constants, chunks->grads };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        if (blocks[i])
            sl_device_free(chunks->device, blocks[i]);
    }
    sl_stream_destroy(chunks->stream);
    chunks->stage->owner = NULL;
    sl_free(chunks->list);
    sl_free(chunks->pointers);
    sl_free(chunks->views);
    sl_free(chunks->params);
    sl_free(chunks);
}

sl_stream *sl_chunks_stream(const sl_chunks *chunks)
{
    return chunks->stream;
}

/* ---- A step ---------------------------------------------------------------------------------- */

sl_status sl_chunks_begin(sl_chunks *chunks, const sl_step *step)
{
    sl_status status = SL_OK;
    const sl_stage *stage = chunks->stage;
    bool zero = !chunks->evaluates && !step->keep_grads && (!stage->table->starts_grads || stage->weight_runner);
    for (int m = 0; m < chunks->count; m++)
        chunks->list[m].done = NOT_BEGUN;
    for (int i = 0; zero && i < stage->weight_count; i++) {
        sl_meta meta = grad_meta(&stage->weights[i]);
        if (stage->weights[i].grad_place && !stage->weights[i].frozen)
            SL_TRY(sl_stream_memset(chunks->stream, stage->weights[i].grad_place, 0, sl_meta_bytes(&meta)));
    }
    chunks->begun = true;
    chunks->grads_started = false;
    chunks->context.step = step->number;
    chunks->context.user = step->user;
    chunks->context.keep_grads = step->keep_grads;
    chunks->context.training = !chunks->evaluates;
    chunks->context.rng = (sl_rng){ .seed = step->seed,
                                    .step = (uint64_t)step->number,
                                    .sample_offset = step->sample_offset,
                                    .training = !chunks->evaluates };
done:
    return status;
}

static sl_status refuse(const sl_chunks *chunks, int m, const char *why)
{
    return sl_fail(SL_ERR_ARGUMENT, "stage %d, microbatch %d: %s", chunks->stage->index, m, why);
}

static sl_status check_microbatch(const sl_chunks *chunks, int m)
{
    if (m < 0 || m >= chunks->count)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d: there is no microbatch %d among %d", chunks->stage->index, m,
                       chunks->count);
    return chunks->begun ? SL_OK : refuse(chunks, m, "no step has begun: sl_chunks_begin comes first");
}

/* The caller's value is what the stage expects. */
static sl_status check_view(const sl_chunks *chunks, int m, const sl_border_value *value, const char *what,
                            const sl_view *given)
{
    char text[256];
    snprintf(text, sizeof text, "stage %d, microbatch %d: %s '%s'", chunks->stage->index, m, what, value->name);
    if (!given->data)
        return sl_fail(SL_ERR_ARGUMENT, "%s has no data", text);
    return sl_meta_check(text, &value->metas[0], &given->meta);
}

sl_status sl_chunks_forward(sl_chunks *chunks, int m, const sl_view *inputs, const sl_view **outputs)
{
    sl_status status = SL_OK;
    const sl_stage *stage = chunks->stage;
    SL_TRY(check_microbatch(chunks, m));
    chunk_state *each = &chunks->list[m];
    if (each->done != NOT_BEGUN)
        return refuse(chunks, m, "its forward has run already in this step");
    for (int i = 0; i < stage->input_count; i++)
        SL_TRY(check_view(chunks, m, &stage->inputs[i], "input", &inputs[i]));
    for (int i = 0; i < stage->input_count; i++)
        each->frame.inputs[i] = inputs[i].data;
    SL_TRY(sl_stage_run(chunks->stage, SL_PHASE_F, &each->frame, &chunks->context));
    each->done = FORWARD_DONE;
    sl_view *views = &chunks->views[(int64_t)m * (stage->input_count + stage->output_count)];
    for (int j = 0; j < stage->output_count; j++)
        views[j] = (sl_view){ each->frame.outputs[j], stage->outputs[j].metas[0] };
    if (outputs)
        *outputs = views;
done:
    return status;
}

static sl_status check_order(const sl_chunks *chunks, int m, sl_phase phase)
{
    progress done = chunks->list[m].done;
    if (chunks->evaluates)
        return refuse(chunks, m, "these chunks only evaluate: they have no backward");
    if (phase == SL_PHASE_F || phase >= SL_PHASE_COUNT)
        return refuse(chunks, m, "a backward is I, W or B");
    if (phase != SL_PHASE_B && !chunks->stage->can_split)
        return refuse(chunks, m, "the stage has no backward_input and backward_weight that run apart");
    if (done == NOT_BEGUN)
        return refuse(chunks, m, "backward before its forward");
    if (done == ALL_DONE)
        return refuse(chunks, m, "its backward has run already in this step");
    if (phase == SL_PHASE_W && done != INPUT_DONE)
        return refuse(chunks, m, "the weight gradient before the input gradient");
    if (phase != SL_PHASE_W && done == INPUT_DONE)
        return refuse(chunks, m, "its input gradient has run already; the weight gradient is what is left");
    return SL_OK;
}

sl_status sl_chunks_backward(sl_chunks *chunks, int m, sl_phase phase, const sl_view *output_grads,
                             const sl_view **input_grads)
{
    sl_status status = SL_OK;
    const sl_stage *stage = chunks->stage;
    SL_TRY(check_microbatch(chunks, m));
    SL_TRY(check_order(chunks, m, phase));
    chunk_state *each = &chunks->list[m];
    for (int j = 0; phase != SL_PHASE_W && j < stage->output_count; j++) {
        if (stage->outputs[j].has_grad && (output_grads[j].data || stage->table->writes_all_grads))
            SL_TRY(check_view(chunks, m, &stage->outputs[j], "gradient of output", &output_grads[j]));
    }
    for (int j = 0; phase != SL_PHASE_W && j < stage->output_count; j++)
        each->frame.output_grads[j] = stage->outputs[j].has_grad ? output_grads[j].data : NULL;
    each->frame.starts_grads = phase != SL_PHASE_I && !chunks->grads_started;
    SL_TRY(sl_stage_run(chunks->stage, phase, &each->frame, &chunks->context));
    chunks->grads_started |= phase != SL_PHASE_I;
    each->done = phase == SL_PHASE_I ? INPUT_DONE : ALL_DONE;
    sl_view *views = &chunks->views[(int64_t)m * (stage->input_count + stage->output_count) + stage->output_count];
    for (int i = 0; i < stage->input_count; i++)
        views[i] = stage->inputs[i].has_grad ? (sl_view){ each->frame.input_grads[i], stage->inputs[i].metas[0] }
                                             : sl_view_none();
    if (input_grads)
        *input_grads = views;
done:
    return status;
}
