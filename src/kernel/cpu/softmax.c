/* Softmax over rows, and cross entropy fused with it: the probabilities never exist as a tensor. */
#include "kernel/cpu/cpu.h"

#include <math.h>

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

/* Rows are long: they are taken in blocks, which come from memory once (and are widened if they are not f32). */
enum { BLOCK = 1024 };

/* With a running maximum: while the numbers of a block are summed the next are on their way. */
static float log_sum_exp(const softmax_job *j, int64_t row)
{
    float buffer[BLOCK], max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < j->size; i += BLOCK) {
        int64_t count = j->size - i < BLOCK ? j->size - i : BLOCK;
        j->simd->add_exp(sl_rows_read(j->simd, &j->x, row, i, count, buffer), count, &max, &sum);
    }
    return max == -INFINITY ? max : max + logf(sum);
}

static void log_sum_exp_range(void *context, int64_t begin, int64_t end)
{
    const softmax_job *j = context;
    for (int64_t row = begin; row < end; row++)
        *sl_rows_at(&j->lse, row) = log_sum_exp(j, row);
}

static float logit_at(const softmax_job *j, int64_t row, int64_t column)
{
    float buffer;
    return *sl_rows_read(j->simd, &j->x, row, column, 1, &buffer);
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
        total += (double)*sl_rows_at(&j.lse, row) - (double)logit_at(&j, row, target);
        counted++;
    }
    *(float *)sl_call_output(call, 0)->data = counted ? (float)(total / (double)counted) : 0;
    return SL_OK;
}

/* weight * (softmax - one at the target) of elements first..first+n, or 0 for a target that does not count; dlogits may
 * lie on the logits. */
static void grad_block(const softmax_job *j, int64_t row, int64_t target, int64_t first, int64_t n)
{
    float x_block[BLOCK], dx_block[BLOCK];
    float *dx = sl_rows_begin_write(j->simd, &j->y, row, first, n, j->add, dx_block);
    if (target == j->ignore) {
        j->simd->fill(dx, 0, n, j->add);
    } else {
        const float *x = sl_rows_read(j->simd, &j->x, row, first, n, x_block);
        j->simd->scaled_exp(x, *sl_rows_at(&j->lse, row), j->weight, dx, n, j->add);
        if (target >= first && target < first + n)
            dx[target - first] -= j->weight;
    }
    sl_rows_end_write(j->simd, &j->y, row, first, n, dx_block);
}

static void cross_entropy_grad_range(void *context, int64_t begin, int64_t end)
{
    const softmax_job *j = context;
    for (int64_t row = begin; row < end; row++) {
        int64_t target = target_at(j->targets, row);
        for (int64_t first = 0; first < j->size; first += BLOCK)
            grad_block(j, row, target, first, j->size - first < BLOCK ? j->size - first : BLOCK);
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

/* Loss and log-sum-exp are f32 whatever the logits are; other dtypes of theirs are left to the reference. */
static bool accepts_cross_entropy(const sl_kernel_call *call)
{
    bool backward = call->op == SL_OP_CROSS_ENTROPY_GRAD;
    const sl_view *first = backward ? sl_call_input(call, 2) : sl_call_output(call, 0);
    const sl_view *second = backward ? sl_call_input(call, 3) : sl_call_output(call, 1);
    return sl_cpu_is_narrow(call) && first->meta.dtype == SL_F32 && second->meta.dtype == SL_F32;
}

const sl_cpu_kernel sl_cpu_softmax = { .accepts = sl_cpu_is_narrow, .run = run_softmax, .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_softmax_grad = { .accepts = sl_cpu_is_narrow,
                                            .run = run_softmax_grad,
                                            .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_cross_entropy = {
    .accepts = accepts_cross_entropy, .run = run_cross_entropy, .halves = true, .takes = sl_cpu_takes_rows
};
const sl_cpu_kernel sl_cpu_cross_entropy_grad = {
    .accepts = accepts_cross_entropy, .run = run_cross_entropy_grad, .halves = true, .takes = sl_cpu_takes_rows
};
