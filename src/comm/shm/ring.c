/* Channels in shared memory: an array of slots each. A slot's turn says whose it is: 2n+1, the receiver's, with message
 * n in it; even, the sender's. The sender goes round the slots and skips those that are still in use, so they may be
 * freed in any order; if it skips one it leaves a note of the slot it took, else the receiver finds the next message one
 * slot on and reads nothing but the message. */
#include "comm/shm/link.h"
#include "base/alloc.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Before the slots of a channel. */
typedef struct ring_shared {
    _Alignas(SL_SHM_LINE) _Atomic uint32_t src_closed;
    _Atomic uint32_t dst_closed;
    /* (capacity) entry n % capacity: slot of message n, as n << 32 | slot + 1, if it is not the next one on. Before
     * the entry serves another message, n has been freed. */
    _Alignas(SL_SHM_LINE) _Atomic uint64_t detours[];
} ring_shared;

/* At the start of the range that the channels of one opening lie in. */
typedef struct region_shared {
    _Alignas(SL_SHM_LINE) _Atomic uint32_t departed; /* members that use the range no more; the last one frees it */
} region_shared;

/* This rank's hold on the range. */
struct region {
    sl_shm_link *link;
    uint64_t offset;
    size_t bytes;
    char *address;
    int members;
    int wires; /* of this rank, still open */
};

struct sl_wire {
    char *slots;
    size_t stride;
    int capacity;
    uint64_t sent; /* messages so far */
    _Atomic uint64_t received;
    int expected_slot;      /* where the receiver looks for the next message to be sent */
    int send_slot;          /* where to look first for a free slot; set to it by peek_slot */
    int receive_slot;       /* where to look first for the next message; set to it by peek_message */
    _Atomic bool *reserved; /* (capacity) taken by the sender and not committed */
    uint64_t *messages;     /* (capacity) number of the message that the sender last put there */
    sl_shm_rank *peer;
    ring_shared *shared;
    struct region *region;
    bool is_src, is_dst;
};

static size_t slot_stride(const sl_channel_spec *spec)
{
    size_t bytes = sizeof(sl_envelope) + spec->max_bytes;
    return (bytes + SL_SHM_LINE - 1) / SL_SHM_LINE * SL_SHM_LINE;
}

/* Of what comes before the slots. */
static size_t head_bytes(const sl_channel_spec *spec)
{
    size_t bytes = sizeof(ring_shared) + (size_t)spec->capacity * sizeof(uint64_t);
    return (bytes + SL_SHM_LINE - 1) / SL_SHM_LINE * SL_SHM_LINE;
}

static size_t ring_bytes(const sl_channel_spec *spec)
{
    return head_bytes(spec) + (size_t)spec->capacity * slot_stride(spec);
}

static size_t region_bytes(const sl_wire_plan *plan, int count)
{
    size_t bytes = sizeof(region_shared);
    for (int i = 0; i < count; i++)
        bytes += ring_bytes(&plan[i].spec);
    return bytes;
}

/* Channels of collectives are many and may never be used: they take memory as they are touched. */
static bool is_users(const sl_channel_spec *spec)
{
    return spec->id >= 0;
}

sl_status sl_shm_new_token(sl_link *link, const sl_wire_plan *plan, int count, uint64_t *token)
{
    bool now = count > 0 && is_users(&plan[0].spec);
    return sl_shm_allocate(((sl_shm_link *)link)->shm, region_bytes(plan, count), now, token);
}

/* The last rank to leave gives the memory back. */
static void leave_region(struct region *region)
{
    sl_shm *shm = region->link->shm;
    region_shared *shared = (region_shared *)region->address;
    bool last = (int)atomic_fetch_add(&shared->departed, 1) + 1 == region->members;
    sl_shm_unmap_range(shm, region->offset);
    if (last)
        sl_shm_free(shm, region->offset, region->bytes);
    sl_free(region);
}

