/* Look-up of table rows by id and its gradient. */
#include "kernel/reference/reference.h"

static sl_status id_at(const sl_kernel_call *call, int64_t index, int64_t rows, int64_t *out)
{
    const sl_view *ids = sl_call_input(call, 0);
    int64_t id = sl_get_index(ids, sl_row_offset(&ids->meta, index, 0));
    if (id < 0 || id >= rows)
        return sl_fail(SL_ERR_ARGUMENT, "%s: id %lld at element %lld is not in 0..%lld", sl_op_name(call->op),
                       (long long)id, (long long)index, (long long)rows - 1);
    *out = id;
    return SL_OK;
}

sl_status sl_reference_embedding(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    const sl_view *ids = sl_call_input(call, 0), *table = sl_call_input(call, 1), *y = sl_call_output(call, 0);
    for (int64_t index = 0; index < sl_meta_count(&ids->meta); index++) {
        int64_t id = 0, to = sl_row_offset(&y->meta, index, 1);
        SL_TRY(id_at(call, index, table->meta.shape.dims[0], &id));
        for (int64_t i = 0; i < table->meta.shape.dims[1]; i++)
            sl_put(y, to + i * sl_stride_from_last(&y->meta, 1),
                   sl_get(table, id * table->meta.strides[0] + i * table->meta.strides[1]),
                   sl_call_accumulates(call, 0));
    }
done:
    return status;
}

/* One column of the table at a time: its sums are rounded once, whatever the table's element type. */
sl_status sl_reference_embedding_grad(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    const sl_view *ids = sl_call_input(call, 0), *dy = sl_call_input(call, 1), *dtable = sl_call_output(call, 0);
    const sl_meta *table = &dtable->meta;
    double *sums = call->scratch;
    for (int64_t i = 0; i < table->shape.dims[1]; i++) {
        sl_clear(sums, table->shape.dims[0]);
        for (int64_t index = 0; index < sl_meta_count(&ids->meta); index++) {
            int64_t id = 0, from = sl_row_offset(&dy->meta, index, 1);
            SL_TRY(id_at(call, index, table->shape.dims[0], &id));
            sums[id] += sl_get(dy, from + i * sl_stride_from_last(&dy->meta, 1));
        }
        for (int64_t row = 0; row < table->shape.dims[0]; row++)
            sl_put(dtable, row * table->strides[0] + i * table->strides[1], sums[row], sl_call_accumulates(call, 0));
    }
done:
    return status;
}
