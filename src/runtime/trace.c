/* What the traces of all ranks say together: mean costs, and a Chrome trace on one clock. */
#include "runtime/runtime.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

#include <math.h>

void sl_runtime_clear_trace(sl_runtime *runtime)
{
    runtime->trace.count = runtime->trace.next = 0;
    if (runtime->trace.capacity)
        sl_clock_start(&runtime->trace.clock);
}

/* Events that are still there, oldest first: the i-th. */
static int64_t kept_count(const sl_trace *trace)
{
    return trace->count < trace->capacity ? trace->count : trace->capacity;
}

static const sl_trace_event *kept_event(const sl_trace *trace, int64_t i)
{
    return &trace->events[(trace->next - kept_count(trace) + i + trace->capacity) % trace->capacity];
}

static sl_status need_trace(const sl_runtime *runtime)
{
    if (runtime->trace.capacity)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "the runtime was made without a trace (trace_events)");
}

/* ---- Marks ----------------------------------------------------------------------------------- */

sl_status sl_trace_create_marks(sl_trace *trace, sl_device *device, int64_t phases)
{
    sl_status status = SL_OK;
    for (int i = 0; i < 2; i++)
        SL_TRY(sl_event_create(device, &trace->now[i]));
    SL_TRY(SL_NEW_ARRAY(trace->marks, 2 * phases));
    for (; trace->mark_capacity < 2 * phases; trace->mark_capacity++)
        SL_TRY(sl_event_create(device, &trace->marks[trace->mark_capacity]));
done:
    return status;
}

void sl_trace_free(sl_trace *trace)
{
    for (int64_t i = 0; i < trace->mark_capacity; i++)
        sl_event_destroy(trace->marks[i]);
    sl_event_destroy(trace->now[0]);
    sl_event_destroy(trace->now[1]);
    sl_free(trace->marks);
    sl_free(trace->events);
}

sl_status sl_trace_mark(sl_trace *trace, sl_stream *stream, uint64_t *out)
{
    if (trace->mark_count == trace->mark_capacity)
        return sl_fail(SL_ERR_INTERNAL, "a step has more than %lld phases", (long long)(trace->mark_capacity / 2));
    *out = (uint64_t)trace->mark_count++;
    return stream ? sl_event_stamp(trace->marks[*out], stream) : SL_OK;
}

sl_status sl_trace_add_marked(sl_trace *trace, sl_stream *stream, sl_trace_event event)
{
    event.marked = true;
    sl_status status = sl_trace_mark(trace, stream, &event.end);
    if (status == SL_OK)
        sl_trace_put(trace, event);
    sl_trace_break(trace);
    return status;
}

/* When the stream got to a mark, in ticks, from how long ago that was. */
static sl_status ticks_of(const sl_trace *trace, uint64_t now, double rate, uint64_t *mark)
{
    double seconds = 0;
    sl_status status = sl_event_elapsed(trace->marks[*mark], trace->now[0], &seconds);
    *mark = now - (uint64_t)(seconds / rate);
    return status;
}

enum { CLOCK_TRIES = 4 };

/* When the stream, which has nothing left to do, got to trace->now[0], in ticks: half way between giving it the event
 * and hearing of it. The quickest of a few tries knows best. */
static sl_status find_now(sl_trace *trace, sl_stream *stream, uint64_t *out)
{
    sl_status status = SL_OK;
    uint64_t quickest = UINT64_MAX;
    for (int i = 0; i < CLOCK_TRIES; i++) {
        sl_event *event = trace->now[1];
        uint64_t before = sl_clock_ticks(&trace->clock);
        SL_TRY(sl_event_record(event, stream));
        SL_TRY(sl_event_synchronize(event));
        uint64_t took = sl_clock_ticks(&trace->clock) - before;
        if (took >= quickest)
            continue;
        quickest = took;
        *out = before + took / 2;
        trace->now[1] = trace->now[0];
        trace->now[0] = event;
    }
done:
    return status;
}

sl_status sl_trace_resolve(sl_trace *trace, sl_stream *stream)
{
    sl_status status = SL_OK;
    uint64_t now = 0;
    if (trace->mark_count == 0)
        return SL_OK;
    SL_TRY(find_now(trace, stream, &now));
    double rate = sl_clock_measure(&trace->clock).rate;
    for (int64_t i = kept_count(trace) - 1; i >= 0; i--) {
        sl_trace_event *event = &trace->events[(trace->next - 1 - i + 2 * trace->capacity) % trace->capacity];
        if (!event->marked)
            continue;
        SL_TRY(ticks_of(trace, now, rate, &event->start));
        SL_TRY(ticks_of(trace, now, rate, &event->end));
        event->marked = false;
    }
    trace->mark_count = 0;
done:
    return status;
}

/* ---- Costs ----------------------------------------------------------------------------------- */

