/* The runner's memory: every buffer of every stage and microbatch. */
#include "support/runner/runner.h"

#include "base/alloc.h"

#include <string.h>

static sl_status take(test_runner *runner, size_t bytes, void **out)
{
    sl_status status = SL_OK;
    SL_TRY(SL_GROW(runner->blocks, &runner->block_capacity, (size_t)runner->block_count + 1));
    SL_TRY(sl_device_alloc(runner->device, bytes, &runner->blocks[runner->block_count]));
    *out = runner->blocks[runner->block_count++];
    runner->bytes += bytes;
done:
    return status;
}

static size_t bytes_of(const sl_port *port, bool grad)
{
    return grad ? port->grad_bytes : port->bytes;
}

/* Parameter i, or its gradient: right behind the one before, or a block for it and those that follow it. */
static sl_status take_param(test_runner *runner, const sl_program_info *info, int i, bool grad, void **places)
{
    size_t bytes = bytes_of(&info->params[i], grad);
    if (info->params[i].follows) {
        places[i] = (char *)places[i - 1] + bytes_of(&info->params[i - 1], grad);
        return SL_OK;
    }
    for (int k = i + 1; k < info->param_count && info->params[k].follows; k++)
        bytes += bytes_of(&info->params[k], grad);
    return take(runner, bytes, &places[i]);
}

/* A parameter that an earlier stage has is that stage's; gradients are each stage's own. */
static sl_status allocate_params(test_runner *runner, int s)
{
    sl_status status = SL_OK;
    test_runner_stage *stage = &runner->stages[s];
    int count = stage->info->param_count;
    SL_TRY(SL_ARENA_ARRAY(runner->arena, stage->params, count));
    SL_TRY(SL_ARENA_ARRAY(runner->arena, stage->grads, count));
    SL_TRY(SL_ARENA_ARRAY(runner->arena, stage->param_owner, count));
    for (int i = 0; i < count; i++) {
        stage->param_owner[i] = s;
        for (int t = s - 1; t >= 0; t--) {
            for (int k = 0; k < runner->stages[t].info->param_count; k++) {
                if (strcmp(runner->stages[t].info->params[k].name, stage->info->params[i].name) == 0) {
                    stage->param_owner[i] = t;
                    stage->params[i] = runner->stages[t].params[k];
                }
            }
        }
        if (stage->param_owner[i] == s)
            SL_TRY(take_param(runner, stage->info, i, false, stage->params));
        if (!runner->options.programs.forward_only)
            SL_TRY(take_param(runner, stage->info, i, true, stage->grads));
    }
done:
    return status;
}

static sl_status allocate_states(test_runner *runner, test_runner_stage *stage)
{
    sl_status status = SL_OK;
    SL_TRY(SL_ARENA_ARRAY(runner->arena, stage->states, stage->info->state_count));
    for (int i = 0; i < stage->info->state_count; i++) {
        SL_TRY(take(runner, stage->info->states[i].bytes, &stage->states[i]));
        SL_TRY(sl_stream_memset(runner->stream, stage->states[i], 0, stage->info->states[i].bytes));
    }
done:
    return status;
}

static sl_status upload_constants(test_runner *runner, test_runner_stage *stage)
{
    sl_status status = SL_OK;
    size_t bytes = stage->info->constant_bytes;
    void *host = NULL;
    SL_TRY(sl_alloc(bytes, 1, &host));
    SL_TRY(take(runner, bytes, &stage->constants));
    sl_stage_program_constants(stage->program, host);
    SL_TRY(sl_stream_copy(runner->stream, SL_COPY_HOST_TO_DEVICE, stage->constants, host, bytes));
    SL_TRY(sl_stream_synchronize(runner->stream));
done:
    sl_free(host);
    return status;
}

static sl_status allocate_scratch(test_runner *runner)
{
    size_t most = 0;
    for (int s = 0; s < runner->stage_count; s++) {
        for (int p = 0; p < SL_PHASE_COUNT; p++) {
            bool runs = p == SL_PHASE_F || (p == SL_PHASE_B) != runner->options.split_backward;
            size_t bytes = runner->stages[s].info->scratch_bytes[p];
            most = runs && bytes > most ? bytes : most;
        }
    }
    return take(runner, most, &runner->scratch);
}

/* ---- Slots ----------------------------------------------------------------------------------- */

static sl_status fill_with_one(test_runner *runner, const sl_port *port, void *data)
{
    const sl_view view = { data, sl_meta_contiguous(port->dtype, &port->shape) };
    return sl_kernel_run(
        runner->stream,
        &(sl_kernel_call){ .op = SL_OP_FILL, .attrs = { .alpha = 1 }, .outputs = &view, .output_count = 1 });
}

/* Root inputs: stages that use the same one share its memory. */
static sl_status allocate_root_input(test_runner *runner, int s, int m, int input)
{
    const char *name = runner->stages[s].info->inputs[input].name;
    test_runner_slot *slot = &runner->stages[s].slots[m];
    for (int t = 0; t < s; t++) {
        const sl_program_info *info = runner->stages[t].info;
        for (int i = 0; i < info->input_count; i++) {
            if (info->inputs[i].root && strcmp(info->inputs[i].name, name) == 0) {
                slot->inputs[input] = runner->stages[t].slots[m].inputs[i];
                return SL_OK;
            }
        }
    }
    return take(runner, runner->stages[s].info->inputs[input].bytes, &slot->inputs[input]);
}

