/* The keeper's work: starts the ranks, passes on their output and the signals it gets, ends them all when one fails. */
#include "comm/launch/launch.h"
#include "comm/options.h"
#include "base/alloc.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_SECONDS 5.0 /* also the longest after a failure: what runs on then waits for nothing */
#define QUIET_SECONDS 1.0 /* from a failure to SIGTERM: time in which the other ranks report and end by themselves */
#define LOOK_MILLISECONDS 50

static void signal_all(sl_launcher *launcher, int signal)
{
    for (int r = 0; r < launcher->options->ranks; r++) {
        sl_launch_child *child = &launcher->children[r];
        if (child->pid > 0 && !child->ended)
            kill(-child->pid, signal); /* its whole process group */
    }
}

/* ---- Set-up ---------------------------------------------------------------------------------- */

static sl_status check_options(const sl_launch_options *options)
{
    if (options->ranks < 1 || options->ranks > SL_SHM_MAX_RANKS)
        return sl_fail(SL_ERR_ARGUMENT, "launch %d ranks; 1 to %d are possible", options->ranks, SL_SHM_MAX_RANKS);
    if (!options->run && (!options->argv || !options->argv[0]))
        return sl_fail(SL_ERR_ARGUMENT, "launch: no program is given");
    return SL_OK;
}

static sl_status prepare(sl_launcher *launcher)
{
    sl_status status = SL_OK;
    int ranks = launcher->options->ranks;
    sl_launch_sharing sharing = { .bind = launcher->options->bind,
                                  .ranks = ranks,
                                  .threads = launcher->options->threads };
    sl_group_options group = { .hang_timeout = launcher->options->hang_timeout };
    SL_TRY(sl_options_resolve(&group, &group));
    SL_TRY(sl_shm_create(ranks, group.hang_timeout, &launcher->shm));
    SL_TRY(SL_NEW_ARRAY(launcher->polls, 3 + 4 * ranks));
    SL_TRY(SL_NEW_ARRAY(launcher->children, ranks));
    SL_TRY(SL_NEW_ARRAY(launcher->cores, ranks));
    SL_TRY(sl_launch_resolve_bind(&sharing.bind));
    sl_launch_choose_cores(&sharing, launcher->cores);
    for (int r = 0; r < ranks; r++) {
        sl_launch_child *child = &launcher->children[r];
        *child = (sl_launch_child){
            .rank = r, .pidfd = -1, .socket = { -1, -1 }, .streams = { { .from = -1 }, { .from = -1 } }
        };
    }
    launcher->signal_fd = signalfd(-1, &launcher->forwarded, SFD_CLOEXEC | SFD_NONBLOCK);
    if (launcher->signal_fd < 0) {
        status = sl_fail(SL_ERR_IO, "signalfd: %s", strerror(errno));
        goto done;
    }
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE); /* output that nobody reads any more is the ranks' business */
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    /* Exit codes are lost if the caller, or who started it, ignores the end of children. */
    sigaction(SIGCHLD, &(const struct sigaction){ .sa_handler = SIG_DFL }, &launcher->old_child_action);
done:
    return status;
}

static void clean_up(sl_launcher *launcher)
{
    for (int r = 0; launcher->children && r < launcher->options->ranks; r++) {
        sl_launch_child *child = &launcher->children[r];
        for (int i = 0; i < 2; i++) {
            sl_launch_stream_finish(&child->streams[i], r);
            if (child->socket[i] >= 0)
                close(child->socket[i]);
        }
        if (child->pidfd >= 0)
            close(child->pidfd);
    }
    if (launcher->signal_fd >= 0) {
        close(launcher->signal_fd);
        sigaction(SIGCHLD, &launcher->old_child_action, NULL);
    }
    sl_free(launcher->children);
    sl_free(launcher->cores);
    sl_free(launcher->polls);
    sl_shm_unref(launcher->shm);
}

/* ---- While they run -------------------------------------------------------------------------- */

static bool has_failed(const sl_launcher *launcher)
{
    return atomic_load(&launcher->shm->control->failure.state) == SL_FAILURE_SET;
}

