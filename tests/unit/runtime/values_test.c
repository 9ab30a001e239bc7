/* What stages of callbacks may be made of (element types, inputs for any stage, memory of the caller's, cuts along any
 * dim), and what is refused when they are made.
 *
 * Stage s computes h = x * w * scale over f64 [2, n], samples along dim 1. All share the parameter w; the input "scale" is
 * the same for all microbatches and used by every stage. The last has the loss: the mean over samples of sum h^2 / 2. */
#include "unit/runtime/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { STAGES = 4, RANKS = 2, SAMPLES = 6, MICROBATCHES = 3, PART = SAMPLES / MICROBATCHES };

typedef struct pipeline {
    sl_schedule *schedule;
    double *memory; /* of w and its gradient on rank 0, the caller's */
    double loss[RANKS], grad[RANKS];
    float losses[RANKS][MICROBATCHES];
    bool in_place, frozen_grad[RANKS];
} pipeline;

static sl_status forward(void *user, const sl_stage_call *call)
{
    const double *x = call->inputs[0].data, *scale = call->inputs[1].data, *w = call->params[0].data;
    double *h = call->outputs[0].data;
    (void)user;
    for (int i = 0; i < 2 * PART; i++)
        h[i] = x[i] * *w * *scale;
    if (call->output_count == 2) {
        double sum = 0;
        for (int i = 0; i < 2 * PART; i++)
            sum += h[i] * h[i] / 2;
        *(double *)call->outputs[1].data = sum / PART;
    }
    return SL_OK;
}

static void gradient_of(const sl_stage_call *call, double *dh)
{
    const double *h = call->outputs[0].data;
    for (int i = 0; i < 2 * PART; i++)
        dh[i] = call->output_count == 2 ? h[i] / PART * *(const double *)call->output_grads[1].data
                                        : ((const double *)call->output_grads[0].data)[i];
}

static sl_status backward(void *user, const sl_stage_call *call)
{
    const double *x = call->inputs[0].data, *scale = call->inputs[1].data, *w = call->params[0].data;
    double dh[2 * PART], *dx = call->input_grads[0].data, *dw = call->grads[0].data;
    (void)user;
    gradient_of(call, dh);
    for (int i = 0; i < 2 * PART; i++)
        *dw += dh[i] * x[i] * *scale;
    for (int i = 0; dx && i < 2 * PART; i++)
        dx[i] = dh[i] * *w * *scale;
    return call->grads[1].data ? sl_fail(SL_ERR_STAGE, "a frozen parameter has a gradient") : SL_OK;
}

static sl_status create_stage(int index, sl_stage **out)
{
    char input[16], output[16];
    sl_meta part = sl_meta_make(SL_F64, 2, (int64_t[]){ 2, PART });
    snprintf(input, sizeof input, index ? "h%d" : "x", index - 1);
    snprintf(output, sizeof output, "h%d", index);
    sl_stage_value inputs[] = {
        { .name = input, .meta = part },
        { .name = "scale", .meta = sl_meta_make(SL_F64, 1, (int64_t[]){ 1 }), .no_grad = true }
    };
    sl_stage_value outputs[] = { { .name = output, .meta = part },
                                 { .name = "loss", .meta = sl_meta_make(SL_F64, 0, NULL), .loss = true } };
    sl_stage_param params[] = {
        { .name = "w", .meta = sl_meta_make(SL_F64, 0, NULL) },
        { .name = "table", .meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 5 }), .frozen = true }
    };
    sl_stage_options options = { .index = index,
                                 .inputs = inputs,
                                 .input_count = 2,
                                 .outputs = outputs,
                                 .output_count = 1 + (index == STAGES - 1),
                                 .params = params,
                                 .param_count = 2,
                                 .forward = forward,
                                 .backward = backward };
    return sl_stage_create(&options, out);
}

static double value_of(int i)
{
    return (double)toy_number(i) + 1.0 / 3;
}

