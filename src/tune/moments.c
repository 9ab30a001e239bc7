/* Numbers that are measured at several moments, and their quantiles. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

sl_status sl_tune_moments_add(tune_moments *moments, const double *values, int width)
{
    sl_status status = SL_OK;
    assert(moments->count == 0 || moments->width == width);
    SL_TRY(SL_GROW(moments->values, &moments->capacity, (moments->count + 1) * width));
    memcpy(moments->values + (ptrdiff_t)moments->count * width, values, (size_t)width * sizeof *values);
    moments->width = width;
    moments->count++;
done:
    return status;
}

static double value_at(const tune_moments *moments, int moment, int column)
{
    return moments->values[(ptrdiff_t)moment * moments->width + column];
}

/* The value of the column that `place` others come before. */
static double value_in_order(const tune_moments *moments, int column, int place)
{
    for (int i = 0; i < moments->count; i++) {
        double own = value_at(moments, i, column);
        int before = 0;
        for (int k = 0; k < moments->count; k++) {
            double other = value_at(moments, k, column);
            before += other < own || (other == own && k < i);
        }
        if (before == place)
            return own;
    }
    return 0;
}

double sl_tune_moments_quantile(const tune_moments *moments, int column, double share)
{
    double place = share * (moments->count - 1);
    int low = (int)place, high = low + 1 < moments->count ? low + 1 : low;
    double first = value_in_order(moments, column, low), second = value_in_order(moments, column, high);
    return first + (second - first) * (place - low);
}

void sl_tune_moments_clear(tune_moments *moments)
{
    sl_free(moments->values);
    *moments = (tune_moments){ 0 };
}
