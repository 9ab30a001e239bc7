/* The gradient of every op against finite differences in double precision. */
#include "unit/graph/harness.h"

#include "op/op.h"

static sl_value param(sl_graph *g, const char *name, int rank, const int64_t *dims)
{
    return sl_graph_param(g, name, rank, dims, zeros);
}

/* A scalar in which every element of y counts differently. */
static sl_value weighted_sum(sl_graph *g, sl_value y)
{
    sl_shape shape = sl_value_shape(g, y);
    int64_t count;
    ASSERT_OK(sl_shape_count(&shape, &count));
    double *weights = malloc((size_t)(count ? count : 1) * sizeof *weights);
    for (int64_t i = 0; i < count; i++)
        weights[i] = noise("weights", (uint64_t)i);
    sl_value constant = sl_graph_constant(g, "weights", SL_F64, shape.rank, shape.dims, weights);
    free(weights);
    return sl_sum(g, sl_mul(g, y, constant), NULL, 0, false);
}

typedef sl_value (*builder)(sl_graph *g);

static sl_value x234(sl_graph *g)
{
    return sl_graph_input_differentiable(g, "x", SL_F64, DIMS(2, 3, 4));
}

static sl_value op_linear(sl_graph *g)
{
    return sl_linear(g, x234(g), param(g, "w", DIMS(5, 4)), param(g, "b", DIMS(5)));
}

static sl_value op_affine(sl_graph *g)
{
    return sl_affine(g, x234(g), param(g, "w", DIMS(4, 5)), SL_NO_VALUE);
}

static sl_value op_matmul(sl_graph *g)
{
    return sl_matmul(g, x234(g), param(g, "w", DIMS(2, 4, 5)), false, false);
}

static sl_value op_matmul_ta(sl_graph *g)
{
    return sl_matmul(g, x234(g), param(g, "w", DIMS(3, 5)), true, false);
}

static sl_value op_matmul_tb(sl_graph *g)
{
    return sl_matmul(g, x234(g), param(g, "w", DIMS(1, 5, 4)), false, true);
}

static sl_value op_matmul_tab(sl_graph *g)
{
    return sl_matmul(g, x234(g), param(g, "w", DIMS(6, 1, 5, 3)), true, true);
}

static sl_value op_layernorm(sl_graph *g)
{
    return sl_layernorm(g, x234(g), param(g, "w", DIMS(4)), param(g, "b", DIMS(4)), 1e-5);
}

static sl_value op_layernorm_weight(sl_graph *g)
{
    return sl_layernorm(g, x234(g), param(g, "w", DIMS(4)), SL_NO_VALUE, 1e-5);
}

static sl_value op_layernorm_bias(sl_graph *g)
{
    return sl_layernorm(g, x234(g), SL_NO_VALUE, param(g, "b", DIMS(4)), 1e-5);
}

static sl_value op_layernorm_shared(sl_graph *g)
{
    sl_value w = param(g, "w", DIMS(4));
    return sl_layernorm(g, x234(g), w, w, 1e-5);
}

static sl_value op_rmsnorm(sl_graph *g)
{
    return sl_rmsnorm(g, x234(g), param(g, "w", DIMS(4)), 1e-5);
}

static sl_value op_rmsnorm_plain(sl_graph *g)
{
    return sl_rmsnorm(g, x234(g), SL_NO_VALUE, 1e-5);
}

static sl_value op_gelu_tanh(sl_graph *g)
{
    return sl_gelu_tanh(g, x234(g));
}

static sl_value op_gelu_erf(sl_graph *g)
{
    return sl_gelu_erf(g, x234(g));
}

static sl_value op_silu(sl_graph *g)
{
    return sl_silu(g, x234(g));
}

static sl_value op_relu(sl_graph *g)
{
    return sl_relu(g, x234(g));
}

static sl_value op_tanh(sl_graph *g)
{
    return sl_tanh(g, x234(g));
}

static sl_value op_exp(sl_graph *g)
{
    return sl_exp(g, x234(g));
}

