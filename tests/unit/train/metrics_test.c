/* What a step tells: metrics.jsonl continues after a resume, TensorBoard files have the right bytes, progress is plain
 * in a pipe. */
#include "train/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static char folder[64], path[128];

static int enter(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sluice-metrics-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static sl_step_report report_of(int64_t step)
{
    return (sl_step_report){ .step = step,
                             .steps = 100,
                             .loss = 1.0 / (double)step,
                             .grad_norm = 2.5,
                             .lr = 3e-4,
                             .seconds = 0.125,
                             .tokens_per_s = 8192,
                             .peak_memory = 123456789,
                             .mfu = NAN,
                             .val_loss = NAN };
}

static void write_steps(int64_t after, int64_t last)
{
    sl_metrics *metrics = NULL;
    assert_int_equal(sl_metrics_open(path, after, &metrics), SL_OK);
    for (int64_t step = after + 1; step <= last; step++) {
        sl_step_report report = report_of(step);
        assert_int_equal(sl_metrics_write(metrics, &report), SL_OK);
    }
    assert_int_equal(sl_metrics_sync(metrics), SL_OK);
    sl_metrics_close(metrics);
}

/* Checks that the lines are those of steps 1 to last. */
static void assert_steps(int64_t last)
{
    char line[1024];
    int64_t step = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        assert_int_equal(json_integer_value(json_object_get(object, "step")), ++step);
        assert_true(json_real_value(json_object_get(object, "loss")) == 1.0 / (double)step ||
                    step == 1); /* 1 is written without a point */
        assert_true(json_number_value(json_object_get(object, "ms")) == 125);
        assert_int_equal(json_integer_value(json_object_get(object, "peak_memory")), 123456789);
        json_decref(object);
    }
    fclose(file);
    assert_int_equal(step, last);
}

static void a_resumed_run_continues_the_metrics(void **state)
{
    (void)state;
    write_steps(0, 7);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs("{\"step\":8,\"lo", file); /* torn by a crash */
    fclose(file);
    write_steps(5, 10);
    assert_steps(10);
    write_steps(0, 3);
    assert_steps(3);
}

static void a_metrics_file_that_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    sl_metrics *metrics = NULL;
    assert_int_equal(sl_metrics_open("/nowhere/metrics.jsonl", 0, &metrics), SL_ERR_IO);
    assert_int_equal(sl_metrics_open("/dev/full", 0, &metrics), SL_ERR_IO);
}

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static void crc_of_the_standard_check_string(void **state)
{
    (void)state;
    assert_int_equal(sl_crc32c("123456789", 9), UINT32_C(0xe3069283));
    assert_int_equal(sl_crc32c("", 0), 0);
}

/* Reads the records of the one event file and checks their checksums; returns how many there are. */
static int read_records(unsigned char *last, size_t *last_bytes)
{
    char name[400] = "";
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
    }
    closedir(dir);
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    unsigned char head[12], tail[4];
    int count = 0;
    while (fread(head, 1, 12, file) == 12) {
        uint32_t crc = sl_crc32c(head, 8);
        assert_int_equal(little(head + 8, 4), (uint32_t)((crc >> 15 | crc << 17) + UINT32_C(0xa282ead8)));
        *last_bytes = (size_t)little(head, 8);
        assert_true(*last_bytes < 1024);
        assert_int_equal(fread(last, 1, *last_bytes, file), *last_bytes);
        assert_int_equal(fread(tail, 1, 4, file), 4);
        crc = sl_crc32c(last, *last_bytes);
        assert_int_equal(little(tail, 4), (uint32_t)((crc >> 15 | crc << 17) + UINT32_C(0xa282ead8)));
        count++;
    }
    fclose(file);
    return count;
}

