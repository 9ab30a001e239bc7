/* A rank's link over shared memory: what self, threads and local have in common. */
#ifndef SL_COMM_SHM_LINK_H
#define SL_COMM_SHM_LINK_H

#include "comm/shm/control.h"

typedef struct sl_shm_link {
    sl_link base;
    sl_shm *shm;
    sl_shm_rank *me;            /* in shm */
    double spin_seconds;        /* longest busy wait */
    atomic_uint crowded;        /* waits for a rank on the same core, though there are cores enough */
    struct sl_monitor *monitor; /* local only */
} sl_shm_link;

/* Takes part of rank `rank` in the run; on success the link holds a reference to shm. */
sl_status sl_shm_link_new(const sl_transport *transport, sl_shm *shm, int rank, const sl_group_options *options,
                          sl_shm_link **out);
void sl_shm_link_close(sl_link *base);

/* Entries of the tables of all three. */
sl_status sl_shm_new_token(sl_link *link, const sl_wire_plan *plan, int count, uint64_t *token);
sl_status sl_shm_open_wires(sl_link *base, const sl_wire_plan *plan, int count, uint64_t token, int members,
                            sl_wire **wires);
void sl_shm_close_wire(sl_wire *wire);
sl_status sl_shm_peek_slot(sl_wire *wire, sl_envelope **out);
void sl_shm_take_slot(sl_wire *wire);
sl_status sl_shm_commit(sl_wire *wire, sl_envelope *envelope);
sl_status sl_shm_peek_message(sl_wire *wire, sl_envelope **out);
void sl_shm_take_message(sl_wire *wire);
sl_status sl_shm_release(sl_wire *wire, sl_envelope *envelope);
bool sl_shm_peer_closed(sl_wire *wire);
sl_status sl_shm_pause(sl_link *base, sl_pause *pause);
void sl_shm_resume(sl_link *base, sl_pause *pause);
void sl_shm_wake(sl_link *base);
void sl_shm_link_fail(sl_link *base, int rank, sl_status code, const char *text);
void sl_shm_link_note(sl_link *base, const char *text);
void sl_shm_link_note_wait(sl_link *base, const sl_wait *wait, double since);

/* The links of a run whose ranks are threads of this process: out[r] for rank r. */
sl_status sl_shm_open_threads(int size, const sl_group_options *options, sl_link **out);

/* They differ in how a run is found. */
#define SL_SHM_TRANSPORT(its_name, its_open)                                                                           \
    {                                                                                                                  \
        .name = its_name, .open = its_open, .close = sl_shm_link_close, .new_token = sl_shm_new_token,                 \
        .open_wires = sl_shm_open_wires, .close_wire = sl_shm_close_wire, .peek_slot = sl_shm_peek_slot,               \
        .take_slot = sl_shm_take_slot, .commit = sl_shm_commit, .peek_message = sl_shm_peek_message,                   \
        .take_message = sl_shm_take_message, .release = sl_shm_release, .peer_closed = sl_shm_peer_closed,             \
        .pause = sl_shm_pause, .resume = sl_shm_resume, .wake = sl_shm_wake, .fail = sl_shm_link_fail,                 \
        .note = sl_shm_link_note, .note_wait = sl_shm_link_note_wait,                                                  \
    }

#endif
