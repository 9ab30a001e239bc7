/* Sharded tensors: placements, chunks, grids, what one rank and all ranks know, moving from one sharding to another. */
#include <sluice/shard.h>

#include "support/layouts.h"
#include "support/sanitized.h"
#include "support/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int random_layouts = 2000;
static const sl_tensor_properties f32 = { .dtype = SL_F32 };

static sl_shard_place place(int rank)
{
    return (sl_shard_place){ .rank = rank, .device = "cpu" };
}

static void reads_place(const char *text, int rank, const char *device, const char *written)
{
    sl_shard_place found = { .rank = 7 };
    char again[40];
    ok(sl_shard_place_parse(text, NULL, 16, &found));
    assert_int_equal(found.rank, rank);
    assert_string_equal(found.device, device);
    assert_string_equal(sl_shard_place_text(&found, again, sizeof again), written);
}

static void placements_are_read_in_all_three_forms(void **state)
{
    (void)state;
    reads_place("rank:1/cpu", 1, "cpu", "rank:1/cpu");
    reads_place("rank:15/cuda:3", 15, "cuda:3", "rank:15/cuda:3");
    reads_place("rank:0", 0, "cpu", "rank:0/cpu");
    reads_place("cpu", -1, "cpu", "cpu");
    reads_place("cuda:10", -1, "cuda:10", "cuda:10");
}

