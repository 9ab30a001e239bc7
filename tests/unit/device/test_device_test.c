/* The tests' own device behaves like a GPU, and what is wrong on a GPU fails there. What must fail runs in a process of
 * its own. */
#include "support/device/test_device.h"
#include "support/sanitized.h"
#include "support/status.h"

#include <sluice/kernel.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 1000 };

typedef struct bench {
    sl_device *device;
    sl_stream *compute, *copies;
    sl_event *event;
    float *a, *b; /* on the device, COUNT each */
    float host[COUNT];
} bench;

static void set_up(bench *made)
{
    *made = (bench){ .device = NULL };
    test_device_install();
    ok(sl_device_open("test", NULL, &made->device));
    ok(sl_stream_create(made->device, &made->compute));
    ok(sl_stream_create(made->device, &made->copies));
    ok(sl_event_create(made->device, &made->event));
    ok(sl_device_alloc(made->device, COUNT * sizeof(float), (void **)&made->a));
    ok(sl_device_alloc(made->device, COUNT * sizeof(float), (void **)&made->b));
}

static void tear_down(bench *made)
{
    sl_stream_destroy(made->compute);
    sl_stream_destroy(made->copies);
    sl_event_destroy(made->event);
    sl_device_free(made->device, made->a);
    sl_device_free(made->device, made->b);
    assert_int_equal(sl_device_get_memory(made->device).in_use, 0);
    sl_device_close(made->device);
}

static sl_status add(sl_stream *stream, float *x, const float *y)
{
    sl_meta meta = sl_meta_make(SL_F32, 1, (int64_t[]){ COUNT });
    sl_view inputs[2] = { { x, meta }, { (float *)y, meta } };
    sl_kernel_call call = { .op = SL_OP_ADD, .inputs = inputs, .input_count = 2, .outputs = inputs, .output_count = 1 };
    return sl_kernel_run(stream, &call);
}

/* A capture does nothing until it is launched, and each launch does all of it with what is in memory by then. */
static void captured_work_runs_when_it_is_launched(void **state)
{
    (void)state;
    bench made;
    sl_capture *capture = NULL;
    float got[COUNT];
    set_up(&made);
    assert_true(sl_device_can_capture(made.device));
    ok(sl_stream_memset(made.compute, made.b, 0, sizeof got));
    for (int i = 0; i < COUNT; i++)
        made.host[i] = 1;
    ok(sl_stream_begin_capture(made.compute));
    ok(sl_stream_copy(made.compute, SL_COPY_HOST_TO_DEVICE, made.a, made.host, sizeof got));
    ok(add(made.compute, made.b, made.a));
    assert_int_equal(sl_stream_synchronize(made.compute), SL_ERR_ARGUMENT);
    assert_int_equal(sl_stream_wait(made.compute, made.event), SL_ERR_ARGUMENT); /* recorded by nobody, or before */
    ok(sl_stream_end_capture(made.compute, &capture));
    for (int launch = 1; launch <= 3; launch++) {
        made.host[0] = (float)launch;
        ok(sl_capture_launch(capture));
        ok(sl_stream_copy(made.compute, SL_COPY_DEVICE_TO_HOST, got, made.b, sizeof got));
        ok(sl_stream_synchronize(made.compute));
        assert_true(got[0] == (float)(launch * (launch + 1) / 2) && got[COUNT - 1] == (float)launch);
    }
    sl_capture_destroy(capture);
    sl_capture_destroy(NULL);
    tear_down(&made);
}

