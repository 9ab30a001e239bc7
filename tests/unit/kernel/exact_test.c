/* Attention in f32 with AMX, which multiplies bf16 alone, is at least as exact as with multiply-adds. */
#include "unit/kernel/calls.h"

#include "kernel/cpu/isa.h"
#include "support/amx/amx.h"

enum { Q, K, V, O, LSE, D_O, D_Q, D_K, D_V, TENSORS, RESULTS = 5 };

static const char *const names[TENSORS] = { "q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv" };

/* An attention and its gradient. Keys and values have one head. */
typedef struct attention_case {
    int64_t queries, heads, width;
    double spread; /* of the queries: the larger, the less even the weights */
    sl_op_attrs attrs;
} attention_case;

static void make_tensors(const attention_case *c, sl_dtype dtype, arg *tensors)
{
    for (int i = 0; i < TENSORS; i++) {
        bool of_keys = i == K || i == V || i == D_K || i == D_V;
        sl_shape shape = { 4, { 1, c->queries, of_keys ? 1 : c->heads, c->width } };
        if (i == LSE)
            shape = (sl_shape){ 3, { 1, c->heads, c->queries } };
        tensors[i] = make_arg(dtype, &shape, PACKED);
    }
}

static void free_tensors(arg *tensors)
{
    for (int i = 0; i < TENSORS; i++)
        free(tensors[i].block);
}

/* Each number is one of f32. */
static void copy_tensor(const arg *from, const arg *to)
{
    int64_t count = sl_meta_count(&from->view.meta);
    for (int64_t i = 0; i < count; i++)
        put(&to->view, i, (float)get(&from->view, i));
}

static void run_op(const attention_case *c, sl_op op, const arg *tensors)
{
    sl_view views[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        views[i] = tensors[i].view;
    bool gradient = op == SL_OP_ATTENTION_GRAD;
    sl_kernel_call call = { .op = op,
                            .attrs = c->attrs,
                            .inputs = views,
                            .input_count = gradient ? D_Q : O,
                            .outputs = views + (gradient ? D_Q : O),
                            .output_count = gradient ? 3 : 2,
                            .rng = { .seed = 5, .training = true } };
    assert_int_equal(run_call(call), SL_OK);
}

/* What f64 gives, from numbers that are all of f32, also those that the gradient gets of the forward pass. */
static void find_expected(const attention_case *c, arg *expected, arg *inputs)
{
    assert_true(sl_isa_set(SL_ISA_REFERENCE));
    make_tensors(c, SL_F64, expected);
    make_tensors(c, SL_F64, inputs);
    for (int i = 0; i < TENSORS; i++) {
        int64_t count = sl_meta_count(&inputs[i].view.meta);
        for (int64_t e = 0; e < count; e++)
            put(&inputs[i].view, e, (float)(normal() * (i == Q ? c->spread : 1)));
        copy_tensor(&inputs[i], &expected[i]);
    }
    run_op(c, SL_OP_ATTENTION, expected);
    copy_tensor(&expected[O], &inputs[O]);
    copy_tensor(&expected[LSE], &inputs[LSE]);
    arg given[TENSORS];
    memcpy(given, inputs, sizeof given);
    for (int i = D_Q; i < TENSORS; i++)
        given[i] = expected[i];
    run_op(c, SL_OP_ATTENTION_GRAD, given);
}

static double error_of(const arg *given, const arg *expected)
{
    double sum = 0, norm = 0;
    int64_t count = sl_meta_count(&given->view.meta);
    for (int64_t i = 0; i < count; i++) {
        double right = get(&expected->view, i), error = get(&given->view, i) - right;
        sum += error * error;
        norm += right * right;
    }
    return sqrt(sum / norm);
}

/* The error of o, lse, dq, dk and dv, over their norm. */
static void find_errors(const attention_case *c, sl_isa isa, const arg *expected, const arg *inputs, double *errors)
{
    arg tensors[TENSORS];
    assert_true(sl_isa_set(isa));
    make_tensors(c, SL_F32, tensors);
    for (int i = 0; i < TENSORS; i++)
        copy_tensor(&inputs[i], &tensors[i]);
    run_op(c, SL_OP_ATTENTION, tensors);
    errors[0] = error_of(&tensors[O], &expected[O]);
    errors[1] = error_of(&tensors[LSE], &expected[LSE]);
    copy_tensor(&inputs[O], &tensors[O]);
    copy_tensor(&inputs[LSE], &tensors[LSE]);
    run_op(c, SL_OP_ATTENTION_GRAD, tensors);
    for (int i = D_Q; i < TENSORS; i++)
        errors[i - D_Q + 2] = error_of(&tensors[i], &expected[i]);
    free_tensors(tensors);
}

/* The last two have long sums over queries, of small numbers and of numbers that are much larger at first. */
static const attention_case cases[] = {
    { 200, 2, 64, 1, { .scale = 0.125, .causal = true } },
    { 200, 2, 64, 8, { .scale = 0.125 } },
    { 230, 2, 17, 1, { .scale = 0.25, .causal = true, .p = 0.2, .key = 3 } },
    { 300, 1, 40, 1, { .scale = 0.16, .causal = true, .window = 70, .softcap = 2 } },
    { 130, 2, 128, 1, { .scale = 0.09 } },
    { 512, 4, 24, 1, { .scale = 0.2 } },
    { 512, 4, 32, 1, { .scale = 0.18, .causal = true } },
};

static void attention_with_amx_is_as_exact_as_with_multiply_adds(void **state)
{
    const double most = 1.1; /* times the error: the log-sum-exp has the same on average */
    static const int results[RESULTS] = { O, LSE, D_Q, D_K, D_V };
    (void)state;
    if (!sl_isa_set(SL_ISA_AMX)) {
        print_message("this machine has neither AMX nor AVX512-BF16\n");
        skip();
    }
    open_device(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arg expected[TENSORS], inputs[TENSORS];
        double errors[RESULTS], own[RESULTS];
        test_random_state = 300 + i;
        find_expected(&cases[i], expected, inputs);
        find_errors(&cases[i], SL_ISA_AVX512, expected, inputs, errors);
        find_errors(&cases[i], SL_ISA_AMX, expected, inputs, own);
        assert_true(own[0] != errors[0]); /* it is other code */
        for (int r = 0; r < RESULTS; r++) {
            if (!(own[r] <= most * errors[r]))
                fail_msg("case %zu: the error of %s is %.3g with AMX, %.3g with AVX-512", i, names[results[r]], own[r],
                         errors[r]);
        }
        free_tensors(expected);
        free_tensors(inputs);
    }
    close_device();
}

int main(void)
{
    emulate_amx();
    const struct CMUnitTest tests[] = { cmocka_unit_test(attention_with_amx_is_as_exact_as_with_multiply_adds) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
