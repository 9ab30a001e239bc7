/* Failures: one place and one reason, the same on every rank. */
#include "runtime/runtime.h"

#include <stdlib.h>
#include <string.h>

/* "pipeline rank 1, cell 7, 2F3 (stage 2, microbatch 3, step 5): reason": other ranks read the place back out of it. */
static const char place_mark[] = "pipeline rank ";

void sl_runtime_describe_action(const sl_runtime *runtime, int64_t step, const sl_program_action *action, char *text,
                                size_t size)
{
    char name[SL_ACTION_TEXT_SIZE], microbatch[32] = "";
    if (action->action.microbatch >= 0)
        snprintf(microbatch, sizeof microbatch, "microbatch %d, ", action->action.microbatch);
    snprintf(text, size, "%s%d, cell %lld, %s (stage %d, %sstep %lld)", place_mark, runtime->rank,
             (long long)action->cell, sl_action_text(action->action, name, sizeof name), action->action.stage,
             microbatch, (long long)step);
}

static void describe(const sl_runtime *runtime, int64_t cell, sl_action action, char *text, size_t size)
{
    int64_t step = sl_runtime_step_label(runtime);
    if (cell >= 0)
        sl_runtime_describe_action(runtime, step, &(sl_program_action){ .action = action, .cell = cell }, text, size);
    else
        snprintf(text, size, "%s%d, %s of step %lld", place_mark, runtime->rank,
                 runtime->current < 0 ? "before the first action" : "after the last action", (long long)step);
}

/* The place that another rank's message names. */
static void read_place(sl_runtime *runtime, const char *message)
{
    const char *at = strstr(message, place_mark);
    int rank = -1;
    long long cell = -1;
    int64_t count = 0;
    if (!at || sscanf(at + strlen(place_mark), "%d, cell %lld", &rank, &cell) < 1)
        return;
    if (rank < 0 || rank >= runtime->wiring->rank_count)
        return;
    const sl_action *actions = sl_schedule_actions(runtime->schedule, rank, &count);
    runtime->failure.rank = rank;
    if (cell < 0 || cell >= count)
        return;
    runtime->failure.cell = cell;
    runtime->failure.action = actions[cell];
}

/* Keeps of another rank's message what that rank said: the record is then the same on all ranks. */
static void keep_message(sl_runtime *runtime, const char *message)
{
    const char *start = strstr(message, place_mark);
    char waiting[64];
    snprintf(waiting, sizeof waiting, "; rank %d was waiting", sl_group_world_rank(runtime->group, runtime->rank));
    if (!start)
        start = message;
    const char *end = strstr(start, waiting);
    int length = end ? (int)(end - start) : (int)strlen(start);
    snprintf(runtime->failure.message, sizeof runtime->failure.message, "%.*s", length, start);
}

/* Member of the group that is `world` in the whole run; -1 if none is. */
static int find_member(const sl_runtime *runtime, int world)
{
    for (int rank = 0; rank < runtime->wiring->rank_count; rank++) {
        if (sl_group_world_rank(runtime->group, rank) == world)
            return rank;
    }
    return -1;
}

/* A rank that died or hangs cannot say where; its last note, "step 7 2F3", is in what the others hear. */
static void read_last_note(sl_runtime *runtime, const char *message)
{
    const char *doing = strstr(message, "last doing: "), *note = doing ? strstr(doing, "step ") : NULL;
    int world = -1;
    char text[SL_ACTION_TEXT_SIZE];
    sl_action action;
    int64_t count = 0;
    if (sscanf(message, "rank %d", &world) != 1)
        return;
    runtime->failure.rank = find_member(runtime, world);
    if (runtime->failure.rank < 0 || !note || sscanf(note, "step %*d %63[^,; \n]", text) != 1 ||
        sl_action_parse(text, strlen(text), &action) != SL_OK)
        return;
    const sl_action *actions = sl_schedule_actions(runtime->schedule, runtime->failure.rank, &count);
    for (int64_t cell = 0; cell < count; cell++) {
        if (!sl_action_equal(actions[cell], action))
            continue;
        runtime->failure.cell = cell;
        runtime->failure.action = action;
    }
}

/* All ranks have heard of it: it was another's. A callback may return any status, this one, too. */
static bool is_known(sl_runtime *runtime, sl_status status)
{
    char message[2048];
    if (status != SL_ERR_PEER)
        return false;
    snprintf(message, sizeof message, "%s", sl_error_message());
    bool known = sl_group_check(runtime->group) != SL_OK;
    sl_fail(status, "%s", message);
    return known;
}

/* Of several ranks that fail at once, the first one's failure is everybody's: also of those with one of their own. */
static void tell_others(sl_runtime *runtime, sl_status status)
{
    char own[2048];
    snprintf(own, sizeof own, "%s", sl_error_message());
    sl_group_fail(runtime->group, status);
    if (sl_group_check(runtime->group) == SL_OK || strstr(sl_error_message(), own))
        sl_fail(status, "%s", own);
}

sl_status sl_runtime_fail(sl_runtime *runtime, sl_status status, int64_t cell, sl_action action)
{
    if (runtime->failed != SL_OK)
        return status;
    runtime->failed = status;
    runtime->failure = (sl_runtime_failure){ .rank = -1, .cell = -1 };
    if (!is_known(runtime, status)) {
        char place[256];
        describe(runtime, cell, action, place, sizeof place);
        sl_fail_context(status, "%s", place);
        tell_others(runtime, status);
    }
    read_place(runtime, sl_error_message());
    if (runtime->failure.rank < 0)
        read_last_note(runtime, sl_error_message());
    keep_message(runtime, sl_error_message());
    return status;
}

bool sl_runtime_get_failure(const sl_runtime *runtime, sl_runtime_failure *out)
{
    if (runtime->failed != SL_OK)
        *out = runtime->failure;
    return runtime->failed != SL_OK;
}

sl_status sl_runtime_write_failure(const sl_runtime *runtime, FILE *file)
{
    sl_violation place = { .rank = runtime->failure.rank, .cell = runtime->failure.cell };
    if (runtime->failed == SL_OK)
        return sl_fail(SL_ERR_ARGUMENT, "nothing has failed");
    if (place.cell >= 0)
        sl_action_text(runtime->failure.action, place.text, sizeof place.text);
    snprintf(place.reason, sizeof place.reason, "%.*s", (int)sizeof place.reason - 1, runtime->failure.message);
    return sl_schedule_write_violation(runtime->schedule, &place, NULL, file);
}
