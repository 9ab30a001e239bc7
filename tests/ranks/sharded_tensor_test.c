/* Sharded tensors over ranks: what they are made from is checked on all ranks together, and gather, all-gather and reshard
 * between any two layouts give every element its bits. `--full`: many layouts. */
#include "ranks/support/suite.h"
#include "support/device/test_device.h"
#include "support/layouts.h"

#include <sluice/shard.h>

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

enum { MOST_SHARDS = 10, MOST_RANKS = 16 };

#if TEST_SANITIZED
static int layouts = 2; /* in each group */
#else
static int layouts = 6;
#endif

static int world_rank(const sl_group *group)
{
    return sl_group_world_rank(group, sl_group_rank(group));
}

/* ---- Any layout ------------------------------------------------------------------------------ */

/* Memory of the device with these values, or from it. */
static sl_status copy_values(sl_device *device, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    sl_status status = SL_OK;
    sl_stream *stream = NULL;
    SL_TRY(sl_stream_create(device, &stream));
    SL_TRY(sl_stream_copy(stream, kind, to, from, bytes));
    SL_TRY(sl_stream_synchronize(stream));
done:
    sl_stream_destroy(stream);
    return status;
}

/* Every local shard has the values that its box of the tensor has; or they are put there. */
static sl_status visit_locals(const sl_sharded_tensor *tensor, sl_device *device, bool fill)
{
    sl_status status = SL_OK;
    float *expected = NULL, *found = NULL;
    for (int i = 0; i < sl_sharded_tensor_local_count(tensor); i++) {
        const sl_local_shard *local = sl_sharded_tensor_local(tensor, i);
        size_t bytes = sl_meta_bytes(&local->meta);
        free(expected);
        free(found);
        found = calloc(1, bytes + 1);
        expected = layout_data(&sl_sharded_tensor_sharding(tensor)->size, &local->shard);
        if (fill) {
            SL_TRY(copy_values(device, SL_COPY_HOST_TO_DEVICE, local->data, expected, bytes));
            continue;
        }
        SL_TRY(copy_values(device, SL_COPY_DEVICE_TO_HOST, found, local->data, bytes));
        CHECK(memcmp(found, expected, bytes) == 0);
    }
done:
    free(expected);
    free(found);
    return status;
}

/* The output of a gather: values 1, 8, 15, .. */
static sl_status check_whole(sl_device *device, const sl_view *view)
{
    sl_status status = SL_OK;
    size_t bytes = sl_meta_bytes(&view->meta);
    float *found = calloc(1, bytes + 1);
    SL_TRY(copy_values(device, SL_COPY_DEVICE_TO_HOST, found, view->data, bytes));
    for (int64_t e = 0; e < sl_meta_count(&view->meta); e++)
        CHECK(found[e] == layout_value(e));
done:
    free(found);
    return status;
}

/* Ranges, and if the group can be divided, several copies. */
static sl_status make_flat(uint64_t *seed, const sl_shape *size, const sl_tensor_properties *properties,
                           const sl_group *group, const char *device, sl_sharding *out)
{
    sl_shard_place places[MOST_RANKS];
    int ranks = sl_group_size(group), copies = 1 + (int)layout_below(seed, ranks);
    for (int r = 0; r < ranks; r++) {
        places[r] = (sl_shard_place){ .rank = sl_group_world_rank(group, r) };
        snprintf(places[r].device, sizeof places[r].device, "%s", device);
    }
    while (ranks % copies != 0)
        copies--;
    return sl_sharding_flat(size, properties, ranks / copies, places, ranks, out);
}

