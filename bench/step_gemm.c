/* The matrix products of a model's linear layers alone, through the same kernels: what a step is measured against. */
#include "step_measure.h"

#include "base/alloc.h"
#include "graph/program.h"

/* One linear layer: x[rows, in] w -> y[rows, out]. */
typedef struct layer {
    sl_view w, dw;
    int64_t in, out;
    bool transpose_w;
} layer;

struct step_gemms {
    sl_device *device;
    layer *layers;
    int count;
    int64_t rows;        /* of a microbatch */
    int rounds;          /* microbatches */
    void *narrow, *wide; /* activations: rows x the widest in, rows x the widest out */
    void *scratch;
    size_t scratch_bytes;
};

/* The products of the program's forward that have a parameter as their weight. */
static sl_status add_layers(step_gemms *gemms, const sl_stage_program *program, const sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_instruction_list *list = &program->plan.phases[SL_PHASE_F];
    SL_TRY(SL_NEW_ARRAY(gemms->layers, list->count));
    for (int i = 0; i < list->count; i++) {
        const sl_instruction *step = &list->items[i];
        const sl_program_place *place = step->op == SL_OP_LINEAR ? &program->plan.split[step->inputs[1].storage] : NULL;
        const sl_param *param = NULL;
        if (!place || place->home != SL_HOME_PARAM)
            continue;
        SL_TRY(sl_runtime_find_param(runtime, program->info.params[place->index].name, &param));
        layer *l = &gemms->layers[gemms->count++];
        const sl_meta *whole = &step->inputs[1].meta; /* of several parameters that lie side by side, perhaps */
        l->w = (sl_view){ param->data.data, *whole };
        l->dw = (sl_view){ param->grad.data, sl_meta_make(param->grad.meta.dtype, 2, whole->shape.dims) };
        l->transpose_w = step->attrs.transpose_w;
        l->in = l->w.meta.shape.dims[l->transpose_w ? 1 : 0];
        l->out = l->w.meta.shape.dims[l->transpose_w ? 0 : 1];
    }
done:
    return status;
}

/* op: LINEAR, LINEAR_GRAD_X or LINEAR_GRAD_W. The arguments lie in views[0..3). */
static sl_kernel_call call_of(const step_gemms *gemms, const layer *l, sl_op op, sl_view *views)
{
    sl_view x = { gemms->narrow, sl_meta_make(l->w.meta.dtype, 2, (int64_t[]){ gemms->rows, l->in }) };
    sl_view y = { gemms->wide, sl_meta_make(l->w.meta.dtype, 2, (int64_t[]){ gemms->rows, l->out }) };
    views[0] = op == SL_OP_LINEAR_GRAD_X ? y : x;
    views[1] = op == SL_OP_LINEAR_GRAD_W ? y : l->w;
    views[2] = op == SL_OP_LINEAR ? y : op == SL_OP_LINEAR_GRAD_X ? x : l->dw;
    return (sl_kernel_call){ .op = op,
                             .attrs = { .transpose_w = l->transpose_w },
                             .inputs = views,
                             .input_count = 2,
                             .outputs = views + 2,
                             .output_count = 1,
                             .accumulate = op == SL_OP_LINEAR_GRAD_W,
                             .scratch = gemms->scratch,
                             .scratch_bytes = gemms->scratch_bytes };
}

static sl_status run(const step_gemms *gemms, const layer *l, sl_op op, sl_stream *stream)
{
    sl_view views[3];
    sl_kernel_call call = call_of(gemms, l, op, views);
    return sl_kernel_run(stream, &call);
}

static sl_status find_scratch(step_gemms *gemms, const layer *l, sl_op op)
{
    sl_view views[3];
    size_t bytes = 0;
    sl_kernel_call call = call_of(gemms, l, op, views);
    sl_status status = sl_kernel_scratch(gemms->device, &call, &bytes);
    if (status == SL_OK && bytes > gemms->scratch_bytes)
        gemms->scratch_bytes = bytes;
    return status;
}

