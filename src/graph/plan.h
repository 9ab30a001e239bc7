/* The memory plan: which storages share memory, in which region each lies and at which offset. F, I and W are planned
 * as one sequence, F and B as another; what F writes lies at the same place in both. */
#ifndef SL_GRAPH_PLAN_H
#define SL_GRAPH_PLAN_H

#include "graph/lower.h"

typedef struct sl_program_place {
    sl_home home;
    int index;     /* of the port */
    size_t offset; /* bytes within the region */
} sl_program_place;

typedef struct sl_program_plan {
    sl_instruction_list phases[SL_PHASE_COUNT];
    sl_program_place *split; /* of each storage, for F, I and W; home FREE if nothing uses it */
    sl_program_place *whole; /* likewise, for B */
    int storage_count;
    sl_phase *last_use; /* of each storage: F, I or W */
    /* W and B: parameters whose gradient no instruction starts as a whole, to be zeroed if gradients are overwritten
     * (instructions start the others). */
    int *unstarted[SL_PHASE_COUNT];
    int unstarted_count[SL_PHASE_COUNT];
    /* One product for each weight that is packed beforehand; phase: F if F needs it first, else I. */
    sl_instruction *packs;
    int pack_count;
    size_t pack_capacity;
    size_t saved_i_bytes, saved_w_bytes, kept_bytes, packed_bytes;
    size_t scratch_bytes[SL_PHASE_COUNT];
} sl_program_plan;

/* *out starts as zero and is to be cleared by the caller in any case. */
SL_MUST_CHECK sl_status sl_program_plan_make(const sl_lowering *lowering, sl_device *device, sl_program_plan *out);
/* Finds the weights that are packed beforehand; without it there are none. */
SL_MUST_CHECK sl_status sl_program_plan_pack(const sl_lowering *lowering, sl_device *device, sl_program_plan *plan);
void sl_program_plan_clear(sl_program_plan *plan);

/* Proves the plan by walking through it: every tensor read was written by the storage it belongs to and not written
 * over since, everything lies within its region or port. A violation is an internal error that names the step. */
SL_MUST_CHECK sl_status sl_program_plan_verify(const sl_lowering *lowering, const sl_program_plan *plan);

/* The call of an instruction without data pointers; views has room for all operands. */
sl_kernel_call sl_instruction_call(const sl_instruction *step, sl_view *views);

#endif