static sl_status train(pipeline *self, int rank, sl_runtime *runtime)
{
    sl_status status = SL_OK;
    double x[2 * SAMPLES], scale = 0.7;
    const sl_param *w = NULL, *table = NULL;
    sl_step_result result;
    for (int i = 0; i < 2 * SAMPLES; i++)
        x[i] = value_of(i);
    SL_TRY(sl_runtime_find_param(runtime, "w", &w));
    SL_TRY(sl_runtime_find_param(runtime, "table", &table));
    *(double *)w->data.data = 1.3;
    self->frozen_grad[rank] = !sl_view_is_none(&table->grad);
    if (rank == 0)
        self->in_place = w->data.data == &self->memory[0] && w->grad.data == &self->memory[1];
    sl_arg args[] = { { "x", { x, sl_meta_make(SL_F64, 2, (int64_t[]){ 2, SAMPLES }) } },
                      { "scale", { &scale, sl_meta_make(SL_F64, 1, (int64_t[]){ 1 }) } } };
    SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2 }, &result));
    self->loss[rank] = result.loss;
    self->grad[rank] = *(const double *)w->grad.data;
    memcpy(self->losses[rank], result.losses, sizeof self->losses[rank]);
done:
    return status;
}

static sl_status run_rank(toy_rank *self)
{
    pipeline *shared = self->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    sl_stage *stages[STAGES];
    int count = 0;
    sl_arg_spec specs[] = { { .name = "x", .chunk = { .dim = 1 } },
                            { .name = "scale", .chunk = { .kind = SL_CHUNK_REPLICATE } } };
    SL_TRY(sl_device_open("cpu", NULL, &device));
    for (int s = 0; s < STAGES; s++) {
        if (sl_schedule_rank_of(shared->schedule, s) != self->rank)
            continue;
        SL_TRY(create_stage(s, &stages[count]));
        count++;
    }
    if (self->rank == 0)
        SL_TRY(sl_stage_bind_param(stages[0], "w", &shared->memory[0], &shared->memory[1]));
    sl_runtime_options options = { .group = self->group,
                                   .device = device,
                                   .schedule = shared->schedule,
                                   .stages = stages,
                                   .stage_count = count,
                                   .args = specs,
                                   .arg_count = 2 };
    SL_TRY(sl_runtime_create(&options, &runtime));
    SL_TRY(train(shared, self->rank, runtime));
done:
    sl_runtime_destroy(runtime);
    for (int i = 0; i < count; i++)
        sl_stage_destroy(stages[i]);
    sl_device_close(device);
    return status;
}

/* The same sums in the same order: every stage adds up its microbatches, then the stages are added up. */
static void compute(double *loss, double *grad, float *losses)
{
    double w = 1.3, scale = 0.7, grads[STAGES] = { 0 };
    *loss = 0;
    for (int m = 0; m < MICROBATCHES; m++) {
        double h[STAGES + 1][2 * PART], dh[2 * PART], sum = 0;
        for (int i = 0; i < 2 * PART; i++) {
            h[0][i] = value_of(i / PART * SAMPLES + m * PART + i % PART);
            for (int s = 0; s < STAGES; s++)
                h[s + 1][i] = h[s][i] * w * scale;
            sum += h[STAGES][i] * h[STAGES][i] / 2;
            dh[i] = h[STAGES][i] / PART * (1.0 / MICROBATCHES);
        }
        losses[m] = (float)(sum / PART);
        *loss += 1.0 / MICROBATCHES * (double)losses[m];
        for (int s = STAGES - 1; s >= 0; s--) {
            for (int i = 0; i < 2 * PART; i++) {
                grads[s] += dh[i] * h[s][i] * scale;
                dh[i] = dh[i] * w * scale;
            }
        }
    }
    *grad = grads[0];
    for (int s = 1; s < STAGES; s++)
        *grad += grads[s];
}

static void doubles_shared_inputs_and_the_callers_memory(void **state)
{
    (void)state;
    double memory[2], loss, grad;
    float losses[MICROBATCHES];
    toy_rank ranks[MAX_RANKS];
    pipeline made = { .memory = memory };
    sl_generate_options options = {
        .name = "Interleaved1F1B", .ranks = RANKS, .microbatches = MICROBATCHES, .stages_per_rank = STAGES / RANKS
    };
    assert_int_equal(sl_schedule_generate(&options, &made.schedule), SL_OK);
    assert_int_equal(toy_run_ranks(RANKS, run_rank, &made, ranks), SL_OK);
    compute(&loss, &grad, losses);
    for (int r = 0; r < RANKS; r++) {
        if (ranks[r].status != SL_OK)
            fail_msg("rank %d: %s", r, ranks[r].message);
        assert_true(made.loss[r] == loss);
        assert_true(made.grad[r] == grad);
        assert_memory_equal(made.losses[r], losses, sizeof losses);
        assert_false(made.frozen_grad[r]);
    }
    assert_true(made.in_place);
    sl_schedule_destroy(made.schedule);
}