static sl_value op_log(sl_graph *g)
{
    return sl_logarithm(g, sl_scale(g, x234(g), 1, 3));
}

static sl_value op_neg_scale(sl_graph *g)
{
    return sl_neg(g, sl_scale(g, x234(g), 2.5, -1));
}

static sl_value op_dropout(sl_graph *g)
{
    return sl_dropout(g, x234(g), 0.4);
}

static sl_value op_cast(sl_graph *g)
{
    return sl_cast(g, sl_cast(g, sl_copy(g, x234(g)), SL_F64), SL_F64);
}

static sl_value op_swiglu(sl_graph *g)
{
    return sl_swiglu(g, x234(g), param(g, "up", DIMS(2, 3, 4)));
}

static sl_value op_swiglu_same(sl_graph *g)
{
    sl_value x = x234(g);
    return sl_swiglu(g, x, x);
}

static sl_value op_softmax(sl_graph *g)
{
    return sl_softmax(g, x234(g));
}

static sl_value op_attention(sl_graph *g)
{
    sl_value q = sl_graph_input_differentiable(g, "x", SL_F64, DIMS(2, 3, 4, 2));
    return sl_attention(g, q, param(g, "k", DIMS(2, 5, 2, 2)), param(g, "v", DIMS(2, 5, 2, 2)), 0.7, false);
}

static sl_value op_attention_qkv(sl_graph *g)
{
    sl_value x = sl_graph_input_differentiable(g, "x", SL_F64, DIMS(2, 3, 12)), parts[3];
    sl_split(g, x, 2, (int64_t[]){ 4, 4, 4 }, 3, parts);
    for (int i = 0; i < 3; i++)
        parts[i] = sl_reshape(g, parts[i], DIMS(2, 3, 2, 2));
    return sl_attention(g, parts[0], parts[1], parts[2], 0, true);
}

static sl_value op_attention_dropout(sl_graph *g)
{
    sl_value q = sl_graph_input_differentiable(g, "x", SL_F64, DIMS(2, 3, 4, 2));
    return sl_attention_with(g, q, param(g, "k", DIMS(2, 5, 2, 2)), param(g, "v", DIMS(2, 5, 2, 2)),
                             &(sl_attention_options){ .dropout = 0.4 });
}

static sl_value op_attention_same(sl_graph *g)
{
    sl_value x = sl_graph_input_differentiable(g, "x", SL_F64, DIMS(2, 3, 2, 2));
    return sl_attention(g, x, x, x, 0, true);
}

static sl_value op_rope(sl_graph *g)
{
    sl_value x = sl_graph_input_differentiable(g, "x", SL_F64, DIMS(2, 3, 2, 4));
    double table[12];
    for (int i = 0; i < 12; i++)
        table[i] = noise("table", (uint64_t)i);
    sl_value cos = sl_graph_constant(g, "cos", SL_F64, DIMS(6, 2), table);
    sl_value sin = sl_graph_constant(g, "sin", SL_F64, DIMS(6, 2), table);
    return sl_rope(g, x, cos, sin, sl_graph_constant(g, "at", SL_I32, DIMS(3), (int32_t[]){ 4, 0, 5 }));
}

static sl_value op_embedding(sl_graph *g)
{
    return sl_embedding(g, sl_graph_input(g, "ids", SL_I32, DIMS(2, 3)), param(g, "table", DIMS(4, 3)));
}

static sl_value op_cross_entropy(sl_graph *g)
{
    sl_value loss = sl_cross_entropy(g, x234(g), sl_graph_input(g, "t", SL_I32, DIMS(2, 3)), 2);
    return sl_reshape(g, loss, DIMS(1));
}

static sl_value op_add(sl_graph *g)
{
    return sl_add(g, sl_add(g, x234(g), param(g, "b", DIMS(4))), param(g, "c", DIMS(3, 1)));
}

