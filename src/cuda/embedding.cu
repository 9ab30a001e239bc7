// Look-up of table rows by id. The gradient has one owner for each row of the table, who adds the terms in the order of
// the ids: the positions are sorted by id first, stably.
#include "cuda/element.cuh"

#include "kernel/call.h"

template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK)
    look_up(const __grid_constant__ tensor_view ids, const __grid_constant__ tensor_view table, const __grid_constant__ tensor_view y_view, int64_t rows, int64_t size, bool add,
            const __grid_constant__ cuda_reporter reporter)
{
    int64_t row = group_row<GROUP>();
    if (row >= rows)
        return;
    int64_t id = load_index(ids.data, ids.dtype, ids.offset(row));
    if (id < 0 || id >= table.dims[0]) {
        if (group_lane<GROUP>() == 0)
            report(reporter, CUDA_FAULT_ID, id, row, table.dims[0]);
        return;
    }
    row_view<S> from(table, id), to(y_view, row);
    S v[WIDE];
    for (int64_t i = (int64_t)group_lane<GROUP>() * WIDE; i < size; i += GROUP * WIDE) {
        from.get_wide(i, size, 0, v);
        to.put_wide(i, size, v, add);
    }
}

sl_status cuda_embedding(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *ids = sl_call_input(call, 0), *table = sl_call_input(call, 1);
    int64_t rows = sl_meta_count(&ids->meta), size = table->meta.shape.dims[1];
    LAUNCH_ROWS(run, look_up, rows, size, merged(ids, 0), view_of(table), merged(sl_call_output(call, 0), 1), rows, size,
                sl_call_accumulates(call, 0), run->reporter);
    return launched("embedding kernel");
}

// ---- Gradient ---------------------------------------------------------------------------------

enum { OWNED = 64 }; // rows of the table that a block sorts for

// starts[r] and starts[r + 1] enclose the positions, in sorted[], of the ids that are r.
__global__ void __launch_bounds__(BLOCK)
    sort_positions(const __grid_constant__ tensor_view ids, int64_t count, int64_t rows, int32_t *starts, int32_t *sorted, const __grid_constant__ cuda_reporter reporter)
{
    __shared__ int32_t next[OWNED + 1], list[BLOCK], list_row[BLOCK], warp_count[BLOCK / 32];
    int64_t first = (int64_t)blockIdx.x * OWNED;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int below = 0;
    for (int i = threadIdx.x; i <= OWNED; i += BLOCK)
        next[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += BLOCK) {
        int64_t id = load_index(ids.data, ids.dtype, ids.offset(i));
        if (id < 0 || id >= rows) {
            if (blockIdx.x == 0)
                report(reporter, CUDA_FAULT_ID, id, i, rows);
        } else if (id < first) {
            below++;
        } else if (id < first + OWNED) {
            atomicAdd(&next[id - first + 1], 1); // whole numbers: their order does not matter
        }
    }
    below = group_sum<BLOCK, int>(below);
    __syncthreads();
    if (threadIdx.x == 0) {
        next[0] = below;
        for (int r = 0; r < OWNED; r++)
            next[r + 1] += next[r];
    }
    __syncthreads();
    for (int r = threadIdx.x; r < OWNED; r += BLOCK) {
        if (first + r < rows)
            starts[first + r] = next[r];
        if (first + r == rows - 1)
            starts[rows] = next[r + 1];
    }
    __syncthreads();
    for (int64_t begin = 0; begin < count; begin += BLOCK) { // in order: a list of this round, then each row its own
        int64_t i = begin + threadIdx.x, id = -1;
        if (i < count)
            id = load_index(ids.data, ids.dtype, ids.offset(i));
        bool mine = id >= first && id < first + OWNED && id < rows;
        unsigned votes = __ballot_sync(0xffffffffu, mine);
        if (lane == 0)
            warp_count[warp] = __popc(votes);
        __syncthreads();
        int before = 0, total = 0;
        for (int w = 0; w < BLOCK / 32; w++) {
            before += w < warp ? warp_count[w] : 0;
            total += warp_count[w];
        }
        if (mine) {
            int at = before + __popc(votes & ((1u << lane) - 1));
            list[at] = (int32_t)i;
            list_row[at] = (int32_t)(id - first);
        }
        __syncthreads();
        if (threadIdx.x < OWNED) {
            for (int k = 0; k < total; k++) {
                if (list_row[k] == (int)threadIdx.x)
                    sorted[next[threadIdx.x]++] = list[k];
            }
        }
        __syncthreads();
    }
}

template <class S>
__global__ void __launch_bounds__(BLOCK)
    add_positions(const int32_t *starts, const int32_t *sorted, const __grid_constant__ tensor_view dy_view, const __grid_constant__ tensor_view table, int64_t size,
                  bool add)
{
    int64_t row = blockIdx.x;
    int begin = starts[row], end = starts[row + 1];
    if (begin == end && add)
        return;
    row_view<S> to(table, row);
    for (int64_t i = threadIdx.x; i < size; i += BLOCK) {
        S sum = 0;
#pragma unroll 8
        for (int k = begin; k < end; k++) {
            row_view<S> from(dy_view, sorted[k]);
            sum += from.get(i);
        }
        to.put(i, sum, add);
    }
}

sl_status cuda_embedding_grad(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *ids = sl_call_input(call, 0), *dtable = sl_call_output(call, 0);
    int64_t count = sl_meta_count(&ids->meta), rows = dtable->meta.shape.dims[0], size = dtable->meta.shape.dims[1];
    int32_t *starts = (int32_t *)call->scratch, *sorted = starts + rows + 1;
    tensor_view dy = merged(sl_call_input(call, 1), 1), table = view_of(dtable);
    bool add = sl_call_accumulates(call, 0);
    if (rows == 0 || size == 0)
        return SL_OK;
    sort_positions<<<(unsigned)((rows + OWNED - 1) / OWNED), BLOCK, 0, run->stream>>>(merged(ids, 0), count, rows, starts,
                                                                                      sorted, run->reporter);
    if (is_double(call))
        add_positions<double><<<(unsigned)rows, BLOCK, 0, run->stream>>>(starts, sorted, dy, table, size, add);
    else
        add_positions<float><<<(unsigned)rows, BLOCK, 0, run->stream>>>(starts, sorted, dy, table, size, add);
    return launched("embedding gradient kernel");
}
