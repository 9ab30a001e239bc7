/* Waves: orders in which every microbatch takes the same path, and the search for the best of them. */
#include "plan/placer.h"

#include <string.h>

/* ---- One wave -------------------------------------------------------------------------------- */

/* The wave's time of point `point` for a microbatch. */
static double time_of(const sl_wave *wave, int points, int point, int microbatch)
{
    return wave->phase[wave->part_of[microbatch] * points + point] + wave->clock[microbatch];
}

/* The rank's next F or I by the wave's time; false if none is left. */
static bool next_by_phase(const sl_placer *placer, const sl_wave *wave, int rank, int *chunk, sl_operation_kind *kind)
{
    const sl_instance *instance = placer->instance;
    int points = 2 * instance->stages;
    double best = INFINITY;
    for (int each = 0; each < instance->chunks; each++) {
        int stage = sl_instance_stage(instance, rank, each);
        int forward = placer->done_f[stage], backward = placer->done_i[stage];
        if (forward < instance->microbatches) {
            double time = time_of(wave, points, stage, forward);
            if (time < best) {
                best = time;
                *chunk = each;
                *kind = SL_OPERATION_F;
            }
        }
        if (backward < forward) {
            double time = time_of(wave, points, points - 1 - stage, backward);
            if (time < best) {
                best = time;
                *chunk = each;
                *kind = SL_OPERATION_I;
            }
        }
    }
    return best < INFINITY;
}

