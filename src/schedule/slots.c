/* Slots: how many microbatches are resident at once, read off the order. */
#include "schedule/schedule.h"

typedef struct slot_count {
    int now;
    int peak;
} slot_count;

static void change(slot_count *count, int by)
{
    count->now += by;
    count->peak = count->now > count->peak ? count->now : count->peak;
}

/* F takes a slot; W or B gives it back, and so does F itself if nothing follows it. */
static void count_part(sl_action part, bool backward, slot_count *rank, slot_count *stage)
{
    if (part.kind == SL_KIND_F) {
        change(rank, 1);
        change(stage, 1);
    }
    if (part.kind == SL_KIND_W || part.kind == SL_KIND_B || (part.kind == SL_KIND_F && !backward)) {
        change(rank, -1);
        change(stage, -1);
    }
}

sl_status sl_schedule_count_slots(const sl_schedule *schedule, int *per_rank, int *per_stage)
{
    slot_count *stages = NULL;
    sl_status status = SL_NEW_ARRAY(stages, schedule->stages);
    if (status != SL_OK)
        return status;
    bool backward = sl_schedule_has_backward(schedule);
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action_list *list = &schedule->lists[rank];
        slot_count total = { 0 };
        for (size_t i = 0; i < list->count; i++) {
            sl_action parts[2];
            for (int p = 0, count = sl_parts(list->actions[i], parts); p < count; p++)
                count_part(parts[p], backward, &total, &stages[parts[p].stage]);
        }
        if (per_rank)
            per_rank[rank] = total.peak;
    }
    for (int stage = 0; per_stage && stage < schedule->stages; stage++)
        per_stage[stage] = stages[stage].peak;
    sl_free(stages);
    return SL_OK;
}