/* ---- What is refused ---- */

static sl_status nothing(void *user, const sl_stage_call *call)
{
    (void)user, (void)call;
    return SL_OK;
}

static void assert_refused(const sl_stage_options *options, const char *message)
{
    sl_stage *stage = NULL;
    assert_int_equal(sl_stage_create(options, &stage), SL_ERR_ARGUMENT);
    assert_null(stage);
    assert_string_equal(sl_error_message(), message);
}

static void a_stage_that_cannot_be_is_refused_with_what_is_wrong(void **state)
{
    (void)state;
    sl_meta meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 3 }), strided = sl_meta_make(SL_F32, 1, (int64_t[]){ 3 });
    strided.strides[0] = 2;
    sl_meta negative = meta, open = meta;
    negative.shape.dims[0] = -3;
    open.shape.rank = -1;
    sl_stage_value nameless = { .meta = meta },
                   twice[] = { { .name = "x", .meta = meta }, { .name = "x", .meta = meta } };
    sl_stage_value apart = { .name = "x", .meta = strided }, less = { .name = "x", .meta = negative };
    sl_stage_param shapeless = { .name = "w", .meta = open };
    sl_stage_options good = { .index = 2, .forward = nothing, .backward = nothing }, bad = good;
    bad.index = -1;
    assert_refused(&bad, "stage index -1 is out of range");
    bad = good;
    bad.forward = NULL;
    assert_refused(&bad, "stage 2 has no forward function");
    bad = good;
    bad.backward_input = nothing;
    assert_refused(&bad, "stage 2 has one of backward_input and backward_weight without the other");
    bad = good;
    bad.inputs = &nameless;
    bad.input_count = 1;
    assert_refused(&bad, "stage 2: an input has no name");
    bad.inputs = &apart;
    assert_refused(&bad, "stage 2: input 'x' is not contiguous");
    bad.inputs = &less;
    assert_refused(&bad, "stage 2: input 'x' has no valid shape and dtype");
    bad = good;
    bad.outputs = twice;
    bad.output_count = 2;
    assert_refused(&bad, "stage 2 has two outputs 'x'");
    bad = good;
    bad.params = &shapeless;
    bad.param_count = 1;
    assert_refused(&bad, "stage 2: parameter 'w' has no shape");

    sl_stage *stage = NULL;
    assert_int_equal(sl_stage_create(&good, &stage), SL_OK);
    assert_int_equal(sl_stage_index(stage), 2);
    assert_int_equal(sl_stage_bind_param(stage, "w", NULL, NULL), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "stage 2 has no parameter 'w'");
    assert_int_equal(sl_stage_set_weight_runner(stage, nothing, NULL), SL_ERR_ARGUMENT);
    sl_stage_destroy(stage);
}

/* Two stages on one rank, made by the caller from these. */
typedef struct pair {
    sl_stage_options stages[2];
    sl_runtime_options extra;
} pair;

static void assert_pair_refused(const pair *made, const char *csv, const char *message)
{
    sl_group *group = NULL;
    sl_device *device = NULL;
    sl_schedule *schedule = NULL;
    sl_runtime *runtime = NULL;
    sl_stage *stages[2];
    assert_int_equal(sl_group_open_threads(1, NULL, &group), SL_OK);
    assert_int_equal(sl_device_open("cpu", NULL, &device), SL_OK);
    assert_int_equal(sl_schedule_parse_csv(csv, strlen(csv), "test", &schedule), SL_OK);
    for (int s = 0; s < 2; s++)
        assert_int_equal(sl_stage_create(&made->stages[s], &stages[s]), SL_OK);
    sl_runtime_options options = made->extra;
    options.group = group;
    options.device = device;
    options.schedule = schedule;
    options.stages = stages;
    options.stage_count = 2;
    assert_int_not_equal(sl_runtime_create(&options, &runtime), SL_OK);
    assert_null(runtime);
    assert_string_equal(sl_error_message(), message);
    for (int s = 0; s < 2; s++)
        sl_stage_destroy(stages[s]);
    sl_schedule_destroy(schedule);
    sl_device_close(device);
    sl_group_close(group);
}

