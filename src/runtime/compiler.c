/* The compiler's bookkeeping: frames, instructions, and shares in memory. */
#include "runtime/compiler.h"

#include "base/alloc.h"

#include <assert.h>

/* ---- Creation -------------------------------------------------------------------------------- */

/* Whether each stage's messages leave in the order in which the actions that make them run. */
static sl_status find_orders(sl_compiler *compiler)
{
    sl_status status = SL_OK;
    int64_t count = 0;
    int stages = compiler->wiring->stage_count;
    const sl_action *actions = sl_schedule_actions(compiler->options->schedule, compiler->options->rank, &count);
    int64_t rows = (int64_t)stages * 2;
    int *made = NULL, *queue = NULL, *sent = NULL;
    SL_TRY(SL_NEW_ARRAY(made, rows));
    SL_TRY(SL_NEW_ARRAY(sent, rows));
    SL_TRY(SL_NEW_ARRAY(queue, rows * compiler->wiring->microbatches));
    for (int s = 0; s < stages; s++)
        compiler->forward_in_order[s] = compiler->backward_in_order[s] = true;
    for (int64_t i = 0; i < count; i++) {
        sl_action parts[2];
        int part_count = sl_action_parts(actions[i], parts);
        for (int k = 0; k < part_count; k++) {
            int64_t row = (int64_t)parts[k].stage * 2 + (parts[k].kind != SL_KIND_F);
            if (parts[k].kind != SL_KIND_W)
                queue[row * compiler->wiring->microbatches + made[row]++] = parts[k].microbatch;
        }
        bool forward = actions[i].kind == SL_KIND_SEND_F;
        if (!forward && actions[i].kind != SL_KIND_SEND_B)
            continue;
        int64_t row = (int64_t)actions[i].stage * 2 + !forward;
        if (queue[row * compiler->wiring->microbatches + sent[row]++] != actions[i].microbatch)
            (forward ? compiler->forward_in_order : compiler->backward_in_order)[actions[i].stage] = false;
    }
done:
    sl_free(made);
    sl_free(sent);
    sl_free(queue);
    return status;
}

static sl_status make_frames(sl_compiler *compiler)
{
    sl_status status = SL_OK;
    const sl_compile_options *options = compiler->options;
    sl_arena *arena = options->layout->arena;
    int microbatches = compiler->wiring->microbatches;
    sl_frame *frame = NULL;
    SL_TRY(SL_ARENA_ARRAY(arena, frame, (size_t)options->stage_count * (size_t)microbatches));
    compiler->program->frames = frame;
    for (int k = 0; k < options->stage_count; k++) {
        const sl_stage *stage = options->stages[k];
        compiler->local[stage->index] = k;
        for (int m = 0; m < microbatches; m++, frame++) {
            void **cells = NULL;
            int ins = stage->input_count, outs = stage->output_count;
            SL_TRY(SL_ARENA_ARRAY(arena, cells, 2 * (ins + outs)));
            *frame = (sl_frame){
                .stage = stage->index,
                .microbatch = m,
                .size = sl_wiring_size(compiler->wiring, m),
                .first_sample = sl_wiring_first_sample(compiler->wiring, m),
                .inputs = cells,
                .outputs = cells + ins,
                .output_grads = cells + ins + outs,
                .input_grads = cells + ins + outs + outs,
            };
        }
    }
done:
    return status;
}

sl_status sl_compiler_create(const sl_compile_options *options, sl_program *program, sl_compiler *out)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = options->wiring;
    sl_compiler compiler = { .options = options, .wiring = wiring, .program = program, .held_count = 1 };
    int64_t ins = 0, outs = 0, width = wiring->microbatches;
    SL_TRY(SL_NEW_ARRAY(compiler.local, wiring->stage_count));
    SL_TRY(SL_NEW_ARRAY(compiler.first_input, wiring->stage_count));
    SL_TRY(SL_NEW_ARRAY(compiler.first_output, wiring->stage_count));
    SL_TRY(SL_NEW_ARRAY(compiler.forward_in_order, wiring->stage_count));
    SL_TRY(SL_NEW_ARRAY(compiler.backward_in_order, wiring->stage_count));
    SL_TRY(SL_NEW_ARRAY(compiler.grads_started, wiring->stage_count));
    for (int s = 0; s < wiring->stage_count; s++) {
        compiler.local[s] = -1;
        compiler.first_input[s] = (int)ins;
        compiler.first_output[s] = (int)outs;
        ins += wiring->stages[s].input_count;
        outs += wiring->stages[s].output_count;
    }
    SL_TRY(SL_NEW_ARRAY(compiler.inputs, ins * width));
    SL_TRY(SL_NEW_ARRAY(compiler.input_grads, ins * width));
    SL_TRY(SL_NEW_ARRAY(compiler.outputs, outs * width));
    SL_TRY(SL_NEW_ARRAY(compiler.sends, outs * width));
    SL_TRY(SL_NEW_ARRAY(compiler.output_grads, outs * width));
    SL_TRY(SL_NEW_ARRAY(compiler.grads, wiring->edge_count * width));
    SL_TRY(SL_NEW_ARRAY(compiler.regions, wiring->stage_count * width * 3));
    for (int64_t i = 0; i < wiring->stage_count * width * 3; i++)
        compiler.regions[i].group = -1;
    SL_TRY(find_orders(&compiler));
    if (options->layout)
        SL_TRY(make_frames(&compiler));
    *out = compiler;
    return SL_OK;
