/* Playing orders of F and I, and going back to where two of them differ. */
#include "plan/player.h"

#include <string.h>

enum { MARK_STEPS = 8 }; /* steps between two marks */

static void free_playing(sl_playing *playing)
{
    sl_free(playing->steps);
    sl_free(playing->fill);
    sl_free(playing->pace);
    sl_free(playing->played);
    sl_free(playing->ready);
    sl_free(playing->marks);
    sl_free(playing->mark_counts);
}

static sl_status new_playing(const sl_player *self, sl_playing *out)
{
    sl_status status = SL_OK;
    int64_t ranks = self->instance->ranks, lanes = ranks * self->lanes;
    SL_TRY(SL_NEW_ARRAY(out->steps, ranks * self->length));
    SL_TRY(SL_NEW_ARRAY(out->fill, ranks));
    SL_TRY(SL_NEW_ARRAY(out->pace, ranks * self->length));
    SL_TRY(SL_NEW_ARRAY(out->played, ranks * self->length));
    SL_TRY(SL_NEW_ARRAY(out->ready, lanes * self->instance->microbatches));
    SL_TRY(SL_NEW_ARRAY(out->marks, ranks * self->marks));
    SL_TRY(SL_NEW_ARRAY(out->mark_counts, lanes * self->marks));
done:
    return status;
}

static int64_t lane_of(const sl_player *self, int stage, sl_operation_kind kind)
{
    const sl_instance *instance = self->instance;
    int rank = instance->rank_of[stage], chunk = 0;
    while (sl_instance_stage(instance, rank, chunk) != stage)
        chunk++;
    return rank * self->lanes + sl_operation_make(chunk, kind);
}

static void link_lanes(sl_player *self, int64_t from, int64_t to, double delay)
{
    int64_t microbatches = self->instance->microbatches;
    sl_player_lane *source = &self->lane[from], *target = &self->lane[to];
    source->next_ready = self->now.ready + to * microbatches;
    target->ready = source->next_ready;
    target->input = from;
    target->made = self->count + from;
    source->delay = delay;
    if (from / self->lanes != to / self->lanes)
        source->next_rank = (int)(to / self->lanes);
}

static void lay_lanes(sl_player *self)
{
    const sl_instance *instance = self->instance;
    for (int stage = 0; stage < instance->stages; stage++) {
        const sl_stage_load *load = &instance->load[stage];
        int64_t f = lane_of(self, stage, SL_OPERATION_F), i = f + 1, w = f + 2;
        self->lane[f] = (sl_player_lane){ .time = load->f, .memory = load->hold, .is_forward = true, .next_rank = -1 };
        self->lane[i] = (sl_player_lane){ .time = load->i, .memory = load->keep - load->hold, .next_rank = -1 };
        self->lane[w] = (sl_player_lane){ .time = load->w, .memory = -load->keep, .next_rank = -1 };
    }
    for (int stage = 0; stage + 1 < instance->stages; stage++) {
        double delay = instance->load[stage].to_next;
        link_lanes(self, lane_of(self, stage, SL_OPERATION_F), lane_of(self, stage + 1, SL_OPERATION_F), delay);
        link_lanes(self, lane_of(self, stage + 1, SL_OPERATION_I), lane_of(self, stage, SL_OPERATION_I), delay);
    }
    int last = instance->stages - 1;
    link_lanes(self, lane_of(self, last, SL_OPERATION_F), lane_of(self, last, SL_OPERATION_I), 0);
}

/* Lanes of W by the memory that they free for their time, falling; equal ones in the order of chunks. */
static void order_weights(sl_player *self, int rank)
{
    int chunks = self->instance->chunks, *order = self->weight_order + (int64_t)rank * chunks;
    for (int chunk = 0; chunk < chunks; chunk++) {
        const sl_stage_load *load = sl_instance_load(self->instance, rank, chunk);
        int at = chunk;
        for (; at > 0; at--) {
            const sl_stage_load *before =
                sl_instance_load(self->instance, rank, sl_operation_chunk((sl_operation)order[at - 1]));
            if (load->keep * before->w <= before->keep * load->w)
                break;
            order[at] = order[at - 1];
        }
        order[at] = sl_operation_make(chunk, SL_OPERATION_W);
    }
}

