#include "kernel/gpu_scratch.h"

#include "kernel/call.h"
#include "kernel/fused.h"

static size_t aligned(size_t bytes)
{
    return (bytes + SL_GPU_SCRATCH_ALIGNMENT - 1) / SL_GPU_SCRATCH_ALIGNMENT * SL_GPU_SCRATCH_ALIGNMENT;
}

/* ---- Products -------------------------------------------------------------------------------- */

bool sl_gpu_rows_merge(const sl_meta *meta, int64_t *stride)
{
    int64_t next = -1;
    *stride = sl_dim_from_last(meta, 1); /* of one row alone it does not matter */
    for (int i = meta->shape.rank - 2; i >= 0; i--) {
        if (meta->shape.dims[i] == 1)
            continue;
        if (next < 0)
            *stride = meta->strides[i];
        else if (meta->strides[i] != next)
            return false;
        next = meta->strides[i] * meta->shape.dims[i];
    }
    return true;
}

/* The gradient of w sums over all rows, so they must lie alike. */
size_t sl_gpu_packed_bytes(const sl_kernel_call *call, int input)
{
    int64_t stride;
    const sl_meta *meta = &call->inputs[input].meta;
    return call->op == SL_OP_LINEAR_GRAD_W && !sl_gpu_rows_merge(meta, &stride) ? aligned(sl_meta_bytes(meta)) : 0;
}

size_t sl_gpu_product_workspace(const sl_kernel_call *call)
{
    double k = (double)(call->op == SL_OP_LINEAR_GRAD_W ? sl_row_count(&call->inputs[0].meta, 1)
                                                        : sl_dim_from_last(&call->inputs[0].meta, 1));
    double flops = 2 * k * (double)sl_meta_count(&call->outputs[0].meta);
    return flops >= SL_GPU_PRODUCT_WORTH_TUNING ? SL_GPU_PRODUCT_WORKSPACE : 0;
}

