/* What the plan predicts: memory of each rank from the stages' programs, time of a step from rates measured here. */
#include "train/plan.h"

#include "nn/family.h"

#include "base/alloc.h"
#include "base/units.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Seconds of work: flops / flops_per_s + bytes / bytes_per_s. */
typedef struct machine_rates {
    double flops_per_s, bytes_per_s;
} machine_rates;

/* ---- Rates ----------------------------------------------------------------------------------- */

/* The best of a few runs of one kernel call, in seconds. */
static sl_status time_call(sl_stream *stream, const sl_kernel_call *call, double *out)
{
    sl_status status = SL_OK;
    double best = 1e9, end = sl_now() + 5e-3; /* long enough that a busy machine leaves it a whole turn */
    for (int i = 0; i < 5 || (i < 1000 && sl_now() < end); i++) {
        double start = sl_now();
        SL_TRY(sl_kernel_run(stream, call));
        SL_TRY(sl_stream_synchronize(stream));
        double seconds = sl_now() - start;
        best = seconds < best ? seconds : best;
    }
    *out = best;
done:
    return status;
}

static sl_view view_of(void *data, int64_t rows, int64_t columns)
{
    return (sl_view){ .data = data, .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ rows, columns }) };
}

/* A matrix product as wide as the model's, and a copy that no cache holds. */
static sl_status measure_rates(sl_device *device, int64_t rows, int64_t width, machine_rates *out)
{
    enum { COPY_ROWS = 4096, COPY_COLUMNS = 1024 };
    sl_status status = SL_OK;
    sl_stream *stream = NULL;
    float *block = NULL, *scratch = NULL;
    double seconds = 0;
    rows = rows < 512 ? rows : 512;
    width = width < 1024 ? width : 1024;
    int64_t copy = (int64_t)COPY_ROWS * COPY_COLUMNS, product = rows * width + width * width + rows * width;
    SL_TRY(sl_stream_create(device, &stream));
    SL_TRY(sl_device_alloc(device, (size_t)(2 * copy > product ? 2 * copy : product) * sizeof *block, (void **)&block));
    SL_TRY(sl_stream_memset(stream, block, 0, (size_t)(2 * copy > product ? 2 * copy : product) * sizeof *block));

    const sl_view inputs[] = { view_of(block, rows, width), view_of(block + rows * width, width, width) };
    const sl_view output = view_of(block + rows * width + width * width, rows, width);
    sl_kernel_call call = { .op = SL_OP_LINEAR,
                            .attrs = { .transpose_w = true },
                            .inputs = inputs,
                            .input_count = 2,
                            .outputs = &output,
                            .output_count = 1 };
    SL_TRY(sl_kernel_scratch(device, &call, &call.scratch_bytes));
    SL_TRY(sl_device_alloc(device, call.scratch_bytes, (void **)&scratch));
    call.scratch = scratch;
    SL_TRY(time_call(stream, &call, &seconds));
    out->flops_per_s = 2.0 * (double)(rows * width) * (double)width / seconds;

    const sl_view from = view_of(block, COPY_ROWS, COPY_COLUMNS), to = view_of(block + copy, COPY_ROWS, COPY_COLUMNS);
    const sl_kernel_call move = {
        .op = SL_OP_COPY, .inputs = &from, .input_count = 1, .outputs = &to, .output_count = 1
    };
    SL_TRY(time_call(stream, &move, &seconds));
    out->bytes_per_s = 2.0 * (double)copy * sizeof *block / seconds;
done:
    sl_device_free(device, scratch);
    sl_device_free(device, block);
    sl_stream_destroy(stream);
    return status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static double port_bytes(const sl_port *ports, int count, bool inner_only)
{
    double bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += inner_only && ports[i].root ? 0 : (double)ports[i].bytes;
    return bytes;
}

/* A head that shares the embedding's values on the same rank has a gradient but no values and no state of its own. */
static bool shares_values(const sl_train_plan *plan, const char *param)
{
    return plan->tied && strcmp(param, plan->head) == 0 &&
           plan->stages[plan->embedding_stage].rank == plan->stages[plan->head_stage].rank;
}

/* Copies of a rank's state beside its own: the one that is written to disk, and two in the launcher's memory. */
static int snapshots(const sl_train_config *config)
{
    return config->checkpoint.memory > 0 ? 3 : 1;
}

static void add_stage(sl_train_plan *plan, int s, const sl_program_info *info, double *scratch)
{
    sl_plan_stage *stage = &plan->stages[s];
    sl_plan_memory *memory = &plan->memory[stage->rank];
    const sl_optim_options optim = sl_plan_optim_options(plan->config);
    for (int i = 0; i < info->param_count; i++) {
        const sl_port *port = &info->params[i];
        int64_t elements = (int64_t)(port->bytes / sl_dtype_size(port->dtype));
        double state = (double)sl_optim_state_bytes(&optim, port->dtype, elements);
        memory->grads += (double)port->grad_bytes;
        if (!plan->tied || strcmp(port->name, plan->head) != 0) { /* the embedding stands for both in files */
            stage->params += elements;
            memory->checkpoint += ((double)port->bytes + state) * snapshots(plan->config);
        }
        if (shares_values(plan, port->name))
            continue;
        memory->params += (double)port->bytes;
        memory->optimizer += state;
    }
    double slot = (double)info->saved_i_bytes + (double)info->saved_w_bytes;
    if (sl_schedule_has_kind(plan->schedule, SL_KIND_W))
        slot += (double)info->kept_bytes;
    slot += port_bytes(info->outputs, info->output_count, false) + port_bytes(info->inputs, info->input_count, true);
    memory->activations += slot * stage->slots + (double)info->constant_bytes;
    for (int phase = 0; phase < SL_PHASE_COUNT; phase++) {
        double bytes = (double)info->scratch_bytes[phase];
        scratch[stage->rank] = bytes > scratch[stage->rank] ? bytes : scratch[stage->rank];
    }
}

static void finish_memory(sl_train_plan *plan, const double *scratch)
{
    for (int r = 0; r < plan->config->parallel.pp; r++) {
        sl_plan_memory *memory = &plan->memory[r];
        memory->activations += scratch[r];
        memory->total = memory->params + memory->grads + memory->optimizer + memory->activations + memory->checkpoint;
    }
}

/* Of the machine, or of the container that this runs in. */
static double machine_memory(void)
{
    static const char *const limits[] = { "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes" };
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        FILE *file = fopen(limits[i], "re");
        double limit = 0;
        if (file && fscanf(file, "%lf", &limit) == 1 && limit > 0 && limit < bytes) /* "max": none */
            bytes = limit;
        if (file)
            fclose(file);
    }
    return bytes;
}

