/* The bound of windows (h): in a plan that takes at most T, every operation has an earliest start and a latest end. If
 * these leave no room, no plan takes T. docs/planner.md proves it. */
#include "plan/instance.h"

#include <math.h>
#include <string.h>

enum { F, I, W, KINDS };

/* A pass looks at all pairs of operations of a rank: what a pass and what the whole bound may cost. */
#define MOST_PAIRS 45000
#define MOST_EFFORT 12000000
#define MOST_PASSES 25
#define PRECISION 1e-6 /* of the time that is found */

/* A lane is F, I or W of one stage, a task the n-th of a lane; (lanes, microbatches), a rank's lanes beside each other. */
typedef struct windows {
    const sl_instance *instance;
    int rank_tasks;
    int *lane;      /* (stages) the stage's F; its I and W follow */
    double *length; /* (tasks) */
    double *start;  /* (tasks) no start lies before it */
    double *end;    /* (tasks) no end lies behind it */
    bool *changed;  /* (ranks) windows of the rank, since tighten_rank() last saw them */
    int *by_start;  /* (tasks) of each rank, in rising order */
    int *by_end;
    double *mirror; /* (4, rank_tasks) starts and ends with time running back, and what is found */
    int *mirror_by_start, *mirror_by_end; /* (rank_tasks) */
    double rounding;
    int64_t effort;
} windows;

/* The operations of one rank, time running one way or the other. */
typedef struct rank_windows {
    int count;
    const double *length, *end;
    double *start;
    double *raised, *ends_of_rest; /* (count) scratch */
    const int *by_start, *by_end;
    double rounding;
} rank_windows;

/* ---- One rank: one operation at a time ------------------------------------------------------- */

static void sort_by(const double *keys, int *order, int count)
{
    for (int n = 1; n < count; n++) {
        int moved = order[n], at = n;
        for (; at > 0 && keys[order[at - 1]] > keys[moved]; at--)
            order[at] = order[at - 1];
        order[at] = moved;
    }
}

/* One that ends too late to come before another comes behind it; and behind all such others. */
static void follow_others(const rank_windows *self)
{
    for (int task = 0; task < self->count; task++) {
        double least = self->start[task] + self->length[task] - self->rounding, end = -INFINITY;
        for (int n = 0; n < self->count; n++) {
            int other = self->by_start[n];
            if (other != task && least > self->end[other] - self->length[other])
                end = fmax(end, self->start[other]) + self->length[other];
        }
        self->raised[task] = fmax(self->raised[task], end);
    }
}

/* Edge finding: of the operations that must end by `end`, those from a start on need all the time to some moment. If one
 * more does not fit between that start and `end` it comes behind them all. False: they do not fit themselves. */
static bool follow_set(const rank_windows *self, double end)
{
    double work = 0, done = -INFINITY, most = -INFINITY;
    for (int n = self->count - 1; n >= 0; n--) {
        int task = self->by_start[n];
        if (self->end[task] <= end) {
            work += self->length[task];
            done = fmax(done, self->start[task] + work);
        }
        self->ends_of_rest[n] = done;
    }
    if (done > end + self->rounding)
        return false;
    for (int n = 0; n < self->count; n++) {
        int task = self->by_start[n];
        if (self->end[task] <= end) {
            most = fmax(most, self->start[task] + work);
            work -= self->length[task];
            continue;
        }
        if (self->start[task] + work + self->length[task] > end + self->rounding)
            self->raised[task] = fmax(self->raised[task], self->ends_of_rest[n]);
        if (most + self->length[task] > end + self->rounding)
            self->raised[task] = fmax(self->raised[task], done);
    }
    return true;
}

