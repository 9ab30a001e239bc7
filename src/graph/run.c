/* Running a phase: pointers resolved from the bindings, one kernel call after another. Allocates nothing. */
#include "graph/program.h"

#include "kernel/call.h"

/* Base address of a place; NULL if the owner gave none. */
static char *resolve(const sl_stage_program *program, const sl_bindings *bindings, const sl_program_place *place)
{
    const void *base = NULL;
    switch (place->home) {
    case SL_HOME_PARAM:
        base = bindings->params[place->index];
        break;
    case SL_HOME_GRAD:
        base = bindings->grads[place->index];
        break;
    case SL_HOME_INPUT:
        base = bindings->inputs[place->index];
        break;
    case SL_HOME_OUTPUT:
        base = bindings->outputs[place->index];
        break;
    case SL_HOME_OUTPUT_GRAD:
        base = bindings->output_grads[place->index];
        break;
    case SL_HOME_INPUT_GRAD:
        base = bindings->input_grads[place->index];
        break;
    case SL_HOME_STATE:
        base = bindings->states[place->index];
        break;
    case SL_HOME_CONSTANT:
        base = (const char *)bindings->constants + program->constant_offsets[place->index];
        break;
    case SL_HOME_SAVED_I:
        base = bindings->saved_i;
        break;
    case SL_HOME_SAVED_W:
        base = bindings->saved_w;
        break;
    case SL_HOME_KEPT:
        base = bindings->kept;
        break;
    default:
        base = bindings->scratch;
    }
    return base ? (char *)(uintptr_t)base + place->offset : NULL; /* the plan proved that const ones are only read */
}

static sl_status fill_view(const sl_stage_program *program, const sl_bindings *bindings, const sl_program_place *places,
                           const sl_operand *operand, sl_view *view)
{
    view->data = NULL;
    if (operand->storage < 0)
        return SL_OK;
    const sl_program_place *place = &places[operand->storage];
    char *base = resolve(program, bindings, place);
    if (!base)
        return sl_fail(SL_ERR_ARGUMENT, "no memory bound for %s %d", sl_home_name(place->home), place->index);
    view->data = base + operand->offset * (int64_t)sl_dtype_size(operand->meta.dtype);
    return SL_OK;
}

static sl_status run_step(const sl_stage_program *program, const sl_program_place *places, const sl_instruction *step,
                          sl_stream *stream, const sl_bindings *bindings)
{
    sl_status status = SL_OK;
    sl_view views[SL_OP_INPUTS + SL_OP_OUTPUTS];
    sl_kernel_call call = sl_instruction_call(step, views);
    for (int i = 0; i < step->input_count; i++)
        SL_TRY(fill_view(program, bindings, places, &step->inputs[i], &views[i]));
    for (int i = 0; i < step->output_count; i++)
        SL_TRY(fill_view(program, bindings, places, &step->outputs[i], &views[step->input_count + i]));
    if (step->scratch_bytes > 0)
        call.scratch = (char *)bindings->scratch + step->scratch_offset;
    call.scratch_bytes = step->scratch_bytes;
    if (step->packed_bytes > 0 && bindings->packed)
        call.packed = (const char *)bindings->packed + step->packed_offset;
    if (bindings->overwrite_grads)
        call.accumulate &= ~step->starts;
    call.rng = bindings->rng;
    call.step_rng = bindings->step_rng;
    call.node = program->node_names[step->node];
    SL_TRY(sl_kernel_run_checked(stream, &call)); /* the plan has asked for its scratch */
done:
    return status;
}

sl_status sl_stage_program_pack(const sl_stage_program *program, sl_phase phase, sl_stream *stream,
                                const sl_bindings *bindings)
{
    sl_status status = SL_OK;
    sl_phase wanted = phase == SL_PHASE_F ? SL_PHASE_F : SL_PHASE_I;
    for (int i = 0; i < program->plan.pack_count && phase != SL_PHASE_W; i++) {
        const sl_instruction *pack = &program->plan.packs[i];
        sl_view views[SL_OP_INPUTS + SL_OP_OUTPUTS];
        sl_kernel_call call = sl_instruction_call(pack, views);
        if (pack->phase != wanted)
            continue;
        SL_TRY(fill_view(program, bindings, program->plan.split, &pack->inputs[1], &views[1]));
        SL_TRY(sl_kernel_pack(stream, &call, (char *)bindings->packed + pack->packed_offset));
    }
done:
    return status == SL_OK ? SL_OK : sl_fail_context(status, "stage %d: packing weights", program->info.stage);
}

