/* The communication suite on one rank and on threads of one process. */
#include "ranks/support/suite.h"
#include "support/device/test_device.h"
#include "support/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static bool full;

/* Under a sanitizer more of the same find nothing new: there are fewer rounds of each case, and groups of 2, 3 and 5. */
enum { SAMPLE_ROUNDS = 3 };

static void run_on(suite_runner runner, const suite_case *cases, int least, int most)
{
    for (int size = least; size <= most; size++) {
        if (test_takes_sample() && least < most && (size == 1 || size == 4))
            continue;
        if (suite_run_list(runner, cases, size, test_takes_sample() ? SAMPLE_ROUNDS : 0) != SL_OK)
            fail_msg("%s", sl_error_message());
    }
}

static void one_rank(void **state)
{
    (void)state;
    run_on(suite_run_self, suite_patterns, 1, 1);
    run_on(suite_run_self, suite_messages, 1, 1);
    run_on(suite_run_self, suite_channels, 1, 1);
    run_on(suite_run_self, suite_collectives, 1, 1);
}

static void patterns(void **state)
{
    (void)state;
    run_on(suite_run_threads, suite_patterns, 1, 5);
}

static void messages(void **state)
{
    (void)state;
    run_on(suite_run_threads, suite_messages, 1, 5);
    run_on(suite_run_threads, suite_channels, 1, 5);
}

static void collectives(void **state)
{
    (void)state;
    run_on(suite_run_threads, suite_collectives, 1, 5);
}

/* Those whose members have no channel to each other member: one more than can have it, and with --full some levels more. */
static void collectives_of_large_groups(void **state)
{
    (void)state;
    static const int sizes[] = { 17, 40 };
    for (int i = 0; i < (full ? 2 : 1); i++) {
        if (suite_run_list(suite_run_threads, suite_collectives, sizes[i], test_takes_sample() ? 1 : 2) != SL_OK)
            fail_msg("%s", sl_error_message());
    }
}

static void streams(void **state)
{
    (void)state;
    test_device_install();
    run_on(suite_run_threads, suite_streams, 1, 5);
    if (suite_run_list(suite_run_threads, suite_streams, 18, test_takes_sample() ? 1 : 2) != SL_OK)
        fail_msg("%s", sl_error_message());
}

static void failures(void **state)
{
    (void)state;
    run_on(suite_run_threads, suite_failures, 2, 4);
}

int main(int argc, char **argv)
{
    full = argc == 2 && strcmp(argv[1], "--full") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(patterns),
        cmocka_unit_test(messages),
        cmocka_unit_test(collectives),
        cmocka_unit_test(collectives_of_large_groups),
        cmocka_unit_test(streams),
        cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
