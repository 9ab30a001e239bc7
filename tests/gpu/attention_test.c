/* Attention on the GPU beyond the cases of all ops: which weights dropout leaves, and how much scratch memory a plan
 * counts for it. */
#include "gpu/gpu.h"

/* q and k are zero and v is the unit matrix, so that o has the weights: 0, or all alike. */
static void check_dropped_weights(sl_dtype dtype, int64_t keys, int64_t width)
{
    char in[64], out[64];
    snprintf(in, sizeof in, "2x%lldx1x%lld 2x%lldx1x%lld 2x%lldx1x%lld", (long long)keys, (long long)width,
             (long long)keys, (long long)width, (long long)keys, (long long)width);
    snprintf(out, sizeof out, "2x%lldx1x%lld 2x1x%lld", (long long)keys, (long long)width, (long long)keys);
    const op_case c = {
        .op = SL_OP_ATTENTION, .inputs = in, .outputs = out, .attrs = { .scale = 1, .p = 0.4, .key = 99 }
    };
    args inputs = make_args(c.inputs, dtype, PACKED), here = make_args(c.outputs, dtype, PACKED);
    args there = make_args(c.outputs, dtype, PACKED);
    for (int n = 0; n < 3; n++) {
        for (int64_t i = 0; i < 2 * keys * width; i++)
            put(&inputs.views[n], i, n == 2 && i / width % keys == i % width);
    }
    open_device(1);
    assert_int_equal(run_call(call_of(&c, &inputs, &here, false)), SL_OK);
    close_device();
    assert_int_equal(run_on_gpu(call_of(&c, &inputs, &there, false)), SL_OK);
    for (int64_t i = 0; i < 2 * keys * width; i++) {
        if ((get(&here.views[0], i) == 0) != (get(&there.views[0], i) == 0))
            fail_msg("weight %lld of query %lld in %s: %g on the cpu, %g here", (long long)(i % width),
                     (long long)(i / width), sl_dtype_name(dtype), get(&here.views[0], i), get(&there.views[0], i));
    }
    free_args(&inputs);
    free_args(&here);
    free_args(&there);
}

static void attention_drops_the_weights_that_the_cpu_drops(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        check_dropped_weights(kind ? SL_BF16 : SL_F32, 64, 64);
        check_dropped_weights(kind ? SL_BF16 : SL_F32, 128, 128);
        check_dropped_weights(kind ? SL_BF16 : SL_F32, 101, 101);
        check_dropped_weights(kind ? SL_BF16 : SL_F32, 200, 200);
    }
}

/* What a plan for an H200 counts without having one. cuDNN's own workspace is its business; this is what it takes now. */
static void a_described_gpu_has_the_scratch_of_a_real_one(void **state)
{
    (void)state;
    static const struct {
        sl_op op;
        sl_dtype dtype;
        int64_t batch, length, heads, groups, width;
        double dropout;
    } sizes[] = {
        { SL_OP_ATTENTION, SL_BF16, 2, 256, 4, 4, 64, 0 },
        { SL_OP_ATTENTION_GRAD, SL_BF16, 2, 256, 4, 4, 64, 0 },
        { SL_OP_ATTENTION_GRAD, SL_BF16, 2, 256, 4, 2, 64, 0 },
        { SL_OP_ATTENTION_GRAD, SL_BF16, 1, 1024, 16, 4, 128, 0 },
        { SL_OP_ATTENTION_GRAD, SL_BF16, 2, 300, 4, 2, 64, 0.1 },
        { SL_OP_ATTENTION_GRAD, SL_F32, 2, 100, 4, 4, 64, 0.1 },
    };
    sl_device *described = NULL;
    assert_int_equal(sl_device_open("h200", NULL, &described), SL_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const sl_dtype type = sizes[i].dtype;
        const sl_view q = { .meta = sl_meta_make(
                                type, 4,
                                (int64_t[]){ sizes[i].batch, sizes[i].length, sizes[i].heads, sizes[i].width }) };
        const sl_view k = { .meta = sl_meta_make(
                                type, 4,
                                (int64_t[]){ sizes[i].batch, sizes[i].length, sizes[i].groups, sizes[i].width }) };
        const sl_view lse = { .meta = sl_meta_make(SL_F32, 3,
                                                   (int64_t[]){ sizes[i].batch, sizes[i].heads, sizes[i].length }) };
        bool backward = sizes[i].op == SL_OP_ATTENTION_GRAD;
        const sl_view inputs[] = { q, k, k, q, lse, q }, forward[] = { q, lse }, gradients[] = { q, k, k };
        const sl_kernel_call call = { .op = sizes[i].op,
                                      .attrs = { .causal = true, .scale = 0.125, .p = sizes[i].dropout },
                                      .inputs = inputs,
                                      .input_count = backward ? 6 : 3,
                                      .outputs = backward ? gradients : forward,
                                      .output_count = backward ? 3 : 2 };
        size_t here = 0, told = 0;
        assert_int_equal(sl_kernel_scratch(gpu, &call, &here), SL_OK);
        assert_int_equal(sl_kernel_scratch(described, &call, &told), SL_OK);
        assert_int_equal(told, here);
    }
    sl_device_close(described);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_drops_the_weights_that_the_cpu_drops),
        cmocka_unit_test(a_described_gpu_has_the_scratch_of_a_real_one),
    };
    if (!open_gpu())
        return SKIPPED;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_gpu();
    return failed;
}
