/* What the collectives have in common. */
#ifndef SL_COMM_COLLECTIVE_H
#define SL_COMM_COLLECTIVE_H

#include "comm/group.h"

/* One collective on its way; every message of it carries these. */
typedef struct sl_call {
    sl_group *group;
    sl_message message; /* shape: what all ranks must agree on (elements or bytes), how far the piece has come */
    size_t piece;       /* most bytes a message */
} sl_call;

sl_call sl_call_start(sl_group *group, sl_collective which, sl_dtype dtype, int64_t count);

/* `at` is the place of the piece in the whole, the same number on both sides. */
sl_status sl_call_send(sl_call *call, int member, int64_t at, const void *data, size_t bytes);
/* Receives in place; sl_call_release frees the slot. */
sl_status sl_call_receive(sl_call *call, int member, int64_t at, size_t bytes, sl_envelope **out);
sl_status sl_call_release(sl_call *call, int member, sl_envelope *envelope);
/* Receives a copy. */
sl_status sl_call_fetch(sl_call *call, int member, int64_t at, void *data, size_t bytes);

/* The i-th other member to turn to, i in 1 ... size-1: each rank starts with another, so that not all turn to one. */
static inline int sl_call_to(const sl_group *group, int i)
{
    return (group->rank + i) % group->size;
}

static inline int sl_call_from(const sl_group *group, int i)
{
    return (group->rank - i + group->size) % group->size;
}

#endif
