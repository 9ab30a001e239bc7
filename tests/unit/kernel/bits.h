/* Shared by the tests of bits: the outputs of a case, and whether another way to run it gives the same. */
#ifndef TESTS_KERNEL_BITS_H
#define TESTS_KERNEL_BITS_H

#include "unit/kernel/cases.h"

#include "kernel/cpu/isa.h"

static sl_dtype bits_dtype = SL_F32; /* of all floating arguments */

/* Outputs of case i, row-major, one after the other; the caller frees. */
HELPER double *results_of(size_t i, layout how, int threads, int64_t *count)
{
    const op_case *c = &cases[i];
    open_device(threads);
    seed_case(i);
    args inputs = make_args(c->inputs, bits_dtype, how), outputs = make_args(c->outputs, bits_dtype, how);
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

HELPER void check_same(size_t i, const double *a, layout how, int threads, const char *what)
{
    int64_t count;
    double *b = results_of(i, how, threads, &count);
    for (int64_t e = 0; e < count; e++) {
        if (memcmp(&a[e], &b[e], sizeof *a) != 0)
            fail_msg("%s %s on %s: element %lld is %.9g and %.9g with %s", sl_op_name(cases[i].op), cases[i].inputs,
                     sl_isa_name(sl_isa_get()), (long long)e, a[e], b[e], what);
    }
    free(b);
}

/* AVX512-BF16 and AMX have code of their own for products and attention; the rest is that of AVX-512, but for how numbers
 * are rounded to bf16 (values_test.c). */
HELPER bool has_own_code(sl_isa isa, sl_op op)
{
    return isa <= SL_ISA_AVX512 || op <= SL_OP_MATMUL || op == SL_OP_ATTENTION || op == SL_OP_ATTENTION_GRAD;
}

HELPER void for_every_isa(void (*check)(void))
{
    for (int isa = SL_ISA_SCALAR; isa <= (int)sl_isa_best(); isa++) {
        assert_true(sl_isa_set((sl_isa)isa));
        check();
    }
    sl_isa_set(sl_isa_best());
}

#endif
