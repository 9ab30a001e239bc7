/* The loops that depend on the instruction set: each takes contiguous runs of floats. One table per instruction set,
 * all compiled from the same sources in simd/. Results do not depend on the alignment of any pointer. */
#ifndef SL_KERNEL_CPU_SIMD_H
#define SL_KERNEL_CPU_SIMD_H

#include "kernel/cpu/tile.h"
#include "kernel/philox.h"

/* C[m,n] (+)= A[m,k] B[k,n]. A may lie anyhow (element (i, l) at a[i * a_row + l * a_column]); rows of B and C are
 * contiguous. */
typedef struct sl_small_gemm {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_column;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool add;
} sl_small_gemm;

typedef struct sl_adamw_factors {
    float grad_scale;
    float beta1, beta2, rest1, rest2; /* rest = 1 - beta, rounded once */
    float decay;                      /* 1 - lr * weight_decay */
    float step;                       /* lr / (1 - beta1^t) */
    float root;                       /* 1 / (1 - beta2^t) */
    float eps;
} sl_adamw_factors;

typedef struct sl_sgd_factors {
    float grad_scale, lr, momentum, weight_decay;
} sl_sgd_factors;

/* n counts elements; `add` means += into the result. Results may lie exactly on an input. */
typedef struct SL_NAMED_FIELDS sl_simd {
    const char *name;
    int width; /* lanes */

    /* GELU_TANH .. SCALE and their gradients: y = op(a, dy); dy is NULL for those of one argument. On bf16 each result is
     * rounded once; there is no LOG. */
    void (*unary)(sl_op op, float alpha, float beta, const float *a, const float *dy, float *y, int64_t n, bool add);
    void (*unary_bf16)(sl_op op, float alpha, float beta, const uint16_t *a, const uint16_t *dy, uint16_t *y, int64_t n,
                       bool add);
    void (*binary)(sl_op op, const float *a, const float *b, float *c, int64_t n, bool add); /* ADD SUB MUL DIV */
    void (*binary_bf16)(sl_op op, const uint16_t *a, const uint16_t *b, uint16_t *c, int64_t n, bool add);
    void (*swiglu)(const float *gate, const float *up, float *y, int64_t n, bool add);
    void (*swiglu_bf16)(const uint16_t *gate, const uint16_t *up, uint16_t *y, int64_t n, bool add);
    /* bits of add: 1 dgate, 2 dup; dup may be NULL */
    void (*swiglu_grad)(const float *gate, const float *up, const float *dy, float *dgate, float *dup, int64_t n,
                        uint32_t add);
    void (*swiglu_grad_bf16)(const uint16_t *gate, const uint16_t *up, const uint16_t *dy, uint16_t *dgate,
                             uint16_t *dup, int64_t n, uint32_t add);

    /* w, b may be NULL. */
    void (*layernorm)(const float *x, const float *w, const float *b, float eps, float *y, float *mean, float *rstd,
                      int64_t n);
    void (*layernorm_grad_x)(const float *dy, const float *x, const float *w, float mean, float rstd, float *dx,
                             int64_t n, bool add);
    void (*rmsnorm)(const float *x, const float *w, float eps, float *y, float *rstd, int64_t n);
    void (*rmsnorm_grad_x)(const float *dy, const float *x, const float *w, float rstd, float *dx, int64_t n, bool add);
    /* dw += dy * (x - mean) * rstd, db += dy; db may be NULL. */
    void (*norm_grad_w)(const float *dy, const float *x, float mean, float rstd, float *dw, float *db, int64_t n);

    void (*softmax)(const float *x, float *y, int64_t n, bool add);
    void (*softmax_grad)(const float *y, const float *dy, float *dx, int64_t n, bool add);
    /* One more part of a row: *max is the highest so far (-INFINITY at first), *sum the sum of exp(x - *max). */
    void (*add_exp)(const float *x, int64_t n, float *max, float *sum);
    /* dx (+)= weight * exp(x - lse) */
    void (*scaled_exp)(const float *x, float lse, float weight, float *dx, int64_t n, bool add);

    /* The halves of one head: first, second = first * c - second * s, second * c + first * s. */
    void (*rotate)(const float *first, const float *second, const float *c, const float *s, float sign, float *y_first,
                   float *y_second, int64_t half, bool add);

    void (*fill)(float *y, float value, int64_t n, bool add);
    float (*sum)(const float *x, int64_t n);
    float (*highest)(const float *x, int64_t n); /* -infinity for none, NaN if there is one */
    float (*dot)(const float *x, const float *y, int64_t n);
    float (*dot_bf16)(const uint16_t *x, const uint16_t *y, int64_t n);
    void (*axpy)(float alpha, const float *x, float *y, int64_t n); /* y += alpha * x */
    double (*square_sum)(const float *x, int64_t n);
    /* y[0..n) += sum over rows of x, which are `stride` apart */
    void (*sum_rows)(const float *x, int64_t rows, int64_t stride, float *y, int64_t n);
    void (*sum_bf16_rows)(const uint16_t *x, int64_t rows, int64_t stride, float *y, int64_t n);

    void (*to_half)(sl_dtype dtype, const float *x, uint16_t *y, int64_t n); /* BF16 or F16 */
    void (*from_half)(sl_dtype dtype, const uint16_t *x, float *y, int64_t n);

    /* Elements index.. of the call that the stream is for. */
    void (*dropout)(const sl_dropout_stream *s, const float *x, float *y, int64_t n, uint64_t index, bool add);

    void (*adamw)(const sl_adamw_factors *f, const float *g, float *p, float *m, float *v, int64_t n);
    void (*sgd)(const sl_sgd_factors *f, const float *g, float *p, float *m, int64_t n); /* m may be NULL */

    void (*small_gemm)(const sl_small_gemm *g);
    /* y[d * y_row + i] = scale * x[i * x_row + d] for `rows` rows of `size` elements. */
    void (*transpose)(const float *x, int64_t x_row, int64_t rows, int64_t size, float scale, float *y, int64_t y_row);
    /* A row of attention scores times `scale`, in memory for whole vectors: the highest of those from..seen. */
    float (*highest_score)(const float *s, int64_t from, int64_t seen, float scale);
    /* They become exp(s * scale - max), the others of n become 0; returns the sum. */
    float (*softmax_row)(float *s, int64_t from, int64_t seen, int64_t n, float scale, float max);
    /* Of two such rows s becomes p = exp(s * s_scale - lse), and dp becomes p * (dp - delta) * scale. */
    void (*attention_row_grad)(float *s, float *dp, int64_t from, int64_t seen, int64_t n, float s_scale, float scale,
                               float lse, float delta);

    /* For panels of bf16, in groups of 16 words. split_rows: numbers g * 32 + i of two rows become word i of group g, a in its
     * low half and b in the high one, as the sum of two bf16 numbers; groups lie `step` words apart. join_halves: one
     * group from the first n of two rows, 0 beyond. */
    void (*split_rows)(const float *a, const float *b, int64_t groups, uint32_t *high, uint32_t *low, int64_t step);
    void (*join_halves)(const uint16_t *a, const uint16_t *b, int64_t n, uint32_t *to);

    /* The packed product. */
    const sl_tile *tile;
    void (*put_tile)(const sl_tile_result *result);

    /* Nothing but multiply-adds, to measure the peak: fma_flops operations a round. The result means nothing. */
    int fma_flops;
    float (*fma_rounds)(int64_t rounds);
} sl_simd;

extern const sl_simd sl_simd_scalar;
#if defined(__x86_64__)
extern const sl_simd sl_simd_avx2;
extern const sl_simd sl_simd_avx512;
extern const sl_simd sl_simd_avx512_bf16;
#endif

#endif
