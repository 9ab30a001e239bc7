// Look-up of table rows by id. The gradient has one owner for each row of the table, who adds its terms in an order that
// depends on their number alone: the positions are sorted by id first, stably.
#include "cuda/element.cuh"

#include "kernel/call.h"

template <int GROUP, class S>
__global__ void __launch_bounds__(BLOCK)
    look_up(const __grid_constant__ tensor_view ids, const __grid_constant__ tensor_view table,
            const __grid_constant__ tensor_view y_view, int64_t rows, int64_t size, bool add,
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
    LAUNCH_ROWS(run, look_up, rows, size, merged(ids, 0), view_of(table), merged(sl_call_output(call, 0), 1), rows,
                size, sl_call_accumulates(call, 0), run->reporter);
    return launched("embedding kernel");
}

// ---- Gradient ---------------------------------------------------------------------------------

// A block sorts for OWNED rows of the table. It goes through all ids in rounds, eight neighbors a thread.
enum { OWNED = BLOCK, ROUND = BLOCK * WIDE };

// Ids first..first + 7 of `count`; -1 past the end.
__device__ __forceinline__ void get_ids(const tensor_view &ids, int64_t first, int64_t count, int64_t out[WIDE])
{
#pragma unroll
    for (int k = 0; k < WIDE; k++)
        out[k] = first + k < count ? load_index(ids.data, ids.dtype, ids.offset(first + k)) : -1;
}

// The sum of `value` over all threads before this one; *total: over all.
__device__ __forceinline__ int sum_before(int value, int *total)
{
    __shared__ int warps[BLOCK / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = value, before = 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    __syncthreads(); // the last use of warps is over
    if (lane == 31)
        warps[warp] = sum;
    __syncthreads();
    *total = 0;
    for (int w = 0; w < BLOCK / 32; w++) {
        before += w < warp ? warps[w] : 0;
        *total += warps[w];
    }
    return before + sum - value;
}

// starts[r] and starts[r + 1] enclose the positions, in sorted[], of the ids that are r, rising.
__global__ void __launch_bounds__(BLOCK)
    sort_positions(const __grid_constant__ tensor_view ids, int64_t count, int64_t rows, int32_t *starts,
                   int32_t *sorted, const __grid_constant__ cuda_reporter reporter)
{
    __shared__ int32_t counts[OWNED], list[ROUND];
    __shared__ uint8_t list_row[ROUND];
    int64_t first = (int64_t)blockIdx.x * OWNED, id[WIDE];
    int below = 0, total = 0;
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = (int64_t)threadIdx.x * WIDE; i < count; i += ROUND) {
        get_ids(ids, i, count, id);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            if (i + k >= count)
                continue;
            if (id[k] < 0 || id[k] >= rows) {
                if (blockIdx.x == 0)
                    report(reporter, CUDA_FAULT_ID, id[k], i + k, rows);
            } else if (id[k] < first) {
                below++;
            } else if (id[k] < first + OWNED) {
                atomicAdd(&counts[id[k] - first], 1); // whole numbers: their order does not matter
            }
        }
    }
    below = group_sum<BLOCK, int>(below);
    __syncthreads();
    int next = below + sum_before(counts[threadIdx.x], &total); // the place of the next position of this thread's row
    if (first + threadIdx.x < rows)
        starts[first + threadIdx.x] = next;
    if (first + threadIdx.x == rows - 1)
        starts[rows] = next + counts[threadIdx.x];
    for (int64_t begin = 0; begin < count; begin += ROUND) { // in order: a list of this round, then each row its own
        int64_t i = begin + (int64_t)threadIdx.x * WIDE;
        int mine = 0;
        get_ids(ids, i, count, id);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            mine += id[k] >= first && id[k] < first + OWNED && id[k] < rows;
        int at = sum_before(mine, &total);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            if (id[k] >= first && id[k] < first + OWNED && id[k] < rows) {
                list[at] = (int32_t)(i + k);
                list_row[at++] = (uint8_t)(id[k] - first);
            }
        }
        __syncthreads();
        for (int k = 0; k < total; k++) {
            if (list_row[k] == threadIdx.x)
                sorted[next++] = list[k];
        }
    }
}

// A row of the table with few positions is added up by one warp, in their order; one with many by all eight, each every
// eighth position, then these sums in order.
enum { FEW_POSITIONS = 16, ADDING_WARPS = BLOCK / 32 };

template <class S>
__device__ __forceinline__ void add_every(const int32_t *sorted, int begin, int end, int step, const tensor_view &dy,
                                          int64_t column, int64_t size, S sums[WIDE])
{
#pragma unroll 4
    for (int k = begin; k < end; k += step) {
        S v[WIDE];
        row_view<S>(dy, sorted[k]).get_wide(column, size, 0, v);
#pragma unroll
        for (int n = 0; n < WIDE; n++)
            sums[n] += v[n];
    }
}

template <class S>
__global__ void __launch_bounds__(BLOCK)
    add_positions(const int32_t *starts, const int32_t *sorted, const __grid_constant__ tensor_view dy,
                  const __grid_constant__ tensor_view table, int64_t size, bool add)
{
    __shared__ S lines[ADDING_WARPS][32 * WIDE];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t first = (int64_t)blockIdx.x * ADDING_WARPS, own = first + warp, rows = table.dims[0];
    int begin = own < rows ? starts[own] : 0, end = own < rows ? starts[own + 1] : 0;
    if (own < rows && end - begin <= FEW_POSITIONS && (begin < end || !add)) {
        for (int64_t c = lane * WIDE; c < size; c += 32 * WIDE) {
            S sums[WIDE] = {};
            add_every<S>(sorted, begin, end, 1, dy, c, size, sums);
            row_view<S>(table, own).put_wide(c, size, sums, add);
        }
    }
    for (int64_t row = first; row < first + ADDING_WARPS && row < rows; row++) {
        begin = starts[row];
        end = starts[row + 1];
        for (int64_t piece = 0; end - begin > FEW_POSITIONS && piece < size; piece += 32 * WIDE) {
            S sums[WIDE] = {};
            add_every<S>(sorted, begin + warp, end, ADDING_WARPS, dy, piece + lane * WIDE, size, sums);
            __syncthreads(); // the last use of lines is over
#pragma unroll
            for (int n = 0; n < WIDE; n++)
                lines[warp][lane * WIDE + n] = sums[n];
            __syncthreads();
            S total = lines[0][threadIdx.x];
            for (int r = 1; r < ADDING_WARPS; r++)
                total += lines[r][threadIdx.x];
            if (piece + threadIdx.x < size)
                row_view<S>(table, row).put(piece + threadIdx.x, total, add);
        }
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
    sort_positions<<<(unsigned)((rows + OWNED - 1) / OWNED), BLOCK, 0, run->stream>>>(merged(ids, 0), count, rows,
                                                                                      starts, sorted, run->reporter);
    unsigned blocks = (unsigned)((rows + ADDING_WARPS - 1) / ADDING_WARPS);
    if (is_double(call))
        add_positions<double><<<blocks, BLOCK, 0, run->stream>>>(starts, sorted, dy, table, size, add);
    else
        add_positions<float><<<blocks, BLOCK, 0, run->stream>>>(starts, sorted, dy, table, size, add);
    return launched("embedding gradient kernel");
}
