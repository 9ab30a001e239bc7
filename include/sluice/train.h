/* Training as a library: the configuration of a run, its plan, the loop. `sluice train` only parses options and prints. */
#ifndef SLUICE_TRAIN_H
#define SLUICE_TRAIN_H

#include <sluice/comm.h>
#include <sluice/data.h>
#include <sluice/nn.h>
#include <sluice/optim.h>
#include <sluice/runtime.h>

#include <signal.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configuration --------------------------------------------------------------------------- */

/* The values of keys that take a word and have no type of their own elsewhere. */
typedef enum sl_order_choice { SL_ORDER_SEQUENTIAL, SL_ORDER_SHUFFLED } sl_order_choice;
typedef enum sl_master_choice { SL_MASTER_F32, SL_MASTER_NONE } sl_master_choice;
typedef enum sl_progress_choice { SL_PROGRESS_AUTO, SL_PROGRESS_PLAIN, SL_PROGRESS_OFF } sl_progress_choice;

/* A list of texts; belongs to the configuration. */
typedef struct sl_texts {
    const char **items;
    int64_t count;
} sl_texts;

/* Files with training data: `path` is what sl_tokens_open takes. */
typedef struct sl_data_source {
    const char *path;
    double weight; /* share of the rows, relative to the others'; 0 if no weight is given */
} sl_data_source;

/* Belongs to the configuration. Either all sources have weights, and rows are mixed by them, or none has: then they are
 * one sequence of tokens, each source after the one before. */
typedef struct sl_data_sources {
    const sl_data_source *items;
    int64_t count; /* 0: the key is not given */
} sl_data_sources;

/* One key each: `section.key` in the file and as an override. sl_train_config_key and `sluice train --help` give the
 * type, the default and the meaning of each. A text that is not given is NULL. The section `model` may also hold keys
 * of the family's config.json that have no general name, such as rms_norm_eps; the plan's model has their values. */
typedef struct sl_train_config {
    struct {
        const char *init;   /* Hugging Face folder; then the keys below are not allowed */
        const char *family; /* the name of one that is known, see sl_model_register */
        int64_t n_layer, n_head, n_kv_head, n_embd, n_inner; /* 0 for n_kv_head, n_inner: what the family uses */
        int64_t vocab;       /* 0: 256 for text, else the least multiple of 64 above the largest token */
        int64_t n_positions; /* 0: batch.seq */
        double dropout;
        bool tie;
        sl_texts freeze; /* patterns of parameters that are not trained */
    } model;
    struct {
        sl_data_sources tokens, text; /* exactly one of them */
        sl_data_sources val;          /* in the form of the training data; or one path, a share of it: "5%", "0.05" */
        int64_t order;                /* sl_order_choice */
        bool documents;               /* tokens see their own document alone */
        int64_t boundary;             /* the token that ends a document; -1: that of the tokenizer or the model */
        bool boundary_loss;           /* the first token of a document is a target, too */
    } data;
    struct {
        int64_t size, seq, microbatches; /* rows a step over all replicas; tokens a row; microbatches a replica */
    } batch;
    struct {
        int64_t name; /* sl_optim_kind */
        double lr, min_lr;
        double betas[2];
        double eps, weight_decay, momentum;
        double clip;      /* 0: none */
        int64_t schedule; /* sl_decay */
        int64_t warmup;   /* steps */
    } optimizer;
    struct {
        int64_t pp, dp;
        const char *schedule;    /* name or CSV file */
        int64_t stages_per_rank; /* 0: what the schedule needs, else 1 */
        sl_texts split;          /* stages begin before these modules; empty: cut by cost */
        sl_texts recompute;      /* modules whose activations are computed again in the backward pass */
        int64_t shard;           /* sl_shard_mode: what replicas share out */
        int64_t shard_group;     /* replicas that share; 0: all */
        int64_t sum;             /* sl_sum_mode: of the replicas' gradients */
        int64_t unsharded;       /* stages of a rank whose weights are gathered at once (full); 0: as many as fit */
        int64_t threads;         /* a rank */
        double memory_gb;        /* limit of one rank; 0: an equal share of the machine's memory */
        const char *offload;     /* "auto", "none", or bytes of the host for what lies idle on the device */
    } parallel;
    struct {
        int64_t dtype;  /* sl_dtype of weights, activations and messages: f32 or bf16 */
        int64_t master; /* sl_master_choice */
        int64_t grad;   /* sl_dtype of the weights' gradients: f32 or bf16 */
    } precision;
    struct {
        int64_t every;    /* steps between validations; there is one at the end, too */
        int64_t batches;  /* of a validation; 0: all that data.val has */
        int64_t patience; /* validations without a better loss after which the run ends; 0: any number */
    } eval;
    struct {
        int64_t every, keep; /* steps between checkpoints (0: only at the end); how many stay */
        int64_t memory;      /* steps between snapshots that the launcher keeps for restarts; 0: none */
        bool best;           /* the one with the best validation loss stays, too */
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
        const char *plan; /* file with keys that win over the configuration's, such as sl_tune_save writes */
        int64_t seed;
    } run;
} sl_train_config;

