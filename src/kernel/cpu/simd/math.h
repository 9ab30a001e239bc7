/* Elementary functions on vectors; errors are a few units in the last place. */

#define V_INLINE static inline __attribute__((always_inline))

/* x, but at least `low` and at most `high`; NaN stays. */
V_INLINE vf v_within(float low, vf x, float high)
{
    return v_min(v_set(high), v_max(v_set(low), x)); /* operands in this order keep NaN */
}

/* e^x for x within -104..105: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial fitted to e^r (relative error 1e-7, exact at
 * 0), then times 2^n. Overflows to infinity, NaN stays. */
V_INLINE vf v_exp_within(vf x)
{
    vf n = v_round(v_mul(x, v_set(1.442695041f)));
    vf r = v_fnma(n, v_set(0.693145752f), x); /* ln 2 in two parts: the first has trailing zeros, n times it is exact */
    r = v_fnma(n, v_set(1.428606820e-6f), r);
    vf sum = v_set(0.008312521502f);
    sum = v_fma(sum, r, v_set(0.04189016297f));
    sum = v_fma(sum, r, v_set(0.166671142f));
    sum = v_fma(sum, r, v_set(0.499992311f));
    sum = v_fma(sum, r, v_set(1.0f));
    sum = v_fma(sum, r, v_set(1.0f));
    return v_scale_by_power(sum, n);
}

/* e^x for any x. */
V_INLINE vf v_exp(vf x)
{
    return v_exp_within(v_within(-104.0f, x, 89.0f));
}

/* 2^(a b) for a b within -300..300, which need not be a float: a b = n + r, |r| <= 1/2, a polynomial fitted to 2^r (relative
 * error 1e-7, exact at 0), then times 2^n. NaN stays. */
V_INLINE vf v_exp2_product(vf a, vf b)
{
    vf n = v_round(v_mul(a, b)), r = v_fms(a, b, n);
    vf sum = v_set(0.001326472731f);
    sum = v_fma(sum, r, v_set(0.009671512991f));
    sum = v_fma(sum, r, v_set(0.05550733581f));
    sum = v_fma(sum, r, v_set(0.2402224243f));
    sum = v_fma(sum, r, v_set(0.6931470037f));
    sum = v_fma(sum, r, v_set(1.0f));
    return v_scale_by_power(sum, n);
}

V_INLINE vf v_sigmoid(vf x)
{
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp_within(v_within(-104.0f, v_sub(v_set(0.0f), x), 90.0f))));
}

/* Near 0 an odd polynomial keeps the relative error small (fitted to tanh(x)/x over x^2 < 0.4); elsewhere by e^2x. */
V_INLINE vf v_tanh(vf x)
{
    vf square = v_mul(x, x);
    vf sum = v_set(-0.005599785037f);
    sum = v_fma(sum, square, v_set(0.020536972f));
    sum = v_fma(sum, square, v_set(-0.05370427744f));
    sum = v_fma(sum, square, v_set(0.1333091717f));
    sum = v_fma(sum, square, v_set(-0.3333325145f));
    sum = v_fma(sum, square, v_set(0.9999999955f));
    vf far = v_sub(v_set(1.0f), v_div(v_set(2.0f), v_add(v_set(1.0f), v_exp(v_add(x, x)))));
    return v_where_greater(v_set(0.4f), square, v_mul(x, sum), far);
}

/* The normal distribution function. erfc(z) = exp(-z^2) q(t) / (1 + 2z) with t = (z - 3) / (z + 3), z = |x| / sqrt 2;
 * q was fitted over 0 <= z <= 10. *density receives exp(-x^2 / 2). */
V_INLINE vf v_normal(vf x, vf *density)
{
    vf z = v_min(v_set(14.0f), v_mul(v_abs(x), v_set(0.7071067812f)));
    vf t = v_div(v_sub(z, v_set(3.0f)), v_add(z, v_set(3.0f)));
    vf q = v_set(-0.0002782656999f);
    q = v_fma(q, t, v_set(-0.0008009517877f));
    q = v_fma(q, t, v_set(0.001992521019f));
    q = v_fma(q, t, v_set(0.002579984264f));
    q = v_fma(q, t, v_set(-0.02378911781f));
    q = v_fma(q, t, v_set(0.06829366712f));
    q = v_fma(q, t, v_set(-0.1192728274f));
    q = v_fma(q, t, v_set(0.1296465376f));
    q = v_fma(q, t, v_set(-0.04756227211f));
    q = v_fma(q, t, v_set(-0.1356211419f));
    q = v_fma(q, t, v_set(1.253008058f));
    *density = v_exp(v_mul(v_set(-0.5f), v_mul(x, x)));
    vf half = v_div(v_mul(v_mul(v_set(0.5f), *density), q), v_fma(v_set(2.0f), z, v_set(1.0f)));
    return v_where_greater(x, v_set(0.0f), v_sub(v_set(1.0f), half), half);
}
