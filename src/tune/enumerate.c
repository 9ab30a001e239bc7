/* All configurations: layouts in the order of a bound on their time, until none can be better than those found. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "train/config_keys.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ACTIONS = 4 * 1000 * 1000,
    SHARDS = SL_SHARD_FULL + 1,
    FULL = 6 /* microbatches a rank with which a pipeline is full */
};

static const double SAME = 1e-3; /* times that differ by less count as equal: the one with less memory is better */

typedef struct candidate_list {
    tune_candidate *items;
    int count;
    size_t capacity;
} candidate_list;

static sl_status add_candidate(candidate_list *list, const tune_candidate *candidate)
{
    sl_status status = SL_GROW(list->items, &list->capacity, list->count + 1);
    if (status == SL_OK)
        list->items[list->count++] = *candidate;
    return status;
}

static int compare(double x, double y)
{
    return x < y ? -1 : x > y;
}

/* An order of its own for equal times, so that the choice does not depend on how sorting works. */
static int by_choice(const tune_candidate *x, const tune_candidate *y)
{
    const double own[] = { x->pp, x->chunks, x->placement, (double)x->microbatches, x->recompute, x->shard };
    const double other[] = { y->pp, y->chunks, y->placement, (double)y->microbatches, y->recompute, y->shard };
    int order = 0;
    for (size_t i = 0; i < sizeof own / sizeof *own && order == 0; i++)
        order = compare(own[i], other[i]);
    return order;
}

static int by_bound(const void *a, const void *b)
{
    const tune_candidate *x = a, *y = b;
    int order = compare(x->bound, y->bound);
    return order ? order : by_choice(x, y);
}

int sl_tune_by_seconds(const void *a, const void *b)
{
    const tune_candidate *x = a, *y = b;
    int order = compare(x->seconds, y->seconds);
    return order ? order : by_choice(x, y);
}

/* The least that the fullest rank can get by with: one microbatch in flight, and replicas that share everything. */
static double least_memory(const sl_tune *tune, const tune_stages *stages, tune_candidate candidate)
{
    double most = 0;
    candidate.shard = candidate.dp > 1 ? SL_SHARD_FULL : SL_SHARD_NONE;
    candidate.unsharded = 1;
    candidate.summed = 2;
    for (int r = 0; r < candidate.pp; r++) {
        double sum = sl_tune_fixed_memory(&tune->setting, stages, &candidate, r);
        for (int chunk = 0; chunk < candidate.chunks; chunk++)
            sum += stages->costs[sl_placement_stage(candidate.placement, candidate.pp, r, chunk)].activation;
        most = fmax(most, sum);
    }
    return most;
}

/* ---- Layouts --------------------------------------------------------------------------------- */

/* Takes the layout if it can fit. The exact memory is known later: what is a little too large stays. */
static sl_status add_layout(sl_tune *tune, candidate_list *list, tune_candidate layout)
{
    sl_status status = SL_OK;
    tune_stages stages = { 0 };
    int64_t most = tune->model.unit_count < CONFIG_LIST_LIMIT ? tune->model.unit_count : CONFIG_LIST_LIMIT;
    if ((int64_t)layout.pp * layout.chunks > most || 3 * layout.microbatches * layout.pp * layout.chunks > MOST_ACTIONS)
        return SL_OK;
    SL_TRY(sl_tune_make_stages(tune, &layout, NULL, &stages));
    layout.bound = sl_tune_bound(&tune->setting, &stages, &layout);
    double memory = least_memory(tune, &stages, layout);
    if (tune->least_memory == 0 || memory < tune->least_memory)
        tune->least_memory = memory;
    if (memory <= 1.05 * tune->cluster.memory)
        SL_TRY(add_candidate(list, &layout));
done:
    sl_tune_clear_stages(&stages);
    return status;
}

