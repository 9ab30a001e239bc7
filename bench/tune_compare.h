/* What the rounds of `sluice bench tune` say of predictions (tune_compare.c). */
#ifndef SLUICE_BENCH_TUNE_COMPARE_H
#define SLUICE_BENCH_TUNE_COMPARE_H

#include "tune_measure.h"

#include "tune/tune.h"

/* Adds a round of one row: seconds of a step as trained, and what was predicted from layers measured beside it. */
SL_MUST_CHECK sl_status tune_add_round(tune_moments *rounds, double measured, const sl_tune_choice *predicted);
/* Fills all of the row but its text. */
void tune_take_rounds(const tune_moments *rounds, tune_row *row);
/* Fills what a case says of all its rows. */
void tune_compare_rows(tune_case *all);

#endif