static sl_value op_sub(sl_graph *g)
{
    return sl_sub(g, sl_sub(g, param(g, "b", DIMS(4)), x234(g)), param(g, "c", DIMS(3, 1)));
}

static sl_value op_mul(sl_graph *g)
{
    return sl_mul(g, sl_mul(g, x234(g), param(g, "b", DIMS(4))), param(g, "c", DIMS(3, 1)));
}

static sl_value op_div(sl_graph *g)
{
    sl_value b = sl_scale(g, param(g, "b", DIMS(3, 1)), 1, 3), x = x234(g);
    return sl_div(g, sl_div(g, x, b), sl_scale(g, x, 1, 4));
}

static sl_value op_div_outer(sl_graph *g)
{
    return sl_div(g, param(g, "b", DIMS(2, 1, 4)), sl_scale(g, x234(g), 1, 3));
}

static sl_value op_sum(sl_graph *g)
{
    return sl_sum(g, x234(g), (int[]){ 0, 2 }, 2, false);
}

static sl_value op_mean(sl_graph *g)
{
    return sl_mean(g, x234(g), (int[]){ 1 }, 1, true);
}

static sl_value op_max(sl_graph *g)
{
    return sl_max(g, x234(g), (int[]){ 1, 2 }, 2, false);
}

static sl_value op_concat(sl_graph *g)
{
    sl_value x = x234(g);
    return sl_concat(g, (sl_value[]){ x, param(g, "w", DIMS(2, 2, 4)), x }, 3, 1);
}

static sl_value op_permute_reshape(sl_graph *g)
{
    sl_value x = sl_permute(g, x234(g), (int[]){ 2, 0, 1 });
    return sl_tanh(g, sl_reshape(g, x, DIMS(4, 6)));
}

static sl_value op_slice(sl_graph *g)
{
    sl_value x = x234(g);
    return sl_mul(g, sl_slice(g, x, 2, 0, 3), sl_slice(g, x, 2, 1, 4));
}

static sl_value op_split(sl_graph *g)
{
    sl_value parts[3], x = x234(g);
    sl_split(g, x, 1, (int64_t[]){ 1, 1, 1 }, 3, parts); /* part 1 is not used, x has another use */
    return sl_mul(g, sl_mul(g, parts[0], parts[2]), x);
}

static sl_value op_split_partly_used(sl_graph *g)
{
    sl_value parts[3];
    sl_split(g, sl_tanh(g, x234(g)), 2, (int64_t[]){ 1, 2, 1 }, 3, parts);
    return sl_exp(g, parts[1]);
}

static sl_value op_expand(sl_graph *g)
{
    sl_value b = sl_expand(g, sl_reshape(g, param(g, "b", DIMS(3)), DIMS(3, 1)), DIMS(2, 3, 4));
    return sl_mul(g, x234(g), b);
}

static sl_value op_views_of_a_parameter(sl_graph *g)
{
    sl_value w = param(g, "w", DIMS(4, 2, 5)), x = x234(g), halves[2];
    sl_split(g, w, 1, (int64_t[]){ 1, 1 }, 2, halves);
    sl_value a = sl_reshape(g, halves[0], DIMS(4, 5)), b = sl_reshape(g, halves[1], DIMS(4, 5));
    sl_value y = sl_add(g, sl_affine(g, x, a, SL_NO_VALUE), sl_affine(g, x, b, SL_NO_VALUE));
    sl_value rows = sl_transpose(g, a, 0, 1); /* one view more, and the parameter itself */
    y = sl_add(g, y, sl_linear(g, x, rows, SL_NO_VALUE));
    return sl_mul(g, y, sl_sum(g, w, NULL, 0, false));
}

static sl_value op_functions_of_parameters(sl_graph *g)
{
    sl_value w = sl_tanh(g, sl_mul(g, param(g, "w", DIMS(4, 5)), param(g, "mask", DIMS(5))));
    return sl_affine(g, sl_affine(g, x234(g), w, SL_NO_VALUE), sl_transpose(g, w, 0, 1), SL_NO_VALUE);
}

