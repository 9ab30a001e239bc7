/* Stage programs: lowering and plan put together, with ports and costs. */
#include "graph/program.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

const char *sl_phase_name(sl_phase phase)
{
    static const char *const names[SL_PHASE_COUNT] = { "F", "I", "W", "B" };
    return (unsigned)phase < SL_PHASE_COUNT ? names[phase] : "?";
}

/* ---- Ports ----------------------------------------------------------------------------------- */

static sl_status make_port(sl_stage_program *program, const sl_graph_value *value, const char *name, sl_port *port)
{
    const sl_meta meta = sl_meta_contiguous(value->dtype, &value->shape);
    char *copy = NULL;
    sl_status status = sl_arena_strdup(program->arena, name, &copy);
    *port = (sl_port){ .name = copy,
                       .dtype = value->dtype,
                       .shape = value->shape,
                       .bytes = sl_meta_bytes(&meta),
                       .last_use = SL_PHASE_F,
                       .init = value->init,
                       .output_of = -1,
                       .grad_last_use = SL_PHASE_I };
    return status;
}

static sl_status make_ports(sl_stage_program *program, const sl_lowering *lowering, const int *values, int count,
                            const sl_port **out, int *out_count)
{
    sl_status status = SL_OK;
    sl_port *ports = NULL;
    SL_TRY(SL_ARENA_ARRAY(program->arena, ports, count));
    for (int i = 0; i < count; i++) {
        const sl_graph_value *value = &lowering->graph->values[values[i]];
        SL_TRY(make_port(program, value, value->name, &ports[i]));
        ports[i].last_use = lowering->forward_only ? SL_PHASE_F : SL_PHASE_W;
        ports[i].has_grad = value->kind == SL_VALUE_PARAM && sl_lowered(lowering, values[i])->terms > 0;
        ports[i].follows = value->kind == SL_VALUE_PARAM && sl_lowered(lowering, values[i])->value.offset > 0;
        ports[i].frozen = value->kind == SL_VALUE_PARAM && !value->requires_grad;
        ports[i].grad_dtype = sl_lowering_grad_dtype(lowering, values[i]);
        const sl_meta grad = sl_meta_contiguous(ports[i].grad_dtype, &value->shape);
        ports[i].grad_bytes = sl_meta_bytes(&grad);
    }
    *out = ports;
    *out_count = count;
done:
    return status;
}

static sl_status make_inputs(sl_stage_program *program, const sl_lowering *lowering)
{
    sl_status status = SL_OK;
    const sl_stage_part *part = lowering->part;
    sl_port *ports = NULL;
    SL_TRY(SL_ARENA_ARRAY(program->arena, ports, part->input_count));
    for (int i = 0; i < part->input_count; i++) {
        const sl_graph_value *value = &lowering->graph->values[part->inputs[i].value];
        SL_TRY(make_port(program, value, value->name, &ports[i]));
        ports[i].root = part->inputs[i].from < 0;
        ports[i].output_of = part->inputs[i].from;
        ports[i].has_grad = part->inputs[i].has_grad && !lowering->forward_only;
    }
    program->info.inputs = ports;
    program->info.input_count = part->input_count;
    for (int s = 0; s < program->plan.storage_count; s++) {
        if (lowering->storages[s].home == SL_HOME_INPUT)
            ports[lowering->storages[s].index].last_use = program->plan.last_use[s];
    }
done:
    return status;
}

static sl_status make_outputs(sl_stage_program *program, const sl_lowering *lowering)
{
    sl_status status = SL_OK;
    const sl_stage_part *part = lowering->part;
    sl_port *ports = NULL;
    program->info.loss = -1;
    SL_TRY(SL_ARENA_ARRAY(program->arena, ports, part->output_count));
    for (int i = 0; i < part->output_count; i++) {
        const sl_stage_output_port *output = &part->outputs[i];
        const sl_graph_value *value = &lowering->graph->values[output->value];
        bool root = output->output >= 0;
        SL_TRY(
            make_port(program, value, root ? lowering->graph->outputs[output->output].name : value->name, &ports[i]));
        ports[i].root = root;
        ports[i].has_grad = output->has_grad && !lowering->forward_only;
        if (root && output->output == lowering->graph->loss)
            program->info.loss = i;
    }
    program->info.outputs = ports;
    program->info.output_count = part->output_count;
    for (int s = 0; s < program->plan.storage_count; s++) {
        sl_port *port = &ports[lowering->storages[s].index];
        if (lowering->storages[s].home == SL_HOME_OUTPUT)
            port->last_use = program->plan.last_use[s];
        if (lowering->storages[s].home == SL_HOME_OUTPUT_GRAD)
            port->grad_last_use = program->plan.last_use[s] == SL_PHASE_W ? SL_PHASE_W : SL_PHASE_I;
    }
done:
    return status;
}