static void tensorboard_files_hold_events(void **state)
{
    (void)state;
    sl_tensorboard *board = NULL;
    unsigned char event[1024];
    size_t bytes = 0;
    assert_int_equal(sl_tensorboard_open(folder, &board), SL_OK);
    assert_int_equal(read_records(event, &bytes), 1);
    assert_memory_equal(event + 9,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15); /* field 3, after the 9 bytes of wall_time */
    sl_step_report report = report_of(300);
    assert_int_equal(sl_tensorboard_write(board, &report), SL_OK);
    sl_tensorboard_close(board);
    assert_int_equal(read_records(event, &bytes), 2);
    assert_int_equal(event[0], 0x09);                  /* field 1, 64 bits */
    assert_memory_equal(event + 9, "\x10\xac\x02", 3); /* field 2: 300 */
    assert_int_equal(event[12], 0x2a);                 /* field 5: the summary */
    const unsigned char *tag = memmem(event, bytes, "train/loss", 10);
    assert_non_null(tag);
    assert_int_equal(tag[10], 0x15); /* field 2, 32 bits */
    float loss;
    memcpy(&loss, tag + 11, 4);
    assert_true(loss == (float)(1.0 / 300));
    assert_null(memmem(event, bytes, "speed/mfu", 9)); /* not known */
}

static void progress_in_a_pipe_is_plain_lines(void **state)
{
    (void)state;
    sl_train_config config = { .log = { .every = 2, .progress = SL_PROGRESS_AUTO } };
    char line[512];
    FILE *file = fopen(path, "w+");
    assert_non_null(file);
    sl_progress progress;
    sl_progress_begin(&progress, file, &config);
    for (int64_t step = 1; step <= 3; step++) {
        sl_step_report report = report_of(step);
        report.steps = 3;
        report.val_loss = step == 3 ? 0.25 : NAN;
        sl_progress_step(&progress, &report);
    }
    sl_progress_end(&progress);
    rewind(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "step 2/3  loss 0.5000  norm 2.500  lr 0.0003  125 ms  8.19k tok/s  MFU N/A  mem 123 MB  "
                              "left 0s\n");
    assert_non_null(fgets(line, sizeof line, file));
    assert_memory_equal(line, "step 3/3  loss 0.3333  val 0.2500  norm", 39);
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

/* What one step writes to a terminal of so many columns. */
static void show_on_terminal(unsigned short columns, char *text, size_t size)
{
    const struct winsize window = { .ws_row = 24, .ws_col = columns };
    sl_train_config config = { .log = { .every = 1, .progress = SL_PROGRESS_AUTO } };
    sl_step_report report = report_of(50);
    sl_progress progress;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    FILE *file = fopen(ptsname(master), "w");
    assert_non_null(file);
    assert_int_equal(ioctl(fileno(file), TIOCSWINSZ, &window), 0);
    assert_int_equal(setenv("TERM", "xterm", 1) | setenv("NO_COLOR", "1", 1), 0);
    sl_progress_begin(&progress, file, &config);
    sl_progress_step(&progress, &report);
    ssize_t got = read(master, text, size - 1);
    assert_true(got > 0);
    text[got] = '\0';
    fclose(file);
    close(master);
}

/* Columns of "\r\033[K" and UTF-8 text. */
static size_t columns_of(const char *text)
{
    size_t columns = 0;
    for (; *text; text++)
        columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns - 4;
}

static void the_line_leaves_out_what_a_narrow_terminal_has_no_room_for(void **state)
{
    (void)state;
    char text[1024];
    for (unsigned short columns = 10; columns <= 140; columns++) {
        show_on_terminal(columns, text, sizeof text);
        assert_true(columns_of(text) < columns);
        assert_true(columns < 40 || strstr(text, "left 6s"));
        assert_true(columns < 80 || (strstr(text, "step 50/100") && strstr(text, "norm") && strstr(text, "tok/s")));
        assert_true(columns < 130 || strstr(text, "lr 0.0003  125 ms  8.19k tok/s  MFU N/A  mem 123 MB  left 6s"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_resumed_run_continues_the_metrics, enter, leave),
        cmocka_unit_test(a_metrics_file_that_cannot_be_written_is_an_error),
        cmocka_unit_test(crc_of_the_standard_check_string),
        cmocka_unit_test_setup_teardown(tensorboard_files_hold_events, enter, leave),
        cmocka_unit_test_setup_teardown(progress_in_a_pipe_is_plain_lines, enter, leave),
        cmocka_unit_test(the_line_leaves_out_what_a_narrow_terminal_has_no_room_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
