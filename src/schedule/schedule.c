/* Schedules as data: making them from lists of actions and asking them. */
#include "schedule/schedule.h"

sl_status sl_action_list_grow(sl_action_list *list)
{
    return SL_GROW(list->actions, &list->capacity, list->count + 1);
}

sl_status sl_action_list_reserve(sl_action_list *list, size_t capacity)
{
    if (capacity <= list->capacity)
        return SL_OK;
    sl_status status = sl_realloc((void **)&list->actions, capacity, sizeof *list->actions);
    if (status == SL_OK)
        list->capacity = capacity;
    return status;
}

static void lists_free(sl_action_list *lists, int ranks)
{
    for (int rank = 0; lists && rank < ranks; rank++)
        sl_free(lists[rank].actions);
    sl_free(lists);
}

void sl_schedule_destroy(sl_schedule *schedule)
{
    if (!schedule)
        return;
    lists_free(schedule->lists, schedule->ranks);
    sl_free(schedule->rank_of);
    sl_free(schedule->checked);
    sl_free(schedule);
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* Reads off the lists how many stages and microbatches there are and which kinds. */
static void schedule_measure(sl_schedule *schedule)
{
    int stage = -1;
    int microbatch = -1;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action_list *list = &schedule->lists[rank];
        schedule->size += (int64_t)list->count;
        for (size_t i = 0; i < list->count; i++) {
            const sl_action *action = &list->actions[i];
            stage = larger(stage, larger(action->stage, action->b_stage)); /* b_stage is 0 if it means nothing */
            microbatch = larger(microbatch, larger(action->microbatch, action->b_microbatch));
            schedule->kinds |= 1u << action->kind;
        }
    }
    schedule->stages = stage + 1;
    schedule->microbatches = microbatch + 1;
}

static void schedule_place(sl_schedule *schedule)
{
    for (int stage = 0; stage < schedule->stages; stage++)
        schedule->rank_of[stage] = -1;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action_list *list = &schedule->lists[rank];
        for (size_t i = 0; i < list->count; i++) {
            sl_action action = list->actions[i];
            if (schedule->rank_of[action.stage] < 0)
                schedule->rank_of[action.stage] = rank;
            if (sl_action_is(action, SL_KIND_OVERLAP_F_B) && schedule->rank_of[action.b_stage] < 0)
                schedule->rank_of[action.b_stage] = rank;
        }
    }
}

/* Gives back what the lists reserved in vain. Failing to shrink is no failure. */
static void lists_shrink(sl_action_list *lists, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        sl_action_list *list = &lists[rank];
        if (list->count < list->capacity &&
            sl_realloc((void **)&list->actions, list->count, sizeof *list->actions) == SL_OK)
            list->capacity = list->count;
    }
}

/* ---- Builder --------------------------------------------------------------------------------- */

sl_status sl_schedule_builder_create(int ranks, sl_schedule_builder **out)
{
    sl_status status = SL_OK;
    sl_schedule_builder *builder = NULL;

    if (ranks < 1 || ranks > SL_MAX_RANKS)
        return sl_fail(SL_ERR_ARGUMENT, "a schedule has 1 to %d ranks, not %d", SL_MAX_RANKS, ranks);
    SL_TRY(SL_NEW(builder));
    builder->ranks = ranks;
    SL_TRY(SL_NEW_ARRAY(builder->lists, ranks));
    builder->capacity = (size_t)ranks;

    *out = builder;
    builder = NULL;
done:
    sl_schedule_builder_destroy(builder);
    return status;
}

void sl_schedule_builder_destroy(sl_schedule_builder *builder)
{
    if (!builder)
        return;
    lists_free(builder->lists, builder->ranks);
    sl_free(builder);
}

static bool part_in_range(int stage, int64_t microbatch)
{
    return stage < SL_MAX_STAGES && microbatch >= 0 && microbatch < SL_MAX_MICROBATCHES;
}

static bool action_in_range(sl_action action)
{
    if (action.kind >= SL_KIND_COUNT)
        return false;
    if (sl_kind_class_of((sl_kind)action.kind) == SL_CLASS_WEIGHTS)
        return action.stage < SL_MAX_STAGES;
    if (action.kind == SL_KIND_OVERLAP_F_B && !part_in_range(action.b_stage, action.b_microbatch))
        return false;
    return part_in_range(action.stage, action.microbatch);
}

sl_status sl_schedule_builder_add(sl_schedule_builder *builder, int rank, sl_action action)
{
    char text[SL_ACTION_TEXT_SIZE];
    if (rank < 0 || rank >= builder->ranks)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d: the schedule has %d ranks", rank, builder->ranks);
    if (!action_in_range(action))
        return sl_fail(SL_ERR_ARGUMENT, "rank %d: %s is out of range", rank, sl_action_text(action, text, sizeof text));
    /* The parts that mean nothing have one value: ranks compare schedules by a hash of their bytes. */
    if (action.kind == SL_KIND_OVERLAP_F_B)
        action = sl_action_overlap(action.stage, action.microbatch, action.b_stage, action.b_microbatch);
    else
        action = sl_make((sl_kind)action.kind, action.stage, action.microbatch);
    return sl_action_list_push(&builder->lists[rank], action);
}