/* ---- Constants and costs --------------------------------------------------------------------- */

static sl_status copy_constants(sl_stage_program *program, const sl_lowering *lowering)
{
    sl_status status = SL_OK;
    const sl_stage_part *part = lowering->part;
    program->constant_count = part->constant_count;
    SL_TRY(SL_ARENA_ARRAY(program->arena, program->constant_offsets, part->constant_count));
    SL_TRY(SL_ARENA_ARRAY(program->arena, program->constant_data, part->constant_count));
    SL_TRY(SL_ARENA_ARRAY(program->arena, program->constant_sizes, part->constant_count));
    for (int i = 0; i < part->constant_count; i++) {
        const sl_graph_value *value = &lowering->graph->values[part->constants[i]];
        const sl_meta meta = sl_meta_contiguous(value->dtype, &value->shape);
        size_t bytes = sl_meta_bytes(&meta);
        void *copy = NULL;
        SL_TRY(sl_arena_copy(program->arena, value->data, bytes, &copy));
        program->constant_data[i] = copy;
        program->constant_sizes[i] = bytes;
        program->constant_offsets[i] = program->info.constant_bytes;
        program->info.constant_bytes += (bytes + SL_DEVICE_ALIGNMENT - 1) & ~(size_t)(SL_DEVICE_ALIGNMENT - 1);
    }
done:
    return status;
}

void sl_stage_program_constants(const sl_stage_program *program, void *host)
{
    memset(host, 0, program->info.constant_bytes);
    for (int i = 0; i < program->constant_count; i++)
        memcpy((char *)host + program->constant_offsets[i], program->constant_data[i], program->constant_sizes[i]);
}

sl_cost sl_instruction_cost(const sl_instruction *step)
{
    const sl_op_use use = { .op = step->op,
                            .attrs = &step->attrs,
                            .inputs = { &step->inputs->meta, sizeof *step->inputs, step->input_count },
                            .outputs = { &step->outputs->meta, sizeof *step->outputs, step->output_count } };
    if (step->is_done)
        return (sl_cost){ 0 };
    sl_cost cost = sl_op_cost(&use);
    for (int o = 0; o < step->output_count; o++) {
        if ((step->accumulate & ~step->starts) >> o & 1u) /* what it adds to is read, too */
            cost.bytes += (double)sl_meta_bytes(&step->outputs[o].meta);
    }
    return cost;
}

double sl_program_seconds(const sl_stage_program *program, sl_phase phase, const sl_rates *rates)
{
    double seconds = 0;
    const sl_instruction_list *list = &program->plan.phases[phase];
    for (int i = 0; i < list->count; i++) {
        sl_cost cost = sl_instruction_cost(&list->items[i]);
        double compute = cost.flops / rates->flops_per_s, move = cost.bytes / rates->bytes_per_s;
        double work = rates->adds_up ? compute + move : fmax(compute, move);
        seconds += list->items[i].is_done ? 0 : fmax(work, rates->kernel_seconds);
    }
    return seconds;
}

static void add_costs(sl_stage_program *program)
{
    for (int p = 0; p < SL_PHASE_COUNT; p++) {
        const sl_instruction_list *list = &program->plan.phases[p];
        for (int i = 0; i < list->count; i++) {
            sl_cost cost = sl_instruction_cost(&list->items[i]);
            program->info.cost[p].flops += cost.flops;
            program->info.cost[p].bytes += cost.bytes;
        }
        program->info.instruction_count[p] = list->count;
        program->info.scratch_bytes[p] = program->plan.scratch_bytes[p];
    }
}

