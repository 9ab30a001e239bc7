/* Every gradient op against central differences of its forward op, in f64. */
#include "unit/kernel/calls.h"

/* Gradient ops take arguments named by where they come from: i0 is forward input 0, o1 forward output 1, d the gradient
 * of output 0. `of` names the forward inputs whose gradients the outputs are. */
typedef struct rule {
    sl_op forward;
    const char *inputs, *outputs;
    sl_op gradient;
    const char *arguments, *of;
    sl_op_attrs attrs;
    bool gradients; /* attrs are those of the gradient; the forward op has none */
} rule;

static const rule rules[] = {
    { SL_OP_LINEAR, "2x3x5 5x4 4", "2x3x4", SL_OP_LINEAR_GRAD_X, "d i1", "i0", { 0 }, false },
    { SL_OP_LINEAR, "2x3x5 5x4 4", "2x3x4", SL_OP_LINEAR_GRAD_W, "i0 d", "i1", { 0 }, false },
    { SL_OP_LINEAR, "2x3x5 5x4 4", "2x3x4", SL_OP_SUM_TO, "d", "i2", { 0 }, false },
    { SL_OP_LINEAR, "3x5 4x5", "3x4", SL_OP_LINEAR_GRAD_X, "d i1", "i0", { .transpose_w = true }, false },
    { SL_OP_LINEAR, "3x5 4x5", "3x4", SL_OP_LINEAR_GRAD_W, "i0 d", "i1", { .transpose_w = true }, false },
    { SL_OP_LAYERNORM,
      "2x3x7 7 7",
      "2x3x7 2x3 2x3",
      SL_OP_LAYERNORM_GRAD_X,
      "d i0 i1 o1 o2",
      "i0",
      { .eps = 1e-5 },
      false },
    { SL_OP_LAYERNORM,
      "2x3x7 7 7",
      "2x3x7 2x3 2x3",
      SL_OP_LAYERNORM_GRAD_W,
      "d i0 o1 o2",
      "i1 i2",
      { .eps = 1e-5 },
      false },
    { SL_OP_LAYERNORM, "4x7 - -", "4x7 4 4", SL_OP_LAYERNORM_GRAD_X, "d i0 i1 o1 o2", "i0", { .eps = 1e-5 }, false },
    { SL_OP_RMSNORM, "2x3x7 7", "2x3x7 2x3", SL_OP_RMSNORM_GRAD_X, "d i0 i1 o1", "i0", { .eps = 1e-5 }, false },
    { SL_OP_RMSNORM, "2x3x7 7", "2x3x7 2x3", SL_OP_RMSNORM_GRAD_W, "d i0 o1", "i1", { .eps = 1e-5 }, false },
    { SL_OP_GELU_TANH, "5x7", "5x7", SL_OP_GELU_TANH_GRAD, "i0 d", "i0", { 0 }, false },
    { SL_OP_GELU_ERF, "5x7", "5x7", SL_OP_GELU_ERF_GRAD, "i0 d", "i0", { 0 }, false },
    { SL_OP_SILU, "5x7", "5x7", SL_OP_SILU_GRAD, "i0 d", "i0", { 0 }, false },
    { SL_OP_RELU, "5x7", "5x7", SL_OP_RELU_GRAD, "o0 d", "i0", { 0 }, false },
    { SL_OP_TANH, "5x7", "5x7", SL_OP_TANH_GRAD, "o0 d", "i0", { 0 }, false },
    { SL_OP_EXP, "5x7", "5x7", SL_OP_MUL, "o0 d", "i0", { 0 }, false },
    { SL_OP_LOG, "p:5x7", "5x7", SL_OP_DIV, "d i0", "i0", { 0 }, false },
    { SL_OP_NEG, "5x7", "5x7", SL_OP_NEG, "d", "i0", { 0 }, false },
    { SL_OP_SWIGLU, "3x5 3x5", "3x5", SL_OP_SWIGLU_GRAD, "i0 i1 d", "i0 i1", { 0 }, false },
    { SL_OP_SOFTMAX, "3x7", "3x7", SL_OP_SOFTMAX_GRAD, "o0 d", "i0", { 0 }, false },
    { SL_OP_ATTENTION,
      "2x5x4x3 2x5x2x3 2x5x2x3",
      "2x5x4x3 2x4x5",
      SL_OP_ATTENTION_GRAD,
      "i0 i1 i2 o0 o1 d",
      "i0 i1 i2",
      { .scale = 0.5, .causal = true },
      false },
    { SL_OP_ATTENTION,
      "1x4x2x3 1x6x2x3 1x6x2x3",
      "1x4x2x3 1x2x4",
      SL_OP_ATTENTION_GRAD,
      "i0 i1 i2 o0 o1 d",
      "i0 i1 i2",
      { .scale = 0.7 },
      false },
    { SL_OP_ATTENTION, /* the mask stays while the numbers move */
      "2x5x4x3 2x5x2x3 2x5x2x3",
      "2x5x4x3 2x4x5",
      SL_OP_ATTENTION_GRAD,
      "i0 i1 i2 o0 o1 d",
      "i0 i1 i2",
      { .scale = 0.5, .causal = true, .p = 0.4, .key = 7 },
      false },
    { SL_OP_ATTENTION,
      "2x5x4x3 2x5x2x3 2x5x2x3",
      "2x5x4x3 2x4x5",
      SL_OP_ATTENTION_GRAD,
      "i0 i1 i2 o0 o1 d",
      "i0 i1 i2",
      { .scale = 0.5, .causal = true, .window = 3, .softcap = 0.8 },
      false },
    { SL_OP_ATTENTION,
      "2x7x4x3 2x7x2x3 2x7x2x3 i5:2x7",
      "2x7x4x3 2x4x7",
      SL_OP_ATTENTION_GRAD,
      "i0 i1 i2 o0 o1 d i3",
      "i0 i1 i2",
      { .scale = 0.5, .causal = true, .p = 0.4, .key = 7 },
      false },
    { SL_OP_DROPOUT, "3x4x5", "3x4x5", SL_OP_DROPOUT, "d", "i0", { .p = 0.4, .key = 7 }, false },
    { SL_OP_ROPE, "2x3x2x6 5x3 5x3", "2x3x2x6", SL_OP_ROPE, "d i1 i2", "i0", { .inverse = true }, true },
    { SL_OP_ROPE, "2x3x2x6 5x3 5x3 i5:2x3", "2x3x2x6", SL_OP_ROPE, "d i1 i2 i3", "i0", { .inverse = true }, true },
    { SL_OP_ROPE, "2x3x2x7 5x2 5x2", "2x3x2x7", SL_OP_ROPE, "d i1 i2", "i0", { .inverse = true }, true },
    { SL_OP_EMBEDDING, "i5:2x3 5x4", "2x3x4", SL_OP_EMBEDDING_GRAD, "i0 d", "i1", { 0 }, false },
    { SL_OP_CROSS_ENTROPY,
      "3x4x9 i9:3x4",
      "s 3x4",
      SL_OP_CROSS_ENTROPY_GRAD,
      "i0 i1 o1 d",
      "i0",
      { .ignore_index = 2 },
      false },
    { SL_OP_MAX, "3x4x5", "3x5", SL_OP_MAX_GRAD, "i0 o0 d", "i0", { .dims = 2 }, false },
    { SL_OP_MATMUL, "2x3x5 2x5x4", "2x3x4", SL_OP_MATMUL, "d i1", "i0", { .transpose_b = true }, true },
    { SL_OP_MATMUL, "2x3x5 2x5x4", "2x3x4", SL_OP_MATMUL, "i0 d", "i1", { .transpose_a = true }, true },
};

