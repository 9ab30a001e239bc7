/* Inside of views: what all writers need of a timeline, computed once. */
#ifndef SL_SCHEDULE_VIEW_VIEW_H
#define SL_SCHEDULE_VIEW_VIEW_H

#include <sluice/schedule.h>

#define ROW_NAME_SIZE 48

typedef struct sl_rgb {
    uint8_t red, green, blue;
} sl_rgb;

typedef struct sl_drawing {
    const sl_timeline *timeline; /* borrowed */
    const sl_schedule *schedule;
    char title[160];         /* valid UTF-8 without control characters */
    const char *const *rows; /* names of the ranks; NULL: their numbers */
    int ranks;
    int stages;
    double makespan;
    double shortest; /* compute action that must be readable: the shortest that takes time, but no less than a quarter
                        of the mean (what was measured has stragglers); the makespan if none takes any */
    int *chunks;     /* (stages) place of a stage among the stages of its rank: 0, 1, ... */
    int most_chunks; /* stages of the rank that has most */
    bool messages_take_time;
    double most_memory; /* highest peak of all ranks; at least a tiny bit above 0 */
    int most_slots;
    int step_microbatches; /* of one step */
    int steps;
} sl_drawing;

/* Colors tell kinds apart also for color-blind eyes; the lightness tells the stages of one rank apart. */
sl_rgb sl_drawing_color(const sl_drawing *drawing, sl_kind kind, int stage); /* stage -1: the darkest */
sl_rgb sl_drawing_chunk_color(const sl_drawing *drawing, sl_kind kind, int chunk);
sl_rgb sl_drawing_text_color(sl_rgb background); /* black or white, whichever reads better */
/* The rows of a legend: "F forward"; NULL past the last. *kind is set for the color. */
const char *sl_drawing_legend(const sl_drawing *drawing, int index, sl_kind *kind);

/* "rank 3", or the name that the caller gave it. */
char *sl_drawing_row(const sl_drawing *drawing, int rank, char *text, size_t size);
int sl_drawing_row_width(const sl_drawing *drawing); /* of the longest */

/* The action as its step numbers it, and the number of its step. */
sl_action sl_drawing_in_step(const sl_drawing *drawing, sl_action action, int *step);

/* "4 ranks, 4 stages, 8 microbatches, makespan 33, bubble 27.3 %" */
char *sl_drawing_figures(const sl_drawing *drawing, char *text, size_t size);

/* The other end of a SEND or RECV (the neighboring stage's) as an action; false for other kinds or past the ends. */
bool sl_drawing_partner(const sl_drawing *drawing, sl_action action, sl_action *out);

/* Something nice to mark time with: 1, 2 or 5 times a power of ten, so that at most `most` ticks are needed. */
double sl_drawing_tick(double makespan, int most);

/* The writers, one a format. */
sl_status sl_drawing_write_text(const sl_drawing *drawing, const sl_view_options *options, FILE *file);
sl_status sl_drawing_write_trace(const sl_drawing *drawing, const sl_view_options *options, FILE *file);
sl_status sl_drawing_write_svg(const sl_drawing *drawing, const sl_view_options *options, FILE *file);
sl_status sl_drawing_write_png(const sl_drawing *drawing, const sl_view_options *options, FILE *file);
sl_status sl_drawing_write_pdf(const sl_drawing *drawing, const sl_view_options *options, FILE *file);
sl_status sl_drawing_write_html(const sl_drawing *drawing, const sl_view_options *options, FILE *file);

#endif
