/* What a transport is: moves envelopes along wires between the ranks of one run. Everything a user sees (groups,
 * identity checks, waiting, collectives) is built on top, once for all transports. */
#ifndef SL_COMM_TRANSPORT_H
#define SL_COMM_TRANSPORT_H

#include <sluice/comm.h>

#include <stdatomic.h>

typedef struct sl_transport sl_transport;
typedef struct sl_device_mail sl_device_mail; /* mail.h */
typedef struct sl_wire sl_wire;               /* a transport's part of one channel end */

/* A message as it travels; its bytes follow. The first cache line tells all about a message of one dim. */
typedef struct sl_envelope {
    _Atomic uint64_t turn; /* the transport's own */
    uint64_t run_id;
    int64_t step;
    uint64_t bytes; /* of the payload */
    uint64_t checksum;
    int32_t channel;
    int32_t microbatch;
    uint16_t dtype;
    uint8_t rank; /* of the shape */
    uint8_t flags;
    uint32_t unused;
    int64_t dims[SL_MAX_DIMS];
    uint64_t padding[3];
} sl_envelope;

enum { SL_ENVELOPE_CHECKSUM = 1 }; /* flags: checksum is set */

_Static_assert(sizeof(sl_envelope) == 128, "payloads are aligned to 64 bytes");
_Static_assert(SL_MAX_DIMS == 6, "the envelope has room for six dims");

static inline void *sl_envelope_payload(sl_envelope *envelope)
{
    return envelope + 1;
}

/* The first failure of a run; the same for all its ranks. */
typedef enum sl_failure_state { SL_FAILURE_NONE, SL_FAILURE_BEING_SET, SL_FAILURE_SET } sl_failure_state;
enum { SL_FAILURE_TEXT = 1536, SL_NOTE_BYTES = 48 };

typedef struct sl_failure {
    _Atomic uint32_t state;    /* sl_failure_state; the rest may be read once it is SL_FAILURE_SET */
    _Atomic uint32_t reported; /* a rank has undertaken to print it */
    int32_t rank;              /* of the run; -1 if no rank is to blame */
    int32_t code;              /* sl_status */
    char text[SL_FAILURE_TEXT];
} sl_failure;

/* What a rank waits for, kept for reports. */
typedef enum sl_wait_kind {
    SL_WAIT_NOTHING,
    SL_WAIT_RECEIVE,
    SL_WAIT_RESERVE,
    SL_WAIT_ANY,
    SL_WAIT_JOIN,
} sl_wait_kind;

typedef struct sl_wait {
    sl_wait_kind kind;
    int channel;    /* negative for those of collectives */
    int peer;       /* rank of the run */
    int microbatch; /* for collectives: which one (sl_collective) */
    int64_t step;   /* for collectives: their number in the group */
    bool in_order;  /* the rank follows a program and does nothing else meanwhile: nobody but the peer can end it */
} sl_wait;

/* How far a wait has come; zero starts one. */
typedef struct sl_pause {
    sl_wait wait;
    bool armed;      /* the next pause may sleep */
    uint32_t ticket; /* the transport's */
    int spins;
    bool yields;  /* the busy wait gives its core away */
    double until; /* end of the busy wait, in sl_now() */
    double slept; /* since when it sleeps; 0 before */
    bool warned;  /* that this takes long */
} sl_pause;

/* What streams of a rank have yet to do for others. */
typedef struct sl_streaming {
    atomic_int left;       /* slots that they will hand over */
    _Atomic uint64_t last; /* when they last did: sl_now() in ns */
} sl_streaming;

/* One rank's place in a run. A transport's own structure starts with it. */
typedef struct sl_link {
    const sl_transport *transport;
    int rank, size; /* in the run */
    int local_rank, local_size;
    uint64_t run_id;
    bool checksum;
    sl_failure *failure;     /* owned by the transport */
    atomic_int waiting;      /* threads of this rank whose pause is armed; kept by the transport */
    bool one_thread;         /* only the rank's own thread may commit and release */
    sl_streaming *streaming; /* if other ranks see it; else NULL */

    /* Kept by the layer above. */
    double action_timeout;           /* seconds that an action may take if the user has set a hang timeout; else 0 */
    int groups;                      /* open groups; the last one closes the link */
    _Atomic(struct sl_group *) busy; /* groups with collectives that are posted and not done */
    atomic_flag progressing;         /* a thread moves them along (request.c) */
    atomic_flag queueing;            /* a thread looks at or changes the lists of groups and requests */
    double drain_until; /* once the run has failed: when channels stop waiting for streams; 0: not yet known */
    atomic_int movers;  /* threads that do nothing but move them along: whoever posts leaves it to them */
} sl_link;