sl_status sl_player_create(const sl_instance *instance, sl_player *out)
{
    sl_status status = SL_OK;
    int ranks = instance->ranks, length = 2 * instance->chunks * instance->microbatches;
    sl_player self = { .instance = instance,
                       .length = length,
                       .lanes = 3 * (int64_t)instance->chunks,
                       .marks = length / MARK_STEPS + 1,
                       .stop = INFINITY,
                       .value = INFINITY,
                       .cost = INFINITY };
    SL_TRY(new_playing(&self, &self.now));
    SL_TRY(new_playing(&self, &self.accepted));
    SL_TRY(SL_NEW_ARRAY(self.lane, ranks * self.lanes));
    SL_TRY(SL_NEW_ARRAY(self.count, ranks * self.lanes));
    SL_TRY(SL_NEW_ARRAY(self.rank, ranks));
    SL_TRY(SL_NEW_ARRAY(self.weight_order, ranks * instance->chunks));
    SL_TRY(SL_NEW_ARRAY(self.known, ranks));
    SL_TRY(SL_NEW_ARRAY(self.changed, ranks));
    SL_TRY(SL_NEW_ARRAY(self.from, ranks));
    SL_TRY(SL_NEW_ARRAY(self.pending, ranks));
    SL_TRY(SL_NEW_ARRAY(self.scratch, self.lanes));
    SL_TRY(SL_NEW_ARRAY(self.awaits, ranks));
    SL_TRY(SL_NEW_ARRAY(self.place, ranks * self.lanes * (int64_t)instance->microbatches));
    lay_lanes(&self);
    for (int rank = 0; rank < ranks; rank++) {
        order_weights(&self, rank);
        self.known[rank] = length;
    }
    *out = self;
    self = (sl_player){ 0 };
done:
    sl_player_destroy(&self);
    return status;
}

void sl_player_destroy(sl_player *player)
{
    free_playing(&player->now);
    free_playing(&player->accepted);
    sl_free(player->lane);
    sl_free(player->count);
    sl_free(player->rank);
    sl_free(player->weight_order);
    sl_free(player->known);
    sl_free(player->changed);
    sl_free(player->from);
    sl_free(player->pending);
    sl_free(player->scratch);
    sl_free(player->awaits);
    sl_free(player->place);
    *player = (sl_player){ 0 };
}

/* ---- Playing --------------------------------------------------------------------------------- */

/* What the loop below needs of a rank, in one place. */
typedef struct player_view {
    const sl_player_lane *lane;
    const int *weight_order;
    const sl_operation *steps;
    const uint8_t *pace;
    sl_played *played;
    int *count;
    double limit, share;
} player_view;

static inline void play_weight(const player_view *view, sl_player_rank *own, int weight)
{
    view->count[weight]--;
    own->weights--;
    own->now += view->lane[weight].time;
    own->memory += view->lane[weight].memory;
}

/* The W that frees most memory for its time; there must be one. */
static inline int next_weight(const player_view *view)
{
    const int *order = view->weight_order;
    while (view->count[*order] == 0)
        order++;
    return *order;
}

static inline bool make_room(const player_view *view, sl_player_rank *own, double memory)
{
    while (own->memory + memory > view->limit) {
        if (own->weights == 0)
            return false;
        play_weight(view, own, next_weight(view));
    }
    return true;
}

/* W go into the gap while they fit, or while it has at least the rank's share of them. */
static inline void fill_gap(const player_view *view, sl_player_rank *own, double until)
{
    double rounding = 1e-12 * until;
    while (own->weights > 0 && until - own->now > rounding) {
        int weight = next_weight(view);
        if (view->lane[weight].time * view->share > until - own->now + rounding)
            return;
        play_weight(view, own, weight);
    }
}

static void set_mark(sl_player *self, int rank, const sl_player_rank *own)
{
    int64_t mark = rank * self->marks + own->at / MARK_STEPS;
    const int *count = self->count + rank * self->lanes;
    int *counts = self->now.mark_counts + mark * self->lanes;
    self->now.marks[mark] = *own;
    for (int n = 0; n < self->lanes; n++)
        counts[n] = count[n];
}

/* The rank waits until `ready`; false if it, or the mean of all, then ends too late. */
static inline bool wait_for(sl_player *self, sl_player_rank *own, double ready)
{
    double idle = ready - own->now;
    own->now = ready;
    if (own->at == 0 && self->instance->objective == SL_OBJECTIVE_STAGE_TIME)
        return true; /* its own time begins now */
    own->end += idle;
    self->sum_of_ends += idle;
    return own->end + self->weight_of_end * self->sum_of_ends <= self->stop;
}

