/* Every op with element types mixed as its description allows: data in bf16, weights in f16, statistics and results in
 * f32. */
#include "unit/kernel/cases.h"

#include "op/op.h"

static sl_dtype input_dtype(sl_arg_kind kind, sl_dtype own)
{
    switch (kind) {
    case SL_ARG_DATA:
    case SL_ARG_MOVED:
    case SL_ARG_ANY:
        return SL_BF16;
    case SL_ARG_FLOAT:
        return SL_F16;
    case SL_ARG_STATISTIC:
        return SL_F32;
    default:
        return own; /* indices */
    }
}

/* Copies the arguments into other element types, and what they lose there back into the f64 ones. */
static args converted(const args *from, const sl_op_info *info, bool outputs)
{
    args to = { .count = from->count };
    for (int i = 0; i < from->count; i++) {
        const sl_op_arg *place = outputs ? &info->outputs[i] : sl_op_input_arg(info, i);
        const sl_view *view = &from->views[i];
        if (sl_view_is_none(view)) {
            to.views[i] = to.list[i].view = *view;
            continue;
        }
        sl_dtype dtype = input_dtype(place->kind, view->meta.dtype);
        if (outputs && place->kind != SL_ARG_MOVED && place->kind != SL_ARG_F64)
            dtype = SL_F32;
        to.list[i] = make_arg(dtype, &view->meta.shape, PACKED);
        to.views[i] = to.list[i].view;
        for (int64_t e = 0; e < sl_meta_count(&view->meta); e++) {
            put(&to.views[i], e, get(view, e));
            put(view, e, get(&to.views[i], e));
        }
    }
    return to;
}

/* The same numbers give the same result, rounded once into the output's element type. */
static void check_case(size_t i, bool accumulate)
{
    const op_case *c = &cases[i];
    const sl_op_info *info = sl_op_get_info(c->op);
    seed_case(i);
    args inputs = make_args(c->inputs, SL_F64, PACKED), outputs = make_args(c->outputs, SL_F64, PACKED);
    args mixed_in = converted(&inputs, info, false), mixed_out = converted(&outputs, info, true);
    assert_int_equal(run_call(call_of(c, &inputs, &outputs, accumulate)), SL_OK);
    sl_status status = run_call(call_of(c, &mixed_in, &mixed_out, accumulate));
    if (status != SL_OK)
        fail_msg("%s, case %zu: %s", info->name, i, sl_error_message());
    for (int o = 0; o < outputs.count; o++) {
        double unit = mixed_out.views[o].meta.dtype == SL_BF16 ? 0x1p-8 : 0x1p-22;
        for (int64_t e = 0; !sl_view_is_none(&outputs.views[o]) && e < sl_meta_count(&outputs.views[o].meta); e++) {
            double expected = get(&outputs.views[o], e), given = get(&mixed_out.views[o], e);
            if (!(fabs(expected - given) <= unit * (fabs(expected) + 8)) && !(isnan(expected) && isnan(given)) &&
                expected != given)
                fail_msg("%s, case %zu, output %d: element %lld is %.9g, expected %.9g", info->name, i, o, (long long)e,
                         given, expected);
        }
    }
    free_args(&inputs);
    free_args(&outputs);
    free_args(&mixed_in);
    free_args(&mixed_out);
}

static void mixed_calls_give_what_f64_gives_for_the_same_numbers(void **state)
{
    (void)state;
    open_device(1);
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (cases[i].large)
            continue;
        check_case(i, false);
        if (sl_op_get_info(cases[i].op)->accumulates)
            check_case(i, true);
    }
    close_device();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mixed_calls_give_what_f64_gives_for_the_same_numbers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