static sl_status add_microbatches(sl_tune *tune, candidate_list *list, tune_candidate layout, int64_t rows)
{
    sl_status status = SL_OK;
    static const struct {
        sl_placement placement;
        int chunks;
    } shapes[] = { { SL_PLACEMENT_LOOP, 1 },
                   { SL_PLACEMENT_V, 2 },
                   { SL_PLACEMENT_LOOP, 2 },
                   { SL_PLACEMENT_LOOP, 4 },
                   { SL_PLACEMENT_LOOP, 8 } };
    for (int64_t m = 1; m <= rows; m++) {
        if (rows % m != 0)
            continue;
        layout.microbatches = m;
        layout.rows = rows / m;
        for (layout.recompute = 0; layout.recompute < tune->model.recompute_count; layout.recompute++) {
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes && (layout.pp > 1 || i == 0); i++) {
                layout.placement = shapes[i].placement;
                layout.chunks = shapes[i].chunks;
                SL_TRY(add_layout(tune, list, layout));
            }
        }
    }
done:
    return status;
}

static sl_status list_layouts(sl_tune *tune, candidate_list *list)
{
    sl_status status = SL_OK;
    int64_t batch = tune->config->batch.size;
    bool any = false;
    for (int dp = 1; dp <= tune->ranks; dp++) {
        if (tune->ranks % dp != 0 || batch % dp != 0 || tune->ranks / dp > tune->model.unit_count)
            continue;
        any = true;
        SL_TRY(
            add_microbatches(tune, list, (tune_candidate){ .pp = tune->ranks / dp, .dp = dp, .room = 1 }, batch / dp));
    }
    if (!any)
        SL_TRY(
            sl_fail(SL_ERR_ARGUMENT,
                    "%d ranks: no pipeline of at most %d stages and no number of replicas that divides the %lld rows "
                    "of batch.size use them all",
                    tune->ranks, tune->model.unit_count, (long long)batch));
done:
    return status;
}

/* ---- Schedules of a layout ------------------------------------------------------------------- */

/* Times of the layout with the schedule, one for each way to share weights between replicas. A schedule is searched for
 * with the memory that is left if replicas share the optimizer. */
static sl_status time_schedule(sl_tune *tune, const tune_candidate *layout, const tune_stages *stages, const char *name,
                               tune_candidate out[SHARDS])
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    tune_candidate lean = *layout;
    lean.shard = layout->dp > 1 ? SL_SHARD_OPTIMIZER : SL_SHARD_NONE;
    SL_TRY(sl_tune_make_schedule(tune, &lean, stages, name, 0, &schedule));
    for (int shard = 0; shard < (layout->dp > 1 ? SHARDS : 1); shard++) {
        out[shard] = *layout;
        out[shard].shard = (sl_shard_mode)shard;
        out[shard].schedule = name;
        SL_TRY(sl_tune_time(&tune->setting, stages, schedule, &out[shard]));
    }
done:
    sl_schedule_destroy(schedule);
    return status;
}

/* Once the pipeline is full every microbatch adds the same: many of them are reckoned from fewer. What is best is timed
 * as a whole later. */
static void extend(const tune_candidate *few, const tune_candidate *more, int64_t microbatches, tune_candidate *out)
{
    double steps = (double)(microbatches - more->microbatches) / (double)(more->microbatches - few->microbatches);
    *out = *more;
    out->microbatches = microbatches;
    out->rows = more->rows;
    out->work += steps * (more->work - few->work);
    out->idle += steps * (more->idle - few->idle);
    out->exchange += steps * fmax(0, more->exchange - few->exchange);
    out->seconds = out->work + out->idle + out->exchange + out->update;
    out->bubble = out->idle / (out->work + out->idle);
}

/* One schedule: the best of the layout so far stays in best[]. */
static sl_status try_schedule(sl_tune *tune, const tune_candidate *layout, const tune_stages *stages, const char *name,
                              tune_candidate best[SHARDS])
{
    sl_status status = SL_OK;
    tune_candidate few[SHARDS], more[SHARDS], sample = *layout;
    bool many = layout->microbatches > (int64_t)FULL * layout->pp;
    if (many) {
        sample.microbatches = (int64_t)FULL / 2 * layout->pp;
        status = time_schedule(tune, &sample, stages, name, few);
        sample.microbatches = (int64_t)FULL * layout->pp;
    }
    if (status == SL_OK)
        status = time_schedule(tune, &sample, stages, name, more);
    if (status == SL_ERR_ARGUMENT || status == SL_ERR_UNSUPPORTED)
        return SL_OK; /* not for this many microbatches, or not into this memory */
    SL_TRY(status);
    for (int shard = 0; shard < (layout->dp > 1 ? SHARDS : 1); shard++) {
        tune_candidate candidate = more[shard];
        if (many)
            extend(&few[shard], &more[shard], layout->microbatches, &candidate);
        tune->tried++;
        bool better = candidate.seconds < best[shard].seconds * (1 - SAME);
        bool leaner = candidate.seconds < best[shard].seconds * (1 + SAME) && candidate.memory < best[shard].memory;
        if (candidate.memory <= 1.05 * tune->cluster.memory && (better || leaner))
            best[shard] = candidate;
    }
done:
    return status;
}

