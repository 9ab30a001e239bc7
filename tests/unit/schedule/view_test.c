/* Views: what is drawn is what the timeline says. */
#include "base/alloc.h"

#include <sluice/schedule.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cairo.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A generated schedule with messages, and its timeline. */
typedef struct fixture {
    sl_schedule *schedule;
    sl_timeline *timeline;
} fixture;

static fixture simulate(const char *name, int ranks, int microbatches, const char *costs_text)
{
    fixture made = { NULL, NULL };
    sl_schedule *compute = NULL;
    sl_costs costs;
    sl_costs_init(&costs);
    assert_int_equal(sl_costs_parse(costs_text, &costs), SL_OK);
    sl_generate_options options = { .name = name, .ranks = ranks, .microbatches = microbatches };
    assert_int_equal(sl_schedule_generate(&options, &compute), SL_OK);
    assert_int_equal(sl_schedule_add_messages(compute, NULL, 0, &made.schedule), SL_OK);
    assert_int_equal(sl_schedule_simulate(made.schedule, &costs, NULL, 0, &made.timeline), SL_OK);
    sl_schedule_destroy(compute);
    return made;
}

static void destroy(fixture *made)
{
    sl_timeline_destroy(made->timeline);
    sl_schedule_destroy(made->schedule);
}

/* Draws into memory; the caller frees *text. */
static sl_status draw(const sl_timeline *timeline, sl_view_format format, const sl_view_options *options, char **text,
                      size_t *size)
{
    FILE *file = open_memstream(text, size);
    assert_non_null(file);
    sl_status status = sl_timeline_write(timeline, format, options, file);
    assert_int_equal(fclose(file), 0);
    return status;
}

static char *draw_text(const fixture *made, sl_view_format format, const sl_view_options *options)
{
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(draw(made->timeline, format, options, &text, &size), SL_OK);
    return text;
}

static void the_grid_shows_when_each_action_runs(void **state)
{
    (void)state;
    fixture made = simulate("GPipe", 2, 2, "F=1,B=2,comm=0");
    char *text = draw_text(&made, SL_VIEW_TEXT, &(sl_view_options){ .title = "two by two" });
    assert_string_equal(text, "two by two: 2 ranks, 2 stages, 2 microbatches, makespan 9, bubble 33.3 %\n"
                              "\n"
                              "time    0                   5\n"
                              "rank 0  0F0 0F1 ............0B0---- 0B1----\n"
                              "rank 1  ....1F0 1F1 1B0---- 1B1---- ........\n"
                              "\n"
                              "          bubble   slots   memory\n"
                              "rank 0    33.3 %       2        2\n"
                              "rank 1    33.3 %       2        2\n");
    free(text);
    destroy(&made);
}

/* The background of each kind and stage in the grid's colors. */
static void read_colors(const char *text, int colors[4][16])
{
    static const char kinds[] = "FIWB";
    int now = 0;
    for (const char *at = text; *at; at++) {
        if (*at == '\033') {
            const char *cube = strstr(at, "48;5;");
            const char *end = strchr(at, 'm');
            now = cube && cube < end ? atoi(cube + 5) : 0;
            at = end;
        } else if (now && *at >= '0' && *at <= '9') {
            char *kind = NULL;
            long stage = strtol(at, &kind, 10);
            const char *found = *kind ? strchr(kinds, *kind) : NULL;
            if (found && stage < 16)
                colors[found - kinds][stage] = now;
            at = kind + strspn(kind, "FIWB0123456789") - 1;
        }
    }
}

