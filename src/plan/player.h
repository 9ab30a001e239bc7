/* The player runs a given order of F and I on every rank and adds the W by two rules: when an F has no room, and when
 * they fit into a gap. A pace lets single steps differ from the second rule. It keeps the order that was accepted last, so
 * that another one is played only from the place on at which the two differ. What the wave search and the local search
 * share. */
#ifndef SL_PLAN_PLAYER_H
#define SL_PLAN_PLAYER_H

#include "plan/placer.h"

/* A step is an F or an I of a rank. What is known of one that was played: */
typedef struct sl_played {
    double start;
    int microbatch;
    int weights; /* W before it, since the step before */
    bool waited; /* it started when its input came, not when the rank was free */
} sl_played;

/* One kind of operation of one rank: F, I or W of a chunk. */
typedef struct sl_player_lane {
    double time;
    double memory;       /* what it adds: above 0 for F, else below */
    double delay;        /* of the message that it sends */
    const double *ready; /* (microbatches) when the inputs are there; NULL: at once */
    double *next_ready;  /* (microbatches) of the operation that takes the result; NULL: there is none */
    int64_t input;       /* index of the lane that makes the inputs, if `ready` */
    int next_rank;       /* who hears of it; -1: nobody */
    const int *made;     /* how many inputs there are, if `ready` */
    bool is_forward;
} sl_player_lane;

/* Where a rank stands. */
typedef struct sl_player_rank {
    double now, memory;
    double end;  /* when it ends if it never waits again; for the stage time, counted from its first step */
    int at;      /* the next step */
    int weights; /* W that could run, of all chunks */
} sl_player_rank;

/* The W before a step that it does not need for room: those that fit into the gap, none, or one even without a gap. */
typedef enum sl_pace { SL_PACE_GAP, SL_PACE_NONE, SL_PACE_ONE, SL_PACE_COUNT } sl_pace;

/* All that an order leads to; once for the order being played and once for the accepted one. */
typedef struct sl_playing {
    sl_operation *steps;   /* (ranks, length) */
    double *fill;          /* (ranks) share of a W that a gap must have to be filled by it */
    uint8_t *pace;         /* (ranks, length) sl_pace of each place */
    sl_played *played;     /* (ranks, length) */
    double *ready;         /* (ranks, lanes, microbatches) */
    sl_player_rank *marks; /* (ranks, marks) the rank before every few steps */
    int *mark_counts;      /* (ranks, marks, lanes) */
} sl_playing;

typedef struct sl_player {
    const sl_instance *instance;
    sl_playing now, accepted;
    int length;           /* steps of a rank */
    int64_t lanes;        /* of a rank: 3 x chunks */
    int64_t marks;        /* of a rank */
    sl_player_lane *lane; /* (ranks, lanes) */
    int *count;           /* (ranks, lanes) F and I played; W that could run */
    sl_player_rank *rank; /* (ranks) */
    int *weight_order;    /* (ranks, chunks) lanes of W, those first that free most memory for their time */
    int *known;           /* (ranks) steps that have been written */
    int *changed;         /* (ranks) the first step that differs from the accepted order; length: none */
    int *from;            /* (ranks) the step from which the rank was played */
    int *pending;         /* (ranks) a stack of ranks that may go on */
    const int **awaits;   /* (ranks) the count of the inputs that the rank waits for; NULL: it is on the stack */
    int *place;           /* (ranks, lanes, microbatches) which accepted step of the rank it is */
    int *scratch;         /* (lanes) */
    double sum_of_ends;   /* over ranks, at least */
    double weight_of_end; /* an order's cost is its value and so much of the sum of its ranks' ends */
    double stop;          /* an order is given up when its cost must exceed this */
    double value, cost;   /* of the order that was played; infinity if it was given up or cannot be run */
    int64_t placed;       /* operations placed by all orders: what a search costs */
    /* Optional: writes more steps of the rank into now.steps and raises known[rank]. */
    void (*extend)(struct sl_player *player, int rank, void *context);
    void *context;
} sl_player;

SL_MUST_CHECK sl_status sl_player_create(const sl_instance *instance, sl_player *out);
void sl_player_destroy(sl_player *player);

/* Plays now.steps from their first change on; before the first order is accepted, from the start. */
void sl_player_run(sl_player *player);

/* After sl_player_run(): makes the order the accepted one, or goes back to that. */
void sl_player_accept(sl_player *player);
void sl_player_reject(sl_player *player);

/* Tells that the rank's steps differ from the accepted ones from `step` on. */
static inline void sl_player_change(sl_player *player, int rank, int step)
{
    if (step < player->changed[rank])
        player->changed[rank] = step;
}

/* Keeps the order that was just accepted, with its W, if it is better. */
void sl_player_keep_better(const sl_player *player, const char *method, sl_order *best);

/* Looks for the best wave until `effort` steps have been played or the value is at most `bound`; keeps the best order
 * in *best. tight: fast flights are tried more often, since they hold less memory. */
SL_MUST_CHECK sl_status sl_wave_search(const sl_instance *instance, int64_t effort, double bound, bool tight,
                                       sl_order *best);

/* Improves the best order by moving single steps. */
SL_MUST_CHECK sl_status sl_polish(const sl_instance *instance, int64_t effort, double bound, sl_order *best);

#endif
