/* Communication: groups of ranks, channels between them, collectives, failures that all hear of, the launcher.
 *
 * Threads: a rank's groups are used by one thread at a time. The in-place calls on a channel (reserve, commit, receive,
 * release and their try forms) may run in several threads at once as long as each channel end has one user. */
#ifndef SLUICE_COMM_H
#define SLUICE_COMM_H

#include <sluice/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_group sl_group;     /* some ranks of a run, numbered from 0 */
typedef struct sl_channel sl_channel; /* this rank's end of a one-way edge between two ranks of a group */
typedef struct sl_request sl_request; /* a collective on its way */

/* ---- Groups ---------------------------------------------------------------------------------- */

/* Zero is the default of every field. */
typedef struct SL_NAMED_FIELDS sl_group_options {
    const char *transport; /* "self", "local", "mpi"; NULL: SLUICE_TRANSPORT, else from how this process was started */
    double hang_timeout;   /* seconds without a sign of life before a rank counts as hung; 0: SLUICE_HANG_TIMEOUT, else
                              30; negative: never */
    double spin_us;        /* longest busy wait before sleeping; 0: SLUICE_SPIN_US, else 50; negative: sleep at once */
    bool checksum;         /* messages of this rank carry an xxHash of their bytes, checked on arrival; also
                              SLUICE_CHECKSUM=1 */
} sl_group_options;

/* Joins the run this process belongs to and returns once all its ranks have: the ranks of `sluice launch` and torchrun
 * over shared memory ("local"), those of mpirun over MPI, srun over the one or the other (one machine or several), else
 * a single rank ("self"). Once per process. options may be NULL. */
SL_API SL_MUST_CHECK sl_status sl_group_open(const sl_group_options *options, sl_group **out);

/* size ranks as threads of this process: out[r] is for the thread that plays rank r. Transport "threads". */
SL_API SL_MUST_CHECK sl_status sl_group_open_threads(int size, const sl_group_options *options, sl_group **out);

/* Leaves the group; NULL is fine. Its channels are closed, messages nobody took are dropped, and a rank that still
 * waits for this one gets an error. Groups split from it stay usable. Not collective, except with "mpi": there the
 * last group of a rank waits for the other ranks' last groups unless the run has failed. */
SL_API void sl_group_close(sl_group *group);

SL_API int sl_group_rank(const sl_group *group);
SL_API int sl_group_size(const sl_group *group);
/* Number in the whole run of this group's member `rank`; -1 if there is none. Errors name ranks by this number. */
SL_API int sl_group_world_rank(const sl_group *group, int rank);
/* Place of this rank among the run's ranks on the same machine, and how many they are (to choose a device). */
SL_API int sl_group_local_rank(const sl_group *group);
SL_API int sl_group_local_size(const sl_group *group);
SL_API const char *sl_group_transport(const sl_group *group); /* "self", "threads", "local", "mpi" */
SL_API uint64_t sl_group_run_id(const sl_group *group);       /* random, the same on all ranks of the run */

/* Collective over group. Members of the same color form a group, ordered by key, then by old rank.
 * A negative color joins none: *out becomes NULL. */
SL_API SL_MUST_CHECK sl_status sl_group_split(sl_group *group, int color, int key, sl_group **out);

/* Collective. Lays the pp * dp members out as a grid, rank = pp_rank * dp + dp_rank, and gives this rank's two groups:
 * *pp_out are the pp ranks of one pipeline, *dp_out the dp ranks that hold the same stages. The caller closes both. */
SL_API SL_MUST_CHECK sl_status sl_group_mesh(sl_group *group, int pp, int dp, sl_group **pp_out, sl_group **dp_out);

/* Collective. Seconds to add to this rank's sl_now() to get that of rank 0; 0 if they share a machine. */
SL_API SL_MUST_CHECK sl_status sl_group_clock_offset(sl_group *group, double *out);

/* NCCL's version, or why messages between GPUs cannot go through it: for people. Returns text. */
SL_API char *sl_nccl_describe(char *text, size_t size);
/* How messages between ranks with such a device go, on one machine and between machines, and why: for people. NULL: they
 * have none but the processor. Returns text. */
SL_API char *sl_device_links_describe(const sl_device *device, char *text, size_t size);

/* ---- Failures --------------------------------------------------------------------------------
 * The first failure of a run is the one that all ranks report: a rank that died, one that hangs, or sl_group_fail.
 * From then on every call below returns SL_ERR_PEER (the failing rank itself keeps its own code), and the message names
 * the rank, the reason, and what this rank was waiting for. */

