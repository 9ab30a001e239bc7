/* How processes that somebody else started (torchrun, srun) on one machine find each other's memory. */
#ifndef SL_COMM_SHM_RENDEZVOUS_H
#define SL_COMM_SHM_RENDEZVOUS_H

#include "comm/shm/monitor.h"

/* All ranks give the same key. Rank 0 makes the memory and hands its descriptor to the others over a Unix socket in a
 * folder of the user's own; both sides check with the kernel that the other is the same user. Those who come wait for
 * the rest for SL_JOIN_TIMEOUTS hang timeouts. On success the caller owns *shm and the array *watches of *count
 * connections with their descriptors. */
sl_status sl_rendezvous(const char *key, int rank, int size, double hang_timeout, sl_shm **shm, sl_watch **watches,
                        int *count);

#endif
