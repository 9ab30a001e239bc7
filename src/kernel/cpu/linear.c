/* LINEAR and its gradients as matrix products. */
#include "kernel/cpu/gemm.h"

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

/* The last dim is contiguous, the rows are evenly spaced and do not overlap. So the transpose flags that BLAS gets, which
 * may change the bits, follow from the shapes alone. */
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

/* Rows of x as rows of A. */
static sl_factor rows_factor(const sl_view *x)
{
    return (sl_factor){ .data = x->data, .dtype = x->meta.dtype, .row = step_of(x), .column = 1 };
}

/* Columns of x as rows of A, or as columns of B. */
static sl_factor columns_factor(const sl_view *x)
{
    return (sl_factor){ .data = x->data, .dtype = x->meta.dtype, .row = 1, .column = step_of(x) };
}

/* w as B; its dim `summed` is summed over. */
static sl_factor weight_factor(const sl_view *w, int summed)
{
    return (sl_factor){
        .data = w->data, .dtype = w->meta.dtype, .row = w->meta.strides[1 - summed], .column = w->meta.strides[summed]
    };
}

static sl_gemm forward_gemm(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *bias = sl_call_input(call, 2), *y = sl_call_output(call, 0);
    return (sl_gemm){ .m = rows_of(x),
                      .k = sl_dim_from_last(&x->meta, 1),
                      .n = sl_dim_from_last(&y->meta, 1),
                      .a = rows_factor(x),
                      .b = weight_factor(sl_call_input(call, 1), call->attrs.transpose_w ? 1 : 0),
                      .packed_b = call->packed,
                      .c = y->data,
                      .c_dtype = y->meta.dtype,
                      .c_row = step_of(y),
                      .bias = sl_view_is_none(bias) ? NULL : bias->data,
                      .add = sl_call_accumulates(call, 0) };
}

/* The bias as floats: widened into the end of the scratch if it is not f32. */
static size_t bias_bytes(const sl_kernel_call *call)
{
    const sl_view *bias = sl_call_input(call, 2);
    bool wide = sl_view_is_none(bias) || bias->meta.dtype == SL_F32;
    return wide ? 0 : (size_t)sl_meta_count(&bias->meta) * sizeof(float);
}

/* ---- Few rows -------------------------------------------------------------------------------- */

/* One token of a text, or a few: the product is as fast as w comes from memory, so w is read once, as it lies, where
 * packing would write it again. */
enum { FEW_ROWS = 4, COLUMNS = 2048 }; /* elements of a row that stay in the first-level cache */

static bool has_few_rows(const sl_gemm *g)
{
    return g->m <= FEW_ROWS && g->n > 0;
}

typedef struct few_job {
    const sl_simd *simd;
    const sl_gemm *g;
    const float *x; /* [m,k] */
    bool transpose_w;
} few_job;

/* n elements of w from (i, l) on, as floats. */
static const float *read_weight(const few_job *j, int64_t i, int64_t l, int64_t n, float *buffer)
{
    const sl_factor *w = &j->g->b;
    const char *from = (const char *)w->data + (i * w->row + l * w->column) * (int64_t)sl_dtype_size(w->dtype);
    if (w->dtype == SL_F32)
        return (const float *)(const void *)from;
    j->simd->from_half(w->dtype, (const uint16_t *)(const void *)from, buffer, n);
    return buffer;
}

/* Sums for columns begin..end of y and w [K,N]: a row of w after the other is added. */
static void add_rows(const few_job *j, int64_t begin, int64_t end, float (*sums)[COLUMNS])
{
    float buffer[COLUMNS];
    for (int64_t i = 0; i < j->g->m; i++)
        memset(sums[i], 0, (size_t)(end - begin) * sizeof **sums);
    for (int64_t l = 0; l < j->g->k; l++) {
        const float *w = read_weight(j, begin, l, end - begin, buffer);
        for (int64_t i = 0; i < j->g->m; i++)
            j->simd->axpy(j->x[i * j->g->k + l], w, sums[i], end - begin);
    }
}

/* The same for w [N,K]. */
static void dot_rows(const few_job *j, int64_t begin, int64_t end, float (*sums)[COLUMNS])
{
    float buffer[COLUMNS];
    for (int64_t n = begin; n < end; n++) {
        for (int64_t i = 0; i < j->g->m; i++)
            sums[i][n - begin] = 0;
        for (int64_t l = 0; l < j->g->k; l += COLUMNS) {
            int64_t count = j->g->k - l < COLUMNS ? j->g->k - l : COLUMNS;
            const float *w = read_weight(j, n, l, count, buffer);
            for (int64_t i = 0; i < j->g->m; i++)
                sums[i][n - begin] += j->simd->dot(j->x + i * j->g->k + l, w, count);
        }
    }
}

static void few_range(void *context, int64_t begin, int64_t end)
{
    const few_job *j = context;
    const sl_gemm *g = j->g;
    float sums[FEW_ROWS][COLUMNS];
    for (int64_t n = begin; n < end; n += COLUMNS) {
        int64_t stop = end - n < COLUMNS ? end : n + COLUMNS;
        (j->transpose_w ? dot_rows : add_rows)(j, n, stop, sums);
        sl_tile_result result = { .sums = sums[0],
                                  .sums_row = COLUMNS,
                                  .rows = g->m,
                                  .columns = stop - n,
                                  .bias = g->bias ? g->bias + n : NULL,
                                  .c = (char *)g->c + n * (int64_t)sl_dtype_size(g->c_dtype),
                                  .dtype = g->c_dtype,
                                  .c_row = g->c_row,
                                  .add = g->add };
        j->simd->put_tile(&result);
    }
}

