/* Batches are cut and put together as users of the reference know it, and more. */
#include <sluice/runtime.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static sl_view view_of(void *data, int rank, const int64_t *dims)
{
    return (sl_view){ data, sl_meta_make(SL_F32, rank, dims) };
}

static void the_first_microbatches_get_one_more(void **state)
{
    (void)state;
    float data[7 * 2];
    sl_view whole = view_of(data, 2, (int64_t[]){ 7, 2 }), parts[3];
    assert_int_equal(sl_microbatch_split(&whole, NULL, 3, parts), SL_OK);
    assert_int_equal(parts[0].meta.shape.dims[0], 3);
    assert_int_equal(parts[1].meta.shape.dims[0], 2);
    assert_int_equal(parts[2].meta.shape.dims[0], 2);
    assert_ptr_equal(parts[1].data, data + 3 * 2);
    assert_ptr_equal(parts[2].data, data + 5 * 2);
}

static void a_batch_smaller_than_the_microbatches_is_refused(void **state)
{
    (void)state;
    float data[6];
    sl_view whole = view_of(data, 2, (int64_t[]){ 3, 2 }), parts[4];
    assert_int_equal(sl_microbatch_split(&whole, NULL, 4, parts), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "3 samples"));
    assert_non_null(strstr(sl_error_message(), "4 microbatches"));
}

static void splitting_along_another_dim_and_merging_gives_the_whole_back(void **state)
{
    (void)state;
    float data[2 * 5 * 3], back[2 * 5 * 3];
    for (int i = 0; i < 30; i++) {
        data[i] = (float)i;
        back[i] = -1;
    }
    const int64_t dims[] = { 2, 5, 3 };
    for (int dim = -3; dim < 3; dim++) {
        sl_view whole = view_of(data, 3, dims), target = view_of(back, 3, dims), parts[2];
        sl_chunk_spec spec = { .kind = SL_CHUNK_SPLIT, .dim = dim };
        sl_meta metas[2], merged;
        assert_int_equal(sl_microbatch_split(&whole, &spec, 2, parts), SL_OK);
        assert_int_equal(sl_microbatch_merge(parts, 2, &spec, &target), SL_OK);
        assert_memory_equal(data, back, sizeof data);
        memset(back, 0, sizeof back);
        for (int i = 0; i < 2; i++)
            assert_int_equal(sl_microbatch_part_meta(&whole.meta, &spec, 2, i, &metas[i]), SL_OK);
        assert_int_equal(sl_microbatch_whole_meta(metas, 2, &spec, &merged), SL_OK);
        assert_true(sl_meta_equal(&merged, &whole.meta));
    }
}

static void replicated_arguments_are_the_same_for_all(void **state)
{
    (void)state;
    float data[4];
    sl_view whole = view_of(data, 1, (int64_t[]){ 4 }), parts[3];
    sl_chunk_spec spec = { .kind = SL_CHUNK_REPLICATE };
    assert_int_equal(sl_microbatch_split(&whole, &spec, 3, parts), SL_OK);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(parts[i].data, data);
        assert_true(sl_meta_equal(&parts[i].meta, &whole.meta));
    }
}

/* Every count-th row, from index on. */
static sl_status split_strided(void *user, const sl_view *whole, int count, int index, sl_view *part)
{
    int64_t offset = 0;
    sl_status status = SL_OK;
    (void)user;
    SL_TRY(sl_meta_slice(&whole->meta, 0, index, whole->meta.shape.dims[0], count, &part->meta, &offset));
    part->data = (float *)whole->data + offset;
done:
    return status;
}

static sl_status merge_sum(void *user, const sl_view *part, int count, int index, const sl_view *whole)
{
    (void)count;
    *(int *)user += index;
    for (int64_t i = 0; i < sl_meta_count(&part->meta); i++)
        ((float *)whole->data)[i] += ((const float *)part->data)[i];
    return SL_OK;
}

static void custom_specs_split_and_reduce(void **state)
{
    (void)state;
    float data[4] = { 1, 2, 3, 4 }, sum[1] = { 0 };
    int visited = 0;
    sl_chunk_spec spec = { .kind = SL_CHUNK_CUSTOM, .split = split_strided, .merge = merge_sum, .user = &visited };
    sl_view whole = view_of(data, 1, (int64_t[]){ 4 }), target = view_of(sum, 1, (int64_t[]){ 1 }), parts[2];
    assert_int_equal(sl_microbatch_split(&whole, &spec, 2, parts), SL_OK);
    assert_true(((float *)parts[1].data)[parts[1].meta.strides[0]] == 4.0f);
    sl_view ones[3] = { view_of(data, 1, (int64_t[]){ 1 }), view_of(data + 1, 1, (int64_t[]){ 1 }),
                        view_of(data + 2, 1, (int64_t[]){ 1 }) };
    assert_int_equal(sl_microbatch_merge(ones, 3, &spec, &target), SL_OK);
    assert_true(sum[0] == 6.0f);
    assert_int_equal(visited, 0 + 1 + 2);
}

