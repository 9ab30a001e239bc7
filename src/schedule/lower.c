/* Lowering: the passes in their order, and the shortest of them. */
#include "schedule/schedule.h"

/* ---- I and W that follow each other become B ---------------------------------------------------- */

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

/* ---- All passes ------------------------------------------------------------------------------ */

/* Puts made in place of *schedule. */
static void replace(sl_schedule **schedule, sl_schedule *made)
{
    sl_schedule_destroy(*schedule);
    *schedule = made;
}

sl_status sl_schedule_lower(const sl_schedule *in, const sl_lower_options *options, sl_schedule **out)
{
    sl_status status = SL_OK;
    static const sl_lower_options defaults;
    sl_schedule *now = NULL; /* the last one made; NULL: in */
    sl_schedule *made = NULL;

    options = options ? options : &defaults;
    if (options->merge_backward) {
        SL_TRY(sl_schedule_merge_backward(in, &made));
        replace(&now, made);
    }
    if (!options->no_unshard) {
        SL_TRY(sl_schedule_add_unshard(now ? now : in, options->max_active_stages, &made));
        replace(&now, made);
    }
    if (!options->no_reduce_grad) {
        SL_TRY(sl_schedule_add_reduce_grad(now ? now : in, &made));
        replace(&now, made);
    }
    SL_TRY(sl_schedule_add_messages(now ? now : in, options->edges, options->edge_count, &made));
    replace(&now, made);
    SL_TRY(sl_schedule_tighten(now, false)); /* the sends are where their values are made */
    if (options->waits != SL_WAIT_NONE) {
        SL_TRY(sl_schedule_add_waits(now, options->waits, &made));
        replace(&now, made);
    }

    *out = now;
    now = NULL;
done:
    sl_schedule_destroy(now);
    return status;
}