static sl_status check_memory(const sl_train_plan *plan)
{
    const sl_train_config *config = plan->config;
    double limit = config->parallel.memory_gb * 1e9, sum = 0;
    char needed[32], given[32];
    for (int r = 0; r < config->parallel.pp; r++) {
        double total = plan->memory[r].total;
        sum += total * (double)config->parallel.dp;
        if (limit > 0 && total > limit)
            return sl_train_config_fail(config, "parallel.memory_gb", "rank %d needs %s, the limit is %s", r,
                                        sl_bytes_text(total, needed, sizeof needed),
                                        sl_bytes_text(limit, given, sizeof given));
    }
    if (limit == 0 && sum > machine_memory())
        return sl_train_config_fail(config, "parallel.memory_gb",
                                    "all ranks need %s, this machine has %s (if the ranks run on several machines, "
                                    "give the limit of one rank)",
                                    sl_bytes_text(sum, needed, sizeof needed),
                                    sl_bytes_text(machine_memory(), given, sizeof given));
    return SL_OK;
}

/* ---- Time ------------------------------------------------------------------------------------ */

static double seconds_of(const machine_rates *rates, sl_cost cost)
{
    return cost.flops / rates->flops_per_s + cost.bytes / rates->bytes_per_s;
}

static sl_status simulate(sl_train_plan *plan, const sl_stage_cost *costs, const machine_rates *rates)
{
    sl_status status = SL_OK;
    sl_timeline *timeline = NULL;
    sl_costs all;
    sl_costs_init(&all);
    all.stages = costs;
    all.edge_sizes = plan->edge_bytes;
    all.bandwidth = rates->bytes_per_s;
    SL_TRY(sl_schedule_simulate(plan->schedule, &all, plan->edges, plan->edge_count, &timeline));
    plan->step_seconds = sl_timeline_makespan(timeline);
    plan->bubble = sl_timeline_bubble(timeline, -1);
    /* Ranks that share cores cannot all run at once. */
    double ranks = (double)(plan->config->parallel.pp * plan->config->parallel.dp);
    double cores = (double)sysconf(_SC_NPROCESSORS_ONLN) / (double)plan->config->parallel.threads;
    double work = plan->step_seconds * (1 - plan->bubble) * ranks / cores;
    if (work > plan->step_seconds)
        plan->step_seconds = work;
done:
    sl_timeline_destroy(timeline);
    return status;
}

