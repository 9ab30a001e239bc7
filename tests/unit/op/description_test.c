/* The descriptions of the ops: complete, consistent, and the same for whoever builds a graph and whoever calls a kernel.
 */
#include "unit/kernel/cases.h"

#include "op/op.h"

static void every_op_has_a_name_of_its_own_and_named_arguments(void **state)
{
    (void)state;
    for (int op = 0; op < SL_OP_COUNT; op++) {
        const sl_op_info *info = sl_op_get_info((sl_op)op);
        assert_non_null(info);
        assert_true(info->outputs[0].name && sl_op_output_count(info) <= SL_OP_OUTPUTS);
        for (int other = 0; other < op; other++)
            assert_string_not_equal(info->name, sl_op_name((sl_op)other));
        for (int i = 0; i < SL_OP_INPUTS; i++) { /* nothing is said about arguments after the last */
            if (!info->inputs[i].name)
                assert_true(!info->inputs[i + 1].name && !info->inputs[i].flags);
        }
        if (info->gradient)
            assert_true(sl_op_is_differentiable(info, 0) || sl_op_is_differentiable(info, 1));
    }
    assert_null(sl_op_get_info(SL_OP_COUNT));
    assert_string_equal(sl_op_name(SL_OP_COUNT), "?");
}

/* Whether an output's shape follows from the inputs; of the others the caller has to know it. */
static bool follows_from_inputs(sl_op op)
{
    return op != SL_OP_SUM_TO && op != SL_OP_FILL && op != SL_OP_EMBEDDING_GRAD;
}

static sl_meta_list metas_of(const args *a)
{
    return (sl_meta_list){ .first = &a->views[0].meta, .stride = sizeof a->views[0], .count = a->count };
}

/* What a graph works out from the inputs is what a kernel call accepts. */
static void inferred_shapes_are_those_that_calls_accept(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        const op_case *c = &cases[i];
        seed_case(i);
        args inputs = make_args(c->inputs, SL_F32, PACKED), outputs = make_args(c->outputs, SL_F32, PACKED);
        sl_op_attrs attrs = c->attrs;
        attrs.keepdim = inputs.count > 0 && outputs.views[0].meta.shape.rank == inputs.views[0].meta.shape.rank;
        sl_op_use known = { .op = c->op, .attrs = &attrs, .inputs = metas_of(&inputs), .outputs = metas_of(&outputs) };
        sl_op_use unknown = { .op = c->op, .attrs = &attrs, .inputs = metas_of(&inputs) };
        assert_int_equal(sl_op_check(&known), SL_OK);
        if (follows_from_inputs(c->op)) {
            assert_int_equal(sl_op_check(&unknown), SL_OK);
            for (int o = 0; o < outputs.count; o++) {
                const sl_meta *meta = &outputs.views[o].meta;
                if (meta->shape.rank >= 0 && (!sl_shape_equal(&unknown.shapes[o], &meta->shape)))
                    fail_msg("%s: output %d of case %zu has another shape", sl_op_name(c->op), o, i);
                if (meta->shape.rank >= 0 && sl_op_get_info(c->op)->outputs[o].kind != SL_ARG_FLOAT)
                    assert_int_equal(unknown.dtypes[o], meta->dtype);
            }
        } else {
            assert_int_not_equal(sl_op_check(&unknown), SL_OK);
            assert_non_null(strstr(sl_error_message(), "is missing"));
        }
        free_args(&inputs);
        free_args(&outputs);
    }
}

static sl_dtype result_of(sl_op op, int output, const sl_meta *inputs, int count)
{
    sl_op_use use = { .op = op, .attrs = &(sl_op_attrs){ 0 }, .inputs = { inputs, sizeof *inputs, count } };
    assert_int_equal(sl_op_check(&use), SL_OK);
    return use.dtypes[output];
}

static void results_have_the_dtype_of_the_data_and_statistics_at_least_f32(void **state)
{
    (void)state;
    const sl_meta half[] = { sl_meta_make(SL_BF16, 2, (int64_t[]){ 2, 3 }), sl_meta_make(SL_F32, 1, (int64_t[]){ 3 }) };
    const sl_meta wide[] = { sl_meta_make(SL_F64, 2, (int64_t[]){ 2, 3 }), sl_meta_make(SL_F32, 1, (int64_t[]){ 3 }) };
    assert_int_equal(result_of(SL_OP_RMSNORM, 0, half, 2), SL_BF16);
    assert_int_equal(result_of(SL_OP_RMSNORM, 1, half, 2), SL_F32);
    assert_int_equal(result_of(SL_OP_RMSNORM, 0, wide, 2), SL_F64);
    assert_int_equal(result_of(SL_OP_RMSNORM, 1, wide, 2), SL_F64);
    assert_int_equal(result_of(SL_OP_SQUARE_SUM, 0, half, 1), SL_F64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_name_of_its_own_and_named_arguments),
        cmocka_unit_test(inferred_shapes_are_those_that_calls_accept),
        cmocka_unit_test(results_have_the_dtype_of_the_data_and_statistics_at_least_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
