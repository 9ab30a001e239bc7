/* Flat shardings and copies: ranges of the elements over groups of replicas, and tensors that several groups hold. */
#include <sluice/shard.h>

#include "support/layouts.h"
#include "support/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 24 };

static const sl_tensor_properties f32 = { .dtype = SL_F32 };

static sl_sharding flat(sl_shape size, int ranks, int group)
{
    sl_shard_place places[MOST_RANKS];
    sl_sharding sharding = { 0 };
    for (int r = 0; r < ranks; r++)
        places[r] = (sl_shard_place){ .rank = r, .device = "cpu" };
    ok(sl_sharding_flat(&size, &f32, group, places, ranks, &sharding));
    return sharding;
}

static void has_lengths(sl_shape size, int ranks, int group, const int64_t *lengths)
{
    sl_sharding sharding = flat(size, ranks, group);
    assert_int_equal(sharding.size.rank, 1);
    assert_int_equal(sharding.copies, ranks / group);
    for (int i = 0; i < ranks; i++)
        assert_int_equal(sharding.shards[i].size.dims[0], lengths[i]);
    sl_sharding_destroy(&sharding);
}

static void ranges_are_pieces_put_together(void **state)
{
    (void)state;
    const sl_shape eleven = { 1, { 11 } }, scalar = { 0, { 0 } }, none = { 2, { 0, 3 } }, box = { 3, { 2, 3, 2 } };
    has_lengths(eleven, 4, 4, (int64_t[]){ 3, 3, 3, 2 });
    has_lengths(eleven, 4, 2, (int64_t[]){ 6, 5, 6, 5 });
    has_lengths(eleven, 4, 1, (int64_t[]){ 11, 11, 11, 11 });
    has_lengths(box, 8, 2, (int64_t[]){ 8, 4, 8, 4, 8, 4, 8, 4 });
    has_lengths(scalar, 4, 2, (int64_t[]){ 1, 0, 1, 0 });
    has_lengths(none, 2, 2, (int64_t[]){ 0, 0 });
    sl_sharding sharding = { .count = 7 };
    says(sl_sharding_flat(&eleven, &f32, 3, NULL, 4, &sharding), "4 placements cannot be groups of 3");
    says(sl_sharding_flat(&eleven, &f32, 0, NULL, 4, &sharding), "groups of 0");
    assert_int_equal(sharding.count, 7);
}

/* The elements of rank r, by the definition: element e is in piece e / ceil(n / ranks). */
static void holds_what_the_definition_says(const sl_sharding *sharding, int64_t elements, int ranks, int group)
{
    int64_t piece = (elements + ranks - 1) / ranks;
    for (int r = 0; r < ranks; r++) {
        const sl_shard *own = &sharding->shards[sl_sharding_find(sharding, r)];
        for (int64_t e = 0; e < elements; e++) {
            bool held = e >= own->offsets[0] && e < own->offsets[0] + own->size.dims[0];
            assert_int_equal(held, e / piece / (ranks / group) == r % group);
        }
    }
}

static void random_flat_shardings_are_whole_and_nest(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 3000; round++) {
        int groups = 1 + (int)layout_below(&seed, 4), group = 1 + (int)layout_below(&seed, 6), ranks = groups * group;
        const sl_shape size = layout_shape(&seed, 3, 7);
        int64_t elements = layout_count(&size);
        sl_sharding shards = flat(size, ranks, group), parts = flat(size, ranks, ranks);
        ok(sl_sharding_check(&shards));
        ok(sl_sharding_check(&parts));
        holds_what_the_definition_says(&shards, elements, ranks, group);
        for (int s = 0; s < group; s++) { /* a range is the pieces of the finer sharding, side by side */
            int64_t at = shards.shards[s].offsets[0];
            for (int p = s * groups; p < (s + 1) * groups; p++) {
                assert_int_equal(parts.shards[p].offsets[0], at);
                at += parts.shards[p].size.dims[0];
            }
            assert_int_equal(at, shards.shards[s].offsets[0] + shards.shards[s].size.dims[0]);
        }
        sl_sharding_destroy(&shards);
        sl_sharding_destroy(&parts);
    }
}

