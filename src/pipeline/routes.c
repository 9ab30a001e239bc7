/* Routes: the channels of a pipeline and how many messages each must hold. */
#include "pipeline/program.h"

#include "base/alloc.h"

#include <stdlib.h>

/* Messages of a tied weight's gradient that are on their way at once. */
#define TIE_CAPACITY 2

/* Nothing comes back in a pipeline that runs forward only: a rank may begin the next step while the next rank still reads
 * what it sent in this one. */
#define FORWARD_CAPACITY 2

/* ---- The list -------------------------------------------------------------------------------- */

static void add_edge(const sl_wiring *wiring, int e, bool training, sl_routes *routes)
{
    const sl_pipeline_edge *edge = &wiring->edges[e];
    sl_route route = { .from = edge->from,
                       .to = edge->to,
                       .name = edge->name,
                       .tie = -1,
                       .edge = e,
                       .src = wiring->stages[edge->from].rank,
                       .dst = wiring->stages[edge->to].rank,
                       .bytes = edge->bytes,
                       .capacity = training ? 1 : FORWARD_CAPACITY };
    routes->forward[e] = routes->backward[e] = -1;
    if (!edge->remote)
        return;
    routes->forward[e] = routes->count;
    routes->list[routes->count++] = route;
    if (!edge->has_grad)
        return;
    route.grad = true;
    route.from = edge->to;
    route.to = edge->from;
    route.src = wiring->stages[edge->to].rank;
    route.dst = wiring->stages[edge->from].rank;
    routes->backward[e] = routes->count;
    routes->list[routes->count++] = route;
}

/* Each member's gradient goes to every other rank that has a member. list NULL: only counts. */
static int add_tie(const sl_wiring *wiring, int t, sl_route *list)
{
    const sl_wire_tie *tie = &wiring->ties[t];
    const sl_wire_weight *weight = &wiring->stages[tie->members[0].stage].weights[tie->members[0].weight];
    size_t bytes = sl_meta_bytes(&weight->kept_grad_meta);
    int count = 0;
    if (weight->frozen)
        return 0;
    for (int p = 0; p < tie->member_count; p++) {
        int src = wiring->stages[tie->members[p].stage].rank;
        for (int q = 0; q < tie->member_count; q++) {
            int dst = wiring->stages[tie->members[q].stage].rank;
            bool again = dst == src;
            for (int k = 0; k < q && !again; k++)
                again = wiring->stages[tie->members[k].stage].rank == dst;
            if (again)
                continue;
            if (list)
                list[count] = (sl_route){ .from = tie->members[p].stage,
                                          .to = tie->members[q].stage,
                                          .name = tie->name,
                                          .grad = true,
                                          .tie = t,
                                          .member = p,
                                          .edge = -1,
                                          .src = src,
                                          .dst = dst,
                                          .bytes = bytes < SL_TIE_PIECE_BYTES ? bytes : SL_TIE_PIECE_BYTES,
                                          .capacity = TIE_CAPACITY };
            count++;
        }
    }
    return count;
}

sl_status sl_routes_create(const sl_wiring *wiring, bool training, sl_routes *out)
{
    sl_status status = SL_OK;
    sl_routes routes = { 0 };
    int64_t ties = 0;
    for (int t = 0; training && t < wiring->tie_count; t++)
        ties += add_tie(wiring, t, NULL);
    SL_TRY(SL_NEW_ARRAY(routes.list, 2 * (int64_t)wiring->edge_count + ties));
    SL_TRY(SL_NEW_ARRAY(routes.forward, wiring->edge_count));
    SL_TRY(SL_NEW_ARRAY(routes.backward, wiring->edge_count));
    for (int e = 0; e < wiring->edge_count; e++)
        add_edge(wiring, e, training, &routes);
    routes.edge_routes = routes.count;
    for (int t = 0; training && t < wiring->tie_count; t++)
        routes.count += add_tie(wiring, t, routes.list + routes.count);
    *out = routes;
    routes = (sl_routes){ 0 };
done:
    sl_routes_free(&routes);
    return status;
}

void sl_routes_free(sl_routes *routes)
{
    sl_free(routes->list);
    sl_free(routes->forward);
    sl_free(routes->backward);
    *routes = (sl_routes){ 0 };
}

/* ---- Capacity --------------------------------------------------------------------------------
 * All ranks' programs run on paper, in time, with equal stages and links that hold any number of messages. The most
 * that a route held at once, from reserve to release, is enough for this run to end; if slots are used in turn, the most from
 * the oldest message that it held to the newest. What a rank does never depends on timing, so a run that can end in one way
 * ends in every way. One message more lets a sender run ahead. */

/* One run of all programs; times are in units of F. */
typedef struct rehearsal {
    const sl_rank_program *const *programs;
    int64_t *at;                   /* next instruction of each rank */
    double *clocks;                /* of each rank */
    double **sent;                 /* of each route: when each message was committed */
    double **reserved, **released; /* of each route and message: when */
    int **numbers;                 /* of each rank and cell: the message that it points to */
    int *sent_count, *reserved_count, *received;
    int *waiting; /* of each route: the rank that waits for its next message; -1: none */
    int *ready;   /* ranks that can go on; a stack */
    int ready_count;
} rehearsal;

