/* Makes an MPI CUDA-aware for the tests' device: it says that it is, and takes addresses of that device. A rank loads this
 * before MPI, whose calls then come here first. */
#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#define EXPORTED __attribute__((visibility("default")))

typedef void *near_function(const void *address);

static near_function *find_near;
static int taken; /* messages from and to the device */

/* near: where the memory behind an address of the device lies; other addresses it gives back. */
EXPORTED void aware_mpi_use(near_function *near);
EXPORTED int aware_mpi_count(void);

void aware_mpi_use(near_function *near)
{
    find_near = near;
}

int aware_mpi_count(void)
{
    return taken;
}

static void *translate(const void *address)
{
    void *near = find_near ? find_near(address) : (void *)address;
    taken += near != address;
    return near;
}

#ifdef OPEN_MPI
EXPORTED int MPIX_Query_cuda_support(void)
{
    return 1;
}
#else
EXPORTED int MPIX_GPU_query_support(int type, int *is_supported)
{
    *is_supported = type == MPIX_GPU_SUPPORT_CUDA;
    return MPI_SUCCESS;
}
#endif

EXPORTED int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                       MPI_Request *request)
{
    return PMPI_Isend(translate(data), count, type, to, tag, comm, request);
}

EXPORTED int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
    return PMPI_Irecv(translate(data), count, type, from, tag, comm, request);
}
