/* The communication suite on processes of one machine. */
#include "ranks/support/suite.h"
#include "support/device/test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void run_on(suite_runner runner, const suite_case *cases, int least, int most)
{
    for (int size = least; size <= most; size++) {
        if (suite_run_list(runner, cases, size, 0) != SL_OK)
            fail_msg("%s", sl_error_message());
    }
}

static void patterns(void **state)
{
    (void)state;
    run_on(suite_run_local, suite_patterns, 2, 4);
}

static void messages(void **state)
{
    (void)state;
    run_on(suite_run_local, suite_messages, 1, 4);
    run_on(suite_run_local, suite_channels, 1, 4);
}

static void collectives(void **state)
{
    (void)state;
    run_on(suite_run_local, suite_collectives, 1, 4);
}

static void streams(void **state)
{
    (void)state;
    test_device_install();
    run_on(suite_run_local, suite_streams, 1, 3);
}

static void failures(void **state)
{
    (void)state;
    run_on(suite_run_local, suite_failures, 2, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns), cmocka_unit_test(messages), cmocka_unit_test(collectives),
        cmocka_unit_test(streams),  cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
