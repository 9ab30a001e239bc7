/* What the files of this layer share. */
#ifndef SL_TUNE_TUNE_H
#define SL_TUNE_TUNE_H

#include <sluice/tune.h>

#include "base/arena.h"
#include "train/plan.h"

/* ---- The model in units (units.c) ------------------------------------------------------------ */

/* A part of the model between two places where a cut sends least. Stages are made of whole units. */
typedef struct tune_unit {
    int first;        /* node of the graph; it ends before the next unit's first */
    int kind;         /* units of the same kind have the same nodes and shapes */
    bool inner;       /* it goes on with the block of the unit before */
    const char *name; /* of its first node: where parallel.split cuts */
} tune_unit;

enum { TUNE_RECOMPUTE_LIMIT = 6 };

typedef struct tune_model {
    const sl_train_config *config;
    const sl_train_plan *plan; /* of the configuration on one rank: model and names */
    const char *here;          /* device on which layers are measured */
    sl_arena *arena;
    tune_unit *units;
    int unit_count, kind_count, node_count;
    int *samples; /* a unit of each kind */
    /* What may be computed again: patterns of modules; the first is NULL, nothing, the second whole blocks. */
    const char *recompute[TUNE_RECOMPUTE_LIMIT];
    int recompute_count;
} tune_model;

/* What the model is built for with so many rows a microbatch. */
SL_MUST_CHECK sl_status sl_tune_shape(const sl_train_plan *plan, int64_t rows, sl_model_shape *out);
SL_MUST_CHECK sl_status sl_tune_read_model(const sl_train_plan *plan, sl_arena *arena, tune_model *out);

/* ---- Moments (moments.c) ---------------------------------------------------------------------- */

/* Numbers that are measured at several moments, so that neither a disturbed moment nor a lucky one counts. Zero: none yet. */
typedef struct tune_moments {
    double *values; /* (count, width) */
    int width, count;
    size_t capacity;
} tune_moments;

SL_MUST_CHECK sl_status sl_tune_moments_add(tune_moments *moments, const double *values, int width);
/* 0.5: the median. 0 if there are no moments. */
double sl_tune_moments_quantile(const tune_moments *moments, int column, double share);
void sl_tune_moments_clear(tune_moments *moments);

/* ---- Costs of units (costs.c) ---------------------------------------------------------------- */

/* One microbatch in one unit. */
typedef struct tune_cost {
    double f, i, w, b;       /* seconds */
    double pack_f, pack_i;   /* seconds of packing the weights for F, and for I or B: once a step, if measured */
    double until_i, until_w; /* bytes held from F to the end of I, and to the end of W */
    double kept;             /* bytes held from I to the end of W, if these run apart */
    double scratch, params, grads;
    double kernels;  /* that a microbatch launches */
    double elements; /* of the parameters */
    double input;    /* bytes that come from the unit before */
} tune_cost;

/* Costs of every kind for one size of microbatch and one choice of recomputation. */
typedef struct tune_costs {
    int64_t rows;
    int recompute;
    bool packs;       /* a step has several microbatches: train packs weights once for all of them */
    double crowded;   /* how much longer work takes while all ranks share the cores; 0: they have one each */
    tune_cost *kinds; /* (kind_count) */
    tune_moments moments, crowd_moments; /* of the seconds, and of crowded; none: not measured */
} tune_costs;

/* Of the unit as a stage of its own: the caller destroys *program. */
SL_MUST_CHECK sl_status sl_tune_build_unit(const tune_model *model, const sl_graph *graph, int unit,
                                           const tune_costs *costs, sl_device *device, sl_stage_program **program);
/* Fills kinds from the model of FLOPs and bytes. */
SL_MUST_CHECK sl_status sl_tune_count_costs(const tune_model *model, const sl_cluster *cluster, tune_costs *costs);
/* Adds a moment in which threads measure the seconds here, as many at once as ranks will work at once, and takes the medians
 * of all moments. crowded is measured as well if ranks are more than cores. */
