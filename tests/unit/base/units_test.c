/* Quantities for people: three digits and a unit that fits, from the smallest to the largest. */
#include "base/units.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void durations_are_coarse(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(sl_duration_text(7.4, text, sizeof text), "7s");
    assert_string_equal(sl_duration_text(65, text, sizeof text), "1m05s");
    assert_string_equal(sl_duration_text(7384, text, sizeof text), "2h03m");
    assert_string_equal(sl_duration_text(273600, text, sizeof text), "3d04h");
    assert_string_equal(sl_duration_text(NAN, text, sizeof text), "0s");
}

static void seconds_never_vanish(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(sl_seconds_text(0, text, sizeof text), "0.00 us");
    assert_string_equal(sl_seconds_text(4.31e-7, text, sizeof text), "0.43 us");
    assert_string_equal(sl_seconds_text(0.000346, text, sizeof text), "346 us");
    assert_string_equal(sl_seconds_text(0.0009996, text, sizeof text), "1.00 ms");
    assert_string_equal(sl_seconds_text(0.00925, text, sizeof text), "9.25 ms");
    assert_string_equal(sl_seconds_text(0.125, text, sizeof text), "125 ms");
    assert_string_equal(sl_seconds_text(0.99972, text, sizeof text), "1.00 s");
    assert_string_equal(sl_seconds_text(12.34, text, sizeof text), "12.3 s");
    assert_string_equal(sl_seconds_text(59.96, text, sizeof text), "1m00s");
    assert_string_equal(sl_seconds_text(7384, text, sizeof text), "2h03m");
    assert_string_equal(sl_seconds_text(NAN, text, sizeof text), "0s");
}

static void counts_and_bytes_have_three_digits(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(sl_count_text(0, text, sizeof text), "0");
    assert_string_equal(sl_count_text(12, text, sizeof text), "12");
    assert_string_equal(sl_count_text(12345, text, sizeof text), "12.3k");
    assert_string_equal(sl_count_text(999.7, text, sizeof text), "1.00k");
    assert_string_equal(sl_count_text(9999, text, sizeof text), "10.0k");
    assert_string_equal(sl_bytes_text(288, text, sizeof text), "288 B");
    assert_string_equal(sl_bytes_text(4300, text, sizeof text), "4.30 kB");
    assert_string_equal(sl_bytes_text(1234567, text, sizeof text), "1.23 MB");
    assert_string_equal(sl_bytes_text(6.4e10, text, sizeof text), "64.0 GB");
}

static void one_is_singular(void **state)
{
    (void)state;
    assert_string_equal(sl_plural(1), "");
    assert_string_equal(sl_plural(0), "s");
    assert_string_equal(sl_plural(2), "s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_are_coarse),
        cmocka_unit_test(seconds_never_vanish),
        cmocka_unit_test(counts_and_bytes_have_three_digits),
        cmocka_unit_test(one_is_singular),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
