/* The pass that moves receives down and sends up, past computation but never past another message: the order of a
 * rank's messages alone decides whether it can deadlock, so what was safe at some link capacity stays so. */
#include "schedule/schedule.h"

/* Messages that are on the move, in order. An array serves as queue: what is before `first` has been put down. */
typedef struct moving {
    const sl_schedule *in;
    uint8_t *pending; /* (stages, microbatches) bit 0: an F message is on the move, bit 1: a B message */
    sl_action_list queue;
    size_t first;
} moving;

static uint8_t bit_of(bool backward)
{
    return backward ? 2 : 1;
}

static uint8_t *pending_of(const moving *self, sl_action action)
{
    return &self->pending[(int64_t)action.stage * self->in->microbatches + action.microbatch];
}

static bool is_backward_message(sl_action action)
{
    return sl_action_is(action, SL_KIND_SEND_B) || sl_action_is(action, SL_KIND_RECV_B);
}

static sl_status take_up(moving *self, sl_action message)
{
    *pending_of(self, message) |= bit_of(is_backward_message(message));
    return sl_action_list_push(&self->queue, message);
}

/* Puts down the first message of the queue. */
static sl_status put_down(moving *self, sl_action_list *out)
{
    sl_action message = self->queue.actions[self->first++];
    *pending_of(self, message) &= (uint8_t)~bit_of(is_backward_message(message));
    if (self->first == self->queue.count)
        self->first = self->queue.count = 0;
    return sl_action_list_push(out, message);
}

static sl_status put_down_all(moving *self, sl_action_list *out)
{
    sl_status status = SL_OK;
    while (self->queue.count > 0)
        SL_TRY(put_down(self, out));
done:
    return status;
}

/* Puts down what the compute action cannot be moved past: its own message and those before it. */
static sl_status put_down_for(moving *self, sl_action action, sl_action_list *out)
{
    sl_status status = SL_OK;
    sl_action parts[2];
    for (int p = 0, count = sl_parts(action, parts); p < count; p++) {
        if (parts[p].kind == SL_KIND_W)
            continue;
        while (*pending_of(self, parts[p]) & bit_of(parts[p].kind != SL_KIND_F))
            SL_TRY(put_down(self, out));
    }
done:
    return status;
}

/* Moves the messages of two kinds on in the direction of reading. */
static sl_status move_on(moving *self, const sl_action_list *list, bool sends, sl_action_list *out)
{
    sl_status status = SL_OK;
    for (size_t i = 0; i < list->count; i++) {
        sl_action action = list->actions[sends ? list->count - 1 - i : i];
        bool is_send = sl_action_is(action, SL_KIND_SEND_F) || sl_action_is(action, SL_KIND_SEND_B);
        if (sl_action_is_message(action)) {
            if (is_send == sends) {
                SL_TRY(take_up(self, action));
                continue;
            }
            SL_TRY(put_down_all(self, out));
        }
        SL_TRY(put_down_for(self, action, out));
        SL_TRY(sl_action_list_push(out, action));
    }
    SL_TRY(put_down_all(self, out));
done:
    return status;
}

static void reverse(sl_action_list *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        sl_action swapped = list->actions[i];
        list->actions[i] = list->actions[list->count - 1 - i];
        list->actions[list->count - 1 - i] = swapped;
    }
}

/* Sends go up: that is on, when the list is read from its end. */
static sl_status tighten_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    sl_status status = SL_OK;
    moving *self = user;
    sl_action_list sends_up = { 0 };

    SL_TRY(sl_action_list_reserve(&sends_up, in->lists[rank].count));
    SL_TRY(sl_action_list_reserve(out, in->lists[rank].count));
    SL_TRY(move_on(self, &in->lists[rank], true, &sends_up));
    reverse(&sends_up);
    SL_TRY(move_on(self, &sends_up, false, out));
done:
    sl_free(sends_up.actions);
    return status;
}

sl_status sl_schedule_tighten_valid(const sl_schedule *in, sl_schedule **out)
{
    sl_status status = SL_OK;
    moving self = { .in = in };
    SL_TRY(SL_NEW_ARRAY(self.pending, (int64_t)in->stages * in->microbatches));
    SL_TRY(sl_schedule_map(in, tighten_rank, &self, out));
done:
    sl_free(self.pending);
    sl_free(self.queue.actions);
    return status;
}

sl_status sl_schedule_tighten_messages(const sl_schedule *in, const sl_edge *edges, int edge_count, sl_schedule **out)
{
    sl_check_options options = { .edges = edges, .edge_count = edge_count };
    sl_status status = sl_schedule_check(in, &options, NULL);
    return status == SL_OK ? sl_schedule_tighten_valid(in, out) : status;
}
