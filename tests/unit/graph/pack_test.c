/* Packing: blocks never overlap while both are needed, and little memory is lost. */
#include "graph/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

enum { ALIGN = 64, TIME = 100 };

/* The most memory that is needed at one time: no packing can do with less. */
static size_t peak(const sl_block *blocks, int count)
{
    size_t most = 0;
    for (int t = 0; t < TIME; t++) {
        size_t sum = 0;
        for (int i = 0; i < count; i++) {
            if (blocks[i].first <= t && t <= blocks[i].last)
                sum += (blocks[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
        }
        most = sum > most ? sum : most;
    }
    return most;
}

static void assert_sound(const sl_block *blocks, int count, size_t total)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(blocks[i].offset % ALIGN, 0);
        assert_true(blocks[i].offset + blocks[i].bytes <= total);
        for (int k = 0; k < i; k++) {
            bool meet = blocks[i].first <= blocks[k].last && blocks[k].first <= blocks[i].last;
            bool overlap = blocks[i].offset < blocks[k].offset + blocks[k].bytes &&
                           blocks[k].offset < blocks[i].offset + blocks[i].bytes;
            assert_false(meet && overlap);
        }
    }
}

static void blocks_that_meet_do_not_overlap(void **state)
{
    (void)state;
    srand(3);
    for (int round = 0; round < 200; round++) {
        sl_block blocks[60];
        int count = rand() % 60;
        size_t total;
        for (int i = 0; i < count; i++) {
            int first = rand() % TIME, length = rand() % 20;
            blocks[i] = (sl_block){ .first = first,
                                    .last = first + length < TIME ? first + length : TIME - 1,
                                    .bytes = (size_t)(rand() % 5 ? rand() % 3000 : 0) };
        }
        assert_int_equal(sl_pack_blocks(blocks, count, ALIGN, &total), SL_OK);
        assert_sound(blocks, count, total);
        assert_true(total >= peak(blocks, count));
        assert_true((double)total <= 1.35 * (double)peak(blocks, count));
    }
}

static void nothing_needs_nothing(void **state)
{
    (void)state;
    size_t total = 1;
    assert_int_equal(sl_pack_blocks(NULL, 0, ALIGN, &total), SL_OK);
    assert_int_equal(total, 0);
}

static void a_chain_needs_two_blocks(void **state)
{
    (void)state;
    sl_block blocks[20];
    size_t total;
    for (int i = 0; i < 20; i++)
        blocks[i] = (sl_block){ .first = i, .last = i + 1, .bytes = 100 };
    assert_int_equal(sl_pack_blocks(blocks, 20, ALIGN, &total), SL_OK);
    assert_int_equal(total, 2 * 128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_meet_do_not_overlap),
        cmocka_unit_test(nothing_needs_nothing),
        cmocka_unit_test(a_chain_needs_two_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