static sl_status make_sharding(uint64_t *seed, const sl_shape *size, const sl_group *group, const char *device,
                               sl_sharding *out)
{
    static const sl_tensor_properties f32 = { .dtype = SL_F32, .requires_grad = true };
    sl_shard shards[MOST_SHARDS];
    if (size->rank == 1 && layout_below(seed, 2) == 0)
        return make_flat(seed, size, &f32, group, device, out);
    int count = 1 + (int)layout_below(seed, MOST_SHARDS);
    layout_cut(seed, size, count, sl_group_size(group), shards);
    for (int i = 0; i < count; i++) {
        shards[i].placement.rank = sl_group_world_rank(group, shards[i].placement.rank);
        snprintf(shards[i].placement.device, sizeof shards[i].placement.device, "%s", device);
    }
    return sl_sharding_list(size, &f32, shards, count, out);
}

static sl_status one_layout(sl_group *group, sl_device *device, uint64_t seed, sl_shape size)
{
    sl_status status = SL_OK;
    const int root = (int)layout_below(&seed, sl_group_size(group));
    sl_sharding from = { 0 }, to = { 0 };
    sl_sharded_tensor *tensor = NULL, *moved = NULL;
    sl_view whole = { .meta = sl_meta_contiguous(SL_F32, &size) };
    const char *name = sl_device_name(device);
    SL_TRY(make_sharding(&seed, &size, group, name, &from));
    SL_TRY(make_sharding(&seed, &size, group, name, &to));
    SL_TRY(sl_device_alloc(device, sl_meta_bytes(&whole.meta), &whole.data));
    SL_TRY(sl_sharded_tensor_create(group, device, &from, &tensor));
    SL_TRY(visit_locals(tensor, device, true));
    SL_TRY(sl_sharded_tensor_gather(tensor, root, sl_group_rank(group) == root ? &whole : NULL));
    if (sl_group_rank(group) == root)
        SL_TRY(check_whole(device, &whole));
    SL_TRY(sl_sharded_tensor_reshard(tensor, &to, &moved));
    SL_TRY(visit_locals(moved, device, false));
    SL_TRY(sl_sharded_tensor_all_gather(moved, &whole));
    SL_TRY(check_whole(device, &whole));
done:
    sl_sharded_tensor_destroy(moved);
    sl_sharded_tensor_destroy(tensor);
    sl_device_free(device, whole.data);
    sl_sharding_destroy(&from);
    sl_sharding_destroy(&to);
    return status;
}

static sl_status any_layout_moves_to_any_other(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    for (int i = 0; i < layouts; i++) {
        uint64_t own = seed * 1000 + (uint64_t)i;
        const sl_shape size = layout_shape(&own, 4, 7);
        SL_TRY(one_layout(group, device, own, size));
    }
done:
    sl_device_close(device);
    return status;
}

/* Pieces larger than a message. */
static sl_status large_shards_move_in_pieces(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    (void)seed;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(one_layout(group, device, 77, (sl_shape){ 2, { 1300, 500 } }));
    SL_TRY(one_layout(group, device, 78, (sl_shape){ 1, { 900001 } }));
done:
    sl_device_close(device);
    return status;
}

/* Half of the ranks: placements have the run's numbers, not the group's. */
static sl_status a_part_of_the_run_has_tensors_of_its_own(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    sl_group *half = NULL;
    sl_device *device = NULL;
    sl_sharding whole = { 0 };
    sl_sharded_tensor *tensor = NULL;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(sl_group_split(group, world_rank(group) % 2, 0, &half));
    SL_TRY(one_layout(half, device, seed, (sl_shape){ 3, { 4, 5, 3 } }));
    const sl_shape size = { 1, { 4 } };
    const sl_shard outside = { { 0 }, size, { sl_group_world_rank(group, world_rank(group) % 2 ? 0 : 1), "cpu" } };
    SL_TRY(sl_sharding_list(&size, &(sl_tensor_properties){ .dtype = SL_F32 }, &outside, 1, &whole));
    CHECK_FAILS(sl_sharded_tensor_create(half, NULL, &whole, &tensor), SL_ERR_ARGUMENT,
                "which is no rank of the group");
done:
    sl_sharding_destroy(&whole);
    sl_group_close(half);
    sl_device_close(device);
    return status;
}

