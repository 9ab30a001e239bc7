/* Rows, the split over threads, and loops over elements of strided tensors. */
#include "kernel/cpu/cpu.h"

#include <stdatomic.h>

sl_rows sl_rows_of(const sl_view *view, int inner)
{
    const sl_meta *meta = &view->meta;
    sl_rows rows = { .data = view->data, .dtype = meta->dtype, .rank = 0 };
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

static void *element_of(const sl_rows *rows, int64_t row, int64_t first)
{
    return (char *)rows->data + (sl_rows_offset(rows, row) + first) * (int64_t)sl_dtype_size(rows->dtype);
}

const float *sl_rows_read(const sl_simd *simd, const sl_rows *rows, int64_t row, int64_t first, int64_t n,
                          float *buffer)
{
    const void *from = element_of(rows, row, first);
    if (rows->dtype == SL_F32)
        return from;
    simd->from_half(rows->dtype, from, buffer, n);
    return buffer;
}

float *sl_rows_begin_write(const sl_simd *simd, const sl_rows *rows, int64_t row, int64_t first, int64_t n, bool add,
                           float *buffer)
{
    void *to = element_of(rows, row, first);
    if (rows->dtype == SL_F32)
        return to;
    if (add)
        simd->from_half(rows->dtype, to, buffer, n);
    return buffer;
}

void sl_rows_end_write(const sl_simd *simd, const sl_rows *rows, int64_t row, int64_t first, int64_t n,
                       const float *buffer)
{
    if (rows->dtype != SL_F32)
        simd->to_half(rows->dtype, buffer, element_of(rows, row, first), n);
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* Ranges a thread if there is enough work: those that are done early take more. */
enum { RANGES = 4 };

typedef struct split_job {
    int64_t count;
    int ranges;
    atomic_int next; /* range that nobody has taken */
    sl_range_body body;
    void *context;
} split_job;

static void run_part(void *context, int part, int parts)
{
    split_job *job = context;
    (void)part;
    (void)parts;
    for (int i = atomic_fetch_add(&job->next, 1); i < job->ranges; i = atomic_fetch_add(&job->next, 1)) {
        int64_t start, length;
        sl_chunk_range(job->count, job->ranges, i, &start, &length);
        job->body(job->context, start, start + length);
    }
}

void sl_cpu_split(const sl_cpu *cpu, int64_t count, int64_t grain, sl_range_body body, void *context)
{
    int threads = sl_pool_threads(cpu->pool);
    int64_t worth = count / (grain > 0 ? grain : 1);
    int parts = worth < 1 ? 1 : worth < threads ? (int)worth : threads;
    split_job job = { .count = count, .body = body, .context = context };
    job.ranges = parts > 1 && worth >= (int64_t)RANGES * threads ? RANGES * threads : parts;
    if (count > 0)
        sl_pool_run(cpu->pool, parts, run_part, &job);
}

/* ---- Loops ----------------------------------------------------------------------------------- */

enum { BUFFER = 512 }; /* elements gathered at a time */

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
    loop->dtypes[arg] = view->meta.dtype;
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

/* Drops dims of size 1 and joins neighbors that lie like one dim in every argument. */
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
    const sl_simd *simd;
    const sl_loop *loop;
    sl_loop_body body;
    sl_loop_bf16 bf16; /* NULL, or it takes all arguments as they lie */
    const void *context;
    bool gathers; /* else: some argument's last dim is strided or not f32 */
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

static bool is_gathered(const sl_loop *loop, int arg)
{
    return loop->dtypes[arg] != SL_F32 || loop->strides[arg][loop->rank - 1] != 1;
}

/* n elements, `stride` apart, into the buffer as floats. */
static void gather(const sl_simd *simd, sl_dtype dtype, const void *from, int64_t stride, float *to, int64_t n)
{
    uint16_t halves[BUFFER];
    const uint16_t *run = from;
    if (dtype == SL_F32) {
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)from)[i * stride];
        return;
    }
    for (int64_t i = 0; stride != 1 && i < n; i++)
        halves[i] = run[i * stride];
    simd->from_half(dtype, stride == 1 ? run : halves, to, n);
}

static void scatter(const sl_simd *simd, sl_dtype dtype, const float *from, void *to, int64_t stride, int64_t n)
{
    uint16_t halves[BUFFER], *run = to;
    if (dtype == SL_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i * stride] = from[i];
        return;
    }
    simd->to_half(dtype, from, stride == 1 ? run : halves, n);
    for (int64_t i = 0; stride != 1 && i < n; i++)
        run[i * stride] = halves[i];
}

/* Up to BUFFER elements of one row through buffers. */
static void run_gathered(const loop_job *job, void *const *at, int64_t first, int64_t n)
{
    const sl_loop *loop = job->loop;
    float buffers[SL_LOOP_ARGS][BUFFER];
    float *runs[SL_LOOP_ARGS];
    for (int arg = 0; arg < loop->args; arg++) {
        bool gathered = is_gathered(loop, arg);
        runs[arg] = gathered ? buffers[arg] : at[arg];
        if (gathered && loop->use[arg] != SL_LOOP_WRITE)
            gather(job->simd, loop->dtypes[arg], at[arg], loop->strides[arg][loop->rank - 1], buffers[arg], n);
    }
    job->body(job->context, runs, first, n);
    for (int arg = 0; arg < loop->args; arg++) {
        if (is_gathered(loop, arg) && loop->use[arg] != SL_LOOP_READ)
            scatter(job->simd, loop->dtypes[arg], buffers[arg], at[arg], loop->strides[arg][loop->rank - 1], n);
    }
}

static void run_as_it_lies(const loop_job *job, void *const *at, int64_t first, int64_t n)
{
    float *floats[SL_LOOP_ARGS];
    uint16_t *halves[SL_LOOP_ARGS];
    for (int arg = 0; arg < job->loop->args; arg++) {
        if (job->bf16)
            halves[arg] = at[arg];
        else
            floats[arg] = at[arg];
    }
    if (job->bf16)
        job->bf16(job->context, halves, n);
    else
        job->body(job->context, floats, first, n);
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
        void *at[SL_LOOP_ARGS];
        for (int arg = 0; arg < loop->args; arg++) {
            int64_t offset = offset_of(loop, arg, row) + column * loop->strides[arg][loop->rank - 1];
            at[arg] = (char *)loop->data[arg] + offset * (int64_t)sl_dtype_size(loop->dtypes[arg]);
        }
        if (job->gathers)
            run_gathered(job, at, i, n);
        else
            run_as_it_lies(job, at, i, n);
    }
}

static bool all_bf16(const sl_loop *loop)
{
    for (int arg = 0; arg < loop->args; arg++) {
        if (loop->dtypes[arg] != SL_BF16 || loop->strides[arg][loop->rank - 1] != 1)
            return false;
    }
    return true;
}

void sl_loop_run(const sl_cpu *cpu, sl_loop *loop, sl_loop_body body, sl_loop_bf16 bf16, const void *context)
{
    loop_job job = { .simd = cpu->simd, .loop = loop, .body = body, .context = context };
    int64_t count = 1;
    merge_dims(loop);
    for (int i = 0; i < loop->rank; i++)
        count *= loop->dims[i];
    job.bf16 = all_bf16(loop) ? bf16 : NULL;
    for (int arg = 0; !job.bf16 && arg < loop->args; arg++)
        job.gathers = job.gathers || is_gathered(loop, arg);
    sl_cpu_split(cpu, count, SL_GRAIN, run_range, &job);
}
