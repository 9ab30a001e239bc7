/* Local search on the order itself: single F and I move, W follow; in small orders single W move as well. It mends what a
 * wave cannot have: a start and an end that differ from the middle. */
#include "plan/polish.h"

#include <math.h>
#include <string.h>

enum { TRIES_FOR_PACES = 100 }; /* of every step that the effort must allow; else moves of F and I are worth more */

typedef struct polish {
    sl_player player;
    sl_order *best;
    sl_critical critical;
    double cost, best_cost; /* of the accepted steps, and the least so far */
    bool has_paces;         /* the paces of single steps change, too */
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

/* Plays the steps; true if they are no worse than those before. Of two orders with the same value the one whose ranks end
 * earlier is better: that is what leads on. */
static bool try_steps(polish *self)
{
    sl_player *player = &self->player;
    player->stop = self->cost * (1 + 1e-12);
    sl_player_run(player);
    if (isinf(player->cost) || player->cost > player->stop) {
        sl_player_reject(player);
        return false;
    }
    sl_player_accept(player);
    self->cost = player->cost;
    sl_player_keep_better(player, "polish", self->best);
    sl_critical_find(player, &self->critical);
    return true;
}

static void shift(polish *self, int rank, int from, int to)
{
    int length = self->player.length;
    sl_operation *steps = self->player.now.steps + (int64_t)rank * length;
    to = to < 0 ? 0 : to >= length ? length - 1 : to;
    sl_operation moved = steps[from];
    if (to < from)
        memmove(steps + to + 1, steps + to, (size_t)(from - to) * sizeof *steps);
    else
        memmove(steps + from, steps + from + 1, (size_t)(to - from) * sizeof *steps);
    steps[to] = moved;
    sl_player_change(&self->player, rank, to < from ? to : from);
}

/* A step, most often one on the critical path. */
static void choose_step(polish *self, int *rank, int *step)
{
    const sl_critical_step *critical = &self->critical.steps[(int)(draw(self) * self->critical.count)];
    bool any = self->critical.count == 0 || draw(self) < 0.3;
    *rank = any ? (int)(draw(self) * self->player.instance->ranks) : critical->rank;
    *step = any ? (int)(draw(self) * self->player.length) : critical->step;
}

/* Moves a step a few places forward or back. */
static void move_step(polish *self)
{
    int rank, from;
    choose_step(self, &rank, &from);
    int distance = 1 + (int)(draw(self) * draw(self) * 8);
    shift(self, rank, from, draw(self) < 0.5 ? from - distance : from + distance);
}

/* Moves the same operation of one microbatch, or of a few, some places on several ranks in a row. */
static void move_microbatch(polish *self)
{
    const sl_player *player = &self->player;
    const sl_instance *instance = player->instance;
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
        int64_t places = (rank * player->lanes + operation) * (int64_t)instance->microbatches;
        for (int each = 0; each < span; each++) {
            int wanted = microbatch + (back ? each : span - 1 - each);
            if (wanted >= instance->microbatches)
                continue;
            int at = player->place[places + wanted];
            shift(self, rank, at, back ? at - distance : at + distance);
        }
    }
}

static void set_fill(polish *self, int rank, double share)
{
    sl_player *player = &self->player;
    int first = player->length; /* no W can run before the rank's first I */
    for (int chunk = 0; chunk < player->instance->chunks; chunk++) {
        int64_t lane = rank * player->lanes + sl_operation_make(chunk, SL_OPERATION_I);
        int place = player->place[lane * player->instance->microbatches];
        first = place < first ? place : first;
    }
    player->now.fill[rank] = share;
    sl_player_change(player, rank, first);
}

/* The shares with which the order is best, from the first rank to the last. */
static void choose_fill(polish *self)
{
    static const double fills[] = { 1, 0.5, 0.001 };
    int ranks = self->player.instance->ranks, best = 0;
    double least = INFINITY;
    for (int n = 0; n <= 9; n++) {
        int pair = n < 9 ? n : best; /* the best once more, to end with it */
        double first = fills[pair % 3], last = fills[pair / 3];
        for (int rank = 0; rank < ranks; rank++)
            set_fill(self, rank, first + (last - first) * rank / (ranks > 1 ? ranks - 1 : 1));
        self->cost = INFINITY;
        if (try_steps(self) && self->cost < least) {
            least = self->cost;
            best = n;
        }
    }
}

/* Another pace at a place, most often on the critical path. */
static void move_pace(polish *self)
{
    int rank, step;
    choose_step(self, &rank, &step);
    self->player.now.pace[(int64_t)rank * self->player.length + step] = (uint8_t)(draw(self) * SL_PACE_COUNT);
    sl_player_change(&self->player, rank, step);
}

/* One move of one kind or another, sometimes several. */
static void move(polish *self)
{
    static const double fills[] = { 1, 0.75, 0.5, 0.25, 0.001 };
    bool pace = self->has_paces && draw(self) < 0.2;
    double kind = draw(self);
    if (pace) {
        move_pace(self);
    } else if (kind < 0.15) {
        int rank = (int)(draw(self) * self->player.instance->ranks);
        set_fill(self, rank, fills[(int)(draw(self) * 5)]);
    } else if (kind < 0.6) {
        move_microbatch(self);
    } else {
        move_step(self);
    }
    while (draw(self) < 0.15)
        move_step(self);
}

/* Annealing while the steps played are between the two: an order may be worse than the one before by a random amount, less
 * and less. */
static void run(polish *self, int64_t from, int64_t until)
{
    static const double WARMTH = 2e-4; /* of the cost: what is allowed at the start, on the mean */
    self->best_cost = self->cost;
    while (self->player.placed < until && self->best->value > self->bound * (1 + 1e-12)) {
        double cost = self->cost, left = 1 - (double)(self->player.placed - from) / (double)(until - from);
        move(self);
        self->cost = cost - WARMTH * left * self->best_cost * log(1 - draw(self));
        if (!try_steps(self))
            self->cost = cost;
        self->best_cost = fmin(self->best_cost, self->cost);
    }
}

static void release(polish *self)
{
    sl_player_destroy(&self->player);
    sl_free(self->critical.steps);
}

static sl_status reserve(polish *self, const sl_instance *instance)
{
    sl_status status = SL_OK;
    SL_TRY(sl_player_create(instance, &self->player));
    self->player.weight_of_end = 0.05 / instance->ranks;
    int64_t steps = (int64_t)self->player.length * instance->ranks;
    self->critical.capacity = (int)steps;
    SL_TRY(SL_NEW_ARRAY(self->critical.steps, steps));
done:
    return status;
}

sl_status sl_polish(const sl_instance *instance, int64_t effort, double bound, sl_order *best)
{
    sl_status status = SL_OK;
    polish self = { .best = best, .cost = INFINITY, .bound = bound, .random = 0x2545f4914f6cdd1d };
    SL_TRY(reserve(&self, instance));
    int64_t count = 0, steps = (int64_t)self.player.length * instance->ranks;
    for (int64_t n = 0; n < best->length * instance->ranks; n++) {
        if (sl_operation_kind_of(best->operations[n]) != SL_OPERATION_W)
            self.player.now.steps[count++] = best->operations[n];
    }
    choose_fill(&self);
    if (isfinite(self.cost)) { /* the order fits into memory */
        int64_t without = effort / steps > TRIES_FOR_PACES * steps ? effort / 10 * 3 : effort;
        run(&self, 0, without);
        self.has_paces = true;
        run(&self, without, effort);
    }
done:
    release(&self);
    return status;
}
