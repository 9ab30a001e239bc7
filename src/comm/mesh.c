/* The channels that a group's collectives use: who has one to whom, and connecting them. */
#include "comm/mesh.h"
#include "comm/group.h"
#include "base/alloc.h"
#include "device/backend.h"

enum { MAX_PEERS = 36 }; /* ring, parent and up to 31 children; more than SL_MESH_DIRECT */

_Static_assert(SL_STREAM_STAGING >= 256 << 10, "a piece fits into a stream's staging");

size_t sl_mesh_bytes(int size)
{
    return sl_mesh_is_direct(size) ? 256 << 10 : 32 << 10;
}

static void add_peer(int *peers, int *count, int peer)
{
    for (int i = 0; i < *count; i++) {
        if (peers[i] == peer)
            return;
    }
    peers[(*count)++] = peer;
}

/* Whom a member has channels to and from; returns how many. */
static int find_peers(int size, int member, int peers[MAX_PEERS])
{
    int count = 0, child;
    if (sl_mesh_is_direct(size)) {
        for (int other = 0; other < size; other++) {
            if (other != member)
                peers[count++] = other;
        }
        return count;
    }
    add_peer(peers, &count, (member + 1) % size);
    add_peer(peers, &count, (member + size - 1) % size);
    if (member > 0)
        add_peer(peers, &count, sl_tree_parent(member));
    for (int i = 0; (child = sl_tree_child(size, member, i)) >= 0; i++)
        add_peer(peers, &count, child);
    return count;
}

static int place_of_peer(int size, int member, int peer)
{
    int peers[MAX_PEERS], count = find_peers(size, member, peers), i = 0;
    while (i < count && peers[i] != peer)
        i++;
    return i;
}

int sl_mesh_port_count(const sl_link *link, int size, int member)
{
    int peers[MAX_PEERS];
    return link->transport->new_port ? 2 * find_peers(size, member, peers) : 0;
}

void sl_mesh_choose_ports(sl_link *link, int size, int member, uint32_t *ports)
{
    int count = sl_mesh_port_count(link, size, member);
    for (int i = 0; i < count; i++)
        ports[i] = link->transport->new_port(link);
}

sl_status sl_mesh_plan(const sl_group *group, const uint32_t *const *ports, sl_wire_plan **out, int *count)
{
    sl_wire_plan *plan = NULL;
    int peers[MAX_PEERS], total = 0, made = 0;
    for (int src = 0; src < group->size; src++)
        total += find_peers(group->size, src, peers);
    sl_status status = SL_NEW_ARRAY(plan, total);
    if (status != SL_OK)
        return status;
    for (int src = 0; src < group->size; src++) {
        int peer_count = find_peers(group->size, src, peers);
        for (int i = 0; i < peer_count; i++) {
            sl_wire_plan *each = &plan[made++];
            int dst = peers[i];
            each->spec = (sl_channel_spec){ .id = -1,
                                            .src = group->members[src],
                                            .dst = group->members[dst],
                                            .capacity = SL_MESH_SLOTS,
                                            .max_bytes = sl_mesh_bytes(group->size) };
            if (!ports)
                continue;
            each->data_port = ports[dst][place_of_peer(group->size, dst, src)]; /* chosen by the receiver */
            each->credit_port = ports[src][peer_count + i];                     /* chosen by the sender */
        }
    }
    *out = plan;
    *count = made;
    return SL_OK;
}

sl_status sl_mesh_connect(sl_group *group, const sl_wire_plan *plan, int count, uint64_t token)
{
    sl_status status = SL_OK;
    sl_link *link = group->link;
    sl_wire **wires = NULL;
    int at = 0, peers[MAX_PEERS];
    SL_TRY(SL_NEW_ARRAY(wires, count));
    SL_TRY(link->transport->open_wires(link, plan, count, token, group->size, wires));
    for (int src = 0; src < group->size; src++) {
        int peer_count = find_peers(group->size, src, peers);
        for (int i = 0; i < peer_count; i++, at++) {
            sl_wire *wire = wires[at];
            if (!wire)
                continue;
            wires[at] = NULL;
            sl_channel_spec spec = plan[at].spec;
            spec.src = src;
            spec.dst = peers[i];
            SL_TRY(sl_channel_new(group, &spec, wire,
                                  src == group->rank ? &group->mesh_to[spec.dst] : &group->mesh_from[src]));
        }
    }
done:
    for (int i = 0; wires && i < count; i++) {
        if (wires[i])
            link->transport->close_wire(wires[i]);
    }
    sl_free(wires);
    return status;
}
