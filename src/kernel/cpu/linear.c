/* LINEAR and its gradients as matrix products. */
#include "kernel/cpu/blas.h"

#include <string.h>

/* Rows of a tensor as one matrix: takes_matrix() saw to it that they are evenly spaced. */
static int64_t rows_of(const sl_view *view)
{
    return sl_row_count(&view->meta, 1);
}

static int64_t step_of(const sl_view *view)
{
    return sl_rows_of(view, 1).strides[0];
}

/* The transpose flags that BLAS gets must follow from the shapes alone, since they may change the bits: the last dim is
 * contiguous, the rows are evenly spaced and do not overlap. */
static bool takes_matrix(const sl_kernel_call *call, const sl_view *view)
{
    sl_rows rows = sl_rows_of(view, 1);
    int64_t size = sl_dim_from_last(&view->meta, 1);
    (void)call;
    if (view->meta.shape.rank < 2 || sl_meta_count(&view->meta) == 0)
        return sl_cpu_takes_rows(call, view);
    if (rows.rank > 1 || (size > 1 && sl_stride_from_last(&view->meta, 1) != 1))
        return false;
    return rows.dims[0] <= 1 || (size == 1 ? rows.strides[0] == 1 : rows.strides[0] >= size);
}

/* w as [K,N] whatever its layout. */
static void set_weight(const sl_view *w, bool transpose_w, const float **data, int64_t *row, int64_t *column)
{
    *data = w->data;
    *row = w->meta.strides[transpose_w ? 1 : 0];
    *column = w->meta.strides[transpose_w ? 0 : 1];
}

static sl_gemm forward_gemm(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_output(call, 0);
    sl_gemm g = { .m = rows_of(x),
                  .k = sl_dim_from_last(&x->meta, 1),
                  .n = sl_dim_from_last(&y->meta, 1),
                  .a = x->data,
                  .a_row = step_of(x),
                  .a_column = 1,
                  .c = y->data,
                  .c_row = step_of(y),
                  .c_column = 1,
                  .add = sl_call_accumulates(call, 0) || !sl_view_is_none(sl_call_input(call, 2)) };
    set_weight(sl_call_input(call, 1), call->attrs.transpose_w, &g.b, &g.b_row, &g.b_column);
    return g;
}

/* ---- Few rows -------------------------------------------------------------------------------- */

/* One token of a text, or a few: the product is as fast as w comes from memory, so w is read once, as it lies, where
 * BLAS would rearrange it first. */
enum { FEW_ROWS = 4, COLUMNS = 2048 }; /* columns of y that stay in the first-level cache */

static bool has_few_rows(const sl_gemm *g)
{
    return g->m <= FEW_ROWS && g->n > 0;
}

typedef struct few_job {
    const sl_simd *simd;
    const sl_gemm *g;
    bool transpose_w;
} few_job;

/* Columns begin..end of y for w [K,N]: a row of w after the other is added. */
static void add_rows(const sl_simd *simd, const sl_gemm *g, int64_t begin, int64_t end)
{
    for (int64_t i = 0; !g->add && i < g->m; i++)
        memset(g->c + i * g->c_row + begin, 0, (size_t)(end - begin) * sizeof *g->c);
    for (int64_t l = 0; l < g->k; l++) {
        for (int64_t i = 0; i < g->m; i++)
            simd->axpy(g->a[i * g->a_row + l], g->b + l * g->b_row + begin, g->c + i * g->c_row + begin, end - begin);
    }
}

static void few_range(void *context, int64_t begin, int64_t end)
{
    const few_job *j = context;
    const sl_gemm *g = j->g;
    for (int64_t n = begin; !j->transpose_w && n < end; n += COLUMNS)
        add_rows(j->simd, g, n, end - n < COLUMNS ? end : n + COLUMNS);
    for (int64_t n = begin; j->transpose_w && n < end; n++) {
        for (int64_t i = 0; i < g->m; i++) {
            float *y = g->c + i * g->c_row + n, sum = j->simd->dot(g->a + i * g->a_row, g->b + n * g->b_column, g->k);
            *y = g->add ? *y + sum : sum;
        }
    }
}

static size_t scratch_linear(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = forward_gemm(call);
    return has_few_rows(&g) ? 0 : sl_gemm_scratch_split(cpu, &g);
}

typedef struct bias_job {
    const sl_simd *simd;
    const float *bias;
    sl_rows y;
    int64_t size;
    bool add;
} bias_job;