static void kinds_differ_in_color_on_a_terminal_however_light(void **state)
{
    (void)state;
    static const char *const names[] = { "ZBVZeroBubble", "InterleavedZeroBubble", "Interleaved1F1B" };
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        fixture made = simulate(names[n], 2, 8, "F=1,B=2,comm=0");
        char *text = draw_text(&made, SL_VIEW_TEXT, &(sl_view_options){ .color = true });
        int colors[4][16] = { { 0 } };
        read_colors(text, colors);
        assert_true(colors[0][0] != 0);
        for (int a = 0; a < 4 * 16; a++) {
            for (int b = 0; b < 4 * 16; b++) {
                int first = colors[a / 16][a % 16], second = colors[b / 16][b % 16];
                if (a / 16 != b / 16 && first && first == second)
                    fail_msg("%s: %d%c and %d%c have the color %d", names[n], a % 16, "FIWB"[a / 16], b % 16,
                             "FIWB"[b / 16], first);
            }
        }
        free(text);
        destroy(&made);
    }
}

static void microbatches_of_several_steps_are_counted_within_theirs(void **state)
{
    (void)state;
    fixture made = simulate("GPipe", 2, 6, "F=1,B=2,comm=0");
    char *text = draw_text(&made, SL_VIEW_SVG, &(sl_view_options){ .step_microbatches = 3 });
    assert_non_null(strstr(text, "2 stages, 2 steps of 3 microbatches"));
    assert_non_null(strstr(text, ">0F2<"));
    assert_null(strstr(text, ">0F3<"));
    assert_non_null(strstr(text, "0F0 of step 2 on rank 0"));
    free(text);
    text = draw_text(&made, SL_VIEW_SVG, NULL);
    assert_non_null(strstr(text, "2 stages, 6 microbatches"));
    assert_non_null(strstr(text, ">0F5<"));
    free(text);
    destroy(&made);
}

/* The length of the longest line that starts with "rank ". */
static size_t widest_row(const char *text)
{
    size_t widest = 0;
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        size_t length = strcspn(line, "\n");
        if (strncmp(line, "rank ", 5) == 0 && length > widest)
            widest = length;
    }
    return widest;
}

static void the_grid_fits_its_columns(void **state)
{
    (void)state;
    fixture made = simulate("ZBVZeroBubble", 4, 8, "F=1.3,I=0.9,W=0.7,comm=0.25");
    for (int columns = 40; columns <= 200; columns += 7) {
        char *text = draw_text(&made, SL_VIEW_TEXT, &(sl_view_options){ .columns = columns });
        assert_true(widest_row(text) <= (size_t)columns);
        assert_non_null(strstr(text, "7W7"));
        free(text);
        text = draw_text(&made, SL_VIEW_TEXT, &(sl_view_options){ .columns = columns, .color = true });
        assert_non_null(strstr(text, "\033["));
        free(text);
    }
    char *text = draw_text(&made, SL_VIEW_TEXT, &(sl_view_options){ .columns = 40, .condense = true });
    assert_true(widest_row(text) <= 40);
    assert_non_null(strstr(text, "Each letter stands for"));
    free(text);
    destroy(&made);
}

static void a_violation_is_marked_in_its_place(void **state)
{
    (void)state;
    static const char csv[] = "0F0,0F1,0B0,0B1\n1F0,1F0,1B0,1B1\n";
    sl_schedule *schedule = NULL;
    sl_violation violation;
    assert_int_equal(sl_schedule_parse_csv(csv, sizeof csv - 1, "bad.csv", &schedule), SL_OK);
    assert_int_equal(sl_schedule_check(schedule, NULL, &violation), SL_ERR_SCHEDULE);
    assert_int_equal(violation.rank, 1);
    assert_int_equal(violation.cell, 1);
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_int_equal(sl_schedule_write_violation(schedule, &violation, NULL, file), SL_OK);
    fclose(file);
    assert_string_equal(text, "cell     0       1       2       3       4       5      \n"
                              "rank 0   0F0     0F1     0B0     0B1     (end)          \n"
                              "rank 1   1F0    >1F0<    1B0     1B1     (end)          \n"
                              "                 ^ ERROR HERE\n");
    free(text);
    sl_schedule_destroy(schedule);
}

