/* Replicas that are processes on one GPU: again and again with every way to share weights, collectives in device memory come
 * to their end and give the losses of those through host memory.
 *
 * SLUICE_GPU_ROUNDS: how often; 2 by default. SLUICE_GPU_DEVICE names another device. A run that does not end in time is killed
 * by its alarm, and the report says what each of its ranks was doing. */
#include "gpu/processes.h"
#include "ranks/support/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 2, SECONDS = 15, MODES = 3 };

static const char *const modes[] = { "none", "optimizer", "full" };

/* In memory that all ranks share. */
static struct scene {
    const char *device;
    int rounds, done; /* of all runs */
    double slowest;   /* seconds of a run */
    char now[64];     /* what runs */
    char error[512];
} * scene;

/* ---- One rank -------------------------------------------------------------------------------- */

static sl_status train(sl_group *group, const char *mode, const char *links, double *first, double *last)
{
    sl_status status = SL_OK;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    sl_train_result result;
    char shard[64];
    const char *const more[] = { "parallel.dp=2", shard, "checkpoint.every=0", NULL };
    const sl_train_options options = { .overwrite = true };
    snprintf(shard, sizeof shard, "parallel.shard=%s", mode);
    setenv("SLUICE_DEVICE_LINKS", links, 1);
    SL_TRY(training_plan(scene->device, "run", more, &config, &plan));
    SL_TRY(sl_train_run(plan, group, &options, &result));
    *first = result.first_loss;
    *last = result.last_loss;
done:
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    return status;
}

static sl_status train_timed(sl_group *group, int round, const char *mode, const char *links, double *first,
                             double *last)
{
    double start = sl_now();
    bool is_first = sl_group_rank(group) == 0;
    if (is_first)
        snprintf(scene->now, sizeof scene->now, "round %d, shard %s, links %s", round, mode, links);
    alarm(SECONDS);
    sl_status status = train(group, mode, links, first, last);
    alarm(0);
    if (is_first && sl_now() - start > scene->slowest && round > 0)
        scene->slowest = sl_now() - start;
    return status;
}

/* The device stays open from one run to the next, which keeps what is loaded on it. */
static int run_process(void *user, int rank)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    sl_device *device = NULL;
    double first = 0, last = 0;
    (void)user;
    SL_TRY(sl_device_open(scene->device, NULL, &device));
    SL_TRY(sl_group_open(NULL, &group));
    SL_TRY(train_timed(group, 0, "none", "0", &first, &last));
    for (int round = 1; round <= scene->rounds; round++) {
        for (int m = 0; m < MODES; m++) {
            double own_first = 0, own_last = 0;
            SL_TRY(train_timed(group, round, modes[m], "", &own_first, &own_last));
            if (own_first != first || own_last != last)
                SL_TRY(sl_fail(SL_ERR_NUMERIC, "losses %.17g and %.17g, through the host %.17g and %.17g", own_first,
                               own_last, first, last));
            if (rank == 0)
                scene->done++;
        }
    }
done:
    if (status != SL_OK && !scene->error[0])
        snprintf(scene->error, sizeof scene->error, "%s", sl_error_message());
    sl_device_close(device);
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* ---- All ranks ------------------------------------------------------------------------------- */

static void replicas_have_the_losses_of_those_through_the_host(void **state)
{
    (void)state;
    sl_launch_result result;
    const sl_launch_options options = { .ranks = RANKS, .run = run_process };
    scene->rounds = getenv("SLUICE_GPU_ROUNDS") ? atoi(getenv("SLUICE_GPU_ROUNDS")) : 2;
    assert_int_equal(sl_launch(&options, &result), SL_OK);
    print_message("%d of %d runs, the slowest took %.2f s\n", scene->done, scene->rounds * MODES, scene->slowest);
    if (result.exit_code != 0)
        fail_msg("%s: %s", scene->now, scene->error[0] ? scene->error : result.report);
    assert_int_equal(scene->done, scene->rounds * MODES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(replicas_have_the_losses_of_those_through_the_host, training_enter,
                                        training_leave),
    };
    scene = share_memory(sizeof *scene);
    scene->device = name_of_device();
    if (!has_device(scene->device))
        return NO_DEVICE;
    return cmocka_run_group_tests_name("gpu/replicas", tests, NULL, NULL);
}
