/* The layout of a picture: a row a rank with lanes for compute, messages and memory; axis above, figures at the right,
 * legend below. */
#include "schedule/view/picture.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define FONT 11.0
#define SMALLEST_FONT 5.5
#define FULL_LABEL_FONT 7.7 /* smallest in which an action has its whole label */
#define DIGIT 0.64          /* width of a digit as a share of the font size; a W is as wide as an em */
#define MARGIN 16.0
#define RIGHT 196.0      /* of the chart: three columns of figures */
#define NARROWEST 760.0  /* of the chart */
#define WIDEST 6000.0    /* of the chart; half of it if rows are compared, to be seen at once */
#define TALLEST 24000.0  /* of all rows */
#define MOST_STEPS 100   /* of a timeline that are divided by lines */
#define SEAM 0.4         /* by this neighbors of one color overlap, so that nothing shines through */
#define THINNEST_BOX 0.3 /* boxes that end within this distance of the last are not drawn: nobody would see them */
#define MOST_BOXES                                                                                                     \
    200000.0 /* about; beyond it the distance grows, so that a file stays of a size that can be opened                 \
              */

static const sl_rgb black = { 0x1a, 0x1a, 0x1a }, gray = { 0x66, 0x66, 0x66 }, faint = { 0xe4, 0xe4, 0xe4 },
                    idle = { 0xf4, 0xf4, 0xf4 }, memory_color = { 0xb8, 0xb0, 0xcc };

/* Width of the text of an action as a share of the font size. */
static double em_width(const char *text)
{
    double width = 0;
    for (; *text; text++)
        width += *text == 'W' ? 1 : DIGIT;
    return width;
}

/* Width of the shortest action if the picture's width is not limited: its longest label fits in. */
static double shortest_box(const sl_drawing *drawing)
{
    char text[SL_ACTION_TEXT_SIZE];
    sl_kind kind = sl_schedule_has_kind(drawing->schedule, SL_KIND_W) ? SL_KIND_W : SL_KIND_F;
    sl_action last = sl_action_make(kind, drawing->stages - 1, drawing->step_microbatches - 1);
    return fmax(21, em_width(sl_action_text(last, text, sizeof text)) * FULL_LABEL_FONT + 3);
}

void sl_picture_init(sl_picture *picture, const sl_drawing *drawing)
{
    double wanted = drawing->shortest > 0 ? drawing->makespan / drawing->shortest * shortest_box(drawing) : NARROWEST;
    double full_pitch = 24 + (drawing->messages_take_time ? 8 : 0) + 12 + 6;
    *picture = (sl_picture){ .drawing = drawing, .compute_height = 24, .memory_height = 12, .label_every = 1 };
    picture->message_height = drawing->messages_take_time ? 8 : 0;
    picture->pitch = fmin(full_pitch, TALLEST / drawing->ranks);
    if (picture->pitch < full_pitch) { /* many ranks: compute alone, thinner */
        picture->message_height = picture->memory_height = 0;
        picture->compute_height = fmin(24, picture->pitch * 0.9);
        picture->label_every = (int)ceil((FONT + 3) / picture->pitch);
    }
    picture->chart_width = fmin(fmax(wanted, NARROWEST), drawing->rows ? WIDEST / 2 : WIDEST);
    picture->scale = drawing->makespan > 0 ? picture->chart_width / drawing->makespan : 0;
    picture->thinnest = fmax(THINNEST_BOX, picture->chart_width * drawing->ranks / MOST_BOXES);
    picture->left = MARGIN + FONT * DIGIT * sl_drawing_row_width(drawing) + 12;
    picture->top = MARGIN + 62;
    picture->width = picture->left + picture->chart_width + RIGHT + MARGIN;
    picture->height = picture->top + picture->pitch * drawing->ranks + 40 + MARGIN;
}

static double x_of(const sl_picture *picture, double time)
{
    return picture->left + time * picture->scale;
}

static double y_of(const sl_picture *picture, int rank)
{
    return picture->top + picture->pitch * rank;
}

