/* What `sluice bench pipeline` runs: a GPT on ranks, timed beside the simulator's prediction. */
#ifndef SLUICE_BENCH_PIPELINE_MEASURE_H
#define SLUICE_BENCH_PIPELINE_MEASURE_H

#include <sluice/nn.h>
#include <sluice/runtime.h>

typedef struct SL_NAMED_FIELDS pipeline_options {
    int64_t batch, seq, embd, layers, heads, vocab;
    int ranks, microbatches, steps;
    int stages_per_rank; /* 0: the schedule's default */
    bool untied;         /* embedding and head are two parameters */
    const char *device;
    int ranks_as; /* RANKS_AS_... */
    sl_dtype dtype;
} pipeline_options;

/* One case and what came of it. */
typedef struct pipeline_case {
    char schedule[32];
    int ranks;
    int stages_per_rank; /* 0: the schedule's default */
    int threads;         /* of each rank */
    int stages;
    double tokens_per_s;
    double predicted_tokens_per_s;
    double bubble;           /* measured: share of the ranks' time in which no phase runs */
    double predicted_bubble; /* of the simulation */
} pipeline_case;

/* Runs the case on local ranks that it starts; fills in the figures. */
sl_status pipeline_measure(const pipeline_options *options, pipeline_case *each);

/* The model as it is trained, cut into stages, and a batch: tokens, then targets. The caller frees both. */
sl_status pipeline_cut_model(const pipeline_options *options, int stages, sl_partition **out);
sl_status pipeline_fill_batch(const pipeline_options *options, int32_t **out);

#endif
