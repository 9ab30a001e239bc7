/* Compiles I, W, B and their messages: gradients in, summed if several stages used a value, and out. */
#include "pipeline/compiler.h"

#include <assert.h>

/* The first edge along which a gradient comes back to the output; -1 if none does. */
static int first_grad_edge(const sl_compiler *c, const sl_wire_output *output)
{
    for (int k = 0; k < output->edge_count; k++) {
        if (c->wiring->edges[output->edges[k]].has_grad)
            return output->edges[k];
    }
    return -1;
}

/* Where the pointer to an edge's gradient stands on the maker's side: the first is the output's gradient itself, the
 * others are added to it. */
static int32_t grad_cell(sl_compiler *c, int edge, int m)
{
    const sl_pipeline_edge *wire = &c->wiring->edges[edge];
    if (edge != first_grad_edge(c, &c->wiring->stages[wire->from].outputs[wire->output]))
        return sl_compiler_cell(c);
    return sl_frame_cells_of(c->wiring, wire->from, m).output_grads + wire->output;
}

sl_status sl_compile_recv_backward(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    for (int j = 0; j < stage->output_count; j++) {
        for (int k = 0; k < stage->outputs[j].edge_count; k++) {
            int edge = stage->outputs[j].edges[k];
            if (!c->wiring->edges[edge].remote || !c->wiring->edges[edge].has_grad)
                continue;
            SL_TRY(sl_compiler_receive(c, c->options->routes->backward[edge], m, stage->outputs[j].metas,
                                       grad_cell(c, edge, m), sl_compiler_grad(c, edge, m)));
        }
    }
done:
    return status;
}

/* Adds up the gradients of an output in the order of its users; the first one's memory takes the sum. */
static sl_status sum_grads(sl_compiler *c, int s, int m, int j)
{
    sl_status status = SL_OK;
    const sl_wire_output *output = &c->wiring->stages[s].outputs[j];
    int *sum = sl_compiler_output(c, c->output_grads, s, j, m);
    for (int k = 0; k < output->edge_count; k++) {
        int *part = sl_compiler_grad(c, output->edges[k], m);
        if (!c->wiring->edges[output->edges[k]].has_grad)
            continue;
        assert(*part != 0);
        if (*sum == 0) {
            *sum = *part;
            *part = 0;
            continue;
        }
        SL_TRY(sl_compiler_emit(c, (sl_pipeline_instr){ .code = SL_CODE_ADD,
                                                        .stage = s,
                                                        .microbatch = m,
                                                        .cell = c->held[*sum].cell,
                                                        .from = c->held[*part].cell,
                                                        .meta = &output->metas[sl_wiring_size(c->wiring, m)] }));
        SL_TRY(sl_compiler_drop(c, part));
    }
done:
    return status;
}

static bool is_grad_made_in_message(const sl_compiler *c, int s, const sl_pipeline_edge *edge)
{
    return edge->remote && c->options->in_place && c->backward_in_order[c->wiring->stages[s].local];
}

/* Gives the gradient of input i its memory: a message, a block that the maker on this rank shares, or a block of its own
 * for a root input, or if the stage writes a gradient that nobody wants; else none. */
static sl_status place_input_grad(sl_compiler *c, int s, int m, int i)
{
    sl_status status = SL_OK;
    const sl_wire_input *input = &c->wiring->stages[s].inputs[i];
    const sl_pipeline_edge *edge = input->edge >= 0 ? &c->wiring->edges[input->edge] : NULL;
    int32_t cell = sl_frame_cells_of(c->wiring, s, m).input_grads + i;
    int *held = sl_compiler_input(c, c->input_grads, s, i, m);
    bool wanted = edge ? edge->has_grad : c->wiring->roots[input->root].grad;
    if (!input->has_grad || (!wanted && !c->wiring->stages[s].writes_all_grads))
        return SL_OK;
    if (wanted && edge && is_grad_made_in_message(c, s, edge))
        return sl_compiler_reserve(c, c->options->routes->backward[input->edge], m, input->metas, cell);
    SL_TRY(sl_compiler_hold_block(c, sl_wiring_bytes(c->wiring, input->metas), cell, held));
    if (wanted && edge && !edge->remote) {
        int32_t maker_cell = grad_cell(c, input->edge, m);
        SL_TRY(sl_compiler_place(c, *held, maker_cell));
        c->held[*held].cell = maker_cell;
        *sl_compiler_grad(c, input->edge, m) = *held;
        *held = 0;
    }
done:
    return status;
}

