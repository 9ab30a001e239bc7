/* Ranks of one machine that reach each other's device memory: who can, the blocks that they share, and the words in these
 * blocks by which a stream of one rank holds up or lets go a stream of another. Links and collectives are built on it. */
#ifndef SL_COMM_DEVICE_WORDS_H
#define SL_COMM_DEVICE_WORDS_H

#include "device/share.h"

#include <sluice/comm.h>

/* ---- Who can reach whom ---- */

/* What SLUICE_DEVICE_LINKS says: nothing, 0, 1, nccl, mpi. */
typedef enum sl_links_wish {
    SL_LINKS_UNSAID,
    SL_LINKS_NONE,
    SL_LINKS_ANY,
    SL_LINKS_NCCL,
    SL_LINKS_MPI,
} sl_links_wish;

/* Communicators of NCCL that a rank has. */
typedef struct sl_nccl_use {
    int links, most_links; /* of this rank, and of the rank that has the most */
    int groups;
} sl_nccl_use;

/* What a rank says of itself; plain data. */
typedef struct sl_rank_offer {
    uint64_t machine; /* 0: it does not know */
    int64_t process;
    uint64_t unit;     /* its device, among those of the machine */
    int32_t kind;      /* of its device */
    int32_t queues;    /* of its process to the device; 0: the device shares nothing */
    int32_t neighbors; /* ranks of the run that are threads of its process */
    int32_t wish;      /* sl_links_wish */
} sl_rank_offer;

/* Fails if the variable has another value. */
SL_MUST_CHECK sl_status sl_links_read_wish(int32_t *wish);
/* Why ranks go the way they do if nothing was in its way (static). */
const char *sl_links_wish_reason(int32_t wish);
/* Collective: offers[r] becomes that of rank r. */
SL_MUST_CHECK sl_status sl_rank_offers_gather(sl_group *group, const sl_device *device, sl_rank_offer *offers);
/* Collective: whether all ranks share one device and reach each other's memory. Processes try it with a small block. */
SL_MUST_CHECK sl_status sl_ranks_share_device(sl_group *group, sl_device *device, bool *out);
/* NULL if ranks a and b may try to reach each other's memory; else why they cannot (static), "" if another way is wished. */
const char *sl_rank_obstacle(const sl_rank_offer *offers, int ranks, int a, int b);
/* NULL if the process has enough queues for its ranks; else what is wrong (static). */
const char *sl_rank_queue_obstacle(const sl_rank_offer *offer);

/* Streams of the rank beside those of a step that can wait for other ranks without holding each other up. */
int sl_rank_spare_queues(const sl_rank_offer *offer);

/* Collective. Each rank gives the handle of its block (zeros if it has none) and wants those of the ranks p with
 * wanted[p]. attached[p] becomes the block of p, to be detached. reached[a * ranks + b]: a has attached b's block, the same
 * on all ranks. reason, of 256 bytes and "" before, gets this rank's first trouble. */
SL_MUST_CHECK sl_status sl_device_attach_peers(sl_group *group, sl_device *device, const sl_device_handle *own,
                                               const uint8_t *wanted, void **attached, uint8_t *reached, char *reason);

/* ---- Words ---- */

typedef struct sl_device_words sl_device_words; /* all words that streams of one rank wait for */

/* group and device live longer. It starts polled. */
SL_MUST_CHECK sl_status sl_device_words_open(sl_group *group, sl_device *device, sl_device_words **out);
void sl_device_words_close(sl_device_words *words);          /* once no stream waits any more; NULL is fine */
bool sl_device_words_are_used(const sl_device_words *words); /* a stream may wait for one, or for something else */
sl_group *sl_device_words_group(const sl_device_words *words);
sl_device *sl_device_words_device(const sl_device_words *words);
/* A stream for what must not wait behind a step. */
sl_stream *sl_device_words_side(const sl_device_words *words);

/* Whether collectives poll, see sl_device_words_await. */
void sl_device_words_set_polled(sl_device_words *words, bool polled);
bool sl_device_words_are_polled(const sl_device_words *words);

/* Something else than words that streams of this rank wait for; lies with its owner. */
typedef struct sl_device_waits {
    sl_status (*check)(void *user); /* while the host waits for a stream: fails if what it waits for has */
    /* The run has failed and they must be let through; called again and again until they are done. False: it cannot be
     * done. */
    bool (*release)(void *user);
    /* No stream waits any more: begins what closing waits for, so that all of it ends at once. */
    void (*leave)(void *user);
    void *user;
    struct sl_device_waits *next; /* of the words' */
} sl_device_waits;

void sl_device_words_add_waits(sl_device_words *words, sl_device_waits *waits);
void sl_device_words_remove_waits(sl_device_words *words, const sl_device_waits *waits); /* also if it was not added */
void sl_device_words_leave(const sl_device_words *words);                                /* all that were added */

/* Streams of this rank wait for the words [first, first + count), which lie in a block of its own. */
SL_MUST_CHECK sl_status sl_device_words_add(sl_device_words *words, uint32_t *first, size_t count);
/* They do no longer; the block may go. */
void sl_device_words_remove(sl_device_words *words, const uint32_t *first);

/* In stream order: waits until the word is odd.
 * polled: the host waits in place of the stream, so that no stream is ever held up. That is for steps in which a rank may do
 * something that waits for a whole device: load a kernel, allocate memory. */
SL_MUST_CHECK sl_status sl_device_words_await(sl_device_words *words, uint32_t *word, bool polled, sl_stream *stream);
/* The same, and makes it 0, so that the next wait is for the next write. polled with tag: the word behind it must be that. */
SL_MUST_CHECK sl_status sl_device_words_take(sl_device_words *words, uint32_t *word, const uint32_t *tag, bool polled,
                                             sl_stream *stream);

/* While the host waits for a stream it asks now and then whether that waits for another rank, and is_held_up may say for what
 * (sl_group_note_wait). If it does not wait, the time counts as that of an action (sl_group_is_waiting). NULL: it always
 * does. */
void sl_device_words_set_watch(sl_device_words *words, bool (*is_held_up)(void *user), void *user);

/* Waits on the host, as far as the run goes on: fails if a rank has failed. */
SL_MUST_CHECK sl_status sl_device_words_wait_event(sl_device_words *words, sl_event *event);
SL_MUST_CHECK sl_status sl_device_words_wait(sl_device_words *words, sl_stream *stream);
/* If the run has failed: lets the streams of this rank run through to their end, past words that nobody will write. */
void sl_device_words_free_streams(sl_device_words *words, sl_stream *const *streams, int count);

/* Whether a thread of this rank waits for another rank is what tells a wait from an action that does not come back. */
void sl_device_words_count_waiting(sl_device_words *words, int more);
/* Busily for a moment, but others may have the core. since: when the wait began. */
void sl_device_pause(double since);

uint64_t sl_hash_bytes(const void *data, size_t bytes); /* FNV-1a */

#endif