static const sl_rng rng = { .seed = 3, .step = 4, .sample_offset = 5, .training = true };

static void run_forward(const rule *r, args *inputs, args *outputs)
{
    sl_kernel_call call = { .op = r->forward,
                            .attrs = r->gradients ? (sl_op_attrs){ 0 } : r->attrs,
                            .inputs = inputs->views,
                            .input_count = inputs->count,
                            .outputs = outputs->views,
                            .output_count = outputs->count,
                            .rng = rng };
    assert_int_equal(run_call(call), SL_OK);
}

/* sum(output 0 * d) */
static double objective(const rule *r, args *inputs, args *outputs, const arg *d)
{
    run_forward(r, inputs, outputs);
    double sum = 0;
    for (int64_t i = 0; i < sl_meta_count(&d->view.meta); i++)
        sum += get(&outputs->views[0], i) * get(&d->view, i);
    return sum;
}

static void check_against_differences(const rule *r, args *inputs, args *outputs, const arg *d, int input,
                                      const sl_view *gradient)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < sl_meta_count(&gradient->meta); i++) {
        double value = get(&inputs->views[input], i);
        put(&inputs->views[input], i, value + step);
        double above = objective(r, inputs, outputs, d);
        put(&inputs->views[input], i, value - step);
        double below = objective(r, inputs, outputs, d), slope = (above - below) / (2 * step);
        put(&inputs->views[input], i, value);
        if (fabs(slope - get(gradient, i)) > 1e-7 * (1 + fabs(slope)))
            fail_msg("%s, gradient of input %d of %s, element %lld: %.12g, by differences %.12g",
                     sl_op_name(r->gradient), input, sl_op_name(r->forward), (long long)i, get(gradient, i), slope);
    }
}

static void check_rule(const rule *r)
{
    args inputs = make_args(r->inputs, SL_F64, PACKED), outputs = make_args(r->outputs, SL_F64, PACKED);
    args gradients = { .count = 0 };
    arg d = make_arg(SL_F64, &outputs.views[0].meta.shape, PACKED);
    sl_view arguments[MAX_ARGS];
    int argument_count = 0, of[MAX_ARGS], of_count = 0;
    for (int64_t i = 0; i < sl_meta_count(&d.view.meta); i++)
        put(&d.view, i, normal());
    run_forward(r, &inputs, &outputs);
    for (const char *c = r->arguments; *c; c++) {
        if (*c == 'd')
            arguments[argument_count++] = d.view;
        else if (*c == 'i' || *c == 'o')
            arguments[argument_count++] = (*c == 'i' ? &inputs : &outputs)->views[c[1] - '0'];
    }
    for (const char *c = r->of; *c; c++) {
        if (*c == 'i')
            of[of_count++] = c[1] - '0';
    }
    for (int i = 0; i < of_count; i++) {
        gradients.list[i] = make_arg(SL_F64, &inputs.views[of[i]].meta.shape, PACKED);
        gradients.views[i] = gradients.list[i].view;
        gradients.count++;
    }
    sl_kernel_call call = { .op = r->gradient,
                            .attrs = r->attrs,
                            .inputs = arguments,
                            .input_count = argument_count,
                            .outputs = gradients.views,
                            .output_count = of_count,
                            .rng = rng };
    assert_int_equal(run_call(call), SL_OK);
    for (int i = 0; i < of_count; i++)
        check_against_differences(r, &inputs, &outputs, &d, of[i], &gradients.views[i]);
    free_args(&inputs);
    free_args(&outputs);
    free_args(&gradients);
    free(d.block);
}

static void gradients_agree_with_differences(void **state)
{
    (void)state;
    open_device(1);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        check_rule(&rules[i]);
    close_device();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(gradients_agree_with_differences) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
