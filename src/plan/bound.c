/* Lower bounds: what no order of the operations can beat. docs/planner.md proves each; the letters are its. */
#include "plan/instance.h"

#include <math.h>

/* One microbatch alone in the pipeline: the earliest start of each F and I, counted from the start of F of stage 0. */
typedef struct flight_times {
    double *f, *i;
    double *tail; /* from the end of I of the stage to the end of the last W that has to follow */
} flight_times;

/* What the bounds need to know of one rank. */
typedef struct rank_view {
    const sl_instance *instance;
    const flight_times *flight;
    int rank;
    int first, last; /* its lowest and highest stage */
    double held;     /* memory of one microbatch in all its stages */
    bool overflows;  /* all microbatches together do not fit */
    double fastest_f, largest_hold, longest;
    double backward_rate; /* memory that a unit of I and W frees, at most */
} rank_view;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static void fly(const sl_instance *instance, flight_times *out)
{
    const sl_stage_load *load = instance->load;
    int last = instance->stages - 1;
    out->f[0] = 0;
    for (int s = 1; s <= last; s++)
        out->f[s] = out->f[s - 1] + load[s - 1].f + load[s - 1].to_next;
    out->i[last] = out->f[last] + load[last].f;
    for (int s = last - 1; s >= 0; s--)
        out->i[s] = out->i[s + 1] + load[s + 1].i + load[s].to_next;
    out->tail[0] = load[0].w;
    for (int s = 1; s <= last; s++)
        out->tail[s] = larger(load[s].w, load[s - 1].to_next + load[s - 1].i + out->tail[s - 1]);
}

static rank_view view_rank(const sl_instance *instance, const flight_times *flight, int rank)
{
    rank_view view = { .instance = instance, .flight = flight, .rank = rank, .fastest_f = INFINITY };
    view.first = sl_instance_stage(instance, rank, 0);
    view.last = sl_instance_stage(instance, rank, instance->chunks - 1);
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        const sl_stage_load *load = sl_instance_load(instance, rank, chunk);
        view.held += load->hold;
        view.fastest_f = smaller(view.fastest_f, load->f);
        view.largest_hold = larger(view.largest_hold, load->hold);
        view.longest = larger(view.longest, larger(load->i, load->w));
        if (load->keep > 0)
            view.backward_rate = larger(view.backward_rate, load->keep / load->w);
        if (load->hold > 0)
            view.backward_rate = larger(view.backward_rate, load->hold / (load->i + load->w));
    }
    view.overflows = instance->microbatches * view.held > instance->limit + instance->slack;
    return view;
}

/* How many of `each` fit into memory, at most `most`. */
static double count_fitting(const sl_instance *instance, double memory, double each, double most)
{
    if (each <= 0 || isinf(memory))
        return most;
    return smaller(most, floor((memory + instance->slack) / each));
}

/* The longest time that F alone can fill before the first I: a knapsack, taken whole if all chunks hold the same and
 * relaxed to fractions if not. */
static double most_forward(const rank_view *view)
{
    const sl_instance *instance = view->instance;
    int chunks = instance->chunks;
    double memory = instance->limit, time = 0, before = INFINITY;
    bool equal = true;
    for (int chunk = 1; chunk < chunks; chunk++)
        equal = equal && sl_instance_load(instance, view->rank, chunk)->hold == view->largest_hold;
    equal = equal && sl_instance_load(instance, view->rank, 0)->hold == view->largest_hold;
    double whole = count_fitting(instance, memory, view->largest_hold, (double)chunks * instance->microbatches);
    /* Chunks by falling time for their memory; several with the same ratio are taken together. */
    for (int taken = 0; taken < chunks;) {
        double ratio = -1;
        for (int chunk = 0; chunk < chunks; chunk++) {
            const sl_stage_load *load = sl_instance_load(instance, view->rank, chunk);
            double own = load->hold > 0 ? load->f / load->hold : INFINITY;
            if (own < before && own > ratio)
                ratio = own;
        }
        for (int chunk = 0; chunk < chunks; chunk++) {
            const sl_stage_load *load = sl_instance_load(instance, view->rank, chunk);
            double own = load->hold > 0 ? load->f / load->hold : INFINITY;
            if (own != ratio)
                continue;
            double count = equal                              ? smaller(instance->microbatches, whole)
                           : load->hold > 0 && !isinf(memory) ? smaller(instance->microbatches, memory / load->hold)
                                                              : instance->microbatches;
            time += count * load->f;
            whole -= count;
            memory -= count * load->hold;
            taken++;
        }
        if (ratio < 0)
            break;
        before = ratio;
    }
    return time;
}

