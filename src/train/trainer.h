/* One rank of a run: its stages, parameters, optimizer and checkpoints. */
#ifndef SL_TRAIN_TRAINER_H
#define SL_TRAIN_TRAINER_H

#include "shard/snapshot.h"
#include "train/plan.h"

/* A parameter of this rank as training sees it. */
typedef struct trainer_param {
    const sl_param *param;
    const char *name; /* of its values in files: a tied head has the embedding's */
    int index;        /* place among the model's parameters */
    bool counted;     /* this rank of the pipeline counts it for the norm and writes it to checkpoints */
    sl_view data;     /* what this rank updates, or writes to checkpoints: all of it, or a part in one dim */
    sl_view grad;     /* of that; none if it is frozen */
} trainer_param;

/* What each rank tells all others after a step; plain data. */
typedef struct rank_note {
    sl_checkpoint_part part;
    double memory;  /* bytes at the peak */
    int32_t writer; /* whether it writes parts */
    int32_t stop;
} rank_note;

typedef struct sl_trainer {
    const sl_train_plan *plan;
    sl_group *world;               /* borrowed */
    sl_group *pipeline, *replicas; /* ours */
    int pp_rank, dp_rank;

    sl_device *device;
    sl_stage **stages;
    int stage_count;
    sl_runtime *runtime;
    sl_optimizer *optimizer;
    trainer_param *params; /* one for each of the optimizer's in its order, then the frozen ones */
    int param_count;
    int trained_count;       /* of the optimizer's */
    size_t optimizer_bytes;  /* device memory that it has taken */
    float *staging;          /* host memory for the largest parameter in f32 */
    bool updates_alone;      /* the only rank: norm and update are part of the device's step */
    double *own_sums, *sums; /* squares of gradients: of this rank's params, of the parts of the model's */

    int32_t *tokens, *targets;    /* [rows, seq] of this replica */
    int32_t *positions;           /* likewise: of each token in its document; NULL without documents */
    rank_note *notes;             /* one a rank of the world */
    sl_checkpoint_writer *writer; /* NULL on ranks whose replicas write the same */
    sl_tensor_entry *entries;     /* of a part: parameters, then state */
    char *entry_names;
    int entry_count;
    char *checkpoints;  /* folder */
    uint64_t data_hash; /* of the tokens; rank 0 has it for what it commits */
    int64_t pending;    /* step of the checkpoint that is written and not committed yet; -1: none */
    int64_t committed;  /* step of the last that was; -1: none */
    int64_t best;       /* step of one that stays whatever comes later; -1: none */
    int64_t step;       /* completed */
} sl_trainer;

/* trainer.c. Collective over world. */
SL_MUST_CHECK sl_status sl_trainer_create(const sl_train_plan *plan, sl_group *world, int trace_events,
                                          sl_trainer **out);
void sl_trainer_destroy(sl_trainer *trainer);                /* NULL is fine */
sl_plan_memory sl_trainer_memory(const sl_trainer *trainer); /* that this rank has taken */

const trainer_param *sl_trainer_find(const sl_trainer *trainer, const char *name); /* one that this rank has */
/* What a checkpoint keeps of parameter i: the optimizer's weight, or the frozen parameter. */
sl_view sl_trainer_weight(const sl_trainer *trainer, int i);
/* The elements of range in a view of those of held. */
sl_view sl_trainer_cut(const sl_view *view, sl_param_range held, sl_param_range range);

/* trainer_load.c: values of all parameters. */
SL_MUST_CHECK sl_status sl_trainer_load_start(sl_trainer *trainer);
SL_MUST_CHECK sl_status sl_trainer_load_checkpoint(sl_trainer *trainer, const char *path);
/* As of that step. */
SL_MUST_CHECK sl_status sl_trainer_load_snapshot(sl_trainer *trainer, const sl_snapshot *snapshot, int64_t step);
/* Host memory with the view's data: the data itself, or a copy in the staging buffer until the next call. */
SL_MUST_CHECK sl_status sl_trainer_read(sl_trainer *trainer, const sl_view *view, const void **out);

/* trainer_step.c. Fills loss, grad_norm and lr. save_grads: see sl_train_options; NULL for none. */
SL_MUST_CHECK sl_status sl_trainer_step(sl_trainer *trainer, const char *save_grads, sl_step_report *report);

/* trainer_step.c: the norm of the gradients and the update, if this rank is the only one; an sl_update_fn. */
SL_MUST_CHECK sl_status sl_trainer_update(void *trainer, sl_stream *stream);

/* trainer_step.c: the mean loss over the validation's batches, without dropout. Collective over world. */
SL_MUST_CHECK sl_status sl_trainer_validate(sl_trainer *trainer, double *loss);

/* trainer_checkpoint.c. All collective over world. */
SL_MUST_CHECK sl_status sl_trainer_open_writer(sl_trainer *trainer);
/* Tells the others how this rank stands, and commits a checkpoint that all have written. */
SL_MUST_CHECK sl_status sl_trainer_exchange(sl_trainer *trainer, bool stop);
/* Takes a snapshot of the step just completed; it is written meanwhile. */
SL_MUST_CHECK sl_status sl_trainer_begin_checkpoint(sl_trainer *trainer);
/* Waits until the checkpoint that was begun is complete. */
SL_MUST_CHECK sl_status sl_trainer_finish_checkpoint(sl_trainer *trainer);

/* trainer_memory.c. Hands the launcher's vault a snapshot of the step just completed. All ranks, after the exchange. */
SL_MUST_CHECK sl_status sl_trainer_keep(sl_trainer *trainer, int vault);

/* save_grads.c. Collective over world. */
SL_MUST_CHECK sl_status sl_trainer_save_grads(sl_trainer *trainer, const char *path);

#endif