static void stages_that_do_not_go_together_are_refused(void **state)
{
    (void)state;
    static const char csv[] = "0F0,1F0,1B0,0B0\n";
    sl_meta row = sl_meta_make(SL_F32, 1, (int64_t[]){ 1 }), rows = sl_meta_make(SL_F32, 1, (int64_t[]){ 4 });
    sl_stage_value loss = { .name = "loss", .loss = true }, other = { .name = "cost", .loss = true };
    sl_stage_value wide = { .name = "loss", .meta = rows, .loss = true }, user = { .name = "loss", .meta = row };
    sl_stage_param w[] = { { .name = "w", .meta = row }, { .name = "w", .meta = row } };
    sl_stage_param fixed = { .name = "w", .meta = row, .frozen = true }, tall = { .name = "w", .meta = rows };
    const pair good = { .stages = { { .index = 0, .forward = nothing, .backward = nothing },
                                    { .index = 1, .forward = nothing, .backward = nothing } } };
    pair bad = good;
    bad.stages[1].index = 0;
    assert_pair_refused(&bad, csv, "stage 0 is on rank 0 and again on rank 0");
    bad.stages[1].index = 2;
    assert_pair_refused(&bad, csv, "rank 0 has stage 2, the schedule ends at stage 1");
    bad = good;
    bad.stages[0].backward = NULL;
    assert_pair_refused(&bad, csv, "stage 0 has no backward, which the schedule runs");

    bad = good;
    bad.stages[0].outputs = &loss;
    bad.stages[1].outputs = &other;
    bad.stages[0].output_count = bad.stages[1].output_count = 1;
    assert_pair_refused(&bad, csv, "stage 0 has a loss, 'loss', and stage 1 another, 'cost'");
    bad.stages[1].output_count = 0;
    bad.stages[1].inputs = &user;
    bad.stages[1].input_count = 1;
    assert_pair_refused(&bad, csv, "stage 0: the loss 'loss' is an input of another stage");
    bad.stages[1].input_count = 0;
    bad.stages[0].outputs = &wide;
    assert_pair_refused(&bad, csv, "stage 0: the loss 'loss' is f32 [4], not one f32 or f64");

    bad = good;
    bad.stages[0].params = w;
    bad.stages[0].param_count = 2;
    assert_pair_refused(&bad, csv, "stage 0 has the parameter 'w' twice");
    bad.stages[0].param_count = bad.stages[1].param_count = 1;
    bad.stages[1].params = &fixed;
    assert_pair_refused(&bad, csv, "parameter 'w', tied between stages 0 and 1, is frozen in one of them only");
    bad.stages[1].params = &tall;
    assert_pair_refused(&bad, csv,
                        "parameter 'w', tied between stages 0 and 1: shape mismatch: expected [1], given [4]");
}

static void arguments_that_do_not_go_together_are_refused(void **state)
{
    (void)state;
    static const char csv[] = "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n"; /* 2 microbatches */
    sl_meta rows = sl_meta_make(SL_F32, 1, (int64_t[]){ 2 }), open = rows;
    open.shape.rank = -1;
    sl_stage_value x = { .name = "x", .meta = rows }, y = { .name = "y", .meta = rows },
                   z = { .name = "z", .meta = open };
    sl_arg_spec specs[] = { { .name = "x", .meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 4 }) },
                            { .name = "y", .meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 6 }) } };
    sl_stage_value made = { .name = "made", .meta = rows };
    sl_arg_spec nameless = { .meta = rows }, unknown = { .name = "xx" }, deep = { .name = "x", .chunk = { .dim = 1 } };
    sl_arg_spec uneven = { .name = "x", .meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 3 }) };
    const pair good = { .stages = {
                            { .index = 0, .inputs = &x, .input_count = 1, .forward = nothing, .backward = nothing },
                            { .index = 1, .inputs = &y, .input_count = 1, .forward = nothing, .backward = nothing } } };
    pair bad = good;
    bad.extra = (sl_runtime_options){ .args = specs, .arg_count = 2 };
    assert_pair_refused(&bad, csv, "argument 'y' has 6 samples, 'x' has 4");
    bad.extra = (sl_runtime_options){ .args = &nameless, .arg_count = 1 };
    assert_pair_refused(&bad, csv, "rank 0: argument spec 0 has no name");
    bad.extra = (sl_runtime_options){ .args = &unknown, .arg_count = 1 };
    assert_pair_refused(&bad, csv, "no stage has an input 'xx', which the arguments' specs name");
    bad.extra = (sl_runtime_options){ .args = &deep, .arg_count = 1 };
    assert_pair_refused(&bad, csv, "argument 'x': cannot merge parts of rank 1 along dim 1");
    bad.extra = (sl_runtime_options){ .args = &uneven, .arg_count = 1 };
    bad.stages[0].outputs = &made;
    bad.stages[0].output_count = 1;
    assert_pair_refused(&bad, csv,
                        "rank 0: stage 0 has no infer function, which a batch with microbatches of two sizes needs");
    bad.extra = (sl_runtime_options){ .group = NULL };
    bad.stages[1].inputs = &z;
    assert_pair_refused(
        &bad, csv,
        "stage 1: no stage makes the input 'z', so it comes with the batch, and neither the stage nor an "
        "argument's spec gives its shape");
}