/* Goes on with the rank until it has to wait for another; false if the order is of no use. */
static bool advance(sl_player *self, int rank, int *top)
{
    sl_player_rank own = self->rank[rank];
    int64_t first = (int64_t)rank * self->length;
    player_view view = { .lane = self->lane + rank * self->lanes,
                         .weight_order = self->weight_order + (int64_t)rank * self->instance->chunks,
                         .steps = self->now.steps + first,
                         .pace = self->now.pace + first,
                         .played = self->now.played + first,
                         .count = self->count + rank * self->lanes,
                         .limit = self->instance->limit + self->instance->slack,
                         .share = self->now.fill[rank] };
    bool useful = true;
    while (own.at < self->length) {
        if (own.at == self->known[rank])
            self->extend(self, rank, self->context);
        sl_operation operation = view.steps[own.at];
        const sl_player_lane *lane = &view.lane[operation];
        int microbatch = view.count[operation], weights = own.weights;
        double ready = 0;
        if (lane->ready) {
            if (microbatch >= *lane->made) {
                self->awaits[rank] = lane->made;
                break;
            }
            ready = lane->ready[microbatch];
        }
        useful = !lane->is_forward || make_room(&view, &own, lane->memory);
        if (!useful)
            break;
        if (view.pace[own.at] == SL_PACE_ONE && own.weights > 0)
            play_weight(&view, &own, next_weight(&view));
        if (view.pace[own.at] != SL_PACE_NONE)
            fill_gap(&view, &own, ready);
        sl_played *played = &view.played[own.at];
        played->weights = weights - own.weights;
        played->waited = ready > own.now;
        if (played->waited && !wait_for(self, &own, ready)) {
            useful = false;
            break;
        }
        played->start = own.now;
        own.now += lane->time;
        own.memory += lane->memory;
        view.count[operation]++;
        if (!lane->is_forward) {
            view.count[operation + 1]++; /* its W */
            own.weights++;
        }
        if (lane->next_ready)
            lane->next_ready[microbatch] = own.now + lane->delay;
        if (lane->next_rank >= 0 && self->awaits[lane->next_rank] == &view.count[operation]) {
            self->awaits[lane->next_rank] = NULL;
            self->pending[(*top)++] = lane->next_rank;
        }
        if (++own.at % MARK_STEPS == 0)
            set_mark(self, rank, &own);
    }
    self->rank[rank] = own;
    return useful;
}

/* The first start that may differ from the accepted order's. */
static double first_change(const sl_player *self)
{
    double time = INFINITY;
    for (int rank = 0; rank < self->instance->ranks; rank++) {
        int step = self->changed[rank];
        if (step >= self->length)
            continue;
        double start = self->accepted.played[(int64_t)rank * self->length + step].start;
        time = start < time ? start : time;
    }
    return time;
}

