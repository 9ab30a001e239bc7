/* Chrome/Perfetto trace: a process a rank, compute and communication as its two threads, flows from send to receive,
 * counters of memory and slots. One unit of time is one microsecond. */
#include "schedule/view/view.h"

#include "base/alloc.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>

enum { TRACK_COMPUTE = 0, TRACK_COMMUNICATION = 1 };

/* A communication action and where it is drawn. */
typedef struct trace_item {
    int64_t index; /* in the rank's list */
    sl_span span;
} trace_item;

static void begin_event(sl_json *json, const char *phase, const char *name, int rank, int track)
{
    sl_json_newline(json);
    sl_json_begin(json, '{');
    sl_json_put_string(json, "ph", phase);
    sl_json_put_string(json, "name", name);
    sl_json_put_int(json, "pid", rank);
    sl_json_put_int(json, "tid", track);
}

static void write_name(sl_json *json, const char *what, int rank, int track, const char *name)
{
    begin_event(json, "M", what, rank, track);
    sl_json_key(json, "args");
    sl_json_begin(json, '{');
    sl_json_put_string(json, "name", name);
    sl_json_end(json, '}');
    sl_json_end(json, '}');
}

static void write_order(sl_json *json, const char *what, int rank, int track, int place)
{
    begin_event(json, "M", what, rank, track);
    sl_json_key(json, "args");
    sl_json_begin(json, '{');
    sl_json_put_int(json, "sort_index", place);
    sl_json_end(json, '}');
    sl_json_end(json, '}');
}

static void write_names(sl_json *json, const sl_drawing *drawing, int rank)
{
    char name[ROW_NAME_SIZE];
    write_name(json, "process_name", rank, TRACK_COMPUTE, sl_drawing_row(drawing, rank, name, sizeof name));
    write_order(json, "process_sort_index", rank, TRACK_COMPUTE, rank);
    write_name(json, "thread_name", rank, TRACK_COMPUTE, "compute");
    write_order(json, "thread_sort_index", rank, TRACK_COMPUTE, TRACK_COMPUTE);
    write_name(json, "thread_name", rank, TRACK_COMMUNICATION, "communication");
    write_order(json, "thread_sort_index", rank, TRACK_COMMUNICATION, TRACK_COMMUNICATION);
}

/* How long the span is drawn: rounding must not make neighbors overlap. */
static double drawn_length(sl_span drawn)
{
    double length = drawn.end - drawn.start;
    return drawn.start + length > drawn.end ? nextafter(length, 0) : length;
}

/* drawn is the span on the track; the action's own goes into the arguments. */
static void write_action(sl_json *json, int rank, int track, sl_action action, sl_span drawn, sl_span span)
{
    char text[SL_ACTION_TEXT_SIZE];
    begin_event(json, "X", sl_action_text(action, text, sizeof text), rank, track);
    sl_json_put_string(json, "cat", sl_kind_name(action.kind));
    sl_json_put_double(json, "ts", drawn.start);
    sl_json_put_double(json, "dur", drawn_length(drawn));
    sl_json_key(json, "args");
    sl_json_begin(json, '{');
    sl_json_put_int(json, "stage", action.stage);
    if (action.microbatch >= 0)
        sl_json_put_int(json, "microbatch", action.microbatch);
    if (action.b_microbatch >= 0) {
        sl_json_put_int(json, "b_stage", action.b_stage);
        sl_json_put_int(json, "b_microbatch", action.b_microbatch);
    }
    sl_json_put_double(json, "start", span.start);
    sl_json_put_double(json, "end", span.end);
    sl_json_end(json, '}');
    sl_json_end(json, '}');
}

/* Both ends of a message compute the same number, from the sending stage. */
static int64_t flow_id(const sl_drawing *drawing, sl_action send)
{
    int64_t direction = send.kind == SL_KIND_SEND_B;
    return (direction * drawing->stages + send.stage) * (int64_t)sl_schedule_microbatches(drawing->schedule) +
           send.microbatch;
}

