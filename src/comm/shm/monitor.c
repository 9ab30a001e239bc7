/* Signs of life between the processes of a local run, and what follows when one gives none. */
#include "comm/shm/monitor.h"
#include "base/alloc.h"
#include "base/thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* A rank without its launcher has this long to end by itself. */
#define ORPHAN_SECONDS 2.0

/* How long a rank has been silent, by this process's own count. */
struct silence {
    uint32_t beat; /* last seen */
    double seconds;
};

struct sl_monitor {
    pthread_t thread;
    sl_shm *shm;
    int rank;
    int stop_fd;          /* eventfd */
    struct pollfd *polls; /* (count + 1) the last one is stop_fd */
    int *watched;         /* (count) rank behind each descriptor */
    int count;
    struct silence *silences; /* (ranks) */
    double interval;          /* seconds between two beats */
    double looked;            /* when the others' beats were last counted */
    double orphaned;          /* when the launcher went; 0 while it is there */
};

/* Counts only time in which this process itself ran: after the whole run was suspended nobody is to blame. */
static void look_for_silence(sl_monitor *monitor)
{
    sl_shm_control *control = monitor->shm->control;
    double now = sl_now(), passed = now - monitor->looked;
    monitor->looked = now;
    if (passed > 2 * monitor->interval)
        passed = 2 * monitor->interval;
    for (uint32_t r = 0; r < control->size; r++) {
        struct silence *silence = &monitor->silences[r];
        uint32_t beat = atomic_load(&control->ranks[r].beat);
        if (beat != silence->beat || atomic_load(&control->ranks[r].state) != SL_SHM_JOINED) {
            silence->beat = beat;
            silence->seconds = 0;
            continue;
        }
        silence->seconds += passed;
        if ((int)r != monitor->rank && silence->seconds > control->hang_timeout)
            sl_shm_fail_hung(monitor->shm, (int)r);
    }
}

/* A connection closed: its rank left as it should, or died. */
static void other_side_closed(sl_monitor *monitor, int watch)
{
    char text[512], doing[320];
    int rank = monitor->watched[watch];
    close(monitor->polls[watch].fd);
    monitor->polls[watch].fd = -1; /* poll() passes over it */
    if (rank < 0) {
        sl_shm_fail(monitor->shm, -1, SL_ERR_PEER, "the launcher died");
        monitor->orphaned = sl_now();
        return;
    }
    sl_shm_rank *other = &monitor->shm->control->ranks[rank];
    if (atomic_load(&other->state) == SL_SHM_CLOSED)
        return;
    atomic_store(&other->state, SL_SHM_GONE);
    snprintf(text, sizeof text, "rank %d died; last doing: %s", rank, sl_shm_describe(other, doing, sizeof doing));
    sl_shm_fail(monitor->shm, rank, SL_ERR_PEER, text);
}

static void *run(void *user)
{
    sl_monitor *monitor = user;
    sl_shm_rank *me = &monitor->shm->control->ranks[monitor->rank];
    for (;;) {
        int ready = poll(monitor->polls, (nfds_t)monitor->count + 1, (int)(monitor->interval * 1000));
        if (ready > 0 && monitor->polls[monitor->count].revents)
            break;
        atomic_fetch_add(&me->beat, 1);
        for (int i = 0; ready > 0 && i < monitor->count; i++) {
            char byte; /* nobody sends: what comes is the end */
            if (monitor->polls[i].fd < 0 || !monitor->polls[i].revents)
                continue;
            ssize_t got = recv(monitor->polls[i].fd, &byte, 1, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
                other_side_closed(monitor, i);
        }
        if (monitor->shm->control->hang_timeout > 0)
            look_for_silence(monitor);
        if (monitor->orphaned > 0 && sl_now() - monitor->orphaned > ORPHAN_SECONDS)
            kill(getpid(), SIGKILL); /* nobody is left who would end it */
    }
    return NULL;
}

static void free_monitor(sl_monitor *monitor)
{
    if (!monitor)
        return;
    if (monitor->stop_fd >= 0)
        close(monitor->stop_fd);
    sl_free(monitor->polls);
    sl_free(monitor->watched);
    sl_free(monitor->silences);
    sl_free(monitor);
}

sl_status sl_monitor_start(sl_shm *shm, int rank, const sl_watch *watches, int count, sl_monitor **out)
{
    sl_status status = SL_OK;
    sl_monitor *monitor = NULL;
    SL_TRY(SL_NEW(monitor));
    monitor->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (monitor->stop_fd < 0) {
        status = sl_fail(SL_ERR_IO, "eventfd: %s", strerror(errno));
        goto done;
    }
    SL_TRY(SL_NEW_ARRAY(monitor->polls, count + 1));
    SL_TRY(SL_NEW_ARRAY(monitor->watched, count));
    SL_TRY(SL_NEW_ARRAY(monitor->silences, shm->control->size));
    for (int i = 0; i < count; i++) {
        monitor->polls[i] = (struct pollfd){ .fd = watches[i].fd, .events = POLLIN };
        monitor->watched[i] = watches[i].rank;
    }
    monitor->polls[count] = (struct pollfd){ .fd = monitor->stop_fd, .events = POLLIN };
    monitor->count = count;
    monitor->shm = shm;
    monitor->rank = rank;
    double timeout = shm->control->hang_timeout;
    monitor->interval = timeout <= 0 || timeout > 8 ? 1 : timeout < 0.08 ? 0.01 : timeout / 8;
    monitor->looked = sl_now();
    SL_TRY(sl_thread_start("the monitor thread", run, monitor, &monitor->thread));
    *out = monitor;
    monitor = NULL; /* now the caller's */
done:
    free_monitor(monitor);
    return status;
}

void sl_monitor_stop(sl_monitor *monitor)
{
    if (!monitor)
        return;
    uint64_t one = 1;
    ssize_t written = write(monitor->stop_fd, &one, sizeof one);
    (void)written; /* an eventfd at 0 takes it */
    pthread_join(monitor->thread, NULL);
    for (int i = 0; i < monitor->count; i++) {
        if (monitor->polls[i].fd >= 0)
            close(monitor->polls[i].fd);
    }
    free_monitor(monitor);
}
