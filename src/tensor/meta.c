/* Metadata of tensors: contiguity, views without copies, the split rule, checks against what was agreed. */
#include <sluice/tensor.h>

#include <stdio.h>
#include <string.h>

enum { TEXT = 128 };

sl_meta sl_meta_contiguous(sl_dtype dtype, const sl_shape *shape)
{
    sl_meta meta = { .dtype = dtype, .shape = { .rank = shape->rank } };
    int64_t stride = 1;
    for (int i = shape->rank - 1; i >= 0; i--) {
        meta.shape.dims[i] = shape->dims[i];
        meta.strides[i] = stride;
        stride *= shape->dims[i] > 0 ? shape->dims[i] : 1;
    }
    return meta;
}

sl_meta sl_meta_make(sl_dtype dtype, int rank, const int64_t *dims)
{
    sl_shape shape = { .rank = rank };
    for (int i = 0; i < rank; i++)
        shape.dims[i] = dims[i];
    return sl_meta_contiguous(dtype, &shape);
}

int64_t sl_meta_count(const sl_meta *meta)
{
    int64_t count = 1;
    for (int i = 0; i < meta->shape.rank; i++)
        count *= meta->shape.dims[i];
    return count;
}

size_t sl_meta_bytes(const sl_meta *meta)
{
    return (size_t)sl_meta_count(meta) * sl_dtype_size(meta->dtype);
}

bool sl_meta_is_contiguous(const sl_meta *meta)
{
    sl_meta packed = sl_meta_contiguous(meta->dtype, &meta->shape);
    return sl_meta_count(meta) == 0 || sl_meta_equal(meta, &packed);
}

bool sl_meta_equal(const sl_meta *a, const sl_meta *b)
{
    if (a->dtype != b->dtype || !sl_shape_equal(&a->shape, &b->shape))
        return false;
    for (int i = 0; i < a->shape.rank; i++) {
        if (a->shape.dims[i] > 1 && a->strides[i] != b->strides[i])
            return false;
    }
    return true;
}

char *sl_meta_text(const sl_meta *meta, char *text, size_t size)
{
    char shape[TEXT], strides[TEXT];
    sl_shape as_shape = { .rank = meta->shape.rank };
    memcpy(as_shape.dims, meta->strides, sizeof as_shape.dims);
    sl_shape_text(&meta->shape, shape, sizeof shape);
    if (sl_meta_is_contiguous(meta))
        snprintf(text, size, "%s %s", sl_dtype_name(meta->dtype), shape);
    else
        snprintf(text, size, "%s %s strides %s", sl_dtype_name(meta->dtype), shape,
                 sl_shape_text(&as_shape, strides, sizeof strides));
    return text;
}

/* ---- Views ----------------------------------------------------------------------------------- */

/* Replaces the one -1 of shape so that it holds `count` elements. */
static sl_status complete_shape(const sl_meta *meta, const sl_shape *wanted, sl_shape *out)
{
    char from[TEXT], to[TEXT];
    sl_shape shape = *wanted;
    int open = -1;
    bool fits = shape.rank >= 0 && shape.rank <= SL_MAX_DIMS;
    for (int i = 0; fits && i < shape.rank; i++) {
        if (shape.dims[i] == -1) {
            fits = open < 0;
            open = i;
            shape.dims[i] = 1;
        }
    }
    int64_t known = 0, count = sl_meta_count(meta);
    if (fits)
        fits = sl_shape_count(&shape, &known) == SL_OK;
    if (fits && open >= 0) {
        fits = known > 0 && count % known == 0;
        shape.dims[open] = fits ? count / known : 0;
    } else if (fits) {
        fits = known == count;
    }
    if (!fits)
        return sl_fail(SL_ERR_SHAPE, "reshape: %s does not fit into %s", sl_shape_text(&meta->shape, from, sizeof from),
                       sl_shape_text(wanted, to, sizeof to));
    *out = shape;
    return SL_OK;
}

/* Old dims that lie like one dim in memory (size, stride of the last). Dims of size 1 vanish. */
static int merge_dims(const sl_meta *meta, int64_t *sizes, int64_t *strides)
{
    int count = 0;
    for (int i = 0; i < meta->shape.rank; i++) {
        int64_t size = meta->shape.dims[i], stride = meta->strides[i];
        if (size == 1)
            continue;
        if (count > 0 && strides[count - 1] == size * stride) {
            sizes[count - 1] *= size;
            strides[count - 1] = stride;
        } else {
            sizes[count] = size;
            strides[count++] = stride;
        }
    }
    return count;
}

