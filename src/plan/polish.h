/* Inside of the local search: the critical path of an order. */
#ifndef SL_PLAN_POLISH_H
#define SL_PLAN_POLISH_H

#include "plan/player.h"

/* A step on the path. */
typedef struct sl_critical_step {
    int rank, step;
} sl_critical_step;

typedef struct sl_critical {
    sl_critical_step *steps; /* (capacity) from the end to the start */
    int count, capacity;
} sl_critical;

/* Of the order that the player has just accepted. */
void sl_critical_find(const sl_player *player, sl_critical *self);

#endif
