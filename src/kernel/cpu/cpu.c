/* The cpu's table of kernels: a fast one if it applies, else the reference. */
#include "kernel/cpu/cpu.h"

#include "device/cpu.h"
#include "kernel/cpu/blas.h"
#include "kernel/cpu/isa.h"
#include "kernel/fused.h"
#include "kernel/reference/reference.h"
#include "kernel/table.h"
#include "op/op.h"

#include <math.h>

#include <stdio.h>

static const sl_cpu_kernel *const kernels[SL_OP_COUNT] = {
    [SL_OP_LINEAR] = &sl_cpu_linear,
    [SL_OP_LINEAR_GRAD_X] = &sl_cpu_linear_grad_x,
    [SL_OP_LINEAR_GRAD_W] = &sl_cpu_linear_grad_w,
    [SL_OP_MATMUL] = &sl_cpu_matmul,
    [SL_OP_LAYERNORM] = &sl_cpu_layernorm,
    [SL_OP_LAYERNORM_GRAD_X] = &sl_cpu_norm_grad_x,
    [SL_OP_LAYERNORM_GRAD_W] = &sl_cpu_norm_grad_w,
    [SL_OP_RMSNORM] = &sl_cpu_rmsnorm,
    [SL_OP_RMSNORM_GRAD_X] = &sl_cpu_norm_grad_x,
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
    [SL_OP_COPY] = &sl_cpu_copy_kernel,
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

static bool is_narrow(const sl_view *view)
{
    return sl_view_is_none(view) || view->meta.dtype == SL_F32 || sl_dtype_is_half(view->meta.dtype);
}

bool sl_cpu_is_narrow(const sl_kernel_call *call)
{
    for (int i = 0; i < call->input_count; i++) {
        if (!is_narrow(&call->inputs[i]) && !is_index(&call->inputs[i]))
            return false;
    }
    for (int i = 0; i < call->output_count; i++) {
        if (!is_narrow(&call->outputs[i]))
            return false;
    }
    return true;
}

static bool is_half(const sl_view *view)
{
    return !sl_view_is_none(view) && sl_dtype_is_half(view->meta.dtype);
}

bool sl_cpu_has_halves(const sl_kernel_call *call)
{
    for (int i = 0; i < call->input_count; i++) {
        if (is_half(&call->inputs[i]))
            return true;
    }
    for (int i = 0; i < call->output_count; i++) {
        if (is_half(&call->outputs[i]))
            return true;
    }
    return false;
}

bool sl_cpu_takes_rows(const sl_kernel_call *call, const sl_view *view)
{
    (void)call;
    return view->meta.shape.rank < 1 || sl_dim_from_last(&view->meta, 1) <= 1 ||
           sl_stride_from_last(&view->meta, 1) == 1;
}

/* The fast kernel for the call; NULL if the reference is to run. */
static const sl_cpu_kernel *find(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_cpu_kernel *kernel = kernels[call->op];
    return cpu->simd && kernel && kernel->accepts(call) ? kernel : NULL;
}

static sl_cpu cpu_of(sl_device *device)
{
    return (sl_cpu){ .pool = sl_device_cpu_pool(device), .simd = sl_isa_simd() };
}

/* ---- Tensors that a kernel does not take as they lie ----------------------------------------- */

/* The call with such tensors replaced by contiguous ones in scratch. */
typedef struct packed_call {
    sl_kernel_call call;
    sl_view inputs[SL_OP_INPUTS], outputs[SL_OP_OUTPUTS];
    uint32_t moved_inputs, moved_outputs; /* bits */
    size_t bytes;                         /* that they take at the start of the scratch */
} packed_call;

/* bf16 or f16 that the kernel wants as f32. */
static bool must_widen(const sl_cpu_kernel *kernel, const sl_view *view)
{
    return !kernel->halves && sl_dtype_is_half(view->meta.dtype);
}

static bool must_move(const sl_cpu_kernel *kernel, const sl_kernel_call *call, const sl_view *view)
{
    if (sl_view_is_none(view) || is_index(view) || view->meta.dtype == SL_F64)
        return false;
    return must_widen(kernel, view) || (kernel->takes && !kernel->takes(call, view));
}

/* Gives the view a contiguous place in the scratch. */
static void move(packed_call *packed, const sl_cpu_kernel *kernel, sl_view *view)
{
    sl_dtype dtype = must_widen(kernel, view) ? SL_F32 : view->meta.dtype;
    view->meta = sl_meta_contiguous(dtype, &view->meta.shape);
    view->data = packed->call.scratch ? (char *)packed->call.scratch + packed->bytes : NULL;
    packed->bytes += (sl_meta_bytes(&view->meta) + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
}

static void pack_call(const sl_cpu_kernel *kernel, const sl_kernel_call *call, packed_call *packed)
{
    packed->call = *call;
    packed->moved_inputs = packed->moved_outputs = 0;
    packed->bytes = 0;
    if (!kernel->takes && kernel->halves)
        return; /* CONCAT has any number of inputs */
    for (int i = 0; i < call->input_count; i++) {
        packed->inputs[i] = call->inputs[i];
        if (must_move(kernel, call, &call->inputs[i])) {
            packed->moved_inputs |= 1u << i;
            move(packed, kernel, &packed->inputs[i]);
        }
    }
    for (int i = 0; i < call->output_count; i++) {
        packed->outputs[i] = call->outputs[i];
        if (must_move(kernel, call, &call->outputs[i])) {
            packed->moved_outputs |= 1u << i;
            move(packed, kernel, &packed->outputs[i]);
        }
    }
    packed->call.inputs = packed->inputs;
    packed->call.outputs = packed->outputs;
    if (call->scratch) {
        packed->call.scratch = (char *)call->scratch + packed->bytes;
        packed->call.scratch_bytes = call->scratch_bytes - packed->bytes;
    }
}

static size_t scratch_of(const sl_cpu *cpu, const sl_cpu_kernel *kernel, const packed_call *packed)
{
    return packed->bytes + (kernel->scratch ? kernel->scratch(cpu, &packed->call) : 0);
}

static sl_status run_packed(const sl_cpu *cpu, const sl_cpu_kernel *kernel, const sl_kernel_call *call,
                            const packed_call *packed)
{
    for (int i = 0; i < call->input_count; i++) {
        if (packed->moved_inputs >> i & 1)
            sl_cpu_copy(cpu, &call->inputs[i], &packed->inputs[i], false);
    }
    for (int i = 0; i < call->output_count; i++) {
        if ((packed->moved_outputs & call->accumulate) >> i & 1)
            sl_cpu_copy(cpu, &call->outputs[i], &packed->outputs[i], false);
    }
    sl_status status = kernel->run(cpu, &packed->call);
    for (int i = 0; status == SL_OK && i < call->output_count; i++) {
        if (packed->moved_outputs >> i & 1)
            sl_cpu_copy(cpu, &packed->outputs[i], &call->outputs[i], false);
    }
    for (int i = 0; status == SL_OK && i < call->input_count; i++) {
        if ((packed->moved_inputs >> i & 1) && (sl_op_get_info(call->op)->inputs[i].flags & SL_ARG_WRITTEN))
            sl_cpu_copy(cpu, &packed->inputs[i], &call->inputs[i], false);
    }
    return status;
}

/* ---- The table ------------------------------------------------------------------------------- */

/* With what changes from step to step in the call itself. */
static sl_kernel_call with_step(const sl_kernel_call *call)
{
    sl_kernel_call own = *call;
    if (call->step_rng) {
        own.rng.seed = call->step_rng->seed;
        own.rng.step = call->step_rng->step;
        own.rng.sample_offset += call->step_rng->sample_offset;
    }
    if (call->numbers) {
        own.attrs.optim.lr = call->numbers->lr;
        own.attrs.optim.grad_scale = call->numbers->grad_scale;
        own.attrs.optim.t = call->numbers->t;
    }
    own.step_rng = NULL;
    own.numbers = NULL;
    return own;
}

static sl_status cpu_run(sl_stream *stream, const sl_kernel_call *call);

/* A fused op is run as what it stands for. */
static sl_status run_parts(sl_stream *stream, const sl_fused_part *parts, int count)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++)
        SL_TRY(cpu_run(stream, &parts[i].call));
done:
    return status;
}

