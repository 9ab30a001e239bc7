/* The mover: a thread that moves posted collectives along while its rank computes. Without it they go on between actions
 * and while the rank waits. */
#ifndef SL_RUNTIME_MOVER_H
#define SL_RUNTIME_MOVER_H

#include <sluice/runtime.h>

typedef struct sl_mover sl_mover;

/* Whether the choice comes to a mover: if it is left open, that needs a core of its own. */
bool sl_mover_is_wanted(sl_helper choice, sl_group *group, const sl_device *device);

/* For what the rank posts in any group of the run that group belongs to. */
SL_MUST_CHECK sl_status sl_mover_start(sl_group *group, sl_mover **out);
void sl_mover_stop(sl_mover *mover); /* NULL is fine */
/* Something has been posted. NULL is fine. */
void sl_mover_wake(sl_mover *mover);

#endif
