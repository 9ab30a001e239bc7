/* Wiring: what all ranks know of all stages. Who makes which value and who uses it, what comes with the batch, which
 * parameters are tied, how large the microbatches are. The same on every rank, and so are the errors found in it. */
#ifndef SL_RUNTIME_WIRING_H
#define SL_RUNTIME_WIRING_H

#include "base/arena.h"
#include "runtime/stage.h"

typedef struct sl_wire_input {
    const char *name;
    sl_meta metas[SL_MAX_SIZES];
    bool has_grad;
    sl_phase last_use;
    int maker, maker_output; /* maker SL_MAKER_ROOT: it comes with the batch */
    int root;                /* which root input; -1 where a stage makes it */
    int edge;                /* its edge; -1 for a root input */
} sl_wire_input;

typedef struct sl_wire_output {
    const char *name;
    sl_meta metas[SL_MAX_SIZES];
    bool has_grad;
    bool loss;
    sl_phase last_use, grad_last_use;
    const int *edges; /* to its users, by stage and input */
    int edge_count;
} sl_wire_output;

typedef struct sl_wire_weight {
    const char *name;
    sl_meta meta;
    bool frozen;
} sl_wire_weight;

typedef struct sl_wire_stage {
    int rank; /* -1 until its rank has told of it */
    sl_wire_input *inputs;
    int input_count;
    sl_wire_output *outputs;
    int output_count;
    sl_wire_weight *weights;
    int weight_count;
    int size_count;
    bool can_train, can_split;
    bool can_infer;
    bool writes_all_grads;
} sl_wire_stage;

/* One value from one stage to another. */
typedef struct sl_wire_edge {
    int from, output;
    int to, input;
    bool has_grad; /* a gradient comes back along it */
    bool remote;   /* the two stages are on different ranks */
} sl_wire_edge;

typedef struct sl_wire_root {
    const char *name;
    sl_meta metas[SL_MAX_SIZES]; /* of a microbatch; rank -1 while open */
    sl_chunk_kind kind;
    int dim;
    sl_meta whole; /* of the batch; rank -1 where it cannot be known (CUSTOM) */
    bool derived;  /* how large the batch is follows from the stages' microbatches alone */
    int position;  /* in the order of stages and their inputs; -1 where no stage uses it */
} sl_wire_root;

/* A parameter that several stages have. */
typedef struct sl_wire_tie {
    const char *name;
    sl_meta meta;
    bool frozen;
    const int *stages; /* rising */
    int stage_count;
} sl_wire_tie;

typedef struct sl_wiring {
    sl_arena *arena;
    int ranks;
    sl_wire_stage *stages;
    int stage_count;
    sl_wire_edge *edges;
    int edge_count;
    sl_wire_root *roots; /* not in the arena: it grows */
    int root_count;
    size_t root_capacity;
    sl_wire_tie *ties;
    int tie_count;
    int loss_stage, loss_output; /* -1 where there is none */

    int microbatches;
    int size_count;  /* 1, or 2 where the batch does not divide */
    int large_count; /* microbatches of the larger size; all where there is one size */
    int64_t samples[SL_MAX_SIZES];
} sl_wiring;

/* Collective. outcome is how this rank has fared so far: where one has failed, all fail with its code and message. */
SL_MUST_CHECK sl_status sl_wiring_create(const sl_runtime_options *options, sl_status outcome, sl_wiring **out);
void sl_wiring_destroy(sl_wiring *wiring); /* NULL is fine */

/* Collective: SL_OK where every rank says so; else all fail with the first failing rank's message. */
SL_MUST_CHECK sl_status sl_wiring_agree(sl_group *group, sl_status outcome);

/* Steps of the creation. */
SL_MUST_CHECK sl_status sl_wiring_gather(sl_wiring *wiring, const sl_runtime_options *options, sl_status outcome);
SL_MUST_CHECK sl_status sl_wiring_agree_shapes(sl_wiring *wiring, const sl_runtime_options *options);

int sl_wiring_find_root(const sl_wiring *wiring, const char *name); /* -1 where there is none */
SL_MUST_CHECK sl_status sl_wiring_add_root(sl_wiring *wiring, const char *name, int *out);

int sl_wiring_size(const sl_wiring *wiring, int microbatch);        /* 0 or 1 */
int64_t sl_wiring_samples(const sl_wiring *wiring, int microbatch); /* in it */
int64_t sl_wiring_first_sample(const sl_wiring *wiring, int microbatch);

/* The pairs of stages that are joined, for the schedule's passes; the caller frees *out. */
SL_MUST_CHECK sl_status sl_wiring_stage_edges(const sl_wiring *wiring, sl_edge **out, int *count);

#endif
