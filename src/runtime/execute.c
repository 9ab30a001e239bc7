/* The executor: wait for the message, run the phase, post the message, next. */
#include "runtime/runtime.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* ---- Messages -------------------------------------------------------------------------------- */

static sl_message message_of(const sl_runtime *runtime, const sl_instr *instr)
{
    return (sl_message){ .step = sl_runtime_step_label(runtime),
                         .microbatch = instr->microbatch,
                         .dtype = instr->meta->dtype,
                         .shape = instr->meta->shape };
}

static sl_status wait_for(sl_runtime *runtime, const sl_instr *instr, bool receive)
{
    sl_channel *channel = runtime->channels[instr->index];
    sl_message message = message_of(runtime, instr);
    uint64_t start = runtime->trace.capacity ? sl_trace_start(&runtime->trace) : 0;
    sl_status status = receive ? sl_channel_receive(channel, &message, NULL, instr->cell)
                               : sl_channel_reserve(channel, &message, instr->cell);
    if (runtime->trace.capacity)
        sl_trace_add(&runtime->trace, (sl_trace_event){ .start = start,
                                                        .step = runtime->context.step,
                                                        .microbatch = instr->microbatch,
                                                        .kind = receive ? SL_TRACE_RECEIVE : SL_TRACE_RESERVE,
                                                        .route = instr->index });
    return status;
}

/* Between a message in host memory and the device, in the order of the lane. */
static sl_status copy_message(sl_runtime *runtime, const sl_instr *instr, sl_lane lane)
{
    sl_copy_kind kind = lane == SL_LANE_IN ? SL_COPY_HOST_TO_DEVICE : SL_COPY_DEVICE_TO_HOST;
    return sl_stream_copy(runtime->lanes.streams[lane], kind, *instr->cell, *instr->from, sl_meta_bytes(instr->meta));
}

/* ---- Messages of links -----------------------------------------------------------------------
 * The host goes on: the stream of kernels waits for them. */

/* The trace has when it came, as the stream saw it. is_done: a launch has given it to the stream. */
static sl_status receive_in_stream(sl_runtime *runtime, const sl_instr *instr, bool is_done)
{
    sl_status status = SL_OK;
    sl_message message = message_of(runtime, instr);
    sl_stream *marking = is_done ? NULL : runtime->stream;
    sl_trace_event event = {
        .step = runtime->context.step, .microbatch = instr->microbatch, .kind = SL_TRACE_RECEIVE, .route = instr->index
    };
    bool marked = runtime->trace.mark_capacity > 0;
    if (marked)
        SL_TRY(sl_trace_mark(&runtime->trace, marking, &event.start));
    SL_TRY(is_done ? sl_device_links_repeat(runtime->links, instr->index, &message)
                   : sl_device_links_receive(runtime->links, instr->index, &message, runtime->stream, instr->cell));
    if (marked)
        SL_TRY(sl_trace_add_marked(&runtime->trace, marking, event));
done:
    return status;
}

static sl_status give_message(sl_runtime *runtime, const sl_instr *instr)
{
    sl_device_links *links = runtime->links;
    switch ((sl_code)instr->code) {
    case SL_CODE_RECEIVE:
        return receive_in_stream(runtime, instr, false);
    case SL_CODE_RESERVE: {
        sl_message message = message_of(runtime, instr);
        return sl_device_links_reserve(links, instr->index, &message, runtime->stream, instr->cell);
    }
    case SL_CODE_RELEASE:
        return sl_device_links_release(links, instr->index, *instr->cell, runtime->stream);
    case SL_CODE_COMMIT:
        return sl_device_links_commit(links, instr->index, *instr->cell, runtime->stream);
    default:
        return sl_stream_copy(runtime->stream, SL_COPY_DEVICE_TO_DEVICE, *instr->cell, *instr->from,
                              sl_meta_bytes(instr->meta));
    }
}

/* A launch has given it to the stream. */
static sl_status repeat_message(sl_runtime *runtime, const sl_instr *instr)
{
    if (instr->code == SL_CODE_RECEIVE)
        return receive_in_stream(runtime, instr, true);
    if (instr->code != SL_CODE_RESERVE)
        return SL_OK;
    sl_message message = message_of(runtime, instr);
    return sl_device_links_repeat(runtime->links, instr->index, &message);
}

static sl_status run_link_message(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    bool is_done = false;
    sl_trace_break(&runtime->trace);
    SL_TRY(sl_captures_enter(runtime, instr, &is_done));
    SL_TRY(is_done ? repeat_message(runtime, instr) : give_message(runtime, instr));
    SL_TRY(sl_captures_leave(runtime, instr));
done:
    return status;
}

