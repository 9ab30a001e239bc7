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
/* Seconds of a phase if each instruction takes as long as its operations or its bytes at these rates, whichever takes
 * longer, and kernel_seconds beside that. */
double sl_program_seconds(const sl_stage_program *program, sl_phase phase, double flops_per_s, double bytes_per_s,
                          double kernel_seconds);

#endif
