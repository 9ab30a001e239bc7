// The gradient of attention in bf16 by the matrix units of sm_90a, causal or not, for heads of 64 or 128. Two kernels: one
// (attention_wgmma_keys.cu) finds the gradients of keys and values and writes those of the scores to scratch memory, the other
// multiplies these by the keys. So every sum has one owner and one order, and heads that share keys need no sum of their own.
//
// A block has a group of warps in which one thread starts all copies, and groups that multiply, each 64 rows: while one
// makes weights from scores, the others keep the matrix units busy. Weights and gradients of scores go from the sums of one
// product to the left operand of the next in registers, or by way of scratch memory just as they lie there.
#include "cuda/attention_wgmma.cuh"

#include <cudaTypedefs.h>

enum { QUERY_GROUPS = 4, QUERY_THREADS = (1 + QUERY_GROUPS) * GROUP_THREADS };

template <int D> struct query_memory {
    char k[STAGES][GROUP_ROWS * D * 2];
    char changes[STAGES][QUERY_GROUPS][BLOCK_BYTES];
    uint64_t full[STAGES], empty[STAGES];
};

// Blocks take these in turn, the longest first: tiles of 64 queries from `first` on, and how many tiles of keys they need.
struct query_item {
    int b, h, first, count;
};

__host__ __device__ __forceinline__ int item_count(const wgmma_args &a)
{
    return (a.tiles + QUERY_GROUPS - 1) / QUERY_GROUPS * a.batch * a.heads;
}

#if CUDA_WGMMA_CODE

template <bool CAUSAL> __device__ __forceinline__ query_item item_of(const wgmma_args &a, int number)
{
    query_item item;
    const int all = a.batch * a.heads, last = (a.tiles + QUERY_GROUPS - 1) / QUERY_GROUPS - 1;
    item.b = number % all / a.heads;
    item.h = number % all % a.heads;
    item.first = (last - number / all) * QUERY_GROUPS;
    item.count = CAUSAL && item.first + QUERY_GROUPS < a.tiles ? item.first + QUERY_GROUPS : a.tiles;
    return item;
}

// Whether a tile of queries is there and sees a tile of keys.
template <bool CAUSAL> __device__ __forceinline__ bool sees(const wgmma_args &a, int queries, int keys)
{
    return queries < a.tiles && (!CAUSAL || keys <= queries);
}

template <int D, bool CAUSAL> __device__ __forceinline__ void feed_queries(const wgmma_args &a, query_memory<D> &memory)
{
    int n = 0;
    for (int number = blockIdx.x; number < item_count(a); number += gridDim.x) {
        const query_item item = item_of<CAUSAL>(a, number);
        for (int keys = 0; keys < item.count; keys++, n++) {
            const int stage = n % STAGES;
            uint64_t *full = &memory.full[stage];
            uint32_t bytes = sizeof memory.k[0];
            if (n >= STAGES)
                wait_for(&memory.empty[stage], (n / STAGES - 1) & 1);
            for (int group = 0; group < QUERY_GROUPS; group++)
                bytes += sees<CAUSAL>(a, item.first + group, keys) ? BLOCK_BYTES : 0;
            arrive_expecting(full, bytes);
            for (int group = 0; group < QUERY_GROUPS; group++) {
                if (sees<CAUSAL>(a, item.first + group, keys))
                    copy_bytes(memory.changes[stage][group], block_of<CAUSAL>(a, item.b, item.h, item.first + group, keys),
                               BLOCK_BYTES, full);
            }
            copy_tile<GROUP_ROWS, D>(memory.k[stage], &a.k, full, item.b, item.h / a.shared, keys * GROUP_ROWS);
        }
    }
}

// A piece of 16 keys and 16 queries as a left operand [queries][keys].
__device__ __forceinline__ void load_turned(uint32_t *operand, const char *piece)
{
    const uint4 lying = *(const uint4 *)(piece + 16 * LANE);
    operand[0] = turned(lying.x);
    operand[1] = turned(lying.z);
    operand[2] = turned(lying.y);
    operand[3] = turned(lying.w);
}

