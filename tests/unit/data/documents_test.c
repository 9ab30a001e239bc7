/* Documents of a row: places from the token that ends one, targets that are no longer counted. */
#include <sluice/data.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { ROWS = 3, SEQ = 6, END = 9, IGNORED = -100 };

static const int32_t tokens[ROWS * SEQ] = {
    1, 2, 9, 3, 4, 5, /* the rest of one document, and the beginning of the next */
    9, 9, 1, 1, 1, 9, /* empty ones */
    1, 2, 3, 4, 5, 6, /* no end: the row before ended where this one begins */
};

static void places_begin_anew_after_each_end_and_in_each_row(void **state)
{
    (void)state;
    const int32_t expected[ROWS * SEQ] = { 0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5 };
    int32_t positions[ROWS * SEQ];
    sl_document_positions(tokens, ROWS, SEQ, END, positions);
    assert_memory_equal(positions, expected, sizeof expected);
}

static void the_end_is_a_target_and_what_follows_it_is_none(void **state)
{
    (void)state;
    int32_t targets[ROWS * SEQ];
    for (int i = 0; i < ROWS * SEQ; i++)
        targets[i] = i + 1 < ROWS * SEQ ? tokens[i + 1] : 7;
    sl_document_mask(tokens, (int64_t)ROWS * SEQ, END, IGNORED, targets);
    for (int i = 0; i < ROWS * SEQ; i++) {
        int32_t kept = i + 1 < ROWS * SEQ ? tokens[i + 1] : 7;
        assert_int_equal(targets[i], tokens[i] == END ? IGNORED : kept);
    }
    assert_int_equal(targets[1], END);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_begin_anew_after_each_end_and_in_each_row),
        cmocka_unit_test(the_end_is_a_target_and_what_follows_it_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
