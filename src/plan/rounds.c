/* The heuristic of the zero-bubble paper for one stage a rank: a warm-up of F while memory and time allow, then rounds in
 * which every rank runs an F and an I; W fill the gaps and make room. */
#include "plan/placer.h"

typedef struct rounds {
    sl_placer *placer;
    sl_rounds_choice choice;
    const sl_stage_load *load; /* (ranks) stage and rank are one */
    int last;
} rounds;

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void put(rounds *self, int rank, sl_operation_kind kind)
{
    sl_placer *placer = self->placer;
    double ready = kind == SL_OPERATION_F ? sl_placer_ready_f(placer, rank) : sl_placer_ready_i(placer, rank);
    sl_placer_put(placer, rank, 0, kind, later(placer->now[rank], ready));
}

/* W that fit before `ready`; then perhaps one that is longer than what is left of the gap: by the rank that would wait
 * most, or by every rank. */
static void fill(rounds *self, int rank, double ready)
{
    sl_placer *placer = self->placer;
    sl_placer_fill_gap(placer, rank, ready, 1);
    double gap = ready - placer->now[rank];
    if (gap <= 0 || sl_placer_next_w(placer, rank) < 0)
        return;
    if (self->choice.fill_always || gap > placer->most_idle - placer->idle[rank])
        sl_placer_fill_gap(placer, rank, ready, 0);
}

/* How many more F each rank runs before its first I. From the last rank up, for the first I of a rank follows that of
 * the next; no rank runs as many as the one before it, which it waits for. */
static void plan_warm_up(rounds *self, int *more)
{
    sl_placer *placer = self->placer;
    int microbatches = placer->instance->microbatches;
    double end = placer->now[self->last] + self->load[self->last].i; /* of the first I of the next rank */
    more[self->last] = 0;
    for (int rank = self->last - 1; rank >= 0; rank--) {
        const sl_stage_load *load = &self->load[rank];
        double arrival = end + load->to_next, now = placer->now[rank], memory = load->hold;
        for (more[rank] = 0; 1 + more[rank] < microbatches && sl_placer_fits(placer, rank, memory); more[rank]++) {
            if (self->choice.overshoot ? now >= arrival : now + load->f > arrival)
                break;
            memory += load->hold;
            now += load->f;
        }
        end = later(now, arrival) + load->i;
    }
    for (int rank = 1; rank <= self->last; rank++) {
        while (more[rank] > 0 && more[rank] >= more[rank - 1] && 1 + more[rank] < microbatches)
            more[rank]--;
    }
}

/* A rank that is two F or more ahead of the next one may leave out its F in this round: if the next is busy anyway until
 * this rank is through, or if waiting for it does not make this rank the one that waits most. */
static bool wants_forward(const rounds *self, int rank)
{
    const sl_placer *placer = self->placer;
    if (placer->done_f[rank] >= placer->instance->microbatches)
        return false;
    if (!self->choice.skip_ahead || rank == self->last || placer->done_f[rank] < placer->done_f[rank + 1] + 2)
        return true;
    const sl_stage_load *next = &self->load[rank + 1], *own = &self->load[rank];
    double now = placer->now[rank], through = placer->now[rank + 1] + next->f + next->i + own->to_next;
    if (now >= through)
        return false;
    double memory = placer->memory[rank] + own->hold, weights = 0;
    int ready = placer->done_i[rank] - placer->done_w[rank];
    for (; memory > placer->instance->limit + placer->instance->slack && ready > 0; ready--) {
        memory -= own->keep;
        weights += own->w;
    }
    return now + own->f + weights <= through || through - now > placer->most_idle - placer->idle[rank];
}

static bool run_round(rounds *self, int *wanted)
{
    sl_placer *placer = self->placer;
    for (int rank = self->last; rank >= 0; rank--)
        wanted[rank] = wants_forward(self, rank) && (rank == self->last || wanted[rank + 1]);
    for (int rank = 0; rank <= self->last; rank++) {
        if (!wanted[rank])
            continue;
        if (!sl_placer_make_room(placer, rank, self->load[rank].hold))
            return false;
        fill(self, rank, sl_placer_ready_f(placer, rank));
        put(self, rank, SL_OPERATION_F);
    }
    for (int rank = self->last; rank >= 0; rank--) {
        if (placer->done_i[rank] >= placer->done_f[rank])
            return false;
        fill(self, rank, sl_placer_ready_i(placer, rank));
        if (rank == 0 && placer->done_f[0] == placer->instance->microbatches)
            sl_placer_flush_w(placer, 0); /* nobody waits for what follows */
        put(self, rank, SL_OPERATION_I);
    }
    return true;
}

void sl_rounds_run(sl_placer *placer, sl_rounds_choice choice)
{
    const sl_instance *instance = placer->instance;
    rounds self = { .placer = placer, .choice = choice, .load = instance->load, .last = instance->ranks - 1 };
    int *room = placer->room;
    sl_placer_reset(placer);
    for (int rank = 0; rank <= self.last; rank++)
        put(&self, rank, SL_OPERATION_F);
    plan_warm_up(&self, room);
    for (int rank = 0; rank <= self.last; rank++) {
        for (int n = 0; n < room[rank]; n++)
            put(&self, rank, SL_OPERATION_F);
    }
    for (int rank = self.last; rank >= 0; rank--)
        put(&self, rank, SL_OPERATION_I);
    for (int round = 1; round < instance->microbatches; round++) {
        if (!run_round(&self, room))
            return;
    }
    sl_placer_finish(placer);
}
