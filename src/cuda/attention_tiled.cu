// Attention in tiles, for what cuDNN does not do: f32, dropout, windows, capped scores, any strides. Blocks of 128
// threads hold tiles of queries and keys in shared memory as f32 and multiply them in registers; nothing of size T x T
// is written. Deterministic: the gradients of queries and those of keys and values have a kernel each, in which every sum
// has one owner and one order.
#include "cuda/attention.cuh"

// A thread stands at row group `ty` and column `tx` of a tile: 8 x 16.
enum { TILE_THREADS = 128, ROW_GROUPS = 8, COLUMNS = 16 };

// Rows of tiles are this many numbers longer than they need, so that neighbors lie in other banks.
enum { PAD = 4 };

#define TX ((int)threadIdx.x % COLUMNS)
#define TY ((int)threadIdx.x / COLUMNS)

extern __shared__ __align__(16) float tiles[];

// ---- Tiles ------------------------------------------------------------------------------------

__device__ __forceinline__ bool lies_in_fours(const tensor_view &view)
{
    return view.strides[3] == 1 && (view.dtype == SL_F32 || view.dtype == SL_BF16) && (uintptr_t)view.data % 16 == 0 &&
           (view.strides[0] | view.strides[1] | view.strides[2] | view.dims[3]) % 4 == 0;
}

// ROWS rows of a [B,T,H,D] tensor from row `first` on, as f32; zeros past its end.
template <int ROWS, int D>
__device__ __forceinline__ void load_tile(float *to, const tensor_view &from, int64_t b, int64_t h, int64_t first)
{
    const bool fours = lies_in_fours(from);
    for (int i = threadIdx.x; i < ROWS * (D / 4); i += TILE_THREADS) {
        int row = i / (D / 4), d = i % (D / 4) * 4;
        float4 four = make_float4(0, 0, 0, 0);
        if (first + row < from.dims[1] && d < from.dims[3]) {
            int64_t at = start_of(from, b, first + row, h);
            if (fours && from.dtype == SL_F32) {
                four = *(const float4 *)((const float *)from.data + at + d);
            } else if (fours) {
                uint2 bits = *(const uint2 *)((const __nv_bfloat16 *)from.data + at + d);
                float2 low = __bfloat1622float2(*(const __nv_bfloat162 *)&bits.x);
                float2 high = __bfloat1622float2(*(const __nv_bfloat162 *)&bits.y);
                four = make_float4(low.x, low.y, high.x, high.y);
            } else {
                float *each = (float *)&four;
#pragma unroll
                for (int k = 0; k < 4; k++)
                    each[k] = d + k < from.dims[3]
                                  ? load<float>(from.data, from.dtype, at + (d + k) * from.strides[3])
                                  : 0;
            }
        }
        *(float4 *)(to + row * (D + PAD) + d) = four;
    }
}

// out[r][c] = row TY * R + r of x times row TX + 16 c of y, over `depth` numbers, a multiple of 4.
template <int D, int R, int C>
__device__ __forceinline__ void multiply_rows(const float *x, const float *y, int depth, float out[R][C])
{
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int c = 0; c < C; c++)
            out[r][c] = 0;
    }
#pragma unroll 2
    for (int d = 0; d < depth; d += 4) {
        float4 left[R], right[C];
#pragma unroll
        for (int r = 0; r < R; r++)
            left[r] = *(const float4 *)(x + (TY * R + r) * (D + PAD) + d);
#pragma unroll
        for (int c = 0; c < C; c++)
            right[c] = *(const float4 *)(y + (TX + COLUMNS * c) * (D + PAD) + d);
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int c = 0; c < C; c++) {
                out[r][c] = fmaf(left[r].x, right[c].x, out[r][c]);
                out[r][c] = fmaf(left[r].y, right[c].y, out[r][c]);
                out[r][c] = fmaf(left[r].z, right[c].z, out[r][c]);
                out[r][c] = fmaf(left[r].w, right[c].w, out[r][c]);
            }
        }
    }
}

