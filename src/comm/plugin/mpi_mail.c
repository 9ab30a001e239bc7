/* Messages in memory of devices, which a CUDA-aware MPI takes as it takes memory of the host. */
#include "comm/plugin/mpi.h"

#include <string.h>

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

_Static_assert(sizeof(MPI_Request) <= sizeof(sl_mail_ticket), "a ticket has room");

/* Asked at run time: a build with CUDA may run without it. */
static bool is_cuda_aware(void)
{
#if defined(OMPI_HAVE_MPI_EXT_CUDA) && OMPI_HAVE_MPI_EXT_CUDA
    return MPIX_Query_cuda_support() == 1;
#elif defined(MPIX_GPU_SUPPORT_CUDA)
    int is_supported = 0;
    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_supported) == MPI_SUCCESS && is_supported;
#else
    return false;
#endif
}

static const char *find_obstacle(sl_link *base)
{
    mpi_link *link = (mpi_link *)base;
    if (!link->monitored)
        return "this MPI allows one thread only";
    pthread_mutex_lock(&link->lock);
    bool aware = is_cuda_aware();
    pthread_mutex_unlock(&link->lock);
    return aware ? NULL : "this MPI is not CUDA-aware";
}

static sl_status new_tag(sl_link *base, int *out)
{
    mpi_link *link = (mpi_link *)base;
    pthread_mutex_lock(&link->lock);
    int64_t tag = (int64_t)link->device_tags++ * base->size + base->rank;
    pthread_mutex_unlock(&link->lock);
    if (tag > link->tag_limit)
        return mpi_host->fail(SL_ERR_UNSUPPORTED, "this MPI has %d tags, all are used", link->tag_limit);
    *out = (int)tag;
    return SL_OK;
}

/* Keeps the request in the ticket. */
static sl_status give_ticket(int error, const char *call, MPI_Request request, sl_mail_ticket *out)
{
    sl_status status = mpi_check(error, call);
    if (status == SL_OK)
        memcpy(out->bytes, &request, sizeof request);
    return status;
}

static sl_status send_mail(sl_link *base, const void *data, size_t bytes, int to, int tag, sl_mail_ticket *out)
{
    mpi_link *link = (mpi_link *)base;
    MPI_Request request = MPI_REQUEST_NULL;
    pthread_mutex_lock(&link->lock);
    int error = MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, link->device_comm, &request);
    sl_status status = give_ticket(error, "MPI_Isend", request, out);
    pthread_mutex_unlock(&link->lock);
    return status;
}

static sl_status receive_mail(sl_link *base, void *data, size_t bytes, int from, int tag, sl_mail_ticket *out)
{
    mpi_link *link = (mpi_link *)base;
    MPI_Request request = MPI_REQUEST_NULL;
    pthread_mutex_lock(&link->lock);
    int error = MPI_Irecv(data, (int)bytes, MPI_BYTE, from, tag, link->device_comm, &request);
    sl_status status = give_ticket(error, "MPI_Irecv", request, out);
    pthread_mutex_unlock(&link->lock);
    return status;
}

static sl_status test_mail(sl_link *base, sl_mail_ticket *ticket, bool *done)
{
    mpi_link *link = (mpi_link *)base;
    MPI_Request request;
    int is_done = 0;
    memcpy(&request, ticket->bytes, sizeof request);
    pthread_mutex_lock(&link->lock);
    int error = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    sl_status status = give_ticket(error, "MPI_Test", request, ticket);
    pthread_mutex_unlock(&link->lock);
    if (status == SL_OK)
        *done = is_done != 0;
    return status;
}

/* Waiting for the cancel could take for ever if the other rank is gone. */
static void drop_mail(sl_link *base, sl_mail_ticket *ticket)
{
    mpi_link *link = (mpi_link *)base;
    MPI_Request request;
    memcpy(&request, ticket->bytes, sizeof request);
    if (request == MPI_REQUEST_NULL)
        return;
    pthread_mutex_lock(&link->lock);
    MPI_Cancel(&request);
    MPI_Request_free(&request);
    pthread_mutex_unlock(&link->lock);
}

const sl_device_mail mpi_mail = {
    .find_obstacle = find_obstacle,
    .new_tag = new_tag,
    .send = send_mail,
    .receive = receive_mail,
    .test = test_mail,
    .drop = drop_mail,
};
