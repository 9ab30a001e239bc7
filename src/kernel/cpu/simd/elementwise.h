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

/* How elements of a type become vectors of floats, and are rounded back. A part has fewer than VW lanes, the others are 0;
 * a group is V_GROUP vectors, whose long chains of operations the processor then has in sight together. */
typedef struct elements {
    int64_t size;  /* bytes of each */
    int64_t ahead; /* bytes between what is computed and what is fetched; 0: nothing is */
    vf (*load)(const void *x);
    vf (*load_part)(const void *x, int64_t n);
    void (*store_part)(void *y, vf value, int64_t n);
    void (*store)(void *y, vf value);
    void (*store_group)(void *y, const vf *values);
} elements;

V_INLINE vf load_f32(const void *x)
{
    return v_load(x);
}

V_INLINE vf load_f32_part(const void *x, int64_t n)
{
    return v_load_part(x, n);
}

V_INLINE void store_f32(void *y, vf value)
{
    v_store(y, value);
}

V_INLINE void store_f32_group(void *y, const vf *values)
{
    for (int i = 0; i < V_GROUP; i++)
        v_store((float *)y + i * VW, values[i]);
}

V_INLINE void store_f32_part(void *y, vf value, int64_t n)
{
    v_store_part(y, value, n);
}

V_INLINE vf load_bf16(const void *x)
{
    return v_load_bf16(x);
}

V_INLINE vf load_bf16_part(const void *x, int64_t n)
{
    uint16_t whole[VW] = { 0 };
    memcpy(whole, x, (size_t)n * sizeof *whole);
    return v_load_bf16(whole);
}

V_INLINE void store_bf16(void *y, vf value)
{
    v_store_bf16(y, value);
}

V_INLINE void store_bf16_group(void *y, const vf *values)
{
    v_store_bf16_group(y, values);
}

V_INLINE void store_bf16_part(void *y, vf value, int64_t n)
{
    uint16_t whole[VW];
    v_store_bf16(whole, value);
    memcpy(y, whole, (size_t)n * sizeof *whole);
}

#define ELEMENTS_F32 ((elements){ 4, 0, load_f32, load_f32_part, store_f32_part, store_f32, store_f32_group })
#define ELEMENTS_BF16 ((elements){ 2, 2048, load_bf16, load_bf16_part, store_bf16_part, store_bf16, store_bf16_group })

V_INLINE void emit(elements of, char *y, vf value, bool add)
{
    of.store(y, add ? v_add(of.load(y), value) : value);
}

V_INLINE void emit_part(elements of, char *y, vf value, int64_t n, bool add)
{
    of.store_part(y, add ? v_add(of.load_part(y, n), value) : value, n);
}

