/* What became of the ranks: the exit code and a text that starts with the root cause. */
#include "comm/launch/launch.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

char *sl_launch_end_text(int wait_status, char *text, size_t size)
{
    if (WIFSIGNALED(wait_status))
        snprintf(text, size, "was killed by signal %d (%s)", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    else
        snprintf(text, size, "exited with code %d", WEXITSTATUS(wait_status));
    return text;
}

/* 0 ... 255, 128 + signal */
static int exit_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* Whether the rank could not come back from an action, and ended because this launcher told it to. */
static bool hung_until_told(const sl_launcher *launcher, int rank)
{
    const sl_failure *failure = &launcher->shm->control->failure;
    return launcher->told_term && !launcher->by_signal && atomic_load(&failure->state) == SL_FAILURE_SET &&
           failure->rank == rank && failure->code == SL_ERR_TIMEOUT &&
           exit_code(launcher->children[rank].wait_status) == 128 + SIGTERM;
}

/* The rank that the run's failure is about, if it ended badly itself; else the first that did; -1 for none. */
static int first_to_fail(const sl_launcher *launcher)
{
    const sl_failure *failure = &launcher->shm->control->failure;
    int ranks = launcher->options->ranks, first = -1;
    if (atomic_load(&failure->state) == SL_FAILURE_SET && failure->rank >= 0 && failure->rank < ranks &&
        launcher->children[failure->rank].wait_status != 0)
        return failure->rank;
    for (int r = 0; r < ranks; r++) {
        const sl_launch_child *child = &launcher->children[r];
        if (child->wait_status != 0 && (first < 0 || child->ended_at < launcher->children[first].ended_at))
            first = r;
    }
    return first;
}

static bool asks_to_end(int signal)
{
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

sl_launch_end sl_launch_judge_end(const sl_launcher *launcher)
{
    int rank = first_to_fail(launcher);
    if (launcher->by_signal)
        return SL_LAUNCH_STOPPED;
    if (atomic_load(&launcher->shm->control->hung) > 0)
        return SL_LAUNCH_LOST;
    if (rank < 0)
        return SL_LAUNCH_DONE;
    if (hung_until_told(launcher, rank))
        return SL_LAUNCH_LOST;
    int code = exit_code(launcher->children[rank].wait_status);
    if (code > 128)
        return asks_to_end(code - 128) ? SL_LAUNCH_STOPPED : SL_LAUNCH_LOST;
    return code == SL_EXIT_AGAIN ? SL_LAUNCH_LOST : SL_LAUNCH_FAILED;
}

void sl_launch_report(const sl_launcher *launcher, sl_launch_result *result)
{
    const sl_failure *failure = &launcher->shm->control->failure;
    char end[128];
    *result = (sl_launch_result){ .rank = first_to_fail(launcher),
                                  .end = sl_launch_judge_end(launcher),
                                  .ranks = launcher->options->ranks,
                                  .restarts = launcher->restart };
    if (result->rank < 0)
        return;
    const sl_launch_child *root = &launcher->children[result->rank];
    result->exit_code = hung_until_told(launcher, result->rank) ? SL_EXIT_AGAIN : exit_code(root->wait_status);

    bool recorded = atomic_load(&failure->state) == SL_FAILURE_SET;
    size_t size = sizeof result->report, used = 0;
    if (recorded)
        used += (size_t)snprintf(result->report, size, "%s\n", failure->text);
    for (int r = 0; r < launcher->options->ranks && used < size; r++) {
        const sl_launch_child *child = &launcher->children[r];
        if (child->wait_status == 0 || child->is_cause)
            continue;
        used += (size_t)snprintf(result->report + used, size - used, "rank %d %s\n", r,
                                 sl_launch_end_text(child->wait_status, end, sizeof end));
    }
}