/* ---- One after another ---- */

static sl_status as_the_input(void *user, const sl_meta *inputs, int input_count, sl_meta *outputs, int output_count)
{
    (void)user, (void)input_count, (void)output_count;
    outputs[0] = inputs[0];
    return SL_OK;
}

static sl_status sum_up(void *user, const sl_stage_call *call)
{
    const float *x = call->inputs[0].data;
    (void)user;
    for (int64_t i = 0; i < sl_meta_count(&call->inputs[0].meta); i++)
        ((float *)call->outputs[0].data)[i] = x[i] + 1;
    return SL_OK;
}

static void a_stage_serves_one_runtime_after_another(void **state)
{
    (void)state;
    static const char csv[] = "0F0,0F1\n";
    float x[8] = { 0, 1, 2, 3, 4, 5, 6, 7 }, y[8];
    sl_group *group = NULL;
    sl_device *device = NULL;
    sl_schedule *schedule = NULL;
    sl_stage *stage = NULL;
    sl_meta open = { .shape = { .rank = -1 } };
    sl_stage_value in = { .name = "x", .meta = open }, out = { .name = "y", .meta = open };
    sl_stage_options options = {
        .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1, .forward = sum_up, .infer = as_the_input
    };
    assert_int_equal(sl_group_open_threads(1, NULL, &group), SL_OK);
    assert_int_equal(sl_device_open("cpu", NULL, &device), SL_OK);
    assert_int_equal(sl_schedule_parse_csv(csv, strlen(csv), "test", &schedule), SL_OK);
    assert_int_equal(sl_stage_create(&options, &stage), SL_OK);
    for (int64_t samples = 3; samples <= 8; samples++) { /* uneven and even */
        sl_runtime *runtime = NULL;
        sl_view batch = { x, sl_meta_make(SL_F32, 1, &samples) };
        sl_arg_spec spec = { .name = "x", .meta = batch.meta };
        sl_runtime_options what = { .group = group,
                                    .device = device,
                                    .schedule = schedule,
                                    .stages = &stage,
                                    .stage_count = 1,
                                    .args = &spec,
                                    .arg_count = 1 };
        sl_output output = { .name = "y", .view = { y, batch.meta } };
        sl_step step = { .args = &(sl_arg){ NULL, batch }, .arg_count = 1, .outputs = &output, .output_count = 1 };
        if (sl_runtime_create(&what, &runtime) != SL_OK || sl_runtime_eval(runtime, &step, NULL) != SL_OK)
            fail_msg("%d samples: %s", (int)samples, sl_error_message());
        for (int64_t i = 0; i < samples; i++)
            assert_true(y[i] == x[i] + 1);
        sl_runtime_destroy(runtime);
    }
    sl_stage_destroy(stage);
    sl_schedule_destroy(schedule);
    sl_device_close(device);
    sl_group_close(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_shared_inputs_and_the_callers_memory),
        cmocka_unit_test(a_stage_serves_one_runtime_after_another),
        cmocka_unit_test(a_stage_that_cannot_be_is_refused_with_what_is_wrong),
        cmocka_unit_test(stages_that_do_not_go_together_are_refused),
        cmocka_unit_test(arguments_that_do_not_go_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
