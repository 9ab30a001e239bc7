/* Microbatches: cuts arguments into parts and puts outputs together again. */
#include "pipeline/microbatch.h"

#include "base/status.h"

#include <string.h>

static const sl_chunk_spec by_default = { .kind = SL_CHUNK_SPLIT };

/* A scalar has no dim that the default could mean. */
static bool is_cut(const sl_meta *whole, const sl_chunk_spec *spec)
{
    return spec->kind == SL_CHUNK_SPLIT && !(whole->shape.rank == 0 && spec->dim == 0);
}

/* Checks that the dim exists and leaves no microbatch empty; *dim counts from the front. */
static sl_status find_dim(const sl_meta *meta, const sl_chunk_spec *spec, int count, int *dim)
{
    int rank = meta->shape.rank;
    char text[128];
    if (spec->dim < -rank || spec->dim >= rank)
        return sl_fail(SL_ERR_ARGUMENT, "cannot split %s along dim %d", sl_meta_text(meta, text, sizeof text),
                       spec->dim);
    *dim = spec->dim < 0 ? spec->dim + rank : spec->dim;
    if (meta->shape.dims[*dim] < count)
        return sl_fail(SL_ERR_ARGUMENT, "dim %d of %s has %lld samples, fewer than the %d microbatches", *dim,
                       sl_meta_text(meta, text, sizeof text), (long long)meta->shape.dims[*dim], count);
    return SL_OK;
}

/* Metadata of part `index`, and how many elements after the whole's start it begins. */
static sl_status slice_part(const sl_meta *whole, const sl_chunk_spec *spec, int count, int index, sl_meta *part,
                            int64_t *offset)
{
    sl_status status = SL_OK;
    int dim = 0;
    int64_t start, length;
    SL_TRY(find_dim(whole, spec, count, &dim));
    sl_chunk_range(whole->shape.dims[dim], count, index, &start, &length);
    SL_TRY(sl_meta_slice(whole, dim, start, start + length, 1, part, offset));
done:
    return status;
}

sl_status sl_microbatch_part_view(const sl_view *whole, const sl_chunk_spec *spec, int count, int index, sl_view *part)
{
    sl_status status = SL_OK;
    int64_t offset = 0;
    sl_view view = *whole;
    if (spec->kind == SL_CHUNK_CUSTOM) {
        if (!spec->split)
            return sl_fail(SL_ERR_ARGUMENT, "a custom chunk spec without a split function cannot split");
        uint64_t failures = sl_fail_count();
        SL_TRY(sl_fail_callback(spec->split(spec->user, whole, count, index, &view), failures, "split"));
    } else if (is_cut(&whole->meta, spec)) {
        SL_TRY(slice_part(&whole->meta, spec, count, index, &view.meta, &offset));
        if (view.data)
            view.data = (char *)view.data + (size_t)offset * sl_dtype_size(view.meta.dtype);
    }
    *part = view;
done:
    return status;
}

