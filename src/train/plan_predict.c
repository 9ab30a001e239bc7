/* What the plan predicts: memory of each rank from the stages' programs, time of a step from rates measured here. */
#include "train/config_keys.h"
#include "train/plan.h"

#include "nn/family.h"

#include "base/alloc.h"
#include "base/units.h"
#include "comm/carrier.h"
#include "comm/device_words.h"
#include "comm/environment.h"
#include "pipeline/pipeline.h"
#include "runtime/runtime.h"
#include "runtime/stage.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* A matrix that begins so many elements into the block. */
static sl_view view_of(void *block, sl_dtype dtype, int64_t first, int64_t rows, int64_t columns)
{
    return (sl_view){ .data = (char *)block + (size_t)first * sl_dtype_size(dtype),
                      .meta = sl_meta_make(dtype, 2, (int64_t[]){ rows, columns }) };
}

sl_status sl_plan_measure_rates(sl_device *device, sl_dtype dtype, int64_t rows, int64_t width, sl_rates *out)
{
    enum { COPY_ROWS = 4096, COPY_COLUMNS = 1024 };
    sl_status status = SL_OK;
    sl_stream *stream = NULL;
    void *block = NULL, *scratch = NULL;
    double seconds = 0;
    const sl_gpu_model *model = sl_device_get_model(device);
    out->adds_up = true; /* this comes nearest to what steps take on an H200 */
    out->kernel_seconds = sl_device_get_kind(device) == SL_DEVICE_CUDA ? SL_GPU_KERNEL_SECONDS : 0;
    if (model) {
        out->flops_per_s = SL_GPU_REACHED_FLOPS * (dtype == SL_BF16 ? model->bf16_flops : model->f32_flops);
        out->bytes_per_s = SL_GPU_REACHED_BYTES * model->bytes_per_s;
        return SL_OK;
    }
    rows = rows < 512 ? rows : 512;
    width = width < 1024 ? width : 1024;
    int64_t copy = (int64_t)COPY_ROWS * COPY_COLUMNS, product = rows * width + width * width + rows * width;
    size_t bytes = (size_t)(2 * copy > product ? 2 * copy : product) * sizeof(float);
    SL_TRY(sl_stream_create(device, &stream));
    SL_TRY(sl_device_alloc(device, bytes, &block));
    SL_TRY(sl_stream_memset(stream, block, 0, bytes));

    const sl_view inputs[] = { view_of(block, dtype, 0, rows, width),
                               view_of(block, dtype, rows * width, width, width) };
    const sl_view output = view_of(block, dtype, rows * width + width * width, rows, width);
    sl_kernel_call call = { .op = SL_OP_LINEAR,
                            .attrs = { .transpose_w = true },
                            .inputs = inputs,
                            .input_count = 2,
                            .outputs = &output,
                            .output_count = 1 };
    SL_TRY(sl_kernel_scratch(device, &call, &call.scratch_bytes));
    SL_TRY(sl_device_alloc(device, call.scratch_bytes, &scratch));
    call.scratch = scratch;
    SL_TRY(time_call(stream, &call, &seconds));
    out->flops_per_s = 2.0 * (double)(rows * width) * (double)width / seconds;

    const sl_view from = view_of(block, SL_F32, 0, COPY_ROWS, COPY_COLUMNS);
    const sl_view to = view_of(block, SL_F32, copy, COPY_ROWS, COPY_COLUMNS);
    const sl_kernel_call move = {
        .op = SL_OP_COPY, .inputs = &from, .input_count = 1, .outputs = &to, .output_count = 1
    };
    SL_TRY(time_call(stream, &move, &seconds));
    out->bytes_per_s = 2.0 * (double)sl_meta_bytes(&from.meta) / seconds;
done:
    sl_device_free(device, scratch);
    sl_device_free(device, block);
    sl_stream_destroy(stream);
    return status;
}

/* ---- Stages ---------------------------------------------------------------------------------- */

