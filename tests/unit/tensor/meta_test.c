/* Metadata: views without copies, and messages that say what differs. */
#include <sluice/tensor.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

static sl_meta make(int rank, int64_t a, int64_t b, int64_t c)
{
    return sl_meta_make(SL_F32, rank, (int64_t[]){ a, b, c });
}

static sl_shape shape(int rank, int64_t a, int64_t b, int64_t c)
{
    return (sl_shape){ .rank = rank, .dims = { a, b, c } };
}

static void contiguous_means_row_major_without_gaps(void **state)
{
    (void)state;
    sl_meta meta = make(3, 2, 3, 4), view;
    int64_t offset;
    assert_int_equal(meta.strides[0], 12);
    assert_int_equal(meta.strides[2], 1);
    assert_int_equal(sl_meta_bytes(&meta), 96);
    assert_true(sl_meta_is_contiguous(&meta));
    assert_int_equal(sl_meta_transpose(&meta, 0, 1, &view), SL_OK);
    assert_false(sl_meta_is_contiguous(&view));
    assert_int_equal(sl_meta_slice(&meta, 2, 1, 3, 1, &view, &offset), SL_OK);
    assert_int_equal(offset, 1);
    assert_false(sl_meta_is_contiguous(&view));
    assert_int_equal(sl_meta_slice(&meta, 0, 1, 2, 1, &view, &offset), SL_OK);
    assert_int_equal(offset, 12);
    assert_true(sl_meta_is_contiguous(&view)); /* the stride of a dim of size 1 says nothing */
    sl_meta other = view;
    other.strides[0] = 7;
    assert_true(sl_meta_equal(&view, &other) && sl_meta_is_contiguous(&other));
    other.strides[1] = 7;
    assert_false(sl_meta_equal(&view, &other) || sl_meta_is_contiguous(&other));
    sl_meta empty = make(2, 0, 3, 0);
    assert_true(sl_meta_is_contiguous(&empty));
    sl_meta scalar = sl_meta_make(SL_F32, 0, NULL);
    assert_int_equal(sl_meta_count(&scalar), 1);
}

static void reshape_works_wherever_no_copy_is_needed(void **state)
{
    (void)state;
    sl_meta meta = make(3, 2, 3, 4), view, turned;
    int64_t offset;
    sl_shape flat = shape(2, 6, -1, 0), split = shape(3, 3, 2, 4);
    assert_int_equal(sl_meta_reshape(&meta, &flat, &view), SL_OK);
    assert_int_equal(view.shape.dims[1], 4);
    assert_int_equal(view.strides[0], 4);
    /* [2,3,4] turned to [3,2,4]: the first two dims do not merge, the last splits. */
    assert_int_equal(sl_meta_transpose(&meta, 0, 1, &turned), SL_OK);
    assert_int_equal(sl_meta_reshape(&turned, &flat, &view), SL_ERR_SHAPE);
    assert_non_null(strstr(sl_error_message(), "without a copy"));
    sl_shape halves = { .rank = 4, .dims = { 3, 2, 2, 2 } };
    assert_int_equal(sl_meta_reshape(&turned, &halves, &view), SL_OK);
    assert_int_equal(view.strides[0], 4);
    assert_int_equal(view.strides[1], 12);
    assert_int_equal(view.strides[2], 2);
    /* Heads cut out of a wider row: [2, 12] of [2, 36]. */
    sl_meta wide = make(2, 2, 36, 0), cut;
    assert_int_equal(sl_meta_slice(&wide, 1, 12, 24, 1, &cut, &offset), SL_OK);
    assert_int_equal(offset, 12);
    sl_shape heads = shape(3, 2, 3, 4);
    assert_int_equal(sl_meta_reshape(&cut, &heads, &view), SL_OK);
    assert_int_equal(view.strides[0], 36);
    assert_int_equal(view.strides[1], 4);
    sl_shape wrong = shape(2, 5, -1, 0), two_open = shape(2, -1, -1, 0), empty = shape(2, 0, 5, 0);
    assert_int_equal(sl_meta_reshape(&meta, &wrong, &view), SL_ERR_SHAPE);
    assert_int_equal(sl_meta_reshape(&meta, &two_open, &view), SL_ERR_SHAPE);
    assert_int_equal(sl_meta_reshape(&meta, &empty, &view), SL_ERR_SHAPE);
    assert_int_equal(sl_meta_reshape(&meta, &split, &view), SL_OK);
    sl_meta none = make(3, 2, 0, 3);
    assert_int_equal(sl_meta_reshape(&none, &empty, &view), SL_OK);
}

