/* Ranks that somebody else starts, with torchrun's or Slurm's variables: they find each other, and hear of a death. */
#include "ranks/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3 };

/* Shared between the test and the ranks. */
static struct outcome {
    sl_status status;
    double at;
    char transport[16];
    char message[1024];
} * outcomes;

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void as_torchrun(int rank, int size)
{
    set_number("RANK", rank);
    set_number("WORLD_SIZE", size);
    set_number("LOCAL_WORLD_SIZE", size);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", (int)getppid()); /* of this test and no other */
}

static void as_slurm(int rank, int size)
{
    set_number("SLURM_PROCID", rank);
    set_number("SLURM_STEP_NUM_TASKS", size);
    set_number("SLURM_STEP_NUM_NODES", 1);
    set_number("SLURM_JOB_ID", (int)getppid());
    setenv("SLURM_STEP_ID", "3", 1);
}

static int be_rank(int rank, suite_function run)
{
    struct outcome *mine = &outcomes[rank];
    sl_group *group = NULL;
    mine->status = sl_group_open(NULL, &group);
    if (mine->status == SL_OK) {
        snprintf(mine->transport, sizeof mine->transport, "%s", sl_group_transport(group));
        mine->status = run(group, 5);
    }
    mine->at = sl_now();
    snprintf(mine->message, sizeof mine->message, "%s", sl_error_message());
    sl_group_close(group);
    return mine->status == SL_OK ? 0 : 1;
}

/* Starts the ranks, the last one first, and waits for them. */
static void run_ranks(void (*as)(int rank, int size), int size, int wrong_size, suite_function run)
{
    memset(outcomes, 0, RANKS * sizeof *outcomes);
    pid_t pids[RANKS];
    for (int r = size - 1; r >= 0; r--) {
        pids[r] = fork();
        if (pids[r] == 0) {
            as(r, r == size - 1 && wrong_size ? wrong_size : size);
            _exit(be_rank(r, run));
        }
        usleep(5000);
    }
    for (int r = 0; r < size; r++)
        waitpid(pids[r], NULL, 0);
}

static void check_all_well(void)
{
    for (int r = 0; r < RANKS; r++) {
        if (outcomes[r].status != SL_OK)
            fail_msg("rank %d: %s", r, outcomes[r].message);
        assert_string_equal(outcomes[r].transport, "local");
    }
}

static void torchruns_ranks_find_each_other(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) { /* again under the same name */
        run_ranks(as_torchrun, RANKS, 0, suite_patterns[0].run);
        check_all_well();
    }
}

static void slurms_ranks_find_each_other(void **state)
{
    (void)state;
    run_ranks(as_slurm, RANKS, 0, suite_patterns[0].run);
    check_all_well();
}

static double *killed_at;

static sl_status die_as_the_last(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = sl_group_barrier(group);
    sl_group_note(group, "about to die");
    if (sl_group_rank(group) == RANKS - 1) {
        usleep(20000);
        *killed_at = sl_now();
        kill(getpid(), SIGKILL);
    }
    while (status == SL_OK)
        status = sl_group_barrier(group);
    return status;
}

static void a_death_is_heard_of_without_a_launcher(void **state)
{
    (void)state;
    run_ranks(as_torchrun, RANKS, 0, die_as_the_last);
    for (int r = 0; r < RANKS - 1; r++) {
        assert_int_equal(outcomes[r].status, SL_ERR_PEER);
        assert_non_null(strstr(outcomes[r].message, "rank 2 died; last doing: about to die"));
        assert_true(outcomes[r].at - *killed_at < 1);
    }
}

static pid_t *stopped;

/* Rank 0 ends the stopped one, which hears nothing any more. */
static sl_status stop_as_the_last(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = sl_group_barrier(group);
    sl_group_note(group, "about to stop");
    if (sl_group_rank(group) == RANKS - 1) {
        *stopped = getpid();
        kill(getpid(), SIGSTOP);
    }
    while (status == SL_OK)
        status = sl_group_barrier(group);
    if (sl_group_rank(group) == 0)
        kill(*stopped, SIGKILL);
    return status;
}

static void a_stopped_rank_is_missed_without_a_launcher(void **state)
{
    (void)state;
    setenv("SLUICE_HANG_TIMEOUT", "2", 1);
    run_ranks(as_torchrun, RANKS, 0, stop_as_the_last);
    unsetenv("SLUICE_HANG_TIMEOUT");
    for (int r = 0; r < RANKS - 1; r++) {
        assert_int_equal(outcomes[r].status, SL_ERR_PEER);
        assert_non_null(
            strstr(outcomes[r].message, "rank 2 gave no sign of life for 2 s; last doing: rank 2: about to stop"));
    }
}

/* One rank of the run never comes. */
static void as_some_of_torchruns(int rank, int size)
{
    as_torchrun(rank, size + 1);
}