/* A region of a microbatch between the device and the host. */
static sl_status move_region(sl_runtime *runtime, const sl_instr *instr)
{
    const sl_wire_stage *stage = &runtime->wiring->stages[instr->stage];
    bool fetch = instr->code == SL_CODE_FETCH;
    return sl_stream_copy(runtime->lanes.streams[fetch ? SL_LANE_IN : SL_LANE_OUT],
                          fetch ? SL_COPY_HOST_TO_DEVICE : SL_COPY_DEVICE_TO_HOST, *instr->cell, *instr->from,
                          instr->index == SL_REGION_SAVED_I ? stage->saved_i_bytes : stage->saved_w_bytes);
}

/* ---- Compute --------------------------------------------------------------------------------- */

static sl_status add(sl_runtime *runtime, const sl_instr *instr)
{
    sl_view inputs[2] = { { *instr->cell, *instr->meta }, { *instr->from, *instr->meta } };
    sl_kernel_call call = { .op = SL_OP_ADD, .inputs = inputs, .input_count = 2, .outputs = inputs, .output_count = 1 };
    return sl_kernel_run(runtime->stream, &call);
}

static sl_stage *stage_of(const sl_runtime *runtime, const sl_instr *instr)
{
    return runtime->stages[sl_program_local_stage(runtime->running, runtime->wiring, instr->frame)];
}

/* By itself or as part of a captured piece. */
static sl_status add_values(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    bool is_done = false;
    SL_TRY(sl_captures_enter(runtime, instr, &is_done));
    if (!is_done)
        SL_TRY(add(runtime, instr));
    SL_TRY(sl_captures_leave(runtime, instr));
done:
    return status;
}

/* On a device that works by itself the times are those at which its stream gets here: a captured piece has the marks. */
static sl_status run(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    sl_trace *trace = &runtime->trace;
    bool is_done = false;
    sl_trace_event event = { .step = runtime->context.step,
                             .microbatch = instr->microbatch,
                             .stage = (uint16_t)instr->stage,
                             .kind = SL_TRACE_PHASE,
                             .what = instr->phase };
    bool marked = trace->mark_capacity > 0;
    if (runtime->gathering)
        SL_TRY(sl_weights_settle_stage(runtime, runtime->wiring->stages[instr->stage].local));
    SL_TRY(sl_captures_enter(runtime, instr, &is_done));
    sl_run_context context = runtime->context;
    if (!is_done)
        SL_TRY(sl_captures_part(runtime, instr, &context));
    sl_stream *marking = is_done ? NULL : context.stream;
    if (marked)
        SL_TRY(sl_trace_mark(trace, marking, &event.start));
    else if (trace->capacity)
        event.start = sl_trace_start(trace);
    if (!is_done) {
        SL_TRY(sl_stage_run(stage_of(runtime, instr), (sl_phase)instr->phase, instr->frame, &context));
        SL_TRY(sl_captures_join(runtime, instr));
    }
    if (runtime->lanes.passed_runs)
        SL_TRY(sl_phases_give(runtime, instr, !is_done && context.stream == runtime->stream));
    if (marked)
        SL_TRY(sl_trace_add_marked(trace, marking, event));
    else if (trace->capacity)
        sl_trace_add(trace, event);
    SL_TRY(sl_captures_leave(runtime, instr));
done:
    return status;
}

/* If the host can look at once; else the end of the step does. */
static sl_status watch_loss(const sl_runtime *runtime, const sl_instr *instr)
{
    if (!runtime->watch_loss || !runtime->host)
        return SL_OK;
    const void *place = instr->frame->outputs[instr->index];
    float single;
    double loss;
    if (instr->meta->dtype == SL_F64) {
        memcpy(&loss, place, sizeof loss);
    } else {
        memcpy(&single, place, sizeof single);
        loss = single;
    }
    if (isfinite(loss))
        return SL_OK;
    return sl_fail(SL_ERR_NUMERIC, "the loss is %g", loss);
}

/* ---- Actions --------------------------------------------------------------------------------- */

/* What is not in the trace by itself. */
static sl_status run_between(sl_runtime *runtime, const sl_instr *instr)
{
    sl_trace_break(&runtime->trace);
    switch ((sl_code)instr->code) {
    case SL_CODE_RELEASE:
        return sl_channel_release_after(runtime->channels[instr->index], *instr->cell,
                                        runtime->lanes.streams[SL_LANE_IN]);
    case SL_CODE_COMMIT:
        return sl_channel_commit_after(runtime->channels[instr->index], *instr->cell,
                                       runtime->lanes.streams[SL_LANE_OUT]);
    case SL_CODE_TO_MESSAGE:
        return copy_message(runtime, instr, SL_LANE_OUT);
    case SL_CODE_FROM_MESSAGE:
        return copy_message(runtime, instr, SL_LANE_IN);
    case SL_CODE_ADD:
        return add_values(runtime, instr);
    case SL_CODE_OFFLOAD:
    case SL_CODE_FETCH:
        return move_region(runtime, instr);
    case SL_CODE_LOSS:
        return watch_loss(runtime, instr);
    case SL_CODE_OUTPUT:
    case SL_CODE_INPUT_GRAD:
        return sl_runtime_deliver(runtime, instr);
    default:
        return sl_weights_run(runtime, instr);
    }
}

