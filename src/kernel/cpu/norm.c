/* Layer and RMS normalization over rows. */
#include "kernel/cpu/cpu.h"

#include <string.h>

typedef struct norm_job {
    const sl_simd *simd;
    sl_rows dy, x, y, mean, rstd; /* y is dx in the gradients; mean.data is NULL for RMS */
    const float *w, *b;
    float *dw, *db;
    int64_t rows, size;
    float eps;
    bool add, add_db;
} norm_job;

static const float *vector_of(const sl_view *view)
{
    return sl_view_is_none(view) ? NULL : view->data;
}

static int64_t grain(const norm_job *j)
{
    return SL_GRAIN / (j->size + 1) + 1;
}

static void layernorm_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    for (int64_t row = begin; row < end; row++)
        j->simd->layernorm(sl_rows_at(&j->x, row), j->w, j->b, j->eps, sl_rows_at(&j->y, row),
                           sl_rows_at(&j->mean, row), sl_rows_at(&j->rstd, row), j->size);
}

static void rmsnorm_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    for (int64_t row = begin; row < end; row++)
        j->simd->rmsnorm(sl_rows_at(&j->x, row), j->w, j->eps, sl_rows_at(&j->y, row), sl_rows_at(&j->rstd, row),
                         j->size);
}

static norm_job forward_job(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0);
    return (norm_job){ .simd = cpu->simd,
                       .x = sl_rows_of(x, 1),
                       .y = sl_rows_of(sl_call_output(call, 0), 1),
                       .w = vector_of(sl_call_input(call, 1)),
                       .rows = sl_row_count(&x->meta, 1),
                       .size = sl_dim_from_last(&x->meta, 1),
                       .eps = (float)call->attrs.eps };
}

static sl_status run_layernorm(const sl_cpu *cpu, const sl_kernel_call *call)
{
    norm_job j = forward_job(cpu, call);
    j.b = vector_of(sl_call_input(call, 2));
    j.mean = sl_rows_of(sl_call_output(call, 1), 0);
    j.rstd = sl_rows_of(sl_call_output(call, 2), 0);
    sl_cpu_split(cpu, j.rows, grain(&j), layernorm_range, &j);
    return SL_OK;
}

static sl_status run_rmsnorm(const sl_cpu *cpu, const sl_kernel_call *call)
{
    norm_job j = forward_job(cpu, call);
    j.rstd = sl_rows_of(sl_call_output(call, 1), 0);
    sl_cpu_split(cpu, j.rows, grain(&j), rmsnorm_range, &j);
    return SL_OK;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

static void layernorm_grad_x_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    for (int64_t row = begin; row < end; row++)
        j->simd->layernorm_grad_x(sl_rows_at(&j->dy, row), sl_rows_at(&j->x, row), j->w, *sl_rows_at(&j->mean, row),
                                  *sl_rows_at(&j->rstd, row), sl_rows_at(&j->y, row), j->size, j->add);
}

static void rmsnorm_grad_x_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    for (int64_t row = begin; row < end; row++)
        j->simd->rmsnorm_grad_x(sl_rows_at(&j->dy, row), sl_rows_at(&j->x, row), j->w, *sl_rows_at(&j->rstd, row),
                                sl_rows_at(&j->y, row), j->size, j->add);
}

/* dy, x and the statistics; the last of them are at `statistics`. */
static norm_job gradient_job(const sl_cpu *cpu, const sl_kernel_call *call, int statistics, bool layer)
{
    const sl_view *x = sl_call_input(call, 1);
    norm_job j = { .simd = cpu->simd,
                   .dy = sl_rows_of(sl_call_input(call, 0), 1),
                   .x = sl_rows_of(x, 1),
                   .rstd = sl_rows_of(sl_call_input(call, statistics + layer), 0),
                   .rows = sl_row_count(&x->meta, 1),
                   .size = sl_dim_from_last(&x->meta, 1),
                   .add = sl_call_accumulates(call, 0),
                   .add_db = sl_call_accumulates(call, 1) };
    if (layer)
        j.mean = sl_rows_of(sl_call_input(call, statistics), 0);
    return j;
}

