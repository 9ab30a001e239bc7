/* Optimizers: AdamW and SGD on the device, the learning rate over time, and the global gradient norm. */
#ifndef SLUICE_OPTIM_H
#define SLUICE_OPTIM_H

#include <sluice/device.h>
#include <sluice/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Learning rate --------------------------------------------------------------------------- */

typedef enum sl_decay { SL_DECAY_CONSTANT, SL_DECAY_COSINE, SL_DECAY_LINEAR } sl_decay;

/* Rises linearly over `warmup` steps, then stays, or falls to min_lr at step `steps`. */
typedef struct sl_lr_schedule {
    sl_decay decay;
    double lr, min_lr;
    int64_t warmup, steps;
} sl_lr_schedule;

/* Of step 0, 1, ..: (step + 1) / warmup of lr during the warm-up, lr in the first step after it, min_lr from step
 * `steps` on. */
SL_API double sl_lr_at(const sl_lr_schedule *schedule, int64_t step);

/* ---- Gradient norm --------------------------------------------------------------------------- */

/* The root of the sum, added in the given order. If there is one sum per tensor (sl_optimizer_square_sums), each tensor
 * counts once, and they are in the order of the whole model's parameters, then the norm has the same bits however the
 * model is cut. */
SL_API double sl_grad_norm(const double *square_sums, int count);

/* The factor for gradients that makes their norm at most clip, as in PyTorch: clip / (norm + 1e-6), at most 1.
 * clip <= 0 means no clipping. */
SL_API double sl_clip_scale(double norm, double clip);

/* ---- Optimizer ------------------------------------------------------------------------------- */

typedef enum sl_optim_kind { SL_OPTIM_ADAMW, SL_OPTIM_SGD } sl_optim_kind;

/* AdamW with PyTorch's formulas (decoupled decay, bias correction); SGD: g += weight_decay * p, m = momentum * m + g,
 * p -= lr * m. */
typedef struct SL_NAMED_FIELDS sl_optim_options {
    sl_optim_kind kind;
    double beta1, beta2, eps; /* ADAMW */
    double momentum;          /* SGD; 0 keeps no state */
    double weight_decay;
    sl_dtype state_dtype; /* of moments and momentum; floating, f32 by default */
    /* Parameters that are not f32 have an f32 copy among the optimizer's state ("master"). Updates go to the copy, and
     * the parameter is the copy rounded: small updates then add up instead of being lost. */
    bool master_weights;
} sl_optim_options;

/* A parameter, or a shard of one, of this rank: contiguous, on the device. Parameter and gradient have the same shape;
 * each may have any floating dtype. All f32 is the fast case. */
typedef struct SL_NAMED_FIELDS sl_optim_param {
    const char *name;
    sl_view data, grad;
    sl_view
        counted; /* what sl_optimizer_square_sums counts; data NULL: grad. Replicas with whole gradients count parts */
    bool decay;  /* weight_decay applies; by convention if the whole parameter has rank >= 2 */
    bool uncounted; /* the norm leaves it out: another counts it, and its sum of squares is 0 */
} sl_optim_param;

typedef struct sl_optimizer sl_optimizer;

/* The names are copied; the views must outlive the optimizer. Its state is on the device and starts as zero, master
 * weights as the parameters. */
SL_API SL_MUST_CHECK sl_status sl_optimizer_create(const sl_optim_options *options, sl_device *device,
                                                   const sl_optim_param *params, int count, sl_optimizer **out);
SL_API void sl_optimizer_destroy(sl_optimizer *optimizer); /* NULL is fine */

/* Sum of the squares of what is counted of each parameter's gradient, in double precision and in an order that depends
 * on the tensor alone: sums[i] is param i's. Synchronizes the stream. */
SL_API SL_MUST_CHECK sl_status sl_optimizer_square_sums(sl_optimizer *optimizer, sl_stream *stream, double *sums);

/* One update. number counts updates from 1 (bias correction); gradients are multiplied by grad_scale first. */
SL_API SL_MUST_CHECK sl_status sl_optimizer_step(sl_optimizer *optimizer, sl_stream *stream, int64_t number, double lr,
                                                 double grad_scale);

/* The same without the host, for a rank that counts all gradients of the model itself. First the numbers of the update go
 * to the device, in one copy; the update before must be done. Then the norm over all parameters in their order, the factor
 * that makes it at most clip, and the update itself, if the norm is finite: the same work each time, which a capture can
 * hold. The norm is there once the stream has been synchronized. */
SL_API SL_MUST_CHECK sl_status sl_optimizer_begin_update(sl_optimizer *optimizer, sl_stream *stream, int64_t number,
                                                         double lr);
SL_API SL_MUST_CHECK sl_status sl_optimizer_update(sl_optimizer *optimizer, sl_stream *stream, double clip);
SL_API double sl_optimizer_norm(const sl_optimizer *optimizer);

/* Makes the master weights equal to the parameters again, after somebody else has written the parameters. */
SL_API SL_MUST_CHECK sl_status sl_optimizer_refresh_masters(sl_optimizer *optimizer, sl_stream *stream);

/* What updates of parameter i are added to, and what a checkpoint keeps of it: its master, or the parameter itself if it
 * has none. */
SL_API sl_view sl_optimizer_weight(const sl_optimizer *optimizer, int i);
/* Makes the parameters the master weights rounded, after somebody else has written the masters. */
SL_API SL_MUST_CHECK sl_status sl_optimizer_round_masters(sl_optimizer *optimizer, sl_stream *stream);

/* One tensor of state, for checkpoints: "exp_avg" and "exp_avg_sq", or "momentum_buffer". Shaped as the parameter. */
typedef struct sl_optim_state {
    const char *param; /* name; borrowed */
    const char *kind;  /* static */
    sl_view view;      /* on the device; to be filled when a checkpoint is read */
} sl_optim_state;

SL_API int sl_optimizer_state_count(const sl_optimizer *optimizer);
SL_API sl_optim_state sl_optimizer_state_at(const sl_optimizer *optimizer, int i); /* by parameter, then kind */
/* Bytes that the optimizer holds for a parameter of this dtype and `count` elements: state and master, for plans. */
SL_API size_t sl_optim_state_bytes(const sl_optim_options *options, sl_dtype dtype, int64_t count);
#define SL_OPTIM_MAX_SAVED 3
/* The bytes of each tensor that a checkpoint keeps of it: the weight (sl_optimizer_weight), then the state. Returns how
 * many there are. */
SL_API int sl_optim_saved_sizes(const sl_optim_options *options, sl_dtype dtype, int64_t count,
                                size_t sizes[SL_OPTIM_MAX_SAVED]);
/* Device memory that an optimizer of these parameters will take, to the byte. counted: of each, what its squares are
 * summed of. */
SL_API SL_MUST_CHECK sl_status sl_optim_device_bytes(const sl_optim_options *options, sl_device *device,
                                                     const sl_meta *params, const sl_meta *counted, int count,
                                                     size_t *out);
/* The most blocks of it, for sl_device_reserve. */
#define SL_OPTIM_BLOCKS(params) (3 * (params) + 2)

#ifdef __cplusplus
}
#endif
#endif