static void a_rank_that_never_comes_is_named(void **state)
{
    (void)state;
    setenv("SLUICE_HANG_TIMEOUT", "0.5", 1);
    run_ranks(as_some_of_torchruns, RANKS, 0, suite_patterns[0].run);
    unsetenv("SLUICE_HANG_TIMEOUT");
    assert_int_equal(outcomes[0].status, SL_ERR_TIMEOUT);
    assert_non_null(strstr(outcomes[0].message, "3 of 4 ranks came within 2 s; rank 3 did not"));
    for (int r = 1; r < RANKS; r++)
        assert_int_not_equal(outcomes[r].status, SL_OK);
}

/* And rank 2 does not live to wait for it. */
static void as_torchruns_with_one_that_dies(int rank, int size)
{
    const struct itimerval when = { .it_value = { .tv_usec = 300000 } };
    as_torchrun(rank, size + 1);
    if (rank == 2)
        setitimer(ITIMER_REAL, &when, NULL);
}

static void a_death_before_all_have_come_is_heard_of(void **state)
{
    (void)state;
    run_ranks(as_torchruns_with_one_that_dies, RANKS, 0, suite_patterns[0].run);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, SL_ERR_PEER);
        if (!strstr(outcomes[r].message, "rank 2 went away before all ranks had come"))
            fail_msg("rank %d: %s", r, outcomes[r].message);
    }
}

static void ranks_that_disagree_on_their_number_are_refused(void **state)
{
    (void)state;
    run_ranks(as_torchrun, RANKS, RANKS + 1, suite_patterns[0].run);
    assert_int_equal(outcomes[0].status, SL_ERR_COMM);
    assert_non_null(strstr(outcomes[0].message, "rank 0 has 3 ranks, another process is rank 2 of 4"));
}

/* ---- The place where they meet --------------------------------------------------------------- */

static char place[64]; /* a folder for this test's folders */

static void make_place(void)
{
    snprintf(place, sizeof place, "/tmp/rendezvous-test-XXXXXX");
    if (!mkdtemp(place))
        abort();
    setenv("TMPDIR", place, 1);
    setenv("HOME", place, 1);
    unsetenv("XDG_RUNTIME_DIR");
}

static bool other_users_see_a_name(void)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/net/unix", "r");
    while (fgets(line, sizeof line, file))
        found |= strstr(line, "@sluice") != NULL;
    fclose(file);
    return found;
}

static void no_other_user_can_take_the_name_of_a_run(void **state)
{
    (void)state;
    char own[96];
    struct stat info;
    snprintf(own, sizeof own, "%s/sluice-%u", place, (unsigned)geteuid());
    memset(outcomes, 0, RANKS * sizeof *outcomes);
    pid_t first = fork();
    if (first == 0) {
        as_torchrun(0, RANKS);
        _exit(be_rank(0, suite_patterns[0].run));
    }
    for (int i = 0; i < 1000 && stat(own, &info) != 0; i++)
        usleep(5000);
    usleep(50000); /* it waits for the others */
    bool seen = other_users_see_a_name();
    bool is_private = stat(own, &info) == 0 && (info.st_mode & 0777) == 0700 && info.st_uid == geteuid();
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    assert_false(seen);
    assert_true(is_private);
    run_ranks(as_torchrun, RANKS, 0, suite_patterns[0].run); /* what the killed one left is in nobody's way */
    check_all_well();
    assert_int_equal(stat(own, &info), -1); /* and nothing is left */
}

static void a_folder_that_others_can_write_to_is_not_used(void **state)
{
    (void)state;
    char own[96], home[96];
    struct stat info;
    snprintf(own, sizeof own, "%s/sluice-%u", place, (unsigned)geteuid());
    snprintf(home, sizeof home, "%s/.sluice", place);
    assert_int_equal(mkdir(own, 0777), 0);
    assert_int_equal(chmod(own, 0777), 0);
    run_ranks(as_torchrun, RANKS, 0, suite_patterns[0].run);
    check_all_well();
    assert_int_equal(rmdir(own), 0);         /* nothing was put into it */
    assert_int_equal(stat(home, &info), -1); /* the other one has gone */

    assert_int_equal(mkdir(home, 0755), 0); /* nowhere to meet */
    assert_int_equal(mkdir(own, 0755), 0);
    run_ranks(as_torchrun, RANKS, 0, suite_patterns[0].run);
    rmdir(home);
    rmdir(own);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(outcomes[r].status, SL_ERR_COMM);
        assert_non_null(strstr(outcomes[r].message, "is a folder that belongs to this user alone"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torchruns_ranks_find_each_other),
        cmocka_unit_test(slurms_ranks_find_each_other),
        cmocka_unit_test(a_death_is_heard_of_without_a_launcher),
        cmocka_unit_test(a_stopped_rank_is_missed_without_a_launcher),
        cmocka_unit_test(a_rank_that_never_comes_is_named),
        cmocka_unit_test(a_death_before_all_have_come_is_heard_of),
        cmocka_unit_test(ranks_that_disagree_on_their_number_are_refused),
        cmocka_unit_test(no_other_user_can_take_the_name_of_a_run),
        cmocka_unit_test(a_folder_that_others_can_write_to_is_not_used),
    };
    char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    outcomes = (struct outcome *)memory;
    killed_at = (double *)(memory + 32768);
    stopped = (pid_t *)(memory + 40960);
    make_place();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(place);
    return failed;
}
