/* Stages of a partitioned graph: the programs of one stage, for one or two sizes of microbatch. */
#include "runtime/stage.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

typedef struct programs {
    sl_stage_program *program[SL_MAX_SIZES];
} programs;

/* Packs the weights for the step's first microbatch that needs them. The programs of both sizes of microbatch pack alike,
 * unless the smaller has too few rows for that. */
static sl_status pack_weights(sl_stage *stage, sl_phase phase, sl_stream *stream, const sl_bindings *bindings)
{
    const programs *own = stage->own;
    bool *done = &stage->is_packed[phase != SL_PHASE_F];
    if (!bindings->packed || *done || phase == SL_PHASE_W)
        return SL_OK;
    sl_status status = sl_stage_program_pack(own->program[0], phase, stream, bindings);
    *done = status == SL_OK;
    return status;
}

static sl_status programs_run(sl_stage *stage, sl_phase phase, const sl_frame *frame, const sl_run_context *context)
{
    const programs *own = stage->own;
    if (stage->state_count > 0 && !stage->state_pointers)
        return sl_fail(SL_ERR_ARGUMENT, "state buffer '%s' has no memory: sl_stage_bind_states gives it some",
                       stage->states[0].name);
    sl_bindings bindings = {
        .params = stage->param_pointers,
        .grads = stage->grad_pointers,
        .overwrite_grads = frame->starts_grads && (!context->keep_grads || context->fresh_grads),
        .inputs = (const void *const *)frame->inputs,
        .outputs = frame->outputs,
        .output_grads = (const void *const *)frame->output_grads,
        .input_grads = frame->input_grads,
        .states = stage->state_pointers,
        .constants = stage->constants[frame->size],
        .saved_i = frame->saved_i,
        .saved_w = frame->saved_w,
        .kept = frame->kept,
        .scratch = context->scratch,
        .rng = context->rng,
        .step_rng = context->step_rng,
        .beside = context->beside,
    };
    bindings.rng.sample_offset = frame->first_sample + (context->step_rng ? 0 : context->rng.sample_offset);
    if (sl_stage_program_info(own->program[frame->size])->packed_bytes == stage->packed_bytes)
        bindings.packed = stage->packed;
    sl_status status = pack_weights(stage, phase, context->stream, &bindings);
    if (status != SL_OK)
        return status;
    return sl_stage_program_run(own->program[frame->size], phase, context->stream, &bindings);
}

static void programs_destroy(sl_stage *stage)
{
    programs *own = stage->own;
    for (int size = 0; own && size < SL_MAX_SIZES; size++)
        sl_stage_program_destroy(own->program[size]);
    sl_free(own);
}

static void programs_constants(const sl_stage *stage, int size, void *host)
{
    const programs *own = stage->own;
    sl_stage_program_constants(own->program[size], host);
}

static double programs_seconds(const sl_stage *stage, sl_phase phase, const sl_rates *rates)
{
    const programs *own = stage->own;
    return sl_program_seconds(own->program[0], phase, rates);
}

static const sl_stage_table programs_table = {
    .run = programs_run,
    .constants = programs_constants,
    .seconds = programs_seconds,
    .destroy = programs_destroy,
    .writes_all_grads = true,
    .shares_nothing = true,
    .starts_grads = true,
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static sl_status take_ports(const sl_port *ports, int count, int size, sl_border_value *values)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++) {
        if (size == 0)
            SL_TRY(sl_strdup(ports[i].name, &values[i].name));
        else if (strcmp(values[i].name, ports[i].name) != 0)
            return sl_fail(SL_ERR_ARGUMENT, "value '%s' of the larger microbatch is '%s' in the smaller",
                           values[i].name, ports[i].name);
        values[i].declared[size] = sl_meta_contiguous(ports[i].dtype, &ports[i].shape);
        values[i].has_grad = ports[i].has_grad;
        if (ports[i].last_use > values[i].last_use)
            values[i].last_use = ports[i].last_use;
        if (ports[i].grad_last_use > values[i].grad_last_use)
            values[i].grad_last_use = ports[i].grad_last_use;
    }
done:
    return status;
}

static sl_status take_weights(sl_stage *stage, const sl_program_info *info, int size)
{
    sl_status status = SL_OK;
    for (int i = 0; i < info->param_count; i++) {
        const sl_port *port = &info->params[i];
        sl_stage_weight *weight = &stage->weights[i];
        sl_meta meta = sl_meta_contiguous(port->dtype, &port->shape);
        if (size == 0) {
            SL_TRY(sl_strdup(port->name, &weight->name));
            weight->meta = meta;
            weight->grad_dtype = port->grad_dtype;
            weight->init = port->init;
            weight->frozen = !stage->can_train || port->frozen;
        } else if (strcmp(weight->name, port->name) != 0 || !sl_meta_equal(&weight->meta, &meta)) {
            return sl_fail(SL_ERR_ARGUMENT, "parameter '%s' of the larger microbatch is '%s' in the smaller",
                           weight->name, port->name);
        }
    }
done:
    return status;
}

