/* What `sluice bench pipeline` predicts: the simulation of a case from measured costs. */
#include "pipeline_measure.h"

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Seconds of all ranks together in which phases run, in one step. */
static double sum_work(const sl_schedule *schedule, const sl_stage_cost *stages)
{
    double work = 0;
    for (int r = 0; r < sl_schedule_ranks(schedule); r++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(schedule, r, &count);
        for (int64_t i = 0; i < count; i++) {
            sl_action parts[2];
            int n = sl_action_parts(actions[i], parts);
            for (int k = 0; k < n; k++) {
                const sl_stage_cost *cost = &stages[parts[k].stage];
                work += parts[k].kind == SL_KIND_F   ? cost->f
                        : parts[k].kind == SL_KIND_I ? cost->i
                        : parts[k].kind == SL_KIND_W ? cost->w
                                                     : cost->b;
            }
        }
    }
    return work;
}

/* Time of the schedule if every phase took its mean time and messages none. Ranks that share devices slow each other
 * down: the work on a device adds up, or they take turns. */
static sl_status simulate(const sl_schedule *schedule, pipeline_costs *costs, const pipeline_case *each,
                          double *seconds)
{
    sl_status status = SL_OK;
    int ranks = sl_schedule_ranks(schedule);
    double *ends = NULL, *hops = NULL;
    SL_TRY(SL_NEW_ARRAY(ends, ranks));
    SL_TRY(SL_NEW_ARRAY(hops, sl_schedule_stages(schedule)));
    const tune_stages stages = { .count = sl_schedule_stages(schedule), .costs = costs->stages, .hops = hops };
    SL_TRY(each->turns.slice > 0 ? sl_tune_take_turns(schedule, &stages, &each->turns, each->devices, ends)
                                 : sl_tune_share_cores(schedule, &stages, 1, each->devices, ends));
    *seconds = 0;
    for (int r = 0; r < ranks; r++)
        *seconds = fmax(*seconds, ends[r]);
done:
    sl_free(ends);
    sl_free(hops);
    return status;
}

static sl_status predict(const pipeline_options *options, const sl_schedule *schedule, pipeline_costs *costs,
                         pipeline_case *each)
{
    sl_status status = SL_OK;
    double makespan = 0, tokens = (double)(options->batch * options->seq);
    SL_TRY(simulate(schedule, costs, each, &makespan));
    double work = sum_work(schedule, costs->stages) / each->devices;
    double end = makespan + each->ties + costs->optimizer;
    if (each->turns.slice > 0) /* the optimizers, one after the other */
        end += (double)(each->ranks - each->devices) / each->devices * each->turns.hand_over;
    each->predicted_tokens_per_s = tokens / end;
    each->bubble = 1 - (work + costs->optimizer) * each->tokens_per_s / tokens;
    each->predicted_bubble = 1 - (work + costs->optimizer) / end;
done:
    return status;
}

/* Costs of the case's stages when nothing runs beside them: all on one rank, under schedules with the same phases. */
static sl_status measure_costs_alone(const pipeline_options *options, const pipeline_case *each,
                                     const sl_schedule *schedule, pipeline_costs *out)
{
    static const char *const names[] = { "Interleaved1F1B", "InterleavedZeroBubble" };
    sl_status status = SL_OK;
    pipeline_costs *found = NULL;
    SL_TRY(SL_NEW(found));
    for (int split = 0; split < 2; split++) {
        pipeline_case alone = { .ranks = 1, .stages_per_rank = each->stages, .threads = each->threads };
        bool is_used =
            split ? sl_schedule_has_kind(schedule, SL_KIND_I)
                  : sl_schedule_has_kind(schedule, SL_KIND_B) || sl_schedule_has_kind(schedule, SL_KIND_OVERLAP_F_B);
        if (!is_used)
            continue;
        snprintf(alone.schedule, sizeof alone.schedule, "%s", names[split]);
        SL_TRY(pipeline_measure(options, &alone, found));
        out->optimizer = found->optimizer;
        for (int s = 0; s < each->stages; s++) {
            sl_stage_cost *cost = &out->stages[s];
            cost->f = found->stages[s].f;
            *(split ? &cost->i : &cost->b) = split ? found->stages[s].i : found->stages[s].b;
            cost->w = found->stages[s].w;
        }
    }
done:
    sl_free(found);
    return status;
}

sl_status pipeline_measure_and_predict(const pipeline_options *options, const tune_turns *turns, pipeline_case *each)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    pipeline_costs *costs = NULL;
    const sl_generate_options generate = { .name = each->schedule,
                                           .ranks = each->ranks,
                                           .microbatches = options->microbatches,
                                           .stages_per_rank = each->stages_per_rank };
    bool traced = strcmp(options->device, "cpu") == 0; /* auto may be the processor, too */
    SL_TRY(SL_NEW(costs));
    SL_TRY(sl_schedule_generate(&generate, &schedule));
    SL_TRY(pipeline_measure(options, each, traced ? costs : NULL));
    if (each->stages > PIPELINE_MAX_STAGES)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%d stages are more than %d", each->stages, PIPELINE_MAX_STAGES));
    if (each->devices < each->ranks)
        each->turns = *turns;
    pipeline_case again = *each;
    if (each->is_host && !traced)
        SL_TRY(pipeline_measure(options, &again, costs));
    else if (!each->is_host)
        SL_TRY(measure_costs_alone(options, each, schedule, costs));
    SL_TRY(predict(options, schedule, costs, each));
done:
    sl_free(costs);
    sl_schedule_destroy(schedule);
    return status;
}
