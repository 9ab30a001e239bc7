/* Views of a timeline: the choice of the writer, and what the writers share. */
#include "schedule/view/view.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

typedef sl_status (*view_writer)(const sl_drawing *drawing, const sl_view_options *options, FILE *file);

static const view_writer writers[] = {
    [SL_VIEW_TEXT] = sl_drawing_write_text, [SL_VIEW_TRACE] = sl_drawing_write_trace,
    [SL_VIEW_SVG] = sl_drawing_write_svg,   [SL_VIEW_PNG] = sl_drawing_write_png,
    [SL_VIEW_PDF] = sl_drawing_write_pdf,   [SL_VIEW_HTML] = sl_drawing_write_html,
};

static const char *const endings[] = {
#define ENDING(name, ending) ending,
    SL_VIEW_LIST(ENDING)
#undef ENDING
};

sl_status sl_view_format_of(const char *path, sl_view_format *out)
{
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t ending = strlen(endings[i]);
        if (length > ending && sl_case_compare(path + length - ending, endings[i], ending) == 0) {
            *out = (sl_view_format)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "'%.200s' ends in none of .txt .json .svg .png .pdf .html", path);
}

static void count_steps(sl_drawing *drawing, int step_microbatches)
{
    int all = sl_schedule_microbatches(drawing->schedule);
    drawing->step_microbatches = step_microbatches > 0 ? step_microbatches : all > 0 ? all : 1;
    drawing->steps = all > 0 ? (all - 1) / drawing->step_microbatches + 1 : 1;
}

sl_action sl_drawing_in_step(const sl_drawing *drawing, sl_action action, int *step)
{
    *step = action.microbatch >= 0 ? action.microbatch / drawing->step_microbatches : 0;
    if (action.microbatch >= 0)
        action.microbatch %= drawing->step_microbatches;
    if (action.b_microbatch >= 0)
        action.b_microbatch %= drawing->step_microbatches;
    return action;
}

/* Numbers each rank's stages in rising order. */
static sl_status number_chunks(sl_drawing *drawing)
{
    int *next = NULL; /* (ranks) */
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(drawing->chunks, drawing->stages));
    SL_TRY(SL_NEW_ARRAY(next, drawing->ranks));
    for (int stage = 0; stage < drawing->stages; stage++) {
        int rank = sl_schedule_rank_of(drawing->schedule, stage);
        if (rank < 0)
            continue;
        drawing->chunks[stage] = next[rank]++;
        if (next[rank] > drawing->most_chunks)
            drawing->most_chunks = next[rank];
    }
done:
    sl_free(next);
    return status;
}

static void measure(sl_drawing *drawing)
{
    double sum = 0, lengths = 0;
    drawing->shortest = DBL_MAX;
    drawing->most_memory = DBL_MIN;
    for (int rank = 0; rank < drawing->ranks; rank++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(drawing->schedule, rank, &count);
        const sl_span *spans = sl_timeline_spans(drawing->timeline, rank);
        for (int64_t i = 0; i < count; i++) {
            double length = spans[i].end - spans[i].start;
            if (sl_kind_class_of(actions[i].kind) == SL_CLASS_COMPUTE && length > 0) {
                drawing->shortest = fmin(drawing->shortest, length);
                sum += length;
                lengths++;
            }
            if ((actions[i].kind == SL_KIND_SEND_F || actions[i].kind == SL_KIND_SEND_B) && length > 0)
                drawing->messages_take_time = true;
        }
        drawing->most_memory = fmax(drawing->most_memory, sl_timeline_peak_memory(drawing->timeline, rank));
        int slots = sl_timeline_peak_slots(drawing->timeline, rank);
        if (slots > drawing->most_slots)
            drawing->most_slots = slots;
    }
    if (lengths > 0)
        drawing->shortest = fmax(drawing->shortest, sum / lengths / 4);
    drawing->shortest = fmin(drawing->shortest, drawing->makespan);
}

/* Titles and names come from outside, file names among them, and may hold any byte; a long one is cut. What is left is
 * UTF-8 without control characters. */
static char *copy_clean(const char *from, char *text, size_t size)
{
    size_t used = 0;
    while (*from && used + 4 < size) {
        size_t length = sl_utf8_length(from, strnlen(from, 4));
        bool control = (unsigned char)*from < 0x20 || *from == 0x7f;
        if (length == 0 || control) {
            text[used++] = '?';
            from++;
            continue;
        }
        memcpy(text + used, from, length);
        used += length;
        from += length;
    }
    text[used] = '\0';
    return text;
}

static void clear_drawing(sl_drawing *drawing)
{
    sl_free(drawing->chunks);
    drawing->chunks = NULL;
}

