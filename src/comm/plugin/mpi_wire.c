/* Channels over MPI. The receiver keeps a receive posted for every free slot and tells the sender of each slot it
 * frees; the sender sends no more than that. So messages land where they are used, the capacity holds, and no send
 * waits for long. */
#include "comm/plugin/mpi_wire.h"

sl_status mpi_post_receive(sl_wire *wire, struct slot *slot)
{
    slot->state = SLOT_POSTED;
    slot->message = wire->posted++;
    return mpi_check(MPI_Irecv(slot->envelope, (int)wire->slot_bytes, MPI_BYTE, wire->peer, wire->data_tag,
                               wire->link->comm, &slot->request),
                     "MPI_Irecv");
}

sl_status mpi_post_credit(sl_wire *wire, int i)
{
    return mpi_check(MPI_Irecv(&wire->credit_values[i], 1, MPI_INT32_T, wire->peer, wire->credit_tag, wire->link->comm,
                               &wire->credit_receives[i]),
                     "MPI_Irecv");
}

/* A message of a few bytes: it is on its way when the call returns. */
sl_status mpi_send_credit(sl_wire *wire, mpi_credit credit)
{
    static const int32_t values[] = { CREDIT_FREED, CREDIT_CLOSED, CREDIT_FAILED }; /* they outlive the sends */
    MPI_Request request = MPI_REQUEST_NULL;
    sl_status status =
        mpi_check(MPI_Isend(&values[credit], 1, MPI_INT32_T, wire->peer, wire->credit_tag, wire->link->comm, &request),
                  "MPI_Isend");
    if (status == SL_OK && request != MPI_REQUEST_NULL)
        MPI_Request_free(&request);
    return status;
}

/* ---- Progress, with the lock held ------------------------------------------------------------ */

static struct slot *slot_of_message(sl_wire *wire, uint64_t message, slot_state state)
{
    for (int i = 0; i < wire->capacity; i++) {
        if (wire->slots[i].state == state && wire->slots[i].message == message)
            return &wire->slots[i];
    }
    return NULL;
}

