/* Carriers: what moves messages between the device memories of ranks that do not reach each other's, in the order of streams.
 * NCCL is one, an MPI that takes device memory another. Here: what a carrier provides, who uses which with whom, and waiting
 * for a communicator as far as the run goes on. */
#ifndef SL_COMM_CARRIER_H
#define SL_COMM_CARRIER_H

#include "comm/device_words.h"

/* In the order in which they are tried. */
typedef enum sl_carrier_name { SL_CARRIER_NCCL, SL_CARRIER_MPI, SL_CARRIERS } sl_carrier_name;

/* Names a communicator; plain data that all its ranks get. */
typedef struct sl_carrier_id {
    unsigned char bytes[128];
} sl_carrier_id;

typedef struct sl_carrier sl_carrier;

/* One rank's end of a communicator: the head of each carrier's own struct. */
typedef struct sl_carrier_comm {
    const sl_carrier *carrier;
} sl_carrier_comm;

/* Who opens a communicator. */
typedef struct SL_NAMED_FIELDS sl_carrier_place {
    sl_device_words *words; /* of this rank; they live longer */
    const int *members;     /* (ranks) of the group of the words' run: their ranks in the run */
    int ranks, rank;        /* of the communicator */
    int blocks; /* of threads that each kernel of NCCL may have on the GPU, the same on all ranks. More carry more bytes a
                   second and take more memory. */
} sl_carrier_place;

/* What a carrier provides; lives as long as the process. No call waits for another rank: each begins something that is done,
 * or in the stream, once `ask` says ready, and nothing else is asked of the communicator before. */
struct SL_NAMED_FIELDS sl_carrier {
    const char *way; /* of messages, for people */
    char version[32];
    bool serves_threads; /* it joins ranks of one process that share a device */
    bool holds_queues;   /* a stream that waits for it holds up those that share its queue to the device */
    /* Optional. Before anything else: host_id tells apart ranks that share a GPU, which NCCL takes for a mistake; NULL: none
     * does. */
    void (*prepare)(const char *host_id);
    sl_status (*make_id)(sl_device_words *words, sl_carrier_id *out);
    sl_status (*open)(const sl_carrier_id *id, const sl_carrier_place *place, sl_carrier_comm **out);
    sl_status (*ask)(sl_carrier_comm *comm, bool *ready); /* fails if the communicator has */
    sl_status (*send)(sl_carrier_comm *comm, const void *data, size_t bytes, int to, sl_stream *stream);
    sl_status (*receive)(sl_carrier_comm *comm, void *data, size_t bytes, int from, sl_stream *stream);
    /* What is asked for between begin and end, of one communicator and for one stream, starts at once: no part of it waits
     * for another. After a call that failed, end is called all the same. */
    sl_status (*begin)(sl_carrier_comm *comm);
    sl_status (*end)(sl_carrier_comm *comm);
    sl_status (*all_gather)(sl_carrier_comm *comm, const void *data, size_t bytes, void *all, sl_stream *stream);
    sl_status (*broadcast)(sl_carrier_comm *comm, void *data, size_t bytes, int root, sl_stream *stream);
    /* Optional, all or none: sums of floating dtypes in an order of its own. reduce: on root alone; reduce_scatter: of all
     * parts of `parts`, one a rank, the own one. */
    sl_status (*all_reduce)(sl_carrier_comm *comm, void *data, int64_t count, sl_dtype dtype, sl_stream *stream);
    sl_status (*reduce)(sl_carrier_comm *comm, const void *data, void *sum, int64_t count, sl_dtype dtype, int root,
                        sl_stream *stream);
    sl_status (*reduce_scatter)(sl_carrier_comm *comm, const void *parts, void *sum, int64_t count, sl_dtype dtype,
                                sl_stream *stream);
    /* Ends all that is under way, so that streams go on; only close may follow. */
    void (*stop)(sl_carrier_comm *comm);
    /* Begins an end in which what has left this rank still arrives. No stream of this rank uses it any more, and only stop or
     * close may follow. Not needed after stop. */
    void (*leave)(sl_carrier_comm *comm);
    /* Stops it, unless it has left or been stopped; waits a moment for the end that leave began. */
    void (*close)(sl_carrier_comm *comm);
};

/* ---- Who uses which with whom ---- */

/* NULL if ranks a and b may try the carrier; else why not (static), "" if nobody asked. All ranks find the same. */
const char *sl_carrier_obstacle(sl_carrier_name name, const sl_rank_offer *offers, int a, int b);
/* Collective: can[r] becomes what rank r says of itself, for sl_carrier_join_obstacle. *out becomes NULL, and reason (256
 * bytes) says why, if this rank cannot use the carrier. */
SL_MUST_CHECK sl_status sl_carrier_join(sl_carrier_name name, sl_device_words *words, sl_group *group,
                                        const sl_rank_offer *offers, uint8_t *can, char *reason,
                                        const sl_carrier **out);
/* NULL if ranks a and b can share a communicator; else why not (static). All ranks find the same. */
const char *sl_carrier_join_obstacle(sl_carrier_name name, const sl_rank_offer *offers, const uint8_t *can, int a,
                                     int b);

/* Collective: whether it has worked on all ranks; if not, reason (256 bytes, "" before) says why not. own: how it went here,
 * with its error message. Fails only if the run has. */
SL_MUST_CHECK sl_status sl_carrier_agree(sl_group *group, sl_status own, char *reason);
/* Collective: a communicator of the whole group. If it cannot be had, reason says why, on all ranks, and *comm is NULL. */
SL_MUST_CHECK sl_status sl_carrier_open_group(sl_carrier_name name, sl_device_words *words, sl_group *group,
                                              const sl_rank_offer *offers, char *reason, sl_carrier_comm **comm);

/* The carrier of an MPI that takes device memory; fails, and says why, if the run has none. */
SL_MUST_CHECK sl_status sl_carrier_load_mpi(sl_group *group, const sl_device *device, const sl_carrier **out);

/* ---- Waiting ---- */

/* For the other ranks to come, too. */
#define SL_CARRIER_OPEN_SECONDS 30

/* Until the communicator has done what it was asked for last. limit: seconds; 0: none. */
SL_MUST_CHECK sl_status sl_carrier_settle(sl_device_words *words, sl_carrier_comm *comm, double limit);
/* Until the stream has done what the communicator was asked for, SL_CARRIER_OPEN_SECONDS at most. */
SL_MUST_CHECK sl_status sl_carrier_await(sl_device_words *words, sl_carrier_comm *comm, sl_stream *stream);
/* Begins the end of a communicator that no stream of this rank uses any more; close is to follow. */
void sl_carrier_leave(sl_device_words *words, sl_carrier_comm *comm);
/* Fails if the communicator has. */
SL_MUST_CHECK sl_status sl_carrier_check(sl_device_words *words, sl_carrier_comm *comm);

/* Which carrier a run that begins now will use, as far as the environment tells: it is asked for, or the run is on several
 * machines and has NCCL. False: perhaps none. */
bool sl_carrier_is_expected(const sl_device *device, sl_carrier_name *name);

/* ---- What NCCL takes ---- */

/* For sl_carrier_place.blocks, if a rank has so many links. Kernels of NCCL wait for other ranks beside the kernels of a
 * step: few of them may hold the GPU's processors. */
int sl_nccl_blocks(int links);
/* Bytes of the device that NCCL takes for the communicators of a rank, about. */
size_t sl_nccl_memory(const sl_nccl_use *use);

#endif
