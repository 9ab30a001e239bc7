/* sl_launch: the caller forks the keeper, passes signals on to it and waits for its result. The keeper adopts whatever
 * the ranks leave behind (it is a subreaper) and ends it after the run: also processes that called setsid, and also when
 * the caller is killed. */
#include "comm/launch/launch.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define BEAT_MILLISECONDS 20
#define CLEAN_SECONDS 2.0 /* for processes that cannot be killed, or not at once */

/* ---- The keeper ------------------------------------------------------------------------------ */

sl_launch_process sl_launch_process_read(pid_t pid)
{
    enum { EXITING = 4, NAME_FIELD = 2, CODE_FIELD = 52 }; /* see proc(5); EXITING is one of the flags */
    sl_launch_process process = { 0 };
    char path[64], text[1024];
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[got] = 0;
    const char *at = strrchr(text, ')'); /* the name may hold anything */
    if (!at || sscanf(at + 1, " %*c %d %*d %*d %*d %*d %u", &process.parent, &flags) != 2)
        return process;
    process.is_exiting = flags & EXITING;
    for (int field = NAME_FIELD; at && field < CODE_FIELD; field++)
        at = strchr(at + 1, ' ');
    if (at)
        process.wait_status = (int)strtol(at, NULL, 10);
    return process;
}

static void kill_children(void)
{
    DIR *processes = opendir("/proc");
    pid_t self = getpid();
    for (const struct dirent *entry; processes && (entry = readdir(processes));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (sl_launch_process_read(pid).parent == self)
            kill(pid, SIGKILL);
    }
    if (processes)
        closedir(processes);
}

/* Everything below this process: the children of a killed child become its own. */
void sl_launch_end_descendants(void)
{
    for (double until = sl_now() + CLEAN_SECONDS; sl_now() < until; usleep(1000)) {
        pid_t child;
        while ((child = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (child < 0 && errno == ECHILD)
            return;
        kill_children();
    }
}

_Noreturn static void keep(sl_launcher *launcher, pid_t caller, sl_launch_page *page)
{
    setpgid(0, 0); /* the terminal's signals reach the caller, which passes them on */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    launcher->caller_fd = pidfd_open(caller, 0);
    if (getppid() != caller)
        _exit(EXIT_FAILURE); /* it is gone already */
    if (launcher->caller_fd < 0)
        page->status = sl_fail(SL_ERR_IO, "pidfd_open: %s", strerror(errno));
    else
        page->status = sl_launch_attempts(launcher, &page->result);
    if (page->status != SL_OK)
        snprintf(page->message, sizeof page->message, "%s", sl_error_message());
    sl_launch_end_descendants();
    atomic_store(&page->done, true);
    _exit(EXIT_SUCCESS);
}

/* ---- The caller ------------------------------------------------------------------------------ */

/* Blocks the signals that the ranks are to get. One that is ignored stays ignored (nohup). */
static void block_signals(sl_launcher *launcher)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP };
    sigemptyset(&launcher->forwarded);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&launcher->forwarded, numbers[i]);
    }
    pthread_sigmask(SIG_BLOCK, &launcher->forwarded, &launcher->old_mask);
}

/* Stops the caller once the keeper has stopped the ranks and itself; both go on together. */
static void suspend(pid_t keeper)
{
    siginfo_t info;
    kill(keeper, SIGTSTP);
    if (waitid(P_PID, (id_t)keeper, &info, WSTOPPED | WEXITED | WNOWAIT) != 0 || info.si_code != CLD_STOPPED)
        return;
    kill(getpid(), SIGSTOP);
    kill(keeper, SIGCONT);
}

/* Passes on signals until the keeper ends. */
static void wait_for_keeper(pid_t keeper, int keeper_fd, int signal_fd, sl_launch_page *page)
{
    struct pollfd polls[2] = { { .fd = signal_fd, .events = POLLIN }, { .fd = keeper_fd, .events = POLLIN } };
    while (!polls[1].revents) {
        atomic_fetch_add(&page->beat, 1);
        if (poll(polls, 2, BEAT_MILLISECONDS) <= 0)
            continue;
        struct signalfd_siginfo info;
        while (read(signal_fd, &info, sizeof info) == sizeof info) {
            if (info.ssi_signo == SIGTSTP)
                suspend(keeper);
            else
                kill(keeper, (int)info.ssi_signo);
        }
    }
}

sl_status sl_launch(const sl_launch_options *options, sl_launch_result *out)
{
    sl_status status = SL_OK;
    pid_t caller = getpid(), keeper = 0;
    int signal_fd = -1, keeper_fd = -1;
    if (!options)
        return sl_fail(SL_ERR_ARGUMENT, "a launch needs options: NULL was given");
    sl_launch_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "launch: a page of shared memory: %s", strerror(errno));
    sl_launcher launcher = { .options = options, .page = page };
    block_signals(&launcher);
    signal_fd = signalfd(-1, &launcher.forwarded, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd < 0) {
        status = sl_fail(SL_ERR_IO, "signalfd: %s", strerror(errno));
        goto done;
    }
    fflush(NULL); /* what is buffered must not come out once more in each rank */
    keeper = fork();
    if (keeper < 0) {
        status = sl_fail(SL_ERR_IO, "fork the ranks' keeper: %s", strerror(errno));
        goto done;
    }
    if (keeper == 0) {
        close(signal_fd);
        keep(&launcher, caller, page);
    }
    keeper_fd = pidfd_open(keeper, 0);
    if (keeper_fd < 0) {
        status = sl_fail(SL_ERR_IO, "pidfd_open: %s", strerror(errno));
        kill(keeper, SIGKILL);
        goto done;
    }
    wait_for_keeper(keeper, keeper_fd, signal_fd, page);
done:
    if (keeper > 0)
        while (waitpid(keeper, NULL, 0) < 0 && errno == EINTR)
            ;
    if (status == SL_OK && !atomic_load(&page->done))
        status = sl_fail(SL_ERR_PEER, "launch: the process that keeps the ranks was killed");
    else if (status == SL_OK && page->status != SL_OK)
        status = sl_fail(page->status, "%s", page->message);
    else if (status == SL_OK)
        *out = page->result;
    if (keeper_fd >= 0)
        close(keeper_fd);
    if (signal_fd >= 0)
        close(signal_fd);
    pthread_sigmask(SIG_SETMASK, &launcher.old_mask, NULL);
    munmap(page, sizeof *page);
    return status;
}
