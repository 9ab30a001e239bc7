/* Offload: what a microbatch saves for its backward leaves the device after F if it would lie idle there for long, and
 * comes back before it is needed. Copies run beside actions that compute: memory is given back one action after the copy
 * to the host began, and a copy back begins one action before it is needed. */
#include "pipeline/compiler.h"

#include "base/alloc.h"

enum { LEAST_IDLE = 4 }; /* actions between F and its backward: one to leave in, one to come back in, and some rest */

static int64_t frame_of(const sl_compiler *c, int s, int m)
{
    return (int64_t)c->wiring->stages[s].local * c->wiring->microbatches + m;
}

static sl_away *away_of(const sl_compiler *c, int s, int m, int which)
{
    return &c->away[frame_of(c, s, m) * SL_OFFLOAD_REGIONS + which];
}

static bool is_computing(sl_action action)
{
    return sl_kind_class_of((sl_kind)action.kind) == SL_CLASS_COMPUTE;
}

sl_status sl_compile_offload_begin(sl_compiler *c)
{
    sl_status status = SL_OK;
    int64_t count = 0, computed = 0;
    int64_t frames = (int64_t)c->wiring->ranks[c->options->rank].stage_count * c->wiring->microbatches;
    const sl_action *actions = sl_schedule_actions(c->options->schedule, c->options->rank, &count);
    if (c->options->offload_bytes == 0)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(c->idle, frames));
    SL_TRY(SL_NEW_ARRAY(c->away, frames * SL_OFFLOAD_REGIONS));
    for (int64_t i = 0; i < frames * SL_OFFLOAD_REGIONS; i++)
        c->away[i].slot.group = -1;
    for (int64_t i = 0; i < count; i++) {
        sl_action parts[2];
        int part_count = sl_action_parts(actions[i], parts);
        for (int k = 0; k < part_count; k++) {
            int64_t *idle = &c->idle[frame_of(c, parts[k].stage, parts[k].microbatch)];
            if (parts[k].kind == SL_KIND_F)
                *idle = -computed - 1;
            else if (parts[k].kind == SL_KIND_I || parts[k].kind == SL_KIND_B)
                *idle += computed;
        }
        computed += is_computing(actions[i]);
    }
done:
    return status;
}

static size_t region_bytes(const sl_compiler *c, int s, int which)
{
    const sl_wire_stage *stage = &c->wiring->stages[s];
    return which == SL_REGION_SAVED_I ? stage->saved_i_bytes : stage->saved_w_bytes;
}

/* One region to the host; its memory is free after the next action. */
static sl_status send_region(sl_compiler *c, int s, int m, int which)
{
    sl_status status = SL_OK;
    sl_slot *slot = sl_compiler_region(c, s, m, which);
    sl_away *away = away_of(c, s, m, which);
    sl_rank_program *program = c->program;
    SL_TRY(SL_GROW(c->leaving, &c->leaving_capacity, c->leaving_count + 1));
    SL_TRY(SL_GROW(program->places, &program->place_capacity, program->place_count + 1));
    SL_TRY(sl_slots_take(c->options->host_slots, region_bytes(c, s, which), &away->slot));
    away->cell = sl_compiler_cell(c);
    program->places[program->place_count++] =
        (sl_cell_place){ .cell = away->cell, .slot = away->slot, .on_host = true };
    c->leaving[c->leaving_count++] = (sl_leaving){ .slot = *slot, .until = c->computed + 2 };
    slot->group = -1;
    SL_TRY(sl_compiler_emit(c, (sl_pipeline_instr){ .code = SL_CODE_OFFLOAD,
                                                    .stage = s,
                                                    .microbatch = m,
                                                    .index = which,
                                                    .cell = away->cell,
                                                    .from = sl_frame_cells_of(c->wiring, s, m).regions + which }));
done:
    return status;
}

sl_status sl_compile_offload(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    if (c->options->offload_bytes == 0 || c->idle[frame_of(c, s, m)] < LEAST_IDLE)
        return SL_OK;
    for (int which = 0; which < SL_OFFLOAD_REGIONS; which++) {
        bool fits = sl_slots_bytes_with(c->options->host_slots, region_bytes(c, s, which)) <= c->options->offload_bytes;
        if (sl_compiler_region(c, s, m, which)->group >= 0 && fits)
            SL_TRY(send_region(c, s, m, which));
    }
done:
    return status;
}

/* One region back, into whatever memory is free now. */
static sl_status fetch_region(sl_compiler *c, int s, int m, int which)
{
    sl_status status = SL_OK;
    sl_slot *slot = sl_compiler_region(c, s, m, which);
    sl_away *away = away_of(c, s, m, which);
    int32_t cell = sl_compiler_cell(c);
    SL_TRY(sl_slots_take(c->options->slots, region_bytes(c, s, which), slot));
    SL_TRY(sl_compiler_place_slot(c, *slot, cell));
    SL_TRY(sl_compiler_emit(
        c, (sl_pipeline_instr){
               .code = SL_CODE_FETCH, .stage = s, .microbatch = m, .index = which, .cell = cell, .from = away->cell }));
    sl_slots_put(c->options->host_slots, away->slot);
    away->slot.group = -1;
done:
    return status;
}

/* What the backward parts of an action need. */
static sl_status fetch_for(sl_compiler *c, sl_action action)
{
    sl_status status = SL_OK;
    sl_action parts[2];
    int part_count = sl_action_parts(action, parts);
    for (int k = 0; k < part_count; k++) {
        for (int which = 0; parts[k].kind != SL_KIND_F && which < SL_OFFLOAD_REGIONS; which++) {
            if (away_of(c, parts[k].stage, parts[k].microbatch, which)->slot.group >= 0)
                SL_TRY(fetch_region(c, parts[k].stage, parts[k].microbatch, which));
        }
    }
done:
    return status;
}

sl_status sl_compile_fetch(sl_compiler *c, const sl_action *actions, int64_t count, int64_t at)
{
    sl_status status = SL_OK;
    int64_t next = at + 1;
    if (c->options->offload_bytes == 0 || !is_computing(actions[at]))
        return SL_OK;
    while (next < count && !is_computing(actions[next]))
        next++;
    SL_TRY(fetch_for(c, actions[at]));
    if (next < count)
        SL_TRY(fetch_for(c, actions[next]));
done:
    return status;
}

/* Gives back what has left. */
static void put_left(sl_compiler *c, int64_t until)
{
    int kept = 0;
    for (int i = 0; i < c->leaving_count; i++) {
        if (c->leaving[i].until <= until)
            sl_slots_put(c->options->slots, c->leaving[i].slot);
        else
            c->leaving[kept++] = c->leaving[i];
    }
    c->leaving_count = kept;
}

void sl_compile_computed(sl_compiler *c)
{
    put_left(c, ++c->computed);
}

void sl_compile_offload_end(sl_compiler *c)
{
    put_left(c, INT64_MAX);
}
