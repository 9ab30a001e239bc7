/* The channels that a group's collectives use. Up to SL_MESH_DIRECT members have one to each other member. In larger
 * groups a member has channels to its two neighbors on a ring and to its neighbors in a tree, so that what a group
 * takes grows with its size and not with the square of it. */
#ifndef SL_COMM_MESH_H
#define SL_COMM_MESH_H

#include "comm/transport.h"

enum {
    SL_MESH_SLOTS = 4,  /* of each channel */
    SL_MESH_DIRECT = 16 /* members of a group that has a channel between each two */
};

size_t sl_mesh_bytes(int size); /* of a slot, in a group of that size */

static inline bool sl_mesh_is_direct(int size)
{
    return size <= SL_MESH_DIRECT;
}

/* ---- The tree: member 0 is the root, and the members below member m are m ... m + sl_tree_span() - 1. ---- */

static inline int sl_tree_parent(int member)
{
    return member & (member - 1);
}

/* Members of the subtree, with its root. */
static inline int sl_tree_span(int size, int member)
{
    int whole = member ? member & -member : size;
    return whole < size - member ? whole : size - member;
}

/* The i-th child, counted from 0; -1 if there are fewer. */
static inline int sl_tree_child(int size, int member, int i)
{
    return i < 31 && ((int64_t)1 << i) < sl_tree_span(size, member) ? member + (1 << i) : -1;
}

/* ---- Channels ---- */

/* Data and credit ports that this member of a group of `size` chose for its channels: sl_mesh_port_count() of them, none
 * if the transport has no ports. */
int sl_mesh_port_count(const sl_link *link, int size, int member);
void sl_mesh_choose_ports(sl_link *link, int size, int member, uint32_t *ports);

/* The group's channels. ports[m] is what member m chose; NULL if there are none. The caller frees *out. */
sl_status sl_mesh_plan(const sl_group *group, const uint32_t *const *ports, sl_wire_plan **out, int *count);
/* Connects them. token as in sl_transport.open_wires. */
sl_status sl_mesh_connect(sl_group *group, const sl_wire_plan *plan, int count, uint64_t token);

#endif
