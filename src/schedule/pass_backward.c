/* The pass that joins I and W into B. */
#include "schedule/schedule.h"

static bool joins(sl_action i, sl_action w)
{
    return sl_action_is(i, SL_KIND_I) && sl_action_is(w, SL_KIND_W) && i.stage == w.stage &&
           i.microbatch == w.microbatch;
}

static sl_status merge_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    sl_status status = SL_OK;
    const sl_action_list *list = &in->lists[rank];
    (void)user;
    for (size_t i = 0; i < list->count; i++) {
        sl_action action = list->actions[i];
        if (i + 1 < list->count && joins(action, list->actions[i + 1])) {
            action = sl_make(SL_KIND_B, action.stage, action.microbatch);
            i++;
        }
        SL_TRY(sl_action_list_push(out, action));
    }
done:
    return status;
}

sl_status sl_schedule_merge_backward(const sl_schedule *in, sl_schedule **out)
{
    return sl_schedule_map(in, merge_rank, NULL, out);
}
