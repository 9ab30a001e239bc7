/* Softmax over the last dim and cross entropy on top of it. */
#include "kernel/reference/reference.h"

#include <math.h>

/* log(sum(exp(x))) without overflow; -inf for an empty row. */
static double log_sum_exp(const sl_row *x, int64_t size)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < size; i++)
        max = fmax(max, sl_row_get(x, i));
    for (int64_t i = 0; i < size; i++)
        sum += exp(sl_row_get(x, i) - max);
    return sum > 0 ? max + log(sum) : sum == 0 ? -INFINITY : sum;
}

sl_status sl_reference_softmax(const sl_kernel_call *call)
{
    const sl_view *x_view = sl_call_input(call, 0);
    int64_t size = sl_dim_from_last(&x_view->meta, 1);
    for (int64_t index = 0; index < sl_row_count(&x_view->meta, 1); index++) {
        sl_row x = sl_row_of(x_view, index), y = sl_row_of(sl_call_output(call, 0), index);
        double lse = log_sum_exp(&x, size);
        for (int64_t i = 0; i < size; i++)
            sl_row_put(&y, i, exp(sl_row_get(&x, i) - lse), sl_call_accumulates(call, 0));
    }
    return SL_OK;
}

sl_status sl_reference_softmax_grad(const sl_kernel_call *call)
{
    const sl_view *y_view = sl_call_input(call, 0);
    int64_t size = sl_dim_from_last(&y_view->meta, 1);
    for (int64_t index = 0; index < sl_row_count(&y_view->meta, 1); index++) {
        sl_row y = sl_row_of(y_view, index), dy = sl_row_of(sl_call_input(call, 1), index);
        sl_row dx = sl_row_of(sl_call_output(call, 0), index);
        double dot = 0;
        for (int64_t i = 0; i < size; i++)
            dot += sl_row_get(&y, i) * sl_row_get(&dy, i);
        for (int64_t i = 0; i < size; i++)
            sl_row_put(&dx, i, sl_row_get(&y, i) * (sl_row_get(&dy, i) - dot), sl_call_accumulates(call, 0));
    }
    return SL_OK;
}

/* ---- Cross entropy --------------------------------------------------------------------------- */

static int64_t target_of(const sl_kernel_call *call, int64_t index)
{
    const sl_view *targets = sl_call_input(call, 1);
    return sl_get_index(targets, sl_row_offset(&targets->meta, index, 0));
}

sl_status sl_reference_cross_entropy(const sl_kernel_call *call)
{
    const sl_view *logits = sl_call_input(call, 0), *lse_view = sl_call_output(call, 1);
    int64_t size = sl_dim_from_last(&logits->meta, 1), counted = 0;
    double total = 0;
    for (int64_t index = 0; index < sl_row_count(&logits->meta, 1); index++) {
        sl_row x = sl_row_of(logits, index);
        double lse = log_sum_exp(&x, size);
        int64_t target = target_of(call, index);
        sl_put(lse_view, sl_row_offset(&lse_view->meta, index, 0), lse, false);
        if (target == call->attrs.ignore_index)
            continue;
        if (target < 0 || target >= size)
            return sl_fail(SL_ERR_ARGUMENT, "cross_entropy: target %lld at element %lld is not in 0..%lld",
                           (long long)target, (long long)index, (long long)size - 1);
        total += lse - sl_row_get(&x, target);
        counted++;
    }
    sl_put(sl_call_output(call, 0), 0, counted ? total / (double)counted : 0, false);
    return SL_OK;
}

sl_status sl_reference_cross_entropy_grad(const sl_kernel_call *call)
{
    const sl_view *logits = sl_call_input(call, 0), *lse_view = sl_call_input(call, 2);
    int64_t size = sl_dim_from_last(&logits->meta, 1), rows = sl_row_count(&logits->meta, 1), counted = 0;
    for (int64_t index = 0; index < rows; index++)
        counted += target_of(call, index) != call->attrs.ignore_index;
    double dloss = sl_get(sl_call_input(call, 3), 0) / (double)(counted ? counted : 1);
    for (int64_t index = 0; index < rows; index++) {
        sl_row x = sl_row_of(logits, index), dx = sl_row_of(sl_call_output(call, 0), index);
        double lse = sl_get(lse_view, sl_row_offset(&lse_view->meta, index, 0));
        int64_t target = target_of(call, index);
        double weight = target == call->attrs.ignore_index ? 0 : dloss;
        for (int64_t i = 0; i < size; i++)
            sl_row_put(&dx, i, weight * (exp(sl_row_get(&x, i) - lse) - (i == target ? 1 : 0)),
                       sl_call_accumulates(call, 0));
    }
    return SL_OK;
}
