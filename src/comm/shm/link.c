/* The shared-memory link: joining, leaving, and the transports self and threads. */
#include "comm/shm/link.h"
#include "comm/shm/monitor.h"

#include "comm/options.h"
#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

/* A wake-up costs about 20 us: waiting busily about that long at most doubles the price of a sleep. */
#define SPIN_SECONDS 50e-6

sl_status sl_shm_link_new(const sl_transport *transport, sl_shm *shm, int rank, const sl_group_options *options,
                          sl_shm_link **out)
{
    sl_shm_link *link = NULL;
    sl_status status = SL_NEW(link);
    if (status != SL_OK)
        return status;
    int size = (int)shm->control->size;
    link->base = (sl_link){
        .transport = transport,
        .rank = rank,
        .size = size,
        .local_rank = rank,
        .local_size = size,
        .run_id = shm->control->run_id,
        .checksum = options->checksum,
        .failure = &shm->control->failure,
        .streaming = &shm->control->ranks[rank].streaming,
    };
    link->shm = sl_shm_ref(shm);
    link->me = &shm->control->ranks[rank];
    link->spin_seconds = options->spin_us > 0 ? options->spin_us * 1e-6 : options->spin_us < 0 ? 0 : SPIN_SECONDS;
    *out = link;
    return SL_OK;
}

void sl_shm_link_close(sl_link *base)
{
    sl_shm_link *link = (sl_shm_link *)base;

    atomic_store(&link->me->state, SL_SHM_CLOSED); /* before its connections close: it left as it should */
    sl_monitor_stop(link->monitor);
    sl_shm_ring_all(link->shm); /* for ranks that wait for it to join */
    sl_shm_unref(link->shm);
    sl_free(link);
}

void sl_shm_wake(sl_link *base)
{
    sl_shm_rank *me = ((sl_shm_link *)base)->me;
    if (atomic_load(&me->sleepers))
        sl_shm_ring(me);
}

void sl_shm_link_fail(sl_link *base, int rank, sl_status code, const char *text)
{
    sl_shm_fail(((sl_shm_link *)base)->shm, rank, code, text);
}

void sl_shm_link_note(sl_link *base, const char *text)
{
    sl_shm_rank *me = ((sl_shm_link *)base)->me;
    sl_shm_note_core(me);
    sl_shm_set_note(me, text);
}

void sl_shm_link_note_wait(sl_link *base, const sl_wait *wait, double since)
{
    sl_shm_link *link = (sl_shm_link *)base;
    sl_shm_set_wait(link->me, wait ? wait : &(sl_wait){ .kind = SL_WAIT_NOTHING }, since);
    if (wait && sl_now() - since > link->shm->control->hang_timeout) {
        sl_shm_confirm_wait(link->me);
        sl_shm_fail_circle(link->shm, base->rank);
    }
}

/* ---- self and threads ------------------------------------------------------------------------ */

static sl_status self_open(const sl_group_options *options, sl_link **out)
{
    sl_status status = SL_OK;
    sl_shm *shm = NULL;
    sl_shm_link *link = NULL;
    SL_TRY(sl_shm_create(1, options->hang_timeout, &shm));
    SL_TRY(sl_shm_link_new(&sl_transport_self, shm, 0, options, &link));
    *out = &link->base;
done:
    sl_shm_unref(shm);
    return status;
}

/* The links of a run of threads are made all at once. */
static sl_status threads_open(const sl_group_options *options, sl_link **out)
{
    (void)options;
    (void)out;
    return sl_fail(SL_ERR_ARGUMENT, "transport threads: sl_group_open_threads opens it");
}

sl_status sl_shm_open_threads(int size, const sl_group_options *options, sl_link **out)
{
    sl_status status = SL_OK;
    sl_shm *shm = NULL;
    int made = 0;
    SL_TRY(sl_shm_create(size, options->hang_timeout, &shm));
    for (; made < size; made++) {
        sl_shm_link *link = NULL;
        SL_TRY(sl_shm_link_new(&sl_transport_threads, shm, made, options, &link));
        atomic_store(&link->me->state, SL_SHM_JOINED);
        out[made] = &link->base;
    }
done:
    if (status != SL_OK) {
        for (int i = 0; i < made; i++) {
            sl_shm_link_close(out[i]);
            out[i] = NULL;
        }
    }
    sl_shm_unref(shm);
    return status;
}

const sl_transport sl_transport_self = SL_SHM_TRANSPORT("self", self_open);
const sl_transport sl_transport_threads = SL_SHM_TRANSPORT("threads", threads_open);
