/* The best candidates that fit: each is compiled as train would, a better schedule is searched for, and what makes one
 * slower than the best is said. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "base/text.h"
#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEARCHES = 4 };

/* ---- Memory ---------------------------------------------------------------------------------- */

/* The memory of the fullest rank as the pure compile has it. */
static sl_status compile_memory(const sl_tune *tune, tune_candidate *candidate, const char *const *lines,
                                int line_count, const sl_schedule *schedule)
{
    sl_status status = SL_OK;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    const char **all = NULL;
    char limit[48], number[32];
    int count = tune->override_count;
    SL_TRY(SL_NEW_ARRAY(all, count + line_count + 2));
    memcpy(all, tune->overrides, (size_t)count * sizeof *all);
    memcpy(all + count, lines, (size_t)line_count * sizeof *all);
    snprintf(limit, sizeof limit, "parallel.memory_gb=%s",
             sl_double_text(tune->cluster.memory / 1e9, number, sizeof number));
    all[count + line_count] = limit;
    all[count + line_count + 1] = "parallel.offload=none"; /* the time would not count it */
    SL_TRY(sl_train_config_load(tune->path, all, count + line_count + 2, &config));
    SL_TRY(sl_plan_create_shape(config, tune->device, schedule, &plan));
    candidate->unsharded = plan->unsharded;
    candidate->memory = 0;
    for (int r = 0; r < candidate->pp; r++) {
        sl_plan_memory memory = sl_train_plan_memory(plan, r * candidate->dp);
        double total = (double)(tune->setting.own_memory ? memory.device : memory.total);
        if (total > candidate->memory) {
            candidate->memory = total;
            candidate->fullest = r;
        }
    }
done:
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    sl_free(all);
    return status;
}

static sl_status keep_cuts(sl_tune *tune, const tune_stages *stages, tune_entry *entry)
{
    sl_status status = SL_OK;
    const char **names = NULL;
    SL_TRY(SL_ARENA_ARRAY(tune->arena, names, stages->count));
    SL_TRY(SL_ARENA_ARRAY(tune->arena, entry->cuts, stages->count));
    for (int s = 0; s + 1 < stages->count; s++) {
        entry->cuts[s] = stages->cuts[s];
        names[s] = tune->model.units[stages->cuts[s]].name;
    }
    entry->split = names;
done:
    return status;
}

/* Takes the schedule if the entry fits with it, and fills in what that gives. */
static sl_status take_schedule(sl_tune *tune, const tune_stages *stages, sl_schedule *schedule, tune_entry *entry,
                               bool *fits)
{
    sl_status status = SL_OK;
    const char *lines[SL_TUNE_LINES];
    int count = 0;
    tune_candidate compiled = entry->candidate;
    entry->candidate.unsharded = 0;                                      /* as many as fit */
    SL_TRY(sl_tune_entry_overrides(tune, entry, "1F1B", lines, &count)); /* the schedule itself is given */
    status = compile_memory(tune, &compiled, lines, count, schedule);
    *fits = status == SL_OK && compiled.memory <= tune->cluster.memory;
    if (status == SL_ERR_ARGUMENT || status == SL_ERR_SCHEDULE || status == SL_ERR_UNSUPPORTED)
        status = SL_OK; /* train refuses it */
    entry->candidate.unsharded = compiled.unsharded;
    SL_TRY(sl_tune_time(&tune->setting, stages, schedule, &entry->candidate));
    entry->candidate.memory = compiled.memory;
    entry->candidate.fullest = compiled.fullest;
done:
    return status;
}

/* ---- Entries --------------------------------------------------------------------------------- */

