/* Layer normalization and RMS normalization over the last dim. */
#include "kernel/reference/reference.h"

#include <math.h>

static double at_or(const sl_row *r, int64_t i, double absent)
{
    return sl_view_is_none(r->view) ? absent : sl_row_get(r, i);
}

/* Statistic of a row: a tensor of the leading dims. */
static double statistic(const sl_view *view, int64_t index)
{
    return sl_get(view, sl_row_offset(&view->meta, index, 0));
}

sl_status sl_reference_layernorm(const sl_kernel_call *call)
{
    const sl_view *x_view = sl_call_input(call, 0), *mean_view = sl_call_output(call, 1);
    const sl_view *rstd_view = sl_call_output(call, 2);
    int64_t size = sl_dim_from_last(&x_view->meta, 1);
    sl_row w = sl_row_of(sl_call_input(call, 1), 0), b = sl_row_of(sl_call_input(call, 2), 0);
    for (int64_t index = 0; index < sl_row_count(&x_view->meta, 1); index++) {
        sl_row x = sl_row_of(x_view, index), y = sl_row_of(sl_call_output(call, 0), index);
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < size; i++)
            mean += sl_row_get(&x, i) / (double)size;
        for (int64_t i = 0; i < size; i++)
            variance += (sl_row_get(&x, i) - mean) * (sl_row_get(&x, i) - mean) / (double)size;
        double rstd = 1 / sqrt(variance + call->attrs.eps);
        for (int64_t i = 0; i < size; i++)
            sl_row_put(&y, i, (sl_row_get(&x, i) - mean) * rstd * at_or(&w, i, 1) + at_or(&b, i, 0), false);
        sl_put(mean_view, sl_row_offset(&mean_view->meta, index, 0), mean, false);
        sl_put(rstd_view, sl_row_offset(&rstd_view->meta, index, 0), rstd, false);
    }
    return SL_OK;
}

sl_status sl_reference_layernorm_grad_x(const sl_kernel_call *call)
{
    const sl_view *x_view = sl_call_input(call, 1);
    int64_t size = sl_dim_from_last(&x_view->meta, 1);
    sl_row w = sl_row_of(sl_call_input(call, 2), 0);
    for (int64_t index = 0; index < sl_row_count(&x_view->meta, 1); index++) {
        sl_row dy = sl_row_of(sl_call_input(call, 0), index), x = sl_row_of(x_view, index);
        sl_row dx = sl_row_of(sl_call_output(call, 0), index);
        double mean = statistic(sl_call_input(call, 3), index), rstd = statistic(sl_call_input(call, 4), index);
        double sum = 0, dot = 0; /* of g = dy * w, and of g with the normalized x */
        for (int64_t i = 0; i < size; i++) {
            double g = sl_row_get(&dy, i) * at_or(&w, i, 1);
            sum += g;
            dot += g * (sl_row_get(&x, i) - mean) * rstd;
        }
        for (int64_t i = 0; i < size; i++) {
            double g = sl_row_get(&dy, i) * at_or(&w, i, 1), normal = (sl_row_get(&x, i) - mean) * rstd;
            sl_row_put(&dx, i, rstd * (g - sum / (double)size - normal * dot / (double)size),
                       sl_call_accumulates(call, 0));
        }
    }
    return SL_OK;
}

sl_status sl_reference_layernorm_grad_w(const sl_kernel_call *call)
{
    const sl_view *x_view = sl_call_input(call, 1);
    sl_row dw = sl_row_of(sl_call_output(call, 0), 0), db = sl_row_of(sl_call_output(call, 1), 0);
    for (int64_t i = 0; i < sl_dim_from_last(&x_view->meta, 1); i++) {
        double weight = 0, bias = 0;
        for (int64_t index = 0; index < sl_row_count(&x_view->meta, 1); index++) {
            sl_row dy = sl_row_of(sl_call_input(call, 0), index), x = sl_row_of(x_view, index);
            double mean = statistic(sl_call_input(call, 2), index), rstd = statistic(sl_call_input(call, 3), index);
            weight += sl_row_get(&dy, i) * (sl_row_get(&x, i) - mean) * rstd;
            bias += sl_row_get(&dy, i);
        }
        sl_row_put(&dw, i, weight, sl_call_accumulates(call, 0));
        if (!sl_view_is_none(db.view))
            sl_row_put(&db, i, bias, sl_call_accumulates(call, 1));
    }
    return SL_OK;
}

sl_status sl_reference_rmsnorm(const sl_kernel_call *call)
{
    const sl_view *x_view = sl_call_input(call, 0), *rstd_view = sl_call_output(call, 1);
    int64_t size = sl_dim_from_last(&x_view->meta, 1);
    sl_row w = sl_row_of(sl_call_input(call, 1), 0);
    for (int64_t index = 0; index < sl_row_count(&x_view->meta, 1); index++) {
        sl_row x = sl_row_of(x_view, index), y = sl_row_of(sl_call_output(call, 0), index);
        double square = 0;
        for (int64_t i = 0; i < size; i++)
            square += sl_row_get(&x, i) * sl_row_get(&x, i) / (double)size;
        double rstd = 1 / sqrt(square + call->attrs.eps);
        for (int64_t i = 0; i < size; i++)
            sl_row_put(&y, i, sl_row_get(&x, i) * rstd * at_or(&w, i, 1), false);
        sl_put(rstd_view, sl_row_offset(&rstd_view->meta, index, 0), rstd, false);
    }
    return SL_OK;
}

sl_status sl_reference_rmsnorm_grad_x(const sl_kernel_call *call)
{
    const sl_view *x_view = sl_call_input(call, 1);
    int64_t size = sl_dim_from_last(&x_view->meta, 1);
    sl_row w = sl_row_of(sl_call_input(call, 2), 0);
    for (int64_t index = 0; index < sl_row_count(&x_view->meta, 1); index++) {
        sl_row dy = sl_row_of(sl_call_input(call, 0), index), x = sl_row_of(x_view, index);
        sl_row dx = sl_row_of(sl_call_output(call, 0), index);
        double rstd = statistic(sl_call_input(call, 3), index), dot = 0;
        for (int64_t i = 0; i < size; i++)
            dot += sl_row_get(&dy, i) * at_or(&w, i, 1) * sl_row_get(&x, i) * rstd;
        for (int64_t i = 0; i < size; i++) {
            double g = sl_row_get(&dy, i) * at_or(&w, i, 1), normal = sl_row_get(&x, i) * rstd;
            sl_row_put(&dx, i, rstd * (g - normal * dot / (double)size), sl_call_accumulates(call, 0));
        }
    }
    return SL_OK;
}

sl_status sl_reference_rmsnorm_grad_w(const sl_kernel_call *call)
{
    const sl_view *x_view = sl_call_input(call, 1);
    sl_row dw = sl_row_of(sl_call_output(call, 0), 0);
    for (int64_t i = 0; i < sl_dim_from_last(&x_view->meta, 1); i++) {
        double weight = 0;
        for (int64_t index = 0; index < sl_row_count(&x_view->meta, 1); index++) {
            sl_row dy = sl_row_of(sl_call_input(call, 0), index), x = sl_row_of(x_view, index);
            weight += sl_row_get(&dy, i) * sl_row_get(&x, i) * statistic(sl_call_input(call, 2), index);
        }
        sl_row_put(&dw, i, weight, sl_call_accumulates(call, 0));
    }
    return SL_OK;
}
