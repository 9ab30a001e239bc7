/* Groups and channels from the inside. */
#ifndef SL_COMM_GROUP_H
#define SL_COMM_GROUP_H

#include "comm/transport.h"
#include "comm/wait.h"

struct sl_channel {
    sl_channel_spec spec; /* as opened: ranks of the group */
    sl_link *link;
    const sl_transport *transport; /* of the link */
    sl_wire *wire;
    sl_group *group;
    int src, dst; /* ranks of the run */
    bool is_src, is_dst;
    bool broken; /* a batch failed half way through it */
    /* Batches: transfers posted and finished, per direction ([0] sends, [1] receives). */
    uint64_t posted[2], finished[2];
    sl_channel *next; /* in the group's list */
};

struct sl_group {
    sl_link *link;
    int rank, size;
    int *members;         /* (size) their ranks in the run */
    sl_channel **mesh_to; /* (size) for collectives, to each other member; NULL at this rank's own place */
    sl_channel **mesh_from;
    int64_t collectives;  /* how many this group has run */
    sl_channel *channels; /* opened by the user */
};

/* Whether this process is the one to print why the run failed, so that it is printed once: true for one rank of those
 * that share a memory. Ranks of `sluice launch` leave it to the launcher. Under mpi it is the rank with an error of its
 * own, and rank 0 for those that died. */
bool sl_group_claim_report(sl_group *group, sl_status status);

/* Whether the run has failed because a rank died, hangs or cannot be reached, and not by an error that a rank decided:
 * another start may go well. */
bool sl_group_has_lost(const sl_group *group);

/* Slots and bytes of the channels that collectives use, in a group of that size. */
enum { SL_MESH_SLOTS = 4 };
size_t sl_mesh_bytes(int size);

/* Data and credit ports that a member of a group of `size` chose for its mesh: (2, size), by the other member. */
void sl_mesh_choose_ports(sl_link *link, int size, uint32_t *ports);

/* The channels of its collectives: all ordered pairs. ports is (size, 2, size), what each member chose; the caller
 * frees *out. */
sl_status sl_mesh_plan(const sl_group *group, const uint32_t *ports, sl_wire_plan **out, int *count);
/* Connects them. token as in sl_transport.open_wires. */
sl_status sl_mesh_connect(sl_group *group, const sl_wire_plan *plan, int count, uint64_t token);

/* This end of a wire as a channel in the group. Takes the wire, also where it fails. */
sl_status sl_channel_new(sl_group *group, const sl_channel_spec *spec, sl_wire *wire, sl_channel **out);

/* In-place calls with the number of bytes given and not derived from the shape. */
sl_status sl_channel_reserve_bytes(sl_channel *channel, const sl_message *message, size_t bytes, bool block,
                                   sl_envelope **out);
sl_status sl_channel_commit_envelope(sl_channel *channel, sl_envelope *envelope);
/* expected may be NULL; the message must have `bytes` bytes where it is not. */
sl_status sl_channel_receive_bytes(sl_channel *channel, const sl_message *expected, size_t bytes, bool block,
                                   sl_envelope **out);

/* Refuses an end that this rank does not have, and one that a failed batch left behind. */
sl_status sl_channel_check_end(const sl_channel *channel, bool receive);
/* Bytes of a message; fails where its shape or dtype makes no sense or it is larger than the channel allows. */
sl_status sl_channel_message_bytes(const sl_channel *channel, const sl_message *message, size_t *out);

#endif
