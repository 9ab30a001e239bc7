/* One end of a channel over MPI: what opening and closing it, and moving messages along it, have in common. */
#ifndef SL_COMM_PLUGIN_MPI_WIRE_H
#define SL_COMM_PLUGIN_MPI_WIRE_H

#include "comm/plugin/mpi.h"

typedef enum slot_state {
    SLOT_FREE,
    SLOT_RESERVED,  /* by the sender */
    SLOT_COMMITTED, /* by the sender; sent once all before it are */
    SLOT_SENDING,
    SLOT_POSTED, /* waits for a message */
    SLOT_TAKEN,  /* in use by the receiver */
} slot_state;

struct slot {
    slot_state state;
    uint64_t message; /* number of the message in it; for posted ones, of the one it is for */
    MPI_Request request;
    sl_envelope *envelope;
};

/* One end of a channel; both ends if a rank sends to itself: then no MPI is involved. */
struct sl_wire {
    mpi_link *link;
    sl_wire *next; /* in link->closed */
    int peer, data_tag, credit_tag;
    int capacity;
    size_t slot_bytes; /* envelope and payload */
    struct slot *slots;
    char *memory;
    bool is_src, is_dst;
    bool other_closed; /* the other end has said so */
    bool other_failed; /* and that the run has failed: what and where is on its way */

    uint64_t reserved, sent;      /* messages so far */
    int credits;                  /* slots of the receiver that are free */
    int peeked;                   /* slot that peek_slot found */
    MPI_Request *credit_receives; /* (capacity + 1) */
    int32_t *credit_values;

    uint64_t posted, received;
};

/* Flags of an envelope that is no message: the sender has closed; because the run has failed. */
enum { ENVELOPE_LAST = 2, ENVELOPE_FAILED = 4 };

/* What a credit message says. */
typedef enum mpi_credit { CREDIT_FREED, CREDIT_CLOSED, CREDIT_FAILED } mpi_credit;

/* All with the link's lock held. */
sl_status mpi_post_receive(sl_wire *wire, struct slot *slot);
sl_status mpi_post_credit(sl_wire *wire, int i);
sl_status mpi_send_credit(sl_wire *wire, mpi_credit credit);
/* The sender: slots whose message is off are free, and the receiver may have freed some of its own. */
sl_status mpi_progress_send(sl_wire *wire);
/* The receiver: the slot of the next message if it is there, else NULL; the sender's last one closes. */
sl_status mpi_progress_receive(sl_wire *wire, struct slot **out);

#endif
