/* What users rely on to reproduce a run: the same call gives the same bits, wherever its tensors lie. */
#include "unit/kernel/cases.h"

#include "kernel/cpu/blas.h"
#include "kernel/cpu/isa.h"

/* Outputs of case i, row-major, one after the other; the caller frees. */
static double *results_of(size_t i, layout how, int threads, int64_t *count)
{
    const op_case *c = &cases[i];
    open_device(threads);
    seed_case(i);
    args inputs = make_args(c->inputs, SL_F32, how), outputs = make_args(c->outputs, SL_F32, how);
    assert_int_equal(run_call(call_of(c, &inputs, &outputs, false)), SL_OK);
    *count = 0;
    for (int n = 0; n < outputs.count; n++)
        *count += sl_view_is_none(&outputs.views[n]) ? 0 : sl_meta_count(&outputs.views[n].meta);
    double *values = calloc((size_t)*count + 1, sizeof *values), *to = values;
    for (int n = 0; n < outputs.count; n++) {
        int64_t size = sl_view_is_none(&outputs.views[n]) ? 0 : sl_meta_count(&outputs.views[n].meta);
        for (int64_t e = 0; e < size; e++)
            *to++ = get(&outputs.views[n], e);
    }
    free_args(&inputs);
    free_args(&outputs);
    close_device();
    return values;
}

static void check_same(size_t i, const double *a, layout how, int threads, const char *what)
{
    int64_t count;
    double *b = results_of(i, how, threads, &count);
    for (int64_t e = 0; e < count; e++) {
        if (memcmp(&a[e], &b[e], sizeof *a) != 0)
            fail_msg("%s %s on %s: element %lld is %.9g and %.9g with %s", sl_op_get_info(cases[i].op)->name,
                     cases[i].inputs, sl_isa_name(sl_isa_get()), (long long)e, a[e], b[e], what);
    }
    free(b);
}

static void for_every_isa(void (*check)(void))
{
    for (int isa = SL_ISA_SCALAR; isa <= (int)sl_isa_best(); isa++) {
        assert_true(sl_isa_set((sl_isa)isa));
        check();
    }
    sl_isa_set(sl_isa_best());
}

static void check_layouts(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        int64_t count;
        double *packed = results_of(i, PACKED, 1, &count);
        for (int how = SHIFTED; how < LAYOUT_COUNT; how++)
            check_same(i, packed, (layout)how, 1, layout_names[how]);
        free(packed);
    }
}

static void the_memory_layout_changes_no_bit(void **state)
{
    (void)state;
    for_every_isa(check_layouts);
    sl_blas_enable(false);
    for_every_isa(check_layouts);
    sl_blas_enable(true);
}

static void check_repeats(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!cases[i].large)
            continue;
        for (int threads = 1; threads <= 4; threads++) {
            int64_t count;
            double *first = results_of(i, PACKED, threads, &count);
            check_same(i, first, PACKED, threads, "the same threads again");
            free(first);
        }
    }
}

static void the_same_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for_every_isa(check_repeats);
}

/* Only the split of a matrix product may show. */
static void check_threads(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!cases[i].large || cases[i].op <= SL_OP_MATMUL)
            continue;
        int64_t count;
        double *one = results_of(i, PACKED, 1, &count);
        check_same(i, one, PACKED, 2, "2 threads");
        check_same(i, one, PACKED, 5, "5 threads");
        free(one);
    }
}

static void outside_products_the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    for_every_isa(check_threads);
}

/* The ops whose info says so give the same bits when the result takes over the memory of an input. */
static void results_in_place_have_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        const op_case *c = &cases[i];
        uint32_t inplace = sl_op_get_info(c->op)->inplace;
        int64_t count;
        double *apart = results_of(i, PACKED, 1, &count);
        open_device(1);
        for (int k = 0; k < MAX_ARGS; k++) {
            seed_case(i);
            args inputs = make_args(c->inputs, SL_F32, PACKED), outputs = make_args(c->outputs, SL_F32, PACKED);
            if ((inplace >> k & 1) && k < inputs.count &&
                sl_shape_equal(&inputs.views[k].meta.shape, &outputs.views[0].meta.shape)) {
                outputs.views[0] = inputs.views[k];
                assert_int_equal(run_call(call_of(c, &inputs, &outputs, false)), SL_OK);
                for (int64_t e = 0; e < sl_meta_count(&outputs.views[0].meta); e++) {
                    double value = get(&outputs.views[0], e);
                    if (memcmp(&value, &apart[e], sizeof value) != 0)
                        fail_msg("%s on its input %d: element %lld is %.9g, apart %.9g", sl_op_get_info(c->op)->name, k,
                                 (long long)e, value, apart[e]);
                }
            }
            free_args(&inputs);
            free_args(&outputs);
        }
        free(apart);
        close_device();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_memory_layout_changes_no_bit),
        cmocka_unit_test(the_same_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(outside_products_the_number_of_threads_changes_no_bit),
        cmocka_unit_test(results_in_place_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
