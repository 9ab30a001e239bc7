/* The bound of all ranks together (g): the earliest time at which the n-th F and the n-th I of each stage can start,
 * microbatch by microbatch. docs/planner.md proves it. */
#include "plan/instance.h"

#include <math.h>

/* Above so many (stage, microbatch) the bound is not worth its time. */
#define MOST_CELLS 4000000

typedef struct unroll {
    const sl_instance *instance;
    double *f, *i; /* (stages, microbatches) earliest start of the n-th */
} unroll;

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double *cell(double *table, const unroll *self, int stage, int n)
{
    return &table[(int64_t)stage * self->instance->microbatches + n];
}

/* What one microbatch holds on its rank between its F and its I in this chunk: the chunks up to it. */
static double held_up_to(const sl_instance *instance, int rank, int chunk)
{
    double held = 0;
    for (int each = 0; each <= chunk; each++)
        held += sl_instance_load(instance, rank, each)->hold;
    return held;
}

/* The n-th F (from 0) needs memory that I and W of others have to free first. */
static double after_memory(const unroll *self, int rank, int chunk, int n)
{
    const sl_instance *instance = self->instance;
    int stage = sl_instance_stage(instance, rank, chunk);
    const sl_stage_load *load = &instance->load[stage];
    double held = held_up_to(instance, rank, chunk);
    if (held <= 0 || isinf(instance->limit))
        return 0;
    double missing = n + 1 - (instance->limit + instance->slack) / held; /* microbatches to be freed, of n + 1 */
    int count = (int)ceil(missing);
    if (count <= 0)
        return 0;
    if (count > n)
        count = n;
    double last_i = *cell(self->i, self, stage, count - 1) + load->i;
    if (instance->chunks > 1)
        return last_i;
    /* With so few I all their W are needed, too; or there is one more I. */
    double kept = load->keep / load->hold;
    double weights = kept > 0 ? (missing - (1 - kept) * count) / kept : 0;
    if (weights > count - 1 + 1e-9)
        last_i += load->w;
    double one_more = count < n ? *cell(self->i, self, stage, count) + load->i : INFINITY;
    double by_then = kept < 1 ? fmin(load->i / (1 - kept), load->i + load->w) : load->i + load->w;
    double work = *cell(self->f, self, stage, 0) + n * load->f + missing * by_then;
    return later(work, last_i < one_more ? last_i : one_more);
}

static void step_forward(const unroll *self, int stage, int n)
{
    const sl_instance *instance = self->instance;
    int rank = instance->rank_of[stage], chunk = 0;
    double before = 0; /* F of lower chunks, of this microbatch */
    for (; sl_instance_stage(instance, rank, chunk) != stage; chunk++)
        before += sl_instance_load(instance, rank, chunk)->f;
    double start = 0;
    if (stage > 0)
        start = *cell(self->f, self, stage - 1, n) + instance->load[stage - 1].f + instance->load[stage - 1].to_next;
    if (n > 0) {
        double head = *cell(self->f, self, sl_instance_stage(instance, rank, 0), 0);
        start = later(start, *cell(self->f, self, stage, n - 1) + instance->load[stage].f);
        start = later(start, head + n * instance->load[stage].f + (n + 1) * before);
        start = later(start, after_memory(self, rank, chunk, n));
    }
    *cell(self->f, self, stage, n) = start;
}

static void step_backward(const unroll *self, int stage, int n)
{
    const sl_instance *instance = self->instance;
    const sl_stage_load *load = &instance->load[stage];
    int rank = instance->rank_of[stage];
    double start = *cell(self->f, self, stage, n) + load->f, work = n * load->i;
    if (stage + 1 < instance->stages)
        start = *cell(self->i, self, stage + 1, n) + instance->load[stage + 1].i + load->to_next;
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        const sl_stage_load *each = sl_instance_load(instance, rank, chunk);
        work += (n + 1) * (each->f + (sl_instance_stage(instance, rank, chunk) > stage ? each->i : 0));
    }
    start = later(start, *cell(self->f, self, sl_instance_stage(instance, rank, 0), 0) + work);
    if (n > 0)
        start = later(start, *cell(self->i, self, stage, n - 1) + load->i);
    *cell(self->i, self, stage, n) = start;
}