/* The gradient of a root input to whoever asked. The first part of its place in the whole overwrites, others add: of
 * other stages of this rank and, if all microbatches read the same, of other microbatches. */
static sl_status hand_out_grad(sl_compiler *c, int s, int m, int i)
{
    const sl_wire_input *input = &c->wiring->stages[s].inputs[i];
    if (input->root < 0 || *sl_compiler_input(c, c->input_grads, s, i, m) == 0)
        return SL_OK;
    bool replicated = c->wiring->roots[input->root].kind == SL_CHUNK_REPLICATE;
    bool *started = &c->root_started[(int64_t)input->root * c->wiring->microbatches + (replicated ? 0 : m)];
    bool starts = !*started;
    *started = true;
    return sl_compiler_emit(c, (sl_pipeline_instr){ .code = SL_CODE_INPUT_GRAD,
                                                    .starts_grads = starts,
                                                    .stage = s,
                                                    .microbatch = m,
                                                    .index = i,
                                                    .cell = sl_frame_cells_of(c->wiring, s, m).input_grads + i,
                                                    .from = -1,
                                                    .meta = &input->metas[sl_wiring_size(c->wiring, m)] });
}

sl_status sl_compile_backward_begin(sl_compiler *c, int s, int m, sl_phase phase)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    for (int j = 0; j < stage->output_count; j++)
        SL_TRY(sum_grads(c, s, m, j));
    for (int i = 0; i < stage->input_count; i++)
        SL_TRY(place_input_grad(c, s, m, i));
    if (phase == SL_PHASE_I || stage->keeps_in_b)
        SL_TRY(sl_compiler_take_region(c, s, m, SL_REGION_KEPT));
done:
    return status;
}

/* What nobody sends is dropped at once. */
sl_status sl_compile_backward_end(sl_compiler *c, int s, int m, sl_phase phase)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    for (int i = 0; i < stage->input_count; i++) {
        int edge = stage->inputs[i].edge;
        SL_TRY(hand_out_grad(c, s, m, i));
        if (edge < 0 || !c->wiring->edges[edge].has_grad)
            SL_TRY(sl_compiler_drop(c, sl_compiler_input(c, c->input_grads, s, i, m)));
    }
    SL_TRY(sl_compiler_drop_used(c, s, m, phase));
done:
    return status;
}

sl_status sl_compile_backward(sl_compiler *c, int s, int m, sl_phase phase)
{
    sl_status status = SL_OK;
    SL_TRY(sl_compile_backward_begin(c, s, m, phase));
    SL_TRY(sl_compiler_run(c, s, m, phase));
    SL_TRY(sl_compile_backward_end(c, s, m, phase));
done:
    return status;
}

sl_status sl_compile_send_backward(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    for (int i = 0; i < stage->input_count; i++) {
        int edge = stage->inputs[i].edge;
        int32_t cell = sl_frame_cells_of(c->wiring, s, m).input_grads + i;
        if (edge < 0 || !c->wiring->edges[edge].remote || !c->wiring->edges[edge].has_grad)
            continue;
        if (is_grad_made_in_message(c, s, &c->wiring->edges[edge])) {
            SL_TRY(sl_compiler_commit(c, c->options->routes->backward[edge], cell));
            continue;
        }
        SL_TRY(sl_compiler_send_copy(c, c->options->routes->backward[edge], m, stage->inputs[i].metas, cell));
        SL_TRY(sl_compiler_drop(c, sl_compiler_input(c, c->input_grads, s, i, m)));
    }
done:
    return status;
}

sl_status sl_compile_weights(sl_compiler *c, int s, int m)
{
    sl_status status = SL_OK;
    SL_TRY(sl_compiler_run(c, s, m, SL_PHASE_W));
    SL_TRY(sl_compiler_drop_used(c, s, m, SL_PHASE_W));
done:
    return status;
}
