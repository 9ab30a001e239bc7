/* Every op with other element types than f32, on every instruction set and in every memory layout, against f64. */
#include "unit/kernel/bits.h"

#include "op/op.h"

/* Element types of a call, as training in mixed precision has them. */
typedef struct mixture {
    const char *name;
    sl_dtype data, weights, results; /* statistics are f32 */
} mixture;

static const mixture mixtures[] = {
    { "all bf16", SL_BF16, SL_BF16, SL_BF16 },
    { "bf16, results f32", SL_BF16, SL_BF16, SL_F32 },
    { "bf16, weights f16, results f32", SL_BF16, SL_F16, SL_F32 },
    { "f32, weights and results bf16", SL_F32, SL_BF16, SL_BF16 },
};

enum { MIXTURES = sizeof mixtures / sizeof *mixtures };

static sl_dtype dtype_of(const mixture *m, sl_arg_kind kind, bool output, sl_dtype own)
{
    switch (kind) {
    case SL_ARG_MOVED:
        return m->data;
    case SL_ARG_DATA:
    case SL_ARG_ANY:
        return output ? m->results : m->data;
    case SL_ARG_FLOAT:
        return output ? m->results : m->weights;
    case SL_ARG_STATISTIC:
        return SL_F32;
    default:
        return own; /* indices, f64 */
    }
}

/* Copies the arguments into other element types, and what they lose there back into the f64 ones. */
static args converted(const args *from, const sl_op_info *info, const mixture *m, bool outputs, layout how)
{
    args to = { .count = from->count };
    for (int i = 0; i < from->count; i++) {
        const sl_op_arg *place = outputs ? &info->outputs[i] : sl_op_input_arg(info, i);
        const sl_view *view = &from->views[i];
        if (sl_view_is_none(view)) {
            to.views[i] = to.list[i].view = *view;
            continue;
        }
        to.list[i] = make_arg(dtype_of(m, place->kind, outputs, view->meta.dtype), &view->meta.shape, how);
        to.views[i] = to.list[i].view;
        for (int64_t e = 0; e < sl_meta_count(&view->meta); e++) {
            put(&to.views[i], e, get(view, e));
            put(view, e, get(&to.views[i], e));
        }
    }
    return to;
}

/* An element may be off by half a unit in its last place, and by what sums in f32 lose. */
static void check_close(const char *what, int number, const sl_view *given, const sl_view *expected)
{
    double norm = 0, unit = given->meta.dtype == SL_BF16 ? 0x1p-8 : given->meta.dtype == SL_F16 ? 0x1p-11 : 0;
    int64_t count = sl_meta_count(&expected->meta);
    for (int64_t i = 0; i < count; i++)
        norm += isfinite(get(expected, i)) ? get(expected, i) * get(expected, i) : 0;
    double sums = 1e-5 * (sqrt(norm / (double)(count ? count : 1)) + 1e-3);
    for (int64_t i = 0; i < count; i++) {
        double a = get(given, i), b = get(expected, i);
        if (a != b && !(isnan(a) && isnan(b)) && !(fabs(a - b) <= 1.001 * unit * fabs(b) + sums))
            fail_msg("%s, argument %d: element %lld is %.9g, expected %.9g", what, number, (long long)i, a, b);
    }
}

/* The f64 result, by the reference. */
static void expect(const op_case *c, args *inputs, args *outputs, bool accumulate)
{
    assert_int_equal(run_call(call_of(c, inputs, outputs, accumulate)), SL_OK);
}

static void check_case(size_t i, const mixture *m, layout how, bool accumulate)
{
    const op_case *c = &cases[i];
    const sl_op_info *info = sl_op_get_info(c->op);
    char what[200];
    snprintf(what, sizeof what, "%s %s (%s, %s, %d threads, %s%s)", info->name, c->inputs, m->name,
             sl_isa_name(sl_isa_get()), sl_device_threads(test_device), layout_names[how],
             accumulate ? ", accumulating" : "");
    seed_case(i);
    args inputs = make_args(c->inputs, SL_F64, PACKED), outputs = make_args(c->outputs, SL_F64, PACKED);
    args mixed_in = converted(&inputs, info, m, false, how), mixed_out = converted(&outputs, info, m, true, how);
    expect(c, &inputs, &outputs, accumulate);
    if (run_call(call_of(c, &mixed_in, &mixed_out, accumulate)) != SL_OK)
        fail_msg("%s: %s", what, sl_error_message());
    for (int o = 0; o < outputs.count; o++) {
        if (!sl_view_is_none(&outputs.views[o]))
            check_close(what, o, &mixed_out.views[o], &outputs.views[o]);
    }
    for (int n = 0; n < inputs.count; n++) { /* caches are written */
        if (!sl_view_is_none(&inputs.views[n]))
            check_close(what, n, &mixed_in.views[n], &inputs.views[n]);
    }
    free_args(&inputs);
    free_args(&outputs);
    free_args(&mixed_in);
    free_args(&mixed_out);
}

/* Large cases all in bf16 on three threads (products on every instruction set); the others in every mixture, and all in bf16 in every layout. */
static void check_all(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        bool large = cases[i].large;
        if (sl_op_is_fused(cases[i].op))
            continue; /* what is rounded between its parts counts, too; it has their bits (fused_test) */
        if (large && (SLOW_BUILD || cases[i].op > SL_OP_MATMUL) && sl_isa_get() != sl_isa_best())
            continue;
        open_device(large ? 3 : 1);
        for (int m = 0; m < (large ? 1 : MIXTURES); m++) {
            if (SLOW_BUILD && !large && ((int)i + m) % 2)
                continue;
            for (int how = 0; how < (large || m > 0 ? 1 : LAYOUT_COUNT); how++) {
                check_case(i, &mixtures[m], (layout)how, false);
                if (sl_op_get_info(cases[i].op)->accumulates)
                    check_case(i, &mixtures[m], (layout)how, true);
            }
        }
        close_device();
    }
}

static void mixed_calls_give_what_f64_gives_for_the_same_numbers(void **state)
{
    (void)state;
    for_every_isa(check_all);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mixed_calls_give_what_f64_gives_for_the_same_numbers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