/* ---- From local shards ----------------------------------------------------------------------- */

/* Rank r of n has row r of a tensor [n, 3]. */
static sl_local_shard row_of(int rank, float *data)
{
    sl_local_shard local = { .shard = { .offsets = { rank, 0 }, .size = { 2, { 1, 3 } }, .placement = { rank, "cpu" } },
                             .device = "cpu",
                             .data = data };
    local.meta = sl_meta_contiguous(SL_F32, &local.shard.size);
    for (int i = 0; i < 3; i++)
        data[i] = layout_value(3 * rank + i);
    return local;
}

static sl_status local_shards_become_a_tensor(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    (void)seed;
    int ranks = sl_group_size(group), rank = sl_group_rank(group);
    float data[3], all[64];
    const sl_shape size = { 2, { ranks, 3 } };
    const sl_view whole = { .data = all, .meta = sl_meta_contiguous(SL_F32, &size) };
    sl_local_shard local = row_of(rank, data);
    sl_sharded_tensor *tensor = NULL, *again = NULL;
    sl_sharding copy = { 0 };
    char *text = NULL;
    SL_TRY(sl_sharded_tensor_from_local(group, NULL, &size, &local, 1, &tensor));
    CHECK(sl_sharded_tensor_sharding(tensor)->count == ranks && sl_sharded_tensor_local_count(tensor) == 1);
    CHECK(sl_sharded_tensor_local(tensor, 0)->data == data && !sl_sharded_tensor_local(tensor, 1));
    SL_TRY(sl_sharded_tensor_all_gather(tensor, &whole));
    for (int e = 0; e < 3 * ranks; e++)
        CHECK(all[e] == layout_value(e));
    SL_TRY(sl_sharding_write(sl_sharded_tensor_sharding(tensor), &text)); /* and from what was written of it */
    SL_TRY(sl_sharding_parse("text", text, &copy));
    SL_TRY(sl_sharded_tensor_from_sharding(group, NULL, &copy, &local, 1, &again));
    memset(all, 0, sizeof all);
    SL_TRY(sl_sharded_tensor_all_gather(again, &whole));
    for (int e = 0; e < 3 * ranks; e++)
        CHECK(all[e] == layout_value(e));
    sl_sharded_tensor_destroy(again);
    again = NULL;
    local.shard.offsets[0] = 77; /* nobody knows: they are found from the sizes, one rank may have none */
    SL_TRY(sl_sharded_tensor_stack(group, NULL, 0, &local, ranks > 1 && rank == 0 ? 0 : 1, &again));
    int rows = ranks > 1 ? ranks - 1 : 1, first = ranks - rows;
    CHECK(sl_sharded_tensor_sharding(again)->size.dims[0] == rows);
    if (rank >= first)
        CHECK(sl_sharded_tensor_local(again, 0)->shard.offsets[0] == rank - first);
done:
    sl_free(text);
    sl_sharding_destroy(&copy);
    sl_sharded_tensor_destroy(again);
    sl_sharded_tensor_destroy(tensor);
    return status;
}

