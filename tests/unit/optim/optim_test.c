/* Optimizers against the formulas written out, the learning rate, the norm. */
#include <sluice/optim.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 7, COLUMNS = 37, SIZE = ROWS * COLUMNS };

/* One device with a matrix and a bias on it. */
typedef struct fixture {
    sl_device *device;
    sl_stream *stream;
    float weight[SIZE], weight_grad[SIZE], bias[COLUMNS], bias_grad[COLUMNS];
    sl_optim_param params[2];
} fixture;

static float noise(int i)
{
    return (float)(((unsigned)i * 2654435761u >> 8) % 20001) / 10000.0f - 1;
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f || sl_device_open("cpu", NULL, &f->device) != SL_OK || sl_stream_create(f->device, &f->stream) != SL_OK)
        return -1;
    for (int i = 0; i < SIZE; i++)
        f->weight[i] = noise(i);
    for (int i = 0; i < COLUMNS; i++)
        f->bias[i] = noise(1000 + i);
    sl_meta matrix = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, COLUMNS });
    sl_meta vector = sl_meta_make(SL_F32, 1, (int64_t[]){ COLUMNS });
    f->params[0] = (sl_optim_param){
        .name = "w", .data = { f->weight, matrix }, .grad = { f->weight_grad, matrix }, .decay = true
    };
    f->params[1] = (sl_optim_param){ .name = "b", .data = { f->bias, vector }, .grad = { f->bias_grad, vector } };
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    sl_stream_destroy(f->stream);
    sl_device_close(f->device);
    free(f);
    return 0;
}

static void fill_grads(fixture *f, int step)
{
    for (int i = 0; i < SIZE; i++)
        f->weight_grad[i] = noise(7919 * step + i);
    for (int i = 0; i < COLUMNS; i++)
        f->bias_grad[i] = noise(104729 * step + i);
}

static sl_optimizer *create(fixture *f, const sl_optim_options *options)
{
    sl_optimizer *optimizer = NULL;
    if (sl_optimizer_create(options, f->device, f->params, 2, &optimizer) != SL_OK)
        fail_msg("%s", sl_error_message());
    return optimizer;
}

static void adamw_follows_its_formula(void **state)
{
    fixture *f = *state;
    sl_optim_options options = {
        .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
    };
    sl_optimizer *optimizer = create(f, &options);
    double p[SIZE], m[SIZE] = { 0 }, v[SIZE] = { 0 }, q[COLUMNS], n[COLUMNS] = { 0 }, u[COLUMNS] = { 0 };
    for (int i = 0; i < SIZE; i++)
        p[i] = f->weight[i];
    for (int i = 0; i < COLUMNS; i++)
        q[i] = f->bias[i];
    for (int t = 1; t <= 5; t++) {
        double lr = 0.01 * t, scale = 1.0 / t;
        fill_grads(f, t);
        assert_int_equal(sl_optimizer_step(optimizer, f->stream, t, lr, scale), SL_OK);
        for (int i = 0; i < SIZE + COLUMNS; i++) {
            bool matrix = i < SIZE;
            int k = matrix ? i : i - SIZE;
            double g = scale * (matrix ? f->weight_grad[k] : f->bias_grad[k]);
            double *value = matrix ? &p[k] : &q[k], *first = matrix ? &m[k] : &n[k], *second = matrix ? &v[k] : &u[k];
            *value -= matrix ? lr * 0.1 * *value : 0; /* decay on the matrix alone */
            *first = 0.9 * *first + 0.1 * g;
            *second = 0.95 * *second + 0.05 * g * g;
            *value -= lr * (*first / (1 - pow(0.9, t))) / (sqrt(*second / (1 - pow(0.95, t))) + 1e-8);
        }
    }
    assert_int_equal(sl_stream_synchronize(f->stream), SL_OK);
    for (int i = 0; i < SIZE; i++)
        assert_true(fabs(f->weight[i] - p[i]) < 2e-6);
    for (int i = 0; i < COLUMNS; i++)
        assert_true(fabs(f->bias[i] - q[i]) < 2e-6);
    sl_optimizer_destroy(optimizer);
}

