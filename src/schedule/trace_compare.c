/* A step of a trace beside what the simulator makes of it. */
#include "schedule/trace_read.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

/* The items of one step, in their order. */
static sl_status select_step(const sl_ran_list *all, int64_t step, sl_ran_list *out)
{
    sl_status status = SL_OK;
    *out = (sl_ran_list){ .ranks = all->ranks, .microbatches = all->microbatches };
    SL_TRY(SL_NEW_ARRAY(out->items, all->count));
    for (size_t i = 0; i < all->count; i++) {
        if (all->items[i].step == step)
            out->items[out->count++] = all->items[i];
    }
done:
    return status;
}

/* Mean times in milliseconds of every stage's phases over all steps of the file. */
static sl_status find_costs(const sl_ran_list *all, int stages, sl_stage_cost **out)
{
    sl_status status = SL_OK;
    sl_stage_cost *costs = NULL;
    double *sums = NULL; /* [stage][kind] time, then [stage][kind] times; kinds F I W B */
    int cells = stages * 4;
    SL_TRY(SL_NEW_ARRAY(costs, stages));
    SL_TRY(SL_NEW_ARRAY(sums, 2 * cells));
    for (size_t i = 0; i < all->count; i++) {
        const sl_ran_action *ran = &all->items[i];
        if (ran->action.kind > SL_KIND_B || ran->action.stage >= stages)
            continue;
        sums[ran->action.stage * 4 + ran->action.kind] += (ran->end - ran->start) * 1e-3;
        sums[cells + ran->action.stage * 4 + ran->action.kind] += 1;
    }
    for (int s = 0; s < stages; s++) {
        double *fields[] = { &costs[s].f, &costs[s].i, &costs[s].w, &costs[s].b };
        for (int kind = 0; kind < 4; kind++) {
            double count = sums[cells + s * 4 + kind];
            *fields[kind] = count > 0 ? sums[s * 4 + kind] / count : 0;
        }
        costs[s].activation = 1;
        costs[s].release = 0.5;
    }
    *out = costs;
    costs = NULL;
done:
    sl_free(costs);
    sl_free(sums);
    return status;
}

/* What was measured of a step, and what the simulator says; the schedule is that of the step. */
typedef struct step_views {
    sl_ran_list list;
    sl_schedule *schedule;
    sl_timeline *measured, *simulated;
} step_views;

static void step_views_free(step_views *views)
{
    sl_timeline_destroy(views->measured);
    sl_timeline_destroy(views->simulated);
    sl_schedule_destroy(views->schedule);
    sl_free(views->list.items);
    *views = (step_views){ 0 };
}

/* Fails with SL_ERR_SCHEDULE if the step is not whole. */
static sl_status view_step(const sl_ran_list *all, int64_t step, step_views *out)
{
    sl_status status = SL_OK;
    step_views views = { 0 };
    sl_stage_cost *stages = NULL;
    sl_costs costs;
    sl_costs_init(&costs);
    SL_TRY(select_step(all, step, &views.list));
    if (views.list.count == 0)
        SL_TRY(sl_fail(SL_ERR_SCHEDULE, "there is no step %" PRId64 " in the trace", step));
    SL_TRY(sl_trace_schedule(&views.list, &views.schedule));
    SL_TRY(sl_schedule_check(views.schedule, NULL, NULL));
    SL_TRY(find_costs(all, sl_schedule_stages(views.schedule), &stages));
    costs.stages = stages;
    SL_TRY(sl_timeline_create(views.schedule, &costs, &views.measured));
    sl_trace_fill(&views.list, views.measured);
    SL_TRY(sl_schedule_simulate(views.schedule, &costs, NULL, 0, &views.simulated));
    *out = views;
    views = (step_views){ 0 };
done:
    step_views_free(&views);
    sl_free(stages);
    return status;
}

/* The wanted step, or the last one that is whole: the newest may be cut short, the oldest overwritten. */
static sl_status find_step(const sl_ran_list *all, int64_t *step, step_views *out)
{
    int64_t first = all->items[0].step, last = first;
    for (size_t i = 0; i < all->count; i++) {
        first = all->items[i].step < first ? all->items[i].step : first;
        last = all->items[i].step > last ? all->items[i].step : last;
    }
    if (*step >= 0)
        return view_step(all, *step, out);
    for (*step = last; *step >= first; (*step)--) {
        sl_status status = view_step(all, *step, out);
        if (status != SL_ERR_SCHEDULE)
            return status;
    }
    return sl_fail(SL_ERR_SCHEDULE, "no step of the trace is whole");
}

/* Two rows a rank: the measured one and the simulated one. */
static sl_status interleave(const step_views *views, sl_schedule **schedule, sl_timeline **out)
{
    sl_status status = SL_OK;
    sl_schedule_builder *builder = NULL;
    sl_schedule *both = NULL;
    sl_timeline *timeline = NULL;
    sl_costs costs;
    int ranks = sl_schedule_ranks(views->schedule);
    sl_costs_init(&costs);
    SL_TRY(sl_schedule_builder_create(2 * ranks, &builder));
    for (int row = 0; row < 2 * ranks; row++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(views->schedule, row / 2, &count);
        for (int64_t i = 0; i < count; i++)
            SL_TRY(sl_schedule_builder_add(builder, row, actions[i]));
    }
    SL_TRY(sl_schedule_builder_finish(builder, &both));
    SL_TRY(sl_timeline_create(both, &costs, &timeline));
    for (int row = 0; row < 2 * ranks; row++) {
        const sl_timeline *from = row % 2 ? views->simulated : views->measured;
        int64_t count = 0;
        sl_schedule_actions(views->schedule, row / 2, &count);
        memcpy(&timeline->spans[timeline->first[row]], sl_timeline_spans(from, row / 2),
               (size_t)count * sizeof *timeline->spans);
        if (from->makespan > timeline->makespan)
            timeline->makespan = from->makespan;
    }
    for (int row = 0; row < 2 * ranks; row++) /* so that each row's bubble is that of its own time */
        timeline->busy[row] =
            timeline->makespan * (1 - sl_timeline_bubble(row % 2 ? views->simulated : views->measured, row / 2));
    sl_timeline_find_peaks(timeline);
    *schedule = both;
    *out = timeline;
    both = NULL;
    timeline = NULL;
done:
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(both);
    sl_schedule_builder_destroy(builder);
    return status;
}

sl_status sl_timeline_compare_trace(const char *path, int64_t step, sl_schedule **schedule, sl_timeline **out,
                                    sl_comparison *figures)
{
    sl_status status = SL_OK;
    sl_ran_list all = { .count = 0 };
    step_views views = { 0 };
    SL_TRY(sl_trace_read(path, &all));
    status = find_step(&all, &step, &views);
    if (status != SL_OK) {
        sl_fail_context(status, "%s", path);
        goto done;
    }
    SL_TRY(interleave(&views, schedule, out));
    if (figures)
        *figures = (sl_comparison){ .step = step,
                                    .measured = sl_timeline_makespan(views.measured),
                                    .simulated = sl_timeline_makespan(views.simulated),
                                    .measured_bubble = sl_timeline_bubble(views.measured, -1),
                                    .simulated_bubble = sl_timeline_bubble(views.simulated, -1) };
done:
    step_views_free(&views);
    sl_free(all.items);
    return status;
}
