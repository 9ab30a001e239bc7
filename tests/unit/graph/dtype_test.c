/* Element types that differ: parameters in bf16, data and gradients in f32. */
#include "unit/graph/harness.h"

static const sl_dtype f32 = SL_F32;

/* Params are bf16 or, for comparison, f64; data is bf16 or f32, or f64. */
typedef struct types {
    sl_dtype params, data;
} types;

static void put(sl_view view, int64_t i, double value)
{
    switch (view.meta.dtype) {
    case SL_BF16:
        ((uint16_t *)view.data)[i] = sl_bf16_from_f32((float)value);
        break;
    case SL_F32:
        ((float *)view.data)[i] = (float)value;
        break;
    case SL_F64:
        ((double *)view.data)[i] = value;
        break;
    default:
        ((int32_t *)view.data)[i] = (int32_t)((value + 1) * 2) % 4;
    }
}

static double get(sl_view view, int64_t i)
{
    return view.meta.dtype == SL_BF16 ? (double)sl_bf16_to_f32(((const uint16_t *)view.data)[i]) : element(view, i);
}

/* Numbers that bf16 holds exactly, so that graphs of all element types see the same. */
static void fill_halves(sl_view view, const char *name, uint64_t salt)
{
    for (int64_t i = 0; i < sl_meta_count(&view.meta); i++)
        put(view, i, sl_bf16_to_f32(sl_bf16_from_f32((float)noise(name, (uint64_t)i + salt * 1000003))));
}

typedef sl_value (*builder)(sl_graph *g, const types *t);

static test_runner *new_mixed(builder build, const types *t, sl_device *device, int microbatches, const sl_dtype *grads)
{
    sl_graph *g = NULL;
    sl_partition *partition = NULL;
    test_runner *runner = NULL;
    ASSERT_OK(sl_graph_create(&g));
    sl_graph_set_param_dtype(g, t->params);
    sl_graph_loss(g, build(g, t));
    ASSERT_OK(sl_graph_finish(g));
    ASSERT_OK(sl_graph_partition(g, &(sl_split_spec){ .kind = SL_SPLIT_WHOLE }, &partition));
    const test_runner_options options = { .microbatches = microbatches, .programs = { .grad_dtype = grads } };
    ASSERT_OK(test_runner_create(partition, device, &options, &runner));
    for (int i = 0; i < sl_graph_param_count(g); i++)
        fill_halves(test_runner_param(runner, sl_graph_param_at(g, i).name), sl_graph_param_at(g, i).name, 0);
    for (int m = 0; m < microbatches; m++) {
        static const char *const names[] = { "x", "ids" };
        for (int i = 0; i < 2; i++) {
            sl_view input = test_runner_input(runner, m, names[i]);
            if (!sl_view_is_none(&input))
                fill_halves(input, names[i], (uint64_t)m + 1);
        }
    }
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
    return runner;
}

/* Largest difference of the gradients of two runs, over the largest of the second. */
static double gradient_error(const test_runner *a, const test_runner *b, const char *name)
{
    const sl_view x = test_runner_grad(a, name), y = test_runner_grad(b, name);
    double error = 0, largest = 0;
    assert_true(sl_shape_equal(&x.meta.shape, &y.meta.shape));
    for (int64_t i = 0; i < sl_meta_count(&x.meta); i++) {
        error = fmax(error, fabs(get(x, i) - get(y, i)));
        largest = fmax(largest, fabs(get(y, i)));
    }
    return error / largest;
}

static sl_value param(sl_graph *g, const char *name, int rank, const int64_t *dims)
{
    return sl_graph_param(g, name, rank, dims, zeros);
}

static sl_value input(sl_graph *g, const types *t)
{
    return sl_graph_input(g, "x", t->data, DIMS(4, 6));
}

static sl_value mean_square(sl_graph *g, sl_value y)
{
    return sl_mean(g, sl_mul(g, y, y), NULL, 0, false);
}

/* ---- Every way in which a term reaches the gradient of a parameter --------------------------- */

static sl_value layers(sl_graph *g, const types *t) /* kernels that write it themselves */
{
    sl_value y = sl_linear(g, input(g, t), param(g, "w", DIMS(6, 6)), param(g, "b", DIMS(6)));
    y = sl_layernorm(g, y, param(g, "scale", DIMS(6)), param(g, "shift", DIMS(6)), 1e-5);
    y = sl_rmsnorm(g, sl_gelu_tanh(g, y), param(g, "rms", DIMS(6)), 1e-5);
    return mean_square(g, sl_affine(g, y, param(g, "v", DIMS(6, 5)), SL_NO_VALUE));
}

static sl_value twice(sl_graph *g, const types *t) /* two terms of one call, and of two */
{
    sl_value w = param(g, "w", DIMS(6)), v = param(g, "v", DIMS(6, 6));
    sl_value y = sl_layernorm(g, input(g, t), w, w, 1e-5);
    return mean_square(g, sl_linear(g, sl_linear(g, y, v, w), v, SL_NO_VALUE));
}

static sl_value views(sl_graph *g, const types *t) /* through views of it */
{
    sl_value w = param(g, "w", DIMS(6, 12)), parts[2];
    sl_split(g, w, 1, (int64_t[]){ 6, 6 }, 2, parts);
    sl_value y = sl_linear(g, input(g, t), sl_transpose(g, parts[0], 0, 1), SL_NO_VALUE);
    sl_value b = sl_reshape(g, sl_slice(g, parts[1], 0, 2, 3), DIMS(6));
    return mean_square(g, sl_linear(g, y, parts[1], b));
}

