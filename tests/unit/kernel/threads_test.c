/* Threads share the work of a kernel without changing its bits; also what the thread sanitizer looks at. */
#include "unit/kernel/bits.h"

static void the_same_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!cases[i].large)
            continue;
        for (int threads = 2; threads <= 4; threads += 2) {
            int64_t count;
            double *first = results_of(i, PACKED, threads, &count);
            check_same(i, first, PACKED, threads, "the same threads again");
            free(first);
        }
    }
}

/* Other instruction sets than the best differ in how they multiply matrices; the rest is one code. */
static void check_threads(void)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!cases[i].large || (cases[i].op > SL_OP_MATMUL && sl_isa_get() != sl_isa_best()))
            continue;
        int64_t count;
        double *one = results_of(i, PACKED, 1, &count);
        for (int threads = 2; threads <= 5; threads++) {
            char what[32];
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
