/* Local search on the order itself: single F and I move, W follow. It mends what a wave cannot have: a start and an end
 * that differ from the middle. */
#include "plan/polish.h"

#include <string.h>

typedef struct polish {
    sl_placer *placer;
    sl_order *best;
    sl_operation *steps;              /* (ranks, 2 x chunks x microbatches) F and I of each rank, in order */
    int length;                       /* of a rank */
    double *fill;                     /* (ranks) share of a W that a gap must have */
    sl_operation *saved, *best_steps; /* before the move; the best so far */
    double *saved_fill, *best_fill;
    double best_cost;
    int *at; /* (ranks) the next step */
    sl_critical critical;
    double cost; /* of the steps */
    int64_t until;
    double bound;
    uint64_t random;
} polish;

static double draw(polish *self)
{
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return (double)(self->random >> 11) * 0x1p-53;
}

/* Goes on with the rank until it has to wait for another; false if the order is of no use. */
static bool advance(polish *self, int rank, int *top)
{
    sl_placer *placer = self->placer;
    const sl_instance *instance = placer->instance;
    const sl_operation *steps = self->steps + (int64_t)rank * self->length;
    for (; self->at[rank] < self->length; self->at[rank]++) {
        int chunk = sl_operation_chunk(steps[self->at[rank]]);
        sl_operation_kind kind = sl_operation_kind_of(steps[self->at[rank]]);
        int stage = sl_instance_stage(instance, rank, chunk);
        bool forward = kind == SL_OPERATION_F;
        double ready = forward ? sl_placer_ready_f(placer, stage) : sl_placer_ready_i(placer, stage);
        if (ready < 0)
            return true;
        if (forward && !sl_placer_make_room(placer, rank, instance->load[stage].hold))
            return false;
        sl_placer_fill_gap(placer, rank, ready, self->fill[rank]);
        sl_placer_put(placer, rank, chunk, kind, ready > placer->now[rank] ? ready : placer->now[rank]);
        if (sl_placer_is_late(placer, rank))
            return false;
        int other = forward ? stage + 1 : stage - 1;
        if (other < 0 || other >= instance->stages)
            continue;
        other = instance->rank_of[other];
        if (other != rank && !placer->waiting[other]) {
            placer->waiting[other] = true;
            placer->pending[(*top)++] = other;
        }
    }
    return true;
}

static void run_steps(polish *self)
{
    sl_placer *placer = self->placer;
    int ranks = placer->instance->ranks, top = 0;
    sl_placer_reset(placer);
    for (int rank = ranks - 1; rank >= 0; rank--) {
        self->at[rank] = 0;
        placer->waiting[rank] = true;
        placer->pending[top++] = rank;
    }
    while (top > 0) {
        int rank = placer->pending[--top];
        placer->waiting[rank] = false;
        if (!advance(self, rank, &top))
            return;
    }
    sl_placer_finish(placer);
}

/* Runs the steps; true if they are no worse than those before. Of two orders with the same value the one whose ranks end
 * earlier is better: that is what leads on. */
static bool try_steps(polish *self)
{
    sl_placer *placer = self->placer;
    placer->stop = self->cost * (1 + 1e-12);
    placer->placed += placer->instance->ranks; /* an order that ends at once costs something, too */
    run_steps(self);
    placer->stop = INFINITY;
    double cost = placer->order.value + 0.05 * placer->mean_end;
    if (isinf(placer->order.value) || cost > self->cost * (1 + 1e-12))
        return false;
    self->cost = cost;
    sl_order_keep_better(placer, "polish", self->best);
    sl_critical_find(placer, &self->critical);
    return true;
}

static void shift(sl_operation *steps, int length, int from, int to)
{
    to = to < 0 ? 0 : to >= length ? length - 1 : to;
    sl_operation moved = steps[from];
    if (to < from)
        memmove(steps + to + 1, steps + to, (size_t)(from - to) * sizeof *steps);
    else
        memmove(steps + from, steps + from + 1, (size_t)(to - from) * sizeof *steps);
    steps[to] = moved;
}

