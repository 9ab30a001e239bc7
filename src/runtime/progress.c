/* How far the streams have come in a step whose messages they hand over. The host has given them everything at once: what
 * it sees of the messages says which action they are at. */
#include "runtime/runtime.h"

#include <stdio.h>
#include <string.h>

/* Where a program stands. */
typedef struct program_place {
    int64_t instr; /* the first message that has not come or gone; the program's instr_count if all have */
    bool waits;    /* for another rank: for the message, or for room for it */
} program_place;

static sl_status find_place(sl_runtime *runtime, const sl_program *program, program_place *out)
{
    sl_status status = SL_OK;
    int routes = runtime->pipeline->routes.edge_routes, *sent = runtime->link_counts, *passed = sent + routes;
    program_place place = { .instr = 0 };
    memset(passed, 0, (size_t)routes * sizeof *passed);
    for (int r = 0; r < routes; r++)
        SL_TRY(sl_device_links_count_sent(runtime->links, r, &sent[r]));
    for (; place.instr < program->instr_count; place.instr++) {
        const sl_instr *instr = &program->instrs[place.instr];
        int route = instr->index;
        bool hands_over = instr->code == SL_CODE_RECEIVE || instr->code == SL_CODE_COMMIT;
        if (!hands_over || !sl_device_links_has(runtime->links, route) || passed[route]++ < sent[route])
            continue;
        bool has_room = false;
        if (instr->code == SL_CODE_COMMIT)
            SL_TRY(sl_device_links_has_room(runtime->links, route, sent[route], &has_room));
        place.waits = !has_room;
        break;
    }
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

bool sl_progress_is_held_up(void *user)
{
    sl_runtime *runtime = user;
    const sl_program *program = runtime->lanes.given;
    program_place place;
    if (!program || program->action_count == 0 || find_place(runtime, program, &place) != SL_OK)
        return true;
    const sl_program_action *action = find_action(program, place);
    bool waits = place.waits || sl_weights_are_moving(runtime);
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
