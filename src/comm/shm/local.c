/* The transport local: ranks are processes on one machine, started by `sluice launch` or by somebody else. */
#include "comm/shm/link.h"
#include "comm/shm/monitor.h"
#include "comm/shm/rendezvous.h"
#include "comm/environment.h"
#include "comm/wait.h"
#include "base/alloc.h"

#include <fcntl.h>
#include <unistd.h>

/* Returns once all ranks have joined. */
static sl_status wait_for_all(sl_shm_link *link)
{
    sl_status status = SL_OK;
    sl_shm_control *control = link->shm->control;
    double start = sl_now();
    for (uint32_t r = 0; r < control->size; r++) {
        sl_pause pause = { .wait = { .kind = SL_WAIT_JOIN, .peer = (int)r } };
        while (status == SL_OK && atomic_load(&control->ranks[r].state) == SL_SHM_ABSENT) {
            if (sl_link_has_failed(&link->base))
                status = sl_link_failure(&link->base, &pause.wait);
            else if (control->hang_timeout > 0 && sl_now() - start > SL_JOIN_TIMEOUTS * control->hang_timeout)
                status = sl_fail(SL_ERR_TIMEOUT, "rank %u has not joined the run after %g s", r,
                                 SL_JOIN_TIMEOUTS * control->hang_timeout);
            else
                status = sl_shm_pause(&link->base, &pause);
        }
        if (pause.armed)
            sl_shm_resume(&link->base, &pause);
        if (status != SL_OK)
            return status;
    }
    return sl_link_has_failed(&link->base) ? sl_link_failure(&link->base, NULL) : SL_OK;
}

/* Finds the run's memory, and the connections that tell of the others' death. */
static sl_status find_run(const sl_environment *environment, const sl_group_options *options, sl_shm **shm,
                          sl_watch **watches, int *count)
{
    sl_status status = SL_OK;
    if (environment->started_by != SL_STARTED_BY_SLUICE)
        return sl_rendezvous(environment->key, environment->rank, environment->size, options->hang_timeout, shm,
                             watches, count);
    sl_watch *watch = NULL;
    SL_TRY(SL_NEW(watch));
    status = sl_shm_attach(environment->memory_fd, shm);
    if (status != SL_OK) {
        sl_free(watch);
        return sl_fail_context(status, "SLUICE_RUN_FDS (did a rank start this process?)");
    }
    *watch = (sl_watch){ .fd = environment->launcher_fd, .rank = -1 };
    fcntl(watch->fd, F_SETFD, FD_CLOEXEC);
    *watches = watch;
    *count = 1;
done:
    return status;
}

static sl_status local_open(const sl_group_options *options, sl_link **out)
{
    sl_status status = SL_OK;
    sl_environment environment;
    sl_shm *shm = NULL;
    sl_shm_link *link = NULL;
    sl_watch *watches = NULL;
    int count = 0;
    SL_TRY(sl_environment_read(&environment));
    SL_TRY(sl_environment_check_local(&environment));
    SL_TRY(find_run(&environment, options, &shm, &watches, &count));
    if ((int)shm->control->size != environment.size) {
        status = sl_fail(SL_ERR_COMM, "this process is one of %d ranks, the run has %u", environment.size,
                         shm->control->size);
        goto done;
    }
    uint32_t absent = SL_SHM_ABSENT;
    if (!atomic_compare_exchange_strong(&shm->control->ranks[environment.rank].state, &absent, SL_SHM_JOINED)) {
        status = sl_fail(SL_ERR_COMM, "rank %d has joined this run before", environment.rank);
        goto done;
    }
    SL_TRY(sl_shm_link_new(&sl_transport_local, shm, environment.rank, options, &link));
    SL_TRY(sl_monitor_start(shm, environment.rank, watches, count, &link->monitor));
    count = 0; /* now the monitor's */
    sl_shm_ring_all(shm);
    SL_TRY(wait_for_all(link));
    *out = &link->base;
    link = NULL; /* now the caller's */
done:
    if (link) {
        if (!sl_link_has_failed(&link->base))
            sl_shm_fail(shm, environment.rank, status, sl_error_message());
        sl_shm_link_close(&link->base);
    }
    for (int i = 0; i < count; i++)
        close(watches[i].fd);
    sl_free(watches);
    sl_shm_unref(shm);
    return status;
}

const sl_transport sl_transport_local = SL_SHM_TRANSPORT("local", local_open);
