/* Many calls at once on the GPU, as a step updates all parameters and sums the squares of all gradients: they have the bits
 * of each call alone. */
#include "gpu/gpu.h"

/* A tensor on the GPU with the numbers of the test's generator. */
static sl_view far_tensor(sl_dtype dtype, int64_t count, bool positive)
{
    const sl_shape shape = { 1, { count } };
    arg here = make_arg(dtype, &shape, PACKED);
    sl_view there = here.view;
    for (int64_t i = 0; i < count; i++)
        put(&here.view, i, positive ? 0.5 + uniform() : normal());
    assert_int_equal(sl_device_alloc(gpu, sl_meta_bytes(&there.meta), &there.data), SL_OK);
    assert_int_equal(
        sl_stream_copy(gpu_stream, SL_COPY_HOST_TO_DEVICE, there.data, here.view.data, sl_meta_bytes(&there.meta)),
        SL_OK);
    assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
    free(here.block);
    return there;
}

enum { MANY = 700, MANY_OUTPUTS = 4 }; /* more than the tables of a launch hold */

typedef struct many_calls {
    sl_view inputs[MANY], outputs[MANY][MANY_OUTPUTS];
    sl_kernel_call calls[MANY];
    char *scratch;
} many_calls;

/* Updates and sums of squares by turns in long runs; sizes around those of a chunk, none at all among them. */
static void make_many(many_calls *many, bool updates)
{
    static const int64_t sizes[] = { 1, 7, 8, 768, 0, 8192, 8193, 32768, 32776, 100000, 5 };
    enum { SIZES = sizeof sizes / sizeof *sizes, SCRATCH = 64 };
    assert_int_equal(sl_device_alloc(gpu, (size_t)MANY * SCRATCH, (void **)&many->scratch), SL_OK);
    test_random_state = 4711;
    for (int i = 0; i < MANY; i++) {
        int64_t count = sizes[i % SIZES];
        sl_dtype dtype = i % 5 == 1 ? SL_BF16 : SL_F32;
        many->inputs[i] = far_tensor(i % 7 == 2 ? SL_F64 : SL_F32, count, false); /* f64 does not go with the others */
        for (int o = 0; o < MANY_OUTPUTS; o++) {
            bool none = o == 3 && i % 3 == 0;
            many->outputs[i][o] = none ? sl_view_none() : far_tensor(o == 3 ? SL_BF16 : SL_F32, count, o == 2);
        }
        if (!updates) {
            sl_view sum = { many->outputs[i][0].data, sl_meta_make(SL_F64, 0, NULL) };
            sl_device_free(gpu, sum.data);
            assert_int_equal(sl_device_alloc(gpu, sizeof(double), &sum.data), SL_OK);
            many->outputs[i][0] = sum;
            if (i % 7 != 2) {
                sl_device_free(gpu, many->inputs[i].data);
                many->inputs[i] = far_tensor(dtype, count, false);
            }
        }
        many->calls[i] = (sl_kernel_call){ .op = updates ? SL_OP_ADAMW : SL_OP_SQUARE_SUM,
                                           .inputs = &many->inputs[i],
                                           .input_count = 1,
                                           .outputs = many->outputs[i],
                                           .output_count = updates ? MANY_OUTPUTS : 1,
                                           .scratch = many->scratch + (size_t)i * SCRATCH,
                                           .scratch_bytes = SCRATCH };
        many->calls[i].attrs.optim = (sl_optim_attrs){ .lr = i < 600 ? 0.01 : 0.02,
                                                       .beta1 = 0.9,
                                                       .beta2 = 0.95,
                                                       .eps = 1e-8,
                                                       .weight_decay = i % 2 ? 0.1 : 0,
                                                       .grad_scale = 0.5,
                                                       .t = 3 };
    }
}

static void free_many(many_calls *many)
{
    for (int i = 0; i < MANY; i++) {
        sl_device_free(gpu, many->inputs[i].data);
        for (int o = 0; o < MANY_OUTPUTS; o++)
            sl_device_free(gpu, many->outputs[i][o].data);
    }
    sl_device_free(gpu, many->scratch);
}

static int compare_many(const many_calls *a, const many_calls *b)
{
    int different = 0;
    for (int i = 0; i < MANY; i++) {
        for (int o = 0; o < a->calls[i].output_count; o++) {
            size_t bytes = sl_view_is_none(&a->outputs[i][o]) ? 0 : sl_meta_bytes(&a->outputs[i][o].meta);
            char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
            if (bytes > 0) {
                assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, x, a->outputs[i][o].data, bytes),
                                 SL_OK);
                assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, y, b->outputs[i][o].data, bytes),
                                 SL_OK);
                assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
            }
            if (memcmp(x, y, bytes) != 0 && ++different < 20)
                print_error("%s %d of many: output %d differs from that of the call alone\n",
                            sl_op_name(a->calls[i].op), i, o);
            free(x);
            free(y);
        }
    }
    return different;
}

static void many_calls_at_once_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    int failures = 0;
    many_calls *together = calloc(1, sizeof *together), *alone = calloc(1, sizeof *alone);
    for (int updates = 0; updates < 2; updates++) {
        make_many(together, updates);
        make_many(alone, updates);
        assert_int_equal(sl_kernel_run_many(gpu_stream, together->calls, MANY), SL_OK);
        for (int i = 0; i < MANY; i++)
            assert_int_equal(sl_kernel_run(gpu_stream, &alone->calls[i]), SL_OK);
        assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
        failures += compare_many(together, alone);
        free_many(together);
        free_many(alone);
    }
    free(together);
    free(alone);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(many_calls_at_once_have_the_bits_of_each_alone) };
    if (!open_gpu())
        return SKIPPED;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_gpu();
    return failed;
}