static void bias_range(void *context, int64_t begin, int64_t end)
{
    const bias_job *j = context;
    for (int64_t row = begin; row < end; row++) {
        if (j->add)
            j->simd->axpy(1, j->bias, sl_rows_at(&j->y, row), j->size);
        else
            memcpy(sl_rows_at(&j->y, row), j->bias, (size_t)j->size * sizeof *j->bias);
    }
}

/* Puts the bias into y first; the product is then added, which costs BLAS no more than clearing y would. */
static void put_bias(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *bias = sl_call_input(call, 2), *y = sl_call_output(call, 0);
    if (sl_view_is_none(bias))
        return;
    bias_job j = { .simd = cpu->simd,
                   .bias = bias->data,
                   .y = sl_rows_of(y, 1),
                   .size = sl_dim_from_last(&y->meta, 1),
                   .add = sl_call_accumulates(call, 0) };
    sl_cpu_split(cpu, rows_of(y), SL_GRAIN / (j.size + 1) + 1, bias_range, &j);
}

static sl_status run_linear(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = forward_gemm(call);
    put_bias(cpu, call);
    if (has_few_rows(&g))
        sl_cpu_split(cpu, g.n, SL_GRAIN / (g.k + 1) + 1, few_range,
                     &(few_job){ cpu->simd, &g, call->attrs.transpose_w });
    else
        sl_gemm_run_split(cpu, &g, call->scratch);
    return SL_OK;
}

/* dx = dy w^T */
static sl_gemm grad_x_gemm(const sl_kernel_call *call)
{
    const sl_view *dy = sl_call_input(call, 0), *dx = sl_call_output(call, 0);
    sl_gemm g = { .m = rows_of(dy),
                  .k = sl_dim_from_last(&dy->meta, 1),
                  .n = sl_dim_from_last(&dx->meta, 1),
                  .a = dy->data,
                  .a_row = step_of(dy),
                  .a_column = 1,
                  .c = dx->data,
                  .c_row = step_of(dx),
                  .c_column = 1,
                  .add = sl_call_accumulates(call, 0) };
    set_weight(sl_call_input(call, 1), call->attrs.transpose_w, &g.b, &g.b_column, &g.b_row);
    return g;
}

static size_t scratch_linear_grad_x(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = grad_x_gemm(call);
    return sl_gemm_scratch_split(cpu, &g);
}

static sl_status run_linear_grad_x(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = grad_x_gemm(call);
    sl_gemm_run_split(cpu, &g, call->scratch);
    return SL_OK;
}

/* dw = x^T dy, or its transpose dy^T x if w is [N,K]: rows of dw stay rows of C. */
static sl_gemm grad_w_gemm(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *dy = sl_call_input(call, 1), *dw = sl_call_output(call, 0);
    bool turned = call->attrs.transpose_w;
    int64_t x_size = sl_dim_from_last(&x->meta, 1), y_size = sl_dim_from_last(&dy->meta, 1);
    return (sl_gemm){ .m = turned ? y_size : x_size,
                      .n = turned ? x_size : y_size,
                      .k = rows_of(x),
                      .a = turned ? dy->data : x->data,
                      .a_row = 1,
                      .a_column = step_of(turned ? dy : x),
                      .b = turned ? x->data : dy->data,
                      .b_row = step_of(turned ? x : dy),
                      .b_column = 1,
                      .c = dw->data,
                      .c_row = step_of(dw),
                      .c_column = 1,
                      .add = sl_call_accumulates(call, 0) };
}

static size_t scratch_linear_grad_w(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = grad_w_gemm(call);
    return sl_gemm_scratch_split(cpu, &g);
}

static sl_status run_linear_grad_w(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = grad_w_gemm(call);
    sl_gemm_run_split(cpu, &g, call->scratch);
    return SL_OK;
}

const sl_cpu_kernel sl_cpu_linear = {
    .accepts = sl_cpu_is_narrow, .run = run_linear, .takes = takes_matrix, .scratch = scratch_linear
};
const sl_cpu_kernel sl_cpu_linear_grad_x = {
    .accepts = sl_cpu_is_narrow, .run = run_linear_grad_x, .takes = takes_matrix, .scratch = scratch_linear_grad_x
};
const sl_cpu_kernel sl_cpu_linear_grad_w = {
    .accepts = sl_cpu_is_narrow, .run = run_linear_grad_w, .takes = takes_matrix, .scratch = scratch_linear_grad_w
};