/* Defaults, then the file (NULL: none), then the overrides "section.key=value" in order. Checks each value and that
 * they fit together. An error names file, line, column and key, or the override. The caller owns *out; a configuration
 * that was not made here has no plan. */
SL_API SL_MUST_CHECK sl_status sl_train_config_load(const char *path, const char *const *overrides, int override_count,
                                                    sl_train_config **out);
SL_API void sl_train_config_destroy(sl_train_config *config); /* NULL is fine */

/* The i-th key with its type, default and meaning, for help texts; false past the last. */
typedef struct sl_config_key_info {
    const char *section, *key;
    const char *type;          /* "whole number", "number", "true|false", "adamw|sgd", "text", "list", "paths" */
    const char *default_value; /* as text; "" if there is none */
    const char *help;
} sl_config_key_info;
SL_API bool sl_train_config_key(int i, sl_config_key_info *out);

/* Fails with "FILE:LINE:COLUMN: section.key: MESSAGE", "--section.key=VALUE: MESSAGE", or "section.key (VALUE by
 * default): MESSAGE", whichever the value came from. key is "section.key". */
SL_API sl_status sl_train_config_fail(const sl_train_config *config, const char *key, const char *format, ...)
    SL_PRINTF(3, 4);
/* The same before the message of the error that is on its way up, such as that of a file that a key names; returns
 * code. */
SL_API sl_status sl_train_config_context(const sl_train_config *config, const char *key, sl_status code);
/* Whether the key was given in the file or as an override. */
SL_API bool sl_train_config_given(const sl_train_config *config, const char *key);

/* ---- Plan ------------------------------------------------------------------------------------ */

/* All that follows from a configuration before anything runs: model, data, schedule, stages, memory. Immutable. */
typedef struct sl_train_plan sl_train_plan;

/* Opens the data and reads the model's configuration; refuses whatever would fail later: tokens past the vocabulary, a
 * sequence longer than the data, a schedule that does not fit, memory that is not there. The config must outlive it.
 * device is that of every rank, as sl_device_open takes it; NULL: "cpu". */
SL_API SL_MUST_CHECK sl_status sl_train_plan_create(const sl_train_config *config, const char *device,
                                                    sl_train_plan **out);
/* The same for ranks that are threads of one process, which share its device. */
SL_API SL_MUST_CHECK sl_status sl_train_plan_create_threads(const sl_train_config *config, const char *device,
                                                            sl_train_plan **out);
SL_API void sl_train_plan_destroy(sl_train_plan *plan); /* NULL is fine */

SL_API int sl_train_plan_ranks(const sl_train_plan *plan); /* pp x dp */
SL_API int sl_train_plan_stages(const sl_train_plan *plan);

/* The largest mesh of at most `most` ranks on which the configuration can run, for a run that goes on with fewer ranks
 * than it had. As many replicas as the configuration says if possible: the bits of a run depend on them, not on pp. The
 * arguments are those of sl_train_config_load. Fails if there is none. */
SL_API SL_MUST_CHECK sl_status sl_train_fit_mesh(const char *path, const char *const *overrides, int override_count,
                                                 int most, int *pp, int *dp);

/* One stage; strings are borrowed from the plan. */
typedef struct sl_plan_stage {
    int rank;                 /* of the pipeline */
    const char *first, *last; /* nodes of the graph */
    int64_t params;           /* elements; a tied head counts with the embedding */
    sl_cost cost;             /* of one microbatch, forward and backward */
    double seconds;           /* of one microbatch, forward and backward, predicted */
    int slots;                /* microbatches resident at once */
} sl_plan_stage;
SL_API sl_plan_stage sl_train_plan_stage(const sl_train_plan *plan, int stage);

/* Bytes on one rank of the run. */
typedef struct sl_plan_memory {
    size_t weights, gradients, optimizer;
    size_t activations; /* slots, packed weights, scratch, constants and copies of the batch */
    size_t messages;    /* in channels that end at the rank */
    size_t checkpoint;  /* the snapshot that is written while training goes on */
    size_t offload;     /* of a GPU's rank, on the host: activations that are off the device for a while */
    size_t context;     /* of a GPU: what its driver and libraries take */
    size_t total;       /* sum of the above */
    size_t device;      /* of these, what is on a device that has memory of its own; else 0 */
} sl_plan_memory;
/* To the byte. Ranks are those of the run: rank r is rank r / dp of its pipeline. */
SL_API sl_plan_memory sl_train_plan_memory(const sl_train_plan *plan, int rank);
SL_API bool sl_train_plan_fits(const sl_train_plan *plan); /* into parallel.memory_gb, or this machine */
/* SL_OK, or an error that says what does not fit, by how much, and which changes would make it fit. */
SL_API SL_MUST_CHECK sl_status sl_train_plan_check_memory(const sl_train_plan *plan);
/* One replica's pipeline as it will run; borrowed from the plan. */
SL_API const sl_pipeline *sl_train_plan_pipeline(const sl_train_plan *plan);

