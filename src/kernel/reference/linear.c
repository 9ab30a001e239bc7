/* Matrix products, three loops each. */
#include "kernel/reference/reference.h"

/* A matrix anywhere in memory. */
typedef struct matrix {
    const sl_view *view;
    int64_t start, row_stride, column_stride;
} matrix;

static double at(const matrix *m, int64_t row, int64_t column)
{
    return sl_get(m->view, m->start + row * m->row_stride + column * m->column_stride);
}

/* Matrix `row_block` of a tensor's last two dims, transposed if asked. */
static matrix last_dims(const sl_view *view, const sl_meta *meta, int64_t block, bool transpose)
{
    int64_t rows = sl_stride_from_last(meta, 2), columns = sl_stride_from_last(meta, 1);
    return (matrix){ view, sl_row_offset(meta, block, 2), transpose ? columns : rows, transpose ? rows : columns };
}

static matrix transposed(matrix m)
{
    return (matrix){ m.view, m.start, m.column_stride, m.row_stride };
}

/* w as [K,N] whatever its layout. */
static matrix weight(const sl_view *w, bool transpose_w)
{
    return last_dims(w, &w->meta, 0, transpose_w);
}

sl_status sl_reference_linear(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *b = sl_call_input(call, 2), *y = sl_call_output(call, 0);
    matrix w = weight(sl_call_input(call, 1), call->attrs.transpose_w);
    int64_t k_size = sl_dim_from_last(&x->meta, 1), n_size = sl_dim_from_last(&y->meta, 1);
    for (int64_t row = 0; row < sl_row_count(&x->meta, 1); row++) {
        int64_t from = sl_row_offset(&x->meta, row, 1), to = sl_row_offset(&y->meta, row, 1);
        for (int64_t n = 0; n < n_size; n++) {
            double sum = sl_view_is_none(b) ? 0 : sl_get(b, n * b->meta.strides[0]);
            for (int64_t k = 0; k < k_size; k++)
                sum += sl_get(x, from + k * sl_stride_from_last(&x->meta, 1)) * at(&w, k, n);
            sl_put(y, to + n * sl_stride_from_last(&y->meta, 1), sum, sl_call_accumulates(call, 0));
        }
    }
    return SL_OK;
}

sl_status sl_reference_linear_grad_x(const sl_kernel_call *call)
{
    const sl_view *dy = sl_call_input(call, 0), *dx = sl_call_output(call, 0);
    matrix w = weight(sl_call_input(call, 1), call->attrs.transpose_w);
    int64_t k_size = sl_dim_from_last(&dx->meta, 1), n_size = sl_dim_from_last(&dy->meta, 1);
    for (int64_t row = 0; row < sl_row_count(&dy->meta, 1); row++) {
        int64_t from = sl_row_offset(&dy->meta, row, 1), to = sl_row_offset(&dx->meta, row, 1);
        for (int64_t k = 0; k < k_size; k++) {
            double sum = 0;
            for (int64_t n = 0; n < n_size; n++)
                sum += sl_get(dy, from + n * sl_stride_from_last(&dy->meta, 1)) * at(&w, k, n);
            sl_put(dx, to + k * sl_stride_from_last(&dx->meta, 1), sum, sl_call_accumulates(call, 0));
        }
    }
    return SL_OK;
}

sl_status sl_reference_linear_grad_w(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *dy = sl_call_input(call, 1);
    matrix dw = weight(sl_call_output(call, 0), call->attrs.transpose_w);
    int64_t k_size = sl_dim_from_last(&x->meta, 1), n_size = sl_dim_from_last(&dy->meta, 1);
    for (int64_t k = 0; k < k_size; k++) {
        for (int64_t n = 0; n < n_size; n++) {
            double sum = 0;
            for (int64_t row = 0; row < sl_row_count(&x->meta, 1); row++) {
                sum += sl_get(x, sl_row_offset(&x->meta, row, 1) + k * sl_stride_from_last(&x->meta, 1)) *
                       sl_get(dy, sl_row_offset(&dy->meta, row, 1) + n * sl_stride_from_last(&dy->meta, 1));
            }
            sl_put(dw.view, k * dw.row_stride + n * dw.column_stride, sum, sl_call_accumulates(call, 0));
        }
    }
    return SL_OK;
}

sl_status sl_reference_matmul(const sl_kernel_call *call)
{
    const sl_view *a = sl_call_input(call, 0), *b = sl_call_input(call, 1), *c = sl_call_output(call, 0);
    sl_shape leading = c->meta.shape;
    leading.rank -= 2;
    int64_t m_size = sl_dim_from_last(&c->meta, 2), n_size = sl_dim_from_last(&c->meta, 1);
    int64_t k_size = sl_dim_from_last(&a->meta, call->attrs.transpose_a ? 2 : 1);

    /* The operands with c's leading dims, their own last two. */
    sl_shape a_shape = leading, b_shape = leading;
    for (int place = 2; place >= 1; place--) {
        a_shape.dims[a_shape.rank++] = sl_dim_from_last(&a->meta, place);
        b_shape.dims[b_shape.rank++] = sl_dim_from_last(&b->meta, place);
    }
    sl_meta a_meta = sl_meta_stretched(&a->meta, &a_shape), b_meta = sl_meta_stretched(&b->meta, &b_shape);

    for (int64_t block = 0; block < sl_row_count(&c->meta, 2); block++) {
        matrix left = last_dims(a, &a_meta, block, call->attrs.transpose_a);
        matrix right = transposed(last_dims(b, &b_meta, block, call->attrs.transpose_b));
        int64_t to = sl_row_offset(&c->meta, block, 2);
        for (int64_t m = 0; m < m_size; m++) {
            for (int64_t n = 0; n < n_size; n++) {
                double sum = 0;
                for (int64_t k = 0; k < k_size; k++)
                    sum += at(&left, m, k) * at(&right, n, k);
                sl_put(c, to + m * sl_stride_from_last(&c->meta, 2) + n * sl_stride_from_last(&c->meta, 1), sum,
                       sl_call_accumulates(call, 0));
            }
        }
    }
    return SL_OK;
}
