/* The passes that move messages. One moves receives down and sends up, past computation but never past another message or
 * a wait for one: the order of a rank's messages alone decides whether it can deadlock, so what was safe at some link
 * capacity stays so. The other moves receives past other messages, too, for links that hold enough of them. */
#include "schedule/schedule.h"

#include <string.h>

/* A list that is rewritten in place, in the direction of reading. Messages on the move wait in a queue, so what is
 * written never passes what is read. The queue is an array; what is before `first` has been put down. */
typedef struct moving {
    const sl_schedule *schedule;
    uint8_t *pending; /* (stages, microbatches) bit 0: an F message is on the move, bit 1: a B message */
    sl_action_list queue;
    size_t first;
    sl_action *out;
    int step; /* 1: receives go down; -1: sends go up, the list read from its end */
} moving;

static uint8_t bit_of(bool backward)
{
    return backward ? 2 : 1;
}

static uint8_t *pending_of(const moving *self, sl_action action)
{
    return &self->pending[(int64_t)action.stage * self->schedule->microbatches + action.microbatch];
}

static bool is_backward_message(sl_action action)
{
    return sl_action_is(action, SL_KIND_SEND_B) || sl_action_is(action, SL_KIND_RECV_B);
}

static bool is_send(sl_action action)
{
    return sl_action_is(action, SL_KIND_SEND_F) || sl_action_is(action, SL_KIND_SEND_B);
}

static void put(moving *self, sl_action action)
{
    *self->out = action;
    self->out += self->step;
}

static sl_status take_up(moving *self, sl_action message)
{
    *pending_of(self, message) |= bit_of(is_backward_message(message));
    return sl_action_list_push(&self->queue, message);
}

/* Puts down the first message of the queue. */
static void put_down(moving *self)
{
    sl_action message = self->queue.actions[self->first++];
    *pending_of(self, message) &= (uint8_t)~bit_of(is_backward_message(message));
    if (self->first == self->queue.count)
        self->first = self->queue.count = 0;
    put(self, message);
}

static void put_down_all(moving *self)
{
    while (self->queue.count > 0)
        put_down(self);
}

/* Puts down what the compute action cannot be moved past: its own message and those before it. */
static void put_down_for(moving *self, sl_action action)
{
    sl_action parts[2];
    for (int p = 0, count = sl_parts(action, parts); p < count; p++) {
        if (parts[p].kind == SL_KIND_W)
            continue;
        while (*pending_of(self, parts[p]) & bit_of(parts[p].kind != SL_KIND_F))
            put_down(self);
    }
}

/* Takes the next action of the list: takes it up or puts it down, after what cannot be moved past it. */
static sl_status move_past(moving *self, sl_action action)
{
    if (sl_action_is_message(action)) {
        if (!sl_action_is_send_wait(action) && is_send(action) == (self->step < 0))
            return take_up(self, action);
        put_down_all(self);
    } else if (self->queue.count > 0) {
        put_down_for(self, action);
    }
    put(self, action);
    return SL_OK;
}

static sl_status tighten_list(moving *self, sl_action_list *list)
{
    sl_status status = SL_OK;
    sl_action *at = list->actions + (self->step > 0 ? 0 : list->count - 1);
    self->out = at;
    for (size_t i = 0; i < list->count; i++, at += self->step)
        SL_TRY(move_past(self, *at));
    put_down_all(self);
done:
    return status;
}

sl_status sl_schedule_tighten(sl_schedule *schedule, bool sends)
{
    sl_status status = SL_OK;
    moving self = { .schedule = schedule, .step = sends ? -1 : 1 };
    atomic_store_explicit(schedule->checked, false, memory_order_relaxed);
    SL_TRY(SL_NEW_ARRAY(self.pending, (int64_t)schedule->stages * schedule->microbatches));
    for (int rank = 0; rank < schedule->ranks; rank++)
        SL_TRY(tighten_list(&self, &schedule->lists[rank]));
done:
    sl_free(self.pending);
    sl_free(self.queue.actions);
    return status;
}

