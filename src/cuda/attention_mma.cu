// Attention of bf16 by the matrix units, for what cuDNN does not do: dropout, documents, windows, capped scores, sequences
// of any length, any strides. Blocks of four warps; a warp has 16 queries (or, for the gradients of keys and values, 16
// keys) and goes through the others tile by tile, while the next tile is on its way to shared memory. Nothing of size T x T
// is written. Deterministic: the gradients of queries and those of keys and values have a kernel each, in which every sum
// has one owner and one order.
#include "cuda/attention_mma.cuh"

extern __shared__ __align__(16) bf16 mma_tiles[];

// ---- Forward ----------------------------------------------------------------------------------

// Running softmax of a lane's two rows: scores become weights, earlier results shrink.
template <int KEYS, int D>
__device__ __forceinline__ void weigh(float scores[KEYS / 8][4], float most[2], float sum[2], float out[D / 8][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = most[half];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        largest = join_row<fmaxf>(largest);
        float base = largest == -INFINITY ? 0 : largest, shrink = power_of_2(most[half] - base), added = 0;
        most[half] = largest;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                scores[n][i] = power_of_2(scores[n][i] - base);
                added += scores[n][i];
            }
        }
        sum[half] = fmaf(sum[half], shrink, added);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            out[n][2 * half] *= shrink;
            out[n][2 * half + 1] *= shrink;
        }
    }
}

template <int D, int KEYS, int BLOCKS>
__global__ void __launch_bounds__(MMA_THREADS, BLOCKS) attend_mma(const __grid_constant__ attention_args a)
{
    enum { STRIDE = D + TILE_PAD, TILE = KEYS * STRIDE, STAGES = 2 };
    bf16 *q = mma_tiles, *k = q + ROWS * STRIDE, *v = k + STAGES * TILE;
    const int64_t t0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, b = blockIdx.z, g = h / a.shared;
    const seen_by_rows seen = seen_from(a, b, t0);
    const int count = (seen.stop - seen.begin + KEYS - 1) / KEYS;
    const sl_dropout_stream stream = sl_dropout_resolve(&a.stream);
    const uint64_t weight = first_weight(stream, a, b, t0 + 16 * WARP, h);
    float out[D / 8][4] = {}, most[2] = { -INFINITY, -INFINITY }, sum[2] = {}, factor[2];
    uint64_t bits[2] = {};
    load_rows<ROWS, D>(q, a.q, b, h, (int)t0);
    for (int i = 1 - STAGES; i < count; i++) {
        const int ahead = i + STAGES - 1, stage = i & (STAGES - 1), s0 = seen.begin + i * KEYS;
        float scores[KEYS / 8][4];
        if (ahead < count) {
            load_rows<KEYS, D>(k + ahead % STAGES * TILE, a.k, b, g, seen.begin + ahead * KEYS);
            load_rows<KEYS, D>(v + ahead % STAGES * TILE, a.v, b, g, seen.begin + ahead * KEYS);
        }
        close_copies();
        if (i < 0)
            continue;
        if (a.drops && s0 % DRAWN == 0)
            draw_rows(stream, weight + (uint64_t)s0, (uint64_t)a.keys, bits);
        wait_for_copies<STAGES - 1>();
        __syncthreads(); // this tile is there
        multiply_rows<D, KEYS>(q + 16 * WARP * STRIDE, k + stage * TILE, scores);
        make_scores<KEYS>(a, scores);
        hide_unseen<KEYS>(seen, s0, scores);
        weigh<KEYS, D>(scores, most, sum, out);
        if (a.drops) {
            const uint64_t kept[2] = { bits[0] >> s0 % DRAWN, bits[1] >> s0 % DRAWN };
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    scores[n][e] = kept[e / 2] >> (8 * n + e % 2) & 1 ? scores[n][e] : 0;
            }
        }
        add_weighted<D, KEYS, D>(scores, v + stage * TILE, out);
        __syncthreads(); // and used up
    }
    wait_for_copies<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t t = t0 + 16 * WARP + SUM_ROW + 8 * half;
        float total = join_row<sum_of<float>>(sum[half]);
        bool any = seen.end[half] > seen.first[half];
        factor[half] = any ? (a.drops ? (float)stream.keep : 1) / total : 0;
        if (LANE % 4 == 0 && t < a.queries && a.lse.data)
            store<float>(a.lse.data, a.lse.dtype, b * a.lse.strides[0] + h * a.lse.strides[1] + t * a.lse.strides[2],
                         any ? most[half] * LN_2 + logf(total) : -INFINITY, false);
    }
    store_rows<D>(a.o, b, h, t0 + 16 * WARP, 0, out, factor, false);
}