/* x as contiguous floats in the scratch. */
static size_t few_bytes(const sl_gemm *g)
{
    size_t bytes = (size_t)(g->m * g->k) * sizeof(float);
    return (bytes + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
}

static void run_few(const sl_cpu *cpu, const sl_kernel_call *call, const sl_gemm *g)
{
    const sl_view *x = sl_call_input(call, 0), wide = { call->scratch, sl_meta_contiguous(SL_F32, &x->meta.shape) };
    few_job j = { .simd = cpu->simd, .g = g, .x = call->scratch, .transpose_w = call->attrs.transpose_w };
    if (g->k > 0)
        sl_cpu_copy(cpu, x, &wide, false);
    sl_cpu_split(cpu, g->n, SL_GRAIN / (g->k + 1) + 1, few_range, &j);
}

static size_t scratch_linear(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = forward_gemm(call);
    return (has_few_rows(&g) ? few_bytes(&g) : sl_gemm_scratch_split(cpu, &g)) + bias_bytes(call);
}

static sl_status run_linear(const sl_cpu *cpu, const sl_kernel_call *call)
{
    sl_gemm g = forward_gemm(call);
    if (bias_bytes(call) > 0) {
        size_t start = has_few_rows(&g) ? few_bytes(&g) : sl_gemm_scratch_split(cpu, &g);
        float *wide = (float *)(void *)((char *)call->scratch + start);
        sl_view bias = { wide, sl_meta_contiguous(SL_F32, &sl_call_input(call, 2)->meta.shape) };
        sl_cpu_copy(cpu, sl_call_input(call, 2), &bias, false);
        g.bias = wide;
    }
    if (has_few_rows(&g))
        run_few(cpu, call, &g);
    else
        sl_gemm_run_split(cpu, &g, call->scratch);
    return SL_OK;
}

static size_t packed_bytes_linear(const sl_kernel_call *call)
{
    sl_gemm g = forward_gemm(call);
    return has_few_rows(&g) ? 0 : sl_gemm_packed_bytes(&g);
}

static void pack_linear(const sl_cpu *cpu, const sl_kernel_call *call, void *to)
{
    sl_gemm g = forward_gemm(call);
    sl_gemm_pack(cpu, &g, to);
}

/* dx = dy w^T */
static sl_gemm grad_x_gemm(const sl_kernel_call *call)
{
    const sl_view *dy = sl_call_input(call, 0), *dx = sl_call_output(call, 0);
    return (sl_gemm){ .m = rows_of(dy),
                      .k = sl_dim_from_last(&dy->meta, 1),
                      .n = sl_dim_from_last(&dx->meta, 1),
                      .a = rows_factor(dy),
                      .b = weight_factor(sl_call_input(call, 1), call->attrs.transpose_w ? 0 : 1),
                      .packed_b = call->packed,
                      .c = dx->data,
                      .c_dtype = dx->meta.dtype,
                      .c_row = step_of(dx),
                      .add = sl_call_accumulates(call, 0) };
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

static size_t packed_bytes_linear_grad_x(const sl_kernel_call *call)
{
    sl_gemm g = grad_x_gemm(call);
    return sl_gemm_packed_bytes(&g);
}

static void pack_linear_grad_x(const sl_cpu *cpu, const sl_kernel_call *call, void *to)
{
    sl_gemm g = grad_x_gemm(call);
    sl_gemm_pack(cpu, &g, to);
}

/* dw = x^T dy, or its transpose dy^T x if w is [N,K]: rows of dw stay rows of C. */
static sl_gemm grad_w_gemm(const sl_kernel_call *call)
{
    bool turned = call->attrs.transpose_w;
    const sl_view *first = sl_call_input(call, turned ? 1 : 0), *second = sl_call_input(call, turned ? 0 : 1);
    const sl_view *dw = sl_call_output(call, 0);
    return (sl_gemm){ .m = sl_dim_from_last(&first->meta, 1),
                      .n = sl_dim_from_last(&second->meta, 1),
                      .k = rows_of(first),
                      .a = columns_factor(first),
                      .b = columns_factor(second),
                      .c = dw->data,
                      .c_dtype = dw->meta.dtype,
                      .c_row = step_of(dw),
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

#define LINEAR(name)                                                                                                   \
    .accepts = sl_cpu_is_narrow, .run = run_##name, .halves = true, .takes = takes_matrix, .scratch = scratch_##name
#define WEIGHT_OF(name) .packed_bytes = packed_bytes_##name, .pack = pack_##name
const sl_cpu_kernel sl_cpu_linear = { LINEAR(linear), WEIGHT_OF(linear) };
const sl_cpu_kernel sl_cpu_linear_grad_x = { LINEAR(linear_grad_x), WEIGHT_OF(linear_grad_x) };
const sl_cpu_kernel sl_cpu_linear_grad_w = { LINEAR(linear_grad_w) };