static sl_status run_instr(sl_runtime *runtime, const sl_instr *instr)
{
    if (runtime->links && sl_runtime_is_link_message(runtime, instr))
        return run_link_message(runtime, instr);
    switch ((sl_code)instr->code) {
    case SL_CODE_RECEIVE:
        return wait_for(runtime, instr, true);
    case SL_CODE_RESERVE:
        return wait_for(runtime, instr, false);
    case SL_CODE_RUN:
        return run(runtime, instr);
    default:
        return run_between(runtime, instr);
    }
}

/* With the events that join the streams. */
static sl_status run_ordered(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    SL_TRY(sl_lanes_before(runtime, instr));
    SL_TRY(run_instr(runtime, instr));
    SL_TRY(sl_lanes_after(runtime, instr));
done:
    return status;
}

static sl_status run_range(sl_runtime *runtime, int64_t first, int64_t count)
{
    const sl_instr *instr = &runtime->running->instrs[first], *end = instr + count;
    for (; instr < end; instr++) {
        sl_status status = runtime->host ? run_instr(runtime, instr) : run_ordered(runtime, instr);
        if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

/* What the runtime itself does for the current action. */
static sl_status run_current(sl_runtime *runtime)
{
    const sl_program_action *current = &runtime->running->actions[runtime->current];
    return run_range(runtime, current->first, current->count);
}

sl_status sl_runtime_run_action(sl_runtime *runtime, sl_action action)
{
    if (!runtime->running || !sl_action_equal(runtime->running->actions[runtime->current].action, action)) {
        char text[SL_ACTION_TEXT_SIZE];
        return sl_fail(SL_ERR_ARGUMENT, "%s is not the action that is being run",
                       sl_action_text(action, text, sizeof text));
    }
    return run_current(runtime);
}

static sl_status run_custom(sl_runtime *runtime, sl_action action)
{
    uint64_t count = sl_fail_count();
    sl_trace_break(&runtime->trace);
    sl_status status = runtime->custom[action.kind].fn(runtime->custom[action.kind].user, runtime, action);
    sl_trace_break(&runtime->trace);
    return sl_fail_callback(status, count, "the function set for this action");
}

/* The current action by whoever runs its kind. Phases and messages are traced one by one where they happen. */
static sl_status run_action(sl_runtime *runtime, sl_action action)
{
    sl_kind kind = (sl_kind)action.kind;
    bool custom = runtime->custom[kind].fn != NULL;
    bool traced = runtime->trace.capacity && sl_kind_class_of(kind) == SL_CLASS_WEIGHTS && custom;
    uint64_t start = traced ? sl_trace_start(&runtime->trace) : 0;
    sl_status status = custom ? run_custom(runtime, action) : run_current(runtime);
    if (traced)
        sl_trace_add(&runtime->trace, (sl_trace_event){ .start = start,
                                                        .step = runtime->context.step,
                                                        .microbatch = -1,
                                                        .stage = action.stage,
                                                        .kind = SL_TRACE_WEIGHTS,
                                                        .what = action.kind });
    return status;
}

/* ---- Steps with links ------------------------------------------------------------------------ */

/* Whether the running step is launched with its messages. */
static bool launches_messages(const sl_runtime *runtime)
{
    return runtime->lanes.captures.current && sl_lanes_order(runtime)->holds_messages;
}

/* Captures all pieces of the program; nothing is launched, and nothing of it is in the trace. */
static sl_status capture_ahead(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    const sl_trace before = runtime->trace;
    sl_captures *captures = &runtime->lanes.captures;
    const sl_program_order *order = sl_lanes_order(runtime);
    captures->ahead = true;
    for (int64_t i = 0; i < runtime->running->instr_count; i++) {
        if (order->instrs[i].piece >= 0)
            SL_TRY(run_instr(runtime, &runtime->running->instrs[i]));
    }
    SL_TRY(sl_stream_synchronize(runtime->stream)); /* the device has them */
    captures->current->is_ready = true;
done:
    captures->ahead = false;
    runtime->trace = before;
    return status;
}

/* Steps of a kind in which kernels are loaded, algorithms tried and graphs made. */
enum { POLLED_STEPS = 3 };

/* A callback may do anything that waits for the device, and a copy of a message in host memory does. */
static bool may_wait_inside(const sl_runtime *runtime)
{
    int linked = runtime->links ? sl_device_links_count(runtime->links) : 0;
    bool may = runtime->lanes.delivers || linked < runtime->pipeline->routes.edge_routes;
    for (int k = 0; k < runtime->stage_count; k++)
        may = may || !runtime->stages[k]->can_capture;
    return may;
}

/* Streams wait for words only in steps that are launched as a whole. In all others the host waits first: loading a kernel,
 * trying an algorithm, a callback or a copy of memory that is not pinned may hold it up until the device is done. Links of
 * NCCL join processes, and are never launched: there the first steps are enough. */
static bool polls_messages(const sl_runtime *runtime)
{
    return sl_device_links_can_capture(runtime->links) || runtime->lanes.captures.step < POLLED_STEPS ||
           may_wait_inside(runtime);
}

static sl_status begin_links(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int64_t label = sl_runtime_step_label(runtime), step = runtime->lanes.captures.step;
    bool launches = launches_messages(runtime);
    if (step == 1 && launches) {
        SL_TRY(sl_device_links_begin(runtime->links, label, false, runtime->stream));
        SL_TRY(capture_ahead(runtime));
    }
    if (step == 1) /* all ranks come here, whether they capture or not */
        SL_TRY(sl_group_barrier(runtime->group));
    if (step == 1 && runtime->replicas) /* and those of all pipelines */
        SL_TRY(sl_group_barrier(runtime->replicas));
    SL_TRY(sl_device_links_begin(runtime->links, label, !launches && polls_messages(runtime), runtime->stream));
done:
    return status;
}

/* For other ranks, in the running step. */
static bool streams_wait(const sl_runtime *runtime)
{
    bool in_links = runtime->links && !sl_device_links_are_polled(runtime->links);
    return in_links || (runtime->words && !sl_device_words_are_polled(runtime->words));
}

/* ---- The whole program ----------------------------------------------------------------------- */

/* Between actions posted collectives go on, unless the mover sees to them. */
static sl_status progress(sl_runtime *runtime)
{
    if (runtime->mover)
        return sl_group_check(runtime->group);
    if (runtime->posted.count == 0)
        return sl_group_progress(runtime->group);
    double start = sl_now();
    sl_status status = sl_group_progress(runtime->group);
    runtime->posted.seconds += sl_now() - start;
    return status;
}

/* What the rank is at; the number of the step takes `at` characters of its note, with a space behind it. */
static void note(sl_runtime *runtime, int at, const sl_program_action *action)
{
    static const char whole[] = ", launched as a whole";
    if (launches_messages(runtime))
        memcpy(runtime->note + at - 1, whole, sizeof whole); /* progress.c knows more if it takes long */
    else
        memcpy(runtime->note + at, action->text, sizeof action->text);
    sl_group_note(runtime->group, runtime->note);
    if (runtime->watchdog)
        sl_watchdog_note(runtime->watchdog, action);
}

sl_status sl_runtime_execute(sl_runtime *runtime, const sl_program *program)
{
    sl_status status = SL_OK;
    int at = snprintf(runtime->note, sizeof runtime->note, "step %lld ", (long long)sl_runtime_step_label(runtime));
    runtime->running = program;
    sl_phases_begin(runtime, program);
    sl_captures_begin(runtime);
    sl_trace_break(&runtime->trace);
    int64_t step = runtime->lanes.captures.step;
    if (runtime->words)
        status = sl_weights_begin(runtime, step < POLLED_STEPS, may_wait_inside(runtime));
    if (runtime->links && status == SL_OK)
        status = begin_links(runtime);
    atomic_store(&runtime->lanes.may_be_held_up, streams_wait(runtime));
    if (status != SL_OK)
        status = sl_runtime_fail(runtime, status, -1, (sl_action){ .microbatch = -1 });
    for (int64_t i = 0; i < program->action_count && status == SL_OK; i++) {
        const sl_program_action *each = &program->actions[i];
        runtime->current = i;
        note(runtime, at, each);
        status = progress(runtime);
        if (status == SL_OK)
            status = run_action(runtime, each->action);
        if (status != SL_OK)
            status = sl_runtime_fail(runtime, status, each->cell, each->action);
    }
    if (status == SL_OK) {
        status = run_range(runtime, program->tail, program->instr_count - program->tail);
        if (status != SL_OK)
            status = sl_runtime_fail(runtime, status, -1, (sl_action){ .microbatch = -1 });
    }
    if (runtime->watchdog)
        sl_watchdog_note(runtime->watchdog, NULL);
    sl_captures_finish(runtime);
    runtime->running = NULL;
    return status;
}