// ---- Gradients --------------------------------------------------------------------------------

// What the gradients know of a query.
struct query_facts {
    float lse, delta; // lse times log2(e); inf if the query sees nothing or is past the end: its weights are 0 then
    int first, end;   // the keys that it sees
};

// The word of bits of dropout for the DRAWN keys from s0 on of query (b, t, h).
__device__ __forceinline__ int64_t word_of(const attention_args &a, int64_t b, int64_t h, int64_t t, int s0)
{
    return ((b * a.heads + h) * a.queries + t) * ((a.keys + DRAWN - 1) / DRAWN) + s0 / DRAWN;
}

// Leaves the bits that draw_rows has drawn for the kernel that comes next.
__device__ __forceinline__ void store_bits(const attention_args &a, uint64_t *words, int64_t b, int64_t h, int64_t t0,
                                           int s0, const uint64_t bits[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t t = t0 + 16 * WARP + SUM_ROW + 8 * half;
        if (SUM_COLUMN == 0 && t < a.queries)
            words[word_of(a, b, h, t, s0)] = bits[half];
    }
}

__device__ __forceinline__ query_facts facts_of(const attention_args &a, const float *deltas, int64_t b, int64_t h,
                                                int64_t t)
{
    query_facts facts = { INFINITY, 0, 0, 0 };
    if (t >= a.queries)
        return facts;
    facts.end = (int)visible_keys(a, t);
    facts.first = (int)first_key(a, b, t, facts.end);
    facts.delta = deltas[(b * a.heads + h) * a.queries + t];
    if (facts.end > facts.first)
        facts.lse = statistic<float>(a, b, h, t) * LOG2_E;
    return facts;
}

