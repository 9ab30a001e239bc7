/* The search: layouts in the order of a bound on their time, and their schedules in that of their time, until nothing that
 * is left can be better than the best that fits. */
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

static const double NEAR = 1.02; /* so near to the bound another order gains little */

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
int sl_tune_by_choice(const tune_candidate *x, const tune_candidate *y)
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
    return order ? order : sl_tune_by_choice(x, y);
}

int sl_tune_by_seconds(const void *a, const void *b)
{
    const tune_candidate *x = a, *y = b;
    int order = compare(x->seconds, y->seconds);
    return order ? order : sl_tune_by_choice(x, y);
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

/* The exact memory is known later: what is a little too large by the estimate stays. */
static double with_tolerance(double memory)
{
    return 1.05 * memory;
}

/* Takes the layout if it can fit. */
static sl_status add_layout(sl_tune *tune, candidate_list *list, tune_candidate layout)
{
    sl_status status = SL_OK;
    tune_stages stages = { 0 };
    int64_t most = tune->model.unit_count < CONFIG_LIST_LIMIT ? tune->model.unit_count : CONFIG_LIST_LIMIT;
    if ((int64_t)layout.pp * layout.chunks > most || 3 * layout.microbatches * layout.pp * layout.chunks > MOST_ACTIONS)
        return SL_OK;
    SL_TRY(sl_tune_make_stages(tune, &layout, NULL, &stages));
    layout.bound = sl_tune_bound(&tune->setting, &stages, &layout, with_tolerance(tune->cluster.memory));
    double memory = least_memory(tune, &stages, layout);
    if (tune->least_memory == 0 || memory < tune->least_memory)
        tune->least_memory = memory;
    if (memory <= with_tolerance(tune->cluster.memory) && layout.bound < INFINITY)
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
        SL_TRY(add_microbatches(tune, list,
                                (tune_candidate){ .pp = tune->ranks / dp, .dp = dp, .target = tune->cluster.memory },
                                batch / dp));
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

/* Of a layout with the name of a schedule, a way to share weights and, for a searched schedule, the number of a rank's
 * stages that are gathered at once: their memory is not there for activations. */
static sl_status time_schedule(sl_tune *tune, const tune_candidate *choice, const tune_stages *stages,
                               tune_candidate *out)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    tune_candidate timed = *choice;
    SL_TRY(sl_tune_make_schedule(tune, choice, stages, choice->schedule, 0, &schedule));
    SL_TRY(sl_tune_time(&tune->setting, stages, schedule, &timed));
    *out = timed;
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

/* Adds the choice with its time if it fits by the estimate. *least: the time of the fastest of this layout. */
static sl_status try_choice(sl_tune *tune, const tune_candidate *choice, const tune_stages *stages,
                            candidate_list *found, double *least)
{
    sl_status status = SL_OK;
    tune_candidate few, more, sample = *choice;
    bool many = choice->microbatches > (int64_t)FULL * choice->pp;
    if (many) {
        sample.microbatches = (int64_t)FULL / 2 * choice->pp;
        status = time_schedule(tune, &sample, stages, &few);
        sample.microbatches = (int64_t)FULL * choice->pp;
    }
    if (status == SL_OK)
        status = time_schedule(tune, &sample, stages, &more);
    if (status == SL_ERR_ARGUMENT || status == SL_ERR_UNSUPPORTED)
        return SL_OK; /* not for this many microbatches, or not into this memory */
    SL_TRY(status);
    if (many) {
        sample = more;
        extend(&few, &sample, choice->microbatches, &more);
    }
    tune->tried++;
    if (more.memory > with_tolerance(choice->target))
        return SL_OK;
    *least = fmin(*least, more.seconds);
    SL_TRY(add_candidate(found, &more));
done:
    return status;
}

static sl_status try_name(sl_tune *tune, const tune_candidate *layout, const tune_stages *stages, const char *name,
                          candidate_list *found, double *least)
{
    sl_status status = SL_OK;
    tune_candidate choice = *layout;
    choice.schedule = name;
    for (int shard = SL_SHARD_NONE; shard <= (layout->dp > 1 ? SL_SHARD_FULL : SL_SHARD_NONE); shard++) {
        bool gathers = shard == SL_SHARD_FULL && strcmp(name, "found") == 0;
        choice.shard = (sl_shard_mode)shard;
        choice.unsharded = gathers ? layout->chunks : 0; /* 0: as many as fit */
        do {
            SL_TRY(try_choice(tune, &choice, stages, found, least));
            choice.unsharded /= 2;
        } while (choice.unsharded > 0);
    }
done:
    return status;
}

static sl_status try_layout(sl_tune *tune, const tune_candidate *layout, candidate_list *found)
{
    sl_status status = SL_OK;
    tune_stages stages = { 0 };
    double least = INFINITY;
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
            SL_TRY(try_name(tune, layout, &stages, name, found, &least));
    }
    /* Another order gains little if a named one is near the bound. */
    if (layout->pp > 1 && least > layout->bound * NEAR)
        SL_TRY(try_name(tune, layout, &stages, "found", found, &least));
done:
    sl_tune_clear_stages(&stages);
    return status;
}

/* ---- The search ------------------------------------------------------------------------------ */

/* -1: none is left. */
static int first_layout(const candidate_list *layouts)
{
    int first = -1;
    for (int i = 0; i < layouts->count; i++) {
        if (!layouts->items[i].done && (first < 0 || by_bound(&layouts->items[i], &layouts->items[first]) < 0))
            first = i;
    }
    return first;
}

static int first_choice(const candidate_list *found)
{
    int first = -1;
    for (int i = 0; i < found->count; i++) {
        if (!found->items[i].done && (first < 0 || sl_tune_by_seconds(&found->items[i], &found->items[first]) < 0))
            first = i;
    }
    return first;
}

/* One entry is enough of a layout and a way to share, unless it is slower: searched again to fit, it may be. */
static bool has_entry(const sl_tune *tune, const tune_candidate *candidate)
{
    for (int i = 0; i < tune->entry_count; i++) {
        const tune_candidate *entry = &tune->entries[i].candidate;
        if (sl_tune_by_choice(entry, candidate) == 0 && entry->seconds <= candidate->seconds)
            return true;
    }
    return false;
}

static sl_status search(sl_tune *tune, candidate_list *layouts, candidate_list *found)
{
    sl_status status = SL_OK;
    for (;;) {
        int l = first_layout(layouts), f = first_choice(found);
        double bound = l >= 0 ? layouts->items[l].bound : INFINITY,
               seconds = f >= 0 ? found->items[f].seconds : INFINITY;
        bool enough = tune->entry_count == tune->kept && tune->entries[0].candidate.seconds <= fmin(bound, seconds);
        if (enough || (l < 0 && f < 0))
            return SL_OK;
        if (l >= 0 && bound <= seconds) {
            const tune_candidate layout = layouts->items[l];
            layouts->items[l].done = true;
            SL_TRY(try_layout(tune, &layout, found));
        } else {
            found->items[f].done = true;
            if (!has_entry(tune, &found->items[f]))
                SL_TRY(sl_tune_verify(tune, &found->items[f]));
        }
    }
done:
    return status;
}

/* Even steps of time from the fastest to the slowest: whether the next entry is to be slower than this candidate, and
 * there are enough left behind it. */
static bool is_passed_over(const sl_tune *tune, const candidate_list *list, int i)
{
    double first = list->items[0].seconds, last = list->items[list->count - 1].seconds;
    double step = (last - first) / fmax(1, tune->top - 1);
    return list->count - i > tune->top - tune->entry_count &&
           list->items[i].seconds < first + tune->entry_count * step * (1 - 1e-9);
}

/* The fastest choice of each layout and way to share, in the order of their time. */
static void keep_fastest(candidate_list *list)
{
    int kept = 0;
    if (list->count > 0)
        qsort(list->items, (size_t)list->count, sizeof *list->items, sl_tune_by_seconds);
    for (int i = 0; i < list->count; i++) {
        bool known = false;
        for (int k = 0; k < kept && !known; k++)
            known = sl_tune_by_choice(&list->items[k], &list->items[i]) == 0;
        if (!known)
            list->items[kept++] = list->items[i];
    }
    list->count = kept;
}

static sl_status search_spread(sl_tune *tune, candidate_list *layouts, candidate_list *found)
{
    sl_status status = SL_OK;
    for (int i = 0; i < layouts->count; i++)
        SL_TRY(try_layout(tune, &layouts->items[i], found));
    keep_fastest(found);
    for (int i = 0; i < found->count && tune->entry_count < tune->top; i++) {
        if (!is_passed_over(tune, found, i))
            SL_TRY(sl_tune_verify(tune, &found->items[i]));
    }
done:
    return status;
}

sl_status sl_tune_search(sl_tune *tune)
{
    sl_status status = SL_OK;
    candidate_list layouts = { 0 }, found = { 0 };
    SL_TRY(list_layouts(tune, &layouts));
    SL_TRY(tune->spread ? search_spread(tune, &layouts, &found) : search(tune, &layouts, &found));
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