/* Raises starts; *changed if one was. False: the operations do not fit. */
static bool raise_starts(const rank_windows *self, bool *changed)
{
    memcpy(self->raised, self->start, (size_t)self->count * sizeof *self->raised);
    follow_others(self);
    for (int n = 0; n < self->count; n++) {
        double end = self->end[self->by_end[n]];
        bool again = n + 1 < self->count && self->end[self->by_end[n + 1]] == end;
        if (!again && !follow_set(self, end))
            return false;
    }
    for (int task = 0; task < self->count; task++) {
        if (self->raised[task] > self->start[task] + self->rounding) {
            self->start[task] = self->raised[task];
            *changed = true;
        }
        if (self->start[task] + self->length[task] > self->end[task] + self->rounding)
            return false;
    }
    return true;
}

/* Earliest starts, and with time running back latest ends. */
static bool tighten_rank(windows *self, int rank, bool *changed)
{
    int count = self->rank_tasks;
    int64_t first = (int64_t)rank * count;
    double *start = self->start + first, *end = self->end + first;
    double *mirror_start = self->mirror, *mirror_end = self->mirror + count;
    rank_windows forth = { .count = count,
                           .length = self->length + first,
                           .end = end,
                           .start = start,
                           .raised = self->mirror + 2 * (ptrdiff_t)count,
                           .ends_of_rest = self->mirror + 3 * (ptrdiff_t)count,
                           .by_start = self->by_start + first,
                           .by_end = self->by_end + first,
                           .rounding = self->rounding };
    sort_by(start, self->by_start + first, count);
    sort_by(end, self->by_end + first, count);
    if (!raise_starts(&forth, changed))
        return false;
    sort_by(start, self->by_start + first, count);
    for (int n = 0; n < count; n++) {
        mirror_start[n] = -end[n];
        mirror_end[n] = -start[n];
        self->mirror_by_start[n] = forth.by_end[count - 1 - n];
        self->mirror_by_end[n] = forth.by_start[count - 1 - n];
    }
    rank_windows back = forth;
    back.start = mirror_start;
    back.end = mirror_end;
    back.by_start = self->mirror_by_start;
    back.by_end = self->mirror_by_end;
    if (!raise_starts(&back, changed))
        return false;
    for (int n = 0; n < count; n++)
        end[n] = -mirror_start[n];
    return true;
}

/* ---- What comes before what ------------------------------------------------------------------ */

static int64_t task_of(const windows *self, int stage, int kind, int n)
{
    return (self->lane[stage] + kind) * (int64_t)self->instance->microbatches + n;
}

static void raise_start(windows *self, int64_t task, double time)
{
    if (time <= self->start[task] + self->rounding)
        return;
    self->start[task] = time;
    self->changed[task / self->rank_tasks] = true;
}

/* The second starts `delay` after the end of the first, or later. */
static void set_before(windows *self, int64_t first, int64_t second, double delay)
{
    raise_start(self, second, self->start[first] + self->length[first] + delay);
    double end = self->end[second] - self->length[second] - delay;
    if (end < self->end[first] - self->rounding) {
        self->end[first] = end;
        self->changed[first / self->rank_tasks] = true;
    }
}

/* The n-th of all stages, and the next of each lane. */
static void set_chains(windows *self, int n)
{
    const sl_instance *instance = self->instance;
    int last = instance->stages - 1;
    for (int stage = 0; stage < last; stage++)
        set_before(self, task_of(self, stage, F, n), task_of(self, stage + 1, F, n), instance->load[stage].to_next);
    set_before(self, task_of(self, last, F, n), task_of(self, last, I, n), 0);
    for (int stage = last - 1; stage >= 0; stage--)
        set_before(self, task_of(self, stage + 1, I, n), task_of(self, stage, I, n), instance->load[stage].to_next);
    for (int stage = 0; stage <= last; stage++) {
        set_before(self, task_of(self, stage, I, n), task_of(self, stage, W, n), 0);
        for (int kind = 0; kind < KINDS && n + 1 < instance->microbatches; kind++)
            set_before(self, task_of(self, stage, kind, n), task_of(self, stage, kind, n + 1), 0);
    }
}