static double number_of(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static bool phase_is(const json_t *event, const char *phase)
{
    return strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0;
}

static json_t *load_trace(const fixture *made)
{
    char *text = draw_text(made, SL_VIEW_TRACE, NULL);
    json_t *trace = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(trace);
    free(text);
    return trace;
}

static void a_trace_has_every_action_and_no_overlap_on_a_track(void **state)
{
    (void)state;
    fixture made = simulate("Interleaved1F1B", 4, 8, "F=0.1,B=0.2,comm=0.3");
    json_t *trace = load_trace(&made), *event;
    json_t *events = json_object_get(trace, "traceEvents");
    enum { RANKS = 4 };
    double end[RANKS][2] = { { 0 } };
    int64_t slices = 0, names = 0;
    size_t i;
    json_array_foreach(events, i, event)
    {
        int rank = (int)number_of(event, "pid"), track = (int)number_of(event, "tid");
        assert_true(rank >= 0 && rank < RANKS && (track == 0 || track == 1));
        names += phase_is(event, "M");
        if (!phase_is(event, "X"))
            continue;
        slices++;
        double start = number_of(event, "ts"), length = number_of(event, "dur");
        assert_true(length >= 0);
        assert_true(start >= end[rank][track]); /* they come in order of time */
        end[rank][track] = start + length;
    }
    assert_int_equal(slices, sl_schedule_size(made.schedule));
    assert_int_equal(names, RANKS * 6);
    json_decref(trace);
    destroy(&made);
}

static void each_send_flows_to_its_receive(void **state)
{
    (void)state;
    fixture made = simulate("1F1B", 3, 4, "comm=0.5");
    json_t *trace = load_trace(&made), *event;
    json_t *events = json_object_get(trace, "traceEvents");
    enum { IDS = 2 * 3 * 4 };
    double left[IDS], arrived[IDS];
    memset(left, 0xff, sizeof left); /* NaN */
    memset(arrived, 0xff, sizeof arrived);
    size_t i;
    json_array_foreach(events, i, event)
    {
        bool starts = phase_is(event, "s");
        if (!starts && !phase_is(event, "f"))
            continue;
        int id = (int)number_of(event, "id");
        assert_true(id >= 0 && id < IDS);
        (starts ? left : arrived)[id] = number_of(event, "ts");
    }
    int flows = 0;
    for (int id = 0; id < IDS; id++) {
        assert_int_equal(left[id] == left[id], arrived[id] == arrived[id]); /* both ends or none */
        if (left[id] == left[id]) {
            assert_true(arrived[id] >= left[id] + 0.5 - 1e-9);
            flows++;
        }
    }
    assert_int_equal(flows, 2 * 2 * 4);
    json_decref(trace);
    destroy(&made);
}

static void the_memory_counter_reaches_the_peak_and_returns(void **state)
{
    (void)state;
    fixture made = simulate("1F1B", 4, 8, "F=1");
    json_t *trace = load_trace(&made), *event;
    double peak[4] = { 0 }, last[4] = { 0 };
    size_t i;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        json_t *memory = json_object_get(json_object_get(event, "args"), "activation memory");
        if (!phase_is(event, "C") || !memory)
            continue;
        int rank = (int)number_of(event, "pid");
        last[rank] = json_number_value(memory);
        peak[rank] = last[rank] > peak[rank] ? last[rank] : peak[rank];
    }
    for (int rank = 0; rank < 4; rank++) {
        assert_true(peak[rank] == sl_timeline_peak_memory(made.timeline, rank));
        assert_true(last[rank] == 0);
    }
    json_decref(trace);
    destroy(&made);
}

typedef struct bytes {
    const char *data;
    size_t size, at;
} bytes;

static cairo_status_t read_bytes(void *user, unsigned char *to, unsigned length)
{
    bytes *from = user;
    if (length > from->size - from->at)
        return CAIRO_STATUS_READ_ERROR;
    memcpy(to, from->data + from->at, length);
    from->at += length;
    return CAIRO_STATUS_SUCCESS;
}