/* Moves a step a few places forward or back; most often one on the critical path. */
static void move_step(polish *self)
{
    const sl_critical_step *critical = &self->critical.steps[(int)(draw(self) * self->critical.count)];
    bool any = self->critical.count == 0 || draw(self) < 0.3;
    int rank = any ? (int)(draw(self) * self->placer->instance->ranks) : critical->rank;
    int from = any ? (int)(draw(self) * self->length) : critical->step;
    sl_operation *steps = self->steps + (int64_t)rank * self->length;
    int distance = 1 + (int)(draw(self) * draw(self) * 8);
    shift(steps, self->length, from, draw(self) < 0.5 ? from - distance : from + distance);
}

/* Moves the same operation of one microbatch a few places on several ranks in a row. */
static void move_microbatch(polish *self)
{
    const sl_instance *instance = self->placer->instance;
    int chunk = (int)(draw(self) * instance->chunks), microbatch = (int)(draw(self) * instance->microbatches);
    sl_operation operation = sl_operation_make(chunk, draw(self) < 0.5 ? SL_OPERATION_F : SL_OPERATION_I);
    int first = (int)(draw(self) * instance->ranks), last = (int)(draw(self) * instance->ranks);
    if (first > last) {
        int other = first;
        first = last;
        last = other;
    }
    int distance = 1 + (int)(draw(self) * 3);
    bool back = draw(self) < 0.5;
    int span = draw(self) < 0.7 ? 1 : 1 + (int)(draw(self) * 4);
    for (int rank = first; rank <= last; rank++) {
        for (int each = 0; each < span; each++) {
            int wanted = microbatch + (back ? each : span - 1 - each);
            if (wanted >= instance->microbatches)
                continue;
            sl_operation *steps = self->steps + (int64_t)rank * self->length;
            int at = 0;
            for (int seen = 0; at < self->length; at++) {
                if (steps[at] == operation && seen++ == wanted)
                    break;
            }
            int to = back ? at - distance : at + distance;
            shift(steps, self->length, at, to);
        }
    }
}

/* The shares with which the order is best, from the first rank to the last. */
static void choose_fill(polish *self)
{
    static const double fills[] = { 1, 0.5, 0.001 };
    int ranks = self->placer->instance->ranks, best = 0;
    double least = INFINITY;
    for (int n = 0; n <= 9; n++) {
        int pair = n < 9 ? n : best; /* the best once more, to end with it */
        double first = fills[pair % 3], last = fills[pair / 3];
        for (int rank = 0; rank < ranks; rank++)
            self->fill[rank] = first + (last - first) * rank / (ranks > 1 ? ranks - 1 : 1);
        self->cost = INFINITY;
        if (try_steps(self) && self->cost < least) {
            least = self->cost;
            best = n;
        }
    }
}

/* One move of one kind or another, sometimes several. */
static void move(polish *self)
{
    static const double fills[] = { 1, 0.75, 0.5, 0.25, 0.001 };
    double kind = draw(self);
    if (kind < 0.15)
        self->fill[(int)(draw(self) * self->placer->instance->ranks)] = fills[(int)(draw(self) * 5)];
    else if (kind < 0.55)
        move_microbatch(self);
    else
        move_step(self);
    while (draw(self) < 0.3)
        move_step(self);
}

static void copy_steps(const polish *self, sl_operation *to, double *to_fill, const sl_operation *from,
                       const double *from_fill)
{
    size_t ranks = (size_t)self->placer->instance->ranks;
    memcpy(to, from, (size_t)self->length * ranks * sizeof *to);
    memcpy(to_fill, from_fill, ranks * sizeof *to_fill);
}

