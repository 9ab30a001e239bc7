/* Binds a rank's compiled program to memory: cells become addresses. */
#include "runtime/program.h"

#include "base/alloc.h"

#include <string.h>

int sl_program_local_stage(const sl_program *program, const sl_wiring *wiring, const sl_frame *frame)
{
    return (int)((frame - program->frames) % program->frame_count / wiring->microbatches);
}

/* The second frames of what comes back to the device. */
static void make_later_frames(const sl_wiring *wiring, const sl_rank_program *from, sl_program *program)
{
    sl_frame *later = program->frames + program->frame_count;
    memcpy(later, program->frames, (size_t)program->frame_count * sizeof *later);
    for (int64_t i = 0; i < from->instr_count; i++) {
        const sl_pipeline_instr *instr = &from->instrs[i];
        if (instr->code != SL_CODE_FETCH)
            continue;
        sl_frame *frame =
            &later[(int64_t)wiring->stages[instr->stage].local * wiring->microbatches + instr->microbatch];
        *(instr->index == SL_REGION_SAVED_I ? &frame->saved_i : &frame->saved_w) = program->cells[instr->cell];
    }
}

static sl_status make_frames(const sl_wiring *wiring, const sl_wire_rank *rank, sl_program *program)
{
    sl_status status = SL_OK;
    program->frame_count = (int64_t)rank->stage_count * wiring->microbatches;
    SL_TRY(SL_NEW_ARRAY(program->frames, 2 * program->frame_count));
    for (int k = 0; k < rank->stage_count; k++) {
        for (int m = 0; m < wiring->microbatches; m++) {
            sl_frame_cells at = sl_frame_cells_of(wiring, rank->stages[k], m);
            void **cells = program->cells;
            program->frames[(int64_t)k * wiring->microbatches + m] =
                (sl_frame){ .stage = rank->stages[k],
                            .microbatch = m,
                            .size = sl_wiring_size(wiring, m),
                            .first_sample = sl_wiring_first_sample(wiring, m),
                            .inputs = cells + at.inputs,
                            .outputs = cells + at.outputs,
                            .output_grads = cells + at.output_grads,
                            .input_grads = cells + at.input_grads,
                            .saved_i = cells[at.regions + SL_REGION_SAVED_I],
                            .saved_w = cells[at.regions + SL_REGION_SAVED_W],
                            .kept = cells[at.regions + SL_REGION_KEPT] };
        }
    }
done:
    return status;
}

static sl_instr bind_instr(const sl_wiring *wiring, const sl_pipeline_instr *from, const sl_program *program)
{
    sl_instr instr = { .code = from->code,
                       .phase = from->phase,
                       .starts_grads = from->starts_grads,
                       .beside = from->beside,
                       .index = from->index,
                       .microbatch = from->microbatch,
                       .stage = from->stage,
                       .meta = from->meta };
    if (from->cell >= 0)
        instr.cell = &program->cells[from->cell];
    if (from->from >= 0)
        instr.from = &program->cells[from->from];
    if (from->code == SL_CODE_RUN || from->code == SL_CODE_LOSS || from->code == SL_CODE_OUTPUT)
        instr.frame =
            &program->frames[(int64_t)wiring->stages[from->stage].local * wiring->microbatches + from->microbatch];
    if (from->code == SL_CODE_RUN && from->phase != SL_PHASE_F)
        instr.frame += program->frame_count;
    if (from->starts_grads && from->code == SL_CODE_RUN)
        instr.frame->starts_grads = true;
    return instr;
}

static void bind_action(const sl_pipeline_action *from, sl_program_action *action)
{
    char text[SL_ACTION_TEXT_SIZE];
    *action =
        (sl_program_action){ .action = from->action, .cell = from->cell, .first = from->first, .count = from->count };
    snprintf(action->text, sizeof action->text, "%.47s", sl_action_text(from->action, text, sizeof text));
}

sl_status sl_program_bind(const sl_pipeline *pipeline, int rank, bool training, void *slots, void *offload,
                          sl_program *out)
{
    sl_status status = SL_OK;
    const sl_rank_plan *plan = &pipeline->ranks[rank];
    const sl_rank_program *from = training ? &plan->train : &plan->eval;
    sl_program program = { .action_count = from->action_count, .instr_count = from->instr_count, .tail = from->tail };
    SL_TRY(SL_NEW_ARRAY(program.cells, from->cell_count));
    for (int64_t i = 0; i < from->place_count; i++) {
        const sl_cell_place *place = &from->places[i];
        const sl_slots *kind = place->on_host ? &plan->host_slots : &plan->slots;
        program.cells[place->cell] = (char *)(place->on_host ? offload : slots) + sl_slots_offset(kind, place->slot);
    }
    SL_TRY(make_frames(pipeline->wiring, &pipeline->wiring->ranks[rank], &program));
    make_later_frames(pipeline->wiring, from, &program);
    SL_TRY(SL_NEW_ARRAY(program.instrs, from->instr_count));
    SL_TRY(SL_NEW_ARRAY(program.actions, from->action_count));
    for (int64_t i = 0; i < from->instr_count; i++)
        program.instrs[i] = bind_instr(pipeline->wiring, &from->instrs[i], &program);
    for (int64_t i = 0; i < from->action_count; i++)
        bind_action(&from->actions[i], &program.actions[i]);
    *out = program;
    program = (sl_program){ 0 };
done:
    sl_program_free(&program);
    return status;
}

void sl_program_free(sl_program *program)
{
    sl_free(program->actions);
    sl_free(program->instrs);
    sl_free(program->frames);
    sl_free(program->cells);
    *program = (sl_program){ 0 };
}