/* Tells all ranks of the run that this one has failed with code and with this thread's sl_error_message().
 * Only the first failure of the run is kept. Returns code. */
SL_API sl_status sl_group_fail(sl_group *group, sl_status code);

/* SL_OK while nothing has failed. A load and a branch: may be called per action. */
SL_API SL_MUST_CHECK sl_status sl_group_check(sl_group *group);

/* What this rank is doing ("step 7 2F3"), for the report if a rank hangs or dies; the first 47 bytes count.
 * Tens of nanoseconds: may be called per action. */
SL_API void sl_group_note(sl_group *group, const char *text);

/* ---- Channels --------------------------------------------------------------------------------
 * One channel per edge and direction. Messages arrive in the order in which they were reserved. Slots are memory of the
 * host; a device with memory of its own reaches them by copies on its streams. */

typedef struct sl_channel_spec {
    int id;           /* the caller's number, >= 0, unique among the group's open channels */
    int src;          /* sending rank of the group */
    int dst;          /* receiving rank; may be src */
    int capacity;     /* slots: messages reserved, on their way, or received and not yet released; >= 1 */
    size_t max_bytes; /* of one message */
} sl_channel_spec;

/* What a message is. The receiver says what it expects and gets an error, with both views in its message, if the
 * sender said otherwise: SL_ERR_SHAPE for another shape or dtype, else SL_ERR_COMM. The message stays in its slot. Run
 * id, channel and length travel and are checked as well. */
typedef struct sl_message {
    int64_t step;
    int microbatch;
    sl_dtype dtype;
    sl_shape shape;
} sl_message;

/* Collective over group: connects the channels. A rank lists those it takes part in, in any order, and may list others.
 * Everybody's views are compared first; if two differ, or an end does not list its channel, all ranks get the same
 * error, which names both views. out[i] is this rank's end of specs[i], owned by the group; NULL if it has none. */
SL_API SL_MUST_CHECK sl_status sl_group_open_channels(sl_group *group, const sl_channel_spec *specs, int count,
                                                      sl_channel **out);

/* Closes this end before its group closes; NULL is fine. Messages nobody took are dropped, slots in use become invalid,
 * and a peer that waits on it, now or later, gets an error. The id is free again once both ends have closed. */
SL_API void sl_channel_close(sl_channel *channel);

SL_API const sl_channel_spec *sl_channel_get_spec(const sl_channel *channel); /* borrowed from the channel */

/* In place, sender: waits while all slots are in use, then gives the memory of a free one, aligned to 64 bytes, to be
 * filled with the message and committed. Several may be reserved at once and committed in any order; the receiver sees
 * each once it and all before it are committed. Fails at once if the channel's own rank would have to free the slot
 * (src == dst). */
SL_API SL_MUST_CHECK sl_status sl_channel_reserve(sl_channel *channel, const sl_message *message, void **data);
SL_API SL_MUST_CHECK sl_status sl_channel_commit(sl_channel *channel, void *data);

/* memcpy into a reserved slot. Large messages go past this core's caches to memory, from where another core reads them
 * up to 50 times faster; so a message made in ordinary memory and filled in beats a large one made in place, unless
 * sender and receiver share a cache. bytes may be 0. */
SL_API void sl_channel_fill(void *slot, const void *source, size_t bytes);

/* In place, receiver: waits for the next message and gives its memory, which the caller may read and write until
 * it releases it. Several messages may be held at once and released in any order. expected may be NULL if the receiver
 * cannot know; got, if not NULL, is set to what the sender said. */
SL_API SL_MUST_CHECK sl_status sl_channel_receive(sl_channel *channel, const sl_message *expected, sl_message *got,
                                                  void **data);
SL_API SL_MUST_CHECK sl_status sl_channel_release(sl_channel *channel, void *data);

/* In stream order: the message counts as sent, or the slot as free, once the stream has passed this point; for messages
 * that are filled or read by copies of a stream, or by its kernels. Does not wait. stream NULL: now. */
SL_API SL_MUST_CHECK sl_status sl_channel_commit_after(sl_channel *channel, void *data, sl_stream *stream);
SL_API SL_MUST_CHECK sl_status sl_channel_release_after(sl_channel *channel, void *data, sl_stream *stream);

/* The same without waiting: SL_OK and *data NULL if it would have to wait. */
SL_API SL_MUST_CHECK sl_status sl_channel_try_reserve(sl_channel *channel, const sl_message *message, void **data);
SL_API SL_MUST_CHECK sl_status sl_channel_try_receive(sl_channel *channel, const sl_message *expected, sl_message *got,
                                                      void **data);

/* Waits until at least one of the channels can be received from or, on a sending end, reserved; *ready is the first
 * such index. */
