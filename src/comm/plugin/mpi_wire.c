/* Channels over MPI. The receiver keeps a receive posted for every free slot and tells the sender of each slot it
 * frees; the sender sends no more than that. So messages land where they are used, the capacity holds, and no send
 * waits for long. */
#include "comm/plugin/mpi.h"

#include <limits.h>
#include <string.h>

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

/* One end of a channel; both ends where a rank sends to itself: then no MPI is involved. */
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
    bool closed;       /* this end */

    uint64_t reserved, sent;      /* messages so far */
    int credits;                  /* slots of the receiver that are free */
    int peeked;                   /* slot that peek_slot found */
    MPI_Request *credit_receives; /* (capacity + 1) */
    int32_t *credit_values;

    uint64_t posted, received;
};

/* What a credit message says. */
static const int32_t credit_freed = 0, credit_closed = 1, credit_failed = 2;

/* Flags of an envelope that is no message: the sender has closed; because the run has failed. */
enum { ENVELOPE_LAST = 2, ENVELOPE_FAILED = 4 };

uint32_t mpi_new_port(sl_link *base)
{
    return ((mpi_link *)base)->next_port++;
}

/* ---- Opening and freeing --------------------------------------------------------------------- */

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

static sl_status post_receive(sl_wire *wire, struct slot *slot)
{
    slot->state = SLOT_POSTED;
    slot->message = wire->posted++;
    return mpi_check(MPI_Irecv(slot->envelope, (int)wire->slot_bytes, MPI_BYTE, wire->peer, wire->data_tag,
                               wire->link->comm, &slot->request),
                     "MPI_Irecv");
}

static sl_status post_credit(sl_wire *wire, int i)
{
    return mpi_check(MPI_Irecv(&wire->credit_values[i], 1, MPI_INT32_T, wire->peer, wire->credit_tag, wire->link->comm,
                               &wire->credit_receives[i]),
                     "MPI_Irecv");
}

/* A message of a few bytes: it is on its way when the call returns. */
static sl_status send_credit(sl_wire *wire, const int32_t *value)
{
    MPI_Request request = MPI_REQUEST_NULL;
    sl_status status = mpi_check(
        MPI_Isend(value, 1, MPI_INT32_T, wire->peer, wire->credit_tag, wire->link->comm, &request), "MPI_Isend");
    if (status == SL_OK && request != MPI_REQUEST_NULL)
        MPI_Request_free(&request);
    return status;
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
            SL_TRY(post_credit(wire, i));
    }
    for (int i = 0; wire->is_dst && i < wire->capacity; i++)
        SL_TRY(post_receive(wire, &wire->slots[i]));
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

/* ---- Progress, with the lock held ------------------------------------------------------------ */

static struct slot *slot_of_message(sl_wire *wire, uint64_t message, slot_state state)
{
    for (int i = 0; i < wire->capacity; i++) {
        if (wire->slots[i].state == state && wire->slots[i].message == message)
            return &wire->slots[i];
    }
    return NULL;
}

/* The sender: slots whose message is off are free, and the receiver may have freed some of its own. */
static sl_status progress_send(sl_wire *wire)
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
        if (wire->credit_values[i] != credit_freed) {
            wire->other_closed = true;
            wire->other_failed = wire->credit_values[i] == credit_failed;
        } else {
            wire->credits++;
            SL_TRY(post_credit(wire, i));
        }
    }
done:
    return status;
}

/* The receiver: whether the next message is there; the sender's last one closes. */
static sl_status progress_receive(sl_wire *wire, struct slot **out)
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
        SL_TRY(progress_send(wire));
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
    slot->state = SLOT_RESERVED;
    slot->message = wire->reserved++;
    wire->credits--;
}

sl_status mpi_commit(sl_wire *wire, sl_envelope *envelope)
{
    sl_status status = SL_OK;
    struct slot *slot = find_slot(wire, envelope);
    if (!slot)
        return mpi_host->fail(SL_ERR_ARGUMENT, "commit: the memory is not a slot of this channel");
    if (slot->state != SLOT_RESERVED)
        return mpi_host->fail(SL_ERR_ARGUMENT, "commit: the slot is not reserved");
    slot->state = SLOT_COMMITTED;
    if (wire->is_dst)
        return SL_OK;
    pthread_mutex_lock(&wire->link->lock);
    status = send_committed(wire);
    pthread_mutex_unlock(&wire->link->lock);
    return status;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

sl_status mpi_peek_message(sl_wire *wire, sl_envelope **out)
{
    sl_status status = SL_OK;
    struct slot *slot = NULL;
    if (wire->is_src) {
        slot = slot_of_message(wire, wire->received, SLOT_COMMITTED);
    } else {
        pthread_mutex_lock(&wire->link->lock);
        status = progress_receive(wire, &slot);
        if (!slot)
            mpi_look_for_failure(wire->link);
        pthread_mutex_unlock(&wire->link->lock);
    }
    *out = slot ? slot->envelope : NULL;
    return status;
}

void mpi_take_message(sl_wire *wire)
{
    struct slot *slot = slot_of_message(wire, wire->received++, wire->is_src ? SLOT_COMMITTED : SLOT_POSTED);
    slot->state = SLOT_TAKEN;
}

sl_status mpi_release(sl_wire *wire, sl_envelope *envelope)
{
    sl_status status = SL_OK;
    struct slot *slot = find_slot(wire, envelope);
    if (!slot)
        return mpi_host->fail(SL_ERR_ARGUMENT, "release: the memory is not a slot of this channel");
    if (slot->state != SLOT_TAKEN)
        return mpi_host->fail(SL_ERR_ARGUMENT, "release: the slot holds no message that was received");
    if (wire->is_src) {
        slot->state = SLOT_FREE;
        return SL_OK;
    }
    pthread_mutex_lock(&wire->link->lock);
    SL_TRY(post_receive(wire, slot));
    SL_TRY(send_credit(wire, &credit_freed));
done:
    pthread_mutex_unlock(&wire->link->lock);
    return status;
}

bool mpi_peer_closed(sl_wire *wire)
{
    return wire->other_closed && !wire->other_failed;
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
                (void)post_receive(wire, &wire->slots[i]);
        }
        (void)send_credit(wire, has_failed ? &credit_failed : &credit_closed);
    }
    wire->closed = true;
    wire->next = link->closed;
    link->closed = wire;
    pthread_mutex_unlock(&link->lock);
}

static void cancel(MPI_Request *request)
{
    if (*request == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
}

/* Whether nothing more can come for a closed end; takes in what still does. */
static bool is_quiet(sl_wire *wire)
{
    if (wire->is_src) {
        if (progress_send(wire) != SL_OK || !wire->other_closed)
            return false;
        for (int i = 0; i < wire->capacity; i++) {
            if (wire->slots[i].state == SLOT_SENDING)
                return false;
        }
        for (int i = 0; i <= wire->capacity; i++)
            cancel(&wire->credit_receives[i]);
        return true;
    }
    struct slot *slot;
    while (progress_receive(wire, &slot) == SL_OK && slot) { /* nobody wants it: the slot is for the next */
        wire->received++;
        (void)post_receive(wire, slot);
    }
    if (!wire->other_closed)
        return false;
    for (int i = 0; i < wire->capacity; i++)
        cancel(&wire->slots[i].request);
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
