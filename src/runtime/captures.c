/* Pieces of a program: finding, capturing and launching them. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Whether the host only gives the instruction's work to the stream of kernels, and the same work in every step. */
static bool is_capturable(const sl_runtime *runtime, const sl_instr *instr, bool holds_messages)
{
    if (instr->code == SL_CODE_ADD)
        return true;
    if (instr->code != SL_CODE_RUN)
        return holds_messages && sl_runtime_is_link_message(runtime, instr);
    const sl_stage *stage = runtime->stages[runtime->wiring->stages[instr->stage].local];
    return stage->can_capture && !stage->weight_runner && stage->state_count == 0;
}

static bool waits(const sl_instr_order *order)
{
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        if (order->waits[lane] >= 0)
            return true;
    }
    return false;
}

/* Does nothing on the device: the end of the step looks at losses, and nobody has asked for what is not delivered. */
static bool is_nothing(const sl_instr *instr, bool delivers)
{
    bool delivery = instr->code == SL_CODE_OUTPUT || instr->code == SL_CODE_INPUT_GRAD;
    return instr->code == SL_CODE_LOSS || (delivery && !delivers);
}

/* Runs of instructions that are captured. apart: the host waits for weights before each phase. */
static void list_pieces(const sl_runtime *runtime, const sl_program *program, bool delivers, bool apart,
                        sl_program_order *order)
{
    sl_piece *open = NULL;
    order->is_one_piece = true;
    for (int64_t i = 0; i < program->instr_count; i++) {
        sl_instr_order *each = &order->instrs[i];
        if (is_nothing(&program->instrs[i], delivers))
            continue;
        if (!is_capturable(runtime, &program->instrs[i], order->holds_messages)) {
            open = NULL;
            order->is_one_piece = false;
            continue;
        }
        if (!open || apart || waits(each)) {
            open = &order->pieces[order->piece_count++];
            open->first = i;
        }
        open->last = i;
        each->piece = (int32_t)(open - order->pieces);
        if (each->event >= 0)
            open = NULL;
    }
    order->is_one_piece = order->is_one_piece && order->piece_count == 1;
}

/* Whether one piece has them all: the host does nothing between the first and the last. */
static bool has_all_messages(const sl_runtime *runtime, const sl_program *program, const sl_program_order *order)
{
    int32_t piece = -1;
    for (int64_t i = 0; i < program->instr_count; i++) {
        if (!sl_runtime_is_link_message(runtime, &program->instrs[i]))
            continue;
        if (piece >= 0 && order->instrs[i].piece != piece)
            return false;
        piece = order->instrs[i].piece;
    }
    return true;
}

static sl_status find_pieces(const sl_runtime *runtime, const sl_program *program, bool delivers,
                             sl_program_order *order)
{
    sl_status status = SL_OK;
    bool apart = runtime->wiring->shard != SL_SHARD_NONE;
    SL_TRY(SL_NEW_ARRAY(order->pieces, program->instr_count));
    if (runtime->links && delivers) /* what this rank asks for, the others do not know: there is no time to capture */
        return SL_OK;
    order->holds_messages = runtime->links && !apart && sl_device_links_can_capture(runtime->links);
    list_pieces(runtime, program, delivers, apart, order);
    if (!order->holds_messages || has_all_messages(runtime, program, order))
        return SL_OK;
    /* Others may launch theirs, and their streams wait: nothing is captured beside them. */
    order->holds_messages = order->is_one_piece = false;
    order->piece_count = 0;
    for (int64_t i = 0; i < program->instr_count; i++)
        order->instrs[i].piece = -1;
done:
    return status;
}

/* ---- Halves of an OVERLAP_F_B ---------------------------------------------------------------- */

/* Traces and costs are those of phases one after the other. */
static sl_status create_halves(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_halves *halves = &runtime->lanes.halves;
    bool any = false;
    for (int64_t i = 0; i < runtime->train.instr_count; i++)
        any = any || runtime->train.instrs[i].beside;
    if (!any || runtime->trace.capacity)
        return SL_OK;
    if (runtime->blocks.scratch) /* else no phase needs any */
        halves->scratch = (char *)runtime->blocks.scratch + runtime->pipeline->ranks[runtime->rank].beside_at;
    SL_TRY(sl_event_create(runtime->device, &halves->parted));
    SL_TRY(sl_event_create(runtime->device, &halves->joined));
    SL_TRY(sl_stream_create(runtime->device, &halves->stream));
done:
    return status;
}

static void destroy_halves(sl_halves *halves)
{
    sl_stream_destroy(halves->stream);
    sl_event_destroy(halves->parted);
    sl_event_destroy(halves->joined);
}

/* ---- Parts of a B ---------------------------------------------------------------------------- */