static void slices_and_permutations_check_their_arguments(void **state)
{
    (void)state;
    sl_meta meta = make(2, 3, 5, 0), view;
    int64_t offset = -1;
    assert_int_equal(sl_meta_slice(&meta, 1, 1, 5, 2, &view, &offset), SL_OK);
    assert_int_equal(view.shape.dims[1], 2);
    assert_int_equal(view.strides[1], 2);
    assert_int_equal(sl_meta_slice(&meta, 1, 1, 5, INT64_MAX, &view, &offset), SL_OK); /* past the end: the first one */
    assert_int_equal(view.shape.dims[1], 1);
    assert_int_equal(offset, 1);
    offset = -1;
    assert_int_equal(sl_meta_slice(&meta, 2, 0, 1, 1, &view, &offset), SL_ERR_ARGUMENT);
    assert_int_equal(sl_meta_slice(&meta, 1, 0, 6, 1, &view, &offset), SL_ERR_ARGUMENT);
    assert_int_equal(sl_meta_slice(&meta, 1, 3, 2, 1, &view, &offset), SL_ERR_ARGUMENT);
    assert_int_equal(sl_meta_slice(&meta, 1, 0, 2, 0, &view, &offset), SL_ERR_ARGUMENT);
    assert_int_equal(offset, -1);
    assert_int_equal(sl_meta_permute(&meta, (int[]){ 0, 0 }, &view), SL_ERR_ARGUMENT);
    assert_int_equal(sl_meta_permute(&meta, (int[]){ 0, 2 }, &view), SL_ERR_ARGUMENT);
    assert_int_equal(sl_meta_transpose(&meta, 0, -1, &view), SL_ERR_ARGUMENT);
}

static void expand_stretches_ones_only(void **state)
{
    (void)state;
    sl_meta meta = make(2, 3, 1, 0), view;
    sl_shape wide = shape(3, 2, 3, 5), wrong = shape(2, 4, 1, 0), fewer = shape(1, 3, 0, 0);
    assert_int_equal(sl_meta_expand(&meta, &wide, &view), SL_OK);
    assert_int_equal(view.strides[0], 0);
    assert_int_equal(view.strides[1], 1);
    assert_int_equal(view.strides[2], 0);
    assert_int_equal(sl_meta_expand(&meta, &wrong, &view), SL_ERR_SHAPE);
    assert_int_equal(sl_meta_expand(&meta, &fewer, &view), SL_ERR_SHAPE);
    sl_shape a = shape(2, 3, 1, 0), b = shape(1, 4, 0, 0), c;
    assert_int_equal(sl_shape_broadcast(&a, &b, &c), SL_OK);
    assert_int_equal(c.rank, 2);
    assert_int_equal(c.dims[1], 4);
    sl_shape d = shape(1, 2, 0, 0);
    assert_int_equal(sl_shape_broadcast(&b, &d, &c), SL_ERR_SHAPE);
}

static void the_check_names_tensor_expected_and_given(void **state)
{
    (void)state;
    sl_meta expected = make(2, 3, 4, 0), given = make(2, 3, 5, 0);
    assert_int_equal(sl_meta_check("h.0 input", &expected, &given), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "h.0 input: shape mismatch: expected [3, 4], given [3, 5]");
    given.dtype = SL_BF16; /* shape comes before dtype */
    assert_int_equal(sl_meta_check("x", &expected, &given), SL_ERR_SHAPE);
    assert_non_null(strstr(sl_error_message(), "shape mismatch"));
    given = expected;
    given.dtype = SL_BF16;
    given.strides[0] = 9; /* dtype comes before stride */
    assert_int_equal(sl_meta_check("x", &expected, &given), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "x: dtype mismatch: expected f32, given bf16");
    given.dtype = SL_F32;
    assert_int_equal(sl_meta_check("x", &expected, &given), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "x: stride mismatch: expected [4, 1], given [9, 1]");
    assert_int_equal(sl_meta_check("x", &expected, &expected), SL_OK);

    sl_meta wanted[2] = { expected, expected }, got[2] = { expected, make(1, 2, 0, 0) };
    assert_int_equal(sl_meta_check_list("stage 1 outputs", wanted, 2, got, 1), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "stage 1 outputs: expected 2 values, given 1");
    assert_int_equal(sl_meta_check_list("stage 1 outputs", wanted, 2, got, 2), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "stage 1 outputs: value 1: shape mismatch: expected [3, 4], given [2]");
}

static void chunks_follow_tensor_split(void **state)
{
    (void)state;
    static const int64_t sizes[4] = { 3, 3, 3, 2 };
    int64_t start, length, at = 0;
    for (int i = 0; i < 4; i++) {
        sl_chunk_range(11, 4, i, &start, &length);
        assert_int_equal(start, at);
        assert_int_equal(length, sizes[i]);
        at += length;
    }
    sl_chunk_range(2, 4, 3, &start, &length);
    assert_int_equal(start, 2);
    assert_int_equal(length, 0);
}

