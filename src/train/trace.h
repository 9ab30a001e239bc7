/* The picture of a run's trace. */
#ifndef SL_TRAIN_TRACE_H
#define SL_TRAIN_TRACE_H

#include <sluice/train.h>

/* Draws the trace at path into run.out/trace.svg. *bubble is the idle share of the ranks inside the steps: from the
 * first action of a step to its last. */
SL_MUST_CHECK sl_status sl_trace_draw(const sl_train_config *config, const char *path, double *bubble);

#endif
