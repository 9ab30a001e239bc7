/* Elementwise loops: a function on vectors, applied over a run and its tail. */

/* Stores a result, or adds it. */
V_INLINE void v_emit(float *y, vf value, bool add)
{
    v_store(y, add ? v_add(v_load(y), value) : value);
}

V_INLINE void v_emit_part(float *y, vf value, int64_t n, bool add)
{
    v_store_part(y, add ? v_add(v_load_part(y, n), value) : value, n);
}

/* The function is a constant at each use, so it is inlined. dy may be NULL (then the function sees zeros). */
V_INLINE void apply(vf (*f)(vf, vf, vf, vf), float alpha, float beta, const float *a, const float *dy, float *y,
                    int64_t n, bool add)
{
    vf va = v_set(alpha), vb = v_set(beta), zero = v_set(0.0f);
    int64_t i = 0;
    for (; i + VW <= n; i += VW)
        v_emit(y + i, f(v_load(a + i), dy ? v_load(dy + i) : zero, va, vb), add);
    if (i < n)
        v_emit_part(y + i, f(v_load_part(a + i, n - i), dy ? v_load_part(dy + i, n - i) : zero, va, vb), n - i, add);
}

/* gelu(x) = x s with s = 1 / (1 + e^-2u) and 2u = GELU_FIRST x + GELU_THIRD x^3. Beyond GELU_END s is 0 or 1. */
#define GELU_FIRST 1.5957691216057308f
#define GELU_THIRD 0.07135481627260025f
#define GELU_END 11.0f

/* 1 + e^-2u, the power as one of 2. x: within GELU_END. */
V_INLINE vf gelu_divisor(vf x, vf square)
{
    vf slope = v_fma(v_set(-0.102943240f), square, v_set(-2.302208198f));
    return v_add(v_set(1.0f), v_exp2_product(x, slope));
}

V_INLINE vf f_gelu_tanh(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy, (void)alpha, (void)beta;
    vf inner = v_within(-GELU_END, x, GELU_END);
    return v_div(x, gelu_divisor(inner, v_mul(inner, inner)));
}

/* dy (s + s (1 - s) x (2u)') */
V_INLINE vf f_gelu_tanh_grad(vf x, vf dy, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    vf inner = v_within(-GELU_END, x, GELU_END), square = v_mul(inner, inner);
    vf s = v_div(v_set(1.0f), gelu_divisor(inner, square));
    vf growth = v_mul(inner, v_fma(v_set(3 * GELU_THIRD), square, v_set(GELU_FIRST)));
    vf weighted = v_mul(dy, s);
    return v_fma(weighted, v_fnma(s, growth, growth), weighted);
}

V_INLINE vf f_gelu_erf(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy, (void)alpha, (void)beta;
    vf density;
    return v_mul(x, v_normal(x, &density));
}

V_INLINE vf f_gelu_erf_grad(vf x, vf dy, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    vf density, phi = v_normal(x, &density);
    return v_mul(dy, v_fma(v_mul(x, density), v_set(0.3989422804f), phi));
}

V_INLINE vf f_silu(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy, (void)alpha, (void)beta;
    return v_mul(x, v_sigmoid(x));
}

V_INLINE vf silu_slope(vf x, vf s)
{
    return v_mul(s, v_fma(x, v_sub(v_set(1.0f), s), v_set(1.0f)));
}

V_INLINE vf f_silu_grad(vf x, vf dy, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_mul(dy, silu_slope(x, v_sigmoid(x)));
}

V_INLINE vf f_relu(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy, (void)alpha, (void)beta;
    return v_max(v_set(0.0f), x);
}

V_INLINE vf f_relu_grad(vf y, vf dy, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_where_greater(y, v_set(0.0f), dy, v_set(0.0f));
}

V_INLINE vf f_tanh(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy, (void)alpha, (void)beta;
    return v_tanh(x);
}

V_INLINE vf f_tanh_grad(vf y, vf dy, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_mul(dy, v_fnma(y, y, v_set(1.0f)));
}

