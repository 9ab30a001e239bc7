/* Inside of schedules: the lists of actions that generators and passes fill. */
#ifndef SL_SCHEDULE_SCHEDULE_H
#define SL_SCHEDULE_SCHEDULE_H

#include <sluice/schedule.h>

#include "base/alloc.h"

#include <stdatomic.h>

typedef struct sl_action_list {
    sl_action *actions;
    size_t count;
    size_t capacity;
} sl_action_list;

struct sl_schedule {
    int ranks;
    int stages;
    int microbatches;
    int64_t size;
    uint32_t kinds;        /* bit k: some action is of kind k */
    sl_action_list *lists; /* (ranks) */
    int *rank_of;          /* (stages) -1: nowhere */
    atomic_bool *checked;  /* its structure was found valid with edges between neighbors; the one thing that changes */
};

struct sl_schedule_builder {
    int ranks;
    size_t capacity;       /* of lists */
    sl_action_list *lists; /* (ranks) */
};

/* Adds a rank with the actions of list, which is left empty. */
SL_MUST_CHECK sl_status sl_schedule_builder_add_rank(sl_schedule_builder *builder, sl_action_list *list);

SL_MUST_CHECK sl_status sl_action_list_reserve(sl_action_list *list, size_t capacity); /* exactly, if it has less */
SL_MUST_CHECK sl_status sl_action_list_grow(sl_action_list *list);                     /* for one more, by doubling */

/* Appends without looking at the action. */
SL_MUST_CHECK static inline sl_status sl_action_list_push(sl_action_list *list, sl_action action)
{
    if (list->count == list->capacity) {
        sl_status status = sl_action_list_grow(list);
        if (status != SL_OK)
            return status;
    }
    list->actions[list->count++] = action;
    return SL_OK;
}

/* sl_action_make(), sl_action_parts() and the tests of a kind for inner loops. */
static inline sl_action sl_make(sl_kind kind, int stage, int microbatch)
{
    bool weights = kind >= SL_KIND_UNSHARD && kind <= SL_KIND_WAIT_REDUCE_GRAD;
    return (sl_action){
        .kind = (uint8_t)kind,
        .stage = (uint16_t)stage,
        .microbatch = weights ? -1 : microbatch,
        .b_microbatch = -1,
    };
}

static inline bool sl_action_is(sl_action action, sl_kind kind)
{
    return action.kind == (uint8_t)kind;
}

/* A SEND, a RECV or the wait for a SEND. */
static inline bool sl_action_is_message(sl_action action)
{
    return action.kind >= SL_KIND_SEND_F && action.kind <= SL_KIND_WAIT_SEND_B;
}

static inline bool sl_action_is_send_wait(sl_action action)
{
    return action.kind == SL_KIND_WAIT_SEND_F || action.kind == SL_KIND_WAIT_SEND_B;
}

static inline bool sl_schedule_has_send_waits(const sl_schedule *schedule)
{
    return (schedule->kinds & (1U << SL_KIND_WAIT_SEND_F | 1U << SL_KIND_WAIT_SEND_B)) != 0;
}

static inline int sl_parts(sl_action action, sl_action parts[2])
{
    if (action.kind <= SL_KIND_B) {
        parts[0] = action;
        return 1;
    }
    if (action.kind != SL_KIND_OVERLAP_F_B)
        return 0;
    parts[0] = sl_make(SL_KIND_F, action.stage, action.microbatch);
    parts[1] = sl_make(SL_KIND_B, action.b_stage, action.b_microbatch);
    return 2;
}

SL_MUST_CHECK static inline sl_status sl_action_list_add(sl_action_list *list, sl_kind kind, int stage, int microbatch)
{
    return sl_action_list_push(list, sl_make(kind, stage, microbatch));
}

/* A pass over the ranks one by one: reads in's list of the rank and fills the empty list out, which has room for as many
 * actions. */
typedef sl_status (*sl_rank_pass)(const sl_schedule *in, int rank, void *user, sl_action_list *out);
SL_MUST_CHECK sl_status sl_schedule_map(const sl_schedule *in, sl_rank_pass pass, void *user, sl_schedule **out);

/* Moves each RECV of a valid schedule as late as is safe, or each SEND as early, in place: only for its maker. */
SL_MUST_CHECK sl_status sl_schedule_tighten(sl_schedule *schedule, bool sends);

/* Moves each RECV of a valid schedule down to the action that needs it, past messages of other stages and kinds, in place:
 * only for its maker. It then runs over links that hold enough messages, and need not over others. */
SL_MUST_CHECK sl_status sl_schedule_defer_receives(sl_schedule *schedule);

#endif
