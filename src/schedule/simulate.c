/* The simulator: walks over the schedule and gives each action its start and end. */
#include "schedule/check.h"
#include "schedule/timeline.h"

typedef struct simulation {
    const sl_schedule *schedule;
    const sl_links *links;
    const sl_costs *costs;
    sl_timeline *timeline;
    bool messages;
    double *compute_free; /* (ranks) when the last compute action ends */
    double *weights_free; /* (ranks) when the last UNSHARD, RESHARD or REDUCE_GRAD ends */
    double *unsharded;    /* (stages) when its weights have come: at the start, or by the last UNSHARD */
    double *reduced;      /* (stages) when REDUCE_GRAD ends */
    double *sent[2];      /* F, B: (stages, microbatches) when the last message of a SEND has arrived; NULL: no waits */
    double *link_free[2]; /* F, B: (edges) when the last message has left */
    double *ready[2];     /* F, B: (stages, microbatches) when all that it needs has arrived so far */
} simulation;

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double *ready_at(const simulation *self, bool backward, int stage, int microbatch)
{
    return &self->ready[backward][(int64_t)stage * self->schedule->microbatches + microbatch];
}

/* Sends a message on every link of the table; returns when the last one arrives. A link carries one message at a time;
 * the latency is no load on it. */
static double send(simulation *self, const sl_link_table *table, bool backward, sl_action made, double now)
{
    const sl_costs *costs = self->costs;
    double last = now;
    for (int i = table->start[made.stage]; i < table->start[made.stage + 1]; i++) {
        int edge = table->edge[i];
        double size = costs->edge_sizes ? costs->edge_sizes[edge] : costs->message_size;
        double left =
            later(now, self->link_free[backward][edge]) + (costs->bandwidth > 0 ? size / costs->bandwidth : 0);
        double arrival = left + costs->latency;
        double *ready = ready_at(self, backward, table->peer[i], made.microbatch);
        self->link_free[backward][edge] = left;
        *ready = later(*ready, arrival);
        last = later(last, arrival);
    }
    return last;
}

/* Values for stages on the same rank are there at once. */
static void hand_over(simulation *self, const sl_link_table *table, bool backward, sl_action made, double now)
{
    for (int i = table->start[made.stage]; i < table->start[made.stage + 1]; i++) {
        double *ready = ready_at(self, backward, table->peer[i], made.microbatch);
        *ready = later(*ready, now);
    }
}

static double part_cost(const simulation *self, sl_action part)
{
    const sl_stage_cost *cost = sl_timeline_cost(self->timeline, part.stage);
    switch (part.kind) {
    case SL_KIND_F:
        return cost->f;
    case SL_KIND_I:
        return cost->i;
    case SL_KIND_W:
        return cost->w;
    default:
        return cost->b;
    }
}

static sl_span run_compute(simulation *self, int rank, sl_action action)
{
    sl_action parts[2];
    int count = sl_parts(action, parts);
    double start = self->compute_free[rank];
    double cost = 0;
    double shortest = 0;
    for (int p = 0; p < count; p++) {
        double own = part_cost(self, parts[p]);
        shortest = p == 0 || own < shortest ? own : shortest;
        cost += own;
        start = later(start, self->unsharded[parts[p].stage]);
        if (parts[p].kind != SL_KIND_W)
            start = later(start, *ready_at(self, parts[p].kind != SL_KIND_F, parts[p].stage, parts[p].microbatch));
    }
    if (count == 2)
        cost -= shortest * self->costs->overlap;
    sl_span span = { start, start + cost };
    self->compute_free[rank] = span.end;
    self->timeline->busy[rank] += cost;
    for (int p = 0; p < count; p++) {
        bool backward = parts[p].kind != SL_KIND_F;
        if (parts[p].kind == SL_KIND_W)
            continue;
        hand_over(self, backward ? &self->links->local_in : &self->links->local_out, backward, parts[p], span.end);
        if (!self->messages)
            send(self, backward ? &self->links->in : &self->links->out, backward, parts[p], span.end);
    }
    return span;
}

static sl_span run_weights(simulation *self, int rank, sl_action action)
{
    const sl_stage_cost *costs = sl_timeline_cost(self->timeline, action.stage);
    bool unshard = action.kind == SL_KIND_UNSHARD;
    double cost = unshard ? costs->unshard : action.kind == SL_KIND_RESHARD ? costs->reshard : costs->reduce_grad;
    double start = later(self->compute_free[rank], self->weights_free[rank]);
    sl_span span = { start, start + cost };
    self->weights_free[rank] = span.end;
    if (unshard)
        self->unsharded[action.stage] = span.end;
    else if (action.kind == SL_KIND_REDUCE_GRAD)
        self->reduced[action.stage] = span.end;
    return span;
}

static sl_span run_send(simulation *self, sl_action action, bool backward, double now)
{
    sl_span span = { now, send(self, backward ? &self->links->in : &self->links->out, backward, action, now) };
    if (self->sent[backward])
        self->sent[backward][(int64_t)action.stage * self->schedule->microbatches + action.microbatch] = span.end;
    return span;
}

