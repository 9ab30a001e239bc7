/* Fused ops have the bits of the ops that they stand for, in f32 and bf16, alone and adding. */
#include "unit/kernel/cases.h"

#include "kernel/fused.h"

static sl_dtype dtype_of(const sl_op_arg *place, sl_dtype data)
{
    return place->kind == SL_ARG_STATISTIC ? SL_F32 : place->kind == SL_ARG_POSITION ? SL_I32 : data;
}

static args converted(const args *from, const sl_op_arg *places, sl_dtype data)
{
    args to = { .count = from->count };
    for (int i = 0; i < from->count; i++) {
        to.views[i] = to.list[i].view = from->views[i];
        if (sl_view_is_none(&from->views[i]))
            continue;
        to.list[i] = make_arg(dtype_of(&places[i], data), &from->views[i].meta.shape, PACKED);
        to.views[i] = to.list[i].view;
        for (int64_t e = 0; e < sl_meta_count(&to.views[i].meta); e++)
            put(&to.views[i], e, get(&from->views[i], e));
    }
    return to;
}

static void check_case(size_t i, sl_dtype dtype, bool accumulate)
{
    const op_case *c = &cases[i];
    const sl_op_info *info = sl_op_get_info(c->op);
    sl_fused_part parts[SL_FUSED_PARTS];
    seed_case(i);
    args inputs = make_args(c->inputs, SL_F32, PACKED), outputs = make_args(c->outputs, SL_F32, PACKED);
    args in = converted(&inputs, info->inputs, dtype), whole = converted(&outputs, info->outputs, dtype);
    args apart = converted(&outputs, info->outputs, dtype);
    assert_int_equal(run_call(call_of(c, &in, &whole, accumulate)), SL_OK);
    sl_kernel_call call = call_of(c, &in, &apart, accumulate);
    int count = sl_fused_parts(&call, parts);
    assert_in_range(count, 2, SL_FUSED_PARTS);
    for (int p = 0; p < count; p++) {
        assert_false(sl_op_is_fused(parts[p].call.op));
        assert_int_equal(run_call(parts[p].call), SL_OK);
    }
    for (int o = 0; o < whole.count; o++) {
        for (int64_t e = 0; !sl_view_is_none(&whole.views[o]) && e < sl_meta_count(&whole.views[o].meta); e++) {
            double x = get(&whole.views[o], e), y = get(&apart.views[o], e);
            if (memcmp(&x, &y, sizeof x) != 0)
                fail_msg("%s %s: element %lld of output %d is %.9g, its parts give %.9g", info->name, c->inputs,
                         (long long)e, o, x, y);
        }
    }
    free_args(&inputs);
    free_args(&outputs);
    free_args(&in);
    free_args(&whole);
    free_args(&apart);
}

static void fused_ops_have_the_bits_of_their_parts(void **state)
{
    (void)state;
    open_device(1);
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (int kind = 0; kind < 4 && sl_op_is_fused(cases[i].op); kind++) {
            if (kind < 2 || sl_op_get_info(cases[i].op)->accumulates)
                check_case(i, kind % 2 ? SL_BF16 : SL_F32, kind >= 2);
        }
    }
    close_device();
}

static void plain_ops_have_no_parts(void **state)
{
    (void)state;
    sl_fused_part parts[SL_FUSED_PARTS];
    for (int op = 0; op < SL_OP_COUNT; op++) {
        const sl_kernel_call call = { .op = (sl_op)op };
        if (!sl_op_is_fused((sl_op)op))
            assert_int_equal(sl_fused_parts(&call, parts), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_ops_have_the_bits_of_their_parts),
        cmocka_unit_test(plain_ops_have_no_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
