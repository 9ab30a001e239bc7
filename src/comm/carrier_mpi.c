/* MPI as a carrier, or any other transport with mail for devices: queues of mail (courier.h) are its communicators. */
#include "comm/carrier.h"

#include "base/alloc.h"
#include "comm/courier.h"
#include "comm/group.h"
#include "device/share.h"

#include <string.h>

typedef struct mpi_comm {
    sl_carrier_comm head;
    sl_mail_queue *queue;
    int rank, ranks;
    int *members; /* (ranks) their ranks in the run */
    bool grouped; /* between begin and end */
    sl_stream *stream;
} mpi_comm;

static const sl_carrier mpi_carrier;

/* ---- Communicators --------------------------------------------------------------------------- */

static sl_status make_id(sl_device_words *words, sl_carrier_id *out)
{
    sl_status status = SL_OK;
    sl_link *link = sl_device_words_group(words)->link;
    int tag = 0;
    SL_TRY(sl_device_mail_of(link)->new_tag(link, &tag));
    int32_t named = tag + 1; /* zeros are no id */
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &named, sizeof named);
done:
    return status;
}

static void close_comm(sl_carrier_comm *head)
{
    mpi_comm *comm = (mpi_comm *)head;
    sl_mail_queue_close(comm->queue);
    sl_free(comm->members);
    sl_free(comm);
}

static sl_status open_comm(const sl_carrier_id *id, const sl_carrier_place *place, sl_carrier_comm **out)
{
    sl_status status = SL_OK;
    mpi_comm *comm = NULL;
    sl_link *link = sl_device_words_group(place->words)->link;
    int32_t named = 0;
    memcpy(&named, id->bytes, sizeof named);
    SL_TRY(SL_NEW(comm));
    comm->head.carrier = &mpi_carrier;
    comm->rank = place->rank;
    comm->ranks = place->ranks;
    SL_TRY(SL_NEW_ARRAY(comm->members, place->ranks));
    memcpy(comm->members, place->members, (size_t)place->ranks * sizeof *comm->members);
    SL_TRY(sl_mail_queue_open(link, sl_device_words_device(place->words), named - 1, 2 * place->ranks, &comm->queue));
    *out = &comm->head;
    comm = NULL; /* now the caller's */
done:
    if (comm)
        close_comm(&comm->head);
    return status;
}

static sl_status ask(sl_carrier_comm *head, bool *ready)
{
    return sl_mail_queue_ask(((mpi_comm *)head)->queue, ready);
}

static void stop(sl_carrier_comm *head)
{
    sl_mail_queue_stop(((mpi_comm *)head)->queue);
}

/* What has left this rank is MPI's. */
static void leave(sl_carrier_comm *head)
{
    (void)head;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static sl_status post(mpi_comm *comm, bool sends, const void *data, size_t bytes, int peer, sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(sl_mail_queue_add(comm->queue, sends, data, bytes, comm->members[peer]));
    comm->stream = stream;
    if (!comm->grouped)
        SL_TRY(sl_mail_queue_give(comm->queue, stream));
done:
    return status;
}

static sl_status send_message(sl_carrier_comm *head, const void *data, size_t bytes, int to, sl_stream *stream)
{
    return post((mpi_comm *)head, true, data, bytes, to, stream);
}

static sl_status receive_message(sl_carrier_comm *head, void *data, size_t bytes, int from, sl_stream *stream)
{
    return post((mpi_comm *)head, false, data, bytes, from, stream);
}

static sl_status begin_group(sl_carrier_comm *head)
{
    ((mpi_comm *)head)->grouped = true;
    return SL_OK;
}

static sl_status end_group(sl_carrier_comm *head)
{
    mpi_comm *comm = (mpi_comm *)head;
    comm->grouped = false;
    return sl_mail_queue_give(comm->queue, comm->stream);
}

/* Part of a group, or one of its own. */
static sl_status exchange(mpi_comm *comm, const void *data, size_t bytes, char *all, sl_stream *stream)
{
    sl_status status = SL_OK;
    for (int p = 0; p < comm->ranks; p++) {
        if (p == comm->rank)
            continue;
        SL_TRY(post(comm, true, data, bytes, p, stream));
        SL_TRY(post(comm, false, all + (size_t)p * bytes, bytes, p, stream));
    }
done:
    return status;
}

static sl_status all_gather(sl_carrier_comm *head, const void *data, size_t bytes, void *all, sl_stream *stream)
{
    sl_status status = SL_OK;
    mpi_comm *comm = (mpi_comm *)head;
    bool grouped = comm->grouped;
    char *place = (char *)all + (size_t)comm->rank * bytes;
    if (place != data && bytes > 0)
        SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_DEVICE, place, data, bytes));
    comm->grouped = true;
    SL_TRY(exchange(comm, data, bytes, all, stream));
    if (!grouped)
        SL_TRY(end_group(head));
done:
    comm->grouped = grouped;
    return status;
}

static sl_status broadcast(sl_carrier_comm *head, void *data, size_t bytes, int root, sl_stream *stream)
{
    sl_status status = SL_OK;
    mpi_comm *comm = (mpi_comm *)head;
    bool grouped = comm->grouped;
    comm->grouped = true;
    for (int p = 0; p < comm->ranks; p++) {
        if (p != comm->rank && (p == root || comm->rank == root))
            SL_TRY(post(comm, comm->rank == root, data, bytes, p, stream));
    }
    if (!grouped)
        SL_TRY(end_group(head));
done:
    comm->grouped = grouped;
    return status;
}

static const sl_carrier mpi_carrier = {
    .way = "through MPI",
    .serves_threads = true,
    .holds_queues = true,
    .make_id = make_id,
    .open = open_comm,
    .ask = ask,
    .send = send_message,
    .receive = receive_message,
    .begin = begin_group,
    .end = end_group,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .stop = stop,
    .leave = leave,
    .close = close_comm,
};

sl_status sl_carrier_load_mpi(sl_group *group, const sl_device *device, const sl_carrier **out)
{
    const sl_device_mail *mail = sl_device_mail_of(group->link);
    const char *obstacle = mail ? mail->find_obstacle(group->link) : "the ranks were not started by MPI";
    if (!sl_device_has_words(device))
        obstacle = "streams of the device cannot wait for the host";
    if (obstacle)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s", obstacle);
    *out = &mpi_carrier;
    return SL_OK;
}