/* A searched schedule that takes more memory than was estimated is searched again for less. */
static sl_status verify_one(sl_tune *tune, const tune_candidate *candidate, tune_entry *out, bool *fits)
{
    sl_status status = SL_OK;
    tune_stages stages = { 0 };
    tune_entry entry = { .candidate = *candidate };
    int tries = strcmp(candidate->schedule, "found") == 0 ? SEARCHES : 1;
    SL_TRY(sl_tune_make_stages(tune, candidate, NULL, &stages));
    SL_TRY(keep_cuts(tune, &stages, &entry));
    for (; tries > 0 && !*fits; tries--) {
        sl_schedule_destroy(entry.schedule);
        entry.schedule = NULL;
        entry.candidate.unsharded = candidate->unsharded;
        status = sl_tune_make_schedule(tune, &entry.candidate, &stages, candidate->schedule, 0, &entry.schedule);
        if (status == SL_ERR_UNSUPPORTED) { /* that is too little */
            status = SL_OK;
            break;
        }
        SL_TRY(status);
        SL_TRY(take_schedule(tune, &stages, entry.schedule, &entry, fits));
        if (!*fits)
            entry.candidate.target -= 1.02 * (entry.candidate.memory - tune->cluster.memory);
    }
    if (*fits) {
        *out = entry;
        entry.schedule = NULL;
    }
done:
    sl_schedule_destroy(entry.schedule);
    sl_tune_clear_stages(&stages);
    return status;
}

/* Seconds of the search. A try takes longer the more stages and microbatches there are, and gains less. */
static double search_budget(const sl_tune *tune, const tune_candidate *candidate)
{
    enum { STAGES = 32, ACTIONS = 10000 };
    double stages = (double)candidate->pp * candidate->chunks;
    return tune->budget * fmin(1, STAGES / stages) * fmin(1, ACTIONS / (3 * stages * (double)candidate->microbatches));
}

/* What no schedule can do better. The planner's bounds know no shared processors. They need room by the estimate, though
 * the compile may find that it fits without. */
static sl_status set_bounds(const sl_tune *tune, const tune_stages *stages, tune_entry *entry)
{
    const tune_candidate *own = &entry->candidate;
    entry->flight = 0;
    entry->bound = entry->unlimited = own->work;
    for (int s = 0; s < stages->count; s++)
        entry->flight += stages->costs[s].f + stages->costs[s].b + (s + 1 < stages->count ? 2 * stages->hops[s] : 0);
    if (tune->cluster.shared_cores > 0 && own->pp * own->dp > tune->cluster.shared_cores)
        return SL_OK;
    sl_status status = sl_tune_bound_schedules(tune, own, stages, &entry->bound, &entry->unlimited);
    return status == SL_ERR_UNSUPPORTED ? SL_OK : status;
}

/* A schedule that the planner's search finds within the target stays if it is faster and fits. */
static sl_status search_within(sl_tune *tune, const tune_stages *stages, double target, double budget,
                               tune_entry *entry)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    tune_entry better = *entry;
    bool fits = false;
    better.candidate.schedule = "found";
    better.candidate.target = target;
    status = sl_tune_make_schedule(tune, &better.candidate, stages, "found", budget, &schedule);
    if (status == SL_ERR_UNSUPPORTED) { /* no room, by the estimate */
        status = SL_OK;
        goto done;
    }
    SL_TRY(status);
    SL_TRY(take_schedule(tune, stages, schedule, &better, &fits));
    if (!fits || better.candidate.seconds >= entry->candidate.seconds * (1 - 1e-3))
        goto done;
    sl_schedule_destroy(entry->schedule);
    *entry = better;
    entry->schedule = schedule;
    schedule = NULL;
done:
    sl_schedule_destroy(schedule);
    return status;
}

/* What is found within less memory can be better, by luck. That is tried at steps that do not depend on the memory there
 * is, so that a device with more of it has the same luck: eight steps double the memory. */
static sl_status search_better(sl_tune *tune, tune_entry *entry)
{
    sl_status status = SL_OK;
    enum { TARGETS = 4 };
    tune_stages stages = { 0 };
    double target = tune->cluster.memory, step = floor(8 * log2(target));
    SL_TRY(sl_tune_make_stages(tune, &entry->candidate, entry->cuts, &stages));
    SL_TRY(set_bounds(tune, &stages, entry));
    double budget = search_budget(tune, &entry->candidate) / TARGETS;
    for (int i = 0; i < TARGETS; i++, step--) {
        SL_TRY(search_within(tune, &stages, target, budget, entry));
        target = exp2(step / 8);
    }
done:
    entry->bound = fmin(entry->bound, entry->candidate.work + entry->candidate.idle); /* its memory was estimated */
    sl_tune_clear_stages(&stages);
    return status;
}

