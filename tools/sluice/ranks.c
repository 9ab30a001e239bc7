/* Starting ranks of the program itself. */
#include "ranks.h"

#include "command.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "comm/environment.h"
#include "comm/group.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool ranks_started(void)
{
    const char *transport = NULL;
    return sl_environment_transport(&transport) == SL_OK && strcmp(transport, "self") != 0;
}

bool ranks_started_elsewhere(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK && environment.started_by != SL_STARTED_ALONE &&
           environment.started_by != SL_STARTED_BY_SLUICE;
}

int ranks_own(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK ? environment.rank : 0;
}

int ranks_size(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK ? environment.size : 1;
}

int ranks_failure(const char *command_name, sl_group *group, sl_status status)
{
    bool refused = status == SL_ERR_ARGUMENT || sl_group_failure_code(group) == SL_ERR_ARGUMENT;
    if (strcmp(sl_group_transport(group), "threads") != 0 && sl_group_claim_report(group, status))
        refusal(command_name, status);
    return sl_group_has_lost(group) ? SL_EXIT_AGAIN : refused ? EXIT_USAGE : EXIT_FAILED;
}

/* ---- Threads --------------------------------------------------------------------------------- */

typedef struct thread_rank {
    int (*run)(void *user, sl_group *group);
    void *user;
    sl_group *group;
    pthread_t thread;
    int code;
} thread_rank;

/* All ranks would give the same warnings: those of rank 0 are enough. */
static void *play_rank(void *user)
{
    thread_rank *rank = user;
    if (sl_group_rank(rank->group) > 0)
        log_errors_only();
    rank->code = rank->run(rank->user, rank->group);
    return NULL;
}

/* A thread for each rank; those that were started come to an end in any case. */
static sl_status play_ranks(thread_rank *ranks, int count)
{
    sl_status status = SL_OK;
    int started = 0;
    while (started < count && status == SL_OK) {
        status = sl_thread_start("the thread of a rank", play_rank, &ranks[started], &ranks[started].thread);
        started += status == SL_OK;
    }
    if (status != SL_OK)
        sl_group_fail(ranks[0].group, status);
    for (int r = 0; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
    return status;
}

/* The first failure is said once, by the launcher if there is one: `outer` is the group that it knows. */
static int report_threads(const char *command_name, const thread_rank *ranks, sl_group *outer)
{
    int failed = -1;
    const char *text = sl_group_failure_text(ranks[0].group, &failed);
    if (!text)
        return ranks[0].code;
    if (outer)
        sl_group_fail_text(outer, sl_group_failure_code(ranks[0].group), text);
    if (!outer || sl_group_claim_report(outer, SL_ERR_PEER))
        fprintf(stderr, "sluice %s: %s\n", command_name, text);
    int code = failed >= 0 ? ranks[failed].code : ranks[0].code;
    return code != EXIT_OK ? code : EXIT_FAILED;
}

int ranks_run_threads(const char *command_name, int count, double hang_timeout, int (*run)(void *user, sl_group *group),
                      void *user)
{
    sl_status status = SL_OK;
    int code = EXIT_FAILED;
    const sl_group_options options = { .hang_timeout = hang_timeout };
    sl_group **groups = NULL, *outer = NULL;
    thread_rank *ranks = NULL;
    SL_TRY(SL_NEW_ARRAY(groups, count));
    SL_TRY(SL_NEW_ARRAY(ranks, count));
    if (ranks_started())
        SL_TRY(sl_group_open(&options, &outer));
    SL_TRY(sl_group_open_threads(count, &options, groups));
    for (int r = 0; r < count; r++)
        ranks[r] = (thread_rank){ .run = run, .user = user, .group = groups[r], .code = EXIT_OK };
    SL_TRY(play_ranks(ranks, count));
    code = report_threads(command_name, ranks, outer);
done:
    if (status != SL_OK)
        code = failure(command_name);
    for (int r = 0; groups && r < count; r++)
        sl_group_close(groups[r]);
    sl_group_close(outer);
    sl_free(ranks);
    sl_free(groups);
    return code;
}

/* ---- Processes ------------------------------------------------------------------------------- */

int ranks_run_apart(const char *command_name, int (*run)(const void *user), const void *user)
{
    int wait_status = 0;
    pid_t parent = getpid();
    struct sigaction old_child_action;
    /* Exit codes are lost if who started this process ignores the end of children. */
    sigaction(SIGCHLD, &(const struct sigaction){ .sa_handler = SIG_DFL }, &old_child_action);
    fflush(NULL); /* what is buffered must not come out twice */
    pid_t child = fork();
    if (child < 0) {
        sigaction(SIGCHLD, &old_child_action, NULL);
        sl_fail(SL_ERR_IO, "fork: %s", strerror(errno));
        return failure(command_name);
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(EXIT_FAILED); /* it died before the line above */
        int code = run(user);
        fflush(NULL);
        _exit(code);
    }
    while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR)
        ;
    sigaction(SIGCHLD, &old_child_action, NULL);
    if (WIFEXITED(wait_status))
        return WEXITSTATUS(wait_status);
    sl_fail(SL_ERR_PEER, "the process that checks the run was killed by signal %d (%s)", WTERMSIG(wait_status),
            strsignal(WTERMSIG(wait_status)));
    failure(command_name);
    return 128 + WTERMSIG(wait_status);
}