static sl_status cpu_run(sl_stream *stream, const sl_kernel_call *call)
{
    sl_fused_part parts[SL_FUSED_PARTS];
    if (sl_op_is_fused(call->op))
        return run_parts(stream, parts, sl_fused_parts(call, parts));
    sl_cpu cpu = cpu_of(sl_stream_device(stream));
    const sl_cpu_kernel *kernel = find(&cpu, call);
    packed_call packed;
    if (kernel)
        pack_call(kernel, call, &packed);
    size_t needed = kernel ? scratch_of(&cpu, kernel, &packed) : sl_reference_scratch(call);
    if (call->scratch_bytes < needed)
        return sl_fail(SL_ERR_ARGUMENT, "%s: needs %zu bytes of scratch, given %zu", sl_op_name(call->op), needed,
                       call->scratch_bytes);
    sl_status status = sl_blas_reserve(sl_pool_threads(cpu.pool));
    if (status != SL_OK)
        return status;
    return kernel ? run_packed(&cpu, kernel, call, &packed) : sl_reference_get(call->op)(call);
}

static sl_status cpu_run_call(sl_stream *stream, const sl_kernel_call *call)
{
    if (!call->step_rng && !call->numbers)
        return cpu_run(stream, call);
    if (call->numbers && isnan(call->numbers->grad_scale))
        return SL_OK;
    const sl_kernel_call own = with_step(call);
    return cpu_run(stream, &own);
}