static sl_value op_parameter_used_often(sl_graph *g)
{
    sl_value w = param(g, "w", DIMS(4, 4)), x = x234(g);
    for (int i = 0; i < 3; i++)
        x = sl_tanh(g, sl_linear(g, x, w, SL_NO_VALUE));
    return sl_mul(g, x, sl_slice(g, w, 0, 0, 3));
}

static sl_value op_empty(sl_graph *g)
{
    sl_value x = sl_graph_input_differentiable(g, "x", SL_F64, DIMS(0, 3));
    return sl_linear(g, sl_relu(g, x), param(g, "w", DIMS(2, 3)), param(g, "b", DIMS(2)));
}

static const struct {
    const char *name;
    builder build;
} ops[] = {
#define OP(name)                                                                                                       \
    {                                                                                                                  \
#name, op_##name                                                                                               \
    }
    OP(linear),
    OP(affine),
    OP(matmul),
    OP(matmul_ta),
    OP(matmul_tb),
    OP(matmul_tab),
    OP(layernorm),
    OP(layernorm_weight),
    OP(layernorm_bias),
    OP(layernorm_shared),
    OP(rmsnorm),
    OP(rmsnorm_plain),
    OP(gelu_tanh),
    OP(gelu_erf),
    OP(silu),
    OP(relu),
    OP(tanh),
    OP(exp),
    OP(log),
    OP(neg_scale),
    OP(dropout),
    OP(cast),
    OP(swiglu),
    OP(swiglu_same),
    OP(softmax),
    OP(attention),
    OP(attention_qkv),
    OP(attention_same),
    OP(attention_dropout),
    OP(rope),
    OP(embedding),
    OP(cross_entropy),
    OP(add),
    OP(sub),
    OP(mul),
    OP(div),
    OP(div_outer),
    OP(sum),
    OP(mean),
    OP(max),
    OP(concat),
    OP(permute_reshape),
    OP(slice),
    OP(split),
    OP(split_partly_used),
    OP(expand),
    OP(views_of_a_parameter),
    OP(functions_of_parameters),
    OP(parameter_used_often),
    OP(empty),
};

static bool seen[SL_OP_COUNT]; /* ops that some case has a node of */

static void note_ops(const sl_graph *g)
{
    for (int n = 0; n < sl_graph_node_count(g); n++) {
        for (int op = 0; op < SL_OP_COUNT; op++)
            seen[op] = seen[op] || strcmp(sl_graph_node_op(g, n), sl_op_name((sl_op)op)) == 0;
    }
}

static void gradient_agrees_with_finite_differences(void **state)
{
    for (int split = 0; split < 2; split++) {
        sl_graph *g = NULL;
        ASSERT_OK(sl_graph_create(&g));
        sl_graph_set_param_dtype(g, SL_F64);
        builder build = *(const builder *)*state;
        sl_graph_loss(g, weighted_sum(g, build(g)));
        ASSERT_OK(sl_graph_finish(g));
        note_ops(g);
        check_gradients(g, NULL, (test_runner_options){ .split_backward = split, .microbatches = 2 });
        sl_graph_destroy(g);
    }
}

/* Runs last. */
static void every_op_with_a_gradient_has_a_case(void **state)
{
    (void)state;
    for (int op = 0; op < SL_OP_COUNT; op++) {
        if (sl_op_get_info((sl_op)op)->gradient && !seen[op])
            fail_msg("no case checks the gradient of %s", sl_op_name((sl_op)op));
    }
}

int main(void)
{
    enum { COUNT = sizeof ops / sizeof *ops };
    struct CMUnitTest tests[COUNT + 1];
    tests[COUNT] = (struct CMUnitTest)cmocka_unit_test(every_op_with_a_gradient_has_a_case);
    for (int i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){ .name = ops[i].name,
                                        .test_func = gradient_agrees_with_finite_differences,
                                        .initial_state = (void *)(uintptr_t)&ops[i].build };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
