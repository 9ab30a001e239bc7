/* The event-driven list scheduler: of all ranks' next operations always the one that can start first is placed, so a
 * rank decides with all knowledge that it can have at that time. W fill gaps and make room.
 *
 * It cannot get stuck: an F of a chunk is placed only if the rank then has room for that microbatch in all its later
 * chunks as well. So the oldest microbatch in flight can always go on; those before it have freed what they held. */
#include "plan/placer.h"

typedef struct next_operation {
    double start; /* infinity: none */
    int chunk;
    sl_operation_kind kind;
    double room; /* memory that W have to make first */
} next_operation;

typedef struct greedy {
    sl_placer *placer;
    const sl_greedy_choice *choice;
    next_operation *next; /* (ranks) */
    double *tree; /* a tournament of the ranks' starts: node n has the smaller of 2n and 2n + 1; ranks at `leaves` */
    int leaves;
} greedy;

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* The chunk that has gone furthest goes first if several can start. */
static next_operation best_backward(const greedy *self, int rank)
{
    const sl_placer *placer = self->placer;
    next_operation best = { .start = INFINITY, .kind = SL_OPERATION_I };
    for (int chunk = placer->instance->chunks - 1; chunk >= 0; chunk--) {
        int stage = sl_instance_stage(placer->instance, rank, chunk);
        if (placer->done_i[stage] >= placer->done_f[stage])
            continue;
        double ready = sl_placer_ready_i(placer, stage), start = later(ready, placer->now[rank]);
        if (ready >= 0 && start < best.start) {
            best.start = start;
            best.chunk = chunk;
        }
    }
    return best;
}

/* When the rank has the room, running W first if it must; infinity if those that are ready are not enough. */
static double time_of_room(const sl_placer *placer, int rank, double room)
{
    const sl_instance *instance = placer->instance;
    double now = placer->now[rank], missing = placer->memory[rank] + room - instance->limit - instance->slack;
    if (!(missing > 0))
        return now;
    double most = 0;
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        int stage = sl_instance_stage(instance, rank, chunk);
        int ready = placer->done_i[stage] - placer->done_w[stage];
        most += ready * instance->load[stage].keep;
    }
    if (most < missing)
        return INFINITY;
    for (int chunk = 0; chunk < instance->chunks && missing > 0; chunk++) {
        int stage = sl_instance_stage(instance, rank, chunk);
        for (int ready = placer->done_i[stage] - placer->done_w[stage]; ready > 0 && missing > 0; ready--) {
            missing -= instance->load[stage].keep;
            now += instance->load[stage].w;
        }
    }
    return now;
}

static next_operation best_forward(const greedy *self, int rank)
{
    const sl_placer *placer = self->placer;
    const sl_instance *instance = placer->instance;
    const sl_greedy_choice *choice = self->choice;
    next_operation best = { .start = INFINITY, .kind = SL_OPERATION_F };
    for (int n = 0; n < instance->chunks; n++) {
        int chunk = choice->deep_first ? instance->chunks - 1 - n : n;
        int stage = sl_instance_stage(instance, rank, chunk);
        if (placer->done_f[stage] >= instance->microbatches)
            continue;
        double ready = sl_placer_ready_f(placer, stage);
        if (ready < 0)
            continue;
        double after = (double)(instance->stages - 1 - stage) / instance->chunks;
        if (choice->ahead_step > 0 &&
            placer->done_f[stage] - placer->done_i[stage] >= choice->ahead + choice->ahead_step * after)
            continue;
        double room = 0;
        for (int later_chunk = chunk; later_chunk < instance->chunks; later_chunk++)
            room += sl_instance_load(instance, rank, later_chunk)->hold;
        double start = later(ready, time_of_room(placer, rank, room));
        if (start < best.start) {
            best.start = start;
            best.chunk = chunk;
            best.room = room;
        }
    }
    return best;
}

static void decide(greedy *self, int rank)
{
    next_operation backward = best_backward(self, rank), forward = best_forward(self, rank);
    double f = sl_instance_load(self->placer->instance, rank, forward.chunk)->f;
    bool go_forward = forward.start + self->choice->patience * f < backward.start ||
                      (self->choice->forward_first && forward.start <= backward.start);
    self->next[rank] = go_forward ? forward : backward;
    int node = self->leaves + rank;
    self->tree[node] = self->next[rank].start;
    for (node /= 2; node >= 1; node /= 2) {
        const double *pair = &self->tree[(size_t)node * 2];
        self->tree[node] = pair[0] <= pair[1] ? pair[0] : pair[1];
    }
}

/* The rank whose operation starts first. */
static int winner(const greedy *self)
{
    int node = 1;
    while (node < self->leaves)
        node = 2 * node + (self->tree[(size_t)node * 2] > self->tree[(size_t)node * 2 + 1]);
    return node - self->leaves;
}

static void place(greedy *self, int rank)
{
    sl_placer *placer = self->placer;
    const sl_instance *instance = placer->instance;
    const sl_greedy_choice *choice = self->choice;
    next_operation next = self->next[rank];
    if (next.kind == SL_OPERATION_F)
        (void)sl_placer_make_room(placer, rank, next.room); /* time_of_room() has seen that there are enough */
    double place = instance->ranks > 1 ? (double)rank / (instance->ranks - 1) : 0;
    sl_placer_fill_gap(placer, rank, next.start, choice->fill_first + (choice->fill_last - choice->fill_first) * place);
    sl_placer_put(placer, rank, next.chunk, next.kind, later(next.start, placer->now[rank]));
    decide(self, rank);
    int stage = sl_instance_stage(instance, rank, next.chunk);
    int other = next.kind == SL_OPERATION_F ? stage + 1 : stage - 1;
    if (other >= 0 && other < instance->stages && instance->rank_of[other] != rank)
        decide(self, instance->rank_of[other]);
}

sl_status sl_greedy_run(sl_placer *placer, const sl_greedy_choice *choice)
{
    sl_status status = SL_OK;
    int ranks = placer->instance->ranks;
    greedy self = { .placer = placer, .choice = choice, .leaves = 1 };
    while (self.leaves < ranks)
        self.leaves *= 2;
    SL_TRY(SL_NEW_ARRAY(self.next, ranks));
    SL_TRY(SL_NEW_ARRAY(self.tree, 2 * self.leaves));
    sl_placer_reset(placer);
    for (int node = 0; node < 2 * self.leaves; node++)
        self.tree[node] = INFINITY;
    for (int rank = 0; rank < ranks; rank++)
        decide(&self, rank);
    while (self.tree[1] < INFINITY) {
        int rank = winner(&self);
        place(&self, rank);
        if (sl_placer_is_late(placer, rank))
            goto done;
    }
    sl_placer_finish(placer);
done:
    sl_free(self.next);
    sl_free(self.tree);
    return status;
}