/* Predicted from the costs of the stages at the rates measured on this machine; ranks that share its cores take longer.
 */
SL_API double sl_train_plan_step_seconds(const sl_train_plan *plan);
SL_API double sl_train_plan_bubble(const sl_train_plan *plan); /* idle share of all ranks, with a core for each */
SL_API double sl_train_plan_flops(const sl_train_plan *plan);  /* of a step over all replicas, nothing recomputed */

/* The plan for people. command is the line that would run it. */
SL_API void sl_train_plan_print(const sl_train_plan *plan, const char *command, FILE *file);
/* The plan for programs, as JSON. measured may be NULL: else what each rank of the run has taken. */
SL_API void sl_train_plan_write_json(const sl_train_plan *plan, const sl_plan_memory *measured, FILE *file);

/* ---- Reports --------------------------------------------------------------------------------- */

/* The figures of one step; the keys of metrics.jsonl. */
typedef struct sl_step_report {
    int64_t step;     /* completed so far: 1 after the first */
    int64_t steps;    /* of the whole run */
    double loss;      /* mean over the step's tokens, before the update */
    double grad_norm; /* global, before clipping */
    double val_loss;  /* mean over the validation's tokens, after the update; NAN if there was no validation */
    double lr;
    double seconds;      /* of the step */
    double tokens_per_s; /* over all ranks */
    double peak_memory;  /* bytes: the highest of any rank so far */
    double mfu; /* share of the peak: FLOPs of forward and backward as the graph counts them / (seconds x ranks x peak
                   FLOP/s of a rank); NAN if the peak is not known */
    double peak_flops; /* that peak: log.peak_gflops, or as measured at the start; NAN if it is not known */
} sl_step_report;

/* ---- Run ------------------------------------------------------------------------------------- */

/* Zero is the default of every field. */
typedef struct SL_NAMED_FIELDS sl_train_options {
    bool resume;            /* from the newest whole checkpoint of run.out; from the start if there is none */
    bool overwrite;         /* if it does not resume: a run that is in run.out is removed, else it is an error */
    int64_t trace_steps;    /* steps whose timeline goes to run.out/trace.json and trace.svg */
    const char *save_grads; /* file for the gradients of the first step, summed over replicas, before clipping */
    FILE *console;          /* where rank 0 shows progress; NULL: nowhere */
    /* Read after every step: once it is not 0 on any rank, all ranks write a checkpoint and stop. May be NULL. */
    const volatile sig_atomic_t *stop;
    /* The caller ends its process by _exit if another rank was lost (SL_ERR_PEER): then nothing is freed before, for a GPU and
     * what waits on it end sooner with the process. */
    bool ends_process;
} sl_train_options;

/* The same on all ranks, except the bubble. */
typedef struct sl_train_result {
    int64_t first_step, last_step; /* steps completed before and after */
    double first_loss, last_loss;  /* NAN if no step ran */
    double seconds;                /* of all steps */
    double peak_flops;             /* of a rank: what MFU relates to; NAN if it is not known */
    double bubble;         /* idle share that the traced steps had; NAN without a trace and on other ranks than 0 */
    bool stopped;          /* by options.stop */
    bool early;            /* ended by eval.patience */
    double best_loss;      /* of all validations of the run, earlier starts included; NAN without one */
    int64_t best_step;     /* after which it was measured */
    char checkpoint[1024]; /* folder of the last checkpoint; empty if none was written */
} sl_train_result;

/* Looks at run.out before anything starts: it can be written, and it holds no checkpoint unless the run resumes or
 * overwrites; if it resumes, the newest is one of the same model and optimizer. options NULL means all defaults. */
SL_API SL_MUST_CHECK sl_status sl_train_check_output(const sl_train_plan *plan, const sl_train_options *options);

/* Collective over group, which has sl_train_plan_ranks() ranks: trains until run.steps are completed. A failure on one
 * rank is a failure on all. options NULL means all defaults; result may be NULL. */
SL_API SL_MUST_CHECK sl_status sl_train_run(const sl_train_plan *plan, sl_group *group, const sl_train_options *options,
                                            sl_train_result *result);

/* ---- Trained models -------------------------------------------------------------------------- */

/* A model with weights, wherever they are. Immutable. */
typedef struct sl_model_source sl_model_source;

