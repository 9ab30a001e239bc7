/* The MPI transport: joining, waiting, leaving. */
#include "comm/plugin/mpi.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define SPIN_SECONDS 50e-6
#define YIELD_SECONDS 2e-3 /* then it sleeps between looks */
#define SLEEP_MICROSECONDS 50
#define CLOSE_SECONDS 2.0 /* that a failed run waits for the others before it aborts */

const sl_plugin_host *mpi_host;

sl_status mpi_check(int error, const char *call)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (error == MPI_SUCCESS)
        return SL_OK;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", error);
    return mpi_host->fail(SL_ERR_COMM, "%s: %s", call, text);
}

void mpi_cancel(MPI_Request *request)
{
    if (*request == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
}

/* ---- Joining --------------------------------------------------------------------------------- */

static sl_status start_mpi(mpi_link *link)
{
    int started = 0, finished = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&started);
    MPI_Finalized(&finished);
    if (finished)
        return mpi_host->fail(SL_ERR_COMM, "transport mpi: MPI has been finalized in this process");
    if (!started) {
        sl_status status = mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
        if (status != SL_OK)
            return status;
        link->finalize = true;
    }
    MPI_Query_thread(&level);
    link->monitored = level >= MPI_THREAD_SERIALIZED;
    link->base.one_thread = !link->monitored;
    if (!link->monitored)
        mpi_host->log(SL_LOG_WARN, "this MPI allows one thread only: ranks that hang will not be noticed");
    return SL_OK;
}

/* Ranks on the same machine, and the number that this rank has among them. */
static sl_status find_neighbors(mpi_link *link)
{
    MPI_Comm machine;
    sl_status status = mpi_check(MPI_Comm_split_type(link->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine),
                                 "MPI_Comm_split_type");
    if (status != SL_OK)
        return status;
    MPI_Comm_rank(machine, &link->base.local_rank);
    MPI_Comm_size(machine, &link->base.local_size);
    MPI_Comm_free(&machine);
    return SL_OK;
}

static sl_status agree_on_run(mpi_link *link)
{
    uint64_t id = 0;
    if (link->base.rank == 0 && getrandom(&id, sizeof id, 0) != sizeof id)
        return mpi_host->fail(SL_ERR_IO, "getrandom failed");
    sl_status status = mpi_check(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, link->comm), "MPI_Bcast");
    link->base.run_id = id;
    return status;
}

/* By the machine's cores: mpirun binds ranks to one each. */
static double choose_spin(const mpi_link *link, const sl_group_options *options)
{
    if (options->spin_us != 0)
        return options->spin_us > 0 ? options->spin_us * 1e-6 : 0;
    return link->base.local_size <= sysconf(_SC_NPROCESSORS_ONLN) ? SPIN_SECONDS : 0;
}

