/* The interactive page: the files page.html, page.css and page.js with the timeline as JSON between them. */
#include "schedule/view/view.h"

#include "base/json.h"
#include "schedule/view/page.css.h"
#include "schedule/view/page.html.h"
#include "schedule/view/page.js.h"

#include <inttypes.h>
#include <string.h>

#define MOST_ACTIONS 1000000 /* a browser holds a few hundred bytes for each */

static const char *const kind_texts[SL_KIND_COUNT] = {
    [SL_KIND_F] = "forward",
    [SL_KIND_I] = "input gradient",
    [SL_KIND_W] = "weight gradient",
    [SL_KIND_B] = "backward",
    [SL_KIND_SEND_F] = "send of activations",
    [SL_KIND_RECV_F] = "receipt of activations",
    [SL_KIND_SEND_B] = "send of gradients",
    [SL_KIND_RECV_B] = "receipt of gradients",
    [SL_KIND_WAIT_SEND_F] = "wait for a send of activations",
    [SL_KIND_WAIT_SEND_B] = "wait for a send of gradients",
    [SL_KIND_UNSHARD] = "unshard",
    [SL_KIND_RESHARD] = "reshard",
    [SL_KIND_REDUCE_GRAD] = "gradient reduction",
    [SL_KIND_WAIT_REDUCE_GRAD] = "wait for a gradient reduction",
    [SL_KIND_OVERLAP_F_B] = "forward and backward",
};

static void write_color(sl_json *json, sl_rgb color)
{
    char text[8];
    snprintf(text, sizeof text, "#%02x%02x%02x", color.red, color.green, color.blue);
    sl_json_string(json, text);
}

static void write_kinds(sl_json *json, const sl_drawing *drawing)
{
    sl_json_put_int(json, "forward", SL_KIND_F);
    sl_json_put_int(json, "backward", SL_KIND_B);
    sl_json_key(json, "kinds");
    sl_json_begin(json, '[');
    for (int kind = 0; kind < SL_KIND_COUNT; kind++) {
        sl_json_newline(json);
        sl_json_begin(json, '{');
        sl_json_put_string(json, "name", sl_kind_name((sl_kind)kind));
        sl_json_put_string(json, "what", kind_texts[kind]);
        sl_json_put_int(json, "group", sl_kind_class_of((sl_kind)kind));
        sl_json_key(json, "colors");
        sl_json_begin(json, '[');
        for (int chunk = 0; chunk < drawing->most_chunks; chunk++)
            write_color(json, sl_drawing_chunk_color(drawing, (sl_kind)kind, chunk));
        sl_json_end(json, ']');
        sl_json_end(json, '}');
    }
    sl_json_end(json, ']');
}

static void write_legend(sl_json *json, const sl_drawing *drawing)
{
    sl_kind kind;
    const char *text;
    sl_json_key(json, "legend");
    sl_json_begin(json, '[');
    for (int i = 0; (text = sl_drawing_legend(drawing, i, &kind)); i++) {
        if (sl_kind_class_of(kind) != SL_CLASS_COMPUTE && !drawing->messages_take_time)
            continue;
        sl_json_begin(json, '{');
        sl_json_put_string(json, "text", text);
        sl_json_key(json, "color");
        write_color(json, sl_drawing_color(drawing, kind, -1));
        sl_json_end(json, '}');
    }
    sl_json_end(json, ']');
}

static bool write_usage(void *user, sl_usage usage)
{
    sl_json *json = user;
    sl_json_double(json, usage.time);
    sl_json_int(json, usage.slots);
    sl_json_double(json, usage.memory);
    return true;
}

