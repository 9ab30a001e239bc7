/* The communication suite over MPI, with each MPI whose plugin was built: this program starts itself under mpirun. Cases
 * with random messages have a third of their rounds unless all were asked for. */
#include "ranks/support/suite.h"
#include "support/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- As a rank ------------------------------------------------------------------------------- */

static const suite_case *const lists[] = { suite_patterns, suite_messages, suite_channels, suite_collectives,
                                           suite_failures };
enum { LISTS = sizeof lists / sizeof *lists, ROUNDS = 20, ALL_ROUNDS = 60 };

/* Everything that leaves the run whole, on one group. */
static sl_status run_most(sl_group *group)
{
    const int most = test_is_full() ? ALL_ROUNDS : ROUNDS;
    for (int i = 0; i < LISTS; i++) {
        for (const suite_case *each = lists[i]; each->name; each++) {
            if (each->ends_run || each->min_ranks > sl_group_size(group))
                continue;
            const int rounds = each->rounds < 1 ? 1 : each->rounds > most ? most : each->rounds;
            for (int round = 0; round < rounds; round++) {
                sl_status status = each->run(group, (uint64_t)round);
                if (status != SL_OK)
                    return sl_fail_context(status, "%s, round %d", each->name, round);
            }
        }
    }
    return SL_OK;
}

static sl_status run_named(sl_group *group, const char *name)
{
    for (int i = 0; i < LISTS; i++) {
        for (const suite_case *each = lists[i]; each->name; each++) {
            if (strcmp(each->name, name) == 0)
                return each->run(group, 1);
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "no case %s", name);
}

/* Rank 1 stops; the others go on until they hear of it. */
static sl_status hang(sl_group *group)
{
    sl_status status = sl_group_barrier(group);
    sl_group_note(group, "hanging");
    usleep(300000); /* a sign of life with the note */
    if (sl_group_rank(group) == 1)
        kill(getpid(), SIGSTOP);
    while (status == SL_OK)
        status = sl_group_barrier(group);
    return status;
}

/* Rank 1 dies: MPI itself ends the others. */
static sl_status die(sl_group *group)
{
    sl_status status = sl_group_barrier(group);
    if (sl_group_rank(group) == 1)
        kill(getpid(), SIGKILL);
    while (status == SL_OK)
        status = sl_group_barrier(group);
    return status;
}

/* All ranks but one that computes fail at once; each prints what it takes for the run's failure. */
static sl_status fail_at_once(sl_group *group)
{
    sl_status status = sl_group_barrier(group);
    if (sl_group_rank(group) == 0) {
        while (status == SL_OK)
            status = sl_group_check(group);
    } else if (status == SL_OK) {
        sl_fail(SL_ERR_NUMERIC, "broken on %d", sl_group_rank(group));
        sl_group_fail(group, SL_ERR_NUMERIC);
    }
    if (sl_group_check(group) == SL_OK)
        return sl_fail(SL_ERR_INTERNAL, "nothing has failed");
    printf("verdict: %s\n", strstr(sl_error_message(), "failed: "));
    return SL_OK;
}

static int be_rank(const char *what)
{
    sl_group *group = NULL;
    sl_group_options options = { .hang_timeout = strcmp(what, "hang") == 0 ? 1 : 0 };
    sl_status status = sl_group_open(&options, &group);
    if (status == SL_OK && strcmp(sl_group_transport(group), "mpi") != 0)
        status = sl_fail(SL_ERR_INTERNAL, "the transport is %s", sl_group_transport(group));
    if (status == SL_OK)
        status = strcmp(what, "most") == 0      ? run_most(group)
                 : strcmp(what, "hang") == 0    ? hang(group)
                 : strcmp(what, "die") == 0     ? die(group)
                 : strcmp(what, "at_once") == 0 ? fail_at_once(group)
                                                : run_named(group, what);
    if (status != SL_OK) {
        fprintf(stderr, "rank %d: %s\n", group ? sl_group_rank(group) : -1, sl_error_message());
        if (group)
            sl_group_fail(group, status);
    }
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* ---- As the test ----------------------------------------------------------------------------- */

static void need(const char *flavour)
{
    if (!suite_has_mpi(flavour))
        skip();
}

static void run_suite(const char *flavour)
{
    char output[8192];
    need(flavour);
    for (int ranks = 2; ranks <= 4; ranks++) {
        if (suite_mpirun(flavour, ranks, "most", output, sizeof output) != 0)
            fail_msg("%d ranks: %s", ranks, output);
    }
    for (int i = 0; i < LISTS; i++) {
        for (const suite_case *each = lists[i]; each->name; each++) {
            if (each->ends_run && suite_mpirun(flavour, 3, each->name, output, sizeof output) != 0)
                fail_msg("%s: %s", each->name, output);
        }
    }
}

/* A rank that is stopped cannot be waited for: the others report it, and MPI_Abort ends it. */
static void run_hang(const char *flavour)
{
    char output[8192];
    need(flavour);
    double start = sl_now();
    assert_int_not_equal(suite_mpirun(flavour, 3, "hang", output, sizeof output), 0);
    assert_true(sl_now() - start < 30);
    if (!strstr(output, "rank 1 gave no sign of life for 1 s; last doing: rank 1: hanging"))
        fail_msg("%s", output);
}

static void run_death(const char *flavour)
{
    char output[8192];
    need(flavour);
    double start = sl_now();
    assert_int_not_equal(suite_mpirun(flavour, 3, "die", output, sizeof output), 0);
    assert_true(sl_now() - start < 30);
}

static void run_at_once(const char *flavour)
{
    enum { AT_ONCE = 4 };
    char output[8192], *first = NULL;
    int count = 0;
    need(flavour);
    assert_int_equal(suite_mpirun(flavour, AT_ONCE, "at_once", output, sizeof output), 0);
    for (char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "verdict: ", 9) != 0)
            continue;
        first = first ? first : line;
        assert_string_equal(line, first);
        count++;
    }
    assert_int_equal(count, AT_ONCE);
}

static void of_many_failures_all_ranks_report_the_same(void **state)
{
    (void)state;
    run_at_once("openmpi");
    run_at_once("mpich");
}

static void nobody_waits_for_a_rank_that_died(void **state)
{
    (void)state;
    run_death("openmpi");
    run_death("mpich");
}

static void openmpi_runs_the_suite(void **state)
{
    (void)state;
    run_suite("openmpi");
}

static void mpich_runs_the_suite(void **state)
{
    (void)state;
    run_suite("mpich");
}

static void openmpi_ends_a_run_with_a_rank_that_hangs(void **state)
{
    (void)state;
    run_hang("openmpi");
}

static void mpich_ends_a_run_with_a_rank_that_hangs(void **state)
{
    (void)state;
    run_hang("mpich");
}

int main(int argc, char **argv)
{
    if (argc == 2 && suite_is_mpi_rank())
        return be_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(openmpi_runs_the_suite),
        cmocka_unit_test(mpich_runs_the_suite),
        cmocka_unit_test(openmpi_ends_a_run_with_a_rank_that_hangs),
        cmocka_unit_test(mpich_ends_a_run_with_a_rank_that_hangs),
        cmocka_unit_test(nobody_waits_for_a_rank_that_died),
        cmocka_unit_test(of_many_failures_all_ranks_report_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
