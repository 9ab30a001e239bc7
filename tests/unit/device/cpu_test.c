/* The cpu device: memory is aligned and counted, streams and events behave, threads share work. */
#include "base/alloc.h"
#include "device/pool.h"

#include <sluice/device.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static void memory_is_aligned_and_counted(void **state)
{
    (void)state;
    sl_device *device = NULL;
    void *small = NULL, *large = NULL, *empty = NULL;
    assert_int_equal(sl_device_open("cpu", NULL, &device), SL_OK);
    assert_int_equal(sl_device_alloc(device, 100, &small), SL_OK);
    assert_int_equal(sl_device_alloc(device, 5 << 20, &large), SL_OK);
    assert_int_equal(sl_device_alloc(device, 0, &empty), SL_OK);
    assert_int_equal((uintptr_t)small % SL_DEVICE_ALIGNMENT, 0);
    assert_int_equal((uintptr_t)large % SL_DEVICE_ALIGNMENT, 0);
    memset(large, 1, 5 << 20);
    assert_int_equal(sl_device_get_memory(device).in_use, 100 + (5 << 20));
    sl_device_free(device, large);
    assert_int_equal(sl_device_get_memory(device).in_use, 100);
    assert_int_equal(sl_device_get_memory(device).peak, 100 + (5 << 20));
    sl_device_reset_peak(device);
    assert_int_equal(sl_device_get_memory(device).peak, 100);
    sl_device_free(device, small);
    sl_device_free(device, empty);
    sl_device_free(device, NULL);
    assert_int_equal(sl_device_get_memory(device).in_use, 0);
    sl_device_close(device);
}

static void a_failed_allocation_leaves_the_count(void **state)
{
    (void)state;
    sl_device *device = NULL;
    void *block = NULL;
    assert_int_equal(sl_device_open("cpu", NULL, &device), SL_OK);
    sl_alloc_fail_after(0);
    assert_int_equal(sl_device_alloc(device, 100, &block), SL_ERR_MEMORY);
    sl_alloc_fail_after(-1);
    assert_int_equal(sl_device_alloc(device, SIZE_MAX, &block), SL_ERR_MEMORY);
    assert_null(block);
    assert_int_equal(sl_device_get_memory(device).in_use, 0);
    sl_device_close(device);
    for (int n = 0; n < 3; n++) {
        device = NULL;
        sl_alloc_fail_after(n);
        assert_int_equal(sl_device_open("cpu", NULL, &device), SL_ERR_MEMORY);
        sl_alloc_fail_after(-1);
        assert_null(device);
    }
}

static void unknown_devices_are_refused_by_name(void **state)
{
    (void)state;
    sl_device *device = NULL;
    static const char *const bad[] = { "", "gpu", "cpu:", "cpu:x", "cpu:1", "cpux", ":0" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(sl_device_open(bad[i], NULL, &device), SL_OK);
        assert_non_null(strstr(sl_error_message(), bad[i]));
    }
    sl_device_options options = { .threads = -1 };
    assert_int_equal(sl_device_open("cpu", &options, &device), SL_ERR_ARGUMENT);
    assert_null(device);
}

static void copies_and_events_follow_the_stream(void **state)
{
    (void)state;
    sl_device *device = NULL;
    sl_stream *stream = NULL;
    sl_event *from = NULL, *to = NULL;
    void *block = NULL;
    char text[8] = "sluice", back[8];
    double seconds = -1;
    bool done = false;
    assert_int_equal(sl_device_open("cpu:0", NULL, &device), SL_OK);
    assert_string_equal(sl_device_name(device), "cpu:0");
    assert_true(sl_device_is_host(device));
    assert_int_equal(sl_stream_create(device, &stream), SL_OK);
    assert_ptr_equal(sl_stream_device(stream), device);
    assert_null(sl_stream_native(stream));
    assert_int_equal(sl_event_create(device, &from), SL_OK);
    assert_int_equal(sl_event_create(device, &to), SL_OK);
    assert_int_equal(sl_device_alloc(device, 8, &block), SL_OK);
    assert_int_not_equal(sl_event_elapsed(from, to, &seconds), SL_OK);
    assert_int_equal(sl_event_record(from, stream), SL_OK);
    assert_int_equal(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, block, text, 8), SL_OK);
    assert_int_equal(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, back, block, 8), SL_OK);
    assert_int_equal(sl_event_record(to, stream), SL_OK);
    assert_int_equal(sl_stream_wait(stream, to), SL_OK);
    assert_int_equal(sl_event_synchronize(to), SL_OK);
    assert_int_equal(sl_event_query(to, &done), SL_OK);
    assert_true(done);
    assert_int_equal(sl_event_elapsed(from, to, &seconds), SL_OK);
    assert_true(seconds >= 0);
    assert_string_equal(back, "sluice");
    assert_int_equal(sl_stream_memset(stream, block, 0, 8), SL_OK);
    assert_int_equal(sl_stream_synchronize(stream), SL_OK);
    assert_int_equal(((char *)block)[7], 0);
    sl_device_free(device, block);
    sl_event_destroy(from);
    sl_event_destroy(to);
    sl_stream_destroy(stream);
    sl_device_close(device);
}

typedef struct tally {
    int64_t cells[64];
} tally;

static void count_part(void *context, int part, int parts)
{
    tally *t = context;
    for (int i = part; i < 64; i += parts)
        t->cells[i]++;
}

static void every_part_runs_once_a_job(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        sl_pool *pool = NULL;
        tally t = { { 0 } };
        assert_int_equal(sl_pool_create(threads, &pool), SL_OK);
        for (int job = 0; job < 200; job++)
            sl_pool_run(pool, 1 + job % threads, count_part, &t);
        for (int i = 0; i < 64; i++)
            assert_int_equal(t.cells[i], 200);
        sl_pool_destroy(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_counted),       cmocka_unit_test(a_failed_allocation_leaves_the_count),
        cmocka_unit_test(unknown_devices_are_refused_by_name), cmocka_unit_test(copies_and_events_follow_the_stream),
        cmocka_unit_test(every_part_runs_once_a_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