V_INLINE vf f_exp(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy, (void)alpha, (void)beta;
    return v_exp(x);
}

V_INLINE vf f_neg(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy, (void)alpha, (void)beta;
    return v_sub(v_set(-0.0f), x);
}

V_INLINE vf f_scale(vf x, vf dy, vf alpha, vf beta)
{
    (void)dy;
    return v_fma(alpha, x, beta);
}

static void log_each(const float *x, float *y, int64_t n, bool add)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = add ? y[i] + logf(x[i]) : logf(x[i]);
}

static void simd_unary(sl_op op, float alpha, float beta, const float *a, const float *dy, float *y, int64_t n,
                       bool add)
{
    switch (op) {
#define UNARY(NAME, f)                                                                                                 \
    case SL_OP_##NAME:                                                                                                 \
        apply(f, alpha, beta, a, dy, y, n, add);                                                                       \
        break;
        UNARY(GELU_TANH, f_gelu_tanh)
        UNARY(GELU_TANH_GRAD, f_gelu_tanh_grad)
        UNARY(GELU_ERF, f_gelu_erf)
        UNARY(GELU_ERF_GRAD, f_gelu_erf_grad)
        UNARY(SILU, f_silu)
        UNARY(SILU_GRAD, f_silu_grad)
        UNARY(RELU, f_relu)
        UNARY(RELU_GRAD, f_relu_grad)
        UNARY(TANH, f_tanh)
        UNARY(TANH_GRAD, f_tanh_grad)
        UNARY(EXP, f_exp)
        UNARY(NEG, f_neg)
#undef UNARY
    case SL_OP_LOG:
        log_each(a, y, n, add);
        break;
    default: /* SL_OP_SCALE */
        apply(f_scale, alpha, beta, a, dy, y, n, add);
    }
}

V_INLINE vf f_add(vf a, vf b, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_add(a, b);
}

V_INLINE vf f_sub(vf a, vf b, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_sub(a, b);
}

V_INLINE vf f_mul(vf a, vf b, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_mul(a, b);
}

V_INLINE vf f_div(vf a, vf b, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_div(a, b);
}

static void simd_binary(sl_op op, const float *a, const float *b, float *c, int64_t n, bool add)
{
    if (op == SL_OP_ADD)
        apply(f_add, 0, 0, a, b, c, n, add);
    else if (op == SL_OP_SUB)
        apply(f_sub, 0, 0, a, b, c, n, add);
    else if (op == SL_OP_MUL)
        apply(f_mul, 0, 0, a, b, c, n, add);
    else
        apply(f_div, 0, 0, a, b, c, n, add);
}

/* ---- The gated unit -------------------------------------------------------------------------- */

V_INLINE vf f_swiglu(vf gate, vf up, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_mul(v_mul(gate, v_sigmoid(gate)), up);
}

static void simd_swiglu(const float *gate, const float *up, float *y, int64_t n, bool add)
{
    apply(f_swiglu, 0, 0, gate, up, y, n, add);
}

static void simd_swiglu_grad(const float *gate, const float *up, const float *dy, float *dgate, float *dup, int64_t n,
                             uint32_t add)
{
    for (int64_t i = 0; i < n; i += VW) {
        int64_t left = n - i;
        bool whole = left >= VW;
        vf g = whole ? v_load(gate + i) : v_load_part(gate + i, left);
        vf u = whole ? v_load(up + i) : v_load_part(up + i, left);
        vf d = whole ? v_load(dy + i) : v_load_part(dy + i, left);
        vf s = v_sigmoid(g);
        vf to_gate = v_mul(v_mul(d, u), silu_slope(g, s)), to_up = v_mul(d, v_mul(g, s));
        if (whole) {
            v_emit(dgate + i, to_gate, add & 1);
            if (dup)
                v_emit(dup + i, to_up, add >> 1 & 1);
        } else {
            v_emit_part(dgate + i, to_gate, left, add & 1);
            if (dup)
                v_emit_part(dup + i, to_up, left, add >> 1 & 1);
        }
    }
}