/* What a view of memory shows, read element by element through its strides. */
static void assert_values(const float *data, const sl_meta *view, const char *meta, const float *expected)
{
    char text[96];
    assert_string_equal(sl_meta_text(view, text, sizeof text), meta);
    for (int64_t i = 0; i < sl_meta_count(view); i++) {
        int64_t columns = view->shape.dims[1];
        assert_true(data[i / columns * view->strides[0] + i % columns * view->strides[1]] == expected[i]);
    }
}

static void views_show_the_values_of_their_tensor(void **state)
{
    (void)state;
    const float values[6] = { 0, 1, 2, 3, 4, 5 };
    const sl_meta meta = make(2, 2, 3, 0);
    const sl_shape three_two = shape(2, 3, 2, 0), stretched = shape(2, 2, 2, 0);
    sl_meta view, column;
    int64_t offset;
    assert_int_equal(sl_meta_reshape(&meta, &three_two, &view), SL_OK);
    assert_values(values, &view, "f32 [3, 2]", values);
    assert_int_equal(sl_meta_permute(&meta, (int[]){ 1, 0 }, &view), SL_OK);
    assert_values(values, &view, "f32 [3, 2] strides [1, 3]", (float[]){ 0, 3, 1, 4, 2, 5 });
    assert_int_equal(sl_meta_slice(&meta, 1, 1, 2, 1, &column, &offset), SL_OK);
    assert_values(values + offset, &column, "f32 [2, 1] strides [3, 1]", (float[]){ 1, 4 });
    assert_int_equal(sl_meta_expand(&column, &stretched, &view), SL_OK);
    assert_values(values + offset, &view, "f32 [2, 2] strides [3, 0]", (float[]){ 1, 1, 4, 4 });
}

static void halves_round_to_nearest_even_and_back(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        float f16 = sl_f16_to_f32((uint16_t)bits), bf16 = sl_bf16_to_f32((uint16_t)bits);
        if (!isnan(f16))
            assert_int_equal(sl_f16_from_f32(f16), bits);
        if (!isnan(bf16))
            assert_int_equal(sl_bf16_from_f32(bf16), bits);
        /* Halfway to the next goes to the even one of the two. */
        float next = sl_f16_to_f32((uint16_t)(bits + 1));
        if (!isnan(f16) && isfinite(next) && (bits & 0x7fff) < 0x7bff)
            assert_int_equal(sl_f16_from_f32((f16 + next) / 2), bits & 1 ? bits + 1 : bits);
    }
    assert_int_equal(sl_f16_from_f32(65519.9f), 0x7bff);
    assert_int_equal(sl_f16_from_f32(65520.0f), 0x7c00);
    assert_true(isnan(sl_f16_to_f32(sl_f16_from_f32(NAN))));
    assert_true(isnan(sl_bf16_to_f32(sl_bf16_from_f32(NAN))));
    assert_int_equal(sl_bf16_from_f32(1.00390625f), 0x3f80); /* 1 + 2^-8: a tie, to even */
}

static void strides_of_dims_of_one_count_if_asked(void **state)
{
    (void)state;
    sl_meta a = sl_meta_make(SL_F32, 3, (int64_t[]){ 4, 1, 3 }), b = a;
    b.strides[1] = 99; /* as a slice of a larger tensor has it */
    assert_int_equal(sl_meta_check("x", &a, &b), SL_OK);
    assert_int_equal(sl_meta_check_exact("x", &a, &a), SL_OK);
    assert_int_equal(sl_meta_check_exact("x", &a, &b), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "x: stride mismatch: expected [3, 3, 1], given [3, 99, 1]");
    b = a;
    b.strides[0] = 7;
    assert_int_equal(sl_meta_check("x", &a, &b), SL_ERR_SHAPE);
    b.dtype = SL_I32; /* comes before the strides */
    assert_int_equal(sl_meta_check_exact("x", &a, &b), SL_ERR_SHAPE);
    assert_non_null(strstr(sl_error_message(), "dtype mismatch"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_means_row_major_without_gaps),
        cmocka_unit_test(reshape_works_wherever_no_copy_is_needed),
        cmocka_unit_test(slices_and_permutations_check_their_arguments),
        cmocka_unit_test(expand_stretches_ones_only),
        cmocka_unit_test(the_check_names_tensor_expected_and_given),
        cmocka_unit_test(chunks_follow_tensor_split),
        cmocka_unit_test(views_show_the_values_of_their_tensor),
        cmocka_unit_test(halves_round_to_nearest_even_and_back),
        cmocka_unit_test(strides_of_dims_of_one_count_if_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
