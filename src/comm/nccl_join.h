/* Ranks that use NCCL together: who can, and waiting for a communicator as far as the run goes on. */
#ifndef SL_COMM_NCCL_JOIN_H
#define SL_COMM_NCCL_JOIN_H

#include "comm/device_words.h"
#include "comm/nccl.h"

/* For the other ranks to come, too. */
#define SL_NCCL_OPEN_SECONDS 30

/* Collective: can[r] becomes what rank r says of itself, for sl_nccl_join_obstacle. *out becomes NULL, and reason (256 bytes)
 * says why, if this rank cannot use NCCL. */
SL_MUST_CHECK sl_status sl_nccl_join(sl_group *group, sl_device *device, const sl_rank_offer *offers, uint8_t *can,
                                     char *reason, const sl_nccl **out);
/* NULL if ranks a and b can share a communicator; else why not (static). All ranks find the same. */
const char *sl_nccl_join_obstacle(const sl_rank_offer *offers, const uint8_t *can, int a, int b);

/* Collective: whether it has worked on all ranks; if not, reason (256 bytes, "" before) says why not. own: how it went here,
 * with its error message. Fails only if the run has. */
SL_MUST_CHECK sl_status sl_nccl_agree(sl_group *group, sl_status own, char *reason);
/* Collective: a communicator of the whole group. If it cannot be had, reason says why, on all ranks, and *comm is NULL. */
SL_MUST_CHECK sl_status sl_nccl_open_group(sl_device_words *words, sl_group *group, const sl_rank_offer *offers,
                                           char *reason, const sl_nccl **nccl, sl_nccl_comm **comm);

/* For sl_nccl.open, if a rank has so many links. Their kernels wait for other ranks beside the kernels of a step: few
 * of them may hold the GPU's processors. */
int sl_nccl_blocks(int links);

/* Bytes of the device that NCCL takes for the communicators of a rank, about. */
size_t sl_nccl_memory(const sl_nccl_use *use);
/* Whether a run that begins now will use NCCL, as far as the environment tells: it is asked for, or the run is on several
 * machines. */
bool sl_nccl_is_expected(const sl_device *device);

/* Until the communicator has done what it was asked for last. limit: seconds; 0: none. */
SL_MUST_CHECK sl_status sl_nccl_settle(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm, double limit);
/* Until the stream has done what the communicator was asked for, SL_NCCL_OPEN_SECONDS at most. */
SL_MUST_CHECK sl_status sl_nccl_await(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm,
                                      sl_stream *stream);
/* Begins the end of a communicator that no stream of this rank uses any more; close is to follow. */
void sl_nccl_leave(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm);
/* Fails if the communicator has. */
SL_MUST_CHECK sl_status sl_nccl_check(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm);

#endif
