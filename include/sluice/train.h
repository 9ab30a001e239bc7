/* Training as a library: the configuration of a run, its plan, the loop. `sluice train` only parses and prints. */
#ifndef SLUICE_TRAIN_H
#define SLUICE_TRAIN_H

#include <sluice/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configuration --------------------------------------------------------------------------- */

typedef enum sl_family_choice { SL_FAMILY_GPT2, SL_FAMILY_LLAMA } sl_family_choice;
typedef enum sl_order_choice { SL_ORDER_SEQUENTIAL, SL_ORDER_SHUFFLED } sl_order_choice;
typedef enum sl_optimizer_choice { SL_OPTIMIZER_ADAMW, SL_OPTIMIZER_SGD } sl_optimizer_choice;
typedef enum sl_lr_choice { SL_LR_CONSTANT, SL_LR_COSINE, SL_LR_LINEAR } sl_lr_choice;
typedef enum sl_progress_choice { SL_PROGRESS_AUTO, SL_PROGRESS_PLAIN, SL_PROGRESS_OFF } sl_progress_choice;

/* A list of texts; belongs to the configuration. */
typedef struct sl_texts {
    const char **items;
    int64_t count;
} sl_texts;

/* One key each: `section.key` in the file and as an override. src/train/config_keys.h has the type, the limits, the
 * default and the meaning of each in one table. A text that is not given is NULL. */
typedef struct sl_train_config {
    struct {
        const char *init; /* Hugging Face folder; then the keys below are not allowed */
        int64_t family;   /* sl_family_choice */
        int64_t n_layer, n_head, n_kv_head, n_embd, n_inner; /* 0 for n_kv_head, n_inner: what the family uses */
        int64_t vocab;       /* 0: 256 for text, else the least multiple of 64 above the largest token */
        int64_t n_positions; /* 0: batch.seq */
        double dropout;
        bool tie;
    } model;
    struct {
        const char *tokens, *text; /* exactly one of them */
        int64_t order;             /* sl_order_choice */
    } data;
    struct {
        int64_t size, seq, microbatches; /* rows a step over all replicas; tokens a row; microbatches a replica */
    } batch;
    struct {
        int64_t name; /* sl_optimizer_choice */
        double lr, min_lr;
        double betas[2];
        double eps, weight_decay, momentum;
        double clip;      /* 0: none */
        int64_t schedule; /* sl_lr_choice */
        int64_t warmup;   /* steps */
    } optimizer;
    struct {
        int64_t pp, dp;
        const char *schedule;    /* name or CSV file */
        int64_t stages_per_rank; /* 0: what the schedule needs, else 1 */
        sl_texts split;          /* stages begin before these modules; empty: cut by cost */
        sl_texts recompute;      /* modules whose activations are computed again in the backward pass */
        int64_t threads;         /* a rank */
        double memory_gb;        /* limit of one rank; 0: an equal share of the machine's memory */
    } parallel;
    struct {
        int64_t dtype; /* sl_dtype; f32 */
    } precision;
    struct {
        int64_t every, keep; /* steps between checkpoints (0: only at the end); how many stay */
    } checkpoint;
    struct {
        int64_t every;    /* steps between progress lines in a pipe */
        int64_t progress; /* sl_progress_choice */
        bool tensorboard;
        double peak_gflops; /* of one rank, for MFU; 0: measured */
    } log;
    struct {
        int64_t steps;
        const char *out;
        int64_t seed;
    } run;
    struct sl_config_own *own; /* strings, and where each value came from */
} sl_train_config;

/* Defaults, then the file (NULL: none), then the overrides "section.key=value" in order. Checks each value and that
 * they fit together. An error names file, line and key, or the override. The caller owns *out and destroys it. */
SL_API SL_MUST_CHECK sl_status sl_train_config_load(const char *path, const char *const *overrides, int override_count,
                                                    sl_train_config *out);
SL_API void sl_train_config_destroy(sl_train_config *config); /* NULL is fine */

/* The i-th key with its type, default and meaning, for help texts; false past the last. */
typedef struct sl_config_key_info {
    const char *section, *key;
    const char *type;          /* "whole number", "number", "true|false", "adamw|sgd", "text", "list" */
    const char *default_value; /* as text; "" where there is none */
    const char *help;
} sl_config_key_info;
SL_API bool sl_train_config_key(int i, sl_config_key_info *out);

/* Fails with "FILE:LINE: section.key: MESSAGE", "--section.key=VALUE: MESSAGE", or "section.key (by default VALUE):
 * MESSAGE", whichever the value came from. key is "section.key". */
SL_API sl_status sl_train_config_fail(const sl_train_config *config, const char *key, const char *format, ...)
    SL_PRINTF(3, 4);
/* Whether the key was given in the file or as an override. */
SL_API bool sl_train_config_given(const sl_train_config *config, const char *key);

/* ---- Reports --------------------------------------------------------------------------------- */

/* What one step tells; the keys of metrics.jsonl. */
typedef struct sl_step_report {
    int64_t step;     /* completed so far: 1 after the first */
    int64_t steps;    /* of the whole run */
    double loss;      /* mean over the step's tokens, before the update */
    double grad_norm; /* global, before clipping */
    double lr;
    double seconds;      /* of the step */
    double tokens_per_s; /* over all ranks */
    double peak_memory;  /* bytes: the highest of any rank so far */
    double mfu; /* share of the peak: FLOPs of forward and backward as the graph counts them / (seconds x ranks x peak
                   FLOP/s of a rank); NAN where the peak is not known */
} sl_step_report;

#ifdef __cplusplus
}
#endif
#endif
