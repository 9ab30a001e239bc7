/* A forward-only runtime with one stage of a model. */
#include "train/infer.h"

#include "base/alloc.h"

#include <string.h>

/* ---- Creation -------------------------------------------------------------------------------- */

static sl_status share_params(sl_stage *stage, const sl_infer *shares)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(shares->runtime, &count);
    for (int i = 0; i < count; i++)
        SL_TRY(sl_stage_bind_param(stage, params[i].name, params[i].data.data, NULL));
done:
    return status;
}

static sl_status load_params(const sl_runtime *runtime, const sl_model_source *source)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(runtime);
    float *values = NULL;
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        const sl_meta *meta = &params[i].data.meta;
        int64_t elements = sl_meta_count(meta);
        SL_TRY(SL_NEW_ARRAY(values, elements));
        SL_TRY(sl_model_source_read(source, params[i].name, elements, values));
        SL_TRY(sl_f32_convert(values, elements, meta->dtype, values));
        SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, params[i].data.data, values, sl_meta_bytes(meta)));
        SL_TRY(sl_stream_synchronize(stream));
        sl_free(values);
        values = NULL;
    }
done:
    sl_free(values);
    return status;
}

/* Cut like the one it shares with, else into stages of equal cost. */
static sl_status cut_model(sl_infer *infer, const sl_model *model, const sl_infer_options *options)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = sl_group_size(options->group) };
    SL_TRY(sl_model_build(model, options->mode, &options->shape, &graph));
    if (spec.stages == 1) {
        spec.kind = SL_SPLIT_WHOLE;
    } else if (options->shares) {
        spec.kind = SL_SPLIT_NODES;
        spec.nodes = sl_partition_cuts(options->shares->partition, &spec.node_count);
    }
    SL_TRY(sl_graph_partition(graph, &spec, &infer->partition));
done:
    sl_graph_destroy(graph);
    return status;
}

static sl_status make_runtime(sl_infer *infer, const sl_infer_options *from)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    const sl_arg_spec position = { .name = "position", .chunk = { .kind = SL_CHUNK_REPLICATE } }; /* a scalar */
    const sl_generate_options forward = { .name = "ForwardOnly",
                                          .ranks = sl_group_size(from->group),
                                          .microbatches = 1 };
    SL_TRY(sl_schedule_generate(&forward, &schedule));
    const sl_runtime_options options = { .group = from->group,
                                         .device = from->device,
                                         .schedule = schedule,
                                         .stages = &infer->stage,
                                         .stage_count = 1,
                                         .args = &position,
                                         .arg_count = from->mode == SL_MODE_DECODE ? 1 : 0 };
    SL_TRY(sl_runtime_create(&options, &infer->runtime));
done:
    sl_schedule_destroy(schedule);
    return status;
}

sl_status sl_infer_create(const sl_model_source *source, const sl_infer_options *options, sl_infer **out)
{
    sl_status status = SL_OK;
    sl_infer *infer = NULL;
    const sl_program_options forward = { .forward_only = true };
    SL_TRY(SL_NEW(infer));
    SL_TRY(cut_model(infer, sl_model_source_model(source), options));
    SL_TRY(sl_stage_build((const sl_partition *const[]){ infer->partition }, 1, sl_group_rank(options->group),
                          options->device, &forward, &infer->stage));
    if (options->shares)
        SL_TRY(share_params(infer->stage, options->shares));
    SL_TRY(make_runtime(infer, options));
    if (!options->shares)
        SL_TRY(load_params(infer->runtime, source));
    *out = infer;
    infer = NULL;
done:
    sl_infer_destroy(infer);
    return status;
}

void sl_infer_destroy(sl_infer *infer)
{
    if (!infer)
        return;
    sl_runtime_destroy(infer->runtime);
    sl_stage_destroy(infer->stage);
    sl_partition_destroy(infer->partition);
    sl_free(infer);
}

/* ---- Running --------------------------------------------------------------------------------- */

static const sl_meta *find_meta(const sl_value_desc *values, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(values[i].name, name) == 0)
            return &values[i].metas[0];
    }
    return NULL;
}

sl_status sl_infer_run(sl_infer *infer, int64_t number, const sl_infer_input *inputs, int input_count, float *logits,
                       sl_step_result *result)
{
    sl_status status = SL_OK;
    sl_stage_desc stage;
    sl_arg *args = NULL;
    sl_step step = { .number = number };
    sl_output output = { .name = "logits", .chunk = { .kind = SL_CHUNK_REPLICATE } };
    sl_stage_describe(infer->stage, &stage);
    SL_TRY(SL_NEW_ARRAY(args, input_count));
    for (int i = 0; i < input_count; i++) {
        const sl_meta *meta = find_meta(stage.inputs, stage.input_count, inputs[i].name);
        if (meta)
            args[step.arg_count++] = (sl_arg){ .name = inputs[i].name, .view = { (void *)inputs[i].data, *meta } };
    }
    step.args = args;
    if (logits) {
        const sl_meta *meta = find_meta(stage.outputs, stage.output_count, output.name);
        if (!meta)
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "stage %d has no output %s", sl_stage_index(infer->stage), output.name));
        if (meta->dtype != SL_F32)
            SL_TRY(sl_fail(SL_ERR_UNSUPPORTED, "the model's output %s is %s; its builder has to cast it to f32",
                           output.name, sl_dtype_name(meta->dtype)));
        output.view = (sl_view){ logits, *meta };
        step.outputs = &output;
        step.output_count = 1;
    }
    SL_TRY(sl_runtime_eval(infer->runtime, &step, result));
done:
    sl_free(args);
    return status;
}
