/* Timelines: what the simulator found, and the usage of memory that follows from it. */
#include "schedule/timeline.h"

#include <string.h>

void sl_timeline_destroy(sl_timeline *timeline)
{
    if (!timeline)
        return;
    sl_free(timeline->stages);
    sl_free(timeline->spans);
    sl_free(timeline->first);
    sl_free(timeline->busy);
    sl_free(timeline->peak_slots);
    sl_free(timeline->peak_memory);
    sl_free(timeline);
}

sl_status sl_timeline_create(const sl_schedule *schedule, const sl_costs *costs, sl_timeline **out)
{
    sl_status status = SL_OK;
    sl_timeline *timeline = NULL;

    SL_TRY(SL_NEW(timeline));
    timeline->schedule = schedule;
    timeline->stage = costs->stage;
    if (costs->stages) {
        SL_TRY(SL_NEW_ARRAY(timeline->stages, schedule->stages));
        memcpy(timeline->stages, costs->stages, (size_t)schedule->stages * sizeof *timeline->stages);
    }
    SL_TRY(SL_NEW_ARRAY(timeline->spans, schedule->size));
    SL_TRY(SL_NEW_ARRAY(timeline->first, schedule->ranks));
    SL_TRY(SL_NEW_ARRAY(timeline->busy, schedule->ranks));
    SL_TRY(SL_NEW_ARRAY(timeline->peak_slots, schedule->ranks));
    SL_TRY(SL_NEW_ARRAY(timeline->peak_memory, schedule->ranks));
    for (int rank = 1; rank < schedule->ranks; rank++)
        timeline->first[rank] = timeline->first[rank - 1] + (int64_t)schedule->lists[rank - 1].count;

    *out = timeline;
    timeline = NULL;
done:
    sl_timeline_destroy(timeline);
    return status;
}

const sl_schedule *sl_timeline_schedule(const sl_timeline *timeline)
{
    return timeline->schedule;
}

const sl_span *sl_timeline_spans(const sl_timeline *timeline, int rank)
{
    return &timeline->spans[timeline->first[rank]];
}

double sl_timeline_makespan(const sl_timeline *timeline)
{
    return timeline->makespan;
}

double sl_timeline_bubble(const sl_timeline *timeline, int rank)
{
    if (timeline->makespan <= 0)
        return 0;
    if (rank >= 0)
        return 1 - timeline->busy[rank] / timeline->makespan;
    double sum = 0;
    for (int r = 0; r < timeline->schedule->ranks; r++)
        sum += 1 - timeline->busy[r] / timeline->makespan;
    return sum / timeline->schedule->ranks;
}

int sl_timeline_peak_slots(const sl_timeline *timeline, int rank)
{
    return timeline->peak_slots[rank];
}

double sl_timeline_peak_memory(const sl_timeline *timeline, int rank)
{
    return timeline->peak_memory[rank];
}

/* ---- Usage ----------------------------------------------------------------------------------- */

/* What a compute action does to its rank's usage when it ends. */
static void end_part(const sl_timeline *timeline, sl_action part, bool backward, sl_usage *usage)
{
    const sl_stage_cost *cost = sl_timeline_cost(timeline, part.stage);
    switch (part.kind) {
    case SL_KIND_F:
        if (backward)
            return; /* kept for the backward */
        usage->memory -= cost->activation;
        usage->slots--;
        return;
    case SL_KIND_I:
        usage->memory -= cost->activation * cost->release;
        return;
    case SL_KIND_W:
        usage->memory -= cost->activation * (1 - cost->release);
        usage->slots--;
        return;
    default:
        usage->memory -= cost->activation;
        usage->slots--;
    }
}

void sl_timeline_usage(const sl_timeline *timeline, int rank, bool (*callback)(void *user, sl_usage usage), void *user)
{
    const sl_action_list *list = &timeline->schedule->lists[rank];
    const sl_span *spans = sl_timeline_spans(timeline, rank);
    bool backward = sl_schedule_has_backward(timeline->schedule);
    sl_usage usage = { 0 };
    /* Compute actions follow each other in time, so the order of the list is the order of the changes. */
    for (size_t i = 0; i < list->count; i++) {
        sl_action parts[2];
        int count = sl_parts(list->actions[i], parts);
        if (count > 0 && parts[0].kind == SL_KIND_F) {
            usage.memory += sl_timeline_cost(timeline, parts[0].stage)->activation;
            usage.slots++;
            usage.time = spans[i].start;
            if (!callback(user, usage))
                return;
        }
        sl_usage before = usage;
        for (int p = 0; p < count; p++)
            end_part(timeline, parts[p], backward, &usage);
        usage.time = spans[i].end;
        bool changed = usage.slots != before.slots || usage.memory < before.memory;
        if (changed && !callback(user, usage))
            return;
    }
}

typedef struct peaks {
    int slots;
    double memory;
} peaks;

static bool raise_peaks(void *user, sl_usage usage)
{
    peaks *found = user;
    found->slots = usage.slots > found->slots ? usage.slots : found->slots;
    found->memory = usage.memory > found->memory ? usage.memory : found->memory;
    return true;
}

void sl_timeline_find_peaks(sl_timeline *timeline)
{
    for (int rank = 0; rank < timeline->schedule->ranks; rank++) {
        peaks found = { 0 };
        sl_timeline_usage(timeline, rank, raise_peaks, &found);
        timeline->peak_slots[rank] = found.slots;
        timeline->peak_memory[rank] = found.memory;
    }
}
