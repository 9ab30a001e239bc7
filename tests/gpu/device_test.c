/* The GPU as a device: memory, copies, streams and events. */
#include "gpu/gpu.h"

#include "device/share.h"

static void memory_is_counted_and_refused_with_numbers(void **state)
{
    (void)state;
    void *block = NULL, *empty = NULL, *none = NULL;
    size_t before = sl_device_get_memory(gpu).in_use;
    assert_int_equal(sl_device_alloc(gpu, 1000, &block), SL_OK);
    assert_int_equal(sl_device_alloc(gpu, 0, &empty), SL_OK);
    assert_ptr_not_equal(block, empty);
    assert_int_equal((uintptr_t)block % SL_DEVICE_ALIGNMENT, 0);
    assert_int_equal(sl_device_get_memory(gpu).in_use, before + 1000);
    assert_int_equal(sl_device_alloc(gpu, (size_t)1 << 50, &none), SL_ERR_MEMORY);
    assert_non_null(strstr(sl_error_message(), "1125899906842624 bytes were asked for"));
    sl_device_free(gpu, block);
    sl_device_free(gpu, empty);
    assert_int_equal(sl_device_get_memory(gpu).in_use, before);
}

static void copies_go_both_ways_in_the_order_of_the_stream(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *host = NULL, *a = NULL, *b = NULL;
    assert_int_equal(sl_device_alloc_host(gpu, BYTES, (void **)&host), SL_OK);
    assert_int_equal(sl_device_alloc(gpu, BYTES, (void **)&a), SL_OK);
    assert_int_equal(sl_device_alloc(gpu, BYTES, (void **)&b), SL_OK);
    for (int i = 0; i < BYTES; i++)
        host[i] = (char)(i * 7);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_HOST_TO_DEVICE, a, host, BYTES), SL_OK);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_DEVICE, b, a, BYTES), SL_OK);
    assert_int_equal(sl_stream_memset(gpu_stream, b, 5, 100), SL_OK);
    assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
    memset(host, 0, BYTES);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, host, b, BYTES), SL_OK);
    assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(host[i], i < 100 ? 5 : (char)(i * 7));
    sl_device_free(gpu, a);
    sl_device_free(gpu, b);
    sl_device_free_host(gpu, host);
}

static void note(void *count)
{
    ++*(int *)count;
}

static void events_order_streams_and_measure_time(void **state)
{
    (void)state;
    enum { BYTES = 64 << 20 };
    sl_stream *other = NULL;
    sl_event *begin = NULL, *end = NULL;
    char *block = NULL, value = 0;
    int called = 0;
    bool done = false;
    double seconds = 0;
    assert_int_equal(sl_stream_create(gpu, &other), SL_OK);
    assert_int_equal(sl_event_create(gpu, &begin), SL_OK);
    assert_int_equal(sl_event_create(gpu, &end), SL_OK);
    assert_int_equal(sl_event_query(begin, &done), SL_OK);
    assert_true(done); /* never recorded */
    assert_int_equal(sl_event_elapsed(begin, end, &seconds), SL_ERR_ARGUMENT);
    assert_int_equal(sl_device_alloc(gpu, BYTES, (void **)&block), SL_OK);
    for (int round = 0; round < 20; round++) {
        assert_int_equal(sl_event_record(begin, gpu_stream), SL_OK);
        for (int i = 0; i < 50; i++)
            assert_int_equal(sl_stream_memset(gpu_stream, block, round, BYTES), SL_OK);
        assert_int_equal(sl_stream_call(gpu_stream, note, &called), SL_OK);
        assert_int_equal(sl_event_record(end, gpu_stream), SL_OK);
        assert_int_equal(sl_stream_wait(other, end), SL_OK);
        assert_int_equal(sl_stream_copy(other, SL_COPY_DEVICE_TO_HOST, &value, block + BYTES - 1, 1), SL_OK);
        assert_int_equal(sl_stream_synchronize(other), SL_OK);
        assert_int_equal(value, round);
        assert_int_equal(called, round + 1);
        assert_int_equal(sl_event_synchronize(end), SL_OK);
        assert_int_equal(sl_event_query(end, &done), SL_OK);
        assert_true(done);
        assert_int_equal(sl_event_elapsed(begin, end, &seconds), SL_OK);
        assert_true(seconds > 0 && seconds < 10);
    }
    sl_device_free(gpu, block);
    sl_event_destroy(begin);
    sl_event_destroy(end);
    sl_stream_destroy(other);
}