static void placements_must_be_on_a_rank_of_the_group_and_a_device(void **state)
{
    (void)state;
    sl_shard_place found = { .rank = 7 };
    const int group[] = { 4, 1, 6 };
    ok(sl_shard_place_parse("rank:6/cpu", group, 3, &found));
    assert_int_equal(found.rank, 6);
    says(sl_shard_place_parse("rank:0/cpu", group, 3, &found), "the group has ranks 4, 1, 6");
    says(sl_shard_place_parse("rank:2", group, 3, &found), "the group has ranks 4, 1, 6");
    says(sl_shard_place_parse("rank:0/cpu", group, 0, &found), "placement");
    says(sl_shard_place_parse("rank:2/cpu", NULL, 2, &found), "ranks 0 to 1");
    static const char *const bad[] = { "",
                                       "rank:/cpu",
                                       "rank:1/",
                                       "rank:",
                                       "rank:-1/cpu",
                                       "rank:1x/cpu",
                                       "rank:1x",
                                       "Rank:1/cpu",
                                       "rank:0/banana",
                                       "rank:0/cpu/x",
                                       "rank:0/cpu/",
                                       "cpu/x",
                                       "/cpu",
                                       "banana",
                                       "worker0/cpu",
                                       "cpu:",
                                       "cuda:",
                                       "cuda:01",
                                       "cuda:x",
                                       "cuda:0:1",
                                       "cpux",
                                       "cp",
                                       "CPU",
                                       "rank:0/rank:0",
                                       "cuda:99999999999",
                                       "rank:1/averyveryverylongdevicename",
                                       "rank:123456789012345678/cpu",
                                       "rank:99999999999" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        says(sl_shard_place_parse(bad[i], NULL, 2, &found), "placement");
    assert_int_equal(found.rank, 6);
}

static void chunks(int64_t size, int count, const int64_t *lengths, const int64_t *offsets)
{
    sl_shard_place placements[8];
    sl_sharding sharding = { 0 };
    for (int i = 0; i < count; i++)
        placements[i] = place(i);
    ok(sl_sharding_chunk(&(sl_shape){ 2, { size, 3 } }, &f32, 0, placements, count, &sharding));
    assert_int_equal(sharding.count, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(sharding.shards[i].size.dims[0], lengths[i]);
        assert_int_equal(sharding.shards[i].offsets[0], offsets[i]);
        assert_int_equal(sharding.shards[i].size.dims[1], 3);
        assert_int_equal(sharding.shards[i].placement.rank, i);
    }
    sl_sharding_destroy(&sharding);
}

static void chunks_are_rounded_up_and_the_last_ones_short(void **state)
{
    (void)state;
    chunks(11, 4, (int64_t[]){ 3, 3, 3, 2 }, (int64_t[]){ 0, 3, 6, 9 });
    chunks(5, 4, (int64_t[]){ 2, 2, 1, 0 }, (int64_t[]){ 0, 2, 4, 5 });
    chunks(2, 5, (int64_t[]){ 1, 1, 0, 0, 0 }, (int64_t[]){ 0, 1, 2, 2, 2 });
    chunks(0, 2, (int64_t[]){ 0, 0 }, (int64_t[]){ 0, 0 });
    sl_sharding sharding = { 0 };
    sl_shard_place placement = place(0);
    says(sl_sharding_chunk(&(sl_shape){ 1, { 4 } }, &f32, 1, &placement, 1, &sharding), "dim 1");
    says(sl_sharding_chunk(&(sl_shape){ 1, { 4 } }, &f32, 0, &placement, 0, &sharding), "0 parts");
    ok(sl_sharding_chunk(&(sl_shape){ 2, { 4, 6 } }, &f32, -1, (sl_shard_place[]){ place(0), place(1) }, 2, &sharding));
    assert_int_equal(sharding.shards[1].offsets[1], 3);
    sl_sharding_destroy(&sharding);
}

static sl_shard box(int64_t y, int64_t x, int64_t height, int64_t width, int rank)
{
    return (sl_shard){ { y, x }, { 2, { height, width } }, place(rank) };
}

static void shards_must_be_the_whole_tensor_once(void **state)
{
    (void)state;
    const sl_shape size = { 2, { 4, 4 } };
    sl_sharding sharding = { 0 };
    sl_shard shards[] = { box(0, 0, 4, 2, 0), box(0, 2, 2, 2, 1), box(2, 2, 2, 2, 2) };
    ok(sl_sharding_list(&size, &f32, shards, 3, &sharding));
    sl_sharding_destroy(&sharding);
    shards[2] = box(1, 2, 3, 2, 2);
    says(sl_sharding_list(&size, &f32, shards, 3, &sharding), "shards 1 and 2 overlap");
    shards[2] = box(2, 2, 1, 2, 2);
    says(sl_sharding_list(&size, &f32, shards, 3, &sharding), "14 of the 16 elements");
    shards[2] = box(2, 2, 3, 2, 2);
    says(sl_sharding_list(&size, &f32, shards, 3, &sharding), "shard 2 reaches from 2 over 3 in dim 0");
    shards[2] = box(-1, 2, 2, 2, 2);
    says(sl_sharding_list(&size, &f32, shards, 3, &sharding), "shard 2 reaches from -1");
    shards[2].size.rank = 1;
    says(sl_sharding_list(&size, &f32, shards, 3, &sharding), "shard 2 has 1 dims");
    says(sl_sharding_list(&size, &f32, shards, 0, &sharding), "without shards");
    assert_null(sharding.shards);
}

static sl_local_shard local(sl_shard shard)
{
    return (sl_local_shard){ .shard = shard, .meta = sl_meta_contiguous(SL_F32, &shard.size), .device = "cpu" };
}

static void a_rank_describes_its_own_shards(void **state)
{
    (void)state;
    const sl_shape size = { 2, { 4, 4 } };
    sl_sharding sharding = { 0 };
    const sl_local_shard good[2] = { local(box(0, 0, 2, 2, 3)), local(box(2, 0, 2, 2, 3)) };
    ok(sl_sharding_from_local(&size, 3, good, 2, &sharding));
    assert_int_equal(sharding.count, 2);
    assert_int_equal(sharding.properties.dtype, SL_F32);
    sl_sharding_destroy(&sharding);
    says(sl_sharding_from_local(&size, 3, good, 0, &sharding), "rank 3 has no shard");
    says(sl_sharding_from_local(&size, 2, good, 2, &sharding), "rank 2, shard 0: it is placed on rank 3");

    sl_local_shard bad[2] = { good[0], good[1] };
    bad[0].shard.placement.rank = -1;
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "rank 3, shard 0: it is placed on no rank");
    bad[0] = good[0];
    bad[1].layout = SL_STORAGE_SPARSE;
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "shard 1: only strided");
    bad[1] = good[1];
    ok(sl_meta_transpose(&good[1].meta, 0, 1, &bad[1].meta));
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "shard 1: the tensor is not contiguous");
    bad[1] = good[1];
    bad[1].shard.size.dims[1] = 1;
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "shard 1: the size is [2, 1], the tensor [2, 2]");
    bad[1] = good[1];
    bad[1].device = "cuda:0";
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "placed on cpu, the tensor is on cuda:0");
    bad[1] = good[1];
    bad[1].meta.dtype = SL_BF16;
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "rank 3: its shards differ in dtype: f32 and bf16");
    bad[1] = good[1];
    bad[1].requires_grad = true;
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "differ in requires_grad: false and true");
    bad[1] = good[1];
    bad[1].pinned = true;
    says(sl_sharding_from_local(&size, 3, bad, 2, &sharding), "differ in pinned memory");
    assert_null(sharding.shards);
}

