/* Layer and RMS normalization over rows. */
#include "kernel/cpu/cpu.h"

#include <string.h>

/* A row that is not f32 goes through a buffer on the stack; longer ones are left to the reference. */
enum { LONGEST_HALF = 16384 };

typedef struct norm_job {
    const sl_simd *simd;
    sl_rows dy, x, y, mean, rstd; /* y is dx in the gradients; mean.data is NULL for RMS */
    sl_rows w, b;                 /* one row each, absent if data is NULL */
    sl_rows dw, db;
    int64_t rows, size;
    float eps;
    bool add, add_db;
} norm_job;

static sl_rows vector_of(const sl_view *view)
{
    return sl_view_is_none(view) ? (sl_rows){ .dtype = SL_F32 } : sl_rows_of(view, 1);
}

/* The vector as floats; NULL if it is absent. */
static const float *read_vector(const norm_job *j, const sl_rows *vector, float *buffer)
{
    return vector->data ? sl_rows_read(j->simd, vector, 0, 0, j->size, buffer) : NULL;
}

static float number_at(const norm_job *j, const sl_rows *numbers, int64_t row)
{
    float buffer;
    return *sl_rows_read(j->simd, numbers, row, 0, 1, &buffer);
}

static void put_number(const norm_job *j, const sl_rows *numbers, int64_t row, float value)
{
    float buffer;
    *sl_rows_begin_write(j->simd, numbers, row, 0, 1, false, &buffer) = value;
    sl_rows_end_write(j->simd, numbers, row, 0, 1, &value);
}

static int64_t grain(const norm_job *j)
{
    return SL_GRAIN / (j->size + 1) + 1;
}

static void layernorm_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    float x_row[LONGEST_HALF], y_row[LONGEST_HALF], w_row[LONGEST_HALF], b_row[LONGEST_HALF], mean, rstd;
    const float *w = read_vector(j, &j->w, w_row), *b = read_vector(j, &j->b, b_row);
    for (int64_t row = begin; row < end; row++) {
        const float *x = sl_rows_read(j->simd, &j->x, row, 0, j->size, x_row);
        float *y = sl_rows_begin_write(j->simd, &j->y, row, 0, j->size, false, y_row);
        j->simd->layernorm(x, w, b, j->eps, y, &mean, &rstd, j->size);
        sl_rows_end_write(j->simd, &j->y, row, 0, j->size, y_row);
        put_number(j, &j->mean, row, mean);
        put_number(j, &j->rstd, row, rstd);
    }
}

static void rmsnorm_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    float x_row[LONGEST_HALF], y_row[LONGEST_HALF], w_row[LONGEST_HALF], rstd;
    const float *w = read_vector(j, &j->w, w_row);
    for (int64_t row = begin; row < end; row++) {
        const float *x = sl_rows_read(j->simd, &j->x, row, 0, j->size, x_row);
        float *y = sl_rows_begin_write(j->simd, &j->y, row, 0, j->size, false, y_row);
        j->simd->rmsnorm(x, w, j->eps, y, &rstd, j->size);
        sl_rows_end_write(j->simd, &j->y, row, 0, j->size, y_row);
        put_number(j, &j->rstd, row, rstd);
    }
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

