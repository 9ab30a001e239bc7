/* A chain of stages of callbacks, one a rank: stage i makes the value "h<i>" from "h<i-1>". */
#ifndef TESTS_RANKS_CHAIN_H
#define TESTS_RANKS_CHAIN_H

#include <sluice/runtime.h>

#include <stdio.h>

/* What a rank has. */
typedef struct chain_rank {
    sl_group *group;
    sl_device *device;
    sl_schedule *schedule;
    sl_stage *stage;
    sl_runtime *runtime;
} chain_rank;

/* options has the index and the callbacks; input and output have all but their names. */
static inline sl_status chain_create_stage(sl_stage_options options, sl_stage_value input, sl_stage_value output,
                                           sl_stage **out)
{
    char names[2][16];
    snprintf(names[0], sizeof names[0], "h%d", options.index - 1);
    snprintf(names[1], sizeof names[1], "h%d", options.index);
    input.name = names[0];
    output.name = names[1];
    options.inputs = &input;
    options.input_count = options.index > 0;
    options.outputs = &output;
    options.output_count = 1;
    return sl_stage_create(&options, out);
}

/* The runtime of its stage; options has what differs from the default. */
static inline sl_status chain_create_runtime(chain_rank *rank, sl_runtime_options options)
{
    options.group = rank->group;
    options.device = rank->device;
    options.schedule = rank->schedule;
    options.stages = &rank->stage;
    options.stage_count = 1;
    return sl_runtime_create(&options, &rank->runtime);
}

static inline void chain_close(chain_rank *rank)
{
    sl_runtime_destroy(rank->runtime);
    sl_stage_destroy(rank->stage);
    sl_schedule_destroy(rank->schedule);
    sl_device_close(rank->device);
    sl_group_close(rank->group);
}

#endif
