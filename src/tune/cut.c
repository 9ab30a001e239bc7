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

/* Of all cuts with that maximum those with the least sum of squares: least[k * (units + 1) + u] is that of the first u
 * units in k + 1 stages. */
sl_status sl_tune_cut(const double *weights, int units, int stages, int *cuts)
{
    sl_status status = SL_OK;
    double *least = NULL, *before = NULL;
    int *from = NULL, row = units + 1;
    if (stages > units)
        return sl_fail(SL_ERR_ARGUMENT, "the model has %d parts between which it can be cut, not %d", units, stages);
    double limit = least_maximum(weights, units, stages) * (1 + 1e-9);
    SL_TRY(SL_NEW_ARRAY(least, (int64_t)stages * row));
    SL_TRY(SL_NEW_ARRAY(from, (int64_t)stages * row));
    SL_TRY(SL_NEW_ARRAY(before, row));
    for (int u = 0; u < units; u++)
        before[u + 1] = before[u] + weights[u];
    for (int k = 0; k < stages; k++) {
        for (int u = 0; u <= units; u++) {
            double *best = &least[k * row + u];
            *best = INFINITY;
            for (int v = u - 1; v >= k; v--) {
                double own = before[u] - before[v];
                if (own > limit)
                    break;
                double sum = own * own + (k > 0 ? least[(k - 1) * row + v] : v == 0 ? 0 : INFINITY);
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