template <int D, bool CAUSAL>
__device__ __forceinline__ void add_up_queries(const wgmma_args &a, query_memory<D> &memory, int group)
{
    enum { PANEL = GROUP_ROWS * PANEL_ROW_BYTES };
    int n = 0;
    for (int number = blockIdx.x; number < item_count(a); number += gridDim.x) {
        const query_item item = item_of<CAUSAL>(a, number);
        const int mine = item.first + group;
        float dq[D / 2] = {};
        hold(dq);
        for (int keys = 0; keys < item.count; keys++, n++) {
            const int stage = n % STAGES;
            wait_for(&memory.full[stage], n / STAGES & 1);
            if (sees<CAUSAL>(a, mine, keys)) {
                uint32_t changes[16]; // of 64 keys, as left operands
#pragma unroll
                for (int i = 0; i < 4; i++)
                    load_turned(&changes[4 * i], memory.changes[stage][group] + PIECE_BYTES * (4 * i + GROUP_WARP));
                begin_products();
                add_weighted_rows<GROUP_ROWS>(dq, changes, describe_tile(memory.k[stage], PANEL));
                close_products();
                wait_for_products<0>();
                hold(dq);
            }
            release(&memory.empty[stage]);
        }
        if (mine < a.tiles)
            store_sums(a.dq, item.b, item.h, mine * GROUP_ROWS, a.length, dq, a.scale);
    }
}

#endif

template <int D, bool CAUSAL>
__global__ void __launch_bounds__(QUERY_THREADS, 1) find_dq_wgmma(const __grid_constant__ wgmma_args a)
{
#if CUDA_WGMMA_CODE
    query_memory<D> &memory = memory_of<query_memory<D>>();
    const int group = group_of_warp();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            init_barrier(&memory.full[i], 1);
            init_barrier(&memory.empty[i], 4 * QUERY_GROUPS);
        }
        publish_barriers();
    }
    __syncthreads();
    if (group < 0) {
        give_registers<24>();
        if (threadIdx.x == 0)
            feed_queries<D, CAUSAL>(a, memory);
    } else {
        take_registers<112>();
        add_up_queries<D, CAUSAL>(a, memory, group);
    }
#endif
}

// What the kernels need to know of a query. PIECES lanes have a row of o and do, 8 numbers each.
template <int D>
__global__ void __launch_bounds__(GROUP_THREADS) prepare_queries(const __grid_constant__ attention_args a, int tiles,
                                                                 float *lse, float *deltas)
{
    enum { PIECES = D / 8, ROWS_AT_ONCE = GROUP_THREADS / PIECES };
    const int t = (int)blockIdx.x * ROWS_AT_ONCE + (int)threadIdx.x / PIECES, d = (int)threadIdx.x % PIECES * 8;
    const int64_t h = blockIdx.y, b = blockIdx.z, row = (b * a.heads + h) * tiles * GROUP_ROWS + t;
    const bool there = t < a.queries;
    float sum = 0;
    if (there) {
        const uint4 x = *(const uint4 *)((const bf16 *)a.o.data + start_of(a.o, b, t, h) + d);
        const uint4 y = *(const uint4 *)((const bf16 *)a.d_o.data + start_of(a.d_o, b, t, h) + d);
        const uint32_t xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum = __fmaf_rn(__uint_as_float(xs[i] << 16), __uint_as_float(ys[i] << 16), sum);
            sum = __fmaf_rn(__uint_as_float(xs[i] & 0xffff0000u), __uint_as_float(ys[i] & 0xffff0000u), sum);
        }
    }
#pragma unroll
    for (int distance = PIECES / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (d == 0) {
        deltas[row] = sum;
        lse[row] = there ? statistic<float>(a, b, h, t) * LOG2_E : INFINITY;
    }
}

// ---- Calls ------------------------------------------------------------------------------------

