/* A trace that was written is read back as the timeline it was; other files are refused. */
#include <sluice/schedule.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static void write_text(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int enter(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/sluice-trace-%ld.json", (long)getpid());
    return 0;
}

static int leave(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static void a_simulated_timeline_comes_back(void **state)
{
    (void)state;
    static const char *const names[] = { "1F1B", "InterleavedZeroBubble", "DualPipeV" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sl_schedule *schedule = NULL, *read = NULL;
        sl_timeline *timeline = NULL, *back = NULL;
        const sl_generate_options options = { .name = names[i], .ranks = 4, .microbatches = 8 };
        assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
        assert_int_equal(sl_schedule_simulate(schedule, NULL, NULL, 0, &timeline), SL_OK);
        assert_int_equal(sl_timeline_save(timeline, SL_VIEW_TRACE, NULL, path), SL_OK);
        assert_int_equal(sl_timeline_load_trace(path, &read, &back), SL_OK);
        assert_true(sl_schedule_equal(schedule, read));
        assert_true(fabs(sl_timeline_makespan(back) * 1e3 - sl_timeline_makespan(timeline)) < 1e-9);
        assert_true(fabs(sl_timeline_bubble(back, -1) - sl_timeline_bubble(timeline, -1)) < 1e-9);
        assert_int_equal(sl_timeline_peak_slots(back, 0), sl_timeline_peak_slots(timeline, 0));
        sl_timeline_destroy(back);
        sl_schedule_destroy(read);
        sl_timeline_destroy(timeline);
        sl_schedule_destroy(schedule);
    }
}

static void steps_are_put_behind_each_other(void **state)
{
    (void)state;
    sl_schedule *schedule = NULL;
    sl_timeline *timeline = NULL;
    char text[SL_ACTION_TEXT_SIZE];
    write_text("{\"traceEvents\":["
               "{\"ph\":\"X\",\"name\":\"0F1\",\"pid\":0,\"ts\":2000,\"dur\":1000,\"args\":{\"step\":7}},"
               "{\"ph\":\"X\",\"name\":\"0RECV_B1\",\"pid\":0,\"ts\":0,\"dur\":9000},"
               "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0},"
               "{\"ph\":\"X\",\"name\":\"0F0\",\"pid\":0,\"ts\":1000,\"dur\":1000,\"args\":{\"step\":7}},"
               "{\"ph\":\"X\",\"name\":\"0F0\",\"pid\":0,\"ts\":5000,\"dur\":1000,\"args\":{\"step\":8}}]}");
    assert_int_equal(sl_timeline_load_trace(path, &schedule, &timeline), SL_OK);
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(schedule, 0, &count);
    assert_int_equal(count, 3);
    assert_string_equal(sl_action_text(actions[0], text, sizeof text), "0F0");
    assert_string_equal(sl_action_text(actions[2], text, sizeof text), "0F2");
    assert_true(sl_timeline_makespan(timeline) == 5);
    assert_true(fabs(sl_timeline_bubble(timeline, 0) - 0.4) < 1e-12);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

static void what_is_no_trace_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "{}",
        "{\"traceEvents\":[]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"main\",\"pid\":0,\"ts\":0,\"dur\":1}]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"0F0\",\"pid\":-1,\"ts\":0,\"dur\":1}]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"0F0\",\"pid\":0}]}",
        ("{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"0F0\",\"pid\":0,\"ts\":0,\"dur\":1},"
         "{\"ph\":\"X\",\"name\":\"0F0\",\"pid\":0,\"ts\":0,\"dur\":1,\"args\":{\"step\":9000000000000000000}}]}"),
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_schedule *schedule = NULL;
        sl_timeline *timeline = NULL;
        write_text(texts[i]);
        assert_int_equal(sl_timeline_load_trace(path, &schedule, &timeline), SL_ERR_FORMAT);
        assert_non_null(strstr(sl_error_message(), path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_simulated_timeline_comes_back, enter, leave),
        cmocka_unit_test_setup_teardown(steps_are_put_behind_each_other, enter, leave),
        cmocka_unit_test_setup_teardown(what_is_no_trace_is_refused, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