static sl_status make_programs(sl_train_plan *plan, sl_device *device, sl_stage_program **programs)
{
    const sl_train_config *config = plan->config;
    const sl_program_options options = { .recompute = plan->recompute.items,
                                         .recompute_count = (int)plan->recompute.count };
    for (int s = 0; s < plan->stage_count; s++) {
        sl_status status = sl_stage_program_create(plan->partitions[0], s, device, &options, &programs[s]);
        if (status != SL_OK && options.recompute_count > 0)
            return sl_train_config_fail(config, "parallel.recompute", "%s", sl_error_message());
        if (status != SL_OK)
            return status;
        const sl_program_info *info = sl_stage_program_info(programs[s]);
        for (int i = 0; i < info->param_count; i++) {
            if (strcmp(info->params[i].name, plan->embedding) == 0)
                plan->embedding_stage = s;
            if (strcmp(info->params[i].name, plan->head) == 0)
                plan->head_stage = s;
        }
    }
    return SL_OK;
}

sl_status sl_plan_predict(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_stage_program **programs = NULL;
    sl_stage_cost *costs = NULL;
    double *scratch = NULL;
    machine_rates rates;
    const sl_train_config *config = plan->config;
    const sl_device_options device_options = { .threads = (int)config->parallel.threads };
    SL_TRY(SL_ARENA_ARRAY(plan->arena, plan->memory, config->parallel.pp));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, scratch, config->parallel.pp));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, costs, plan->stage_count));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, programs, plan->stage_count));
    SL_TRY(sl_device_open("cpu", &device_options, &device));
    SL_TRY(measure_rates(device, plan->sizes[0] * config->batch.seq, sl_nn_int(&plan->model, "n_embd", 1), &rates));
    SL_TRY(make_programs(plan, device, programs));
    for (int s = 0; s < plan->stage_count; s++) {
        const sl_program_info *info = sl_stage_program_info(programs[s]);
        sl_stage_cost *cost = &costs[s];
        add_stage(plan, s, info, scratch);
        cost->f = seconds_of(&rates, info->cost[SL_PHASE_F]);
        cost->i = seconds_of(&rates, info->cost[SL_PHASE_I]);
        cost->w = seconds_of(&rates, info->cost[SL_PHASE_W]);
        cost->b = seconds_of(&rates, info->cost[SL_PHASE_B]);
        plan->stages[s].seconds = cost->f + cost->b;
        plan->flops +=
            plan->stages[s].cost.flops * (double)plan->rows / (double)plan->sizes[0] * (double)config->parallel.dp;
    }
    finish_memory(plan, scratch);
    SL_TRY(check_memory(plan));
    SL_TRY(simulate(plan, costs, &rates));
done:
    for (int s = 0; programs && s < plan->stage_count; s++)
        sl_stage_program_destroy(programs[s]);
    sl_device_close(device);
    return status;
}