/* Parameters that one product uses together must lie side by side, and so must their gradients. */
static sl_status check_neighbors(const sl_stage_program *program, const sl_bindings *bindings)
{
    for (int i = 1; i < program->info.param_count; i++) {
        const sl_port *before = &program->info.params[i - 1], *port = &program->info.params[i];
        if (!port->follows)
            continue;
        bool apart = (const char *)bindings->params[i] != (const char *)bindings->params[i - 1] + before->bytes;
        if (bindings->grads && bindings->grads[i])
            apart |= (char *)bindings->grads[i] != (char *)bindings->grads[i - 1] + before->grad_bytes;
        if (apart)
            return sl_fail(SL_ERR_ARGUMENT, "parameter '%s' does not lie right behind '%s', with which it is joined",
                           port->name, before->name);
    }
    return SL_OK;
}

/* Zeroes the gradients that no instruction starts. */
static sl_status zero_unstarted(const sl_stage_program *program, sl_phase phase, sl_stream *stream,
                                const sl_bindings *bindings)
{
    sl_status status = SL_OK;
    for (int i = 0; i < program->plan.unstarted_count[phase]; i++) {
        int param = program->plan.unstarted[phase][i];
        if (!bindings->grads[param])
            return sl_fail(SL_ERR_ARGUMENT, "no memory bound for grad %d", param);
        SL_TRY(sl_stream_memset(stream, bindings->grads[param], 0, program->info.params[param].grad_bytes));
    }
done:
    return status;
}

/* ---- A second stream ------------------------------------------------------------------------- */

/* How far the instructions beside others are. */
typedef struct beside_walk {
    const sl_beside *beside; /* NULL: all run in order */
    int started, awaited;
} beside_walk;

static sl_status await_beside(beside_walk *walk, int count, sl_stream *stream)
{
    if (!walk->beside || count <= walk->awaited)
        return SL_OK;
    walk->awaited = count;
    return sl_stream_wait(stream, walk->beside->done[(count - 1) % SL_BESIDE_EVENTS]);
}

/* The stream for an instruction. */
static sl_status part(const beside_walk *walk, const sl_instruction *step, sl_stream *stream, sl_stream **out)
{
    sl_status status = SL_OK;
    *out = stream;
    if (!walk->beside || !step->beside)
        return SL_OK;
    SL_TRY(sl_event_record(walk->beside->parted, stream));
    SL_TRY(sl_stream_wait(walk->beside->stream, walk->beside->parted));
    *out = walk->beside->stream;
done:
    return status;
}

static sl_status finish_part(beside_walk *walk, const sl_instruction *step)
{
    if (!walk->beside || !step->beside)
        return SL_OK;
    return sl_event_record(walk->beside->done[walk->started++ % SL_BESIDE_EVENTS], walk->beside->stream);
}

sl_status sl_stage_program_run(const sl_stage_program *program, sl_phase phase, sl_stream *stream,
                               const sl_bindings *bindings)
{
    sl_status status = SL_OK;
    if ((unsigned)phase >= SL_PHASE_COUNT)
        return sl_fail(SL_ERR_ARGUMENT, "no phase %d", (int)phase);
    const sl_instruction_list *list = &program->plan.phases[phase];
    const sl_program_place *places = phase == SL_PHASE_B ? program->plan.whole : program->plan.split;
    beside_walk walk = { .beside = bindings->beside };
    SL_TRY(check_neighbors(program, bindings));
    if (bindings->overwrite_grads)
        SL_TRY(zero_unstarted(program, phase, stream, bindings));
    for (int i = 0; i < list->count; i++) {
        const sl_instruction *step = &list->items[i];
        if (bindings->events)
            SL_TRY(sl_event_record(bindings->events[i], stream));
        SL_TRY(await_beside(&walk, step->awaits, stream));
        if (step->is_done)
            continue;
        double start = bindings->node_seconds ? sl_now() : 0;
        sl_stream *own = stream;
        SL_TRY(part(&walk, step, stream, &own));
        status = run_step(program, places, step, own, bindings);
        if (status == SL_OK)
            status = finish_part(&walk, step);
        if (status == SL_OK && bindings->node_seconds) {
            status = sl_stream_synchronize(stream);
            bindings->node_seconds[step->node] += sl_now() - start;
        }
        if (status != SL_OK)
            return sl_fail_context(status, "stage %d %s '%s'", program->info.stage, sl_phase_name(phase),
                                   program->node_names[step->node] ? program->node_names[step->node] : "outputs");
    }
    if (bindings->events)
        SL_TRY(sl_event_record(bindings->events[list->count], stream));
done:
    return status;
}