static void all_ranks_together_are_checked(void **state)
{
    (void)state;
    const sl_shape size = { 2, { 4, 4 } };
    sl_sharding a = { 0 }, b = { 0 }, whole = { 0 };
    sl_local_shard left = local(box(0, 0, 4, 2, 0)), right = local(box(0, 2, 4, 2, 2));
    ok(sl_sharding_from_local(&size, 0, &left, 1, &a));
    ok(sl_sharding_from_local(&size, 2, &right, 1, &b));
    ok(sl_sharding_merge((const sl_sharding *[]){ &a, NULL, &b }, 3, &whole)); /* rank 1 has none */
    assert_int_equal(whole.count, 2);
    assert_int_equal(whole.shards[1].placement.rank, 2);
    sl_sharding_destroy(&whole);
    says(sl_sharding_merge((const sl_sharding *[]){ NULL, NULL }, 2, &whole), "no rank has a shard");
    says(sl_sharding_merge((const sl_sharding *[]){ &a, NULL, NULL }, 3, &whole), "8 of the 16 elements");
    says(sl_sharding_merge((const sl_sharding *[]){ &a, NULL, &a }, 3, &whole), "shards 0 and 1 overlap");
    b.properties.requires_grad = true;
    says(sl_sharding_merge((const sl_sharding *[]){ &a, NULL, &b }, 3, &whole),
         "ranks differ in requires_grad: false on rank 0, true on rank 2");
    b.properties = a.properties;
    b.properties.dtype = SL_F16;
    says(sl_sharding_merge((const sl_sharding *[]){ &a, NULL, &b }, 3, &whole), "dtype: f32 on rank 0, f16 on rank 2");
    b.properties = a.properties;
    b.properties.pinned = true;
    says(sl_sharding_merge((const sl_sharding *[]){ &a, NULL, &b }, 3, &whole), "pinned memory");
    b.properties = a.properties;
    b.size.dims[0] = 5;
    says(sl_sharding_merge((const sl_sharding *[]){ &a, NULL, &b }, 3, &whole),
         "ranks differ in size: [4, 4] on rank 0, [5, 4] on rank 2");
    assert_null(whole.shards);
    sl_sharding_destroy(&a);
    sl_sharding_destroy(&b);
}