/* A rank that is alone on its GPU. Traces and costs are those of phases whose instructions follow each other. */
static sl_status create_beside(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_beside *beside = &runtime->lanes.captures.beside;
    bool any = false;
    for (int i = 0; i < runtime->stage_count; i++)
        any = any || runtime->stages[i]->can_part;
    if (!any || runtime->trace.capacity || runtime->wiring->rank_count > 1)
        return SL_OK;
    SL_TRY(sl_event_create(runtime->device, &beside->parted));
    for (int i = 0; i < SL_BESIDE_EVENTS; i++)
        SL_TRY(sl_event_create(runtime->device, &beside->done[i]));
    SL_TRY(sl_stream_create(runtime->device, &beside->stream));
done:
    return status;
}

static void destroy_beside(sl_beside *beside)
{
    sl_stream_destroy(beside->stream);
    sl_event_destroy(beside->parted);
    for (int i = 0; i < SL_BESIDE_EVENTS; i++)
        sl_event_destroy(beside->done[i]);
}

/* The second half. */
static const sl_instr *find_next_run(const sl_instr *instr)
{
    do
        instr++;
    while (instr->code != SL_CODE_RUN);
    return instr;
}

static bool shares_nothing(const sl_runtime *runtime, const sl_instr *instr)
{
    return runtime->stages[runtime->wiring->stages[instr->stage].local]->table->shares_nothing;
}

sl_status sl_captures_part(sl_runtime *runtime, const sl_instr *instr, sl_run_context *context)
{
    sl_status status = SL_OK;
    sl_halves *halves = &runtime->lanes.halves;
    sl_captures *captures = &runtime->lanes.captures;
    if (captures->capturing && captures->beside.stream && !instr->beside && !halves->apart)
        context->beside = &captures->beside;
    if (!instr->beside || !halves->stream || !captures->capturing)
        return SL_OK;
    const sl_instr *first = runtime->running->instrs, *second = find_next_run(instr);
    const sl_instr_order *orders = sl_lanes_order(runtime)->instrs;
    if (orders[instr - first].piece != orders[second - first].piece || !shares_nothing(runtime, instr) ||
        !shares_nothing(runtime, second))
        return SL_OK;
    SL_TRY(sl_event_record(halves->parted, runtime->stream));
    SL_TRY(sl_stream_wait(halves->stream, halves->parted));
    context->stream = halves->stream;
    context->scratch = halves->scratch;
    halves->apart = true;
done:
    return status;
}

sl_status sl_captures_join(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    sl_halves *halves = &runtime->lanes.halves;
    if (!halves->apart || instr->beside)
        return SL_OK;
    halves->apart = false;
    SL_TRY(sl_event_record(halves->joined, halves->stream));
    SL_TRY(sl_stream_wait(runtime->stream, halves->joined));
done:
    return status;
}

/* ---- Creation -------------------------------------------------------------------------------- */

