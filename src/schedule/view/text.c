/* The text grid: time goes right, a line a rank, folded into bands that fit the terminal. */
#include "schedule/view/view.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FEW_BANDS 6 /* more than this is condensed if the caller permits it */

/* One line of a band being made: what stands in each column and in which color. */
typedef struct text_line {
    char *chars;
    sl_rgb *colors; /* of the background; all zero is none */
    int64_t width;
} text_line;

typedef struct text_grid {
    const sl_drawing *drawing;
    const sl_view_options *options;
    FILE *file;
    double scale;    /* columns a unit of time */
    int64_t columns; /* of the whole timeline */
    int64_t band;    /* columns of one band */
    int cell;        /* columns of the shortest action */
    int gutter;      /* columns before the band: "rank 12  " */
    int64_t *next;   /* (ranks) first action that may reach into the band */
    text_line line;
} text_grid;

/* "0F3"; an overlap is shown as "0F3+3B1". */
static char *label(sl_action action, char *text, size_t size)
{
    sl_action parts[2];
    if (sl_action_parts(action, parts) == 2) {
        char first[SL_ACTION_TEXT_SIZE], second[SL_ACTION_TEXT_SIZE];
        snprintf(text, size, "%s+%s", sl_action_text(parts[0], first, sizeof first),
                 sl_action_text(parts[1], second, sizeof second));
        return text;
    }
    return sl_action_text(action, text, size);
}

/* Columns a unit of time so that every label fits into its action, within reason: next to a very long action a very
 * short one may lose its label. */
static void choose_scale(text_grid *grid)
{
    const sl_drawing *drawing = grid->drawing;
    int longest = 1;
    int64_t most_cells = 1;
    double needed = 0;
    for (int rank = 0; rank < drawing->ranks; rank++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(drawing->schedule, rank, &count);
        const sl_span *spans = sl_timeline_spans(drawing->timeline, rank);
        for (int64_t i = 0; i < count; i++) {
            double length = spans[i].end - spans[i].start;
            if (sl_kind_class_of(actions[i].kind) != SL_CLASS_COMPUTE || !(length > 0))
                continue;
            char text[2 * SL_ACTION_TEXT_SIZE];
            int width = (int)strlen(label(actions[i], text, sizeof text)) + 1;
            longest = width > longest ? width : longest;
            needed = fmax(needed, width / length);
        }
        most_cells = count > most_cells ? count : most_cells;
    }
    double most_columns = fmax(4000, 8.0 * longest * (double)most_cells);
    grid->scale = drawing->makespan > 0 ? fmin(needed, most_columns / drawing->makespan) : 1;
    grid->columns = (int64_t)ceil(drawing->makespan * grid->scale);
    grid->cell = (int)fmax(1, round(drawing->shortest * grid->scale));
}

static int64_t column_of(const text_grid *grid, double time)
{
    return (int64_t)floor(time * grid->scale + 0.5);
}

/* Writes text into the columns from `at`, cut at both ends of the line. */
static void put(text_line *line, int64_t at, const char *text)
{
    for (; *text; text++, at++) {
        if (at >= 0 && at < line->width)
            line->chars[at] = *text;
    }
}

static void clear(text_line *line, char fill)
{
    memset(line->chars, fill, (size_t)line->width);
    memset(line->colors, 0, (size_t)line->width * sizeof *line->colors);
}

/* The step of a terminal's 6 x 6 x 6 colors that is nearest; its steps are not equal. */
static int cube_level(int value)
{
    static const int levels[] = { 0, 95, 135, 175, 215, 255 };
    int best = 0;
    for (int i = 1; i < 6; i++) {
        if (abs(levels[i] - value) < abs(levels[best] - value))
            best = i;
    }
    return best;
}

static void print_rgb(FILE *file, sl_rgb color)
{
    sl_rgb text = sl_drawing_text_color(color);
    int cube = 16 + 36 * cube_level(color.red) + 6 * cube_level(color.green) + cube_level(color.blue);
    fprintf(file, "\033[%d;48;5;%dm", text.red ? 97 : 30, cube);
}

