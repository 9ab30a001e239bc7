/* The folder of a run: what lies in it, and that only one run at a time writes to it. */
#ifndef SL_TRAIN_OUTPUT_H
#define SL_TRAIN_OUTPUT_H

#include "train/metrics.h"

/* Rank 0's side of run.out; plain data, zero before it is opened. */
typedef struct sl_output_folder {
    int lock; /* descriptor + 1; 0: none */
    sl_metrics *metrics;
    sl_tensorboard *tensorboard;
} sl_output_folder;

/* Makes the folder and locks it; waits a few seconds for ranks of a killed run to go. Look at what is in the folder only
 * after this: another run may have been at work until now. */
SL_MUST_CHECK sl_status sl_output_lock(sl_output_folder *output, const sl_train_config *config);
/* Fails if the folder holds checkpoints, whole or damaged. */
SL_MUST_CHECK sl_status sl_output_check_unused(const sl_train_config *config);
/* Removes what a run left in the folder: whole checkpoints, metrics, timeline, tokenizer. What was set aside, and what is
 * not a run's, stays. */
SL_MUST_CHECK sl_status sl_output_clear(const sl_train_config *config);
/* Collective over group, once rank 0 holds the lock: all ranks see the folder that rank 0 writes to, or the run fails. */
SL_MUST_CHECK sl_status sl_output_check_shared(sl_group *group, const sl_train_config *config);
/* Opens metrics.jsonl, which keeps the lines up to the step, and the event file if asked for. */
SL_MUST_CHECK sl_status sl_output_open(sl_output_folder *output, const sl_train_config *config, int64_t step);
SL_MUST_CHECK sl_status sl_output_write(sl_output_folder *output, const sl_step_report *report);
void sl_output_close(sl_output_folder *output);

#endif
