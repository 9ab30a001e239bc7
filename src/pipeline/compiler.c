/* The compiler's bookkeeping: tables, instructions, and shares in memory. */
#include "pipeline/compiler.h"

#include "base/alloc.h"

#include <assert.h>

/* ---- Creation -------------------------------------------------------------------------------- */

/* Whether each stage's messages leave in the order in which the actions that make them run. */
static sl_status find_orders(sl_compiler *c)
{
    sl_status status = SL_OK;
    int64_t count = 0, width = c->wiring->microbatches;
    int64_t rows = (int64_t)c->wiring->ranks[c->options->rank].stage_count * 2;
    const sl_action *actions = sl_schedule_actions(c->options->schedule, c->options->rank, &count);
    int *made = NULL, *queue = NULL, *sent = NULL;
    SL_TRY(SL_NEW_ARRAY(made, rows));
    SL_TRY(SL_NEW_ARRAY(sent, rows));
    SL_TRY(SL_NEW_ARRAY(queue, rows * width));
    for (int64_t k = 0; k < rows / 2; k++)
        c->forward_in_order[k] = c->backward_in_order[k] = true;
    for (int64_t i = 0; i < count; i++) {
        sl_action parts[2];
        int part_count = sl_action_parts(actions[i], parts);
        for (int k = 0; k < part_count; k++) {
            int64_t row = (int64_t)c->wiring->stages[parts[k].stage].local * 2 + (parts[k].kind != SL_KIND_F);
            if (parts[k].kind != SL_KIND_W)
                queue[row * width + made[row]++] = parts[k].microbatch;
        }
        bool forward = actions[i].kind == SL_KIND_SEND_F;
        if (!forward && actions[i].kind != SL_KIND_SEND_B)
            continue;
        int local = c->wiring->stages[actions[i].stage].local;
        int64_t row = (int64_t)local * 2 + !forward;
        if (queue[row * width + sent[row]++] != actions[i].microbatch)
            (forward ? c->forward_in_order : c->backward_in_order)[local] = false;
    }
done:
    sl_free(made);
    sl_free(sent);
    sl_free(queue);
    return status;
}

static int32_t frame_stride(const sl_wire_stage *stage)
{
    return 2 * (stage->input_count + stage->output_count) + SL_REGION_COUNT;
}

sl_frame_cells sl_frame_cells_of(const sl_wiring *wiring, int s, int microbatch)
{
    const sl_wire_stage *stage = &wiring->stages[s];
    int32_t ins = stage->input_count, outs = stage->output_count;
    /* Frames of the stages before it: their inputs and outputs are the rows before its own. */
    int32_t before = 2 * (stage->first_input + stage->first_output) + SL_REGION_COUNT * stage->local;
    int32_t first = before * wiring->microbatches + microbatch * frame_stride(stage);
    return (sl_frame_cells){ .inputs = first,
                             .outputs = first + ins,
                             .output_grads = first + ins + outs,
                             .input_grads = first + ins + outs + outs,
                             .regions = first + 2 * (ins + outs) };
}

sl_status sl_compiler_create(const sl_compile_options *options, sl_rank_program *program, sl_compiler *out)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = options->wiring;
    const sl_wire_rank *rank = &wiring->ranks[options->rank];
    int64_t width = wiring->microbatches;
    int64_t rows = 2 * ((int64_t)rank->input_rows + rank->output_rows) + (int64_t)SL_REGION_COUNT * rank->stage_count;
    int64_t cells = rows * width;
    sl_compiler c = { .options = options, .wiring = wiring, .program = program, .held_count = 1 };
    if (cells > INT32_MAX / 4)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d has too many values: %lld in all microbatches", options->rank,
                       (long long)cells);
    program->cell_count = (int32_t)cells;
    SL_TRY(SL_NEW_ARRAY(c.forward_in_order, rank->stage_count));
    SL_TRY(SL_NEW_ARRAY(c.backward_in_order, rank->stage_count));
    SL_TRY(SL_NEW_ARRAY(c.grads_started, rank->stage_count));
    SL_TRY(SL_NEW_ARRAY(c.root_started, wiring->root_count * width));
    SL_TRY(SL_NEW_ARRAY(c.weights, rank->stage_count));
    SL_TRY(SL_NEW_ARRAY(c.weight_grads, rank->stage_count));
    SL_TRY(SL_NEW_ARRAY(c.gathering, rank->stage_count));
    SL_TRY(SL_NEW_ARRAY(c.reducing, rank->stage_count));
    SL_TRY(SL_NEW_ARRAY(c.inputs, rank->input_rows * width));
    SL_TRY(SL_NEW_ARRAY(c.input_grads, rank->input_rows * width));
    SL_TRY(SL_NEW_ARRAY(c.outputs, rank->output_rows * width));
    SL_TRY(SL_NEW_ARRAY(c.sends, rank->output_rows * width));
    SL_TRY(SL_NEW_ARRAY(c.output_grads, rank->output_rows * width));
    SL_TRY(SL_NEW_ARRAY(c.grads, rank->grad_rows * width));
    SL_TRY(SL_NEW_ARRAY(c.regions, rank->stage_count * width * SL_REGION_COUNT));
    for (int64_t i = 0; i < rank->stage_count * width * SL_REGION_COUNT; i++)
        c.regions[i].group = -1;
    SL_TRY(sl_compile_offload_begin(&c));
    SL_TRY(find_orders(&c));
    *out = c;
    return SL_OK;
done:
    sl_compiler_free(&c);
    return status;
}

