/* Failures between ranks over MPI, and the thread that shows signs of life and looks for those of the rank before. */
#include "comm/plugin/mpi.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MICROSECONDS 50

/* The run has one failure, the same for all ranks: the first that this rank hears of. */
enum { JUDGE = 0 };

/* All below run with the lock held. */

static bool has_failed(const mpi_link *link)
{
    return atomic_load(&link->failure.state) != SL_FAILURE_NONE;
}

static void record(mpi_link *link, const mpi_failure *failure)
{
    if (has_failed(link))
        return;
    link->failure.rank = failure->rank;
    link->failure.code = failure->code;
    snprintf(link->failure.text, sizeof link->failure.text, "%s", failure->text);
    atomic_store(&link->failure.state, SL_FAILURE_SET);
}

static void send_failure(mpi_link *link, int to)
{
    if (to != link->base.rank && link->failure_sends[to] == MPI_REQUEST_NULL)
        MPI_Isend(&link->failure_out, sizeof link->failure_out, MPI_BYTE, to, TAG_FAILURE, link->comm,
                  &link->failure_sends[to]);
}

static void announce(mpi_link *link, const mpi_failure *failure)
{
    record(link, failure);
    link->failure_out = *failure;
    for (int r = 0; r < link->base.size; r++)
        send_failure(link, r);
}

void mpi_look_for_failure(mpi_link *link)
{
    int came = 0;
    while (link->failure_receive != MPI_REQUEST_NULL &&
           MPI_Test(&link->failure_receive, &came, MPI_STATUS_IGNORE) == MPI_SUCCESS && came) {
        link->failure_in.text[sizeof link->failure_in.text - 1] = 0;
        if (link->base.rank == JUDGE && !has_failed(link))
            announce(link, &link->failure_in);
        else
            record(link, &link->failure_in);
        MPI_Irecv(&link->failure_in, sizeof link->failure_in, MPI_BYTE, MPI_ANY_SOURCE, TAG_FAILURE, link->comm,
                  &link->failure_receive);
    }
}

/* Seconds between two looks of the monitor: also the time after which a rank that computes learns of a failure. */
static double look_interval(const mpi_link *link)
{
    double timeout = link->hang_timeout;
    return timeout <= 0 || timeout > 2 ? 0.25 : timeout < 0.08 ? 0.01 : timeout / 8;
}

/* The judge answers at its next look, unless it is the one that hangs: then this rank decides. */
static void fail_locked(mpi_link *link, int rank, sl_status code, const char *text)
{
    mpi_failure failure = { .rank = rank, .code = (int32_t)code };
    snprintf(failure.text, sizeof failure.text, "%s", text);
    if (has_failed(link))
        return;
    if (link->base.rank != JUDGE && rank != JUDGE) {
        link->failure_out = failure;
        send_failure(link, JUDGE);
        double until = mpi_host->now() + 4 * look_interval(link);
        while (!has_failed(link) && mpi_host->now() < until) {
            mpi_look_for_failure(link);
            usleep(LOOK_MICROSECONDS);
        }
    }
    if (!has_failed(link))
        announce(link, &failure);
}

void mpi_fail(sl_link *base, int rank, sl_status code, const char *text)
{
    mpi_link *link = (mpi_link *)base;
    pthread_mutex_lock(&link->lock);
    fail_locked(link, rank, code, text);
    pthread_mutex_unlock(&link->lock);
}

void mpi_note(sl_link *base, const char *text)
{
    mpi_link *link = (mpi_link *)base;
    char note[SL_NOTE_BYTES] = { 0 };
    memcpy(note, text, strnlen(text, sizeof note - 1));
    pthread_mutex_lock(&link->lock);
    memcpy(link->own.note, note, sizeof note);
    pthread_mutex_unlock(&link->lock);
}

/* ---- Signs of life --------------------------------------------------------------------------- */

static void report_hang(mpi_link *link, int rank)
{
    char text[512], waiting[256] = "";
    link->last.note[SL_NOTE_BYTES - 1] = 0;
    link->last.host[sizeof link->last.host - 1] = 0;
    if (link->last.wait.kind != SL_WAIT_NOTHING)
        mpi_host->wait_text(&link->last.wait, waiting, sizeof waiting);
    snprintf(text, sizeof text, "rank %d%s%s gave no sign of life for %g s; last doing: rank %d: %s%s%s", rank,
             link->last.host[0] ? " on " : "", link->last.host, link->hang_timeout, rank,
             link->last.note[0] ? link->last.note
             : waiting[0]       ? ""
                                : "nothing noted",
             waiting[0] ? " waiting " : "", waiting);
    fail_locked(link, rank, SL_ERR_TIMEOUT, text);
}

