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

/* ---- Sums over rows -------------------------------------------------------------------------- */

static int64_t block_count(int64_t rows)
{
    return (rows + SL_ROW_BLOCK - 1) / SL_ROW_BLOCK;
}

size_t sl_row_sums_bytes(int vectors, int64_t rows, int64_t columns)
{
    return (size_t)(vectors * block_count(rows) * columns) * sizeof(float);
}

typedef struct row_sums_job {
    const sl_simd *simd;
    const sl_row_sums *sums;
} row_sums_job;

static float *block_of(const sl_row_sums *sums, int64_t block)
{
    return (float *)sums->scratch + block * sums->vectors * sums->columns;
}

static void blocks_range(void *context, int64_t begin, int64_t end)
{
    const sl_row_sums *sums = ((const row_sums_job *)context)->sums;
    for (int64_t block = begin; block < end; block++) {
        int64_t row = block * SL_ROW_BLOCK, left = sums->rows - row;
        memset(block_of(sums, block), 0, (size_t)(sums->vectors * sums->columns) * sizeof(float));
        sums->add(sums->context, row, left < SL_ROW_BLOCK ? left : SL_ROW_BLOCK, block_of(sums, block));
    }
}

/* Runs of columns, those of the first vector first. */
static int64_t runs_a_vector(const sl_row_sums *sums)
{
    return (sums->columns + SL_SUM_RUN - 1) / SL_SUM_RUN;
}

static void add_blocks_range(void *context, int64_t begin, int64_t end)
{
    const row_sums_job *job = context;
    const sl_row_sums *sums = job->sums;
    float total[SL_SUM_RUN];
    for (int64_t run = begin; run < end; run++) {
        int vector = (int)(run / runs_a_vector(sums));
        int64_t column = run % runs_a_vector(sums) * SL_SUM_RUN, left = sums->columns - column;
        int64_t n = left < SL_SUM_RUN ? left : SL_SUM_RUN;
        memset(total, 0, (size_t)n * sizeof *total);
        for (int64_t block = 0; block < block_count(sums->rows); block++)
            job->simd->axpy(1, block_of(sums, block) + vector * sums->columns + column, total, n);
        sums->put(sums->context, vector, column, n, total);
    }
}

void sl_row_sums_run(const sl_cpu *cpu, const sl_row_sums *sums)
{
    row_sums_job job = { .simd = cpu->simd, .sums = sums };
    int64_t blocks = block_count(sums->rows), width = sums->vectors * sums->columns;
    sl_cpu_split(cpu, blocks, SL_GRAIN / (SL_ROW_BLOCK * width + 1) + 1, blocks_range, &job);
    sl_cpu_split(cpu, sums->vectors * runs_a_vector(sums), SL_GRAIN / (SL_SUM_RUN * (blocks + 1)) + 1, add_blocks_range,
                 &job);
}

/* ---- Reductions ------------------------------------------------------------------------------ */

/* Short sums first: they keep the rounding error small. */
enum { RUN = 4096 };

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

/* Adds rows row..row+count of an outer block, columns column..column+n of them. Rows of f16 are widened a few at a time. */
static void add_rows(const reduce_job *j, int64_t outer, int64_t row, int64_t count, int64_t column, int64_t n,
                     float *sums)
{
    enum { WIDENED = 4 };
    float buffer[WIDENED][SL_SUM_RUN];
    const sl_rows *x = &j->p.outer;
    int64_t offset = row * j->p.reduced_stride + column;
    if (x->dtype == SL_F32) {
        j->simd->sum_rows(sl_rows_at(x, outer) + offset, count, j->p.reduced_stride, sums, n);
        return;
    }
    if (x->dtype == SL_BF16) {
        const uint16_t *rows = (const uint16_t *)x->data + sl_rows_offset(x, outer) + offset;
        j->simd->sum_bf16_rows(rows, count, j->p.reduced_stride, sums, n);
        return;
    }
    for (int64_t i = 0, some; i < count; i += some) {
        some = count - i < WIDENED ? count - i : WIDENED;
        for (int64_t each = 0; each < some; each++)
            sl_rows_read(j->simd, x, outer, offset + (i + each) * j->p.reduced_stride, n, buffer[each]);
        j->simd->sum_rows(buffer[0], some, SL_SUM_RUN, sums, n);
    }
}

static void put_columns(const reduce_job *j, int64_t outer, int64_t column, int64_t n, const float *sums)
{
    float buffer[SL_SUM_RUN];
    float *y = sl_rows_begin_write(j->simd, &j->y, outer, column, n, j->add, buffer);
    j->simd->unary(SL_OP_SCALE, (float)j->factor, 0, sums, NULL, y, n, j->add);
    sl_rows_end_write(j->simd, &j->y, outer, column, n, buffer);
}

/* Columns begin..end of every outer block; a thread owns its columns. */
static void columns_range(void *context, int64_t begin, int64_t end)
{
    const reduce_job *j = context;
    float block[SL_SUM_RUN], sums[SL_SUM_RUN];
    for (int64_t outer = 0; outer < j->p.outer_count; outer++) {
        for (int64_t column = begin, n; column < end; column += n) {
            n = end - column < SL_SUM_RUN ? end - column : SL_SUM_RUN;
            memset(sums, 0, (size_t)n * sizeof *sums);
            for (int64_t row = 0; row < j->p.reduced; row += SL_ROW_BLOCK) {
                int64_t left = j->p.reduced - row;
                memset(block, 0, (size_t)n * sizeof *block);
                add_rows(j, outer, row, left < SL_ROW_BLOCK ? left : SL_ROW_BLOCK, column, n, block);
                j->simd->axpy(1, block, sums, n);
            }
            put_columns(j, outer, column, n, sums);
        }
    }
}

/* One outer block of many rows: threads share out its rows, whose elements are contiguous. The order of additions is that
 * of columns_range. */
static bool sums_rows(const pattern *p)
{
    return p->outer_count == 1 && p->inner > 1 && p->reduced > SL_ROW_BLOCK;
}

static void add_block(const void *context, int64_t row, int64_t count, float *sums)
{
    const reduce_job *j = context;
    for (int64_t column = 0; column < j->p.inner; column += SL_SUM_RUN) {
        int64_t left = j->p.inner - column;
        add_rows(j, 0, row, count, column, left < SL_SUM_RUN ? left : SL_SUM_RUN, sums + column);
    }
}

static void put_block(const void *context, int vector, int64_t column, int64_t n, const float *sums)
{
    (void)vector;
    put_columns(context, 0, column, n, sums);
}

static size_t scratch_reduce(const sl_cpu *cpu, const sl_kernel_call *call)
{
    pattern p;
    (void)cpu;
    return packed_pattern(call, &p) && sums_rows(&p) ? sl_row_sums_bytes(1, p.reduced, p.inner) : 0;
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
    else if (sums_rows(&j.p))
        sl_row_sums_run(cpu, &(sl_row_sums){ .vectors = 1,
                                             .rows = j.p.reduced,
                                             .columns = j.p.inner,
                                             .scratch = call->scratch,
                                             .add = add_block,
                                             .put = put_block,
                                             .context = &j });
    else
        sl_cpu_split(cpu, j.p.inner, SL_GRAIN / (j.p.reduced * j.p.outer_count + 1) + 32, columns_range, &j);
    return SL_OK;
}

const sl_cpu_kernel sl_cpu_sum = {
    .accepts = accepts, .run = run_reduce, .halves = true, .takes = takes, .scratch = scratch_reduce
};
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