static sl_status allocate_roots(test_runner *runner, int s, int m)
{
    sl_status status = SL_OK;
    const sl_program_info *info = runner->stages[s].info;
    test_runner_slot *slot = &runner->stages[s].slots[m];
    for (int i = 0; i < info->input_count; i++) {
        if (!info->inputs[i].root)
            continue;
        SL_TRY(allocate_root_input(runner, s, m, i));
        if (info->inputs[i].has_grad)
            SL_TRY(take(runner, info->inputs[i].bytes, &slot->input_grads[i]));
    }
    for (int i = 0; i < info->output_count; i++) {
        if (!info->outputs[i].root)
            continue;
        SL_TRY(take(runner, info->outputs[i].bytes, &slot->outputs[i]));
        if (info->outputs[i].has_grad) {
            SL_TRY(take(runner, info->outputs[i].bytes, &slot->output_grads[i]));
            SL_TRY(fill_with_one(runner, &info->outputs[i], slot->output_grads[i]));
        }
    }
done:
    return status;
}

/* What lives from a microbatch's forward to its backward: regions and values for other stages. */
static sl_status allocate_regions(test_runner *runner, int s, int m)
{
    sl_status status = SL_OK;
    const sl_program_info *info = runner->stages[s].info;
    test_runner_slot *slot = &runner->stages[s].slots[m];
    const test_runner_slot *first = &runner->stages[s].slots[0];
    bool share = runner->options.depth_first && m > 0;
    if (share) {
        slot->saved_i = first->saved_i;
        slot->saved_w = first->saved_w;
        slot->kept = first->kept;
    } else {
        SL_TRY(take(runner, info->saved_i_bytes, &slot->saved_i));
        SL_TRY(take(runner, info->saved_w_bytes, &slot->saved_w));
        SL_TRY(take(runner, runner->options.split_backward ? info->kept_bytes : 0, &slot->kept));
    }
    for (int i = 0; i < info->output_count; i++) {
        if (info->outputs[i].root)
            continue;
        if (share)
            slot->outputs[i] = first->outputs[i];
        else
            SL_TRY(take(runner, info->outputs[i].bytes, &slot->outputs[i]));
    }
done:
    return status;
}

/* The two ends of an edge are the same memory. */
static sl_status join_edges(test_runner *runner, const sl_partition *partition, int m)
{
    sl_status status = SL_OK;
    int count;
    const sl_value_edge *edges = sl_partition_edges(partition, &count);
    for (int i = 0; i < count; i++) {
        test_runner_slot *from = &runner->stages[edges[i].from].slots[m];
        test_runner_slot *to = &runner->stages[edges[i].to].slots[m];
        to->inputs[edges[i].input] = from->outputs[edges[i].output];
        if (!edges[i].differentiable || runner->options.programs.forward_only)
            continue;
        void **grad = &to->input_grads[edges[i].input];
        if (runner->options.depth_first && m > 0)
            *grad = runner->stages[edges[i].to].slots[0].input_grads[edges[i].input];
        else
            SL_TRY(take(runner, edges[i].bytes, grad));
        from->output_grads[edges[i].output] = *grad;
    }
done:
    return status;
}

static sl_status make_slots(test_runner *runner, test_runner_stage *stage)
{
    sl_status status = SL_OK;
    SL_TRY(SL_ARENA_ARRAY(runner->arena, stage->slots, runner->options.microbatches));
    for (int m = 0; m < runner->options.microbatches; m++) {
        test_runner_slot *slot = &stage->slots[m];
        SL_TRY(SL_ARENA_ARRAY(runner->arena, slot->inputs, stage->info->input_count));
        SL_TRY(SL_ARENA_ARRAY(runner->arena, slot->input_grads, stage->info->input_count));
        SL_TRY(SL_ARENA_ARRAY(runner->arena, slot->outputs, stage->info->output_count));
        SL_TRY(SL_ARENA_ARRAY(runner->arena, slot->output_grads, stage->info->output_count));
    }
done:
    return status;
}

sl_status test_runner_allocate(test_runner *runner, const sl_partition *partition)
{
    sl_status status = SL_OK;
    SL_TRY(allocate_scratch(runner));
    for (int s = 0; s < runner->stage_count; s++) {
        SL_TRY(allocate_params(runner, s));
        SL_TRY(allocate_states(runner, &runner->stages[s]));
        SL_TRY(upload_constants(runner, &runner->stages[s]));
        if (runner->stages[s].info->packed_bytes > 0)
            SL_TRY(take(runner, runner->stages[s].info->packed_bytes, &runner->stages[s].packed));
        SL_TRY(make_slots(runner, &runner->stages[s]));
    }
    for (int m = 0; m < runner->options.microbatches; m++) {
        for (int s = 0; s < runner->stage_count; s++) {
            SL_TRY(allocate_roots(runner, s, m));
            SL_TRY(allocate_regions(runner, s, m));
        }
        SL_TRY(join_edges(runner, partition, m));
    }
done:
    return status;
}
