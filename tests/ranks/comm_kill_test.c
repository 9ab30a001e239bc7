/* Ranks that die or hang at random points of random messages: everybody else hears of it in time, and nothing is left.
 * SLUICE_KILL_POINTS sets how many points of each kind are tried. */
#include "ranks/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 4 };

/* How the victim goes. */
enum fate { BY_SIGKILL, BY_SIGSTOP, BY_SIGSEGV, BY_EXIT, BY_QUIET_EXIT };

/* Shared between the test and the ranks. */
static struct scene {
    int size, victim;
    enum fate fate;
    int64_t after_us; /* from its start to its end */
    uint64_t seed;
    volatile double gone_at; /* when the victim went */
    struct {
        pid_t pid;
        sl_status status;
        double at; /* when it got its error */
        char message[2048];
    } ranks[MAX_RANKS];
} * shared;

static void go(int signal)
{
    (void)signal;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* async-signal-safe, as is all here */
    shared->gone_at = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    switch (shared->fate) {
    case BY_SIGKILL:
        kill(getpid(), SIGKILL);
        break;
    case BY_SIGSTOP:
        kill(getpid(), SIGSTOP);
        break;
    case BY_SIGSEGV:
        kill(getpid(), SIGSEGV);
        break;
    case BY_EXIT:
        syscall(SYS_exit_group, 3); /* _exit sleeps under the thread sanitizer */
        break;
    case BY_QUIET_EXIT:
        syscall(SYS_exit_group, 0);
        break;
    }
}

/* Messages until something fails. */
static int talk(void *user, int rank)
{
    (void)user;
    sl_group *group = NULL;
    shared->ranks[rank].pid = getpid();
    if (rank == shared->victim) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        const struct itimerval when = { .it_value = { .tv_sec = shared->after_us / 1000000,
                                                      .tv_usec = shared->after_us % 1000000 } };
        signal(SIGALRM, go);
        signal(SIGSEGV, SIG_DFL); /* the test framework would catch it */
        setitimer(ITIMER_REAL, &when, NULL);
    }
    sl_status status = sl_group_open(NULL, &group);
    for (uint64_t i = 0; status == SL_OK; i++) {
        char note[48];
        snprintf(note, sizeof note, "pattern %llu", (unsigned long long)i);
        sl_group_note(group, note);
        status = suite_patterns[0].run(group, shared->seed + i);
    }
    shared->ranks[rank].at = sl_now();
    shared->ranks[rank].status = status;
    snprintf(shared->ranks[rank].message, sizeof shared->ranks[rank].message, "%s", sl_error_message());
    sl_group_close(group);
    return 1;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static bool maps_memory_of_a_run(void)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, file))
        found |= strstr(line, "memfd:sluice") != NULL;
    fclose(file);
    return found;
}

static void check_survivors(const struct scene *scene, double limit, const char *reason)
{
    for (int r = 0; r < scene->size; r++) {
        if (r == scene->victim)
            continue;
        if (scene->ranks[r].status != SL_ERR_PEER || !strstr(scene->ranks[r].message, reason))
            fail_msg("rank %d: %s: '%s' does not say '%s'", r, sl_status_name(scene->ranks[r].status),
                     scene->ranks[r].message, reason);
        double took = scene->ranks[r].at - scene->gone_at;
        if (took > limit)
            fail_msg("rank %d heard of it after %.3f s", r, took);
        assert_int_equal(kill(scene->ranks[r].pid, 0), -1); /* gone, and reaped */
    }
    assert_int_equal(kill(scene->ranks[scene->victim].pid, 0), -1);
}

static void play(int size, enum fate fate, int exit_code, double hang_timeout, const char *reason, uint64_t seed)
{
    suite_random random = { seed };
    char expected[128];
    sl_launch_options launch = { .ranks = size, .run = talk, .hang_timeout = hang_timeout, .grace = 3 };
    sl_launch_result result;
    int descriptors = count_descriptors();
    memset(shared, 0, sizeof *shared);
    shared->size = size;
    shared->fate = fate;
    shared->victim = (int)suite_between(&random, 0, size - 1);
    shared->after_us = suite_between(&random, 1, 40000);
    shared->seed = suite_next(&random) % 1000000;
    snprintf(expected, sizeof expected, "rank %d %s", shared->victim, reason);

    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    check_survivors(shared, 1 + (fate == BY_SIGSTOP ? hang_timeout : 0), expected);
    assert_int_equal(result.exit_code, exit_code);
    if (fate != BY_QUIET_EXIT)
        assert_int_equal(result.rank, shared->victim);
    if (strncmp(result.report, expected, strlen(expected)) != 0) /* the root cause comes first */
        fail_msg("the report is '%s' and not '%s'", result.report, expected);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    assert_int_equal(count_descriptors(), descriptors);
    assert_false(maps_memory_of_a_run());
}

static int points(int otherwise)
{
    const char *text = getenv("SLUICE_KILL_POINTS");
    return text ? atoi(text) : otherwise;
}

static void a_killed_rank_is_named_by_all_within_a_second(void **state)
{
    (void)state;
    for (int i = 0; i < points(50); i++) {
        play(2, BY_SIGKILL, 137, 30, "was killed by signal 9 (Killed)", (uint64_t)i);
        play(4, BY_SIGKILL, 137, 30, "was killed by signal 9 (Killed)", (uint64_t)i + 1000);
    }
}