static sl_status cpu_run_many(sl_stream *stream, const sl_kernel_call *calls, int count)
{
    sl_status status = SL_OK;
    sl_cpu cpu = cpu_of(sl_stream_device(stream));
    if (cpu.simd && sl_cpu_square_sums(&cpu, calls, count))
        return SL_OK;
    for (int i = 0; i < count; i++)
        SL_TRY(cpu_run_call(stream, &calls[i]));
done:
    return status;
}

static size_t plain_scratch(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_cpu_kernel *kernel = find(cpu, call);
    packed_call packed;
    if (kernel)
        pack_call(kernel, call, &packed);
    return kernel ? scratch_of(cpu, kernel, &packed) : sl_reference_scratch(call);
}

static size_t scratch_of_call(sl_device *device, const sl_kernel_call *call)
{
    sl_cpu cpu = cpu_of(device);
    sl_fused_part parts[SL_FUSED_PARTS];
    size_t most = sl_op_is_fused(call->op) ? 0 : plain_scratch(&cpu, call);
    for (int i = 0, count = sl_fused_parts(call, parts); i < count; i++) {
        size_t part = plain_scratch(&cpu, &parts[i].call);
        most = part > most ? part : most;
    }
    return most;
}

/* A weight that the kernel would have to copy first is not packed beforehand. */
static size_t packed_bytes_of_call(sl_device *device, const sl_kernel_call *call)
{
    sl_cpu cpu = cpu_of(device);
    const sl_cpu_kernel *kernel = find(&cpu, call);
    if (!kernel || !kernel->packed_bytes || must_move(kernel, call, sl_call_input(call, 1)))
        return 0;
    return kernel->packed_bytes(call);
}

/* With the instruction set of this machine; of a processor that is not here with the one that needs most. */
static size_t most_bytes(sl_device *device, const sl_kernel_call *call,
                         size_t (*bytes_of)(sl_device *device, const sl_kernel_call *call))
{
    size_t most = 0;
    if (!sl_device_cpu_is_any(device))
        return bytes_of(device, call);
    for (int isa = SL_ISA_SCALAR; isa < SL_ISA_COUNT; isa++) {
        sl_isa_ask_for((sl_isa)isa);
        size_t bytes = sl_isa_simd() ? bytes_of(device, call) : 0;
        most = bytes > most ? bytes : most;
    }
    sl_isa_ask_for(SL_ISA_COUNT);
    return most;
}

static sl_status cpu_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    *bytes = most_bytes(device, call, scratch_of_call);
    return SL_OK;
}

static size_t cpu_packed_bytes(sl_device *device, const sl_kernel_call *call)
{
    return most_bytes(device, call, packed_bytes_of_call);
}

static sl_status cpu_pack(sl_stream *stream, const sl_kernel_call *call, void *to)
{
    sl_cpu cpu = cpu_of(sl_stream_device(stream));
    const sl_cpu_kernel *kernel = find(&cpu, call);
    if (!kernel || !kernel->pack)
        return sl_fail(SL_ERR_ARGUMENT, "%s: there is no weight to pack", sl_op_name(call->op));
    kernel->pack(&cpu, call, to);
    return SL_OK;
}

static char *cpu_describe(sl_device *device, char *text, size_t size)
{
    int threads = sl_device_threads(device);
    snprintf(text, size, "cpu: %s, %s%s, %d thread%s", sl_isa_name(sl_isa_get()), sl_blas_name(),
             sl_cpu_products_beat_fma(SL_F32) ? " (f32 in three parts of bf16)" : "", threads, threads == 1 ? "" : "s");
    return text;
}

const sl_kernel_table sl_kernels_cpu = {
    .kind = SL_DEVICE_CPU,
    .run = cpu_run_call,
    .run_many = cpu_run_many,
    .scratch = cpu_scratch,
    .packed_bytes = cpu_packed_bytes,
    .pack = cpu_pack,
    .describe = cpu_describe,
    .measure_peak = sl_cpu_measure_peak,
    .measure_product_peak = sl_cpu_measure_product_peak,
};
