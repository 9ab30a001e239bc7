/* Ticks become the seconds of sl_now(), whatever is counted. */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>

enum { SAMPLES = 50 };

/* Each stamp lies between the two readings of sl_now() around it. */
static void assert_agrees(const sl_clock *clock)
{
    const double margin = 1e-5; /* the two clocks are compared to a fraction of a microsecond, their rates over 20 ms */
    uint64_t ticks[SAMPLES];
    double before[SAMPLES], after[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        before[i] = sl_now();
        ticks[i] = sl_clock_ticks(clock);
        after[i] = sl_now();
        usleep(400);
    }
    sl_clock_scale scale = sl_clock_measure(clock);
    for (int i = 0; i < SAMPLES; i++) {
        double seconds = sl_clock_seconds(&scale, ticks[i]);
        if (seconds < before[i] - margin || seconds > after[i] + margin)
            fail_msg("%.9f is not between %.9f and %.9f", seconds, before[i], after[i]);
        assert_true(i == 0 || ticks[i] > ticks[i - 1]);
    }
}

static void ticks_are_seconds_of_the_clock(void **state)
{
    (void)state;
    sl_clock clock;
    sl_clock_start(&clock);
    assert_agrees(&clock);
}

static void without_a_counter_ticks_are_nanoseconds(void **state)
{
    (void)state;
    sl_clock clock = { .counter = false, .ticks = sl_clock_nanoseconds(), .seconds = sl_now() };
    assert_true(sl_clock_measure(&clock).rate == 1e-9);
    assert_agrees(&clock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_seconds_of_the_clock),
        cmocka_unit_test(without_a_counter_ticks_are_nanoseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