sl_status sl_schedule_builder_add_rank(sl_schedule_builder *builder, sl_action_list *list)
{
    if (builder->ranks == SL_MAX_RANKS)
        return sl_fail(SL_ERR_FORMAT, "a schedule has at most %d ranks", SL_MAX_RANKS);
    sl_status status = SL_GROW(builder->lists, &builder->capacity, builder->ranks + 1);
    if (status != SL_OK)
        return status;
    builder->lists[builder->ranks++] = *list;
    *list = (sl_action_list){ 0 };
    return SL_OK;
}

sl_status sl_schedule_builder_finish(sl_schedule_builder *builder, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    sl_action_list *fresh = NULL;
    int *rank_of = NULL;

    SL_TRY(SL_NEW(schedule));
    SL_TRY(SL_NEW(schedule->checked));
    SL_TRY(SL_NEW_ARRAY(fresh, builder->ranks));
    schedule->ranks = builder->ranks;
    schedule->lists = builder->lists;
    schedule_measure(schedule);
    status = SL_NEW_ARRAY(rank_of, schedule->stages);
    if (status != SL_OK) {
        schedule->lists = NULL; /* still the builder's */
        goto done;
    }
    schedule->rank_of = rank_of;
    schedule_place(schedule);
    lists_shrink(schedule->lists, schedule->ranks);
    builder->lists = fresh;
    builder->capacity = (size_t)builder->ranks;
    fresh = NULL;

    *out = schedule;
    schedule = NULL;
done:
    sl_free(fresh);
    sl_schedule_destroy(schedule);
    return status;
}

sl_status sl_schedule_map(const sl_schedule *in, sl_rank_pass pass, void *user, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_schedule_builder *builder = NULL;

    SL_TRY(sl_schedule_builder_create(in->ranks, &builder));
    for (int rank = 0; rank < in->ranks; rank++) {
        SL_TRY(sl_action_list_reserve(&builder->lists[rank], in->lists[rank].count));
        SL_TRY(pass(in, rank, user, &builder->lists[rank]));
    }
    SL_TRY(sl_schedule_builder_finish(builder, out));
done:
    sl_schedule_builder_destroy(builder);
    return status;
}

/* ---- Questions ------------------------------------------------------------------------------- */

int sl_schedule_ranks(const sl_schedule *schedule)
{
    return schedule->ranks;
}

int sl_schedule_stages(const sl_schedule *schedule)
{
    return schedule->stages;
}

int sl_schedule_microbatches(const sl_schedule *schedule)
{
    return schedule->microbatches;
}

int64_t sl_schedule_size(const sl_schedule *schedule)
{
    return schedule->size;
}

const sl_action *sl_schedule_actions(const sl_schedule *schedule, int rank, int64_t *count)
{
    const sl_action_list *list = &schedule->lists[rank];
    if (count)
        *count = (int64_t)list->count;
    return list->actions;
}

int sl_schedule_rank_of(const sl_schedule *schedule, int stage)
{
    return stage >= 0 && stage < schedule->stages ? schedule->rank_of[stage] : -1;
}

bool sl_schedule_has_kind(const sl_schedule *schedule, sl_kind kind)
{
    return (unsigned)kind < SL_KIND_COUNT && (schedule->kinds >> kind & 1u) != 0;
}

bool sl_schedule_has_messages(const sl_schedule *schedule)
{
    return sl_schedule_has_kind(schedule, SL_KIND_SEND_F) || sl_schedule_has_kind(schedule, SL_KIND_RECV_F) ||
           sl_schedule_has_kind(schedule, SL_KIND_SEND_B) || sl_schedule_has_kind(schedule, SL_KIND_RECV_B);
}

bool sl_schedule_has_backward(const sl_schedule *schedule)
{
    return sl_schedule_has_kind(schedule, SL_KIND_I) || sl_schedule_has_kind(schedule, SL_KIND_W) ||
           sl_schedule_has_kind(schedule, SL_KIND_B) || sl_schedule_has_kind(schedule, SL_KIND_OVERLAP_F_B);
}

bool sl_schedule_equal(const sl_schedule *a, const sl_schedule *b)
{
    if (a->ranks != b->ranks || a->size != b->size)
        return false;
    for (int rank = 0; rank < a->ranks; rank++) {
        const sl_action_list *left = &a->lists[rank];
        const sl_action_list *right = &b->lists[rank];
        if (left->count != right->count)
            return false;
        for (size_t i = 0; i < left->count; i++) {
            if (!sl_action_equal(left->actions[i], right->actions[i]))
                return false;
        }
    }
    return true;
}
