/* NCCL: messages between device memories of ranks on several machines. It is in a module of its own, libsluice_nccl.so,
 * which is loaded when it is first asked for, so that nothing else needs NCCL. */
#ifndef SL_COMM_NCCL_H
#define SL_COMM_NCCL_H

#include "device/backend.h"

/* Names a communicator; plain data that all its ranks get. */
typedef struct sl_nccl_id {
    unsigned char bytes[128];
} sl_nccl_id;

typedef struct sl_nccl_comm sl_nccl_comm; /* one rank's end of a communicator; the module's */

/* What the module provides; lives as long as the process. No call waits for another rank: each begins something that is done,
 * or in the stream, once `ask` says ready, and nothing else is asked of the communicator before. */
typedef struct SL_NAMED_FIELDS sl_nccl {
    char version[32];
    sl_device_kind device_kind; /* whose memory and streams it takes */
    bool serves_threads;        /* several ranks of one process can use it */
    /* Before anything else: host_id tells apart ranks that share a GPU, which NCCL takes for a mistake; NULL: none does. */
    void (*prepare)(const char *host_id);
    sl_status (*make_id)(sl_nccl_id *out);
    /* blocks: of threads that each of its kernels may have on the GPU, the same on all ranks. More carry more bytes a second
     * and take more memory. */
    sl_status (*open)(const sl_nccl_id *id, int ranks, int rank, int blocks, sl_nccl_comm **out);
    sl_status (*ask)(sl_nccl_comm *comm, bool *ready); /* fails if the communicator has */
    sl_status (*send)(sl_nccl_comm *comm, const void *data, size_t bytes, int to, sl_stream *stream);
    sl_status (*receive)(sl_nccl_comm *comm, void *data, size_t bytes, int from, sl_stream *stream);
    /* What is asked for between begin and end, of one communicator and for one stream, starts at once: no part of it waits
     * for another. After a call that failed, end is called all the same. */
    sl_status (*begin)(void);
    sl_status (*end)(sl_nccl_comm *comm);
    sl_status (*all_gather)(sl_nccl_comm *comm, const void *data, size_t bytes, void *all, sl_stream *stream);
    sl_status (*broadcast)(sl_nccl_comm *comm, void *data, size_t bytes, int root, sl_stream *stream);
    /* Sums of floating dtypes in an order of its own. reduce: on root alone; reduce_scatter: of all parts of `parts`, one a
     * rank, the own one. */
    sl_status (*all_reduce)(sl_nccl_comm *comm, void *data, int64_t count, sl_dtype dtype, sl_stream *stream);
    sl_status (*reduce)(sl_nccl_comm *comm, const void *data, void *sum, int64_t count, sl_dtype dtype, int root,
                        sl_stream *stream);
    sl_status (*reduce_scatter)(sl_nccl_comm *comm, const void *parts, void *sum, int64_t count, sl_dtype dtype,
                                sl_stream *stream);
    /* Ends all that is under way, so that streams go on; only close may follow. */
    void (*stop)(sl_nccl_comm *comm);
    /* Begins an end in which what has left this rank still arrives. No stream of this rank uses it any more, and only stop or
     * close may follow. Not needed after stop. */
    void (*leave)(sl_nccl_comm *comm);
    /* Stops it, unless it has left or been stopped; waits a moment for the end that leave began. */
    void (*close)(sl_nccl_comm *comm);
} sl_nccl;

/* What the module gets from the library: it uses none of its symbols. */
typedef struct SL_NAMED_FIELDS sl_nccl_host {
    uint32_t version; /* SL_NCCL_MODULE_VERSION */
    sl_status (*fail)(sl_status code, const char *format, ...) SL_PRINTF(2, 3);
    sl_status (*alloc)(size_t count, size_t size, void **out); /* zeroed */
    void (*free)(void *block);
    void *(*stream_native)(const sl_stream *stream);
} sl_nccl_host;

/* Grows with every change of the two structs or of what they point to. */
#define SL_NCCL_MODULE_VERSION 2u

/* The one symbol of the module. *out is set only on success; SL_ERR_UNSUPPORTED if NCCL itself is not installed or the
 * host's version is another. */
#define SL_NCCL_MODULE_SYMBOL "sluice_nccl_module"
typedef sl_status sl_nccl_module_function(const sl_nccl_host *host, const sl_nccl **out);

/* Loads the module; fails, each time, if it or NCCL is not installed. */
SL_MUST_CHECK sl_status sl_nccl_load(const sl_nccl **out);
/* For tests: stands in for the module; NULL takes it away. */
void sl_nccl_set_extra(const sl_nccl *nccl);

#endif