template <int D, int KEYS, int STAGES, int BLOCKS>
__global__ void __launch_bounds__(MMA_THREADS, BLOCKS)
    find_dq_mma(const __grid_constant__ attention_args a, const float *deltas,
                uint64_t *words)
{
    enum { STRIDE = D + TILE_PAD, TILE = KEYS * STRIDE };
    bf16 *q = mma_tiles, *d_o = q + ROWS * STRIDE, *k = d_o + ROWS * STRIDE, *v = k + STAGES * TILE;
    const int64_t t0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, b = blockIdx.z, g = h / a.shared;
    const seen_by_rows seen = seen_from(a, b, t0);
    const int count = (seen.stop - seen.begin + KEYS - 1) / KEYS;
    const query_facts facts[2] = { facts_of(a, deltas, b, h, t0 + 16 * WARP + SUM_ROW),
                                   facts_of(a, deltas, b, h, t0 + 16 * WARP + SUM_ROW + 8) };
    const sl_dropout_stream stream = sl_dropout_resolve(&a.stream);
    const uint64_t weight = first_weight(stream, a, b, t0 + 16 * WARP, h);
    const float keep = a.drops ? (float)stream.keep : 1, by_scale[2] = { (float)a.scale, (float)a.scale };
    float dq[D / 8][4] = {};
    uint64_t bits[2] = { ~(uint64_t)0, ~(uint64_t)0 };
    load_rows<ROWS, D>(q, a.q, b, h, (int)t0);
    load_rows<ROWS, D>(d_o, a.d_o, b, h, (int)t0);
    for (int i = 1 - STAGES; i < count; i++) {
        const int ahead = i + STAGES - 1, stage = i & (STAGES - 1), s0 = seen.begin + i * KEYS;
        float scores[KEYS / 8][4], gradients[KEYS / 8][4];
        if (ahead < count) {
            load_rows<KEYS, D>(k + ahead % STAGES * TILE, a.k, b, g, seen.begin + ahead * KEYS);
            load_rows<KEYS, D>(v + ahead % STAGES * TILE, a.v, b, g, seen.begin + ahead * KEYS);
        }
        close_copies();
        if (i < 0)
            continue;
        if (a.drops && s0 % DRAWN == 0) {
            draw_rows(stream, weight + (uint64_t)s0, (uint64_t)a.keys, bits);
            store_bits(a, words, b, h, t0, s0, bits);
        }
        wait_for_copies<STAGES - 1>();
        __syncthreads(); // this tile is there
        multiply_rows<D, KEYS>(q + 16 * WARP * STRIDE, k + stage * TILE, scores);
        multiply_rows<D, KEYS>(d_o + 16 * WARP * STRIDE, v + stage * TILE, gradients);
        make_scores<KEYS>(a, scores);
        hide_unseen<KEYS>(seen, s0, scores);
        const uint64_t kept[2] = { bits[0] >> s0 % DRAWN, bits[1] >> s0 % DRAWN };
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = power_of_2(scores[n][e] - facts[e / 2].lse);
                bool stays = !a.drops || kept[e / 2] >> (8 * n + e % 2) & 1;
                gradients[n][e] =
                    score_gradient(a, p, scores[n][e], stays ? gradients[n][e] * keep : 0, facts[e / 2].delta);
            }
        }
        add_weighted<D, KEYS, D>(gradients, k + stage * TILE, dq);
        __syncthreads(); // and used up
    }
    wait_for_copies<0>();
    store_rows<D>(a.dq, b, h, t0 + 16 * WARP, 0, dq, by_scale, a.add_q);
}

// Queries from here on see none of the keys s0 .. s0 + ROWS - 1.
__device__ __forceinline__ int last_query(const attention_args &a, int64_t b, int s0)
{
    int64_t end = a.window > 0 && s0 + ROWS - 1 + a.window < a.queries ? s0 + ROWS - 1 + a.window : a.queries;
    if (!a.documents)
        return (int)end;
    int last = s0;
    for (int64_t t = s0 + (int)threadIdx.x; t < end; t += MMA_THREADS) {
        if (first_key(a, b, t, t + 1) < s0 + ROWS)
            last = (int)t + 1;
    }
    return group_max<MMA_THREADS, int>(last);
}

// What queries from t0 on do not see of the lane's keys, s and s + 8, gets a score of -inf; s0 is the block's first key.
template <int QUERIES>
__device__ __forceinline__ void hide_unseen_keys(const attention_args &a, const query_facts *facts, int t0, int s0, int s,
                                                 float scores[QUERIES / 8][4])
{
    bool all_seen = !a.documents && (!a.causal || t0 >= s0 + ROWS - 1) && (a.window <= 0 || t0 + QUERIES - s0 <= a.window);
    if (all_seen)
        return;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const query_facts *query = &facts[8 * n + SUM_COLUMN + e % 2];
            if (s + e / 2 * 8 < query->first || s + e / 2 * 8 >= query->end)
                scores[n][e] = -INFINITY;
        }
    }
}

// Of one tile [16 keys][QUERIES]: scores become weights after dropout, gradients of the weights those of the scores.
// `kept` has a word for each query, with the bit of the lane's first key at `shift`.
template <int QUERIES>
__device__ __forceinline__ void weigh_keys(const attention_args &a, const query_facts *facts, const uint32_t *kept,
                                           int shift, float keep, float weights[QUERIES / 8][4],
                                           float gradients[QUERIES / 8][4])
{
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const query_facts query = facts[8 * n + SUM_COLUMN + side];
            const uint32_t bits = a.drops ? kept[8 * n + SUM_COLUMN + side] >> shift : ~0u;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float *weight = &weights[n][2 * half + side], *gradient = &gradients[n][2 * half + side];
                float p = power_of_2(*weight - query.lse);
                bool stays = bits >> 8 * half & 1;
                *gradient = score_gradient(a, p, *weight, stays ? *gradient * keep : 0, query.delta);
                *weight = stays ? p : 0;
            }
        }
    }
}

