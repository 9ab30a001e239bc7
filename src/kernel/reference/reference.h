/* Reference kernels: every op in its plainest form, computed in double, for any strides. What the fast kernels are
 * tested against, and what runs if they do not apply (f64, bf16, mixed element types, unusual reductions). The call was
 * checked before. */
#ifndef SL_KERNEL_REFERENCE_H
#define SL_KERNEL_REFERENCE_H

#include "kernel/call.h"

typedef sl_status (*sl_reference_kernel)(const sl_kernel_call *call);

/* The kernel of an op; never NULL for one that exists. */
sl_reference_kernel sl_reference_get(sl_op op);
/* Bytes of scratch that it needs. */
size_t sl_reference_scratch(const sl_kernel_call *call);

/* Every op has one: sl_reference_linear, .. */
#define SL_REFERENCE_DECLARE(name, description) sl_status sl_reference_##description(const sl_kernel_call *call);
SL_OP_LIST(SL_REFERENCE_DECLARE)
#undef SL_REFERENCE_DECLARE

/* Element `offset` of a view as a number, and back; put adds if `add`. */
double sl_get(const sl_view *view, int64_t offset);
void sl_put(const sl_view *view, int64_t offset, double value, bool add);
int64_t sl_get_index(const sl_view *view, int64_t offset); /* exact for integers */

/* Zeroes numbers in scratch, of which there may be none. */
static inline void sl_clear(double *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        numbers[i] = 0;
}

/* One row of a tensor, along its last dim: where it starts and how far its elements are apart. */
typedef struct sl_row {
    const sl_view *view;
    int64_t start, stride;
} sl_row;

static inline sl_row sl_row_of(const sl_view *view, int64_t index)
{
    if (sl_view_is_none(view))
        return (sl_row){ .view = view };
    return (sl_row){ .view = view,
                     .start = sl_row_offset(&view->meta, index, 1),
                     .stride = sl_stride_from_last(&view->meta, 1) };
}

static inline double sl_row_get(const sl_row *row, int64_t i)
{
    return sl_get(row->view, row->start + i * row->stride);
}

static inline void sl_row_put(const sl_row *row, int64_t i, double value, bool add)
{
    sl_put(row->view, row->start + i * row->stride, value, add);
}

#endif
