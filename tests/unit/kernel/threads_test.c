/* Threads share the work of a kernel without changing its bits; also what the thread sanitizer looks at. */
#include "unit/kernel/bits.h"

#include "support/amx/amx.h"
#include "support/sample.h"

enum { MOST_THREADS = 5, MOST_IN_SAMPLE = 3 };

static void the_same_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!cases[i].large || !test_in_sample(i, 0, 4))
            continue;
        for (int threads = 2; threads <= (test_takes_sample() ? MOST_IN_SAMPLE : MOST_THREADS); threads += 2) {
            int64_t count;
            double *first = results_of(i, PACKED, threads, &count);
            check_same(i, first, PACKED, threads, "the same threads again");
            free(first);
        }
    }
}

/* Other instruction sets than the best differ in how they multiply matrices; the rest is one code. A sample has the
 * best and one other, with two or three threads. */
static void check_threads(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        const int others = (int)sl_isa_best() - SL_ISA_SCALAR, other = (int)sl_isa_get() - SL_ISA_SCALAR;
        if (!cases[i].large || (other < others && (cases[i].op > SL_OP_MATMUL || !test_in_sample(i, other, others))))
            continue;
        int64_t count;
        double *one = results_of(i, PACKED, 1, &count);
        for (int threads = 2; threads <= MOST_THREADS; threads++) {
            char what[32];
            if (!test_in_sample(i + (size_t)sl_isa_get(), threads - 2, MOST_IN_SAMPLE - 1))
                continue;
            snprintf(what, sizeof what, "%d threads", threads);
            check_same(i, one, PACKED, threads, what);
        }
        free(one);
    }
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    for_every_isa(check_threads);
    bits_dtype = SL_BF16;
    for_every_isa(check_threads);
    bits_dtype = SL_F32;
}

/* Longer than the runs that threads share out. */
static void a_long_sum_of_squares_is_the_same_with_any_threads(void **state)
{
    (void)state;
    int64_t count = 5 * (1 << 19) + 3;
    const sl_shape shape = { 1, { count } }, scalar = { .rank = 0 };
    arg x = make_arg(SL_F32, &shape, PACKED), y = make_arg(SL_F64, &scalar, PACKED);
    double expected = 0, first = 0;
    for (int64_t i = 0; i < count; i++) {
        float value = (float)normal();
        ((float *)x.view.data)[i] = value;
        expected += (double)value * (double)value;
    }
    for (int threads = 1; threads <= 5; threads++) {
        open_device(threads);
        assert_int_equal(
            run_call((sl_kernel_call){
                .op = SL_OP_SQUARE_SUM, .inputs = &x.view, .input_count = 1, .outputs = &y.view, .output_count = 1 }),
            SL_OK);
        double sum = *(double *)y.view.data;
        first = threads == 1 ? sum : first;
        assert_memory_equal(&sum, &first, sizeof sum);
        close_device();
    }
    assert_true(fabs(first - expected) < 1e-9 * expected);
    free(x.block);
    free(y.block);
}

/* One job for all of them, with runs of unlike lengths. */
static void sums_of_squares_together_are_those_of_each_alone(void **state)
{
    (void)state;
    static const int64_t counts[] = { 77, (1 << 20) + 3, 0, 1 << 20, 3 * (1 << 20) - 1, 1 };
    enum { TENSORS = sizeof counts / sizeof *counts };
    const sl_shape scalar = { .rank = 0 };
    arg x[TENSORS], y[TENSORS];
    sl_kernel_call calls[TENSORS];
    double scratch[TENSORS][4], alone[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        x[i] = make_arg(SL_F32, &(sl_shape){ 1, { counts[i] } }, PACKED);
        y[i] = make_arg(SL_F64, &scalar, PACKED);
        for (int64_t e = 0; e < counts[i]; e++)
            ((float *)x[i].view.data)[e] = (float)normal();
        calls[i] = (sl_kernel_call){ .op = SL_OP_SQUARE_SUM,
                                     .inputs = &x[i].view,
                                     .input_count = 1,
                                     .outputs = &y[i].view,
                                     .output_count = 1,
                                     .scratch = scratch[i],
                                     .scratch_bytes = sizeof scratch[i] };
    }
    for (int threads = 1; threads <= MOST_THREADS; threads += 2) {
        open_device(threads);
        for (int i = 0; i < TENSORS; i++) {
            assert_int_equal(sl_kernel_run(test_stream, &calls[i]), SL_OK);
            alone[i] = *(double *)y[i].view.data;
            *(double *)y[i].view.data = -1;
        }
        assert_int_equal(sl_kernel_run_many(test_stream, calls, TENSORS), SL_OK);
        for (int i = 0; i < TENSORS; i++)
            assert_memory_equal(y[i].view.data, &alone[i], sizeof alone[i]);
        close_device();
    }
    for (int i = 0; i < TENSORS; i++) {
        free(x[i].block);
        free(y[i].block);
    }
}

int main(void)
{
    emulate_amx();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(a_long_sum_of_squares_is_the_same_with_any_threads),
        cmocka_unit_test(sums_of_squares_together_are_those_of_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