// Thread i has query i of the next tile.
template <int QUERIES>
__device__ __forceinline__ void put_facts(const query_facts &query, uint64_t bits, query_facts *facts,
                                          uint32_t kept[2][QUERIES])
{
    if (threadIdx.x >= QUERIES)
        return;
    facts[threadIdx.x] = query;
    kept[0][threadIdx.x] = (uint32_t)bits;
    kept[1][threadIdx.x] = (uint32_t)(bits >> 32);
}

// D: width of a head; OUT: columns of the gradients that a block makes, D or a part of it.
template <int D, int QUERIES, int STAGES, int OUT, int BLOCKS>
__global__ void __launch_bounds__(MMA_THREADS, BLOCKS)
    find_dk_dv_mma(const __grid_constant__ attention_args a, const float *deltas, const uint64_t *words)
{
    enum { STRIDE = D + TILE_PAD, TILE = QUERIES * STRIDE };
    __shared__ query_facts facts[STAGES][QUERIES];
    __shared__ uint32_t kept[STAGES][2][QUERIES]; // bits of dropout for the lower and the upper half of the keys
    bf16 *k = mma_tiles, *v = k + ROWS * STRIDE, *q = v + ROWS * STRIDE, *d_o = q + STAGES * TILE;
    const int s0 = (int)(blockIdx.x / (D / OUT)) * ROWS, column = (int)(blockIdx.x % (D / OUT)) * OUT;
    const int64_t g = blockIdx.y, b = blockIdx.z;
    const int begin = a.causal ? s0 : 0, end = last_query(a, b, s0), row = 16 * WARP + SUM_ROW;
    const int tiles = end > begin ? (end - begin + QUERIES - 1) / QUERIES : 0, count = tiles * (int)a.shared;
    const sl_dropout_stream stream = sl_dropout_resolve(&a.stream);
    const float keep = a.drops ? (float)stream.keep : 1;
    float dk[OUT / 8][4] = {}, dv[OUT / 8][4] = {};
    load_rows<ROWS, D>(k, a.k, b, g, s0);
    load_rows<ROWS, D>(v, a.v, b, g, s0);
    for (int i = 1 - STAGES; i < count; i++) {
        const int ahead = i + STAGES - 1, stage = i & (STAGES - 1);
        float weights[QUERIES / 8][4], gradients[QUERIES / 8][4];
        query_facts next = {};
        uint64_t bits = 0;
        if (ahead < count) {
            const int64_t h = g * a.shared + ahead / tiles;
            const int its_t0 = begin + ahead % tiles * QUERIES, t = its_t0 + (int)threadIdx.x;
            load_rows<QUERIES, D>(q + ahead % STAGES * TILE, a.q, b, h, its_t0);
            load_rows<QUERIES, D>(d_o + ahead % STAGES * TILE, a.d_o, b, h, its_t0);
            if (threadIdx.x < QUERIES)
                next = facts_of(a, deltas, b, h, t);
            if (a.drops && next.first < s0 + ROWS && next.end > s0)
                bits = words[word_of(a, b, h, t, s0)];
        }
        close_copies();
        if (STAGES == 1 || i < 0)
            put_facts<QUERIES>(next, bits, facts[0], kept[0]);
        if (i < 0)
            continue;
        const int t0 = begin + i % tiles * QUERIES;
        wait_for_copies<STAGES - 1>();
        __syncthreads(); // this tile is there
        multiply_rows<D, QUERIES>(k + 16 * WARP * STRIDE, q + stage * TILE, weights);
        multiply_rows<D, QUERIES>(v + 16 * WARP * STRIDE, d_o + stage * TILE, gradients);
        make_scores<QUERIES>(a, weights);
        hide_unseen_keys<QUERIES>(a, facts[stage], t0, s0, s0 + row, weights);
        weigh_keys<QUERIES>(a, facts[stage], kept[stage][row / 32], row % 32, keep, weights, gradients);
        add_weighted<D, QUERIES, OUT>(weights, d_o + stage * TILE + column, dv);
        add_weighted<D, QUERIES, OUT>(gradients, q + stage * TILE + column, dk);
        if (STAGES == 2)
            put_facts<QUERIES>(next, bits, facts[stage ^ 1], kept[stage ^ 1]);
        __syncthreads(); // and used up
    }
    wait_for_copies<0>();
    const float by_keep[2] = { keep, keep }, by_scale[2] = { (float)a.scale, (float)a.scale };
    store_rows<OUT>(a.dv, b, g, s0 + 16 * WARP, column, dv, by_keep, a.add_v);
    store_rows<OUT>(a.dk, b, g, s0 + 16 * WARP, column, dk, by_scale, a.add_k);
}