static void rehearsal_free(rehearsal *run, int ranks, int routes)
{
    for (int i = 0; i < routes; i++) {
        if (run->sent)
            sl_free(run->sent[i]);
        if (run->reserved)
            sl_free(run->reserved[i]);
        if (run->released)
            sl_free(run->released[i]);
    }
    for (int r = 0; run->numbers && r < ranks; r++)
        sl_free(run->numbers[r]);
    sl_free(run->at);
    sl_free(run->clocks);
    sl_free(run->sent);
    sl_free(run->reserved);
    sl_free(run->released);
    sl_free(run->numbers);
    sl_free(run->sent_count);
    sl_free(run->reserved_count);
    sl_free(run->received);
    sl_free(run->waiting);
    sl_free(run->ready);
}

static sl_status rehearsal_init(rehearsal *run, const sl_rank_program *const *programs, int ranks, int routes)
{
    sl_status status = SL_OK;
    int *messages = NULL;
    *run = (rehearsal){ .programs = programs };
    SL_TRY(SL_NEW_ARRAY(messages, routes));
    SL_TRY(SL_NEW_ARRAY(run->at, ranks));
    SL_TRY(SL_NEW_ARRAY(run->clocks, ranks));
    SL_TRY(SL_NEW_ARRAY(run->sent, routes));
    SL_TRY(SL_NEW_ARRAY(run->reserved, routes));
    SL_TRY(SL_NEW_ARRAY(run->released, routes));
    SL_TRY(SL_NEW_ARRAY(run->numbers, ranks));
    SL_TRY(SL_NEW_ARRAY(run->sent_count, routes));
    SL_TRY(SL_NEW_ARRAY(run->reserved_count, routes));
    SL_TRY(SL_NEW_ARRAY(run->received, routes));
    SL_TRY(SL_NEW_ARRAY(run->waiting, routes));
    SL_TRY(SL_NEW_ARRAY(run->ready, ranks));
    for (int r = 0; r < ranks; r++) {
        SL_TRY(SL_NEW_ARRAY(run->numbers[r], programs[r]->cell_count));
        for (int64_t i = 0; i < programs[r]->instr_count; i++) {
            if (programs[r]->instrs[i].code == SL_CODE_COMMIT)
                messages[programs[r]->instrs[i].index]++;
        }
        run->ready[run->ready_count++] = ranks - 1 - r;
    }
    for (int i = 0; i < routes; i++) {
        run->waiting[i] = -1;
        SL_TRY(SL_NEW_ARRAY(run->sent[i], messages[i]));
        SL_TRY(SL_NEW_ARRAY(run->reserved[i], messages[i]));
        SL_TRY(SL_NEW_ARRAY(run->released[i], messages[i]));
    }
done:
    sl_free(messages);
    return status;
}

/* Runs one rank until it waits for a message that nobody has sent yet, or to its end. */
static void advance(rehearsal *run, int rank)
{
    const sl_rank_program *program = run->programs[rank];
    double *clock = &run->clocks[rank];
    for (; run->at[rank] < program->instr_count; run->at[rank]++) {
        const sl_pipeline_instr *instr = &program->instrs[run->at[rank]];
        int route = instr->index;
        switch ((sl_code)instr->code) {
        case SL_CODE_RECEIVE:
            if (run->received[route] == run->sent_count[route]) {
                run->waiting[route] = rank;
                return;
            }
            run->numbers[rank][instr->cell] = run->received[route];
            double sent = run->sent[route][run->received[route]++];
            *clock = sent > *clock ? sent : *clock;
            break;
        case SL_CODE_RESERVE:
            run->reserved[route][run->reserved_count[route]++] = *clock;
            break;
        case SL_CODE_COMMIT:
            run->sent[route][run->sent_count[route]++] = *clock;
            if (run->waiting[route] >= 0)
                run->ready[run->ready_count++] = run->waiting[route];
            run->waiting[route] = -1;
            break;
        case SL_CODE_RELEASE:
            run->released[route][run->numbers[rank][instr->cell]] = *clock;
            break;
        case SL_CODE_RUN:
            *clock += instr->phase == SL_PHASE_B ? 2 : 1;
            break;
        default:
            break;
        }
    }
}

static int by_time(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The most messages that a route held. What comes at a time counts with what goes then, so it is never too low. */
static int most_held(const double *reserved, double *released, int count, bool any_slot)
{
    int gone = 0, most = 0;
    if (any_slot && count > 0) /* it does not matter which one goes */
        qsort(released, (size_t)count, sizeof *released, by_time);
    for (int i = 0; i < count; i++) {
        while (released[gone] < reserved[i])
            gone++;
        most = i + 1 - gone > most ? i + 1 - gone : most;
    }
    return most;
}

sl_status sl_routes_size(sl_routes *routes, const sl_rank_program *const *programs, int ranks, bool any_slot)
{
    sl_status status = SL_OK;
    rehearsal run = { 0 };
    SL_TRY(rehearsal_init(&run, programs, ranks, routes->edge_routes));
    while (run.ready_count > 0)
        advance(&run, run.ready[--run.ready_count]);
    for (int r = 0; r < ranks; r++) {
        if (run.at[r] < programs[r]->instr_count)
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "rank %d would wait forever at instruction %lld", r, (long long)run.at[r]));
    }
    for (int i = 0; i < routes->edge_routes; i++) {
        int capacity = most_held(run.reserved[i], run.released[i], run.sent_count[i], any_slot) + 1;
        if (capacity > run.sent_count[i])
            capacity = run.sent_count[i];
        if (capacity > routes->list[i].capacity)
            routes->list[i].capacity = capacity;
    }
done:
    rehearsal_free(&run, ranks, routes->edge_routes);
    return status;
}