static void the_largest_tensor_can_be_cut(void **state)
{
    (void)state;
    const sl_shape size = { 1, { INT64_MAX / 4 - 1 } };
    sl_sharding sharding = flat(size, 24, 8);
    ok(sl_sharding_check(&sharding));
    sl_sharding_destroy(&sharding);
}

static void every_copy_is_checked(void **state)
{
    (void)state;
    sl_sharding sharding = flat((sl_shape){ 1, { 12 } }, 6, 3);
    ok(sl_sharding_check(&sharding));
    assert_int_equal(sl_sharding_find(&sharding, 4), 4);
    assert_int_equal(sl_sharding_find(&sharding, 6), -1);
    sharding.shards[4].offsets[0] = 3; /* of the second copy */
    says(sl_sharding_check(&sharding), "shards 3 and 4 overlap");
    sharding.shards[4].offsets[0] = 4;
    sharding.shards[5].size.dims[0] = 3;
    says(sl_sharding_check(&sharding), "the shards have 11 of the 12 elements");
    sharding.shards[5].size.dims[0] = 4;
    sharding.copies = 4;
    says(sl_sharding_check(&sharding), "6 shards are not 4 copies");
    sharding.copies = 1;
    says(sl_sharding_check(&sharding), "shards 0 and 3 overlap");
    sl_sharding_destroy(&sharding);
}

static void copies_are_written_and_read(void **state)
{
    (void)state;
    sl_sharding sharding = flat((sl_shape){ 1, { 12 } }, 6, 3), again = { 0 };
    char *text = NULL, *second = NULL;
    ok(sl_sharding_write(&sharding, &text));
    ok(sl_sharding_parse("text", text, &again));
    assert_int_equal(again.copies, 2);
    ok(sl_sharding_write(&again, &second));
    assert_string_equal(text, second);
    char *number = strchr(strstr(second, "copies"), '2');
    *number = '0';
    says(sl_sharding_parse("text", second, &again), "'copies' is no number from 1 on");
    *number = '1';
    says(sl_sharding_parse("text", second, &again), "shards 0 and 3 overlap");
    sl_free(text);
    sl_free(second);
    sl_sharding_destroy(&again);
    sl_sharding_destroy(&sharding);
}

/* Which ranks send to which, as text: "0>1 1>0". */
static void plans(const sl_sharding *from, const sl_sharding *to, const char *expected)
{
    sl_shard_move *moves = NULL;
    int count = 0;
    char text[256] = "";
    ok(sl_reshard_plan(from, to, &moves, &count));
    for (int i = 0; i < count; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%d>%d", used ? " " : "",
                 from->shards[moves[i].from].placement.rank, to->shards[moves[i].to].placement.rank);
    }
    assert_string_equal(text, expected);
    sl_free(moves);
}

static void a_rank_reads_the_copy_that_it_holds(void **state)
{
    (void)state;
    const sl_shape size = { 1, { 12 } };
    sl_sharding whole = flat(size, 4, 1), pairs = flat(size, 4, 2), parts = flat(size, 4, 4);
    plans(&whole, &parts, "0>0 1>1 2>2 3>3");
    plans(&pairs, &whole, "0>0 1>0 0>1 1>1 2>2 3>2 2>3 3>3");
    plans(&pairs, &parts, "0>0 0>1 3>2 3>3");
    plans(&parts, &pairs, "0>0 1>0 2>1 3>1 0>2 1>2 2>3 3>3");
    pairs.shards[2].placement.rank = 9; /* who holds nothing reads the first copy */
    whole.shards[0].placement.rank = 2;
    whole.count = whole.copies = 1;
    plans(&pairs, &whole, "0>2 1>2");
    says(sl_sharding_stack(&pairs, 0, &whole), "a tensor that is there 2 times");
    whole.count = 4;
    sl_sharding_destroy(&whole);
    sl_sharding_destroy(&pairs);
    sl_sharding_destroy(&parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_pieces_put_together), cmocka_unit_test(random_flat_shardings_are_whole_and_nest),
        cmocka_unit_test(the_largest_tensor_can_be_cut),  cmocka_unit_test(every_copy_is_checked),
        cmocka_unit_test(copies_are_written_and_read),    cmocka_unit_test(a_rank_reads_the_copy_that_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