static void grad_x_range(void *context, int64_t begin, int64_t end)
{
    const norm_job *j = context;
    float dy_row[LONGEST_HALF], x_row[LONGEST_HALF], dx_row[LONGEST_HALF], w_row[LONGEST_HALF];
    const float *w = read_vector(j, &j->w, w_row);
    for (int64_t row = begin; row < end; row++) {
        const float *dy = sl_rows_read(j->simd, &j->dy, row, 0, j->size, dy_row);
        const float *x = sl_rows_read(j->simd, &j->x, row, 0, j->size, x_row);
        float *dx = sl_rows_begin_write(j->simd, &j->y, row, 0, j->size, j->add, dx_row);
        float rstd = number_at(j, &j->rstd, row);
        if (j->mean.data)
            j->simd->layernorm_grad_x(dy, x, w, number_at(j, &j->mean, row), rstd, dx, j->size, j->add);
        else
            j->simd->rmsnorm_grad_x(dy, x, w, rstd, dx, j->size, j->add);
        sl_rows_end_write(j->simd, &j->y, row, 0, j->size, dx_row);
    }
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

static sl_status run_grad_x(const sl_cpu *cpu, const sl_kernel_call *call)
{
    norm_job j = gradient_job(cpu, call, 3, call->op == SL_OP_LAYERNORM_GRAD_X);
    j.w = vector_of(sl_call_input(call, 2));
    j.y = sl_rows_of(sl_call_output(call, 0), 1);
    sl_cpu_split(cpu, j.rows, grain(&j), grad_x_range, &j);
    return SL_OK;
}

static void add_grad_w(const void *context, int64_t row, int64_t count, float *sums)
{
    const norm_job *j = context;
    float dy_row[LONGEST_HALF], x_row[LONGEST_HALF];
    for (int64_t i = row; i < row + count; i++)
        j->simd->norm_grad_w(sl_rows_read(j->simd, &j->dy, i, 0, j->size, dy_row),
                             sl_rows_read(j->simd, &j->x, i, 0, j->size, x_row),
                             j->mean.data ? number_at(j, &j->mean, i) : 0, number_at(j, &j->rstd, i), sums,
                             j->db.data ? sums + j->size : NULL, j->size);
}

/* Vector 0 is dw, vector 1 is db. */
static void put_grad_w(const void *context, int vector, int64_t column, int64_t n, const float *sums)
{
    const norm_job *j = context;
    const sl_rows *to = vector == 0 ? &j->dw : &j->db;
    bool add = vector == 0 ? j->add : j->add_db;
    float buffer[SL_SUM_RUN];
    float *at = sl_rows_begin_write(j->simd, to, 0, column, n, add, buffer);
    j->simd->unary(SL_OP_SCALE, 1, 0, sums, NULL, at, n, add);
    sl_rows_end_write(j->simd, to, 0, column, n, buffer);
}

static sl_status run_norm_grad_w(const sl_cpu *cpu, const sl_kernel_call *call)
{
    norm_job j = gradient_job(cpu, call, 2, call->op == SL_OP_LAYERNORM_GRAD_W);
    j.dw = vector_of(sl_call_output(call, 0));
    j.db = vector_of(sl_call_output(call, 1));
    sl_row_sums_run(cpu, &(sl_row_sums){ .vectors = j.db.data ? 2 : 1,
                                         .rows = j.rows,
                                         .columns = j.size,
                                         .scratch = call->scratch,
                                         .add = add_grad_w,
                                         .put = put_grad_w,
                                         .context = &j });
    return SL_OK;
}

static size_t scratch_norm_grad_w(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_meta *x = &sl_call_input(call, 1)->meta;
    (void)cpu;
    return sl_row_sums_bytes(2, sl_row_count(x, 1), sl_dim_from_last(x, 1));
}

/* Rows of size 0 have no mean; that is left to the reference. */
static bool accepts(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, call->op == SL_OP_LAYERNORM || call->op == SL_OP_RMSNORM ? 0 : 1);
    int64_t size = sl_dim_from_last(&x->meta, 1);
    return sl_cpu_is_narrow(call) && size > 0 && (size <= LONGEST_HALF || !sl_cpu_has_halves(call));
}

#define NORM(run_)                                                                                                     \
    {                                                                                                                  \
        .accepts = accepts, .run = run_, .halves = true, .takes = sl_cpu_takes_rows                                    \
    }
const sl_cpu_kernel sl_cpu_layernorm = NORM(run_layernorm);
const sl_cpu_kernel sl_cpu_rmsnorm = NORM(run_rmsnorm);
const sl_cpu_kernel sl_cpu_norm_grad_x = NORM(run_grad_x);
const sl_cpu_kernel sl_cpu_norm_grad_w = { .accepts = accepts,
                                           .run = run_norm_grad_w,
                                           .halves = true,
                                           .takes = sl_cpu_takes_rows,
                                           .scratch = scratch_norm_grad_w };
