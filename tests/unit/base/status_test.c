/* What every caller may rely on: status, messages, parsing, shapes. */
#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static void a_failure_keeps_its_message(void **state)
{
    (void)state;
    assert_int_equal(sl_fail(SL_ERR_IO, "open %s", "x.csv"), SL_ERR_IO);
    assert_string_equal(sl_error_message(), "open x.csv");
    assert_int_equal(sl_fail_context(SL_ERR_IO, "rank %d", 3), SL_ERR_IO);
    assert_string_equal(sl_error_message(), "rank 3: open x.csv");
    assert_string_equal(sl_status_name(SL_ERR_IO), "ERR_IO");
    assert_string_equal(sl_status_text((sl_status)999), sl_status_text(SL_ERR_INTERNAL));
}

static void a_message_commands_no_terminal(void **state)
{
    (void)state;
    (void)sl_fail(SL_ERR_FORMAT, "tensor '%s' is odd\nand\tfar", "\x1b[31mred\x07\x7f \xc2\x9b 2J \xc3\xa4");
    assert_string_equal(sl_error_message(), "tensor '?[31mred?? ?? 2J \xc3\xa4' is odd\nand\tfar");
}

static void numbers_refuse_trailing_junk(void **state)
{
    (void)state;
    int64_t value = 7;
    assert_int_equal(sl_parse_int("n", "12", 0, 100, &value), SL_OK);
    assert_int_equal(value, 12);
    assert_int_equal(sl_parse_int("n", "-12", -100, 100, &value), SL_OK);
    static const char *const bad[] = { "", " 1", "1 ", "1x", "0x10", "+1", "-", "99999999999999999999", "101" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        value = 7;
        assert_int_not_equal(sl_parse_int("n", bad[i], 0, 100, &value), SL_OK);
        assert_int_equal(value, 7);
    }
    double number = 0;
    assert_int_equal(sl_parse_double("d", "1e-3", 0, 1, &number), SL_OK);
    assert_int_not_equal(sl_parse_double("d", "1e-3s", 0, 1, &number), SL_OK);
    assert_int_not_equal(sl_parse_double("d", "nan", 0, 1, &number), SL_OK);
}

static void shapes_count_and_refuse_overflow(void **state)
{
    (void)state;
    char text[64];
    int64_t count = -1;
    sl_shape shape = { .rank = 2, .dims = { 3, 5 } };
    assert_int_equal(sl_shape_count(&shape, &count), SL_OK);
    assert_int_equal(count, 15);
    assert_string_equal(sl_shape_text(&shape, text, sizeof text), "[3, 5]");
    sl_shape huge = { .rank = 3, .dims = { INT64_MAX, 0, 3 } };
    assert_int_not_equal(sl_shape_count(&huge, &count), SL_OK);
    sl_shape scalar = { .rank = 0 };
    assert_int_equal(sl_shape_count(&scalar, &count), SL_OK);
    assert_int_equal(count, 1);
}

static void shapes_are_equal_where_rank_and_dims_are(void **state)
{
    (void)state;
    const sl_shape none = { .rank = -1, .dims = { 9 } }, other = { .rank = -1 };
    assert_true(sl_shape_equal(&none, &other)); /* what stands for an absent argument has no dims to compare */
    assert_true(sl_shape_equal(&(sl_shape){ 2, { 3, 5, 1 } }, &(sl_shape){ 2, { 3, 5, 2 } }));
    assert_false(sl_shape_equal(&(sl_shape){ 2, { 3, 5 } }, &(sl_shape){ 2, { 3, 4 } }));
    assert_false(sl_shape_equal(&(sl_shape){ 2, { 3, 1 } }, &(sl_shape){ 1, { 3, 1 } }));
}

static void element_types_are_found_by_their_names(void **state)
{
    (void)state;
    sl_dtype dtype = SL_U8;
    for (int i = 0; i < SL_DTYPE_COUNT; i++) {
        assert_int_equal(sl_dtype_parse(sl_dtype_name((sl_dtype)i), &dtype), SL_OK);
        assert_int_equal(dtype, i);
        assert_true(sl_dtype_size(dtype) > 0);
    }
    dtype = SL_U8;
    assert_int_equal(sl_dtype_parse("f33", &dtype), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "f33"));
    assert_int_equal(dtype, SL_U8);
    assert_string_equal(sl_dtype_name(SL_DTYPE_COUNT), "?");
    assert_int_equal(sl_dtype_size(SL_DTYPE_COUNT), 0);
}

static void allocation_can_be_made_to_fail(void **state)
{
    (void)state;
    void *block = NULL;
    sl_alloc_fail_after(1);
    assert_int_equal(sl_alloc(1, 8, &block), SL_OK);
    sl_free(block);
    block = NULL;
    assert_int_equal(sl_alloc(1, 8, &block), SL_ERR_MEMORY);
    assert_null(block);
    sl_alloc_fail_after(-1);
    assert_int_equal(sl_alloc(SIZE_MAX, 16, &block), SL_ERR_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_keeps_its_message),
        cmocka_unit_test(a_message_commands_no_terminal),
        cmocka_unit_test(numbers_refuse_trailing_junk),
        cmocka_unit_test(shapes_count_and_refuse_overflow),
        cmocka_unit_test(shapes_are_equal_where_rank_and_dims_are),
        cmocka_unit_test(element_types_are_found_by_their_names),
        cmocka_unit_test(allocation_can_be_made_to_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
