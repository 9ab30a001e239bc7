/* An exact solver for small instances: every order of every rank, by depth-first search in the order of start times.
 * Independent of the planner: it knows the problem alone. */
#ifndef TEST_PLAN_EXACT_H
#define TEST_PLAN_EXACT_H

#include <sluice/plan.h>

#include <math.h>
#include <string.h>

enum { EXACT_STAGES = 8, EXACT_MICROBATCHES = 6 };

typedef struct exact {
    int ranks, stages, microbatches;
    sl_objective objective;
    double limit;
    int rank_of[EXACT_STAGES];
    sl_stage_cost cost[EXACT_STAGES];
    double message[EXACT_STAGES]; /* to the next stage */
    double best;
    int64_t nodes, most_nodes;
} exact;

/* What has been placed so far. */
typedef struct exact_state {
    int done[3][EXACT_STAGES]; /* F, I, W */
    double end[2][EXACT_STAGES][EXACT_MICROBATCHES];
    double now[EXACT_STAGES], first[EXACT_STAGES], left[EXACT_STAGES], memory[EXACT_STAGES]; /* of ranks */
    double last_start;
    int last_rank, placed;
} exact_state;

static bool exact_ready(const exact *self, const exact_state *state, int kind, int stage, double *ready)
{
    int n = state->done[kind][stage];
    if (n >= self->microbatches)
        return false;
    *ready = 0;
    if (kind == 0 && stage > 0) {
        if (state->done[0][stage - 1] <= n)
            return false;
        *ready = state->end[0][stage - 1][n] + self->message[stage - 1];
    } else if (kind == 1) {
        if (state->done[0][stage] <= n)
            return false;
        if (stage + 1 == self->stages) {
            *ready = state->end[0][stage][n];
        } else {
            if (state->done[1][stage + 1] <= n)
                return false;
            *ready = state->end[1][stage + 1][n] + self->message[stage];
        }
    } else if (kind == 2 && state->done[1][stage] <= n) {
        return false;
    }
    double held = self->cost[stage].activation;
    return kind != 0 || state->memory[self->rank_of[stage]] + held <= self->limit * (1 + 1e-9);
}

static double exact_least(const exact *self, const exact_state *state)
{
    double least = 0;
    for (int rank = 0; rank < self->ranks; rank++) {
        double now = state->now[rank] > state->last_start ? state->now[rank] : state->last_start;
        double end = (state->left[rank] > 0 ? now : state->now[rank]) + state->left[rank];
        if (self->objective == SL_OBJECTIVE_STAGE_TIME)
            end =
                state->first[rank] < 0 ? state->left[rank] : state->now[rank] + state->left[rank] - state->first[rank];
        least = end > least ? end : least;
    }
    return least;
}

static void exact_search(exact *self, const exact_state *state)
{
    if (++self->nodes > self->most_nodes)
        return;
    double least = exact_least(self, state);
    if (least >= self->best - 1e-9)
        return;
    if (state->placed == 3 * self->stages * self->microbatches) {
        self->best = least;
        return;
    }
    for (int stage = 0; stage < self->stages; stage++) {
        for (int kind = 0; kind < 3; kind++) {
            const sl_stage_cost *cost = &self->cost[stage];
            int rank = self->rank_of[stage];
            double ready;
            if (!exact_ready(self, state, kind, stage, &ready))
                continue;
            double start = ready > state->now[rank] ? ready : state->now[rank];
            if (start < state->last_start || (start == state->last_start && rank < state->last_rank))
                continue; /* the same order comes up with its operations sorted by time */
            double time = kind == 0 ? cost->f : kind == 1 ? cost->i : cost->w;
            exact_state next = *state;
            int n = next.done[kind][stage]++;
            if (kind < 2)
                next.end[kind][stage][n] = start + time;
            next.now[rank] = start + time;
            next.left[rank] -= time;
            if (next.first[rank] < 0)
                next.first[rank] = start;
            double freed = kind == 1 ? cost->activation * cost->release : cost->activation * (1 - cost->release);
            next.memory[rank] += kind == 0 ? cost->activation : -freed;
            next.last_start = start;
            next.last_rank = rank;
            next.placed++;
            exact_search(self, &next);
        }
    }
}

/* The least value of any order below `upper`, or `upper` if there is none; NAN if the search is too long. */
static double exact_solve(const sl_plan_problem *problem, double upper, int64_t most_nodes)
{
    int chunks = problem->stages_per_rank;
    exact self = { .ranks = problem->ranks,
                   .stages = problem->ranks * chunks,
                   .microbatches = problem->microbatches,
                   .objective = problem->objective,
                   .limit = problem->memory > 0 ? problem->memory : INFINITY,
                   .best = upper,
                   .most_nodes = most_nodes };
    exact_state start = { .last_rank = -1 };
    for (int stage = 0; stage < self.stages; stage++) {
        self.rank_of[stage] = sl_placement_rank(problem->placement, self.ranks, stage);
        self.cost[stage] = problem->costs.stages ? problem->costs.stages[stage] : problem->costs.stage;
        start.left[self.rank_of[stage]] +=
            self.microbatches * (self.cost[stage].f + self.cost[stage].i + self.cost[stage].w);
    }
    for (int stage = 0; stage + 1 < self.stages; stage++)
        self.message[stage] = self.rank_of[stage] != self.rank_of[stage + 1] ? problem->costs.latency : 0;
    for (int rank = 0; rank < self.ranks; rank++)
        start.first[rank] = -1;
    exact_search(&self, &start);
    return self.nodes > most_nodes ? NAN : self.best;
}

#endif
