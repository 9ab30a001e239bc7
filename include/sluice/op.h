/* Operations: what each op computes, on which shapes and element types. Pure data: no memory, no device. */
#ifndef SLUICE_OP_H
#define SLUICE_OP_H

#include <sluice/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What holds for all ops:
 * - Inputs and outputs may have any strides (except that an output must not map two elements to one address), odd sizes
 *   and empty dims; a contiguous last dim is the fast case.
 * - Element types. The data inputs of a call (x, a, b, q, k, v, dy, ..) share one floating dtype. Weights and biases of
 *   LINEAR and of the norms, tables of ROPE and statistics (mean, rstd, lse, loss) may each have another floating dtype.
 *   So may every output: the result is computed in at least f32 and rounded once into it. COPY, CONCAT and FILL move
 *   any dtype and do not change it; CAST takes and makes any.
 * - In a graph, results have the dtype of the data. Statistics of bf16 and f16 data are f32.
 * - "?" marks an optional argument: sl_view_none() if absent; trailing ones may be left off.
 * - [..] stands for any number of leading dims, equal wherever it appears in one line.
 * - The result of one row depends on that row (and the weights) alone and on the sizes of the call, never on addresses.
 *   Same sizes and same number of threads: same bits.
 *
 * Linear and matrix products
 *   LINEAR          x[..,K], w, b?[N] -> y[..,N]; w is [N,K] with transpose_w, [K,N] without
 *   LINEAR_GRAD_X   dy[..,N], w -> dx[..,K]
 *   LINEAR_GRAD_W   x[..,K], dy[..,N] -> dw, shaped as w. The gradient of b is SUM_TO(dy)
 *   MATMUL          a[..,M,K], b[..,K,N] -> c[..,M,N]; leading dims broadcast; transpose_a: a is [..,K,M], likewise b
 * Normalization over the last dim
 *   LAYERNORM         x[..,C], w?[C], b?[C] -> y, mean[..], rstd[..]; eps
 *   LAYERNORM_GRAD_X  dy, x, w?, mean, rstd -> dx
 *   LAYERNORM_GRAD_W  dy, x, mean, rstd -> dw[C], db?[C]
 *   RMSNORM           x[..,C], w?[C] -> y, rstd[..]; eps
 *   RMSNORM_GRAD_X    dy, x, w?, rstd -> dx
 *   RMSNORM_GRAD_W    dy, x, rstd -> dw[C]
 * Elementwise, one argument (the gradient of EXP is MUL(dy, y), of LOG DIV(dy, x), of NEG NEG(dy))
 *   GELU_TANH GELU_ERF SILU RELU TANH EXP LOG NEG   x -> y
 *   GELU_TANH_GRAD GELU_ERF_GRAD SILU_GRAD          x, dy -> dx
 *   RELU_GRAD TANH_GRAD                             y, dy -> dx
 *   SCALE           x -> alpha * x + beta
 * Gated unit
 *   SWIGLU          gate, up -> silu(gate) * up
 *   SWIGLU_GRAD     gate, up, dy -> dgate, dup
 * Softmax over the last dim
 *   SOFTMAX         x -> y
 *   SOFTMAX_GRAD    y, dy -> dx
 * Attention; H % Hkv == 0, query head h uses key/value head h / (H / Hkv); causal: query t sees keys 0..t; window: of
 *   those it sees the last `window` only (0: all; needs causal); softcap: a score s becomes softcap * tanh(s / softcap)
 *   (0: it stays); positions: query t of row b sees no key before t - positions[b,t], the start of its document (needs
 *   causal and S == T)
 *   ATTENTION         q[B,T,H,D], k[B,S,Hkv,D], v[B,S,Hkv,D], positions? i32[B,T] -> o[B,T,H,D], lse[B,H,T]; scale,
 *                     causal, window, softcap; p, key: the weights [B,H,T,S] go through DROPOUT before they are
 *                     multiplied with v (lse counts them all)
 *   ATTENTION_GRAD    q, k, v, o, lse, do, positions? -> dq, dk, dv
 *   ATTENTION_CACHED  q[B,T,H,D], k[B,T,Hkv,D], v[B,T,Hkv,D], cache_k[B,S,Hkv,D], cache_v[B,S,Hkv,D],
 *                     position i32[] -> o; writes k, v into the caches at position.., then query t sees cache entries
 *                     0..position+t; scale, window, softcap
 *   ROPE              x[B,T,H,D], cos[P,R], sin[P,R], positions? i32[T] or [B,T] -> y: rotates the two halves of the
 *                     first 2R elements of D by the angle of the position (t if absent), the others stay; inverse
 *                     rotates back, which is the gradient
 * Look-up and loss
 *   EMBEDDING           ids i32|i64 [..], table[V,C] -> y[..,C]; an id out of range is an error that names the element
 *   EMBEDDING_GRAD      ids, dy[..,C] -> dtable[V,C]
 *   CROSS_ENTROPY       logits[..,V], targets i32|i64 [..] -> loss[] (mean over the targets that are not ignore_index;
 *                       0 if none is counted), lse[..]
 *   CROSS_ENTROPY_GRAD  logits, targets, lse, dloss[] -> dlogits
 * Arithmetic with numpy's broadcasting
 *   ADD SUB MUL DIV  a, b -> c
 *   SUM_TO           x -> y, the reverse of a broadcast: sums x over the dims in which y has size 1 or lacks
 * Reductions over the dims in attrs.dims (kept with size 1, or dropped, as the output's shape says)
 *   SUM MEAN MAX     x -> y
 *   MAX_GRAD         x, y, dy -> dx; equal maxima share the gradient
 * Data movement
 *   CONCAT           inputs.. -> y, joined along attrs.dim
 *   COPY             x -> y, same shape and dtype
 *   FILL             -> y, every element alpha
 *   CAST             x -> y, same shape, other dtype; to integers it truncates
 *   DROPOUT          x[N,..] -> y: 0 with probability p, else x / (1 - p); the mask depends on rng.seed, rng.step, key
 *                    and the element's place in the global batch; its gradient is DROPOUT(dy). Identity without
 *                    rng.training
 * Optimizers; elementwise, updated in place: outputs are read and written. Each tensor has a dtype of its own. copy gets
 * the new p
 *   ADAMW            g -> p, m, v, copy?; attrs.optim
 *   SGD              g -> p, m?, copy?; attrs.optim
 *   CLIP             x[..] -> norm[] f64, scale[] f64: the root of the sum of x, added up in order in double precision, and
 *                    what makes a norm at most alpha: alpha / (norm + 1e-6), at most 1; 1 if alpha is not above 0. If
 *                    the norm is not finite, the scale is not a number
 *   SQUARE_SUM       x -> y[] f64: sum of squares, in double precision and in a fixed order
 * Fused: several ops in one pass over memory, with the bits that they give one after the other. Programs for a GPU have
 * them (sl_program_options.fusion); a graph is made of the plain ones
 *   ADD_LAYERNORM       a[..,C], b[..,C], w?[C], bias?[C] -> sum, y, mean[..], rstd[..]: ADD, then LAYERNORM of sum
 *   ADD_RMSNORM         a[..,C], b[..,C], w?[C] -> sum, y, rstd[..]: ADD, then RMSNORM of sum
 *   LAYERNORM_GRAD      dy, x, w?, mean, rstd -> dx, dw[C], db?[C], total?[C]: both gradients, then SUM_TO of dx
 *   RMSNORM_GRAD        dy, x, w?, rstd -> dx, dw[C], total?[C]: likewise
 *   GELU_TANH_GRAD_SUM  x[..,C], dy[..,C] -> dx, total[C]: GELU_TANH_GRAD, then SUM_TO of dx
 *   ROPE_PAIR           a[B,T,G,D], b[B,T,H,D], cos, sin, positions? -> ya, yb: ROPE of each; inverse
 */
#define SL_PLAIN_OP_LIST(X)                                                                                            \
    X(LINEAR, linear)                                                                                                  \
    X(LINEAR_GRAD_X, linear_grad_x)                                                                                    \
    X(LINEAR_GRAD_W, linear_grad_w)                                                                                    \
    X(MATMUL, matmul)                                                                                                  \
    X(LAYERNORM, layernorm)                                                                                            \
    X(LAYERNORM_GRAD_X, layernorm_grad_x)                                                                              \
    X(LAYERNORM_GRAD_W, layernorm_grad_w)                                                                              \
    X(RMSNORM, rmsnorm)                                                                                                \
    X(RMSNORM_GRAD_X, rmsnorm_grad_x)                                                                                  \
    X(RMSNORM_GRAD_W, rmsnorm_grad_w)                                                                                  \
    X(GELU_TANH, gelu_tanh)                                                                                            \
    X(GELU_TANH_GRAD, gelu_tanh_grad)                                                                                  \
    X(GELU_ERF, gelu_erf)                                                                                              \
    X(GELU_ERF_GRAD, gelu_erf_grad)                                                                                    \
    X(SILU, silu)                                                                                                      \
    X(SILU_GRAD, silu_grad)                                                                                            \
    X(RELU, relu)                                                                                                      \
    X(RELU_GRAD, relu_grad)                                                                                            \
    X(TANH, tanh)                                                                                                      \
    X(TANH_GRAD, tanh_grad)                                                                                            \
    X(EXP, exp)                                                                                                        \
    X(LOG, log)                                                                                                        \
    X(NEG, neg)                                                                                                        \
    X(SCALE, scale)                                                                                                    \
    X(SWIGLU, swiglu)                                                                                                  \
    X(SWIGLU_GRAD, swiglu_grad)                                                                                        \
    X(SOFTMAX, softmax)                                                                                                \
    X(SOFTMAX_GRAD, softmax_grad)                                                                                      \
    X(ATTENTION, attention)                                                                                            \
    X(ATTENTION_GRAD, attention_grad)                                                                                  \
    X(ATTENTION_CACHED, attention_cached)                                                                              \
    X(ROPE, rope)                                                                                                      \
    X(EMBEDDING, embedding)                                                                                            \
    X(EMBEDDING_GRAD, embedding_grad)                                                                                  \
    X(CROSS_ENTROPY, cross_entropy)                                                                                    \
    X(CROSS_ENTROPY_GRAD, cross_entropy_grad)                                                                          \
    X(ADD, add)                                                                                                        \
    X(SUB, sub)                                                                                                        \
    X(MUL, mul)                                                                                                        \
    X(DIV, div)                                                                                                        \
    X(SUM_TO, sum_to)                                                                                                  \
    X(SUM, sum)                                                                                                        \
    X(MEAN, mean)                                                                                                      \
    X(MAX, max)                                                                                                        \
    X(MAX_GRAD, max_grad)                                                                                              \
    X(CONCAT, concat)                                                                                                  \
    X(COPY, copy)                                                                                                      \
    X(FILL, fill)                                                                                                      \
    X(CAST, cast)                                                                                                      \
    X(DROPOUT, dropout)                                                                                                \
    X(ADAMW, adamw)                                                                                                    \
    X(SGD, sgd)                                                                                                        \
    X(CLIP, clip)                                                                                                      \
    X(SQUARE_SUM, square_sum)

#define SL_FUSED_OP_LIST(X)                                                                                            \
    X(ADD_LAYERNORM, add_layernorm)                                                                                    \
    X(ADD_RMSNORM, add_rmsnorm)                                                                                        \
    X(LAYERNORM_GRAD, layernorm_grad)                                                                                  \
    X(RMSNORM_GRAD, rmsnorm_grad)                                                                                      \
    X(GELU_TANH_GRAD_SUM, gelu_tanh_grad_sum)                                                                          \
    X(ROPE_PAIR, rope_pair)

#define SL_OP_LIST(X) SL_PLAIN_OP_LIST(X) SL_FUSED_OP_LIST(X)

typedef enum sl_op {
#define SL_OP_ENUM(name, description) SL_OP_##name,
    SL_OP_LIST(SL_OP_ENUM)
#undef SL_OP_ENUM
        SL_OP_COUNT
} sl_op;

SL_API const char *sl_op_name(sl_op op); /* "linear"; static; "?" for a value out of range */

/* One update of parameter p by its gradient g; t is the number of updates with this one, from 1.
 * Decoupled weight decay: p -= lr * weight_decay * p comes first, as in PyTorch's AdamW; SGD adds weight_decay * p to
 * g. */
typedef struct sl_optim_attrs {
    double lr, beta1, beta2, eps, weight_decay;
    double momentum;   /* SGD; m = momentum * m + g, p -= lr * m; 0 needs no m */
    double grad_scale; /* g is multiplied by it first (gradient clipping, loss scale) */
    int64_t t;         /* AdamW's bias correction */
} sl_optim_attrs;

/* Only the fields that the op's line names matter; zero is the default of all. */
typedef struct sl_op_attrs {
    bool transpose_w;
    bool transpose_a, transpose_b;
    bool causal;
    bool inverse;
    bool keepdim;  /* SUM, MEAN, MAX in a graph; a call may have either shape of y */
    int dim;       /* CONCAT */
    uint32_t dims; /* SUM, MEAN, MAX, MAX_GRAD: bit i reduces dim i of x */
    double eps;
    double scale;       /* ATTENTION*: factor on q.k */
    double softcap;     /* ATTENTION* */
    int64_t window;     /* ATTENTION* */
    double alpha, beta; /* SCALE, FILL */
    double p;           /* DROPOUT, ATTENTION, ATTENTION_GRAD; 0 <= p < 1 */
    uint64_t key;       /* with p: tells nodes apart, a hash of the node's name */
    int64_t ignore_index;
    sl_optim_attrs optim;
} sl_op_attrs;

typedef struct sl_cost {
    double flops;
    double bytes; /* read and written, as if nothing stayed in a cache */
} sl_cost;

#ifdef __cplusplus
}
#endif
#endif
