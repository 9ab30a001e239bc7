/* The text form of one action: exact in both directions, strict in what it reads. */
#include <sluice/schedule.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static sl_status parse(const char *text, sl_action *out)
{
    return sl_action_parse(text, strlen(text), out);
}

static void every_kind_reads_back(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "0F0",
        "2I1",
        "3W12",
        "65534B2147483646",
        "1SEND_F0",
        "1RECV_F3",
        "7SEND_B22",
        "0RECV_B1",
        "4UNSHARD",
        "5RESHARD",
        "6REDUCE_GRAD",
        "(0F3;3B1)OVERLAP_F_B",
        "(65534F2147483646;65534B2147483646)OVERLAP_F_B",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[SL_ACTION_TEXT_SIZE];
        sl_action action;
        assert_int_equal(parse(texts[i], &action), SL_OK);
        assert_string_equal(sl_action_text(action, text, sizeof text), texts[i]);
    }
}

static void what_is_out_of_range_does_not_wrap_around(void **state)
{
    (void)state;
    const sl_action wrong[] = {
        sl_action_make(SL_KIND_F, 65536, 0),       sl_action_make(SL_KIND_F, 65535, 0),
        sl_action_make(SL_KIND_F, -1, 0),          sl_action_make(SL_KIND_F, 0, -1),
        sl_action_make(SL_KIND_UNSHARD, 65536, 0), sl_action_make((sl_kind)256, 0, 0),
        sl_action_overlap(65536, 0, 0, 0),         sl_action_overlap(0, 0, 65536, 0),
        sl_action_overlap(0, 0, -65535, 0),
    };
    sl_schedule_builder *builder = NULL;
    assert_int_equal(sl_schedule_builder_create(1, &builder), SL_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(sl_schedule_builder_add(builder, 0, wrong[i]), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_builder_add(builder, 0, sl_action_make(SL_KIND_F, 65534, 0)), SL_OK);
    sl_schedule_builder_destroy(builder);
}

static void refuses_what_is_no_action(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "F0",
        "0",
        "0F",
        "0X0",
        "0F0xyz",
        "2F0 ",
        " 2F0",
        "-1F0",
        "0F-1",
        "0f0",
        "0UNSHARD1",
        "1RESHARD0",
        "2REDUCE_GRAD3",
        "0SEND_F",
        "0SENDF0",
        "0SEND_0",
        "0F0F0",
        "65535F0",
        "2147483648F0",
        "0F2147483647",
        "0F99999999999999999999",
        "(0F0;1B0)",
        "(0F0;1B0)F",
        "(0F0,1B0)OVERLAP_F_B",
        "(0F0;1B0)OVERLAP_F_B0",
        "(0B0;1F0)OVERLAP_F_B",
        "(0F0;1I0)OVERLAP_F_B",
        "0OVERLAP_F_B0",
        "(0F0;1B0OVERLAP_F_B",
        "((0F0;1B0)OVERLAP_F_B",
        "()OVERLAP_F_B",
        "0OVERLAP_F_B",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_action action = sl_action_make(SL_KIND_W, 9, 9);
        assert_int_equal(parse(texts[i], &action), SL_ERR_FORMAT);
        assert_true(sl_action_equal(action, sl_action_make(SL_KIND_W, 9, 9)));
    }
    sl_action action;
    assert_int_equal(sl_action_parse("0F\0001", 4, &action), SL_ERR_FORMAT); /* a NUL inside */
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    sl_action action;
    assert_int_equal(parse("2F0xyz", &action), SL_ERR_FORMAT);
    assert_string_equal(sl_error_message(), "'2F0xyz' is no action: something follows it");
    assert_int_equal(parse("2F", &action), SL_ERR_FORMAT);
    assert_string_equal(sl_error_message(), "'2F' is no action: its microbatch number is missing");
    assert_int_equal(parse("2UNSHARD4", &action), SL_ERR_FORMAT);
    assert_string_equal(sl_error_message(), "'2UNSHARD4' is no action: its kind takes no microbatch number");
}

static void an_overlap_has_two_parts(void **state)
{
    (void)state;
    sl_action parts[2];
    assert_int_equal(sl_action_parts(sl_action_overlap(0, 3, 5, 1), parts), 2);
    assert_true(sl_action_equal(parts[0], sl_action_make(SL_KIND_F, 0, 3)));
    assert_true(sl_action_equal(parts[1], sl_action_make(SL_KIND_B, 5, 1)));
    assert_int_equal(sl_action_parts(sl_action_make(SL_KIND_W, 1, 2), parts), 1);
    assert_true(sl_action_equal(parts[0], sl_action_make(SL_KIND_W, 1, 2)));
    assert_int_equal(sl_action_parts(sl_action_make(SL_KIND_SEND_F, 1, 2), parts), 0);
    assert_int_equal(sizeof(sl_action), 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_reads_back),     cmocka_unit_test(what_is_out_of_range_does_not_wrap_around),
        cmocka_unit_test(refuses_what_is_no_action), cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(an_overlap_has_two_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
