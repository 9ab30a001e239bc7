/* The progress line: rewritten in place on a terminal, plain lines in a pipe. */
#include "train/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

char *sl_duration_text(double seconds, char *text, size_t size)
{
    int64_t whole = isfinite(seconds) && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;
    if (whole < 60)
        snprintf(text, size, "%" PRId64 "s", whole);
    else if (whole < 3600)
        snprintf(text, size, "%" PRId64 "m%02" PRId64 "s", whole / 60, whole % 60);
    else if (whole < 86400)
        snprintf(text, size, "%" PRId64 "h%02" PRId64 "m", whole / 3600, whole / 60 % 60);
    else
        snprintf(text, size, "%" PRId64 "d%02" PRId64 "h", whole / 86400, whole / 3600 % 24);
    return text;
}

/* Three digits and the power of 1000 that fits. */
static char *scaled(double value, const char *blank, const char *unit, char *text, size_t size)
{
    static const char *const prefixes[] = { "", "k", "M", "G", "T", "P" };
    int power = 0;
    for (; fabs(value) >= 999.5 && power < 5; power++)
        value /= 1000;
    int decimals = power == 0 && value == floor(value) ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
    snprintf(text, size, "%.*f%s%s%s", decimals, value, blank, prefixes[power], unit);
    return text;
}

char *sl_count_text(double value, char *text, size_t size)
{
    return scaled(value, "", "", text, size);
}

char *sl_bytes_text(double bytes, char *text, size_t size)
{
    return scaled(bytes, " ", "B", text, size);
}

void sl_progress_begin(sl_progress *progress, FILE *stream, const sl_train_config *config)
{
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    bool terminal = isatty(fileno(stream)) && term && strcmp(term, "dumb") != 0;
    *progress = (sl_progress){
        .stream = stream,
        .in_place = terminal && config->log.progress == SL_PROGRESS_AUTO,
        .colour = terminal && config->log.progress == SL_PROGRESS_AUTO && (!no_colour || no_colour[0] == '\0'),
        .off = config->log.progress == SL_PROGRESS_OFF,
        .every = config->log.every,
    };
}

/* Columns of the terminal, so that the line never wraps. */
static size_t columns(const sl_progress *progress)
{
    struct winsize window;
    if (ioctl(fileno(progress->stream), TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        return window.ws_col;
    return 80;
}

static void format_line(const sl_progress *progress, const sl_step_report *report, char *line, size_t size)
{
    char rate[32], memory[32], left[32], mfu[32] = "N/A";
    if (isfinite(report->mfu))
        snprintf(mfu, sizeof mfu, "%.1f%%", 100 * report->mfu);
    snprintf(line, size,
             "step %" PRId64 "/%" PRId64 "  loss %.4f  norm %.3f  lr %.3g  %.0f ms  %s tok/s  MFU %s  mem %s  left %s",
             report->step, report->steps, report->loss, report->grad_norm, report->lr, report->seconds * 1e3,
             sl_count_text(report->tokens_per_s, rate, sizeof rate), mfu,
             sl_bytes_text(report->peak_memory, memory, sizeof memory),
             sl_duration_text(progress->seconds * (double)(report->steps - report->step), left, sizeof left));
}

static void rewrite(sl_progress *progress, const sl_step_report *report, const char *line)
{
    enum { BAR = 20 };
    char bar[BAR * 4] = "";
    int64_t full = report->steps > 0 ? report->step * BAR / report->steps : 0;
    for (int64_t i = 0; i < BAR; i++)
        strcat(bar, i < full ? "\xe2\x94\x81" : "\xe2\x94\x80"); /* heavy and light line */
    int room = (int)columns(progress) - BAR - 2;
    fprintf(progress->stream, "\r\033[K%s%s%s %.*s", progress->colour ? "\033[32m" : "", bar,
            progress->colour ? "\033[0m" : "", room > 0 ? room : 0, line);
    progress->line_open = true;
}

void sl_progress_step(sl_progress *progress, const sl_step_report *report)
{
    char line[512];
    progress->seconds = progress->seconds > 0 ? 0.9 * progress->seconds + 0.1 * report->seconds : report->seconds;
    if (progress->off)
        return;
    format_line(progress, report, line, sizeof line);
    if (progress->in_place)
        rewrite(progress, report, line);
    else if (report->step % progress->every == 0 || report->step == report->steps)
        fprintf(progress->stream, "%s\n", line);
    fflush(progress->stream);
}

void sl_progress_end(sl_progress *progress)
{
    if (progress->line_open)
        fputc('\n', progress->stream);
    progress->line_open = false;
    fflush(progress->stream);
}
