/* Ranks that are stopped (SIGSTOP, Ctrl-Z): one that stands still while the others run has hung, wherever it was; a
 * whole run that was suspended goes on. */
#include "ranks/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, VICTIM = 1 };

/* Shared between the test, the launcher and the ranks. */
static struct scene {
    volatile bool go_on; /* false: the ranks may end */
    volatile int running;
    volatile pid_t pids[RANKS];
    sl_status status[RANKS];
    char message[RANKS][2048];
    sl_launch_result result;
} * shared;

static int finish(int rank, sl_group *group, sl_status status)
{
    shared->status[rank] = status;
    snprintf(shared->message[rank], sizeof shared->message[rank], "%s", status == SL_OK ? "" : sl_error_message());
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* ---- One rank -------------------------------------------------------------------------------- */

static int stop_before_joining(void *user, int rank)
{
    (void)user;
    sl_group *group = NULL;
    shared->pids[rank] = getpid();
    if (rank == VICTIM)
        kill(getpid(), SIGSTOP);
    sl_status status = sl_group_open(NULL, &group);
    return finish(rank, group, status);
}

static void a_rank_that_is_stopped_before_it_joins_is_named_by_all(void **state)
{
    (void)state;
    static const char reason[] = "rank 1 gave no sign of life for 1 s; last doing: rank 1: nothing noted";
    const sl_launch_options launch = { .ranks = RANKS, .run = stop_before_joining, .hang_timeout = 1 };
    memset(shared, 0, sizeof *shared);
    assert_int_equal(sl_launch(&launch, &shared->result), SL_OK);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(kill(shared->pids[r], 0), -1);
        if (r == VICTIM)
            continue;
        assert_int_equal(shared->status[r], SL_ERR_PEER);
        if (!strstr(shared->message[r], reason) || !strstr(shared->message[r], "waiting for rank 1 to join the run"))
            fail_msg("rank %d: %s", r, shared->message[r]);
    }
    assert_int_equal(shared->result.exit_code, 128 + SIGKILL);
    assert_int_equal(shared->result.rank, VICTIM);
    assert_memory_equal(shared->result.report, reason, strlen(reason));
}

/* ---- The whole run --------------------------------------------------------------------------- */

static int talk(void *user, int rank)
{
    (void)user;
    sl_group *group = NULL;
    shared->pids[rank] = getpid();
    sl_status status = sl_group_open(NULL, &group);
    for (int64_t on = 1; status == SL_OK && on;) {
        on = shared->go_on;
        status = sl_group_all_reduce(group, &on, 1, SL_I64, SL_REDUCE_MAX); /* the same answer for all */
        if (status == SL_OK && rank == 0)
            shared->running++;
        usleep(1000);
    }
    return finish(rank, group, status);
}

static void wait_for_progress(void)
{
    for (int before = shared->running, i = 0; shared->running < before + 3 && i < 30000; i++)
        usleep(1000);
}

/* Runs a launcher of its own with a hang timeout of 1 s, suspends all of it for two, lets it go on and end. */
static void suspend_run(void (*suspend)(pid_t launcher), void (*resume)(pid_t launcher))
{
    memset(shared, 0, sizeof *shared);
    shared->go_on = true;
    shared->result.exit_code = -1;
    pid_t launcher = fork();
    if (launcher == 0) {
        const sl_launch_options launch = { .ranks = RANKS, .run = talk, .hang_timeout = 1 };
        _exit(sl_launch(&launch, &shared->result) == SL_OK ? 0 : 1);
    }
    wait_for_progress();
    suspend(launcher);
    assert_int_equal(waitpid(launcher, NULL, WUNTRACED), launcher);
    int before = shared->running;
    usleep(2000000);
    assert_int_equal(shared->running, before);
    resume(launcher);
    wait_for_progress();
    shared->go_on = false;
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    for (int r = 0; r < RANKS; r++) {
        if (shared->status[r] != SL_OK)
            fail_msg("rank %d: %s", r, shared->message[r]);
    }
    assert_int_equal(shared->result.exit_code, 0);
    assert_true(shared->running >= before + 3);
}

static void press_ctrl_z(pid_t launcher)
{
    kill(launcher, SIGTSTP);
}

static void resume_launcher(pid_t launcher)
{
    kill(launcher, SIGCONT);
}

static void stop_each(pid_t launcher)
{
    for (int r = 0; r < RANKS; r++)
        kill(shared->pids[r], SIGSTOP);
    kill(launcher, SIGSTOP);
}

static void resume_each(pid_t launcher)
{
    kill(launcher, SIGCONT);
    for (int r = 0; r < RANKS; r++)
        kill(shared->pids[r], SIGCONT);
}

static void a_run_suspended_with_its_launcher_goes_on(void **state)
{
    (void)state;
    suspend_run(press_ctrl_z, resume_launcher);
}

static void a_run_whose_processes_are_all_stopped_goes_on(void **state)
{
    (void)state;
    suspend_run(stop_each, resume_each);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_is_stopped_before_it_joins_is_named_by_all),
        cmocka_unit_test(a_run_suspended_with_its_launcher_goes_on),
        cmocka_unit_test(a_run_whose_processes_are_all_stopped_goes_on),
    };
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
