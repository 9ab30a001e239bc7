/* The CSV reader and writer: what they accept, what they refuse and how they say it. */
#include "base/alloc.h"
#include "support/sanitized.h"
#include <sluice/schedule.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static sl_status parse(const char *text, sl_schedule **out)
{
    return sl_schedule_parse_csv(text, strlen(text), "x.csv", out);
}

/* The schedule as the writer prints it. */
static char *printed(const sl_schedule *schedule)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    assert_int_equal(sl_schedule_write_csv(schedule, file), SL_OK);
    fclose(file);
    return text;
}

static void assert_prints(const char *given, const char *expected)
{
    sl_schedule *schedule = NULL;
    assert_int_equal(parse(given, &schedule), SL_OK);
    char *text = printed(schedule);
    assert_string_equal(text, expected);
    free(text);
    sl_schedule_destroy(schedule);
}

static void assert_refused(const char *given, const char *message)
{
    sl_schedule *schedule = NULL;
    assert_int_equal(parse(given, &schedule), SL_ERR_FORMAT);
    assert_null(schedule);
    assert_string_equal(sl_error_message(), message);
}

static void drops_idle_cells_and_blanks(void **state)
{
    (void)state;
    assert_prints("0F0,0B0\n1F0,1B0\n", "0F0,0B0\n1F0,1B0\n");
    assert_prints("0F0,,,0B0,,\n,1F0,1B0", "0F0,0B0\n1F0,1B0\n"); /* ragged; no last newline */
    assert_prints("0F0,0B0\r\n1F0,1B0\r\n", "0F0,0B0\n1F0,1B0\n");
    assert_prints(" 0F0 ,\t0B0\n1F0, , 1B0\n\n\n\r\n", "0F0,0B0\n1F0,1B0\n");
    assert_prints("(0F3;3B1)OVERLAP_F_B", "(0F3;3B1)OVERLAP_F_B\n");
}

static void names_file_rank_and_cell(void **state)
{
    (void)state;
    assert_refused("0F0\n1F0,,2F0xyz\n", "x.csv: rank 1, cell 2: '2F0xyz' is no action: something follows it");
    assert_refused("0F0,2147483648F0\n",
                   "x.csv: rank 0, cell 1: '2147483648F0' is no action: its stage number is beyond 65534");
    assert_refused("0F0,0 F1\n", "x.csv: rank 0, cell 1: a blank stands inside the action");
    assert_refused("0F0\r1F0\r", "x.csv: rank 0, cell 0: a blank stands inside the action");
    assert_refused("\xEF\xBB\xBF"
                   "0F0\n",
                   "x.csv: rank 0, cell 0: '\\xEF\\xBB\\xBF0F0' is no action: it does not start with a stage number");
}

static void refuses_empty_files_and_ranks(void **state)
{
    (void)state;
    assert_refused("", "x.csv: it is empty");
    assert_refused("\n\n \r\n", "x.csv: it is empty");
    assert_refused("0F0\n\n\n1F0\n", "x.csv: rank 1 has no actions");
    assert_refused("0F0\n,,,\n", "x.csv: rank 1 has no actions");
    assert_refused(",", "x.csv: rank 0 has no actions");
}

static void refuses_nul_bytes(void **state)
{
    (void)state;
    sl_schedule *schedule = NULL;
    assert_int_equal(sl_schedule_parse_csv("0F0,0F\0", 7, "x.csv", &schedule), SL_ERR_FORMAT);
    assert_string_equal(sl_error_message(),
                        "x.csv: rank 0, cell 1: '0F\\x00' is no action: its microbatch number is missing");
    assert_int_equal(sl_schedule_parse_csv("\0\0\0", 3, "x.csv", &schedule), SL_ERR_FORMAT);
}