/* Makes the pages of a ring present, so that the first messages pay no page faults. */
static sl_status prefault(char *address, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = 4096;
    uintptr_t start = (uintptr_t)address / page * page;
    uintptr_t end = ((uintptr_t)address + bytes + page - 1) / page * page;
    if (madvise((void *)start, end - start, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
        return sl_fail(SL_ERR_MEMORY, "%zu bytes of shared memory for a channel: %s", bytes, strerror(errno));
#else
    (void)address;
    (void)bytes;
#endif
    return SL_OK;
}

static void free_wire(sl_wire *wire)
{
    if (wire) {
        sl_free(wire->messages);
        sl_free(wire->reserved);
    }
    sl_free(wire);
}

static sl_status new_wire(struct region *region, const sl_channel_spec *spec, char *address, sl_wire **out)
{
    sl_status status = SL_OK;
    sl_wire *wire = NULL;
    sl_shm_link *link = region->link;
    SL_TRY(SL_NEW(wire));
    *wire = (sl_wire){
        .slots = address + head_bytes(spec),
        .stride = slot_stride(spec),
        .capacity = spec->capacity,
        .peer = &link->shm->control->ranks[spec->src == link->base.rank ? spec->dst : spec->src],
        .shared = (ring_shared *)address,
        .region = region,
        .is_src = spec->src == link->base.rank,
        .is_dst = spec->dst == link->base.rank,
    };
    SL_TRY(SL_NEW_ARRAY(wire->reserved, spec->capacity));
    SL_TRY(SL_NEW_ARRAY(wire->messages, spec->capacity));
    if (is_users(spec))
        SL_TRY(prefault(address, ring_bytes(spec)));
    region->wires++;
    *out = wire;
    wire = NULL; /* now the caller's */
done:
    free_wire(wire);
    return status;
}

sl_status sl_shm_open_wires(sl_link *base, const sl_wire_plan *plan, int count, uint64_t token, int members,
                            sl_wire **wires)
{
    sl_status status = SL_OK;
    sl_shm_link *link = (sl_shm_link *)base;
    struct region *region = NULL;
    int made = 0;
    uint64_t offset = token ? token : sl_shm_mesh_offset(base->size), room = link->shm->control->room / 2;
    size_t bytes = region_bytes(plan, count);
    if (!token && offset + bytes > room)
        return sl_fail(SL_ERR_MEMORY,
                       "the limit on file sizes (ulimit -f) leaves %llu bytes for collectives of %d "
                       "ranks, which take up to %zu",
                       (unsigned long long)(room - offset), base->size, bytes);
    SL_TRY(SL_NEW(region));
    region->link = link;
    region->offset = offset;
    region->bytes = bytes;
    region->members = members;
    status = sl_shm_map_range(link->shm, region->offset, region->bytes, &region->address);
    if (status != SL_OK) {
        sl_free(region);
        return status;
    }
    char *address = region->address + sizeof(region_shared);
    for (; made < count; made++) {
        const sl_channel_spec *spec = &plan[made].spec;
        wires[made] = NULL;
        if (spec->src == base->rank || spec->dst == base->rank)
            SL_TRY(new_wire(region, spec, address, &wires[made]));
        address += ring_bytes(spec);
    }
    if (region->wires == 0)
        leave_region(region);
    return SL_OK;
done:
    for (int i = 0; i < made; i++) {
        free_wire(wires[i]);
        wires[i] = NULL;
    }
    if (region)
        leave_region(region);
    return status;
}

void sl_shm_close_wire(sl_wire *wire)
{
    struct region *region = wire->region;
    if (wire->is_src)
        atomic_store(&wire->shared->src_closed, 1);
    if (wire->is_dst)
        atomic_store(&wire->shared->dst_closed, 1);
    if (atomic_load(&wire->peer->sleepers))
        sl_shm_ring(wire->peer);
    free_wire(wire);
    if (--region->wires == 0)
        leave_region(region);
}

static sl_envelope *slot_at(const sl_wire *wire, int slot)
{
    return (sl_envelope *)(wire->slots + (size_t)slot * wire->stride);
}

static int slot_after(const sl_wire *wire, int slot)
{
    return slot + 1 == wire->capacity ? 0 : slot + 1;
}

/* Both sides store, then look whether the other sleeps; a sleeper says so, then looks at the slot. All four are
 * sequentially consistent, so one of them sees the other. */
static void hand_over(sl_wire *wire, sl_envelope *envelope, uint64_t turn)
{
    atomic_store(&envelope->turn, turn);
    if (atomic_load(&wire->peer->sleepers))
        sl_shm_ring(wire->peer);
}

/* Finds the slot that the pointer is, and refuses what is none. */
static sl_status find_slot(const sl_wire *wire, const sl_envelope *envelope, const char *call, int *out)
{
    size_t at = (size_t)((uintptr_t)envelope - (uintptr_t)wire->slots), slot = at / wire->stride;
    if (slot >= (size_t)wire->capacity || slot * wire->stride != at)
        return sl_fail(SL_ERR_ARGUMENT, "%s: the memory is not a slot of this channel", call);
    *out = (int)slot;
    return SL_OK;
}

/* ---- Sending --------------------------------------------------------------------------------- */

sl_status sl_shm_peek_slot(sl_wire *wire, sl_envelope **out)
{
    *out = NULL;
    int slot = wire->send_slot;
    for (int i = 0; i < wire->capacity; i++, slot = slot_after(wire, slot)) {
        sl_envelope *envelope = slot_at(wire, slot);
        if (!atomic_load_explicit(&wire->reserved[slot], memory_order_acquire) &&
            (atomic_load(&envelope->turn) & 1) == 0) {
            wire->send_slot = slot;
            *out = envelope;
            break;
        }
    }
    return SL_OK;
}

void sl_shm_take_slot(sl_wire *wire)
{
    uint64_t message = wire->sent++;
    int slot = wire->send_slot;
    if (slot != wire->expected_slot)
        atomic_store_explicit(&wire->shared->detours[message % (uint64_t)wire->capacity],
                              message << 32 | (uint64_t)(slot + 1), memory_order_release);
    atomic_store_explicit(&wire->reserved[slot], true, memory_order_relaxed);
    wire->messages[slot] = message;
    wire->send_slot = wire->expected_slot = slot_after(wire, slot);
}

sl_status sl_shm_commit(sl_wire *wire, sl_envelope *envelope)
{
    int slot = 0;
    sl_status status = find_slot(wire, envelope, "commit", &slot);
    if (status != SL_OK)
        return status;
    if (!atomic_load_explicit(&wire->reserved[slot], memory_order_relaxed))
        return sl_fail(SL_ERR_ARGUMENT, "commit: the slot is not reserved");
    uint64_t message = wire->messages[slot]; /* before the slot can be taken again */
    hand_over(wire, envelope, 2 * message + 1);
    atomic_store_explicit(&wire->reserved[slot], false, memory_order_release);
    return SL_OK;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

sl_status sl_shm_peek_message(sl_wire *wire, sl_envelope **out)
{
    uint64_t message = atomic_load_explicit(&wire->received, memory_order_relaxed), turn = 2 * message + 1;
    sl_envelope *envelope = slot_at(wire, wire->receive_slot);
    *out = NULL;
    if (atomic_load(&envelope->turn) != turn) {
        uint64_t detour = atomic_load(&wire->shared->detours[message % (uint64_t)wire->capacity]);
        uint64_t slot = (uint32_t)detour;
        if (slot == 0 || slot > (uint64_t)wire->capacity || detour >> 32 != (uint32_t)message)
            return SL_OK;
        envelope = slot_at(wire, (int)slot - 1);
        if (atomic_load(&envelope->turn) != turn)
            return SL_OK;
        wire->receive_slot = (int)slot - 1;
    }
    *out = envelope;
    return SL_OK;
}

void sl_shm_take_message(sl_wire *wire)
{
    atomic_store_explicit(&wire->received, atomic_load_explicit(&wire->received, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    wire->receive_slot = slot_after(wire, wire->receive_slot);
}

sl_status sl_shm_release(sl_wire *wire, sl_envelope *envelope)
{
    int slot = 0;
    sl_status status = find_slot(wire, envelope, "release", &slot);
    if (status != SL_OK)
        return status;
    uint64_t turn = atomic_load_explicit(&envelope->turn, memory_order_relaxed);
    if ((turn & 1) == 0 || turn / 2 >= atomic_load_explicit(&wire->received, memory_order_relaxed))
        return sl_fail(SL_ERR_ARGUMENT, "release: the slot holds no message that was received");
    hand_over(wire, envelope, turn + 1);
    return SL_OK;
}

bool sl_shm_peer_closed(sl_wire *wire)
{
    return wire->is_src ? atomic_load(&wire->shared->dst_closed) : atomic_load(&wire->shared->src_closed);
}
