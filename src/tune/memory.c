/* Memory of a step, as estimated before anything is compiled: what ranks hold all the time, and activations. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <math.h>

/* The copy that a checkpoint is written from. */
static double snapshot_memory(const tune_setting *setting, const tune_stages *stages, const tune_candidate *candidate,
                              int rank)
{
    double bytes = 0;
    for (int chunk = 0; chunk < candidate->chunks; chunk++) {
        int s = sl_placement_stage(candidate->placement, candidate->pp, rank, chunk);
        bytes += stages->params[s] + stages->elements[s] * setting->state_bytes;
    }
    return bytes / (candidate->shard != SL_SHARD_NONE ? candidate->dp : 1);
}

double sl_tune_fixed_memory(const tune_setting *setting, const tune_stages *stages, const tune_candidate *candidate,
                            int rank)
{
    double params = 0, grads = 0, elements = 0, kernels = 0, scratch = 0, most_params = 0, most_grads = 0,
           dp = candidate->dp;
    bool full = candidate->shard == SL_SHARD_FULL, shares = candidate->shard != SL_SHARD_NONE;
    for (int chunk = 0; chunk < candidate->chunks; chunk++) {
        int s = sl_placement_stage(candidate->placement, candidate->pp, rank, chunk);
        params += stages->params[s];
        grads += stages->grads[s];
        elements += stages->elements[s];
        kernels += stages->kernels[s] * (double)candidate->microbatches;
        scratch = fmax(scratch, stages->scratch[s]);
        most_params = fmax(most_params, stages->params[s]);
        most_grads = fmax(most_grads, stages->grads[s]);
    }
    double state = elements * setting->state_bytes / (shares ? dp : 1);
    double snapshot = setting->own_memory ? 0 : snapshot_memory(setting, stages, candidate, rank);
    double parts = full ? (params + grads) / dp : 0;
    if (full && candidate->unsharded > 0)
        params = fmin(params, candidate->unsharded * most_params);
    if (full && candidate->summed > 0)
        grads = fmin(grads, candidate->summed * most_grads);
    return params + grads + parts + state + scratch + snapshot + setting->context + kernels * setting->launch;
}

double sl_tune_least_fixed_memory(const tune_setting *setting, const tune_stages *stages,
                                  const tune_candidate *candidate, int rank)
{
    tune_candidate shared = *candidate;
    double least = INFINITY;
    shared.unsharded = 1;
    shared.summed = 2;
    for (int shard = SL_SHARD_NONE; shard <= (candidate->dp > 1 ? SL_SHARD_FULL : SL_SHARD_NONE); shard++) {
        shared.shard = (sl_shard_mode)shard;
        least = fmin(least, sl_tune_fixed_memory(setting, stages, &shared, rank));
    }
    return least;
}

/* Stages of a rank whose gradients are there at once: those whose backward has begun and not ended, and one that is being
 * summed. */
static sl_status count_summed(const sl_schedule *schedule, int *out)
{
    sl_status status = SL_OK;
    int64_t *last = NULL; /* (stage) the rank's last backward of the stage */
    bool *begun = NULL;
    int most = 1;
    SL_TRY(SL_NEW_ARRAY(last, sl_schedule_stages(schedule)));
    SL_TRY(SL_NEW_ARRAY(begun, sl_schedule_stages(schedule)));
    for (int r = 0; r < sl_schedule_ranks(schedule); r++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(schedule, r, &count);
        sl_action parts[2];
        int held = 0;
        for (int64_t i = 0; i < count; i++) {
            for (int p = sl_action_parts(actions[i], parts) - 1; p >= 0; p--)
                last[parts[p].stage] = i;
        }
        for (int64_t i = 0; i < count; i++) {
            int ended = 0;
            for (int p = sl_action_parts(actions[i], parts) - 1; p >= 0; p--) {
                int stage = parts[p].stage;
                held += parts[p].kind != SL_KIND_F && !begun[stage];
                begun[stage] = begun[stage] || parts[p].kind != SL_KIND_F;
                ended += last[stage] == i;
            }
            most = held > most ? held : most;
            held -= ended;
        }
    }
    *out = most + 1;
done:
    sl_free(begun);
    sl_free(last);
    return status;
}

static void find_fullest(const tune_setting *setting, const tune_stages *stages, const sl_timeline *timeline,
                         tune_candidate *candidate)
{
    candidate->memory = 0;
    for (int r = 0; r < candidate->pp; r++) {
        double memory = sl_tune_fixed_memory(setting, stages, candidate, r) + sl_timeline_peak_memory(timeline, r);
        if (memory > candidate->memory) {
            candidate->memory = memory;
            candidate->fullest = r;
        }
    }
}

sl_status sl_tune_find_memory(const tune_setting *setting, const tune_stages *stages, const sl_timeline *timeline,
                              tune_candidate *candidate)
{
    sl_status status = SL_OK;
    bool choose = candidate->shard == SL_SHARD_FULL && candidate->unsharded == 0;
    if (candidate->shard == SL_SHARD_FULL)
        SL_TRY(count_summed(sl_timeline_schedule(timeline), &candidate->summed));
    if (choose)
        candidate->unsharded = candidate->chunks;
    find_fullest(setting, stages, timeline, candidate);
    while (choose && candidate->unsharded > 1 && candidate->memory > candidate->target) {
        candidate->unsharded--;
        find_fullest(setting, stages, timeline, candidate);
    }
done:
    return status;
}
