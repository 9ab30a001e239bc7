/* Kernels: the operations that stages are made of, one table of them per device. */
#ifndef SLUICE_KERNEL_H
#define SLUICE_KERNEL_H

#include <sluice/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Operations ------------------------------------------------------------------------------ */

/* What holds for all of them:
 * - Inputs and outputs may have any strides (except that an output must not map two elements to one address), odd sizes
 *   and empty dims; a contiguous last dim is the fast case.
 * - Floating tensors of one call share a dtype. The cpu takes f32 and f64 for every op; CAST, COPY, FILL and CONCAT
 * take every dtype. Statistics (mean, rstd, lse) have the dtype of the data.
 * - "?" marks an optional argument: sl_view_none() where absent; trailing ones may be left off.
 * - [..] stands for any number of leading dims, equal wherever it appears in one line.
 * - The result of one row depends on that row (and the weights) alone and on the sizes of the call, never on addresses.
 *   Same sizes and same number of threads: same bits.
 *
 * The columns: name; least and most inputs (-1: any number); outputs; inputs whose memory output 0 may take over (bits;
 * same shape, strides and dtype, and not while accumulating); whether outputs can accumulate.
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
 * Attention; H % Hkv == 0, query head h uses key/value head h / (H / Hkv); causal: query t sees keys 0..t
 *   ATTENTION         q[B,T,H,D], k[B,S,Hkv,D], v[B,S,Hkv,D] -> o[B,T,H,D], lse[B,H,T]; scale, causal; p, key: the
 *                     weights [B,H,T,S] pass DROPOUT before they meet v (lse is that of all)
 *   ATTENTION_GRAD    q, k, v, o, lse, do -> dq, dk, dv
 *   ATTENTION_CACHED  q[B,T,H,D], k[B,T,Hkv,D], v[B,T,Hkv,D], cache_k[B,S,Hkv,D], cache_v[B,S,Hkv,D],
 *                     position i32[] -> o; writes k, v into the caches at position.., then query t sees cache entries
 *                     0..position+t; scale
 *   ROPE              x[B,T,H,D], cos[P,D/2], sin[P,D/2], positions? i32[T] -> y: rotates the two halves of D by the
 *                     angle of the position (t where absent); inverse turns back, which is the gradient
 * Look-up and loss
 *   EMBEDDING           ids i32|i64 [..], table[V,C] -> y[..,C]; an id out of range is an error that names the element
 *   EMBEDDING_GRAD      ids, dy[..,C] -> dtable[V,C]
 *   CROSS_ENTROPY       logits[..,V], targets i32|i64 [..] -> loss[] (mean over the targets that are not ignore_index;
 *                       0 where none is counted), lse[..]
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
 * Optimizers; all f32, elementwise, updated in place: outputs are read and written
 *   ADAMW            g -> p, m, v; attrs.optim
 *   SGD              g -> p, m?; attrs.optim
 *   SQUARE_SUM       x -> y[] f64: sum of squares, in double precision and in a fixed order
 */
#define SL_OP_LIST(X)                                                                                                  \
    X(LINEAR, "linear", 2, 3, 1, 0, true)                                                                              \
    X(LINEAR_GRAD_X, "linear_grad_x", 2, 2, 1, 0, true)                                                                \
    X(LINEAR_GRAD_W, "linear_grad_w", 2, 2, 1, 0, true)                                                                \
    X(MATMUL, "matmul", 2, 2, 1, 0, true)                                                                              \
    X(LAYERNORM, "layernorm", 1, 3, 3, 1, false)                                                                       \
    X(LAYERNORM_GRAD_X, "layernorm_grad_x", 5, 5, 1, 3, true)                                                          \
    X(LAYERNORM_GRAD_W, "layernorm_grad_w", 4, 4, 2, 0, true)                                                          \
    X(RMSNORM, "rmsnorm", 1, 2, 2, 1, false)                                                                           \
    X(RMSNORM_GRAD_X, "rmsnorm_grad_x", 4, 4, 1, 3, true)                                                              \
    X(RMSNORM_GRAD_W, "rmsnorm_grad_w", 3, 3, 1, 0, true)                                                              \
    X(GELU_TANH, "gelu_tanh", 1, 1, 1, 1, true)                                                                        \
    X(GELU_TANH_GRAD, "gelu_tanh_grad", 2, 2, 1, 3, true)                                                              \
    X(GELU_ERF, "gelu_erf", 1, 1, 1, 1, true)                                                                          \
    X(GELU_ERF_GRAD, "gelu_erf_grad", 2, 2, 1, 3, true)                                                                \
    X(SILU, "silu", 1, 1, 1, 1, true)                                                                                  \
    X(SILU_GRAD, "silu_grad", 2, 2, 1, 3, true)                                                                        \
    X(RELU, "relu", 1, 1, 1, 1, true)                                                                                  \
    X(RELU_GRAD, "relu_grad", 2, 2, 1, 3, true)                                                                        \
    X(TANH, "tanh", 1, 1, 1, 1, true)                                                                                  \
    X(TANH_GRAD, "tanh_grad", 2, 2, 1, 3, true)                                                                        \
    X(EXP, "exp", 1, 1, 1, 1, true)                                                                                    \
    X(LOG, "log", 1, 1, 1, 1, true)                                                                                    \
    X(NEG, "neg", 1, 1, 1, 1, true)                                                                                    \
    X(SCALE, "scale", 1, 1, 1, 1, true)                                                                                \
    X(SWIGLU, "swiglu", 2, 2, 1, 3, true)                                                                              \
    X(SWIGLU_GRAD, "swiglu_grad", 3, 3, 2, 7, true)                                                                    \
    X(SOFTMAX, "softmax", 1, 1, 1, 1, true)                                                                            \
    X(SOFTMAX_GRAD, "softmax_grad", 2, 2, 1, 3, true)                                                                  \
    X(ATTENTION, "attention", 3, 3, 2, 0, false)                                                                       \
    X(ATTENTION_GRAD, "attention_grad", 6, 6, 3, 0, true)                                                              \
    X(ATTENTION_CACHED, "attention_cached", 6, 6, 1, 0, false)                                                         \
    X(ROPE, "rope", 3, 4, 1, 1, true)                                                                                  \
    X(EMBEDDING, "embedding", 2, 2, 1, 0, true)                                                                        \
    X(EMBEDDING_GRAD, "embedding_grad", 2, 2, 1, 0, true)                                                              \
    X(CROSS_ENTROPY, "cross_entropy", 2, 2, 2, 0, false)                                                               \
    X(CROSS_ENTROPY_GRAD, "cross_entropy_grad", 4, 4, 1, 1, true)                                                      \
    X(ADD, "add", 2, 2, 1, 3, true)                                                                                    \
    X(SUB, "sub", 2, 2, 1, 3, true)                                                                                    \
    X(MUL, "mul", 2, 2, 1, 3, true)                                                                                    \
    X(DIV, "div", 2, 2, 1, 3, true)                                                                                    \
    X(SUM_TO, "sum_to", 1, 1, 1, 0, true)                                                                              \
    X(SUM, "sum", 1, 1, 1, 0, true)                                                                                    \
    X(MEAN, "mean", 1, 1, 1, 0, true)                                                                                  \
    X(MAX, "max", 1, 1, 1, 0, false)                                                                                   \
    X(MAX_GRAD, "max_grad", 3, 3, 1, 0, true)                                                                          \
    X(CONCAT, "concat", 1, -1, 1, 0, true)                                                                             \
    X(COPY, "copy", 1, 1, 1, 1, true)                                                                                  \
    X(FILL, "fill", 0, 0, 1, 0, true)                                                                                  \
    X(CAST, "cast", 1, 1, 1, 0, true)                                                                                  \
    X(DROPOUT, "dropout", 1, 1, 1, 1, true)                                                                            \
    X(ADAMW, "adamw", 1, 1, 3, 0, false)                                                                               \
    X(SGD, "sgd", 1, 1, 2, 0, false)                                                                                   \
    X(SQUARE_SUM, "square_sum", 1, 1, 1, 0, true)