sl_status sl_plan_build_stage(const sl_train_plan *plan, int s, sl_device *device, sl_stage **out)
{
    sl_status status = SL_OK;
    sl_stage *stage = NULL;
    sl_stage_desc desc;
    const sl_dtype grad_dtype = (sl_dtype)plan->config->precision.grad;
    const sl_program_options options = { .recompute = plan->recompute.items,
                                         .recompute_count = (int)plan->recompute.count,
                                         .grad_dtype = &grad_dtype,
                                         .pack_weights = plan->pack_weights,
                                         .beside_flops = plan->beside ? SL_GPU_BESIDE_FLOPS : 0 };
    SL_TRY(
        sl_stage_build((const sl_partition *const *)plan->partitions, plan->size_count, s, device, &options, &stage));
    sl_stage_describe(stage, &desc);
    for (int i = 0; plan->tied && i < desc.weight_count; i++) {
        if (strcmp(desc.weights[i].name, plan->head) == 0)
            SL_TRY(sl_stage_tie_param(stage, plan->head, plan->embedding));
    }
    *out = stage;
    stage = NULL;
done:
    sl_stage_destroy(stage);
    return status;
}

/* What the plan needs to know of a stage; the stage itself, which is large, is made only to be asked. */
typedef struct stage_facts {
    const sl_rates *rates;
    sl_stage_desc *descs;
    sl_stage_cost *costs;
} stage_facts;

static sl_status describe_stage(const sl_train_plan *plan, int s, sl_device *device, sl_arena *arena,
                                stage_facts *facts)
{
    sl_status status = SL_OK;
    sl_stage *stage = NULL;
    SL_TRY(sl_plan_build_stage(plan, s, device, &stage));
    sl_stage_describe(stage, &facts->descs[s]);
    SL_TRY(sl_stage_desc_copy(arena, &facts->descs[s]));
    for (int phase = 0; phase < SL_PHASE_COUNT; phase++)
        plan->launches[s][phase] = sl_stage_phase_launches(stage, (sl_phase)phase);
    facts->costs[s].f = sl_stage_phase_seconds(stage, SL_PHASE_F, facts->rates);
    facts->costs[s].i = sl_stage_phase_seconds(stage, SL_PHASE_I, facts->rates);
    facts->costs[s].w = sl_stage_phase_seconds(stage, SL_PHASE_W, facts->rates);
    facts->costs[s].b = sl_stage_phase_seconds(stage, SL_PHASE_B, facts->rates);
done:
    sl_stage_destroy(stage);
    return status;
}

static sl_status describe_stages(sl_train_plan *plan, sl_device *device, sl_arena *arena, stage_facts *facts)
{
    sl_status status = SL_OK;
    SL_TRY(SL_ARENA_ARRAY(arena, facts->descs, plan->stage_count));
    SL_TRY(SL_ARENA_ARRAY(arena, facts->costs, plan->stage_count));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, plan->launches, plan->stage_count));
    for (int s = 0; s < plan->stage_count; s++) {
        status = describe_stage(plan, s, device, arena, facts);
        if (status != SL_OK && status != SL_ERR_MEMORY && plan->recompute.count > 0)
            return sl_train_config_fail(plan->config, "parallel.recompute", "%s", sl_error_message());
        SL_TRY(status);
    }
done:
    return status;
}

int sl_plan_args(const sl_train_plan *plan, sl_arg_spec args[SL_PLAN_ARGS])
{
    static const char *const names[SL_PLAN_ARGS] = { "tokens", "targets", "positions" };
    int count = plan->config->data.documents ? SL_PLAN_ARGS : SL_PLAN_ARGS - 1;
    for (int i = 0; i < count; i++)
        args[i] = (sl_arg_spec){ .name = names[i],
                                 .meta = sl_meta_make(SL_I32, 2, (int64_t[]){ plan->rows, plan->config->batch.seq }) };
    return count;
}

/* Ranks that mpirun and its like started may be on several machines, or see a GPU each. */
static bool are_on_one_machine(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK &&
           (environment.started_by == SL_STARTED_ALONE || environment.started_by == SL_STARTED_BY_SLUICE);
}

/* Whether the ranks of a pipeline are several and all have the same device. */
static bool have_one_device(const sl_train_plan *plan, const sl_device *device)
{
    return plan->config->parallel.pp > 1 && (plan->threads || (device->pool == 1 && are_on_one_machine()));
}

/* Whether two ranks of a pipeline have the same device: ranks take the devices in turn. */
static bool share_device(const sl_train_plan *plan, const sl_device *device)
{
    int apart = (int)plan->config->parallel.dp;
    for (int r = apart; r < sl_train_plan_ranks(plan) && device->pool > 0; r += apart) {
        if (r % device->pool == 0)
            return are_on_one_machine();
    }
    return false;
}