static void captured_work_runs_when_it_is_launched(void **state)
{
    (void)state;
    enum { BYTES = 4096 };
    char *host = NULL, *a = NULL, *b = NULL;
    int called = 0;
    sl_capture *capture = NULL;
    assert_true(sl_device_can_capture(gpu));
    assert_int_equal(sl_device_alloc_host(gpu, (size_t)2 * BYTES, (void **)&host), SL_OK);
    assert_int_equal(sl_device_alloc(gpu, BYTES, (void **)&a), SL_OK);
    assert_int_equal(sl_device_alloc(gpu, BYTES, (void **)&b), SL_OK);
    memset(host, 9, (size_t)2 * BYTES);
    assert_int_equal(sl_stream_begin_capture(gpu_stream), SL_OK);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_HOST_TO_DEVICE, a, host, BYTES), SL_OK);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_DEVICE, b, a, BYTES), SL_OK);
    assert_int_equal(sl_stream_memset(gpu_stream, b, 5, 100), SL_OK);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, host + BYTES, b, BYTES), SL_OK);
    assert_int_equal(sl_stream_call(gpu_stream, note, &called), SL_OK);
    assert_int_equal(sl_stream_end_capture(gpu_stream, &capture), SL_OK);
    assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
    assert_int_equal(called, 0);
    for (int launch = 1; launch <= 3; launch++) {
        memset(host, 10 + launch, BYTES);
        assert_int_equal(sl_capture_launch(capture), SL_OK);
        assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
        assert_int_equal(called, launch);
        assert_int_equal(host[BYTES + 99], 5);
        assert_int_equal(host[2 * BYTES - 1], 10 + launch);
    }
    sl_capture_destroy(capture);
    sl_device_free(gpu, a);
    sl_device_free(gpu, b);
    sl_device_free_host(gpu, host);
}

/* Kernels do that in a graph, whatever the length and the address; memsets may follow each other. */
static void captured_memsets_fill_what_they_should(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    static const struct {
        size_t from, bytes;
        int value;
    } sets[] = { { 0, BYTES, 1 },   { 64, 4, 2 },         { 256, 37, 0xab }, { 1003, 500, 4 },
                 { 4096, 1, 0xff }, { 65536, 300001, 6 }, { 65552, 16, 0 },  { BYTES - 16, 16, 8 } };
    char *host = NULL, *data = NULL, wanted = 0;
    sl_capture *capture = NULL;
    assert_int_equal(sl_device_alloc_host(gpu, BYTES, (void **)&host), SL_OK);
    assert_int_equal(sl_device_alloc(gpu, BYTES, (void **)&data), SL_OK);
    assert_int_equal(sl_stream_begin_capture(gpu_stream), SL_OK);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        assert_int_equal(sl_stream_memset(gpu_stream, data + sets[i].from, sets[i].value, sets[i].bytes), SL_OK);
    assert_int_equal(sl_stream_end_capture(gpu_stream, &capture), SL_OK);
    for (int launch = 0; launch < 2; launch++) {
        assert_int_equal(sl_stream_memset(gpu_stream, data, 0x55, BYTES), SL_OK);
        assert_int_equal(sl_capture_launch(capture), SL_OK);
        assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, host, data, BYTES), SL_OK);
        assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
        for (size_t at = 0; at < BYTES; at++) {
            for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
                wanted = at - sets[i].from < sets[i].bytes ? (char)sets[i].value : wanted;
            if (host[at] != wanted)
                fail_msg("byte %zu is %d, %d was set", at, host[at], wanted);
        }
    }
    sl_capture_destroy(capture);
    sl_device_free(gpu, data);
    sl_device_free_host(gpu, host);
}

