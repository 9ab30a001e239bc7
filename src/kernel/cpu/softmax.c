/* Softmax over rows, and cross entropy fused with it: the probabilities never exist as a tensor. */
#include "kernel/cpu/cpu.h"

typedef struct softmax_job {
    const sl_simd *simd;
    sl_rows x, second, y;
    sl_rows lse;
    const sl_view *targets;
    int64_t rows, size, ignore;
    float weight; /* dloss over the number of counted targets */
    bool add;
} softmax_job;

static int64_t grain(const softmax_job *j)
{
    return SL_GRAIN / (j->size + 1) + 1;
}

static softmax_job row_job(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0);
    return (softmax_job){ .simd = cpu->simd,
                          .x = sl_rows_of(x, 1),
                          .rows = sl_row_count(&x->meta, 1),
                          .size = sl_dim_from_last(&x->meta, 1),
                          .add = sl_call_accumulates(call, 0) };
}

static void softmax_range(void *context, int64_t begin, int64_t end)
{
    const softmax_job *j = context;
    for (int64_t row = begin; row < end; row++)
        j->simd->softmax(sl_rows_at(&j->x, row), sl_rows_at(&j->y, row), j->size, j->add);
}

static sl_status run_softmax(const sl_cpu *cpu, const sl_kernel_call *call)
{
    softmax_job j = row_job(cpu, call);
    j.y = sl_rows_of(sl_call_output(call, 0), 1);
    sl_cpu_split(cpu, j.rows, grain(&j), softmax_range, &j);
    return SL_OK;
}

static void softmax_grad_range(void *context, int64_t begin, int64_t end)
{
    const softmax_job *j = context;
    for (int64_t row = begin; row < end; row++)
        j->simd->softmax_grad(sl_rows_at(&j->x, row), sl_rows_at(&j->second, row), sl_rows_at(&j->y, row), j->size,
                              j->add);
}

static sl_status run_softmax_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    softmax_job j = row_job(cpu, call);
    j.second = sl_rows_of(sl_call_input(call, 1), 1);
    j.y = sl_rows_of(sl_call_output(call, 0), 1);
    sl_cpu_split(cpu, j.rows, grain(&j), softmax_grad_range, &j);
    return SL_OK;
}

/* ---- Cross entropy --------------------------------------------------------------------------- */

static int64_t target_at(const sl_view *targets, int64_t row)
{
    int64_t offset = sl_row_offset(&targets->meta, row, 0);
    return targets->meta.dtype == SL_I32 ? ((const int32_t *)targets->data)[offset]
                                         : ((const int64_t *)targets->data)[offset];
}

static void log_sum_exp_range(void *context, int64_t begin, int64_t end)
{
    const softmax_job *j = context;
    for (int64_t row = begin; row < end; row++)
        *sl_rows_at(&j->lse, row) = j->simd->log_sum_exp(sl_rows_at(&j->x, row), j->size);
}

/* The mean is taken in row order whatever the number of threads. */
static sl_status run_cross_entropy(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *targets = sl_call_input(call, 1);
    softmax_job j = row_job(cpu, call);
    int64_t counted = 0;
    double total = 0;
    j.lse = sl_rows_of(sl_call_output(call, 1), 0);
    sl_cpu_split(cpu, j.rows, grain(&j), log_sum_exp_range, &j);
    for (int64_t row = 0; row < j.rows; row++) {
        int64_t target = target_at(targets, row);
        if (target == call->attrs.ignore_index)
            continue;
        if (target < 0 || target >= j.size)
            return sl_fail(SL_ERR_ARGUMENT, "cross_entropy: target %lld at element %lld is not in 0..%lld",
                           (long long)target, (long long)row, (long long)j.size - 1);
        total += (double)*sl_rows_at(&j.lse, row) - (double)sl_rows_at(&j.x, row)[target];
        counted++;
    }
    *(float *)sl_call_output(call, 0)->data = counted ? (float)(total / (double)counted) : 0;
    return SL_OK;
}

/* dlogits may lie on the logits: a row's target is corrected after the row has been written. */
static void cross_entropy_grad_range(void *context, int64_t begin, int64_t end)
{
    const softmax_job *j = context;
    for (int64_t row = begin; row < end; row++) {
        int64_t target = target_at(j->targets, row);
        float *dx = sl_rows_at(&j->y, row);
        if (target == j->ignore) {
            j->simd->fill(dx, 0, j->size, j->add);
            continue;
        }
        j->simd->scaled_exp(sl_rows_at(&j->x, row), *sl_rows_at(&j->lse, row), j->weight, dx, j->size, j->add);
        if (target >= 0 && target < j->size)
            dx[target] -= j->weight;
    }
}

static sl_status run_cross_entropy_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    softmax_job j = row_job(cpu, call);
    int64_t counted = 0;
    j.targets = sl_call_input(call, 1);
    j.ignore = call->attrs.ignore_index;
    j.lse = sl_rows_of(sl_call_input(call, 2), 0);
    j.y = sl_rows_of(sl_call_output(call, 0), 1);
    for (int64_t row = 0; row < j.rows; row++)
        counted += target_at(j.targets, row) != j.ignore;
    j.weight = *(const float *)sl_call_input(call, 3)->data / (float)(counted ? counted : 1);
    sl_cpu_split(cpu, j.rows, grain(&j), cross_entropy_grad_range, &j);
    return SL_OK;
}

const sl_cpu_kernel sl_cpu_softmax = { .accepts = sl_cpu_is_f32, .run = run_softmax, .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_softmax_grad = { .accepts = sl_cpu_is_f32,
                                            .run = run_softmax_grad,
                                            .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_cross_entropy = { .accepts = sl_cpu_is_f32,
                                             .run = run_cross_entropy,
                                             .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_cross_entropy_grad = { .accepts = sl_cpu_is_f32,
                                                  .run = run_cross_entropy_grad,
                                                  .takes = sl_cpu_takes_rows };
