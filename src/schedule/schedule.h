/* Inside of schedules: the lists of actions that generators and passes fill. */
#ifndef SL_SCHEDULE_SCHEDULE_H
#define SL_SCHEDULE_SCHEDULE_H

#include <sluice/schedule.h>

#include "base/alloc.h"

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
};

struct sl_schedule_builder {
    int ranks;
    size_t capacity;       /* of lists */
    sl_action_list *lists; /* (ranks) */
};

/* Adds a rank with the actions of list, which is left empty. */
SL_MUST_CHECK sl_status sl_schedule_builder_add_rank(sl_schedule_builder *builder, sl_action_list *list);

SL_MUST_CHECK sl_status sl_action_list_reserve(sl_action_list *list, size_t capacity);

/* Appends without looking at the action. */
SL_MUST_CHECK static inline sl_status sl_action_list_push(sl_action_list *list, sl_action action)
{
    if (list->count == list->capacity) {
        sl_status status = sl_action_list_reserve(list, list->count + 1);
        if (status != SL_OK)
            return status;
    }
    list->actions[list->count++] = action;
    return SL_OK;
}

SL_MUST_CHECK static inline sl_status sl_action_list_add(sl_action_list *list, sl_kind kind, int stage, int microbatch)
{
    return sl_action_list_push(list, sl_action_make(kind, stage, microbatch));
}

/* A pass over the ranks one by one: reads in's list of the rank and fills the empty list out. */
typedef sl_status (*sl_rank_pass)(const sl_schedule *in, int rank, void *user, sl_action_list *out);
SL_MUST_CHECK sl_status sl_schedule_map(const sl_schedule *in, sl_rank_pass pass, void *user, sl_schedule **out);

static inline bool sl_action_is(sl_action action, sl_kind kind)
{
    return action.kind == (uint8_t)kind;
}

#endif
