/* Tests that run once for each way between devices: the state of a test is what SLUICE_DEVICE_LINKS says; NULL: nothing. */
#ifndef TESTS_UNIT_COMM_WAYS_H
#define TESTS_UNIT_COMM_WAYS_H

#include "support/device/test_device.h"

#include <stdlib.h>

static int choose_way(void **state)
{
    return *state ? setenv("SLUICE_DEVICE_LINKS", *state, 1) : unsetenv("SLUICE_DEVICE_LINKS");
}

/* Whatever happened, no communicator and no message is left. */
static int leave_way(void **state)
{
    int opened = 0, posted = 0, left = test_nccl_count(&opened);
    (void)state;
    (void)test_mpi_count(&posted);
    test_nccl_clear();
    unsetenv("SLUICE_DEVICE_LINKS");
    return left + posted;
}

#define TEST_OF(function, way)                                                                                         \
    {                                                                                                                  \
        .name = #function " (" #way ")", .test_func = function, .setup_func = choose_way, .teardown_func = leave_way,  \
        .initial_state = (way)                                                                                         \
    }

#endif
