/* The checker's parts: each finds the first violation of its kind. */
#ifndef SL_SCHEDULE_CHECK_H
#define SL_SCHEDULE_CHECK_H

#include "schedule/links.h"

/* Where and why; false is returned by those who find a violation, so that `return violate(...)` reads well. */
SL_PRINTF(4, 5)
bool sl_violate(sl_violation *violation, int rank, int64_t cell, const char *format, ...);

/* Same, and sets violation->text to the action: the cell that is there or the one that is missing. */
bool sl_violate_action(sl_violation *violation, int rank, int64_t cell, sl_action action, const char *reason);

/* Stages and microbatches without gaps, no rank empty, and so few microbatches that a byte for each (stage,
 * microbatch) is never more than the actions themselves take. *valid tells; violation is set where it is false. */
SL_MUST_CHECK sl_status sl_check_shape(const sl_schedule *schedule, bool *valid, sl_violation *violation);

/* What each rank can tell alone: each action once, in order, complete. Needs a valid shape. */
SL_MUST_CHECK sl_status sl_check_ranks(const sl_schedule *schedule, const sl_links *links, bool *valid,
                                       sl_violation *violation);

/* Sends and receives of an edge in the same order on both sides. Needs valid ranks. */
SL_MUST_CHECK sl_status sl_check_pairs(const sl_schedule *schedule, const sl_links *links, bool *valid,
                                       sl_violation *violation);

/* No rank waits forever. Needs valid pairs. capacity < 0: unlimited. */
SL_MUST_CHECK sl_status sl_check_progress(const sl_schedule *schedule, const sl_links *links, int64_t capacity,
                                          bool *valid, sl_violation *violation);

#endif
