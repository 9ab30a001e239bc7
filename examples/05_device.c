/* Stages written by hand for any device: callbacks get device memory and a stream, and give their work to the stream.
 *
 *     05_device [DEVICE]        (cpu, the default, or cuda; with `sluice launch -n 2 --` a rank for each stage)
 *
 * Two stages learn to tell the sign of a sum: h = tanh(x W), then the cross entropy of h V. The work is calls of Sluice's
 * kernels here. A kernel of your own takes the same pointers; on a GPU sl_stream_native(call->stream) is its
 * cudaStream_t. Nothing waits inside a callback: whoever reads results on the host synchronizes the stream first. */
#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 16, INNER = 32, CLASSES = 2, ROWS = 16, MICROBATCHES = 4, STEPS = 60, SCRATCH = 1 << 20 };

typedef struct workplace {
    sl_device *device;
    void *scratch; /* of kernels, on the device */
} workplace;

/* One kernel in the order of the stream. accumulate: the result is added to the first output. */
static sl_status compute(const workplace *place, const sl_stage_call *stage, sl_op op, const sl_view *inputs,
                         int input_count, const sl_view *outputs, int output_count, bool accumulate)
{
    sl_status status = SL_OK;
    sl_kernel_call call = { .op = op,
                            .attrs = { .ignore_index = -1 },
                            .inputs = inputs,
                            .input_count = input_count,
                            .outputs = outputs,
                            .output_count = output_count,
                            .accumulate = accumulate,
                            .scratch = place->scratch };
    SL_TRY(sl_kernel_scratch(place->device, &call, &call.scratch_bytes));
    if (call.scratch_bytes > SCRATCH)
        return sl_fail(SL_ERR_INTERNAL, "%s needs %zu bytes of scratch", sl_op_name(op), call.scratch_bytes);
    SL_TRY(sl_kernel_run(stage->stream, &call));
done:
    return status;
}

/* Rows of f32 in the memory that a microbatch keeps from F to its W, from element `first` on. */
static sl_view kept(const sl_stage_call *call, int64_t first, int64_t columns)
{
    return (sl_view){ (float *)call->saved + first, sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, columns }) };
}

/* ---- h = tanh(x W) --------------------------------------------------------------------------- */

static sl_status hidden_forward(void *user, const sl_stage_call *call)
{
    sl_status status = SL_OK;
    const sl_view product = call->outputs[0];
    SL_TRY(compute(user, call, SL_OP_LINEAR, (sl_view[]){ call->inputs[0], call->params[0], sl_view_none() }, 3,
                   &product, 1, false));
    SL_TRY(compute(user, call, SL_OP_TANH, &product, 1, call->outputs, 1, false)); /* in place */
done:
    return status;
}

/* x needs no gradient. */
static sl_status hidden_backward(void *user, const sl_stage_call *call)
{
    sl_status status = SL_OK;
    const sl_view dz = kept(call, 0, INNER);
    SL_TRY(
        compute(user, call, SL_OP_TANH_GRAD, (sl_view[]){ call->outputs[0], call->output_grads[0] }, 2, &dz, 1, false));
    SL_TRY(compute(user, call, SL_OP_LINEAR_GRAD_W, (sl_view[]){ call->inputs[0], dz }, 2, call->grads, 1, true));
done:
    return status;
}

/* ---- The cross entropy of h V ---------------------------------------------------------------- */

static sl_view lse_of(const sl_stage_call *call)
{
    return (sl_view){ kept(call, (int64_t)2 * ROWS * CLASSES, 1).data, sl_meta_make(SL_F32, 1, (int64_t[]){ ROWS }) };
}

static sl_status loss_forward(void *user, const sl_stage_call *call)
{
    sl_status status = SL_OK;
    const sl_view logits = kept(call, 0, CLASSES);
    SL_TRY(compute(user, call, SL_OP_LINEAR, (sl_view[]){ call->inputs[0], call->params[0], sl_view_none() }, 3,
                   &logits, 1, false));
    SL_TRY(compute(user, call, SL_OP_CROSS_ENTROPY, (sl_view[]){ logits, call->inputs[1] }, 2,
                   (sl_view[]){ call->outputs[0], lse_of(call) }, 2, false));
done:
    return status;
}

static sl_status loss_backward(void *user, const sl_stage_call *call)
{
    sl_status status = SL_OK;
    const sl_view logits = kept(call, 0, CLASSES), dlogits = kept(call, (int64_t)ROWS * CLASSES, CLASSES);
    SL_TRY(compute(user, call, SL_OP_CROSS_ENTROPY_GRAD,
                   (sl_view[]){ logits, call->inputs[1], lse_of(call), call->output_grads[0] }, 4, &dlogits, 1, false));
    SL_TRY(compute(user, call, SL_OP_LINEAR_GRAD_X, (sl_view[]){ dlogits, call->params[0] }, 2, call->input_grads, 1,
                   false));
    SL_TRY(compute(user, call, SL_OP_LINEAR_GRAD_W, (sl_view[]){ call->inputs[0], dlogits }, 2, call->grads, 1, true));
done:
    return status;
}

/* ---- Run ------------------------------------------------------------------------------------- */

