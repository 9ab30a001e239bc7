/* Stages written by hand: any code can be pipelined by giving Sluice three callbacks a stage.
 *
 *     sluice launch -n 4 -- 01_callbacks        (or on its own: one rank with all stages)
 *
 * Four stages y = tanh(W x) learn to turn a vector round. Each rank has as many of them as the schedule gives it. */
#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 4, WIDTH = 16, ROWS = 8, MICROBATCHES = 8, STEPS = 60 };

/* W[i, j] at w[i * WIDTH + j]; x[r, j] at x[r * WIDTH + j]. */

static sl_status forward(void *user, const sl_stage_call *call)
{
    const float *x = call->inputs[0].data, *w = call->params[0].data;
    float *y = call->outputs[0].data;
    (void)user;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < WIDTH; i++) {
            float sum = 0;
            for (int j = 0; j < WIDTH; j++)
                sum += w[i * WIDTH + j] * x[r * WIDTH + j];
            y[r * WIDTH + i] = tanhf(sum);
        }
    }
    return SL_OK;
}

/* The gradient before the tanh is needed by both backward parts: kept in call->saved from the one to the other. */
static sl_status backward_input(void *user, const sl_stage_call *call)
{
    const float *w = call->params[0].data, *y = call->outputs[0].data, *dy = call->output_grads[0].data;
    float *dx = call->input_grads[0].data, *dz = call->saved;
    (void)user;
    for (int k = 0; k < ROWS * WIDTH; k++)
        dz[k] = dy[k] * (1 - y[k] * y[k]);
    for (int r = 0; dx && r < ROWS; r++) { /* the first stage's input needs no gradient */
        for (int j = 0; j < WIDTH; j++) {
            float sum = 0;
            for (int i = 0; i < WIDTH; i++)
                sum += dz[r * WIDTH + i] * w[i * WIDTH + j];
            dx[r * WIDTH + j] = sum;
        }
    }
    return SL_OK;
}

static sl_status backward_weight(void *user, const sl_stage_call *call)
{
    const float *x = call->inputs[0].data, *dz = call->saved;
    float *dw = call->grads[0].data;
    (void)user;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < WIDTH; i++) {
            for (int j = 0; j < WIDTH; j++)
                dw[i * WIDTH + j] += dz[r * WIDTH + i] * x[r * WIDTH + j];
        }
    }
    return SL_OK;
}

/* The loss is a stage of its own, the last: the mean of the squared distance to the target. */
static sl_status loss_forward(void *user, const sl_stage_call *call)
{
    const float *y = call->inputs[0].data, *target = call->inputs[1].data;
    float *loss = call->outputs[0].data;
    (void)user;
    *loss = 0;
    for (int k = 0; k < ROWS * WIDTH; k++)
        *loss += (y[k] - target[k]) * (y[k] - target[k]) / ROWS;
    return SL_OK;
}

static sl_status loss_backward_input(void *user, const sl_stage_call *call)
{
    const float *y = call->inputs[0].data, *target = call->inputs[1].data, *seed = call->output_grads[0].data;
    float *dy = call->input_grads[0].data;
    (void)user;
    for (int k = 0; k < ROWS * WIDTH; k++)
        dy[k] = 2 * (y[k] - target[k]) / ROWS * *seed;
    return SL_OK;
}

static sl_status no_weights(void *user, const sl_stage_call *call)
{
    (void)user;
    (void)call;
    return SL_OK;
}

static sl_status make_stage(int index, sl_stage **out)
{
    char input[16], output[16], weight[16];
    const sl_meta rows = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, WIDTH });
    snprintf(input, sizeof input, "x%d", index);
    snprintf(output, sizeof output, "x%d", index + 1);
    snprintf(weight, sizeof weight, "w%d", index);
    if (index == STAGES) {
        const sl_stage_value inputs[] = { { .name = input, .meta = rows },
                                          { .name = "target", .meta = rows, .no_grad = true } };
        const sl_stage_value loss = { .name = "loss", .meta = sl_meta_make(SL_F32, 0, NULL), .loss = true };
        const sl_stage_options options = { .index = index,
                                           .inputs = inputs,
                                           .input_count = 2,
                                           .outputs = &loss,
                                           .output_count = 1,
                                           .forward = loss_forward,
                                           .backward_input = loss_backward_input,
                                           .backward_weight = no_weights };
        return sl_stage_create(&options, out);
    }
    const sl_stage_value from = { .name = input, .meta = rows, .no_grad = index == 0 };
    const sl_stage_value to = { .name = output, .meta = rows };
    const sl_stage_param param = { .name = weight, .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ WIDTH, WIDTH }) };
    const sl_stage_options options = { .index = index,
                                       .inputs = &from,
                                       .input_count = 1,
                                       .outputs = &to,
                                       .output_count = 1,
                                       .params = &param,
                                       .param_count = 1,
                                       .saved_bytes = ROWS * WIDTH * sizeof(float),
                                       .forward = forward,
                                       .backward_input = backward_input,
                                       .backward_weight = backward_weight };
    return sl_stage_create(&options, out);
}

