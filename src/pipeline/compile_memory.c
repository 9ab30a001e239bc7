/* What all actions compile to: messages received, filled and sent, regions of a microbatch, memory given back. */
#include "pipeline/compiler.h"

sl_status sl_compiler_receive(sl_compiler *c, int route, int microbatch, const sl_meta *metas, int32_t cell, int *held)
{
    sl_status status = SL_OK;
    const sl_meta *meta = &metas[sl_wiring_size(c->wiring, microbatch)];
    int32_t message = c->options->in_place ? cell : sl_compiler_cell(c);
    SL_TRY(sl_compiler_emit(c, (sl_pipeline_instr){ .code = SL_CODE_RECEIVE,
                                                    .index = route,
                                                    .microbatch = microbatch,
                                                    .cell = message,
                                                    .from = -1,
                                                    .meta = meta }));
    if (c->options->in_place)
        return sl_compiler_hold_message(c, route, cell, held);
    SL_TRY(sl_compiler_hold_block(c, sl_wiring_bytes(c->wiring, metas), cell, held));
    SL_TRY(sl_compiler_emit(
        c, (sl_pipeline_instr){
               .code = SL_CODE_FROM_MESSAGE, .index = route, .cell = cell, .from = message, .meta = meta }));
    SL_TRY(sl_compiler_emit(
        c, (sl_pipeline_instr){ .code = SL_CODE_RELEASE, .index = route, .cell = message, .from = -1 }));
done:
    return status;
}

sl_status sl_compiler_reserve(sl_compiler *c, int route, int microbatch, const sl_meta *metas, int32_t cell)
{
    const sl_meta *meta = &metas[sl_wiring_size(c->wiring, microbatch)];
    return sl_compiler_emit(c, (sl_pipeline_instr){ .code = SL_CODE_RESERVE,
                                                    .index = route,
                                                    .microbatch = microbatch,
                                                    .cell = cell,
                                                    .from = -1,
                                                    .meta = meta });
}

sl_status sl_compiler_commit(sl_compiler *c, int route, int32_t cell)
{
    return sl_compiler_emit(c, (sl_pipeline_instr){ .code = SL_CODE_COMMIT, .index = route, .cell = cell, .from = -1 });
}

sl_status sl_compiler_send_copy(sl_compiler *c, int route, int microbatch, const sl_meta *metas, int32_t from)
{
    sl_status status = SL_OK;
    const sl_meta *meta = &metas[sl_wiring_size(c->wiring, microbatch)];
    int32_t cell = sl_compiler_cell(c);
    SL_TRY(sl_compiler_reserve(c, route, microbatch, metas, cell));
    SL_TRY(sl_compiler_emit(
        c,
        (sl_pipeline_instr){ .code = SL_CODE_TO_MESSAGE, .index = route, .cell = cell, .from = from, .meta = meta }));
    SL_TRY(sl_compiler_commit(c, route, cell));
done:
    return status;
}

sl_slot *sl_compiler_region(const sl_compiler *c, int s, int m, int which)
{
    int64_t frame = (int64_t)c->wiring->stages[s].local * c->wiring->microbatches + m;
    return &c->regions[frame * SL_REGION_COUNT + which];
}

sl_status sl_compiler_take_region(sl_compiler *c, int s, int m, int which)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    const size_t bytes[] = { [SL_REGION_SAVED_I] = stage->saved_i_bytes,
                             [SL_REGION_SAVED_W] = stage->saved_w_bytes,
                             [SL_REGION_KEPT] = stage->kept_bytes };
    sl_slot *slot = sl_compiler_region(c, s, m, which);
    if (bytes[which] == 0)
        return SL_OK;
    SL_TRY(sl_slots_take(c->options->slots, bytes[which], slot));
    SL_TRY(sl_compiler_place_slot(c, *slot, sl_frame_cells_of(c->wiring, s, m).regions + which));
done:
    return status;
}

static void put_region(sl_compiler *c, int s, int m, int which)
{
    sl_slot *slot = sl_compiler_region(c, s, m, which);
    if (slot->group >= 0)
        sl_slots_put(c->options->slots, *slot);
    slot->group = -1;
}

sl_status sl_compiler_drop_used(sl_compiler *c, int s, int m, sl_phase phase)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    sl_phase done_with = phase == SL_PHASE_B || !c->options->training ? SL_PHASE_W : phase;
    for (int i = 0; i < stage->input_count; i++) {
        if (stage->inputs[i].last_use <= done_with)
            SL_TRY(sl_compiler_drop(c, sl_compiler_input(c, c->inputs, s, i, m)));
    }
    for (int j = 0; j < stage->output_count; j++) {
        if (stage->outputs[j].last_use <= done_with)
            SL_TRY(sl_compiler_drop(c, sl_compiler_output(c, c->outputs, s, j, m)));
        if (phase != SL_PHASE_F && stage->outputs[j].grad_last_use <= done_with)
            SL_TRY(sl_compiler_drop(c, sl_compiler_output(c, c->output_grads, s, j, m)));
    }
    if (done_with >= SL_PHASE_I)
        put_region(c, s, m, SL_REGION_SAVED_I);
    if (done_with >= SL_PHASE_W) {
        put_region(c, s, m, SL_REGION_SAVED_W);
        put_region(c, s, m, SL_REGION_KEPT);
    }
done:
    return status;
}
