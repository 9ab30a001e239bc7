/* The NCCL module: NCCL's library, found at run time, as a carrier. */
#include "comm/nccl.h"

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(sl_carrier_id) == sizeof(ncclUniqueId), "an id has room");

typedef struct nccl_comm {
    sl_carrier_comm head;
    ncclComm_t comm;
    bool is_stopped; /* the thread aborts it */
    bool is_leaving; /* it was told to finalize */
    pthread_t thread;
} nccl_comm;

static const sl_nccl_host *host;
static sl_nccl table;

/* NCCL's functions. */
static struct {
    ncclResult_t (*get_version)(int *version);
    ncclResult_t (*get_unique_id)(ncclUniqueId *id);
    ncclResult_t (*init)(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
    ncclResult_t (*get_async_error)(ncclComm_t comm, ncclResult_t *error);
    ncclResult_t (*send)(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream);
    ncclResult_t (*receive)(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                            cudaStream_t stream);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    ncclResult_t (*all_gather)(const void *data, void *all, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream);
    ncclResult_t (*broadcast)(const void *data, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream);
    ncclResult_t (*all_reduce)(const void *data, void *sum, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*reduce)(const void *data, void *sum, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                           ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*reduce_scatter)(const void *parts, void *sum, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*finalize)(ncclComm_t comm);
    ncclResult_t (*destroy)(ncclComm_t comm);
    ncclResult_t (*abort)(ncclComm_t comm);
    const char *(*error_string)(ncclResult_t result);
    const char *(*last_error)(ncclComm_t comm);
} nccl;

static sl_status check(ncclResult_t result, const char *what)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return SL_OK;
    const char *more = nccl.last_error(NULL);
    return host->fail(SL_ERR_COMM, "NCCL: %s: %s%s%s", what, nccl.error_string(result), more && *more ? ": " : "",
                      more ? more : "");
}

/* NCCL reads it once, when it is first used. */
static void prepare(const char *host_id)
{
    if (host_id)
        setenv("NCCL_HOSTID", host_id, 0);
}

static sl_status make_id(sl_device_words *words, sl_carrier_id *out)
{
    (void)words;
    ncclUniqueId id;
    sl_status status = check(nccl.get_unique_id(&id), "make a communicator's id");
    if (status == SL_OK)
        memcpy(out->bytes, id.internal, sizeof out->bytes);
    return status;
}

static ncclComm_t of(sl_carrier_comm *comm)
{
    return ((nccl_comm *)comm)->comm;
}

/* Its kernels wait for other ranks beside the kernels of a step: few of them may hold the GPU's processors. */
static sl_status open_comm(const sl_carrier_id *id, const sl_carrier_place *place, sl_carrier_comm **out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId given;
    nccl_comm *made = NULL;
    sl_status status = host->alloc(1, sizeof *made, (void **)&made);
    if (status != SL_OK)
        return status;
    memcpy(given.internal, id->bytes, sizeof given.internal);
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = place->blocks;
    made->head.carrier = &table.carrier;
    status = check(nccl.init(&made->comm, place->ranks, given, place->rank, &config), "open a communicator");
    if (status == SL_OK)
        *out = &made->head;
    else
        host->free(made);
    return status;
}

static sl_status ask(sl_carrier_comm *comm, bool *ready)
{
    ncclResult_t state = ncclSuccess, result = nccl.get_async_error(of(comm), &state);
    sl_status status = check(result != ncclSuccess ? result : state, "a communicator has failed");
    if (status == SL_OK)
        *ready = state == ncclSuccess;
    return status;
}

static sl_status send_message(sl_carrier_comm *comm, const void *data, size_t bytes, int to, sl_stream *stream)
{
    return check(nccl.send(data, bytes, ncclUint8, to, of(comm), host->stream_native(stream)), "send");
}