/* The last rank gives something wrong; all ranks hear of it, with the same words. */
static sl_status what_one_rank_does_wrong_all_hear(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    (void)seed;
    int ranks = sl_group_size(group), rank = sl_group_rank(group);
    bool bad = rank == ranks - 1;
    float data[4] = { 0 };
    const sl_shape size = { 2, { ranks, 3 } }, other = { 2, { ranks + 1, 3 } };
    const sl_local_shard good = row_of(rank, data);
    sl_local_shard local = good;
    sl_sharded_tensor *tensor = NULL;
#define REFUSED(shape, count, code, text)                                                                              \
    CHECK_FAILS(sl_sharded_tensor_from_local(group, NULL, (shape), &local, (count), &tensor), (code), (text))
    local.layout = bad ? SL_STORAGE_SPARSE : SL_STORAGE_STRIDED;
    REFUSED(&size, 1, SL_ERR_UNSUPPORTED, "shard 0: only strided tensors can be sharded");
    local = good;
    local.meta.strides[1] = bad ? 2 : 1;
    REFUSED(&size, 1, SL_ERR_UNSUPPORTED, "shard 0: the tensor is not contiguous");
    local = good;
    local.shard.placement.rank = bad ? 0 : rank;
    REFUSED(&size, 1, SL_ERR_ARGUMENT, "it is placed on rank 0");
    local = good;
    local.shard.placement.rank = bad ? -1 : rank;
    REFUSED(&size, 1, SL_ERR_ARGUMENT, "it is placed on no rank");
    local = good;
    local.device = bad ? "cuda:0" : "cpu";
    REFUSED(&size, 1, SL_ERR_ARGUMENT, "it is placed on cpu, the tensor is on cuda:0");
    local = good;
    local.meta.shape.dims[1] = bad ? 4 : 3;
    local.meta.strides[0] = local.meta.shape.dims[1];
    REFUSED(&size, 1, SL_ERR_SHAPE, "the size is [1, 3], the tensor [1, 4]");
    local = good;
    local.meta.dtype = bad ? SL_I32 : SL_F32;
    REFUSED(&size, 1, SL_ERR_SHAPE, "ranks differ in dtype: f32 on rank 0, i32 on rank");
    local = good;
    local.requires_grad = bad;
    REFUSED(&size, 1, SL_ERR_SHAPE, "ranks differ in requires_grad: false on rank 0, true on rank");
    local = good;
    local.pinned = bad;
    REFUSED(&size, 1, SL_ERR_SHAPE, "ranks differ in pinned memory: false on rank 0, true on rank");
    local = good;
    REFUSED(bad ? &other : &size, 1, SL_ERR_SHAPE, "ranks differ in size: [");
    local.shard.offsets[0] = bad ? 0 : rank;
    REFUSED(&size, 1, SL_ERR_SHAPE, "overlap: [0, 0] + [1, 3] on rank:0/cpu");
    local = good;
    REFUSED(&size, bad ? 0 : 1, SL_ERR_SHAPE, "of the");
    REFUSED(&size, 0, SL_ERR_ARGUMENT, "no rank has a shard of the tensor");
    CHECK(tensor == NULL);
#undef REFUSED
done:
    return status;
}