sl_status sl_runtime_measure_costs(sl_runtime *runtime, sl_stage_cost *out)
{
    sl_status status = SL_OK;
    int stages = runtime->wiring->stage_count;
    double *sums = NULL; /* [stage][phase] seconds, then [stage][phase] times */
    int cells = stages * SL_PHASE_COUNT;
    SL_TRY(need_trace(runtime));
    SL_TRY(SL_NEW_ARRAY(sums, 2 * cells));
    double rate = sl_clock_measure(&runtime->trace.clock).rate;
    for (int64_t i = 0; i < kept_count(&runtime->trace); i++) {
        const sl_trace_event *event = kept_event(&runtime->trace, i);
        if (event->kind != SL_TRACE_PHASE)
            continue;
        sums[event->stage * SL_PHASE_COUNT + event->what] += (double)(event->end - event->start) * rate;
        sums[cells + event->stage * SL_PHASE_COUNT + event->what] += 1;
    }
    SL_TRY(sl_group_all_reduce(runtime->group, sums, (int64_t)2 * cells, SL_F64, SL_REDUCE_SUM));
    for (int i = 0; i < cells; i++)
        sums[i] = sums[cells + i] > 0 ? sums[i] / sums[cells + i] : 0;
    for (int s = 0; s < stages; s++) {
        const double *mean = &sums[(size_t)s * SL_PHASE_COUNT];
        out[s] = (sl_stage_cost){
            .f = mean[SL_PHASE_F], .i = mean[SL_PHASE_I], .w = mean[SL_PHASE_W], .b = mean[SL_PHASE_B]
        };
    }
done:
    sl_free(sums);
    return status;
}

/* ---- The file -------------------------------------------------------------------------------- */

enum { TRACK_COMPUTE, TRACK_MESSAGES };

/* An event as ranks tell each other of it. */
typedef struct timed_event {
    double start, end; /* seconds on rank 0's clock */
    sl_trace_event event;
} timed_event;

typedef struct writer {
    sl_json json;
    const sl_runtime *runtime;
    double origin; /* time 0 of the file */
} writer;

static void put_head(writer *out, const char *phase, const char *name, int rank, int track)
{
    sl_json_newline(&out->json);
    sl_json_begin(&out->json, '{');
    sl_json_put_string(&out->json, "ph", phase);
    sl_json_put_string(&out->json, "name", name);
    sl_json_put_int(&out->json, "pid", rank);
    sl_json_put_int(&out->json, "tid", track);
}

static void put_name(writer *out, const char *kind, int rank, int track, const char *name)
{
    put_head(out, "M", kind, rank, track);
    sl_json_key(&out->json, "args");
    sl_json_begin(&out->json, '{');
    sl_json_put_string(&out->json, "name", name);
    sl_json_end(&out->json, '}');
    sl_json_end(&out->json, '}');
}

/* Whole nanoseconds, so that an event ends exactly where the next one starts. */
static double microseconds(const writer *out, double time)
{
    return round((time - out->origin) * 1e9) / 1e3;
}

/* The action that an event belongs to. */
static sl_action action_of(const sl_runtime *runtime, const sl_trace_event *event)
{
    static const sl_kind phases[] = { SL_KIND_F, SL_KIND_I, SL_KIND_W, SL_KIND_B };
    if (event->kind == SL_TRACE_PHASE)
        return sl_action_make(phases[event->what], event->stage, event->microbatch);
    if (event->kind == SL_TRACE_WEIGHTS)
        return sl_action_make((sl_kind)event->what, event->stage, -1);
    const sl_route *route = &runtime->pipeline->routes.list[event->route];
    bool receive = event->kind == SL_TRACE_RECEIVE;
    sl_kind kind =
        route->grad ? (receive ? SL_KIND_RECV_B : SL_KIND_SEND_B) : (receive ? SL_KIND_RECV_F : SL_KIND_SEND_F);
    return sl_action_make(kind, receive ? route->to : route->from, event->microbatch);
}

/* A message's two ends carry the same number: flows join them. */
static int64_t flow_id(const sl_runtime *runtime, int route, const sl_trace_event *event)
{
    return (event->step * runtime->wiring->microbatches + event->microbatch) * runtime->pipeline->routes.count + route;
}

static void put_flow(writer *out, const char *phase, int rank, int track, int64_t id, double time)
{
    put_head(out, phase, "message", rank, track);
    sl_json_put_string(&out->json, "cat", "message");
    sl_json_put_int(&out->json, "id", id);
    sl_json_put_double(&out->json, "ts", microseconds(out, time));
    if (*phase == 'f')
        sl_json_put_string(&out->json, "bp", "e");
    sl_json_end(&out->json, '}');
}

/* The messages that a phase makes start at its end. */
static void put_sends(writer *out, int rank, const timed_event *timed)
{
    const sl_trace_event *event = &timed->event;
    const sl_runtime *runtime = out->runtime;
    bool grads = event->what == SL_PHASE_I || event->what == SL_PHASE_B;
    for (int r = 0; r < runtime->pipeline->routes.edge_routes; r++) {
        const sl_route *route = &runtime->pipeline->routes.list[r];
        if (route->from == event->stage && (route->grad ? grads : event->what == SL_PHASE_F))
            put_flow(out, "s", rank, TRACK_COMPUTE, flow_id(runtime, r, event), timed->end);
    }
}