typedef enum sl_op {
#define SL_OP_ENUM(name, text, min_inputs, max_inputs, outputs, inplace, accumulates) SL_OP_##name,
    SL_OP_LIST(SL_OP_ENUM)
#undef SL_OP_ENUM
        SL_OP_COUNT
} sl_op;

typedef struct sl_op_info {
    const char *name;
    int min_inputs;
    int max_inputs; /* -1: any number */
    int outputs;
    uint32_t inplace; /* bit i: output 0 may lie exactly on input i */
    bool accumulates;
} sl_op_info;

SL_API const sl_op_info *sl_op_get_info(sl_op op); /* static; NULL for a value out of range */

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
    int dim;       /* CONCAT */
    uint32_t dims; /* SUM, MEAN, MAX, MAX_GRAD: bit i reduces dim i of x */
    double eps;
    double scale;       /* ATTENTION*: factor on q.k */
    double alpha, beta; /* SCALE, FILL */
    double p;           /* DROPOUT, ATTENTION, ATTENTION_GRAD; 0 <= p < 1 */
    uint64_t key;       /* with p: tells nodes apart, a hash of the node's name */
    int64_t ignore_index;
    sl_optim_attrs optim;
} sl_op_attrs;

/* ---- Calls ----------------------------------------------------------------------------------- */

/* State of the counter-based generator: no kernel keeps any of its own. */
typedef struct sl_rng {
    uint64_t seed;
    uint64_t step;
    int64_t sample_offset; /* index in the global batch of the call's first sample (dim 0) */
    bool training;
} sl_rng;

typedef struct sl_kernel_call {
    sl_op op;
    sl_op_attrs attrs;
    const sl_view *inputs;
    int input_count;
    const sl_view *outputs;
    int output_count;
    uint32_t accumulate; /* bit i: output i += result; only where the op accumulates */
    void *scratch;       /* device memory on a SL_DEVICE_ALIGNMENT boundary; may be NULL where 0 bytes are needed */
    size_t scratch_bytes;
    sl_rng rng;
} sl_kernel_call;

/* Bytes of scratch that the call needs; looks at metadata only, data pointers may be NULL. Depends on the device's
 * number of threads, not on what is in the tensors. */
SL_API SL_MUST_CHECK sl_status sl_kernel_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes);

/* Checks the call and gives it to the stream; the call struct may go at once, the memory when the stream has passed. */
SL_API SL_MUST_CHECK sl_status sl_kernel_run(sl_stream *stream, const sl_kernel_call *call);

/* Writes what the device's kernels run on into text and returns it: "cpu: avx512, OpenBLAS 0.3.21 SkylakeX, 1 thread".
 */
SL_API char *sl_kernel_describe(sl_device *device, char *text, size_t size);

/* The f32 peak of the device in operations a second, measured by multiply-adds in registers on all its threads; takes a
 * few hundredths of a second. */
SL_API double sl_kernel_measure_peak(sl_device *device);

#ifdef __cplusplus
}
#endif
#endif
