/* Rows picked from a table by number: token embedding and rotary embedding. */
#include "kernel/cpu/cpu.h"

#include <string.h>

typedef struct lookup_job {
    const sl_simd *simd;
    const sl_view *ids; /* none: the row's own number */
    sl_rows table, rows, y;
    sl_rows cosines, sines;
    int64_t count, size; /* rows; elements of a row that a thread shares with none */
    int64_t width;       /* of a head that is rotated; 2 * size of it are turned, the rest is copied */
    int64_t heads, times;
    float sign;
    bool add;
} lookup_job;

static int64_t id_at(const sl_view *ids, int64_t row)
{
    int64_t offset = sl_row_offset(&ids->meta, row, 0);
    return ids->meta.dtype == SL_I32 ? ((const int32_t *)ids->data)[offset] : ((const int64_t *)ids->data)[offset];
}

static sl_status check_ids(const sl_kernel_call *call, const char *what, const sl_view *ids, int64_t limit)
{
    for (int64_t i = 0; i < sl_meta_count(&ids->meta); i++) {
        int64_t id = id_at(ids, i);
        if (id < 0 || id >= limit)
            return sl_fail(SL_ERR_ARGUMENT, "%s: %s %lld at element %lld is not in 0..%lld", sl_op_name(call->op), what,
                           (long long)id, (long long)i, (long long)limit - 1);
    }
    return SL_OK;
}

enum { BLOCK = 1024 }; /* elements of a row that are widened at a time if they are not f32 */

/* Adds `n` elements from `first` on of a row of x to a row of y, or copies them. */
static void move_block(const lookup_job *j, const sl_rows *x, int64_t from, const sl_rows *y, int64_t to, int64_t first,
                       int64_t n, bool add)
{
    float x_block[BLOCK], y_block[BLOCK];
    const float *source = sl_rows_read(j->simd, x, from, first, n, x_block);
    float *target = sl_rows_begin_write(j->simd, y, to, first, n, add, y_block);
    if (add)
        j->simd->axpy(1, source, target, n);
    else
        memcpy(target, source, (size_t)n * sizeof *target);
    sl_rows_end_write(j->simd, y, to, first, n, y_block);
}

static void embedding_range(void *context, int64_t begin, int64_t end)
{
    const lookup_job *j = context;
    for (int64_t row = begin; row < end; row++) {
        int64_t id = id_at(j->ids, row);
        for (int64_t i = 0; i < j->size; i += BLOCK)
            move_block(j, &j->table, id, &j->y, row, i, j->size - i < BLOCK ? j->size - i : BLOCK, j->add);
    }
}

static sl_status run_embedding(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *ids = sl_call_input(call, 0), *table = sl_call_input(call, 1);
    lookup_job j = { .simd = cpu->simd,
                     .ids = ids,
                     .table = sl_rows_of(table, 1),
                     .y = sl_rows_of(sl_call_output(call, 0), 1),
                     .count = sl_meta_count(&ids->meta),
                     .size = table->meta.shape.dims[1],
                     .add = sl_call_accumulates(call, 0) };
    sl_status status = check_ids(call, "id", ids, table->meta.shape.dims[0]);
    if (status == SL_OK)
        sl_cpu_split(cpu, j.count, SL_GRAIN / (j.size + 1) + 1, embedding_range, &j);
    return status;
}

/* A thread owns columns, not rows: two ids may be equal, and their order of addition is the order of the rows. */
static void embedding_grad_range(void *context, int64_t begin, int64_t end)
{
    const lookup_job *j = context;
    for (int64_t row = 0; row < j->count; row++) {
        int64_t id = id_at(j->ids, row);
        for (int64_t i = begin; i < end; i += BLOCK)
            move_block(j, &j->rows, row, &j->table, id, i, end - i < BLOCK ? end - i : BLOCK, true);
    }
}

static void clear_range(void *context, int64_t begin, int64_t end)
{
    const lookup_job *j = context;
    for (int64_t row = begin; row < end; row++)
        memset(sl_rows_at(&j->table, row), 0, (size_t)j->size * sizeof(float));
}

