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

/* Of all cuts with that maximum those in which stages fit into their memory, or miss it by least; of these the one with
 * the least sum of squares of seconds. least[k * (units + 1) + u] is that of the first u units in k + 1 stages. */
sl_status sl_tune_cut(const tune_cut_costs *costs, int units, int stages, int *cuts)
{
    sl_status status = SL_OK;
    static const double TOO_LARGE = 1e6; /* a stage that does not fit is worse than any that is uneven */
    double *least = NULL, *before = NULL;
    int *from = NULL, row = units + 1;
    if (stages > units)
        return sl_fail(SL_ERR_ARGUMENT, "the model has %d parts between which it can be cut, not %d", units, stages);
    double limit = least_maximum(costs->seconds, units, stages) * (1 + 1e-9);
    SL_TRY(SL_NEW_ARRAY(least, (int64_t)stages * row));
    SL_TRY(SL_NEW_ARRAY(from, (int64_t)stages * row));
    SL_TRY(SL_NEW_ARRAY(before, (int64_t)3 * row));
    double *fixed = before + row, *held = fixed + row;
    add_up(costs->seconds, units, before);
    add_up(costs->fixed, units, fixed);
    add_up(costs->held, units, held);
    for (int k = 0; k < stages; k++) {
        for (int u = 0; u <= units; u++) {
            double *best = &least[k * row + u];
            *best = INFINITY;
            for (int v = u - 1; v >= k; v--) {
                double own = before[u] - before[v], share = limit > 0 ? own / limit : 0, over = 0;
                if (own > limit)
                    break;
                if (costs->memory > 0)
                    over = (fixed[u] - fixed[v] + costs->in_flight[k] * (held[u] - held[v])) / costs->memory - 1;
                double sum = share * share + TOO_LARGE * fmax(0, over) +
                             (k > 0    ? least[(k - 1) * row + v]
                              : v == 0 ? 0
                                       : INFINITY);
                if (sum < *best) {
                    *best = sum;
                    from[k * row + u] = v;
                }
            }
        }
    }
    for (int k = stages - 1, u = units; k > 0; k--)
        cuts[k - 1] = u = from[k * row + u];
done:
    sl_free(before);
    sl_free(from);
    sl_free(least);
    return status;
}