static sl_status init_drawing(sl_drawing *drawing, const sl_timeline *timeline, const char *title)
{
    const sl_schedule *schedule = sl_timeline_schedule(timeline);
    *drawing = (sl_drawing){
        .timeline = timeline,
        .schedule = schedule,
        .ranks = sl_schedule_ranks(schedule),
        .stages = sl_schedule_stages(schedule),
        .makespan = sl_timeline_makespan(timeline),
        .most_chunks = 1,
    };
    copy_clean(title ? title : "schedule", drawing->title, sizeof drawing->title);
    sl_status status = number_chunks(drawing);
    if (status != SL_OK) {
        clear_drawing(drawing);
        return status;
    }
    measure(drawing);
    return SL_OK;
}

sl_status sl_timeline_write(const sl_timeline *timeline, sl_view_format format, const sl_view_options *options,
                            FILE *file)
{
    static const sl_view_options defaults;
    options = options ? options : &defaults;
    if ((size_t)format >= sizeof writers / sizeof *writers)
        return sl_fail(SL_ERR_ARGUMENT, "there is no view format %d", (int)format);
    sl_drawing drawing;
    sl_status status = init_drawing(&drawing, timeline, options->title);
    if (status != SL_OK)
        return status;
    drawing.rows = options->rows;
    count_steps(&drawing, options->step_microbatches);
    locale_t previous = sl_locale_begin(); /* a picture with commas in its numbers is none */
    errno = 0;
    status = writers[format](&drawing, options, file);
    sl_locale_end(previous);
    if (status == SL_OK && (fflush(file) != 0 || ferror(file)))
        status = sl_fail(SL_ERR_IO, "write the view: %s", errno ? strerror(errno) : "an earlier write failed");
    clear_drawing(&drawing);
    return status;
}

sl_status sl_timeline_save(const sl_timeline *timeline, sl_view_format format, const sl_view_options *options,
                           const char *path)
{
    sl_file *file = NULL;
    sl_status status = sl_file_create(path, &file);
    if (status != SL_OK)
        return status;
    status = sl_timeline_write(timeline, format, options, sl_file_stream(file));
    if (status == SL_OK)
        status = sl_file_commit(file);
    else if (status == SL_ERR_IO)
        sl_fail_context(status, "%s", path);
    sl_file_destroy(file);
    return status;
}

char *sl_drawing_row(const sl_drawing *drawing, int rank, char *text, size_t size)
{
    if (drawing->rows)
        return copy_clean(drawing->rows[rank], text, size);
    snprintf(text, size, "rank %d", rank);
    return text;
}

int sl_drawing_row_width(const sl_drawing *drawing)
{
    char text[ROW_NAME_SIZE];
    size_t longest = strlen(sl_drawing_row(drawing, drawing->ranks - 1, text, sizeof text));
    for (int rank = 0; drawing->rows && rank < drawing->ranks; rank++) {
        size_t length = strlen(sl_drawing_row(drawing, rank, text, sizeof text));
        longest = length > longest ? length : longest;
    }
    return (int)longest;
}

char *sl_drawing_figures(const sl_drawing *drawing, char *text, size_t size)
{
    int microbatches = drawing->steps > 1 ? drawing->step_microbatches : sl_schedule_microbatches(drawing->schedule);
    const char *stages = drawing->stages == 1 ? "" : "s", *parts = microbatches == 1 ? "" : "es";
    char steps[32] = "";
    if (drawing->steps > 1)
        snprintf(steps, sizeof steps, "%d steps of ", drawing->steps);
    if (drawing->rows) /* of several timelines: what can be said of them together */
        snprintf(text, size, "%d stage%s, %s%d microbatch%s", drawing->stages, stages, steps, microbatches, parts);
    else
        snprintf(text, size, "%d rank%s, %d stage%s, %s%d microbatch%s, makespan %.6g, bubble %.1f %%", drawing->ranks,
                 drawing->ranks == 1 ? "" : "s", drawing->stages, stages, steps, microbatches, parts, drawing->makespan,
                 100 * sl_timeline_bubble(drawing->timeline, -1));
    return text;
}

bool sl_drawing_partner(const sl_drawing *drawing, sl_action action, sl_action *out)
{
    static const struct {
        sl_kind kind;
        int step; /* from this stage to the partner's */
    } partners[SL_KIND_COUNT] = {
        [SL_KIND_SEND_F] = { SL_KIND_RECV_F, 1 },
        [SL_KIND_RECV_F] = { SL_KIND_SEND_F, -1 },
        [SL_KIND_SEND_B] = { SL_KIND_RECV_B, -1 },
        [SL_KIND_RECV_B] = { SL_KIND_SEND_B, 1 },
    };
    int stage = (int)action.stage + partners[action.kind].step;
    if (partners[action.kind].step == 0 || stage < 0 || stage >= drawing->stages)
        return false;
    *out = sl_action_make(partners[action.kind].kind, stage, action.microbatch);
    return true;
}

double sl_drawing_tick(double makespan, int most)
{
    if (!(makespan > 0))
        return 1;
    double tick = pow(10, floor(log10(makespan / most)));
    static const double steps[] = { 1, 2, 5, 10 };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (tick * steps[i] * most >= makespan * (1 - 1e-9))
            return tick * steps[i];
    }
    return tick * 10;
}
