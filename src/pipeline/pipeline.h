/* A compiled pipeline from the inside. */
#ifndef SL_PIPELINE_PIPELINE_H
#define SL_PIPELINE_PIPELINE_H

#include "pipeline/program.h"

/* Losses and seeds lie this many bytes apart, enough for f64. */
#define SL_SCALAR_STRIDE ((size_t)8)

/* What one rank does and needs. */
typedef struct sl_rank_plan {
    sl_slots slots;      /* of both programs */
    sl_slots host_slots; /* of what is off the device between F and its backward */
    sl_rank_program train, eval;
    size_t slot_bytes;   /* of slots, laid out */
    size_t scalar_bytes; /* losses and seeds, on the rank that has the loss */
    size_t beside_at;    /* in the scratch, of what a RUN beside another has; 0: there is none */
    sl_pipeline_memory memory;
} sl_rank_plan;

struct sl_pipeline {
    sl_schedule *schedule;
    sl_wiring *wiring;
    sl_routes routes;
    sl_rank_plan *ranks;
    bool training; /* the schedule has backward actions */
    sl_message_place messages;
    size_t offload_bytes; /* that a rank may use of the host */
    bool overlaps;        /* as in sl_pipeline_options */
};

/* Parts of the root input lie in one piece of the whole, so that a stage can use them where they are. */
bool sl_root_is_contiguous(const sl_wire_root *root);

/* Offsets of all weights, and the memory of every rank. */
void sl_pipeline_count_memory(sl_pipeline *pipeline);

#endif
