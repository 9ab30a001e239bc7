/* Wiring: all stages joined. Who makes which value and who uses it, what comes with the batch, which weights are tied,
 * how large the microbatches are, and where each weight lies in its rank's memory. */
#ifndef SL_PIPELINE_WIRING_H
#define SL_PIPELINE_WIRING_H

#include <sluice/pipeline.h>

#include "base/arena.h"

typedef struct sl_wire_input {
    const char *name;
    sl_meta metas[SL_MAX_SIZES];
    bool has_grad;
    sl_phase last_use;
    int maker, maker_output; /* maker SL_MAKER_ROOT: it comes with the batch */
    int root;                /* which root input; -1: a stage makes it */
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

#define SL_NO_OFFSET SIZE_MAX

typedef struct sl_wire_weight {
    const char *name;
    const char *tied_to; /* its tie's name, or its own */
    sl_meta meta, grad_meta;
    bool frozen, own_data, own_grad;
    int stage, index;                    /* its own place */
    int tie;                             /* -1: none */
    const struct sl_wire_weight *source; /* an earlier weight of the rank and tie has the values; NULL: this one */
    size_t data_offset, grad_offset;     /* in the rank's blocks; SL_NO_OFFSET: the caller's, or none */
    sl_meta kept_meta, kept_grad_meta;   /* what a rank keeps: the whole, or with SL_SHARD_FULL a shard in one dim */
    sl_weight_shardings shardings;
    /* Collectives move equal pieces: so many elements for each part (of shardings.counted), and for the parts that are one
     * shard (of shardings.updated). Piece i begins at i times that; what lies past the end is padding. */
    int64_t part_room, shard_room;
    size_t data_room, grad_room;            /* bytes that they take in the rank's blocks */
    size_t block_offset, grad_block_offset; /* in the stage's blocks of gathered weights and gradients */
} sl_wire_weight;

typedef struct sl_wire_stage {
    int rank;
    int local;                     /* place among the stages of its rank */
    int first_input, first_output; /* first row in the tables of its rank */
    sl_wire_input *inputs;
    int input_count;
    sl_wire_output *outputs;
    int output_count;
    sl_wire_weight *weights;
    int weight_count;
    int size_count;
    bool can_train, can_split, can_infer, writes_all_grads, keeps_in_b;
    size_t saved_i_bytes, saved_w_bytes, kept_bytes, scratch_bytes;
    size_t constant_bytes[SL_MAX_SIZES];
    size_t packed_bytes;
    size_t packed_offset; /* in the rank's block of packed weights or, with shards, in that of gathered weights */
    size_t weight_block_bytes, grad_block_bytes; /* with shards: all weights gathered, all gradients of a step */
} sl_wire_stage;

typedef struct sl_wire_root {
    const char *name;
    sl_meta metas[SL_MAX_SIZES]; /* of a microbatch; rank -1 while open */
    sl_chunk_kind kind;
    int dim;
    sl_meta whole; /* of the batch; rank -1 if it cannot be known (CUSTOM) */
    bool derived;  /* the size of the batch follows from the stages' microbatches alone */
    bool grad;     /* its gradient is wanted */
    int position;  /* in the order of stages and their inputs; -1: no stage uses it */
} sl_wire_root;

/* One weight of a tie. */
typedef struct sl_tie_member {
    int stage, weight;
} sl_tie_member;

/* Weights that share their values; by stage, then by their order in it. */
typedef struct sl_wire_tie {
    const char *name; /* what the weights are tied to */
    const sl_tie_member *members;
    int member_count; /* at least 2 */
} sl_wire_tie;

/* What one rank has. */
typedef struct sl_wire_rank {
    const int *stages; /* rising */
    int stage_count;
    int input_rows, output_rows, grad_rows;
} sl_wire_rank;

/* A sharding that weights have, and how it was made. */
typedef struct sl_wire_sharding {
    sl_sharding sharding;
    int group;
    const sl_shard_place *places;
    struct sl_wire_sharding *next;
} sl_wire_sharding;

typedef struct sl_wiring {
    sl_arena *arena;
    sl_wire_rank *ranks;
    int rank_count;
    sl_wire_stage *stages;
    int stage_count;
    sl_pipeline_edge *edges;
    int *grad_rows; /* of each edge: its row among the gradients that come back to its maker's rank */
    int edge_count;
    sl_wire_root *roots; /* not in the arena: it grows */
    int root_count;
    size_t root_capacity;
    sl_wire_tie *ties;
    int tie_count;
    int loss_stage, loss_output; /* -1: there is none */

    int replicas;
    sl_shard_mode shard;
    int shard_group; /* replicas that share */
    /* The replicas in their order, which is that of shards, and in the order of parts: shard `replica` of every held and
     * updated is the replica's, and shard part_of[replica] of every counted. */
    sl_shard_place *places, *part_places;
    int *part_of;
    sl_wire_sharding *shardings; /* of all weights */
    int microbatches;
    int size_count;  /* 1, or 2 if the batch does not divide */
    int large_count; /* microbatches of the larger size; all of them if there is one size */
    int64_t samples[SL_MAX_SIZES];
} sl_wiring;

/* Lets a description outlive its stage: what it points to is copied into the arena. */
SL_MUST_CHECK sl_status sl_stage_desc_copy(sl_arena *arena, sl_stage_desc *desc);

SL_MUST_CHECK sl_status sl_wiring_create(const sl_pipeline_options *options, sl_wiring **out);
void sl_wiring_destroy(sl_wiring *wiring); /* NULL is fine */

/* Steps of the creation. Who has what of each weight, and the memory of a rank that follows. */
SL_MUST_CHECK sl_status sl_wiring_shard_weights(sl_wiring *wiring);
void sl_wiring_free_shardings(sl_wiring *wiring);
/* The metadata of all values. */
SL_MUST_CHECK sl_status sl_wiring_settle_shapes(sl_wiring *wiring, const sl_pipeline_options *options);

int sl_wiring_find_root(const sl_wiring *wiring, const char *name); /* -1: there is none */

int sl_wiring_size(const sl_wiring *wiring, int microbatch);        /* 0 or 1 */
int64_t sl_wiring_samples(const sl_wiring *wiring, int microbatch); /* in it */
int64_t sl_wiring_first_sample(const sl_wiring *wiring, int microbatch);
size_t sl_wiring_bytes(const sl_wiring *wiring, const sl_meta *metas); /* the largest over the sizes */

/* What a replica has of a weight: the elements of one shard. */
static inline sl_param_range sl_shard_range(const sl_sharding *sharding, int shard)
{
    const sl_shard *own = &sharding->shards[shard];
    return (sl_param_range){ .first = own->offsets[0], .count = own->size.dims[0] };
}

/* The pairs of stages that are joined, with the bytes of all values between them; the caller frees both. bytes may be
 * NULL. */
SL_MUST_CHECK sl_status sl_wiring_stage_edges(const sl_wiring *wiring, sl_edge **out, double **bytes, int *count);

#endif