/* How many of the rank's accepted steps start before `time`. */
static int steps_before(const sl_player *self, int rank, double time)
{
    const sl_played *played = self->accepted.played + (int64_t)rank * self->length;
    int low = 0, high = self->changed[rank];
    while (low < high) {
        int middle = (low + high) / 2;
        if (played[middle].start < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A step that starts before the first change has only inputs that end before it: it stays as it is, with the W before
 * it. So each rank goes back to its last mark before that time. */
static void go_back(sl_player *self)
{
    const sl_instance *instance = self->instance;
    double time = first_change(self);
    self->sum_of_ends = 0;
    for (int rank = 0; rank < instance->ranks; rank++) {
        sl_player_rank *own = &self->rank[rank];
        int mark = steps_before(self, rank, time) / MARK_STEPS;
        if (mark == 0) {
            *own = (sl_player_rank){ .end = instance->work[rank] * instance->microbatches };
            memset(self->count + rank * self->lanes, 0, (size_t)self->lanes * sizeof *self->count);
        } else {
            int64_t index = rank * self->marks + mark;
            *own = self->accepted.marks[index];
            memcpy(self->count + rank * self->lanes, self->accepted.mark_counts + index * self->lanes,
                   (size_t)self->lanes * sizeof *self->count);
        }
        self->from[rank] = own->at;
        self->sum_of_ends += own->end;
    }
}

static void finish(sl_player *self)
{
    double value = 0, sum = 0;
    for (int rank = 0; rank < self->instance->ranks; rank++) {
        const sl_player_rank *own = &self->rank[rank];
        if (own->at < self->length)
            return;
        value = own->end > value ? own->end : value; /* only W are left, and they follow at once */
        sum += own->end;
    }
    self->value = value;
    self->cost = value + self->weight_of_end * sum;
}

void sl_player_run(sl_player *player)
{
    int ranks = player->instance->ranks, top = 0;
    player->value = player->cost = INFINITY;
    go_back(player);
    for (int rank = ranks - 1; rank >= 0; rank--) {
        player->awaits[rank] = NULL;
        player->pending[top++] = rank;
    }
    bool useful = true;
    while (top > 0 && useful) {
        int rank = player->pending[--top];
        useful = advance(player, rank, &top);
    }
    for (int rank = 0; rank < ranks; rank++)
        player->placed += player->rank[rank].at - player->from[rank];
    player->placed += ranks; /* an order that is given up at once costs something, too */
    if (useful)
        finish(player);
}

/* ---- Accepting and rejecting ----------------------------------------------------------------- */

static void copy_order(const sl_player *self, int rank, const sl_playing *from, sl_playing *to)
{
    int64_t first = (int64_t)rank * self->length + self->changed[rank], count = self->length - self->changed[rank];
    memcpy(to->steps + first, from->steps + first, (size_t)count * sizeof *to->steps);
    memcpy(to->pace + first, from->pace + first, (size_t)count * sizeof *to->pace);
    to->fill[rank] = from->fill[rank];
}

/* How often the lane had been played when the rank was taken up. */
static int count_before(const sl_player *self, int rank, int lane)
{
    if (self->from[rank] == 0)
        return 0;
    int64_t mark = rank * self->marks + self->from[rank] / MARK_STEPS;
    return self->accepted.mark_counts[mark * self->lanes + lane];
}

/* What the rank has sent since it was taken up. */
static void copy_sent(const sl_player *self, int rank, const sl_playing *from, sl_playing *to)
{
    for (int n = 0; n < self->lanes; n++) {
        const sl_player_lane *lane = &self->lane[rank * self->lanes + n];
        if (!lane->next_ready)
            continue;
        int before = count_before(self, rank, n), count = self->count[rank * self->lanes + n] - before;
        int64_t first = lane->next_ready - self->now.ready + before;
        if (count > 0)
            memcpy(to->ready + first, from->ready + first, (size_t)count * sizeof *to->ready);
    }
}

/* Which microbatch each step is, and which step each microbatch. */
static void accept_places(sl_player *self, int rank)
{
    sl_playing *to = &self->accepted;
    int64_t microbatches = self->instance->microbatches, first = (int64_t)rank * self->length;
    for (int n = 0; n < self->lanes; n++)
        self->scratch[n] = count_before(self, rank, n);
    for (int step = self->from[rank]; step < self->length; step++) {
        sl_operation operation = to->steps[first + step];
        int microbatch = self->scratch[operation]++;
        to->played[first + step].microbatch = microbatch;
        self->place[(rank * self->lanes + operation) * microbatches + microbatch] = step;
    }
}

static void accept_played(sl_player *self, int rank)
{
    sl_playing *to = &self->accepted, *from = &self->now;
    int64_t step = (int64_t)rank * self->length + self->from[rank];
    memcpy(to->played + step, from->played + step, (size_t)(self->length - self->from[rank]) * sizeof *to->played);
    accept_places(self, rank);
    int64_t mark = rank * self->marks + self->from[rank] / MARK_STEPS + 1; /* the first stays as it is */
    size_t marks = (size_t)((rank + 1) * (int64_t)self->marks - mark);
    memcpy(to->marks + mark, from->marks + mark, marks * sizeof *to->marks);
    memcpy(to->mark_counts + mark * self->lanes, from->mark_counts + mark * self->lanes,
           marks * (size_t)self->lanes * sizeof *to->mark_counts);
}

void sl_player_accept(sl_player *player)
{
    for (int rank = 0; rank < player->instance->ranks; rank++) {
        copy_order(player, rank, &player->now, &player->accepted);
        copy_sent(player, rank, &player->now, &player->accepted);
        accept_played(player, rank);
        player->changed[rank] = player->length;
    }
}

void sl_player_reject(sl_player *player)
{
    for (int rank = 0; rank < player->instance->ranks; rank++) {
        copy_order(player, rank, &player->accepted, &player->now);
        copy_sent(player, rank, &player->accepted, &player->now);
        player->changed[rank] = player->length;
    }
}

/* The rank's accepted steps with their W. */
static void write_operations(const sl_player *self, int rank, int *ready, sl_operation *out)
{
    const int *order = self->weight_order + (int64_t)rank * self->instance->chunks;
    int64_t first = (int64_t)rank * self->length;
    memset(ready, 0, (size_t)self->lanes * sizeof *ready);
    for (int step = 0; step <= self->length; step++) {
        bool is_end = step == self->length;
        int weights = is_end ? self->length / 2 : self->accepted.played[first + step].weights;
        for (int n = 0; weights > 0 && n < self->instance->chunks; n++) {
            for (; weights > 0 && ready[order[n]] > 0; weights--, ready[order[n]]--)
                *out++ = (sl_operation)order[n];
        }
        if (is_end)
            return;
        sl_operation operation = self->accepted.steps[first + step];
        *out++ = operation;
        if (sl_operation_kind_of(operation) == SL_OPERATION_I)
            ready[operation + 1]++;
    }
}

void sl_player_keep_better(const sl_player *player, const char *method, sl_order *best)
{
    if (!(player->value < best->value * (1 - 1e-12)))
        return;
    for (int rank = 0; rank < player->instance->ranks; rank++)
        write_operations(player, rank, player->scratch, best->operations + rank * best->length);
    best->value = player->value;
    best->method = method;
}