/* Prints the line without the blanks at its end. */
static void print_line(const text_grid *grid, const char *head)
{
    const text_line *line = &grid->line;
    int64_t width = line->width;
    while (width > 0 && line->chars[width - 1] == ' ')
        width--;
    fprintf(grid->file, "%-*s", width > 0 ? grid->gutter : 0, head);
    if (!grid->options->color) {
        fwrite(line->chars, 1, (size_t)width, grid->file);
    } else {
        sl_rgb none = { 0, 0, 0 }, now = none;
        for (int64_t i = 0; i < width; i++) {
            sl_rgb color = line->chars[i] == ' ' ? none : line->colors[i];
            if (memcmp(&color, &now, sizeof now) != 0) {
                if (memcmp(&color, &none, sizeof none) == 0)
                    fputs("\033[0m", grid->file);
                else
                    print_rgb(grid->file, color);
            }
            now = color;
            fputc(line->chars[i], grid->file);
        }
        if (memcmp(&now, &none, sizeof none) != 0)
            fputs("\033[0m", grid->file);
    }
    fputc('\n', grid->file);
}

/* The times above a band; from is its first column. */
static void print_axis(text_grid *grid, int64_t from)
{
    double span = (double)grid->band / grid->scale;
    double tick = sl_drawing_tick(span, grid->band > 40 ? (int)(grid->band / 12) : 3);
    clear(&grid->line, ' ');
    for (double k = ceil((double)from / grid->scale / tick - 1e-9);; k++) {
        int64_t at = column_of(grid, k * tick) - from;
        if (at >= grid->line.width || k * tick > grid->drawing->makespan)
            break;
        char text[32];
        snprintf(text, sizeof text, "%.6g", k * tick + 0.0); /* never "-0" */
        if (at + (int64_t)strlen(text) <= grid->line.width)
            put(&grid->line, at, text);
    }
    print_line(grid, "time");
}

static void draw_action(text_grid *grid, sl_action action, sl_span span, int64_t from)
{
    int64_t start = column_of(grid, span.start) - from, end = column_of(grid, span.end) - from;
    start = start > 0 ? start : 0; /* what began in the band before gets its label again */
    sl_action parts[2];
    sl_action_parts(action, parts);
    sl_rgb color = sl_drawing_color(grid->drawing, parts[0].kind, parts[0].stage);
    for (int64_t i = start; i < end && i < grid->line.width; i++) {
        grid->line.chars[i] = i == end - 1 ? ' ' : '-';
        grid->line.colors[i] = color;
    }
    char text[2 * SL_ACTION_TEXT_SIZE];
    label(action, text, sizeof text);
    if (end - start <= (int64_t)strlen(text)) /* no room: as much as leaves a gap */
        text[end - start > 1 ? end - start - 1 : 0] = '\0';
    put(&grid->line, start, text);
}

static void print_rank(text_grid *grid, int rank, int64_t from)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(grid->drawing->schedule, rank, &count);
    const sl_span *spans = sl_timeline_spans(grid->drawing->timeline, rank);
    clear(&grid->line, '.');
    for (int64_t i = grid->next[rank]; i < count; i++) {
        if (sl_kind_class_of(actions[i].kind) != SL_CLASS_COMPUTE)
            continue;
        if (column_of(grid, spans[i].start) >= from + grid->line.width)
            break;
        draw_action(grid, actions[i], spans[i], from);
        grid->next[rank] = i; /* the last one may reach into the next band */
    }
    char head[ROW_NAME_SIZE];
    print_line(grid, sl_drawing_row(grid->drawing, rank, head, sizeof head));
}

static void print_bands(text_grid *grid)
{
    for (int64_t from = 0; from < grid->columns; from += grid->band) {
        int64_t left = grid->columns - from;
        grid->line.width = left < grid->band ? left : grid->band;
        print_axis(grid, from);
        for (int rank = 0; rank < grid->drawing->ranks; rank++)
            print_rank(grid, rank, from);
        fputc('\n', grid->file);
    }
}

/* Adds the time that each kind takes to the columns it covers: busy is (width, SL_KIND_COUNT). */
static void add_busy(const text_grid *grid, int rank, double *busy)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(grid->drawing->schedule, rank, &count);
    const sl_span *spans = sl_timeline_spans(grid->drawing->timeline, rank);
    for (int64_t i = 0; i < count; i++) {
        if (sl_kind_class_of(actions[i].kind) != SL_CLASS_COMPUTE)
            continue;
        double start = spans[i].start * grid->scale, end = spans[i].end * grid->scale;
        for (int64_t column = (int64_t)start; (double)column < end && column < grid->line.width; column++)
            busy[column * SL_KIND_COUNT + actions[i].kind] +=
                fmin(end, (double)(column + 1)) - fmax(start, (double)column);
    }
}

