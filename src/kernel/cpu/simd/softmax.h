/* Rows of softmax, log-sum-exp, attention scores; the rotation of rotary embedding. */
#include <string.h>

/* e^x for x <= 0, or a little above by rounding. */
V_INLINE vf exp_below(vf x)
{
    return v_exp_within(v_max(v_set(-104.0f), x));
}

/* y = exp(x - shift), returns the sum; y may be NULL for the sum alone. */
V_INLINE float exp_and_sum(const float *x, float shift, float *y, int64_t n)
{
    vf m = v_set(shift), s0 = v_set(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf a = exp_below(v_sub(v_load(x + i), m)), b = exp_below(v_sub(v_load(x + i + VW), m));
        s0 = v_add(s0, a);
        s1 = v_add(s1, b);
        if (y) {
            v_store(y + i, a);
            v_store(y + i + VW, b);
        }
    }
    float sum = v_sum(v_add(s0, s1));
    for (; i < n; i += VW) {
        float tail[VW];
        int64_t left = n - i < VW ? n - i : VW;
        v_store(tail, exp_below(v_sub(load_upto(x + i, n - i), m)));
        for (int64_t j = 0; j < left; j++) {
            sum += tail[j];
            if (y)
                y[i + j] = tail[j];
        }
    }
    return sum;
}

static void simd_add_exp(const float *x, int64_t n, float *max, float *sum)
{
    float highest = simd_highest(x, n);
    if (!(highest <= *max)) { /* higher, or NaN */
        *sum *= expf(*max - highest);
        *max = highest;
    }
    if (*max != -INFINITY)
        *sum += exp_and_sum(x, *max, NULL, n);
}

static void simd_scaled_exp(const float *x, float lse, float weight, float *dx, int64_t n, bool add)
{
    vf l = v_set(lse), w = v_set(weight);
    for (int64_t i = 0; i < n; i += VW)
        emit_upto(dx + i, v_mul(w, v_exp(v_sub(load_upto(x + i, n - i), l))), n - i, add);
}

static void simd_softmax(const float *x, float *y, int64_t n, bool add)
{
    float max = simd_highest(x, n);
    if (add) {
        simd_scaled_exp(x, max, 1 / exp_and_sum(x, max, NULL, n), y, n, true);
        return;
    }
    vf factor = v_set(1 / exp_and_sum(x, max, y, n));
    for (int64_t i = 0; i < n; i += VW)
        emit_upto(y + i, v_mul(load_upto(y + i, n - i), factor), n - i, false);
}

static void simd_softmax_grad(const float *y, const float *dy, float *dx, int64_t n, bool add)
{
    vf dot = v_set(simd_dot(y, dy, n));
    for (int64_t i = 0; i < n; i += VW) {
        vf value = v_mul(load_upto(y + i, n - i), v_sub(load_upto(dy + i, n - i), dot));
        emit_upto(dx + i, value, n - i, add);
    }
}