static void reads_the_mapping_off_the_file(void **state)
{
    (void)state;
    sl_schedule *schedule = NULL;
    assert_int_equal(parse("2F0,0F0,0B1\n1F3,3UNSHARD\n", &schedule), SL_OK);
    assert_int_equal(sl_schedule_ranks(schedule), 2);
    assert_int_equal(sl_schedule_stages(schedule), 4);
    assert_int_equal(sl_schedule_microbatches(schedule), 4);
    assert_int_equal(sl_schedule_size(schedule), 5);
    static const int rank_of[] = { 0, 1, 0, 1 };
    for (int stage = 0; stage < 4; stage++)
        assert_int_equal(sl_schedule_rank_of(schedule, stage), rank_of[stage]);
    assert_int_equal(sl_schedule_rank_of(schedule, 4), -1);
    assert_int_equal(sl_schedule_rank_of(schedule, -1), -1);
    assert_false(sl_schedule_has_messages(schedule));
    assert_true(sl_schedule_has_backward(schedule));
    assert_true(sl_schedule_has_kind(schedule, SL_KIND_UNSHARD));
    sl_schedule_destroy(schedule);
}

/* A stream of `left` times the same byte, made as it is read. */
typedef struct endless {
    int64_t left;
    char byte;
} endless;

static ssize_t endless_read(void *cookie, char *buffer, size_t size)
{
    endless *stream = cookie;
    size_t length = (int64_t)size < stream->left ? size : (size_t)stream->left;
    memset(buffer, stream->byte, length);
    stream->left -= (int64_t)length;
    return (ssize_t)length;
}

static sl_status read_endless(char byte, int64_t bytes, endless *stream)
{
    *stream = (endless){ .left = bytes, .byte = byte };
    FILE *file = fopencookie(stream, "r", (cookie_io_functions_t){ .read = endless_read });
    sl_schedule *schedule = NULL;
    sl_status status = sl_schedule_read_csv(file, "big.csv", &schedule);
    assert_null(schedule);
    fclose(file);
    return status;
}

static void refuses_a_huge_cell_without_reading_it(void **state)
{
    (void)state;
    endless stream;
    int64_t gigabyte = 1 << 30;
    assert_int_equal(read_endless('0', gigabyte, &stream), SL_ERR_FORMAT);
    assert_string_equal(sl_error_message(), "big.csv: rank 0, cell 0: longer than any action");
    assert_true(stream.left > gigabyte - (1 << 20));
}

static void idle_cells_and_blank_lines_take_no_memory(void **state)
{
    (void)state;
    static const char bytes[] = { ',', '\n', ' ' };
    struct rusage before;
    struct rusage after;
    getrusage(RUSAGE_SELF, &before);
    for (size_t i = 0; i < sizeof bytes; i++) {
        endless stream;
        assert_int_equal(read_endless(bytes[i], 64 << 20, &stream), SL_ERR_FORMAT);
        assert_int_equal(stream.left, 0);
    }
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 8 << 10); /* KiB */
}

/* The shortest cells there are: 4 bytes become an action of 16. */
static void takes_a_small_multiple_of_the_file(void **state)
{
    (void)state;
    size_t length = 32 << 20;
    char *text = malloc(length);
    for (size_t i = 0; i < length; i += 4)
        memcpy(text + i, "0F0,", 4);
    struct rusage before;
    struct rusage after;
    sl_schedule *schedule = NULL;
    sl_violation violation;
    getrusage(RUSAGE_SELF, &before);
    assert_int_equal(sl_schedule_parse_csv(text, length, "x.csv", &schedule), SL_OK);
    assert_int_equal(sl_schedule_check(schedule, NULL, &violation), SL_ERR_SCHEDULE);
    assert_int_equal(violation.cell, 1);
    getrusage(RUSAGE_SELF, &after);
    /* Sanitizers keep freed memory and grow blocks by copying: what the process holds says nothing there. */
    assert_true(TEST_SANITIZED || (size_t)(after.ru_maxrss - before.ru_maxrss) * 1024 < 6 * length);
    sl_schedule_destroy(schedule);
    free(text);
}

static void refuses_more_ranks_than_stages_can_fill(void **state)
{
    (void)state;
    size_t rows = SL_MAX_RANKS + 1;
    char *text = malloc(rows * 4 + 1);
    for (size_t i = 0; i < rows; i++)
        memcpy(text + i * 4, "0F0\n", 5);
    assert_refused(text, "x.csv: a schedule has at most 65535 ranks");
    free(text);
}

