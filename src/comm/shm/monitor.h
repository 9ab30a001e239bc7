/* A thread in each process of a local run: it shows signs of life, looks for those of the other ranks, and notices when
 * a connection closes. */
#ifndef SL_COMM_SHM_MONITOR_H
#define SL_COMM_SHM_MONITOR_H

#include "comm/shm/control.h"

typedef struct sl_monitor sl_monitor;

/* A connection that closes when the other side dies. */
typedef struct sl_watch {
    int fd;
    int rank; /* of the other side; -1 for the launcher */
} sl_watch;

/* Takes over the descriptors on success. watches is copied. */
sl_status sl_monitor_start(sl_shm *shm, int rank, const sl_watch *watches, int count, sl_monitor **out);
void sl_monitor_stop(sl_monitor *monitor); /* NULL is fine */

#endif