sl_status sl_meta_reshape(const sl_meta *meta, const sl_shape *shape, sl_meta *out)
{
    char from[TEXT], to[TEXT];
    sl_shape target;
    sl_status status = complete_shape(meta, shape, &target);
    if (status != SL_OK)
        return status;
    sl_meta view = sl_meta_contiguous(meta->dtype, &target);
    if (sl_meta_count(meta) == 0) {
        *out = view;
        return SL_OK;
    }

    /* Walk from the last dim: each group of new dims must fill one merged old dim exactly. */
    int64_t sizes[SL_MAX_DIMS], strides[SL_MAX_DIMS];
    int group = merge_dims(meta, sizes, strides) - 1;
    int64_t filled = 1;
    bool fits = true;
    for (int i = target.rank - 1; fits && i >= 0; i--) {
        if (target.dims[i] == 1) {
            view.strides[i] = group >= 0 ? strides[group] * filled : 1;
            continue;
        }
        if (group >= 0 && filled == sizes[group]) {
            group--;
            filled = 1;
        }
        fits = group >= 0 && sizes[group] % (filled * target.dims[i]) == 0;
        if (fits) {
            view.strides[i] = strides[group] * filled;
            filled *= target.dims[i];
        }
    }
    if (!fits)
        return sl_fail(SL_ERR_SHAPE, "reshape: %s cannot be seen as %s without a copy",
                       sl_meta_text(meta, from, sizeof from), sl_shape_text(&target, to, sizeof to));
    *out = view;
    return SL_OK;
}

sl_status sl_meta_permute(const sl_meta *meta, const int *order, sl_meta *out)
{
    sl_meta view = *meta;
    unsigned seen = 0;
    for (int i = 0; i < meta->shape.rank; i++) {
        if (order[i] < 0 || order[i] >= meta->shape.rank || (seen >> order[i] & 1))
            return sl_fail(SL_ERR_ARGUMENT, "permute: entry %d (%d) does not order %d dims", i, order[i],
                           meta->shape.rank);
        seen |= 1u << order[i];
        view.shape.dims[i] = meta->shape.dims[order[i]];
        view.strides[i] = meta->strides[order[i]];
    }
    *out = view;
    return SL_OK;
}

static sl_status check_dim(const char *what, const sl_meta *meta, int dim)
{
    char text[TEXT];
    if (dim >= 0 && dim < meta->shape.rank)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "%s: %s has no dim %d", what, sl_shape_text(&meta->shape, text, sizeof text), dim);
}

sl_status sl_meta_transpose(const sl_meta *meta, int dim_a, int dim_b, sl_meta *out)
{
    sl_status status = SL_OK;
    int order[SL_MAX_DIMS];
    SL_TRY(check_dim("transpose", meta, dim_a));
    SL_TRY(check_dim("transpose", meta, dim_b));
    for (int i = 0; i < meta->shape.rank; i++)
        order[i] = i == dim_a ? dim_b : i == dim_b ? dim_a : i;
    SL_TRY(sl_meta_permute(meta, order, out));
done:
    return status;
}

sl_status sl_meta_slice(const sl_meta *meta, int dim, int64_t start, int64_t stop, int64_t step, sl_meta *out,
                        int64_t *offset)
{
    sl_status status = check_dim("slice", meta, dim);
    if (status != SL_OK)
        return status;
    int64_t size = meta->shape.dims[dim];
    if (start < 0 || stop < start || stop > size || step < 1)
        return sl_fail(SL_ERR_ARGUMENT, "slice: %lld..%lld step %lld is not within dim %d of size %lld",
                       (long long)start, (long long)stop, (long long)step, dim, (long long)size);
    sl_meta view = *meta;
    view.shape.dims[dim] = stop > start ? (stop - start - 1) / step + 1 : 0;
    if (view.shape.dims[dim] > 1) /* else the stride says nothing, and a long step could overflow it */
        view.strides[dim] = meta->strides[dim] * step;
    *offset = view.shape.dims[dim] > 0 ? start * meta->strides[dim] : 0;
    *out = view;
    return SL_OK;
}

