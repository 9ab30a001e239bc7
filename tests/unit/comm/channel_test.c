/* Channels of a single rank: checksums, lack of memory, wrong use. */
#include "base/alloc.h"
#include <sluice/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static const sl_channel_spec spec = { .id = 7, .src = 0, .dst = 0, .capacity = 2, .max_bytes = 64 };
static const sl_message message = { .step = 1, .microbatch = 2, .dtype = SL_F32, .shape = { 1, { 16 } } };

static void a_changed_message_is_found_by_its_checksum(void **state)
{
    (void)state;
    const sl_group_options options = { .transport = "self", .checksum = true };
    sl_group *group = NULL;
    sl_channel *channel = NULL;
    void *data = NULL, *got = NULL;
    assert_int_equal(sl_group_open(&options, &group), SL_OK);
    assert_int_equal(sl_group_open_channels(group, &spec, 1, &channel), SL_OK);
    assert_int_equal(sl_channel_reserve(channel, &message, &data), SL_OK);
    memset(data, 3, 64);
    assert_int_equal(sl_channel_commit(channel, data), SL_OK);
    ((char *)data)[63] = 4; /* after the sender handed it over */
    assert_int_equal(sl_channel_receive(channel, &message, NULL, &got), SL_ERR_COMM);
    assert_non_null(strstr(sl_error_message(), "channel 7 from rank 0, step 1, microbatch 2: checksum"));
    ((char *)data)[63] = 3;
    assert_int_equal(sl_channel_receive(channel, &message, NULL, &got), SL_OK);
    sl_group_close(group);
}

/* Opens, sends, gathers, splits, closes. */
static sl_status go_through_all(void)
{
    sl_status status = SL_OK;
    const sl_group_options options = { .transport = "self" };
    sl_group *group = NULL, *part = NULL;
    sl_channel *channel = NULL;
    sl_request *request = NULL;
    sl_blobs *blobs = NULL;
    float data[16] = { 1 };
    SL_TRY(sl_group_open(&options, &group));
    SL_TRY(sl_group_open_channels(group, &spec, 1, &channel));
    SL_TRY(sl_group_all_reduce_post(group, data, 16, SL_F32, SL_REDUCE_SUM, NULL, &request));
    SL_TRY(sl_request_wait(request));
    SL_TRY(sl_group_gather_blobs(group, data, sizeof data, &blobs));
    SL_TRY(sl_group_split(group, 0, 0, &part));
    SL_TRY(sl_group_all_reduce(part, data, 16, SL_F32, SL_REDUCE_SUM));
done:
    sl_blobs_destroy(blobs);
    sl_group_close(part);
    sl_group_close(group);
    return status;
}

static void lack_of_memory_is_an_error_and_leaves_nothing(void **state)
{
    (void)state;
    int64_t before = sl_alloc_count();
    assert_int_equal(go_through_all(), SL_OK);
    int64_t count = sl_alloc_count() - before;
    assert_true(count > 10);
    for (int64_t n = 0; n < count; n++) {
        sl_alloc_fail_after(n);
        sl_status status = go_through_all();
        sl_alloc_fail_after(-1);
        assert_int_equal(status, SL_ERR_MEMORY);
    }
    assert_int_equal(go_through_all(), SL_OK);
}

static void wrong_use_is_refused(void **state)
{
    (void)state;
    sl_group *group = NULL, *threads[2];
    sl_channel *channel = NULL;
    void *data = NULL;
    char byte = 0;
    const sl_group_options options = { .transport = "self" };
    assert_int_equal(sl_group_open(&(sl_group_options){ .transport = "pigeon" }, &group), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "there is no transport 'pigeon'"));
    assert_int_equal(sl_group_open(&(sl_group_options){ .transport = "threads" }, &group), SL_ERR_ARGUMENT);
    assert_int_equal(sl_group_open_threads(0, NULL, threads), SL_ERR_ARGUMENT);
    assert_int_equal(sl_group_open(&options, &group), SL_OK);
    const sl_channel_spec twice[2] = { spec, spec };
    sl_channel *channels[2];
    assert_int_equal(sl_group_open_channels(group, twice, 2, channels), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "channel 7 is listed twice"));
    sl_channel_spec bad = spec;
    bad.dst = 1;
    assert_int_equal(sl_group_open_channels(group, &bad, 1, &channel), SL_ERR_ARGUMENT);
    bad = spec;
    bad.max_bytes = SIZE_MAX;
    assert_int_equal(sl_group_open_channels(group, &bad, 1, &channel), SL_ERR_ARGUMENT);

    assert_int_equal(sl_group_open_channels(group, &spec, 1, &channel), SL_OK);
    sl_message wrong = message;
    wrong.shape.dims[0] = -1;
    assert_int_not_equal(sl_channel_reserve(channel, &wrong, &data), SL_OK);
    wrong.shape.dims[0] = 17;
    assert_int_equal(sl_channel_reserve(channel, &wrong, &data), SL_ERR_SHAPE);
    assert_int_equal(sl_channel_commit(channel, &byte), SL_ERR_ARGUMENT);
    assert_int_equal(sl_channel_commit(channel, NULL), SL_ERR_ARGUMENT);
    assert_int_equal(sl_channel_release(channel, NULL), SL_ERR_ARGUMENT);
    sl_group_close(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_changed_message_is_found_by_its_checksum),
        cmocka_unit_test(lack_of_memory_is_an_error_and_leaves_nothing),
        cmocka_unit_test(wrong_use_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
