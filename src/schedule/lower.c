/* Lowering: the passes in their order. */
#include "schedule/schedule.h"

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

    *out = now;
    now = NULL;
done:
    sl_schedule_destroy(now);
    return status;
}
