/* The progress line: rewritten in place on a terminal, plain lines in a pipe. */
#include "train/metrics.h"

#include "base/units.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void sl_progress_begin(sl_progress *progress, FILE *stream, const sl_train_config *config)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool terminal = isatty(fileno(stream)) && term && strcmp(term, "dumb") != 0;
    *progress = (sl_progress){
        .stream = stream,
        .in_place = terminal && config->log.progress == SL_PROGRESS_AUTO,
        .color = terminal && config->log.progress == SL_PROGRESS_AUTO && (!no_color || no_color[0] == '\0'),
        .off = config->log.progress == SL_PROGRESS_OFF,
        .every = config->log.every,
        .val_loss = NAN,
        .precision = config->precision.dtype == SL_F32 ? "" : sl_dtype_name((sl_dtype)config->precision.dtype),
    };
}

/* Nobody may read it any more (train | head): the run goes on without. */
static void give_up(sl_progress *progress)
{
    sl_log(SL_LOG_WARN, "the progress output cannot be written: %s; the run goes on without it", strerror(errno));
    progress->off = true;
    progress->line_open = false;
}

/* Columns of the terminal, so that the line never wraps. */
static size_t columns(const sl_progress *progress)
{
    struct winsize window;
    if (ioctl(fileno(progress->stream), TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        return window.ws_col;
    return 80;
}

/* ---- The line -------------------------------------------------------------------------------- */

enum {
    STEP,
    LOSS,
    VALIDATION,
    NORM,
    LEARNING_RATE,
    TIME,
    TOKENS,
    PRECISION,
    MFU,
    MEMORY,
    LEFT,
    FIELD_COUNT,
    FIELD_BYTES = 64
};

/* Numbers of a run that has gone astray stay short too. */
static void put_number(char *text, const char *name, int decimals, double value)
{
    if (fabs(value) < 1e5)
        snprintf(text, FIELD_BYTES, "%s %.*f", name, decimals, value);
    else
        snprintf(text, FIELD_BYTES, "%s %.4g", name, value);
}

static void format_fields(const sl_progress *progress, const sl_step_report *report, char fields[][FIELD_BYTES])
{
    char text[32];
    snprintf(fields[STEP], FIELD_BYTES, "step %" PRId64 "/%" PRId64, report->step, report->steps);
    put_number(fields[LOSS], "loss", 4, report->loss);
    fields[VALIDATION][0] = '\0';
    if (!isnan(progress->val_loss))
        put_number(fields[VALIDATION], "val", 4, progress->val_loss);
    put_number(fields[NORM], "norm", 3, report->grad_norm);
    snprintf(fields[LEARNING_RATE], FIELD_BYTES, "lr %.3g", report->lr);
    sl_seconds_text(report->seconds, fields[TIME], FIELD_BYTES);
    snprintf(fields[TOKENS], FIELD_BYTES, "%s tok/s", sl_count_text(report->tokens_per_s, text, sizeof text));
    snprintf(fields[PRECISION], FIELD_BYTES, "%s", progress->precision);
    if (isfinite(report->mfu))
        snprintf(fields[MFU], FIELD_BYTES, "MFU %.1f%%", 100 * report->mfu);
    else
        snprintf(fields[MFU], FIELD_BYTES, "MFU N/A");
    snprintf(fields[MEMORY], FIELD_BYTES, "mem %s", sl_bytes_text(report->peak_memory, text, sizeof text));
    double left = progress->seconds * (double)(report->steps - report->step);
    snprintf(fields[LEFT], FIELD_BYTES, "left %s", sl_duration_text(left, text, sizeof text));
}

/* Fields that are not empty, two blanks between them. Returns the line's length. */
static size_t join(char fields[][FIELD_BYTES], char *line, size_t size)
{
    size_t used = 0;
    line[0] = '\0';
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (fields[i][0])
            used += (size_t)snprintf(line + used, size - used, "%s%s", used ? "  " : "", fields[i]);
    }
    return used;
}

/* Leaves out what matters least until bar and line fit the terminal. Returns the length of the bar. */
static int fit(char fields[][FIELD_BYTES], size_t room, char *line, size_t size)
{
    static const struct {
        int bar, left_out;
    } narrower[] = { { 10, FIELD_COUNT },   { 10, PRECISION },  { 10, MFU }, { 10, MEMORY },
                     { 10, LEARNING_RATE }, { 0, FIELD_COUNT }, { 0, NORM }, { 0, TIME },
                     { 0, TOKENS },         { 0, VALIDATION },  { 0, LEFT } };
    int bar = 20;
    for (size_t i = 0; i < sizeof narrower / sizeof *narrower; i++) {
        if (join(fields, line, size) + (bar ? (size_t)bar + 1 : 0) < room)
            return bar;
        bar = narrower[i].bar;
        if (narrower[i].left_out < FIELD_COUNT)
            fields[narrower[i].left_out][0] = '\0';
    }
    join(fields, line, size);
    return bar;
}

static void rewrite(sl_progress *progress, const sl_step_report *report, char fields[][FIELD_BYTES])
{
    char line[FIELD_COUNT * FIELD_BYTES];
    size_t room = columns(progress);
    int bar = fit(fields, room, line, sizeof line);
    int64_t full = report->steps > 0 ? report->step * bar / report->steps : 0;
    fprintf(progress->stream, "\r\033[K%s", bar && progress->color ? "\033[32m" : "");
    for (int i = 0; i < bar; i++)
        fputs(i < full ? "\xe2\x94\x81" : "\xe2\x94\x80", progress->stream); /* heavy and light line */
    fprintf(progress->stream, "%s%s%.*s", bar && progress->color ? "\033[0m" : "", bar ? " " : "", (int)room - 1, line);
    progress->line_open = true;
}

static void show(sl_progress *progress)
{
    char fields[FIELD_COUNT][FIELD_BYTES], line[FIELD_COUNT * FIELD_BYTES];
    format_fields(progress, &progress->last, fields);
    if (progress->in_place) {
        rewrite(progress, &progress->last, fields);
    } else {
        join(fields, line, sizeof line);
        fprintf(progress->stream, "%s\n", line);
    }
    if (fflush(progress->stream) != 0)
        give_up(progress);
    progress->shown = sl_now();
    progress->last_shown = true;
}

void sl_progress_step(sl_progress *progress, const sl_step_report *report)
{
    const double often = 0.05; /* seconds; a terminal that is written to more often is no better to read */
    progress->seconds = progress->seconds > 0 ? 0.9 * progress->seconds + 0.1 * report->seconds : report->seconds;
    progress->last = *report;
    if (!isnan(report->val_loss))
        progress->val_loss = report->val_loss;
    progress->last_shown = false;
    if (progress->off)
        return;
    if (progress->in_place ? sl_now() - progress->shown >= often
                           : report->step % progress->every == 0 || report->step == report->steps)
        show(progress);
}

void sl_progress_end(sl_progress *progress)
{
    if (progress->line_open && !progress->last_shown)
        show(progress);
    if (progress->line_open)
        fputc('\n', progress->stream);
    progress->line_open = false;
    fflush(progress->stream);
}
