/* LINEAR, its gradients and MATMUL as matrix products. */
#include "kernel/cpu/blas.h"

#include <string.h>

/* Rows of two tensors in runs that are evenly spaced in both. */
typedef struct runs {
    sl_rows x, y;
    int64_t count, length; /* runs; rows of each */
} runs;

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static runs runs_of(const sl_view *x, const sl_view *y)
{
    int64_t rows = sl_row_count(&x->meta, 1);
    runs r = { .x = sl_rows_of(x, 1), .y = sl_rows_of(y, 1) };
    r.length = rows == 0 ? 0 : common_divisor(r.x.dims[r.x.rank - 1], r.y.dims[r.y.rank - 1]);
    r.count = r.length ? rows / r.length : 0;
    return r;
}

/* Distance of the rows within a run. */
static int64_t step(const sl_rows *rows)
{
    return rows->strides[rows->rank - 1];
}

/* w as [K,N] whatever its layout. */
static void set_weight(const sl_view *w, bool transpose_w, const float **data, int64_t *row, int64_t *column)
{
    *data = w->data;
    *row = w->meta.strides[transpose_w ? 1 : 0];
    *column = w->meta.strides[transpose_w ? 0 : 1];
}

/* The product of the first run; the others differ in the pointers alone. */
static sl_gemm forward_gemm(const sl_kernel_call *call, const runs *r)
{
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_output(call, 0);
    sl_gemm g = { .m = r->length,
                  .k = sl_dim_from_last(&x->meta, 1),
                  .n = sl_dim_from_last(&y->meta, 1),
                  .a_row = step(&r->x),
                  .a_column = sl_stride_from_last(&x->meta, 1),
                  .c_row = step(&r->y),
                  .c_column = sl_stride_from_last(&y->meta, 1),
                  .add = sl_call_accumulates(call, 0) || !sl_view_is_none(sl_call_input(call, 2)) };
    set_weight(sl_call_input(call, 1), call->attrs.transpose_w, &g.b, &g.b_row, &g.b_column);
    return g;
}

static size_t scratch_linear(const sl_cpu *cpu, const sl_kernel_call *call)
{
    runs r = runs_of(sl_call_input(call, 0), sl_call_output(call, 0));
    sl_gemm g = forward_gemm(call, &r);
    return sl_gemm_scratch_split(cpu, &g);
}

typedef struct bias_job {
    const sl_view *bias;
    sl_rows y;
    int64_t size, column; /* stride of y's last dim */
    bool add;
} bias_job;

static void bias_range(void *context, int64_t begin, int64_t end)
{
    const bias_job *j = context;
    const float *bias = j->bias->data;
    int64_t stride = j->bias->meta.strides[0];
    for (int64_t row = begin; row < end; row++) {
        float *y = sl_rows_at(&j->y, row);
        if (!j->add && stride == 1 && j->column == 1) {
            memcpy(y, bias, (size_t)j->size * sizeof *y);
            continue;
        }
        for (int64_t i = 0; i < j->size; i++)
            y[i * j->column] = j->add ? y[i * j->column] + bias[i * stride] : bias[i * stride];
    }
}

/* Puts the bias into y first; the product is then added, which costs BLAS no more than clearing y would. */
static void put_bias(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *bias = sl_call_input(call, 2), *y = sl_call_output(call, 0);
    if (sl_view_is_none(bias))
        return;
    bias_job j = { .bias = bias,
                   .y = sl_rows_of(y, 1),
                   .size = sl_dim_from_last(&y->meta, 1),
                   .column = sl_stride_from_last(&y->meta, 1),
                   .add = sl_call_accumulates(call, 0) };
    sl_cpu_split(cpu, sl_row_count(&y->meta, 1), SL_GRAIN / (j.size + 1) + 1, bias_range, &j);
}

static sl_status run_linear(const sl_cpu *cpu, const sl_kernel_call *call)
{
    runs r = runs_of(sl_call_input(call, 0), sl_call_output(call, 0));
    sl_gemm g = forward_gemm(call, &r);
    put_bias(cpu, call);
    for (int64_t i = 0; i < r.count; i++) {
        g.a = sl_rows_at(&r.x, i * r.length);
        g.c = sl_rows_at(&r.y, i * r.length);
        sl_gemm_run_split(cpu, &g, call->scratch);
    }
    return SL_OK;
}

