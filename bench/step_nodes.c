/* Seconds of every node of the graph: the stage's program run with a clock around each instruction. */
#include "step_measure.h"

#include "base/alloc.h"

#include <string.h>

/* What one run of the program needs: the runtime's parameters and one block for the rest. */
typedef struct node_run {
    sl_device *device;
    sl_stage_program *program;
    const sl_program_info *info;
    const void **params, **inputs, **output_grads;
    void **grads, **outputs;
    char *block;
    size_t used;
} node_run;

static void node_run_close(node_run *run)
{
    sl_device_free(run->device, run->block);
    sl_free(run->params);
    sl_free(run->grads);
    sl_free(run->inputs);
    sl_free(run->outputs);
    sl_free(run->output_grads);
    sl_stage_program_destroy(run->program);
}

static size_t aligned(size_t bytes)
{
    return (bytes + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
}

static void *take(node_run *run, size_t bytes)
{
    void *data = run->block + run->used;
    run->used += aligned(bytes);
    return data;
}

static sl_status find_params(node_run *run, const sl_runtime *runtime)
{
    sl_status status = SL_OK;
    for (int i = 0; i < run->info->param_count; i++) {
        const sl_param *param = NULL;
        SL_TRY(sl_runtime_find_param(runtime, run->info->params[i].name, &param));
        run->params[i] = param->data.data;
        run->grads[i] = param->grad.data;
    }
done:
    return status;
}

/* Outputs of a stage that is alone are the graph's; the seed of their gradients is 1. */
static sl_status place_outputs(node_run *run, sl_stream *stream)
{
    sl_status status = SL_OK;
    for (int i = 0; i < run->info->output_count; i++) {
        const sl_port *port = &run->info->outputs[i];
        const sl_view seed = { take(run, port->bytes), sl_meta_contiguous(port->dtype, &port->shape) };
        run->outputs[i] = take(run, port->bytes);
        run->output_grads[i] = seed.data;
        SL_TRY(sl_kernel_run(
            stream,
            &(sl_kernel_call){ .op = SL_OP_FILL, .attrs = { .alpha = 1 }, .outputs = &seed, .output_count = 1 }));
    }
done:
    return status;
}

static size_t scratch_bytes(const sl_program_info *info)
{
    size_t f = info->scratch_bytes[SL_PHASE_F], b = info->scratch_bytes[SL_PHASE_B];
    return f > b ? f : b;
}

static sl_status node_run_open(node_run *run, const sl_runtime *runtime, const sl_arg args[2])
{
    sl_status status = SL_OK;
    const sl_program_info *info = run->info;
    size_t bytes = aligned(info->saved_i_bytes) + aligned(info->saved_w_bytes) + aligned(scratch_bytes(info)) +
                   aligned(info->constant_bytes);
    for (int i = 0; i < info->output_count; i++)
        bytes += 2 * aligned(info->outputs[i].bytes);
    for (int i = 0; i < info->input_count; i++)
        bytes += aligned(info->inputs[i].bytes);
    SL_TRY(sl_device_alloc(run->device, bytes, (void **)&run->block));
    SL_TRY(SL_NEW_ARRAY(run->params, info->param_count));
    SL_TRY(SL_NEW_ARRAY(run->grads, info->param_count));
    SL_TRY(SL_NEW_ARRAY(run->inputs, info->input_count));
    SL_TRY(SL_NEW_ARRAY(run->outputs, info->output_count));
    SL_TRY(SL_NEW_ARRAY(run->output_grads, info->output_count));
    for (int i = 0; i < info->input_count; i++) {
        const sl_view *from = &args[strcmp(info->inputs[i].name, args[0].name) != 0].view;
        void *to = take(run, info->inputs[i].bytes); /* the first microbatch's */
        SL_TRY(
            sl_stream_copy(sl_runtime_stream(runtime), SL_COPY_HOST_TO_DEVICE, to, from->data, info->inputs[i].bytes));
        run->inputs[i] = to;
    }
    SL_TRY(find_params(run, runtime));
    SL_TRY(place_outputs(run, sl_runtime_stream(runtime)));
done:
    return status;
}

sl_status step_time_nodes(const step_options *options, const sl_partition *partition, sl_device *device,
                          const sl_runtime *runtime, const sl_arg args[2], double *seconds)
{
    sl_status status = SL_OK;
    node_run run = { .device = device };
    void *host = NULL;
    const sl_program_options program = step_program_options(options);
    SL_TRY(sl_stage_program_create(partition, 0, device, &program, &run.program));
    run.info = sl_stage_program_info(run.program);
    SL_TRY(node_run_open(&run, runtime, args));
    void *constants = take(&run, run.info->constant_bytes);
    SL_TRY(sl_alloc(run.info->constant_bytes, 1, &host));
    sl_stage_program_constants(run.program, host);
    SL_TRY(
        sl_stream_copy(sl_runtime_stream(runtime), SL_COPY_HOST_TO_DEVICE, constants, host, run.info->constant_bytes));
    SL_TRY(sl_stream_synchronize(sl_runtime_stream(runtime)));
    const sl_bindings bindings = { .params = run.params,
                                   .grads = run.grads,
                                   .overwrite_grads = true,
                                   .inputs = run.inputs,
                                   .outputs = run.outputs,
                                   .output_grads = run.output_grads,
                                   .constants = constants,
                                   .saved_i = take(&run, run.info->saved_i_bytes),
                                   .saved_w = take(&run, run.info->saved_w_bytes),
                                   .scratch = take(&run, scratch_bytes(run.info)),
                                   .rng = { .seed = 1, .training = true },
                                   .node_seconds = seconds };
    SL_TRY(sl_stage_program_run(run.program, SL_PHASE_F, sl_runtime_stream(runtime), &bindings));
    SL_TRY(sl_stage_program_run(run.program, SL_PHASE_B, sl_runtime_stream(runtime), &bindings));
done:
    sl_free(host);
    node_run_close(&run);
    return status;
}