static sl_status copy_names(sl_stage_program *program, const sl_lowering *lowering)
{
    sl_status status = SL_OK;
    SL_TRY(SL_ARENA_ARRAY(program->arena, program->node_names, lowering->graph->node_count));
    for (int i = 0; i < lowering->part->node_count; i++) {
        char *copy = NULL;
        int node = lowering->part->nodes[i];
        SL_TRY(sl_arena_strdup(program->arena, lowering->graph->nodes[node].name, &copy));
        program->node_names[node] = copy;
    }
done:
    return status;
}

/* ---- The program ----------------------------------------------------------------------------- */

static sl_status fill_info(sl_stage_program *program, const sl_lowering *lowering)
{
    sl_status status = SL_OK;
    sl_program_info *info = &program->info;
    const sl_stage_part *part = lowering->part;
    SL_TRY(make_ports(program, lowering, part->params, part->param_count, &info->params, &info->param_count));
    SL_TRY(make_ports(program, lowering, part->states, part->state_count, &info->states, &info->state_count));
    SL_TRY(make_inputs(program, lowering));
    SL_TRY(make_outputs(program, lowering));
    SL_TRY(copy_constants(program, lowering));
    SL_TRY(copy_names(program, lowering));
    for (int i = 0; i < info->param_count; i++) {
        info->param_bytes += info->params[i].bytes;
        info->grad_bytes += info->params[i].grad_bytes;
    }
    info->saved_i_bytes = program->plan.saved_i_bytes;
    info->saved_w_bytes = program->plan.saved_w_bytes;
    info->kept_bytes = program->plan.kept_bytes;
    info->packed_bytes = program->plan.packed_bytes;
    add_costs(program);
done:
    return status;
}

sl_status sl_stage_program_create(const sl_partition *partition, int stage, sl_device *device,
                                  const sl_program_options *options, sl_stage_program **out)
{
    sl_status status = SL_OK;
    sl_stage_program *program = NULL;
    const sl_program_options defaults = { .recompute = NULL };
    options = options ? options : &defaults;
    if (stage < 0 || stage >= partition->stage_count)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d of a partition into %d", stage, partition->stage_count);
    if (options->grad_dtype && !sl_dtype_is_floating(*options->grad_dtype))
        return sl_fail(SL_ERR_ARGUMENT, "gradients cannot be %s", sl_dtype_name(*options->grad_dtype));
    sl_lowering lowering = { .graph = partition->graph,
                             .part = &partition->parts[stage],
                             .forward_only = options->forward_only,
                             .beside_flops = options->beside_flops,
                             .grad_dtype = options->grad_dtype };
    SL_TRY(SL_NEW(program));
    SL_TRY(sl_arena_create(&program->arena));
    program->info.stage = stage;
    program->info.stage_count = partition->stage_count;
    SL_TRY(sl_lower_stage(&lowering));
    if (options->recompute_count > 0 && !options->forward_only)
        SL_TRY(sl_lower_recompute(&lowering, options->recompute, options->recompute_count));
    if (options->fusion == SL_FUSION_ALL ||
        (options->fusion == SL_FUSION_AUTO && sl_device_get_kind(device) == SL_DEVICE_CUDA))
        SL_TRY(sl_lower_fuse(&lowering));
    SL_TRY(sl_program_plan_make(&lowering, device, &program->plan));
    if (options->pack_weights)
        SL_TRY(sl_program_plan_pack(&lowering, device, &program->plan));
    SL_TRY(fill_info(program, &lowering));
    *out = program;
    program = NULL;
done:
    sl_lowering_clear(&lowering);
    sl_stage_program_destroy(program);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "stage %d", stage);
}

void sl_stage_program_destroy(sl_stage_program *program)
{
    if (!program)
        return;
    sl_program_plan_clear(&program->plan);
    sl_arena_destroy(program->arena);
    sl_free(program);
}

const sl_program_info *sl_stage_program_info(const sl_stage_program *program)
{
    return &program->info;
}
