/* Copies, casts, fills, concat and dropout. */
#include "kernel/cpu/cpu.h"

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

void sl_cpu_copy_f32(const sl_cpu *cpu, const sl_view *x, const sl_view *y, bool add)
{
    sl_loop loop;
    sl_loop_start(&loop, &y->meta.shape);
    sl_loop_add(&loop, x, SL_LOOP_READ);
    sl_loop_add(&loop, y, add ? SL_LOOP_UPDATE : SL_LOOP_WRITE);
    sl_loop_run(cpu, &loop, add ? add_body : copy_body, cpu->simd);
}

static sl_status run_copy(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_cpu_copy_f32(cpu, sl_call_input(call, 0), sl_call_output(call, 0), sl_call_accumulates(call, 0));
    return SL_OK;
}

static sl_status run_concat(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *y = sl_call_output(call, 0);
    int64_t start = 0; /* along attrs.dim of y */
    for (int i = 0; i < call->input_count; i++) {
        const sl_view *x = sl_call_input(call, i);
        sl_view part = { .data = (float *)y->data + start * y->meta.strides[call->attrs.dim], .meta = y->meta };
        part.meta.shape = x->meta.shape;
        if (sl_meta_count(&x->meta) > 0)
            sl_cpu_copy_f32(cpu, x, &part, sl_call_accumulates(call, 0));
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
    sl_loop_run(cpu, &loop, fill_body, &j);
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
    sl_loop_run(cpu, &loop, dropout_body, &j);
    return SL_OK;
}

/* ---- Cast between f32 and the half precisions ------------------------------------------------ */

typedef struct cast_job {
    const sl_simd *simd;
    const sl_view *x, *y;
} cast_job;

static bool is_half(sl_dtype dtype)
{
    return dtype == SL_BF16 || dtype == SL_F16;
}

static bool accepts_cast(const sl_kernel_call *call)
{
    const sl_meta *x = &sl_call_input(call, 0)->meta, *y = &sl_call_output(call, 0)->meta;
    bool narrows = x->dtype == SL_F32 && is_half(y->dtype), widens = is_half(x->dtype) && y->dtype == SL_F32;
    return (narrows || widens) && !call->accumulate && sl_meta_is_contiguous(x) && sl_meta_is_contiguous(y);
}

static void cast_range(void *context, int64_t begin, int64_t end)
{
    const cast_job *j = context;
    if (j->x->meta.dtype == SL_F32)
        j->simd->to_half(j->y->meta.dtype, (const float *)j->x->data + begin, (uint16_t *)j->y->data + begin,
                         end - begin);
    else
        j->simd->from_half(j->x->meta.dtype, (const uint16_t *)j->x->data + begin, (float *)j->y->data + begin,
                           end - begin);
}

static sl_status run_cast(const sl_cpu *cpu, const sl_kernel_call *call)
{
    cast_job j = { cpu->simd, sl_call_input(call, 0), sl_call_output(call, 0) };
    sl_cpu_split(cpu, sl_meta_count(&j.x->meta), SL_GRAIN, cast_range, &j);
    return SL_OK;
}

const sl_cpu_kernel sl_cpu_copy = { .accepts = sl_cpu_is_f32, .run = run_copy };
const sl_cpu_kernel sl_cpu_concat = { .accepts = sl_cpu_is_f32, .run = run_concat };
const sl_cpu_kernel sl_cpu_fill = { .accepts = sl_cpu_is_f32, .run = run_fill };
const sl_cpu_kernel sl_cpu_cast = { .accepts = accepts_cast, .run = run_cast };
const sl_cpu_kernel sl_cpu_dropout = { .accepts = sl_cpu_is_f32, .run = run_dropout };
