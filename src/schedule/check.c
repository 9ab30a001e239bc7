/* The checker: the order of its parts, and the whole schedule's shape. */
#include "schedule/check.h"

#include <inttypes.h>
#include <string.h>

bool sl_violate(sl_violation *violation, int rank, int64_t cell, const char *format, ...)
{
    va_list args;
    violation->rank = rank;
    violation->cell = cell;
    va_start(args, format);
    vsnprintf(violation->reason, sizeof violation->reason, format, args);
    va_end(args);
    return false;
}

bool sl_violate_action(sl_violation *violation, int rank, int64_t cell, sl_action action, const char *reason)
{
    sl_action_text(action, violation->text, sizeof violation->text);
    return sl_violate(violation, rank, cell, "%s", reason);
}

/* The first cell, ranks in order, whose action has a stage or microbatch at or above the limit. */
static bool find_beyond(const sl_schedule *schedule, int stage, int microbatch, int *rank, int64_t *cell)
{
    for (int r = 0; r < schedule->ranks; r++) {
        const sl_action_list *list = &schedule->lists[r];
        for (size_t i = 0; i < list->count; i++) {
            sl_action a = list->actions[i];
            if (a.stage >= stage || a.b_stage >= stage || a.microbatch >= microbatch || a.b_microbatch >= microbatch) {
                *rank = r;
                *cell = (int64_t)i;
                return true;
            }
        }
    }
    return false;
}

/* F of each stage, OVERLAP_F_B included. */
static void count_forwards(const sl_schedule *schedule, int64_t *counts)
{
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action_list *list = &schedule->lists[rank];
        for (size_t i = 0; i < list->count; i++) {
            if (sl_action_is(list->actions[i], SL_KIND_F) || sl_action_is(list->actions[i], SL_KIND_OVERLAP_F_B))
                counts[list->actions[i].stage]++;
        }
    }
}

/* The lowest microbatch without an F in a stage that has `count` of them: one of the first count + 1. */
static sl_status find_missing(const sl_schedule *schedule, int stage, int64_t count, int *out)
{
    uint8_t *seen = NULL;
    sl_status status = SL_NEW_ARRAY(seen, count + 1);
    if (status != SL_OK)
        return status;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action_list *list = &schedule->lists[rank];
        for (size_t i = 0; i < list->count; i++) {
            sl_action a = list->actions[i];
            bool forward = sl_action_is(a, SL_KIND_F) || sl_action_is(a, SL_KIND_OVERLAP_F_B);
            if (forward && a.stage == stage && a.microbatch <= count)
                seen[a.microbatch] = 1;
        }
    }
    int microbatch = 0;
    while (seen[microbatch])
        microbatch++;
    sl_free(seen);
    *out = microbatch;
    return SL_OK;
}

/* Some stage has fewer F than there are microbatches: say which and what makes them so many. */
static sl_status report_gap(const sl_schedule *schedule, sl_violation *violation)
{
    sl_status status = SL_OK;
    int64_t *counts = NULL;
    int stage = 0;
    int missing;
    int rank = -1;
    int64_t cell = -1;
    char highest[SL_ACTION_TEXT_SIZE];

    SL_TRY(SL_NEW_ARRAY(counts, schedule->stages));
    count_forwards(schedule, counts);
    while (counts[stage] >= schedule->microbatches)
        stage++;
    SL_TRY(find_missing(schedule, stage, counts[stage], &missing));
    find_beyond(schedule, SL_MAX_STAGES, schedule->microbatches - 1, &rank, &cell);
    sl_action_text(schedule->lists[rank].actions[cell], highest, sizeof highest);
    int home = schedule->rank_of[stage];
    sl_action_text(sl_make(SL_KIND_F, stage, missing), violation->text, sizeof violation->text);
    sl_violate(violation, home, (int64_t)schedule->lists[home].count,
               "%s is missing (%d microbatches by %s at rank %d, cell %" PRId64 ")", violation->text,
               schedule->microbatches, highest, rank, cell);
done:
    sl_free(counts);
    return status;
}

