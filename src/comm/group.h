/* Groups and channels from the inside. */
#ifndef SL_COMM_GROUP_H
#define SL_COMM_GROUP_H

#include "comm/transport.h"
#include "comm/wait.h"

typedef enum sl_handoff_kind { SL_HANDOFF_COMMIT, SL_HANDOFF_RELEASE } sl_handoff_kind;

/* A slot that a stream is to hand over. */
typedef struct sl_handoff {
    sl_channel *channel;
    sl_envelope *envelope;
    sl_handoff_kind kind;
    _Atomic bool busy;
} sl_handoff;

struct sl_channel {
    sl_channel_spec spec; /* as opened: ranks of the group */
    sl_link *link;
    const sl_transport *transport; /* of the link */
    sl_wire *wire;
    sl_group *group;
    int src, dst; /* ranks of the run */
    bool is_src, is_dst;
    sl_handoff *handoffs;  /* (2 * capacity) */
    _Atomic int in_flight; /* of them */
    sl_channel *next;      /* in the group's list */
};

struct sl_group {
    sl_link *link;
    int rank, size;
    int *members;         /* (size) their ranks in the run */
    bool in_order;        /* its channels are used in the order of a program (sl_wait) */
    sl_channel **mesh_to; /* (size) for collectives; NULL if there is none (mesh.h) */
    sl_channel **mesh_from;
    int64_t collectives;  /* how many this group has started */
    sl_channel *channels; /* opened by the user */

    /* Collectives (request.h). */
    struct sl_request *first, *last; /* posted and not done, in order: only the first one moves (link->queueing) */
    struct sl_request *requests;     /* all that exist */
    sl_group *next_busy;             /* in the link's list of groups that have some posted */
    char *board;                     /* larger groups: room for small things of all members */
    const void **board_places;       /* (size) */
};

/* Whether this process is the one to print why the run failed, so that it is printed once: true for one rank of those
 * that share a memory. Ranks that a launcher started, one a process, leave it to the launcher. Under mpi it is the rank with an error of its
 * own, and rank 0 for those that died. */
bool sl_group_claim_report(sl_group *group, sl_status status);

/* The code with which the run has failed on the rank that failed first; SL_OK if it has not. */
sl_status sl_group_failure_code(const sl_group *group);
/* The text of the run's failure and the rank of the run to blame, -1 if it is none's; NULL if the run has not failed.
 * Lives as long as the group. */
const char *sl_group_failure_text(const sl_group *group, int *rank);
/* Whether the run has failed because a rank died, hangs or cannot be reached, and not by an error that a rank decided:
 * another start may go well. */
bool sl_group_has_lost(const sl_group *group);

/* Seconds that an action may take if the user has set a hang timeout; negative: any; 0: nothing is set. */
double sl_group_action_timeout(const sl_group *group);
/* This rank uses the group's channels in the order of a program, from one thread: ranks that wait for each other there
 * wait for ever, and the run fails. */
void sl_group_set_in_order(sl_group *group);
/* What this rank's streams have been waiting for since then (sl_now()); NULL: nothing. See sl_transport.note_wait. */
void sl_group_note_wait(sl_group *group, const sl_wait *wait, double since);
/* Whether a thread of this rank waits for another rank. From any thread. */
bool sl_group_is_waiting(const sl_group *group);
/* As sl_group_fail, with the whole text, from any thread. */
void sl_group_fail_text(sl_group *group, sl_status code, const char *text);

/* This end of a wire as a channel in the group. Takes the wire, also if it fails. */
sl_status sl_channel_new(sl_group *group, const sl_channel_spec *spec, sl_wire *wire, sl_channel **out);

/* In-place calls with the number of bytes given and not derived from the shape. */
sl_status sl_channel_reserve_bytes(sl_channel *channel, const sl_message *message, size_t bytes, bool block,
                                   sl_envelope **out);
sl_status sl_channel_commit_envelope(sl_channel *channel, sl_envelope *envelope);
/* expected may be NULL; if it is not, the message must have `bytes` bytes. */
sl_status sl_channel_receive_bytes(sl_channel *channel, const sl_message *expected, size_t bytes, bool block,
                                   sl_envelope **out);

/* Commits or releases the slot once the stream has passed this point; at once if stream is NULL or its device is the
 * host. */
sl_status sl_channel_hand_over(sl_channel *channel, sl_envelope *envelope, sl_handoff_kind kind, sl_stream *stream);
/* The same from a thread of a stream, which cannot return an error: one fails the run. */
void sl_channel_hand_over_now(sl_channel *channel, sl_envelope *envelope, sl_handoff_kind kind);
/* Waits until no stream will touch the channel any more; false if one may, because its device has failed. */
SL_MUST_CHECK bool sl_channel_drain(sl_channel *channel);

#endif
