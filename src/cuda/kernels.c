/* The kernels of a GPU by op. */
#include "cuda/device.h"

#include "kernel/fused.h"
#include "kernel/gpu_scratch.h"

#include <stdio.h>

static const cuda_kernel kernels[SL_OP_COUNT] = {
    [SL_OP_LINEAR] = cuda_product,
    [SL_OP_LINEAR_GRAD_X] = cuda_product,
    [SL_OP_LINEAR_GRAD_W] = cuda_product,
    [SL_OP_MATMUL] = cuda_product,
    [SL_OP_LAYERNORM] = cuda_norm,
    [SL_OP_LAYERNORM_GRAD_X] = cuda_norm_grad_x,
    [SL_OP_LAYERNORM_GRAD_W] = cuda_norm_grad_w,
    [SL_OP_RMSNORM] = cuda_norm,
    [SL_OP_RMSNORM_GRAD_X] = cuda_norm_grad_x,
    [SL_OP_RMSNORM_GRAD_W] = cuda_norm_grad_w,
    [SL_OP_SOFTMAX] = cuda_softmax,
    [SL_OP_SOFTMAX_GRAD] = cuda_softmax,
    [SL_OP_ATTENTION] = cuda_attention,
    [SL_OP_ATTENTION_GRAD] = cuda_attention_grad,
    [SL_OP_ATTENTION_CACHED] = cuda_attention_cached,
    [SL_OP_ROPE] = cuda_rope_eights,
    [SL_OP_EMBEDDING] = cuda_embedding,
    [SL_OP_EMBEDDING_GRAD] = cuda_embedding_grad,
    [SL_OP_CROSS_ENTROPY] = cuda_cross_entropy,
    [SL_OP_CROSS_ENTROPY_GRAD] = cuda_cross_entropy_grad,
    [SL_OP_SUM_TO] = cuda_reduce,
    [SL_OP_SUM] = cuda_reduce,
    [SL_OP_MEAN] = cuda_reduce,
    [SL_OP_MAX] = cuda_reduce,
    [SL_OP_MAX_GRAD] = cuda_max_grad,
    [SL_OP_CONCAT] = cuda_copy,
    [SL_OP_COPY] = cuda_copy,
    [SL_OP_FILL] = cuda_copy,
    [SL_OP_CAST] = cuda_copy,
    [SL_OP_DROPOUT] = cuda_dropout,
    [SL_OP_ADAMW] = cuda_optim,
    [SL_OP_SGD] = cuda_optim,
    [SL_OP_CLIP] = cuda_clip,
    [SL_OP_SQUARE_SUM] = cuda_square_sum,
};

static cuda_run run_of(sl_stream *stream, const sl_kernel_call *call)
{
    cuda_device *device = (cuda_device *)stream->device;
    return (cuda_run){
        .stream = ((cuda_stream *)stream)->stream,
        .call = call,
        .reporter = { .fault = device->fault, .lock = device->fault_lock, .op = (int32_t)call->op, .node = call->node },
        .multiprocessors = device->properties.multiProcessorCount,
        .blas = device->blas,
        .dnn = device->dnn,
        .device = device
    };
}

typedef sl_status (*cuda_fused_kernel)(const cuda_run *run, bool *is_done);

static const cuda_fused_kernel fused_kernels[SL_OP_COUNT] = {
    [SL_OP_ADD_LAYERNORM] = cuda_add_norm,           [SL_OP_ADD_RMSNORM] = cuda_add_norm,
    [SL_OP_LAYERNORM_GRAD] = cuda_norm_grad,         [SL_OP_RMSNORM_GRAD] = cuda_norm_grad,
    [SL_OP_GELU_TANH_GRAD_SUM] = cuda_gelu_grad_sum, [SL_OP_ROPE_PAIR] = cuda_rope_pair,
};

static sl_status cuda_run_call(sl_stream *stream, const sl_kernel_call *call);

static sl_status run_fused(sl_stream *stream, const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    sl_fused_part parts[SL_FUSED_PARTS];
    const cuda_run run = run_of(stream, call);
    bool is_done = false;
    SL_TRY(cuda_select((const cuda_device *)stream->device));
    SL_TRY(fused_kernels[call->op](&run, &is_done));
    for (int i = 0, count = is_done ? 0 : sl_fused_parts(call, parts); i < count; i++)
        SL_TRY(cuda_run_call(stream, &parts[i].call));
done:
    return status;
}

/* Whether the kernels of attention_wgmma.cu do a call, here. */
static bool is_for_wgmma(const cuda_device *device, const sl_kernel_call *call)
{
    return CUDA_HAS_SM90A && device->properties.major == 9 && device->properties.minor == 0 && sl_gpu_wgmma_fits(call);
}