/* Share of the pixels that have the color. */
static double share_of(cairo_surface_t *image, uint32_t color)
{
    int width = cairo_image_surface_get_width(image), height = cairo_image_surface_get_height(image);
    const unsigned char *data = cairo_image_surface_get_data(image);
    int64_t found = 0;
    for (int y = 0; y < height; y++) {
        const unsigned char *row = data + (ptrdiff_t)y * cairo_image_surface_get_stride(image);
        for (int x = 0; x < width; x++) {
            uint32_t pixel;
            memcpy(&pixel, row + (ptrdiff_t)x * 4, 4);
            found += (pixel & 0xffffff) == color;
        }
    }
    return (double)found / width / height;
}

static void a_picture_shows_forward_and_backward(void **state)
{
    (void)state;
    fixture made = simulate("1F1B", 4, 8, "F=1,B=2");
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(draw(made.timeline, SL_VIEW_PNG, NULL, &text, &size), SL_OK);
    cairo_surface_t *image = cairo_image_surface_create_from_png_stream(read_bytes, &(bytes){ text, size, 0 });
    assert_int_equal(cairo_surface_status(image), CAIRO_STATUS_SUCCESS);
    double forward = share_of(image, 0x0072b2), backward = share_of(image, 0xd55e00);
    assert_true(forward > 0.02);
    assert_true(backward > 1.8 * forward && backward < 2.6 * forward); /* B takes twice as long; labels cover some */
    cairo_surface_destroy(image);
    free(text);
    destroy(&made);
}

static void pictures_of_any_size_can_be_drawn(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int ranks, microbatches;
        const char *costs;
    } cases[] = {
        { "GPipe", 1, 1, "F=1" },          { "GPipe", 1, 1, "F=0,B=0" },      { "GPipe", 2, 3, "F=1e-9,B=1e9" },
        { "GPipe", 800, 1, "comm=1" },     { "GPipe", 2, 9000, "comm=0.01" }, { "DualPipeV", 4, 8, "F=1e300,B=1e300" },
        { "ZBVZeroBubble", 8, 16, "W=0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture made = simulate(cases[i].name, cases[i].ranks, cases[i].microbatches, cases[i].costs);
        for (int format = SL_VIEW_TEXT; format <= SL_VIEW_HTML; format++) {
            char *text = NULL;
            size_t size = 0;
            assert_int_equal(draw(made.timeline, (sl_view_format)format, NULL, &text, &size), SL_OK);
            assert_true(size > 100 && size < 100000000);
            if (format == SL_VIEW_SVG || format == SL_VIEW_TEXT) {
                assert_null(strstr(text, "nan"));
                assert_null(strstr(text, "inf"));
            }
            free(text);
        }
        destroy(&made);
    }
}

static void the_page_carries_the_timeline(void **state)
{
    (void)state;
    fixture made = simulate("DualPipeV", 2, 6, "comm=0.5");
    char *text = NULL;
    size_t size = 0;
    sl_view_options options = { .title = "</script><b>\xff & \"x\"" };
    assert_int_equal(draw(made.timeline, SL_VIEW_HTML, &options, &text, &size), SL_OK);
    assert_non_null(strstr(text, "<title>&#60;/script>&#60;b>? &#38; \"x\"</title>"));
    char *from = strstr(text, "application/json\">"), *to = strstr(text, "\n</script>");
    assert_non_null(from);
    assert_non_null(to);
    from += strlen("application/json\">");
    json_t *page = json_loadb(from, (size_t)(to - from), 0, NULL);
    assert_non_null(page);
    assert_string_equal(json_string_value(json_object_get(page, "title")), "</script><b>? & \"x\"");
    assert_true(number_of(page, "makespan") == sl_timeline_makespan(made.timeline));
    size_t numbers = 0, rank;
    json_t *row;
    json_array_foreach(json_object_get(page, "rows"), rank, row) numbers +=
        json_array_size(json_object_get(row, "actions"));
    assert_int_equal(numbers, 5 * sl_schedule_size(made.schedule));
    json_decref(page);
    free(text);
    destroy(&made);
}

