/* What `sluice bench pipeline` runs: a GPT on ranks, timed beside the simulator's prediction. */
#ifndef SLUICE_BENCH_PIPELINE_MEASURE_H
#define SLUICE_BENCH_PIPELINE_MEASURE_H

#include "tune/tune.h"

#include <sluice/nn.h>
#include <sluice/optim.h>
#include <sluice/runtime.h>

enum { PIPELINE_MAX_RANKS = 64, PIPELINE_MAX_STAGES = 256 };

typedef struct SL_NAMED_FIELDS pipeline_options {
    int64_t batch, seq, embd, layers, heads, vocab;
    int ranks, microbatches, steps;
    int stages_per_rank; /* 0: the schedule's default */
    bool untied;         /* embedding and head are two parameters */
    const char *device;
    int ranks_as; /* RANKS_AS_... */
    sl_dtype dtype;
    int copies; /* of one rank that run at the same time, a process each; 0: one */
} pipeline_options;

/* Seconds of the stages' phases, and of the optimizer on the rank that needs most. */
typedef struct pipeline_costs {
    sl_stage_cost stages[PIPELINE_MAX_STAGES];
    double optimizer;
} pipeline_costs;

/* One case and what came of it. */
typedef struct pipeline_case {
    char schedule[32];
    int ranks;
    int stages_per_rank; /* 0: the schedule's default */
    int threads;         /* of each rank */
    int stages;
    bool is_host; /* the ranks run on processors */
    int devices;  /* that they run on: fewer than ranks if they share GPUs */
    double ties;  /* seconds of the sum of the tied gradients, at the end of a step */
    double tokens_per_s;
    double predicted_tokens_per_s; /* 0: not predicted */
    double bubble;                 /* measured: share of the devices' time in which nothing of the step runs */
    double predicted_bubble;       /* of the simulation */
    tune_turns turns;              /* of ranks that are processes and share GPUs; slice 0: there are none */
    char device[256];              /* what it is */
    char messages[320];            /* where they lie, and why */
} pipeline_case;

/* Runs the case on local ranks that it starts; fills in the figures but those that are predicted. costs: NULL, or the
 * steps are traced to learn them. */
sl_status pipeline_measure(const pipeline_options *options, pipeline_case *each, pipeline_costs *costs);
/* The same, and the prediction from measured costs (pipeline_predict.c). Those of processors are measured as the ranks
 * run. Ranks may share a GPU, which makes each phase slower: its costs are those of all stages on one rank. turns: of
 * processes on the GPU, if the ranks are. */
sl_status pipeline_measure_and_predict(const pipeline_options *options, const tune_turns *turns, pipeline_case *each);

/* How processes take turns on the GPU (pipeline_turns.c). All 0 if they run at the same time. single: one rank, measured. */
sl_status pipeline_measure_turns(const pipeline_options *options, const pipeline_case *single, tune_turns *out);

/* The model as it is trained, cut into stages, and a batch: tokens, then targets. The caller frees both. */
sl_status pipeline_cut_model(const pipeline_options *options, int stages, sl_partition **out);
sl_status pipeline_fill_batch(const pipeline_options *options, int32_t **out);

#endif
