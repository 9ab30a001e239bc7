/* A stage's weights and gradients as a whole: gathered and reduced by instructions, beside what the rank computes. */
#ifndef SL_RUNTIME_WEIGHTS_H
#define SL_RUNTIME_WEIGHTS_H

#include "runtime/program.h"

/* Collectives of one stage that are on their way; one a weight, NULL if there is none. */
typedef struct sl_stage_requests {
    sl_request **gathers, **sums;
    uint64_t gather_start, sum_start; /* for the trace */
} sl_stage_requests;

SL_MUST_CHECK sl_status sl_weights_create(sl_runtime *runtime);
void sl_weights_destroy(sl_runtime *runtime);

/* UNSHARD to AWAIT_GRADS. */
SL_MUST_CHECK sl_status sl_weights_run(sl_runtime *runtime, const sl_instr *instr);

#endif