/* Tells the other ranks of one that ended before it should have, or badly. */
static void check_end(sl_launcher *launcher, sl_launch_child *child)
{
    char text[SL_FAILURE_TEXT], end[128], doing[320];
    sl_shm_rank *rank = &launcher->shm->control->ranks[child->rank];
    uint32_t state = atomic_exchange(&rank->state, SL_SHM_GONE);
    bool clean = WIFEXITED(child->wait_status) && WEXITSTATUS(child->wait_status) == 0;
    /* With a code above 128 a rank that took part to the end tells which signal it was asked to end by; others that were
     * asked too may still be at it. */
    bool as_asked = WIFEXITED(child->wait_status) && WEXITSTATUS(child->wait_status) > 128;
    child->ended_at = sl_now();
    if ((clean || as_asked) && state == SL_SHM_CLOSED)
        return;
    const char *how = !clean ? "" : state == SL_SHM_JOINED ? " without closing its group" : " without joining the run";
    if (state == SL_SHM_JOINED)
        snprintf(text, sizeof text, "rank %d %s%s; last doing: %s", child->rank,
                 sl_launch_end_text(child->wait_status, end, sizeof end), how,
                 sl_shm_describe(rank, doing, sizeof doing));
    else
        snprintf(text, sizeof text, "rank %d %s%s", child->rank,
                 sl_launch_end_text(child->wait_status, end, sizeof end), how);
    child->is_cause = sl_shm_fail(launcher->shm, child->rank, SL_ERR_PEER, text);
    if (child->is_cause)
        launcher->harmless = clean;
    if (!clean && launcher->ending == 0)
        launcher->ending = sl_now();
}

/* A rank's end of its connection is closed: it dies, or has left its group. The kernel closes it before it takes down what
 * the process had of a GPU, which takes a while, and only then can the process be waited for. */
static void look_for_death(sl_launcher *launcher, sl_launch_child *child)
{
    close(child->socket[0]);
    child->socket[0] = -1;
    sl_launch_process process = sl_launch_process_read(child->pid);
    child->is_dying = process.is_exiting && process.wait_status != 0;
    if (!child->is_dying)
        return;
    child->wait_status = process.wait_status;
    check_end(launcher, child);
}

/* A child has ended: what is left of its process group goes before its number can mean another process. */
static void reap(sl_launcher *launcher, sl_launch_child *child)
{
    kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, &child->wait_status, 0) < 0 && errno == EINTR)
        ;
    child->ended = true;
    close(child->pidfd);
    child->pidfd = -1;
    if (!child->is_dying)
        check_end(launcher, child);
}

/* Processes that a rank started and left behind come to the keeper; those that end must not stay as zombies. */
static void reap_orphans(const sl_launcher *launcher)
{
    siginfo_t info;
    for (;;) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return;
        for (int r = 0; r < launcher->options->ranks; r++) {
            if (launcher->children[r].pid == info.si_pid && !launcher->children[r].ended)
                return; /* a rank: its pidfd tells of it */
        }
        waitpid(info.si_pid, NULL, 0);
    }
}

/* Suspends the ranks with the keeper, and lets them go on with it. */
static void suspend(sl_launcher *launcher)
{
    signal_all(launcher, SIGSTOP);
    kill(getpid(), SIGSTOP);
    signal_all(launcher, SIGCONT);
}

static void forward_signals(sl_launcher *launcher)
{
    struct signalfd_siginfo info;
    while (read(launcher->signal_fd, &info, sizeof info) == sizeof info) {
        int signal = (int)info.ssi_signo;
        if (signal == SIGTSTP) {
            suspend(launcher);
            continue;
        }
        signal_all(launcher, signal);
        if (signal != SIGUSR1 && signal != SIGUSR2 && launcher->ending == 0) {
            launcher->ending = sl_now();
            launcher->by_signal = launcher->told_term = true; /* they have been told */
        }
    }
}

/* A rank that is stopped before it has joined shows no signs of life that its peers could miss. Counts only time in
 * which the keeper and the caller themselves ran: after the whole run was suspended nobody is to blame. */
static void look_for_stopped(sl_launcher *launcher)
{
    double timeout = launcher->shm->control->hang_timeout, now = sl_now(), passed = now - launcher->looked;
    if (passed < LOOK_MILLISECONDS * 1e-3)
        return; /* the ranks' output is what woke it */
    launcher->looked = now;
    uint32_t beat = atomic_load(&launcher->page->beat);
    if (beat == launcher->caller_beat)
        passed = 0;
    launcher->caller_beat = beat;
    if (passed > timeout / 4)
        passed = timeout / 4;
    for (int r = 0; r < launcher->options->ranks; r++) {
        sl_launch_child *child = &launcher->children[r];
        siginfo_t info = { 0 };
        if (child->ended || waitid(P_PIDFD, (id_t)child->pidfd, &info, WSTOPPED | WCONTINUED | WNOHANG) != 0)
            continue;
        if (info.si_pid != 0)
            child->is_stopped = info.si_code == CLD_STOPPED;
        child->stopped = child->is_stopped ? child->stopped + passed : 0;
        if (timeout > 0 && child->stopped > timeout)
            sl_shm_fail_hung(launcher->shm, r);
    }
}

/* A rank that hangs hears no other signal. */
static void end_hung(const sl_launch_child *child)
{
    if (child->pid > 0 && !child->ended)
        kill(-child->pid, SIGKILL);
}

