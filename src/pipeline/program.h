/* Programs: what one rank does in a step, as a flat array of instructions with every cell, slot and route resolved. */
#ifndef SL_PIPELINE_PROGRAM_H
#define SL_PIPELINE_PROGRAM_H

#include "pipeline/slots.h"
#include "pipeline/wiring.h"

/* A cell whose pointer is known once memory has been laid out. */
typedef struct sl_cell_place {
    int32_t cell;
    sl_slot slot;
    bool on_host; /* of the slots on the host */
} sl_cell_place;

typedef struct sl_rank_program {
    sl_pipeline_action *actions;
    int64_t action_count;
    size_t action_capacity;
    sl_pipeline_instr *instrs;
    int64_t instr_count;
    size_t instr_capacity;
    sl_cell_place *places;
    int64_t place_count;
    size_t place_capacity;
    int32_t cell_count;
    int64_t tail; /* first instruction after the last action's */
} sl_rank_program;

void sl_rank_program_free(sl_rank_program *program);

/* Cells of a microbatch at a stage: inputs, outputs, output_grads, input_grads, then the three regions. */
enum { SL_REGION_SAVED_I, SL_REGION_SAVED_W, SL_REGION_KEPT, SL_REGION_COUNT };

typedef struct sl_frame_cells {
    int32_t inputs, outputs, output_grads, input_grads, regions;
} sl_frame_cells;

/* The same for every program of the pipeline. */
sl_frame_cells sl_frame_cells_of(const sl_wiring *wiring, int stage, int microbatch);

/* All routes: those of the edges, then those of tied weights. */
typedef struct sl_routes {
    sl_route *list;
    int count;
    int edge_routes;         /* how many belong to edges */
    int *forward, *backward; /* of each edge; -1: none */
} sl_routes;

/* training: gradients of tied weights travel, too. */
SL_MUST_CHECK sl_status sl_routes_create(const sl_wiring *wiring, bool training, sl_routes *out);
void sl_routes_free(sl_routes *routes);

/* Gradients of tied weights travel in pieces of at most this size. */
#define SL_TIE_PIECE_BYTES ((size_t)1 << 20)

/* Device memory of a rank for collectives between ranks that reach each other's, by what they are about. */
typedef struct sl_staging {
    size_t sums, gathers, joins; /* of gradients over replicas, of weights in a group, of sums across groups */
    size_t ties;                 /* of all tied weights of this rank that other ranks have, too */
} sl_staging;

sl_staging sl_staging_of(const sl_wiring *wiring, int rank, bool training);
/* Of one tie; 0 if all its weights are on one rank, or frozen. The same on all ranks. */
size_t sl_staging_of_tie(const sl_wiring *wiring, const sl_wire_tie *tie);

typedef struct SL_NAMED_FIELDS sl_compile_options {
    const sl_wiring *wiring;
    const sl_schedule *schedule; /* lowered and checked */
    const sl_routes *routes;
    int rank;
    bool training; /* else the forwards alone */
    bool in_place; /* messages are memory that stages can work on */
    bool overlaps; /* as in sl_pipeline_options */
    sl_slots *slots;
    sl_slots *host_slots; /* of what is off the device */
    size_t offload_bytes; /* that those may take */
} sl_compile_options;

SL_MUST_CHECK sl_status sl_rank_program_compile(const sl_compile_options *options, sl_rank_program *out);

/* Chooses the capacity of every edge's route: programs[r] is that of rank r. Capacities only grow. any_slot: a message takes
 * whichever slot is free; else the slots are used in turn. */
SL_MUST_CHECK sl_status sl_routes_size(sl_routes *routes, const sl_rank_program *const *programs, int ranks,
                                       bool any_slot);

#endif