/* When the first `f`, `i` and `w` of the stage can have run at the earliest: in the order of their starts. */
static double end_of(const windows *self, int stage, int f, int i, int w)
{
    const int counts[KINDS] = { f, i, w };
    int next[KINDS] = { 0 };
    double now = 0;
    for (int placed = 0; placed < f + i + w; placed++) {
        int64_t first = -1;
        int lane = 0;
        for (int kind = 0; kind < KINDS; kind++) {
            int64_t task = task_of(self, stage, kind, next[kind]);
            if (next[kind] < counts[kind] && (first < 0 || self->start[task] < self->start[first])) {
                first = task;
                lane = kind;
            }
        }
        next[lane]++;
        now = fmax(now, self->start[first]) + self->length[first];
    }
    return now;
}

/* One stage a rank: before the n-th F (from 0) some number of I and, by it, of W must have freed memory. False: there is no
 * such number. */
static bool set_memory(windows *self, int stage, int n)
{
    const sl_instance *instance = self->instance;
    const sl_stage_load *load = &instance->load[stage];
    double missing = n + 1 - (instance->limit + instance->slack) / load->hold, kept = load->keep / load->hold;
    int64_t own = task_of(self, stage, F, n);
    int least = (int)ceil(missing), most = least - 1, weights = 0;
    double earliest = INFINITY, latest_start = self->end[own] - load->f + self->rounding;
    if (least <= 0)
        return true;
    for (int count = least; count <= n; count++) {
        int64_t last = task_of(self, stage, I, count - 1);
        if (self->start[last] + load->i > latest_start)
            break;
        most = count;
        weights = kept > 0 ? (int)fmax(0, ceil((missing - (1 - kept) * count) / kept - 1e-9)) : 0;
        earliest = fmin(earliest, end_of(self, stage, n, count, weights));
    }
    if (most < least)
        return false;
    raise_start(self, own, earliest);
    set_before(self, task_of(self, stage, I, least - 1), own, 0);
    if (weights > 0) /* with the most I the fewest W */
        set_before(self, task_of(self, stage, W, weights - 1), own, 0);
    return true;
}

/* Several stages a rank: those of n + 1 microbatches that have not had their I here hold this and all lower stages. */
static void set_memory_of_chunks(windows *self, int rank, int n)
{
    const sl_instance *instance = self->instance;
    double held = 0;
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        int stage = sl_instance_stage(instance, rank, chunk);
        held += instance->load[stage].hold;
        int count = held > 0 ? (int)ceil(n + 1 - (instance->limit + instance->slack) / held) : 0;
        if (count > 0 && count <= n)
            set_before(self, task_of(self, stage, I, count - 1), task_of(self, stage, F, n), 0);
    }
}

static bool set_memory_of_rank(windows *self, int rank)
{
    const sl_instance *instance = self->instance;
    int stage = sl_instance_stage(instance, rank, 0);
    if (isinf(instance->limit))
        return true;
    for (int n = 0; n < instance->microbatches; n++) {
        if (instance->chunks > 1)
            set_memory_of_chunks(self, rank, n);
        else if (instance->load[stage].hold > 0 && !set_memory(self, stage, n))
            return false;
    }
    return true;
}

/* ---- The bound ------------------------------------------------------------------------------- */

/* False: no plan takes `time` or less. */
static bool may_take(windows *self, double time)
{
    const sl_instance *instance = self->instance;
    int64_t tasks = (int64_t)instance->ranks * self->rank_tasks;
    self->rounding = 1e-10 * time;
    for (int64_t task = 0; task < tasks; task++) {
        self->start[task] = 0;
        self->end[task] = time;
    }
    for (int rank = 0; rank < instance->ranks; rank++)
        self->changed[rank] = true;
    bool again = true;
    for (int pass = 0; again && pass < MOST_PASSES && self->effort < MOST_EFFORT; pass++) {
        again = false;
        for (int n = 0; n < instance->microbatches; n++)
            set_chains(self, n);
        for (int n = instance->microbatches - 1; n >= 0; n--)
            set_chains(self, n);
        for (int rank = 0; rank < instance->ranks; rank++) {
            if (!self->changed[rank])
                continue;
            self->effort += (int64_t)self->rank_tasks * self->rank_tasks;
            self->changed[rank] = false;
            if (!set_memory_of_rank(self, rank) || !tighten_rank(self, rank, &self->changed[rank]))
                return false;
            again = again || self->changed[rank];
        }
    }
    return true;
}

