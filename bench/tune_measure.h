/* One case of `sluice bench tune`: a model on so many ranks, in several configurations (tune_measure.c). */
#ifndef SLUICE_BENCH_TUNE_MEASURE_H
#define SLUICE_BENCH_TUNE_MEASURE_H

#include <sluice/tune.h>

enum { TUNE_MODELS = 3, TUNE_ROWS = 64 };

typedef struct tune_row {
    char text[160];
    double measured;                     /* seconds of a step: the lower quartile of the rounds */
    double predicted;                    /* times the median of what each round predicted of its own measurement */
    double work, idle, exchange, update; /* parts of the prediction, as in sl_tune_choice */
    double predicted_alone;              /* seconds: the lower quartile of the rounds, whatever was measured */
} tune_row;

typedef struct tune_case {
    const char *model;
    int ranks, count;
    tune_row rows[TUNE_ROWS]; /* fastest first, as predicted when they were chosen */
    double error, mean_error; /* |predicted / measured - 1|: the largest and the mean */
    double tau;               /* Kendall's, of measured and predicted_alone */
    double chosen;            /* measured time of the first over the least measured, - 1 */
} tune_case;

/* How much is measured: configurations of each case, how often each is trained, and how many steps. */
typedef struct tune_effort {
    int configurations, rounds, steps;
} tune_effort;

SL_MUST_CHECK sl_status tune_measure(int model, int ranks, const tune_effort *effort, tune_case *out);

#endif