/* Where no move helps any more, a few are made whether they help or not, from the best order on. */
static void kick(polish *self)
{
    double cost = self->cost;
    for (int n = 0; n < 20; n++) {
        copy_steps(self, self->steps, self->fill, self->best_steps, self->best_fill);
        for (int moves = 0; moves < 3; moves++)
            move(self);
        self->cost = self->best_cost * 1.03;
        if (try_steps(self))
            return;
    }
    copy_steps(self, self->steps, self->fill, self->best_steps, self->best_fill);
    self->cost = cost;
}

static void run(polish *self)
{
    enum { PATIENCE = 20000 }; /* moves in a row that find nothing better */
    int stuck = 0;
    self->best_cost = self->cost;
    copy_steps(self, self->best_steps, self->best_fill, self->steps, self->fill);
    while (self->placer->placed < self->until && self->best->value > self->bound * (1 + 1e-12)) {
        copy_steps(self, self->saved, self->saved_fill, self->steps, self->fill);
        move(self);
        if (!try_steps(self))
            copy_steps(self, self->steps, self->fill, self->saved, self->saved_fill);
        if (self->cost < self->best_cost * (1 - 1e-9)) {
            self->best_cost = self->cost;
            copy_steps(self, self->best_steps, self->best_fill, self->steps, self->fill);
            stuck = 0;
        } else if (++stuck >= PATIENCE) {
            kick(self);
            stuck = 0;
        }
    }
}

static void release(polish *self)
{
    sl_free(self->steps);
    sl_free(self->saved);
    sl_free(self->best_steps);
    sl_free(self->fill);
    sl_free(self->saved_fill);
    sl_free(self->best_fill);
    sl_free(self->at);
    sl_free(self->critical.steps);
    sl_free(self->critical.place_f);
    sl_free(self->critical.place_i);
    sl_free(self->critical.step_of);
    sl_free(self->critical.seen);
    sl_free(self->placer->starts);
    self->placer->starts = NULL;
}

static sl_status reserve(polish *self)
{
    sl_status status = SL_OK;
    const sl_instance *instance = self->placer->instance;
    int64_t steps = (int64_t)self->length * instance->ranks, operations = self->best->length * instance->ranks;
    int64_t cells = (int64_t)instance->stages * instance->microbatches;
    self->critical.capacity = (int)operations;
    SL_TRY(SL_NEW_ARRAY(self->steps, steps));
    SL_TRY(SL_NEW_ARRAY(self->saved, steps));
    SL_TRY(SL_NEW_ARRAY(self->best_steps, steps));
    SL_TRY(SL_NEW_ARRAY(self->fill, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self->saved_fill, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self->best_fill, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self->at, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self->critical.steps, operations));
    SL_TRY(SL_NEW_ARRAY(self->critical.place_f, cells));
    SL_TRY(SL_NEW_ARRAY(self->critical.place_i, cells));
    SL_TRY(SL_NEW_ARRAY(self->critical.step_of, operations));
    SL_TRY(SL_NEW_ARRAY(self->critical.seen, 3 * instance->chunks));
    SL_TRY(SL_NEW_ARRAY(self->placer->starts, operations));
done:
    return status;
}

sl_status sl_polish(sl_placer *placer, int64_t effort, double bound, sl_order *best)
{
    sl_status status = SL_OK;
    polish self = { .placer = placer,
                    .best = best,
                    .length = 2 * placer->instance->chunks * placer->instance->microbatches,
                    .cost = INFINITY,
                    .until = placer->placed + effort,
                    .bound = bound,
                    .random = 0x2545f4914f6cdd1d };
    SL_TRY(reserve(&self));
    int64_t count = 0;
    for (int64_t n = 0; n < best->length * placer->instance->ranks; n++) {
        if (sl_operation_kind_of(best->operations[n]) != SL_OPERATION_W)
            self.steps[count++] = best->operations[n];
    }
    choose_fill(&self);
    run(&self);
done:
    release(&self);
    return status;
}
