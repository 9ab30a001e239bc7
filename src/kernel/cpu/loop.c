/* Rows, the split over threads, and loops over elements of strided tensors. */
#include "kernel/cpu/cpu.h"

sl_rows sl_rows_of(const sl_view *view, int inner)
{
    const sl_meta *meta = &view->meta;
    sl_rows rows = { .data = view->data, .rank = 0 };
    for (int i = 0; i < meta->shape.rank - inner; i++) {
        int64_t size = meta->shape.dims[i], stride = meta->strides[i];
        if (size == 1)
            continue;
        if (rows.rank > 0 && rows.strides[rows.rank - 1] == size * stride) {
            rows.dims[rows.rank - 1] *= size;
            rows.strides[rows.rank - 1] = stride;
        } else {
            rows.dims[rows.rank] = size;
            rows.strides[rows.rank++] = stride;
        }
    }
    if (rows.rank == 0) {
        rows.dims[0] = 1;
        rows.strides[0] = 0;
        rows.rank = 1;
    }
    return rows;
}

/* ---- Threads --------------------------------------------------------------------------------- */

typedef struct split_job {
    int64_t count;
    sl_range_body body;
    void *context;
} split_job;

static void run_part(void *context, int part, int parts)
{
    const split_job *job = context;
    int64_t start, length;
    sl_chunk_range(job->count, parts, part, &start, &length);
    job->body(job->context, start, start + length);
}

void sl_cpu_split(const sl_cpu *cpu, int64_t count, int64_t grain, sl_range_body body, void *context)
{
    split_job job = { count, body, context };
    int threads = sl_pool_threads(cpu->pool);
    int64_t worth = count / (grain > 0 ? grain : 1);
    int parts = worth < 1 ? 1 : worth < threads ? (int)worth : threads;
    if (count > 0)
        sl_pool_run(cpu->pool, parts, run_part, &job);
}

/* ---- Loops ----------------------------------------------------------------------------------- */

enum { BUFFER = 256 }; /* elements gathered at a time */

void sl_loop_start(sl_loop *loop, const sl_shape *shape)
{
    loop->args = 0;
    loop->rank = shape->rank;
    for (int i = 0; i < shape->rank; i++)
        loop->dims[i] = shape->dims[i];
}

void sl_loop_add(sl_loop *loop, const sl_view *view, sl_loop_use use)
{
    sl_shape shape = { .rank = loop->rank };
    for (int i = 0; i < loop->rank; i++)
        shape.dims[i] = loop->dims[i];
    sl_meta meta = sl_meta_stretched(&view->meta, &shape);
    int arg = loop->args++;
    loop->data[arg] = view->data;
    loop->use[arg] = use;
    for (int i = 0; i < loop->rank; i++)
        loop->strides[arg][i] = meta.strides[i];
}

static bool merges(const sl_loop *loop, int outer, int inner)
{
    for (int arg = 0; arg < loop->args; arg++) {
        if (loop->strides[arg][outer] != loop->dims[inner] * loop->strides[arg][inner])
            return false;
    }
    return true;
}

/* Drops dims of size 1 and joins neighbours that lie like one dim in every argument. */
static void merge_dims(sl_loop *loop)
{
    int rank = 0;
    for (int i = 0; i < loop->rank; i++) {
        if (loop->dims[i] == 1)
            continue;
        bool joined = rank > 0 && merges(loop, rank - 1, i);
        int to = joined ? rank - 1 : rank++;
        loop->dims[to] = joined ? loop->dims[to] * loop->dims[i] : loop->dims[i];
        for (int arg = 0; arg < loop->args; arg++)
            loop->strides[arg][to] = loop->strides[arg][i];
    }
    if (rank == 0) {
        loop->dims[0] = 1;
        for (int arg = 0; arg < loop->args; arg++)
            loop->strides[arg][0] = 1;
        rank = 1;
    }
    loop->rank = rank;
}

typedef struct loop_job {
    const sl_loop *loop;
    sl_loop_body body;
    const void *context;
    bool gathers; /* some argument's last dim is strided */
} loop_job;

static int64_t offset_of(const sl_loop *loop, int arg, int64_t row)
{
    int64_t offset = 0;
    for (int i = loop->rank - 2; i >= 0; i--) {
        offset += row % loop->dims[i] * loop->strides[arg][i];
        row /= loop->dims[i];
    }
    return offset;
}

/* Up to BUFFER elements of one row through buffers. */
static void run_gathered(const loop_job *job, float *const *at, int64_t first, int64_t n)
{
    const sl_loop *loop = job->loop;
    float buffers[SL_LOOP_ARGS][BUFFER];
    float *runs[SL_LOOP_ARGS];
    for (int arg = 0; arg < loop->args; arg++) {
        int64_t stride = loop->strides[arg][loop->rank - 1];
        runs[arg] = stride == 1 ? at[arg] : buffers[arg];
        for (int64_t i = 0; stride != 1 && loop->use[arg] != SL_LOOP_WRITE && i < n; i++)
            buffers[arg][i] = at[arg][i * stride];
    }
    job->body(job->context, runs, first, n);
    for (int arg = 0; arg < loop->args; arg++) {
        int64_t stride = loop->strides[arg][loop->rank - 1];
        for (int64_t i = 0; stride != 1 && loop->use[arg] != SL_LOOP_READ && i < n; i++)
            at[arg][i * stride] = buffers[arg][i];
    }
}

static void run_range(void *context, int64_t begin, int64_t end)
{
    const loop_job *job = context;
    const sl_loop *loop = job->loop;
    int64_t size = loop->dims[loop->rank - 1];
    for (int64_t i = begin, n; i < end; i += n) {
        int64_t row = i / size, column = i % size;
        n = size - column < end - i ? size - column : end - i;
        if (job->gathers && n > BUFFER)
            n = BUFFER;
        float *at[SL_LOOP_ARGS];
        for (int arg = 0; arg < loop->args; arg++)
            at[arg] = loop->data[arg] + offset_of(loop, arg, row) + column * loop->strides[arg][loop->rank - 1];
        if (job->gathers)
            run_gathered(job, at, i, n);
        else
            job->body(job->context, at, i, n);
    }
}

void sl_loop_run(const sl_cpu *cpu, sl_loop *loop, sl_loop_body body, const void *context)
{
    loop_job job = { loop, body, context, false };
    int64_t count = 1;
    merge_dims(loop);
    for (int i = 0; i < loop->rank; i++)
        count *= loop->dims[i];
    for (int arg = 0; arg < loop->args; arg++)
        job.gathers = job.gathers || loop->strides[arg][loop->rank - 1] != 1;
    sl_cpu_split(cpu, count, SL_GRAIN, run_range, &job);
}