SL_MUST_CHECK sl_status sl_tune_measure_costs(const tune_model *model, int ranks, int cores, tune_costs *costs);

/* ---- What ranks cost each other (machine.c, waking.c) ----------------------------------------- */

enum { TUNE_EXCHANGES = 16 };

/* Seconds of a byte that each of dp replicas has, while all replicas of all stages exchange. */
typedef struct tune_exchange {
    int dp;
    double all_reduce, reduce_scatter, all_gather;
} tune_exchange;

/* Measured on this machine with all ranks at once; zero: not measured. Of ranks that share processors it is the time that
 * each would take alone. */
typedef struct tune_machine {
    double round;             /* a small collective of all ranks */
    double update;            /* an element of a parameter: its share of the norm, and the optimizer */
    sl_cluster_link messages; /* between two ranks */
    tune_exchange exchanges[TUNE_EXCHANGES];
    int exchange_count;
    double waking; /* how much longer work takes while ranks of a pipeline wake each other on all of too few cores */
} tune_machine;

double sl_tune_cores(void); /* that this process may use */
/* Adds a moment in which it is measured and takes the lower quartiles of all moments: if ranks share cores, the scheduler
 * makes many a moment several times as long. cores: ranks that can work at once. */
SL_MUST_CHECK sl_status sl_tune_measure_machine(const tune_model *model, int ranks, double cores, tune_moments *moments,
                                                tune_machine *machine);

/* tune_machine's waking. Collective over all ranks, which are more than the cores; these are several. hop: seconds of a
 * small message. */
SL_MUST_CHECK sl_status sl_tune_measure_waking(sl_group *world, double cores, double hop, double *out);

/* ---- Time and memory of a step (time.c, shared_cores.c, memory.c) ----------------------------- */

/* A configuration that is being looked at. */
typedef struct tune_candidate {
    int pp, dp, chunks; /* stages a rank */
    sl_placement placement;
    int64_t microbatches, rows;
    int recompute;
    sl_shard_mode shard;
    const char *schedule;
    double bound;                                 /* of the time, before any schedule is made */
    double seconds, work, idle, exchange, update; /* as in sl_tune_choice */
    double bubble, memory;                        /* memory is an estimate until it is compiled */
    int fullest;
    /* If replicas share everything: stages of a rank whose weights are gathered at once, and whose gradients are there
     * at once. 0: not known yet. */
    int unsharded, summed;
    double target; /* bytes that a searched schedule is made for: the device's memory, or less */
    bool done;     /* the search has looked at it */
} tune_candidate;

/* Stages of a candidate. */
typedef struct tune_stages {
    int count;
    int *cuts;            /* first unit of stages 1, 2, .. */
    sl_stage_cost *costs; /* activation in bytes */
    double *hops;         /* seconds from stage s to s + 1 */
    double *kept, *scratch, *params, *grads, *elements, *kernels;
    double crowded; /* of the costs */
    double waking;  /* of the machine */
} tune_stages;

/* What units cost a stage: seconds, and bytes that it holds all the time and for each microbatch in flight. */
typedef struct tune_cut_costs {
    const double *seconds, *fixed, *held; /* (units); the bytes may be NULL */
    const double *in_flight;              /* (stages) microbatches; NULL if bytes do not count */
} tune_cut_costs;

/* Contiguous stages of whole units: the slowest as fast as possible, then the fullest as small as possible, and then as
 * equal as that allows. cuts has room for stages - 1. */
SL_MUST_CHECK sl_status sl_tune_cut(const tune_cut_costs *costs, int units, int stages, int *cuts);

/* Fills the times and the estimated memory of the candidate with the schedule. state_bytes: of the optimizer, a
 * parameter's element. tied_bytes: gradient that the first and the last stage add up if they are on two ranks. */
