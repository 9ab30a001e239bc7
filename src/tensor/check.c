/* Does a tensor have the metadata that was agreed? Messages name the tensor, what was expected and what was given. */
#include <sluice/tensor.h>

#include <stdio.h>
#include <string.h>

enum { TEXT = 128 };

/* Strides of dims with size 0 or 1 say nothing. */
static bool strides_agree(const sl_meta *a, const sl_meta *b)
{
    sl_meta other = *b;
    other.dtype = a->dtype;
    return sl_meta_equal(a, &other);
}

sl_status sl_meta_check(const char *what, const sl_meta *expected, const sl_meta *given)
{
    char want[TEXT], have[TEXT];
    if (!sl_shape_equal(&expected->shape, &given->shape))
        return sl_fail(SL_ERR_SHAPE, "%s: shape mismatch: expected %s, given %s", what,
                       sl_shape_text(&expected->shape, want, sizeof want),
                       sl_shape_text(&given->shape, have, sizeof have));
    if (expected->dtype != given->dtype)
        return sl_fail(SL_ERR_SHAPE, "%s: dtype mismatch: expected %s, given %s", what, sl_dtype_name(expected->dtype),
                       sl_dtype_name(given->dtype));
    if (!strides_agree(expected, given)) {
        sl_shape expected_strides = { .rank = expected->shape.rank }, given_strides = { .rank = given->shape.rank };
        memcpy(expected_strides.dims, expected->strides, sizeof expected->strides);
        memcpy(given_strides.dims, given->strides, sizeof given->strides);
        return sl_fail(SL_ERR_SHAPE, "%s: stride mismatch: expected %s, given %s", what,
                       sl_shape_text(&expected_strides, want, sizeof want),
                       sl_shape_text(&given_strides, have, sizeof have));
    }
    return SL_OK;
}

sl_status sl_meta_check_list(const char *what, const sl_meta *expected, int expected_count, const sl_meta *given,
                             int given_count)
{
    if (expected_count != given_count)
        return sl_fail(SL_ERR_SHAPE, "%s: expected %d values, given %d", what, expected_count, given_count);
    for (int i = 0; i < expected_count; i++) {
        char value[32];
        snprintf(value, sizeof value, "value %d", i);
        sl_status status = sl_meta_check(value, &expected[i], &given[i]);
        if (status != SL_OK)
            return sl_fail_context(status, "%s", what);
    }
    return SL_OK;
}