static void streams_that_wait_for_each_other_are_captured_together(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    sl_stream *other = NULL;
    sl_event *fork = NULL, *join = NULL;
    sl_capture *capture = NULL;
    char *host = NULL, *block = NULL;
    assert_int_equal(sl_stream_create(gpu, &other), SL_OK);
    assert_int_equal(sl_event_create(gpu, &fork), SL_OK);
    assert_int_equal(sl_event_create(gpu, &join), SL_OK);
    assert_int_equal(sl_device_alloc(gpu, BYTES, (void **)&block), SL_OK);
    assert_int_equal(sl_device_alloc_host(gpu, (size_t)2 * BYTES, (void **)&host), SL_OK);
    assert_int_equal(sl_stream_begin_capture(gpu_stream), SL_OK);
    assert_int_equal(sl_event_record(fork, gpu_stream), SL_OK);
    assert_int_equal(sl_stream_wait(other, fork), SL_OK);
    assert_int_equal(sl_stream_copy(other, SL_COPY_HOST_TO_DEVICE, block, host, BYTES), SL_OK);
    assert_int_equal(sl_event_record(join, other), SL_OK);
    assert_int_equal(sl_stream_wait(gpu_stream, join), SL_OK);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, host + BYTES, block, BYTES), SL_OK);
    assert_int_equal(sl_stream_end_capture(gpu_stream, &capture), SL_OK);
    for (int launch = 1; launch <= 10; launch++) {
        memset(host, launch, BYTES);
        assert_int_equal(sl_capture_launch(capture), SL_OK);
        assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
        assert_int_equal(host[2 * BYTES - 1], launch);
    }
    sl_capture_destroy(capture);
    sl_device_free(gpu, block);
    sl_device_free_host(gpu, host);
    sl_event_destroy(fork);
    sl_event_destroy(join);
    sl_stream_destroy(other);
}

/* CUDA's runtime has no name for the node of a word. Nothing of that may be left for the next launch to find. */
static void launches_go_on_after_a_capture_with_words(void **state)
{
    (void)state;
    uint32_t *words = NULL, found = 0;
    sl_capture *capture = NULL;
    assert_int_equal(sl_device_alloc(gpu, 256, (void **)&words), SL_OK);
    const sl_word_use use = { .kind = SL_WORD_WRITE, .word = words, .value = 7 };
    assert_int_equal(sl_stream_begin_capture(gpu_stream), SL_OK);
    assert_int_equal(sl_stream_memset(gpu_stream, words, 0, 64), SL_OK);
    assert_int_equal(sl_stream_use_words(gpu_stream, &use, 1), SL_OK);
    assert_int_equal(sl_stream_memset(gpu_stream, words + 16, 0, 64), SL_OK);
    assert_int_equal(sl_stream_end_capture(gpu_stream, &capture), SL_OK);
    assert_int_equal(sl_capture_launch(capture), SL_OK);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_DEVICE, words + 32, words, 64), SL_OK);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, &found, words + 32, sizeof found), SL_OK);
    assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
    assert_int_equal(found, 7);
    sl_capture_destroy(capture);
    sl_device_free(gpu, words);
}

static void names_say_which_gpu(void **state)
{
    (void)state;
    char text[256];
    sl_device *same = NULL, *missing = NULL;
    assert_string_equal(sl_device_name(gpu), "cuda:0");
    assert_false(sl_device_is_host(gpu));
    assert_int_equal(sl_device_get_kind(gpu), SL_DEVICE_CUDA);
    assert_non_null(strstr(sl_kernel_describe(gpu, text, sizeof text), "cuBLASLt"));
    assert_int_equal(sl_device_open("auto", NULL, &same), SL_OK);
    assert_string_equal(sl_device_name(same), "cuda:0");
    sl_device_close(same);
    assert_int_equal(sl_device_open("cuda:1000", NULL, &missing), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "only"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_counted_and_refused_with_numbers),
        cmocka_unit_test(copies_go_both_ways_in_the_order_of_the_stream),
        cmocka_unit_test(events_order_streams_and_measure_time),
        cmocka_unit_test(captured_work_runs_when_it_is_launched),
        cmocka_unit_test(captured_memsets_fill_what_they_should),
        cmocka_unit_test(streams_that_wait_for_each_other_are_captured_together),
        cmocka_unit_test(launches_go_on_after_a_capture_with_words),
        cmocka_unit_test(names_say_which_gpu),
    };
    if (!open_gpu())
        return SKIPPED;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_gpu();
    return failed;
}