/* One channel of a set, as agreed by all members. */
typedef struct sl_wire_plan {
    sl_channel_spec spec; /* src and dst are ranks of the run */
    uint32_t data_port;   /* chosen by dst: where messages are to arrive */
    uint32_t credit_port; /* chosen by src: where notes of freed slots arrive */
} sl_wire_plan;

/* Every entry is required unless marked optional. Calls return SL_OK or leave a message. */
struct SL_NAMED_FIELDS sl_transport {
    const char *name;                  /* as in sl_group_options.transport */
    const sl_device_mail *device_mail; /* optional */

    /* Joins the run. On success the caller owns *out. */
    sl_status (*open)(const sl_group_options *options, sl_link **out);
    /* All wires are closed by now. */
    void (*close)(sl_link *link);

    /* Optional: a number that no other channel into this rank has; NULL if ports have no use. */
    uint32_t (*new_port)(sl_link *link);
    /* Optional: called by one member of a group that opens the plan; *token goes to the others unchanged. */
    sl_status (*new_token)(sl_link *link, const sl_wire_plan *plan, int count, uint64_t *token);
    /* Connects this rank's ends of the plan, which is the same on all members, and sets wires[i] to this rank's end of
     * plan[i], NULL if it has none. members is the number of ranks that make this call. token is 0 for the channels
     * that collectives of the whole run use: they exist before anything can be agreed. */
    sl_status (*open_wires)(sl_link *link, const sl_wire_plan *plan, int count, uint64_t token, int members,
                            sl_wire **wires);
    void (*close_wire)(sl_wire *wire);

    /* The next free slot, NULL if there is none now. It stays the next one until take_slot(). */
    sl_status (*peek_slot)(sl_wire *wire, sl_envelope **out);
    void (*take_slot)(sl_wire *wire);
    /* Publishes a slot that was taken; envelope->bytes bytes follow the envelope. */
    sl_status (*commit)(sl_wire *wire, sl_envelope *envelope); /* also from other threads (see sl_link.one_thread) */
    /* The next message, NULL if there is none now. It stays the next one until take_message(). */
    sl_status (*peek_message)(sl_wire *wire, sl_envelope **out);
    void (*take_message)(sl_wire *wire);
    /* Frees the slot of a message that was taken; also from other threads. */
    sl_status (*release)(sl_wire *wire, sl_envelope *envelope);
    /* Whether the other end has closed: then nothing more will arrive or be freed after what the two peeks give now. */
    bool (*peer_closed)(sl_wire *wire);

    /* Called after an attempt that found nothing: passes a little time, more with each call, and makes progress where
     * the transport needs it. Never sleeps past a message, a freed slot or a failure: before its first sleep it returns
     * once more with pause->armed, so that the attempt is repeated. */
    sl_status (*pause)(sl_link *link, sl_pause *pause);
    /* Ends a wait whose pause is armed. */
    void (*resume)(sl_link *link, sl_pause *pause);

    /* Optional: ends this rank's sleep in pause(), from any thread. NULL if pause() never sleeps for long. */
    void (*wake)(sl_link *link);

    /* Makes this the run's failure unless it has one, and wakes everybody. */
    void (*fail)(sl_link *link, int rank, sl_status code, const char *text);
    void (*note)(sl_link *link, const char *text);
    /* Optional: what this rank has been waiting for since then (sl_now()) outside of pause(); NULL: nothing. Fails the run if
     * ranks wait for each other in a circle. */
    void (*note_wait)(sl_link *link, const sl_wait *wait, double since);
};

/* The transport of that name; "mpi" is loaded at run time. */
sl_status sl_transport_find(const char *name, const sl_transport **out);

extern const sl_transport sl_transport_self;
extern const sl_transport sl_transport_threads;
extern const sl_transport sl_transport_local;

#endif
