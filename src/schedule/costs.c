/* Costs of the simulator: defaults, text form, range. */
#include "schedule/timeline.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

void sl_costs_init(sl_costs *costs)
{
    *costs = (sl_costs){ .stage = { .f = 1, .i = 1, .w = 1, .b = 2, .activation = 1, .release = 0.5 } };
}

static const struct {
    const char *key;
    size_t offset;
    double most;
} keys[] = {
    { "F", offsetof(sl_costs, stage.f), HUGE_VAL },
    { "I", offsetof(sl_costs, stage.i), HUGE_VAL },
    { "W", offsetof(sl_costs, stage.w), HUGE_VAL },
    { "B", offsetof(sl_costs, stage.b), HUGE_VAL },
    { "comm", offsetof(sl_costs, latency), HUGE_VAL },
    { "size", offsetof(sl_costs, message_size), HUGE_VAL },
    { "bandwidth", offsetof(sl_costs, bandwidth), HUGE_VAL },
    { "unshard", offsetof(sl_costs, stage.unshard), HUGE_VAL },
    { "reshard", offsetof(sl_costs, stage.reshard), HUGE_VAL },
    { "reduce", offsetof(sl_costs, stage.reduce_grad), HUGE_VAL },
    { "gather", offsetof(sl_costs, stage.gather), HUGE_VAL },
    { "overlap", offsetof(sl_costs, overlap), 1 },
    { "activation", offsetof(sl_costs, stage.activation), HUGE_VAL },
    { "release", offsetof(sl_costs, stage.release), 1 },
};

enum { KEY_COUNT = sizeof keys / sizeof *keys };

static sl_status parse_pair(const char *pair, sl_costs *costs)
{
    const char *equals = strchr(pair, '=');
    size_t length = equals ? (size_t)(equals - pair) : 0;
    for (int i = 0; i < KEY_COUNT && equals; i++) {
        if (strlen(keys[i].key) == length && sl_case_compare(keys[i].key, pair, length) == 0) {
            double *target = (double *)(void *)((char *)costs + keys[i].offset);
            double most = keys[i].most == HUGE_VAL ? 1e300 : keys[i].most;
            return sl_parse_double(keys[i].key, equals + 1, 0, most, target);
        }
    }
    char known[160] = "";
    size_t used = 0;
    for (int i = 0; i < KEY_COUNT; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", keys[i].key);
    return sl_fail(SL_ERR_ARGUMENT, "'%.100s' is no cost: KEY=NUMBER with KEY one of %s", pair, known);
}

sl_status sl_costs_parse(const char *text, sl_costs *costs)
{
    sl_status status = SL_OK;
    char *copy = NULL;
    sl_costs changed = *costs;

    SL_TRY(sl_strdup(text, &copy));
    for (char *pair = copy, *next; pair; pair = next) {
        next = strchr(pair, ',');
        if (next)
            *next++ = '\0';
        SL_TRY(parse_pair(pair, &changed));
    }
    *costs = changed;
done:
    sl_free(copy);
    return status;
}

static bool in_range(double value, double most)
{
    return value >= 0 && value <= most && isfinite(value);
}

static sl_status check_stage(const sl_stage_cost *cost, int stage)
{
    double times[] = { cost->f,       cost->i,       cost->w,           cost->b,     cost->activation,
                       cost->unshard, cost->reshard, cost->reduce_grad, cost->gather };
    bool good = in_range(cost->release, 1);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        good = good && in_range(times[i], HUGE_VAL);
    if (good)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "costs of stage %d: a value is negative, not finite, or a share above 1", stage);
}

sl_status sl_costs_check(const sl_costs *costs, int stages, int edges)
{
    sl_status status = SL_OK;
    for (int i = 0; i < KEY_COUNT; i++) {
        double value = *(const double *)(const void *)((const char *)costs + keys[i].offset);
        if (!in_range(value, keys[i].most))
            return sl_fail(SL_ERR_ARGUMENT, "cost %s: %g is out of range", keys[i].key, value);
    }
    for (int stage = 0; costs->stages && stage < stages; stage++)
        SL_TRY(check_stage(&costs->stages[stage], stage));
    for (int edge = 0; costs->edge_sizes && edge < edges; edge++) {
        if (!in_range(costs->edge_sizes[edge], HUGE_VAL))
            return sl_fail(SL_ERR_ARGUMENT, "size of edge %d: %g is out of range", edge, costs->edge_sizes[edge]);
    }
done:
    return status;
}
