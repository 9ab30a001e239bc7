/* Sums, means and maxima. Dims are merged into [outer kept, reduced, inner kept]; shapes that do not fit that pattern
 * are left to the reference. */
#include "kernel/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* x as [outer.., reduced, inner]; the result lies as [outer.., inner]. */
typedef struct pattern {
    sl_rows outer; /* of x */
    int64_t outer_count, reduced, reduced_stride, inner;
} pattern;

typedef struct reduce_job {
    const sl_simd *simd;
    pattern p;
    sl_rows y; /* one row of p.inner elements per outer */
    double factor;
    bool add, max;
} reduce_job;

/* The dims of x that are summed over. */
static uint32_t reduced_dims(const sl_kernel_call *call)
{
    const sl_shape *x = &sl_call_input(call, 0)->meta.shape, *y = &sl_call_output(call, 0)->meta.shape;
    if (call->op != SL_OP_SUM_TO)
        return call->attrs.dims;
    uint32_t dims = 0;
    int added = x->rank - y->rank;
    for (int i = 0; i < x->rank; i++) {
        if (i < added || y->dims[i - added] != x->dims[i])
            dims |= 1u << i;
    }
    return dims;
}

/* Takes dims from the end while they are (not) reduced and lie without gaps; returns the dim where it stopped. */
static int take(const sl_meta *meta, uint32_t dims, bool reduced, int end, int64_t *count, int64_t *stride)
{
    *count = 1;
    *stride = 1;
    bool first = true;
    while (end > 0) {
        int64_t size = meta->shape.dims[end - 1], step = meta->strides[end - 1];
        if (size != 1) {
            if ((dims >> (end - 1) & 1) != reduced || (!first && step != *stride * *count))
                break;
            if (first)
                *stride = step;
            first = false;
            *count *= size;
        }
        end--;
    }
    return end;
}

/* The pattern of the call with x lying as meta says; false if there is none. */
static bool find_pattern(const sl_kernel_call *call, const sl_meta *meta, pattern *p)
{
    uint32_t dims = reduced_dims(call);
    int64_t stride;
    int end = take(meta, dims, false, meta->shape.rank, &p->inner, &stride);
    bool fits = p->inner == 1 || stride == 1;
    end = take(meta, dims, true, end, &p->reduced, &p->reduced_stride);
    for (int i = 0; i < end; i++)
        fits = fits && (meta->shape.dims[i] == 1 || !(dims >> i & 1));
    if (p->inner == 1 && p->reduced > 1)
        fits = fits && p->reduced_stride == 1;
    p->outer_count = sl_row_count(meta, meta->shape.rank - end);
    sl_view x = { .data = sl_call_input(call, 0)->data, .meta = *meta };
    p->outer = sl_rows_of(&x, meta->shape.rank - end);
    return fits && sl_meta_count(meta) > 0;
}

/* The one that a contiguous x has. */
static bool packed_pattern(const sl_kernel_call *call, pattern *p)
{
    const sl_meta *x = &sl_call_input(call, 0)->meta;
    sl_meta packed = sl_meta_contiguous(x->dtype, &x->shape);
    return find_pattern(call, &packed, p);
}

static bool accepts(const sl_kernel_call *call)
{
    pattern p;
    return sl_cpu_is_narrow(call) && packed_pattern(call, &p);
}

static bool accepts_max(const sl_kernel_call *call)
{
    pattern p;
    return sl_cpu_is_narrow(call) && packed_pattern(call, &p) && p.inner == 1;
}

/* x may have gaps between its rows if that leaves the pattern, and so the order of additions, as it is. */
static bool takes(const sl_kernel_call *call, const sl_view *view)
{
    pattern own, packed;
    if (view == sl_call_output(call, 0))
        return sl_meta_is_contiguous(&view->meta);
    return find_pattern(call, &view->meta, &own) && packed_pattern(call, &packed) && own.inner == packed.inner &&
           own.reduced == packed.reduced;
}

/* Short sums first: they keep the rounding error small. */
enum { RUN = 4096, COLUMNS = 512, ROW_BLOCK = 64 };

/* One contiguous run: short sums added in double. */
static float reduce_run(const reduce_job *j, int64_t outer)
{
    float buffer[RUN], highest = -INFINITY;
    double total = 0;
    for (int64_t i = 0; i < j->p.reduced; i += RUN) {
        int64_t n = j->p.reduced - i < RUN ? j->p.reduced - i : RUN;
        const float *x = sl_rows_read(j->simd, &j->p.outer, outer, i, n, buffer);
        if (j->max) {
            float high = j->simd->highest(x, n);
            highest = high > highest || isnan(high) ? high : highest;
        } else {
            total += (double)j->simd->sum(x, n);
        }
    }
    return j->max ? highest : (float)(total * j->factor);
}