/* As the runtime will. */
static sl_message_place choose_messages(const sl_train_plan *plan, const sl_device *device)
{
    const sl_rank_offer offer = { .queues = device->queues,
                                  .neighbors = plan->threads ? sl_train_plan_ranks(plan) : 1 };
    int32_t wish = SL_LINKS_NONE;
    bool links = sl_links_read_wish(&wish) == SL_OK && (wish == SL_LINKS_UNSAID || wish == SL_LINKS_ANY);
    bool in_place = links && have_one_device(plan, device) && plan->offload == 0 && !sl_rank_queue_obstacle(&offer);
    return sl_device_is_host(device) ? SL_MESSAGES_ON_HOST : in_place ? SL_MESSAGES_ON_DEVICE : SL_MESSAGES_STAGED;
}

/* As the runtime will. */
static sl_status choose_overlap(const sl_train_plan *plan, const sl_device *device, bool *out)
{
    sl_overlap_wish wish = SL_OVERLAP_UNSAID;
    bool share_queues = plan->threads && sl_train_plan_ranks(plan) > 1;
    if (sl_overlap_read_switch(&wish) != SL_OK)
        return sl_fail_context(SL_ERR_ARGUMENT, "plan");
    *out = !sl_device_is_host(device) && !share_queues && wish != SL_OVERLAP_OFF &&
           (wish == SL_OVERLAP_ON || !share_device(plan, device));
    return SL_OK;
}