static sl_status run_layernorm_grad_x(const sl_cpu *cpu, const sl_kernel_call *call)
{
    norm_job j = gradient_job(cpu, call, 3, true);
    j.w = vector_of(sl_call_input(call, 2));
    j.y = sl_rows_of(sl_call_output(call, 0), 1);
    sl_cpu_split(cpu, j.rows, grain(&j), layernorm_grad_x_range, &j);
    return SL_OK;
}

static sl_status run_rmsnorm_grad_x(const sl_cpu *cpu, const sl_kernel_call *call)
{
    norm_job j = gradient_job(cpu, call, 3, false);
    j.w = vector_of(sl_call_input(call, 2));
    j.y = sl_rows_of(sl_call_output(call, 0), 1);
    sl_cpu_split(cpu, j.rows, grain(&j), rmsnorm_grad_x_range, &j);
    return SL_OK;
}

/* Sums over rows for columns begin..end: short sums first (ROW_BLOCK rows), which keeps the rounding error small. A
 * thread owns its columns, so the number of threads does not change a bit. */
enum { COLUMNS = 512, ROW_BLOCK = 64 };

static void grad_w_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    float dw[COLUMNS], db[COLUMNS], dw_block[COLUMNS], db_block[COLUMNS];
    for (int64_t column = begin, n; column < end; column += n) {
        n = end - column < COLUMNS ? end - column : COLUMNS;
        memset(dw, 0, sizeof dw);
        memset(db, 0, sizeof db);
        for (int64_t start = 0; start < j->rows; start += ROW_BLOCK) {
            int64_t stop = start + ROW_BLOCK < j->rows ? start + ROW_BLOCK : j->rows;
            memset(dw_block, 0, (size_t)n * sizeof *dw_block);
            memset(db_block, 0, (size_t)n * sizeof *db_block);
            for (int64_t row = start; row < stop; row++)
                j->simd->norm_grad_w(sl_rows_at(&j->dy, row) + column, sl_rows_at(&j->x, row) + column,
                                     j->mean.data ? *sl_rows_at(&j->mean, row) : 0, *sl_rows_at(&j->rstd, row),
                                     dw_block, j->db ? db_block : NULL, n);
            j->simd->axpy(1, dw_block, dw, n);
            j->simd->axpy(1, db_block, db, n);
        }
        j->simd->unary(SL_OP_SCALE, 1, 0, dw, NULL, j->dw + column, n, j->add);
        if (j->db)
            j->simd->unary(SL_OP_SCALE, 1, 0, db, NULL, j->db + column, n, j->add_db);
    }
}

static sl_status run_norm_grad_w(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *db = sl_call_output(call, 1);
    norm_job j = gradient_job(cpu, call, 2, call->op == SL_OP_LAYERNORM_GRAD_W);
    j.dw = sl_call_output(call, 0)->data;
    j.db = sl_view_is_none(db) ? NULL : db->data;
    sl_cpu_split(cpu, j.size, SL_GRAIN / (j.rows + 1) + 64, grad_w_range, &j);
    return SL_OK;
}

/* Rows of size 0 have no mean; that is left to the reference. */
static bool accepts(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, call->op == SL_OP_LAYERNORM || call->op == SL_OP_RMSNORM ? 0 : 1);
    return sl_cpu_is_f32(call) && sl_dim_from_last(&x->meta, 1) > 0;
}

const sl_cpu_kernel sl_cpu_layernorm = { .accepts = accepts, .run = run_layernorm, .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_layernorm_grad_x = { .accepts = accepts,
                                                .run = run_layernorm_grad_x,
                                                .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_rmsnorm = { .accepts = accepts, .run = run_rmsnorm, .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_rmsnorm_grad_x = { .accepts = accepts,
                                              .run = run_rmsnorm_grad_x,
                                              .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_norm_grad_w = { .accepts = accepts, .run = run_norm_grad_w, .takes = sl_cpu_takes_rows };
