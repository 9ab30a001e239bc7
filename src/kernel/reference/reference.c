/* The reference kernels by op, and their access to elements. */
#include "kernel/reference/reference.h"

static const sl_reference_kernel kernels[SL_OP_COUNT] = {
#define ROW(name, description) [SL_OP_##name] = sl_reference_##description,
    SL_PLAIN_OP_LIST(ROW) /* fused ones run as what they stand for */
#undef ROW
};

sl_reference_kernel sl_reference_get(sl_op op)
{
    return kernels[op];
}

/* Rows of numbers in double: weights of attention, and sums that are rounded once. */
size_t sl_reference_scratch(const sl_kernel_call *call)
{
    const int64_t *k = call->input_count > 1 ? call->inputs[1].meta.shape.dims : NULL;
    switch (call->op) {
    case SL_OP_ATTENTION:
        return (size_t)k[1] * sizeof(double);
    case SL_OP_ATTENTION_CACHED:
        return (size_t)call->inputs[3].meta.shape.dims[1] * sizeof(double);
    case SL_OP_ATTENTION_GRAD:
        return (size_t)(k[3] + 2 * k[1] * k[3]) * sizeof(double);
    case SL_OP_EMBEDDING_GRAD:
        return (size_t)call->outputs[0].meta.shape.dims[0] * sizeof(double);
    default:
        return 0;
    }
}

double sl_get(const sl_view *view, int64_t offset)
{
    switch (view->meta.dtype) {
    case SL_F32:
        return ((const float *)view->data)[offset];
    case SL_F64:
        return ((const double *)view->data)[offset];
    case SL_BF16:
        return sl_bf16_to_f32(((const uint16_t *)view->data)[offset]);
    case SL_F16:
        return sl_f16_to_f32(((const uint16_t *)view->data)[offset]);
    default:
        return (double)sl_get_index(view, offset);
    }
}

int64_t sl_get_index(const sl_view *view, int64_t offset)
{
    switch (view->meta.dtype) {
    case SL_I32:
        return ((const int32_t *)view->data)[offset];
    case SL_I64:
        return ((const int64_t *)view->data)[offset];
    case SL_U8:
        return ((const uint8_t *)view->data)[offset];
    case SL_BOOL:
        return ((const uint8_t *)view->data)[offset] != 0;
    default:
        return (int64_t)sl_get(view, offset);
    }
}

/* Towards zero; what does not fit goes to the nearest end, NaN to 0. */
static int64_t to_integer(double value, int64_t min, int64_t max)
{
    if (value != value)
        return 0;
    if (value <= (double)min)
        return min;
    return value >= (double)max ? max : (int64_t)value;
}

void sl_put(const sl_view *view, int64_t offset, double value, bool add)
{
    if (add)
        value += sl_get(view, offset);
    switch (view->meta.dtype) {
    case SL_F32:
        ((float *)view->data)[offset] = (float)value;
        break;
    case SL_F64:
        ((double *)view->data)[offset] = value;
        break;
    case SL_BF16:
        ((uint16_t *)view->data)[offset] = sl_bf16_from_f32((float)value);
        break;
    case SL_F16:
        ((uint16_t *)view->data)[offset] = sl_f16_from_f32((float)value);
        break;
    case SL_I32:
        ((int32_t *)view->data)[offset] = (int32_t)to_integer(value, INT32_MIN, INT32_MAX);
        break;
    case SL_I64:
        ((int64_t *)view->data)[offset] = to_integer(value, INT64_MIN, INT64_MAX);
        break;
    case SL_U8:
        ((uint8_t *)view->data)[offset] = (uint8_t)to_integer(value, 0, UINT8_MAX);
        break;
    case SL_BOOL:
        ((uint8_t *)view->data)[offset] = value != 0;
        break;
    default:
        break;
    }
}