static void offsets_are_recomputed_in_the_order_of_ranks(void **state)
{
    (void)state;
    sl_shard shards[] = { box(0, 0, 3, 4, 2), box(0, 0, 5, 4, 0), box(0, 0, 1, 4, 1), box(0, 0, 2, 4, 0) };
    sl_sharding loose = { .size = { 2, { 1, 4 } }, .properties = f32, .shards = shards, .count = 4 }, stacked = { 0 };
    ok(sl_sharding_stack(&loose, 0, &stacked));
    assert_int_equal(stacked.size.dims[0], 11);
    static const int64_t offsets[] = { 0, 5, 7, 8 }, lengths[] = { 5, 2, 1, 3 };
    for (int i = 0; i < 4; i++) {
        assert_int_equal(stacked.shards[i].offsets[0], offsets[i]);
        assert_int_equal(stacked.shards[i].size.dims[0], lengths[i]);
    }
    sl_sharding_destroy(&stacked);
    says(sl_sharding_stack(&loose, 2, &stacked), "dim 2");
    shards[1].size.dims[1] = 3; /* does not stack */
    says(sl_sharding_stack(&loose, 0, &stacked), "of the 44 elements");
}

static void a_gathers_output_is_wanted_on_the_root_alone(void **state)
{
    (void)state;
    const sl_shape size = { 2, { 4, 4 } }, other = { 2, { 4, 3 } };
    ok(sl_gather_check(0, 0, &size, &size));
    ok(sl_gather_check(1, 0, &size, NULL));
    says(sl_gather_check(0, 0, &size, NULL), "rank 0 is the root of the gather and gives no output");
    says(sl_gather_check(1, 0, &size, &size), "rank 1 gives an output");
    says(sl_gather_check(0, 0, &size, &other), "is [4, 3], the tensor [4, 4]");
}

static void nested_sizes_become_one(void **state)
{
    (void)state;
    sl_shape flat = { 0 };
    ok(sl_shape_flatten((sl_shape[]){ { 2, { 1, 2 } }, { 0, { 0 } }, { 1, { 7 } } }, 3, &flat));
    assert_true(sl_shape_equal(&flat, &(sl_shape){ 3, { 1, 2, 7 } }));
    ok(sl_shape_flatten(NULL, 0, &flat));
    assert_int_equal(flat.rank, 0);
    says(sl_shape_flatten((sl_shape[]){ { 4, { 1, 1, 1, 1 } }, { 3, { 1, 1, 1 } } }, 2, &flat), "more than 6 dims");
    says(sl_shape_flatten((sl_shape[]){ { 1, { -1 } } }, 1, &flat), "negative");
}

/* ---- Resharding ------------------------------------------------------------------------------ */

static int64_t elements_of(const sl_shape *shape)
{
    int64_t count = 0;
    ok(sl_shape_count(shape, &count));
    return count;
}

/* Data of every shard; element e of the tensor is e. */
static float **shard_data(const sl_sharding *sharding, bool fill)
{
    float **data = calloc((size_t)sharding->count, sizeof *data);
    for (int i = 0; i < sharding->count; i++) {
        const sl_shard *shard = &sharding->shards[i];
        data[i] = calloc((size_t)elements_of(&shard->size) + 1, sizeof **data);
        for (int64_t e = 0; fill && e < elements_of(&shard->size); e++) {
            int64_t rest = e, stride = 1, at = 0;
            for (int d = shard->size.rank - 1; d >= 0; d--) {
                at += (shard->offsets[d] + rest % shard->size.dims[d]) * stride;
                rest /= shard->size.dims[d];
                stride *= sharding->size.dims[d];
            }
            data[i][e] = (float)at;
        }
    }
    return data;
}

static void free_data(float **data, int count)
{
    for (int i = 0; i < count; i++)
        free(data[i]);
    free(data);
}

static void moves(const sl_sharding *from, const sl_sharding *to)
{
    float **source = shard_data(from, true), **target = shard_data(to, false), **expected = shard_data(to, true);
    float packed[1024];
    sl_shard_move *plan = NULL;
    int count = 0;
    ok(sl_reshard_plan(from, to, &plan, &count));
    for (int i = 0; i < count; i++) {
        const sl_shard_move *move = &plan[i];
        sl_shard_pack(&from->shards[move->from], move, sizeof(float), source[move->from], packed);
        sl_shard_unpack(&to->shards[move->to], move, sizeof(float), packed, target[move->to]);
    }
    for (int i = 0; i < to->count; i++)
        assert_memory_equal(target[i], expected[i], (size_t)elements_of(&to->shards[i].size) * sizeof(float));
    sl_free(plan);
    free_data(source, from->count);
    free_data(target, to->count);
    free_data(expected, to->count);
}

