/* The MPI transport from the inside. Plain MPI-3, one thread in MPI at a time. */
#ifndef SL_COMM_PLUGIN_MPI_H
#define SL_COMM_PLUGIN_MPI_H

#include "comm/mail.h"
#include "comm/plugin.h"

#include <mpi.h>
#include <pthread.h>

extern const sl_plugin_host *mpi_host;
extern const sl_transport mpi_transport;
extern const sl_device_mail mpi_mail;

/* Tags of the link itself; those of channels are ports, numbered from FIRST_PORT on. */
enum { TAG_MESH_DATA = 1, TAG_MESH_CREDIT, TAG_FAILURE, TAG_BEAT, FIRST_PORT = 16 };

/* A failure as it travels. */
typedef struct mpi_failure {
    int32_t rank, code;
    char text[SL_FAILURE_TEXT];
} mpi_failure;

/* A sign of life, with where the rank is and what it is doing. */
typedef struct mpi_beat {
    char host[64];
    char note[SL_NOTE_BYTES];
    sl_wait wait;
} mpi_beat;

typedef struct mpi_link {
    sl_link base;
    MPI_Comm comm;        /* a copy of the world: nobody else's messages */
    MPI_Comm device_comm; /* another one, for messages in memory of devices */
    bool finalize;        /* MPI was started here */
    int tag_limit;
    int device_tags; /* given out by this rank */
    uint32_t next_port;
    double spin_seconds;
    pthread_mutex_t lock; /* held around every call into MPI and whatever it completes */

    sl_failure failure;
    MPI_Request failure_receive;
    mpi_failure failure_in, failure_out;
    MPI_Request *failure_sends; /* (size) */

    sl_wire *closed; /* wires that still have messages on their way */

    /* Signs of life go round the ranks: from each to the next. */
    pthread_t monitor;
    bool monitored;
    bool stopping;          /* guarded by lock */
    pthread_cond_t stopped; /* with lock */
    double hang_timeout;
    mpi_beat own, sending, last; /* of this rank, on its way, last heard of the one before */
    MPI_Request beat_send, beat_receive;
    double silence; /* seconds since the last one, by this process's count */
} mpi_link;

/* SL_OK, or the MPI's own words with the call that failed. */
sl_status mpi_check(int error, const char *call);
/* Cancels a receive that nothing more will come for. */
void mpi_cancel(MPI_Request *request);

/* ---- Wires (mpi_connect.c: opening and closing; mpi_wire.c: messages) ---- */
uint32_t mpi_new_port(sl_link *base);
sl_status mpi_open_wires(sl_link *base, const sl_wire_plan *plan, int count, uint64_t token, int members,
                         sl_wire **wires);
void mpi_close_wire(sl_wire *wire);
sl_status mpi_peek_slot(sl_wire *wire, sl_envelope **out);
void mpi_take_slot(sl_wire *wire);
sl_status mpi_commit(sl_wire *wire, sl_envelope *envelope);
sl_status mpi_peek_message(sl_wire *wire, sl_envelope **out);
void mpi_take_message(sl_wire *wire);
sl_status mpi_release(sl_wire *wire, sl_envelope *envelope);
bool mpi_peer_closed(sl_wire *wire);
/* Frees the closed wires that nothing more can come for; with the lock held. */
void mpi_sweep(mpi_link *link);

/* ---- Failures and signs of life (mpi_monitor.c) ---- */
void mpi_fail(sl_link *base, int rank, sl_status code, const char *text);
/* Takes in a failure that another rank sent; with the lock held. */
void mpi_look_for_failure(mpi_link *link);
sl_status mpi_monitor_start(mpi_link *link);
void mpi_monitor_stop(mpi_link *link);
void mpi_note(sl_link *base, const char *text);

#endif