static sl_status compile(sl_train_plan *plan, const sl_device *device, const sl_stage_desc *descs)
{
    sl_status status = SL_OK;
    bool overlaps = false;
    const sl_train_config *config = plan->config;
    sl_arg_spec args[SL_PLAN_ARGS];
    int arg_count = sl_plan_args(plan, args);
    SL_TRY(choose_overlap(plan, device, &overlaps));
    const sl_pipeline_options options = { .schedule = plan->schedule,
                                          .stages = descs,
                                          .stage_count = plan->stage_count,
                                          .args = args,
                                          .arg_count = arg_count,
                                          .replicas = (int)config->parallel.dp,
                                          .shard = plan->shard,
                                          .shard_group = plan->shard == SL_SHARD_NONE ? 0 : plan->shard_group,
                                          .unsharded_stages = plan->unsharded,
                                          .offload_bytes = plan->offload,
                                          .overlaps = overlaps,
                                          .messages = choose_messages(plan, device) };
    status = sl_pipeline_compile(&options, &plan->pipeline);
    if (status == SL_ERR_SCHEDULE)
        return sl_train_config_context(config, "parallel.schedule", status);
done:
    return status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* A parameter and its state in a checkpoint's snapshot. */
static size_t snapshot_bytes(const sl_optim_options *optim, const sl_meta *meta, bool frozen)
{
    size_t sizes[SL_OPTIM_MAX_SAVED], bytes = 0;
    if (frozen)
        return sl_snapshot_bytes(sl_meta_bytes(meta));
    for (int i = sl_optim_saved_sizes(optim, meta->dtype, sl_meta_count(meta), sizes); i > 0; i--)
        bytes += sl_snapshot_bytes(sizes[i - 1]);
    return bytes;
}

/* The optimizer's state of one rank's parameters, and the snapshot of those that it writes. rank: of the run. */
static sl_status count_state(sl_train_plan *plan, int rank, sl_device *device)
{
    sl_status status = SL_OK;
    const sl_optim_options optim = sl_plan_optim_options(plan->config);
    const sl_wiring *wiring = plan->pipeline->wiring;
    sl_plan_memory *memory = &plan->memory[rank];
    sl_meta *updated = NULL, *counted = NULL;
    int count = 0, stage_rank = rank / wiring->replicas, replica = rank % wiring->replicas;
    bool embedding = false; /* seen on this rank: a head here shares its values */
    for (int s = 0; s < plan->stage_count; s++)
        count += plan->stages[s].rank == stage_rank ? wiring->stages[s].weight_count : 0;
    SL_TRY(SL_NEW_ARRAY(updated, count));
    SL_TRY(SL_NEW_ARRAY(counted, count));
    count = 0;
    for (int s = 0; s < plan->stage_count; s++) {
        for (int i = 0; plan->stages[s].rank == stage_rank && i < wiring->stages[s].weight_count; i++) {
            const sl_wire_weight *weight = &wiring->stages[s].weights[i];
            bool head = plan->tied && strcmp(weight->name, plan->head) == 0;
            embedding |= plan->tied && strcmp(weight->name, plan->embedding) == 0;
            sl_meta own = weight->meta;
            if (plan->shard != SL_SHARD_NONE) {
                int64_t elements = sl_shard_range(weight->shardings.updated, replica).count;
                own = sl_meta_make(own.dtype, 1, &elements);
            }
            if (!head && replica < plan->shard_group && sl_meta_count(&own) > 0) /* a head is in files as embedding */
                memory->checkpoint += snapshot_bytes(&optim, &own, weight->frozen);
            if ((head && embedding) || weight->frozen)
                continue;
            int64_t part = sl_shard_range(weight->shardings.counted, wiring->part_of[replica]).count;
            counted[count] = sl_meta_make(weight->grad_meta.dtype, 1, &part);
            updated[count++] = own;
        }
    }
    SL_TRY(sl_optim_device_bytes(&optim, device, updated, counted, count, &memory->optimizer));
done:
    sl_free(counted);
    sl_free(updated);
    return status;
}

sl_plan_memory sl_plan_memory_of(const sl_pipeline_memory *memory)
{
    return (sl_plan_memory){ .weights = memory->params,
                             .gradients = memory->grads,
                             .activations =
                                 memory->constants + memory->packed + memory->slots + memory->scratch + memory->inputs,
                             .messages = memory->messages,
                             .offload = memory->offload };
}

void sl_plan_memory_sum(sl_plan_memory *memory)
{
    size_t near = memory->weights + memory->gradients + memory->optimizer + memory->activations + memory->context;
    memory->total = near + memory->messages + memory->checkpoint + memory->offload;
    memory->device = memory->context > 0 ? near : 0;
}

/* What the driver of a GPU keeps of a step that is launched as one piece. */
static size_t graph_bytes(const sl_train_plan *plan, int stage_rank, const sl_device *device)
{
    sl_pipeline_program program = sl_pipeline_get_program(plan->pipeline, stage_rank, true);
    size_t launches = 0;
    for (int64_t i = 0; i < program.instr_count; i++) {
        const sl_pipeline_instr *instr = &program.instrs[i];
        if (instr->code == SL_CODE_RUN)
            launches += (size_t)plan->launches[instr->stage][instr->phase];
    }
    return launches * sl_device_get_memory(device).launch;
}

static sl_status count_memory(sl_train_plan *plan, sl_device *device)
{
    sl_status status = SL_OK;
    sl_carrier_name carrier;
    for (int r = 0; r < sl_train_plan_ranks(plan); r++) {
        sl_pipeline_memory memory = sl_pipeline_get_memory(plan->pipeline, r / (int)plan->config->parallel.dp);
        plan->memory[r] = sl_plan_memory_of(&memory);
        plan->memory[r].context =
            sl_device_get_memory(device).context + graph_bytes(plan, r / (int)plan->config->parallel.dp, device);
        if (sl_carrier_is_expected(device, &carrier))
            plan->memory[r].messages +=
                sl_runtime_carrier_bytes(plan->pipeline, r / (int)plan->config->parallel.dp, carrier);
        SL_TRY(count_state(plan, r, device));
        sl_plan_memory_sum(&plan->memory[r]);
    }
done:
    return status;
}

static int most_stages_of_a_rank(const sl_train_plan *plan)
{
    int most = 0;
    for (int r = 0; r < plan->config->parallel.pp; r++) {
        int count = 0;
        for (int s = 0; s < plan->stage_count; s++)
            count += plan->stages[s].rank == r;
        most = count > most ? count : most;
    }
    return most;
}

static void leave_unpacked(sl_train_plan *plan, sl_stage_desc *descs)
{
    plan->pack_weights = false;
    for (int s = 0; s < plan->stage_count; s++)
        descs[s].packed_bytes = 0;
}

static sl_status compile_again(sl_train_plan *plan, sl_device *device, const sl_stage_desc *descs)
{
    sl_status status = SL_OK;
    sl_pipeline_destroy(plan->pipeline);
    plan->pipeline = NULL;
    SL_TRY(compile(plan, device, descs));
    SL_TRY(count_memory(plan, device));
done:
    return status;
}

/* As parallel.offload says. A run that does not fit otherwise (auto) keeps as little on the host as makes it fit: a share of
 * all that would lie idle. */
static sl_status choose_offload(sl_train_plan *plan, sl_device *device, const sl_stage_desc *descs)
{
    sl_status status = SL_OK;
    enum { SHARES = 8 };
    size_t most = 0;
    bool automatic = strcmp(plan->config->parallel.offload, "auto") == 0;
    if (!automatic || sl_device_get_memory(device).context == 0 || sl_train_plan_fits(plan))
        return SL_OK;
    plan->offload = SIZE_MAX / 2;
    SL_TRY(compile_again(plan, device, descs));
    if (!sl_train_plan_fits(plan)) { /* it does not help */
        plan->offload = 0;
        return compile_again(plan, device, descs);
    }
    for (int r = 0; r < sl_train_plan_ranks(plan); r++)
        most = plan->memory[r].offload > most ? plan->memory[r].offload : most;
    for (size_t share = 1; share <= SHARES; share++) {
        plan->offload = share == SHARES ? most : most / SHARES * share;
        SL_TRY(compile_again(plan, device, descs));
        if (sl_train_plan_fits(plan))
            break;
    }
done:
    return status;
}

/* Bytes that the configuration names; the host's own memory has nowhere to go. */
static sl_status read_offload(sl_train_plan *plan, const sl_device *device)
{
    double bytes = 0;
    sl_status status = sl_config_offload_bytes(plan->config, &bytes);
    if (status != SL_OK)
        return status;
    if (bytes > 0 && sl_device_is_host(device))
        return sl_train_config_fail(plan->config, "parallel.offload", "activations on the %s are on the host already",
                                    sl_device_name(device));
    plan->offload = bytes < 0x1p62 ? (size_t)bytes : (size_t)1 << 62;
    return SL_OK;
}

/* Compiles it. Weights are packed if that fits. With full shards as many stages are gathered at once as fit, unless the
 * configuration says how many. */
static sl_status choose_pipeline(sl_train_plan *plan, sl_device *device, sl_stage_desc *descs)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    bool full = plan->shard == SL_SHARD_FULL;
    SL_TRY(read_offload(plan, device));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, plan->memory, sl_train_plan_ranks(plan)));
    plan->unsharded = full ? (int)config->parallel.unsharded : 0;
    bool choose = full && plan->unsharded == 0;
    if (choose)
        plan->unsharded = most_stages_of_a_rank(plan);
    for (;;) {
        SL_TRY(compile(plan, device, descs));
        SL_TRY(count_memory(plan, device));
        bool fits = sl_train_plan_fits(plan);
        if (fits || (!plan->pack_weights && (!choose || plan->unsharded == 1)))
            return SL_OK;
        if (plan->pack_weights)
            leave_unpacked(plan, descs);
        else
            plan->unsharded--;
        sl_pipeline_destroy(plan->pipeline);
        plan->pipeline = NULL;
    }
