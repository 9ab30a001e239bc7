/* Allocation: fails if a test asks for it and leaves what was there. */
#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static int let_all_succeed(void **state)
{
    (void)state;
    sl_alloc_fail_after(-1);
    return 0;
}

static void all_after_the_chosen_one_fail(void **state)
{
    (void)state;
    void *blocks[4] = { NULL };
    sl_alloc_fail_after(2);
    for (int i = 0; i < 4; i++)
        assert_int_equal(sl_alloc(1, 8, &blocks[i]), i < 2 ? SL_OK : SL_ERR_MEMORY);
    assert_null(blocks[2]);
    assert_string_equal(sl_error_message(), "out of memory: 1 x 8 bytes");
    sl_alloc_fail_after(-1);
    assert_int_equal(sl_alloc(1, 8, &blocks[2]), SL_OK);
    for (int i = 0; i < 3; i++)
        sl_free(blocks[i]);
}

static void every_kind_of_allocation_can_fail(void **state)
{
    (void)state;
    void *block = NULL;
    char *text = NULL;
    size_t capacity = 0;
    sl_alloc_fail_after(0);
    assert_int_equal(sl_alloc(1, 1, &block), SL_ERR_MEMORY);
    assert_int_equal(sl_realloc(&block, 1, 1), SL_ERR_MEMORY);
    assert_int_equal(sl_grow(&block, &capacity, 1, 1), SL_ERR_MEMORY);
    assert_int_equal(sl_alloc_aligned(64, 64, &block), SL_ERR_MEMORY);
    assert_int_equal(sl_strdup("text", &text), SL_ERR_MEMORY);
    assert_null(block);
    assert_null(text);
    assert_int_equal(capacity, 0);
}

static void a_failed_growth_keeps_the_block(void **state)
{
    (void)state;
    char *text = NULL;
    size_t capacity = 0;
    assert_int_equal(SL_GROW(text, &capacity, 5), SL_OK);
    assert_true(capacity >= 5);
    memcpy(text, "kept", 5);
    size_t before = capacity;
    assert_int_equal(SL_GROW(text, &capacity, SIZE_MAX), SL_ERR_MEMORY);
    sl_alloc_fail_after(0);
    assert_int_equal(SL_GROW(text, &capacity, before + 1), SL_ERR_MEMORY);
    assert_int_equal(capacity, before);
    assert_string_equal(text, "kept");
    sl_free(text);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    void *block = NULL;
    assert_int_equal(sl_alloc(SIZE_MAX, 2, &block), SL_ERR_MEMORY);
    assert_int_equal(sl_alloc(2, SIZE_MAX, &block), SL_ERR_MEMORY);
    assert_int_equal(sl_realloc(&block, SIZE_MAX / 2, 3), SL_ERR_MEMORY);
    assert_null(block);
}

static void memory_is_zeroed_aligned_and_counted(void **state)
{
    (void)state;
    int64_t before = sl_alloc_count();
    int *numbers = NULL;
    void *aligned = NULL, *none = NULL;
    assert_int_equal(SL_NEW_ARRAY(numbers, 100), SL_OK);
    for (int i = 0; i < 100; i++)
        assert_int_equal(numbers[i], 0);
    assert_int_equal(sl_alloc_aligned(100, 64, &aligned), SL_OK);
    assert_int_equal((uintptr_t)aligned % 64, 0);
    assert_int_equal(sl_alloc(0, 8, &none), SL_OK);
    assert_non_null(none);
    assert_int_equal(sl_alloc_count() - before, 3);
    sl_free(numbers);
    sl_free(aligned);
    sl_free(none);
    sl_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(all_after_the_chosen_one_fail, let_all_succeed),
        cmocka_unit_test_teardown(every_kind_of_allocation_can_fail, let_all_succeed),
        cmocka_unit_test_teardown(a_failed_growth_keeps_the_block, let_all_succeed),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(memory_is_zeroed_aligned_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
