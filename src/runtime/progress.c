/* How far the streams have come in a step. The stream of kernels writes to host memory which phases it has passed. If
 * streams hand over the messages, too, the host has given them everything at once: what it sees of the messages says
 * whether they wait for another rank. */
#include "runtime/runtime.h"

#include "comm/group.h"
#include "device/share.h"

#include <stdio.h>
#include <string.h>

/* ---- Phases ---------------------------------------------------------------------------------- */

sl_status sl_phases_create(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    uint32_t *word = NULL;
    if (runtime->host || runtime->wiring->rank_count == 1 || !sl_device_has_words(runtime->device))
        return SL_OK;
    SL_TRY(sl_device_alloc_host(runtime->device, sizeof *word, (void **)&word));
    *word = 0;
    runtime->lanes.passed_runs = (_Atomic uint32_t *)word;
done:
    return status;
}

void sl_phases_destroy(sl_runtime *runtime)
{
    sl_device_free_host(runtime->device, (void *)runtime->lanes.passed_runs);
    runtime->lanes.passed_runs = NULL;
}

/* The streams are idle: the step before has been waited for. */
void sl_phases_begin(sl_runtime *runtime, const sl_program *program)
{
    sl_lanes *lanes = &runtime->lanes;
    lanes->given = program;
    lanes->seen_at = NULL;
    lanes->held_at = -1;
    if (!lanes->passed_runs)
        return;
    atomic_store(&lanes->given_runs, 0);
    atomic_store(lanes->passed_runs, 0);
    atomic_store(&lanes->watched, program);
}

sl_status sl_phases_give(sl_runtime *runtime, const sl_instr *instr, bool mark)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    const sl_word_use use = { .kind = SL_WORD_WRITE,
                              .word = (uint32_t *)lanes->passed_runs,
                              .value = (uint32_t)(instr - runtime->running->instrs) + 1 };
    if (mark)
        SL_TRY(sl_stream_use_words(runtime->stream, &use, 1));
    if (!lanes->captures.ahead)
        atomic_store(&lanes->given_runs, use.value);
done:
    return status;
}

const sl_program_action *sl_phases_find_busy(const sl_runtime *runtime, uint32_t *passed)
{
    const sl_lanes *lanes = &runtime->lanes;
    const sl_program *program = atomic_load(&lanes->watched);
    *passed = lanes->passed_runs ? atomic_load(lanes->passed_runs) : 0;
    if (!program || *passed >= atomic_load(&lanes->given_runs))
        return NULL;
    for (int64_t a = 0; a < program->action_count; a++) {
        const sl_program_action *action = &program->actions[a];
        for (int64_t i = action->first; i < action->first + action->count; i++) {
            if (i >= *passed && program->instrs[i].code == SL_CODE_RUN)
                return action;
        }
    }
    return NULL;
}

/* ---- Messages -------------------------------------------------------------------------------- */

/* Where a program stands, found from its messages. */
typedef struct program_place {
    int64_t instr; /* the first message that has not come or gone; the program's instr_count if all have */
    bool waits;    /* for another rank: for the message, or for room for it */
} program_place;

static sl_status find_place(sl_runtime *runtime, const sl_program *program, program_place *out)
{
    sl_status status = SL_OK;
    int routes = runtime->pipeline->routes.edge_routes, *sent = runtime->link_counts;
    int *passed = sent + routes, *reserved = passed + routes;
    program_place place = { .instr = 0 };
    memset(passed, 0, 2 * (size_t)routes * sizeof *passed);
    for (int r = 0; r < routes; r++)
        SL_TRY(sl_device_links_count_sent(runtime->links, r, &sent[r]));
    for (; place.instr < program->instr_count; place.instr++) {
        const sl_instr *instr = &program->instrs[place.instr];
        int route = instr->index;
        bool reserves = instr->code == SL_CODE_RESERVE, receives = instr->code == SL_CODE_RECEIVE, has_room = true;
        if (!sl_runtime_is_link_message(runtime, instr) || !(reserves || receives || instr->code == SL_CODE_COMMIT))
            continue;
        if (reserves && reserved[route]++ >= sent[route])
            SL_TRY(sl_device_links_has_room(runtime->links, route, reserved[route] - 1, &has_room));
        place.waits = receives || !has_room;
        if (!has_room || (!reserves && passed[route]++ >= sent[route]))
            break;
    }
    place.waits = place.waits && place.instr < program->instr_count;
    *out = place;
done:
    return status;
}

/* The action of the place: that of the message if it is waited for, else that of the last phase before it. */
static const sl_program_action *find_action(const sl_program *program, program_place place)
{
    const sl_program_action *found = &program->actions[0];
    for (int64_t a = 0; a < program->action_count && program->actions[a].first <= place.instr; a++) {
        const sl_program_action *action = &program->actions[a];
        for (int64_t i = action->first; i < action->first + action->count && i <= place.instr; i++) {
            if (place.waits || program->instrs[i].code == SL_CODE_RUN)
                found = action;
        }
    }
    return found;
}

/* Whether the stream of kernels has still to run phases of the action, if there is one, that come before the place. */
static bool is_before(const sl_program *program, const sl_program_action *action, program_place place)
{
    for (int64_t i = action ? action->first : place.instr; i < place.instr; i++) {
        if (program->instrs[i].code == SL_CODE_RUN)
            return true;
    }
    return false;
}

/* Says what the streams wait for and since when, so that ranks that wait for each other are found. */
static void note_wait(sl_runtime *runtime, const sl_program *program, program_place place)
{
    sl_lanes *lanes = &runtime->lanes;
    const sl_instr *instr = &program->instrs[place.instr];
    if (lanes->held_at != place.instr) {
        lanes->held_at = place.instr;
        lanes->held_since = sl_now();
    }
    int peer = sl_group_world_rank(runtime->group, sl_device_links_peer(runtime->links, instr->index));
    const sl_wait wait = { .kind = instr->code == SL_CODE_RECEIVE ? SL_WAIT_RECEIVE : SL_WAIT_RESERVE,
                           .channel = instr->index,
                           .peer = peer,
                           .microbatch = instr->microbatch,
                           .step = sl_runtime_step_label(runtime),
                           .in_order = true };
    sl_group_note_wait(runtime->group, &wait, lanes->held_since);
}

bool sl_progress_is_held_up(void *user)
{
    sl_runtime *runtime = user;
    const sl_program *program = runtime->lanes.given;
    program_place place;
    if (!program || program->action_count == 0 || find_place(runtime, program, &place) != SL_OK)
        return true;
    uint32_t passed;
    const sl_program_action *busy = sl_phases_find_busy(runtime, &passed), *action = find_action(program, place);
    bool moves = sl_weights_are_moving(runtime);
    place.waits = place.waits && !is_before(program, busy, place);
    if (busy && !place.waits)
        action = busy;
    bool waits = place.waits || moves;
    if (runtime->lanes.passed_runs && place.waits && !moves)
        note_wait(runtime, program, place);
    else
        sl_group_note_wait(runtime->group, NULL, 0);
    if (action == runtime->lanes.seen_at)
        return waits;
    runtime->lanes.seen_at = action;
    snprintf(runtime->note, sizeof runtime->note, "step %lld %s", (long long)sl_runtime_step_label(runtime),
             action->text);
    sl_group_note(runtime->group, runtime->note);
    if (runtime->watchdog)
        sl_watchdog_note(runtime->watchdog, action);
    return waits;
}