/* dx = dy w^T */
static sl_gemm grad_x_gemm(const sl_kernel_call *call, const runs *r)
{
    const sl_view *dy = sl_call_input(call, 0), *dx = sl_call_output(call, 0);
    sl_gemm g = { .m = r->length,
                  .k = sl_dim_from_last(&dy->meta, 1),
                  .n = sl_dim_from_last(&dx->meta, 1),
                  .a_row = step(&r->x),
                  .a_column = sl_stride_from_last(&dy->meta, 1),
                  .c_row = step(&r->y),
                  .c_column = sl_stride_from_last(&dx->meta, 1),
                  .add = sl_call_accumulates(call, 0) };
    set_weight(sl_call_input(call, 1), call->attrs.transpose_w, &g.b, &g.b_column, &g.b_row);
    return g;
}

static size_t scratch_linear_grad_x(const sl_cpu *cpu, const sl_kernel_call *call)
{
    runs r = runs_of(sl_call_input(call, 0), sl_call_output(call, 0));
    sl_gemm g = grad_x_gemm(call, &r);
    return sl_gemm_scratch_split(cpu, &g);
}

static sl_status run_linear_grad_x(const sl_cpu *cpu, const sl_kernel_call *call)
{
    runs r = runs_of(sl_call_input(call, 0), sl_call_output(call, 0));
    sl_gemm g = grad_x_gemm(call, &r);
    for (int64_t i = 0; i < r.count; i++) {
        g.a = sl_rows_at(&r.x, i * r.length);
        g.c = sl_rows_at(&r.y, i * r.length);
        sl_gemm_run_split(cpu, &g, call->scratch);
    }
    return SL_OK;
}

/* dw = x^T dy, or its transpose dy^T x where w is [N,K]: rows of dw stay rows of C. */
static sl_gemm grad_w_gemm(const sl_kernel_call *call, const runs *r)
{
    const sl_view *x = sl_call_input(call, 0), *dy = sl_call_input(call, 1), *dw = sl_call_output(call, 0);
    bool turned = call->attrs.transpose_w;
    int64_t x_size = sl_dim_from_last(&x->meta, 1), y_size = sl_dim_from_last(&dy->meta, 1);
    int64_t x_column = sl_stride_from_last(&x->meta, 1), y_column = sl_stride_from_last(&dy->meta, 1);
    return (sl_gemm){ .m = turned ? y_size : x_size,
                      .n = turned ? x_size : y_size,
                      .k = r->length,
                      .a_row = turned ? y_column : x_column,
                      .a_column = step(turned ? &r->y : &r->x),
                      .b_row = step(turned ? &r->x : &r->y),
                      .b_column = turned ? x_column : y_column,
                      .c = dw->data,
                      .c_row = dw->meta.strides[0],
                      .c_column = dw->meta.strides[1],
                      .add = sl_call_accumulates(call, 0) };
}

static size_t scratch_linear_grad_w(const sl_cpu *cpu, const sl_kernel_call *call)
{
    runs r = runs_of(sl_call_input(call, 0), sl_call_input(call, 1));
    sl_gemm g = grad_w_gemm(call, &r);
    return sl_gemm_scratch_split(cpu, &g);
}

static sl_status run_linear_grad_w(const sl_cpu *cpu, const sl_kernel_call *call)
{
    runs r = runs_of(sl_call_input(call, 0), sl_call_input(call, 1));
    sl_gemm g = grad_w_gemm(call, &r);
    bool turned = call->attrs.transpose_w;
    if (r.count == 0) /* no rows: k is 0, the product clears dw */
        sl_gemm_run_split(cpu, &g, call->scratch);
    for (int64_t i = 0; i < r.count; i++) {
        const float *x = sl_rows_at(&r.x, i * r.length), *dy = sl_rows_at(&r.y, i * r.length);
        g.a = turned ? dy : x;
        g.b = turned ? x : dy;
        sl_gemm_run_split(cpu, &g, call->scratch);
        g.add = true;
    }
    return SL_OK;
}

const sl_cpu_kernel sl_cpu_linear = { sl_cpu_is_f32, run_linear, scratch_linear };
const sl_cpu_kernel sl_cpu_linear_grad_x = { sl_cpu_is_f32, run_linear_grad_x, scratch_linear_grad_x };
const sl_cpu_kernel sl_cpu_linear_grad_w = { sl_cpu_is_f32, run_linear_grad_w, scratch_linear_grad_w };
