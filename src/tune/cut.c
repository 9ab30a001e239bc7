/* Where stages begin: contiguous runs of units, the costliest as cheap as possible. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <math.h>

/* Whether `stages` runs of at most `limit` each take all units. */
static bool fits_into(const double *weights, int units, int stages, double limit)
{
    int used = 1;
    double sum = 0;
    for (int u = 0; u < units; u++) {
        if (weights[u] > limit)
            return false;
        if (sum + weights[u] > limit && u > 0) {
            used++;
            sum = 0;
        }
        sum += weights[u];
    }
    return used <= stages;
}

static double least_maximum(const double *weights, int units, int stages)
{
    double low = 0, high = 0;
    for (int u = 0; u < units; u++) {
        low = fmax(low, weights[u]);
        high += weights[u];
    }
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (fits_into(weights, units, stages, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Sums over the units before each. */
static void add_up(const double *values, int units, double *before)
{
    before[0] = 0;
    for (int u = 0; u < units; u++)
        before[u + 1] = before[u] + (values ? values[u] : 0);
}

/* What all cuts have in common. */
typedef struct cutter {
    const tune_cut_costs *costs;
    int units, stages;
    double limit;                   /* seconds of a stage */
    double *seconds, *fixed, *held; /* (units + 1) sums over the units before each */
    double *best;                   /* (stages, units + 1) of the first u units in k + 1 stages */
    int *from;                      /* the same: where the last of them begins */
} cutter;

static double bytes_of(const cutter *self, int stage, int first, int end)
{
    if (!self->costs->in_flight)
        return 0;
    return self->fixed[end] - self->fixed[first] +
           self->costs->in_flight[stage] * (self->held[end] - self->held[first]);
}

typedef enum cut_goal { CUT_LEAST_BYTES, CUT_MOST_EVEN } cut_goal;

/* The least that any cut reaches: of the bytes of its fullest stage; or of the sum of squares of seconds, if no stage has
 * more than so many bytes. */
static double find_best(cutter *self, cut_goal goal, double most_bytes)
{
    int row = self->units + 1;
    for (int k = 0; k < self->stages; k++) {
        for (int u = 0; u <= self->units; u++) {
            double *best = &self->best[k * row + u];
            *best = INFINITY;
            for (int v = u - 1; v >= k; v--) {
                double own = self->seconds[u] - self->seconds[v], bytes = bytes_of(self, k, v, u);
                double share = self->limit > 0 ? own / self->limit : 0;
                double before = k > 0 ? self->best[(k - 1) * row + v] : v == 0 ? 0 : INFINITY;
                double whole = goal == CUT_LEAST_BYTES ? fmax(before, bytes) : before + share * share;
                if (own > self->limit)
                    break;
                if (bytes <= most_bytes && whole < *best) {
                    *best = whole;
                    self->from[k * row + u] = v;
                }
            }
        }
    }
    return self->best[self->stages * row - 1];
}

sl_status sl_tune_cut(const tune_cut_costs *costs, int units, int stages, int *cuts)
{
    sl_status status = SL_OK;
    cutter self = { .costs = costs, .units = units, .stages = stages };
    int row = units + 1;
    double most_bytes = INFINITY;
    if (stages > units)
        return sl_fail(SL_ERR_ARGUMENT, "the model has %d parts between which it can be cut, not %d", units, stages);
    self.limit = least_maximum(costs->seconds, units, stages) * (1 + 1e-9);
    SL_TRY(SL_NEW_ARRAY(self.best, (int64_t)stages * row));
    SL_TRY(SL_NEW_ARRAY(self.from, (int64_t)stages * row));
    SL_TRY(SL_NEW_ARRAY(self.seconds, (int64_t)3 * row));
    self.fixed = self.seconds + row;
    self.held = self.fixed + row;
    add_up(costs->seconds, units, self.seconds);
    add_up(costs->fixed, units, self.fixed);
    add_up(costs->held, units, self.held);
    if (costs->in_flight)
        most_bytes = find_best(&self, CUT_LEAST_BYTES, INFINITY) * (1 + 1e-9);
    (void)find_best(&self, CUT_MOST_EVEN, most_bytes);
    for (int k = stages - 1, u = units; k > 0; k--)
        cuts[k - 1] = u = self.from[k * row + u];
done:
    sl_free(self.seconds);
    sl_free(self.from);
    sl_free(self.best);
    return status;
}
