/* Starting again, with real processes: which ends lead to another start, what its ranks find, and with how many it is. */
#include <sluice/comm.h>

#include "comm/environment.h"
#include "comm/launch/vault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 3, VICTIM = 1, STARTS = 8 };

/* Shared between the test and the ranks. */
static struct scene {
    int how[STARTS]; /* how the victim ends: a signal, or -(exit code) - 1; 0: well */
    _Atomic int started[STARTS];
    int size[STARTS];
    int64_t found[STARTS]; /* step that rank 0 finds in the vault; -1 for nothing */
    char reason[STARTS][256];
} * shared;

static sl_environment environment;

static int put(int64_t step, int rank)
{
    const sl_vault_part part = { .step = step, .part = rank, .parts = environment.size };
    int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int failed = memory < 0 || write(memory, &step, sizeof step) != sizeof step ||
                 fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) != 0 ||
                 sl_vault_put(environment.vault_fd, &part, memory) != SL_OK;
    close(memory);
    return failed;
}

static int64_t look(void)
{
    sl_vault_content content = { .parts = 0 };
    int64_t step = -1;
    if (sl_vault_get(environment.vault_fd, &content) != SL_OK)
        return -2;
    for (int i = 0; i < content.parts; i++) {
        memcpy(&step, content.data[i], sizeof step);
        if (step != content.step)
            return -3;
    }
    sl_vault_release(&content);
    return step;
}

static void end_as(int how)
{
    if (how > 0)
        kill(getpid(), how);
    else if (how < 0)
        _exit(-how - 1);
}

/* Start n: all hand in step 10 n + 1, all but the victim step 10 n + 2; then the victim ends as it is to. */
static int rank_main(void *user, int rank)
{
    (void)user;
    sl_group *group = NULL;
    if (sl_environment_read(&environment) != SL_OK || sl_group_open(NULL, &group) != SL_OK)
        return 1;
    int start = environment.restart, how = shared->how[start];
    atomic_fetch_add(&shared->started[start], 1);
    if (rank == 0) {
        shared->size[start] = environment.size;
        shared->found[start] = look();
        snprintf(shared->reason[start], sizeof shared->reason[start], "%s", getenv("SLUICE_RESTART_REASON"));
    }
    int failed = put(10 * start + 1, rank) || sl_group_barrier(group) != SL_OK;
    if (rank != VICTIM)
        failed |= put(10 * start + 2, rank);
    failed |= sl_group_barrier(group) != SL_OK;
    if (rank == VICTIM)
        end_as(how);
    if (how != 0)
        failed |= sl_group_barrier(group) != SL_OK; /* nobody comes through */
    sl_group_close(group);
    return failed;
}

static sl_launch_result run(const sl_launch_options *options)
{
    sl_launch_result result;
    assert_int_equal(sl_launch(options, &result), SL_OK);
    return result;
}

static void prepare(int first, int second, int third)
{
    memset(shared, 0, sizeof *shared);
    shared->how[0] = first;
    shared->how[1] = second;
    shared->how[2] = third;
}

static void a_lost_rank_leads_to_another_start(void **state)
{
    (void)state;
    prepare(SIGKILL, -1 - SL_EXIT_AGAIN, 0);
    const sl_launch_options options = { .ranks = RANKS, .run = rank_main, .restarts = 5 };
    sl_launch_result result = run(&options);
    assert_int_equal(result.exit_code, 0);
    assert_int_equal(result.end, SL_LAUNCH_DONE);
    assert_int_equal(result.restarts, 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(shared->started[i], RANKS);
    assert_int_equal(shared->started[3], 0);
    assert_string_equal(shared->reason[0], "");
    assert_non_null(strstr(shared->reason[1], "rank 1 was killed by signal 9 (Killed)"));
    assert_non_null(strstr(shared->reason[2], "rank 1 exited with code 75"));
}

static void each_start_finds_the_last_whole_generation(void **state)
{
    (void)state;
    prepare(SIGKILL, SIGXCPU, 0);
    const sl_launch_options options = { .ranks = RANKS, .run = rank_main, .restarts = 5 };
    assert_int_equal(run(&options).exit_code, 0);
    assert_int_equal(shared->found[0], -1);
    assert_int_equal(shared->found[1], 1); /* step 2 lacks the victim's part */
    assert_int_equal(shared->found[2], 11);
}

static void the_last_restart_is_the_last(void **state)
{
    (void)state;
    prepare(SIGKILL, SIGKILL, SIGKILL);
    const sl_launch_options options = { .ranks = RANKS, .run = rank_main, .restarts = 1 };
    sl_launch_result result = run(&options);
    assert_int_equal(result.exit_code, 128 + SIGKILL);
    assert_int_equal(result.end, SL_LAUNCH_LOST);
    assert_int_equal(result.restarts, 1);
    assert_int_equal(shared->started[2], 0);
}

static void what_would_come_again_is_not_tried_again(void **state)
{
    (void)state;
    static const struct {
        int how;
        sl_launch_end end;
    } cases[] = { { -1 - 1, SL_LAUNCH_FAILED }, { -1 - 2, SL_LAUNCH_FAILED }, { SIGTERM, SL_LAUNCH_STOPPED } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        prepare(cases[i].how, 0, 0);
        const sl_launch_options options = { .ranks = RANKS, .run = rank_main, .restarts = 5 };
        sl_launch_result result = run(&options);
        assert_int_equal(result.end, cases[i].end);
        assert_int_equal(result.restarts, 0);
        assert_int_equal(shared->started[1], 0);
    }
}

static int two_or_none(void *user, int most, char *const **argv)
{
    (void)user, (void)argv;
    return most >= 2 ? 2 : 0;
}

static void fewer_ranks_follow_two_starts_that_came_to_nothing(void **state)
{
    (void)state;
    prepare(SIGKILL, SIGKILL, 0);
    sl_launch_options options = {
        .ranks = RANKS + 1, .run = rank_main, .restarts = 5, .min_ranks = 2, .choose_ranks = two_or_none
    };
    sl_launch_result result = run(&options);
    assert_int_equal(result.exit_code, 0);
    assert_int_equal(result.ranks, 2);
    assert_int_equal(shared->size[1], RANKS + 1);
    assert_int_equal(shared->size[2], 2);
    prepare(SIGKILL, SIGKILL, 0);
    options.min_ranks = 3; /* more than can be had: the same number once more */
    assert_int_equal(run(&options).exit_code, 0);
    assert_int_equal(shared->size[2], RANKS + 1);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_rank_leads_to_another_start),
        cmocka_unit_test(each_start_finds_the_last_whole_generation),
        cmocka_unit_test(the_last_restart_is_the_last),
        cmocka_unit_test(what_would_come_again_is_not_tried_again),
        cmocka_unit_test(fewer_ranks_follow_two_starts_that_came_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