/* One look, with the lock held; `passed` is the time since the last one. */
static void beat(mpi_link *link, double passed)
{
    int rank = link->base.rank, size = link->base.size, before = (rank + size - 1) % size, sent = 0, came = 0;
    if (MPI_Test(&link->beat_send, &sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && sent) {
        link->sending = link->own;
        MPI_Isend(&link->sending, sizeof link->sending, MPI_BYTE, (rank + 1) % size, TAG_BEAT, link->comm,
                  &link->beat_send);
    }
    link->silence += passed;
    while (MPI_Test(&link->beat_receive, &came, MPI_STATUS_IGNORE) == MPI_SUCCESS && came) {
        link->silence = 0;
        MPI_Irecv(&link->last, sizeof link->last, MPI_BYTE, before, TAG_BEAT, link->comm, &link->beat_receive);
    }
    if (link->hang_timeout > 0 && link->silence > link->hang_timeout)
        report_hang(link, before);
    mpi_look_for_failure(link);
}

static void *run(void *user)
{
    mpi_link *link = user;
    double looked = mpi_host->now(), interval = look_interval(link);
    pthread_mutex_lock(&link->lock);
    while (!link->stopping) {
        double now = mpi_host->now(), passed = now - looked;
        looked = now;
        beat(link, passed < 2 * interval ? passed : 2 * interval); /* a run that was suspended is nobody's fault */
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t nanoseconds = until.tv_nsec + (int64_t)(interval * 1e9);
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        pthread_cond_timedwait(&link->stopped, &link->lock, &until);
    }
    pthread_mutex_unlock(&link->lock);
    return NULL;
}

sl_status mpi_monitor_start(mpi_link *link)
{
    sl_status status = SL_OK;
    int size = link->base.size, before = (link->base.rank + size - 1) % size;
    SL_TRY(mpi_host->alloc((size_t)size, sizeof *link->failure_sends, (void **)&link->failure_sends));
    for (int r = 0; r < size; r++)
        link->failure_sends[r] = MPI_REQUEST_NULL;
    link->beat_send = link->beat_receive = MPI_REQUEST_NULL;
    if (link->base.local_size < size) /* on one machine its name says nothing */
        gethostname(link->own.host, sizeof link->own.host - 1);
    SL_TRY(mpi_check(MPI_Irecv(&link->failure_in, sizeof link->failure_in, MPI_BYTE, MPI_ANY_SOURCE, TAG_FAILURE,
                               link->comm, &link->failure_receive),
                     "MPI_Irecv"));
    SL_TRY(mpi_check(
        MPI_Irecv(&link->last, sizeof link->last, MPI_BYTE, before, TAG_BEAT, link->comm, &link->beat_receive),
        "MPI_Irecv"));
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&link->stopped, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&link->lock, NULL);
    if (link->monitored && size > 1) {
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        link->monitored = pthread_create(&link->monitor, NULL, run, link) == 0;
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    } else {
        link->monitored = false;
    }
done:
    return status;
}

void mpi_monitor_stop(mpi_link *link)
{
    pthread_mutex_lock(&link->lock);
    link->stopping = true;
    pthread_cond_signal(&link->stopped);
    pthread_mutex_unlock(&link->lock);
    if (link->monitored)
        pthread_join(link->monitor, NULL);
    mpi_look_for_failure(link); /* what is left of several ranks' failures */
    mpi_cancel(&link->beat_receive);
    mpi_cancel(&link->failure_receive);
    /* Small sends: they need no receiver to finish. */
    if (link->beat_send != MPI_REQUEST_NULL)
        MPI_Request_free(&link->beat_send);
    for (int r = 0; r < link->base.size; r++) {
        if (link->failure_sends[r] != MPI_REQUEST_NULL)
            MPI_Request_free(&link->failure_sends[r]);
    }
    pthread_cond_destroy(&link->stopped);
}