sl_status sl_microbatch_split(const sl_view *whole, const sl_chunk_spec *spec, int count, sl_view *parts)
{
    sl_status status = SL_OK;
    if (!spec)
        spec = &by_default;
    if (count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%d microbatches: at least 1 is needed", count);
    for (int i = 0; i < count; i++)
        SL_TRY(sl_microbatch_part_view(whole, spec, count, i, &parts[i]));
done:
    return status;
}

sl_status sl_microbatch_part_meta(const sl_meta *whole, const sl_chunk_spec *spec, int count, int index, sl_meta *out)
{
    sl_status status = SL_OK;
    int64_t offset = 0;
    sl_meta part = *whole;
    if (!spec)
        spec = &by_default;
    if (spec->kind == SL_CHUNK_CUSTOM)
        return sl_fail(SL_ERR_ARGUMENT, "the parts of a custom chunk spec are not known before they are made");
    if (is_cut(whole, spec)) {
        SL_TRY(slice_part(whole, spec, count, index, &part, &offset));
        part = sl_meta_contiguous(part.dtype, &part.shape);
    }
    *out = part;
done:
    return status;
}

sl_status sl_microbatch_whole_meta(const sl_meta *parts, int count, const sl_chunk_spec *spec, sl_meta *out)
{
    if (!spec)
        spec = &by_default;
    if (count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%d microbatches: at least 1 is needed", count);
    if (spec->kind == SL_CHUNK_CUSTOM)
        return sl_fail(SL_ERR_ARGUMENT, "what a custom chunk spec merges into is not known beforehand");
    sl_shape shape = parts[0].shape;
    int dim = spec->dim < 0 ? spec->dim + shape.rank : spec->dim;
    if (is_cut(&parts[0], spec)) {
        if (dim < 0 || dim >= shape.rank)
            return sl_fail(SL_ERR_ARGUMENT, "cannot merge parts of rank %d along dim %d", shape.rank, spec->dim);
        for (int i = 1; i < count; i++)
            shape.dims[dim] += parts[i].shape.dims[dim];
    }
    *out = sl_meta_contiguous(parts[0].dtype, &shape);
    return SL_OK;
}

static void add_element(sl_dtype dtype, char *target, const char *source)
{
    float a, b;
    double c, d;
    uint16_t e, f;
    switch (dtype) {
    case SL_F32:
        memcpy(&a, target, sizeof a);
        memcpy(&b, source, sizeof b);
        a += b;
        memcpy(target, &a, sizeof a);
        break;
    case SL_F64:
        memcpy(&c, target, sizeof c);
        memcpy(&d, source, sizeof d);
        c += d;
        memcpy(target, &c, sizeof c);
        break;
    default:
        memcpy(&e, target, sizeof e);
        memcpy(&f, source, sizeof f);
        e = dtype == SL_BF16 ? sl_bf16_from_f32(sl_bf16_to_f32(e) + sl_bf16_to_f32(f))
                             : sl_f16_from_f32(sl_f16_to_f32(e) + sl_f16_to_f32(f));
        memcpy(target, &e, sizeof e);
    }
}

static void add_strided(const sl_view *to, const sl_view *from, int dim, char *target, const char *source)
{
    const sl_shape *shape = &from->meta.shape;
    size_t size = sl_dtype_size(from->meta.dtype);
    if (dim >= shape->rank || dim >= SL_MAX_DIMS) {
        add_element(from->meta.dtype, target, source);
        return;
    }
    for (int64_t i = 0; i < shape->dims[dim]; i++)
        add_strided(to, from, dim + 1, target + (size_t)(i * to->meta.strides[dim]) * size,
                    source + (size_t)(i * from->meta.strides[dim]) * size);
}

/* Copies element by element over the outer dims, row by row where both rows are contiguous. */
static void copy_strided(const sl_view *to, const sl_view *from, int dim, char *target, const char *source)
{
    const sl_shape *shape = &from->meta.shape;
    size_t size = sl_dtype_size(from->meta.dtype);
    if (dim == shape->rank) {
        memcpy(target, source, size);
        return;
    }
    int64_t to_stride = to->meta.strides[dim], from_stride = from->meta.strides[dim];
    if (dim == shape->rank - 1 && to_stride == 1 && from_stride == 1) {
        memcpy(target, source, size * (size_t)shape->dims[dim]);
        return;
    }
    for (int64_t i = 0; i < shape->dims[dim]; i++)
        copy_strided(to, from, dim + 1, target + (size_t)(i * to_stride) * size,
                     source + (size_t)(i * from_stride) * size);
}

static sl_status check_room(const sl_view *from, const sl_view *to)
{
    char given[128], wanted[128];
    if (sl_shape_equal(&from->meta.shape, &to->meta.shape) && from->meta.dtype == to->meta.dtype)
        return SL_OK;
    return sl_fail(SL_ERR_SHAPE, "a part is %s, the whole has room for %s",
                   sl_meta_text(&from->meta, given, sizeof given), sl_meta_text(&to->meta, wanted, sizeof wanted));
}

sl_status sl_microbatch_add(const sl_view *from, const sl_view *to)
{
    sl_status status = SL_OK;
    SL_TRY(check_room(from, to));
    add_strided(to, from, 0, to->data, from->data);
done:
    return status;
}

sl_status sl_microbatch_copy(const sl_view *from, const sl_view *to)
{
    sl_status status = check_room(from, to);
    if (status != SL_OK)
        return status;
    if (sl_meta_count(&from->meta) == 0)
        return SL_OK;
    if (sl_meta_is_contiguous(&from->meta) && sl_meta_is_contiguous(&to->meta))
        memcpy(to->data, from->data, sl_meta_bytes(&from->meta));
    else
        copy_strided(to, from, 0, to->data, from->data);
    return SL_OK;
}

sl_status sl_microbatch_merge_part(const sl_view *part, const sl_chunk_spec *spec, int count, int index,
                                   const sl_view *whole)
{
    sl_status status = SL_OK;
    sl_view place;
    if (spec->kind == SL_CHUNK_CUSTOM) {
        if (!spec->merge)
            return sl_fail(SL_ERR_ARGUMENT, "a custom chunk spec without a merge function cannot merge");
        uint64_t failures = sl_fail_count();
        return sl_fail_callback(spec->merge(spec->user, part, count, index, whole), failures, "merge");
    }
    SL_TRY(sl_microbatch_part_view(whole, spec, count, index, &place));
    SL_TRY(sl_microbatch_copy(part, &place));
done:
    return status;
}

sl_status sl_microbatch_merge(const sl_view *parts, int count, const sl_chunk_spec *spec, const sl_view *whole)
{
    sl_status status = SL_OK;
    if (!spec)
        spec = &by_default;
    if (count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%d microbatches: at least 1 is needed", count);
    for (int i = 0; i < count; i++) {
        status = sl_microbatch_merge_part(&parts[i], spec, count, i, whole);
        if (status != SL_OK)
            return sl_fail_context(status, "microbatch %d", i);
    }
    return status;
}

sl_status sl_microbatch_split_args(const sl_arg *args, const sl_chunk_spec *specs, int arg_count, int count,
                                   sl_view *parts)
{
    int64_t samples = -1;
    const char *first = NULL;
    for (int a = 0; a < arg_count; a++) {
        const sl_chunk_spec *spec = specs ? &specs[a] : &by_default;
        const char *name = args[a].name ? args[a].name : "argument";
        for (int m = 0; m < count; m++) {
            sl_status status = sl_microbatch_part_view(&args[a].view, spec, count, m,
                                                       &parts[(size_t)m * (size_t)arg_count + (size_t)a]);
            if (status != SL_OK)
                return sl_fail_context(status, "%s", name);
        }
        if (!is_cut(&args[a].view.meta, spec))
            continue;
        const sl_shape *shape = &args[a].view.meta.shape;
        int64_t size = shape->dims[spec->dim < 0 ? spec->dim + shape->rank : spec->dim];
        if (samples >= 0 && size != samples)
            return sl_fail(SL_ERR_SHAPE, "%s has %lld samples, but %s has %lld", name, (long long)size, first,
                           (long long)samples);
        samples = size;
        first = name;
    }
    return SL_OK;
}
