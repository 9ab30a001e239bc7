/* What a generator is given and fills: one rank's list at a time. */
#ifndef SL_SCHEDULE_GENERATE_H
#define SL_SCHEDULE_GENERATE_H

#include "schedule/schedule.h"

/* The size of the schedule to be generated. */
typedef struct sl_plan {
    int ranks;
    int chunks; /* stages a rank */
    int microbatches;
    sl_placement placement;
} sl_plan;

/* Fills the rank's empty list; may rely on options that sl_schedule_generate() has checked. */
typedef sl_status (*sl_generate_rank)(const sl_plan *plan, int rank, sl_action_list *out);

sl_status sl_generate_gpipe(const sl_plan *plan, int rank, sl_action_list *out);
sl_status sl_generate_1f1b(const sl_plan *plan, int rank, sl_action_list *out);
sl_status sl_generate_interleaved_1f1b(const sl_plan *plan, int rank, sl_action_list *out);
sl_status sl_generate_interleaved_zero_bubble(const sl_plan *plan, int rank, sl_action_list *out);
sl_status sl_generate_looped_bfs(const sl_plan *plan, int rank, sl_action_list *out);
sl_status sl_generate_zbv(const sl_plan *plan, int rank, sl_action_list *out);
sl_status sl_generate_dual_pipe_v(const sl_plan *plan, int rank, sl_action_list *out);
sl_status sl_generate_forward(const sl_plan *plan, int rank, sl_action_list *out); /* F alone, either placement */

/* The microbatches in rounds of about one a rank, the longer rounds first. In a round each chunk runs the round's
 * microbatches before the next chunk does, so that a microbatch is back at its rank just when it is wanted. */
typedef struct sl_rounds {
    int chunks;
    int short_size; /* microbatches of a short round */
    int long_count; /* rounds that have one more */
} sl_rounds;

sl_rounds sl_rounds_make(const sl_plan *plan);

/* What stands at place `index` of the order of all (chunk, microbatch): rounds, in them chunks, in them microbatches.
 */
void sl_rounds_at(const sl_rounds *rounds, int64_t index, int *chunk, int *microbatch);

#endif
