// What the kernels of attention_mma.cu are made of: tiles in shared memory and their products, bits of dropout, scores and
// what hides them.
#ifndef SL_CUDA_ATTENTION_MMA_CUH
#define SL_CUDA_ATTENTION_MMA_CUH

#include "cuda/attention.cuh"
#include "cuda/mma.cuh"

enum { MMA_THREADS = 128, MMA_WARPS = MMA_THREADS / 32, ROWS = 16 * MMA_WARPS }; // rows: of a block, 16 a warp

// Weights whose random bits are drawn at once: those that share counters.
enum { DRAWN = SL_PHILOX_GROUP };

static_assert((int)DRAWN == (int)ROWS, "a block of keys is what is drawn at once");

#define WARP ((int)threadIdx.x / 32)
#define LN_2 0.693147181f

// ---- Tiles ------------------------------------------------------------------------------------

// Whether rows can be copied 16 bytes at a time.
__device__ __forceinline__ bool lies_in_eights(const tensor_view &view)
{
    return view.strides[3] == 1 && (uintptr_t)view.data % 16 == 0 &&
           (view.strides[0] | view.strides[1] | view.strides[2] | view.dims[3]) % 8 == 0;
}

// COUNT rows of head h of a [B,T,H,D] tensor from row `first` on; zeros past its end. They are there after the copies
// were waited for and the block was synchronized.
template <int COUNT, int D>
__device__ __forceinline__ void load_rows(bf16 *to, const tensor_view &from, int64_t b, int64_t h, int first)
{
    enum { PIECES = D / 8, STEP = MMA_THREADS / PIECES }; // pieces of a row; rows of one piece a thread
    const int row = (int)threadIdx.x / PIECES, d = (int)threadIdx.x % PIECES * 8;
    const int rows = d < from.dims[3] ? (int)(from.dims[1] - first) : 0;
    const bf16 *source = (const bf16 *)from.data + start_of(from, b, first + row, h) + d * from.strides[3];
    const bool eights = lies_in_eights(from);
    to += row * (D + TILE_PAD) + d;
#pragma unroll
    for (int n = 0; n < COUNT / STEP; n++) {
        const bool there = row + n * STEP < rows;
        bf16 *place = to + n * STEP * (D + TILE_PAD);
        if (eights) {
            copy_later(place, there ? source : (const bf16 *)from.data, there);
        } else {
            for (int k = 0; k < 8; k++)
                place[k] = there && d + k < from.dims[3] ? source[k * from.strides[3]] : bf16(0.0f);
        }
        source += STEP * from.strides[1];
    }
}

// Writes factor[0] * sums of row SUM_ROW of the warp's 16, factor[1] * those of the row 8 below, from column `column` on.
template <int WIDTH>
__device__ __forceinline__ void store_rows(const tensor_view &to, int64_t b, int64_t h, int64_t first, int column,
                                           const float sums[WIDTH / 8][4], const float factor[2], bool add)
{
    const bool pairs = to.strides[3] == 1 && (uintptr_t)to.data % 4 == 0 && !add &&
                       (to.strides[0] | to.strides[1] | to.strides[2] | to.dims[3]) % 2 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t row = first + SUM_ROW + 8 * half;
        if (row >= to.dims[1])
            continue;
        bf16 *at = (bf16 *)to.data + start_of(to, b, row, h);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            int64_t d = column + 8 * n + SUM_COLUMN;
            float low = sums[n][2 * half] * factor[half], high = sums[n][2 * half + 1] * factor[half];
            if (pairs && d < to.dims[3]) {
                *(uint32_t *)(at + d) = pair_of(low, high);
                continue;
            }
            if (d < to.dims[3])
                store<float>(at, SL_BF16, d * to.strides[3], low, add);
            if (d + 1 < to.dims[3])
                store<float>(at, SL_BF16, (d + 1) * to.strides[3], high, add);
        }
    }
}

// ---- Products ---------------------------------------------------------------------------------

// sums = 16 rows of x times COUNT rows of y: [16][COUNT] in pieces of 8 columns.
template <int D, int COUNT>
__device__ __forceinline__ void multiply_rows(const bf16 *x, const bf16 *y, float sums[COUNT / 8][4])
{
    enum { STRIDE = D + TILE_PAD };
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++)
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const mma_operand left = load_left<STRIDE>(x + d);
#pragma unroll
        for (int n = 0; n < COUNT; n += 16)
            multiply_add(&sums[n / 8], left, load_right<STRIDE>(y + n * STRIDE + d));
    }
}

// sums += weights[16][COUNT] times COUNT rows of x, of which OUT columns are taken. Weights are multiplied in two parts, a bf16
// number and what it leaves, so that nothing but results is rounded to bf16.
template <int D, int COUNT, int OUT>
__device__ __forceinline__ void add_weighted(const float weights[COUNT / 8][4], const bf16 *x, float sums[OUT / 8][4])
{
    enum { STRIDE = D + TILE_PAD };
#pragma unroll
    for (int n = 0; n < COUNT; n += 16) {
        const mma_operand left = left_of(&weights[n / 8]), rest = rest_of(&weights[n / 8], left);
#pragma unroll
        for (int d = 0; d < OUT; d += 16) {
            const mma_operand right = load_right_transposed<STRIDE>(x + n * STRIDE + d);
            multiply_add(&sums[d / 8], left, right);
            multiply_add(&sums[d / 8], rest, right);
        }
    }
}

// ---- Dropout ----------------------------------------------------------------------------------