// sums[r][4 c + i] += over n of weights[n][TY * R + r] * x[n][64 c + 4 TX + i].
template <int D, int R, int COUNT, int STRIDE>
__device__ __forceinline__ void add_weighted(const float *weights, const float *x, float sums[R][D / COLUMNS])
{
#pragma unroll 4
    for (int n = 0; n < COUNT; n++) {
        float w[R];
#pragma unroll
        for (int r = 0; r < R; r += 4) {
            float4 four = *(const float4 *)(weights + n * STRIDE + TY * R + r);
            w[r] = four.x;
            w[r + 1] = four.y;
            w[r + 2] = four.z;
            w[r + 3] = four.w;
        }
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            float4 four = *(const float4 *)(x + n * (D + PAD) + 64 * c + 4 * TX);
#pragma unroll
            for (int r = 0; r < R; r++) {
                sums[r][4 * c] = fmaf(w[r], four.x, sums[r][4 * c]);
                sums[r][4 * c + 1] = fmaf(w[r], four.y, sums[r][4 * c + 1]);
                sums[r][4 * c + 2] = fmaf(w[r], four.z, sums[r][4 * c + 2]);
                sums[r][4 * c + 3] = fmaf(w[r], four.w, sums[r][4 * c + 3]);
            }
        }
    }
}

// Writes value(r, c) for row TY * R + r and column 64 c + 4 TX + i of a result's tile.
template <int D, int R>
__device__ __forceinline__ void store_tile(const tensor_view &to, int64_t b, int64_t h, int64_t first,
                                           const float values[R][D / COLUMNS], bool add)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        int64_t row = first + TY * R + r;
        if (row >= to.dims[1])
            continue;
        int64_t at = start_of(to, b, row, h);
#pragma unroll
        for (int c = 0; c < D / COLUMNS; c++) {
            int64_t d = 64 * (c / 4) + 4 * TX + c % 4;
            if (d < to.dims[3])
                store<float>(to.data, to.dtype, at + d * to.strides[3], values[r][c], add);
        }
    }
}

