/* Costs of units from their programs: bytes, and seconds at the cluster's rates. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "graph/program.h"

#include <math.h>

sl_status sl_tune_build_unit(const tune_model *model, const sl_graph *graph, int unit, const tune_costs *costs,
                             sl_device *device, sl_stage_program **program)
{
    sl_status status = SL_OK;
    sl_partition *partition = NULL;
    int cuts[2], count = 0, stage = unit > 0;
    if (unit > 0)
        cuts[count++] = model->units[unit].first;
    if (unit + 1 < model->unit_count)
        cuts[count++] = model->units[unit + 1].first;
    const sl_split_spec spec = { .kind = count > 0 ? SL_SPLIT_NODES : SL_SPLIT_WHOLE,
                                 .nodes = cuts,
                                 .node_count = count };
    const sl_dtype grad_dtype = (sl_dtype)model->config->precision.grad;
    const sl_program_options options = { .recompute = &model->recompute[costs->recompute],
                                         .recompute_count = costs->recompute > 0 ? 1 : 0,
                                         .grad_dtype = &grad_dtype,
                                         .pack_weights = costs->packs };
    SL_TRY(sl_graph_partition(graph, &spec, &partition));
    SL_TRY(sl_stage_program_create(partition, stage, device, &options, program));
done:
    sl_partition_destroy(partition);
    return status;
}

static tune_cost cost_of(const sl_stage_program *program, const sl_cluster *cluster)
{
    const sl_program_info *info = sl_stage_program_info(program);
    const sl_rates rates = { .flops_per_s = cluster->flops_per_s,
                             .bytes_per_s = cluster->bytes_per_s,
                             .kernel_seconds = cluster->kernel_seconds };
    double seconds[SL_PHASE_COUNT], scratch = 0;
    for (int p = 0; p < SL_PHASE_COUNT; p++) {
        seconds[p] = sl_program_seconds(program, (sl_phase)p, &rates);
        scratch = fmax(scratch, (double)info->scratch_bytes[p]);
    }
    tune_cost cost = { .f = seconds[SL_PHASE_F],
                       .i = seconds[SL_PHASE_I],
                       .w = seconds[SL_PHASE_W],
                       .b = seconds[SL_PHASE_B],
                       .until_i = (double)info->saved_i_bytes,
                       .until_w = (double)info->saved_w_bytes,
                       .kept = (double)info->kept_bytes,
                       .scratch = scratch,
                       .params = (double)info->param_bytes,
                       .grads = (double)info->grad_bytes,
                       .kernels = info->instruction_count[SL_PHASE_F] + info->instruction_count[SL_PHASE_B] };
    for (int i = 0; i < info->param_count; i++) {
        int64_t count = 1;
        for (int d = 0; d < info->params[i].shape.rank; d++)
            count *= info->params[i].shape.dims[d];
        cost.elements += (double)count;
    }
    for (int i = 0; i < info->input_count; i++) {
        const sl_port *port = &info->inputs[i];
        if (port->root)
            continue;
        cost.input += (double)port->bytes;
        cost.until_i += port->last_use == SL_PHASE_I ? (double)port->bytes : 0;
        cost.until_w += port->last_use == SL_PHASE_W ? (double)port->bytes : 0;
    }
    for (int i = 0; i < info->output_count; i++) {
        const sl_port *port = &info->outputs[i];
        cost.kept += port->has_grad && port->grad_last_use == SL_PHASE_W ? (double)port->bytes : 0;
    }
    return cost;
}

sl_status sl_tune_count_costs(const tune_model *model, const sl_cluster *cluster, tune_costs *costs)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    sl_device *device = NULL;
    sl_stage_program *program = NULL;
    const sl_device_options options = { .threads = (int)model->config->parallel.threads };
    sl_model_shape shape;
    SL_TRY(sl_tune_shape(model->plan, costs->rows, &shape));
    SL_TRY(sl_device_open(model->plan->device, &options, &device));
    SL_TRY(sl_model_build(&model->plan->graph_model, SL_MODE_TRAIN, &shape, &graph));
    SL_TRY(SL_ARENA_ARRAY(model->arena, costs->kinds, model->kind_count));
    for (int kind = 0; kind < model->kind_count; kind++) {
        SL_TRY(sl_tune_build_unit(model, graph, model->samples[kind], costs, device, &program));
        costs->kinds[kind] = cost_of(program, cluster);
        sl_stage_program_destroy(program);
        program = NULL;
    }
done:
    sl_stage_program_destroy(program);
    sl_graph_destroy(graph);
    sl_device_close(device);
    return status;
}