/* Stages and microbatches without gaps, no rank empty, and so few microbatches that a byte for each (stage,
 * microbatch) is never more than the actions themselves take. *valid is the answer; violation is set if it is false. */
static sl_status check_shape(const sl_schedule *schedule, bool *valid, sl_violation *violation)
{
    *valid = true;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        if (schedule->lists[rank].count == 0) {
            *valid = sl_violate(violation, rank, 0, "the rank has no actions");
            return SL_OK;
        }
    }
    for (int stage = 0; stage < schedule->stages; stage++) {
        int rank;
        int64_t cell;
        if (schedule->rank_of[stage] < 0 && find_beyond(schedule, stage + 1, INT32_MAX, &rank, &cell)) {
            sl_action_text(schedule->lists[rank].actions[cell], violation->text, sizeof violation->text);
            *valid = sl_violate(violation, rank, cell, "stage %d has no actions on any rank", stage);
            return SL_OK;
        }
    }
    if (schedule->microbatches == 0) {
        *valid = sl_violate_action(violation, 0, 0, schedule->lists[0].actions[0], "there is no F in the schedule");
        return SL_OK;
    }
    if ((int64_t)schedule->stages * schedule->microbatches > schedule->size) {
        *valid = false;
        return report_gap(schedule, violation);
    }
    return SL_OK;
}

/* Hands the violation out. */
static sl_status refuse(const sl_violation *found, sl_violation *violation)
{
    if (violation)
        *violation = *found;
    return sl_fail(SL_ERR_SCHEDULE, "rank %d, cell %" PRId64 "%s%s: %s", found->rank, found->cell,
                   found->text[0] ? ", " : "", found->text, found->reason);
}

sl_status sl_check_before_walk(const sl_schedule *schedule, const sl_links *links, sl_violation *violation)
{
    sl_status status = SL_OK;
    sl_violation found = { .rank = -1, .cell = -1 };
    bool valid = true;

    if (links->neighbors && atomic_load_explicit(schedule->checked, memory_order_relaxed))
        return SL_OK;
    SL_TRY(check_shape(schedule, &valid, &found));
    if (valid)
        SL_TRY(sl_check_ranks(schedule, links, &valid, &found));
    if (valid)
        SL_TRY(sl_check_pairs(schedule, links, &valid, &found));
    if (!valid)
        status = refuse(&found, violation);
    else if (links->neighbors)
        atomic_store_explicit(schedule->checked, true, memory_order_relaxed);
done:
    return status;
}

sl_status sl_check_after_walk(const sl_walk *walk, sl_violation *violation)
{
    sl_violation found = { .rank = -1, .cell = -1 };
    return sl_check_progress(walk, &found) ? SL_OK : refuse(&found, violation);
}

sl_status sl_schedule_check(const sl_schedule *schedule, const sl_check_options *options, sl_violation *violation)
{
    sl_status status = SL_OK;
    static const sl_check_options defaults;
    sl_links links = { 0 };
    sl_walk walk = { 0 };

    options = options ? options : &defaults;
    if (options->limit_links && options->link_capacity < 0)
        return sl_fail(SL_ERR_ARGUMENT, "link capacity %d: 0 or more", options->link_capacity);
    SL_TRY(sl_links_create(schedule, options->edges, options->edge_count, &links));
    SL_TRY(sl_check_before_walk(schedule, &links, violation));
    SL_TRY(sl_walk_create(schedule, &links, options->limit_links ? options->link_capacity : -1, &walk));
    sl_walk_run(&walk, NULL, NULL);
    SL_TRY(sl_check_after_walk(&walk, violation));
done:
    sl_walk_destroy(&walk);
    sl_links_destroy(&links);
    return status;
}
