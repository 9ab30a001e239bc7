/* The cpu's table of kernels: a fast one where it applies, else the reference. */
#include "kernel/cpu/cpu.h"

#include "device/cpu.h"
#include "kernel/cpu/blas.h"
#include "kernel/cpu/isa.h"
#include "kernel/reference/reference.h"
#include "kernel/table.h"

#include <stdio.h>

static const sl_cpu_kernel *const kernels[SL_OP_COUNT] = {
    [SL_OP_LINEAR] = &sl_cpu_linear,
    [SL_OP_LINEAR_GRAD_X] = &sl_cpu_linear_grad_x,
    [SL_OP_LINEAR_GRAD_W] = &sl_cpu_linear_grad_w,
    [SL_OP_MATMUL] = &sl_cpu_matmul,
    [SL_OP_LAYERNORM] = &sl_cpu_layernorm,
    [SL_OP_LAYERNORM_GRAD_X] = &sl_cpu_layernorm_grad_x,
    [SL_OP_LAYERNORM_GRAD_W] = &sl_cpu_norm_grad_w,
    [SL_OP_RMSNORM] = &sl_cpu_rmsnorm,
    [SL_OP_RMSNORM_GRAD_X] = &sl_cpu_rmsnorm_grad_x,
    [SL_OP_RMSNORM_GRAD_W] = &sl_cpu_norm_grad_w,
    [SL_OP_GELU_TANH] = &sl_cpu_unary,
    [SL_OP_GELU_TANH_GRAD] = &sl_cpu_unary,
    [SL_OP_GELU_ERF] = &sl_cpu_unary,
    [SL_OP_GELU_ERF_GRAD] = &sl_cpu_unary,
    [SL_OP_SILU] = &sl_cpu_unary,
    [SL_OP_SILU_GRAD] = &sl_cpu_unary,
    [SL_OP_RELU] = &sl_cpu_unary,
    [SL_OP_RELU_GRAD] = &sl_cpu_unary,
    [SL_OP_TANH] = &sl_cpu_unary,
    [SL_OP_TANH_GRAD] = &sl_cpu_unary,
    [SL_OP_EXP] = &sl_cpu_unary,
    [SL_OP_LOG] = &sl_cpu_unary,
    [SL_OP_NEG] = &sl_cpu_unary,
    [SL_OP_SCALE] = &sl_cpu_unary,
    [SL_OP_SWIGLU] = &sl_cpu_swiglu,
    [SL_OP_SWIGLU_GRAD] = &sl_cpu_swiglu_grad,
    [SL_OP_SOFTMAX] = &sl_cpu_softmax,
    [SL_OP_SOFTMAX_GRAD] = &sl_cpu_softmax_grad,
    [SL_OP_ATTENTION] = &sl_cpu_attention,
    [SL_OP_ATTENTION_GRAD] = &sl_cpu_attention_grad,
    [SL_OP_ATTENTION_CACHED] = &sl_cpu_attention_cached,
    [SL_OP_ROPE] = &sl_cpu_rope,
    [SL_OP_EMBEDDING] = &sl_cpu_embedding,
    [SL_OP_EMBEDDING_GRAD] = &sl_cpu_embedding_grad,
    [SL_OP_CROSS_ENTROPY] = &sl_cpu_cross_entropy,
    [SL_OP_CROSS_ENTROPY_GRAD] = &sl_cpu_cross_entropy_grad,
    [SL_OP_ADD] = &sl_cpu_binary,
    [SL_OP_SUB] = &sl_cpu_binary,
    [SL_OP_MUL] = &sl_cpu_binary,
    [SL_OP_DIV] = &sl_cpu_binary,
    [SL_OP_SUM_TO] = &sl_cpu_sum,
    [SL_OP_SUM] = &sl_cpu_sum,
    [SL_OP_MEAN] = &sl_cpu_sum,
    [SL_OP_MAX] = &sl_cpu_max,
    [SL_OP_CONCAT] = &sl_cpu_concat,
    [SL_OP_COPY] = &sl_cpu_copy,
    [SL_OP_FILL] = &sl_cpu_fill,
    [SL_OP_CAST] = &sl_cpu_cast,
    [SL_OP_DROPOUT] = &sl_cpu_dropout,
    [SL_OP_ADAMW] = &sl_cpu_adamw,
    [SL_OP_SGD] = &sl_cpu_sgd,
    [SL_OP_SQUARE_SUM] = &sl_cpu_square_sum,
};

static bool is_index(const sl_view *view)
{
    return view->meta.dtype == SL_I32 || view->meta.dtype == SL_I64;
}

bool sl_cpu_is_f32(const sl_kernel_call *call)
{
    for (int i = 0; i < call->input_count; i++) {
        const sl_view *view = &call->inputs[i];
        if (!sl_view_is_none(view) && view->meta.dtype != SL_F32 && !is_index(view))
            return false;
    }
    for (int i = 0; i < call->output_count; i++) {
        if (!sl_view_is_none(&call->outputs[i]) && call->outputs[i].meta.dtype != SL_F32)
            return false;
    }
    return true;
}

static bool has_row(const sl_view *view)
{
    return view->meta.shape.rank < 1 || is_index(view) || sl_dim_from_last(&view->meta, 1) <= 1 ||
           sl_stride_from_last(&view->meta, 1) == 1;
}

bool sl_cpu_has_rows(const sl_kernel_call *call)
{
    bool rows = sl_cpu_is_f32(call);
    for (int i = 0; rows && i < call->input_count; i++)
        rows = has_row(&call->inputs[i]);
    for (int i = 0; rows && i < call->output_count; i++)
        rows = has_row(&call->outputs[i]);
    return rows;
}

/* The fast kernel for the call; NULL where the reference is to run. */
static const sl_cpu_kernel *find(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_cpu_kernel *kernel = kernels[call->op];
    return cpu->simd && kernel && kernel->accepts(call) ? kernel : NULL;
}

static sl_cpu cpu_of(sl_device *device)
{
    return (sl_cpu){ .pool = sl_device_cpu_pool(device), .simd = sl_isa_simd() };
}

static sl_status cpu_run(sl_stream *stream, const sl_kernel_call *call)
{
    sl_cpu cpu = cpu_of(sl_stream_device(stream));
    const sl_cpu_kernel *kernel = find(&cpu, call);
    if (!kernel)
        return sl_reference_get(call->op)(call);
    if (kernel->scratch && call->scratch_bytes < kernel->scratch(&cpu, call))
        return sl_fail(SL_ERR_ARGUMENT, "%s: needs %zu bytes of scratch, given %zu", sl_op_get_info(call->op)->name,
                       kernel->scratch(&cpu, call), call->scratch_bytes);
    return kernel->run(&cpu, call);
}

static sl_status cpu_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    sl_cpu cpu = cpu_of(device);
    const sl_cpu_kernel *kernel = find(&cpu, call);
    *bytes = kernel && kernel->scratch ? kernel->scratch(&cpu, call) : 0;
    return SL_OK;
}

static char *cpu_describe(sl_device *device, char *text, size_t size)
{
    int threads = sl_device_threads(device);
    snprintf(text, size, "cpu: %s, %s, %d thread%s", sl_isa_name(sl_isa_get()), sl_blas_name(), threads,
             threads == 1 ? "" : "s");
    return text;
}

const sl_kernel_table sl_kernels_cpu = {
    .kind = SL_DEVICE_CPU,
    .run = cpu_run,
    .scratch = cpu_scratch,
    .describe = cpu_describe,
};
