/* The peak to which MFU relates is the machine's, whatever else runs on it. Under a sanitizer it is measured once. */
#include <sluice/kernel.h>

#include "support/sample.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUSY_MAX = 32, TURNS = 4, ALL_TURNS = 20 };

static double best_of_three(sl_device *device)
{
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double rate = sl_kernel_measure_peak(device);
        best = rate > best ? rate : best;
    }
    return best;
}

static void other_processes_do_not_lower_the_peak(void **state)
{
    (void)state;
    sl_device *device = NULL;
    pid_t busy[BUSY_MAX];
    const sl_device_options options = { .threads = 2 };
    int count = (int)sysconf(_SC_NPROCESSORS_ONLN) * 4;
    count = count < BUSY_MAX ? count : BUSY_MAX;
    assert_int_equal(sl_device_open("cpu", &options, &device), SL_OK);
#if TEST_SANITIZED
    assert_true(sl_kernel_measure_peak(device) > 0);
    sl_device_close(device);
    skip();
#endif
    double alone = best_of_three(device);
    for (int i = 0; i < count; i++) {
        busy[i] = fork();
        while (busy[i] == 0) /* a child does nothing else until it is killed */
            ;
    }
    double least = alone;
    for (int i = 0; i < (test_is_full() ? ALL_TURNS : TURNS); i++) {
        double rate = sl_kernel_measure_peak(device);
        least = rate < least ? rate : least;
    }
    for (int i = 0; i < count; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
    sl_device_close(device);
    if (least < 0.8 * alone)
        fail_msg("%.1f GFLOP/s among %d others, %.1f alone", least * 1e-9, count, alone * 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(other_processes_do_not_lower_the_peak) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