static void any_sharding_becomes_any_other(void **state)
{
    (void)state;
    const sl_shape size = { 3, { 7, 5, 6 } };
    sl_shard_place placements[12];
    sl_sharding all[5] = { 0 };
    for (int i = 0; i < 12; i++)
        placements[i] = place(i);
    ok(sl_sharding_chunk(&size, &f32, 0, placements, 4, &all[0]));
    ok(sl_sharding_chunk(&size, &f32, 1, placements, 3, &all[1]));
    ok(sl_sharding_chunk(&size, &f32, 2, placements, 8, &all[2])); /* the last ones are empty */
    ok(sl_sharding_grid(&size, &f32, (int[]){ 2, 3, 2 }, placements, 12, &all[3]));
    ok(sl_sharding_chunk(&size, &f32, 0, placements, 1, &all[4])); /* a gather, a scatter */
    for (int from = 0; from < 5; from++) {
        for (int to = 0; to < 5; to++)
            moves(&all[from], &all[to]);
    }
    sl_shard_move *plan = NULL;
    int count = 0;
    all[1].properties.dtype = SL_BF16;
    says(sl_reshard_plan(&all[0], &all[1], &plan, &count), "from f32 [7, 5, 6] to bf16 [7, 5, 6]");
    says(sl_sharding_grid(&size, &f32, (int[]){ 2, 2, 2 }, placements, 7, &all[1]), "8 shards for 7 placements");
    for (int i = 0; i < 5; i++)
        sl_sharding_destroy(&all[i]);
    sl_sharding scalar = { 0 };
    ok(sl_sharding_grid(&(sl_shape){ 0 }, &f32, NULL, placements, 1, &scalar));
    moves(&scalar, &scalar);
    sl_sharding_destroy(&scalar);
}

/* ---- Against brute force --------------------------------------------------------------------- */

enum { MOST = 14 };

/* How often each element of the whole is in a box; false if a box reaches outside. */
static bool count_boxes(const sl_shape *whole, const sl_shard *boxes, int count, int *times)
{
    memset(times, 0, (size_t)layout_count(whole) * sizeof *times);
    for (int i = 0; i < count; i++) {
        for (int d = 0; d < whole->rank; d++) {
            if (boxes[i].offsets[d] < 0 || boxes[i].offsets[d] + boxes[i].size.dims[d] > whole->dims[d])
                return false;
        }
        for (int64_t e = 0; e < layout_count(&boxes[i].size); e++)
            times[layout_element(whole, &boxes[i], e)]++;
    }
    return true;
}

/* Changes a box a little, so that most layouts are no longer right. */
static void spoil(uint64_t *seed, const sl_shape *whole, sl_shard *boxes, int count)
{
    sl_shard *box = &boxes[layout_below(seed, count)];
    int d = (int)layout_below(seed, whole->rank);
    switch (layout_below(seed, 4)) {
    case 0:
        box->offsets[d] += layout_below(seed, 3) - 1;
        break;
    case 1:
        box->size.dims[d] += box->size.dims[d] > 0 ? layout_below(seed, 3) - 1 : 0;
        break;
    case 2:
        *box = boxes[layout_below(seed, count)];
        break;
    default:
        break; /* right as it is */
    }
}

