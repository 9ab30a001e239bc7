/* Arena: what comes from it stays where it is until the arena goes. */
#include "base/alloc.h"
#include "base/arena.h"

#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static int create(void **state)
{
    sl_alloc_fail_after(-1);
    return sl_arena_create((sl_arena **)state) == SL_OK ? 0 : -1;
}

static int destroy(void **state)
{
    sl_alloc_fail_after(-1);
    sl_arena_destroy(*state);
    return 0;
}

static void objects_are_zeroed_aligned_and_stay(void **state)
{
    sl_arena *arena = *state;
    enum { COUNT = 20000 };
    static unsigned char *objects[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t size = (size_t)(i * 7919 % 97 + 1);
        assert_int_equal(sl_arena_alloc(arena, size, 1, (void **)&objects[i]), SL_OK);
        assert_int_equal((uintptr_t)objects[i] % alignof(max_align_t), 0);
        for (size_t j = 0; j < size; j++)
            assert_int_equal(objects[i][j], 0);
        memset(objects[i], i & 0xff, size);
    }
    for (int i = 0; i < COUNT; i++) {
        size_t size = (size_t)(i * 7919 % 97 + 1);
        assert_int_equal(objects[i][0], i & 0xff);
        assert_int_equal(objects[i][size - 1], i & 0xff);
    }
}

static void little_is_wasted(void **state)
{
    sl_arena *arena = *state;
    void *object = NULL;
    for (int i = 0; i < 100000; i++)
        assert_int_equal(sl_arena_alloc(arena, 1, 64, &object), SL_OK);
    assert_true(sl_arena_bytes(arena) >= 6400000);
    assert_true(sl_arena_bytes(arena) <= 6400000 + (2 << 20));
}

static void large_objects_fit(void **state)
{
    sl_arena *arena = *state;
    char *large = NULL, *small = NULL;
    assert_int_equal(sl_arena_alloc(arena, 10 << 20, 1, (void **)&large), SL_OK);
    assert_int_equal(sl_arena_strdup(arena, "after it", &small), SL_OK);
    large[0] = large[(10 << 20) - 1] = 'x';
    assert_string_equal(small, "after it");
    void *none = NULL;
    assert_int_equal(sl_arena_alloc(arena, 0, 16, &none), SL_OK);
    assert_non_null(none);
}

static void sizes_that_overflow_are_refused(void **state)
{
    void *object = NULL;
    assert_int_equal(sl_arena_alloc(*state, SIZE_MAX, 2, &object), SL_ERR_MEMORY);
    assert_int_equal(sl_arena_alloc(*state, SIZE_MAX - 8, 1, &object), SL_ERR_MEMORY);
    assert_null(object);
}

static void a_failed_allocation_leaves_the_arena_usable(void **state)
{
    sl_arena *arena = *state;
    char *text = NULL, *kept = NULL;
    assert_int_equal(sl_arena_printf(arena, &kept, "rank %d", 3), SL_OK);
    sl_alloc_fail_after(0);
    assert_int_equal(sl_arena_alloc(arena, 1 << 20, 1, (void **)&text), SL_ERR_MEMORY);
    assert_null(text);
    sl_alloc_fail_after(-1);
    assert_int_equal(sl_arena_alloc(arena, 1 << 20, 1, (void **)&text), SL_OK);
    assert_string_equal(kept, "rank 3");
}

static void an_arena_that_cannot_be_made_leaves_nothing(void **state)
{
    (void)state;
    sl_arena *arena = NULL;
    sl_alloc_fail_after(0);
    assert_int_equal(sl_arena_create(&arena), SL_ERR_MEMORY);
    assert_null(arena);
    sl_alloc_fail_after(-1);
    sl_arena_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(objects_are_zeroed_aligned_and_stay, create, destroy),
        cmocka_unit_test_setup_teardown(little_is_wasted, create, destroy),
        cmocka_unit_test_setup_teardown(large_objects_fit, create, destroy),
        cmocka_unit_test_setup_teardown(sizes_that_overflow_are_refused, create, destroy),
        cmocka_unit_test_setup_teardown(a_failed_allocation_leaves_the_arena_usable, create, destroy),
        cmocka_unit_test(an_arena_that_cannot_be_made_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
