/* A timeline: instructions in the order they run, when each storage is needed, and which storages share memory. */
#ifndef SL_GRAPH_TIMELINE_H
#define SL_GRAPH_TIMELINE_H

#include "graph/plan.h"

typedef struct sl_program_timeline {
    const sl_lowering *lowering;
    const sl_instruction **steps;
    int count;
    int forward_count; /* the first steps: F */
    int i_count;       /* the next ones: I, or B if there is no W after */
    /* Storages that share memory form a set; each set has one of them as its root. Indexed by the root: */
    int *parent;
    int *first, *last;  /* steps; last -1: never used */
    bool *from_forward; /* F writes to it */
    sl_home *home;
    int *index;
    uint32_t *copies; /* by step; bit i: the prior of output i is to be copied first */
    /* By step, see sl_instruction: */
    bool *beside;
    int *until, *awaits;
} sl_program_timeline;

/* F, I, W (split) or F, B. The timeline is to be cleared by the caller in any case. */
SL_MUST_CHECK sl_status sl_program_timeline_make(const sl_lowering *lowering, bool split, sl_program_timeline *out);
void sl_program_timeline_clear(sl_program_timeline *timeline);
int sl_program_timeline_root(const sl_program_timeline *timeline, int storage);
sl_phase sl_program_timeline_phase(const sl_program_timeline *timeline, int step); /* F, I or W; I stands for B, too */

/* Finds the steps that can run beside others, and notes that what they use is needed for longer: beside.c. */
SL_MUST_CHECK sl_status sl_program_timeline_find_beside(sl_program_timeline *timeline);

#endif
