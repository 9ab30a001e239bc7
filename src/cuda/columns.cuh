// Sums over the rows of a matrix, one for each column, in an order that depends on the sizes alone: chunks of rows by
// threads in a fixed pattern, then the chunks in another.
#ifndef SL_CUDA_COLUMNS_CUH
#define SL_CUDA_COLUMNS_CUH

#include "cuda/element.cuh"
#include "kernel/gpu_scratch.h"

enum { CHUNK_ROWS = SL_GPU_CHUNK_ROWS, TILE_COLUMNS = 32 * WIDE, TILE_ROWS = 8 };

static inline int64_t column_chunks(int64_t rows)
{
    return (rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
}

// Source::fetch(row, column, columns) reads what belongs to eight neighboring columns of a row, Source::add(what, row,
// column, columns, sums) adds its terms, as many as there are, to sums[SUMS][WIDE]. Several rows are read before the first
// is added: add() may write over what was read.
template <class S, int SUMS, class Source>
__global__ void __launch_bounds__(32 * TILE_ROWS)
    column_parts(const __grid_constant__ Source source, int64_t rows, int64_t columns, S *parts)
{
    constexpr int AT_ONCE = sizeof(S) == 8 ? 1 : 4;
    __shared__ S shared[TILE_ROWS][SUMS][TILE_COLUMNS];
    int lane = threadIdx.x % 32, line = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * TILE_COLUMNS + WIDE * lane;
    int64_t first = (int64_t)blockIdx.y * CHUNK_ROWS, end = first + CHUNK_ROWS < rows ? first + CHUNK_ROWS : rows;
    S sums[SUMS][WIDE] = {};
    for (int64_t row = first + line; column < columns && row < end; row += AT_ONCE * TILE_ROWS) {
        typename Source::fetched what[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            if (row + n * TILE_ROWS < end)
                what[n] = source.fetch(row + n * TILE_ROWS, column, columns);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            if (row + n * TILE_ROWS < end)
                source.add(what[n], row + n * TILE_ROWS, column, columns, sums);
        }
    }
#pragma unroll
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

// Where the sums go: sum k of parts[chunk][k][column] to `to[k]`, of one dim; an absent one is left out.
enum { MOST_SUMS = 3, TOTAL_LINES = 32 };
struct column_results {
    tensor_view to[MOST_SUMS];
    bool add[MOST_SUMS];
};

// Element c of a result becomes the sum of all parts times `factor`: each of 32 lines of threads adds every 32nd chunk,
// then a warp the lines.
template <class S>
__global__ void __launch_bounds__(32 * TOTAL_LINES)
    column_totals(const S *parts, int64_t chunks, int sums, int64_t columns,
                  const __grid_constant__ column_results results, S factor)
{
    __shared__ S lines[TOTAL_LINES][33];
    int lane = threadIdx.x % 32, line = threadIdx.x / 32, k = blockIdx.y;
    int64_t first = (int64_t)blockIdx.x * 32;
    const tensor_view &to = results.to[k];
    if (!to.data)
        return;
    S total = 0;
    if (first + lane < columns) {
#pragma unroll 8
        for (int64_t chunk = line; chunk < chunks; chunk += TOTAL_LINES)
            total += parts[(chunk * sums + k) * columns + first + lane];
    }
    lines[line][lane] = total;
    __syncthreads();
    total = group_sum<32, S>(lines[lane][line]); // line is now the column
    if (lane == 0 && first + line < columns)
        store<S>(to.data, to.dtype, to.offset(first + line), total * factor, results.add[k]);
}

// The same for one chunk, of which nothing has to be added.
template <class S>
__global__ void __launch_bounds__(BLOCK)
    only_chunk(const S *parts, int64_t columns, const __grid_constant__ column_results results, S factor)
{
    int k = blockIdx.y;
    const tensor_view &to = results.to[k];
    if (!to.data)
        return;
    FOR_EACH_ELEMENT (c, columns)
        store<S>(to.data, to.dtype, to.offset(c), parts[k * columns + c] * factor, results.add[k]);
}

template <class S>
static void launch_totals(const cuda_run *run, const S *parts, int sums, int64_t rows, int64_t columns,
                          const column_results &results, double factor)
{
    dim3 grid((unsigned)((columns + 31) / 32), (unsigned)sums), each(element_blocks(columns), (unsigned)sums);
    if (column_chunks(rows) == 1)
        only_chunk<S><<<each, BLOCK, 0, run->stream>>>(parts, columns, results, (S)factor);
    else
        column_totals<S>
        <<<grid, 32 * TOTAL_LINES, 0, run->stream>>>(parts, column_chunks(rows), sums, columns, results, (S)factor);
}

template <class S, int SUMS, class Source>
static void launch_columns(const cuda_run *run, const Source &source, int64_t rows, int64_t columns,
                           const column_results &results, double factor)
{
    S *parts = (S *)run->call->scratch;
    int64_t chunks = column_chunks(rows);
    dim3 grid((unsigned)((columns + TILE_COLUMNS - 1) / TILE_COLUMNS), (unsigned)chunks);
    if (columns == 0)
        return;
    if (chunks > 0)
        column_parts<S, SUMS, Source><<<grid, 32 * TILE_ROWS, 0, run->stream>>>(source, rows, columns, parts);
    launch_totals<S>(run, parts, SUMS, rows, columns, results, factor);
}

#endif
