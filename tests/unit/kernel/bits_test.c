/* What users rely on to reproduce a run: the same call gives the same bits, wherever its tensors lie. */
#include "unit/kernel/bits.h"

#include "kernel/cpu/blas.h"
#include "op/op.h"
#include "support/amx/amx.h"
#include "support/sample.h"

static bool blas_alone; /* only what a BLAS library takes part in */

static void check_layouts(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        int64_t count;
        if (blas_alone && cases[i].op > SL_OP_MATMUL && !sl_op_is_fused(cases[i].op))
            continue;
        if (!cases[i].large && !has_own_code(sl_isa_get(), cases[i].op))
            continue;
        if (cases[i].large && (bits_dtype != SL_F32 || (test_takes_sample() && sl_isa_get() != sl_isa_best())))
            continue;
        double *packed = results_of(i, PACKED, 1, &count);
        for (int how = SHIFTED; how < LAYOUT_COUNT; how++) {
            if (test_in_sample(i + (size_t)sl_isa_get(), how - SHIFTED, LAYOUT_COUNT - SHIFTED))
                check_same(i, packed, (layout)how, 1, layout_names[how]);
        }
        free(packed);
    }
}

static void the_memory_layout_changes_no_bit(void **state)
{
    (void)state;
    for_every_isa(check_layouts);
    sl_blas_enable(true);
    blas_alone = true;
    for_every_isa(check_layouts);
    blas_alone = false;
    sl_blas_enable(false);
}

static void the_memory_layout_changes_no_bit_of_bf16(void **state)
{
    (void)state;
    bits_dtype = SL_BF16;
    for_every_isa(check_layouts);
    bits_dtype = SL_F32;
}

/* The ops whose info says so give the same bits when the result takes over the memory of an input. */
static void check_in_place(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        const op_case *c = &cases[i];
        const sl_op_info *info = sl_op_get_info(c->op);
        int64_t count;
        double *apart = results_of(i, PACKED, 1, &count);
        open_device(1);
        for (int k = 0; k < SL_OP_INPUTS; k++) {
            if (!(sl_op_input_arg(info, k)->flags & SL_ARG_INPLACE))
                continue;
            seed_case(i);
            args inputs = make_args(c->inputs, bits_dtype, PACKED), outputs = make_args(c->outputs, bits_dtype, PACKED);
            if (k < inputs.count && sl_shape_equal(&inputs.views[k].meta.shape, &outputs.views[0].meta.shape)) {
                outputs.views[0] = inputs.views[k];
                assert_int_equal(run_call(call_of(c, &inputs, &outputs, false)), SL_OK);
                for (int64_t e = 0; e < sl_meta_count(&outputs.views[0].meta); e++) {
                    double value = get(&outputs.views[0], e);
                    if (memcmp(&value, &apart[e], sizeof value) != 0)
                        fail_msg("%s on its input %d: element %lld is %.9g, apart %.9g", sl_op_name(c->op), k,
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

static void results_in_place_have_the_same_bits(void **state)
{
    (void)state;
    check_in_place();
    bits_dtype = SL_BF16;
    check_in_place();
    bits_dtype = SL_F32;
}

int main(void)
{
    emulate_amx();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_memory_layout_changes_no_bit),
        cmocka_unit_test(the_memory_layout_changes_no_bit_of_bf16),
        cmocka_unit_test(results_in_place_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