/* The arrow starts with the send and ends with the receive. */
static void write_flow(sl_json *json, const sl_drawing *drawing, int rank, sl_action action, sl_span drawn)
{
    sl_action partner;
    if (!sl_drawing_partner(drawing, action, &partner))
        return;
    bool sends = action.kind == SL_KIND_SEND_F || action.kind == SL_KIND_SEND_B;
    begin_event(json, sends ? "s" : "f", "message", rank, TRACK_COMMUNICATION);
    sl_json_put_string(json, "cat", "message");
    sl_json_put_int(json, "id", flow_id(drawing, sends ? action : partner));
    sl_json_put_double(json, "ts", sends ? drawn.start : drawn.start + drawn_length(drawn));
    if (!sends)
        sl_json_put_string(json, "bp", "e");
    sl_json_end(json, '}');
}

static int by_end(const void *a, const void *b)
{
    const trace_item *x = a, *y = b;
    if (x->span.end != y->span.end)
        return x->span.end < y->span.end ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Several transfers may be under way at once, but what is on one track must not overlap: each is drawn from where the
 * one that ended before it ended. */
static sl_status write_communication(sl_json *json, const sl_drawing *drawing, int rank)
{
    int64_t count = 0, found = 0;
    const sl_action *actions = sl_schedule_actions(drawing->schedule, rank, &count);
    const sl_span *spans = sl_timeline_spans(drawing->timeline, rank);
    trace_item *items = NULL;
    sl_status status = SL_NEW_ARRAY(items, count);
    if (status != SL_OK)
        return status;
    for (int64_t i = 0; i < count; i++) {
        if (sl_kind_class_of(actions[i].kind) != SL_CLASS_COMPUTE)
            items[found++] = (trace_item){ i, spans[i] };
    }
    qsort(items, (size_t)found, sizeof *items, by_end);
    double busy_until = 0;
    for (int64_t i = 0; i < found; i++) {
        sl_span drawn = items[i].span;
        drawn.start = fmax(drawn.start, busy_until);
        busy_until = drawn.end;
        sl_action action = actions[items[i].index];
        write_action(json, rank, TRACK_COMMUNICATION, action, drawn, items[i].span);
        write_flow(json, drawing, rank, action, drawn);
    }
    sl_free(items);
    return SL_OK;
}

typedef struct counter {
    sl_json *json;
    int rank;
} counter;

static bool write_usage(void *user, sl_usage usage)
{
    const counter *to = user;
    const struct {
        const char *name;
        double value;
    } series[] = { { "activation memory", usage.memory }, { "slots", usage.slots } };
    for (int i = 0; i < 2; i++) {
        begin_event(to->json, "C", series[i].name, to->rank, TRACK_COMPUTE);
        sl_json_put_double(to->json, "ts", usage.time);
        sl_json_key(to->json, "args");
        sl_json_begin(to->json, '{');
        sl_json_put_double(to->json, series[i].name, series[i].value);
        sl_json_end(to->json, '}');
        sl_json_end(to->json, '}');
    }
    return true;
}

static sl_status write_rank(sl_json *json, const sl_drawing *drawing, int rank)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(drawing->schedule, rank, &count);
    const sl_span *spans = sl_timeline_spans(drawing->timeline, rank);
    write_names(json, drawing, rank);
    for (int64_t i = 0; i < count; i++) {
        if (sl_kind_class_of(actions[i].kind) == SL_CLASS_COMPUTE)
            write_action(json, rank, TRACK_COMPUTE, actions[i], spans[i], spans[i]);
    }
    sl_status status = write_communication(json, drawing, rank);
    sl_timeline_usage(drawing->timeline, rank, write_usage, &(counter){ json, rank });
    return status;
}

sl_status sl_drawing_write_trace(const sl_drawing *drawing, const sl_view_options *options, FILE *file)
{
    (void)options;
    sl_status status = SL_OK;
    char text[256];
    sl_json json = { .file = file };
    sl_json_begin(&json, '{');
    sl_json_put_string(&json, "displayTimeUnit", "ns");
    sl_json_key(&json, "otherData");
    sl_json_begin(&json, '{');
    sl_json_put_string(&json, "title", drawing->title);
    sl_json_put_string(&json, "figures", sl_drawing_figures(drawing, text, sizeof text));
    sl_json_end(&json, '}');
    sl_json_newline(&json);
    sl_json_key(&json, "traceEvents");
    sl_json_begin(&json, '[');
    for (int rank = 0; rank < drawing->ranks && status == SL_OK; rank++)
        status = write_rank(&json, drawing, rank);
    sl_json_newline(&json);
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    fputc('\n', file);
    return status;
}