done:
    sl_compiler_free(&compiler);
    return status;
}

void sl_compiler_free(sl_compiler *compiler)
{
    sl_free(compiler->local);
    sl_free(compiler->first_input);
    sl_free(compiler->first_output);
    sl_free(compiler->forward_in_order);
    sl_free(compiler->backward_in_order);
    sl_free(compiler->grads_started);
    sl_free(compiler->inputs);
    sl_free(compiler->input_grads);
    sl_free(compiler->outputs);
    sl_free(compiler->sends);
    sl_free(compiler->output_grads);
    sl_free(compiler->grads);
    sl_free(compiler->regions);
    sl_free(compiler->held);
}

void sl_program_free(sl_program *program)
{
    sl_free(program->actions);
    sl_free(program->instrs);
    *program = (sl_program){ 0 };
}

/* ---- Instructions ---------------------------------------------------------------------------- */

sl_frame *sl_compiler_frame(const sl_compiler *compiler, int stage, int microbatch)
{
    if (!compiler->options->layout || compiler->local[stage] < 0)
        return NULL;
    return &compiler->program->frames[compiler->local[stage] * compiler->wiring->microbatches + microbatch];
}

sl_status sl_compiler_emit(sl_compiler *compiler, sl_instr instr)
{
    sl_status status = SL_OK;
    sl_program *program = compiler->program;
    SL_TRY(SL_GROW(program->instrs, &program->instr_capacity, program->instr_count + 1));
    program->instrs[program->instr_count++] = instr;
done:
    return status;
}

sl_status sl_compiler_run(sl_compiler *compiler, int stage, int microbatch, sl_phase phase)
{
    sl_frame *frame = sl_compiler_frame(compiler, stage, microbatch);
    if ((phase == SL_PHASE_W || phase == SL_PHASE_B) && !compiler->grads_started[stage]) {
        compiler->grads_started[stage] = true;
        if (frame)
            frame->starts_grads = true;
    }
    return sl_compiler_emit(
        compiler,
        (sl_instr){
            .code = SL_CODE_RUN, .phase = (uint8_t)phase, .stage = stage, .microbatch = microbatch, .frame = frame });
}

sl_status sl_compiler_cell(sl_compiler *compiler, void ***out)
{
    sl_status status = SL_OK;
    void **cell = NULL;
    if (compiler->options->layout)
        SL_TRY(SL_ARENA_NEW(compiler->options->layout->arena, cell));
    *out = cell;
done:
    return status;
}

/* ---- Shares ---------------------------------------------------------------------------------- */

static sl_status add_place(sl_compiler *compiler, sl_slot slot, void **cell)
{
    sl_status status = SL_OK;
    sl_layout *layout = compiler->options->layout;
    if (!layout || !cell)
        return SL_OK;
    SL_TRY(SL_GROW(layout->places, &layout->place_capacity, layout->place_count + 1));
    layout->places[layout->place_count++] = (sl_place){ cell, slot };
done:
    return status;
}

sl_status sl_compiler_place(sl_compiler *compiler, int held, void **cell)
{
    const sl_held *entry = &compiler->held[held];
    return entry->route < 0 ? add_place(compiler, entry->slot, cell) : SL_OK;
}

static sl_status hold(sl_compiler *compiler, sl_held entry, int *out)
{
    sl_status status = SL_OK;
    SL_TRY(SL_GROW(compiler->held, &compiler->held_capacity, compiler->held_count + 1));
    compiler->held[compiler->held_count] = entry;
    *out = compiler->held_count++;
done:
    return status;
}

sl_status sl_compiler_hold_block(sl_compiler *compiler, size_t bytes, void **cell, int *out)
{
    sl_status status = SL_OK;
    sl_held entry = { .refs = 1, .route = -1, .slot = { -1, 0 }, .cell = cell };
    if (compiler->options->layout)
        SL_TRY(sl_slots_take(&compiler->options->layout->slots, bytes, &entry.slot));
    SL_TRY(add_place(compiler, entry.slot, cell));
    SL_TRY(hold(compiler, entry, out));
done:
    return status;
}

sl_status sl_compiler_hold_message(sl_compiler *compiler, int route, void **cell, int *out)
{
    return hold(compiler, (sl_held){ .refs = 1, .route = route, .slot = { -1, 0 }, .cell = cell }, out);
}

void sl_compiler_share(sl_compiler *compiler, int held)
{
    compiler->held[held].refs++;
}

sl_status sl_compiler_drop(sl_compiler *compiler, int *held)
{
    if (*held == 0)
        return SL_OK;
    sl_held *entry = &compiler->held[*held];
    *held = 0;
    assert(entry->refs > 0);
    if (--entry->refs > 0)
        return SL_OK;
    if (entry->route >= 0)
        return sl_compiler_emit(compiler,
                                (sl_instr){ .code = SL_CODE_RELEASE, .index = entry->route, .cell = entry->cell });
    if (compiler->options->layout)
        sl_slots_put(&compiler->options->layout->slots, entry->slot);
    return SL_OK;
}

size_t sl_compiler_bytes(const sl_compiler *compiler, const sl_meta *metas)
{
    size_t bytes = 0;
    for (int size = 0; size < compiler->wiring->size_count; size++) {
        size_t each = sl_meta_bytes(&metas[size]);
        if (each > bytes)
            bytes = each;
    }
    return bytes;
}