static sl_status try_layout(sl_tune *tune, const tune_candidate *layout, candidate_list *found)
{
    sl_status status = SL_OK;
    tune_stages stages = { 0 };
    tune_candidate best[SHARDS] = { { .seconds = INFINITY }, { .seconds = INFINITY }, { .seconds = INFINITY } };
    SL_TRY(sl_tune_make_stages(tune, layout, NULL, &stages));
    for (int n = 0; sl_generator_name(n); n++) {
        sl_placement placement;
        int chunks;
        const char *name = sl_generator_name(n);
        if (strncmp(name, "Forward", strlen("Forward")) == 0)
            continue;
        SL_TRY(sl_plan_named_placement(name, &placement, &chunks));
        bool suits = chunks == 1 ? layout->chunks == 1 : layout->chunks > 1 && layout->placement == placement;
        if (suits)
            SL_TRY(try_schedule(tune, layout, &stages, name, best));
    }
    /* Another order gains little if a named one is near the bound. */
    double least = fmin(best[0].seconds, fmin(best[1].seconds, best[2].seconds));
    if (layout->pp > 1 && least > layout->bound * 1.02)
        SL_TRY(try_schedule(tune, layout, &stages, "found", best));
    for (int shard = 0; shard < SHARDS; shard++) {
        if (best[shard].seconds < INFINITY)
            SL_TRY(add_candidate(found, &best[shard]));
    }
done:
    sl_tune_clear_stages(&stages);
    return status;
}

/* The time that a layout must be able to beat: that of the last of the four-fold top so far. */
static double threshold(const sl_tune *tune, candidate_list *found)
{
    int wanted = 4 * tune->top;
    if (found->count < wanted || tune->spread)
        return INFINITY;
    qsort(found->items, (size_t)found->count, sizeof *found->items, sl_tune_by_seconds);
    return found->items[wanted - 1].seconds;
}

sl_status sl_tune_enumerate(sl_tune *tune, tune_candidate **out, int *count)
{
    sl_status status = SL_OK;
    candidate_list layouts = { 0 }, found = { 0 };
    SL_TRY(list_layouts(tune, &layouts));
    if (layouts.count > 0)
        qsort(layouts.items, (size_t)layouts.count, sizeof *layouts.items, by_bound);
    for (int i = 0; i < layouts.count && layouts.items[i].bound <= threshold(tune, &found); i++)
        SL_TRY(try_layout(tune, &layouts.items[i], &found));
    if (found.count > 0)
        qsort(found.items, (size_t)found.count, sizeof *found.items, sl_tune_by_seconds);
    *out = found.items;
    *count = found.count;
    found.items = NULL;
done:
    sl_free(found.items);
    sl_free(layouts.items);
    return status;
}

sl_status sl_tune_enough_ranks(sl_tune *tune, int *out)
{
    sl_status status = SL_OK;
    candidate_list layouts = { 0 };
    int ranks = tune->ranks;
    double least = tune->least_memory;
    *out = 0;
    for (int more = ranks; more <= SL_MAX_RANKS / 2 && *out == 0;) {
        tune->ranks = more *= 2;
        tune->least_memory = 0;
        layouts.count = 0;
        status = list_layouts(tune, &layouts);
        if (status == SL_ERR_ARGUMENT) { /* the batch has too few rows */
            status = SL_OK;
            break;
        }
        SL_TRY(status);
        if (tune->least_memory > 0 && tune->least_memory <= 0.95 * tune->cluster.memory)
            *out = more;
    }
done:
    tune->ranks = ranks;
    tune->least_memory = least;
    sl_free(layouts.items);
    return status;
}