// Over the 16 threads that share rows.
template <float (*JOIN)(float, float)> __device__ __forceinline__ float join_columns(float value)
{
#pragma unroll
    for (int distance = COLUMNS / 2; distance > 0; distance /= 2)
        value = JOIN(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

// ---- Masks and dropout ------------------------------------------------------------------------

// The keys that a query sees, from `first` up to `end`; none if the query is past the last one.
struct key_range {
    int first, end; // a sequence of more keys would not fit anywhere
};

__device__ __forceinline__ key_range range_of(const attention_args &a, int64_t b, int64_t t)
{
    key_range range = { 0, 0 };
    if (t < a.queries) {
        range.end = (int)visible_keys(a, t);
        range.first = (int)first_key(a, b, t, range.end);
    }
    return range;
}

// No query from t on sees a key before this one. Documents only make it later.
__device__ __forceinline__ int earliest_key(const attention_args &a, int64_t t)
{
    return a.window > 0 && t + 1 > a.window ? (int)(t + 1 - a.window) : 0;
}

// Whether a query of the tile sees a key of the tile; asked for the sake of documents, which leave out many. All threads of
// the block call it.
template <int R, int KEYS>
__device__ __forceinline__ bool is_seen(const attention_args &a, int s0, const key_range seen[R])
{
    bool sees = false;
    if (!a.documents)
        return true;
#pragma unroll
    for (int r = 0; r < R; r++)
        sees |= seen[r].first < s0 + KEYS && seen[r].end > s0;
    return __syncthreads_or(sees);
}

// Factors of the weights of query (b, t, h) for keys key, key + 16, ..: 0 or 1 / (1 - p). Words of one counter block serve
// keys that lie 16 apart, so one draw is enough if the row's start fits.
template <int C>
__device__ __forceinline__ void draw_factors(const sl_dropout_stream &stream, const attention_args &a, int64_t b,
                                             int64_t t, int64_t h, int64_t key, float factors[C])
{
    uint64_t element = stream.first + (uint64_t)(((b * a.heads + h) * a.queries + t) * a.keys + key);
    uint32_t words[4] = {};
#pragma unroll
    for (int c = 0; c < C; c++) {
        uint64_t at = element + COLUMNS * c, word = at / SL_PHILOX_BLOCKS % 4;
        if (c == 0 || word == 0)
            sl_dropout_words(&stream, at, words);
        uint32_t drawn = word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
        factors[c] = drawn >= stream.threshold ? (float)stream.keep : 0;
    }
}

// ---- Forward ----------------------------------------------------------------------------------

template <int D, int R, int C>
__global__ void __launch_bounds__(TILE_THREADS) attend_tiles(const __grid_constant__ attention_args a)
{
    enum { QUERIES = ROW_GROUPS * R, KEYS = COLUMNS * C, STRIDE = QUERIES + PAD };
    float *q = tiles, *k = q + QUERIES * (D + PAD), *v = k + KEYS * (D + PAD), *weights = v + KEYS * (D + PAD);
    int64_t t0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * QUERIES, h = blockIdx.y, b = blockIdx.z, g = h / a.shared;
    int64_t last = t0 + QUERIES <= a.queries ? t0 + QUERIES - 1 : a.queries - 1;
    int begin = earliest_key(a, t0) / KEYS * KEYS, end = range_of(a, b, last).end;
    const int depth = (int)(a.width + 3) / 4 * 4;
    const sl_dropout_stream stream = sl_dropout_resolve(&a.stream);
    float out[R][D / COLUMNS] = {}, most[R], sum[R];
    key_range seen[R];
    for (int r = 0; r < R; r++) {
        seen[r] = range_of(a, b, t0 + TY * R + r);
        most[r] = -INFINITY;
        sum[r] = 0;
    }
    load_tile<QUERIES, D>(q, a.q, b, h, t0);
    for (int s0 = begin; s0 < end; s0 += KEYS) {
        float score[R][C];
        if (!is_seen<R, KEYS>(a, s0, seen))
            continue;
        __syncthreads(); // the last tile of keys and values is used up
        load_tile<KEYS, D>(k, a.k, b, g, s0);
        load_tile<KEYS, D>(v, a.v, b, g, s0);
        __syncthreads();
        multiply_rows<D, R, C>(q, k, depth, score);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float largest = -INFINITY;
#pragma unroll
            for (int c = 0; c < C; c++) {
                int s = s0 + TX + COLUMNS * c;
                score[r][c] = s >= seen[r].first && s < seen[r].end ? score_of(a, score[r][c]) : -INFINITY;
                largest = larger_of(largest, score[r][c]);
            }
            largest = larger_of(most[r], join_columns<larger_of<float>>(largest));
            float shrink = most[r] == -INFINITY ? 0 : expf(most[r] - largest), factors[C];
            most[r] = largest;
            sum[r] *= shrink;
            if (a.drops)
                draw_factors<C>(stream, a, b, t0 + TY * R + r, h, s0 + TX, factors);
#pragma unroll
            for (int c = 0; c < C; c++) {
                float p = score[r][c] == -INFINITY ? 0 : expf(score[r][c] - largest);
                sum[r] += p;
                score[r][c] = a.drops ? p * factors[c] : p;
            }
#pragma unroll
            for (int c = 0; c < D / COLUMNS; c++)
                out[r][c] *= shrink;
        }
#pragma unroll
        for (int c = 0; c < C; c++) {
#pragma unroll
            for (int r = 0; r < R; r += 4)
                *(float4 *)(weights + (TX + COLUMNS * c) * STRIDE + TY * R + r) =
                    make_float4(score[r][c], score[r + 1][c], score[r + 2][c], score[r + 3][c]);
        }
        __syncwarp(); // a row's weights are written and read by the same half of a warp
        add_weighted<D, R, KEYS, STRIDE>(weights, v, out);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        int64_t t = t0 + TY * R + r;
        float total = join_columns<sum_of<float>>(sum[r]);
        bool any = seen[r].end > seen[r].first;
#pragma unroll
        for (int c = 0; c < D / COLUMNS; c++)
            out[r][c] = any ? out[r][c] / total : 0;
        if (TX == 0 && t < a.queries && a.lse.data)
            store<float>(a.lse.data, a.lse.dtype, b * a.lse.strides[0] + h * a.lse.strides[1] + t * a.lse.strides[2],
                         any ? most[r] + logf(total) : -INFINITY, false);
    }
    store_tile<D, R>(a.o, b, h, t0, out, false);
}

// ---- Gradients --------------------------------------------------------------------------------

// Of one tile of scores: weights after dropout, and the gradients of scale * q.k.
template <int D, int R, int C>
__device__ __forceinline__ void score_gradients(const attention_args &a, const sl_dropout_stream &stream, int64_t b,
                                                int64_t h, int64_t t0, int s0, const float *q, const float *d_o,
                                                const float *k, const float *v, const float lse[R],
                                                const float delta[R], const key_range seen[R], float weights[R][C],
                                                float gradients[R][C])
{
    const int depth = (int)(a.width + 3) / 4 * 4;
    multiply_rows<D, R, C>(q, k, depth, weights);
    multiply_rows<D, R, C>(d_o, v, depth, gradients);
#pragma unroll
    for (int r = 0; r < R; r++) {
        float factors[C];
        if (a.drops)
            draw_factors<C>(stream, a, b, t0 + TY * R + r, h, s0 + TX, factors);
#pragma unroll
        for (int c = 0; c < C; c++) {
            int s = s0 + TX + COLUMNS * c;
            bool sees = s >= seen[r].first && s < seen[r].end;
            float score = score_of(a, weights[r][c]), p = sees ? expf(score - lse[r]) : 0;
            float dp = a.drops ? gradients[r][c] * factors[c] : gradients[r][c];
            gradients[r][c] = sees ? (float)a.scale * p * (dp - delta[r]) * slope_of(a, score) : 0;
            weights[r][c] = a.drops ? p * factors[c] : p;
        }
    }
}

// The statistics of a thread's rows.
template <int R>
__device__ __forceinline__ void load_statistics(const attention_args &a, const float *deltas, int64_t b, int64_t h,
                                                int64_t t0, float lse[R], float delta[R], key_range seen[R])
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        int64_t t = t0 + TY * R + r;
        bool inside = t < a.queries;
        seen[r] = range_of(a, b, t);
        lse[r] = inside ? statistic<float>(a, b, h, t) : 0;
        delta[r] = inside ? deltas[(b * a.heads + h) * a.queries + t] : 0;
    }
}

