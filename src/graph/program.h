/* A stage program's insides. */
#ifndef SL_GRAPH_PROGRAM_H
#define SL_GRAPH_PROGRAM_H

#include "graph/plan.h"

struct sl_stage_program {
    sl_arena *arena;
    sl_program_info info;
    sl_program_plan plan;
    size_t *constant_offsets;
    const void **constant_data; /* copies */
    size_t *constant_sizes;
    int constant_count;
    const char **node_names; /* by node of the graph; those of the stage's nodes alone, for messages and the dump */
};

/* Of one instruction; nothing if the plan made it unnecessary. */
sl_cost sl_instruction_cost(const sl_instruction *step);
/* What a device reaches. */
typedef struct sl_rates {
    double flops_per_s, bytes_per_s;
    double kernel_seconds; /* an instruction takes at least that long */
    bool adds_up;          /* the times of its operations and of its bytes add up; false: the longer counts */
} sl_rates;

/* Seconds of a phase: the sum over its instructions. */
double sl_program_seconds(const sl_stage_program *program, sl_phase phase, const sl_rates *rates);

#endif
