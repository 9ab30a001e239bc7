/* Waves: orders in which every microbatch takes the same path, and the search for the best of them. */
#include "plan/player.h"

#include <string.h>

/* How many microbatches at the start and at the end follow each other faster, and how many periods apart. */
typedef struct wave_bursts {
    int first, last;
    double first_pace, last_pace;
} wave_bursts;

/* A wave: every microbatch takes the same path through time, one period after the one before. phase[s] is the time of F
 * of stage s, phase[2 x stages - 1 - s] that of I, in periods; it never falls. Ranks run F and I by that time, each as
 * early as it can, and W in between. */
typedef struct wave {
    double *phase;    /* (parts, 2 x stages) */
    uint8_t *part_of; /* (microbatches) */
    double *clock;    /* (microbatches) when each sets out, in periods; NULL while the wave is only kept */
    wave_bursts bursts;
    double fill_first, fill_last;
} wave;

/* Microbatches at the start and at the end may go other ways than those in the middle. */
enum { PARTS = 5 };

typedef struct wave_search {
    sl_player player;
    sl_order *best;
    wave best_wave, tried; /* the best one, and the one to try */
    double value;          /* of the best wave; other orders may be better */
    int points;            /* of a wave */
    double period;         /* work of the busiest rank for one microbatch */
    int64_t until;         /* operations placed */
    double bound;
    bool tight;      /* a rank cannot hold a microbatch for every rank */
    bool short_hops; /* of the wave that is laid */
    uint64_t random;
    int *next;   /* (ranks, lanes) steps that the wave has made */
    double *due; /* (ranks, lanes) when the next one is due; infinity for W */
} wave_search;

/* ---- One wave -------------------------------------------------------------------------------- */

/* The wave's time of point `point` for a microbatch. */
static double time_of(const wave *path, int points, int point, int microbatch)
{
    return path->phase[path->part_of[microbatch] * points + point] + path->clock[microbatch];
}

/* Sets when the rank's next operation of this kind is due. */
static void set_due(wave_search *self, int rank, sl_operation operation)
{
    const sl_instance *instance = self->player.instance;
    const int *next = self->next + rank * self->player.lanes;
    int stage = sl_instance_stage(instance, rank, sl_operation_chunk(operation));
    bool forward = sl_operation_kind_of(operation) == SL_OPERATION_F;
    bool is_possible = next[operation] < (forward ? instance->microbatches : next[operation - 1]);
    int point = forward ? stage : self->points - 1 - stage;
    self->due[rank * self->player.lanes + operation] =
        is_possible ? time_of(&self->tried, self->points, point, next[operation]) : INFINITY;
}

/* The rank's next F or I by the wave's time. */
static sl_operation take_next(wave_search *self, int rank)
{
    const double *due = self->due + rank * self->player.lanes;
    sl_operation first = 0;
    for (int n = 1; n < self->player.lanes; n++)
        first = due[n] < due[first] ? (sl_operation)n : first;
    self->next[rank * self->player.lanes + first]++;
    set_due(self, rank, first);
    if (sl_operation_kind_of(first) == SL_OPERATION_F && isinf(due[first + 1]))
        set_due(self, rank, (sl_operation)(first + 1));
    return first;
}

/* Most waves are given up early, so their steps are made as they are played. */
static void extend(sl_player *player, int rank, void *context)
{
    wave_search *self = context;
    enum { STEPS = 8 };
    sl_operation *steps = player->now.steps + (int64_t)rank * player->length;
    for (int n = 0; n < STEPS && player->known[rank] < player->length; n++) {
        steps[player->known[rank]++] = take_next(self, rank);
    }
}

static void run_wave(wave_search *self)
{
    sl_player *player = &self->player;
    int ranks = player->instance->ranks;
    memset(self->next, 0, (size_t)(ranks * player->lanes) * sizeof *self->next);
    for (int rank = 0; rank < ranks; rank++) {
        double place = ranks > 1 ? (double)rank / (ranks - 1) : 0;
        player->now.fill[rank] = self->tried.fill_first + (self->tried.fill_last - self->tried.fill_first) * place;
        player->known[rank] = player->changed[rank] = 0;
        for (int n = 0; n < player->lanes; n++)
            self->due[rank * player->lanes + n] = INFINITY;
        for (int chunk = 0; chunk < player->instance->chunks; chunk++)
            set_due(self, rank, sl_operation_make(chunk, SL_OPERATION_F));
    }
    sl_player_run(player);
}

/* ---- Search ---------------------------------------------------------------------------------- */

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
static void set_clock(wave_search *self, wave_bursts bursts)
{
    int last = self->player.instance->microbatches - 1;
    self->tried.bursts = bursts;
    for (int n = 0; n <= last; n++) {
        double time = n < bursts.first ? n * bursts.first_pace : n;
        self->tried.clock[n] = last - n < bursts.last ? last - (last - n) * bursts.last_pace : time;
    }
}