/* path: a Hugging Face folder, a checkpoint, or the folder of a run (its newest whole checkpoint). */
SL_API SL_MUST_CHECK sl_status sl_model_source_open(const char *path, sl_model_source **out);
SL_API void sl_model_source_close(sl_model_source *source);                  /* NULL is fine */
SL_API const sl_model *sl_model_source_model(const sl_model_source *source); /* borrowed */
SL_API const char *sl_model_source_path(const sl_model_source *source);      /* where the weights were found */
SL_API const char *sl_model_source_tokenizer(const sl_model_source *source); /* "bytes", a folder, or "" */
/* All elements of a parameter as f32. A tied head is the embedding. */
SL_API SL_MUST_CHECK sl_status sl_model_source_read(const sl_model_source *source, const char *param, int64_t count,
                                                    float *out);

typedef struct sl_export_options {
    sl_dtype dtype;     /* of the weights */
    size_t shard_bytes; /* the weights are cut into files of at most so many bytes; 0: one file */
    bool overwrite;     /* a model that is in the folder already is replaced, else it is an error */
} sl_export_options;

/* Writes the model as a Hugging Face folder, with the tokenizer's files if it has any; a model of bytes gets a
 * tokenizer.json of bytes. The folder appears, or changes, as a whole once everything is written. What a model there
 * consisted of before is gone then; other files stay. options NULL means all defaults. */
SL_API SL_MUST_CHECK sl_status sl_model_source_export(const sl_model_source *source, const sl_export_options *options,
                                                      const char *folder);

/* ---- Another mesh ---------------------------------------------------------------------------- */

/* Zero is the default of every field. */
typedef struct SL_NAMED_FIELDS sl_convert_options {
    int pp, dp;          /* 0: as in the checkpoint's run */
    sl_shard_mode shard; /* what the replicas share out */
    int shard_group;     /* replicas that share; 0: all */
} sl_convert_options;

/* Writes the checkpoint at path, or the newest of the run there, as a run of another mesh would have written it:
 * RUN/checkpoints/step-NNNNNNNN with a file for each rank that has something of its own, which `*written` names (the
 * caller frees it). From file to file in blocks: memory does not grow with the model. A run that has checkpoints is
 * refused. Runs read checkpoints of any mesh; this saves their ranks from reading each other's files. */
SL_API SL_MUST_CHECK sl_status sl_train_convert(const char *path, const char *run, const sl_convert_options *options,
                                                char **written);

typedef struct SL_NAMED_FIELDS sl_eval_options {
    const sl_tokens *tokens;
    int64_t batch, seq;
    int64_t steps;      /* 0: all whole batches of the file */
    int threads;        /* 0: 1 */
    const char *device; /* as sl_device_open takes it; NULL: "cpu" */
    sl_dtype dtype;     /* that the model computes in: f32 (the default) or bf16 */
    bool documents;     /* keep the documents of a row apart: see sl_document_positions */
    int32_t boundary;   /* with documents: the token that ends one */
    const char
        *logits; /* safetensors file for the logits [batch, seq, vocab] and loss [1] of the first batch, or NULL */
} sl_eval_options;

typedef struct sl_eval_result {
    double loss, perplexity; /* mean over all tokens, and its exponential */
    int64_t steps, tokens;
    double seconds;
} sl_eval_result;

/* Reads the file in sequential order. */
SL_API SL_MUST_CHECK sl_status sl_model_evaluate(const sl_model_source *source, const sl_eval_options *options,
                                                 sl_eval_result *out);

typedef struct SL_NAMED_FIELDS sl_generate_text_options {
    const int32_t *prompt; /* at least one token */
    int64_t prompt_count;
    int64_t new_tokens;
    int samples;        /* continuations of the prompt, each its own; 0: 1 */
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* choose among the k likeliest; 0: all */
    double top_p;       /* among the likeliest whose probabilities add up to p; 0: all */
    uint64_t seed;
    bool ignore_end;    /* go on after a token that ends a text (eos_token_id of the model) */
    int threads;        /* 0: 1 */
    const char *device; /* as sl_device_open takes it; NULL: "cpu" */
    sl_dtype dtype;     /* that the model computes in: f32 (the default) or bf16 */
    /* Called on rank 0 for each token as it comes, the one that ends a text too. May be NULL. */
    void (*token)(void *user, int sample, int64_t index, int32_t token);
    void *user;
} sl_generate_text_options;

/* Collective over group: the model is cut into as many stages as there are ranks; samples keep them busy. tokens
 * (samples x new_tokens) is filled on rank 0, with -1 after a token that ends the text; NULL elsewhere is fine. The
 * result does not depend on the ranks. */
SL_API SL_MUST_CHECK sl_status sl_model_generate(const sl_model_source *source, sl_group *group,
                                                 const sl_generate_text_options *options, int32_t *tokens);

#ifdef __cplusplus
}
#endif
#endif