template <int D, int R, int C>
__global__ void __launch_bounds__(TILE_THREADS) find_dq_tiles(const __grid_constant__ attention_args a, const float *deltas)
{
    enum { QUERIES = ROW_GROUPS * R, KEYS = COLUMNS * C, STRIDE = QUERIES + PAD };
    float *q = tiles, *d_o = q + QUERIES * (D + PAD), *k = d_o + QUERIES * (D + PAD), *v = k + KEYS * (D + PAD);
    float *ds = v + KEYS * (D + PAD);
    int64_t t0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * QUERIES, h = blockIdx.y, b = blockIdx.z, g = h / a.shared;
    int64_t last = t0 + QUERIES <= a.queries ? t0 + QUERIES - 1 : a.queries - 1;
    int begin = earliest_key(a, t0) / KEYS * KEYS, end = range_of(a, b, last).end;
    const sl_dropout_stream stream = sl_dropout_resolve(&a.stream);
    float dq[R][D / COLUMNS] = {}, lse[R], delta[R];
    key_range seen[R];
    load_statistics<R>(a, deltas, b, h, t0, lse, delta, seen);
    load_tile<QUERIES, D>(q, a.q, b, h, t0);
    load_tile<QUERIES, D>(d_o, a.d_o, b, h, t0);
    for (int s0 = begin; s0 < end; s0 += KEYS) {
        float weights[R][C], gradients[R][C];
        if (!is_seen<R, KEYS>(a, s0, seen))
            continue;
        __syncthreads();
        load_tile<KEYS, D>(k, a.k, b, g, s0);
        load_tile<KEYS, D>(v, a.v, b, g, s0);
        __syncthreads();
        score_gradients<D, R, C>(a, stream, b, h, t0, s0, q, d_o, k, v, lse, delta, seen, weights, gradients);
#pragma unroll
        for (int c = 0; c < C; c++) {
#pragma unroll
            for (int r = 0; r < R; r += 4)
                *(float4 *)(ds + (TX + COLUMNS * c) * STRIDE + TY * R + r) =
                    make_float4(gradients[r][c], gradients[r + 1][c], gradients[r + 2][c], gradients[r + 3][c]);
        }
        __syncwarp();
        add_weighted<D, R, KEYS, STRIDE>(ds, k, dq);
    }
    store_tile<D, R>(a.dq, b, h, t0, dq, a.add_q);
}