static void saves_and_loads_files(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice-csv-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    sl_schedule *schedule = NULL;
    sl_schedule *loaded = NULL;
    assert_int_equal(parse("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0\n", &schedule),
                     SL_OK);
    assert_int_equal(sl_schedule_save_csv(schedule, path), SL_OK);
    assert_int_equal(sl_schedule_load_csv(path, &loaded), SL_OK);
    assert_true(sl_schedule_equal(schedule, loaded));
    sl_schedule_destroy(schedule);
    sl_schedule_destroy(loaded);
    unlink(path);
    assert_int_equal(sl_schedule_load_csv(path, &loaded), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), path));
    assert_int_equal(sl_schedule_load_csv("/tmp", &loaded), SL_ERR_IO); /* a folder */
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    const char *text = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
    for (int n = 0;; n++) {
        sl_schedule *schedule = NULL;
        sl_alloc_fail_after(n);
        sl_status status = parse(text, &schedule);
        sl_alloc_fail_after(-1);
        if (status == SL_OK) {
            sl_schedule_destroy(schedule);
            assert_true(n > 4);
            return;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
        assert_null(schedule);
    }
}

static void builds_action_by_action(void **state)
{
    (void)state;
    sl_schedule_builder *builder = NULL;
    sl_schedule *schedule = NULL;
    assert_int_equal(sl_schedule_builder_create(0, &builder), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_builder_create(2, &builder), SL_OK);
    assert_int_equal(sl_schedule_builder_add(builder, 1, sl_action_make(SL_KIND_F, 1, 0)), SL_OK);
    sl_action overlap = sl_action_overlap(0, 1, 2, 0);
    overlap.reserved[1] = 9; /* ranks compare schedules byte by byte */
    assert_int_equal(sl_schedule_builder_add(builder, 0, overlap), SL_OK);
    assert_int_equal(sl_schedule_builder_add(builder, 0, sl_action_make(SL_KIND_UNSHARD, 0, 7)), SL_OK);
    assert_int_equal(sl_schedule_builder_add(builder, 2, sl_action_make(SL_KIND_F, 1, 0)), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_builder_add(builder, 0, sl_action_make(SL_KIND_F, 1, -1)), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_builder_add(builder, 0, sl_action_make(SL_KIND_F, 65535, 0)), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_builder_add(builder, 0, sl_action_overlap(0, 0, 1, -1)), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_builder_add(builder, 0, (sl_action){ .kind = 99 }), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_builder_finish(builder, &schedule), SL_OK);
    char *text = printed(schedule);
    assert_string_equal(text, "(0F1;2B0)OVERLAP_F_B,0UNSHARD\n1F0\n");
    free(text);
    assert_int_equal(sl_schedule_rank_of(schedule, 2), 0);
    assert_int_equal(sl_schedule_actions(schedule, 0, NULL)[0].reserved[1], 0);
    sl_schedule_destroy(schedule);
    assert_int_equal(sl_schedule_builder_finish(builder, &schedule), SL_OK); /* empty lists are left */
    assert_int_equal(sl_schedule_size(schedule), 0);
    assert_int_equal(sl_schedule_stages(schedule), 0);
    sl_schedule_destroy(schedule);
    sl_schedule_builder_destroy(builder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drops_idle_cells_and_blanks),
        cmocka_unit_test(names_file_rank_and_cell),
        cmocka_unit_test(refuses_empty_files_and_ranks),
        cmocka_unit_test(refuses_nul_bytes),
        cmocka_unit_test(reads_the_mapping_off_the_file),
        cmocka_unit_test(refuses_a_huge_cell_without_reading_it),
        cmocka_unit_test(idle_cells_and_blank_lines_take_no_memory),
        cmocka_unit_test(takes_a_small_multiple_of_the_file),
        cmocka_unit_test(refuses_more_ranks_than_stages_can_fill),
        cmocka_unit_test(saves_and_loads_files),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(builds_action_by_action),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