// The copy engine's view of a [B,T,H,D] tensor.
static sl_status describe_tensor(const tensor_view &view, CUtensorMap *map)
{
    enum cudaDriverEntryPointQueryResult found;
    void *encode = NULL;
    const cuuint64_t dims[4] = { (cuuint64_t)view.dims[3], (cuuint64_t)view.dims[2], (cuuint64_t)view.dims[1],
                                 (cuuint64_t)view.dims[0] };
    const cuuint64_t strides[3] = { (cuuint64_t)view.strides[2] * sizeof(bf16), (cuuint64_t)view.strides[1] * sizeof(bf16),
                                    (cuuint64_t)view.strides[0] * sizeof(bf16) };
    const cuuint32_t box[4] = { PANEL_COLUMNS, 1, GROUP_ROWS, 1 }, steps[4] = { 1, 1, 1, 1 };
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return sl_fail(SL_ERR_UNSUPPORTED, "attention: the driver has no cuTensorMapEncodeTiled");
    const CUresult error = ((PFN_cuTensorMapEncodeTiled_v12000)encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)view.data, dims, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS)
        return sl_fail(SL_ERR_STAGE, "attention: a tensor cannot be described to the copy engine (error %d)", (int)error);
    return SL_OK;
}

template <int D> static sl_status start_all(const cuda_run *run, const attention_args &a, const wgmma_args &w)
{
    enum { ROWS_AT_ONCE = GROUP_THREADS / (D / 8) };
    sl_status status = SL_OK;
    const int items = item_count(w);
    const dim3 rows((unsigned)(w.tiles * (GROUP_ROWS / ROWS_AT_ONCE)), (unsigned)w.heads, (unsigned)w.batch);
    const dim3 queries((unsigned)(items < run->multiprocessors ? items : run->multiprocessors));
    const auto find_dq = a.causal ? find_dq_wgmma<D, true> : find_dq_wgmma<D, false>;
    SL_TRY(start_attention(run, prepare_queries<D>, rows, GROUP_THREADS, 0, a, w.tiles, (float *)w.lse, (float *)w.deltas));
    SL_TRY(start_wgmma_by_keys(run, w, D, a.causal));
    SL_TRY(start_attention(run, find_dq, queries, QUERY_THREADS, sizeof(query_memory<D>) + 1024, w));
done:
    return status;
}

static bool is_aligned(const tensor_view &view)
{
    return (uintptr_t)view.data % 16 == 0;
}

sl_status cuda_attention_grad_wgmma(const cuda_run *run, bool *is_done)
{
    sl_status status = SL_OK;
    const attention_args a = attention_grad_args_of(run->call);
    wgmma_args w = {};
    if (!is_aligned(a.q) || !is_aligned(a.k) || !is_aligned(a.v) || !is_aligned(a.o) || !is_aligned(a.d_o) ||
        !is_aligned(a.dq) || !is_aligned(a.dk) || !is_aligned(a.dv))
        return SL_OK;
    w.batch = (int)a.q.dims[0];
    w.heads = (int)a.heads;
    w.shared = (int)a.shared;
    w.length = (int)a.queries;
    w.tiles = (w.length + GROUP_ROWS - 1) / GROUP_ROWS;
    w.scale = (float)a.scale;
    w.dq = a.dq;
    w.dk = a.dk;
    w.dv = a.dv;
    w.lse = (const float *)run->call->scratch;
    w.deltas = w.lse + (int64_t)w.batch * w.heads * w.tiles * GROUP_ROWS;
    w.changes = (char *)(w.deltas + (int64_t)w.batch * w.heads * w.tiles * GROUP_ROWS);
    SL_TRY(describe_tensor(a.q, &w.q));
    SL_TRY(describe_tensor(a.k, &w.k));
    SL_TRY(describe_tensor(a.v, &w.v));
    SL_TRY(describe_tensor(a.d_o, &w.d_o));
    status = a.width == 128 ? start_all<128>(run, a, w) : start_all<64>(run, a, w);
    *is_done = status == SL_OK;
done:
    return status;
}