// ---- Calls ------------------------------------------------------------------------------------

// Tiles of `rows` rows of D numbers.
static size_t tile_bytes(int d, int rows)
{
    return (size_t)rows * (size_t)(d + TILE_PAD) * sizeof(bf16);
}

// Blocks for queries or keys of `heads` heads.
static dim3 grid_of(const attention_args &a, int64_t rows, int64_t heads, int parts)
{
    return dim3((unsigned)((rows + ROWS - 1) / ROWS * parts), (unsigned)heads, (unsigned)a.q.dims[0]);
}

template <int D, int KEYS, int BLOCKS> static sl_status forward(const cuda_run *run, const attention_args &a)
{
    return start_attention(run, attend_mma<D, KEYS, BLOCKS>, grid_of(a, a.queries, a.heads, 1), MMA_THREADS,
                           tile_bytes(D, ROWS + 4 * KEYS), a);
}

// COUNT: keys of a tile, then queries of a tile.
template <int D, int COUNT, int STAGES, int OUT, int DQ_BLOCKS, int DKV_BLOCKS>
static sl_status backward(const cuda_run *run, const attention_args &a, const float *deltas, uint64_t *kept)
{
    sl_status status = SL_OK;
    const size_t bytes = tile_bytes(D, 2 * ROWS + 2 * STAGES * COUNT);
    SL_TRY(start_attention(run, find_dq_mma<D, COUNT, STAGES, DQ_BLOCKS>, grid_of(a, a.queries, a.heads, 1), MMA_THREADS,
                           bytes, a, deltas, kept));
    SL_TRY(start_attention(run, find_dk_dv_mma<D, COUNT, STAGES, OUT, DKV_BLOCKS>,
                           grid_of(a, a.keys, a.k.dims[2], D / OUT), MMA_THREADS, bytes, a, deltas,
                           (const uint64_t *)kept));
done:
    return status;
}

// Sizes of tiles and blocks that share a multiprocessor are chosen for the registers of an H200; tiles fit into the
// 99 KiB that every GPU has.
sl_status attend_by_mma(const cuda_run *run, const attention_args &a)
{
    if (a.width > 128)
        return forward<256, 16, 2>(run, a);
    return a.width > 64 ? forward<128, 64, 2>(run, a) : forward<64, 64, 4>(run, a);
}

sl_status attention_grad_by_mma(const cuda_run *run, const attention_args &a, const float *deltas, uint64_t *kept)
{
    if (a.width > 128)
        return backward<256, 16, 1, 128, 2, 2>(run, a, deltas, kept);
    return a.width > 64 ? backward<128, 32, 2, 128, 3, 2>(run, a, deltas, kept)
                        : backward<64, 32, 2, 64, 4, 3>(run, a, deltas, kept);
}