/* The longest time that I and W of other microbatches can fill while one microbatch occupies all stages of the rank. */
static double most_of_others(const rank_view *view)
{
    const sl_instance *instance = view->instance;
    double all = 0;
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        const sl_stage_load *load = sl_instance_load(instance, view->rank, chunk);
        all += load->i + load->w;
    }
    all *= instance->microbatches - 1;
    double memory = instance->limit - view->held;
    if (isinf(memory))
        return all;
    if (instance->chunks > 1) {
        double rate = 0; /* time for a unit of memory */
        for (int chunk = 0; chunk < instance->chunks; chunk++) {
            const sl_stage_load *load = sl_instance_load(instance, view->rank, chunk);
            if (load->hold <= 0 || load->keep <= 0)
                return all;
            rate = larger(rate, larger((load->i + load->w) / load->hold, load->w / load->keep));
        }
        return smaller(all, memory * rate);
    }
    /* One stage: so many that wait for I, the rest of the memory for those that wait for W alone. */
    const sl_stage_load *load = &instance->load[view->first];
    double most = 0, others = instance->microbatches - 1;
    double waiting = count_fitting(instance, memory, load->hold, others);
    for (double n = 0; n <= waiting; n++) {
        double weights = count_fitting(instance, larger(0, memory - n * load->hold), load->keep, others - n);
        most = larger(most, n * (load->i + load->w) + weights * load->w);
    }
    return most;
}

/* The longest time that the W can take that are left when the rank's last I ends. */
static double most_weights_left(const rank_view *view)
{
    const sl_instance *instance = view->instance;
    const sl_stage_load *first = &instance->load[view->first];
    double all = 0, rate = 0;
    bool free_to_keep = isinf(instance->limit);
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        const sl_stage_load *load = sl_instance_load(instance, view->rank, chunk);
        all += load->w;
        free_to_keep = free_to_keep || load->keep <= 0;
        rate = larger(rate, load->keep > 0 ? load->w / load->keep : 0);
    }
    all *= instance->microbatches;
    if (free_to_keep)
        return all;
    double memory = instance->limit - first->hold;
    if (instance->chunks == 1)
        return smaller(all, first->w * (1 + count_fitting(instance, memory, first->keep, instance->microbatches)));
    return smaller(all, first->w + memory * rate);
}

/* By Little's law: what all microbatches hold, times how long they hold it at least, has to fit under the limit. At the
 * start the memory fills only as fast as F can run, at the end it empties only as fast as I and W can. Returns the least
 * time from the rank's first start to its last end. */
static double least_by_memory(const rank_view *view)
{
    const sl_instance *instance = view->instance;
    double limit = instance->limit, needed = 0;
    if (isinf(limit) || view->largest_hold <= 0)
        return 0;
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        int stage = sl_instance_stage(instance, view->rank, chunk);
        const sl_stage_load *load = &instance->load[stage];
        double held = view->flight->i[stage] + load->i - view->flight->f[stage];
        needed += instance->microbatches * (load->hold * held + load->keep * load->w);
    }
    /* Filling: after n starts of F at most n holds; a step lasts at least the fastest F. */
    double steps = count_fitting(instance, limit, view->largest_hold, INFINITY);
    double fill_time = steps * view->fastest_f;
    double fill = view->fastest_f * (steps * limit - view->largest_hold * steps * (steps + 1) / 2);
    /* Emptying: at most (time left + the operation under way) x rate. */
    double empty_time = isfinite(view->backward_rate) ? larger(0, limit / view->backward_rate - view->longest) : 0;
    double empty = empty_time * empty_time * view->backward_rate / 2;
    if (!(empty > 0))
        empty = empty_time = 0;
    double both = (needed + fill + empty) / limit, filling = (needed + fill) / limit;
    if (both >= fill_time + empty_time)
        return both;
    return filling >= fill_time ? filling : needed / limit;
}

/* What a rank does before its first I, and the least time of everything else. */
typedef struct prelude {
    double trip;           /* from its first F to its first I, if nothing waits */
    double f;              /* of all its chunks; 0 if they differ */
    double most;           /* how many F fit into memory; with f = 0 how long they take */
    sl_plan_bound without; /* the bounds if it never had to wait before its first I */
} prelude;

static double idle_of(const prelude *rank, double trip)
{
    if (rank->f <= 0)
        return larger(0, trip - rank->most);
    return larger(0, trip - rank->f * smaller(rank->most, floor(trip / rank->f + 1e-9)));
}

/* (f) Can all ranks keep to `least`? An F takes all its time or none, so a rank may have to wait for its first I, or to
 * make it wait; then those of the ranks that its gradients go to come later, too: on a loop from the last rank up, on a
 * V from the first down. */
static bool can_start(const prelude *ranks, int count, bool upward, double least, bool makespan)
{
    double delay = 0;
    for (int n = 0; n < count; n++) {
        const prelude *own = &ranks[upward ? count - 1 - n : n];
        double allowed = least - (makespan ? own->without.makespan : own->without.stage_time);
        double trip = own->trip + delay, rounding = 1e-12 * least;
        if (idle_of(own, trip) <= allowed + rounding)
            continue;
        double next = own->f > 0 ? floor(trip / own->f + 1e-9) + 1 : INFINITY; /* an F more fills the wait */
        if (allowed < -rounding || next > own->most)
            return false;
        delay = next * own->f - own->trip;
    }
    return true;
}

