/* Before the first action of a step all ranks agree that it can begin: nothing has been sent yet, so that an error of
 * one rank's arguments is everybody's error and leaves the runtime as it was. */
#include "runtime/runtime.h"

/* What must be the same on all ranks, in the order of sl_step_start.values. */
static const char *const names[SL_STEP_VALUES] = { "number", "training", "partial", "keep_grads" };

static sl_step_start describe(const sl_step *step, bool training, sl_status outcome)
{
    if (outcome != SL_OK)
        return (sl_step_start){ .outcome = outcome };
    return (sl_step_start){ .values = { step->number, training, step->partial, step->keep_grads } };
}

/* The same on every member, since all compare the same list. */
static sl_status compare(const sl_step_start *starts, int count, const char *member)
{
    for (int i = 1; i < count; i++) {
        for (int v = 0; v < SL_STEP_VALUES; v++) {
            if (starts[i].values[v] != starts[0].values[v])
                return sl_fail(SL_ERR_ARGUMENT, "%s %d was given another step than %s 0: %s is %lld, not %lld", member,
                               i, member, names[v], (long long)starts[i].values[v], (long long)starts[0].values[v]);
        }
    }
    return SL_OK;
}

/* Over one group. Returns how that went; *outcome becomes what its members have agreed on. */
static sl_status agree_in(sl_runtime *runtime, sl_group *group, const char *member, sl_step_start start,
                          sl_status *outcome)
{
    sl_status status = SL_OK, worst = SL_OK;
    char message[2048];
    int count = sl_group_size(group);
    SL_TRY(sl_group_all_gather(group, &start, sizeof start, runtime->starts));
    for (int i = 0; i < count && worst == SL_OK; i++)
        worst = (sl_status)runtime->starts[i].outcome;
    if (worst == SL_OK) {
        *outcome = compare(runtime->starts, count, member);
        return SL_OK;
    }
    *outcome = sl_gather_outcomes(group, member, *outcome);
    if (*outcome == SL_ERR_PEER) /* a rank was lost meanwhile */
        return SL_ERR_PEER;
    snprintf(message, sizeof message, "%s", sl_error_message());
    (void)!sl_group_barrier(group); /* nobody leaves before all have heard */
    sl_fail(*outcome, "%s", message);
done:
    return status;
}

sl_status sl_runtime_agree(sl_runtime *runtime, const sl_step *step, bool training, sl_status *outcome)
{
    sl_status status = SL_OK;
    if (*outcome != SL_OK && step)
        sl_fail_context(*outcome, "before the first action of step %lld", (long long)step->number + 1);
    if (sl_group_size(runtime->group) > 1)
        SL_TRY(agree_in(runtime, runtime->group, "rank", describe(step, training, *outcome), outcome));
    if (runtime->replicas && sl_group_size(runtime->replicas) > 1)
        SL_TRY(agree_in(runtime, runtime->replicas, "replica", describe(step, training, *outcome), outcome));
done:
    return status;
}