/* Contiguous stages on each rank, as even as can be; all forwards, then all backwards. */
static sl_status make_schedule(int ranks, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_schedule_builder *builder = NULL;
    SL_TRY(sl_schedule_builder_create(ranks, &builder));
    for (int rank = 0; rank < ranks; rank++) {
        int first = rank * (STAGES + 1) / ranks, last = (rank + 1) * (STAGES + 1) / ranks - 1;
        for (int m = 0; m < MICROBATCHES; m++) {
            for (int s = first; s <= last; s++)
                SL_TRY(sl_schedule_builder_add(builder, rank, sl_action_make(SL_KIND_F, s, m)));
        }
        for (int m = 0; m < MICROBATCHES; m++) {
            for (int s = last; s >= first; s--) {
                SL_TRY(sl_schedule_builder_add(builder, rank, sl_action_make(SL_KIND_I, s, m)));
                SL_TRY(sl_schedule_builder_add(builder, rank, sl_action_make(SL_KIND_W, s, m)));
            }
        }
    }
    SL_TRY(sl_schedule_builder_finish(builder, out));
done:
    sl_schedule_builder_destroy(builder);
    return status;
}

/* The target is the input backwards. */
static void fill_batch(float *x, float *target)
{
    for (int r = 0; r < ROWS * MICROBATCHES; r++) {
        for (int i = 0; i < WIDTH; i++) {
            x[r * WIDTH + i] = 0.5f * sinf((float)(r * WIDTH + i) * 1.7f);
            target[r * WIDTH + WIDTH - 1 - i] = x[r * WIDTH + i];
        }
    }
}

static sl_status train(sl_group *group, sl_runtime *runtime)
{
    static float x[MICROBATCHES * ROWS * WIDTH], target[MICROBATCHES * ROWS * WIDTH];
    sl_status status = SL_OK;
    const sl_meta batch = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS * MICROBATCHES, WIDTH });
    const sl_arg args[] = { { .name = "x0", .view = { x, batch } }, { .name = "target", .view = { target, batch } } };
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int p = 0; p < count; p++) {
        float *w = params[p].data.data;
        for (int k = 0; k < WIDTH * WIDTH; k++)
            w[k] = 0.3f * cosf((float)(k + 97 * params[p].stage) * 2.3f);
    }
    fill_batch(x, target);
    for (int step = 0; step < STEPS; step++) {
        sl_step_result result;
        SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = step }, &result));
        for (int p = 0; p < count; p++) {
            float *w = params[p].data.data;
            const float *dw = params[p].grad.data;
            for (int k = 0; k < WIDTH * WIDTH; k++)
                w[k] -= 0.1f * dw[k];
        }
        if (sl_group_rank(group) == 0 && (step % 20 == 0 || step == STEPS - 1))
            printf("step %d  loss %.5f\n", step, result.loss);
    }
done:
    return status;
}

/* Tells the other ranks, if they do not know yet. Rank 0 draws where in the schedule it happened. */
static void give_up(sl_group *group, const sl_runtime *runtime, sl_status status)
{
    sl_runtime_failure failure;
    sl_group_fail(group, status);
    if (runtime && sl_group_rank(group) == 0 && sl_runtime_get_failure(runtime, &failure) && failure.cell >= 0)
        (void)!sl_runtime_write_failure(runtime, stderr);
}

static sl_status run(sl_group *group)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_schedule *schedule = NULL;
    sl_stage *stages[STAGES + 1] = { NULL };
    sl_runtime *runtime = NULL;
    int count = 0;
    SL_TRY(sl_device_open("cpu", NULL, &device));
    SL_TRY(make_schedule(sl_group_size(group), &schedule));
    for (int s = 0; s <= STAGES; s++) {
        if (sl_schedule_rank_of(schedule, s) == sl_group_rank(group))
            SL_TRY(make_stage(s, &stages[count++]));
    }
    const sl_runtime_options options = {
        .group = group, .device = device, .schedule = schedule, .stages = stages, .stage_count = count
    };
    SL_TRY(sl_runtime_create(&options, &runtime));
    SL_TRY(train(group, runtime));
done:
    if (status != SL_OK)
        give_up(group, runtime, status);
    sl_runtime_destroy(runtime);
    for (int s = 0; s < count; s++)
        sl_stage_destroy(stages[s]);
    sl_schedule_destroy(schedule);
    sl_device_close(device);
    return status;
}

int main(void)
{
    sl_group *group = NULL;
    sl_status status = sl_group_open(NULL, &group);
    if (status == SL_OK && sl_group_size(group) > STAGES + 1)
        status = sl_fail(SL_ERR_ARGUMENT, "at most %d ranks, one a stage", STAGES + 1);
    if (status == SL_OK)
        status = run(group);
    if (status != SL_OK)
        fprintf(stderr, "01_callbacks: %s\n", sl_error_message());
    sl_group_close(group);
    return status == SL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