done:
    return status;
}

/* Stages and pipeline; what only saves time is left out if there is no memory for it. */
static sl_status choose_memory(sl_train_plan *plan, sl_device *device, sl_arena *arena, stage_facts *facts)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    plan->beside = sl_device_get_kind(device) == SL_DEVICE_CUDA && config->parallel.pp == 1 && config->parallel.dp == 1;
    for (;; plan->beside = false) {
        plan->pack_weights = sl_schedule_microbatches(plan->schedule) > 1;
        SL_TRY(describe_stages(plan, device, arena, facts));
        SL_TRY(choose_pipeline(plan, device, facts->descs));
        if (!plan->beside || sl_train_plan_fits(plan))
            return SL_OK;
        sl_pipeline_destroy(plan->pipeline);
        plan->pipeline = NULL;
    }
done:
    return status;
}

/* ---- Time ------------------------------------------------------------------------------------ */

static sl_status simulate(sl_train_plan *plan, sl_stage_cost *costs, const sl_rates *rates)
{
    sl_status status = SL_OK;
    sl_timeline *timeline = NULL;
    sl_costs all;
    sl_costs_init(&all);
    all.stages = costs;
    all.bandwidth = rates->bytes_per_s;
    sl_pipeline_cost_collectives(plan->pipeline, rates->bytes_per_s, costs);
    SL_TRY(sl_pipeline_simulate(plan->pipeline, &all, &timeline));
    plan->step_seconds = sl_timeline_makespan(timeline);
    plan->bubble = sl_timeline_bubble(timeline, -1);
    /* Ranks that share cores cannot all run at once. */
    double ranks = (double)(plan->config->parallel.pp * plan->config->parallel.dp);
    double cores = (double)sysconf(_SC_NPROCESSORS_ONLN) / (double)plan->config->parallel.threads;
    double work = plan->step_seconds * (1 - plan->bubble) * ranks / cores;
    if (!plan->gpu && work > plan->step_seconds)
        plan->step_seconds = work;
done:
    sl_timeline_destroy(timeline);
    return status;
}

