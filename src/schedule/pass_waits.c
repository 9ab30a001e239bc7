/* The passes about waits: WAIT_SEND and WAIT_REDUCE_GRAD are added for runtimes that want them, and waits for sends are
 * taken out for those whose sends hold nobody up. */
#include "schedule/schedule.h"

typedef struct waiting {
    sl_wait_place reductions;
    uint8_t *sent; /* (stages, microbatches) 1: its SEND_F is not yet waited for */
    int reducing;  /* stage whose reduction is not yet waited for; -1: none */
} waiting;

static uint8_t *sent_of(const sl_schedule *in, const waiting *self, sl_action action)
{
    return &self->sent[(int64_t)action.stage * in->microbatches + action.microbatch];
}

static sl_status end_reduction(waiting *self, sl_action_list *out)
{
    int stage = self->reducing;
    self->reducing = -1;
    return stage < 0 ? SL_OK : sl_action_list_add(out, SL_KIND_WAIT_REDUCE_GRAD, stage, -1);
}

/* After an I or B: every stage that took what this one sent for the microbatch has run its backward, so the message has
 * been received and the wait is none. */
static sl_status end_sends(const sl_schedule *in, waiting *self, sl_action action, sl_action_list *out)
{
    sl_status status = SL_OK;
    sl_action parts[2];
    for (int p = 0, count = sl_parts(action, parts); p < count; p++) {
        bool backward = parts[p].kind == SL_KIND_I || parts[p].kind == SL_KIND_B;
        if (!backward || !*sent_of(in, self, parts[p]))
            continue;
        *sent_of(in, self, parts[p]) = 0;
        SL_TRY(sl_action_list_add(out, SL_KIND_WAIT_SEND_F, parts[p].stage, parts[p].microbatch));
    }
done:
    return status;
}

static sl_status wait_action(const sl_schedule *in, waiting *self, sl_action action, sl_action_list *out)
{
    sl_status status = SL_OK;
    bool reduces = sl_action_is(action, SL_KIND_REDUCE_GRAD);
    if (reduces)
        SL_TRY(end_reduction(self, out));
    SL_TRY(sl_action_list_push(out, action));
    if (sl_action_is(action, SL_KIND_SEND_F))
        *sent_of(in, self, action) = 1;
    SL_TRY(end_sends(in, self, action, out));
    if (!reduces || self->reductions == SL_WAIT_NONE)
        return SL_OK;
    self->reducing = action.stage;
    if (self->reductions == SL_WAIT_AT_ONCE)
        SL_TRY(end_reduction(self, out));
done:
    return status;
}

static sl_status wait_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    sl_status status = SL_OK;
    waiting *self = user;
    const sl_action_list *list = &in->lists[rank];
    self->reducing = -1;
    for (size_t i = 0; i < list->count; i++)
        SL_TRY(wait_action(in, self, list->actions[i], out));
    SL_TRY(end_reduction(self, out));
    for (size_t i = 0; i < list->count; i++) { /* what is still on its way, in the order of the sends */
        sl_action action = list->actions[i];
        if (sl_action_is(action, SL_KIND_SEND_B) ||
            (sl_action_is(action, SL_KIND_SEND_F) && *sent_of(in, self, action)))
            SL_TRY(sl_action_list_add(out,
                                      sl_action_is(action, SL_KIND_SEND_B) ? SL_KIND_WAIT_SEND_B : SL_KIND_WAIT_SEND_F,
                                      action.stage, action.microbatch));
    }
done:
    return status;
}

sl_status sl_schedule_add_waits(const sl_schedule *in, sl_wait_place reductions, sl_schedule **out)
{
    sl_status status = SL_OK;
    waiting self = { .reductions = reductions };
    if (sl_schedule_has_send_waits(in) || sl_schedule_has_kind(in, SL_KIND_WAIT_REDUCE_GRAD))
        return sl_fail(SL_ERR_ARGUMENT, "the schedule already has waits");
    SL_TRY(SL_NEW_ARRAY(self.sent, (int64_t)in->stages * in->microbatches));
    SL_TRY(sl_schedule_map(in, wait_rank, &self, out));
done:
    sl_free(self.sent);
    return status;
}

static sl_status drop_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    sl_status status = SL_OK;
    const sl_action_list *list = &in->lists[rank];
    (void)user;
    for (size_t i = 0; i < list->count; i++) {
        if (!sl_action_is_send_wait(list->actions[i]))
            SL_TRY(sl_action_list_push(out, list->actions[i]));
    }
done:
    return status;
}

sl_status sl_schedule_drop_send_waits(const sl_schedule *in, sl_schedule **out)
{
    return sl_schedule_map(in, drop_rank, NULL, out);
}
