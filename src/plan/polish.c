/* Local search on the order itself: single F and I move, W follow. It mends what a wave cannot have: a start and an end
 * that differ from the middle. */
#include "plan/placer.h"

#include <string.h>

typedef struct polish {
    sl_placer *placer;
    sl_order *best;
    sl_operation *steps; /* (ranks, 2 x chunks x microbatches) F and I of each rank, in order */
    int length;          /* of a rank */
    double *fill;        /* (ranks) share of a W that a gap must have */
    int *at;             /* (ranks) the next step */
    double value;        /* of the steps */
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

static bool try_steps(polish *self)
{
    sl_placer *placer = self->placer;
    placer->stop = self->value * (1 + 1e-12);
    placer->placed += placer->instance->ranks;
    run_steps(self);
    placer->stop = INFINITY;
    if (!(placer->order.value <= self->value * (1 + 1e-12)))
        return false;
    self->value = placer->order.value;
    sl_order_keep_better(placer, "polish", self->best);
    return true;
}

/* Moves a step a few places forward or back; half of the time near the start or the end of the rank. */
static void move_step(polish *self)
{
    int rank = (int)(draw(self) * self->placer->instance->ranks);
    sl_operation *steps = self->steps + (int64_t)rank * self->length;
    double part = draw(self);
    int from = (int)(draw(self) * self->length);
    int near = self->length / 4;
    if (part < 0.3)
        from = (int)(draw(self) * near);
    else if (part < 0.6)
        from = self->length - 1 - (int)(draw(self) * near);
    int distance = 1 + (int)(draw(self) * draw(self) * 8);
    int to = draw(self) < 0.5 ? from - distance : from + distance;
    to = to < 0 ? 0 : to >= self->length ? self->length - 1 : to;
    sl_operation moved = steps[from];
    if (to < from)
        memmove(steps + to + 1, steps + to, (size_t)(from - to) * sizeof *steps);
    else
        memmove(steps + from, steps + from + 1, (size_t)(to - from) * sizeof *steps);
    steps[to] = moved;
    /* Undone by the caller if it is of no use. */
}

static sl_status run(polish *self, sl_operation *saved, double *saved_fill)
{
    const sl_instance *instance = self->placer->instance;
    size_t bytes = (size_t)self->length * (size_t)instance->ranks * sizeof *saved;
    while (self->placer->placed < self->until && self->best->value > self->bound * (1 + 1e-12)) {
        memcpy(saved, self->steps, bytes);
        memcpy(saved_fill, self->fill, (size_t)instance->ranks * sizeof *saved_fill);
        static const double fills[] = { 1, 0.75, 0.5, 0.25, 0.001 };
        if (draw(self) < 0.15)
            self->fill[(int)(draw(self) * instance->ranks)] = fills[(int)(draw(self) * 5)];
        else
            move_step(self);
        while (draw(self) < 0.4)
            move_step(self);
        if (!try_steps(self)) {
            memcpy(self->steps, saved, bytes);
            memcpy(self->fill, saved_fill, (size_t)instance->ranks * sizeof *saved_fill);
        }
    }
    return SL_OK;
}

sl_status sl_polish(sl_placer *placer, int64_t effort, double bound, sl_order *best)
{
    sl_status status = SL_OK;
    const sl_instance *instance = placer->instance;
    polish self = { .placer = placer,
                    .best = best,
                    .length = 2 * instance->chunks * instance->microbatches,
                    .value = INFINITY,
                    .until = placer->placed + effort,
                    .bound = bound,
                    .random = 0x2545f4914f6cdd1d };
    sl_operation *saved = NULL;
    double *saved_fill = NULL;
    int64_t steps = (int64_t)self.length * instance->ranks;
    SL_TRY(SL_NEW_ARRAY(self.steps, steps));
    SL_TRY(SL_NEW_ARRAY(saved, steps));
    SL_TRY(SL_NEW_ARRAY(self.fill, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(saved_fill, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.at, instance->ranks));
    int64_t count = 0;
    for (int64_t n = 0; n < best->length * instance->ranks; n++) {
        if (sl_operation_kind_of(best->operations[n]) != SL_OPERATION_W)
            self.steps[count++] = best->operations[n];
    }
    static const double fills[] = { 1, 0.5, 0.001 };
    double best_start = INFINITY;
    int chosen = 0;
    for (int n = 0; n < 9; n++) {
        for (int rank = 0; rank < instance->ranks; rank++)
            self.fill[rank] =
                fills[n % 3] + (fills[n / 3] - fills[n % 3]) * rank / (instance->ranks > 1 ? instance->ranks - 1 : 1);
        self.value = INFINITY;
        try_steps(&self);
        if (self.value < best_start) {
            best_start = self.value;
            chosen = n;
        }
    }
    for (int rank = 0; rank < instance->ranks; rank++)
        self.fill[rank] = fills[chosen % 3] + (fills[chosen / 3] - fills[chosen % 3]) * rank /
                                                  (instance->ranks > 1 ? instance->ranks - 1 : 1);
    self.value = best_start;
    SL_TRY(run(&self, saved, saved_fill));
done:
    sl_free(self.steps);
    sl_free(saved);
    sl_free(self.fill);
    sl_free(saved_fill);
    sl_free(self.at);
    return status;
}
