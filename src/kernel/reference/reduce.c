/* Sums, means and maxima over chosen dims; the reverse of a broadcast; the sum of squares. */
#include "kernel/reference/reference.h"

#include <math.h>

/* A tensor's dims in two groups: those that stay (one result each) and those reduced over. */
typedef struct grouped {
    sl_meta kept, reduced;
} grouped;

static grouped group(const sl_meta *meta, uint32_t dims)
{
    grouped result = { .kept = { .shape = { .rank = 0 } }, .reduced = { .shape = { .rank = 0 } } };
    for (int i = 0; i < meta->shape.rank; i++) {
        sl_meta *part = dims >> i & 1 ? &result.reduced : &result.kept;
        part->strides[part->shape.rank] = meta->strides[i];
        part->shape.dims[part->shape.rank++] = meta->shape.dims[i];
    }
    return result;
}

/* Element `inner` of the reduction that gives result `outer`. */
static int64_t place(const grouped *g, int64_t outer, int64_t inner)
{
    return sl_row_offset(&g->kept, outer, 0) + sl_row_offset(&g->reduced, inner, 0);
}

/* Result `outer` in a tensor shaped like y; size-1 dims that were kept make no difference. */
static int64_t result_place(const sl_view *y, int64_t outer)
{
    return sl_row_offset(&y->meta, outer, 0);
}

static void sum_over(const sl_kernel_call *call, uint32_t dims, bool mean)
{
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_output(call, 0);
    grouped g = group(&x->meta, dims);
    int64_t size = sl_meta_count(&g.reduced);
    for (int64_t outer = 0; outer < sl_meta_count(&g.kept); outer++) {
        double sum = 0;
        for (int64_t inner = 0; inner < size; inner++)
            sum += sl_get(x, place(&g, outer, inner));
        sl_put(y, result_place(y, outer), mean ? sum / (double)size : sum, sl_call_accumulates(call, 0));
    }
}

sl_status sl_reference_sum_to(const sl_kernel_call *call)
{
    const sl_shape *x = &sl_call_input(call, 0)->meta.shape, *y = &sl_call_output(call, 0)->meta.shape;
    int added = x->rank - y->rank;
    uint32_t dims = 0;
    for (int i = 0; i < x->rank; i++) {
        if (i < added || y->dims[i - added] != x->dims[i])
            dims |= 1u << i;
    }
    sum_over(call, dims, false);
    return SL_OK;
}

sl_status sl_reference_sum(const sl_kernel_call *call)
{
    sum_over(call, call->attrs.dims, false);
    return SL_OK;
}

sl_status sl_reference_mean(const sl_kernel_call *call)
{
    sum_over(call, call->attrs.dims, true);
    return SL_OK;
}

sl_status sl_reference_max(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_output(call, 0);
    grouped g = group(&x->meta, call->attrs.dims);
    for (int64_t outer = 0; outer < sl_meta_count(&g.kept); outer++) {
        double max = -INFINITY;
        for (int64_t inner = 0; inner < sl_meta_count(&g.reduced); inner++) {
            double value = sl_get(x, place(&g, outer, inner));
            max = value > max || value != value ? value : max;
        }
        sl_put(y, result_place(y, outer), max, false);
    }
    return SL_OK;
}

sl_status sl_reference_max_grad(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_input(call, 1), *dy = sl_call_input(call, 2);
    const sl_view *dx = sl_call_output(call, 0);
    grouped g = group(&x->meta, call->attrs.dims), to = group(&dx->meta, call->attrs.dims);
    int64_t size = sl_meta_count(&g.reduced);
    for (int64_t outer = 0; outer < sl_meta_count(&g.kept); outer++) {
        double max = sl_get(y, result_place(y, outer)), gradient = sl_get(dy, result_place(dy, outer));
        int64_t ties = 0;
        for (int64_t inner = 0; inner < size; inner++)
            ties += sl_get(x, place(&g, outer, inner)) == max;
        for (int64_t inner = 0; inner < size; inner++) {
            bool is_max = sl_get(x, place(&g, outer, inner)) == max;
            sl_put(dx, place(&to, outer, inner), is_max ? gradient / (double)ties : 0, sl_call_accumulates(call, 0));
        }
    }
    return SL_OK;
}

sl_status sl_reference_clip(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0);
    double sum = 0, clip = call->attrs.alpha;
    for (int64_t i = 0; i < sl_meta_count(&x->meta); i++)
        sum += sl_get(x, sl_row_offset(&x->meta, i, 0));
    double norm = sqrt(sum), scale = clip > 0 ? clip / (norm + 1e-6) : 1;
    sl_put(sl_call_output(call, 0), 0, norm, false);
    sl_put(sl_call_output(call, 1), 0, !isfinite(norm) ? (double)NAN : scale < 1 ? scale : 1, false);
    return SL_OK;
}

sl_status sl_reference_square_sum(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0);
    double sum = 0;
    for (int64_t i = 0; i < sl_meta_count(&x->meta); i++) {
        double value = sl_get(x, sl_row_offset(&x->meta, i, 0));
        sum += value * value;
    }
    sl_put(sl_call_output(call, 0), 0, sum, sl_call_accumulates(call, 0));
    return SL_OK;
}