/* SLUICE_GRAPHS=off: every step launches call by call, to measure or to look for an error. */
static sl_status read_switch(bool *off)
{
    const char *text = getenv("SLUICE_GRAPHS");
    if (text && *text && strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        return sl_fail(SL_ERR_ARGUMENT, "SLUICE_GRAPHS is '%s': it can be on or off", text);
    *off = text && strcmp(text, "off") == 0;
    return SL_OK;
}

sl_status sl_runtime_check_environment(void)
{
    sl_status status = SL_OK;
    int32_t links = 0;
    bool off = false;
    sl_overlap_wish overlap = SL_OVERLAP_UNSAID;
    SL_TRY(sl_links_read_wish(&links));
    SL_TRY(read_switch(&off));
    SL_TRY(sl_overlap_read_switch(&overlap));
done:
    return status;
}

sl_status sl_captures_create(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    sl_captures *captures = &lanes->captures;
    SL_TRY(read_switch(&captures->off));
    captures->off = captures->off || !sl_device_can_capture(runtime->device);
    if (captures->off)
        return SL_OK;
    SL_TRY(create_halves(runtime));
    SL_TRY(create_beside(runtime));
    for (int delivers = 0; delivers < 2; delivers++) {
        sl_program_order *train = &lanes->train[delivers], *eval = &lanes->eval[delivers];
        sl_captured *kinds = captures->kinds[delivers];
        SL_TRY(find_pieces(runtime, &runtime->train, delivers, train));
        SL_TRY(find_pieces(runtime, &runtime->eval, delivers, eval));
        SL_TRY(SL_NEW_ARRAY(kinds[SL_CAPTURED_STEP].pieces, train->piece_count));
        SL_TRY(SL_NEW_ARRAY(kinds[SL_CAPTURED_UPDATING].pieces, train->piece_count));
        SL_TRY(SL_NEW_ARRAY(kinds[SL_CAPTURED_KEEPING].pieces, train->piece_count));
        SL_TRY(SL_NEW_ARRAY(kinds[SL_CAPTURED_EVAL].pieces, eval->piece_count));
    }
done:
    return status;
}

static void free_captured(sl_captured *captured, int count)
{
    for (int i = 0; captured->pieces && i < count; i++)
        sl_capture_destroy(captured->pieces[i]);
    sl_free(captured->pieces);
}

void sl_captures_destroy(sl_runtime *runtime)
{
    sl_lanes *lanes = &runtime->lanes;
    for (int delivers = 0; delivers < 2; delivers++) {
        sl_captured *kinds = lanes->captures.kinds[delivers];
        free_captured(&kinds[SL_CAPTURED_STEP], lanes->train[delivers].piece_count);
        free_captured(&kinds[SL_CAPTURED_UPDATING], lanes->train[delivers].piece_count);
        free_captured(&kinds[SL_CAPTURED_KEEPING], lanes->train[delivers].piece_count);
        free_captured(&kinds[SL_CAPTURED_EVAL], lanes->eval[delivers].piece_count);
    }
    destroy_halves(&lanes->halves);
    destroy_beside(&lanes->captures.beside);
}

void sl_captures_forget_update(sl_runtime *runtime)
{
    sl_lanes *lanes = &runtime->lanes;
    for (int delivers = 0; delivers < 2; delivers++) {
        sl_captured *captured = &lanes->captures.kinds[delivers][SL_CAPTURED_UPDATING];
        for (int i = 0; captured->pieces && i < lanes->train[delivers].piece_count; i++) {
            sl_capture_destroy(captured->pieces[i]);
            captured->pieces[i] = NULL;
        }
        captured->steps = 0;
    }
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* Whether the update can be part of the step's one piece: nobody else has gradients that it needs. */
static bool can_hold_update(const sl_runtime *runtime)
{
    return runtime->updates && !runtime->context.keep_grads && sl_lanes_order(runtime)->is_one_piece &&
           runtime->wiring->rank_count == 1 && (!runtime->replicas || sl_group_size(runtime->replicas) == 1);
}

/* A function that stands in for an action may do anything, at any time. */
static bool has_custom_action(const sl_runtime *runtime)
{
    for (int kind = 0; kind < SL_KIND_COUNT; kind++) {
        if (runtime->custom[kind].fn)
            return true;
    }
    return false;
}

void sl_captures_begin(sl_runtime *runtime)
{
    sl_captures *captures = &runtime->lanes.captures;
    sl_captured_kind kind = runtime->context.keep_grads ? SL_CAPTURED_KEEPING : SL_CAPTURED_STEP;
    if (runtime->running == &runtime->eval)
        kind = SL_CAPTURED_EVAL;
    captures->current = NULL;
    captures->holds_update = false;
    captures->step = captures->steps[kind]++;
    if (runtime->host || captures->off || has_custom_action(runtime))
        return;
    captures->holds_update = kind == SL_CAPTURED_STEP && can_hold_update(runtime);
    if (captures->holds_update)
        kind = SL_CAPTURED_UPDATING;
    sl_captured *captured = &captures->kinds[runtime->lanes.delivers][kind];
    bool is_first = captured->steps++ == 0;
    if (sl_lanes_order(runtime)->holds_messages ? captured->is_ready || captures->step == 1 : !is_first)
        captures->current = captured;
}

void sl_captures_finish(sl_runtime *runtime)
{
    sl_captures *captures = &runtime->lanes.captures;
    sl_capture *dropped = NULL;
    if (captures->capturing && sl_stream_end_capture(captures->capturing, &dropped) == SL_OK)
        sl_capture_destroy(dropped);
    captures->capturing = NULL;
    captures->current = NULL;
    runtime->lanes.halves.apart = false;
}

/* The piece that the instruction belongs to, with its capture; NULL: it is not captured. */
static const sl_piece *piece_of(const sl_runtime *runtime, const sl_instr *instr, sl_capture ***capture)
{
    if (!runtime->lanes.captures.current)
        return NULL;
    const sl_program_order *order = sl_lanes_order(runtime);
    int32_t piece = order->instrs[instr - runtime->running->instrs].piece;
    if (piece < 0)
        return NULL;
    *capture = &runtime->lanes.captures.current->pieces[piece];
    return &order->pieces[piece];
}

sl_status sl_captures_enter(sl_runtime *runtime, const sl_instr *instr, bool *is_done)
{
    sl_capture **capture = NULL;
    const sl_piece *piece = piece_of(runtime, instr, &capture);
    *is_done = piece && *capture;
    if (!piece || instr != &runtime->running->instrs[piece->first])
        return SL_OK;
    if (*capture) {
        runtime->updates = runtime->updates && !runtime->lanes.captures.holds_update;
        return sl_capture_launch(*capture);
    }
    sl_status status = sl_stream_begin_capture(runtime->stream);
    if (status == SL_OK)
        runtime->lanes.captures.capturing = runtime->stream;
    return status;
}

sl_status sl_captures_leave(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    sl_capture **capture = NULL;
    const sl_piece *piece = piece_of(runtime, instr, &capture);
    if (!piece || *capture || instr != &runtime->running->instrs[piece->last])
        return SL_OK;
    if (runtime->lanes.captures.holds_update)
        SL_TRY(sl_runtime_give_update(runtime));
    runtime->lanes.captures.capturing = NULL;
    SL_TRY(sl_stream_end_capture(runtime->stream, capture));
    if (!runtime->lanes.captures.ahead)
        SL_TRY(sl_capture_launch(*capture));
done:
    return status;
}