/* Norm and update of the rank that has most to do: each reads all gradients, the update also reads and writes the
 * optimizer's state and writes the weights. */
static double update_seconds(const sl_train_plan *plan, const sl_rates *rates)
{
    enum { KERNELS = 3 };
    double most = 0;
    for (int r = 0; r < sl_train_plan_ranks(plan); r++) {
        const sl_plan_memory *memory = &plan->memory[r];
        most = fmax(most, 2.0 * (double)memory->gradients + 2.0 * (double)memory->optimizer + (double)memory->weights);
    }
    return most / rates->bytes_per_s + KERNELS * rates->kernel_seconds;
}

/* Copies between a GPU and the host run beside its work, and cost what they take longer than that. */
static void add_offload(const sl_train_plan *plan, sl_stage_cost *costs)
{
    double each = SL_GPU_HOST_BYTES_PER_S * (double)sl_pipeline_microbatches(plan->pipeline);
    for (int s = 0; s < plan->stage_count && plan->offload > 0; s++) {
        double seconds = (double)sl_pipeline_offloaded(plan->pipeline, s) / each;
        costs[s].f = fmax(costs[s].f, seconds);
        costs[s].i = fmax(costs[s].i, seconds);
        costs[s].b = fmax(costs[s].b, seconds);
    }
}

static sl_status predict_time(sl_train_plan *plan, const stage_facts *facts)
{
    sl_status status = SL_OK;
    double rows = (double)plan->rows / (double)plan->sizes[0] * (double)plan->config->parallel.dp;
    for (int s = 0; s < plan->stage_count; s++) {
        plan->stages[s].seconds = facts->costs[s].f + facts->costs[s].b;
        plan->flops += plan->stages[s].cost.flops * rows;
    }
    add_offload(plan, facts->costs);
    SL_TRY(simulate(plan, facts->costs, facts->rates));
    plan->step_seconds += update_seconds(plan, facts->rates);
done:
    return status;
}

/* The embedding stands for a head that is tied to it. */
static void count_params(sl_train_plan *plan, const sl_stage_desc *descs)
{
    for (int s = 0; s < plan->stage_count; s++) {
        for (int i = 0; i < descs[s].weight_count; i++)
            plan->stages[s].params += descs[s].weights[i].tie ? 0 : sl_meta_count(&descs[s].weights[i].meta);
    }
}

sl_status sl_plan_predict(sl_train_plan *plan, bool timed)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_arena *arena = NULL;
    sl_rates rates = { .flops_per_s = 1, .bytes_per_s = 1 }; /* if nobody asks for the time */
    stage_facts facts = { .rates = &rates };
    const sl_train_config *config = plan->config;
    const sl_device_options device_options = { .threads = (int)config->parallel.threads };
    SL_TRY(sl_arena_create(&arena));
    SL_TRY(sl_device_open(plan->device, &device_options, &device));
    plan->device_total = sl_device_get_memory(device).total;
    plan->gpu = sl_device_get_model(device);
    if (timed)
        SL_TRY(sl_plan_measure_rates(device, (sl_dtype)config->precision.dtype, plan->sizes[0] * config->batch.seq,
                                     sl_nn_int(&plan->model, "n_embd", 1), &rates));
    plan->shard = config->parallel.dp > 1 ? (sl_shard_mode)config->parallel.shard : SL_SHARD_NONE;
    plan->shard_group = plan->shard == SL_SHARD_NONE       ? 1
                        : config->parallel.shard_group > 0 ? (int)config->parallel.shard_group
                                                           : (int)config->parallel.dp;
    SL_TRY(choose_memory(plan, device, arena, &facts));
    SL_TRY(choose_offload(plan, device, facts.descs));
    count_params(plan, facts.descs);
    if (timed)
        SL_TRY(predict_time(plan, &facts));
done:
    sl_arena_destroy(arena);
    sl_device_close(device);
    return status;
}