void sl_compiler_free(sl_compiler *c)
{
    sl_free(c->forward_in_order);
    sl_free(c->backward_in_order);
    sl_free(c->grads_started);
    sl_free(c->root_started);
    sl_free(c->weights);
    sl_free(c->weight_grads);
    sl_free(c->gathering);
    sl_free(c->reducing);
    sl_free(c->inputs);
    sl_free(c->input_grads);
    sl_free(c->outputs);
    sl_free(c->sends);
    sl_free(c->output_grads);
    sl_free(c->grads);
    sl_free(c->regions);
    sl_free(c->idle);
    sl_free(c->away);
    sl_free(c->leaving);
    sl_free(c->held);
}

void sl_rank_program_free(sl_rank_program *program)
{
    sl_free(program->actions);
    sl_free(program->instrs);
    sl_free(program->places);
    *program = (sl_rank_program){ 0 };
}

/* ---- Tables ---------------------------------------------------------------------------------- */

int *sl_compiler_input(const sl_compiler *c, int *table, int stage, int input, int microbatch)
{
    int64_t row = c->wiring->stages[stage].first_input + input;
    return &table[row * c->wiring->microbatches + microbatch];
}

int *sl_compiler_output(const sl_compiler *c, int *table, int stage, int output, int microbatch)
{
    int64_t row = c->wiring->stages[stage].first_output + output;
    return &table[row * c->wiring->microbatches + microbatch];
}

int *sl_compiler_grad(const sl_compiler *c, int edge, int microbatch)
{
    return &c->grads[(int64_t)c->wiring->grad_rows[edge] * c->wiring->microbatches + microbatch];
}

/* ---- Instructions ---------------------------------------------------------------------------- */

sl_status sl_compiler_emit(sl_compiler *c, sl_pipeline_instr instr)
{
    sl_status status = SL_OK;
    sl_rank_program *program = c->program;
    SL_TRY(SL_GROW(program->instrs, &program->instr_capacity, program->instr_count + 1));
    program->instrs[program->instr_count++] = instr;
done:
    return status;
}

sl_status sl_compiler_run(sl_compiler *c, int stage, int microbatch, sl_phase phase)
{
    bool *started = &c->grads_started[c->wiring->stages[stage].local];
    bool starts = (phase == SL_PHASE_W || phase == SL_PHASE_B) && !*started;
    *started |= starts;
    sl_status status = sl_compile_weights_ready(c, stage, starts);
    if (status != SL_OK)
        return status;
    return sl_compiler_emit(c, (sl_pipeline_instr){ .code = SL_CODE_RUN,
                                                    .phase = (uint8_t)phase,
                                                    .starts_grads = starts,
                                                    .stage = stage,
                                                    .microbatch = microbatch,
                                                    .cell = -1,
                                                    .from = -1 });
}

int32_t sl_compiler_cell(sl_compiler *c)
{
    return c->program->cell_count++;
}

/* ---- Shares ---------------------------------------------------------------------------------- */

sl_status sl_compiler_place_slot(sl_compiler *c, sl_slot slot, int32_t cell)
{
    sl_status status = SL_OK;
    sl_rank_program *program = c->program;
    SL_TRY(SL_GROW(program->places, &program->place_capacity, program->place_count + 1));
    program->places[program->place_count++] = (sl_cell_place){ .cell = cell, .slot = slot };
done:
    return status;
}

sl_status sl_compiler_place(sl_compiler *c, int held, int32_t cell)
{
    const sl_held *entry = &c->held[held];
    return entry->route < 0 ? sl_compiler_place_slot(c, entry->slot, cell) : SL_OK;
}

static sl_status hold(sl_compiler *c, sl_held entry, int *out)
{
    sl_status status = SL_OK;
    if (c->spare) {
        *out = c->spare;
        c->spare = c->held[c->spare].cell;
        c->held[*out] = entry;
        return SL_OK;
    }
    SL_TRY(SL_GROW(c->held, &c->held_capacity, c->held_count + 1));
    c->held[c->held_count] = entry;
    *out = c->held_count++;
done:
    return status;
}

sl_status sl_compiler_hold_block(sl_compiler *c, size_t bytes, int32_t cell, int *out)
{
    sl_status status = SL_OK;
    sl_held entry = { .refs = 1, .route = -1, .cell = cell };
    SL_TRY(sl_slots_take(c->options->slots, bytes, &entry.slot));
    SL_TRY(sl_compiler_place_slot(c, entry.slot, cell));
    SL_TRY(hold(c, entry, out));
done:
    return status;
}

sl_status sl_compiler_hold_message(sl_compiler *c, int route, int32_t cell, int *out)
{
    return hold(c, (sl_held){ .refs = 1, .route = route, .slot = { -1, 0 }, .cell = cell }, out);
}

void sl_compiler_share(sl_compiler *c, int held)
{
    c->held[held].refs++;
}

sl_status sl_compiler_drop(sl_compiler *c, int *held)
{
    if (*held == 0)
        return SL_OK;
    int number = *held;
    sl_held *entry = &c->held[number];
    *held = 0;
    assert(entry->refs > 0);
    if (--entry->refs > 0)
        return SL_OK;
    sl_held gone = *entry;
    entry->cell = c->spare;
    c->spare = number;
    if (gone.route < 0) {
        sl_slots_put(c->options->slots, gone.slot);
        return SL_OK;
    }
    return sl_compiler_emit(
        c, (sl_pipeline_instr){ .code = SL_CODE_RELEASE, .index = gone.route, .cell = gone.cell, .from = -1 });
}
