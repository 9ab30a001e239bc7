/* Messages between devices over MPI, with each MPI whose plugin was built: this program starts itself under mpirun, its ranks
 * train a small model on the tests' device. An MPI that is CUDA-aware (support/mpi/aware.c) gets the memory of the device, and
 * the bits are those of messages through the host; one that is not never sees it. A sample starts one MPI for each case, and
 * nobody dies. */
#include "ranks/support/pipeline.h"
#include "ranks/support/suite.h"
#include "support/device/test_device.h"
#include "support/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

/* ---- As a rank ------------------------------------------------------------------------------- */

static int (*count_taken)(void); /* messages that MPI took from and to the device */

static sl_status make_aware(const char *flavour)
{
    char path[4096];
    void (*use)(void *(*)(const void *)) = NULL;
    snprintf(path, sizeof path, "%s/libaware_%s.so", getenv("SLUICE_SUPPORT"), flavour);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return sl_fail(SL_ERR_IO, "%s", dlerror());
    *(void **)&use = dlsym(library, "aware_mpi_use");
    *(void **)&count_taken = dlsym(library, "aware_mpi_count");
    use(test_device_near);
    return SL_OK;
}

static sl_status train(sl_group *group, const char *links, const run_config *config, run_result *result)
{
    memset(result, 0, sizeof *result);
    setenv("SLUICE_DEVICE_LINKS", links, 1);
    return run_pipelined(group, config, result);
}

/* What this rank has of both runs. */
static sl_status compare(const run_result *host, const run_result *mpi, int rank)
{
    const char *way = "device memory, through MPI: SLUICE_DEVICE_LINKS is mpi";
    if (rank == 0 && (strcmp(mpi->messages, way) != 0 || strncmp(host->messages, "host memory", 11) != 0))
        return sl_fail(SL_ERR_INTERNAL, "messages went: %s; %s", mpi->messages, host->messages);
    if (memcmp(host->losses, mpi->losses, sizeof host->losses) != 0 ||
        memcmp(host->first_grads, mpi->first_grads, sizeof host->first_grads) != 0 ||
        memcmp(host->last_grads, mpi->last_grads, sizeof host->last_grads) != 0 ||
        memcmp(host->weights, mpi->weights, sizeof host->weights) != 0)
        return sl_fail(SL_ERR_INTERNAL, "other bits");
    return SL_OK;
}

/* GPT-2 has tied weights on the first and the last rank, whose gradients are collectives. */
static sl_status be_aware(sl_group *group)
{
    sl_status status = SL_OK;
    static const run_config configs[] = {
        { .model = MODEL_GPT2, .schedule = "1F1B", .stages_per_rank = 1, .microbatches = 4 },
        { .model = MODEL_LLAMA, .schedule = "ZBVZeroBubble", .stages_per_rank = 2, .microbatches = 4 },
    };
    static run_result host, mpi;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        run_config config = configs[i];
        config.ranks = sl_group_size(group);
        int first = count_taken();
        SL_TRY(train(group, "0", &config, &host));
        int before = count_taken();
        SL_TRY(train(group, "mpi", &config, &mpi));
        SL_TRY(compare(&host, &mpi, sl_group_rank(group)));
        if (before != first || count_taken() == before)
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "MPI took %d, %d, then %d messages of the device", first, before,
                           count_taken()));
    }
done:
    return status;
}

static sl_status be_unaware(sl_group *group)
{
    sl_status status = SL_OK;
    const run_config config = {
        .model = MODEL_LLAMA, .schedule = "1F1B", .ranks = sl_group_size(group), .stages_per_rank = 1, .microbatches = 4
    };
    static run_result result;
    SL_TRY(train(group, "mpi", &config, &result));
    if (sl_group_rank(group) == 0 && strcmp(result.messages, "host memory: this MPI is not CUDA-aware") != 0)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "messages went: %s", result.messages));
done:
    return status;
}

/* A signal ends rank 1 in the middle of a step. */
static sl_status die(sl_group *group)
{
    sl_status status = SL_OK;
    const struct itimerval soon = { .it_value = { .tv_usec = 400000 } };
    const run_config config = {
        .model = MODEL_LLAMA, .schedule = "1F1B", .ranks = sl_group_size(group), .stages_per_rank = 1, .microbatches = 4
    };
    static run_result result;
    SL_TRY(train(group, "mpi", &config, &result));
    if (sl_group_rank(group) == 1)
        setitimer(ITIMER_REAL, &soon, NULL);
    while (status == SL_OK)
        status = train(group, "mpi", &config, &result);
done:
    return status;
}

static int be_rank(const char *what)
{
    sl_group *group = NULL;
    sl_status status = SL_OK;
    const char *flavour = getenv("OMPI_COMM_WORLD_RANK") ? "openmpi" : "mpich";
    setenv("SLUICE_TEST_DEVICE", "test", 1);
    test_device_install();
    if (strcmp(what, "unaware") != 0)
        SL_TRY(make_aware(flavour));
    SL_TRY(sl_group_open(NULL, &group));
    SL_TRY(strcmp(what, "aware") == 0 ? be_aware(group) : strcmp(what, "die") == 0 ? die(group) : be_unaware(group));
done:
    if (status != SL_OK) {
        fprintf(stderr, "%s\n", sl_error_message());
        if (group)
            sl_group_fail(group, status);
    }
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* ---- As the test ----------------------------------------------------------------------------- */

/* With all MPIs, or in a sample with this one. */
static void run_all(const char *what, const char *sample, bool ends_well)
{
    static const char *const flavours[] = { "openmpi", "mpich" };
    int count = 0;
    for (int i = 0; i < 2; i++) {
        char output[8192];
        double start = sl_now();
        if (!suite_has_mpi(flavours[i]) || (!test_is_full() && strcmp(flavours[i], sample) != 0))
            continue;
        int code = suite_mpirun(flavours[i], 2, what, output, sizeof output);
        if ((code == 0) != ends_well)
            fail_msg("%s, %s: exit code %d: %s", flavours[i], what, code, output);
        assert_true(sl_now() - start < 60);
        count++;
    }
    if (count == 0)
        skip();
}

static void an_aware_mpi_gets_device_memory_and_gives_the_bits_of_the_host(void **state)
{
    (void)state;
    run_all("aware", "openmpi", true);
}

static void an_mpi_that_is_not_aware_gets_none(void **state)
{
    (void)state;
    run_all("unaware", "mpich", true);
}

static void nobody_waits_for_a_rank_that_died(void **state)
{
    (void)state;
    run_all("die", "", false);
}

int main(int argc, char **argv)
{
    if (argc == 2 && suite_is_mpi_rank())
        return be_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_aware_mpi_gets_device_memory_and_gives_the_bits_of_the_host),
        cmocka_unit_test(an_mpi_that_is_not_aware_gets_none),
        cmocka_unit_test(nobody_waits_for_a_rank_that_died),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
