/* MATMUL: one product per block of the leading dims, the blocks shared out among the threads. */
#include "kernel/cpu/gemm.h"

typedef struct matmul_job {
    const sl_simd *simd;
    sl_gemm gemm; /* sizes and strides of every block */
    sl_rows a, b, c;
    void *scratch;
    size_t bytes; /* of one thread */
    int64_t count;
} matmul_job;

/* The operand with c's leading dims and its own last two. */
static sl_rows stretched_rows(const sl_view *view, const sl_meta *c)
{
    sl_shape shape = c->shape;
    shape.dims[shape.rank - 2] = sl_dim_from_last(&view->meta, 2);
    shape.dims[shape.rank - 1] = sl_dim_from_last(&view->meta, 1);
    sl_view wide = { .data = view->data, .meta = sl_meta_stretched(&view->meta, &shape) };
    return sl_rows_of(&wide, 2);
}

static matmul_job make_job(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *a = sl_call_input(call, 0), *b = sl_call_input(call, 1), *c = sl_call_output(call, 0);
    int a_rows = call->attrs.transpose_a ? 1 : 2, b_rows = call->attrs.transpose_b ? 1 : 2;
    matmul_job j = { .simd = cpu->simd,
                     .a = stretched_rows(a, &c->meta),
                     .b = stretched_rows(b, &c->meta),
                     .c = sl_rows_of(c, 2),
                     .scratch = call->scratch,
                     .count = sl_row_count(&c->meta, 2) };
    j.gemm = (sl_gemm){ .m = sl_dim_from_last(&c->meta, 2),
                        .n = sl_dim_from_last(&c->meta, 1),
                        .k = sl_dim_from_last(&a->meta, 3 - a_rows),
                        .a = { .dtype = a->meta.dtype,
                               .row = sl_stride_from_last(&a->meta, a_rows),
                               .column = sl_stride_from_last(&a->meta, 3 - a_rows) },
                        .b = { .dtype = b->meta.dtype,
                               .row = sl_stride_from_last(&b->meta, 3 - b_rows),
                               .column = sl_stride_from_last(&b->meta, b_rows) },
                        .c_dtype = c->meta.dtype,
                        .c_row = sl_stride_from_last(&c->meta, 2),
                        .add = sl_call_accumulates(call, 0) };
    j.bytes = sl_gemm_scratch(&j.gemm);
    return j;
}

static void *block_at(const sl_rows *rows, int64_t block)
{
    return (char *)rows->data + sl_rows_offset(rows, block) * (int64_t)sl_dtype_size(rows->dtype);
}

static sl_gemm block_of(const matmul_job *j, int64_t block)
{
    sl_gemm g = j->gemm;
    g.a.data = block_at(&j->a, block);
    g.b.data = block_at(&j->b, block);
    g.c = block_at(&j->c, block);
    return g;
}

static void blocks_part(void *context, int part, int parts)
{
    const matmul_job *j = context;
    int64_t start, length;
    sl_chunk_range(j->count, parts, part, &start, &length);
    for (int64_t block = start; block < start + length; block++) {
        sl_gemm g = block_of(j, block);
        sl_gemm_run(j->simd, &g, sl_scratch_part(j->scratch, part, j->bytes));
    }
}

static int parts_of(const sl_cpu *cpu, const matmul_job *j)
{
    int threads = sl_pool_threads(cpu->pool);
    return j->count < threads ? (int)j->count : threads;
}

static size_t scratch_matmul(const sl_cpu *cpu, const sl_kernel_call *call)
{
    matmul_job j = make_job(cpu, call);
    return j.count <= 1 ? sl_gemm_scratch_split(cpu, &j.gemm) : j.bytes * (size_t)parts_of(cpu, &j);
}

static sl_status run_matmul(const sl_cpu *cpu, const sl_kernel_call *call)
{
    matmul_job j = make_job(cpu, call);
    if (j.count == 1) {
        sl_gemm g = block_of(&j, 0);
        sl_gemm_run_split(cpu, &g, call->scratch);
    } else if (j.count > 1) {
        sl_pool_run(cpu->pool, parts_of(cpu, &j), blocks_part, &j);
    }
    return SL_OK;
}

/* As for LINEAR: what BLAS is asked for must follow from the shapes alone. */
static bool takes_matrices(const sl_kernel_call *call, const sl_view *view)
{
    int64_t rows = sl_dim_from_last(&view->meta, 2), size = sl_dim_from_last(&view->meta, 1);
    int64_t step = sl_stride_from_last(&view->meta, 2);
    (void)call;
    if (size > 1 && sl_stride_from_last(&view->meta, 1) != 1)
        return false;
    return rows <= 1 || (size == 1 ? step == 1 : step >= size);
}

const sl_cpu_kernel sl_cpu_matmul = {
    .accepts = sl_cpu_is_narrow, .run = run_matmul, .halves = true, .takes = takes_matrices, .scratch = scratch_matmul
};