/* x in lanes from..end, `other` in those before and behind. */
V_INLINE vf v_between(vf x, int64_t from, int64_t end, float other)
{
    static const float lanes[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    vf lane = v_load(lanes), rest = v_set(other);
    x = v_where_greater(v_set((float)end), lane, x, rest);
    return v_where_greater(v_set((float)from), lane, rest, x);
}

/* Vectors of a row: those before `first` and from `last` on are outside of what is seen, those from..end wholly inside. */
typedef struct row_parts {
    int64_t first, from, end, last;
} row_parts;

/* V_GROUP vectors from i on are inside. */
V_INLINE bool group_inside(row_parts parts, int64_t i)
{
    return i >= parts.from && i + V_GROUP * VW <= parts.end;
}

V_INLINE row_parts parts_of(int64_t from, int64_t seen)
{
    return (row_parts){ from / VW * VW, (from + VW - 1) / VW * VW, seen / VW * VW, (seen + VW - 1) / VW * VW };
}

V_INLINE void clear_outside(float *s, row_parts parts, int64_t n)
{
    for (int64_t i = 0; i < parts.first; i += VW)
        v_store(s + i, v_set(0.0f));
    for (int64_t i = parts.last; i < n; i += VW)
        v_store(s + i, v_set(0.0f));
}

/* A NaN does not reach the maximum, but the sum of the weights. */
static float simd_highest_score(const float *s, int64_t from, int64_t seen, float scale)
{
    row_parts parts = parts_of(from, seen);
    vf k = v_set(scale), highest = v_set(-INFINITY);
    for (int64_t i = parts.first; i < parts.last; i += VW) {
        vf score = v_mul(v_load(s + i), k);
        if (i < parts.from || i >= parts.end)
            score = v_between(score, from - i, seen - i, -INFINITY);
        highest = v_max(score, highest);
    }
    return v_highest(highest);
}

/* How far the scores at s are from a number. For the highest of them, as simd_highest_score has it, that is exactly 0. */
V_INLINE vf scores_from(const float *s, vf factor, vf number)
{
    return v_sub(v_mul(v_load(s), factor), number);
}

static float simd_softmax_row(float *s, int64_t from, int64_t seen, int64_t n, float scale, float max)
{
    row_parts parts = parts_of(from, seen);
    vf factor = v_set(scale), highest = v_set(max), sum = v_set(0.0f);
    int64_t i = parts.first;
    while (i < parts.last) {
        if (group_inside(parts, i)) {
            vf weights[V_GROUP];
#pragma GCC unroll 4
            for (int k = 0; k < V_GROUP; k++)
                weights[k] = exp_below(scores_from(s + i + k * VW, factor, highest));
            for (int k = 0; k < V_GROUP; k++, i += VW) {
                v_store(s + i, weights[k]);
                sum = v_add(sum, weights[k]);
            }
            continue;
        }
        vf below = scores_from(s + i, factor, highest);
        if (i < parts.from || i >= parts.end)
            below = v_between(below, from - i, seen - i, -INFINITY);
        vf weight = exp_below(below);
        v_store(s + i, weight);
        sum = v_add(sum, weight);
        i += VW;
    }
    clear_outside(s, parts, n);
    return v_sum(sum);
}

/* VW x VW at a time; what is left over one by one. */
static void simd_transpose(const float *x, int64_t x_row, int64_t rows, int64_t size, float scale, float *y,
                           int64_t y_row)
{
    vf factor = v_set(scale), tile[VW];
    int64_t i = 0;
    for (; i + VW <= rows; i += VW) {
        int64_t d = 0;
        for (; d + VW <= size; d += VW) {
            for (int j = 0; j < VW; j++)
                tile[j] = v_mul(factor, v_load(x + (i + j) * x_row + d));
            v_transpose(tile);
            for (int j = 0; j < VW; j++)
                v_store(y + (d + j) * y_row + i, tile[j]);
        }
        for (; d < size; d++) {
            for (int j = 0; j < VW; j++)
                y[d * y_row + i + j] = scale * x[(i + j) * x_row + d];
        }
    }
    for (; i < rows; i++) {
        for (int64_t d = 0; d < size; d++)
            y[d * y_row + i] = scale * x[i * x_row + d];
    }
}

static void simd_attention_row_grad(float *s, float *dp, int64_t from, int64_t seen, int64_t n, float s_scale,
                                    float scale, float lse, float delta)
{
    row_parts parts = parts_of(from, seen);
    vf raw = v_set(s_scale), k = v_set(scale), l = v_set(lse), d = v_set(delta);
    int64_t i = parts.first;
    while (i < parts.last) {
        if (group_inside(parts, i)) {
            vf p[V_GROUP];
#pragma GCC unroll 4
            for (int x = 0; x < V_GROUP; x++)
                p[x] = v_exp(scores_from(s + i + x * VW, raw, l));
            for (int x = 0; x < V_GROUP; x++, i += VW) {
                v_store(s + i, p[x]);
                v_store(dp + i, v_mul(v_mul(p[x], v_sub(v_load(dp + i), d)), k));
            }
            continue;
        }
        vf p = v_exp(scores_from(s + i, raw, l));
        vf ds = v_mul(v_mul(p, v_sub(v_load(dp + i), d)), k);
        if (i < parts.from || i >= parts.end) {
            p = v_between(p, from - i, seen - i, 0);
            ds = v_between(ds, from - i, seen - i, 0);
        }
        v_store(s + i, p);
        v_store(dp + i, ds);
        i += VW;
    }
    clear_outside(s, parts, n);
    clear_outside(dp, parts, n);
}

/* A number rounded to bf16, and what is left, rounded; each as the upper half of a word. */
V_INLINE void split_number(float x, uint32_t *first, uint32_t *second)
{
    const uint32_t upper = 0xffff0000u, half = 0x8000u;
    float part, left;
    memcpy(first, &x, sizeof x);
    *first = (*first + half) & upper;
    memcpy(&part, first, sizeof part);
    left = x - part;
    memcpy(second, &left, sizeof left);
    *second = (*second + half) & upper;
}

static void simd_split_rows(const float *a, const float *b, int64_t groups, uint32_t *high, uint32_t *low, int64_t step)
{
    enum { GROUP = 16 };
    for (int64_t g = 0; g < groups; g++) {
        const float *restrict from_a = a + g * 2 * GROUP, *restrict from_b = b + g * 2 * GROUP;
        uint32_t *restrict first = high + g * step, *restrict second = low + g * step;
        for (int i = 0; i < GROUP; i++) {
            uint32_t a_first, a_second, b_first, b_second;
            split_number(from_a[i], &a_first, &a_second);
            split_number(from_b[i], &b_first, &b_second);
            first[i] = a_first >> 16 | b_first;
            second[i] = a_second >> 16 | b_second;
        }
    }
}

static void simd_join_halves(const uint16_t *restrict a, const uint16_t *restrict b, int64_t n, uint32_t *restrict to)
{
    enum { GROUP = 16 };
    if (n == GROUP) {
        for (int i = 0; i < GROUP; i++)
            to[i] = a[i] | (uint32_t)b[i] << 16;
    } else {
        for (int i = 0; i < GROUP; i++)
            to[i] = i < n ? a[i] | (uint32_t)b[i] << 16 : 0;
    }
}

static void simd_rotate(const float *first, const float *second, const float *c, const float *s, float sign,
                        float *y_first, float *y_second, int64_t half, bool add)
{
    vf turn = v_set(sign);
    for (int64_t i = 0; i < half; i += VW) {
        int64_t left = half - i;
        vf a = load_upto(first + i, left), b = load_upto(second + i, left);
        vf cosine = load_upto(c + i, left), sine = v_mul(turn, load_upto(s + i, left));
        emit_upto(y_first + i, v_sub(v_mul(a, cosine), v_mul(b, sine)), left, add);
        emit_upto(y_second + i, v_add(v_mul(b, cosine), v_mul(a, sine)), left, add);
    }
}
