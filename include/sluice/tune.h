/* Tuning: chooses the whole configuration of a run for given devices: pipeline and replicas, stages and where to cut,
 * schedule, microbatches, how replicas share weights, and what is computed again. Times come from a model of FLOPs and
 * bytes, or are measured; memory comes from the pure compile, so that what is proposed fits. docs/planner.md tells how. */
#ifndef SLUICE_TUNE_H
#define SLUICE_TUNE_H

#include <sluice/plan.h>
#include <sluice/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Devices --------------------------------------------------------------------------------- */

typedef struct sl_cluster_link {
    double latency;   /* seconds */
    double bandwidth; /* bytes a second of one device, each way; 0: unlimited */
} sl_cluster_link;

/* Machines that are alike. Ranks fill one machine after the other, and replicas of a stage are neighbors. */
typedef struct SL_NAMED_FIELDS sl_cluster {
    int machines;
    int devices;             /* a machine */
    double memory;           /* bytes of a device */
    double flops_per_s;      /* of matrix products, as a device reaches them */
    double bytes_per_s;      /* of a device's memory */
    double kernel_seconds;   /* an op takes at least that long */
    sl_cluster_link inside;  /* between devices of one machine */
    sl_cluster_link between; /* between devices of two machines */
    double shared_cores;     /* ranks of a machine that can work at once, if they share its processors; 0: all */
    bool processors;         /* devices are processors: the copy that a checkpoint is written from is in their memory */
} sl_cluster;

/* Reads YAML with the keys machines, devices, device (gpu, which is the default, or cpu), memory (such as 80GB), flops,
 * bandwidth, kernel (SL_GPU_KERNEL_SECONDS by default; 0 if device is cpu), and inside and between with latency and
 * bandwidth each. An error names file, line and column. */
SL_API SL_MUST_CHECK sl_status sl_cluster_load(const char *path, sl_cluster *out);
/* This machine with so many ranks, at the rates that a matrix product and a copy reach now. Its memory is
 * parallel.memory_gb, else an equal share of the machine's. */
SL_API SL_MUST_CHECK sl_status sl_cluster_measure(const sl_train_config *config, int ranks, sl_cluster *out);

/* ---- Choices --------------------------------------------------------------------------------- */

/* Zero is the default of every field. Everything is borrowed for the call. */
typedef struct SL_NAMED_FIELDS sl_tune_options {
    const char *config; /* as for sl_train_config_load; what it says about the choices is not looked at */
    const char *const *overrides;
    int override_count;
    int ranks;                 /* 0: all devices of the cluster; without one parallel.pp x parallel.dp */
    const sl_cluster *cluster; /* NULL: this machine */
    bool measure;              /* run each kind of layer here, instead of the model of FLOPs and bytes */
    int top;                   /* how many choices; 0: 5 */
    bool spread; /* from the fastest to the slowest in even steps of time, instead of the fastest: to compare */
    double budget_seconds; /* of the search for a schedule of each choice; 0: SL_PLAN_BUDGET */
} sl_tune_options;

/* One configuration. Strings are borrowed from what sl_tune_create made. */
typedef struct sl_tune_choice {
    int pp, dp, stages_per_rank;
    int64_t microbatches, rows; /* of a replica; rows of one microbatch */
    const char *schedule;       /* a name, or "found" */
    const char *shard;          /* value of parallel.shard */
    const char *recompute;      /* modules that are computed again; "" for none */
    double seconds;             /* of a step */
    double tokens_per_s;
    double bubble; /* idle share of the pipelines, mean over ranks */
    double memory; /* bytes of the fullest rank */
    int fullest;   /* that rank of the pipeline */
    /* Where the seconds go, on the rank that works longest: its own work, waiting for other stages, exchange of
     * gradients and weights between replicas that nothing hides, the optimizer. */
    double work, idle, exchange, update;
    double bound;    /* seconds below which no schedule comes with these stages, microbatches and this memory */
    const char *why; /* what makes it slower than the best; for the best: what bounds it */
} sl_tune_choice;

typedef struct sl_tune sl_tune; /* opaque, immutable */

/* Fails if nothing fits, with the memory that the least demanding configuration would need. */
SL_API SL_MUST_CHECK sl_status sl_tune_create(const sl_tune_options *options, sl_tune **out);
SL_API void sl_tune_destroy(sl_tune *tune); /* NULL is fine */

SL_API int sl_tune_count(const sl_tune *tune);
SL_API sl_tune_choice sl_tune_get(const sl_tune *tune, int index); /* the best is 0 */
SL_API int64_t sl_tune_tried(const sl_tune *tune);                 /* configurations whose time was computed */
/* Compute order of one pipeline; borrowed. */
SL_API const sl_schedule *sl_tune_schedule(const sl_tune *tune, int index);
/* Writes the choice as a file for run.plan ("train --plan"). A schedule that train does not know by name goes into a CSV
 * file beside it, with .csv in place of the path's ending. */
SL_API SL_MUST_CHECK sl_status sl_tune_save(const sl_tune *tune, int index, const char *path);
/* The "section.key=value" that make the choice, for sl_train_config_load; schedule is the CSV file of a schedule that
 * has no name. Fills lines[0..*count), at most SL_TUNE_LINES, borrowed from tune. */
#define SL_TUNE_LINES 10
SL_API SL_MUST_CHECK sl_status sl_tune_overrides(sl_tune *tune, int index, const char *schedule,
                                                 const char *lines[SL_TUNE_LINES], int *count);

#ifdef __cplusplus
}
#endif
#endif
