/* A stage's forward program, its parameters and buffers. */
#include "train/infer.h"

#include "base/alloc.h"

#include <string.h>

/* ---- Partition ------------------------------------------------------------------------------- */

sl_status sl_infer_partition(const sl_model *model, sl_model_mode mode, const sl_model_shape *shape, int stages,
                             const sl_partition *like, sl_partition **out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    sl_split_spec spec = { .kind = SL_SPLIT_WHOLE };
    SL_TRY(sl_model_build(model, mode, shape, &graph));
    if (stages > 1 && like) {
        spec.kind = SL_SPLIT_NODES;
        spec.nodes = sl_partition_cuts(like, &spec.node_count);
    } else if (stages > 1) {
        spec.kind = SL_SPLIT_EQUAL;
        spec.stages = stages;
    }
    SL_TRY(sl_graph_partition(graph, &spec, out));
done:
    sl_graph_destroy(graph);
    return status;
}

/* ---- Buffers --------------------------------------------------------------------------------- */

sl_status sl_infer_alloc_ports(sl_stream *stream, const sl_port *ports, int count, void ***out)
{
    sl_status status = SL_OK;
    void **blocks = NULL;
    SL_TRY(SL_NEW_ARRAY(blocks, count));
    for (int i = 0; i < count; i++) {
        SL_TRY(sl_device_alloc(sl_stream_device(stream), ports[i].bytes, &blocks[i]));
        SL_TRY(sl_stream_memset(stream, blocks[i], 0, ports[i].bytes));
    }
    *out = blocks;
    blocks = NULL;
done:
    if (blocks)
        sl_infer_free_ports(sl_stream_device(stream), blocks, count);
    return status;
}

void sl_infer_free_ports(sl_device *device, void **blocks, int count)
{
    for (int i = 0; blocks && i < count; i++)
        sl_device_free(device, blocks[i]);
    sl_free(blocks);
}

static sl_status fill_constants(sl_infer *infer)
{
    sl_status status = SL_OK;
    void *host = NULL;
    size_t bytes = infer->info->constant_bytes;
    SL_TRY(sl_alloc(bytes, 1, &host));
    sl_stage_program_constants(infer->program, host);
    SL_TRY(sl_stream_copy(infer->stream, SL_COPY_HOST_TO_DEVICE, infer->constants, host, bytes));
    SL_TRY(sl_stream_synchronize(infer->stream));
done:
    sl_free(host);
    return status;
}

static sl_status load_params(sl_infer *infer, const sl_model_source *source)
{
    sl_status status = SL_OK;
    float *values = NULL;
    size_t largest = 0;
    const sl_port *params = infer->info->params;
    for (int i = 0; i < infer->info->param_count; i++)
        largest = params[i].bytes > largest ? params[i].bytes : largest;
    SL_TRY(sl_alloc(largest, 1, (void **)&values));
    for (int i = 0; i < infer->info->param_count; i++) {
        SL_TRY(sl_model_source_read(source, params[i].name, (int64_t)(params[i].bytes / sizeof *values), values));
        SL_TRY(sl_stream_copy(infer->stream, SL_COPY_HOST_TO_DEVICE, infer->params[i], values, params[i].bytes));
        SL_TRY(sl_stream_synchronize(infer->stream));
    }
done:
    sl_free(values);
    return status;
}

static sl_status alloc_regions(sl_infer *infer)
{
    sl_status status = SL_OK;
    sl_device *device = sl_stream_device(infer->stream);
    const sl_program_info *info = infer->info;
    SL_TRY(sl_device_alloc(device, info->constant_bytes, &infer->constants));
    SL_TRY(sl_device_alloc(device, info->scratch_bytes[SL_PHASE_F], &infer->scratch));
    SL_TRY(sl_device_alloc(device, info->saved_i_bytes, &infer->saved_i));
    SL_TRY(sl_device_alloc(device, info->saved_w_bytes, &infer->saved_w));
    SL_TRY(sl_device_alloc(device, info->kept_bytes, &infer->kept));
    SL_TRY(sl_infer_alloc_ports(infer->stream, info->inputs, info->input_count, &infer->inputs));
    SL_TRY(sl_infer_alloc_ports(infer->stream, info->outputs, info->output_count, &infer->outputs));
done:
    return status;
}

sl_status sl_infer_create(const sl_partition *partition, int stage, sl_stream *stream, const sl_model_source *source,
                          const sl_infer *shares, sl_infer **out)
{
    sl_status status = SL_OK;
    sl_infer *infer = NULL;
    const sl_program_options options = { .forward_only = true };
    SL_TRY(SL_NEW(infer));
    infer->stream = stream;
    infer->shares = shares;
    SL_TRY(sl_stage_program_create(partition, stage, sl_stream_device(stream), &options, &infer->program));
    infer->info = sl_stage_program_info(infer->program);
    SL_TRY(alloc_regions(infer));
    SL_TRY(fill_constants(infer));
    if (shares) {
        infer->params = shares->params;
    } else {
        SL_TRY(sl_infer_alloc_ports(stream, infer->info->params, infer->info->param_count, &infer->params));
        SL_TRY(load_params(infer, source));
    }
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
    sl_device *device = sl_stream_device(infer->stream);
    if (infer->info) {
        sl_infer_free_ports(device, infer->outputs, infer->info->output_count);
        sl_infer_free_ports(device, infer->inputs, infer->info->input_count);
        if (!infer->shares)
            sl_infer_free_ports(device, infer->params, infer->info->param_count);
    }
    sl_device_free(device, infer->constants);
    sl_device_free(device, infer->scratch);
    sl_device_free(device, infer->saved_i);
    sl_device_free(device, infer->saved_w);
    sl_device_free(device, infer->kept);
    sl_stage_program_destroy(infer->program);
    sl_free(infer);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Index of a port by name, or -1. */
static int find_port(const sl_port *ports, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(ports[i].name, name) == 0)
            return i;
    }
    return -1;
}

sl_status sl_infer_set(sl_infer *infer, const char *name, const void *host)
{
    int i = find_port(infer->info->inputs, infer->info->input_count, name);
    if (i < 0)
        return SL_OK;
    return sl_stream_copy(infer->stream, SL_COPY_HOST_TO_DEVICE, infer->inputs[i], host, infer->info->inputs[i].bytes);
}

sl_status sl_infer_get(sl_infer *infer, const char *name, void *host)
{
    sl_status status = SL_OK;
    int i = find_port(infer->info->outputs, infer->info->output_count, name);
    if (i < 0)
        return sl_fail(SL_ERR_INTERNAL, "stage %d has no output %s", infer->info->stage, name);
    SL_TRY(
        sl_stream_copy(infer->stream, SL_COPY_DEVICE_TO_HOST, host, infer->outputs[i], infer->info->outputs[i].bytes));
    SL_TRY(sl_stream_synchronize(infer->stream));
done:
    return status;
}

sl_status sl_infer_run(sl_infer *infer, void *const *states)
{
    const sl_bindings bindings = { .params = (const void *const *)infer->params,
                                   .inputs = (const void *const *)infer->inputs,
                                   .outputs = infer->outputs,
                                   .states = states,
                                   .constants = infer->constants,
                                   .saved_i = infer->saved_i,
                                   .saved_w = infer->saved_w,
                                   .kept = infer->kept,
                                   .scratch = infer->scratch };
    return sl_stage_program_run(infer->program, SL_PHASE_F, infer->stream, &bindings);
}