static sl_value casts(sl_graph *g, const types *t) /* through functions of it, and a copy of a tensor */
{
    sl_value w = sl_cast(g, param(g, "w", DIMS(4, 6)), t->data), b = sl_cast(g, param(g, "b", DIMS(6)), t->data);
    sl_value y = sl_add(g, sl_mul(g, input(g, t), sl_scale(g, w, 2, 1)), w);
    return mean_square(g, sl_sub(g, y, sl_expand(g, b, DIMS(4, 6))));
}

static sl_value table(sl_graph *g, const types *t) /* rows of it, and ops that take it as data */
{
    sl_value ids = sl_graph_input(g, "ids", SL_I32, DIMS(3, 5)), w = param(g, "w", DIMS(4, 6));
    sl_value y = sl_mul(g, sl_embedding(g, ids, w), param(g, "gain", DIMS(6)));
    y = sl_add(g, y, param(g, "place", DIMS(5, 6)));
    sl_value logits = sl_linear(g, y, w, SL_NO_VALUE);
    (void)t;
    return sl_cross_entropy(g, logits, ids, -1);
}

typedef struct mixed_case {
    builder build;
    const char *params[6];
} mixed_case;

static const mixed_case cases[] = {
    { layers, { "w", "b", "scale", "shift", "rms", "v" } },
    { twice, { "w", "v" } },
    { views, { "w" } },
    { casts, { "w", "b" } },
    { table, { "w", "gain", "place" } },
};

static void check_case(const mixed_case *c, types mixed, double tolerance)
{
    sl_device *device = open_cpu();
    test_runner *given = new_mixed(c->build, &mixed, device, 2, &f32);
    test_runner *expected = new_mixed(c->build, &(types){ SL_F64, SL_F64 }, device, 2, NULL);
    ASSERT_OK(test_runner_step(given, &test_rng, NULL));
    ASSERT_OK(test_runner_step(expected, &test_rng, NULL));
    for (int i = 0; i < 6 && c->params[i]; i++) {
        const sl_port *port = &sl_stage_program_info(test_runner_program(given, 0))->params[i];
        assert_int_equal(test_runner_param(given, c->params[i]).meta.dtype, SL_BF16);
        assert_int_equal(test_runner_grad(given, c->params[i]).meta.dtype, SL_F32);
        assert_true(port->dtype == SL_BF16 && port->grad_dtype == SL_F32 && port->grad_bytes == 2 * port->bytes);
        double error = gradient_error(given, expected, c->params[i]);
        if (!(error <= tolerance))
            fail_msg("case %d: the gradient of %s is off by %g", (int)(c - cases), c->params[i], error);
    }
    test_runner_destroy(given);
    test_runner_destroy(expected);
    sl_device_close(device);
}

/* With f32 data nothing but the parameters is rounded, and those hold their numbers exactly. */
static void f32_data_and_bf16_parameters_give_gradients_of_f32_precision(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].build != table) /* its data is what the table holds */
            check_case(&cases[i], (types){ SL_BF16, SL_F32 }, 1e-5);
    }
}

static void bf16_data_and_parameters_give_f32_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i], (types){ SL_BF16, SL_BF16 }, 0.05);
}

/* ---- Accumulation ---------------------------------------------------------------------------- */

static sl_value one_layer(sl_graph *g, const types *t)
{
    return mean_square(g, sl_linear(g, input(g, t), param(g, "w", DIMS(6, 6)), SL_NO_VALUE));
}

/* The sum over many microbatches: rounded to bf16 each time it loses what f32 keeps. */
static void gradients_accumulate_in_f32(void **state)
{
    (void)state;
    enum { MICROBATCHES = 200 };
    sl_device *device = open_cpu();
    const types mixed = { SL_BF16, SL_F32 }, exact = { SL_F64, SL_F64 };
    test_runner *expected = new_mixed(one_layer, &exact, device, MICROBATCHES, NULL);
    test_runner *wide = new_mixed(one_layer, &mixed, device, MICROBATCHES, &f32);
    test_runner *narrow = new_mixed(one_layer, &mixed, device, MICROBATCHES, NULL);
    ASSERT_OK(test_runner_step(expected, &test_rng, NULL));
    ASSERT_OK(test_runner_step(wide, &test_rng, NULL));
    ASSERT_OK(test_runner_step(narrow, &test_rng, NULL));
    assert_int_equal(test_runner_grad(narrow, "w").meta.dtype, SL_BF16);
    assert_true(gradient_error(wide, expected, "w") < 1e-5);
    assert_true(gradient_error(narrow, expected, "w") > 1e-3);
    test_runner_destroy(expected);
    test_runner_destroy(wide);
    test_runner_destroy(narrow);
    sl_device_close(device);
}

static void gradients_are_floating(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    sl_partition *partition = NULL;
    sl_stage_program *program = NULL;
    sl_device *device = open_cpu();
    const sl_dtype i32 = SL_I32;
    ASSERT_OK(sl_graph_create(&g));
    sl_graph_loss(g, one_layer(g, &(types){ SL_F32, SL_F32 }));
    ASSERT_OK(sl_graph_finish(g));
    ASSERT_OK(sl_graph_partition(g, &(sl_split_spec){ .kind = SL_SPLIT_WHOLE }, &partition));
    const sl_program_options options = { .grad_dtype = &i32 };
    assert_int_equal(sl_stage_program_create(partition, 0, device, &options, &program), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "gradients cannot be i32");
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
    sl_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_data_and_bf16_parameters_give_gradients_of_f32_precision),
        cmocka_unit_test(bf16_data_and_parameters_give_f32_gradients),
        cmocka_unit_test(gradients_accumulate_in_f32),
        cmocka_unit_test(gradients_are_floating),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