/* Says all there is to say about an action. */
static void describe(const sl_drawing *drawing, sl_action action, sl_span span, int rank, char *text, size_t size)
{
    char name[SL_ACTION_TEXT_SIZE], of[32] = "";
    int step = 0;
    action = sl_drawing_in_step(drawing, action, &step);
    if (drawing->steps > 1)
        snprintf(of, sizeof of, " of step %d", step + 1);
    snprintf(text, size, "%s%s on rank %d: %.6g to %.6g", sl_action_text(action, name, sizeof name), of, rank,
             span.start, span.end);
}

/* The longest of "12F3", "3" that fits, in the largest font that fits. */
static void draw_label(sl_canvas *canvas, sl_action part, double x, double y, double width, double height, sl_rgb box)
{
    char full[SL_ACTION_TEXT_SIZE], number[16];
    snprintf(number, sizeof number, "%d", part.microbatch);
    const char *const texts[] = { sl_action_text(part, full, sizeof full), number };
    for (int i = 0; i < 2; i++) {
        double least = i == 0 ? FULL_LABEL_FONT : SMALLEST_FONT;
        double size = fmin(fmin(FONT, height * 0.8), (width - 2) / em_width(texts[i]));
        if (size < least)
            continue;
        canvas->text(canvas, x + width / 2, y + height / 2 + size * 0.36, size, SL_ALIGN_CENTER,
                     sl_drawing_text_color(box), texts[i]);
        return;
    }
}

/* The F and the B of an overlap share the height. The box begins at x, which is where the action does unless it stands
 * for narrow ones before it too. */
static void draw_compute(const sl_picture *picture, sl_canvas *canvas, sl_action action, sl_span span, double x,
                         int rank)
{
    char tip[128];
    sl_action parts[2];
    int step, count = sl_action_parts(sl_drawing_in_step(picture->drawing, action, &step), parts);
    double width = x_of(picture, span.end) - x;
    double gap = width > 3 ? 0.8 : 0; /* between neighbors */
    double height = picture->compute_height / count;
    describe(picture->drawing, action, span, rank, tip, sizeof tip);
    for (int i = 0; i < count; i++) {
        double y = y_of(picture, rank) + i * height;
        sl_rgb color = sl_drawing_color(picture->drawing, parts[i].kind, parts[i].stage);
        canvas->box(canvas, x, y, width - gap, height, color, tip);
        draw_label(canvas, parts[i], x, y, width - gap, height, color);
    }
}

static void draw_message(const sl_picture *picture, sl_canvas *canvas, sl_action action, sl_span span, int rank)
{
    char tip[128];
    double height = picture->message_height / 2 - 0.5;
    bool sends = action.kind == SL_KIND_SEND_F || action.kind == SL_KIND_SEND_B;
    double y = y_of(picture, rank) + picture->compute_height + 1 + (sends ? 0 : height + 0.5);
    describe(picture->drawing, action, span, rank, tip, sizeof tip);
    canvas->box(canvas, x_of(picture, span.start), y, (span.end - span.start) * picture->scale, height,
                sl_drawing_color(picture->drawing, action.kind, action.stage), tip);
}

static void draw_messages(const sl_picture *picture, sl_canvas *canvas, int rank)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(picture->drawing->schedule, rank, &count);
    const sl_span *spans = sl_timeline_spans(picture->drawing->timeline, rank);
    double drawn_to[SL_KIND_COUNT];
    for (int kind = 0; kind < SL_KIND_COUNT; kind++)
        drawn_to[kind] = -DBL_MAX;
    for (int64_t i = 0; i < count; i++) {
        double end = x_of(picture, spans[i].end);
        if (sl_kind_class_of(actions[i].kind) == SL_CLASS_COMPUTE || spans[i].end <= spans[i].start ||
            end - drawn_to[actions[i].kind] < picture->thinnest)
            continue;
        draw_message(picture, canvas, actions[i], spans[i], rank);
        drawn_to[actions[i].kind] = end;
    }
}

