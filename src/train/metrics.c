/* metrics.jsonl: one line a step, appended; a resumed run continues the file where the checkpoint stands. */
#include "train/metrics.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

struct sl_metrics {
    FILE *file;
    char *path;
};

/* The step of a line that is whole, or -1. */
static int64_t step_of(const char *line, size_t length)
{
    json_t *object = json_loadb(line, length, 0, NULL);
    const json_t *step = json_object_get(object, "step");
    int64_t found = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(object);
    return found;
}

/* Rewrites the file without the lines after the step. */
static sl_status keep_until(const char *path, int64_t step)
{
    sl_status status = SL_OK;
    sl_file_bytes old = { 0 };
    sl_file *kept = NULL;
    if (access(path, F_OK) != 0)
        return SL_OK;
    SL_TRY(sl_file_read(path, &old));
    SL_TRY(sl_file_create(path, &kept));
    const char *line = (const char *)old.data, *end = line + old.size;
    while (line < end) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        if (!newline)
            break; /* torn */
        int64_t found = step_of(line, (size_t)(newline - line));
        if (found >= 0 && found <= step)
            fwrite(line, 1, (size_t)(newline - line) + 1, sl_file_stream(kept));
        line = newline + 1;
    }
    SL_TRY(sl_file_commit(kept));
done:
    sl_file_destroy(kept);
    sl_file_bytes_free(&old);
    return status;
}

sl_status sl_metrics_open(const char *path, int64_t step, sl_metrics **out)
{
    sl_status status = SL_OK;
    sl_metrics *metrics = NULL;
    SL_TRY(SL_NEW(metrics));
    SL_TRY(sl_strdup(path, &metrics->path));
    SL_TRY(keep_until(path, step));
    metrics->file = fopen(path, "ae");
    if (!metrics->file)
        SL_TRY(sl_fail(SL_ERR_IO, "open %s for writing: %s", path, strerror(errno)));
    *out = metrics;
    metrics = NULL;
done:
    sl_metrics_close(metrics);
    return status;
}

bool sl_validation_add(sl_validation *validation, int64_t step, double loss)
{
    bool better = isnan(validation->best) || loss < validation->best;
    if (better) {
        validation->best = loss;
        validation->best_step = step;
    }
    validation->since = better ? 0 : validation->since + 1;
    return better;
}

sl_status sl_metrics_read_validation(const sl_metrics *metrics, sl_validation *out)
{
    sl_status status = SL_OK;
    sl_file_bytes bytes = { 0 };
    *out = (sl_validation){ .best = NAN };
    SL_TRY(sl_file_read(metrics->path, &bytes));
    for (size_t at = 0, end; at < bytes.size; at = end + 1) {
        const unsigned char *newline = memchr(bytes.data + at, '\n', bytes.size - at);
        end = newline ? (size_t)(newline - bytes.data) : bytes.size;
        json_t *line = json_loadb((const char *)bytes.data + at, end - at, 0, NULL);
        const json_t *loss = json_object_get(line, "val_loss");
        if (json_is_number(loss))
            sl_validation_add(out, json_integer_value(json_object_get(line, "step")), json_number_value(loss));
        json_decref(line);
    }
done:
    sl_file_bytes_free(&bytes);
    return status;
}

static sl_status end_line(sl_metrics *metrics, sl_json *json)
{
    sl_json_end(json, '}');
    fputc('\n', metrics->file);
    errno = 0;
    if (fflush(metrics->file) != 0 || ferror(metrics->file))
        return sl_fail(SL_ERR_IO, "write %s: %s", metrics->path, strerror(errno));
    return SL_OK;
}

sl_status sl_metrics_write(sl_metrics *metrics, const sl_step_report *report)
{
    sl_json json = { .file = metrics->file };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "step", report->step);
    sl_json_put_double(&json, "loss", report->loss);
    if (!isnan(report->val_loss))
        sl_json_put_double(&json, "val_loss", report->val_loss);
    sl_json_put_double(&json, "grad_norm", report->grad_norm);
    sl_json_put_double(&json, "lr", report->lr);
    sl_json_put_double(&json, "ms", report->seconds * 1e3);
    sl_json_put_double(&json, "tokens_per_s", report->tokens_per_s);
    sl_json_put_int(&json, "peak_memory", (int64_t)report->peak_memory);
    sl_json_put_double(&json, "mfu", report->mfu);
    sl_json_put_double(&json, "peak_gflops", report->peak_flops * 1e-9);
    return end_line(metrics, &json);
}

sl_status sl_metrics_write_restart(sl_metrics *metrics, const sl_restart_report *report)
{
    sl_json json = { .file = metrics->file };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "step", report->step);
    sl_json_put_int(&json, "restart", report->restart);
    sl_json_put_string(&json, "from", report->from);
    sl_json_put_int(&json, "ranks", report->ranks);
    sl_json_put_string(&json, "reason", report->reason);
    return end_line(metrics, &json);
}

sl_status sl_metrics_sync(sl_metrics *metrics)
{
    if (fsync(fileno(metrics->file)) != 0 && errno != EINVAL)
        return sl_fail(SL_ERR_IO, "sync %s: %s", metrics->path, strerror(errno));
    return SL_OK;
}

void sl_metrics_close(sl_metrics *metrics)
{
    if (!metrics)
        return;
    if (metrics->file)
        fclose(metrics->file);
    sl_free(metrics->path);
    sl_free(metrics);
}
