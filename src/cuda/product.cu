// Matrix products for any strides and element types: tiles in shared memory, one thread an element. What cuBLASLt cannot
// do runs here: element types that it does not mix, strides along both dims, empty dims.
#include "cuda/element.cuh"

enum { TILE = 16 };

template <class S> __global__ void __launch_bounds__(TILE *TILE) multiply(const __grid_constant__ cuda_product_args args)
{
    __shared__ S a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    int64_t row = (int64_t)blockIdx.x * TILE + y, column = (int64_t)blockIdx.y * TILE + x;
    for (int64_t batch = blockIdx.z; batch < args.batch_count; batch += gridDim.z) {
        int64_t a_at = 0, b_at = 0, c_at = 0, index = batch;
        for (int d = args.batch_rank - 1; d >= 0; d--) {
            int64_t rest = index / args.batch_dims[d], place = index - rest * args.batch_dims[d];
            a_at += place * args.batch_a[d];
            b_at += place * args.batch_b[d];
            c_at += place * args.batch_c[d];
            index = rest;
        }
        S sum = 0;
        for (int64_t k = 0; k < args.k; k += TILE) {
            int64_t b_row = k + y;
            a_tile[y][x] = row < args.m && k + x < args.k
                               ? load<S>(args.a.data, args.a.dtype, a_at + row * args.a.rows + (k + x) * args.a.columns)
                               : 0;
            b_tile[y][x] = b_row < args.k && column < args.n
                               ? load<S>(args.b.data, args.b.dtype, b_at + b_row * args.b.rows + column * args.b.columns)
                               : 0;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < TILE; i++)
                sum = fma(a_tile[y][i], b_tile[i][x], sum);
            __syncthreads();
        }
        if (row >= args.m || column >= args.n)
            continue;
        if (args.bias)
            sum += load<S>(args.bias, args.bias_dtype, column * args.bias_stride);
        store<S>(args.c.data, args.c.dtype, c_at + row * args.c.rows + column * args.c.columns, sum, args.add);
    }
}

sl_status cuda_plain_product(const cuda_run *run, const cuda_product_args *args)
{
    int64_t columns = (args->n + TILE - 1) / TILE, batches = args->batch_count < 65535 ? args->batch_count : 65535;
    if (args->m == 0 || args->n == 0 || args->batch_count == 0)
        return SL_OK;
    if (columns > 65535)
        return sl_fail(SL_ERR_UNSUPPORTED, "a product of %lld columns in this layout", (long long)args->n);
    dim3 grid((unsigned)((args->m + TILE - 1) / TILE), (unsigned)columns, (unsigned)batches);
    if (is_double(run->call))
        multiply<double><<<grid, TILE * TILE, 0, run->stream>>>(*args);
    else
        multiply<float><<<grid, TILE * TILE, 0, run->stream>>>(*args);
    return launched("product kernel");
}