static void runs_range(void *context, int64_t begin, int64_t end)
{
    const reduce_job *j = context;
    for (int64_t outer = begin; outer < end; outer++) {
        float buffer, value = reduce_run(j, outer);
        float *y = sl_rows_begin_write(j->simd, &j->y, outer, 0, 1, j->add, &buffer);
        *y = j->add ? *y + value : value;
        sl_rows_end_write(j->simd, &j->y, outer, 0, 1, &buffer);
    }
}

/* The rows of a block in f32, COLUMNS at a time: widened if they are not. */
typedef struct block_rows {
    const float *data;
    int64_t stride;
} block_rows;

static block_rows read_block(const reduce_job *j, const sl_rows *x, int64_t outer, int64_t offset, int64_t rows,
                             int64_t n, float (*buffer)[COLUMNS])
{
    if (x->dtype == SL_F32)
        return (block_rows){ sl_rows_at(x, outer) + offset, j->p.reduced_stride };
    for (int64_t row = 0; row < rows; row++)
        sl_rows_read(j->simd, x, outer, offset + row * j->p.reduced_stride, n, buffer[row]);
    return (block_rows){ buffer[0], COLUMNS };
}

/* sums[0..n) = sum over the reduced dim of columns `column`.. */
static void sum_columns(const reduce_job *j, int64_t outer, int64_t column, float *sums, int64_t n)
{
    float block[COLUMNS], buffer[ROW_BLOCK][COLUMNS];
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t row = 0; row < j->p.reduced; row += ROW_BLOCK) {
        int64_t left = j->p.reduced - row, rows = left < ROW_BLOCK ? left : ROW_BLOCK;
        block_rows x = read_block(j, &j->p.outer, outer, row * j->p.reduced_stride + column, rows, n, buffer);
        memset(block, 0, (size_t)n * sizeof *block);
        j->simd->sum_rows(x.data, rows, x.stride, block, n);
        j->simd->axpy(1, block, sums, n);
    }
}

/* Columns begin..end of every outer block; a thread owns its columns. */
static void columns_range(void *context, int64_t begin, int64_t end)
{
    const reduce_job *j = context;
    float sums[COLUMNS], buffer[COLUMNS];
    for (int64_t outer = 0; outer < j->p.outer_count; outer++) {
        for (int64_t column = begin, n; column < end; column += n) {
            n = end - column < COLUMNS ? end - column : COLUMNS;
            sum_columns(j, outer, column, sums, n);
            float *y = sl_rows_begin_write(j->simd, &j->y, outer, column, n, j->add, buffer);
            j->simd->unary(SL_OP_SCALE, (float)j->factor, 0, sums, NULL, y, n, j->add);
            sl_rows_end_write(j->simd, &j->y, outer, column, n, buffer);
        }
    }
}

static sl_status run_reduce(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *y = sl_call_output(call, 0);
    reduce_job j = { .simd = cpu->simd, .add = sl_call_accumulates(call, 0), .max = call->op == SL_OP_MAX };
    find_pattern(call, &sl_call_input(call, 0)->meta, &j.p);
    j.factor = call->op == SL_OP_MEAN ? 1 / (double)j.p.reduced : 1;
    j.y = (sl_rows){
        .data = y->data, .dtype = y->meta.dtype, .rank = 1, .dims = { j.p.outer_count }, .strides = { j.p.inner }
    };
    if (j.p.inner == 1)
        sl_cpu_split(cpu, j.p.outer_count, SL_GRAIN / (j.p.reduced + 1) + 1, runs_range, &j);
    else
        sl_cpu_split(cpu, j.p.inner, SL_GRAIN / (j.p.reduced * j.p.outer_count + 1) + 32, columns_range, &j);
    return SL_OK;
}

const sl_cpu_kernel sl_cpu_sum = { .accepts = accepts, .run = run_reduce, .halves = true, .takes = takes };
const sl_cpu_kernel sl_cpu_max = { .accepts = accepts_max, .run = run_reduce, .halves = true, .takes = takes };

/* ---- Sum of squares -------------------------------------------------------------------------- */