typedef struct tune_setting {
    const sl_cluster *cluster;
    tune_machine machine;
    double state_bytes, update_seconds; /* of one element of a parameter */
    double tied_bytes, tied_elements;
    int bound_cores; /* ranks are bound to so many, which are fewer, by sl_launch_count_shared; 0: they are not */
    bool own_memory; /* devices have memory of their own: what checkpoints copy lies in the machine's */
    double context, launch; /* bytes that a GPU's driver takes, and for each kernel of a step */
} tune_setting;
SL_MUST_CHECK sl_status sl_tune_time(const tune_setting *setting, const tune_stages *stages,
                                     const sl_schedule *schedule, tune_candidate *candidate);
/* Seconds of a message between two ranks of the pipeline. */
double sl_tune_hop(const sl_cluster *cluster, int dp, int from, int to, double bytes);
/* The costs with the memory that I keeps for W, for schedules in which they run apart. */
void sl_tune_split_costs(const tune_stages *stages, sl_stage_cost *out);
/* No schedule within so much memory, by the estimate, makes the candidate faster. */
double sl_tune_bound(const tune_setting *setting, const tune_stages *stages, const tune_candidate *candidate,
                     double memory);

/* Bytes that a rank of the candidate needs before any activation; an estimate. */
double sl_tune_fixed_memory(const tune_setting *setting, const tune_stages *stages, const tune_candidate *candidate,
                            int rank);
/* The least of it, however replicas share. */
double sl_tune_least_fixed_memory(const tune_setting *setting, const tune_stages *stages,
                                  const tune_candidate *candidate, int rank);
/* The fullest rank and its memory with the schedule that was run in time; an estimate. If replicas share everything, as
 * many stages are gathered at once as fit, unless the candidate says how many. */
SL_MUST_CHECK sl_status sl_tune_find_memory(const tune_setting *setting, const tune_stages *stages,
                                            const sl_timeline *timeline, tune_candidate *candidate);

/* When each rank has run its actions if `copies` pipelines share `cores`: ends (ranks). While more ranks than cores are at
 * work they take stages->crowded times as long. While those of a pipeline keep all of its share of the cores busy they
 * take stages->waking times as long; less with fewer busy cores, and no longer with one. */
SL_MUST_CHECK sl_status sl_tune_share_cores(const sl_schedule *schedule, const tune_stages *stages, int copies,
                                            double cores, double *ends);
/* The same if rank r of replica c is bound to core (r * copies + c) % cores: those on a core share it alone, and ends are
 * those of the last replica. */
SL_MUST_CHECK sl_status sl_tune_share_bound(const sl_schedule *schedule, const tune_stages *stages, int copies,
                                            int cores, double *ends);

/* Processes that share a GPU: one at a time has it, in seconds. */
typedef struct tune_turns {
    double slice;     /* that a process has the GPU if others want it, too */
    double change;    /* from the end of a slice until the next process works */
    double hand_over; /* the same if the process before has nothing more to do */
} tune_turns;

/* When each rank has run its actions if rank r takes turns on device r % devices with the others there: ends (ranks). */
SL_MUST_CHECK sl_status sl_tune_take_turns(const sl_schedule *schedule, const tune_stages *stages,
                                           const tune_turns *turns, int devices, double *ends);

/* ---- The search (enumerate.c, stages.c, verify.c) ------------------------------------------------ */

/* A choice with what it takes to run it. */
typedef struct tune_entry {
    tune_candidate candidate;
    sl_schedule *schedule;
    int *cuts;                /* first unit of stages 1, 2, .. */
    const char *const *split; /* names of the nodes that these units begin with */
    const char *why;
    double bound, unlimited; /* of the pipeline's time with any schedule: in this memory, and in any */
    double flight;           /* of one microbatch through all stages and back */
} tune_entry;

