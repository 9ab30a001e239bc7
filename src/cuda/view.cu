// Tensors as kernels see them, made from the views of a call.
#include "cuda/element.cuh"

#include "kernel/call.h"

bool is_double(const sl_kernel_call *call)
{
    for (int i = 0; i < call->input_count + call->output_count; i++) {
        const sl_view *view = i < call->input_count ? &call->inputs[i] : &call->outputs[i - call->input_count];
        if (!sl_view_is_none(view) && view->meta.dtype == SL_F64)
            return true;
    }
    return false;
}

tensor_view view_of(const sl_view *view)
{
    tensor_view result = {};
    if (sl_view_is_none(view))
        return result;
    result.data = view->data;
    result.dtype = view->meta.dtype;
    result.rank = view->meta.shape.rank;
    for (int i = 0; i < result.rank; i++) {
        result.dims[i] = view->meta.shape.dims[i];
        result.strides[i] = view->meta.strides[i];
    }
    return result;
}

tensor_view merged(const sl_view *view, int inner)
{
    tensor_view from = view_of(view), to = from;
    int outer = from.rank - inner;
    to.rank = 0;
    for (int i = 0; i < from.rank; i++) {
        bool joins = i > 0 && i < outer && to.rank > 0 && to.strides[to.rank - 1] == from.strides[i] * from.dims[i];
        if (i < outer && from.dims[i] == 1)
            continue;
        if (joins) {
            to.dims[to.rank - 1] *= from.dims[i];
            to.strides[to.rank - 1] = from.strides[i];
        } else {
            to.dims[to.rank] = from.dims[i];
            to.strides[to.rank++] = from.strides[i];
        }
    }
    return to;
}