/* Values of ordinary size: products of zeros or of denormals would not be representative. */
static sl_status fill(const step_gemms *gemms, sl_stream *stream, void *data, int64_t count)
{
    sl_view view = { data, sl_meta_make(gemms->layers->w.meta.dtype, 1, &count) };
    sl_kernel_call call = { .op = SL_OP_FILL, .attrs = { .alpha = 0.01 }, .outputs = &view, .output_count = 1 };
    return sl_kernel_run(stream, &call);
}

static sl_status allocate(step_gemms *gemms, sl_stream *stream)
{
    sl_status status = SL_OK;
    int64_t in = 0, out = 0;
    for (int i = 0; i < gemms->count; i++) {
        const layer *l = &gemms->layers[i];
        in = l->in > in ? l->in : in;
        out = l->out > out ? l->out : out;
        SL_TRY(find_scratch(gemms, l, SL_OP_LINEAR));
        SL_TRY(find_scratch(gemms, l, SL_OP_LINEAR_GRAD_X));
        SL_TRY(find_scratch(gemms, l, SL_OP_LINEAR_GRAD_W));
    }
    SL_TRY(sl_device_alloc(gemms->device, (size_t)(gemms->rows * in) * sizeof(float), &gemms->narrow));
    SL_TRY(sl_device_alloc(gemms->device, (size_t)(gemms->rows * out) * sizeof(float), &gemms->wide));
    SL_TRY(sl_device_alloc(gemms->device, gemms->scratch_bytes, &gemms->scratch));
    SL_TRY(fill(gemms, stream, gemms->narrow, gemms->rows * in));
    SL_TRY(fill(gemms, stream, gemms->wide, gemms->rows * out));
done:
    return status;
}

sl_status step_gemms_create(const step_options *options, sl_device *device, const sl_stage_program *program,
                            const sl_runtime *runtime, step_gemms **out)
{
    sl_status status = SL_OK;
    step_gemms *gemms = NULL;

    SL_TRY(SL_NEW(gemms));
    gemms->device = device;
    gemms->rounds = options->microbatches;
    gemms->rows = options->batch / options->microbatches * options->seq;
    SL_TRY(add_layers(gemms, program, runtime));
    SL_TRY(allocate(gemms, sl_runtime_stream(runtime)));
    *out = gemms;
    gemms = NULL;
done:
    step_gemms_destroy(gemms);
    return status;
}

void step_gemms_destroy(step_gemms *gemms)
{
    if (!gemms)
        return;
    sl_device_free(gemms->device, gemms->narrow);
    sl_device_free(gemms->device, gemms->wide);
    sl_device_free(gemms->device, gemms->scratch);
    sl_free(gemms->layers);
    sl_free(gemms);
}

double step_gemms_flops(const step_gemms *gemms)
{
    double flops = 0;
    for (int i = 0; i < gemms->count; i++)
        flops += 3 * 2.0 * (double)gemms->rows * (double)gemms->layers[i].in * (double)gemms->layers[i].out;
    return gemms->rounds * flops;
}

static sl_status run_microbatch(const step_gemms *gemms, sl_stream *stream)
{
    sl_status status = SL_OK;
    for (int i = 0; i < gemms->count; i++)
        SL_TRY(run(gemms, &gemms->layers[i], SL_OP_LINEAR, stream));
    for (int i = gemms->count - 1; i >= 0; i--) {
        SL_TRY(run(gemms, &gemms->layers[i], SL_OP_LINEAR_GRAD_X, stream));
        SL_TRY(run(gemms, &gemms->layers[i], SL_OP_LINEAR_GRAD_W, stream));
    }
done:
    return status;
}

sl_status step_gemms_run(const step_gemms *gemms, sl_stream *stream)
{
    sl_status status = SL_OK;
    for (int i = 0; i < gemms->rounds; i++)
        SL_TRY(run_microbatch(gemms, stream));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}
