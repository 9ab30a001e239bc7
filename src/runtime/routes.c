/* Routes: the channels of a pipeline and how many messages each must hold. */
#include "runtime/program.h"

#include "base/alloc.h"

#include <stdlib.h>

sl_status sl_routes_create(const sl_wiring *wiring, sl_routes *out)
{
    sl_status status = SL_OK;
    sl_routes routes = { 0 };
    SL_TRY(SL_NEW_ARRAY(routes.list, 2 * wiring->edge_count));
    SL_TRY(SL_NEW_ARRAY(routes.forward, wiring->edge_count));
    SL_TRY(SL_NEW_ARRAY(routes.backward, wiring->edge_count));
    for (int e = 0; e < wiring->edge_count; e++) {
        const sl_wire_edge *edge = &wiring->edges[e];
        const sl_meta *metas = wiring->stages[edge->to].inputs[edge->input].metas;
        int from = wiring->stages[edge->from].rank, to = wiring->stages[edge->to].rank;
        size_t bytes = 0;
        for (int size = 0; size < wiring->size_count; size++)
            bytes = sl_meta_bytes(&metas[size]) > bytes ? sl_meta_bytes(&metas[size]) : bytes;
        routes.forward[e] = routes.backward[e] = -1;
        if (!edge->remote)
            continue;
        routes.forward[e] = routes.count;
        routes.list[routes.count++] = (sl_route){ .edge = e, .src = from, .dst = to, .bytes = bytes, .capacity = 1 };
        if (!edge->has_grad)
            continue;
        routes.backward[e] = routes.count;
        routes.list[routes.count++] =
            (sl_route){ .edge = e, .grad = true, .src = to, .dst = from, .bytes = bytes, .capacity = 1 };
    }
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
 * All ranks' programs are run in time, with equal stages and links that hold any number of messages. The most that a
 * route held at once, from reserve to release, is enough for a run to end, namely for this one; and as what a rank does
 * never depends on timing, a run that can end in one way ends in every way. One more lets a sender run ahead. */

/* One run of all programs; times are in units of F. */
typedef struct rehearsal {
    const sl_program *programs;
    int64_t *at;      /* next instruction of each rank */
    double *clocks;   /* of each rank */
    double **sent;    /* of each route: when each message was committed */
    double **changes; /* of each route: when messages came (time) and went (-1 - time) */
    int *sent_count, *received, *change_count;
} rehearsal;

static void rehearsal_free(rehearsal *run, int routes)
{
    for (int i = 0; i < routes; i++) {
        if (run->sent)
            sl_free(run->sent[i]);
        if (run->changes)
            sl_free(run->changes[i]);
    }
    sl_free(run->at);
    sl_free(run->clocks);
    sl_free(run->sent);
    sl_free(run->changes);
    sl_free(run->sent_count);
    sl_free(run->received);
    sl_free(run->change_count);
}

static sl_status rehearsal_init(rehearsal *run, const sl_program *programs, int ranks, int routes)
{
    sl_status status = SL_OK;
    int *messages = NULL;
    *run = (rehearsal){ .programs = programs };
    SL_TRY(SL_NEW_ARRAY(messages, routes));
    SL_TRY(SL_NEW_ARRAY(run->at, ranks));
    SL_TRY(SL_NEW_ARRAY(run->clocks, ranks));
    SL_TRY(SL_NEW_ARRAY(run->sent, routes));
    SL_TRY(SL_NEW_ARRAY(run->changes, routes));
    SL_TRY(SL_NEW_ARRAY(run->sent_count, routes));
    SL_TRY(SL_NEW_ARRAY(run->received, routes));
    SL_TRY(SL_NEW_ARRAY(run->change_count, routes));
    for (int r = 0; r < ranks; r++) {
        for (int64_t i = 0; i < programs[r].instr_count; i++) {
            if (programs[r].instrs[i].code == SL_CODE_COMMIT)
                messages[programs[r].instrs[i].index]++;
        }
    }
    for (int i = 0; i < routes; i++) {
        SL_TRY(SL_NEW_ARRAY(run->sent[i], messages[i]));
        SL_TRY(SL_NEW_ARRAY(run->changes[i], 2 * messages[i]));
    }
done:
    sl_free(messages);
    return status;
}

/* Runs one rank until it waits for a message that nobody has sent yet; true where it got anywhere. */
static bool advance(rehearsal *run, int rank)
{
    const sl_program *program = &run->programs[rank];
    int64_t start = run->at[rank];
    double *clock = &run->clocks[rank];
    for (; run->at[rank] < program->instr_count; run->at[rank]++) {
        const sl_instr *instr = &program->instrs[run->at[rank]];
        int route = instr->index;
        switch ((sl_code)instr->code) {
        case SL_CODE_RECEIVE:
            if (run->received[route] == run->sent_count[route])
                return run->at[rank] > start;
            double sent = run->sent[route][run->received[route]++];
            *clock = sent > *clock ? sent : *clock;
            break;
        case SL_CODE_RESERVE:
            run->changes[route][run->change_count[route]++] = *clock;
            break;
        case SL_CODE_COMMIT:
            run->sent[route][run->sent_count[route]++] = *clock;
            break;
        case SL_CODE_RELEASE:
            run->changes[route][run->change_count[route]++] = -1 - *clock;
            break;
        case SL_CODE_RUN:
            *clock += instr->phase == SL_PHASE_B ? 2 : 1;
            break;
        default:
            break;
        }
    }
    return run->at[rank] > start;
}

static double time_of(double change)
{
    return change < 0 ? -1 - change : change;
}

/* By time; what comes before what goes, so that the count is never too low. */
static int by_time(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    if (time_of(a) != time_of(b))
        return time_of(a) < time_of(b) ? -1 : 1;
    return (a < 0) - (b < 0);
}

static int most_at_once(double *changes, int count)
{
    int now = 0, most = 0;
    qsort(changes, (size_t)count, sizeof *changes, by_time);
    for (int i = 0; i < count; i++) {
        now += changes[i] < 0 ? -1 : 1;
        most = now > most ? now : most;
    }
    return most;
}

sl_status sl_routes_size(sl_routes *routes, const sl_program *programs, int ranks)
{
    sl_status status = SL_OK;
    rehearsal run = { 0 };
    SL_TRY(rehearsal_init(&run, programs, ranks, routes->count));
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < ranks; r++)
            moved |= advance(&run, r);
    }
    for (int r = 0; r < ranks; r++) {
        if (run.at[r] < programs[r].instr_count)
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "rank %d would wait forever at instruction %lld", r, (long long)run.at[r]));
    }
    for (int i = 0; i < routes->count; i++) {
        int capacity = most_at_once(run.changes[i], run.change_count[i]) + 1;
        if (capacity > run.sent_count[i])
            capacity = run.sent_count[i];
        if (capacity > routes->list[i].capacity)
            routes->list[i].capacity = capacity;
    }
done:
    rehearsal_free(&run, routes->count);
    return status;
}