static void draw_actions(const sl_picture *picture, sl_canvas *canvas, int rank)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(picture->drawing->schedule, rank, &count);
    const sl_span *spans = sl_timeline_spans(picture->drawing->timeline, rank);
    double drawn_to = -DBL_MAX, last_end = -DBL_MAX, x = 0; /* x: where what is not yet drawn begins */
    for (int64_t i = 0; i < count; i++) {
        double start = x_of(picture, spans[i].start), end = x_of(picture, spans[i].end);
        if (sl_kind_class_of(actions[i].kind) != SL_CLASS_COMPUTE || end <= start)
            continue;
        if (last_end <= drawn_to || start - last_end > picture->thinnest)
            x = start;
        last_end = end;
        if (end - drawn_to < picture->thinnest)
            continue;
        draw_compute(picture, canvas, actions[i], spans[i], x, rank);
        drawn_to = end;
    }
}

/* Memory over time as a row of bars that stand on the bottom of their lane. */
typedef struct memory_lane {
    const sl_picture *picture;
    sl_canvas *canvas;
    int rank;
    sl_usage now;
} memory_lane;

static bool draw_usage(void *user, sl_usage usage)
{
    memory_lane *lane = user;
    const sl_picture *picture = lane->picture;
    double x = x_of(picture, lane->now.time), width = x_of(picture, usage.time) - x;
    if (lane->now.memory > 0 && width >= picture->thinnest) {
        double height = picture->memory_height * lane->now.memory / picture->drawing->most_memory;
        double bottom =
            y_of(picture, lane->rank) + picture->compute_height + picture->message_height + 2 + picture->memory_height;
        char tip[128];
        snprintf(tip, sizeof tip, "rank %d holds %d slots, memory %.6g, from %.6g to %.6g", lane->rank, lane->now.slots,
                 lane->now.memory, lane->now.time, usage.time);
        lane->canvas->box(lane->canvas, x, bottom - height, width + SEAM, height, memory_color, tip);
    }
    if (lane->now.memory <= 0 || width >= picture->thinnest)
        lane->now = usage;
    else
        lane->now.memory = fmax(lane->now.memory, usage.memory); /* too short to show; keep the higher */
    return true;
}

static void draw_rank(const sl_picture *picture, sl_canvas *canvas, int rank)
{
    const sl_drawing *drawing = picture->drawing;
    double y = y_of(picture, rank);
    draw_actions(picture, canvas, rank);
    if (picture->message_height > 0)
        draw_messages(picture, canvas, rank);
    if (picture->memory_height > 0) {
        memory_lane lane = { picture, canvas, rank, { 0, 0, 0 } };
        sl_timeline_usage(drawing->timeline, rank, draw_usage, &lane);
    }
    if (rank % picture->label_every != 0)
        return;
    char text[64];
    double base = y + picture->compute_height / 2 + FONT * 0.36;
    double right = picture->left + picture->chart_width;
    canvas->text(canvas, picture->left - 8, base, FONT, SL_ALIGN_RIGHT, black,
                 sl_drawing_row(drawing, rank, text, sizeof text));
    snprintf(text, sizeof text, "%.1f %%", 100 * sl_timeline_bubble(drawing->timeline, rank));
    canvas->text(canvas, right + 62, base, FONT, SL_ALIGN_RIGHT, black, text);
    snprintf(text, sizeof text, "%d", sl_timeline_peak_slots(drawing->timeline, rank));
    canvas->text(canvas, right + 110, base, FONT, SL_ALIGN_RIGHT, black, text);
    snprintf(text, sizeof text, "%.4g", sl_timeline_peak_memory(drawing->timeline, rank));
    canvas->text(canvas, right + 190, base, FONT, SL_ALIGN_RIGHT, black, text);
}

