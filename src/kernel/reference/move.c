/* Moving data: copy, cast, fill, concat; dropout. */
#include "kernel/philox.h"
#include "kernel/reference/reference.h"

#include <string.h>

static bool is_integer(sl_dtype dtype)
{
    return dtype == SL_I32 || dtype == SL_I64 || dtype == SL_U8 || dtype == SL_BOOL;
}

/* Integers to i64 go exactly, also above 2^53; all else by way of double. */
static void convert(const sl_view *x, int64_t from, const sl_view *y, int64_t to, bool add)
{
    if (y->meta.dtype == SL_I64 && is_integer(x->meta.dtype)) {
        int64_t *place = (int64_t *)y->data + to;
        uint64_t before = add ? (uint64_t)*place : 0;
        *place = (int64_t)(before + (uint64_t)sl_get_index(x, from));
        return;
    }
    sl_put(y, to, sl_get(x, from), add);
}

static void convert_all(const sl_view *x, const sl_view *y, bool add)
{
    for (int64_t i = 0; i < sl_meta_count(&x->meta); i++)
        convert(x, sl_row_offset(&x->meta, i, 0), y, sl_row_offset(&y->meta, i, 0), add);
}

/* Same dtype: the bits travel as they are (NaN payloads too). */
static void copy_all(const sl_view *x, const sl_view *y, bool add)
{
    size_t size = sl_dtype_size(x->meta.dtype);
    if (add) {
        convert_all(x, y, true);
        return;
    }
    for (int64_t i = 0; i < sl_meta_count(&x->meta); i++)
        memmove((char *)y->data + (size_t)sl_row_offset(&y->meta, i, 0) * size,
                (const char *)x->data + (size_t)sl_row_offset(&x->meta, i, 0) * size, size);
}

sl_status sl_reference_copy(const sl_kernel_call *call)
{
    copy_all(sl_call_input(call, 0), sl_call_output(call, 0), sl_call_accumulates(call, 0));
    return SL_OK;
}

sl_status sl_reference_cast(const sl_kernel_call *call)
{
    convert_all(sl_call_input(call, 0), sl_call_output(call, 0), sl_call_accumulates(call, 0));
    return SL_OK;
}

sl_status sl_reference_fill(const sl_kernel_call *call)
{
    const sl_view *y = sl_call_output(call, 0);
    for (int64_t i = 0; i < sl_meta_count(&y->meta); i++)
        sl_put(y, sl_row_offset(&y->meta, i, 0), call->attrs.alpha, sl_call_accumulates(call, 0));
    return SL_OK;
}

sl_status sl_reference_concat(const sl_kernel_call *call)
{
    const sl_view *y = sl_call_output(call, 0);
    int64_t start = 0; /* along attrs.dim of y */
    for (int i = 0; i < call->input_count; i++) {
        const sl_view *x = sl_call_input(call, i);
        sl_view part = *y;
        part.meta.shape = x->meta.shape;
        part.data = (char *)y->data + (size_t)(start * y->meta.strides[call->attrs.dim]) * sl_dtype_size(y->meta.dtype);
        copy_all(x, &part, sl_call_accumulates(call, 0));
        start += x->meta.shape.dims[call->attrs.dim];
    }
    return SL_OK;
}

sl_status sl_reference_dropout(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_output(call, 0);
    sl_dropout_stream stream = sl_dropout_of_samples(call);
    for (int64_t i = 0; i < sl_meta_count(&x->meta); i++) {
        double value = sl_get(x, sl_row_offset(&x->meta, i, 0));
        if (sl_call_drops(call))
            value = sl_dropout_apply(&stream, (uint64_t)i, value);
        sl_put(y, sl_row_offset(&y->meta, i, 0), value, sl_call_accumulates(call, 0));
    }
    return SL_OK;
}