static void random_layouts_are_judged_as_brute_force_does(void **state)
{
    (void)state;
    enum { ELEMENTS = 6 * 6 * 6 * 6 };
    static int times[ELEMENTS];
    int right = 0;
    for (int i = 0; i < random_layouts; i++) {
        uint64_t seed = (uint64_t)i + 1;
        const sl_shape whole = layout_shape(&seed, 4, 6);
        sl_shard boxes[MOST];
        int count = 1 + (int)layout_below(&seed, MOST);
        layout_cut(&seed, &whole, count, 3, boxes);
        spoil(&seed, &whole, boxes, count);
        bool good = count_boxes(&whole, boxes, count, times), twice = false;
        for (int64_t e = 0; good && e < layout_count(&whole); e++)
            twice |= times[e] > 1;
        const sl_sharding sharding = { .size = whole, .properties = f32, .shards = boxes, .count = count };
        sl_status status = sl_sharding_check(&sharding);
        if (!good)
            says(status, "reaches from");
        else if (twice)
            says(status, "overlap");
        for (int64_t e = 0; good && !twice && e < layout_count(&whole); e++)
            good = times[e] == 1;
        assert_int_equal(status == SL_OK, good && !twice);
        right += status == SL_OK;
    }
    assert_in_range(right, random_layouts / 5, random_layouts * 4 / 5); /* both kinds came up */
}

static void random_reshards_move_each_element_once(void **state)
{
    (void)state;
    for (int i = 0; i < random_layouts / 4; i++) {
        uint64_t seed = (uint64_t)i + 7;
        const sl_shape whole = layout_shape(&seed, 4, 5);
        sl_shard from[MOST], to[MOST];
        const sl_sharding a = {
            .size = whole, .properties = f32, .shards = from, .count = 1 + (int)layout_below(&seed, MOST)
        };
        const sl_sharding b = {
            .size = whole, .properties = f32, .shards = to, .count = 1 + (int)layout_below(&seed, MOST)
        };
        layout_cut(&seed, &whole, a.count, 3, from);
        layout_cut(&seed, &whole, b.count, 3, to);
        moves(&a, &b);
    }
}

/* ---- Many shards ----------------------------------------------------------------------------- */

/* Of this process: a busy machine makes no difference. */
static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void check_fast(sl_sharding *sharding, int dims)
{
    double start = cpu_seconds();
    ok(sl_sharding_check(sharding));
    double right = cpu_seconds() - start;
    sharding->shards[sharding->count - 1] = sharding->shards[sharding->count / 2];
    start = cpu_seconds();
    says(sl_sharding_check(sharding), "overlap");
    double wrong = cpu_seconds() - start;
    printf("%d shards in %d dims: %.3f s to accept, %.3f s to refuse\n", sharding->count, dims, right, wrong);
#if !TEST_SANITIZED
    assert_true(right < 1 && wrong < 1);
#endif
}

static void a_hundred_thousand_shards_are_checked_within_a_second(void **state)
{
    (void)state;
    static const struct {
        sl_shape size;
        int parts[3];
    } grids[] = { { { 1, { 1000000 } }, { 100000 } },
                  { { 2, { 7, 200000 } }, { 1, 100000 } }, /* all of them begin together in dim 0 */
                  { { 2, { 200000, 3 } }, { 100000, 1 } },
                  { { 2, { 1000, 1000 } }, { 250, 400 } },
                  { { 3, { 100, 100, 100 } }, { 50, 40, 50 } } };
    sl_shard_place *places = calloc(100000, sizeof *places);
    for (int i = 0; i < 100000; i++)
        places[i] = place(i);
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        sl_sharding sharding = { 0 };
        ok(sl_sharding_grid(&grids[g].size, &f32, grids[g].parts, places, 100000, &sharding));
        check_fast(&sharding, grids[g].size.rank);
        sl_sharding_destroy(&sharding);
    }
    free(places);
    uint64_t seed = 5;
    const sl_shape cube = { 4, { 300, 300, 300, 300 } };
    sl_sharding sharding = { .size = cube, .properties = f32, .count = 100000 };
    sharding.shards = calloc(100000, sizeof *sharding.shards);
    layout_cut(&seed, &cube, sharding.count, 8, sharding.shards);
    for (int i = sharding.count - 1; layout_count(&sharding.shards[sharding.count / 2].size) == 0; i--)
        sharding.shards[sharding.count / 2] = sharding.shards[i]; /* only if it were empty */
    check_fast(&sharding, 4);
    free(sharding.shards);
}