static void draw_head(const sl_picture *picture, sl_canvas *canvas)
{
    char text[256];
    double right = picture->left + picture->chart_width;
    canvas->text(canvas, MARGIN, MARGIN + 14, 16, SL_ALIGN_LEFT, black, picture->drawing->title);
    canvas->text(canvas, MARGIN, MARGIN + 32, FONT, SL_ALIGN_LEFT, gray,
                 sl_drawing_figures(picture->drawing, text, sizeof text));
    static const struct {
        double at;
        const char *name;
    } columns[] = { { 62, "bubble" }, { 110, "slots" }, { 190, "peak memory" } };
    for (int i = 0; i < 3; i++)
        canvas->text(canvas, right + columns[i].at, picture->top - 7, FONT * 0.9, SL_ALIGN_RIGHT, gray,
                     columns[i].name);
}

static void draw_axis(const sl_picture *picture, sl_canvas *canvas)
{
    double tick = sl_drawing_tick(picture->drawing->makespan, (int)(picture->chart_width / 55));
    double bottom = picture->top + picture->pitch * picture->drawing->ranks;
    for (double k = 0; k * tick <= picture->drawing->makespan * (1 + 1e-9); k++) {
        char text[32];
        double x = x_of(picture, k * tick);
        snprintf(text, sizeof text, "%.6g", k * tick);
        canvas->line(canvas, x, picture->top - 4, x, bottom, 0.6, faint);
        canvas->text(canvas, x, picture->top - 7, FONT * 0.9, SL_ALIGN_CENTER, gray, text);
    }
}

static double first_start(const sl_drawing *drawing, int wanted)
{
    double start = DBL_MAX;
    for (int rank = 0; rank < drawing->ranks; rank++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(drawing->schedule, rank, &count);
        const sl_span *spans = sl_timeline_spans(drawing->timeline, rank);
        for (int64_t i = 0; i < count; i++) {
            int step;
            sl_drawing_in_step(drawing, actions[i], &step);
            if (step == wanted && actions[i].microbatch >= 0)
                start = fmin(start, spans[i].start);
        }
    }
    return start;
}

/* A line where each step after the first begins. */
static void draw_steps(const sl_picture *picture, sl_canvas *canvas)
{
    double bottom = picture->top + picture->pitch * picture->drawing->ranks;
    for (int step = 1; step < picture->drawing->steps && step < MOST_STEPS; step++) {
        double start = first_start(picture->drawing, step);
        if (start < DBL_MAX)
            canvas->line(canvas, x_of(picture, start), picture->top - 4, x_of(picture, start), bottom, 1.2, black);
    }
}

static void draw_legend(const sl_picture *picture, sl_canvas *canvas)
{
    double x = picture->left, y = picture->top + picture->pitch * picture->drawing->ranks + 22;
    sl_kind kind;
    const char *name;
    for (int i = 0; (name = sl_drawing_legend(picture->drawing, i, &kind)); i++) {
        if (sl_kind_class_of(kind) != SL_CLASS_COMPUTE && picture->message_height <= 0)
            continue;
        canvas->box(canvas, x, y - 9, 12, 12, sl_drawing_color(picture->drawing, kind, -1), NULL);
        canvas->text(canvas, x + 17, y + 1, FONT, SL_ALIGN_LEFT, black, name);
        x += 17 + FONT * DIGIT * (double)strlen(name) + 18;
    }
    if (picture->memory_height > 0) {
        canvas->box(canvas, x, y - 9, 12, 12, memory_color, NULL);
        canvas->text(canvas, x + 17, y + 1, FONT, SL_ALIGN_LEFT, black, "activation memory");
        x += 17 + FONT * DIGIT * 17 + 18;
    }
    if (picture->drawing->most_chunks > 1)
        canvas->text(canvas, x, y + 1, FONT, SL_ALIGN_LEFT, gray, "lighter: a rank's later stages");
}

void sl_picture_draw(const sl_picture *picture, sl_canvas *canvas)
{
    draw_head(picture, canvas);
    for (int rank = 0; rank < picture->drawing->ranks; rank++)
        canvas->box(canvas, picture->left, y_of(picture, rank), picture->chart_width, picture->compute_height, idle,
                    NULL);
    draw_axis(picture, canvas);
    for (int rank = 0; rank < picture->drawing->ranks; rank++)
        draw_rank(picture, canvas, rank);
    draw_steps(picture, canvas);
    draw_legend(picture, canvas);
}