static sl_status gathers_and_reshards_refuse_what_does_not_fit(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    (void)seed;
    int ranks = sl_group_size(group), rank = sl_group_rank(group);
    float data[3], all[64];
    const sl_shape size = { 2, { ranks, 3 } }, other = { 2, { 3, ranks + 1 } };
    const sl_local_shard local = row_of(rank, data);
    const sl_view whole = { .data = all, .meta = sl_meta_contiguous(SL_F32, &size) };
    const sl_view small = { .data = all, .meta = sl_meta_contiguous(SL_F32, &other) };
    const sl_view halves = { .data = all, .meta = sl_meta_contiguous(SL_F16, &size) };
    sl_sharded_tensor *tensor = NULL, *moved = NULL;
    sl_sharding to = { 0 };
    SL_TRY(sl_sharded_tensor_from_local(group, NULL, &size, &local, 1, &tensor));
    CHECK_FAILS(sl_sharded_tensor_gather(tensor, 0, NULL), SL_ERR_ARGUMENT,
                "is the root of the gather and gives no output");
    CHECK_FAILS(sl_sharded_tensor_gather(tensor, 0, &whole), SL_ERR_ARGUMENT, "gives an output to a gather");
    CHECK_FAILS(sl_sharded_tensor_gather(tensor, 0, rank ? NULL : &small), SL_ERR_SHAPE,
                "the output of the gather is [3,");
    CHECK_FAILS(sl_sharded_tensor_gather(tensor, 0, rank ? NULL : &halves), SL_ERR_SHAPE, "is f16, the tensor f32");
    CHECK_FAILS(sl_sharded_tensor_gather(tensor, ranks, NULL), SL_ERR_ARGUMENT, "a gather to member");
    CHECK_FAILS(sl_sharded_tensor_gather(tensor, rank, &whole), SL_ERR_ARGUMENT, "differ in the root of a gather");
    CHECK_FAILS(sl_sharded_tensor_all_gather(tensor, rank ? &whole : &small), SL_ERR_SHAPE, "the output of the gather");

    const sl_shard_place here = { rank, "cpu" }, first = { 0, "cpu" }, away = { 0, "cuda:0" };
    const sl_tensor_properties *properties = &sl_sharded_tensor_sharding(tensor)->properties;
    SL_TRY(sl_sharding_chunk(&size, properties, 0, &here, 1, &to));
    CHECK_FAILS(sl_sharded_tensor_reshard(tensor, &to, &moved), SL_ERR_ARGUMENT, "differ in the sharding of a reshard");
    sl_sharding_destroy(&to);
    SL_TRY(sl_sharding_chunk(&size, properties, 0, &away, 1, &to));
    CHECK_FAILS(sl_sharded_tensor_reshard(tensor, &to, &moved), SL_ERR_ARGUMENT, "placed on cuda:0, the device is cpu");
    sl_sharding_destroy(&to);
    SL_TRY(sl_sharding_chunk(&other, properties, 0, &first, 1, &to));
    CHECK_FAILS(sl_sharded_tensor_reshard(tensor, &to, &moved), SL_ERR_SHAPE, "a reshard from f32 [");
    CHECK(moved == NULL);
done:
    sl_sharding_destroy(&to);
    sl_sharded_tensor_destroy(tensor);
    return status;
}

/* Only what is said without a collective. */
static sl_status a_known_sharding_must_be_that_of_the_shards(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    (void)seed;
    int ranks = sl_group_size(group), rank = sl_group_rank(group);
    float data[3];
    const sl_shape size = { 2, { ranks, 3 } };
    const sl_local_shard good = row_of(rank, data);
    sl_local_shard local = good;
    sl_sharded_tensor *tensor = NULL, *again = NULL;
    SL_TRY(sl_sharded_tensor_from_local(group, NULL, &size, &local, 1, &tensor));
    sl_sharding sharding = *sl_sharded_tensor_sharding(tensor);
#define REFUSED(count, code, text)                                                                                     \
    CHECK_FAILS(sl_sharded_tensor_from_sharding(group, NULL, &sharding, &local, (count), &again), (code), (text))
    REFUSED(0, SL_ERR_ARGUMENT, "gives 0 shards, the sharding has 1 on it");
    local.shard.offsets[1] = 1;
    REFUSED(1, SL_ERR_ARGUMENT, "none of its shards has the offsets and size of shard");
    local = good;
    local.meta.dtype = SL_I32;
    REFUSED(1, SL_ERR_SHAPE, "dtype of the sharding is f32, that of its shards i32");
    local = good;
    local.requires_grad = true;
    REFUSED(1, SL_ERR_SHAPE, "requires_grad of the sharding is false, that of its shards true");
    local = good;
    local.pinned = true;
    REFUSED(1, SL_ERR_SHAPE, "pinned memory of the sharding is false");
    local = good;
    local.device = "cuda:1";
    REFUSED(1, SL_ERR_ARGUMENT, "the tensor is on cuda:1");
    local = good;
    sharding.properties.layout = SL_STORAGE_SPARSE;
    REFUSED(1, SL_ERR_UNSUPPORTED, "only strided");
    sharding.properties.layout = SL_STORAGE_STRIDED;
    sharding.properties.memory_format = SL_FORMAT_CHANNELS_LAST;
    REFUSED(1, SL_ERR_UNSUPPORTED, "only the contiguous memory format");
    sharding.properties.memory_format = SL_FORMAT_CONTIGUOUS;
    sharding.count = 0;
    REFUSED(1, SL_ERR_ARGUMENT, "a sharding without shards");
    CHECK(again == NULL);
#undef REFUSED
done:
    sl_sharded_tensor_destroy(tensor);
    return status;
}

