/* Walks over a schedule in an order in which its actions can run. The ranks are sequential programs that wait for each
 * other, and nothing that happens takes a possibility away, so any order finds the same deadlocks. */
#ifndef SL_SCHEDULE_WALK_H
#define SL_SCHEDULE_WALK_H

#include "schedule/links.h"

/* What a rank can wait for: that another stage's n-th action of a kind is reached, or, if the schedule has no
 * messages, that a certain F or backward has run. */
typedef enum sl_gate { SL_GATE_SEND_F, SL_GATE_RECV_F, SL_GATE_SEND_B, SL_GATE_RECV_B, SL_GATE_COUNT } sl_gate;

typedef struct sl_walker {
    int64_t at; /* next action of the rank */
    int link;   /* how far the links of this action have been looked at */
    int part;   /* of an OVERLAP_F_B */
    bool reached;
    /* While it waits: */
    sl_gate gate;
    int stage;
    int64_t need;
    int next; /* another rank that waits at the same gate of the same stage; -1 at the end */
} sl_walker;

/* Together, for a walk over many ranks looks at one stage after the other. */
typedef struct sl_walk_stage {
    int32_t passed[SL_GATE_COUNT]; /* with messages: actions of the kind that have been reached */
    int waiters[SL_GATE_COUNT];    /* first rank that waits at the gate; -1: none */
} sl_walk_stage;

typedef struct sl_walk {
    const sl_schedule *schedule;
    const sl_links *links;
    bool messages;
    int64_t capacity;
    sl_walker *walkers;    /* (ranks) */
    sl_walk_stage *stages; /* (stages) */
    int32_t *sent[2]; /* F, B: (stages, microbatches) the how-manieth send of its stage; NULL: no waits for sends */
    uint8_t *ran;     /* (stages, microbatches) without messages: bit 0 F, bit 1 backward */
    int *ready;       /* ranks that may be able to go on */
    int ready_count;
} sl_walk;

/* The schedule must have passed the checks of its structure: the walk counts on each action being there once.
 * capacity < 0: unlimited. On failure *out needs no destroying. */
SL_MUST_CHECK sl_status sl_walk_create(const sl_schedule *schedule, const sl_links *links, int64_t capacity,
                                       sl_walk *out);
void sl_walk_destroy(sl_walk *walk);

/* Whether the rank's next action can run; if not, the rank comes back through sl_walk_next() when it may. */
bool sl_walk_can_run(sl_walk *walk, int rank);
/* The rank's next action has run: other ranks may go on. */
void sl_walk_ran(sl_walk *walk, int rank);
/* Has sl_walk_next() return the rank again. */
void sl_walk_resume(sl_walk *walk, int rank);
/* A rank that was not yet looked at or whose wait is over; -1: none. */
int sl_walk_next(sl_walk *walk);
bool sl_walk_is_over(const sl_walk *walk, int rank); /* the rank has no actions left */

/* Runs all that can run. visit may be NULL; it is called for each action when it runs. */
typedef void (*sl_walk_visit)(void *user, int rank, int64_t index);
void sl_walk_run(sl_walk *walk, sl_walk_visit visit, void *user);

/* After the walk: the first rank that is stuck; -1: all are over. */
int sl_walk_stuck(const sl_walk *walk);

#endif