struct sl_tune {
    sl_arena *arena;
    const char *device; /* that memory is counted for, as sl_device_open takes it */
    const char *path;   /* of the configuration, or NULL */
    const char **overrides;
    int override_count;
    sl_train_config *config, *sample; /* as given, and for one row on one rank */
    sl_train_plan *plan;              /* of the sample */
    tune_model model;
    sl_cluster cluster;
    tune_setting setting;
    bool measure, spread;
    bool here; /* what ranks cost each other is measured, too: they are this machine's */
    int ranks, top;
    int kept; /* entries while searching: better schedules are searched for all of them, however few are wanted */
    double budget;
    tune_moments rank_moments; /* of setting.machine */
    tune_costs *costs;         /* computed so far */
    int cost_count;
    size_t cost_capacity;
    tune_entry *entries; /* best first */
    int entry_count;
    int64_t tried;
    double least_memory; /* that any configuration would need on its fullest rank, as estimated */
};

const char *sl_tune_shard_name(sl_shard_mode shard); /* the word of parallel.shard */

/* One more moment, if the costs of this tune are measured at all: for all layers in all sizes so far; for the seconds of
 * those that one entry is made of; for what ranks cost each other. Times stay as they are until sl_tune_time_entries. */
SL_MUST_CHECK sl_status sl_tune_measure_layers(sl_tune *tune);
SL_MUST_CHECK sl_status sl_tune_measure_entry(sl_tune *tune, int index);
SL_MUST_CHECK sl_status sl_tune_measure_ranks(sl_tune *tune);
void sl_tune_forget_entry(sl_tune *tune, int index); /* of its layers only the moments that come will count */
/* Stages of the candidate, from costs that are computed once. cuts: first units of stages 1, 2, ..; NULL: the best. */
SL_MUST_CHECK sl_status sl_tune_make_stages(sl_tune *tune, const tune_candidate *candidate, const int *cuts,
                                            tune_stages *out);
void sl_tune_clear_stages(tune_stages *stages);
/* The schedule by its name; "found": the best that the planner finds for this memory in about so many seconds. Fails with
 * SL_ERR_UNSUPPORTED if there is none. */
SL_MUST_CHECK sl_status sl_tune_make_schedule(const sl_tune *tune, const tune_candidate *candidate,
                                              const tune_stages *stages, const char *name, double budget,
                                              sl_schedule **out);
/* Seconds below which no schedule of these stages comes: with the memory that there is, and with any. */
SL_MUST_CHECK sl_status sl_tune_bound_schedules(const sl_tune *tune, const tune_candidate *candidate,
                                                const tune_stages *stages, double *bound, double *unlimited);

/* The keys that make the entry; see sl_tune_overrides(). */
SL_MUST_CHECK sl_status sl_tune_entry_overrides(sl_tune *tune, const tune_entry *entry, const char *schedule,
                                                const char *lines[SL_TUNE_LINES], int *count);

/* Fills entries with the best ones that fit: the first is the best of all that are looked at. */
SL_MUST_CHECK sl_status sl_tune_search(sl_tune *tune);
int sl_tune_by_seconds(const void *a, const void *b);                    /* of two candidates, for qsort */
int sl_tune_by_choice(const tune_candidate *x, const tune_candidate *y); /* 0: one layout and one way to share */
/* How many devices like these some configuration fits on, as estimated, in doublings of the ranks; 0: no number. */
SL_MUST_CHECK sl_status sl_tune_enough_ranks(sl_tune *tune, int *out);
/* Makes an entry of the candidate if it fits. Entries stay sorted: the slower of two alike goes, and the slowest of too
 * many. */
SL_MUST_CHECK sl_status sl_tune_verify(sl_tune *tune, const tune_candidate *candidate);
void sl_tune_drop_entries(sl_tune *tune);
/* Searches for better schedules of the entries; fails if there are none. */
SL_MUST_CHECK sl_status sl_tune_improve_entries(sl_tune *tune);
/* Times the entries again with the costs that are known now. Their cuts, schedules, memory and order stay. */
SL_MUST_CHECK sl_status sl_tune_time_entries(sl_tune *tune);
/* Sorts the entries by time, keeps as many as are wanted, and says what makes each slower than the first. */
SL_MUST_CHECK sl_status sl_tune_rank_entries(sl_tune *tune);

#endif