static void arguments_must_have_as_many_samples_as_each_other(void **state)
{
    (void)state;
    float data[12];
    sl_view parts[4];
    sl_arg args[2] = { { "x", view_of(data, 2, (int64_t[]){ 4, 3 }) }, { "y", view_of(data, 1, (int64_t[]){ 5 }) } };
    assert_int_equal(sl_microbatch_split_args(args, NULL, 2, 2, parts), SL_ERR_SHAPE);
    assert_non_null(strstr(sl_error_message(), "y has 5 samples, but x has 4"));
    args[1].view = view_of(data, 1, (int64_t[]){ 4 });
    assert_int_equal(sl_microbatch_split_args(args, NULL, 2, 2, parts), SL_OK);
    assert_ptr_equal(parts[2].data, data + 6); /* microbatch 1 of x */
    assert_ptr_equal(parts[3].data, data + 2); /* microbatch 1 of y */
    sl_chunk_spec specs[2] = { { .kind = SL_CHUNK_SPLIT }, { .kind = SL_CHUNK_REPLICATE } };
    args[1].view = view_of(data, 1, (int64_t[]){ 1 });
    assert_int_equal(sl_microbatch_split_args(args, specs, 2, 2, parts), SL_OK);
    assert_ptr_equal(parts[3].data, data);
}

static void a_merge_into_the_wrong_shape_names_the_microbatch(void **state)
{
    (void)state;
    float data[8], back[8];
    sl_view whole = view_of(data, 2, (int64_t[]){ 4, 2 }), target = view_of(back, 2, (int64_t[]){ 5, 1 }), parts[2];
    assert_int_equal(sl_microbatch_split(&whole, NULL, 2, parts), SL_OK);
    assert_int_equal(sl_microbatch_merge(parts, 2, NULL, &target), SL_ERR_SHAPE);
    assert_non_null(strstr(sl_error_message(), "microbatch 0"));
}

static void what_cannot_be_cut_or_merged_is_refused(void **state)
{
    (void)state;
    float data[4] = { 0 };
    sl_view whole = view_of(data, 1, (int64_t[]){ 4 }), parts[4];
    sl_meta meta;
    sl_chunk_spec deep = { .dim = 1 }, custom = { .kind = SL_CHUNK_CUSTOM };
    assert_int_equal(sl_microbatch_split(&whole, &deep, 2, parts), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "cannot split f32 [4] along dim 1");
    assert_int_equal(sl_microbatch_split(&whole, NULL, 0, parts), SL_ERR_ARGUMENT);
    assert_int_equal(sl_microbatch_split(&whole, &custom, 2, parts), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "without a split function"));
    assert_int_equal(sl_microbatch_merge(&whole, 1, &custom, &whole), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "without a merge function"));
    assert_int_equal(sl_microbatch_part_meta(&whole.meta, &custom, 2, 0, &meta), SL_ERR_ARGUMENT);
    assert_int_equal(sl_microbatch_whole_meta(&whole.meta, 1, &custom, &meta), SL_ERR_ARGUMENT);
    assert_int_equal(sl_microbatch_part_meta(&whole.meta, NULL, 3, 0, &meta), SL_OK);
    assert_int_equal(meta.shape.dims[0], 2);
    sl_arg arg = { "x", whole };
    assert_int_equal(sl_microbatch_split_args(&arg, &deep, 1, 2, parts), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "x: cannot split f32 [4] along dim 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_microbatches_get_one_more),
        cmocka_unit_test(a_batch_smaller_than_the_microbatches_is_refused),
        cmocka_unit_test(splitting_along_another_dim_and_merging_gives_the_whole_back),
        cmocka_unit_test(replicated_arguments_are_the_same_for_all),
        cmocka_unit_test(custom_specs_split_and_reduce),
        cmocka_unit_test(arguments_must_have_as_many_samples_as_each_other),
        cmocka_unit_test(what_cannot_be_cut_or_merged_is_refused),
        cmocka_unit_test(a_merge_into_the_wrong_shape_names_the_microbatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
