/* Starting one rank: what happens between fork and the program. */
#include "comm/launch/launch.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_environment(const sl_launcher *launcher, const sl_launch_child *child)
{
    char fds[32];
    snprintf(fds, sizeof fds, "%d,%d", launcher->shm->fd, child->socket[1]);
    setenv("SLUICE_RUN_FDS", fds, 1);
    set_number("SLUICE_RANK", child->rank);
    set_number("SLUICE_SIZE", launcher->options->ranks);
    if (launcher->vault) {
        set_number("SLUICE_VAULT_FD", launcher->vault->sockets[1]);
        set_number("SLUICE_RESTART", launcher->restart);
        setenv("SLUICE_RESTART_REASON", launcher->reason, 1);
    } else { /* those of a launcher around this one */
        unsetenv("SLUICE_VAULT_FD");
        unsetenv("SLUICE_RESTART");
        unsetenv("SLUICE_RESTART_REASON");
    }
    if (launcher->options->hang_timeout != 0) { /* what the user has set bounds the ranks' actions, too */
        char seconds[32];
        setenv("SLUICE_HANG_TIMEOUT", sl_double_text(launcher->options->hang_timeout, seconds, sizeof seconds), 1);
    }
}

/* Only rank 0 can have the input, and not from a terminal: it is in another process group than the terminal's. */
static void set_input(int rank)
{
    if (rank == 0 && !isatty(STDIN_FILENO))
        return;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        close(null);
    }
}

/* The kernel closes a dead process's descriptors from the last to the first, and those of a GPU take long: from up here the
 * launcher hears at once. */
static void move_up(int *socket)
{
    enum { PLACE = 500 };
    int moved = fcntl(*socket, F_DUPFD_CLOEXEC, PLACE);
    if (moved < 0)
        return; /* a process may have fewer: it is heard of later */
    close(*socket);
    *socket = moved;
}

/* When the launcher dies its end closes, and the kernel kills the process group of whoever holds this one: the rank and
 * what it started. */
static void die_with_launcher(int socket)
{
    fcntl(socket, F_SETOWN, -getpid());
    fcntl(socket, F_SETSIG, SIGKILL);
    fcntl(socket, F_SETFL, O_ASYNC);
}

/* The launcher's ends of all connections: while a rank held them, nobody would notice the launcher's death. */
static void close_launchers(const sl_launcher *launcher)
{
    for (int r = 0; r < launcher->options->ranks; r++) {
        const sl_launch_child *child = &launcher->children[r];
        if (child->socket[0] >= 0)
            close(child->socket[0]);
        for (int i = 0; i < 2; i++) {
            if (child->streams[i].from >= 0)
                close(child->streams[i].from);
        }
        if (child->pidfd >= 0)
            close(child->pidfd);
    }
    close(launcher->signal_fd);
    close(launcher->caller_fd);
    if (launcher->vault)
        close(launcher->vault->sockets[0]);
}

_Noreturn static void run_child(sl_launcher *launcher, sl_launch_child *child, pid_t parent, const int output[2],
                                int error_fd)
{
    const sl_launch_options *options = launcher->options;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(128 + SIGKILL); /* it died before the line above */
    setpgid(0, 0);
    move_up(&child->socket[1]);
    die_with_launcher(child->socket[1]);
    for (int i = 0; i < 2; i++) {
        if (output[i] >= 0) {
            dup2(output[i], STDOUT_FILENO + i);
            close(output[i]);
        }
    }
    set_input(child->rank);
    close_launchers(launcher);
    set_environment(launcher, child);
    sl_launch_take_cores(launcher->cores, options->ranks, child->rank);
    sigaction(SIGCHLD, &launcher->old_child_action, NULL);
    pthread_sigmask(SIG_SETMASK, &launcher->old_mask, NULL);
    if (options->run) {
        close(error_fd);
        exit(options->run(options->user, child->rank));
    }
    fcntl(launcher->shm->fd, F_SETFD, 0);
    fcntl(child->socket[1], F_SETFD, 0);
    if (launcher->vault)
        fcntl(launcher->vault->sockets[1], F_SETFD, 0);
    execvp(options->argv[0], options->argv);
    int error = errno;
    ssize_t written = write(error_fd, &error, sizeof error);
    _exit(written == sizeof error ? 127 : 126);
}

sl_status sl_launch_start(sl_launcher *launcher, sl_launch_child *child)
{
    sl_status status = SL_OK;
    int output[2] = { -1, -1 }, error[2] = { -1, -1 }, failed = 0;
    ssize_t got = 0;
    pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, child->socket) != 0)
        return sl_fail(SL_ERR_IO, "socketpair: %s", strerror(errno));
    if (launcher->options->tag_output)
        SL_TRY(sl_launch_streams_open(child, output));
    if (pipe2(error, O_CLOEXEC) != 0) {
        status = sl_fail(SL_ERR_IO, "pipe: %s", strerror(errno));
        goto done;
    }
    pid_t pid = fork();
    if (pid < 0) {
        status = sl_fail(SL_ERR_IO, "fork rank %d: %s", child->rank, strerror(errno));
        goto done;
    }
    if (pid == 0) {
        close(error[0]);
        run_child(launcher, child, parent, output, error[1]);
    }
    setpgid(pid, pid); /* here too, so that it is done whoever comes first */
    child->pid = pid;
    child->pidfd = pidfd_open(pid, 0);
    close(child->socket[1]);
    child->socket[1] = -1;
    close(error[1]);
    error[1] = -1;
    if (child->pidfd < 0) {
        status = sl_fail(SL_ERR_IO, "pidfd_open: %s", strerror(errno));
        kill(pid, SIGKILL); /* nobody would see its end */
        waitpid(pid, NULL, 0);
        child->pid = 0;
    }
    while (status == SL_OK && (got = read(error[0], &failed, sizeof failed)) < 0 && errno == EINTR)
        ;
    if (status == SL_OK && got == sizeof failed)
        status = sl_fail(SL_ERR_IO, "start %s: %s", launcher->options->argv[0], strerror(failed));
done:
    for (int i = 0; i < 2; i++) {
        if (error[i] >= 0)
            close(error[i]);
        if (output[i] >= 0)
            close(output[i]);
    }
    return status;
}
