/* Sums, maxima, dot products. Four accumulators hide the latency; their order of addition is fixed. */

/* Sum over a run of f(x, y, bias); the tail lanes that do not exist contribute 0 if f maps zeros to 0. */
V_INLINE float fold(vf (*f)(vf sum, vf x, vf y), const float *x, const float *y, int64_t n)
{
    vf s0 = v_set(0.0f), s1 = s0, s2 = s0, s3 = s0, zero = s0;
    int64_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        s0 = f(s0, v_load(x + i), y ? v_load(y + i) : zero);
        s1 = f(s1, v_load(x + i + VW), y ? v_load(y + i + VW) : zero);
        s2 = f(s2, v_load(x + i + 2 * VW), y ? v_load(y + i + 2 * VW) : zero);
        s3 = f(s3, v_load(x + i + 3 * VW), y ? v_load(y + i + 3 * VW) : zero);
    }
    for (; i + VW <= n; i += VW)
        s0 = f(s0, v_load(x + i), y ? v_load(y + i) : zero);
    if (i < n)
        s1 = f(s1, v_load_part(x + i, n - i), y ? v_load_part(y + i, n - i) : zero);
    return v_sum(v_add(v_add(s0, s1), v_add(s2, s3)));
}

V_INLINE vf fold_sum(vf sum, vf x, vf y)
{
    (void)y;
    return v_add(sum, x);
}

V_INLINE vf fold_dot(vf sum, vf x, vf y)
{
    return v_fma(x, y, sum);
}

V_INLINE vf fold_square(vf sum, vf x, vf y)
{
    (void)y;
    return v_fma(x, x, sum);
}

static float simd_sum(const float *x, int64_t n)
{
    return fold(fold_sum, x, NULL, n);
}

static float simd_dot(const float *x, const float *y, int64_t n)
{
    return fold(fold_dot, x, y, n);
}

static float simd_dot_bf16(const uint16_t *x, const uint16_t *y, int64_t n)
{
    vf s0 = v_set(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        s0 = v_fma(v_load_bf16(x + i), v_load_bf16(y + i), s0);
        s1 = v_fma(v_load_bf16(x + i + VW), v_load_bf16(y + i + VW), s1);
    }
    float sum = v_sum(v_add(s0, s1));
    for (; i < n; i++)
        sum += sl_bf16_to_f32(x[i]) * sl_bf16_to_f32(y[i]);
    return sum;
}

static float simd_highest(const float *x, int64_t n)
{
    vf best = v_set(-INFINITY), other = best;
    vf nan = v_set(0.0f); /* NaN once an element is */
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf a = v_load(x + i), b = v_load(x + i + VW);
        best = v_max(a, best);
        other = v_max(b, other);
        nan = v_add(nan, v_sub(v_add(a, b), v_add(a, b)));
    }
    float highest = v_highest(v_max(best, other));
    if (v_sum(nan) != 0) { /* an infinity or a NaN: settle it one by one */
        highest = -INFINITY;
        i = 0;
    }
    for (; i < n; i++)
        highest = x[i] > highest || x[i] != x[i] ? x[i] : highest;
    return highest;
}

static void simd_axpy(float alpha, const float *x, float *y, int64_t n)
{
    vf a = v_set(alpha);
    int64_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(y + i, v_fma(a, v_load(x + i), v_load(y + i)));
    if (i < n)
        v_store_part(y + i, v_fma(a, v_load_part(x + i, n - i), v_load_part(y + i, n - i)), n - i);
}

static double simd_square_sum(const float *x, int64_t n)
{
    vd s0 = vd_zero(), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        s0 = vd_add_square(s0, v_load(x + i));
        s1 = vd_add_square(s1, v_load(x + i + VW));
    }
    for (; i + VW <= n; i += VW)
        s0 = vd_add_square(s0, v_load(x + i));
    if (i < n)
        s1 = vd_add_square(s1, v_load_part(x + i, n - i));
    return vd_sum(s0) + vd_sum(s1);
}

/* Four rows at a time, so that y is read and written a quarter as often. */
V_INLINE void sum_rows_of(elements of, const char *x, int64_t rows, int64_t stride, float *y, int64_t n)
{
    const int64_t step = stride * of.size;
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
        const char *at = x + row * step;
        int64_t c = 0;
        for (; c + VW <= n; c += VW, at += VW * of.size) {
            vf first = v_add(of.load(at), of.load(at + step));
            vf second = v_add(of.load(at + 2 * step), of.load(at + 3 * step));
            v_emit(y + c, v_add(first, second), true);
        }
        if (c < n) {
            vf first = v_add(of.load_part(at, n - c), of.load_part(at + step, n - c));
            vf second = v_add(of.load_part(at + 2 * step, n - c), of.load_part(at + 3 * step, n - c));
            v_emit_part(y + c, v_add(first, second), n - c, true);
        }
    }
    for (; row < rows; row++) {
        const char *at = x + row * step;
        int64_t c = 0;
        for (; c + VW <= n; c += VW, at += VW * of.size)
            v_emit(y + c, of.load(at), true);
        if (c < n)
            v_emit_part(y + c, of.load_part(at, n - c), n - c, true);
    }
}

static void simd_sum_rows(const float *x, int64_t rows, int64_t stride, float *y, int64_t n)
{
    sum_rows_of(ELEMENTS_F32, (const char *)x, rows, stride, y, n);
}

static void simd_sum_bf16_rows(const uint16_t *x, int64_t rows, int64_t stride, float *y, int64_t n)
{
    sum_rows_of(ELEMENTS_BF16, (const char *)x, rows, stride, y, n);
}

static void simd_fill(float *y, float value, int64_t n, bool add)
{
    vf v = v_set(value);
    int64_t i = 0;
    for (; i + VW <= n; i += VW)
        v_emit(y + i, v, add);
    if (i < n)
        v_emit_part(y + i, v, n - i, add);
}