static void streams_that_wait_for_each_other_are_captured_together(void **state)
{
    (void)state;
    bench made;
    sl_event *back = NULL;
    sl_capture *capture = NULL;
    float got[COUNT] = { 0 };
    set_up(&made);
    ok(sl_event_create(made.device, &back));
    for (int joined = 0; joined < 2; joined++) {
        ok(sl_stream_begin_capture(made.compute));
        ok(sl_stream_memset(made.compute, made.a, 0, sizeof got));
        ok(sl_event_record(made.event, made.compute));
        ok(sl_stream_wait(made.copies, made.event));
        ok(sl_stream_copy(made.copies, SL_COPY_HOST_TO_DEVICE, made.b, made.host, sizeof got));
        ok(sl_event_record(back, made.copies));
        if (joined)
            ok(sl_stream_wait(made.compute, back));
        if (joined)
            ok(add(made.compute, made.a, made.b));
        assert_int_equal(sl_stream_end_capture(made.compute, &capture), joined ? SL_OK : SL_ERR_ARGUMENT);
    }
    for (int launch = 1; launch <= 3; launch++) {
        made.host[COUNT - 1] = (float)launch;
        ok(sl_capture_launch(capture));
        ok(sl_stream_copy(made.compute, SL_COPY_DEVICE_TO_HOST, got, made.a, sizeof got));
        ok(sl_stream_synchronize(made.compute));
        assert_true(got[COUNT - 1] == (float)launch);
    }
    sl_capture_destroy(capture);
    sl_event_destroy(back);
    tear_down(&made);
}

static void the_cpu_captures_nothing(void **state)
{
    (void)state;
    sl_device *cpu = NULL;
    sl_stream *stream = NULL;
    sl_capture *capture = NULL;
    ok(sl_device_open("cpu", NULL, &cpu));
    ok(sl_stream_create(cpu, &stream));
    assert_false(sl_device_can_capture(cpu));
    assert_int_equal(sl_stream_begin_capture(stream), SL_ERR_UNSUPPORTED);
    assert_int_equal(sl_stream_end_capture(stream, &capture), SL_ERR_UNSUPPORTED);
    assert_null(capture);
    sl_stream_destroy(stream);
    sl_device_close(cpu);
}

/* b += b, twice, on one stream, then its copy to the host on another; joined by the event. Returns whether the sums
 * came. Every round has other values. */
static bool copy_behind_a_kernel(bench *made, int round)
{
    float start[COUNT], got[COUNT];
    for (int i = 0; i < COUNT; i++)
        start[i] = (float)(i + round);
    ok(sl_stream_copy(made->compute, SL_COPY_HOST_TO_DEVICE, made->b, start, sizeof start));
    ok(add(made->compute, made->b, made->b));
    ok(add(made->compute, made->b, made->b));
    ok(sl_event_record(made->event, made->compute));
    ok(sl_stream_wait(made->copies, made->event));
    ok(sl_stream_copy(made->copies, SL_COPY_DEVICE_TO_HOST, got, made->b, sizeof got));
    ok(sl_stream_synchronize(made->copies));
    ok(sl_stream_synchronize(made->compute));
    for (int i = 0; i < COUNT; i++) {
        if (got[i] != 4 * (float)(i + round))
            return false;
    }
    return true;
}

static void events_order_streams(void **state)
{
    (void)state;
    bench made;
    set_up(&made);
    for (int i = 0; i < 50; i++)
        assert_true(copy_behind_a_kernel(&made, i));
    tear_down(&made);
}

static void a_missing_event_gives_wrong_values(void **state)
{
    (void)state;
    if (TEST_THREAD_SANITIZED)
        skip(); /* it ends the test for a race, and this is one */
    bench made;
    int wrong = 0;
    set_up(&made);
    test_device_set_pause(1);
    test_device_ignore_waits(true);
    for (int i = 0; i < 10; i++)
        wrong += !copy_behind_a_kernel(&made, i);
    test_device_ignore_waits(false);
    test_device_set_pause(0);
    assert_true(wrong > 5);
    tear_down(&made);
}

static void host_memory_is_read_late(void **state)
{
    (void)state;
    if (TEST_THREAD_SANITIZED)
        skip(); /* it ends the test for a race, and this is one */
    bench made;
    int late = 0;
    set_up(&made);
    test_device_set_pause(1);
    for (int i = 0; i < 10; i++) {
        float got = 0;
        made.host[0] = 1;
        ok(sl_stream_copy(made.copies, SL_COPY_HOST_TO_DEVICE, made.a, made.host, sizeof made.host));
        made.host[0] = 2; /* too early: the stream has not passed */
        ok(sl_stream_copy(made.copies, SL_COPY_DEVICE_TO_HOST, &got, made.a, sizeof got));
        assert_true(got == 0); /* no more is the result there at once */
        ok(sl_stream_synchronize(made.copies));
        late += got == 2;
    }
    test_device_set_pause(0);
    assert_true(late > 5);
    tear_down(&made);
}

