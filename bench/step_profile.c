/* Seconds of every instruction of a step: the stage's program run with an event before each, and the optimizer. */
#include "step_measure.h"

#include "base/alloc.h"
#include "graph/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3 };

/* What the runs of the program need: the runtime's parameters, one block for the rest, events. */
typedef struct profile_run {
    sl_device *device;
    sl_stream *stream;
    const sl_stage_program *program;
    const sl_program_info *info;
    const void **params, **inputs, **output_grads;
    void **grads, **outputs;
    char *block;
    size_t used;
    sl_event **events;
    int event_count;
} profile_run;

static void profile_run_close(profile_run *run)
{
    for (int i = 0; i < run->event_count; i++)
        sl_event_destroy(run->events[i]);
    sl_free(run->events);
    sl_device_free(run->device, run->block);
    sl_free(run->params);
    sl_free(run->grads);
    sl_free(run->inputs);
    sl_free(run->outputs);
    sl_free(run->output_grads);
}

static size_t aligned(size_t bytes)
{
    return (bytes + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
}

static void *take(profile_run *run, size_t bytes)
{
    void *data = run->block + run->used;
    run->used += aligned(bytes);
    return data;
}

static sl_status find_params(profile_run *run, const sl_runtime *runtime)
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
static sl_status place_outputs(profile_run *run)
{
    sl_status status = SL_OK;
    for (int i = 0; i < run->info->output_count; i++) {
        const sl_port *port = &run->info->outputs[i];
        const sl_view seed = { take(run, port->bytes), sl_meta_contiguous(port->dtype, &port->shape) };
        run->outputs[i] = take(run, port->bytes);
        run->output_grads[i] = seed.data;
        SL_TRY(sl_kernel_run(
            run->stream,
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

static sl_status create_events(profile_run *run)
{
    sl_status status = SL_OK;
    int f = run->info->instruction_count[SL_PHASE_F], b = run->info->instruction_count[SL_PHASE_B];
    int count = (f > b ? f : b) + 1;
    count = count < 3 ? 3 : count; /* those of the optimizer */
    SL_TRY(SL_NEW_ARRAY(run->events, count));
    while (run->event_count < count) {
        SL_TRY(sl_event_create(run->device, &run->events[run->event_count]));
        run->event_count++;
    }
done:
    return status;
}

static sl_status profile_run_open(profile_run *run, const sl_runtime *runtime, const sl_arg args[2])
{
    sl_status status = SL_OK;
    const sl_program_info *info = run->info;
    size_t bytes = aligned(info->saved_i_bytes) + aligned(info->saved_w_bytes) + aligned(scratch_bytes(info)) +
                   aligned(info->constant_bytes);
    for (int i = 0; i < info->output_count; i++)
        bytes += 2 * aligned(info->outputs[i].bytes);
    for (int i = 0; i < info->input_count; i++)
        bytes += aligned(info->inputs[i].bytes);
    SL_TRY(create_events(run));
    SL_TRY(sl_device_alloc(run->device, bytes, (void **)&run->block));
    SL_TRY(SL_NEW_ARRAY(run->params, info->param_count));
    SL_TRY(SL_NEW_ARRAY(run->grads, info->param_count));
    SL_TRY(SL_NEW_ARRAY(run->inputs, info->input_count));
    SL_TRY(SL_NEW_ARRAY(run->outputs, info->output_count));
    SL_TRY(SL_NEW_ARRAY(run->output_grads, info->output_count));
    for (int i = 0; i < info->input_count; i++) {
        const sl_view *from = &args[strcmp(info->inputs[i].name, args[0].name) != 0].view;
        void *to = take(run, info->inputs[i].bytes); /* the first microbatch's */
        SL_TRY(sl_stream_copy(run->stream, SL_COPY_HOST_TO_DEVICE, to, from->data, info->inputs[i].bytes));
        run->inputs[i] = to;
    }
    SL_TRY(find_params(run, runtime));
    SL_TRY(place_outputs(run));
done:
    return status;
}

static sl_status place_constants(profile_run *run, void **out)
{
    sl_status status = SL_OK;
    void *host = NULL, *constants = take(run, run->info->constant_bytes);
    SL_TRY(sl_alloc(run->info->constant_bytes, 1, &host));
    sl_stage_program_constants(run->program, host);
    SL_TRY(sl_stream_copy(run->stream, SL_COPY_HOST_TO_DEVICE, constants, host, run->info->constant_bytes));
    SL_TRY(sl_stream_synchronize(run->stream));
    *out = constants;
done:
    sl_free(host);
    return status;
}

/* ---- Times ----------------------------------------------------------------------------------- */

/* Lowers seconds[i] to the time between events i and i + 1. */
static sl_status read_events(const profile_run *run, int count, double *seconds)
{
    sl_status status = SL_OK;
    SL_TRY(sl_stream_synchronize(run->stream));
    for (int i = 0; i < count; i++) {
        double elapsed = 0;
        SL_TRY(sl_event_elapsed(run->events[i], run->events[i + 1], &elapsed));
        seconds[i] = fmin(seconds[i], elapsed);
    }
done:
    return status;
}

/* Runs a phase with an event before every instruction, then without: *bare is lowered to the seconds of the latter. */
static sl_status run_phase(const profile_run *run, sl_phase phase, const sl_bindings *bindings, double *seconds,
                           double *bare)
{
    sl_status status = SL_OK;
    sl_bindings without = *bindings;
    without.events = NULL;
    SL_TRY(sl_stage_program_run(run->program, phase, run->stream, bindings));
    SL_TRY(read_events(run, run->info->instruction_count[phase], seconds));
    SL_TRY(sl_event_record(run->events[0], run->stream));
    SL_TRY(sl_stage_program_run(run->program, phase, run->stream, &without));
    SL_TRY(sl_event_record(run->events[1], run->stream));
    SL_TRY(read_events(run, 1, bare));
done:
    return status;
}

/* Events hold up the instructions after them a little: what the phase takes longer with them is taken off, each
 * instruction's part alike. */
static void take_off_events(double *seconds, int count, double bare)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += seconds[i];
    double each = count > 0 ? fmax(sum - bare, 0) / count : 0;
    for (int i = 0; i < count; i++)
        seconds[i] = fmax(seconds[i] - each, 0);
}

/* On a processor all threads copy together, as they do in kernels. */
static sl_status copy(const profile_run *run, void *to, void *from, size_t bytes)
{
    const sl_meta meta = sl_meta_make(SL_F32, 1, (int64_t[]){ (int64_t)(bytes / sizeof(float)) });
    const sl_view input = { from, meta }, output = { to, meta };
    if (!sl_device_is_host(run->device))
        return sl_stream_copy(run->stream, SL_COPY_DEVICE_TO_DEVICE, to, from, bytes);
    return sl_kernel_run(
        run->stream, &(sl_kernel_call){
                         .op = SL_OP_COPY, .inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1 });
}

/* Bytes a second of a copy that no cache holds. */
static sl_status measure_copy(const profile_run *run, double *out)
{
    sl_status status = SL_OK;
    size_t bytes = (size_t)(sl_device_is_host(run->device) ? 256 : 1024) << 20;
    char *block = NULL;
    double best = INFINITY;
    SL_TRY(sl_device_alloc(run->device, 2 * bytes, (void **)&block));
    SL_TRY(sl_stream_memset(run->stream, block, 1, 2 * bytes));
    for (int i = 0; i < 2 * ROUNDS; i++) {
        SL_TRY(sl_event_record(run->events[0], run->stream));
        SL_TRY(copy(run, block + bytes, block, bytes));
        SL_TRY(sl_event_record(run->events[1], run->stream));
        SL_TRY(read_events(run, 1, &best));
    }
    *out = 2 * (double)bytes / best;
done:
    sl_device_free(run->device, block);
    return status;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static step_op *find_op(step_result *result, sl_op op, const char *name)
{
    for (int i = 0; i < result->op_count; i++) {
        if (result->ops[i].op == op && strcmp(result->ops[i].name, name) == 0)
            return &result->ops[i];
    }
    step_op *added = &result->ops[result->op_count++];
    *added = (step_op){ .op = op };
    snprintf(added->name, sizeof added->name, "%s", name);
    return added;
}

/* The op with the shape that says most about its work: of its first input or, for what makes more than it takes, of
 * its output; of a product both. */
static void name_of(const sl_instruction *step, char *text, size_t size)
{
    char in[40] = "", out[40] = "";
    const sl_meta *x = step->input_count > 0 ? &step->inputs[0].meta : NULL, *y = &step->outputs[0].meta;
    bool product = step->op <= SL_OP_MATMUL;
    if (x && (product || sl_meta_count(x) >= sl_meta_count(y)))
        sl_shape_text(&x->shape, in, sizeof in);
    if (!*in || product)
        sl_shape_text(&y->shape, out, sizeof out);
    snprintf(text, size, "%s%s %s%s%s", sl_op_name(step->op), step->accumulate & 1u ? " +=" : "", in,
             product ? " -> " : "", out);
}

static void add_phase(const profile_run *run, sl_phase phase, const double *seconds, int rounds, step_result *result)
{
    const sl_instruction_list *list = &run->program->plan.phases[phase];
    for (int i = 0; i < list->count; i++) {
        const sl_instruction *step = &list->items[i];
        char name[sizeof result->ops->name];
        if (step->is_done)
            continue;
        const sl_cost cost = sl_instruction_cost(step);
        name_of(step, name, sizeof name);
        step_op *op = find_op(result, step->op, name);
        op->calls += rounds;
        op->seconds += rounds * seconds[i];
        op->cost.flops += rounds * cost.flops;
        op->cost.bytes += rounds * cost.bytes;
        result->nodes[step->node].seconds += rounds * seconds[i];
    }
}

/* Norm and update, with a learning rate of 0 that leaves the parameters as they are. */
static sl_status profile_optimizer(const profile_run *run, sl_optimizer *optimizer, step_result *result)
{
    sl_status status = SL_OK;
    double seconds[2] = { INFINITY, INFINITY }, grads = 0, moved = 0, *sums = NULL;
    SL_TRY(SL_NEW_ARRAY(sums, run->info->param_count));
    for (int i = 0; i < ROUNDS; i++) {
        SL_TRY(sl_event_record(run->events[0], run->stream));
        SL_TRY(sl_optimizer_square_sums(optimizer, run->stream, sums));
        SL_TRY(sl_event_record(run->events[1], run->stream));
        SL_TRY(sl_optimizer_step(optimizer, run->stream, 1000, 0, 1));
        SL_TRY(sl_event_record(run->events[2], run->stream));
        SL_TRY(read_events(run, 2, seconds));
    }
    for (int i = 0; i < run->info->param_count; i++) {
        const sl_port *param = &run->info->params[i];
        double count = (double)param->bytes / (double)sl_dtype_size(param->dtype);
        grads += (double)param->grad_bytes;
        /* Two moments and the weight are read and written, in f32; of another dtype there is a copy. */
        moved += count * 24 + (param->dtype == SL_F32 ? 0 : (double)param->bytes);
    }
    step_op *norm = find_op(result, SL_OP_SQUARE_SUM, "square_sum, all gradients");
    norm->calls = 1;
    norm->seconds = seconds[0];
    norm->cost.bytes = grads;
    step_op *update = find_op(result, SL_OP_ADAMW, "adamw, all parameters");
    update->calls = 1;
    update->seconds = seconds[1];
    update->cost.bytes = grads + moved;
done:
    sl_free(sums);
    return status;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const step_node *)a)->seconds, y = ((const step_node *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int ops_by_seconds(const void *a, const void *b)
{
    double x = ((const step_op *)a)->seconds, y = ((const step_op *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static sl_status name_nodes(const sl_graph *graph, step_result *result)
{
    sl_status status = SL_OK;
    int count = sl_graph_node_count(graph);
    SL_TRY(SL_NEW_ARRAY(result->nodes, count));
    for (int i = 0; i < count; i++) {
        char *name = NULL;
        SL_TRY(sl_strdup(sl_graph_node_name(graph, i), &name));
        result->nodes[result->node_count++] = (step_node){ .name = name };
    }
done:
    return status;
}

sl_status step_profile(const step_options *options, const sl_graph *graph, const sl_stage_program *program,
                       sl_device *device, const sl_runtime *runtime, sl_optimizer *optimizer, const sl_arg args[2],
                       step_result *result)
{
    sl_status status = SL_OK;
    profile_run run = { .device = device,
                        .stream = sl_runtime_stream(runtime),
                        .program = program,
                        .info = sl_stage_program_info(program) };
    int f = run.info->instruction_count[SL_PHASE_F], b = run.info->instruction_count[SL_PHASE_B];
    double *seconds = NULL, bare[2] = { INFINITY, INFINITY }; /* of F, then of B */
    void *constants = NULL;
    SL_TRY(SL_NEW_ARRAY(seconds, f + b));
    for (int i = 0; i < f + b; i++)
        seconds[i] = INFINITY;
    SL_TRY(SL_NEW_ARRAY(result->ops, f + b + 2));
    SL_TRY(name_nodes(graph, result));
    SL_TRY(profile_run_open(&run, runtime, args));
    SL_TRY(place_constants(&run, &constants));
    SL_TRY(measure_copy(&run, &result->copy_rate));
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
                                   .events = run.events };
    for (int i = 0; i < ROUNDS; i++) {
        SL_TRY(run_phase(&run, SL_PHASE_F, &bindings, seconds, &bare[0]));
        SL_TRY(run_phase(&run, SL_PHASE_B, &bindings, seconds + f, &bare[1]));
    }
    take_off_events(seconds, f, bare[0]);
    take_off_events(seconds + f, b, bare[1]);
    add_phase(&run, SL_PHASE_F, seconds, options->microbatches, result);
    add_phase(&run, SL_PHASE_B, seconds + f, options->microbatches, result);
    SL_TRY(profile_optimizer(&run, optimizer, result));
    qsort(result->nodes, (size_t)result->node_count, sizeof *result->nodes, by_seconds);
    qsort(result->ops, (size_t)result->op_count, sizeof *result->ops, ops_by_seconds);
    result->has_profile = true;
done:
    sl_free(seconds);
    profile_run_close(&run);
    return status;
}

step_shares step_profile_shares(const step_result *result)
{
    step_shares shares = { 0 };
    for (int i = 0; i < result->op_count; i++) {
        const step_op *op = &result->ops[i];
        if (op->op <= SL_OP_MATMUL)
            shares.gemm += op->seconds;
        else if (op->op == SL_OP_ATTENTION || op->op == SL_OP_ATTENTION_GRAD)
            shares.attention += op->seconds;
        else
            shares.other += op->seconds;
    }
    return shares;
}

void step_profile_scale(double warm_s, step_result *result)
{
    const step_shares shares = step_profile_shares(result);
    double sum = shares.gemm + shares.attention + shares.other;
    double scale = fmin(result->step_s / warm_s, result->step_s / sum);
    for (int i = 0; i < result->op_count; i++)
        result->ops[i].seconds *= scale;
    for (int i = 0; i < result->node_count; i++)
        result->nodes[i].seconds *= scale;
}

double step_op_limit(const step_result *result, const step_op *op)
{
    return fmax(op->cost.flops / result->product_peak, op->cost.bytes / result->copy_rate);
}
