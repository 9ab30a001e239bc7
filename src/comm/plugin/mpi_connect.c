/* Opening and closing channels over MPI. */
#include "comm/plugin/mpi_wire.h"

#include <limits.h>

uint32_t mpi_new_port(sl_link *base)
{
    return ((mpi_link *)base)->next_port++;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void free_wire(sl_wire *wire)
{
    if (!wire)
        return;
    mpi_host->free(wire->slots);
    mpi_host->free(wire->memory);
    mpi_host->free(wire->credit_receives);
    mpi_host->free(wire->credit_values);
    mpi_host->free(wire);
}

static sl_status connect_wire(sl_wire *wire)
{
    sl_status status = SL_OK;
    if (wire->is_src && wire->is_dst)
        return SL_OK;
    if (wire->is_src) {
        size_t receives = (size_t)wire->capacity + 1; /* one for its end */
        SL_TRY(mpi_host->alloc(receives, sizeof *wire->credit_receives, (void **)&wire->credit_receives));
        SL_TRY(mpi_host->alloc(receives, sizeof *wire->credit_values, (void **)&wire->credit_values));
        for (int i = 0; i <= wire->capacity; i++)
            SL_TRY(mpi_post_credit(wire, i));
    }
    for (int i = 0; wire->is_dst && i < wire->capacity; i++)
        SL_TRY(mpi_post_receive(wire, &wire->slots[i]));
done:
    return status;
}

static sl_status new_wire(mpi_link *link, const sl_wire_plan *plan, sl_wire **out)
{
    sl_status status = SL_OK;
    sl_wire *wire = NULL;
    const sl_channel_spec *spec = &plan->spec;
    if (spec->max_bytes > INT_MAX - sizeof(sl_envelope))
        return mpi_host->fail(SL_ERR_UNSUPPORTED, "channel %d: transport mpi has messages of up to 2 GiB", spec->id);
    if (plan->data_port > (uint32_t)link->tag_limit || plan->credit_port > (uint32_t)link->tag_limit)
        return mpi_host->fail(SL_ERR_UNSUPPORTED, "channel %d: this MPI has %d tags, all are used", spec->id,
                              link->tag_limit);
    SL_TRY(mpi_host->alloc(1, sizeof *wire, (void **)&wire));
    wire->link = link;
    wire->is_src = spec->src == link->base.rank;
    wire->is_dst = spec->dst == link->base.rank;
    wire->peer = wire->is_src ? spec->dst : spec->src;
    wire->data_tag = plan->data_port ? (int)plan->data_port : TAG_MESH_DATA;
    wire->credit_tag = plan->credit_port ? (int)plan->credit_port : TAG_MESH_CREDIT;
    wire->capacity = wire->credits = spec->capacity;
    wire->slot_bytes = sizeof(sl_envelope) + spec->max_bytes;
    size_t stride = (wire->slot_bytes + 127) / 128 * 128;
    SL_TRY(mpi_host->alloc((size_t)spec->capacity, sizeof *wire->slots, (void **)&wire->slots));
    SL_TRY(mpi_host->alloc_aligned(stride * (size_t)spec->capacity, 128, (void **)&wire->memory));
    for (int i = 0; i < spec->capacity; i++) {
        wire->slots[i].envelope = (sl_envelope *)(wire->memory + stride * (size_t)i);
        wire->slots[i].request = MPI_REQUEST_NULL;
    }
    SL_TRY(connect_wire(wire));
    *out = wire;
    wire = NULL; /* now the caller's */
done:
    free_wire(wire);
    return status;
}

sl_status mpi_open_wires(sl_link *base, const sl_wire_plan *plan, int count, uint64_t token, int members,
                         sl_wire **wires)
{
    sl_status status = SL_OK;
    mpi_link *link = (mpi_link *)base;
    (void)token;
    (void)members;
    pthread_mutex_lock(&link->lock);
    mpi_sweep(link);
    for (int i = 0; i < count; i++) {
        wires[i] = NULL;
        if (plan[i].spec.src == base->rank || plan[i].spec.dst == base->rank)
            SL_TRY(new_wire(link, &plan[i], &wires[i]));
    }
done:
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* ---- Closing --------------------------------------------------------------------------------- */

/* An end that closes says so; what it still has on its way lives on until the other end has said so too. */
void mpi_close_wire(sl_wire *wire)
{
    static const sl_envelope closed = { .flags = ENVELOPE_LAST }, failed = { .flags = ENVELOPE_LAST | ENVELOPE_FAILED };
    mpi_link *link = wire->link;
    bool has_failed = atomic_load(&link->failure.state) != SL_FAILURE_NONE;
    if (wire->is_src && wire->is_dst) {
        free_wire(wire);
        return;
    }
    pthread_mutex_lock(&link->lock);
    if (wire->is_src) {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Isend(has_failed ? &failed : &closed, sizeof closed, MPI_BYTE, wire->peer, wire->data_tag, link->comm,
                  &request);
        if (request != MPI_REQUEST_NULL)
            MPI_Request_free(&request);
    } else {
        for (int i = 0; i < wire->capacity; i++) {
            if (wire->slots[i].state == SLOT_TAKEN)
                (void)mpi_post_receive(wire, &wire->slots[i]);
        }
        (void)mpi_send_credit(wire, has_failed ? CREDIT_FAILED : CREDIT_CLOSED);
    }
    wire->next = link->closed;
    link->closed = wire;
    pthread_mutex_unlock(&link->lock);
}

/* Whether nothing more can come for a closed end; takes in what still does. */
static bool is_quiet(sl_wire *wire)
{
    if (wire->is_src) {
        if (mpi_progress_send(wire) != SL_OK || !wire->other_closed)
            return false;
        for (int i = 0; i < wire->capacity; i++) {
            if (wire->slots[i].state == SLOT_SENDING)
                return false;
        }
        for (int i = 0; i <= wire->capacity; i++)
            mpi_cancel(&wire->credit_receives[i]);
        return true;
    }
    struct slot *slot;
    while (mpi_progress_receive(wire, &slot) == SL_OK && slot) { /* nobody wants it: the slot is for the next */
        wire->received++;
        (void)mpi_post_receive(wire, slot);
    }
    if (!wire->other_closed)
        return false;
    for (int i = 0; i < wire->capacity; i++)
        mpi_cancel(&wire->slots[i].request);
    return true;
}

void mpi_sweep(mpi_link *link)
{
    sl_wire **at = &link->closed;
    while (*at) {
        sl_wire *wire = *at;
        if (is_quiet(wire)) {
            *at = wire->next;
            free_wire(wire);
        } else {
            at = &wire->next;
        }
    }
}