static double least_by_first_i(const prelude *ranks, int count, bool upward, bool makespan, double known)
{
    double low = known, high = known;
    if (can_start(ranks, count, upward, known, makespan))
        return known;
    for (int rank = 0; rank < count; rank++) {
        const sl_plan_bound *without = &ranks[rank].without;
        high = larger(high, (makespan ? without->makespan : without->stage_time) + ranks[rank].trip);
    }
    for (int n = 0; n < 60; n++) {
        double middle = (low + high) / 2;
        if (can_start(ranks, count, upward, middle, makespan))
            high = middle;
        else
            low = middle;
    }
    return low;
}

static void bound_rank(const rank_view *view, prelude *start, sl_plan_bound *out)
{
    const sl_instance *instance = view->instance;
    const flight_times *flight = view->flight;
    int first = view->first, last = view->last;
    double head = flight->f[first];
    double work = instance->microbatches * instance->work[view->rank];
    double others = most_of_others(view), own = instance->load[last].f;
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        const sl_stage_load *load = sl_instance_load(instance, view->rank, chunk);
        own += load->i + load->w;
    }

    /* (a) before the first I, (c) between the last F and its I. If the microbatches do not fit into memory together, the
     * last F comes after the first I and the two idle times are apart. */
    double early = larger(0, flight->i[last] - flight->f[first] - most_forward(view));
    double late = larger(0, flight->i[last] - flight->f[last] - instance->load[last].f - others);
    double idle = view->overflows ? early + late : larger(early, late);
    /* (d) what follows the last I, (e) what follows the last F: on this rank, on the rank of stage 0, anywhere. Stage 0
     * starts first, so its rank's own time begins with the makespan. */
    double to_last_i = idle + work - most_weights_left(view);
    double to_last_f = (view->overflows ? early : 0) + work - own - others;
    const sl_stage_load *load = instance->load;
    double last_w = flight->i[0] + load[0].i + load[0].w; /* of the microbatch in flight, in stage 0 */
    double own_w = flight->i[first] + load[first].i + load[first].w;

    double span = larger(work + idle, larger(to_last_f + own_w - flight->f[last], least_by_memory(view)));
    double home =
        head + larger(to_last_i + last_w - flight->i[first] - load[first].i, to_last_f + last_w - flight->f[last]);
    out->stage_time = larger(out->stage_time, larger(span, home));
    double tail = larger(to_last_i + flight->tail[first],
                         to_last_f + flight->i[last] + load[last].i - flight->f[last] + flight->tail[last]);
    double makespan = head + larger(span, tail);

    double apart = work + (view->overflows ? late : 0), left = most_weights_left(view);
    *start = (prelude){ .trip = flight->i[last] - flight->f[first],
                        .f = load[first].f,
                        .most = count_fitting(instance, instance->limit, view->largest_hold,
                                              (double)instance->chunks * instance->microbatches),
                        .without = { .stage_time = apart,
                                     .makespan = head + larger(apart, apart - left + flight->tail[first]) } };
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        const sl_stage_load *each = sl_instance_load(instance, view->rank, chunk);
        if (each->f != load[first].f || each->hold != view->largest_hold)
            *start = (prelude){ .trip = start->trip, .most = most_forward(view), .without = start->without };
    }
    out->makespan = larger(out->makespan, makespan);
}

sl_status sl_instance_bounds(const sl_instance *instance, sl_plan_bound *out)
{
    sl_status status = SL_OK;
    flight_times flight = { 0 };
    sl_plan_bound found = { 0 };
    prelude *preludes = NULL;
    double *forward = NULL;
    SL_TRY(SL_NEW_ARRAY(forward, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(preludes, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(flight.f, instance->stages));
    SL_TRY(SL_NEW_ARRAY(flight.i, instance->stages));
    SL_TRY(SL_NEW_ARRAY(flight.tail, instance->stages));
    fly(instance, &flight);
    for (int rank = 0; rank < instance->ranks; rank++) {
        rank_view view = view_rank(instance, &flight, rank);
        forward[rank] = most_forward(&view);
        bound_rank(&view, &preludes[rank], &found);
    }
    sl_plan_bound together;
    SL_TRY(sl_unrolled_bound(instance, flight.tail, forward, &together));
    found.makespan = larger(found.makespan, together.makespan);
    found.stage_time = larger(found.stage_time, together.stage_time);
    bool upward = instance->placement == SL_PLACEMENT_LOOP;
    found.makespan = least_by_first_i(preludes, instance->ranks, upward, true, found.makespan);
    if (upward)
        found.stage_time = least_by_first_i(preludes, instance->ranks, true, false, found.stage_time);
    SL_TRY(sl_windows_bound(instance, found.makespan, &found.makespan));
    *out = found;
done:
    sl_free(preludes);
    sl_free(forward);
    sl_free(flight.f);
    sl_free(flight.i);
    sl_free(flight.tail);
    return status;
}

sl_status sl_plan_bounds(const sl_plan_problem *problem, sl_plan_bound *out)
{
    sl_status status = SL_OK;
    sl_instance instance = { 0 };
    SL_TRY(sl_instance_create(problem, &instance));
    SL_TRY(sl_instance_bounds(&instance, out));
done:
    sl_instance_destroy(&instance);
    return status;
}