/* The function is a constant at each use, so it is inlined. dy may be NULL (then the function sees zeros). */
V_INLINE void apply(elements of, vf (*f)(vf, vf, vf, vf), float alpha, float beta, const void *a, const void *dy,
                    void *y, int64_t n, bool add)
{
    enum { LINE = 64 };
    const vf va = v_set(alpha), vb = v_set(beta), zero = v_set(0.0f);
    const char *first = a, *second = dy;
    char *to = y;
    const int64_t step = VW * of.size, group = V_GROUP * step, end = n / VW * step;
    int64_t at = 0; /* all in bytes */
    for (; at + group <= end; at += group) {
        vf values[V_GROUP];
        bool fetches = of.ahead > 0 && at + of.ahead < end;
        for (int64_t ahead = at + of.ahead; fetches && ahead < at + of.ahead + group; ahead += LINE) {
            __builtin_prefetch(first + ahead);
            if (dy)
                __builtin_prefetch(second + ahead);
            sl_fetch_to_write(to + ahead);
        }
#pragma GCC unroll 4
        for (int i = 0; i < V_GROUP; i++) {
            int64_t own = at + i * step;
            values[i] = f(of.load(first + own), dy ? of.load(second + own) : zero, va, vb);
            if (add)
                values[i] = v_add(of.load(to + own), values[i]);
        }
        of.store_group(to + at, values);
    }
    for (; at < end; at += step)
        emit(of, to + at, f(of.load(first + at), dy ? of.load(second + at) : zero, va, vb), add);
    if (n % VW > 0)
        emit_part(of, to + at,
                  f(of.load_part(first + at, n % VW), dy ? of.load_part(second + at, n % VW) : zero, va, vb), n % VW,
                  add);
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

V_INLINE void unary_of(elements of, sl_op op, float alpha, float beta, const void *a, const void *dy, void *y,
                       int64_t n, bool add)
{
    switch (op) {
#define UNARY(NAME, f)                                                                                                 \
    case SL_OP_##NAME:                                                                                                 \
        apply(of, f, alpha, beta, a, dy, y, n, add);                                                                   \
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
    default: /* SL_OP_SCALE */
        apply(of, f_scale, alpha, beta, a, dy, y, n, add);
    }
}

static void simd_unary(sl_op op, float alpha, float beta, const float *a, const float *dy, float *y, int64_t n,
                       bool add)
{
    if (op == SL_OP_LOG)
        log_each(a, y, n, add);
    else
        unary_of(ELEMENTS_F32, op, alpha, beta, a, dy, y, n, add);
}

static void simd_unary_bf16(sl_op op, float alpha, float beta, const uint16_t *a, const uint16_t *dy, uint16_t *y,
                            int64_t n, bool add)
{
    unary_of(ELEMENTS_BF16, op, alpha, beta, a, dy, y, n, add);
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

V_INLINE void binary_of(elements of, sl_op op, const void *a, const void *b, void *c, int64_t n, bool add)
{
    if (op == SL_OP_ADD)
        apply(of, f_add, 0, 0, a, b, c, n, add);
    else if (op == SL_OP_SUB)
        apply(of, f_sub, 0, 0, a, b, c, n, add);
    else if (op == SL_OP_MUL)
        apply(of, f_mul, 0, 0, a, b, c, n, add);
    else
        apply(of, f_div, 0, 0, a, b, c, n, add);
}

static void simd_binary(sl_op op, const float *a, const float *b, float *c, int64_t n, bool add)
{
    binary_of(ELEMENTS_F32, op, a, b, c, n, add);
}

static void simd_binary_bf16(sl_op op, const uint16_t *a, const uint16_t *b, uint16_t *c, int64_t n, bool add)
{
    binary_of(ELEMENTS_BF16, op, a, b, c, n, add);
}

/* ---- The gated unit -------------------------------------------------------------------------- */

V_INLINE vf f_swiglu(vf gate, vf up, vf alpha, vf beta)
{
    (void)alpha, (void)beta;
    return v_mul(v_mul(gate, v_sigmoid(gate)), up);
}

static void simd_swiglu(const float *gate, const float *up, float *y, int64_t n, bool add)
{
    apply(ELEMENTS_F32, f_swiglu, 0, 0, gate, up, y, n, add);
}

static void simd_swiglu_bf16(const uint16_t *gate, const uint16_t *up, uint16_t *y, int64_t n, bool add)
{
    apply(ELEMENTS_BF16, f_swiglu, 0, 0, gate, up, y, n, add);
}

V_INLINE void swiglu_grad_of(elements of, const char *gate, const char *up, const char *dy, char *dgate, char *dup,
                             int64_t n, uint32_t add)
{
    const int64_t size = of.size;
    for (int64_t i = 0; i < n; i += VW) {
        int64_t left = n - i;
        bool whole = left >= VW;
        vf g = whole ? of.load(gate + i * size) : of.load_part(gate + i * size, left);
        vf u = whole ? of.load(up + i * size) : of.load_part(up + i * size, left);
        vf d = whole ? of.load(dy + i * size) : of.load_part(dy + i * size, left);
        vf s = v_sigmoid(g);
        vf to_gate = v_mul(v_mul(d, u), silu_slope(g, s)), to_up = v_mul(d, v_mul(g, s));
        if (whole) {
            emit(of, dgate + i * size, to_gate, add & 1);
            if (dup)
                emit(of, dup + i * size, to_up, add >> 1 & 1);
        } else {
            emit_part(of, dgate + i * size, to_gate, left, add & 1);
            if (dup)
                emit_part(of, dup + i * size, to_up, left, add >> 1 & 1);
        }
    }
}

static void simd_swiglu_grad(const float *gate, const float *up, const float *dy, float *dgate, float *dup, int64_t n,
                             uint32_t add)
{
    swiglu_grad_of(ELEMENTS_F32, (const char *)gate, (const char *)up, (const char *)dy, (char *)dgate, (char *)dup, n,
                   add);
}

static void simd_swiglu_grad_bf16(const uint16_t *gate, const uint16_t *up, const uint16_t *dy, uint16_t *dgate,
                                  uint16_t *dup, int64_t n, uint32_t add)
{
    swiglu_grad_of(ELEMENTS_BF16, (const char *)gate, (const char *)up, (const char *)dy, (char *)dgate, (char *)dup, n,
                   add);
}