static sl_status run_embedding_grad(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *ids = sl_call_input(call, 0), *dtable = sl_call_output(call, 0);
    lookup_job j = { .simd = cpu->simd,
                     .ids = ids,
                     .table = sl_rows_of(dtable, 1),
                     .rows = sl_rows_of(sl_call_input(call, 1), 1),
                     .count = sl_meta_count(&ids->meta),
                     .size = dtable->meta.shape.dims[1] };
    sl_status status = check_ids(call, "id", ids, dtable->meta.shape.dims[0]);
    if (status != SL_OK)
        return status;
    if (!sl_call_accumulates(call, 0))
        sl_cpu_split(cpu, dtable->meta.shape.dims[0], SL_GRAIN / (j.size + 1) + 1, clear_range, &j);
    sl_cpu_split(cpu, j.size, SL_GRAIN / (j.count + 1) + 64, embedding_grad_range, &j);
    return SL_OK;
}

/* ---- Rotary embedding ------------------------------------------------------------------------ */

/* Rows are the heads of all tokens: (b, t, h) in order. */
static void rope_range(void *context, int64_t begin, int64_t end)
{
    const lookup_job *j = context;
    float x_row[BLOCK], y_row[BLOCK], c_row[BLOCK], s_row[BLOCK];
    for (int64_t row = begin; row < end; row++) {
        int64_t t = row / j->heads % j->times, place = j->ids->meta.shape.rank == 2 ? row / j->heads : t;
        int64_t position = sl_view_is_none(j->ids) ? t : id_at(j->ids, place);
        const float *x = sl_rows_read(j->simd, &j->rows, row, 0, j->width, x_row);
        const float *c = sl_rows_read(j->simd, &j->cosines, position, 0, j->size, c_row);
        const float *s = sl_rows_read(j->simd, &j->sines, position, 0, j->size, s_row);
        float *y = sl_rows_begin_write(j->simd, &j->y, row, 0, j->width, j->add, y_row);
        j->simd->rotate(x, x + j->size, c, s, j->sign, y, y + j->size, j->size, j->add);
        for (int64_t d = 2 * j->size; d < j->width; d++)
            y[d] = j->add ? y[d] + x[d] : x[d];
        sl_rows_end_write(j->simd, &j->y, row, 0, j->width, y_row);
    }
}

/* A head that is not f32 is widened whole. */
static bool accepts_rope(const sl_kernel_call *call)
{
    return sl_cpu_is_narrow(call) && (sl_call_input(call, 0)->meta.shape.dims[3] <= BLOCK || !sl_cpu_has_halves(call));
}

static sl_status run_rope(const sl_cpu *cpu, const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *cosines = sl_call_input(call, 1);
    lookup_job j = { .simd = cpu->simd,
                     .ids = sl_call_input(call, 3),
                     .rows = sl_rows_of(x, 1),
                     .y = sl_rows_of(sl_call_output(call, 0), 1),
                     .cosines = sl_rows_of(cosines, 1),
                     .sines = sl_rows_of(sl_call_input(call, 2), 1),
                     .count = sl_row_count(&x->meta, 1),
                     .size = cosines->meta.shape.dims[1],
                     .width = x->meta.shape.dims[3],
                     .times = x->meta.shape.dims[1],
                     .heads = x->meta.shape.dims[2],
                     .sign = call->attrs.inverse ? -1 : 1,
                     .add = sl_call_accumulates(call, 0) };
    sl_status status = SL_OK;
    if (!sl_view_is_none(j.ids))
        status = check_ids(call, "position", j.ids, cosines->meta.shape.dims[0]);
    if (status == SL_OK)
        sl_cpu_split(cpu, j.count, SL_GRAIN / (j.width / 2 + 1) + 1, rope_range, &j);
    return status;
}

/* The sums are f32: rounding after each row would lose most of them. */
static bool accepts_embedding_grad(const sl_kernel_call *call)
{
    return sl_cpu_is_narrow(call) && sl_call_output(call, 0)->meta.dtype == SL_F32;
}

const sl_cpu_kernel sl_cpu_embedding = {
    .accepts = sl_cpu_is_narrow, .run = run_embedding, .halves = true, .takes = sl_cpu_takes_rows
};
const sl_cpu_kernel sl_cpu_embedding_grad = {
    .accepts = accepts_embedding_grad, .run = run_embedding_grad, .halves = true, .takes = sl_cpu_takes_rows
};
const sl_cpu_kernel sl_cpu_rope = {
    .accepts = accepts_rope, .run = run_rope, .halves = true, .takes = sl_cpu_takes_rows
};