/* One band: each column shows the kind that takes most of its stretch of time, or '.' if idle time does. */
static sl_status print_condensed(text_grid *grid)
{
    double *busy = NULL;
    sl_status status = SL_NEW_ARRAY(busy, grid->band * SL_KIND_COUNT);
    if (status != SL_OK)
        return status;
    grid->scale = (double)grid->band / grid->drawing->makespan;
    grid->columns = grid->line.width = grid->band;
    print_axis(grid, 0);
    for (int rank = 0; rank < grid->drawing->ranks; rank++) {
        memset(busy, 0, (size_t)(grid->band * SL_KIND_COUNT) * sizeof *busy);
        add_busy(grid, rank, busy);
        clear(&grid->line, '.');
        for (int64_t column = 0; column < grid->band; column++) {
            const double *share = &busy[column * SL_KIND_COUNT];
            int best = 0;
            double sum = 0;
            for (int kind = 0; kind < SL_KIND_COUNT; kind++) {
                sum += share[kind];
                best = share[kind] > share[best] ? kind : best;
            }
            if (sum < 0.5)
                continue;
            grid->line.chars[column] = (best == SL_KIND_OVERLAP_F_B ? "+" : sl_kind_name((sl_kind)best))[0];
            grid->line.colors[column] =
                sl_drawing_color(grid->drawing, best == SL_KIND_OVERLAP_F_B ? SL_KIND_F : (sl_kind)best, -1);
        }
        char head[ROW_NAME_SIZE];
        print_line(grid, sl_drawing_row(grid->drawing, rank, head, sizeof head));
    }
    fprintf(grid->file, "\nEach letter stands for %.3g of time; an .html, .svg or .txt file shows every action.\n\n",
            1 / grid->scale);
    sl_free(busy);
    return SL_OK;
}

static void print_figures(const text_grid *grid)
{
    fprintf(grid->file, "%-*s%8s %7s %8s\n", grid->gutter, "", "bubble", "slots", "memory");
    for (int rank = 0; rank < grid->drawing->ranks; rank++) {
        char head[ROW_NAME_SIZE];
        fprintf(grid->file, "%-*s%6.1f %% %7d %8.6g\n", grid->gutter,
                sl_drawing_row(grid->drawing, rank, head, sizeof head),
                100 * sl_timeline_bubble(grid->drawing->timeline, rank),
                sl_timeline_peak_slots(grid->drawing->timeline, rank),
                sl_timeline_peak_memory(grid->drawing->timeline, rank));
    }
}

sl_status sl_drawing_write_text(const sl_drawing *drawing, const sl_view_options *options, FILE *file)
{
    char text[256];
    sl_status status = SL_OK;
    text_grid grid = { .drawing = drawing, .options = options, .file = file };
    grid.gutter = sl_drawing_row_width(drawing) + 2;
    choose_scale(&grid);
    grid.band = grid.columns;
    int64_t room = options->columns > grid.gutter ? options->columns - grid.gutter : 0;
    if (room > 0 && room < grid.columns)
        grid.band = room > grid.cell ? room / grid.cell * grid.cell : room; /* whole cells, if they are even */
    if (grid.band < 1)
        grid.band = 1;
    SL_TRY(SL_NEW_ARRAY(grid.next, drawing->ranks));
    SL_TRY(SL_NEW_ARRAY(grid.line.chars, grid.band));
    SL_TRY(SL_NEW_ARRAY(grid.line.colors, grid.band));

    fprintf(file, "%s: %s\n\n", drawing->title, sl_drawing_figures(drawing, text, sizeof text));
    if (options->condense && grid.columns > FEW_BANDS * grid.band)
        SL_TRY(print_condensed(&grid));
    else
        print_bands(&grid);
    print_figures(&grid);
done:
    sl_free(grid.next);
    sl_free(grid.line.chars);
    sl_free(grid.line.colors);
    return status;
}
