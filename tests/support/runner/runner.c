/* All stages of a partition in one process, without ranks or messages. */
#include "support/runner/runner.h"

#include "base/alloc.h"

#include <string.h>

sl_status test_runner_create(const sl_partition *partition, sl_device *device, const test_runner_options *options,
                             test_runner **out)
{
    sl_status status = SL_OK;
    test_runner *runner = NULL;
    SL_TRY(SL_NEW(runner));
    runner->device = device;
    if (options)
        runner->options = *options;
    if (runner->options.microbatches == 0)
        runner->options.microbatches = 1;
    if (runner->options.microbatches < 0) {
        status = sl_fail(SL_ERR_ARGUMENT, "a runner for %d microbatches", runner->options.microbatches);
        goto done;
    }
    SL_TRY(sl_arena_create(&runner->arena));
    SL_TRY(sl_stream_create(device, &runner->stream));
    SL_TRY(SL_ARENA_ARRAY(runner->arena, runner->stages, sl_partition_stage_count(partition)));
    for (int s = 0; s < sl_partition_stage_count(partition); s++) {
        test_runner_stage *stage = &runner->stages[s];
        SL_TRY(sl_stage_program_create(partition, s, device, &runner->options.programs, &stage->program));
        stage->info = sl_stage_program_info(stage->program);
        runner->stage_count++;
    }
    SL_TRY(test_runner_allocate(runner, partition));
    SL_TRY(sl_stream_synchronize(runner->stream));
    runner->options.programs = (sl_program_options){ .forward_only = runner->options.programs.forward_only };
    *out = runner;
    runner = NULL;
done:
    test_runner_destroy(runner);
    return status;
}

void test_runner_destroy(test_runner *runner)
{
    if (!runner)
        return;
    sl_stream_destroy(runner->stream);
    for (int i = 0; i < runner->block_count; i++)
        sl_device_free(runner->device, runner->blocks[i]);
    for (int s = 0; s < runner->stage_count; s++)
        sl_stage_program_destroy(runner->stages[s].program);
    sl_free(runner->blocks);
    sl_arena_destroy(runner->arena);
    sl_free(runner);
}

const sl_stage_program *test_runner_program(const test_runner *runner, int stage)
{
    return runner->stages[stage].program;
}

sl_stream *test_runner_stream(const test_runner *runner)
{
    return runner->stream;
}

size_t test_runner_bytes(const test_runner *runner)
{
    return runner->bytes;
}

/* ---- Looking up ------------------------------------------------------------------------------ */

static sl_view view_of(const sl_port *port, void *data)
{
    if (!data)
        return sl_view_none();
    return (sl_view){ data, sl_meta_contiguous(port->dtype, &port->shape) };
}

/* The memory of the first port of that name; with root, of one that lies outside the pipeline. */
static sl_view find(const sl_port *ports, int count, const char *name, bool root, void *const *data)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(ports[i].name, name) == 0 && (!root || ports[i].root))
            return view_of(&ports[i], data[i]);
    }
    return sl_view_none();
}

/* Looks through the stages with FIND, an expression of stage. */
#define FIND_IN_STAGES(expression)                                                                                     \
    do {                                                                                                               \
        for (int s = 0; s < runner->stage_count; s++) {                                                                \
            const test_runner_stage *stage = &runner->stages[s];                                                       \
            const sl_view found = (expression);                                                                        \
            if (!sl_view_is_none(&found))                                                                              \
                return found;                                                                                          \
        }                                                                                                              \
        return sl_view_none();                                                                                         \
    } while (0)

sl_view test_runner_param(const test_runner *runner, const char *name)
{
    FIND_IN_STAGES(find(stage->info->params, stage->info->param_count, name, false, stage->params));
}

static sl_view find_grad(const test_runner_stage *stage, const char *name)
{
    for (int i = 0; i < stage->info->param_count; i++) {
        const sl_port *port = &stage->info->params[i];
        if (strcmp(port->name, name) == 0 && stage->grads[i])
            return (sl_view){ stage->grads[i], sl_meta_contiguous(port->grad_dtype, &port->shape) };
    }
    return sl_view_none();
}

sl_view test_runner_grad(const test_runner *runner, const char *name)
{
    FIND_IN_STAGES(find_grad(stage, name));
}

sl_view test_runner_state(const test_runner *runner, const char *name)
{
    FIND_IN_STAGES(find(stage->info->states, stage->info->state_count, name, false, stage->states));
}

sl_view test_runner_input(const test_runner *runner, int microbatch, const char *name)
{
    FIND_IN_STAGES(find(stage->info->inputs, stage->info->input_count, name, true, stage->slots[microbatch].inputs));
}

sl_view test_runner_input_grad(const test_runner *runner, int microbatch, const char *name)
{
    FIND_IN_STAGES(
        find(stage->info->inputs, stage->info->input_count, name, true, stage->slots[microbatch].input_grads));
}

sl_view test_runner_output(const test_runner *runner, int microbatch, const char *name)
{
    FIND_IN_STAGES(find(stage->info->outputs, stage->info->output_count, name, true, stage->slots[microbatch].outputs));
}

