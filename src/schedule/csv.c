/* PyTorch's CSV form of a schedule: one line a rank, one cell an action. Read as a stream: a cell is refused as soon as
 * it is longer than any action, so memory is bound by the actions alone. */
#include "base/file.h"
#include "schedule/schedule.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

typedef struct csv_reader {
    const char *name; /* of the file, for messages */
    sl_schedule_builder *builder;
    sl_action_list row;
    int64_t line;        /* from 0; also the rank */
    int64_t cell;        /* from 0; idle ones counted */
    int64_t blank_lines; /* not yet known whether anything follows them */
    size_t length;       /* of text */
    bool blank_after;    /* a blank followed the text: more text would be junk */
    sl_violation at;     /* what was wrong; rank -1 while nothing is */
    char text[SL_ACTION_TEXT_SIZE];
} csv_reader;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r'; /* so CRLF ends a line like LF */
}

/* Notes where the error is that is on its way up. */
static void csv_locate(csv_reader *csv, int64_t line, int64_t cell)
{
    csv->at.rank = (int)(line < INT_MAX ? line : INT_MAX);
    csv->at.cell = cell;
    snprintf(csv->at.text, sizeof csv->at.text, "%.*s", (int)csv->length, csv->text);
    snprintf(csv->at.reason, sizeof csv->at.reason, "%s", sl_error_message());
}

static sl_status csv_fail(csv_reader *csv, const char *what)
{
    sl_fail(SL_ERR_FORMAT, "%s", what);
    csv_locate(csv, csv->line, csv->cell);
    return sl_fail(SL_ERR_FORMAT, "%s: rank %" PRId64 ", cell %" PRId64 ": %s", csv->name, csv->line, csv->cell, what);
}

static sl_status csv_end_cell(csv_reader *csv)
{
    if (csv->length > 0) {
        sl_action action;
        sl_status status = sl_action_parse(csv->text, csv->length, &action);
        if (status == SL_OK)
            status = sl_action_list_push(&csv->row, action);
        if (status != SL_OK) {
            csv_locate(csv, csv->line, csv->cell);
            return sl_fail_context(status, "%s: rank %" PRId64 ", cell %" PRId64, csv->name, csv->line, csv->cell);
        }
    }
    csv->cell++;
    csv->length = 0;
    csv->blank_after = false;
    return SL_OK;
}

/* Hands the finished row to the schedule. */
static sl_status csv_end_row(csv_reader *csv)
{
    sl_status status = SL_OK;
    bool blank = csv->cell == 0 && csv->length == 0;
    SL_TRY(csv_end_cell(csv));
    if (blank) {
        csv->blank_lines++;
    } else if (csv->blank_lines > 0 || csv->row.count == 0) {
        int64_t rank = csv->line - csv->blank_lines;
        status = sl_fail(SL_ERR_FORMAT, "%s: rank %" PRId64 " has no actions", csv->name, rank);
        csv_locate(csv, rank, 0);
    } else {
        status = sl_schedule_builder_add_rank(csv->builder, &csv->row);
        if (status != SL_OK)
            sl_fail_context(status, "%s", csv->name);
    }
    csv->line++;
    csv->cell = 0;
done:
    return status;
}

static sl_status csv_add_char(csv_reader *csv, char c)
{
    if (csv->blank_after)
        return csv_fail(csv, "a blank stands inside the action");
    if (csv->length == sizeof csv->text)
        return csv_fail(csv, "longer than any action");
    csv->text[csv->length++] = c;
    return SL_OK;
}

static sl_status csv_feed(csv_reader *csv, const char *text, size_t length)
{
    sl_status status = SL_OK;
    for (size_t i = 0; i < length && status == SL_OK; i++) {
        char c = text[i];
        if (c == ',')
            status = csv_end_cell(csv);
        else if (c == '\n')
            status = csv_end_row(csv);
        else if (is_blank(c))
            csv->blank_after = csv->length > 0;
        else
            status = csv_add_char(csv, c);
    }
    return status;
}

static sl_status csv_finish(csv_reader *csv, sl_schedule **out)
{
    sl_status status = SL_OK;
    if (csv->cell > 0 || csv->length > 0) /* the last line lacks its newline */
        SL_TRY(csv_end_row(csv));
    if (csv->builder->ranks == 0)
        return sl_fail(SL_ERR_FORMAT, "%s: it is empty", csv->name);
    SL_TRY(sl_schedule_builder_finish(csv->builder, out));
done:
    return status;
}

static sl_status csv_start(csv_reader *csv, const char *name)
{
    *csv = (csv_reader){ .name = name, .at = { .rank = -1 } };
    return SL_NEW(csv->builder);
}

static void csv_end(csv_reader *csv)
{
    sl_schedule_builder_destroy(csv->builder);
    sl_free(csv->row.actions);
}

sl_status sl_schedule_parse_csv(const char *text, size_t length, const char *name, sl_schedule **out)
{
    sl_status status = SL_OK;
    csv_reader csv;

    SL_TRY(csv_start(&csv, name));
    SL_TRY(csv_feed(&csv, text, length));
    SL_TRY(csv_finish(&csv, out));
done:
    csv_end(&csv);
    return status;
}

sl_status sl_schedule_read_csv_at(FILE *file, const char *name, sl_violation *violation, sl_schedule **out)
{
    sl_status status = SL_OK;
    csv_reader csv;
    char chunk[1 << 14];
    size_t length;

    SL_TRY(csv_start(&csv, name));
    while ((length = fread(chunk, 1, sizeof chunk, file)) > 0)
        SL_TRY(csv_feed(&csv, chunk, length));
    if (ferror(file)) {
        status = sl_fail(SL_ERR_IO, "read %s: %s", name, strerror(errno));
        goto done;
    }
    SL_TRY(csv_finish(&csv, out));
done:
    if (status != SL_OK && violation)
        *violation = csv.at;
    csv_end(&csv);
    return status;
}

sl_status sl_schedule_read_csv(FILE *file, const char *name, sl_schedule **out)
{
    return sl_schedule_read_csv_at(file, name, NULL, out);
}

sl_status sl_schedule_load_csv(const char *path, sl_schedule **out)
{
    FILE *file = NULL;
    sl_status status = sl_file_open_stream(path, &file);
    if (status != SL_OK)
        return status;
    status = sl_schedule_read_csv(file, path, out);
    fclose(file);
    return status;
}

sl_status sl_schedule_write_csv(const sl_schedule *schedule, FILE *file)
{
    char text[SL_ACTION_TEXT_SIZE];
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action_list *list = &schedule->lists[rank];
        for (size_t i = 0; i < list->count; i++) {
            fputs(sl_action_text(list->actions[i], text, sizeof text), file);
            if (i + 1 < list->count)
                putc(',', file);
        }
        putc('\n', file);
    }
    return ferror(file) ? sl_fail(SL_ERR_IO, "write the schedule: %s", strerror(errno)) : SL_OK;
}

sl_status sl_schedule_save_csv(const sl_schedule *schedule, const char *path)
{
    sl_status status = SL_OK;
    sl_file *file = NULL;

    SL_TRY(sl_file_create(path, &file));
    status = sl_schedule_write_csv(schedule, sl_file_stream(file));
    if (status != SL_OK)
        sl_fail_context(status, "%s", path);
    else
        status = sl_file_commit(file);
done:
    sl_file_destroy(file);
    return status;
}