static bool accepts_square_sum(const sl_kernel_call *call)
{
    sl_dtype dtype = sl_call_input(call, 0)->meta.dtype;
    return dtype == SL_F32 || sl_dtype_is_half(dtype);
}

static bool takes_contiguous(const sl_kernel_call *call, const sl_view *view)
{
    (void)call;
    return sl_meta_is_contiguous(&view->meta);
}

/* Runs of a length that does not depend on the number of threads, so that neither does the result: threads share out the
 * runs, and their sums are added one after the other. */
enum { SQUARE_RUN = 1 << 20 };

typedef struct square_job {
    const sl_simd *simd;
    const float *x;
    int64_t count;
    double *sums; /* one a run */
} square_job;

static double run_of_squares(const sl_simd *simd, const float *x, int64_t count, int64_t run)
{
    int64_t first = run * SQUARE_RUN, left = count - first;
    return simd->square_sum(x + first, left < SQUARE_RUN ? left : SQUARE_RUN);
}

static void square_range(void *context, int64_t begin, int64_t end)
{
    const square_job *j = context;
    for (int64_t i = begin; i < end; i++)
        j->sums[i] = run_of_squares(j->simd, j->x, j->count, i);
}

static int64_t square_runs(const sl_kernel_call *call)
{
    return (sl_meta_count(&sl_call_input(call, 0)->meta) + SQUARE_RUN - 1) / SQUARE_RUN;
}

static size_t scratch_square_sum(const sl_cpu *cpu, const sl_kernel_call *call)
{
    (void)cpu;
    int64_t runs = square_runs(call);
    return runs > 1 ? (size_t)runs * sizeof(double) : 0;
}

static sl_status run_square_sum(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0);
    double *y = sl_call_output(call, 0)->data, sum = 0, only;
    int64_t runs = square_runs(call);
    square_job j = {
        .simd = cpu->simd, .x = x->data, .count = sl_meta_count(&x->meta), .sums = runs > 1 ? call->scratch : &only
    };
    sl_cpu_split(cpu, runs, 1, square_range, &j);
    for (int64_t i = 0; i < runs; i++)
        sum += j.sums[i];
    *y = sl_call_accumulates(call, 0) ? *y + sum : sum;
    return SL_OK;
}

/* Several calls: their runs are shared out as if they were one tensor's. */
typedef struct squares_job {
    const sl_simd *simd;
    const sl_kernel_call *calls;
    int count;
} squares_job;

/* Where the sum of a run goes: a call with a single run has no scratch. */
static double *sums_of_runs(const sl_kernel_call *call)
{
    return square_runs(call) > 1 ? call->scratch : sl_call_output(call, 0)->data;
}

static void squares_range(void *context, int64_t begin, int64_t end)
{
    const squares_job *j = context;
    int64_t before = 0; /* runs of the calls so far */
    for (int i = 0; i < j->count && before < end; i++) {
        const sl_view *x = sl_call_input(&j->calls[i], 0);
        int64_t runs = square_runs(&j->calls[i]);
        int64_t first = begin > before ? begin - before : 0, last = end - before < runs ? end - before : runs;
        for (int64_t run = first; run < last; run++)
            sums_of_runs(&j->calls[i])[run] = run_of_squares(j->simd, x->data, sl_meta_count(&x->meta), run);
        before += runs;
    }
}

bool sl_cpu_square_sums(const sl_cpu *cpu, const sl_kernel_call *calls, int count)
{
    squares_job j = { .simd = cpu->simd, .calls = calls, .count = count };
    int64_t runs = 0;
    for (int i = 0; i < count; i++) {
        const sl_view *x = calls[i].op == SL_OP_SQUARE_SUM ? sl_call_input(&calls[i], 0) : NULL;
        if (!x || x->meta.dtype != SL_F32 || !sl_meta_is_contiguous(&x->meta) || sl_call_accumulates(&calls[i], 0) ||
            calls[i].scratch_bytes < scratch_square_sum(cpu, &calls[i]))
            return false;
        runs += square_runs(&calls[i]);
    }
    sl_cpu_split(cpu, runs, 1, squares_range, &j);
    for (int i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t run = 0; run < square_runs(&calls[i]); run++)
            sum += sums_of_runs(&calls[i])[run];
        *(double *)sl_call_output(&calls[i], 0)->data = sum;
    }
    return true;
}

const sl_cpu_kernel sl_cpu_square_sum = {
    .accepts = accepts_square_sum, .run = run_square_sum, .takes = takes_contiguous, .scratch = scratch_square_sum
};
