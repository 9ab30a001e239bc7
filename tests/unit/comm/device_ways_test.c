/* Which way messages between devices go: what ranks may try with whom, by what they say of themselves, and how it is
 * described. */
#include "comm/carrier.h"
#include "comm/device_links.h"
#include "support/device/test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

/* Two ranks of one machine. */
static void which_ranks_may_try_follows_from_what_they_say(void **state)
{
    (void)state;
    static const struct {
        sl_rank_offer other;
        const char *obstacle; /* NULL: none */
    } cases[] = {
        { { .machine = 1, .process = 1, .kind = 1, .queues = 32, .neighbors = 5 }, NULL },
        { { .machine = 1, .process = 2, .kind = 1, .queues = 8, .neighbors = 1 }, NULL },
        { { .machine = 1, .process = 2, .kind = 1, .queues = 4, .neighbors = 1 },
          "a process has too few queues to its device (CUDA_DEVICE_MAX_CONNECTIONS)" },
        { { .machine = 1, .process = 1, .kind = 1, .queues = 32, .neighbors = 6 },
          "too many ranks are threads of one process" },
        { { .machine = 1, .process = 2, .kind = 1, .queues = 0, .neighbors = 1 }, "a device shares no memory" },
        { { .machine = 2, .process = 2, .kind = 1, .queues = 32, .neighbors = 1 }, "ranks are on several machines" },
        { { .machine = 1, .process = 2, .kind = 2, .queues = 32, .neighbors = 1 },
          "the devices are of different kinds" },
        { { .machine = 1, .process = 2, .kind = 1, .queues = 32, .neighbors = 1, .wish = SL_LINKS_NONE },
          "SLUICE_DEVICE_LINKS is 0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sl_rank_offer offers[] = { { .machine = 1, .process = 1, .kind = 1, .queues = 32, .neighbors = 1 },
                                         cases[i].other };
        for (int a = 0; a < 2; a++) {
            const char *obstacle = sl_rank_obstacle(offers, 2, a, 1 - a);
            if (cases[i].obstacle ? !obstacle || strcmp(obstacle, cases[i].obstacle) != 0 : obstacle != NULL)
                fail_msg("case %zu: %s", i, obstacle ? obstacle : "no obstacle");
        }
    }
}

static void which_carriers_ranks_may_try_follows_from_what_they_say(void **state)
{
    (void)state;
    static const struct {
        sl_rank_offer one, other;
        const char *nccl, *mpi; /* obstacles */
    } cases[] = {
        { { .machine = 1, .kind = 1 }, { .machine = 2, .kind = 1 }, NULL, NULL },
        { { .machine = 1, .kind = 1, .unit = 1 }, { .machine = 1, .kind = 1, .unit = 2 }, NULL, NULL },
        { { .machine = 1, .kind = 1, .unit = 1 },
          { .machine = 1, .kind = 1, .unit = 1 },
          "the ranks share a GPU",
          "the ranks share a GPU" },
        { { .machine = 1, .kind = 1, .wish = SL_LINKS_NCCL },
          { .machine = 1, .kind = 1, .wish = SL_LINKS_NCCL },
          NULL,
          "" },
        { { .machine = 1, .kind = 1, .wish = SL_LINKS_MPI },
          { .machine = 1, .kind = 1, .wish = SL_LINKS_MPI },
          "",
          NULL },
        { { .machine = 1, .kind = 1 }, { .machine = 2, .kind = 1, .wish = SL_LINKS_MPI }, "", NULL },
        { { .machine = 1, .kind = 1 },
          { .machine = 2, .kind = 1, .wish = SL_LINKS_NONE },
          "SLUICE_DEVICE_LINKS is 0",
          "SLUICE_DEVICE_LINKS is 0" },
        { { .machine = 1, .kind = 1 },
          { .machine = 2, .kind = 2 },
          "the devices are of different kinds",
          "the devices are of different kinds" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sl_rank_offer offers[] = { cases[i].one, cases[i].other };
        for (int name = 0; name < SL_CARRIERS; name++) {
            const char *wanted = name == SL_CARRIER_NCCL ? cases[i].nccl : cases[i].mpi;
            const char *obstacle = sl_carrier_obstacle((sl_carrier_name)name, offers, (int)(i % 2), 1 - (int)(i % 2));
            if (wanted ? !obstacle || strcmp(obstacle, wanted) != 0 : obstacle != NULL)
                fail_msg("case %zu, carrier %d: %s", i, name, obstacle ? obstacle : "no obstacle");
        }
    }
}

/* 1: has the carrier; 2: it also joins threads on one GPU. */
static void nccl_joins_threads_that_have_a_gpu_each(void **state)
{
    (void)state;
    const sl_rank_offer offers[] = { { .machine = 1, .process = 1, .unit = 1 },
                                     { .machine = 1, .process = 1, .unit = 2 },
                                     { .machine = 1, .process = 1, .unit = 2 } };
    const uint8_t can[] = { 1, 1, 1 }, threads[] = { 3, 3, 3 }, missing[] = { 1, 0, 1 };
    assert_null(sl_carrier_join_obstacle(SL_CARRIER_NCCL, offers, can, 0, 1));
    assert_string_equal(sl_carrier_join_obstacle(SL_CARRIER_NCCL, offers, can, 1, 2),
                        "threads of one process share a GPU, which NCCL refuses as a duplicate");
    assert_null(sl_carrier_join_obstacle(SL_CARRIER_NCCL, offers, threads, 1, 2));
    assert_string_equal(sl_carrier_join_obstacle(SL_CARRIER_NCCL, offers, missing, 0, 1),
                        "NCCL is not installed on all machines");
}

static void the_way_of_messages_can_be_described(void **state)
{
    (void)state;
    char text[256];
    sl_device *device = NULL;
    test_device_install();
    assert_string_equal(sl_device_links_describe(NULL, text, sizeof text), "host memory: there is no GPU");
    assert_int_equal(sl_device_open("test", NULL, &device), SL_OK);
    sl_device_links_describe(device, text, sizeof text);
    if (strncmp(text, "device memory on one machine, ", 30) != 0)
        fail_msg("%s", text);
    setenv("SLUICE_DEVICE_LINKS", "0", 1);
    assert_string_equal(sl_device_links_describe(device, text, sizeof text), "host memory: SLUICE_DEVICE_LINKS is 0");
    setenv("SLUICE_DEVICE_LINKS", "nccl", 1);
    sl_device_links_describe(device, text, sizeof text);
    if (!strstr(text, ": SLUICE_DEVICE_LINKS is nccl"))
        fail_msg("%s", text);
    setenv("SLUICE_DEVICE_LINKS", "mpi", 1);
    assert_string_equal(sl_device_links_describe(device, text, sizeof text),
                        "MPI if it takes device memory, else host memory: SLUICE_DEVICE_LINKS is mpi");
    setenv("SLUICE_DEVICE_LINKS", "fast", 1);
    assert_string_equal(sl_device_links_describe(device, text, sizeof text),
                        "SLUICE_DEVICE_LINKS is 'fast': it can be 0, 1, nccl or mpi");
    unsetenv("SLUICE_DEVICE_LINKS");
    sl_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_ranks_may_try_follows_from_what_they_say),
        cmocka_unit_test(which_carriers_ranks_may_try_follows_from_what_they_say),
        cmocka_unit_test(nccl_joins_threads_that_have_a_gpu_each),
        cmocka_unit_test(the_way_of_messages_can_be_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