sl_view test_runner_output_grad(const test_runner *runner, int microbatch, const char *name)
{
    FIND_IN_STAGES(
        find(stage->info->outputs, stage->info->output_count, name, true, stage->slots[microbatch].output_grads));
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Samples in a microbatch, for random numbers. */
static int64_t sample_count(const test_runner *runner)
{
    for (int s = 0; s < runner->stage_count; s++) {
        const sl_program_info *info = runner->stages[s].info;
        for (int i = 0; i < info->input_count; i++) {
            if (info->inputs[i].root && info->inputs[i].shape.rank > 0)
                return info->inputs[i].shape.dims[0];
        }
    }
    return 0;
}

static sl_status run_phase(test_runner *runner, int s, int m, sl_phase phase, const sl_rng *rng, double *node_seconds)
{
    const test_runner_stage *stage = &runner->stages[s];
    const test_runner_slot *slot = &stage->slots[m];
    sl_bindings bindings = { .params = (const void *const *)stage->params,
                             .grads = stage->grads,
                             .overwrite_grads = m == 0,
                             .inputs = (const void *const *)slot->inputs,
                             .outputs = slot->outputs,
                             .output_grads = (const void *const *)slot->output_grads,
                             .input_grads = slot->input_grads,
                             .states = stage->states,
                             .constants = stage->constants,
                             .packed = stage->packed,
                             .saved_i = slot->saved_i,
                             .saved_w = slot->saved_w,
                             .kept = slot->kept,
                             .scratch = runner->scratch,
                             .node_seconds = node_seconds };
    if (rng)
        bindings.rng = *rng;
    bindings.rng.sample_offset += m * sample_count(runner);
    sl_status status =
        m == 0 && stage->packed ? sl_stage_program_pack(stage->program, phase, runner->stream, &bindings) : SL_OK;
    return status == SL_OK ? sl_stage_program_run(stage->program, phase, runner->stream, &bindings) : status;
}

static sl_status run_forward(test_runner *runner, int m, const sl_rng *rng, double *node_seconds)
{
    sl_status status = SL_OK;
    for (int s = 0; s < runner->stage_count && status == SL_OK; s++)
        status = run_phase(runner, s, m, SL_PHASE_F, rng, node_seconds);
    return status;
}

static sl_status run_backward(test_runner *runner, int m, const sl_rng *rng, double *node_seconds)
{
    sl_status status = SL_OK;
    bool split = runner->options.split_backward;
    for (int s = runner->stage_count - 1; s >= 0; s--)
        SL_TRY(run_phase(runner, s, m, split ? SL_PHASE_I : SL_PHASE_B, rng, node_seconds));
    for (int s = runner->stage_count - 1; s >= 0 && split; s--)
        SL_TRY(run_phase(runner, s, m, SL_PHASE_W, rng, node_seconds));
done:
    return status;
}

/* Adds the gradients of tied parameters to those of their first stage, in stage order. */
static sl_status sum_tied(test_runner *runner)
{
    sl_status status = SL_OK;
    for (int s = 0; s < runner->stage_count; s++) {
        const test_runner_stage *stage = &runner->stages[s];
        for (int i = 0; i < stage->info->param_count; i++) {
            if (stage->param_owner[i] == s)
                continue;
            const test_runner_stage *owner = &runner->stages[stage->param_owner[i]];
            const sl_view from = find_grad(stage, stage->info->params[i].name);
            const sl_view to = find_grad(owner, stage->info->params[i].name);
            SL_TRY(sl_kernel_run(runner->stream, &(sl_kernel_call){ .op = SL_OP_COPY,
                                                                    .inputs = &from,
                                                                    .input_count = 1,
                                                                    .outputs = &to,
                                                                    .output_count = 1,
                                                                    .accumulate = 1 }));
        }
    }
done:
    return status;
}

sl_status test_runner_forward(test_runner *runner, const sl_rng *rng, double *node_seconds)
{
    sl_status status = SL_OK;
    for (int m = 0; m < runner->options.microbatches; m++)
        SL_TRY(run_forward(runner, m, rng, node_seconds));
    SL_TRY(sl_stream_synchronize(runner->stream));
done:
    return status;
}

sl_status test_runner_step(test_runner *runner, const sl_rng *rng, double *node_seconds)
{
    sl_status status = SL_OK;
    if (runner->options.programs.forward_only)
        return sl_fail(SL_ERR_ARGUMENT, "a step of a runner that was made for the forward alone");
    for (int m = 0; m < runner->options.microbatches; m++) {
        SL_TRY(run_forward(runner, m, rng, node_seconds));
        if (runner->options.depth_first)
            SL_TRY(run_backward(runner, m, rng, node_seconds));
    }
    for (int m = 0; m < runner->options.microbatches && !runner->options.depth_first; m++)
        SL_TRY(run_backward(runner, m, rng, node_seconds));
    SL_TRY(sum_tied(runner));
    SL_TRY(sl_stream_synchronize(runner->stream));
done:
    return status;
}