template <int D, int R, int C>
__global__ void __launch_bounds__(TILE_THREADS) find_dk_dv_tiles(const __grid_constant__ attention_args a, const float *deltas)
{
    enum { QUERIES = ROW_GROUPS * R, KEYS = COLUMNS * C, STRIDE = KEYS + PAD, KEY_ROWS = KEYS / ROW_GROUPS };
    float *q = tiles, *d_o = q + QUERIES * (D + PAD), *k = d_o + QUERIES * (D + PAD), *v = k + KEYS * (D + PAD);
    float *used = v + KEYS * (D + PAD), *ds = used + QUERIES * STRIDE;
    int s0 = (int)blockIdx.x * KEYS;
    int64_t g = blockIdx.y, b = blockIdx.z;
    int64_t begin = a.causal ? s0 / QUERIES * QUERIES : 0;
    const sl_dropout_stream stream = sl_dropout_resolve(&a.stream);
    float dk[KEY_ROWS][D / COLUMNS] = {}, dv[KEY_ROWS][D / COLUMNS] = {};
    load_tile<KEYS, D>(k, a.k, b, g, s0);
    load_tile<KEYS, D>(v, a.v, b, g, s0);
    for (int64_t h = g * a.shared; h < (g + 1) * a.shared; h++) {
        for (int64_t t0 = begin; t0 < a.queries && earliest_key(a, t0) < s0 + KEYS; t0 += QUERIES) {
            float weights[R][C], gradients[R][C], lse[R], delta[R];
            key_range seen[R];
            load_statistics<R>(a, deltas, b, h, t0, lse, delta, seen);
            if (!is_seen<R, KEYS>(a, s0, seen))
                continue;
            __syncthreads(); // the last tile of queries and its weights are used up
            load_tile<QUERIES, D>(q, a.q, b, h, t0);
            load_tile<QUERIES, D>(d_o, a.d_o, b, h, t0);
            __syncthreads();
            score_gradients<D, R, C>(a, stream, b, h, t0, s0, q, d_o, k, v, lse, delta, seen, weights, gradients);
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int c = 0; c < C; c++) {
                    used[(TY * R + r) * STRIDE + TX + COLUMNS * c] = weights[r][c];
                    ds[(TY * R + r) * STRIDE + TX + COLUMNS * c] = gradients[r][c];
                }
            }
            __syncthreads();
            add_weighted<D, KEY_ROWS, QUERIES, STRIDE>(used, d_o, dv);
            add_weighted<D, KEY_ROWS, QUERIES, STRIDE>(ds, q, dk);
        }
    }
    store_tile<D, KEY_ROWS>(a.dk, b, g, s0, dk, a.add_k);
    store_tile<D, KEY_ROWS>(a.dv, b, g, s0, dv, a.add_v);
}

// ---- Calls ------------------------------------------------------------------------------------

// D, R and C of a kernel are chosen so that tiles of all tensors and of weights fit into the 99 KiB that every GPU has.
template <int D, int R, int C> static size_t tile_bytes(int of_queries, int of_keys, int64_t weights)
{
    int64_t rows = of_queries * ROW_GROUPS * R + of_keys * COLUMNS * C;
    return (size_t)(rows * (D + PAD) + weights) * sizeof(float);
}

static dim3 grid_of(const attention_args &a, int64_t rows, int size, int64_t heads)
{
    return dim3((unsigned)((rows + size - 1) / size), (unsigned)heads, (unsigned)a.q.dims[0]);
}

template <int D, int R, int C> static sl_status start_forward(const cuda_run *run, const attention_args &a)
{
    enum { QUERIES = ROW_GROUPS * R, KEYS = COLUMNS * C };
    return start_attention(run, attend_tiles<D, R, C>, grid_of(a, a.queries, QUERIES, a.heads), TILE_THREADS,
                           tile_bytes<D, R, C>(1, 2, KEYS * (QUERIES + PAD)), a);
}

template <int D, int R, int C>
static sl_status start_dq(const cuda_run *run, const attention_args &a, const float *deltas)
{
    enum { QUERIES = ROW_GROUPS * R, KEYS = COLUMNS * C };
    return start_attention(run, find_dq_tiles<D, R, C>, grid_of(a, a.queries, QUERIES, a.heads), TILE_THREADS,
                           tile_bytes<D, R, C>(2, 2, KEYS * (QUERIES + PAD)), a, deltas);
}

template <int D, int R, int C>
static sl_status start_dk_dv(const cuda_run *run, const attention_args &a, const float *deltas)
{
    enum { QUERIES = ROW_GROUPS * R, KEYS = COLUMNS * C };
    return start_attention(run, find_dk_dv_tiles<D, R, C>, grid_of(a, a.keys, KEYS, a.k.dims[2]), TILE_THREADS,
                           tile_bytes<D, R, C>(2, 2, 2 * QUERIES * (KEYS + PAD)), a, deltas);
}

bool attention_fits_tiles(const attention_args &a)
{
    return a.width <= 128;
}

sl_status attend_in_tiles(const cuda_run *run, const attention_args &a)
{
    return a.width <= 64 ? start_forward<64, 8, 4>(run, a) : start_forward<128, 8, 2>(run, a);
}

sl_status attention_grad_in_tiles(const cuda_run *run, const attention_args &a, const float *deltas)
{
    bool narrow = a.width <= 64;
    sl_status status = narrow ? start_dq<64, 8, 4>(run, a, deltas) : start_dq<128, 4, 2>(run, a, deltas);
    if (status != SL_OK)
        return status;
    return narrow ? start_dk_dv<64, 4, 4>(run, a, deltas) : start_dk_dv<128, 4, 2>(run, a, deltas);
}
