/* Rows picked from a table by number: token embedding and rotary embedding. */
#include "kernel/cpu/cpu.h"

#include <string.h>

typedef struct lookup_job {
    const sl_simd *simd;
    const sl_view *ids; /* none: the row's own number */
    sl_rows table, rows, y;
    sl_rows cosines, sines;
    int64_t count, size; /* rows; elements of a row that a thread shares with none */
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

static void embedding_range(void *context, int64_t begin, int64_t end)
{
    const lookup_job *j = context;
    for (int64_t row = begin; row < end; row++) {
        const float *from = sl_rows_at(&j->table, id_at(j->ids, row));
        if (j->add)
            j->simd->axpy(1, from, sl_rows_at(&j->y, row), j->size);
        else
            memcpy(sl_rows_at(&j->y, row), from, (size_t)j->size * sizeof(float));
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
    for (int64_t row = 0; row < j->count; row++)
        j->simd->axpy(1, sl_rows_at(&j->rows, row) + begin, sl_rows_at(&j->table, id_at(j->ids, row)) + begin,
                      end - begin);
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
    for (int64_t row = begin; row < end; row++) {
        int64_t t = row / j->heads % j->times, position = sl_view_is_none(j->ids) ? t : id_at(j->ids, t);
        const float *x = sl_rows_at(&j->rows, row);
        float *y = sl_rows_at(&j->y, row);
        j->simd->rotate(x, x + j->size, sl_rows_at(&j->cosines, position), sl_rows_at(&j->sines, position), j->sign, y,
                        y + j->size, j->size, j->add);
    }
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
                     .size = x->meta.shape.dims[3] / 2,
                     .times = x->meta.shape.dims[1],
                     .heads = x->meta.shape.dims[2],
                     .sign = call->attrs.inverse ? -1 : 1,
                     .add = sl_call_accumulates(call, 0) };
    sl_status status = SL_OK;
    if (!sl_view_is_none(j.ids))
        status = check_ids(call, "position", j.ids, cosines->meta.shape.dims[0]);
    if (status == SL_OK)
        sl_cpu_split(cpu, j.count, SL_GRAIN / (j.size + 1) + 1, rope_range, &j);
    return status;
}

const sl_cpu_kernel sl_cpu_embedding = { .accepts = sl_cpu_is_f32, .run = run_embedding, .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_embedding_grad = { .accepts = sl_cpu_is_f32,
                                              .run = run_embedding_grad,
                                              .takes = sl_cpu_takes_rows };
const sl_cpu_kernel sl_cpu_rope = { .accepts = sl_cpu_is_f32, .run = run_rope, .takes = sl_cpu_takes_rows };