sl_status sl_meta_expand(const sl_meta *meta, const sl_shape *shape, sl_meta *out)
{
    char from[TEXT], to[TEXT];
    sl_meta view = { .dtype = meta->dtype, .shape = *shape };
    int64_t count;
    int added = shape->rank - meta->shape.rank;
    sl_status status = sl_shape_count(shape, &count);
    if (status != SL_OK)
        return status;
    bool fits = added >= 0;
    for (int i = 0; fits && i < shape->rank; i++) {
        int64_t given = i < added ? 1 : meta->shape.dims[i - added];
        fits = given == shape->dims[i] || given == 1;
        view.strides[i] = i >= added && given == shape->dims[i] ? meta->strides[i - added] : 0;
    }
    if (!fits)
        return sl_fail(SL_ERR_SHAPE, "expand: %s does not stretch to %s",
                       sl_shape_text(&meta->shape, from, sizeof from), sl_shape_text(shape, to, sizeof to));
    *out = view;
    return SL_OK;
}

void sl_chunk_range(int64_t size, int64_t chunks, int64_t index, int64_t *start, int64_t *length)
{
    int64_t each = size / chunks, longer = size % chunks;
    *start = index * each + (index < longer ? index : longer);
    *length = each + (index < longer ? 1 : 0);
}

sl_status sl_shape_broadcast(const sl_shape *a, const sl_shape *b, sl_shape *out)
{
    char left[TEXT], right[TEXT];
    sl_shape shape = { .rank = a->rank > b->rank ? a->rank : b->rank };
    for (int i = 1; i <= shape.rank; i++) {
        int64_t x = i <= a->rank ? a->dims[a->rank - i] : 1;
        int64_t y = i <= b->rank ? b->dims[b->rank - i] : 1;
        if (x != y && x != 1 && y != 1)
            return sl_fail(SL_ERR_SHAPE, "%s and %s do not broadcast", sl_shape_text(a, left, sizeof left),
                           sl_shape_text(b, right, sizeof right));
        shape.dims[shape.rank - i] = x == 1 ? y : x;
    }
    *out = shape;
    return SL_OK;
}

sl_view sl_view_none(void)
{
    return (sl_view){ .meta = { .shape = { .rank = -1 } } };
}

bool sl_view_is_none(const sl_view *view)
{
    return view->meta.shape.rank < 0;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

/* Strides of dims with size 0 or 1 say nothing. */
static bool strides_agree(const sl_meta *a, const sl_meta *b, bool exact)
{
    for (int i = 0; i < a->shape.rank; i++) {
        if ((exact || a->shape.dims[i] > 1) && a->strides[i] != b->strides[i])
            return false;
    }
    return true;
}

static sl_status check_meta(const char *what, const sl_meta *expected, const sl_meta *given, bool exact)
{
    char want[TEXT], have[TEXT];
    if (!sl_shape_equal(&expected->shape, &given->shape))
        return sl_fail(SL_ERR_SHAPE, "%s: shape mismatch: expected %s, given %s", what,
                       sl_shape_text(&expected->shape, want, sizeof want),
                       sl_shape_text(&given->shape, have, sizeof have));
    if (expected->dtype != given->dtype)
        return sl_fail(SL_ERR_SHAPE, "%s: dtype mismatch: expected %s, given %s", what, sl_dtype_name(expected->dtype),
                       sl_dtype_name(given->dtype));
    if (!strides_agree(expected, given, exact)) {
        sl_shape expected_strides = { .rank = expected->shape.rank }, given_strides = { .rank = given->shape.rank };
        memcpy(expected_strides.dims, expected->strides, sizeof expected->strides);
        memcpy(given_strides.dims, given->strides, sizeof given->strides);
        return sl_fail(SL_ERR_SHAPE, "%s: stride mismatch: expected %s, given %s", what,
                       sl_shape_text(&expected_strides, want, sizeof want),
                       sl_shape_text(&given_strides, have, sizeof have));
    }
    return SL_OK;
}

sl_status sl_meta_check(const char *what, const sl_meta *expected, const sl_meta *given)
{
    return check_meta(what, expected, given, false);
}

sl_status sl_meta_check_exact(const char *what, const sl_meta *expected, const sl_meta *given)
{
    return check_meta(what, expected, given, true);
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