static sl_status time_again(sl_tune *tune, tune_entry *entry)
{
    sl_status status = SL_OK;
    tune_stages stages = { 0 };
    tune_entry timed = *entry;
    SL_TRY(sl_tune_make_stages(tune, &entry->candidate, entry->cuts, &stages));
    SL_TRY(sl_tune_time(&tune->setting, &stages, entry->schedule, &timed.candidate));
    timed.candidate.memory = entry->candidate.memory; /* as compiled */
    timed.candidate.fullest = entry->candidate.fullest;
    SL_TRY(set_bounds(tune, &stages, &timed));
    timed.bound = fmin(timed.bound, timed.candidate.work + timed.candidate.idle);
    *entry = timed;
done:
    sl_tune_clear_stages(&stages);
    return status;
}

static int by_time(const void *a, const void *b)
{
    const tune_entry *x = a, *y = b;
    return sl_tune_by_seconds(&x->candidate, &y->candidate);
}

/* ---- Reasons --------------------------------------------------------------------------------- */

/* The part of the step that grows most against the best one. */
static sl_status explain_worse(sl_tune *tune, tune_entry *entry)
{
    const tune_candidate *own = &entry->candidate, *best = &tune->entries[0].candidate;
    const struct {
        double more;
        const char *what;
    } parts[] = {
        { own->work - best->work, own->recompute != best->recompute && own->recompute > 0
                                      ? "more work: it computes activations again"
                                  : own->rows != best->rows ? "more work: its microbatches have another size"
                                                            : "more work on the slowest rank: the cut is less even" },
        { own->idle - best->idle, own->pp > best->pp ? "more waiting: a longer pipeline has more to fill and drain"
                                  : own->microbatches < best->microbatches
                                      ? "more waiting: fewer microbatches fill the pipeline less"
                                      : "more waiting in its schedule" },
        { own->exchange - best->exchange, own->dp > best->dp ? "more exchange: more replicas sum their gradients"
                                                             : "more exchange between ranks at the end of a step" },
        { own->update - best->update, "a longer update: a rank has more parameters" },
    };
    size_t most = 0;
    char more[32];
    char *text = NULL;
    for (size_t i = 1; i < sizeof parts / sizeof *parts; i++)
        most = parts[i].more > parts[most].more ? i : most;
    if (own->seconds <= best->seconds * (1 + 1e-6))
        return sl_arena_strdup(tune->arena, "as fast as the best", (char **)(void *)&entry->why);
    sl_status status =
        sl_arena_printf(tune->arena, &text, "+%.1f%%: %s (+%s)", 100 * (own->seconds / best->seconds - 1),
                        parts[most].what, sl_seconds_text(fmax(0, parts[most].more), more, sizeof more));
    entry->why = text;
    return status;
}

/* What the best one would need to be faster. */
static sl_status name_limit(sl_tune *tune, const tune_entry *entry, char **out)
{
    const tune_candidate *best = &entry->candidate;
    char time[32];
    if (best->work > 0.5 * best->seconds)
        return sl_arena_printf(tune->arena, out, "the work of its slowest rank");
    if (best->exchange > best->idle)
        return sl_arena_printf(tune->arena, out, "the exchange between replicas");
    if (entry->flight > 0.5 * (best->work + best->idle))
        return sl_arena_printf(
            tune->arena, out,
            "the way of one microbatch through all stages and back, %s (%d ranks would need more than "
            "the %lld rows of batch.size)",
            sl_seconds_text(entry->flight, time, sizeof time), tune->ranks, (long long)tune->config->batch.size);
    if (entry->bound > 1.05 * entry->unlimited)
        return sl_arena_printf(tune->arena, out, "memory (its ranks cannot hold enough microbatches to stay busy)");
    return sl_arena_printf(tune->arena, out, "waiting in the pipeline");
}

