/* Shared memory is a file to the kernel: what a limit on file sizes (ulimit -f) leaves is used, and more is an error and
 * no signal. */
#include <sluice/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/resource.h>

static struct rlimit before;

static void limit_files(rlim_t bytes)
{
    const struct rlimit limit = { .rlim_cur = bytes, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static int remember_limit(void **state)
{
    (void)state;
    return getrlimit(RLIMIT_FSIZE, &before);
}

static int restore_limit(void **state)
{
    (void)state;
    return setrlimit(RLIMIT_FSIZE, &before);
}

static void no_room_at_all_is_an_error(void **state)
{
    (void)state;
    const sl_group_options options = { .transport = "self" };
    sl_group *group = NULL;
    limit_files(64 << 10);
    assert_int_equal(sl_group_open(&options, &group), SL_ERR_MEMORY);
    assert_non_null(strstr(sl_error_message(), "ulimit -f"));
}

static void too_little_for_the_collectives_is_an_error(void **state)
{
    (void)state;
    sl_group *groups[8] = { NULL };
    limit_files(64 << 20);
    assert_int_equal(sl_group_open_threads(8, NULL, groups), SL_ERR_MEMORY);
    assert_non_null(strstr(sl_error_message(), "for collectives of 8 ranks"));
    assert_null(groups[0]);
}

static void what_there_is_room_for_works(void **state)
{
    (void)state;
    const sl_group_options options = { .transport = "self" };
    const sl_message message = { .dtype = SL_U8, .shape = { 1, { 12 << 20 } } };
    sl_channel_spec fits = { .id = 1, .capacity = 2, .max_bytes = 12 << 20 }, too_large = fits;
    sl_group *group = NULL;
    sl_channel *channel = NULL, *none = NULL;
    void *data = NULL, *got = NULL;
    limit_files(64 << 20);
    assert_int_equal(sl_group_open(&options, &group), SL_OK);
    assert_int_equal(sl_group_open_channels(group, &fits, 1, &channel), SL_OK);
    assert_int_equal(sl_channel_reserve(channel, &message, &data), SL_OK);
    memset(data, 7, 12 << 20);
    assert_int_equal(sl_channel_commit(channel, data), SL_OK);
    assert_int_equal(sl_channel_receive(channel, &message, NULL, &got), SL_OK);
    assert_int_equal(((char *)got)[(12 << 20) - 1], 7);
    too_large.id = 2;
    assert_int_equal(sl_group_open_channels(group, &too_large, 1, &none), SL_ERR_MEMORY);
    assert_non_null(strstr(sl_error_message(), "ask for more than"));
    sl_group_close(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_room_at_all_is_an_error, remember_limit, restore_limit),
        cmocka_unit_test_setup_teardown(too_little_for_the_collectives_is_an_error, remember_limit, restore_limit),
        cmocka_unit_test_setup_teardown(what_there_is_room_for_works, remember_limit, restore_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
