/* Forward alone, for evaluation and inference, in either placement. */
#include "schedule/generate.h"

#include <stdlib.h>

/* In a loop: rounds, as in the interleaved generators. */
static sl_status forward_loop(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    sl_rounds rounds = sl_rounds_make(plan);
    int64_t all = (int64_t)plan->chunks * plan->microbatches;
    for (int64_t i = 0; i < all; i++) {
        int chunk;
        int microbatch;
        sl_rounds_at(&rounds, i, &chunk, &microbatch);
        SL_TRY(sl_action_list_add(out, SL_KIND_F, chunk * plan->ranks + rank, microbatch));
    }
done:
    return status;
}

/* When the action runs if one microbatch enters every `chunks` units of time and each stage takes one unit. */
static int64_t flow_time(const sl_action *action, int chunks)
{
    return action->stage + (int64_t)chunks * action->microbatch;
}

static int by_flow_time(const void *a, const void *b, void *user)
{
    const sl_action *left = a;
    const sl_action *right = b;
    int chunks = *(const int *)user;
    int64_t difference = flow_time(left, chunks) - flow_time(right, chunks);
    if (difference == 0)
        difference = right->stage - left->stage; /* the microbatch that is further on */
    return (difference > 0) - (difference < 0);
}

/* In a V the stages of a rank are at uneven distances. Sorting by the time of an even flow is right for any distances,
 * because a stage always comes after the ones before it. */
static sl_status forward_v(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    int chunks = plan->chunks;
    for (int m = 0; m < plan->microbatches; m++) {
        for (int c = 0; c < chunks; c++)
            SL_TRY(sl_action_list_add(out, SL_KIND_F, sl_placement_stage(SL_PLACEMENT_V, plan->ranks, rank, c), m));
    }
    qsort_r(out->actions, out->count, sizeof *out->actions, by_flow_time, &chunks);
done:
    return status;
}

sl_status sl_generate_forward(const sl_plan *plan, int rank, sl_action_list *out)
{
    return plan->placement == SL_PLACEMENT_V ? forward_v(plan, rank, out) : forward_loop(plan, rank, out);
}