/* When the rank's n-th first I starts, these are still to come: F that memory has kept from running, and all I and W but
 * those of n microbatches. */
static double end_of_rank(const unroll *self, int rank, double most_forward)
{
    const sl_instance *instance = self->instance;
    int last = sl_instance_stage(instance, rank, instance->chunks - 1);
    double forward = 0, all = instance->work[rank], end = 0;
    for (int chunk = 0; chunk < instance->chunks; chunk++)
        forward += sl_instance_load(instance, rank, chunk)->f;
    for (int n = 0; n < instance->microbatches; n++) {
        double rest = instance->microbatches - n;
        double i_side =
            *cell(self->i, self, last, n) + rest * (all - forward) + later(0, rest * forward - most_forward);
        end = later(end, i_side);
        if (instance->chunks == 1)
            end = later(end, *cell(self->f, self, last, n) + rest * all);
    }
    return end;
}

/* The rank runs one operation at a time and none before its earliest start: in the order of these it ends first. */
static double end_in_order(const unroll *self, int rank, int *next)
{
    const sl_instance *instance = self->instance;
    double end = 0;
    for (int n = 0; n < 3 * instance->chunks; n++)
        next[n] = 0;
    for (int64_t placed = 0; placed < 3 * (int64_t)instance->chunks * instance->microbatches; placed++) {
        double first = INFINITY, time = 0;
        int chosen = 0;
        for (int n = 0; n < 3 * instance->chunks; n++) {
            int stage = sl_instance_stage(instance, rank, n / 3);
            const sl_stage_load *load = &instance->load[stage];
            if (next[n] == instance->microbatches)
                continue;
            double start = *cell(n % 3 == 0 ? self->f : self->i, self, stage, next[n]) + (n % 3 == 2 ? load->i : 0);
            if (start < first) {
                first = start;
                chosen = n;
                time = n % 3 == 0 ? load->f : n % 3 == 1 ? load->i : load->w;
            }
        }
        next[chosen]++;
        end = later(end, first) + time;
    }
    return end;
}

sl_status sl_unrolled_bound(const sl_instance *instance, const double *tail, const double *most_forward,
                            sl_plan_bound *out)
{
    sl_status status = SL_OK;
    unroll self = { .instance = instance };
    int64_t cells = (int64_t)instance->stages * instance->microbatches;
    sl_plan_bound found = { 0 };
    int *next = NULL;
    SL_TRY(SL_NEW_ARRAY(next, 3 * instance->chunks));
    if (cells <= MOST_CELLS) {
        SL_TRY(SL_NEW_ARRAY(self.f, cells));
        SL_TRY(SL_NEW_ARRAY(self.i, cells));
        for (int n = 0; n < instance->microbatches; n++) {
            for (int stage = 0; stage < instance->stages; stage++)
                step_forward(&self, stage, n);
            for (int stage = instance->stages - 1; stage >= 0; stage--)
                step_backward(&self, stage, n);
        }
        for (int rank = 0; rank < instance->ranks; rank++) {
            double end = later(end_of_rank(&self, rank, most_forward[rank]), end_in_order(&self, rank, next));
            found.makespan = later(found.makespan, end);
            if (rank == instance->rank_of[0]) /* its own time begins with the makespan */
                found.stage_time = end;
        }
        for (int stage = 0; stage < instance->stages; stage++) {
            double end =
                *cell(self.i, &self, stage, instance->microbatches - 1) + instance->load[stage].i + tail[stage];
            found.makespan = later(found.makespan, end);
        }
        double last = *cell(self.i, &self, 0, instance->microbatches - 1) + instance->load[0].i + instance->load[0].w;
        found.stage_time = later(found.stage_time, last);
    }
    *out = found;
done:
    sl_free(next);
    sl_free(self.f);
    sl_free(self.i);
    return status;
}
