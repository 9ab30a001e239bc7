/* What all actions compile to: messages received, filled and sent, regions of a microbatch, memory given back. */
#include "runtime/compiler.h"

#include "base/alloc.h"

sl_status sl_compiler_receive(sl_compiler *c, int route, int microbatch, const sl_meta *metas, void **cell, int *held)
{
    sl_status status = SL_OK;
    const sl_meta *meta = &metas[sl_wiring_size(c->wiring, microbatch)];
    void **message = cell;
    if (!c->options->in_place)
        SL_TRY(sl_compiler_cell(c, &message));
    SL_TRY(sl_compiler_emit(
        c, (sl_instr){
               .code = SL_CODE_RECEIVE, .index = route, .microbatch = microbatch, .cell = message, .meta = meta }));
    if (c->options->in_place)
        return sl_compiler_hold_message(c, route, cell, held);
    SL_TRY(sl_compiler_hold_block(c, sl_compiler_bytes(c, metas), cell, held));
    SL_TRY(
        sl_compiler_emit(c, (sl_instr){ .code = SL_CODE_FROM_MESSAGE, .cell = cell, .from = message, .meta = meta }));
    SL_TRY(sl_compiler_emit(c, (sl_instr){ .code = SL_CODE_RELEASE, .index = route, .cell = message }));
done:
    return status;
}

sl_status sl_compiler_reserve(sl_compiler *c, int route, int microbatch, const sl_meta *metas, void **cell)
{
    const sl_meta *meta = &metas[sl_wiring_size(c->wiring, microbatch)];
    return sl_compiler_emit(
        c, (sl_instr){ .code = SL_CODE_RESERVE, .index = route, .microbatch = microbatch, .cell = cell, .meta = meta });
}

sl_status sl_compiler_commit(sl_compiler *c, int route, void **cell)
{
    return sl_compiler_emit(c, (sl_instr){ .code = SL_CODE_COMMIT, .index = route, .cell = cell });
}

sl_status sl_compiler_send_copy(sl_compiler *c, int route, int microbatch, const sl_meta *metas, void **from)
{
    sl_status status = SL_OK;
    const sl_meta *meta = &metas[sl_wiring_size(c->wiring, microbatch)];
    void **cell = NULL;
    SL_TRY(sl_compiler_cell(c, &cell));
    SL_TRY(sl_compiler_reserve(c, route, microbatch, metas, cell));
    SL_TRY(sl_compiler_emit(c, (sl_instr){ .code = SL_CODE_TO_MESSAGE, .cell = cell, .from = from, .meta = meta }));
    SL_TRY(sl_compiler_commit(c, route, cell));
done:
    return status;
}

sl_status sl_compiler_take_region(sl_compiler *c, int s, int m, int which)
{
    sl_status status = SL_OK;
    sl_frame *frame = sl_compiler_frame(c, s, m);
    if (!frame)
        return SL_OK;
    const sl_stage *stage = c->options->stages[c->local[s]];
    size_t bytes = which == SL_REGION_SAVED_I   ? stage->saved_i_bytes
                   : which == SL_REGION_SAVED_W ? stage->saved_w_bytes
                                                : stage->kept_bytes;
    void **cell = which == SL_REGION_SAVED_I   ? &frame->saved_i
                  : which == SL_REGION_SAVED_W ? &frame->saved_w
                                               : &frame->kept;
    sl_layout *layout = c->options->layout;
    sl_slot *slot = &c->regions[(s * c->wiring->microbatches + m) * 3 + which];
    if (bytes == 0)
        return SL_OK;
    SL_TRY(sl_slots_take(&layout->slots, bytes, slot));
    SL_TRY(SL_GROW(layout->places, &layout->place_capacity, layout->place_count + 1));
    layout->places[layout->place_count++] = (sl_place){ cell, *slot };
done:
    return status;
}

static void put_region(sl_compiler *c, int s, int m, int which)
{
    sl_slot *slot = &c->regions[(s * c->wiring->microbatches + m) * 3 + which];
    if (slot->group >= 0)
        sl_slots_put(&c->options->layout->slots, *slot);
    slot->group = -1;
}

sl_status sl_compiler_drop_used(sl_compiler *c, int s, int m, sl_phase phase)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    int width = c->wiring->microbatches;
    sl_phase done_with = phase == SL_PHASE_B || !c->options->training ? SL_PHASE_W : phase;
    for (int i = 0; i < stage->input_count; i++) {
        if (stage->inputs[i].last_use <= done_with)
            SL_TRY(sl_compiler_drop(c, &c->inputs[(c->first_input[s] + i) * width + m]));
    }
    for (int j = 0; j < stage->output_count; j++) {
        int row = (c->first_output[s] + j) * width + m;
        if (stage->outputs[j].last_use <= done_with)
            SL_TRY(sl_compiler_drop(c, &c->outputs[row]));
        if (phase != SL_PHASE_F && stage->outputs[j].grad_last_use <= done_with)
            SL_TRY(sl_compiler_drop(c, &c->output_grads[row]));
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