static sl_status mpi_open(const sl_group_options *options, sl_link **out)
{
    sl_status status = SL_OK;
    mpi_link *link = NULL;
    int *limit = NULL, found = 0;
    SL_TRY(mpi_host->alloc(1, sizeof *link, (void **)&link));
    SL_TRY(start_mpi(link));
    SL_TRY(mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &link->comm), "MPI_Comm_dup"));
    MPI_Comm_set_errhandler(link->comm, MPI_ERRORS_RETURN);
    SL_TRY(mpi_check(MPI_Comm_dup(link->comm, &link->device_comm), "MPI_Comm_dup"));
    MPI_Comm_set_errhandler(link->device_comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(link->comm, &link->base.rank);
    MPI_Comm_size(link->comm, &link->base.size);
    SL_TRY(find_neighbors(link));
    SL_TRY(agree_on_run(link));
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    link->tag_limit = found ? *limit : 32767;
    link->next_port = FIRST_PORT;
    link->spin_seconds = choose_spin(link, options);
    link->hang_timeout = options->hang_timeout;
    link->base.checksum = options->checksum;
    link->base.failure = &link->failure;
    link->base.transport = &mpi_transport;
    SL_TRY(mpi_monitor_start(link));
    *out = &link->base;
    link = NULL; /* now the caller's */
done:
    if (link) {
        if (link->finalize)
            MPI_Abort(MPI_COMM_WORLD, 1); /* the others wait for this rank inside MPI */
        mpi_host->free(link);
    }
    return status;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static sl_status mpi_pause(sl_link *base, sl_pause *pause)
{
    mpi_link *link = (mpi_link *)base;
    pthread_mutex_lock(&link->lock);
    mpi_look_for_failure(link);
    link->own.wait = pause->wait;
    pthread_mutex_unlock(&link->lock);
    pause->spins++;
    double now = mpi_host->now();
    if (pause->until <= 0)
        pause->until = now + link->spin_seconds;
    if (now > pause->until + YIELD_SECONDS)
        usleep(SLEEP_MICROSECONDS);
    else if (now > pause->until)
        sched_yield();
    if (!pause->armed)
        atomic_fetch_add(&base->waiting, 1);
    pause->armed = true; /* so that resume is called */
    return SL_OK;
}

static void mpi_resume(sl_link *base, sl_pause *pause)
{
    mpi_link *link = (mpi_link *)base;
    pthread_mutex_lock(&link->lock);
    link->own.wait = (sl_wait){ .kind = SL_WAIT_NOTHING };
    pthread_mutex_unlock(&link->lock);
    atomic_fetch_sub(&base->waiting, 1);
    pause->armed = false;
}

/* ---- Leaving --------------------------------------------------------------------------------- */

static bool has_failed(mpi_link *link)
{
    return atomic_load(&link->failure.state) != SL_FAILURE_NONE;
}

/* Until all ranks are here and all messages are off; false if that takes a failed run too long. */
static bool wait_for_all(mpi_link *link)
{
    MPI_Request barrier = MPI_REQUEST_NULL;
    bool together = false;
    double failed_at = 0;
    pthread_mutex_lock(&link->lock); /* the monitor talks to MPI, too: one of them at a time */
    int started = MPI_Ibarrier(link->comm, &barrier);
    pthread_mutex_unlock(&link->lock);
    if (started != MPI_SUCCESS)
        return false;
    for (;;) {
        int here = 1;
        pthread_mutex_lock(&link->lock);
        if (!together && MPI_Test(&barrier, &here, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            here = 0;
        together |= here != 0;
        mpi_sweep(link);
        mpi_look_for_failure(link);
        bool quiet = together && !link->closed;
        pthread_mutex_unlock(&link->lock);
        if (quiet)
            return true;
        if (has_failed(link)) {
            if (failed_at <= 0)
                failed_at = mpi_host->now();
            if (mpi_host->now() - failed_at > CLOSE_SECONDS)
                return false;
        }
        usleep(SLEEP_MICROSECONDS);
    }
}

/* A rank that was lost may be there at the next start; an error that a rank decided would come again. */
static int exit_code(const mpi_link *link)
{
    int code = link->failure.code;
    return code == SL_ERR_PEER || code == SL_ERR_TIMEOUT || code == SL_ERR_COMM ? SL_EXIT_AGAIN : 1;
}

static void mpi_close(sl_link *base)
{
    mpi_link *link = (mpi_link *)base;
    bool together = wait_for_all(link);
    mpi_monitor_stop(link);
    if (!together) {
        /* The last chance to say why: the process ends here. */
        fprintf(stderr, "rank %d: %s\n", base->rank, link->failure.text);
        MPI_Abort(MPI_COMM_WORLD, exit_code(link));
    }
    MPI_Comm_free(&link->device_comm);
    MPI_Comm_free(&link->comm);
    if (link->finalize)
        MPI_Finalize();
    pthread_mutex_destroy(&link->lock);
    mpi_host->free(link->failure_sends);
    mpi_host->free(link);
}

const sl_transport mpi_transport = {
    .name = "mpi",
    .device_mail = &mpi_mail,
    .open = mpi_open,
    .close = mpi_close,
    .new_port = mpi_new_port,
    .open_wires = mpi_open_wires,
    .close_wire = mpi_close_wire,
    .peek_slot = mpi_peek_slot,
    .take_slot = mpi_take_slot,
    .commit = mpi_commit,
    .peek_message = mpi_peek_message,
    .take_message = mpi_take_message,
    .release = mpi_release,
    .peer_closed = mpi_peer_closed,
    .pause = mpi_pause,
    .resume = mpi_resume,
    .fail = mpi_fail,
    .note = mpi_note,
};

SL_API const sl_transport *sluice_plugin_transport(const sl_plugin_host *host);

const sl_transport *sluice_plugin_transport(const sl_plugin_host *host)
{
    if (host->version != SL_PLUGIN_VERSION)
        return NULL;
    mpi_host = host;
    return &mpi_transport;
}
