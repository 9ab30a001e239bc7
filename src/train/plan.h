/* The plan of a run: what every rank needs to know before it starts. */
#ifndef SL_TRAIN_PLAN_H
#define SL_TRAIN_PLAN_H

#include <sluice/train.h>

#include "base/arena.h"
#include "graph/program.h"

/* Opened files of a key of the data. */
typedef struct sl_plan_data {
    sl_tokens **tokens; /* one if the configuration gives no weights */
    double *weights;
    int count;
} sl_plan_data;

struct sl_train_plan {
    const sl_train_config *config; /* borrowed */
    sl_arena *arena;
    char *device;            /* of every rank, as sl_device_open takes it */
    bool threads;            /* ranks are threads of one process */
    size_t device_total;     /* bytes of memory of the device; 0: it uses the machine's */
    const sl_gpu_model *gpu; /* the device by its data sheet: every rank has one; NULL: a device that is here */

    sl_model model; /* as it is saved */
    /* As it is built: the embedding and the head are always two parameters of the graph, which are tied. So the bits do
     * not depend on whether a cut lies between them. */
    sl_model graph_model;
    bool tied;
    const char *embedding; /* name of the parameter that a tied head shares; "" if nothing is tied */
    const char *head;      /* of the head's own in graph_model; the same */
    sl_param_list *params; /* of model: the order of everything that goes over all parameters */
    bool *frozen;          /* for each of them: it is not trained */
    sl_texts frozen_names; /* those of graph_model that are not */

    sl_plan_data data;
    sl_plan_data val; /* empty if there is no validation, or if it has a share of data */
    sl_batches *batches;
    sl_batches *val_batches; /* NULL: there is no validation */
    int64_t val_steps;       /* batches of one validation */
    int32_t boundary;        /* with data.documents: the token that ends a document */
    int64_t rows;            /* of one replica's batch */
    int64_t sizes[2];        /* rows of the larger and the smaller microbatches */
    int size_count;          /* 1 if all are equal */

    const sl_schedule *schedule; /* compute order of one pipeline */
    sl_schedule *own_schedule;   /* the same; NULL if it is the caller's */
    int stage_count;
    sl_texts split, recompute;   /* of the configuration, by their names in the graph */
    sl_partition *partitions[2]; /* for sizes[] */

    sl_shard_mode shard; /* none if there is one replica */
    int shard_group;     /* replicas that share; 1 if they share nothing */
    int unsharded;       /* full: stages of a rank whose weights are gathered at once */
    size_t offload;      /* bytes of the host for activations that lie idle */
    bool pack_weights;   /* packed once a step for all microbatches: if there are several, and if it fits */
    bool beside;         /* gradients of weights run beside the rest of B: on one rank with a GPU, and if it fits */

    sl_pipeline *pipeline; /* of one replica */
    sl_plan_stage *stages;
    sl_plan_memory *memory;          /* one a rank of the run */
    int (*launches)[SL_PHASE_COUNT]; /* of each stage: kernels of one microbatch */
    double step_seconds, bubble, flops;
};

/* plan.c: a plan for whoever tries many of them. It has the model, the stages, the compiled pipeline and the memory, but
 * no times, and it opens the data only if the vocabulary depends on them. given: the schedule, which must outlive the
 * plan, instead of the configuration's; NULL: none. */
SL_MUST_CHECK sl_status sl_plan_create_shape(const sl_train_config *config, const char *device,
                                             const sl_schedule *given, sl_train_plan **out);

/* plan.c. How a run of this configuration would cut the model: schedule, stages and parameters, and nothing of data, time
 * and memory. config and model must outlive it. */
SL_MUST_CHECK sl_status sl_plan_create_stages(const sl_train_config *config, const sl_model *model,
                                              sl_train_plan **out);

/* plan_model.c */
SL_MUST_CHECK sl_status sl_plan_set_model(sl_train_plan *plan); /* what follows from plan->model */
SL_MUST_CHECK sl_status sl_plan_choose_model(sl_train_plan *plan);

/* plan_freeze.c */
SL_MUST_CHECK sl_status sl_plan_choose_frozen(sl_train_plan *plan);
/* Whether a pattern of model.freeze, of so many letters, means this parameter of the model. */
bool sl_plan_fits_param(const sl_train_plan *plan, const char *pattern, size_t length, const char *name);

/* plan_data.c */
SL_MUST_CHECK sl_status sl_plan_open_data(sl_train_plan *plan);
SL_MUST_CHECK sl_status sl_plan_check_data(sl_train_plan *plan);
void sl_plan_data_close(sl_plan_data *data);
SL_MUST_CHECK sl_status sl_plan_largest_token(const sl_train_plan *plan, int64_t *out); /* of training and validation */
int64_t sl_plan_token_count(const sl_plan_data *data);
SL_MUST_CHECK sl_status sl_plan_hash_data(const sl_plan_data *data, uint64_t *out); /* see sl_tokens_hash */

/* plan_stages.c */
SL_MUST_CHECK sl_status sl_plan_make_schedule(sl_train_plan *plan);
/* What the model is built for with so many rows a microbatch. */
SL_MUST_CHECK sl_status sl_plan_shape(const sl_train_plan *plan, int64_t rows, sl_model_shape *out);
SL_MUST_CHECK sl_status sl_plan_cut(sl_train_plan *plan);

/* plan_predict.c */
/* What a step of a replica is given: tokens, targets, and with documents positions. Returns how many. */
enum { SL_PLAN_ARGS = 3 };
int sl_plan_args(const sl_train_plan *plan, sl_arg_spec args[SL_PLAN_ARGS]);
/* Memory, and if wanted time at rates measured here. */
SL_MUST_CHECK sl_status sl_plan_predict(sl_train_plan *plan, bool timed);
/* Of the device: a matrix product of so many rows as wide as the model, in its element type, and a copy that no cache
 * holds. */
SL_MUST_CHECK sl_status sl_plan_measure_rates(sl_device *device, sl_dtype dtype, int64_t rows, int64_t width,
                                              sl_rates *out);
double sl_plan_machine_memory(void); /* bytes of the machine, or of the container that this runs in */

/* The stage as every rank makes it, with its tied parameters. */
SL_MUST_CHECK sl_status sl_plan_build_stage(const sl_train_plan *plan, int stage, sl_device *device, sl_stage **out);

/* plan_print.c: how many ranks there are and what replicas share out, in the words of the configuration. */
typedef struct sl_mesh_facts {
    int pp, dp;
    sl_shard_mode shard;
    int shard_group;
    int unsharded; /* 0: not known, or there is nothing to gather */
    sl_sum_mode sum;
} sl_mesh_facts;

const char *sl_mesh_text(const sl_mesh_facts *mesh, char *text, size_t size); /* returns text */
const char *sl_plan_mesh_text(const sl_train_plan *plan, char *text, size_t size);

/* Categories of a run from those of a pipeline; without optimizer, checkpoint and total. */
sl_plan_memory sl_plan_memory_of(const sl_pipeline_memory *memory);
void sl_plan_memory_sum(sl_plan_memory *memory); /* sets total and device */

/* plan_print.c: "f32", or "bf16, f32 master weights, f32 gradients". */
const char *sl_plan_precision_text(const sl_train_config *config, char *text, size_t size);

/* How the optimizer section reads for the optimizer. */
sl_optim_options sl_plan_optim_options(const sl_train_config *config);

#endif
