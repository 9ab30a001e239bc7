/* Every op with other element types than f32, on every instruction set and in every memory layout, against f64. The name
 * of an op as argument runs the cases of that one alone. */
#include "unit/kernel/bits.h"

#include "op/op.h"
#include "support/amx/amx.h"
#include "support/sample.h"

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

/* Copies of the arguments in the element types of the mixture. */
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
        int64_t count = sl_meta_count(&view->meta);
        for (int64_t e = 0; e < count; e++)
            put(&to.views[i], e, get(view, e));
    }
    return to;
}

/* An element may be off by half a unit in its last place, and by what sums in f32 lose. */
static void check_close(const char *what, int number, const sl_view *given, const sl_view *expected)
{
    double norm = 0, unit = given->meta.dtype == SL_BF16 ? 0x1p-8 : given->meta.dtype == SL_F16 ? 0x1p-11 : 0;
    int64_t count = sl_meta_count(&expected->meta);
    for (int64_t i = 0; i < count; i++) {
        double value = get(expected, i);
        norm += isfinite(value) ? value * value : 0;
    }
    double sums = 1e-5 * (sqrt(norm / (double)(count ? count : 1)) + 1e-3);
    for (int64_t i = 0; i < count; i++) {
        double a = get(given, i), b = get(expected, i);
        if (a != b && !(isnan(a) && isnan(b)) && !(fabs(a - b) <= 1.001 * unit * fabs(b) + sums))
            fail_msg("%s, argument %d: element %lld is %.9g, expected %.9g", what, number, (long long)i, a, b);
    }
}

/* Gives the f64 arguments the numbers that the mixture has in their place. */
static void round_to(const mixture *m, const sl_op_info *info, bool outputs, const args *list)
{
    args lost = converted(list, info, m, outputs, PACKED);
    for (int i = 0; i < list->count; i++) {
        int64_t count = sl_view_is_none(&list->views[i]) ? 0 : sl_meta_count(&list->views[i].meta);
        for (int64_t e = 0; e < count; e++)
            put(&list->views[i], e, get(&lost.views[i], e));
    }
    free_args(&lost);
}

static void make_rounded(size_t i, const mixture *m, args *inputs, args *outputs)
{
    const sl_op_info *info = sl_op_get_info(cases[i].op);
    seed_case(i);
    *inputs = make_args(cases[i].inputs, SL_F64, PACKED);
    *outputs = make_args(cases[i].outputs, SL_F64, PACKED);
    round_to(m, info, false, inputs);
    round_to(m, info, true, outputs);
}

/* A case in one mixture: its arguments, and what they are after the call in f64, which the reference computes. */
typedef struct mixed_case {
    size_t number;
    const mixture *mixture;
    bool accumulate;
    args inputs, outputs, inputs_after, outputs_after;
} mixed_case;

static void check_case(const mixed_case *mixed, layout how)
{
    const op_case *c = &cases[mixed->number];
    const sl_op_info *info = sl_op_get_info(c->op);
    char what[200];
    snprintf(what, sizeof what, "%s %s (%s, %s, %d threads, %s%s)", info->name, c->inputs, mixed->mixture->name,
             sl_isa_name(sl_isa_get()), sl_device_threads(test_device), layout_names[how],
             mixed->accumulate ? ", accumulating" : "");
    args inputs = converted(&mixed->inputs, info, mixed->mixture, false, how);
    args outputs = converted(&mixed->outputs, info, mixed->mixture, true, how);
    if (run_call(call_of(c, &inputs, &outputs, mixed->accumulate)) != SL_OK)
        fail_msg("%s: %s", what, sl_error_message());
    for (int o = 0; o < outputs.count; o++) {
        if (!sl_view_is_none(&outputs.views[o]))
            check_close(what, o, &outputs.views[o], &mixed->outputs_after.views[o]);
    }
    for (int n = 0; n < inputs.count; n++) { /* caches are written */
        if (!sl_view_is_none(&inputs.views[n]))
            check_close(what, n, &inputs.views[n], &mixed->inputs_after.views[n]);
    }
    free_args(&inputs);
    free_args(&outputs);
}

/* Large cases all in bf16 on three threads, products on every instruction set (in a sample on the best one). The others
 * on every instruction set in every mixture, and all in bf16 in every layout (in a sample in one layout, and in one other
 * mixture). */
static void check_mixture(mixed_case *mixed)
{
    const bool large = cases[mixed->number].large, product = cases[mixed->number].op <= SL_OP_MATMUL;
    const int m = (int)(mixed->mixture - mixtures);
    make_rounded(mixed->number, mixed->mixture, &mixed->inputs, &mixed->outputs);
    make_rounded(mixed->number, mixed->mixture, &mixed->inputs_after, &mixed->outputs_after);
    open_device(large ? 3 : 1);
    assert_int_equal(
        run_call(call_of(&cases[mixed->number], &mixed->inputs_after, &mixed->outputs_after, mixed->accumulate)),
        SL_OK);
    for (int isa = SL_ISA_SCALAR; isa <= (int)sl_isa_best(); isa++) {
        const size_t turn = mixed->number + (size_t)isa + mixed->accumulate;
        if (large && (test_takes_sample() || !product) && isa != (int)sl_isa_best())
            continue;
        if (m > 0 && !test_in_sample(turn, m - 1, MIXTURES - 1))
            continue;
        if (!large && !has_own_code((sl_isa)isa, cases[mixed->number].op))
            continue;
        assert_true(sl_isa_set((sl_isa)isa));
        for (int how = 0; how < (large || m > 0 ? 1 : LAYOUT_COUNT); how++) {
            if (large || m > 0 || test_in_sample(turn, how, LAYOUT_COUNT))
                check_case(mixed, (layout)how);
        }
    }
    close_device();
    free_args(&mixed->inputs);
    free_args(&mixed->outputs);
    free_args(&mixed->inputs_after);
    free_args(&mixed->outputs_after);
}

static void mixed_calls_give_what_f64_gives_for_the_same_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        /* What is rounded between the parts of a fused op counts, too; it has their bits (fused_test). */
        if (!is_wanted(&cases[i]) || sl_op_is_fused(cases[i].op))
            continue;
        for (int m = 0; m < (cases[i].large ? 1 : MIXTURES); m++) {
            for (int accumulate = 0; accumulate <= sl_op_get_info(cases[i].op)->accumulates; accumulate++)
                check_mixture(&(mixed_case){ .number = i, .mixture = &mixtures[m], .accumulate = accumulate });
        }
    }
}

int main(int count, char **words)
{
    emulate_amx();
    wanted_op = count > 1 ? words[1] : NULL;
    const struct CMUnitTest tests[] = { cmocka_unit_test(mixed_calls_give_what_f64_gives_for_the_same_numbers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