static void pointers_of_the_wrong_side_are_refused(void **state)
{
    (void)state;
    bench made;
    set_up(&made);
    assert_int_equal(add(made.compute, made.a, made.host), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "is no memory of the device"));
    assert_int_equal(sl_stream_copy(made.compute, SL_COPY_HOST_TO_DEVICE, made.host, made.host, 4), SL_ERR_ARGUMENT);
    assert_int_equal(sl_stream_copy(made.compute, SL_COPY_DEVICE_TO_HOST, made.a, made.b, 4), SL_ERR_ARGUMENT);
    assert_int_equal(sl_stream_copy(made.compute, SL_COPY_DEVICE_TO_DEVICE, made.a, made.host, 4), SL_ERR_ARGUMENT);
    assert_int_equal(sl_stream_memset(made.compute, made.host, 0, 4), SL_ERR_ARGUMENT);
    assert_int_equal(sl_stream_memset(made.compute, made.a, 0, COUNT * sizeof(float) + 4096), SL_ERR_ARGUMENT);
    tear_down(&made);
}

/* Whether the process that does it dies of a segmentation fault. */
static bool dies(void (*act)(bench *made), bench *made)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        act(made);
        _exit(0);
    }
    waitpid(child, &status, 0);
    /* A sanitizer turns the signal into an exit code of its own. */
    return WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0;
}

static void read_memory(bench *made)
{
    made->host[0] = *(volatile float *)made->a;
}

static void write_memory(bench *made)
{
    *(volatile float *)made->a = 1;
}

static void do_nothing(bench *made)
{
    made->host[0] = 1;
}

static void the_host_cannot_touch_its_memory(void **state)
{
    (void)state;
    bench made;
    set_up(&made);
    assert_true(dies(read_memory, &made));
    assert_true(dies(write_memory, &made));
    assert_false(dies(do_nothing, &made));
    tear_down(&made);
}

typedef struct note {
    pthread_t thread;
    int order[2], count;
} note;

static void write_down(void *arg)
{
    note *into = arg;
    into->thread = pthread_self();
    into->order[into->count] = into->count;
    into->count++;
}

static void host_functions_run_in_the_order_of_the_stream(void **state)
{
    (void)state;
    bench made;
    note seen = { .count = 0 };
    bool done = true;
    double seconds = -1;
    sl_event *later = NULL;
    set_up(&made);
    ok(sl_event_create(made.device, &later));
    ok(sl_event_query(later, &done));
    assert_true(done); /* never recorded */
    test_device_set_pause(5);
    ok(sl_event_record(made.event, made.compute));
    ok(sl_stream_call(made.compute, write_down, &seen));
    ok(sl_stream_call(made.compute, write_down, &seen));
    ok(sl_event_record(later, made.compute));
    ok(sl_event_query(later, &done));
    assert_false(done);
    ok(sl_event_synchronize(later));
    test_device_set_pause(0);
    assert_int_equal(seen.count, 2);
    assert_false(pthread_equal(seen.thread, pthread_self()));
    ok(sl_event_elapsed(made.event, later, &seconds));
    assert_true(seconds > 0.01 && seconds < 10);
    sl_event_destroy(later);
    tear_down(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(a_missing_event_gives_wrong_values),
        cmocka_unit_test(host_memory_is_read_late),
        cmocka_unit_test(pointers_of_the_wrong_side_are_refused),
        cmocka_unit_test(the_host_cannot_touch_its_memory),
        cmocka_unit_test(host_functions_run_in_the_order_of_the_stream),
        cmocka_unit_test(captured_work_runs_when_it_is_launched),
        cmocka_unit_test(streams_that_wait_for_each_other_are_captured_together),
        cmocka_unit_test(the_cpu_captures_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
