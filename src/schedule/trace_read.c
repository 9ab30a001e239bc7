/* A timeline from a Chrome trace: what was measured, drawn like what was simulated. */
#include "schedule/trace_read.h"

#include "base/alloc.h"
#include "base/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static int by_rank_then_time(const void *a, const void *b)
{
    const sl_ran_action *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Appends the event if it is a compute action. */
static sl_status take_event(const char *path, const json_t *event, sl_ran_list *list)
{
    sl_status status = SL_OK;
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *start = json_object_get(event, "ts"), *length = json_object_get(event, "dur");
    const json_t *rank = json_object_get(event, "pid");
    sl_ran_action ran = { .step = json_integer_value(json_object_get(json_object_get(event, "args"), "step")) };
    if (!phase || strcmp(phase, "X") != 0 || !name || sl_action_parse(name, strlen(name), &ran.action) != SL_OK ||
        sl_kind_class_of((sl_kind)ran.action.kind) != SL_CLASS_COMPUTE)
        return SL_OK;
    if (!json_is_number(start) || !json_is_number(length) || !json_is_integer(rank) || json_integer_value(rank) < 0 ||
        json_integer_value(rank) >= SL_MAX_RANKS)
        return sl_fail(SL_ERR_FORMAT, "%s: the event %s lacks its time or its rank", path, name);
    ran.rank = (int)json_integer_value(rank);
    ran.start = json_number_value(start);
    ran.end = ran.start + json_number_value(length);
    SL_TRY(SL_GROW(list->items, &list->capacity, list->count + 1));
    list->items[list->count++] = ran;
    list->ranks = ran.rank >= list->ranks ? ran.rank + 1 : list->ranks;
    sl_action parts[2];
    int count = sl_action_parts(ran.action, parts);
    for (int i = 0; i < count; i++) {
        if (parts[i].microbatch >= list->microbatches)
            list->microbatches = parts[i].microbatch + 1;
    }
done:
    return status;
}

sl_status sl_trace_read(const char *path, sl_ran_list *list)
{
    sl_status status = SL_OK;
    sl_file_bytes file = { 0 };
    json_error_t error;
    json_t *root = NULL;
    SL_TRY(sl_file_read(path, &file));
    root = json_loadb(file.data ? (const char *)file.data : "", file.size, 0, &error);
    if (!root)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text));
    const json_t *events = json_is_array(root) ? root : json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++)
        SL_TRY(take_event(path, json_array_get(events, i), list));
    if (list->count == 0)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: a Chrome trace of a schedule is expected; there is no action in it", path));
    qsort(list->items, list->count, sizeof *list->items, by_rank_then_time);
done:
    json_decref(root);
    sl_file_bytes_free(&file);
    return status;
}

/* Numbers the steps from 0 and moves their microbatches behind those of the steps before. */
static sl_status unfold_steps(const char *path, sl_ran_list *list)
{
    int64_t first = list->items[0].step;
    for (size_t i = 1; i < list->count; i++)
        first = list->items[i].step < first ? list->items[i].step : first;
    for (size_t i = 0; i < list->count; i++) {
        int64_t number = (int64_t)((uint64_t)list->items[i].step - (uint64_t)first);
        if (number < 0 || number >= SL_MAX_MICROBATCHES / list->microbatches)
            return sl_fail(SL_ERR_FORMAT, "%s: too many steps between its first and its last", path);
        int64_t offset = number * list->microbatches;
        sl_action *action = &list->items[i].action;
        action->microbatch += (int32_t)offset;
        if (action->kind == SL_KIND_OVERLAP_F_B)
            action->b_microbatch += (int32_t)offset;
    }
    return SL_OK;
}

sl_status sl_trace_schedule(const sl_ran_list *list, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_schedule_builder *builder = NULL;
    SL_TRY(sl_schedule_builder_create(list->ranks, &builder));
    for (size_t i = 0; i < list->count; i++)
        SL_TRY(sl_schedule_builder_add(builder, list->items[i].rank, list->items[i].action));
    SL_TRY(sl_schedule_builder_finish(builder, out));
done:
    sl_schedule_builder_destroy(builder);
    return status;
}

void sl_trace_fill(const sl_ran_list *list, sl_timeline *timeline)
{
    double origin = list->items[0].start;
    for (size_t i = 0; i < list->count; i++)
        origin = list->items[i].start < origin ? list->items[i].start : origin;
    for (size_t i = 0; i < list->count; i++) {
        const sl_ran_action *ran = &list->items[i];
        sl_span *span = &timeline->spans[i];
        *span = (sl_span){ .start = (ran->start - origin) * 1e-3, .end = (ran->end - origin) * 1e-3 };
        timeline->busy[ran->rank] += span->end - span->start;
        if (span->end > timeline->makespan)
            timeline->makespan = span->end;
    }
    sl_timeline_find_peaks(timeline);
}

sl_status sl_timeline_load_trace(const char *path, sl_schedule **schedule, sl_timeline **out)
{
    sl_status status = SL_OK;
    sl_ran_list list = { .count = 0 };
    sl_schedule *built = NULL;
    sl_timeline *timeline = NULL;
    sl_costs costs;
    sl_costs_init(&costs);
    SL_TRY(sl_trace_read(path, &list));
    SL_TRY(unfold_steps(path, &list));
    SL_TRY(sl_trace_schedule(&list, &built));
    SL_TRY(sl_timeline_create(built, &costs, &timeline));
    sl_trace_fill(&list, timeline);
    *schedule = built;
    *out = timeline;
    built = NULL;
done:
    sl_schedule_destroy(built);
    sl_free(list.items);
    return status;
}
