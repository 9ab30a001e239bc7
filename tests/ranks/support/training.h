/* Runs of the training loop whose ranks are threads of the test, in a folder of their own. */
#ifndef TESTS_RANKS_SUPPORT_TRAINING_H
#define TESTS_RANKS_SUPPORT_TRAINING_H

#include <sluice/train.h>

/* Before and after each test: a folder with a text to train on. */
int training_enter(void **state);
int training_leave(void **state);
const char *training_folder(void);

/* What came of a run. */
typedef struct run_outcome {
    sl_status status;  /* of rank 0 */
    char message[512]; /* of the first rank that has one of its own */
    sl_train_result result;
    double loss[64], grad_norm[64];
    double peak_memory, planned_memory;
    int steps;
} run_outcome;

/* The plan of a run as below; the caller destroys both. */
sl_status training_plan(const char *device, const char *name, const char *const *more, sl_train_config **config,
                        sl_train_plan **plan);

/* A small model for 6 steps, with `more` overrides, up to NULL, in the folder `name`. What cannot be planned fails the
 * test. */
void training_run_on(const char *device, const char *name, const sl_train_options *options, const char *const *more,
                     run_outcome *out);
/* The same on the device that the test runs on. */
void training_run(const char *name, const sl_train_options *options, const char *const *more, run_outcome *out);

/* plan.json of a run: what was planned for each rank is what it has taken, to the byte. */
void training_check_plan(const char *name, int ranks);

#endif
