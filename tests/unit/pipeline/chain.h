/* A chain of stages, described by hand: no graph, group or device. Stage s reads what stage s - 1 made, the first one
 * reads the batch's "x", the last one reads "y", too, and makes the loss. Every value is f32 [4, 8]: 128 bytes. */
#ifndef PIPELINE_CHAIN_H
#define PIPELINE_CHAIN_H

#include "unit/schedule/make.h"

#include <sluice/pipeline.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum {
    CHAIN_MAX = 8,
    VALUE_BYTES = 128,
    WEIGHT_BYTES = 256, /* f32 [8, 8] */
    SAVED_I_BYTES = 192,
    SAVED_W_BYTES = 64,
    SCRATCH_BYTES = 512,
    CONSTANT_BYTES = 64
};

typedef struct chain {
    int count;
    sl_value_desc inputs[CHAIN_MAX][2], outputs[CHAIN_MAX][1];
    sl_weight_desc weights[CHAIN_MAX][1];
    sl_stage_desc stages[CHAIN_MAX];
    char names[CHAIN_MAX][2][16];
} chain;

static inline sl_meta value_meta(int64_t rows)
{
    return sl_meta_make(SL_F32, 2, (int64_t[]){ rows, 8 });
}

static inline void chain_init(chain *c, int count)
{
    memset(c, 0, sizeof *c);
    c->count = count;
    for (int s = 0; s < count; s++) {
        bool first = s == 0, last = s == count - 1;
        snprintf(c->names[s][0], sizeof c->names[s][0], "h%d", s);
        snprintf(c->names[s][1], sizeof c->names[s][1], "w%d", s);
        c->inputs[s][0] = (sl_value_desc){ .name = first ? "x" : c->names[s - 1][0],
                                           .metas = { value_meta(4) },
                                           .has_grad = !first,
                                           .last_use = SL_PHASE_W,
                                           .maker = first ? SL_MAKER_ROOT : s - 1 };
        c->inputs[s][1] =
            (sl_value_desc){ .name = "y", .metas = { value_meta(4) }, .last_use = SL_PHASE_I, .maker = SL_MAKER_ROOT };
        c->outputs[s][0] = (sl_value_desc){ .name = last ? "loss" : c->names[s][0],
                                            .metas = { last ? sl_meta_make(SL_F32, 0, NULL) : value_meta(4) },
                                            .has_grad = true,
                                            .loss = last,
                                            .last_use = SL_PHASE_F,
                                            .grad_last_use = SL_PHASE_W };
        c->weights[s][0] = (sl_weight_desc){ .name = c->names[s][1],
                                             .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 8, 8 }),
                                             .grad_dtype = SL_F32 };
        c->stages[s] = (sl_stage_desc){ .inputs = c->inputs[s],
                                        .input_count = last ? 2 : 1,
                                        .outputs = c->outputs[s],
                                        .output_count = 1,
                                        .weights = c->weights[s],
                                        .weight_count = 1,
                                        .size_count = 1,
                                        .can_train = true,
                                        .can_split = true,
                                        .saved_i_bytes = SAVED_I_BYTES,
                                        .saved_w_bytes = SAVED_W_BYTES,
                                        .scratch_bytes = SCRATCH_BYTES,
                                        .constant_bytes = { CONSTANT_BYTES } };
    }
}

/* All schedules that train. */
static const struct {
    const char *name;
    int stages_per_rank;
} schedules[] = {
    { "GPipe", 1 },
    { "1F1B", 1 },
    { "Interleaved1F1B", 2 },
    { "LoopedBFS", 2 },
    { "InterleavedZeroBubble", 2 },
    { "ZBVZeroBubble", 2 },
    { "DualPipeV", 2 },
};

enum { SCHEDULES = sizeof schedules / sizeof *schedules, RANKS = 4, MICROBATCHES = 8 };

static inline sl_schedule *make_schedule(int index, chain *c)
{
    chain_init(c, RANKS * schedules[index].stages_per_rank);
    return generate(schedules[index].name, RANKS, MICROBATCHES, schedules[index].stages_per_rank);
}

static inline sl_pipeline_options chain_options(const chain *c, const sl_schedule *schedule)
{
    return (sl_pipeline_options){ .schedule = schedule, .stages = c->stages, .stage_count = c->count };
}

static inline sl_pipeline *compile(const sl_pipeline_options *options)
{
    sl_pipeline *pipeline = NULL;
    if (sl_pipeline_compile(options, &pipeline) != SL_OK)
        fail_msg("%s", sl_error_message());
    return pipeline;
}

static inline int count_code(const sl_pipeline_program *program, sl_code code)
{
    int count = 0;
    for (int64_t i = 0; i < program->instr_count; i++)
        count += program->instrs[i].code == code;
    return count;
}

#endif