static size_t product(const sl_kernel_call *call)
{
    size_t bytes = sl_gpu_packed_bytes(call, 0) + sl_gpu_packed_bytes(call, 1) + sl_gpu_product_workspace(call);
    return bytes > 0 ? bytes + SL_GPU_SCRATCH_ALIGNMENT : 0;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static size_t column_sums(int64_t rows, int64_t columns)
{
    return (size_t)((rows + SL_GPU_CHUNK_ROWS - 1) / SL_GPU_CHUNK_ROWS * columns) * sizeof(double);
}

static bool is_reduced(const sl_kernel_call *call, int dim)
{
    if (call->op != SL_OP_SUM_TO)
        return call->attrs.dims >> dim & 1;
    const sl_shape *x = &call->inputs[0].meta.shape, *y = &call->outputs[0].meta.shape;
    int added = x->rank - y->rank;
    return dim < added || y->dims[dim - added] != x->dims[dim];
}

/* Sums over the leading dims, with enough columns to fill the threads of a tile, are taken by columns. */
static size_t reduction(const sl_kernel_call *call)
{
    const sl_shape *x = &call->inputs[0].meta.shape;
    int64_t results = 1, size = 1;
    bool leading = true, kept = false;
    for (int i = 0; i < x->rank; i++) {
        bool reduced = is_reduced(call, i);
        *(reduced ? &size : &results) *= x->dims[i];
        if (x->dims[i] == 1)
            continue;
        leading &= !(reduced && kept);
        kept |= !reduced;
    }
    return leading && results >= 32 && size > 1 ? column_sums(size, results) : 0;
}

/* Scratch of the parts is enough for the whole: they run one after the other, or their sums over rows lie one after the
 * other. */
static size_t fused(const sl_kernel_call *call)
{
    sl_fused_part parts[SL_FUSED_PARTS];
    size_t bytes = 0;
    for (int i = 0, count = sl_fused_parts(call, parts); i < count; i++)
        bytes += aligned(sl_gpu_scratch(&parts[i].call));
    return bytes;
}

/* ---- Attention ------------------------------------------------------------------------------- */

static bool all_bf16(const sl_view *views, int count)
{
    for (int i = 0; i < count; i++) {
        if (views[i].meta.dtype != SL_BF16)
            return false;
    }
    return true;
}

bool sl_gpu_mma_fits(const sl_kernel_call *call)
{
    bool backward = call->op == SL_OP_ATTENTION_GRAD, cached = call->op == SL_OP_ATTENTION_CACHED;
    if (sl_dim_from_last(&call->inputs[0].meta, 1) > 256 || !all_bf16(call->inputs, cached ? 5 : backward ? 4 : 3))
        return false;
    return backward ? all_bf16(&call->inputs[5], 1) && all_bf16(call->outputs, 3) : all_bf16(call->outputs, 1);
}

size_t sl_gpu_deltas_bytes(const sl_kernel_call *call)
{
    return (size_t)sl_row_count(&call->inputs[0].meta, 1) * sizeof(double);
}

static size_t kept_bytes(const sl_kernel_call *call)
{
    size_t words = ((size_t)call->inputs[1].meta.shape.dims[1] + 63) / 64;
    bool needed = call->attrs.p > 0 && sl_gpu_mma_fits(call);
    return needed ? (size_t)sl_row_count(&call->inputs[0].meta, 1) * words * sizeof(uint64_t) : 0;
}

/* A [B,T,H,D] tensor that cuDNN and the copy engine can take as it lies. */
static bool lies_well(const sl_view *view)
{
    const sl_meta *meta = &view->meta;
    return meta->dtype == SL_BF16 && meta->strides[3] == 1 && meta->strides[0] % 8 == 0 && meta->strides[1] % 8 == 0 &&
           meta->strides[2] % 8 == 0;
}

/* Attention and gradient of bf16 without dropout, documents, windows and capped scores, whose tensors lie well. */
static bool is_plain_attention(const sl_kernel_call *call)
{
    bool backward = call->op == SL_OP_ATTENTION_GRAD, fits = true;
    if (call->op != SL_OP_ATTENTION && !backward)
        return false;
    const int64_t *q = call->inputs[0].meta.shape.dims, *k = call->inputs[1].meta.shape.dims;
    const sl_view *lse = backward ? &call->inputs[4] : &call->outputs[1];
    const sl_view *documents = sl_call_input(call, backward ? 6 : 3);
    if (!sl_view_is_none(documents) || call->attrs.p > 0 || call->attrs.window > 0 || call->attrs.softcap > 0 ||
        call->accumulate || q[1] != k[1] || q[0] == 0 || q[2] == 0 || k[2] == 0 || lse->meta.dtype != SL_F32)
        return false;
    for (int i = 0; i < 3; i++)
        fits &= lies_well(&call->inputs[i]) && (!backward || lies_well(&call->outputs[i]));
    return fits && lies_well(backward ? &call->inputs[3] : &call->outputs[0]) &&
           (!backward || lies_well(&call->inputs[5]));
}

static bool steps_forward(const sl_view *view)
{
    const sl_meta *meta = &view->meta;
    return meta->strides[0] > 0 && meta->strides[1] > 0 && meta->strides[2] > 0;
}

bool sl_gpu_wgmma_fits(const sl_kernel_call *call)
{
    if (call->op != SL_OP_ATTENTION_GRAD || !is_plain_attention(call))
        return false;
    const int64_t *q = call->inputs[0].meta.shape.dims;
    return call->attrs.scale > 0 && q[1] > 0 && (q[3] == 64 || q[3] == 128) && steps_forward(&call->inputs[0]) &&
           steps_forward(&call->inputs[1]) && steps_forward(&call->inputs[2]) && steps_forward(&call->inputs[5]);
}

size_t sl_gpu_wgmma_scratch(const sl_kernel_call *call)
{
    enum { ROWS = SL_GPU_WGMMA_ROWS };
    const int64_t *q = call->inputs[0].meta.shape.dims, tiles = (q[1] + ROWS - 1) / ROWS;
    int64_t pairs = call->attrs.causal ? tiles * (tiles + 1) / 2 : tiles * tiles;
    return (size_t)(q[0] * q[2]) * ((size_t)(tiles * ROWS) * 2 * sizeof(float) + (size_t)pairs * ROWS * ROWS * 2);
}

size_t sl_gpu_scratch(const sl_kernel_call *call)
{
    const sl_view *in = call->inputs;
    if (sl_op_is_fused(call->op))
        return fused(call);
    switch (call->op) {
    case SL_OP_LINEAR:
    case SL_OP_LINEAR_GRAD_X:
    case SL_OP_LINEAR_GRAD_W:
    case SL_OP_MATMUL:
        return product(call);
    case SL_OP_LAYERNORM_GRAD_W:
    case SL_OP_RMSNORM_GRAD_W:
        return column_sums(sl_row_count(&in[1].meta, 1), 2 * sl_dim_from_last(&in[1].meta, 1));
    case SL_OP_ATTENTION_GRAD:
        return sl_gpu_deltas_bytes(call) + kept_bytes(call);
    case SL_OP_EMBEDDING_GRAD: /* positions by token, and where each token's begin */
        return (size_t)(sl_meta_count(&in[0].meta) + call->outputs[0].meta.shape.dims[0] + 1) * sizeof(int32_t);
    case SL_OP_CROSS_ENTROPY:
        return (size_t)sl_row_count(&in[0].meta, 1) * sizeof(double);
    case SL_OP_CROSS_ENTROPY_GRAD:
        return sizeof(double);
    case SL_OP_SUM_TO:
    case SL_OP_SUM:
    case SL_OP_MEAN:
        return reduction(call);
    case SL_OP_SQUARE_SUM:
        return (size_t)((sl_meta_count(&in[0].meta) + SL_GPU_SQUARE_CHUNK - 1) / SL_GPU_SQUARE_CHUNK) * sizeof(double);
    default:
        return 0;
    }
}

/* ---- cuDNN ----------------------------------------------------------------------------------- */

enum { DNN_OWN_BYTES = 256 }; /* of every workspace of attention, beside what is known of it */

bool sl_gpu_dnn_fits(const sl_kernel_call *call)
{
    if (!is_plain_attention(call))
        return false;
    const int64_t *q = call->inputs[0].meta.shape.dims;
    const sl_view *lse = call->op == SL_OP_ATTENTION_GRAD ? &call->inputs[4] : &call->outputs[1];
    return q[1] >= 64 && q[1] % 8 == 0 && q[3] % 8 == 0 && q[3] > 0 && q[3] <= 128 && sl_meta_is_contiguous(&lse->meta);
}

size_t sl_gpu_dnn_scratch(const sl_kernel_call *call)
{
    if (call->op != SL_OP_ATTENTION_GRAD)
        return SL_GPU_SCRATCH_ALIGNMENT + DNN_OWN_BYTES;
    const int64_t *q = call->inputs[0].meta.shape.dims, groups = call->inputs[1].meta.shape.dims[2];
    size_t rows = (size_t)(q[0] * q[1] * q[2]), bf16 = 2;
    size_t delta = aligned(rows * sizeof(float)), full = groups < q[2] ? aligned(rows * (size_t)q[3] * bf16) : 0;
    return delta + 2 * full + rows * (size_t)q[1] * bf16 + SL_GPU_SCRATCH_ALIGNMENT + DNN_OWN_BYTES;
}
