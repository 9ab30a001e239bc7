/* Every op on every instruction set, with and without BLAS, in every memory layout, against the reference in f64. A
 * sanitizer sees each of them in one layout, and large calls on one thread with the best instruction set alone. The name
 * of an op as argument runs the cases of that one alone. */
#include "unit/kernel/cases.h"

#include "kernel/cpu/blas.h"
#include "kernel/cpu/isa.h"
#include "op/op.h"
#include "support/amx/amx.h"
#include "support/sample.h"

/* What the reference computes in f64 from the same numbers. */
static void expect(const op_case *c, size_t i, bool accumulate, args *inputs, args *outputs)
{
    sl_isa before = sl_isa_get();
    assert_true(sl_isa_set(SL_ISA_REFERENCE));
    open_device(1);
    seed_case(i);
    *inputs = make_args(c->inputs, SL_F64, PACKED);
    *outputs = make_args(c->outputs, SL_F64, PACKED);
    assert_int_equal(run_call(call_of(c, inputs, outputs, accumulate)), SL_OK);
    close_device();
    assert_true(sl_isa_set(before));
}

static void check_close(const op_case *c, const char *what, int number, const sl_view *given, const sl_view *expected)
{
    char text[160];
    if (!is_close(given, expected, c->tolerance > 0 ? c->tolerance : 1e-6, text, sizeof text))
        fail_msg("%s %s, output %d: %s", what, c->inputs, number, text);
}

/* Bytes that belong to no element must be as they were. */
static void check_surroundings(const char *what, const arg *a)
{
    if (!a->block)
        return;
    size_t size = sl_dtype_size(a->view.meta.dtype);
    char *touched = calloc(a->bytes, 1);
    int64_t count = sl_meta_count(&a->view.meta);
    for (int64_t i = 0; i < count; i++)
        memset(touched + ((char *)a->view.data - a->block) + offset_of(&a->view.meta, i) * (int64_t)size, 1, size);
    for (size_t i = 0; i < a->bytes; i++) {
        if (!touched[i] && (unsigned char)a->block[i] != 0xA5)
            fail_msg("%s wrote outside its elements, %zu bytes into the block", what, i);
    }
    free(touched);
}

static void check_case(size_t i, layout how, bool accumulate, const args *wanted_in, const args *wanted)
{
    const op_case *c = &cases[i];
    char what[160];
    snprintf(what, sizeof what, "%s (%s, %s, %d threads, %s%s)", sl_op_name(c->op), sl_isa_name(sl_isa_get()),
             sl_blas_name(), sl_device_threads(test_device), layout_names[how], accumulate ? ", accumulating" : "");
    seed_case(i);
    args inputs = make_args(c->inputs, SL_F32, how), outputs = make_args(c->outputs, SL_F32, how);
    sl_status status = run_call(call_of(c, &inputs, &outputs, accumulate));
    if (status != SL_OK)
        fail_msg("%s: %s", what, sl_error_message());
    for (int n = 0; n < outputs.count; n++) {
        if (!sl_view_is_none(&outputs.views[n]))
            check_close(c, what, n, &outputs.views[n], &wanted->views[n]);
        check_surroundings(what, &outputs.list[n]);
    }
    for (int n = 0; n < inputs.count; n++) { /* inputs stay as they were, caches become what the reference made them */
        if (!sl_view_is_none(&inputs.views[n]))
            check_close(c, what, n, &inputs.views[n], &wanted_in->views[n]);
    }
    free_args(&inputs);
    free_args(&outputs);
}

/* The ways to compute. */
typedef struct backend {
    sl_isa isa;
    int threads;
    bool blas;
} backend;

static const backend backends[] = {
    { SL_ISA_REFERENCE, 1, true }, { SL_ISA_SCALAR, 1, true },  { SL_ISA_AVX2, 1, true },    { SL_ISA_AVX512, 1, true },
    { SL_ISA_SCALAR, 1, false },   { SL_ISA_AVX2, 1, false },   { SL_ISA_AVX512, 1, false }, { SL_ISA_SCALAR, 3, true },
    { SL_ISA_AVX2, 3, false },     { SL_ISA_AVX512, 3, false }, { SL_ISA_AMX, 1, false },    { SL_ISA_AMX, 3, false },
};

enum { BACKENDS = sizeof backends / sizeof *backends };

static bool worth_running(const op_case *c, const backend *how)
{
    bool product = c->op <= SL_OP_MATMUL, attention = c->op == SL_OP_ATTENTION || c->op == SL_OP_ATTENTION_GRAD;
    sl_isa best = product || attention || sl_isa_best() < SL_ISA_AVX512 ? sl_isa_best() : SL_ISA_AVX512;
    if (c->large && how->threads == 1 && how->isa != best && test_takes_sample())
        return false;
    if (how->isa == SL_ISA_REFERENCE)
        return !c->large;
    return (how->isa == SL_ISA_AMX ? product || attention : how->blas || product) && (how->threads == 1 || c->large);
}

static void check_backend(size_t i, const backend *b, bool accumulate, const args *inputs, const args *outputs)
{
    if (!worth_running(&cases[i], b) || !sl_isa_set(b->isa))
        return;
    open_device(b->threads);
    sl_blas_enable(b->blas);
    for (int how = 0; how < LAYOUT_COUNT; how++) {
        if (test_in_sample(i + (size_t)(b - backends) + accumulate, how, LAYOUT_COUNT))
            check_case(i, (layout)how, accumulate, inputs, outputs);
    }
    sl_blas_enable(false);
    close_device();
}

static void every_backend_agrees_with_the_reference_in_f64(void **state)
{
    (void)state;
    if (sl_isa_best() < SL_ISA_AVX512)
        print_message("this machine has %s at best: what lies above is not run\n", sl_isa_name(sl_isa_best()));
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!is_wanted(&cases[i]))
            continue;
        for (int accumulate = 0; accumulate <= sl_op_get_info(cases[i].op)->accumulates; accumulate++) {
            args inputs, outputs;
            expect(&cases[i], i, accumulate, &inputs, &outputs);
            for (int b = 0; b < BACKENDS; b++)
                check_backend(i, &backends[b], accumulate, &inputs, &outputs);
            free_args(&inputs);
            free_args(&outputs);
        }
    }
}

static void the_table_has_every_op(void **state)
{
    (void)state;
    if (op_without_case())
        fail_msg("no case runs %s", op_without_case());
}

int main(int count, char **words)
{
    emulate_amx();
    wanted_op = count > 1 ? words[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_has_every_op),
        cmocka_unit_test(every_backend_agrees_with_the_reference_in_f64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