static sl_status make_stage(workplace *place, int index, sl_stage **out)
{
    const sl_stage_value x = { .name = "x",
                               .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, WIDTH }),
                               .no_grad = true };
    const sl_stage_value h = { .name = "h", .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, INNER }) };
    const sl_stage_value classes = { .name = "class", .meta = sl_meta_make(SL_I32, 1, (int64_t[]){ ROWS }) };
    const sl_stage_value loss = { .name = "loss", .meta = sl_meta_make(SL_F32, 0, NULL), .loss = true };
    const sl_stage_param params[] = { { .name = "w", .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ WIDTH, INNER }) },
                                      { .name = "v", .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ INNER, CLASSES }) } };
    const sl_stage_value inputs[] = { h, classes };
    const sl_stage_options options = { .index = index,
                                       .inputs = index == 0 ? &x : inputs,
                                       .input_count = index == 0 ? 1 : 2,
                                       .outputs = index == 0 ? &h : &loss,
                                       .output_count = 1,
                                       .params = &params[index],
                                       .param_count = 1,
                                       .saved_bytes = (size_t)ROWS * INNER * sizeof(float),
                                       .forward = index == 0 ? hidden_forward : loss_forward,
                                       .backward = index == 0 ? hidden_backward : loss_backward,
                                       .user = place };
    return sl_stage_create(&options, out);
}

/* Values are made on the host and copied: device memory may be out of its reach. */
static sl_status init_params(const sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(runtime);
    float values[WIDTH * INNER];
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int p = 0; p < count; p++) {
        int64_t elements = sl_meta_count(&params[p].data.meta);
        for (int64_t k = 0; k < elements; k++)
            values[k] = 0.3f * cosf((float)(k + (int64_t)97 * params[p].stage) * 2.3f);
        SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, params[p].data.data, values,
                              (size_t)elements * sizeof *values));
        SL_TRY(sl_stream_synchronize(stream)); /* values is used again */
    }
done:
    return status;
}

static sl_status make_optimizer(const sl_runtime *runtime, sl_device *device, sl_optimizer **out)
{
    const sl_optim_options sgd = { .kind = SL_OPTIM_SGD };
    sl_optim_param list[2];
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int p = 0; p < count; p++)
        list[p] = (sl_optim_param){ .name = params[p].name, .data = params[p].data, .grad = params[p].grad };
    return sl_optimizer_create(&sgd, device, list, count, out);
}

static void fill_batch(float *x, int32_t *classes)
{
    for (int r = 0; r < ROWS * MICROBATCHES; r++) {
        float sum = 0;
        for (int i = 0; i < WIDTH; i++)
            sum += x[r * WIDTH + i] = sinf((float)(r * WIDTH + i) * 1.7f + (float)(r * r));
        classes[r] = sum > 0;
    }
}

static sl_status train(sl_group *group, sl_runtime *runtime, sl_optimizer *optimizer)
{
    static float x[MICROBATCHES * ROWS * WIDTH];
    static int32_t classes[MICROBATCHES * ROWS];
    const int64_t rows = (int64_t)ROWS * MICROBATCHES;
    sl_status status = SL_OK;
    const sl_arg args[] = { { .name = "x", .view = { x, sl_meta_make(SL_F32, 2, (int64_t[]){ rows, WIDTH }) } },
                            { .name = "class", .view = { classes, sl_meta_make(SL_I32, 1, (int64_t[]){ rows }) } } };
    fill_batch(x, classes);
    for (int step = 0; step < STEPS; step++) {
        sl_step_result result;
        SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = step }, &result));
        SL_TRY(sl_optimizer_step(optimizer, sl_runtime_stream(runtime), step + 1, 0.5, 1));
        if (sl_group_rank(group) == 0 && (step % 20 == 0 || step == STEPS - 1))
            printf("step %d  loss %.4f\n", step, result.loss);
    }
done:
    return status;
}

static sl_status run(sl_group *group, const char *spec)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    sl_stage *stages[2] = { NULL };
    sl_runtime *runtime = NULL;
    sl_optimizer *optimizer = NULL;
    workplace place = { NULL, NULL };
    int ranks = sl_group_size(group), count = 0;
    const sl_generate_options generate = { .name = ranks == 1 ? "Interleaved1F1B" : "1F1B",
                                           .ranks = ranks,
                                           .microbatches = MICROBATCHES,
                                           .stages_per_rank = 2 / ranks };
    SL_TRY(sl_device_open(spec, NULL, &place.device));
    SL_TRY(sl_device_alloc(place.device, SCRATCH, &place.scratch));
    SL_TRY(sl_schedule_generate(&generate, &schedule));
    for (int s = 0; s < 2; s++) {
        if (sl_schedule_rank_of(schedule, s) == sl_group_rank(group))
            SL_TRY(make_stage(&place, s, &stages[count++]));
    }
    const sl_runtime_options options = {
        .group = group, .device = place.device, .schedule = schedule, .stages = stages, .stage_count = count
    };
    SL_TRY(sl_runtime_create(&options, &runtime));
    SL_TRY(init_params(runtime));
    SL_TRY(make_optimizer(runtime, place.device, &optimizer));
    SL_TRY(train(group, runtime, optimizer));
done:
    if (status != SL_OK)
        sl_group_fail(group, status);
    sl_optimizer_destroy(optimizer);
    sl_runtime_destroy(runtime);
    for (int s = 0; s < count; s++)
        sl_stage_destroy(stages[s]);
    sl_schedule_destroy(schedule);
    sl_device_free(place.device, place.scratch);
    sl_device_close(place.device);
    return status;
}

int main(int argc, char **argv)
{
    sl_group *group = NULL;
    sl_status status = sl_group_open(NULL, &group);
    if (status == SL_OK && sl_group_size(group) > 2)
        status = sl_fail(SL_ERR_ARGUMENT, "at most 2 ranks, one a stage");
    if (status == SL_OK)
        status = run(group, argc > 1 ? argv[1] : "cpu");
    if (status != SL_OK)
        fprintf(stderr, "05_device: %s\n", sl_error_message());
    sl_group_close(group);
    return status == SL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