SL_API SL_MUST_CHECK sl_status sl_channel_wait_any(sl_channel *const *channels, int count, int *ready);

/* ---- Collectives -----------------------------------------------------------------------------
 * Every member calls the same ones in the same order; a member that calls another, or with other sizes, is an error
 * that names both. Sums run in rank order, so that their bits depend neither on timing nor on the size of the pieces.
 */

typedef enum sl_reduce {
    SL_REDUCE_SUM, /* bf16 and f16 are summed in f32 and rounded once */
    SL_REDUCE_MAX, /* not a number wins */
} sl_reduce;

SL_API SL_MUST_CHECK sl_status sl_group_barrier(sl_group *group);
SL_API SL_MUST_CHECK sl_status sl_group_broadcast(sl_group *group, int root, void *data, size_t bytes);
/* recv holds size * bytes, in rank order; send may be this rank's place in recv. */
SL_API SL_MUST_CHECK sl_status sl_group_all_gather(sl_group *group, const void *send, size_t bytes, void *recv);
/* send holds size * count elements; recv gets the reduction of this rank's count of them. dtype is any but bool.
 * recv may be this rank's place in send. */
SL_API SL_MUST_CHECK sl_status sl_group_reduce_scatter(sl_group *group, const void *send, void *recv, int64_t count,
                                                       sl_dtype dtype, sl_reduce reduce);
SL_API SL_MUST_CHECK sl_status sl_group_all_reduce(sl_group *group, void *data, int64_t count, sl_dtype dtype,
                                                   sl_reduce reduce);

/* The same, posted: the call returns at once, and the collective goes on whenever this rank waits for anything or calls
 * sl_request_test or sl_group_progress. Posted collectives of a group run in the order in which they were posted, and so
 * do the blocking ones among them. In the long run nothing is allocated.
 *
 * stream NULL: the data is host memory and stays busy until the request is done. Else it is memory of the stream's
 * device, read and written in the order of the stream: it is read after all that the stream was given before, and work
 * given to the stream once the request is done finds the result. The stream itself is never waited for. */
SL_API SL_MUST_CHECK sl_status sl_group_broadcast_post(sl_group *group, int root, void *data, size_t bytes,
                                                       sl_stream *stream, sl_request **out);
SL_API SL_MUST_CHECK sl_status sl_group_all_gather_post(sl_group *group, const void *send, size_t bytes, void *recv,
                                                        sl_stream *stream, sl_request **out);
SL_API SL_MUST_CHECK sl_status sl_group_reduce_scatter_post(sl_group *group, const void *send, void *recv,
                                                            int64_t count, sl_dtype dtype, sl_reduce reduce,
                                                            sl_stream *stream, sl_request **out);
/* Buckets: one collective over many tensors, each with its own send and recv as above. Their parts travel together, in as
 * few messages as one tensor of all their bytes needs. The list is borrowed until the request is done. */
typedef struct sl_bucket_item {
    const void *send;
    void *recv;
    int64_t count; /* of a part: elements, or bytes of an all-gather */
} sl_bucket_item;

SL_API SL_MUST_CHECK sl_status sl_group_all_gather_bucket_post(sl_group *group, const sl_bucket_item *items, int count,
                                                               sl_stream *stream, sl_request **out);
/* The same, begun once `after` is done: a request of another group, for what that leaves on this rank. Each send must be
 * this rank's place in recv. `after` must be waited for after this one. */
SL_API SL_MUST_CHECK sl_status sl_group_all_gather_bucket_post_after(sl_group *group, const sl_bucket_item *items,
                                                                     int count, sl_stream *stream, sl_request *after,
                                                                     sl_request **out);
/* Member m gets part (m % rows) * (size / rows) + m / rows of each send, for members that share with `rows` neighbors
 * what the groups of neighbors all have. rows divides the size; with 1 the parts lie by member. */
SL_API SL_MUST_CHECK sl_status sl_group_reduce_scatter_bucket_post(sl_group *group, const sl_bucket_item *items,
                                                                   int count, int rows, sl_dtype dtype,
                                                                   sl_reduce reduce, sl_stream *stream,
                                                                   sl_request **out);
SL_API SL_MUST_CHECK sl_status sl_group_all_reduce_post(sl_group *group, void *data, int64_t count, sl_dtype dtype,
                                                        sl_reduce reduce, sl_stream *stream, sl_request **out);

