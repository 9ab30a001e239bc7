/* Rows of strided tensors. */
#include "kernel/call.h"

const sl_view sl_absent = { .meta = { .shape = { .rank = -1 } } };

int64_t sl_row_count(const sl_meta *meta, int inner)
{
    int64_t count = 1;
    for (int i = 0; i < meta->shape.rank - inner; i++)
        count *= meta->shape.dims[i];
    return count;
}

int64_t sl_row_offset(const sl_meta *meta, int64_t row, int inner)
{
    int64_t offset = 0;
    for (int i = meta->shape.rank - inner - 1; i >= 0; i--) {
        int64_t size = meta->shape.dims[i];
        offset += row % size * meta->strides[i];
        row /= size;
    }
    return offset;
}

sl_meta sl_meta_stretched(const sl_meta *meta, const sl_shape *shape)
{
    sl_meta view = { .dtype = meta->dtype, .shape = *shape };
    int added = shape->rank - meta->shape.rank;
    for (int i = added; i < shape->rank; i++)
        view.strides[i] = meta->shape.dims[i - added] == shape->dims[i] ? meta->strides[i - added] : 0;
    return view;
}
