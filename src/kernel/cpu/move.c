/* Copies (between dtypes too: casts), fills, concat and dropout. */
#include "kernel/cpu/cpu.h"

#include "op/op.h"

#include <string.h>

/* ---- Copy ------------------------------------------------------------------------------------ */

static void add_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const sl_simd *simd = context;
    (void)first;
    simd->axpy(1, args[0], args[1], n);
}

static void copy_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    (void)context;
    (void)first;
    if (args[0] != args[1])
        memcpy(args[1], args[0], (size_t)n * sizeof(float));
}

void sl_cpu_copy(const sl_cpu *cpu, const sl_view *x, const sl_view *y, bool add)
{
    sl_loop loop;
    sl_loop_start(&loop, &y->meta.shape);
    sl_loop_add(&loop, x, SL_LOOP_READ);
    sl_loop_add(&loop, y, add ? SL_LOOP_UPDATE : SL_LOOP_WRITE);
    sl_loop_run(cpu, &loop, add ? add_body : copy_body, NULL, cpu->simd);
}

static sl_status run_copy(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_cpu_copy(cpu, sl_call_input(call, 0), sl_call_output(call, 0), sl_call_accumulates(call, 0));
    return SL_OK;
}

static sl_status run_concat(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *y = sl_call_output(call, 0);
    int64_t start = 0; /* along attrs.dim of y */
    for (int i = 0; i < call->input_count; i++) {
        const sl_view *x = sl_call_input(call, i);
        int64_t bytes = start * y->meta.strides[call->attrs.dim] * (int64_t)sl_dtype_size(y->meta.dtype);
        sl_view part = { .data = (char *)y->data + bytes, .meta = y->meta };
        part.meta.shape = x->meta.shape;
        if (sl_meta_count(&x->meta) > 0)
            sl_cpu_copy(cpu, x, &part, sl_call_accumulates(call, 0));
        start += x->meta.shape.dims[call->attrs.dim];
    }
    return SL_OK;
}

/* ---- Fill, dropout --------------------------------------------------------------------------- */

typedef struct move_job {
    const sl_simd *simd;
    sl_dropout_stream stream;
    float value; /* FILL */
    bool add;
} move_job;

static void fill_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const move_job *j = context;
    (void)first;
    j->simd->fill(args[0], j->value, n, j->add);
}

static sl_status run_fill(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *y = sl_call_output(call, 0);
    move_job j = { .simd = cpu->simd, .value = (float)call->attrs.alpha, .add = sl_call_accumulates(call, 0) };
    sl_loop loop;
    sl_loop_start(&loop, &y->meta.shape);
    sl_loop_add(&loop, y, j.add ? SL_LOOP_UPDATE : SL_LOOP_WRITE);
    sl_loop_run(cpu, &loop, fill_body, NULL, &j);
    return SL_OK;
}

static void dropout_body(const void *context, float *const *args, int64_t first, int64_t n)
{
    const move_job *j = context;
    j->simd->dropout(&j->stream, args[0], args[1], n, (uint64_t)first, j->add);
}

static sl_status run_dropout(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_output(call, 0);
    if (!sl_call_drops(call))
        return run_copy(cpu, call);
    move_job j = { .simd = cpu->simd, .stream = sl_dropout_of_samples(call), .add = sl_call_accumulates(call, 0) };
    sl_loop loop;
    sl_loop_start(&loop, &y->meta.shape);
    sl_loop_add(&loop, x, SL_LOOP_READ);
    sl_loop_add(&loop, y, j.add ? SL_LOOP_UPDATE : SL_LOOP_WRITE);
    sl_loop_run(cpu, &loop, dropout_body, NULL, &j);
    return SL_OK;
}

/* Integers are left to the reference. */
static bool accepts_cast(const sl_kernel_call *call)
{
    return sl_dtype_is_floating(sl_call_input(call, 0)->meta.dtype) && sl_cpu_is_narrow(call);
}

const sl_cpu_kernel sl_cpu_copy_kernel = { .accepts = sl_cpu_is_narrow, .run = run_copy, .halves = true };
const sl_cpu_kernel sl_cpu_cast = { .accepts = accepts_cast, .run = run_copy, .halves = true };
const sl_cpu_kernel sl_cpu_concat = { .accepts = sl_cpu_is_narrow, .run = run_concat, .halves = true };
const sl_cpu_kernel sl_cpu_fill = { .accepts = sl_cpu_is_narrow, .run = run_fill, .halves = true };
const sl_cpu_kernel sl_cpu_dropout = { .accepts = sl_cpu_is_narrow, .run = run_dropout, .halves = true };