/* Waits until the request is done and frees it, also if it fails. */
SL_API SL_MUST_CHECK sl_status sl_request_wait(sl_request *request);
/* Makes progress; *done tells whether the request is done. Once it is, or the call fails, the request has been freed. */
SL_API SL_MUST_CHECK sl_status sl_request_test(sl_request *request, bool *done);
/* Makes progress on whatever this rank has posted. Without anything posted it costs as much as sl_group_check. */
SL_API SL_MUST_CHECK sl_status sl_group_progress(sl_group *group);

/* One blob of any size from each rank, on every rank: blob r is the `bytes[r]` bytes at `data[r]`, aligned to 16 bytes.
 */
typedef struct sl_blobs {
    int count;
    size_t *bytes;
    void **data;
} sl_blobs;

SL_API SL_MUST_CHECK sl_status sl_group_gather_blobs(sl_group *group, const void *blob, size_t bytes, sl_blobs **out);
SL_API void sl_blobs_destroy(sl_blobs *blobs); /* NULL is fine */

/* ---- Launcher -------------------------------------------------------------------------------- */

typedef enum sl_launch_bind {
    SL_BIND_AUTO, /* as the environment's SLUICE_BIND says (auto, none, core), else: equal shares of the machine's cores, if
                     they are no fewer than the ranks' threads and this process may use all of them; as SL_BIND_CORE, if
                     the ranks have one thread each and are twice, three times, ... as many as the cores that this process
                     may use; else as SL_BIND_NONE */
    SL_BIND_NONE, /* any core */
    SL_BIND_CORE  /* rank r on the r-th core that this process may use, modulo their number */
} sl_launch_bind;

/* The exit code of a rank that failed for a reason that may be gone the next time, such as a lost peer: the run is worth
 * another start (EX_TEMPFAIL of sysexits.h). */
enum { SL_EXIT_AGAIN = 75 };

/* Zero is the default of every field except ranks and one of argv and run. */
typedef struct SL_NAMED_FIELDS sl_launch_options {
    int ranks;
    char *const *argv;                /* program and arguments, NULL at the end; found as execvp finds it */
    int (*run)(void *user, int rank); /* instead of argv: called in a fork of this process, which then calls exit() with
                                         what it returns */
    void *user;
    sl_launch_bind bind;
    int threads;         /* that work in each rank, for SL_BIND_AUTO; 0: one */
    bool tag_output;     /* "[2] " before each line of output of rank 2 */
    double hang_timeout; /* as in sl_group_options */
    double grace; /* seconds from a forwarded signal to SIGKILL for what still runs; 0: 5. After a failure 5 at most */

    /* How often all ranks are started again after one was lost: killed by a signal, hung, stopped, or ended with
     * SL_EXIT_AGAIN. They then find SLUICE_RESTART (1, 2, ...) and SLUICE_RESTART_REASON in their environment. */
    int restarts;
    /* After two starts in a row in which no step was completed the next is with fewer ranks, but no fewer than this; 0:
     * always the same number. */
    int min_ranks;
    /* With how many ranks, at most `most`, the run can go on; 0: with none. May replace *argv, which then has to live as
     * long as the launch. NULL: any number is fine. Called in a fork of this process. */
    int (*choose_ranks)(void *user, int most, char *const **argv);
} sl_launch_options;

typedef enum sl_launch_end {
    SL_LAUNCH_DONE,    /* all ranks ended well */
    SL_LAUNCH_FAILED,  /* a rank failed, and would fail again */
    SL_LAUNCH_LOST,    /* a rank was killed, hung or stopped, or said SL_EXIT_AGAIN */
    SL_LAUNCH_STOPPED, /* somebody asked for the end: SIGINT, SIGTERM, SIGHUP */
} sl_launch_end;

typedef struct sl_launch_result {
    int exit_code;     /* 0; else that of the rank that failed first, 128 + signal if it was killed */
    int rank;          /* that rank; -1 if none failed */
    sl_launch_end end; /* of the last start */
    int restarts;      /* how often the ranks were started again */
    int ranks;         /* of the last start */
    char report[4096]; /* several lines, root cause first; empty if none failed */
} sl_launch_result;

/* Starts the ranks, waits for all of them, ends them all when one fails. Each finds the run in its environment, where
 * sl_group_open looks. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded meanwhile. Rank 0 keeps standard
 * input unless it is a terminal. The ranks are children of a fork of this process, which ends every process that they
 * started, in any session, also if this process is killed. Returns SL_OK once the ranks have run, however they ended.
 * Only one thread at a time may call it. Other threads of this process go on, and must block those signals so that they
 * do not get them; `run` finds none of these threads in its fork. */
SL_API SL_MUST_CHECK sl_status sl_launch(const sl_launch_options *options, sl_launch_result *out);

#ifdef __cplusplus
}
#endif
#endif