static void titles_are_cut_between_characters(void **state)
{
    (void)state;
    fixture made = simulate("GPipe", 1, 1, "F=1");
    char title[400];
    for (size_t i = 0; i + 2 < sizeof title; i += 2)
        memcpy(title + i, "\xc3\xa9", 3);
    for (int format = SL_VIEW_TEXT; format <= SL_VIEW_HTML; format++) {
        char *text = NULL;
        size_t size = 0;
        assert_int_equal(
            draw(made.timeline, (sl_view_format)format, &(sl_view_options){ .title = title }, &text, &size), SL_OK);
        free(text);
    }
    destroy(&made);
}

static void names_of_rows_may_hold_any_byte(void **state)
{
    (void)state;
    static const char *const rows[] = { "one \xff\x01<b>",
                                        "a name that goes on and on, \xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"
                                        "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4" };
    const sl_view_options options = { .rows = rows };
    fixture made = simulate("GPipe", 2, 2, "F=1,B=2,comm=0");
    char *svg = draw_text(&made, SL_VIEW_SVG, &options), *json = draw_text(&made, SL_VIEW_TRACE, &options);
    assert_non_null(strstr(svg, "one ??&lt;b>"));
    json_t *trace = json_loads(json, 0, NULL); /* refuses what is no UTF-8 */
    assert_non_null(trace);
    json_decref(trace);
    free(draw_text(&made, SL_VIEW_PNG, &options)); /* so does cairo */
    free(svg);
    free(json);
    destroy(&made);
}

static void formats_come_from_the_ending(void **state)
{
    (void)state;
    sl_view_format format = SL_VIEW_PNG;
    assert_int_equal(sl_view_format_of("a/b.HTML", &format), SL_OK);
    assert_int_equal(format, SL_VIEW_HTML);
    static const char *const bad[] = { "", ".svg", "svg", "a.svg.gz", "a.", "a.htm" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(sl_view_format_of(bad[i], &format), SL_ERR_ARGUMENT);
    assert_int_equal(format, SL_VIEW_HTML);
}

static void failures_are_reported(void **state)
{
    (void)state;
    fixture made = simulate("ZBVZeroBubble", 2, 4, "comm=0.5");
    for (int format = SL_VIEW_TEXT; format <= SL_VIEW_HTML; format++) {
        FILE *full = fopen("/dev/full", "w");
        assert_non_null(full);
        assert_int_equal(sl_timeline_write(made.timeline, (sl_view_format)format, NULL, full), SL_ERR_IO);
        fclose(full);
        assert_int_equal(sl_timeline_save(made.timeline, (sl_view_format)format, NULL, "/dev/full"), SL_ERR_IO);
        assert_non_null(strstr(sl_error_message(), "/dev/full"));
        sl_status status = SL_ERR_MEMORY;
        for (int64_t n = 0; status != SL_OK; n++) { /* each allocation in turn */
            char *text = NULL;
            size_t size = 0;
            sl_alloc_fail_after(n);
            status = draw(made.timeline, (sl_view_format)format, NULL, &text, &size);
            sl_alloc_fail_after(-1);
            free(text);
            assert_true(status == SL_OK || (status == SL_ERR_MEMORY && n < 100));
        }
    }
    destroy(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grid_shows_when_each_action_runs),
        cmocka_unit_test(kinds_differ_in_color_on_a_terminal_however_light),
        cmocka_unit_test(microbatches_of_several_steps_are_counted_within_theirs),
        cmocka_unit_test(the_grid_fits_its_columns),
        cmocka_unit_test(a_violation_is_marked_in_its_place),
        cmocka_unit_test(a_trace_has_every_action_and_no_overlap_on_a_track),
        cmocka_unit_test(each_send_flows_to_its_receive),
        cmocka_unit_test(the_memory_counter_reaches_the_peak_and_returns),
        cmocka_unit_test(a_picture_shows_forward_and_backward),
        cmocka_unit_test(pictures_of_any_size_can_be_drawn),
        cmocka_unit_test(the_page_carries_the_timeline),
        cmocka_unit_test(titles_are_cut_between_characters),
        cmocka_unit_test(names_of_rows_may_hold_any_byte),
        cmocka_unit_test(formats_come_from_the_ending),
        cmocka_unit_test(failures_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