static sl_status receive_message(sl_carrier_comm *comm, void *data, size_t bytes, int from, sl_stream *stream)
{
    return check(nccl.receive(data, bytes, ncclUint8, from, of(comm), host->stream_native(stream)), "receive");
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static sl_status begin_group(sl_carrier_comm *comm)
{
    (void)comm;
    return check(nccl.group_start(), "begin a group");
}

static sl_status end_group(sl_carrier_comm *comm)
{
    (void)comm;
    return check(nccl.group_end(), "end a group");
}

static sl_status all_gather(sl_carrier_comm *comm, const void *data, size_t bytes, void *all, sl_stream *stream)
{
    return check(nccl.all_gather(data, all, bytes, ncclUint8, of(comm), host->stream_native(stream)), "all-gather");
}

static sl_status broadcast(sl_carrier_comm *comm, void *data, size_t bytes, int root, sl_stream *stream)
{
    return check(nccl.broadcast(data, data, bytes, ncclUint8, root, of(comm), host->stream_native(stream)),
                 "broadcast");
}

/* Of all dtypes that can be reduced. */
static ncclDataType_t type_of(sl_dtype dtype)
{
    static const ncclDataType_t types[SL_DTYPE_COUNT] = {
        [SL_F32] = ncclFloat32, [SL_F64] = ncclFloat64, [SL_BF16] = ncclBfloat16, [SL_F16] = ncclFloat16,
        [SL_I32] = ncclInt32,   [SL_I64] = ncclInt64,   [SL_U8] = ncclUint8,
    };
    return types[dtype];
}

static sl_status all_reduce(sl_carrier_comm *comm, void *data, int64_t count, sl_dtype dtype, sl_stream *stream)
{
    ncclDataType_t type = type_of(dtype);
    return check(nccl.all_reduce(data, data, (size_t)count, type, ncclSum, of(comm), host->stream_native(stream)),
                 "all-reduce");
}

static sl_status reduce(sl_carrier_comm *comm, const void *data, void *sum, int64_t count, sl_dtype dtype, int root,
                        sl_stream *stream)
{
    ncclDataType_t type = type_of(dtype);
    return check(nccl.reduce(data, sum, (size_t)count, type, ncclSum, root, of(comm), host->stream_native(stream)),
                 "reduce");
}

static sl_status reduce_scatter(sl_carrier_comm *comm, const void *parts, void *sum, int64_t count, sl_dtype dtype,
                                sl_stream *stream)
{
    ncclDataType_t type = type_of(dtype);
    return check(nccl.reduce_scatter(parts, sum, (size_t)count, type, ncclSum, of(comm), host->stream_native(stream)),
                 "reduce-scatter");
}

/* ---- The end --------------------------------------------------------------------------------- */

static void *abort_comm(void *user)
{
    const nccl_comm *comm = user;
    (void)nccl.abort(comm->comm);
    return NULL;
}

/* Aborting tells the communicator's kernels to end, and then waits for the whole device, which may wait for kernels of
 * another communicator: so all are aborted at once. */
static void stop(sl_carrier_comm *head)
{
    nccl_comm *comm = (nccl_comm *)head;
    if (comm->is_stopped)
        return;
    comm->is_stopped = true;
    if (pthread_create(&comm->thread, NULL, abort_comm, comm) != 0) {
        comm->thread = pthread_self();
        abort_comm(comm);
    }
}

static void leave(sl_carrier_comm *head)
{
    nccl_comm *comm = (nccl_comm *)head;
    if (!comm->is_stopped && !comm->is_leaving)
        comm->is_leaving = check(nccl.finalize(comm->comm), "finalize") == SL_OK;
}

/* Whether all that was under way has come to its end. */
static bool has_left(const nccl_comm *comm)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    ncclResult_t state = ncclInProgress;
    for (int i = 0; comm->is_leaving && state == ncclInProgress && i < 2000; i++) {
        if (nccl.get_async_error(comm->comm, &state) != ncclSuccess)
            state = ncclInternalError;
        if (state == ncclInProgress)
            nanosleep(&pause, NULL);
    }
    return state == ncclSuccess;
}

static void close_comm(sl_carrier_comm *head)
{
    nccl_comm *comm = (nccl_comm *)head;
    if (!comm->is_stopped && has_left(comm))
        (void)nccl.destroy(comm->comm);
    else if (!comm->is_stopped)
        abort_comm(comm);
    else if (!pthread_equal(comm->thread, pthread_self()))
        pthread_join(comm->thread, NULL);
    host->free(comm);
}

/* ---- The library ----------------------------------------------------------------------------- */

static sl_nccl table = {
    .device_kind = SL_DEVICE_CUDA,
    .carrier = { .way = "through NCCL",
                 .prepare = prepare,
                 .make_id = make_id,
                 .open = open_comm,
                 .ask = ask,
                 .send = send_message,
                 .receive = receive_message,
                 .begin = begin_group,
                 .end = end_group,
                 .all_gather = all_gather,
                 .broadcast = broadcast,
                 .all_reduce = all_reduce,
                 .reduce = reduce,
                 .reduce_scatter = reduce_scatter,
                 .stop = stop,
                 .leave = leave,
                 .close = close_comm },
};

static sl_status find_symbols(void *library)
{
    const struct {
        const char *name;
        void *place;
    } needed[] = {
        { "ncclGetVersion", &nccl.get_version },
        { "ncclGetUniqueId", &nccl.get_unique_id },
        { "ncclCommInitRankConfig", &nccl.init },
        { "ncclCommGetAsyncError", &nccl.get_async_error },
        { "ncclSend", &nccl.send },
        { "ncclRecv", &nccl.receive },
        { "ncclGroupStart", &nccl.group_start },
        { "ncclGroupEnd", &nccl.group_end },
        { "ncclAllGather", &nccl.all_gather },
        { "ncclBroadcast", &nccl.broadcast },
        { "ncclAllReduce", &nccl.all_reduce },
        { "ncclReduce", &nccl.reduce },
        { "ncclReduceScatter", &nccl.reduce_scatter },
        { "ncclCommFinalize", &nccl.finalize },
        { "ncclCommDestroy", &nccl.destroy },
        { "ncclCommAbort", &nccl.abort },
        { "ncclGetErrorString", &nccl.error_string },
        { "ncclGetLastError", &nccl.last_error },
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        void *symbol = dlsym(library, needed[i].name);
        if (!symbol)
            return host->fail(SL_ERR_UNSUPPORTED, "libnccl.so.2 has no %s: NCCL 2.18 or newer is needed",
                              needed[i].name);
        memcpy(needed[i].place, &symbol, sizeof symbol);
    }
    return SL_OK;
}

SL_API sl_status sluice_nccl_module(const sl_nccl_host *given, const sl_nccl **out);

sl_status sluice_nccl_module(const sl_nccl_host *given, const sl_nccl **out)
{
    int version = 0;
    if (given->version != SL_NCCL_MODULE_VERSION)
        return given->fail(SL_ERR_UNSUPPORTED, "libsluice_nccl.so is not of this version of sluice");
    host = given;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return host->fail(SL_ERR_UNSUPPORTED, "NCCL is not installed: %s", dlerror());
    sl_status status = find_symbols(library);
    if (status != SL_OK)
        return status;
    (void)nccl.get_version(&version);
    snprintf(table.carrier.version, sizeof table.carrier.version, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    *out = &table;
    return SL_OK;
}
