/* One row of layer and RMS normalization and of their gradients. */

V_INLINE vf load_upto(const float *p, int64_t left)
{
    return left >= VW ? v_load(p) : v_load_part(p, left);
}

V_INLINE void emit_upto(float *p, vf value, int64_t left, bool add)
{
    if (left >= VW)
        v_emit(p, value, add);
    else
        v_emit_part(p, value, left, add);
}

/* sum((x - mean)^2); lanes that do not exist must not count, so the tail is summed on its own. */
V_INLINE float spread_about(const float *x, float mean, int64_t n)
{
    vf m = v_set(mean), s0 = v_set(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf a = v_sub(v_load(x + i), m), b = v_sub(v_load(x + i + VW), m);
        s0 = v_fma(a, a, s0);
        s1 = v_fma(b, b, s1);
    }
    float sum = v_sum(v_add(s0, s1));
    for (; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

static void simd_layernorm(const float *x, const float *w, const float *b, float eps, float *y, float *mean_out,
                           float *rstd_out, int64_t n)
{
    float mean = simd_sum(x, n) / (float)n;
    float rstd = 1 / sqrtf(spread_about(x, mean, n) / (float)n + eps);
    vf m = v_set(mean), r = v_set(rstd);
    for (int64_t i = 0; i < n; i += VW) {
        vf value = v_mul(v_sub(load_upto(x + i, n - i), m), r);
        if (w)
            value = v_mul(value, load_upto(w + i, n - i));
        if (b)
            value = v_add(value, load_upto(b + i, n - i));
        emit_upto(y + i, value, n - i, false);
    }
    *mean_out = mean;
    *rstd_out = rstd;
}

/* With g = dy * w and x' the normalized x: dx = rstd * (g - mean(g) - x' mean(g x')). */
static void simd_layernorm_grad_x(const float *dy, const float *x, const float *w, float mean, float rstd, float *dx,
                                  int64_t n, bool add)
{
    vf one = v_set(1.0f), m = v_set(mean), r = v_set(rstd), sum = v_set(0.0f), dot = sum;
    for (int64_t i = 0; i < n; i += VW) {
        vf g = load_upto(dy + i, n - i); /* 0 in lanes that do not exist */
        g = v_mul(g, w ? load_upto(w + i, n - i) : one);
        sum = v_add(sum, g);
        dot = v_fma(g, v_mul(v_sub(load_upto(x + i, n - i), m), r), dot);
    }
    vf mean_g = v_set(v_sum(sum) / (float)n), mean_dot = v_set(v_sum(dot) / (float)n);
    for (int64_t i = 0; i < n; i += VW) {
        vf g = v_mul(load_upto(dy + i, n - i), w ? load_upto(w + i, n - i) : one);
        vf normal = v_mul(v_sub(load_upto(x + i, n - i), m), r);
        emit_upto(dx + i, v_mul(r, v_sub(v_sub(g, mean_g), v_mul(normal, mean_dot))), n - i, add);
    }
}

static void simd_rmsnorm(const float *x, const float *w, float eps, float *y, float *rstd_out, int64_t n)
{
    float rstd = 1 / sqrtf(fold(fold_square, x, NULL, n) / (float)n + eps);
    vf r = v_set(rstd);
    for (int64_t i = 0; i < n; i += VW) {
        vf value = v_mul(load_upto(x + i, n - i), r);
        if (w)
            value = v_mul(value, load_upto(w + i, n - i));
        emit_upto(y + i, value, n - i, false);
    }
    *rstd_out = rstd;
}

static void simd_rmsnorm_grad_x(const float *dy, const float *x, const float *w, float rstd, float *dx, int64_t n,
                                bool add)
{
    vf one = v_set(1.0f), r = v_set(rstd), dot = v_set(0.0f);
    for (int64_t i = 0; i < n; i += VW) {
        vf g = v_mul(load_upto(dy + i, n - i), w ? load_upto(w + i, n - i) : one);
        dot = v_fma(g, v_mul(load_upto(x + i, n - i), r), dot);
    }
    vf mean_dot = v_set(v_sum(dot) / (float)n);
    for (int64_t i = 0; i < n; i += VW) {
        vf g = v_mul(load_upto(dy + i, n - i), w ? load_upto(w + i, n - i) : one);
        vf normal = v_mul(load_upto(x + i, n - i), r);
        emit_upto(dx + i, v_mul(r, v_sub(g, v_mul(normal, mean_dot))), n - i, add);
    }
}

static void simd_norm_grad_w(const float *dy, const float *x, float mean, float rstd, float *dw, float *db, int64_t n)
{
    vf m = v_set(mean), r = v_set(rstd);
    for (int64_t i = 0; i < n; i += VW) {
        vf g = load_upto(dy + i, n - i), normal = v_mul(v_sub(load_upto(x + i, n - i), m), r);
        emit_upto(dw + i, v_mul(g, normal), n - i, true);
        if (db)
            emit_upto(db + i, g, n - i, true);
    }
}
