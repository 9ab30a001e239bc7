/* The channels that a group's collectives use: one from each member to each other. */
#include "comm/group.h"
#include "base/alloc.h"

size_t sl_mesh_bytes(int size)
{
    return size <= 16 ? 256 << 10 : 32 << 10;
}

void sl_mesh_choose_ports(sl_link *link, int size, uint32_t *ports)
{
    for (int i = 0; i < 2 * size; i++)
        ports[i] = link->transport->new_port ? link->transport->new_port(link) : 0;
}

sl_status sl_mesh_plan(const sl_group *group, const uint32_t *ports, sl_wire_plan **out, int *count)
{
    sl_wire_plan *plan = NULL;
    size_t size = (size_t)group->size;
    sl_status status = SL_NEW_ARRAY(plan, size * size);
    if (status != SL_OK)
        return status;
    int made = 0;
    for (size_t src = 0; src < size; src++) {
        for (size_t dst = 0; dst < size; dst++) {
            if (src == dst)
                continue;
            plan[made++] = (sl_wire_plan){
                .spec = { .id = -1,
                          .src = group->members[src],
                          .dst = group->members[dst],
                          .capacity = SL_MESH_SLOTS,
                          .max_bytes = sl_mesh_bytes(group->size) },
                .data_port = ports ? ports[(dst * 2 + 0) * size + src] : 0,
                .credit_port = ports ? ports[(src * 2 + 1) * size + dst] : 0,
            };
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
    SL_TRY(SL_NEW_ARRAY(wires, count));
    SL_TRY(link->transport->open_wires(link, plan, count, token, group->size, wires));
    int at = 0;
    for (int src = 0; src < group->size; src++) {
        for (int dst = 0; dst < group->size; dst++) {
            if (src == dst)
                continue;
            sl_wire *wire = wires[at];
            wires[at++] = NULL;
            if (!wire)
                continue;
            sl_channel_spec spec = plan[at - 1].spec;
            spec.src = src;
            spec.dst = dst;
            SL_TRY(
                sl_channel_new(group, &spec, wire, src == group->rank ? &group->mesh_to[dst] : &group->mesh_from[src]));
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
