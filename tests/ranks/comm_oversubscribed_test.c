/* More ranks than cores: waiting must not take the cores from the ranks that work. Counted in processor time, which other
 * load on the machine changes little. */
#include "ranks/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 8, CORES = 2, STEPS = 300 };
#define WORK_SECONDS 200e-6

/* Shared between the test and the ranks: seconds of processor time each. */
static struct times {
    double working[RANKS], all[RANKS];
} * times;

static double thread_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double process_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void work(double *total)
{
    double start = thread_time(), now;
    while ((now = thread_time()) < start + WORK_SECONDS)
        ;
    *total += now - start;
}

static sl_status step(sl_channel *in, sl_channel *out, int number, bool first)
{
    sl_status status = SL_OK;
    sl_message message = { .step = number, .dtype = SL_U8, .shape = { 1, { 64 } } };
    void *data = NULL;
    if (!first) {
        SL_TRY(sl_channel_receive(in, &message, NULL, &data));
        SL_TRY(sl_channel_release(in, data));
    }
    work(&times->working[sl_channel_get_spec(out)->src]);
    SL_TRY(sl_channel_reserve(out, &message, &data));
    SL_TRY(sl_channel_commit(out, data));
    if (first) {
        SL_TRY(sl_channel_receive(in, &message, NULL, &data));
        SL_TRY(sl_channel_release(in, data));
    }
done:
    return status;
}

/* A ring: with one token all but one rank wait at any time; else everybody has work all the time. */
static sl_status go_round(sl_group *group, bool token)
{
    sl_status status = SL_OK;
    int me = sl_group_rank(group), size = sl_group_size(group), next = (me + 1) % size, before = (me + size - 1) % size;
    sl_channel_spec specs[2] = { { before, before, me, 2, 64 }, { me, me, next, 2, 64 } };
    sl_channel *channels[2];
    SL_TRY(sl_group_open_channels(group, specs, 2, channels));
    SL_TRY(sl_group_barrier(group));
    double start = process_time();
    times->working[me] = 0;
    for (int i = 0; i < STEPS; i++)
        SL_TRY(step(channels[0], channels[1], i, !token || me == 0));
    times->all[me] = process_time() - start;
    SL_TRY(sl_group_barrier(group));
done:
    return status;
}

static sl_status everybody_works(sl_group *group, uint64_t seed)
{
    (void)seed;
    return go_round(group, false);
}

static sl_status one_works(sl_group *group, uint64_t seed)
{
    (void)seed;
    return go_round(group, true);
}

/* Processor time beside the work, as a part of the work. */
static double beside_the_work(suite_function run)
{
    double working = 0, all = 0;
    if (suite_run_local(run, RANKS, NULL, 0) != SL_OK)
        fail_msg("%s", sl_error_message());
    for (int r = 0; r < RANKS; r++) {
        working += times->working[r];
        all += times->all[r];
    }
    return all / working - 1;
}

/* What of it busy waiting takes: the rest is there too if every wait sleeps at once. That rest is the price of a wake-up,
 * which a virtual machine with an idle core makes dear. */
static double lost_to_spinning(suite_function run)
{
    double with = beside_the_work(run);
    setenv("SLUICE_SPIN_US", "-1", 1);
    double without = beside_the_work(run);
    unsetenv("SLUICE_SPIN_US");
    print_message("%.1f%% beside the work, %.1f%% if no wait is busy\n", with * 100, without * 100);
    return with - without;
}

/* The best of three: what else runs here makes a switch between ranks dearer at one time than at another. */
static double lost(suite_function run)
{
    double best = lost_to_spinning(run);
    for (int i = 1; i < 3 && best >= 0.1; i++) {
        double again = lost_to_spinning(run);
        best = again < best ? again : best;
    }
    return best;
}

static void ranks_that_wait_leave_the_cores_to_those_that_work(void **state)
{
    (void)state;
#if TEST_SANITIZED
    print_message("the sanitizer's own time would be counted\n");
    skip();
#endif
    cpu_set_t before, two;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&two);
    for (size_t core = 0; core < CPU_SETSIZE && CPU_COUNT(&two) < CORES; core++) {
        if (CPU_ISSET(core, &before))
            CPU_SET(core, &two);
    }
    assert_int_equal(sched_setaffinity(0, sizeof two, &two), 0);
    assert_true(lost(everybody_works) < 0.1);
    assert_true(lost(one_works) < 0.1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* ---- Two ranks on one core, though there are enough ----------------------------------------- */

enum { ROUNDS = 40, MESSAGES = 50 };

static cpu_set_t first_core; /* of those that this process may use */

/* Both ranks go to one core, unknown to the launcher, and send a message to and fro. */
static sl_status play_on_one_core(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int me = sl_group_rank(group);
    sl_channel_spec specs[2] = { { 0, 0, 1, 2, 64 }, { 1, 1, 0, 2, 64 } };
    sl_channel *channels[2];
    sched_setaffinity(0, sizeof first_core, &first_core);
    SL_TRY(sl_group_open_channels(group, specs, 2, channels));
    times->all[me] = 1;
    for (int round = 0; round < ROUNDS; round++) {
        SL_TRY(sl_group_barrier(group));
        double start = sl_now();
        for (int i = 0; i < MESSAGES; i++) {
            sl_message message = { .step = i, .dtype = SL_U8, .shape = { 1, { 64 } } };
            void *data = NULL;
            for (int turn = 0; turn < 2; turn++) {
                if (turn == me) {
                    SL_TRY(sl_channel_reserve(channels[me], &message, &data));
                    SL_TRY(sl_channel_commit(channels[me], data));
                } else {
                    SL_TRY(sl_channel_receive(channels[1 - me], &message, NULL, &data));
                    SL_TRY(sl_channel_release(channels[1 - me], data));
                }
            }
        }
        double seconds = (sl_now() - start) / (2 * MESSAGES);
        times->all[me] = seconds < times->all[me] ? seconds : times->all[me];
    }
    SL_TRY(sl_group_barrier(group));
done:
    return status;
}

static void ranks_on_one_core_do_not_wait_busily_for_each_other(void **state)
{
    (void)state;
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (size_t core = 0; core < CPU_SETSIZE && CPU_COUNT(&first_core) == 0; core++) {
        if (CPU_ISSET(core, &allowed))
            CPU_SET(core, &first_core);
    }
    if (suite_run_local(play_on_one_core, 2, NULL, 0) != SL_OK)
        fail_msg("%s", sl_error_message());
    print_message("%.1f us a message\n", times->all[0] * 1e6);
#if !TEST_SANITIZED
    assert_true(times->all[0] < 15e-6); /* a busy wait takes 50 */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_wait_leave_the_cores_to_those_that_work),
        cmocka_unit_test(ranks_on_one_core_do_not_wait_busily_for_each_other),
    };
    times = mmap(NULL, sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
