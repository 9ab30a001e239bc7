/* Programs: what one rank does in a step, as a flat array of instructions with every buffer and channel resolved. */
#ifndef SL_RUNTIME_PROGRAM_H
#define SL_RUNTIME_PROGRAM_H

#include "base/arena.h"
#include "runtime/slots.h"
#include "runtime/wiring.h"

typedef enum sl_code {
    SL_CODE_RECEIVE,      /* waits for the channel's next message; cell gets its memory */
    SL_CODE_RELEASE,      /* gives the message in cell back */
    SL_CODE_RESERVE,      /* waits for room for a message; cell gets its memory */
    SL_CODE_COMMIT,       /* sends the message in cell */
    SL_CODE_TO_MESSAGE,   /* copies from -> cell, device to message */
    SL_CODE_FROM_MESSAGE, /* copies from -> cell, message to device */
    SL_CODE_ADD,          /* adds from to cell, elementwise */
    SL_CODE_RUN,          /* one phase of the frame's microbatch at its stage */
    SL_CODE_LOSS,         /* looks at the loss that was just made */
    SL_CODE_OUTPUT        /* hands an output to whoever asked for it */
} sl_code;

typedef struct sl_instr {
    uint8_t code;  /* an sl_code */
    uint8_t phase; /* RUN */
    int32_t index; /* channel of a message; OUTPUT: which of the stage's */
    int32_t microbatch;
    int32_t stage;
    sl_frame *frame;     /* RUN, LOSS, OUTPUT */
    void **cell, **from; /* where the pointers stand */
    const sl_meta *meta; /* of the value in cell */
} sl_instr;

/* The instructions of one action of the schedule. */
typedef struct sl_program_action {
    sl_action action;
    int64_t cell; /* its place in the rank's list of the schedule */
    int64_t first, count;
    char text[48]; /* as far as a note takes it */
} sl_program_action;

typedef struct sl_program {
    sl_program_action *actions;
    int64_t action_count;
    size_t action_capacity;
    sl_instr *instrs;
    int64_t instr_count;
    size_t instr_capacity;
    sl_frame *frames; /* of the rank's stages: [local stage * microbatches + microbatch]; in the arena */
} sl_program;

void sl_program_free(sl_program *program);

/* A message channel of the pipeline: forward along an edge, or back with its gradient. */
typedef struct sl_route {
    int edge;
    bool grad;
    int src, dst;
    size_t bytes; /* of the largest message */
    int capacity; /* messages that it holds */
} sl_route;

/* All routes, in the same order on every rank. */
typedef struct sl_routes {
    sl_route *list;
    int count;
    int *forward, *backward; /* of each edge; -1 where it has none */
} sl_routes;

SL_MUST_CHECK sl_status sl_routes_create(const sl_wiring *wiring, sl_routes *out);
void sl_routes_free(sl_routes *routes);

/* A pointer that is known once memory has been laid out. */
typedef struct sl_place {
    void **cell;
    sl_slot slot;
} sl_place;

/* What compiling fills beside the program. */
typedef struct sl_layout {
    sl_arena *arena; /* frames and cells */
    sl_slots slots;
    sl_place *places;
    int64_t place_count;
    size_t place_capacity;
} sl_layout;

typedef struct sl_compile_options {
    const sl_wiring *wiring;
    const sl_schedule *schedule; /* lowered and checked */
    const sl_routes *routes;
    int rank;
    bool training;           /* else the forwards alone */
    bool in_place;           /* messages are memory that stages can work on */
    sl_layout *layout;       /* NULL: only the order of messages matters (another rank's program) */
    sl_stage *const *stages; /* of the rank, with layout */
    int stage_count;
} sl_compile_options;

SL_MUST_CHECK sl_status sl_program_compile(const sl_compile_options *options, sl_program *out);

/* Chooses the capacity of every route: programs[r] is that of rank r. Capacities only grow. */
SL_MUST_CHECK sl_status sl_routes_size(sl_routes *routes, const sl_program *programs, int ranks);

#endif