static sl_status explain_best(sl_tune *tune, tune_entry *entry)
{
    sl_status status = SL_OK;
    const tune_candidate *best = &entry->candidate;
    double pipeline = best->work + best->idle;
    char *text = NULL, *limit = NULL;
    SL_TRY(name_limit(tune, entry, &limit));
    SL_TRY(sl_arena_printf(tune->arena, &text,
                           "bounded by %s: work %.1f%%, waiting %.1f%%, exchange %.1f%%, update %.1f%%; "
                           "its schedule is %.2f%% over the bound",
                           limit, 100 * best->work / best->seconds, 100 * best->idle / best->seconds,
                           100 * best->exchange / best->seconds, 100 * best->update / best->seconds,
                           100 * fmax(0, entry->bound > 0 ? pipeline / entry->bound - 1 : 0)));
    entry->why = text;
done:
    return status;
}

/* Nothing fits: says what would. */
static sl_status fail_nothing_fits(sl_tune *tune)
{
    sl_status status = SL_OK;
    char need[32], have[32], enough[96] = "no number of them is enough for this batch.size";
    int ranks = 0;
    SL_TRY(sl_tune_enough_ranks(tune, &ranks));
    if (ranks > 0)
        snprintf(enough, sizeof enough, "%d of them would be enough", ranks);
    SL_TRY(sl_fail(SL_ERR_UNSUPPORTED,
                   "nothing fits: the least that any configuration on %d rank%s needs is about %s on its fullest rank, "
                   "and a device has %s; %s, as would be a smaller model or batch.seq",
                   tune->ranks, sl_plural(tune->ranks), sl_bytes_text(tune->least_memory, need, sizeof need),
                   sl_bytes_text(tune->cluster.memory, have, sizeof have), enough));
done:
    return status;
}

/* ---- All ------------------------------------------------------------------------------------- */

static void remove_entry(sl_tune *tune, int index)
{
    sl_schedule_destroy(tune->entries[index].schedule);
    for (int i = index + 1; i < tune->entry_count; i++)
        tune->entries[i - 1] = tune->entries[i];
    tune->entry_count--;
}

static void insert_entry(sl_tune *tune, const tune_entry *entry)
{
    int place = tune->entry_count++;
    for (; place > 0 && by_time(entry, &tune->entries[place - 1]) < 0; place--)
        tune->entries[place] = tune->entries[place - 1];
    tune->entries[place] = *entry;
}

sl_status sl_tune_verify(sl_tune *tune, const tune_candidate *candidate)
{
    sl_status status = SL_OK;
    tune_entry entry = { 0 };
    bool fits = false, alike = false;
    if (!tune->entries)
        SL_TRY(SL_NEW_ARRAY(tune->entries, tune->kept + 1));
    SL_TRY(verify_one(tune, candidate, &entry, &fits));
    if (!fits)
        return SL_OK;
    insert_entry(tune, &entry);
    for (int i = 0; i < tune->entry_count; i++) {
        bool same = sl_tune_by_choice(&tune->entries[i].candidate, candidate) == 0;
        if (same && alike)
            remove_entry(tune, i--);
        alike = alike || same;
    }
    if (tune->entry_count > tune->kept)
        remove_entry(tune, tune->entry_count - 1);
done:
    return status;
}

void sl_tune_drop_entries(sl_tune *tune)
{
    while (tune->entry_count > 0)
        sl_schedule_destroy(tune->entries[--tune->entry_count].schedule);
}

sl_status sl_tune_improve_entries(sl_tune *tune)
{
    sl_status status = SL_OK;
    if (tune->entry_count == 0)
        SL_TRY(fail_nothing_fits(tune));
    for (int i = 0; i < tune->entry_count; i++)
        SL_TRY(search_better(tune, &tune->entries[i]));
done:
    return status;
}

sl_status sl_tune_time_entries(sl_tune *tune)
{
    sl_status status = SL_OK;
    for (int i = 0; i < tune->entry_count; i++)
        SL_TRY(time_again(tune, &tune->entries[i]));
done:
    return status;
}

sl_status sl_tune_rank_entries(sl_tune *tune)
{
    sl_status status = SL_OK;
    qsort(tune->entries, (size_t)tune->entry_count, sizeof *tune->entries, by_time);
    while (tune->entry_count > tune->top)
        sl_schedule_destroy(tune->entries[--tune->entry_count].schedule);
    SL_TRY(explain_best(tune, &tune->entries[0]));
    for (int i = 1; i < tune->entry_count; i++)
        SL_TRY(explain_worse(tune, &tune->entries[i]));
done:
    return status;
}
