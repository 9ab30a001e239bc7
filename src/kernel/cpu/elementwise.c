/* Elementwise ops and optimizer updates: loops of the instruction set over strided tensors. */
#include "kernel/cpu/cpu.h"

#include <math.h>
#include <string.h>

typedef struct elementwise_job {
    const sl_simd *simd;
    const sl_kernel_call *call;
    uint32_t add;
    bool has_second; /* the optional argument is there */
    int copy;        /* the argument of the loop that gets the new parameter; 0: none */
    sl_adamw_factors adamw;
    sl_sgd_factors sgd;
} elementwise_job;

/* All inputs, then all outputs, as arguments of one loop. */
static void run_loop(const sl_cpu *cpu, const sl_kernel_call *call, bool updates, sl_loop_body body, sl_loop_bf16 bf16,
                     elementwise_job *j)
{
    sl_loop loop;
    j->simd = cpu->simd;
    j->call = call;
    j->add = call->accumulate;
    sl_loop_start(&loop, &call->outputs[0].meta.shape);
    for (int i = 0; i < call->input_count; i++)
        sl_loop_add(&loop, &call->inputs[i], SL_LOOP_READ);
    for (int i = 0; i < call->output_count; i++) {
        if (!sl_view_is_none(&call->outputs[i]))
            sl_loop_add(&loop, &call->outputs[i],
                        updates || sl_call_accumulates(call, i) ? SL_LOOP_UPDATE : SL_LOOP_WRITE);
    }
    sl_loop_run(cpu, &loop, body, bf16, j);
}

static void unary_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const elementwise_job *j = context;
    const sl_op_attrs *attrs = &j->call->attrs;
    bool two = j->call->input_count > 1;
    (void)first;
    j->simd->unary(j->call->op, (float)attrs->alpha, (float)attrs->beta, args[0], two ? args[1] : NULL,
                   args[two ? 2 : 1], n, j->add & 1);
}

static void unary_bf16(const void *context, uint16_t *const *args, int64_t n)
{
    const elementwise_job *j = context;
    const sl_op_attrs *attrs = &j->call->attrs;
    bool two = j->call->input_count > 1;
    j->simd->unary_bf16(j->call->op, (float)attrs->alpha, (float)attrs->beta, args[0], two ? args[1] : NULL,
                        args[two ? 2 : 1], n, j->add & 1);
}

static sl_status run_unary(const sl_cpu *cpu, const sl_kernel_call *call)
{
    elementwise_job j = { 0 };
    run_loop(cpu, call, false, unary_body, call->op == SL_OP_LOG ? NULL : unary_bf16, &j);
    return SL_OK;
}

static void binary_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const elementwise_job *j = context;
    (void)first;
    j->simd->binary(j->call->op, args[0], args[1], args[2], n, j->add & 1);
}

static void binary_bf16(const void *context, uint16_t *const *args, int64_t n)
{
    const elementwise_job *j = context;
    j->simd->binary_bf16(j->call->op, args[0], args[1], args[2], n, j->add & 1);
}

static sl_status run_binary(const sl_cpu *cpu, const sl_kernel_call *call)
{
    elementwise_job j = { 0 };
    run_loop(cpu, call, false, binary_body, binary_bf16, &j);
    return SL_OK;
}

static void swiglu_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const elementwise_job *j = context;
    (void)first;
    j->simd->swiglu(args[0], args[1], args[2], n, j->add & 1);
}

static void swiglu_bf16(const void *context, uint16_t *const *args, int64_t n)
{
    const elementwise_job *j = context;
    j->simd->swiglu_bf16(args[0], args[1], args[2], n, j->add & 1);
}

static sl_status run_swiglu(const sl_cpu *cpu, const sl_kernel_call *call)
{
    elementwise_job j = { 0 };
    run_loop(cpu, call, false, swiglu_body, swiglu_bf16, &j);
    return SL_OK;
}

static void swiglu_grad_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const elementwise_job *j = context;
    (void)first;
    j->simd->swiglu_grad(args[0], args[1], args[2], args[3], j->has_second ? args[4] : NULL, n, j->add);
}

static void swiglu_grad_bf16(const void *context, uint16_t *const *args, int64_t n)
{
    const elementwise_job *j = context;
    j->simd->swiglu_grad_bf16(args[0], args[1], args[2], args[3], j->has_second ? args[4] : NULL, n, j->add);
}

static sl_status run_swiglu_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    elementwise_job j = { .has_second = !sl_view_is_none(sl_call_output(call, 1)) };
    run_loop(cpu, call, false, swiglu_grad_body, swiglu_grad_bf16, &j);
    return SL_OK;
}

/* ---- Optimizers ------------------------------------------------------------------------------ */

static void adamw_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const elementwise_job *j = context;
    (void)first;
    j->simd->adamw(&j->adamw, args[0], args[1], args[2], args[3], n);
    if (j->copy)
        memcpy(args[j->copy], args[1], (size_t)n * sizeof(float));
}

static sl_status run_adamw(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_optim_attrs *o = &call->attrs.optim;
    elementwise_job j = { .copy = sl_view_is_none(sl_call_output(call, 3)) ? 0 : 4,
                          .adamw = { .grad_scale = (float)o->grad_scale,
                                     .beta1 = (float)o->beta1,
                                     .beta2 = (float)o->beta2,
                                     .rest1 = (float)(1 - o->beta1),
                                     .rest2 = (float)(1 - o->beta2),
                                     .decay = (float)(1 - o->lr * o->weight_decay),
                                     .step = (float)(o->lr / (1 - pow(o->beta1, (double)o->t))),
                                     .root = (float)(1 / (1 - pow(o->beta2, (double)o->t))),
                                     .eps = (float)o->eps } };
    run_loop(cpu, call, true, adamw_body, NULL, &j);
    return SL_OK;
}

static void sgd_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const elementwise_job *j = context;
    (void)first;
    j->simd->sgd(&j->sgd, args[0], args[1], j->has_second ? args[2] : NULL, n);
    if (j->copy)
        memcpy(args[j->copy], args[1], (size_t)n * sizeof(float));
}

static sl_status run_sgd(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_optim_attrs *o = &call->attrs.optim;
    bool momentum = !sl_view_is_none(sl_call_output(call, 1));
    elementwise_job j = { .has_second = momentum,
                          .copy = sl_view_is_none(sl_call_output(call, 2)) ? 0
                                  : momentum                               ? 3
                                                                           : 2,
                          .sgd = { .grad_scale = (float)o->grad_scale,
                                   .lr = (float)o->lr,
                                   .momentum = (float)o->momentum,
                                   .weight_decay = (float)o->weight_decay } };
    run_loop(cpu, call, true, sgd_body, NULL, &j);
    return SL_OK;
}

const sl_cpu_kernel sl_cpu_unary = { .accepts = sl_cpu_is_narrow, .run = run_unary, .halves = true };
const sl_cpu_kernel sl_cpu_binary = { .accepts = sl_cpu_is_narrow, .run = run_binary, .halves = true };
const sl_cpu_kernel sl_cpu_swiglu = { .accepts = sl_cpu_is_narrow, .run = run_swiglu, .halves = true };
const sl_cpu_kernel sl_cpu_swiglu_grad = { .accepts = sl_cpu_is_narrow, .run = run_swiglu_grad, .halves = true };
const sl_cpu_kernel sl_cpu_adamw = { .accepts = sl_cpu_is_narrow, .run = run_adamw, .halves = true };
const sl_cpu_kernel sl_cpu_sgd = { .accepts = sl_cpu_is_narrow, .run = run_sgd, .halves = true };