/* Once the run ends: ranks that do not end by themselves are asked to, then made to. */
static void press(sl_launcher *launcher)
{
    if (launcher->ending == 0) {
        if (!has_failed(launcher) || launcher->harmless)
            return;
        launcher->ending = sl_now();
    }
    int hung = atomic_load(&launcher->shm->control->hung);
    if (hung > 0)
        end_hung(&launcher->children[hung - 1]);
    if (launcher->starts_again && !launcher->told_kill && sl_launch_judge_end(launcher) == SL_LAUNCH_LOST) {
        signal_all(launcher, SIGKILL); /* what the others could still do is done again */
        launcher->told_kill = launcher->told_term = true;
    }
    double passed = sl_now() - launcher->ending;
    if (passed > QUIET_SECONDS && !launcher->told_term) {
        signal_all(launcher, SIGTERM);
        launcher->told_term = true;
    }
    double limit = launcher->by_signal || launcher->grace < GRACE_SECONDS ? launcher->grace : GRACE_SECONDS;
    if (passed > limit && !launcher->told_kill) {
        signal_all(launcher, SIGKILL);
        launcher->told_kill = true;
    }
}

/* Adds what is open: poll() takes no more entries than a process may have descriptors. */
static void add_poll(struct pollfd *polls, int *count, int fd)
{
    if (fd >= 0)
        polls[(*count)++] = (struct pollfd){ .fd = fd, .events = POLLIN };
}

/* Whether something has come for the entry that add_poll() made for this descriptor; *at goes on to the next. */
static bool has_come(const struct pollfd *polls, int *at, int fd)
{
    return fd >= 0 && polls[(*at)++].revents != 0;
}

/* Waits for the next event and deals with it; false once all ranks have ended, or the caller has. */
static bool turn(sl_launcher *launcher)
{
    int count = 0, left = 0, ranks = launcher->options->ranks;
    struct pollfd *polls = launcher->polls;
    add_poll(polls, &count, launcher->signal_fd);
    add_poll(polls, &count, launcher->caller_fd);
    add_poll(polls, &count, launcher->vault ? launcher->vault->sockets[0] : -1);
    for (int r = 0; r < ranks; r++) {
        const sl_launch_child *child = &launcher->children[r];
        left += !child->ended;
        add_poll(polls, &count, child->streams[0].from);
        add_poll(polls, &count, child->streams[1].from);
        add_poll(polls, &count, child->ended ? -1 : child->socket[0]);
        add_poll(polls, &count, child->pidfd);
    }
    if (left == 0)
        return false;
    int at = 0, ready = poll(polls, (nfds_t)count, LOOK_MILLISECONDS);
    if (ready > 0 && has_come(polls, &at, launcher->signal_fd))
        forward_signals(launcher);
    if (ready > 0 && has_come(polls, &at, launcher->caller_fd))
        return false; /* nobody waits for the run any more */
    if (ready > 0 && has_come(polls, &at, launcher->vault ? launcher->vault->sockets[0] : -1))
        sl_vault_serve(launcher->vault);
    for (int r = 0; ready > 0 && r < ranks; r++) {
        sl_launch_child *child = &launcher->children[r];
        for (int i = 0; i < 2; i++) {
            if (has_come(polls, &at, child->streams[i].from))
                sl_launch_stream_pump(&child->streams[i], r);
        }
        if (has_come(polls, &at, child->ended ? -1 : child->socket[0]))
            look_for_death(launcher, child);
        if (has_come(polls, &at, child->pidfd))
            reap(launcher, child);
    }
    reap_orphans(launcher);
    look_for_stopped(launcher);
    press(launcher);
    return true;
}

/* Ends and reaps what has been started if the rest could not be. */
static void abandon(sl_launcher *launcher)
{
    signal_all(launcher, SIGKILL);
    while (turn(launcher))
        ;
}

sl_status sl_launch_run(sl_launcher *launcher, sl_launch_result *out)
{
    sl_status status = SL_OK;
    const sl_launch_options *options = launcher->options;
    launcher->signal_fd = -1;
    launcher->looked = sl_now();
    launcher->grace = options->grace > 0 ? options->grace : GRACE_SECONDS;
    SL_TRY(check_options(options));
    SL_TRY(prepare(launcher));
    for (int r = 0; r < options->ranks && status == SL_OK; r++)
        status = sl_launch_start(launcher, &launcher->children[r]);
    if (status != SL_OK) {
        char message[512];
        snprintf(message, sizeof message, "%s", sl_error_message());
        for (int r = 0; r < options->ranks; r++)
            launcher->children[r].ended |= launcher->children[r].pid == 0;
        abandon(launcher);
        sl_fail(status, "%s", message);
        goto done;
    }
    while (turn(launcher))
        ;
    sl_launch_report(launcher, out);
done:
    clean_up(launcher);
    return status;
}