/* The path of this program, so that the ranks have its name in a list of processes. */
static void find_program(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = '\0';
    if (access(path, X_OK) != 0) /* replaced or moved since it was started */
        snprintf(path, size, "/proc/self/exe");
}

bool ranks_started_again(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK && environment.started_by == SL_STARTED_BY_SLUICE &&
           environment.restart > 0;
}

/* The command line of the ranks, with room for the words of a start with fewer of them. */
typedef struct rank_line {
    const ranks_again *again;
    char **words; /* NULL at the end */
    int count;    /* of the first start */
    char more[RANKS_WORDS][48];
} rank_line;

static int choose_ranks(void *user, int most, char *const **argv)
{
    rank_line *line = user;
    int ranks = line->again->choose_ranks(line->again->user, most, line->more);
    for (int i = 0; i < RANKS_WORDS; i++)
        line->words[line->count + i] = line->more[i];
    *argv = line->words;
    return ranks;
}

int ranks_start(const char *command_name, int count, int threads, double hang_timeout, int argc, char **argv,
                const ranks_again *again)
{
    /* Seconds that ranks get to write a last checkpoint after an interrupt. */
    enum { GRACE = 120 };
    static char program[4096];
    rank_line line = { .again = again, .count = argc + 1 };
    sl_launch_result result;
    if (SL_NEW_ARRAY(line.words, line.count + RANKS_WORDS + 1) != SL_OK)
        return failure(command_name);
    find_program(program, sizeof program);
    line.words[0] = program;
    for (int i = 0; i < argc; i++)
        line.words[i + 1] = argv[i];
    const sl_launch_options options = { .ranks = count,
                                        .argv = line.words,
                                        .threads = threads,
                                        .hang_timeout = hang_timeout,
                                        .grace = GRACE,
                                        .restarts = again ? again->restarts : 0,
                                        .min_ranks = again ? again->min_ranks : 0,
                                        .choose_ranks = choose_ranks,
                                        .user = &line };
    sl_status status = sl_launch(&options, &result);
    sl_free(line.words);
    if (status != SL_OK)
        return failure(command_name);
    bool interrupted =
        result.exit_code == 128 + SIGINT || result.exit_code == 128 + SIGTERM || result.exit_code == 128 + SIGHUP;
    if (result.exit_code != 0 && !interrupted)
        fprintf(stderr, "sluice %s: %s", command_name, result.report); /* ends its last line */
    return result.exit_code;
}