static void put_event(writer *out, int rank, const timed_event *timed)
{
    const sl_trace_event *event = &timed->event;
    char text[SL_ACTION_TEXT_SIZE] = "end of step";
    bool compute = event->kind == SL_TRACE_PHASE, named = event->kind != SL_TRACE_END;
    sl_action action = { .microbatch = -1 };
    if (named) {
        action = action_of(out->runtime, event);
        sl_action_text(action, text, sizeof text);
    }
    put_head(out, "X", text, rank, compute ? TRACK_COMPUTE : TRACK_MESSAGES);
    sl_json_put_string(&out->json, "cat", named ? sl_kind_name((sl_kind)action.kind) : "end");
    double start = microseconds(out, timed->start), end = microseconds(out, timed->end);
    sl_json_put_double(&out->json, "ts", start);
    sl_json_put_double(&out->json, "dur", round((end - start) * 1e3) / 1e3);
    sl_json_key(&out->json, "args");
    sl_json_begin(&out->json, '{');
    sl_json_put_int(&out->json, "step", event->step);
    if (named)
        sl_json_put_int(&out->json, "stage", action.stage);
    if (action.microbatch >= 0)
        sl_json_put_int(&out->json, "microbatch", action.microbatch);
    sl_json_end(&out->json, '}');
    sl_json_end(&out->json, '}');
    if (compute)
        put_sends(out, rank, timed);
    else if (event->kind == SL_TRACE_RECEIVE)
        put_flow(out, "f", rank, TRACK_MESSAGES, flow_id(out->runtime, event->route, event), timed->end);
}

/* Times of all ranks on rank 0's clock; the earliest is 0. */
static double find_origin(const sl_blobs *blobs)
{
    double origin = 0;
    bool any = false;
    for (int rank = 0; rank < blobs->count; rank++) {
        const timed_event *events = blobs->data[rank];
        for (size_t i = 0; i < blobs->bytes[rank] / sizeof *events; i++) {
            if (!any || events[i].start < origin)
                origin = events[i].start;
            any = true;
        }
    }
    return origin;
}

static void write_all(const sl_runtime *runtime, const sl_blobs *blobs, FILE *file)
{
    writer out = { .json = { .file = file }, .runtime = runtime, .origin = find_origin(blobs) };
    sl_json_begin(&out.json, '{');
    sl_json_put_string(&out.json, "displayTimeUnit", "ms");
    sl_json_key(&out.json, "traceEvents");
    sl_json_begin(&out.json, '[');
    for (int rank = 0; rank < blobs->count; rank++) {
        char name[32];
        const timed_event *events = blobs->data[rank];
        snprintf(name, sizeof name, "rank %d", rank);
        put_name(&out, "process_name", rank, TRACK_COMPUTE, name);
        put_name(&out, "thread_name", rank, TRACK_COMPUTE, "compute");
        put_name(&out, "thread_name", rank, TRACK_MESSAGES, "messages");
        for (size_t i = 0; i < blobs->bytes[rank] / sizeof *events; i++)
            put_event(&out, rank, &events[i]);
    }
    sl_json_end(&out.json, ']');
    sl_json_end(&out.json, '}');
    fputc('\n', file);
}

static sl_status gather_events(sl_runtime *runtime, sl_blobs **out)
{
    sl_status status = SL_OK;
    timed_event *events = NULL;
    double offset = 0;
    int64_t count = kept_count(&runtime->trace);
    SL_TRY(sl_group_clock_offset(runtime->group, &offset));
    SL_TRY(SL_NEW_ARRAY(events, count));
    sl_clock_scale scale = sl_clock_measure(&runtime->trace.clock);
    for (int64_t i = 0; i < count; i++) {
        const sl_trace_event *event = kept_event(&runtime->trace, i);
        events[i] = (timed_event){ sl_clock_seconds(&scale, event->start) + offset,
                                   sl_clock_seconds(&scale, event->end) + offset, *event };
    }
    SL_TRY(sl_group_gather_blobs(runtime->group, events, (size_t)count * sizeof *events, out));
done:
    sl_free(events);
    return status;
}

static sl_status save(const sl_runtime *runtime, const sl_blobs *blobs, const char *path)
{
    sl_status status = SL_OK;
    sl_file *file = NULL;
    SL_TRY(sl_file_create(path, &file));
    write_all(runtime, blobs, sl_file_stream(file));
    SL_TRY(sl_file_commit(file));
done:
    sl_file_destroy(file);
    return status;
}

sl_status sl_runtime_save_trace(sl_runtime *runtime, const char *path)
{
    sl_status status = SL_OK;
    sl_blobs *blobs = NULL;
    SL_TRY(need_trace(runtime));
    SL_TRY(gather_events(runtime, &blobs));
    SL_TRY(sl_gather_outcomes(runtime->group, "rank", runtime->rank == 0 ? save(runtime, blobs, path) : SL_OK));
done:
    sl_blobs_destroy(blobs);
    return status;
}
