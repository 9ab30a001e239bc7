/* The checker's parts: each finds the first violation of its kind. */
#ifndef SL_SCHEDULE_CHECK_H
#define SL_SCHEDULE_CHECK_H

#include "schedule/walk.h"

/* Where and why; false is returned by those who find a violation, so that `return violate(...)` reads well. */
SL_PRINTF(4, 5)
bool sl_violate(sl_violation *violation, int rank, int64_t cell, const char *format, ...);

/* Same, and sets violation->text to the action: the cell that is there or the one that is missing. */
bool sl_violate_action(sl_violation *violation, int rank, int64_t cell, sl_action action, const char *reason);

/* What each rank can tell alone: each action once, in order, complete. Needs stages and microbatches without gaps. */
SL_MUST_CHECK sl_status sl_check_ranks(const sl_schedule *schedule, const sl_links *links, bool *valid,
                                       sl_violation *violation);

/* Sends and receives of an edge in the same order on both sides. Needs valid ranks. */
SL_MUST_CHECK sl_status sl_check_pairs(const sl_schedule *schedule, const sl_links *links, bool *valid,
                                       sl_violation *violation);

/* After a walk has run all that can run: whether no rank waits forever. */
bool sl_check_progress(const sl_walk *walk, sl_violation *violation);

/* The parts put together, for those who walk themselves: shape, ranks and pairs before the walk, progress after it. Both
 * return SL_ERR_SCHEDULE as sl_schedule_check() does; violation may be NULL. A schedule that passed the first once with
 * edges between neighbors remembers that. */
SL_MUST_CHECK sl_status sl_check_before_walk(const sl_schedule *schedule, const sl_links *links,
                                             sl_violation *violation);
SL_MUST_CHECK sl_status sl_check_after_walk(const sl_walk *walk, sl_violation *violation);

#endif