static sl_status cuda_run_call(sl_stream *stream, const sl_kernel_call *call)
{
    sl_status status = SL_OK;
    const cuda_device *device = (const cuda_device *)stream->device;
    const cuda_run run = run_of(stream, call);
    bool is_done = false;
    if (sl_op_is_fused(call->op))
        return run_fused(stream, call);
    SL_TRY(cuda_select(device));
    if (is_for_wgmma(device, call))
        SL_TRY(cuda_attention_grad_wgmma(&run, &is_done));
    else if (call->op == SL_OP_ATTENTION || call->op == SL_OP_ATTENTION_GRAD)
        SL_TRY(cuda_dnn_attention(&run, &is_done));
    if (!is_done)
        SL_TRY((kernels[call->op] ? kernels[call->op] : cuda_elementwise)(&run));
done:
    return status;
}

static sl_status cuda_run_calls(sl_stream *stream, const sl_kernel_call *calls, int count)
{
    sl_status status = SL_OK;
    SL_TRY(cuda_select((const cuda_device *)stream->device));
    for (int i = 0, taken = 0; i < count; i += taken) {
        const cuda_run run = run_of(stream, &calls[i]);
        taken = 0;
        if (calls[i].op == SL_OP_ADAMW)
            SL_TRY(cuda_adamw_many(&run, &calls[i], count - i, &taken));
        else if (calls[i].op == SL_OP_SQUARE_SUM)
            SL_TRY(cuda_square_sum_many(&run, &calls[i], count - i, &taken));
        if (taken == 0) {
            SL_TRY(cuda_run_call(stream, &calls[i]));
            taken = 1;
        }
    }
done:
    return status;
}

/* Asked for while a program is planned: plans of cuDNN are compiled and algorithms of products chosen here. */
static sl_status cuda_call_scratch(sl_device *head, const sl_kernel_call *call, size_t *bytes)
{
    sl_status status = SL_OK;
    const cuda_device *device = (const cuda_device *)head;
    SL_TRY(cuda_select(device));
    if (kernels[call->op] == cuda_product)
        SL_TRY(cuda_product_prepare(device->blas, call));
    size_t plain = sl_gpu_scratch(call);
    size_t fast = is_for_wgmma(device, call) ? sl_gpu_wgmma_scratch(call) : cuda_dnn_scratch(device->dnn, call);
    *bytes = fast > plain ? fast : plain;
done:
    return status;
}

static char *cuda_describe(sl_device *head, char *text, size_t size)
{
    const cuda_device *device = (const cuda_device *)head;
    char blas[32], dnn[32];
    int mps = 0;
    (void)cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device->index);
    snprintf(text, size, "%s: %s, %d multiprocessors, %.1f GiB, %s, %s%s", head->name, device->properties.name,
             device->properties.multiProcessorCount, (double)device->properties.totalGlobalMem / (1 << 30),
             cuda_blas_version(blas, sizeof blas), cuda_dnn_version(device->dnn, dnn, sizeof dnn), mps ? ", MPS" : "");
    return text;
}

/* Of f32: two operations a clock in each of 128 (64 on the A100) units of every multiprocessor. */
static double cuda_measure_peak(sl_device *head)
{
    const cuda_device *device = (const cuda_device *)head;
    int kilohertz = 0, units = device->properties.major == 8 && device->properties.minor == 0 ? 64 : 128;
    (void)cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device->index);
    return 2.0 * units * device->properties.multiProcessorCount * kilohertz * 1e3;
}

/* Dense products of bf16 in the matrix units, by the data sheets: operations a clock and multiprocessor. */
static double cuda_measure_product_peak(sl_device *head, sl_dtype dtype)
{
    const cuda_device *device = (const cuda_device *)head;
    int capability = device->properties.major * 10 + device->properties.minor;
    if (dtype == SL_F32 || dtype == SL_F64)
        return cuda_measure_peak(head);
    if (capability == 90)
        return 4096 * 1.83e9 * device->properties.multiProcessorCount; /* the boost clock of the H100 and the H200 */
    return capability == 80 ? 2048 * 1.41e9 * device->properties.multiProcessorCount : 0;
}

const sl_kernel_table cuda_kernels = {
    .kind = SL_DEVICE_CUDA,
    .run = cuda_run_call,
    .run_many = cuda_run_calls,
    .scratch = cuda_call_scratch,
    .describe = cuda_describe,
    .measure_peak = cuda_measure_peak,
    .measure_product_peak = cuda_measure_product_peak,
};