// Draws for DRAWN weights of two rows; `mine` is the number of the lane's first: of weight LANE % 16 of row LANE / 16. Word
// k has bits for weights 16 k to 16 k + 15 of both rows: 1 if the weight stays. ALIGNED: mine / 16 is a multiple of 4, so
// that all words of the lane's counter belong to its weights.
template <bool ALIGNED>
__device__ __forceinline__ void draw_two_rows(const sl_dropout_stream &stream, uint64_t mine, uint32_t kept[4])
{
    uint32_t words[8];
    sl_dropout_words(&stream, mine, words);
    if (!ALIGNED) {
        const unsigned skipped = (unsigned)(mine / SL_PHILOX_BLOCKS % 4); // words that belong to weights before
        sl_dropout_words(&stream, mine + SL_PHILOX_GROUP, words + 4);
#pragma unroll
        for (int k = 0; k < 6; k++)
            words[k] = skipped & 2 ? words[k + 2] : words[k];
#pragma unroll
        for (int k = 0; k < 4; k++)
            words[k] = skipped & 1 ? words[k + 1] : words[k];
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        kept[k] = __ballot_sync(0xffffffffu, words[k] >= stream.threshold);
}

// The bits of one of the two rows.
__device__ __forceinline__ uint64_t bits_of_row(const uint32_t kept[4], int row)
{
    const unsigned choice = row ? 0x7632 : 0x5410; // upper or lower halves of two words
    return (uint64_t)__byte_perm(kept[2], kept[3], choice) << 32 | __byte_perm(kept[0], kept[1], choice);
}

template <bool ALIGNED>
__device__ __forceinline__ void draw_rows_as(const sl_dropout_stream &stream, uint64_t mine, uint64_t step,
                                             uint64_t bits[2])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t kept[4];
        draw_two_rows<ALIGNED>(stream, mine + (uint64_t)(2 * i) * step, kept);
        if (SUM_ROW / 2 == i % 4)
            bits[i / 4] = bits_of_row(kept, SUM_ROW % 2) >> SUM_COLUMN;
    }
}

// Draws for DRAWN weights of 16 rows of a warp, from element `element` on; rows are `step` apart. bits[0] are those of row
// SUM_ROW, bits[1] those of the row 8 below, from column SUM_COLUMN on.
__device__ __forceinline__ void draw_rows(const sl_dropout_stream &stream, uint64_t element, uint64_t step,
                                          uint64_t bits[2])
{
    const uint64_t mine = element + (LANE / 16) * step + LANE % 16;
    if ((element | step) % SL_PHILOX_GROUP == 0)
        draw_rows_as<true>(stream, mine, step, bits);
    else
        draw_rows_as<false>(stream, mine, step, bits);
}

// The number of the weight of key 0 for query (b, t, h).
__device__ __forceinline__ uint64_t first_weight(const sl_dropout_stream &stream, const attention_args &a, int64_t b,
                                                 int64_t t, int64_t h)
{
    return stream.first + (uint64_t)(((b * a.heads + h) * a.queries + t) * a.keys);
}

// ---- Scores -----------------------------------------------------------------------------------

// What lane and block need to know of the keys that the block's queries see; queries past the end see what the last one
// does.
struct seen_by_rows {
    int first[2], end[2];          // of the lane's two rows
    int begin, stop;               // no query of the block sees a key outside
    int last_begin, earliest_stop; // every query of the block sees all keys inside
};

__device__ __forceinline__ seen_by_rows seen_from(const attention_args &a, int64_t b, int64_t t0)
{
    seen_by_rows seen;
    for (int half = 0; half < 2; half++) {
        int64_t t = t0 + 16 * WARP + SUM_ROW + 8 * half;
        t = t < a.queries ? t : a.queries - 1;
        seen.end[half] = (int)visible_keys(a, t);
        seen.first[half] = (int)first_key(a, b, t, seen.end[half]);
    }
    seen.begin = -group_max<MMA_THREADS, int>(-min(seen.first[0], seen.first[1])) / DRAWN * DRAWN;
    seen.stop = group_max<MMA_THREADS, int>(max(seen.end[0], seen.end[1]));
    seen.last_begin = group_max<MMA_THREADS, int>(max(seen.first[0], seen.first[1]));
    seen.earliest_stop = -group_max<MMA_THREADS, int>(-min(seen.end[0], seen.end[1]));
    return seen;
}

// Scores from products q.k, times log2(e) so that weights are powers of 2.
template <int COUNT> __device__ __forceinline__ void make_scores(const attention_args &a, float products[COUNT / 8][4])
{
    const float scale = (float)a.scale, cap = (float)a.softcap;
    const float factor = cap > 0 ? scale / cap : scale * LOG2_E;
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            products[n][i] *= factor;
    }
    if (!(cap > 0))
        return;
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            products[n][i] = cap * LOG2_E * tanhf(products[n][i]);
    }
}

// What queries do not see gets a score of -inf.
template <int COUNT>
__device__ __forceinline__ void hide_unseen(const seen_by_rows &seen, int s0, float scores[COUNT / 8][4])
{
    if (s0 >= seen.last_begin && s0 + COUNT <= seen.earliest_stop)
        return;
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int s = s0 + 8 * n + SUM_COLUMN + i % 2;
            if (s < seen.first[i / 2] || s >= seen.end[i / 2])
                scores[n][i] = -INFINITY;
        }
    }
}

// The gradient of scale * q.k, without the factor scale: of a weight p, its score, the gradient dp of what it is multiplied
// by, and delta.
__device__ __forceinline__ float score_gradient(const attention_args &a, float p, float score, float dp, float delta)
{
    float gradient = p * (dp - delta);
    if (a.softcap > 0) {
        float part = score * (LN_2 / (float)a.softcap);
        gradient *= p > 0 ? 1 - part * part : 0;
    }
    return gradient;
}

// The sum, or the largest, of a row's values: four lanes have them.
template <float (*JOIN)(float, float)> __device__ __forceinline__ float join_row(float value)
{
    value = JOIN(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return JOIN(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

#endif