static void a_stopped_rank_is_named_by_all_after_the_hang_timeout(void **state)
{
    (void)state;
    for (int i = 0; i < points(3); i++) {
        play(2, BY_SIGSTOP, 137, 1, "gave no sign of life for 1 s; last doing: rank", (uint64_t)i);
        play(4, BY_SIGSTOP, 137, 1, "gave no sign of life for 1 s; last doing: rank", (uint64_t)i + 1000);
    }
}

static void other_ends_are_named_too(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 5; i++) {
        play(2, BY_SIGSEGV, 139, 30, "was killed by signal 11 (Segmentation fault)", i);
        play(3, BY_EXIT, 3, 30, "exited with code 3", i);
        play(2, BY_QUIET_EXIT, 1, 30, "exited with code 0 without ", i);
    }
}

/* ---- A rank that takes long to die ------------------------------------------------------------ */

#define HELD_SECONDS 1.2

/* A thread of the process other than its first; 0 if it has none. */
static pid_t find_second_thread(pid_t pid)
{
    char path[64];
    pid_t found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    for (const struct dirent *entry; threads && (entry = readdir(threads));) {
        pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread > 0 && thread != pid)
            found = thread;
    }
    if (threads)
        closedir(threads);
    return found;
}

/* Kills the victim. Nobody can wait for it until all of its threads are gone, and one that is traced stays for its tracer:
 * as if the driver of a GPU took long to take it down. */
static int kill_and_hold(void)
{
    pid_t pid = 0, thread = 0;
    for (int i = 0; i < 30000 && !thread; i++, usleep(1000)) {
        pid = shared->ranks[shared->victim].pid;
        thread = pid ? find_second_thread(pid) : 0;
    }
    if (!pid)
        return 1;
    if (!thread || ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0) {
        kill(pid, SIGKILL);
        return 77; /* not allowed here */
    }
    usleep(50000); /* the others have joined, too */
    shared->gone_at = sl_now();
    kill(pid, SIGKILL);
    usleep((useconds_t)(HELD_SECONDS * 1e6));
    return waitpid(thread, NULL, __WALL) == thread ? 0 : 1;
}

static void a_rank_that_takes_long_to_die_is_heard_of_at_once(void **state)
{
    (void)state;
    const sl_launch_options launch = { .ranks = 3, .run = talk };
    sl_launch_result result;
    int end = 0;
    memset(shared, 0, sizeof *shared);
    shared->size = 3;
    shared->victim = 1;
    shared->after_us = 40000000;
    pid_t tracer = fork();
    if (tracer == 0)
        _exit(kill_and_hold());
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    double ended = sl_now();
    assert_int_equal(waitpid(tracer, &end, 0), tracer);
    if (WIFEXITED(end) && WEXITSTATUS(end) == 77)
        skip();
    assert_int_equal(end, 0);
    assert_true(ended - shared->gone_at > HELD_SECONDS);
    check_survivors(shared, HELD_SECONDS - 0.2, "rank 1 was killed by signal 9 (Killed); last doing: pattern ");
    assert_int_equal(result.exit_code, 137);
}

/* The last rank closes its group and ends; the others see it gone before they go on. */
static int end_as_asked(void *user, int rank)
{
    (void)user;
    sl_group *group = NULL, *pair = NULL;
    shared->ranks[rank].pid = getpid();
    sl_status status = sl_group_open(NULL, &group);
    if (status == SL_OK)
        status = sl_group_split(group, rank < 2 ? 0 : -1, rank, &pair);
    for (int i = 0; status == SL_OK && rank < 2 && kill(shared->ranks[2].pid, 0) == 0 && i < 30000; i++)
        usleep(1000);
    if (status == SL_OK && pair)
        status = sl_group_barrier(pair);
    shared->ranks[rank].status = status;
    snprintf(shared->ranks[rank].message, sizeof shared->ranks[rank].message, "%s", sl_error_message());
    sl_group_close(pair);
    sl_group_close(group);
    return 128 + SIGINT;
}

static void a_rank_that_ends_as_a_signal_asked_fails_nobody(void **state)
{
    (void)state;
    const sl_launch_options launch = { .ranks = 3, .run = end_as_asked };
    sl_launch_result result;
    memset(shared, 0, sizeof *shared);
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    for (int r = 0; r < 3; r++) {
        if (shared->ranks[r].status != SL_OK)
            fail_msg("rank %d: %s", r, shared->ranks[r].message);
    }
    assert_int_equal(result.exit_code, 128 + SIGINT);
}

static void nothing_outlives_a_killed_launcher(void **state)
{
    (void)state;
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come to this process, which can see them end */
    for (int i = 0; i < 5; i++) {
        memset(shared, 0, sizeof *shared);
        shared->size = 4;
        shared->victim = -1;
        pid_t launcher = fork();
        if (launcher == 0) {
            sl_launch_options launch = { .ranks = 4, .run = talk };
            sl_launch_result result;
            _exit(sl_launch(&launch, &result) == SL_OK ? 0 : 1);
        }
        usleep((useconds_t)(20000 * i + 1000));
        kill(launcher, SIGKILL);
        double start = sl_now();
        while (waitpid(-1, NULL, 0) > 0)
            ;
        assert_int_equal(errno, ECHILD);
        assert_true(sl_now() - start < 1);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_by_all_within_a_second),
        cmocka_unit_test(a_stopped_rank_is_named_by_all_after_the_hang_timeout),
        cmocka_unit_test(other_ends_are_named_too),
        cmocka_unit_test(a_rank_that_takes_long_to_die_is_heard_of_at_once),
        cmocka_unit_test(a_rank_that_ends_as_a_signal_asked_fails_nobody),
        cmocka_unit_test(nothing_outlives_a_killed_launcher),
    };
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