static wave_bursts draw_bursts(wave_search *self)
{
    static const double paces[] = { 0.9, 0.8, 0.75, 2.0 / 3, 0.6, 0.5 };
    const sl_instance *instance = self->player.instance;
    int most = instance->ranks < instance->microbatches ? instance->ranks : instance->microbatches;
    wave_bursts bursts = { .first_pace = paces[(int)(draw(self) * 6)], .last_pace = paces[(int)(draw(self) * 6)] };
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
    return self->player.placed >= self->until || self->best->value <= self->bound * (1 + 1e-12);
}

/* What a rank holds on the mean if the wave keeps its time: more than the limit cannot be. */
static bool may_fit(const wave_search *self)
{
    const sl_instance *instance = self->player.instance;
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
    sl_player *player = &self->player;
    if (!may_fit(self)) {
        player->placed += self->points; /* placing it took about as long as playing that many steps */
        return;
    }
    player->stop = self->value * (1 + 1e-12);
    run_wave(self);
    if (!(player->value <= self->value * (1 + 1e-12)))
        return;
    self->value = player->value;
    sl_player_accept(player);
    sl_player_keep_better(player, "wave", self->best);
    memcpy(self->best_wave.phase, self->tried.phase, (size_t)(PARTS * self->points) * sizeof *self->best_wave.phase);
    self->best_wave.fill_first = self->tried.fill_first;
    self->best_wave.fill_last = self->tried.fill_last;
    self->best_wave.bursts = self->tried.bursts;
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
    const sl_instance *instance = self->player.instance;
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
    const sl_instance *instance = self->player.instance;
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
    for (int n = 0; !is_over(self) && self->player.placed < until; n++) {
        bool straight = n < 180;
        double period = straight ? 0.7 + 0.05 * (n / 9 % 20) : 0.8 + 0.8 * draw(self);
        if (straight || n % 3 == 0)
            lay_wave(self, period * self->period, straight);
        else
            lay_regular_wave(self);
        self->tried.fill_first = straight ? fills[n % 3] : draw_fill(self);
        self->tried.fill_last = straight ? fills[n / 3 % 3] : draw_fill(self);
        set_clock(self, straight || n % 2 ? (wave_bursts){ 0 } : draw_bursts(self));
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
        memcpy(self->tried.phase, self->best_wave.phase,
               (size_t)(PARTS * self->points) * sizeof *self->best_wave.phase);
        self->tried.fill_first = self->best_wave.fill_first;
        self->tried.fill_last = self->best_wave.fill_last;
        set_clock(self, self->best_wave.bursts);
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

sl_status sl_wave_search(const sl_instance *instance, int64_t effort, double bound, bool tight, sl_order *best)
{
    sl_status status = SL_OK;
    wave_search self = { .best = best,
                         .points = 2 * instance->stages,
                         .until = effort,
                         .bound = bound,
                         .tight = tight,
                         .value = INFINITY,
                         .random = 0x9e3779b97f4a7c15 };
    for (int rank = 0; rank < instance->ranks; rank++)
        self.period = instance->work[rank] > self.period ? instance->work[rank] : self.period;
    SL_TRY(sl_player_create(instance, &self.player));
    self.player.extend = extend;
    self.player.context = &self;
    SL_TRY(SL_NEW_ARRAY(self.next, instance->ranks * self.player.lanes));
    SL_TRY(SL_NEW_ARRAY(self.due, instance->ranks * self.player.lanes));
    SL_TRY(SL_NEW_ARRAY(self.best_wave.phase, PARTS * self.points));
    SL_TRY(SL_NEW_ARRAY(self.tried.phase, PARTS * self.points));
    SL_TRY(SL_NEW_ARRAY(self.best_wave.part_of, instance->microbatches));
    SL_TRY(SL_NEW_ARRAY(self.tried.clock, instance->microbatches));
    self.tried.part_of = self.best_wave.part_of;
    divide(instance, self.best_wave.part_of);
    lay_wave(&self, self.period, true);
    memcpy(self.best_wave.phase, self.tried.phase, (size_t)(PARTS * self.points) * sizeof *self.best_wave.phase);
    self.best_wave.fill_first = self.best_wave.fill_last = 1;
    scan(&self, effort / 2);
    improve(&self);
done:
    sl_player_destroy(&self.player);
    sl_free(self.next);
    sl_free(self.due);
    sl_free(self.tried.clock);
    sl_free(self.best_wave.part_of);
    sl_free(self.best_wave.phase);
    sl_free(self.tried.phase);
    return status;
}