static void shardings_are_written_and_read(void **state)
{
    (void)state;
    char *text = NULL, changed[2048];
    sl_sharding from = { 0 }, to = { 0 };
    const sl_tensor_properties properties = { .dtype = SL_BF16, .requires_grad = true, .pinned = true };
    const sl_shard_place places[] = { { 4, "cuda:1" }, { 0, "cpu" } };
    ok(sl_sharding_chunk(&(sl_shape){ 2, { 5, 4 } }, &properties, 1, places, 2, &from));
    ok(sl_sharding_write(&from, &text));
    ok(sl_sharding_parse("here", text, &to));
    assert_true(sl_shape_equal(&to.size, &from.size));
    assert_int_equal(to.properties.dtype, SL_BF16);
    assert_true(to.properties.requires_grad && to.properties.pinned && to.count == 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(to.shards[i].offsets[1], from.shards[i].offsets[1]);
        assert_true(sl_shape_equal(&to.shards[i].size, &from.shards[i].size));
        assert_int_equal(to.shards[i].placement.rank, places[i].rank);
        assert_string_equal(to.shards[i].placement.device, places[i].device);
    }
    sl_sharding_destroy(&to);
    static const struct {
        const char *from, *to, *message;
    } cases[] = { { "\"version\":1", "\"version\":2", "here: version 2 of a sharding is not known" },
                  { "\"version\":1", "\"version\":\"1\"", "here: this is not a sharding" },
                  { "bf16", "bf17", "here: " },
                  { "\"strided\"", "\"blue\"", "here: 'layout' is 'blue', which is not known" },
                  { "\"contiguous\"", "3", "'memory_format' is ''" },
                  { "\"requires_grad\":true", "\"requires_grad\":1", "'requires_grad' is missing or neither" },
                  { "[0,0]", "[0,1]", "here: " },
                  { "[0,0]", "[0]", "a shard has 1 offsets and 2 sizes" },
                  { "[0,0]", "[0,-1]", "entry 1 of 'offsets' is no number from 0 on" },
                  { "[5,4]", "[5,4,1,1,1,1,1]", "'size' is missing or no list of at most 6 numbers" },
                  { "rank:4/cuda:1", "rank:4/lunar:1", "here: placement 'rank:4/lunar:1'" },
                  { "{", "[", "here:1:" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].to, at + strlen(cases[i].from));
        says(sl_sharding_parse("here", changed, &to), cases[i].message);
    }
    assert_null(to.shards);
    sl_free(text);
    sl_sharding_destroy(&from);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placements_are_read_in_all_three_forms),
        cmocka_unit_test(placements_must_be_on_a_rank_of_the_group_and_a_device),
        cmocka_unit_test(chunks_are_rounded_up_and_the_last_ones_short),
        cmocka_unit_test(shards_must_be_the_whole_tensor_once),
        cmocka_unit_test(a_rank_describes_its_own_shards),
        cmocka_unit_test(all_ranks_together_are_checked),
        cmocka_unit_test(offsets_are_recomputed_in_the_order_of_ranks),
        cmocka_unit_test(a_gathers_output_is_wanted_on_the_root_alone),
        cmocka_unit_test(nested_sizes_become_one),
        cmocka_unit_test(any_sharding_becomes_any_other),
        cmocka_unit_test(random_layouts_are_judged_as_brute_force_does),
        cmocka_unit_test(random_reshards_move_each_element_once),
        cmocka_unit_test(a_hundred_thousand_shards_are_checked_within_a_second),
        cmocka_unit_test(shardings_are_written_and_read),
    };
    if (argc > 1 && strcmp(argv[1], "--full") == 0)
        random_layouts = 30000;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