/* Joins what one size's program says with what is known so far. */
static sl_status take_program(sl_stage *stage, const sl_program_info *info, int size)
{
    sl_status status = SL_OK;
    if (info->input_count != stage->input_count || info->output_count != stage->output_count ||
        info->param_count != stage->weight_count)
        return sl_fail(SL_ERR_ARGUMENT,
                       "%d inputs, %d outputs, %d parameters in the larger microbatch, %d, %d, %d in the smaller",
                       stage->input_count, stage->output_count, stage->weight_count, info->input_count,
                       info->output_count, info->param_count);
    if (info->state_count > 0 && stage->size_count > 1)
        return sl_fail(SL_ERR_UNSUPPORTED, "state buffer '%s': the stage must be built for one size of microbatch",
                       info->states[0].name);
    SL_TRY(take_ports(info->inputs, info->input_count, size, stage->inputs));
    SL_TRY(take_ports(info->outputs, info->output_count, size, stage->outputs));
    SL_TRY(take_weights(stage, info, size));
    if (info->loss >= 0)
        stage->outputs[info->loss].loss = true;
    stage->saved_i_bytes = larger(stage->saved_i_bytes, info->saved_i_bytes);
    stage->saved_w_bytes = larger(stage->saved_w_bytes, info->saved_w_bytes);
    stage->kept_bytes = larger(stage->kept_bytes, info->kept_bytes);
    for (int phase = 0; phase < SL_PHASE_COUNT; phase++)
        stage->scratch_bytes = larger(stage->scratch_bytes, info->scratch_bytes[phase]);
    stage->constant_bytes[size] = info->constant_bytes;
    if (size == 0) {
        stage->packed_bytes = info->packed_bytes;
        memcpy(stage->costs, info->cost, sizeof stage->costs);
        memcpy(stage->launches, info->instruction_count, sizeof stage->launches);
        stage->states = info->states;
        stage->state_count = info->state_count;
    }
done:
    return status;
}

/* Inputs come along the partition's edges; those that no edge brings are the batch's. */
static void take_edges(sl_stage *stage, const sl_partition *partition)
{
    int count = 0;
    const sl_value_edge *edges = sl_partition_edges(partition, &count);
    for (int i = 0; i < stage->input_count; i++)
        stage->inputs[i].maker = SL_MAKER_ROOT;
    for (int e = 0; e < count; e++) {
        if (edges[e].to != stage->index)
            continue;
        stage->inputs[edges[e].input].maker = edges[e].from;
        stage->inputs[edges[e].input].maker_output = edges[e].output;
    }
}

static sl_status build(const sl_partition *const *partitions, int count, int index, sl_device *device,
                       const sl_program_options *options, sl_stage **out)
{
    sl_status status = SL_OK;
    sl_stage *stage = NULL;
    programs *own = NULL;
    SL_TRY(SL_NEW(own));
    for (int size = 0; size < count; size++)
        SL_TRY(sl_stage_program_create(partitions[size], index, device, options, &own->program[size]));
    const sl_program_info *info = sl_stage_program_info(own->program[0]);
    SL_TRY(sl_stage_alloc(index, info->input_count, info->output_count, info->param_count, &stage));
    stage->table = &programs_table;
    stage->own = own;
    stage->size_count = count;
    stage->can_capture = true;
    stage->can_part = options && options->beside_flops > 0;
    stage->can_train = stage->can_split = !(options && options->forward_only);
    for (int size = 0; size < count; size++)
        SL_TRY(take_program(stage, sl_stage_program_info(own->program[size]), size));
    take_edges(stage, partitions[0]);
    *out = stage;
    stage = NULL;
    own = NULL;
done:
    if (stage)
        own = NULL; /* freed with it */
    sl_stage_destroy(stage);
    for (int size = 0; own && size < SL_MAX_SIZES; size++)
        sl_stage_program_destroy(own->program[size]);
    sl_free(own);
    return status;
}

sl_status sl_stage_build(const sl_partition *const *partitions, int partition_count, int index, sl_device *device,
                         const sl_program_options *options, sl_stage **out)
{
    if (partition_count < 1 || partition_count > SL_MAX_SIZES)
        return sl_fail(SL_ERR_ARGUMENT, "%d partitions: one, or two for microbatches of two sizes", partition_count);
    for (int i = 0; i < partition_count; i++) {
        if (!partitions || !partitions[i])
            return sl_fail(SL_ERR_ARGUMENT, "stage %d: partition %d is NULL", index, i);
        if (index < 0 || index >= sl_partition_stage_count(partitions[i]))
            return sl_fail(SL_ERR_ARGUMENT, "there is no stage %d among the partition's %d", index,
                           sl_partition_stage_count(partitions[i]));
    }
    sl_status status = build(partitions, partition_count, index, device, options, out);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "stage %d", index);
}