/* ---- Running --------------------------------------------------------------------------------- */

static const suite_case moving[] = {
    { .name = "any layout moves to any other", .run = any_layout_moves_to_any_other, .rounds = 2 },
    { .name = "large shards move in pieces", .run = large_shards_move_in_pieces },
    { .name = "a part of the run has tensors of its own",
      .run = a_part_of_the_run_has_tensors_of_its_own,
      .min_ranks = 2 },
    { .name = NULL },
};

static const suite_case making[] = {
    { .name = "local shards become a tensor", .run = local_shards_become_a_tensor },
    { .name = "what one rank does wrong all hear", .run = what_one_rank_does_wrong_all_hear, .min_ranks = 2 },
    { .name = "gathers and reshards refuse what does not fit",
      .run = gathers_and_reshards_refuse_what_does_not_fit,
      .min_ranks = 2 },
    { .name = "a known sharding must be that of the shards", .run = a_known_sharding_must_be_that_of_the_shards },
    { .name = NULL },
};

static void run_on(suite_runner runner, const suite_case *cases, int least, int most)
{
    for (int size = least; size <= most; size++) {
        if (suite_run_list(runner, cases, size, 0) != SL_OK)
            fail_msg("%s", sl_error_message());
    }
}

static void on_one_rank(void **state)
{
    (void)state;
    run_on(suite_run_self, moving, 1, 1);
    run_on(suite_run_self, making, 1, 1);
}

static void on_threads(void **state)
{
    (void)state;
    run_on(suite_run_threads, moving, 2, 5);
    run_on(suite_run_threads, making, 2, 5);
}

static void on_processes(void **state)
{
    (void)state;
    run_on(suite_run_local, moving, 3, 3);
    run_on(suite_run_local, making, 3, 3);
}

/* All cases on the one group that a process has under MPI. */
static int be_mpi_rank(void)
{
    const suite_case *const lists[] = { moving, making };
    sl_group *group = NULL;
    sl_status status = sl_group_open(NULL, &group);
    for (int i = 0; i < 2; i++) {
        for (const suite_case *each = lists[i]; status == SL_OK && each->name; each++) {
            for (int round = 0; status == SL_OK && round <= each->rounds; round++)
                status = each->run(group, (uint64_t)round);
        }
    }
    if (status == SL_OK && strcmp(sl_group_transport(group), "mpi") != 0)
        status = sl_fail(SL_ERR_INTERNAL, "the transport is %s", sl_group_transport(group));
    if (status != SL_OK) {
        fprintf(stderr, "%s\n", sl_error_message());
        if (group)
            sl_group_fail(group, status);
    }
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

static void on_mpi(const char *flavour)
{
    char output[4096];
    if (!suite_has_mpi(flavour))
        skip();
    if (suite_mpirun(flavour, 3, layouts > 6 ? "--full" : "", output, sizeof output) != 0)
        fail_msg("%s", output);
}

static void on_openmpi(void **state)
{
    (void)state;
    on_mpi("openmpi");
}

static void on_mpich(void **state)
{
    (void)state;
    on_mpi("mpich");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_rank), cmocka_unit_test(on_threads), cmocka_unit_test(on_processes),
        cmocka_unit_test(on_openmpi),  cmocka_unit_test(on_mpich),
    };
    if (argc > 1 && strcmp(argv[1], "--full") == 0)
        layouts = 400;
    test_device_install();
    if (suite_is_mpi_rank())
        return be_mpi_rank();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