sl_status mpi_progress_send(sl_wire *wire)
{
    sl_status status = SL_OK;
    int done = 0;
    for (int i = 0; i < wire->capacity; i++) {
        struct slot *slot = &wire->slots[i];
        if (slot->state != SLOT_SENDING)
            continue;
        SL_TRY(mpi_check(MPI_Test(&slot->request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
        if (done)
            slot->state = SLOT_FREE;
    }
    for (int i = 0; i <= wire->capacity; i++) {
        if (wire->credit_receives[i] == MPI_REQUEST_NULL)
            continue;
        SL_TRY(mpi_check(MPI_Test(&wire->credit_receives[i], &done, MPI_STATUS_IGNORE), "MPI_Test"));
        if (!done)
            continue;
        if (wire->credit_values[i] != CREDIT_FREED) {
            wire->other_closed = true;
            wire->other_failed = wire->credit_values[i] == CREDIT_FAILED;
        } else {
            wire->credits++;
            SL_TRY(mpi_post_credit(wire, i));
        }
    }
done:
    return status;
}

sl_status mpi_progress_receive(sl_wire *wire, struct slot **out)
{
    *out = NULL;
    struct slot *slot = slot_of_message(wire, wire->received, SLOT_POSTED);
    int done = 0;
    if (!slot || wire->other_closed)
        return SL_OK;
    if (slot->request != MPI_REQUEST_NULL) {
        sl_status status = mpi_check(MPI_Test(&slot->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (status != SL_OK || !done)
            return status;
    }
    if ((slot->envelope->flags & ENVELOPE_LAST) == 0) {
        *out = slot;
        return SL_OK;
    }
    wire->other_closed = true;
    wire->other_failed = (slot->envelope->flags & ENVELOPE_FAILED) != 0;
    return SL_OK;
}

/* Sends what is committed, in the order of the reservations. */
static sl_status send_committed(sl_wire *wire)
{
    sl_status status = SL_OK;
    struct slot *slot;
    while ((slot = slot_of_message(wire, wire->sent, SLOT_COMMITTED))) {
        SL_TRY(mpi_check(MPI_Isend(slot->envelope, (int)(sizeof *slot->envelope + slot->envelope->bytes), MPI_BYTE,
                                   wire->peer, wire->data_tag, wire->link->comm, &slot->request),
                         "MPI_Isend"));
        slot->state = SLOT_SENDING;
        wire->sent++;
    }
done:
    return status;
}

static struct slot *find_slot(sl_wire *wire, const sl_envelope *envelope)
{
    for (int i = 0; i < wire->capacity; i++) {
        if (wire->slots[i].envelope == envelope)
            return &wire->slots[i];
    }
    return NULL;
}

/* ---- Sending --------------------------------------------------------------------------------- */

sl_status mpi_peek_slot(sl_wire *wire, sl_envelope **out)
{
    sl_status status = SL_OK;
    bool self = wire->is_src && wire->is_dst;
    *out = NULL;
    pthread_mutex_lock(&wire->link->lock);
    if (!self)
        SL_TRY(mpi_progress_send(wire));
    for (int i = 0; i < wire->capacity && (self || wire->credits > 0); i++) {
        if (wire->slots[i].state == SLOT_FREE) {
            wire->peeked = i;
            *out = wire->slots[i].envelope;
            break;
        }
    }
    if (!*out)
        mpi_look_for_failure(wire->link); /* for callers that poll */
done:
    pthread_mutex_unlock(&wire->link->lock);
    return status;
}

void mpi_take_slot(sl_wire *wire)
{
    struct slot *slot = &wire->slots[wire->peeked];
    pthread_mutex_lock(&wire->link->lock);
    slot->state = SLOT_RESERVED;
    slot->message = wire->reserved++;
    wire->credits--;
    pthread_mutex_unlock(&wire->link->lock);
}

sl_status mpi_commit(sl_wire *wire, sl_envelope *envelope)
{
    sl_status status = SL_OK;
    struct slot *slot = find_slot(wire, envelope);
    if (!slot)
        return mpi_host->fail(SL_ERR_ARGUMENT, "commit: the memory is not a slot of this channel");
    pthread_mutex_lock(&wire->link->lock);
    if (slot->state != SLOT_RESERVED) {
        status = mpi_host->fail(SL_ERR_ARGUMENT, "commit: the slot is not reserved");
    } else {
        slot->state = SLOT_COMMITTED;
        if (!wire->is_dst)
            status = send_committed(wire);
    }
    pthread_mutex_unlock(&wire->link->lock);
    return status;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

sl_status mpi_peek_message(sl_wire *wire, sl_envelope **out)
{
    sl_status status = SL_OK;
    struct slot *slot = NULL;
    pthread_mutex_lock(&wire->link->lock);
    if (wire->is_src)
        slot = slot_of_message(wire, wire->received, SLOT_COMMITTED);
    else
        status = mpi_progress_receive(wire, &slot);
    if (!slot)
        mpi_look_for_failure(wire->link);
    pthread_mutex_unlock(&wire->link->lock);
    *out = slot ? slot->envelope : NULL;
    return status;
}

void mpi_take_message(sl_wire *wire)
{
    pthread_mutex_lock(&wire->link->lock);
    struct slot *slot = slot_of_message(wire, wire->received++, wire->is_src ? SLOT_COMMITTED : SLOT_POSTED);
    slot->state = SLOT_TAKEN;
    pthread_mutex_unlock(&wire->link->lock);
}

sl_status mpi_release(sl_wire *wire, sl_envelope *envelope)
{
    sl_status status = SL_OK;
    struct slot *slot = find_slot(wire, envelope);
    if (!slot)
        return mpi_host->fail(SL_ERR_ARGUMENT, "release: the memory is not a slot of this channel");
    pthread_mutex_lock(&wire->link->lock);
    if (slot->state != SLOT_TAKEN) {
        status = mpi_host->fail(SL_ERR_ARGUMENT, "release: the slot holds no message that was received");
        goto done;
    }
    if (wire->is_src) {
        slot->state = SLOT_FREE;
        goto done;
    }
    SL_TRY(mpi_post_receive(wire, slot));
    SL_TRY(mpi_send_credit(wire, CREDIT_FREED));
done:
    pthread_mutex_unlock(&wire->link->lock);
    return status;
}

bool mpi_peer_closed(sl_wire *wire)
{
    return wire->other_closed && !wire->other_failed;
}