/* The rank goes on when what it waits for has ended. */
static sl_span run_wait(simulation *self, int rank, double ends)
{
    sl_span span = { self->compute_free[rank], later(self->compute_free[rank], ends) };
    self->compute_free[rank] = span.end;
    return span;
}

static sl_span run_action(simulation *self, int rank, sl_action action)
{
    double now = self->compute_free[rank];
    switch (action.kind) {
    case SL_KIND_SEND_F:
    case SL_KIND_SEND_B:
        return run_send(self, action, action.kind == SL_KIND_SEND_B, now);
    case SL_KIND_WAIT_SEND_F:
    case SL_KIND_WAIT_SEND_B: {
        const double *sent = self->sent[action.kind == SL_KIND_WAIT_SEND_B];
        return run_wait(self, rank, sent[(int64_t)action.stage * self->schedule->microbatches + action.microbatch]);
    }
    case SL_KIND_WAIT_REDUCE_GRAD:
        return run_wait(self, rank, self->reduced[action.stage]);
    case SL_KIND_RECV_F:
    case SL_KIND_RECV_B: {
        bool backward = action.kind == SL_KIND_RECV_B;
        return (sl_span){ now, later(now, *ready_at(self, backward, action.stage, action.microbatch)) };
    }
    case SL_KIND_UNSHARD:
    case SL_KIND_RESHARD:
    case SL_KIND_REDUCE_GRAD:
        return run_weights(self, rank, action);
    default:
        return run_compute(self, rank, action);
    }
}

static void visit(void *user, int rank, int64_t index)
{
    simulation *self = user;
    sl_span span = run_action(self, rank, self->schedule->lists[rank].actions[index]);
    self->timeline->spans[self->timeline->first[rank] + index] = span;
    self->timeline->makespan = later(self->timeline->makespan, span.end);
}

static sl_status simulation_start(simulation *self)
{
    sl_status status = SL_OK;
    const sl_schedule *schedule = self->schedule;
    SL_TRY(sl_timeline_create(schedule, self->costs, &self->timeline));
    SL_TRY(SL_NEW_ARRAY(self->compute_free, schedule->ranks));
    SL_TRY(SL_NEW_ARRAY(self->weights_free, schedule->ranks));
    SL_TRY(SL_NEW_ARRAY(self->unsharded, schedule->stages));
    SL_TRY(SL_NEW_ARRAY(self->reduced, schedule->stages));
    for (int way = 0; way < 2; way++) {
        SL_TRY(SL_NEW_ARRAY(self->link_free[way], self->links->edge_count));
        SL_TRY(SL_NEW_ARRAY(self->ready[way], (int64_t)schedule->stages * schedule->microbatches));
        if (sl_schedule_has_send_waits(schedule))
            SL_TRY(SL_NEW_ARRAY(self->sent[way], (int64_t)schedule->stages * schedule->microbatches));
    }
done:
    return status;
}

static void gather_weights(simulation *self)
{
    for (int stage = 0; stage < self->schedule->stages; stage++) {
        double *free = &self->weights_free[sl_schedule_rank_of(self->schedule, stage)];
        double cost = sl_timeline_cost(self->timeline, stage)->gather;
        if (cost == 0)
            continue;
        *free += cost;
        self->unsharded[stage] = *free;
    }
}

static void simulation_end(simulation *self)
{
    sl_timeline_destroy(self->timeline);
    sl_free(self->compute_free);
    sl_free(self->weights_free);
    sl_free(self->unsharded);
    sl_free(self->reduced);
    for (int way = 0; way < 2; way++) {
        sl_free(self->link_free[way]);
        sl_free(self->ready[way]);
        sl_free(self->sent[way]);
    }
}

sl_status sl_schedule_simulate(const sl_schedule *schedule, const sl_costs *costs, const sl_edge *edges, int edge_count,
                               sl_timeline **out)
{
    sl_status status = SL_OK;
    sl_costs defaults;
    sl_links links = { 0 };
    sl_walk walk = { 0 };
    sl_costs_init(&defaults);
    simulation self = {
        .schedule = schedule,
        .links = &links,
        .costs = costs ? costs : &defaults,
        .messages = sl_schedule_has_messages(schedule),
    };

    SL_TRY(sl_links_create(schedule, edges, edge_count, &links));
    SL_TRY(sl_check_before_walk(schedule, &links, NULL));
    SL_TRY(sl_costs_check(self.costs, schedule->stages, links.edge_count));
    SL_TRY(simulation_start(&self));
    gather_weights(&self);
    SL_TRY(sl_walk_create(schedule, &links, -1, &walk));
    sl_walk_run(&walk, visit, &self);
    SL_TRY(sl_check_after_walk(&walk, NULL));
    sl_timeline_find_peaks(self.timeline);

    *out = self.timeline;
    self.timeline = NULL;
done:
    sl_walk_destroy(&walk);
    simulation_end(&self);
    sl_links_destroy(&links);
    return status;
}