static sl_status copy_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    (void)user; /* out has room for as many actions as the rank has */
    out->count = in->lists[rank].count;
    memcpy(out->actions, in->lists[rank].actions, out->count * sizeof *out->actions);
    return SL_OK;
}

sl_status sl_schedule_tighten_messages(const sl_schedule *in, const sl_edge *edges, int edge_count, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_schedule *copy = NULL;
    SL_TRY(sl_schedule_check(in, &(sl_check_options){ .edges = edges, .edge_count = edge_count }, NULL));
    SL_TRY(sl_schedule_map(in, copy_rank, NULL, &copy));
    SL_TRY(sl_schedule_tighten(copy, true));
    SL_TRY(sl_schedule_tighten(copy, false));

    *out = copy;
    copy = NULL;
done:
    sl_schedule_destroy(copy);
    return status;
}

/* ---- Receives right before their use --------------------------------------------------------- */

/* A receive on its way down. */
typedef struct deferred {
    sl_action receive;
    int next; /* of the same stage and kind; -1: none */
} deferred;

typedef struct deferring {
    deferred *items; /* of the rank so far */
    int count;
    size_t capacity;
    int *first, *last; /* (stages, 2: RECV_F, RECV_B) of those on their way, in the order of the list; first -1: none */
    sl_action *out;
} deferring;

static int queue_of(int stage, bool backward)
{
    return 2 * stage + backward;
}

static sl_status defer_receive(deferring *self, sl_action receive)
{
    int queue = queue_of(receive.stage, is_backward_message(receive));
    sl_status status = SL_GROW(self->items, &self->capacity, self->count + 1);
    if (status != SL_OK)
        return status;
    self->items[self->count] = (deferred){ .receive = receive, .next = -1 };
    if (self->first[queue] < 0)
        self->first[queue] = self->count;
    else
        self->items[self->last[queue]].next = self->count;
    self->last[queue] = self->count++;
    return SL_OK;
}

static bool is_deferred(const deferring *self, int queue, int microbatch)
{
    int at = self->first[queue];
    while (at >= 0 && self->items[at].receive.microbatch != microbatch)
        at = self->items[at].next;
    return at >= 0;
}

/* Puts down the message that the part needs, and those of its stage and kind before it: they come in that order. */
static void receive_for(deferring *self, sl_action part)
{
    int queue = queue_of(part.stage, part.kind != SL_KIND_F);
    bool more = part.kind != SL_KIND_W && is_deferred(self, queue, part.microbatch);
    while (more) {
        const deferred *item = &self->items[self->first[queue]];
        *self->out++ = item->receive;
        self->first[queue] = item->next;
        more = item->receive.microbatch != part.microbatch;
    }
}

/* In place: what is written never passes what is read. */
static sl_status defer_list(deferring *self, sl_action_list *list)
{
    sl_status status = SL_OK;
    self->count = 0;
    self->out = list->actions;
    for (size_t i = 0; i < list->count; i++) {
        sl_action action = list->actions[i], parts[2];
        if (sl_action_is(action, SL_KIND_RECV_F) || sl_action_is(action, SL_KIND_RECV_B)) {
            SL_TRY(defer_receive(self, action));
            continue;
        }
        for (int p = 0, count = sl_parts(action, parts); p < count; p++)
            receive_for(self, parts[p]);
        *self->out++ = action;
    }
done:
    return status;
}

sl_status sl_schedule_defer_receives(sl_schedule *schedule)
{
    sl_status status = SL_OK;
    deferring self = { 0 };
    atomic_store_explicit(schedule->checked, false, memory_order_relaxed);
    SL_TRY(SL_NEW_ARRAY(self.first, 2 * (int64_t)schedule->stages));
    SL_TRY(SL_NEW_ARRAY(self.last, 2 * (int64_t)schedule->stages));
    for (int i = 0; i < 2 * schedule->stages; i++)
        self.first[i] = -1;
    for (int rank = 0; rank < schedule->ranks; rank++)
        SL_TRY(defer_list(&self, &schedule->lists[rank]));
done:
    sl_free(self.items);
    sl_free(self.first);
    sl_free(self.last);
    return status;
}