/* Goes on with the rank until it has to wait for another; false if the order is of no use. */
static bool advance(sl_placer *placer, const sl_wave *wave, int rank, int *top)
{
    const sl_instance *instance = placer->instance;
    double place = instance->ranks > 1 ? (double)rank / (instance->ranks - 1) : 0;
    double share = wave->fill_first + (wave->fill_last - wave->fill_first) * place;
    int chunk;
    sl_operation_kind kind;
    while (next_by_phase(placer, wave, rank, &chunk, &kind)) {
        int stage = sl_instance_stage(instance, rank, chunk);
        bool forward = kind == SL_OPERATION_F;
        double ready = forward ? sl_placer_ready_f(placer, stage) : sl_placer_ready_i(placer, stage);
        if (ready < 0)
            return true;
        if (forward && !sl_placer_make_room(placer, rank, instance->load[stage].hold))
            return false;
        sl_placer_fill_gap(placer, rank, ready, share);
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

static void run_wave(sl_placer *placer, const sl_wave *wave)
{
    int ranks = placer->instance->ranks, top = 0;
    sl_placer_reset(placer);
    for (int rank = ranks - 1; rank >= 0; rank--) {
        placer->waiting[rank] = true;
        placer->pending[top++] = rank;
    }
    while (top > 0) {
        int rank = placer->pending[--top];
        placer->waiting[rank] = false;
        if (!advance(placer, wave, rank, &top))
            return;
    }
    sl_placer_finish(placer);
}

/* ---- Search ---------------------------------------------------------------------------------- */

/* Microbatches at the start and at the end may go other ways than those in the middle. */
enum { PARTS = 5 };

typedef struct wave_search {
    sl_placer *placer;
    sl_order *best;
    sl_wave wave, tried; /* the best one, and the one to try */
    double value;        /* of the best wave; other orders may be better */
    int points;          /* of a wave */
    double period;       /* work of the busiest rank for one microbatch */
    int64_t until;       /* operations placed */
    double bound;
    bool tight;      /* a rank cannot hold a microbatch for every rank */
    bool short_hops; /* of the wave that is laid */
    uint64_t random;
} wave_search;

static const double fills[] = { 1, 0.5, 0.001 };

/* From 0 to below 1; xorshift, so that equal problems give equal plans. */
static double draw(wave_search *self)
{
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return (double)(self->random >> 11) * 0x1p-53;
}

/* When each microbatch sets out, in periods: a few at the start may follow each other faster, then comes a pause; a few
 * at the end likewise after a pause. */
static void set_clock(wave_search *self, sl_wave_bursts bursts)
{
    int last = self->placer->instance->microbatches - 1;
    self->tried.bursts = bursts;
    for (int n = 0; n <= last; n++) {
        double time = n < bursts.first ? n * bursts.first_pace : n;
        self->tried.clock[n] = last - n < bursts.last ? last - (last - n) * bursts.last_pace : time;
    }
}

static sl_wave_bursts draw_bursts(wave_search *self)
{
    static const double paces[] = { 0.9, 0.8, 0.75, 2.0 / 3, 0.6, 0.5 };
    const sl_instance *instance = self->placer->instance;
    int most = instance->ranks < instance->microbatches ? instance->ranks : instance->microbatches;
    sl_wave_bursts bursts = { .first_pace = paces[(int)(draw(self) * 6)], .last_pace = paces[(int)(draw(self) * 6)] };
    bursts.first = draw(self) < 0.4 ? 0 : (int)(draw(self) * (most + 1));
    bursts.last = draw(self) < 0.4 ? 0 : (int)(draw(self) * (most + 1));
    return bursts;
}

static double draw_fill(wave_search *self)
{
    return fills[(int)(draw(self) * 3)];
}

static bool is_over(const wave_search *self)
{
    return self->placer->placed >= self->until || self->best->value <= self->bound * (1 + 1e-12);
}

/* What a rank holds on the mean if the wave keeps its time: more than the limit cannot be. */
static bool may_fit(const wave_search *self)
{
    const sl_instance *instance = self->placer->instance;
    const double *phase = self->tried.phase + (size_t)(PARTS / 2) * (size_t)self->points;
    for (int rank = 0; rank < instance->ranks; rank++) {
        double held = 0, one = 0;
        for (int chunk = 0; chunk < instance->chunks; chunk++) {
            int stage = sl_instance_stage(instance, rank, chunk);
            held += instance->load[stage].hold * (phase[self->points - 1 - stage] - phase[stage]);
            one += instance->load[stage].hold;
        }
        if (held > instance->limit + one)
            return false;
    }
    return true;
}

/* Runs the tried wave and keeps it if it is no worse than the best one. */
static void try_wave(wave_search *self)
{
    sl_placer *placer = self->placer;
    if (!may_fit(self)) {
        placer->placed++;
        return;
    }
    placer->stop = self->value * (1 + 1e-12);
    placer->placed += placer->instance->ranks; /* a wave that ends at once costs something, too */
    run_wave(placer, &self->tried);
    placer->stop = INFINITY;
    if (!(placer->order.value <= self->value * (1 + 1e-12)))
        return;
    self->value = placer->order.value;
    sl_order_keep_better(placer, "wave", self->best);
    memcpy(self->wave.phase, self->tried.phase, (size_t)(PARTS * self->points) * sizeof *self->wave.phase);
    self->wave.fill_first = self->tried.fill_first;
    self->wave.fill_last = self->tried.fill_last;
    self->wave.bursts = self->tried.bursts;
}

static void divide(const sl_instance *instance, uint8_t *part_of)
{
    int microbatches = instance->microbatches;
    int end = instance->ranks < microbatches / 3 ? instance->ranks : (microbatches + 2) / 3;
    for (int n = 0; n < microbatches; n++) {
        int rest = microbatches - 1 - n;
        part_of[n] = (uint8_t)(n < end ? (2 * n < end ? 0 : 1) : rest < end ? (2 * rest < end ? 4 : 3) : 2);
    }
}

/* All parts like the first. */
static void repeat_part(wave_search *self)
{
    for (int part = 1; part < PARTS; part++)
        memcpy(self->tried.phase + (size_t)part * (size_t)self->points, self->tried.phase,
               (size_t)self->points * sizeof *self->tried.phase);
}

/* The flight of one microbatch at its full speed, leg by leg (a leg is a run over all ranks) slowed down by a factor, and
 * with a wait at each turn. */
static void lay_wave(wave_search *self, double period, bool straight)
{
    const sl_instance *instance = self->placer->instance;
    int stages = instance->stages;
    double time = 0, slow = 1;
    double turn = straight || draw(self) < 0.5 ? 0 : draw(self) * 0.3 * self->period;
    for (int point = 0; point < self->points; point++) {
        bool forward = point < stages;
        int stage = forward ? point : self->points - 1 - point;
        const sl_stage_load *load = &instance->load[stage];
        if (point % instance->ranks == 0) {
            slow = straight || draw(self) < 0.5 ? 1 : 1 + 1.5 * draw(self);
            time += point > 0 ? turn : 0;
        }
        self->tried.phase[point] = time / period;
        double message =
            forward ? (stage + 1 < stages ? load->to_next : 0) : (stage > 0 ? instance->load[stage - 1].to_next : 0);
        time += slow * ((forward ? load->f : load->i) + message);
    }
    repeat_part(self);
}

/* Small more often than large for a wave of short hops: a microbatch that flies fast holds less. */
static double draw_short(wave_search *self)
{
    double value = draw(self);
    return self->short_hops ? value * draw(self) : value;
}

/* Hops of a simple fraction of the period: on every rank, or every few ranks, the operations then meet in the same way,
 * and if they get along on those they do on all. The turns are drawn. */
static void lay_regular_wave(wave_search *self)
{
    static const double hops[] = { 1.0 / 6, 1.0 / 5, 1.0 / 4, 1.0 / 3, 2.0 / 5, 1.0 / 2,
                                   3.0 / 5, 2.0 / 3, 3.0 / 4, 5.0 / 6, 1 };
    enum { HOPS = sizeof hops / sizeof *hops };
    const sl_instance *instance = self->placer->instance;
    double time = 0, hop = 0, variety = draw(self);
    self->short_hops = self->tight && draw(self) < 0.5;
    double forward = hops[(int)(draw_short(self) * HOPS)];
    double backward = draw(self) < 0.5 ? forward : hops[(int)(draw_short(self) * HOPS)];
    for (int point = 0; point < self->points; point++) {
        if (point % instance->ranks == 0 && point > 0)
            time += draw_short(self) - hop;
        self->tried.phase[point] = time;
        if (point % instance->ranks == 0) {
            hop = point < instance->stages ? forward : backward;
            if (draw(self) < variety)
                hop = hops[(int)(draw_short(self) * HOPS)];
        }
        time += hop;
    }
    for (int point = 1; point < self->points; point++)
        if (self->tried.phase[point] < self->tried.phase[point - 1])
            self->tried.phase[point] = self->tried.phase[point - 1];
    repeat_part(self);
}

static void scan(wave_search *self, int64_t until)
{
    for (int n = 0; !is_over(self) && self->placer->placed < until; n++) {
        bool straight = n < 180;
        double period = straight ? 0.7 + 0.05 * (n / 9 % 20) : 0.8 + 0.8 * draw(self);
        if (straight || n % 3 == 0)
            lay_wave(self, period * self->period, straight);
        else
            lay_regular_wave(self);
        self->tried.fill_first = straight ? fills[n % 3] : draw_fill(self);
        self->tried.fill_last = straight ? fills[n / 3 % 3] : draw_fill(self);
        set_clock(self, straight || n % 2 ? (sl_wave_bursts){ 0 } : draw_bursts(self));
        try_wave(self);
    }
}

/* Moves a part of the wave in time. */
static void shift_part(wave_search *self)
{
    int from = (int)(draw(self) * self->points), to = (int)(draw(self) * self->points);
    if (from > to) {
        int other = from;
        from = to;
        to = other;
    }
    if (draw(self) < 0.3)
        to = self->points - 1;
    if (draw(self) < 0.3)
        to = from;
    double widths[] = { 0.3, 0.3, 1, 2 };
    double shift = (draw(self) - 0.5) * widths[(int)(draw(self) * 4)];
    double slope = draw(self) < 0.3 ? 1.0 / (1 + to - from) : 0; /* all by the same, or more and more */
    int parts = draw(self) < 0.4 ? (1 << PARTS) - 1 : 1 + (int)(draw(self) * ((1 << PARTS) - 1));
    for (int part = 0; part < PARTS; part++) {
        double *phase = self->tried.phase + (size_t)part * (size_t)self->points;
        if (!(parts >> part & 1))
            continue;
        for (int point = from; point <= to; point++)
            phase[point] += slope > 0 ? shift * slope * (1 + point - from) : shift;
        for (int point = 1; point < self->points; point++)
            phase[point] = phase[point] < phase[point - 1] ? phase[point - 1] : phase[point];
    }
}

static void improve(wave_search *self)
{
    while (!is_over(self)) {
        memcpy(self->tried.phase, self->wave.phase, (size_t)(PARTS * self->points) * sizeof *self->wave.phase);
        self->tried.fill_first = self->wave.fill_first;
        self->tried.fill_last = self->wave.fill_last;
        set_clock(self, self->wave.bursts);
        double kind = draw(self);
        if (kind < 0.1) {
            self->tried.fill_first = draw_fill(self);
            self->tried.fill_last = draw_fill(self);
        } else if (kind < 0.15) {
            set_clock(self, draw_bursts(self));
        } else {
            shift_part(self);
            if (draw(self) < 0.5)
                shift_part(self);
        }
        try_wave(self);
    }
}

sl_status sl_wave_search(sl_placer *placer, int64_t effort, double bound, sl_order *best)
{
    sl_status status = SL_OK;
    const sl_instance *instance = placer->instance;
    wave_search self = { .placer = placer,
                         .best = best,
                         .points = 2 * instance->stages,
                         .until = placer->placed + effort,
                         .bound = bound,
                         .value = INFINITY,
                         .random = 0x9e3779b97f4a7c15 };
    for (int rank = 0; rank < instance->ranks; rank++)
        self.period = instance->work[rank] > self.period ? instance->work[rank] : self.period;
    double held = 0;
    for (int chunk = 0; chunk < instance->chunks; chunk++)
        held += sl_instance_load(instance, 0, chunk)->hold;
    self.tight = instance->limit < held * instance->ranks - instance->slack;
    SL_TRY(SL_NEW_ARRAY(self.wave.phase, PARTS * self.points));
    SL_TRY(SL_NEW_ARRAY(self.tried.phase, PARTS * self.points));
    SL_TRY(SL_NEW_ARRAY(self.wave.part_of, instance->microbatches));
    SL_TRY(SL_NEW_ARRAY(self.tried.clock, instance->microbatches));
    self.tried.part_of = self.wave.part_of;
    divide(instance, self.wave.part_of);
    lay_wave(&self, self.period, true);
    memcpy(self.wave.phase, self.tried.phase, (size_t)(PARTS * self.points) * sizeof *self.wave.phase);
    self.wave.fill_first = self.wave.fill_last = 1;
    scan(&self, placer->placed + effort / 2);
    improve(&self);
done:
    sl_free(self.tried.clock);
    sl_free(self.wave.part_of);
    sl_free(self.wave.phase);
    sl_free(self.tried.phase);
    return status;
}
