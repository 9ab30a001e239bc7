/* Is a call well formed? Counts first, then dtypes, then shapes. */
#include "kernel/call.h"

static sl_status check_counts(const sl_kernel_call *call, const sl_op_info *info)
{
    int most = info->max_inputs < 0 ? call->input_count : info->max_inputs;
    if (call->input_count < info->min_inputs || call->input_count > most)
        return sl_fail(SL_ERR_ARGUMENT, "%s: takes %d to %d inputs, given %d", info->name, info->min_inputs, most,
                       call->input_count);
    if (call->output_count < 1 || call->output_count > info->outputs)
        return sl_fail(SL_ERR_ARGUMENT, "%s: has %d outputs, given %d", info->name, info->outputs, call->output_count);
    if (call->accumulate && !info->accumulates)
        return sl_fail(SL_ERR_ARGUMENT, "%s: cannot accumulate", info->name);
    return SL_OK;
}

/* Bit i: input i holds indices, not data. */
static uint32_t index_inputs(sl_op op)
{
    switch (op) {
    case SL_OP_EMBEDDING:
    case SL_OP_EMBEDDING_GRAD:
        return 1u << 0;
    case SL_OP_CROSS_ENTROPY:
    case SL_OP_CROSS_ENTROPY_GRAD:
        return 1u << 1;
    case SL_OP_ROPE:
        return 1u << 3;
    case SL_OP_ATTENTION_CACHED:
        return 1u << 5;
    default:
        return 0;
    }
}

static bool is_floating(sl_dtype dtype)
{
    return dtype == SL_F32 || dtype == SL_F64 || dtype == SL_BF16 || dtype == SL_F16;
}

static sl_status check_view(const sl_op_info *info, const char *side, int i, const sl_view *view, sl_dtype common)
{
    char text[256];
    if (sl_view_is_none(view) || view->meta.dtype == common)
        return SL_OK;
    return sl_fail(SL_ERR_SHAPE, "%s: %s %d is %s, expected %s", info->name, side, i,
                   sl_meta_text(&view->meta, text, sizeof text), sl_dtype_name(common));
}

/* The data of a call shares one dtype; copies take any, arithmetic a floating one. */
static sl_status check_dtypes(const sl_kernel_call *call, const sl_op_info *info)
{
    sl_status status = SL_OK;
    if (call->op == SL_OP_CAST)
        return SL_OK;
    sl_dtype common = call->outputs[0].meta.dtype;
    bool moves = call->op == SL_OP_COPY || call->op == SL_OP_CONCAT || call->op == SL_OP_FILL;
    if (!moves && !is_floating(common))
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: does not work on %s", info->name, sl_dtype_name(common));
    if (call->op == SL_OP_SQUARE_SUM)
        return check_view(info, "output", 0, &call->outputs[0], SL_F64);
    for (int i = 0; i < call->input_count; i++) {
        if (i >= 32 || !(index_inputs(call->op) >> i & 1))
            SL_TRY(check_view(info, "input", i, &call->inputs[i], common));
    }
    for (int i = 1; i < call->output_count; i++)
        SL_TRY(check_view(info, "output", i, &call->outputs[i], common));
done:
    return status;
}

/* A stretched tensor can be read, not written. */
static sl_status check_outputs(const sl_kernel_call *call, const sl_op_info *info)
{
    char text[256];
    for (int i = 0; i < call->output_count; i++) {
        const sl_meta *meta = &call->outputs[i].meta;
        for (int d = 0; d < meta->shape.rank; d++) {
            if (meta->shape.dims[d] > 1 && meta->strides[d] == 0)
                return sl_fail(SL_ERR_SHAPE, "%s: output %d is %s: several elements at one address", info->name, i,
                               sl_meta_text(meta, text, sizeof text));
        }
    }
    return SL_OK;
}

sl_status sl_call_check(const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    const sl_op_info *info = sl_op_get_info(call->op);
    if (!info)
        return sl_fail(SL_ERR_ARGUMENT, "there is no op %d", (int)call->op);
    SL_TRY(check_counts(call, info));
    SL_TRY(check_dtypes(call, info));
    SL_TRY(sl_call_check_shapes(call));
    SL_TRY(check_outputs(call, info));
    if (!(call->attrs.p >= 0 && call->attrs.p < 1))
        return sl_fail(SL_ERR_ARGUMENT, "%s: p is %g, not in [0, 1)", info->name, call->attrs.p);
done:
    return status;
}