/* Steps of twice the length each up to a time that may be possible, then by halves. */
static double find_least(windows *self, double known)
{
    double low = known, step = PRECISION * known, high = low + step;
    while (!may_take(self, high)) {
        low = high;
        step *= step < 1e-3 * known ? 1000 : 2;
        high = low + step;
    }
    while (low > known && high - low > PRECISION * known && self->effort < MOST_EFFORT) {
        double middle = (low + high) / 2;
        if (may_take(self, middle))
            high = middle;
        else
            low = middle;
    }
    return low;
}

static void fill_tasks(windows *self)
{
    const sl_instance *instance = self->instance;
    for (int rank = 0; rank < instance->ranks; rank++) {
        for (int chunk = 0; chunk < instance->chunks; chunk++) {
            int stage = sl_instance_stage(instance, rank, chunk);
            const sl_stage_load *load = &instance->load[stage];
            const double lengths[KINDS] = { load->f, load->i, load->w };
            self->lane[stage] = (rank * instance->chunks + chunk) * KINDS;
            for (int kind = 0; kind < KINDS; kind++) {
                for (int n = 0; n < instance->microbatches; n++)
                    self->length[task_of(self, stage, kind, n)] = lengths[kind];
            }
        }
        for (int n = 0; n < self->rank_tasks; n++)
            self->by_start[(int64_t)rank * self->rank_tasks + n] = n;
    }
    memcpy(self->by_end, self->by_start, (size_t)instance->ranks * (size_t)self->rank_tasks * sizeof *self->by_end);
}

sl_status sl_windows_bound(const sl_instance *instance, double known, double *makespan)
{
    sl_status status = SL_OK;
    int64_t lanes = (int64_t)KINDS * instance->chunks, rank_tasks = lanes * instance->microbatches;
    windows self = { .instance = instance, .rank_tasks = (int)rank_tasks };
    *makespan = known;
    if (rank_tasks > MOST_PAIRS || instance->ranks * rank_tasks * rank_tasks > MOST_PAIRS || !(known > 0))
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(self.lane, instance->stages));
    SL_TRY(SL_NEW_ARRAY(self.length, instance->ranks * rank_tasks));
    SL_TRY(SL_NEW_ARRAY(self.start, instance->ranks * rank_tasks));
    SL_TRY(SL_NEW_ARRAY(self.end, instance->ranks * rank_tasks));
    SL_TRY(SL_NEW_ARRAY(self.changed, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.by_start, instance->ranks * rank_tasks));
    SL_TRY(SL_NEW_ARRAY(self.by_end, instance->ranks * rank_tasks));
    SL_TRY(SL_NEW_ARRAY(self.mirror, 4 * rank_tasks));
    SL_TRY(SL_NEW_ARRAY(self.mirror_by_start, rank_tasks));
    SL_TRY(SL_NEW_ARRAY(self.mirror_by_end, rank_tasks));
    fill_tasks(&self);
    *makespan = find_least(&self, known);
done:
    sl_free(self.lane);
    sl_free(self.length);
    sl_free(self.start);
    sl_free(self.end);
    sl_free(self.changed);
    sl_free(self.by_start);
    sl_free(self.by_end);
    sl_free(self.mirror);
    sl_free(self.mirror_by_start);
    sl_free(self.mirror_by_end);
    return status;
}