static void sgd_follows_its_formula_with_and_without_momentum(void **state)
{
    fixture *f = *state;
    for (int round = 0; round < 2; round++) {
        double momentum = round ? 0.9 : 0, m = 0, p = f->weight[5];
        sl_optim_options options = { .kind = SL_OPTIM_SGD, .momentum = momentum, .weight_decay = 0.01 };
        sl_optimizer *optimizer = create(f, &options);
        assert_int_equal(sl_optimizer_state_count(optimizer), round ? 2 : 0);
        for (int t = 1; t <= 4; t++) {
            fill_grads(f, t);
            assert_int_equal(sl_optimizer_step(optimizer, f->stream, t, 0.1, 0.5), SL_OK);
            m = momentum * m + 0.5 * f->weight_grad[5] + 0.01 * p;
            p -= 0.1 * m;
        }
        assert_int_equal(sl_stream_synchronize(f->stream), SL_OK);
        assert_true(fabs(f->weight[5] - p) < 1e-6);
        sl_optimizer_destroy(optimizer);
    }
}

static void state_is_named_for_checkpoints_and_continues_a_run(void **state)
{
    fixture *f = *state;
    sl_optim_options options = { .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
    sl_optimizer *first = create(f, &options);
    fill_grads(f, 1);
    assert_int_equal(sl_optimizer_step(first, f->stream, 1, 0.1, 1), SL_OK);
    assert_int_equal(sl_optimizer_state_count(first), 4);
    static const char *const names[4][2] = {
        { "w", "exp_avg" }, { "w", "exp_avg_sq" }, { "b", "exp_avg" }, { "b", "exp_avg_sq" }
    };
    sl_optimizer *second = create(f, &options); /* takes over in the middle */
    for (int i = 0; i < 4; i++) {
        sl_optim_state from = sl_optimizer_state_at(first, i), to = sl_optimizer_state_at(second, i);
        assert_string_equal(from.param, names[i][0]);
        assert_string_equal(from.kind, names[i][1]);
        assert_true(sl_meta_equal(&from.view.meta, i < 2 ? &f->params[0].data.meta : &f->params[1].data.meta));
        memcpy(to.view.data, from.view.data, sl_meta_bytes(&from.view.meta));
    }
    float before[SIZE], undisturbed[SIZE];
    memcpy(before, f->weight, sizeof before);
    fill_grads(f, 2);
    assert_int_equal(sl_optimizer_step(first, f->stream, 2, 0.1, 1), SL_OK);
    memcpy(undisturbed, f->weight, sizeof undisturbed);
    memcpy(f->weight, before, sizeof before);
    assert_int_equal(sl_optimizer_step(second, f->stream, 2, 0.1, 1), SL_OK);
    assert_memory_equal(f->weight, undisturbed, sizeof undisturbed);
    assert_int_equal(sl_optim_state_bytes(&options, SL_F32, 10), 80);
    sl_optimizer_destroy(first);
    sl_optimizer_destroy(second);
}

static void the_norm_is_that_of_all_gradients_together(void **state)
{
    fixture *f = *state;
    sl_optim_options options = { .kind = SL_OPTIM_SGD };
    sl_optimizer *optimizer = create(f, &options);
    double sums[2], expected = 0;
    fill_grads(f, 3);
    for (int i = 0; i < SIZE; i++)
        expected += (double)f->weight_grad[i] * f->weight_grad[i];
    assert_int_equal(sl_optimizer_square_sums(optimizer, f->stream, sums), SL_OK);
    assert_true(fabs(sums[0] - expected) < 1e-12 * expected);
    for (int i = 0; i < COLUMNS; i++)
        expected += (double)f->bias_grad[i] * f->bias_grad[i];
    assert_true(fabs(sl_grad_norm(sums, 2) - sqrt(expected)) < 1e-12 * sqrt(expected));
    sl_optimizer_destroy(optimizer);
    assert_true(sl_clip_scale(0.5, 1) == 1);
    assert_true(sl_clip_scale(4, 1) == 1 / (4 + 1e-6));
    assert_true(sl_clip_scale(4, 0) == 1);
}

/* Norm, clipping and update as the host does them, and by the device alone. */
static void an_update_without_the_host_has_the_same_bits(void **state)
{
    fixture *f = *state;
    for (int kind = SL_OPTIM_ADAMW; kind <= SL_OPTIM_SGD; kind++) {
        const sl_optim_options options = {
            .kind = (sl_optim_kind)kind, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9, .weight_decay = 0.1
        };
        float start[2][SIZE], by_host[2][SIZE];
        memcpy(start[0], f->weight, sizeof f->weight);
        memcpy(start[1], f->bias, sizeof f->bias);
        for (int alone = 0; alone < 2; alone++) {
            sl_optimizer *optimizer = NULL;
            double sums[2], norm = 0;
            memcpy(f->weight, start[0], sizeof f->weight);
            memcpy(f->bias, start[1], sizeof f->bias);
            assert_int_equal(sl_optimizer_create(&options, f->device, f->params, 2, &optimizer), SL_OK);
            for (int step = 1; step <= 4; step++) {
                double lr = 0.1 / step, clip = step == 1 ? 0 : step == 2 ? 1000 : 0.5;
                fill_grads(f, step);
                if (step == 4)
                    f->bias_grad[3] = NAN; /* nothing is updated */
                assert_int_equal(sl_optimizer_square_sums(optimizer, f->stream, sums), SL_OK);
                norm = sl_grad_norm(sums, 2);
                if (alone) {
                    assert_int_equal(sl_optimizer_begin_update(optimizer, f->stream, step, lr), SL_OK);
                    assert_int_equal(sl_optimizer_update(optimizer, f->stream, clip), SL_OK);
                    assert_int_equal(sl_stream_synchronize(f->stream), SL_OK);
                    double own = sl_optimizer_norm(optimizer);
                    assert_true(step == 4 ? isnan(own) : own == norm);
                } else if (step < 4) {
                    assert_int_equal(sl_optimizer_step(optimizer, f->stream, step, lr, sl_clip_scale(norm, clip)),
                                     SL_OK);
                }
            }
            if (alone) {
                assert_memory_equal(f->weight, by_host[0], sizeof f->weight);
                assert_memory_equal(f->bias, by_host[1], sizeof f->bias);
            }
            memcpy(by_host[0], f->weight, sizeof f->weight);
            memcpy(by_host[1], f->bias, sizeof f->bias);
            sl_optimizer_destroy(optimizer);
        }
    }
    sl_optimizer *optimizer = NULL;
    f->params[1].uncounted = true;
    fill_grads(f, 1);
    double sums[2];
    assert_int_equal(
        sl_optimizer_create(&(sl_optim_options){ .kind = SL_OPTIM_SGD }, f->device, f->params, 2, &optimizer), SL_OK);
    assert_int_equal(sl_optimizer_square_sums(optimizer, f->stream, sums), SL_OK);
    assert_true(sums[0] > 0 && sums[1] == 0);
    assert_int_equal(sl_optimizer_begin_update(optimizer, f->stream, 0, 1), SL_ERR_ARGUMENT);
    sl_optimizer_destroy(optimizer);
}

static void what_does_not_fit_is_refused_by_name(void **state)
{
    fixture *f = *state;
    sl_optimizer *optimizer = NULL;
    sl_optim_options options = { .kind = SL_OPTIM_ADAMW, .beta1 = 1, .beta2 = 0.9 };
    assert_int_not_equal(sl_optimizer_create(&options, f->device, f->params, 2, &optimizer), SL_OK);
    assert_non_null(strstr(sl_error_message(), "betas 1 and 0.9"));
    options = (sl_optim_options){ .kind = SL_OPTIM_SGD, .momentum = NAN };
    assert_int_not_equal(sl_optimizer_create(&options, f->device, f->params, 2, &optimizer), SL_OK);
    options = (sl_optim_options){ .kind = SL_OPTIM_SGD, .state_dtype = SL_I32 };
    assert_int_equal(sl_optimizer_create(&options, f->device, f->params, 2, &optimizer), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "optimizer state cannot be i32");
    options = (sl_optim_options){ .kind = SL_OPTIM_SGD };
    f->params[1].grad.meta = f->params[0].grad.meta;
    assert_int_equal(sl_optimizer_create(&options, f->device, f->params, 2, &optimizer), SL_ERR_SHAPE);
    assert_non_null(strstr(sl_error_message(), "'b' is f32 [37], its gradient f32 [7, 37]"));
    assert_null(optimizer);
}

/* ---- Element types --------------------------------------------------------------------------- */

/* The matrix of the fixture in bf16 with an f32 gradient. */
static sl_optim_param half_param(const fixture *f, uint16_t *weight)
{
    for (int i = 0; i < SIZE; i++)
        weight[i] = sl_bf16_from_f32(f->weight[i]);
    sl_meta meta = f->params[0].data.meta;
    meta.dtype = SL_BF16;
    return (sl_optim_param){ .name = "w", .data = { weight, meta }, .grad = f->params[0].grad, .decay = true };
}

static void a_master_in_f32_keeps_what_bf16_would_lose(void **state)
{
    fixture *f = *state;
    uint16_t weight[SIZE], alone[SIZE];
    double p[SIZE];
    sl_optim_options options = { .kind = SL_OPTIM_SGD, .master_weights = true };
    sl_optimizer *with = NULL, *without = NULL;
    const sl_optim_param param = half_param(f, weight), bare = half_param(f, alone);
    assert_int_equal(sl_optimizer_create(&options, f->device, &param, 1, &with), SL_OK);
    assert_int_equal(sl_optim_state_bytes(&options, SL_BF16, 10), 40);
    assert_int_equal(sl_optim_state_bytes(&options, SL_F32, 10), 0);
    size_t saved[SL_OPTIM_MAX_SAVED];
    assert_int_equal(sl_optim_saved_sizes(&options, SL_BF16, 10, saved), 1);
    assert_int_equal(saved[0], 40); /* the master, not the parameter */
    options.master_weights = false;
    sl_optim_saved_sizes(&options, SL_BF16, 10, saved);
    assert_int_equal(saved[0], 20);
    assert_int_equal(sl_optimizer_create(&options, f->device, &bare, 1, &without), SL_OK);
    assert_true(sl_optimizer_weight(without, 0).data == alone);
    const sl_view weights = sl_optimizer_weight(with, 0);
    float *master = weights.data;
    assert_int_equal(weights.meta.dtype, SL_F32);
    for (int i = 0; i < SIZE; i++) {
        p[i] = sl_bf16_to_f32(weight[i]);
        assert_true(master[i] == (float)p[i]);
        f->weight_grad[i] = p[i] > 0 ? 1 : -1;
    }
    for (int t = 1; t <= 100; t++) { /* each step far below half a unit of bf16 */
        assert_int_equal(sl_optimizer_step(with, f->stream, t, 1e-4, 1), SL_OK);
        assert_int_equal(sl_optimizer_step(without, f->stream, t, 1e-4, 1), SL_OK);
    }
    assert_int_equal(sl_stream_synchronize(f->stream), SL_OK);
    for (int i = 0; i < SIZE; i++) {
        float expected = (float)(p[i] - 0.01 * f->weight_grad[i]), kept = master[i];
        assert_true(fabsf(kept - expected) < 1e-5f);
        assert_int_equal(weight[i], sl_bf16_from_f32(kept)); /* the parameter is the master rounded */
        if (fabs(p[i]) > 0.25)
            assert_true(sl_bf16_to_f32(alone[i]) == (float)p[i]); /* nothing has moved */
    }
    memset(weight, 0, sizeof weight);
    assert_int_equal(sl_optimizer_refresh_masters(with, f->stream), SL_OK);
    assert_true(master[0] == 0);
    master[0] = 1.00390625f; /* 1 + 2^-8: a tie, to even */
    assert_int_equal(sl_optimizer_round_masters(with, f->stream), SL_OK);
    assert_int_equal(sl_stream_synchronize(f->stream), SL_OK);
    assert_int_equal(weight[0], 0x3f80);
    assert_true(master[0] == 1.00390625f);
    sl_optimizer_destroy(with);
    sl_optimizer_destroy(without);
}

static void adamw_takes_parameter_gradient_and_state_of_different_types(void **state)
{
    fixture *f = *state;
    static const sl_dtype dtypes[] = { SL_F32, SL_BF16 };
    for (int kind = 0; kind < 2; kind++) {
        sl_optim_options options = {
            .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .state_dtype = dtypes[kind]
        };
        uint16_t weight[SIZE];
        double m = 0, v = 0, p;
        const sl_optim_param param = half_param(f, weight);
        sl_optimizer *optimizer = NULL;
        assert_int_equal(sl_optimizer_create(&options, f->device, &param, 1, &optimizer), SL_OK);
        assert_int_equal(sl_optimizer_state_at(optimizer, 1).view.meta.dtype, dtypes[kind]);
        assert_int_equal(sl_optim_state_bytes(&options, SL_BF16, 10), kind ? 40 : 80);
        p = sl_bf16_to_f32(weight[3]);
        for (int t = 1; t <= 5; t++) {
            fill_grads(f, t);
            assert_int_equal(sl_optimizer_step(optimizer, f->stream, t, 0.1, 1), SL_OK);
            m = 0.9 * m + 0.1 * f->weight_grad[3];
            v = 0.95 * v + 0.05 * f->weight_grad[3] * f->weight_grad[3];
            p -= 0.1 * (m / (1 - pow(0.9, t))) / (sqrt(v / (1 - pow(0.95, t))) + 1e-8);
        }
        assert_int_equal(sl_stream_synchronize(f->stream), SL_OK);
        assert_true(fabs(sl_bf16_to_f32(weight[3]) - p) < 0.02);
        sl_optimizer_destroy(optimizer);
    }
}

static double lr_at(sl_decay decay, int64_t warmup, int64_t step)
{
    sl_lr_schedule schedule = { .decay = decay, .lr = 1, .min_lr = 0.1, .warmup = warmup, .steps = 100 };
    return sl_lr_at(&schedule, step);
}

static void the_learning_rate_rises_and_falls(void **state)
{
    (void)state;
    assert_true(lr_at(SL_DECAY_CONSTANT, 0, 0) == 1 && lr_at(SL_DECAY_CONSTANT, 0, 500) == 1);
    for (int decay = SL_DECAY_CONSTANT; decay <= SL_DECAY_LINEAR; decay++) {
        assert_true(fabs(lr_at((sl_decay)decay, 10, 0) - 0.1) < 1e-15);
        assert_true(lr_at((sl_decay)decay, 10, 9) == 1 && lr_at((sl_decay)decay, 10, 10) == 1);
    }
    assert_true(fabs(lr_at(SL_DECAY_LINEAR, 0, 50) - 0.55) < 1e-12);
    assert_true(fabs(lr_at(SL_DECAY_COSINE, 0, 50) - 0.55) < 1e-12);
    assert_true(fabs(lr_at(SL_DECAY_COSINE, 0, 25) - (0.1 + 0.9 * 0.5 * (1 + sqrt(0.5)))) < 1e-12);
    assert_true(fabs(lr_at(SL_DECAY_COSINE, 0, 100) - 0.1) < 1e-12 &&
                fabs(lr_at(SL_DECAY_LINEAR, 0, 999) - 0.1) < 1e-12);
    assert_true(fabs(lr_at(SL_DECAY_COSINE, 100, 100) - 0.1) < 1e-12); /* nothing left after the warm-up */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(adamw_follows_its_formula, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sgd_follows_its_formula_with_and_without_momentum, set_up, tear_down),
        cmocka_unit_test_setup_teardown(state_is_named_for_checkpoints_and_continues_a_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_norm_is_that_of_all_gradients_together, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_update_without_the_host_has_the_same_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_master_in_f32_keeps_what_bf16_would_lose, set_up, tear_down),
        cmocka_unit_test_setup_teardown(adamw_takes_parameter_gradient_and_state_of_different_types, set_up, tear_down),
        cmocka_unit_test(the_learning_rate_rises_and_falls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
