/* The placer puts operations on ranks one after the other, each as early as it can start. What the heuristics share.
 */
#ifndef SL_PLAN_PLACER_H
#define SL_PLAN_PLACER_H

#include "plan/instance.h"

#include <math.h>

typedef enum sl_operation_kind { SL_OPERATION_F, SL_OPERATION_I, SL_OPERATION_W } sl_operation_kind;

/* An operation of a rank; the microbatch is the next one of that chunk and kind. */
typedef uint16_t sl_operation;

static inline sl_operation sl_operation_make(int chunk, sl_operation_kind kind)
{
    return (sl_operation)(chunk * 3 + (int)kind);
}

static inline sl_operation_kind sl_operation_kind_of(sl_operation operation)
{
    return (sl_operation_kind)(operation % 3);
}

static inline int sl_operation_chunk(sl_operation operation)
{
    return operation / 3;
}

/* What each rank runs, in order: (ranks, 3 x chunks x microbatches). */
typedef struct sl_order {
    sl_operation *operations;
    int64_t length; /* of a rank */
    double value;   /* of the objective; infinity: no order yet */
    const char *method;
} sl_order;

typedef struct sl_placer {
    const sl_instance *instance;
    sl_order order;                /* being made */
    double *ready_f, *ready_i;     /* (stages, microbatches) when the inputs are there; negative: not yet known */
    int *done_f, *done_i, *done_w; /* (stages) */
    int64_t *count;                /* (ranks) operations placed */
    double *now;                   /* (ranks) end of the last operation */
    double *first;                 /* (ranks) start of the first operation; negative: none yet */
    double *idle;                  /* (ranks) waits after the first operation */
    double *memory;                /* (ranks) held now */
    double *left;                  /* (ranks) time of the operations not yet placed */
    double most_idle;              /* of all ranks */
    double stop;                   /* an order is given up when it cannot be better than this */
    int64_t placed;                /* operations placed since the placer was made: what a search costs */
    int *room;                     /* (ranks) for the heuristics */
} sl_placer;

SL_MUST_CHECK sl_status sl_placer_create(const sl_instance *instance, sl_placer *out);
void sl_placer_destroy(sl_placer *placer);
void sl_placer_reset(sl_placer *placer);

/* Places the chunk's next operation at `start`, which must not lie before the rank's last end. */
void sl_placer_put(sl_placer *placer, int rank, int chunk, sl_operation_kind kind, double start);

/* The chunk whose next W frees most memory for its time; -1: no W is ready. */
int sl_placer_next_w(const sl_placer *placer, int rank);

/* Places W until the rank has room for `memory`; false if there are not enough. */
bool sl_placer_make_room(sl_placer *placer, int rank, double memory);

/* Places W into the gap before `until` while they fit; one may be longer than its gap if the gap is at least `share` of
 * it. */
void sl_placer_fill_gap(sl_placer *placer, int rank, double until, double share);

/* Places all W that are ready. */
void sl_placer_flush_w(sl_placer *placer, int rank);

/* Places the W that are left and sets the order's value: infinity if operations are missing. */
void sl_placer_finish(sl_placer *placer);

/* When the inputs of the next F or I are there; negative if not yet known. */
static inline double sl_placer_ready_f(const sl_placer *placer, int stage)
{
    return stage == 0 ? 0 : placer->ready_f[(int64_t)stage * placer->instance->microbatches + placer->done_f[stage]];
}

static inline double sl_placer_ready_i(const sl_placer *placer, int stage)
{
    return placer->ready_i[(int64_t)stage * placer->instance->microbatches + placer->done_i[stage]];
}

static inline bool sl_placer_fits(const sl_placer *placer, int rank, double memory)
{
    return placer->memory[rank] + memory <= placer->instance->limit + placer->instance->slack;
}

/* The rank can no longer end early enough to be better than `stop`. */
static inline bool sl_placer_is_late(const sl_placer *placer, int rank)
{
    double from = placer->instance->objective == SL_OBJECTIVE_STAGE_TIME ? placer->first[rank] : 0;
    return placer->now[rank] + placer->left[rank] - from >= placer->stop;
}

/* ---- Heuristics: each makes one order in the placer ------------------------------------------ */

/* The zero-bubble heuristic: rounds of one F and one I a rank. For one stage a rank. */
typedef struct sl_rounds_choice {
    bool overshoot;   /* the last F of the warm-up may delay the first I */
    bool skip_ahead;  /* a rank far ahead of the next leaves out its F */
    bool fill_always; /* a W longer than its gap is always placed; else only by the rank that waits most */
} sl_rounds_choice;

void sl_rounds_run(sl_placer *placer, sl_rounds_choice choice);

/* The event-driven list scheduler: always the operation that can start first. */
typedef struct sl_greedy_choice {
    double fill_first, fill_last; /* share of a W that a gap must have: first and last rank, linear between */
    double patience;              /* an F waits for an I that comes within this share of it */
    double ahead, ahead_step;     /* most F ahead of I in a stage: ahead + step x stages after it; step 0: no limit */
    bool deep_first;              /* of several F the one of the highest chunk */
    bool forward_first;           /* of an F and an I that can both start, the F */
} sl_greedy_choice;

SL_MUST_CHECK sl_status sl_greedy_run(sl_placer *placer, const sl_greedy_choice *choice);

/* ---- Orders ---------------------------------------------------------------------------------- */

SL_MUST_CHECK sl_status sl_order_create(const sl_instance *instance, sl_order *out);
void sl_order_destroy(sl_order *order);
/* Keeps the placer's order if it is better. */
void sl_order_keep_better(const sl_placer *placer, const char *method, sl_order *best);
SL_MUST_CHECK sl_status sl_order_schedule(const sl_instance *instance, const sl_order *order, sl_schedule **out);

#endif
