/* The cells around a violation, with a mark at the one that is wrong. */
#include "schedule/view/view.h"

#include <inttypes.h>
#include <string.h>

#define RANKS_AROUND 3
#define CELLS_AROUND 4

/* The part of the schedule that is shown: ranks and cells from first to last. */
typedef struct cell_window {
    const sl_schedule *schedule;
    const sl_violation *violation;
    int first_rank, last_rank;
    int64_t first_cell, last_cell;
    int gutter;
    int width; /* of a column */
} cell_window;

static char *cell_text(const cell_window *window, int rank, int64_t cell, char *text, size_t size)
{
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(window->schedule, rank, &count);
    if (cell < count)
        return sl_action_text(actions[cell], text, size);
    snprintf(text, size, "%s", cell == count ? "(end)" : "");
    return text;
}

/* As many cells as fit around the wrong one. */
static void choose_window(cell_window *window, int columns)
{
    char text[SL_ACTION_TEXT_SIZE];
    const sl_violation *violation = window->violation;
    int ranks = sl_schedule_ranks(window->schedule);
    window->first_rank = violation->rank > RANKS_AROUND ? violation->rank - RANKS_AROUND : 0;
    window->last_rank = violation->rank + RANKS_AROUND < ranks ? violation->rank + RANKS_AROUND : ranks - 1;
    window->gutter = snprintf(text, sizeof text, "rank %d", window->last_rank) + 2;
    for (int64_t around = CELLS_AROUND; around >= 0; around--) {
        window->first_cell = violation->cell > around ? violation->cell - around : 0;
        window->last_cell = violation->cell + around;
        window->width = 0;
        for (int rank = window->first_rank; rank <= window->last_rank; rank++) {
            for (int64_t cell = window->first_cell; cell <= window->last_cell; cell++) {
                int width = (int)strlen(cell_text(window, rank, cell, text, sizeof text)) + 3; /* the mark and a gap */
                window->width = width > window->width ? width : window->width;
            }
        }
        int64_t needed = window->gutter + (window->last_cell - window->first_cell + 1) * window->width;
        if (columns <= 0 || needed <= columns)
            break;
    }
}

static void print_row(const cell_window *window, int rank, bool color, FILE *file)
{
    char text[SL_ACTION_TEXT_SIZE], marked[SL_ACTION_TEXT_SIZE + 2];
    char head[32];
    snprintf(head, sizeof head, "rank %d", rank);
    fprintf(file, "%-*s", window->gutter, head);
    for (int64_t cell = window->first_cell; cell <= window->last_cell; cell++) {
        bool wrong = rank == window->violation->rank && cell == window->violation->cell;
        cell_text(window, rank, cell, text, sizeof text);
        snprintf(marked, sizeof marked, wrong ? ">%s<" : " %s ", text);
        fprintf(file, "%s%s%s%*s", wrong && color ? "\033[1;97;41m" : "", marked, wrong && color ? "\033[0m" : "",
                window->width - (int)strlen(marked), "");
    }
    fputc('\n', file);
}

sl_status sl_schedule_write_violation(const sl_schedule *schedule, const sl_violation *violation,
                                      const sl_view_options *options, FILE *file)
{
    static const sl_view_options defaults;
    options = options ? options : &defaults;
    if (violation->rank < 0 || violation->rank >= sl_schedule_ranks(schedule) || violation->cell < 0)
        return SL_OK; /* nowhere to point to */
    cell_window window = { .schedule = schedule, .violation = violation };
    choose_window(&window, options->columns);

    fprintf(file, "%-*s", window.gutter, "cell");
    for (int64_t cell = window.first_cell; cell <= window.last_cell; cell++)
        fprintf(file, " %-*" PRId64, window.width - 1, cell);
    fputc('\n', file);
    for (int rank = window.first_rank; rank <= window.last_rank; rank++) {
        print_row(&window, rank, options->color, file);
        if (rank == violation->rank) {
            int at = window.gutter + (int)(violation->cell - window.first_cell) * window.width + 1;
            fprintf(file, "%*s^ ERROR HERE\n", at, "");
        }
    }
    return SL_OK;
}