static void write_actions(sl_json *json, const sl_drawing *drawing, int rank)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(drawing->schedule, rank, &count);
    const sl_span *spans = sl_timeline_spans(drawing->timeline, rank);
    sl_json_key(json, "actions");
    sl_json_begin(json, '[');
    for (int64_t i = 0; i < count; i++) {
        sl_json_int(json, actions[i].kind);
        sl_json_int(json, actions[i].stage);
        sl_json_int(json, actions[i].microbatch);
        sl_json_double(json, spans[i].start);
        sl_json_double(json, spans[i].end);
    }
    sl_json_end(json, ']');
    sl_json_key(json, "overlaps");
    sl_json_begin(json, '{');
    for (int64_t i = 0; i < count; i++) {
        if (actions[i].kind != SL_KIND_OVERLAP_F_B)
            continue;
        char index[24];
        snprintf(index, sizeof index, "%" PRId64, i);
        sl_json_key(json, index);
        sl_json_begin(json, '[');
        sl_json_int(json, actions[i].b_stage);
        sl_json_int(json, actions[i].b_microbatch);
        sl_json_end(json, ']');
    }
    sl_json_end(json, '}');
}

static void write_row(sl_json *json, const sl_drawing *drawing, int rank)
{
    char name[ROW_NAME_SIZE];
    sl_json_newline(json);
    sl_json_begin(json, '{');
    sl_json_put_string(json, "name", sl_drawing_row(drawing, rank, name, sizeof name));
    sl_json_put_double(json, "bubble", sl_timeline_bubble(drawing->timeline, rank));
    sl_json_put_int(json, "peak_slots", sl_timeline_peak_slots(drawing->timeline, rank));
    sl_json_put_double(json, "peak_memory", sl_timeline_peak_memory(drawing->timeline, rank));
    write_actions(json, drawing, rank);
    sl_json_key(json, "usage");
    sl_json_begin(json, '[');
    sl_timeline_usage(drawing->timeline, rank, write_usage, json);
    sl_json_end(json, ']');
    sl_json_end(json, '}');
}

static void write_data(const sl_drawing *drawing, FILE *file)
{
    char text[256];
    sl_json json = { .file = file };
    sl_json_begin(&json, '{');
    sl_json_put_string(&json, "title", drawing->title);
    sl_json_put_string(&json, "figures", sl_drawing_figures(drawing, text, sizeof text));
    sl_json_put_double(&json, "makespan", drawing->makespan);
    sl_json_put_int(&json, "stages", drawing->stages);
    sl_json_put_bool(&json, "messages", drawing->messages_take_time);
    write_kinds(&json, drawing);
    write_legend(&json, drawing);
    sl_json_key(&json, "chunks");
    sl_json_begin(&json, '[');
    for (int stage = 0; stage < drawing->stages; stage++)
        sl_json_int(&json, drawing->chunks[stage]);
    sl_json_end(&json, ']');
    sl_json_key(&json, "rows");
    sl_json_begin(&json, '[');
    for (int rank = 0; rank < drawing->ranks; rank++)
        write_row(&json, drawing, rank);
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
}

static void write_title(const char *text, FILE *file)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '&')
            fprintf(file, "&#%d;", *text);
        else
            fputc(*text, file);
    }
}

/* The page up to the mark; *rest is set to what follows the mark. */
static void write_until(const char *mark, const char **rest, FILE *file)
{
    const char *at = strstr(*rest, mark);
    fwrite(*rest, 1, (size_t)(at - *rest), file);
    *rest = at + strlen(mark);
}

sl_status sl_drawing_write_html(const sl_drawing *drawing, const sl_view_options *options, FILE *file)
{
    (void)options;
    int64_t size = sl_schedule_size(drawing->schedule);
    if (size > MOST_ACTIONS)
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "%" PRId64 " actions are too many for a page (at most %d): .svg, .png and .pdf take any "
                       "number, .json opens in Perfetto",
                       size, MOST_ACTIONS);
    const char *rest = page_html;
    write_until("@TITLE@", &rest, file);
    write_title(drawing->title, file);
    write_until("@STYLE@", &rest, file);
    fputs(page_css, file);
    write_until("@DATA@", &rest, file);
    write_data(drawing, file);
    write_until("@SCRIPT@", &rest, file);
    fputs(page_js, file);
    fputs(rest, file);
    return SL_OK;
}
