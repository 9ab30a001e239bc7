// Sums over the rows of a matrix, one for each column, in an order that depends on the sizes alone: chunks of rows by
// threads in a fixed pattern, then the chunks one after the other.
#ifndef SL_CUDA_COLUMNS_CUH
#define SL_CUDA_COLUMNS_CUH

#include "cuda/element.cuh"
#include "kernel/gpu_scratch.h"

enum { CHUNK_ROWS = SL_GPU_CHUNK_ROWS, TILE_COLUMNS = 32 * WIDE, TILE_ROWS = 8 };

static inline int64_t column_chunks(int64_t rows)
{
    return (rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
}

// Source::add(row, column, columns, sums) adds the terms of eight neighbouring columns, as many as there are, to
// sums[SUMS][WIDE].
template <class S, int SUMS, class Source>
__global__ void __launch_bounds__(32 * TILE_ROWS)
    column_parts(const __grid_constant__ Source source, int64_t rows, int64_t columns, S *parts)
{
    __shared__ S shared[TILE_ROWS][SUMS][TILE_COLUMNS];
    int lane = threadIdx.x % 32, line = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * TILE_COLUMNS + WIDE * lane;
    int64_t first = (int64_t)blockIdx.y * CHUNK_ROWS, end = first + CHUNK_ROWS < rows ? first + CHUNK_ROWS : rows;
    S sums[SUMS][WIDE] = {};
    if (column < columns) {
#pragma unroll 4
        for (int64_t row = first + line; row < end; row += TILE_ROWS)
            source.add(row, column, columns, sums);
    }
    for (int k = 0; k < SUMS; k++) {
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            shared[line][k][WIDE * lane + i] = sums[k][i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS * TILE_COLUMNS; i += blockDim.x) {
        int k = i / TILE_COLUMNS, c = i % TILE_COLUMNS;
        int64_t at = (int64_t)blockIdx.x * TILE_COLUMNS + c;
        if (at >= columns)
            continue;
        S total = shared[0][k][c];
        for (int r = 1; r < TILE_ROWS; r++)
            total += shared[r][k][c];
        parts[((int64_t)blockIdx.y * SUMS + k) * columns + at] = total;
    }
}

// Output k, element c becomes the sum of all parts times `factor`: each of eight lines of threads adds every eighth
// chunk, then the lines one after the other. An absent output is left out.
template <class S, int SUMS>
__global__ void __launch_bounds__(32 * TILE_ROWS)
    column_totals(const S *parts, int64_t chunks, int64_t columns, const __grid_constant__ tensor_view first,
                  const __grid_constant__ tensor_view second, bool add_first, bool add_second, S factor)
{
    __shared__ S lines[TILE_ROWS][32];
    int lane = threadIdx.x % 32, line = threadIdx.x / 32, k = blockIdx.y;
    int64_t c = (int64_t)blockIdx.x * 32 + lane;
    const tensor_view &to = k == 0 ? first : second;
    if (!to.data)
        return;
    S total = 0;
    if (c < columns) {
#pragma unroll 8
        for (int64_t chunk = line; chunk < chunks; chunk += TILE_ROWS)
            total += parts[(chunk * SUMS + k) * columns + c];
    }
    lines[line][lane] = total;
    __syncthreads();
    if (line != 0 || c >= columns)
        return;
    for (int r = 1; r < TILE_ROWS; r++)
        total += lines[r][lane];
    store<S>(to.data, to.dtype, to.offset(c), total * factor, k == 0 ? add_first : add_second);
}

template <class S, int SUMS>
static void launch_totals(const cuda_run *run, const S *parts, int64_t rows, int64_t columns, const tensor_view &first,
                          const tensor_view &second, bool add_first, bool add_second, double factor)
{
    dim3 grid((unsigned)((columns + 31) / 32), SUMS);
    column_totals<S, SUMS><<<grid, 32 * TILE_ROWS, 0, run->stream>>>(parts, column_chunks(rows), columns, first, second,
                                                                     add_first, add_second, (S)factor);
}

template <class S, int SUMS, class Source>
static void launch_columns(const cuda_run *run, const Source &source, int64_t rows, int64_t columns,
                           const tensor_view &first, const tensor_view &second, bool add_first, bool add_second,
                           double factor)
{
    S *parts = (S *)run->call->scratch;
    int64_t chunks = column_chunks(rows);
    dim3 grid((unsigned)((columns + TILE_COLUMNS - 1) / TILE_COLUMNS), (unsigned)chunks);
    if (columns == 0)
        return;
    if (chunks > 0)
        column_parts<S, SUMS, Source><<<grid, 32 * TILE_ROWS, 0, run->stream>>>(source, rows, columns, parts);
    launch_totals<S, SUMS>(run, parts, rows, columns, first, second, add_first, add_second, factor);
}

#endif
