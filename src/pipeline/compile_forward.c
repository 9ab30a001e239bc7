/* Compiles F and its messages: where outputs lie, who shares them, when inputs may go. */
#include "pipeline/compiler.h"

/* The output is written straight into its (first) user's message. */
static bool is_made_in_message(const sl_compiler *c, int stage, const sl_wire_output *output)
{
    if (!c->options->in_place || output->edge_count == 0 || !c->forward_in_order[c->wiring->stages[stage].local])
        return false;
    for (int k = 0; k < output->edge_count; k++) {
        if (!c->wiring->edges[output->edges[k]].remote)
            return false;
    }
    return output->last_use == SL_PHASE_F || !c->options->training;
}

/* Gives output j its memory, which users on this rank share. */
static sl_status place_output(sl_compiler *c, int s, int m, int j)
{
    sl_status status = SL_OK;
    const sl_wire_output *output = &c->wiring->stages[s].outputs[j];
    int32_t cell = sl_frame_cells_of(c->wiring, s, m).outputs + j;
    int held = 0;
    bool remote = false;
    if (output->loss)
        return SL_OK; /* has a place of its own */
    if (is_made_in_message(c, s, output))
        return sl_compiler_reserve(c, c->options->routes->forward[output->edges[0]], m, output->metas, cell);
    SL_TRY(sl_compiler_hold_block(c, sl_wiring_bytes(c->wiring, output->metas), cell, &held));
    *sl_compiler_output(c, c->outputs, s, j, m) = held;
    for (int k = 0; k < output->edge_count; k++) {
        const sl_pipeline_edge *edge = &c->wiring->edges[output->edges[k]];
        remote |= edge->remote;
        if (edge->remote)
            continue;
        sl_compiler_share(c, held);
        *sl_compiler_input(c, c->inputs, edge->to, edge->input, m) = held;
        SL_TRY(sl_compiler_place(c, held, sl_frame_cells_of(c->wiring, edge->to, m).inputs + edge->input));
    }
    if (remote) {
        sl_compiler_share(c, held);
        *sl_compiler_output(c, c->sends, s, j, m) = held;
    }
done:
    return status;
}

sl_status sl_compile_forward_begin(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    for (int j = 0; j < c->wiring->stages[s].output_count; j++)
        SL_TRY(place_output(c, s, m, j));
    SL_TRY(sl_compiler_take_region(c, s, m, SL_REGION_SAVED_I));
    SL_TRY(sl_compiler_take_region(c, s, m, SL_REGION_SAVED_W));
done:
    return status;
}

sl_status sl_compile_forward_end(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    for (int j = 0; j < stage->output_count; j++)
        SL_TRY(
            sl_compiler_emit(c, (sl_pipeline_instr){ .code = stage->outputs[j].loss ? SL_CODE_LOSS : SL_CODE_OUTPUT,
                                                     .stage = s,
                                                     .microbatch = m,
                                                     .index = j,
                                                     .cell = sl_frame_cells_of(c->wiring, s, m).outputs + j,
                                                     .from = -1,
                                                     .meta = &stage->outputs[j].metas[sl_wiring_size(c->wiring, m)] }));
    SL_TRY(sl_compiler_drop_used(c, s, m, SL_PHASE_F));
    SL_TRY(sl_compile_offload(c, s, m));
done:
    return status;
}

sl_status sl_compile_forward(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    SL_TRY(sl_compile_forward_begin(c, s, m));
    SL_TRY(sl_compiler_run(c, s, m, SL_PHASE_F));
    SL_TRY(sl_compile_forward_end(c, s, m));
done:
    return status;
}

sl_status sl_compile_recv_forward(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    for (int i = 0; i < stage->input_count; i++) {
        int edge = stage->inputs[i].edge;
        if (edge >= 0 && c->wiring->edges[edge].remote)
            SL_TRY(sl_compiler_receive(c, c->options->routes->forward[edge], m, stage->inputs[i].metas,
                                       sl_frame_cells_of(c->wiring, s, m).inputs + i,
                                       sl_compiler_input(c, c->inputs, s, i, m)));
    }
done:
    return status;
}

sl_status sl_compile_send_forward(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    for (int j = 0; j < stage->output_count; j++) {
        const sl_wire_output *output = &stage->outputs[j];
        int32_t cell = sl_frame_cells_of(c->wiring, s, m).outputs + j;
        bool made_there = is_made_in_message(c, s, output);
        for (int k = made_there; k < output->edge_count; k++) {
            if (c->wiring->edges[output->edges[k]].remote)
                SL_TRY(sl_compiler_send_copy(c, c->options->routes->forward[output->edges[k]], m, output->metas, cell));
        }
        if (made_there)
            SL_TRY(sl_compiler_commit(c, c->options->routes->forward[output->edges[0]], cell));
        SL_TRY(sl_compiler_drop(c, sl_compiler_output(c, c->sends, s, j, m)));
    }
done:
    return status;
}
